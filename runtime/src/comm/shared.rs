//! Ranks that are threads of one process: they read each other's memory where it is.
//!
//! ```text
//! exchange:  say where my array is ── all are here ── read from everyone, write my own ── all are done ──►
//! send:      copy into the receiver's inbox          recv:  copy out of mine
//! ```
//!
//! **Why nobody sees a half-written array.** A rank writes its own memory only; others read it only between the two rendezvous of a collective, while its owner is
//! inside of the same collective and writes nothing but its result, which nobody reads before a rendezvous. A rendezvous goes through a mutex that every
//! member takes, so what each wrote before it is there for all after it. A rank that gives up in between writes nothing any more, and its memory lives
//! until all ranks have stopped.

use super::{CommError, Pieces, Rows, Transport, coordinates, ranks};
use super::{pieces, rows};
use crate::pool::Pool;
use forebay_plan::{Kernel, MeshDim, Plan, ReduceOp};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// All-reduces of so many elements are shared out: each member combines a part, which the others then copy.
const SHARED_OUT: usize = 4096;

/// What the ranks of a process share.
#[derive(Debug)]
pub struct World {
    meetings: Vec<Meeting>,
    /// For each rank.
    inboxes: Vec<Inbox>,
    /// The rank that gave up first, plus 1; 0 when none has.
    failed: AtomicU32,
    /// For each rank: does it wait for others?
    waiting: Vec<AtomicBool>,
    stall: Duration,
}

/// Where the members of a group meet.
#[derive(Debug)]
struct Meeting {
    members: Vec<u32>,
    state: Mutex<MeetingState>,
    bell: Condvar,
}

#[derive(Debug)]
struct MeetingState {
    /// Who is here, by member; how many.
    here: Vec<bool>,
    arrived: usize,
    /// Counts rendezvous.
    round: u64,
    /// What each member has shown: what it gives and where it takes to, or its rows.
    pieces: Vec<Option<(Pieces, Pieces)>>,
    rows: Vec<Option<Rows>>,
}

/// Messages for a rank.
#[derive(Debug, Default)]
struct Inbox {
    channels: Mutex<Vec<Channel>>,
    bell: Condvar,
}

/// Messages from one sender for one purpose.
#[derive(Debug)]
struct Channel {
    from: u32,
    number: u32,
    waiting: VecDeque<Vec<u8>>,
    /// Memory of messages that were read.
    free: Vec<Vec<u8>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A rank that panics has failed, which everybody looks at before anything else.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One rank's end.
#[derive(Debug)]
pub struct Link {
    world: Arc<World>,
    rank: u32,
    /// For each group of the plan: its mesh dimensions, its meeting, and which member this rank is.
    groups: Vec<(Vec<u32>, usize, usize)>,
    /// What the members of a group have shown, while this rank looks at it: what they give, where they take to, or their rows.
    given: Vec<Pieces>,
    taken: Vec<Pieces>,
    rows: Vec<Rows>,
}

/// Connects the ranks of a plan: an end for each. A wait that takes longer than `stall` is an error.
pub fn connect(plan: &Plan, stall: Duration) -> Vec<Link> {
    let count = ranks(&plan.mesh) as u32;
    let mut meetings: Vec<Meeting> = vec![];
    let mut groups: Vec<Vec<(Vec<u32>, usize, usize)>> = vec![vec![]; count as usize];
    for dims in groups_of(plan) {
        let mut known: HashMap<Vec<u32>, usize> = HashMap::new();
        for rank in 0..count {
            let here = coordinates(&plan.mesh, rank);
            let others = (0..).zip(&here).filter(|(dim, _)| !dims.contains(dim)).map(|(_, at)| *at).collect();
            let meeting = *known.entry(others).or_insert_with(|| {
                meetings.push(Meeting::new(vec![]));
                meetings.len() - 1
            });
            groups[rank as usize].push((dims.clone(), meeting, number(&plan.mesh, &dims, &here)));
        }
    }
    // Members in the order of their numbers, which need not be that of the ranks.
    for (number, meeting) in meetings.iter_mut().enumerate() {
        let of = |rank: &u32| groups[*rank as usize].iter().find(|g| g.1 == number).map(|g| g.2);
        let mut members: Vec<u32> = (0..count).filter(|rank| of(rank).is_some()).collect();
        members.sort_by_key(of);
        *meeting = Meeting::new(members);
    }
    let inboxes = (0..count).map(|_| Inbox::default()).collect();
    let waiting = (0..count).map(|_| AtomicBool::new(false)).collect();
    let world = Arc::new(World { meetings, inboxes, failed: AtomicU32::new(0), waiting, stall });
    let link = |(rank, groups)| Link {
        world: Arc::clone(&world),
        rank,
        groups,
        given: Vec::with_capacity(count as usize),
        taken: Vec::with_capacity(count as usize),
        rows: Vec::with_capacity(count as usize),
    };
    (0..).zip(groups).map(link).collect()
}

/// The groups that a plan's kernels name.
fn groups_of(plan: &Plan) -> BTreeSet<Vec<u32>> {
    let kernels = plan.programs.iter().flat_map(|p| &p.instructions).map(|i| &i.kernel);
    let group = |kernel: &Kernel| match kernel {
        Kernel::Exchange(k) => Some(k.group.clone()),
        Kernel::AllToAllV(k) => Some(k.group.clone()),
        _ => None,
    };
    kernels.filter_map(group).collect()
}

/// Which member of its group a rank is: row-major over the group's dimensions.
fn number(mesh: &[MeshDim], dims: &[u32], coordinates: &[u32]) -> usize {
    dims.iter().fold(0, |n, dim| n * mesh[*dim as usize].size as usize + coordinates[*dim as usize] as usize)
}

impl Meeting {
    fn new(members: Vec<u32>) -> Meeting {
        let n = members.len();
        let here = vec![false; n];
        let state = MeetingState { here, arrived: 0, round: 0, pieces: vec![None; n], rows: vec![None; n] };
        Meeting { members, state: Mutex::new(state), bell: Condvar::new() }
    }
}

impl World {
    fn check(&self) -> Result<(), CommError> {
        match self.failed.load(Ordering::SeqCst) {
            0 => Ok(()),
            rank => Err(CommError::Failed { rank: rank - 1 }),
        }
    }

