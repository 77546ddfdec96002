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

use super::groups::{self, Group};
use super::inbox::Inbox;
use super::watch::{Watch, lock};
use super::{CommError, Pieces, Rows, SHARED_OUT, Take, Transport, Who, ranks, share};
use super::{pieces, rows};
use crate::kernels::KernelError;
use crate::pool::Pool;
use forebay_plan::Plan;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What the ranks of a process share.
#[derive(Debug)]
pub struct World {
    meetings: Vec<Meeting>,
    /// For each rank.
    inboxes: Vec<Inbox>,
    watch: Watch,
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

/// One rank's end.
#[derive(Debug)]
pub struct Link {
    world: Arc<World>,
    rank: u32,
    /// The groups of the plan, with their meetings.
    groups: Vec<(Group, usize)>,
    /// What the members of a group have shown, while this rank looks at it: what they give, where they take to, or their rows.
    given: Vec<Pieces>,
    taken: Vec<Pieces>,
    rows: Vec<Rows>,
}

/// Connects the ranks of a plan: an end for each. A wait that takes longer than `stall` is an error.
pub fn connect(plan: &Plan, stall: Duration) -> Vec<Link> {
    let count = ranks(&plan.mesh) as u32;
    let mut meetings: Vec<Meeting> = vec![];
    let mut known: HashMap<(usize, Vec<u32>), usize> = HashMap::new();
    let mut meeting = |(number, group): (usize, Group)| {
        let meeting = known.entry((number, group.members.clone())).or_insert_with(|| {
            meetings.push(Meeting::new(group.members.clone()));
            meetings.len() - 1
        });
        (group, *meeting)
    };
    let mut of_rank = |rank| groups::of_rank(plan, rank).into_iter().enumerate().map(&mut meeting).collect();
    let groups: Vec<Vec<(Group, usize)>> = (0..count).map(&mut of_rank).collect();
    let inboxes = (0..count).map(|_| Inbox::default()).collect();
    let world = Arc::new(World { meetings, inboxes, watch: Watch::new(0..count, stall) });
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

impl Meeting {
    fn new(members: Vec<u32>) -> Meeting {
        let n = members.len();
        let here = vec![false; n];
        let state = MeetingState { here, arrived: 0, round: 0, pieces: vec![None; n], rows: vec![None; n] };
        Meeting { members, state: Mutex::new(state), bell: Condvar::new() }
    }
}

impl World {
    fn fail(&self, rank: u32, why: &str) {
        self.watch.end(CommError::Failed { who: Who::Rank(rank), why: why.into() });
        // Whoever looked before holds the lock until it sleeps, so nobody misses the bell.
        for meeting in &self.meetings {
            drop(lock(&meeting.state));
            meeting.bell.notify_all();
        }
        self.inboxes.iter().for_each(Inbox::ring);
    }

    /// Waits for all members of a meeting; what `show` notes can be seen by all of them then.
    fn meet(&self, meeting: &Meeting, me: usize, show: impl FnOnce(&mut MeetingState)) -> Result<(), CommError> {
        self.watch.check()?;
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
        self.watch.wait(meeting.members[me], state, &meeting.bell, |state| state.round != round, missing).map(drop)
    }
}

impl Link {
    /// The meeting of a group, and which member this rank is.
    fn group(&self, dims: &[u32]) -> (usize, usize) {
        let group = self.groups.iter().find(|(group, _)| group.dims == dims);
        let (group, meeting) = group.expect("connected for the groups of the plan");
        (*meeting, group.me)
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
        take: Take,
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
            if !x.same_shape(out) {
                let (own, other) = (out.elements() as u64, x.elements() as u64);
                return Err(KernelError::Unequal { own, other }.into());
            }
            self.given.push(x);
            self.taken.push(theirs);
        }
        let (given, taken) = (self.given.as_slice(), self.taken.as_slice());
        let elements = out.elements();
        let everyone_gets_all = x.step == 0;
        match take {
            Take::Shifted(by) => {
                let source = given[(me + members - by) % members];
                // SAFETY: every member's array is as it was shown, nobody writes it before the last rendezvous, and `out` is this rank's own.
                unsafe { pieces::copy_all(pool, out, 1, &|_| (source, 0)) };
            }
            Take::Each => {
                // SAFETY: every member's array is as it was shown, nobody writes it before the last rendezvous, and `out` is this rank's own.
                unsafe { pieces::copy_all(pool, out, members, &|member| (given[member], me)) };
            }
            Take::Combined(op) if everyone_gets_all && members > 1 && elements >= SHARED_OUT => {
                let part = |member: usize| share(elements, member, members);
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
            Take::Combined(op) => unsafe { pieces::reduce(pool, op, given, me, out, (0, elements)) },
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
        self.world.watch.check()?;
        let inbox = &self.world.inboxes[to as usize];
        let mut message = inbox.memory(self.rank, channel.into());
        message.clear();
        message.extend_from_slice(bytes);
        inbox.put(self.rank, channel.into(), message);
        Ok(())
    }

    fn recv(&mut self, from: u32, channel: u32, bytes: &mut [u8]) -> Result<(), CommError> {
        let inbox = &self.world.inboxes[self.rank as usize];
        let message = inbox.take(&self.world.watch, self.rank, (from, channel.into()), || false)?;
        let message = message.expect("nobody leaves");
        bytes.copy_from_slice(&message);
        inbox.recycle(from, channel.into(), message);
        Ok(())
    }

    fn fail(&self, why: &str) {
        self.world.fail(self.rank, why);
    }
}