    fn fail(&self, rank: u32) {
        let _ = self.failed.compare_exchange(0, rank + 1, Ordering::SeqCst, Ordering::SeqCst);
        // Whoever looked before the store holds the lock until it sleeps, so nobody misses the bell.
        for meeting in &self.meetings {
            drop(lock(&meeting.state));
            meeting.bell.notify_all();
        }
        for inbox in &self.inboxes {
            drop(lock(&inbox.channels));
            inbox.bell.notify_all();
        }
    }

    /// A rank sleeps until something `happens` to what a lock guards, or everything ends.
    fn wait<'a, T>(
        &self,
        rank: u32,
        guard: MutexGuard<'a, T>,
        bell: &Condvar,
        happens: impl Fn(&T) -> bool,
        missing: impl Fn(&T) -> Vec<u32>,
    ) -> Result<MutexGuard<'a, T>, CommError> {
        if happens(&guard) {
            return Ok(guard);
        }
        let waiting = &self.waiting[rank as usize];
        waiting.store(true, Ordering::SeqCst);
        let result = self.sleep(guard, bell, happens, missing);
        waiting.store(false, Ordering::SeqCst);
        result
    }

    fn sleep<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        bell: &Condvar,
        happens: impl Fn(&T) -> bool,
        missing: impl Fn(&T) -> Vec<u32>,
    ) -> Result<MutexGuard<'a, T>, CommError> {
        let mut begun = None;
        while !happens(&guard) {
            self.check()?;
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            let Some(left) = self.stall.checked_sub(waited) else {
                // Whom it waits for may itself wait for another: to blame is who does not wait.
                let awake = |rank: &u32| !self.waiting[*rank as usize].load(Ordering::SeqCst);
                let mut awake: Vec<u32> = (0..self.waiting.len() as u32).filter(awake).collect();
                if awake.is_empty() {
                    awake = missing(&guard);
                }
                return Err(CommError::Stalled { limit: self.stall, missing: awake });
            };
            guard = bell.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(guard)
    }
}

impl World {
    /// Waits for all members of a meeting; what `show` notes can be seen by all of them then.
    fn meet(&self, meeting: &Meeting, me: usize, show: impl FnOnce(&mut MeetingState)) -> Result<(), CommError> {
        self.check()?;
        let mut state = lock(&meeting.state);
        show(&mut state);
        state.arrived += 1;
        state.here[me] = true;
        if state.arrived == meeting.members.len() {
            state.arrived = 0;
            state.here.fill(false);
            state.round += 1;
            meeting.bell.notify_all();
            return Ok(());
        }
        let round = state.round;
        let missing = |state: &MeetingState| {
            let absent = meeting.members.iter().zip(&state.here).filter(|(_, here)| !**here);
            absent.map(|(member, _)| *member).collect()
        };
        self.wait(meeting.members[me], state, &meeting.bell, |state| state.round != round, missing).map(drop)
    }
}

impl Link {
    /// The meeting of a group, and which member this rank is.
    fn group(&self, dims: &[u32]) -> (usize, usize) {
        let group = self.groups.iter().find(|(of, _, _)| of == dims);
        let (_, meeting, me) = group.expect("connected for the groups of the plan");
        (*meeting, *me)
    }
}

/// (What was shown stays the same until its owner comes to another collective, which is after the last rendezvous of this one.)
const SHOWN: &str = "every member has shown something";

impl Transport for Link {
    unsafe fn exchange(
        &mut self,
        group: &[u32],
        x: &Pieces,
        out: &Pieces,
        reduce: Option<ReduceOp>,
        pool: &Pool,
    ) -> Result<(), CommError> {
        let (meeting, me) = self.group(group);
        let (world, meeting) = (&self.world, &self.world.meetings[meeting]);
        let members = meeting.members.len();
        world.meet(meeting, me, |state| state.pieces[me] = Some((*x, *out)))?;
        self.given.clear();
        self.taken.clear();
        for shown in &lock(&meeting.state).pieces {
            let (x, theirs) = shown.expect(SHOWN);
            assert!(x.same_shape(out), "members exchange pieces of one shape");
            self.given.push(x);
            self.taken.push(theirs);
        }
        let (given, taken) = (self.given.as_slice(), self.taken.as_slice());
        let elements = out.elements();
        let everyone_gets_all = x.step == 0;
        match reduce {
            None => {
                // SAFETY: every member's array is as it was shown, nobody writes it before the last rendezvous, and `out` is this rank's own.
                unsafe { pieces::copy_all(pool, out, members, &|member| (given[member], me)) };
            }
            Some(op) if everyone_gets_all && members > 1 && elements >= SHARED_OUT => {
                let part = |member: usize| (elements * member / members, elements * (member + 1) / members);
                // SAFETY: as above.
                unsafe { pieces::reduce(pool, op, given, me, out, part(me)) };
                // From here on all parts of results are there, and only read.
                world.meet(meeting, me, |_| {})?;
                for member in (0..members).filter(|member| *member != me) {
                    // SAFETY: that part of the member's result is complete, and of this rank's nobody reads it.
                    unsafe { pieces::copy_part(pool, &taken[member], out, part(member)) };
                }
            }
            // SAFETY: as above.
            Some(op) => unsafe { pieces::reduce(pool, op, given, me, out, (0, elements)) },
        }
        world.meet(meeting, me, |_| {})
    }

    unsafe fn rows(&mut self, group: &[u32], rows: &Rows, pool: &Pool) -> Result<(), CommError> {
        let (meeting, me) = self.group(group);
        let (world, meeting) = (&self.world, &self.world.meetings[meeting]);
        // SAFETY: the caller's contract.
        unsafe { rows.check() }?;
        world.meet(meeting, me, |state| state.rows[me] = Some(*rows))?;
        self.rows.clear();
        self.rows.extend(lock(&meeting.state).rows.iter().map(|shown| shown.expect(SHOWN)));
        // SAFETY: all members have checked their arrays, which nobody writes before the last rendezvous; the result is this rank's own.
        unsafe { rows::take(&self.rows, me, pool) }?;
        world.meet(meeting, me, |_| {})
    }

    fn send(&mut self, to: u32, channel: u32, bytes: &[u8]) -> Result<(), CommError> {
        self.world.check()?;
        let inbox = &self.world.inboxes[to as usize];
        let mut channels = lock(&inbox.channels);
        let channel = find(&mut channels, self.rank, channel);
        let mut message = channel.free.pop().unwrap_or_default();
        message.clear();
        message.extend_from_slice(bytes);
        channel.waiting.push_back(message);
        inbox.bell.notify_all();
        Ok(())
    }

    fn recv(&mut self, from: u32, number: u32, bytes: &mut [u8]) -> Result<(), CommError> {
        let inbox = &self.world.inboxes[self.rank as usize];
        let mut channels = lock(&inbox.channels);
        find(&mut channels, from, number);
        let here = |channels: &Vec<Channel>| {
            channels.iter().any(|c| (c.from, c.number) == (from, number) && !c.waiting.is_empty())
        };
        let mut channels = self.world.wait(self.rank, channels, &inbox.bell, here, |_| vec![from])?;
        let channel = find(&mut channels, from, number);
        let message = channel.waiting.pop_front().expect("a message is here");
        bytes.copy_from_slice(&message);
        channel.free.push(message);
        Ok(())
    }

    fn fail(&self) {
        self.world.fail(self.rank);
    }
}

/// A channel, which is made when it is used for the first time.
fn find(channels: &mut Vec<Channel>, from: u32, number: u32) -> &mut Channel {
    let known = channels.iter().position(|c| (c.from, c.number) == (from, number));
    let at = known.unwrap_or_else(|| {
        channels.push(Channel { from, number, waiting: VecDeque::new(), free: vec![] });
        channels.len() - 1
    });
    &mut channels[at]
}
