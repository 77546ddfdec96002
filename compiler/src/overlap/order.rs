//! Within a program: an order in which units wait less for each other.
//!
//! ```text
//! cube   router ········ shared ── experts ····· add          cube   router shared ──── experts ····· add
//! links         dispatch           ······· combine     ──►    links         dispatch ──         combine
//! ```
//!
//! List scheduling (Graham 1966) over the units: whatever can start earliest comes next, and of those what most follows (the longest tail). Some lists wait a
//! little for what has a longer tail, or count exchanges several times, or let brief exchanges go before long ones; one prefers the given order. Around the best of
//! them others are tried, with tails of some tasks changed: where pieces are alike their tails are too, and which of them comes first where decides. The best of all
//! orders is taken, the given one included, whose
//! memory is no more than [`ROOM`] times what it was. Where something is waited for elsewhere that does not need all tasks, each list is made once more with all others behind what it
//! needs, and orders in which it is there earlier are a little better.
//! Memory is that of units which work at the same time: what an exchange reads is not written over before it has ended.
//!
//! Requires: a program without events; others are left as they are. Keeps: every value bit for bit, since an instruction never comes before what it needs. Costs: instructions × what is ready.

use super::insert::inserted;
use super::lanes::Lanes;
use super::tasks::{Tasks, Timed};
use crate::emit::place_frame;
use forebay_plan::{Program, StreamKind};

/// What a frame may be larger than that of the given order, when one instruction follows the other.
pub(super) const ROOM: f64 = 2.0;

/// Puts the instructions into a better order and places the frame again; the live bytes of the frame, when something has changed.
pub(super) fn reorder(program: &mut Program, awaited: &[usize], lanes: &Lanes) -> Option<u64> {
    if program.events > 0 {
        return None;
    }
    let tasks = Tasks::new((program, awaited), lanes);
    if !tasks.is_mixed() {
        return None;
    }
    let bound = (alone(&tasks).1 as f64 * ROOM) as u64;
    let (order, timed) = best(&tasks, bound)?;
    let mut changed = program.clone();
    let live = arrange(&mut changed, &order, &timed);
    let bytes = |p: &Program| p.slots.last().map_or(0, |frame| frame.bytes);
    if bytes(&changed) as f64 > bytes(program) as f64 * ROOM {
        return None;
    }
    *program = changed;
    Some(live)
}

/// Tasks in their given order, and their live bytes when one follows the other in memory.
pub(super) fn alone(tasks: &Tasks) -> (Timed, u64) {
    let given: Vec<u32> = (0..tasks.len() as u32).collect();
    (tasks.timed(&given), tasks.live(&given, &given))
}

/// Puts the instructions of a program into an order and places its frame; its live bytes.
pub(super) fn arrange(program: &mut Program, order: &[u32], timed: &Timed) -> u64 {
    program.instructions = order.iter().map(|&i| program.instructions[i as usize].clone()).collect();
    let frame = program.slots.len() - 1;
    let layout = place_frame(&mut program.buffers, &program.instructions, frame as u32, |at| timed.until[at]);
    program.slots[frame].bytes = layout.bytes;
    layout.live
}

/// Orders that are tried around the best list, when it is not near what no order beats.
const ROUNDS: u64 = 128;
/// One in so many tasks has another urgency, in turn: many lead away from where a list is, few find what is near.
const CHANGED: [u64; 4] = [2, 4, 8, 16];
/// By how much of the longest chain it is another.
const STEP: f64 = 0.6;
/// No order is looked for that would be better by less than this part.
const NEAR: f64 = 0.01;
/// What a second is worth by which what is waited for elsewhere is there earlier: it counts where a pipeline fills and drains, once for each stage, and elsewhere not.
const EARLY: f64 = 0.1;

impl Timed {
    /// What orders are compared by.
    pub(super) fn price(&self) -> f64 {
        self.cost + EARLY * self.awaited
    }

    /// The same of two, one behind the other; what is waited for is made by the second.
    pub(super) fn price_before(&self, second: &Timed) -> f64 {
        self.cost + EARLY * self.makespan + second.price()
    }
}

/// The cheapest order with at most so many bytes alive, of those that are tried: the given one, lists, and lists like the best one with the urgency of some tasks
/// changed, each kept when it is better.
pub(super) fn best(tasks: &Tasks, bound: u64) -> Option<(Vec<u32>, Timed)> {
    let mut best: Option<(Vec<u32>, Timed)> = None;
    let take = |best: &mut Option<(Vec<u32>, Timed)>, order: Vec<u32>| {
        let timed = tasks.timed(&order);
        let better = best.as_ref().is_none_or(|(_, so_far)| timed.price() < so_far.price());
        let taken = better && tasks.live(&order, &timed.until) <= bound;
        if taken {
            *best = Some((order, timed));
        }
        taken
    };
    take(&mut best, (0..tasks.len() as u32).collect());
    let users = tasks.users();
    let unawaited = tasks.unawaited();
    let waits = unawaited.contains(&true) && unawaited.contains(&false);
    let later: &[bool] = if waits { &[false, true] } else { &[false] };
    let mut urgent = None;
    for (rule, later) in Rule::all().flat_map(|rule| later.iter().map(move |later| (rule, *later))) {
        let (mut urgency, patience) = urgency(tasks, &users, rule);
        let fills = later && take(&mut best, inserted(tasks, &users, &urgency, &unawaited));
        if later {
            let most = urgency.iter().copied().fold(0.0, f64::max);
            urgency.iter_mut().zip(&unawaited).for_each(|(urgency, later)| *urgency -= if *later { most } else { 0.0 });
        }
        if take(&mut best, list(tasks, &users, &urgency, patience, bound)) || fills {
            urgent = Some((urgency, patience));
        }
    }
    if let Some((mut urgency, patience)) = urgent {
        let least = tasks.least() * (1.0 + NEAR);
        let step = STEP * urgency.iter().copied().fold(0.0, f64::max);
        for (round, one_in) in (0..ROUNDS).zip(CHANGED.into_iter().cycle()) {
            if best.as_ref().is_some_and(|(_, timed)| timed.makespan <= least) {
                break;
            }
            let changed = |(task, tail): (u64, &f64)| match scatter(round, task) {
                random if random % one_in == 0 => tail + step * ((random >> 32) as f64 / 2f64.powi(32) - 0.5),
                _ => *tail,
            };
            let other: Vec<f64> = (0..).zip(&urgency).map(changed).collect();
            let fills = waits && take(&mut best, inserted(tasks, &users, &other, &unawaited));
            if take(&mut best, list(tasks, &users, &other, patience, bound)) || fills {
                urgency = other;
            }
        }
    }
    best
}

/// A number that looks random, the same for the same two (SplitMix64's mixing, Steele, Lea and Flood 2014).
fn scatter(round: u64, task: u64) -> u64 {
    let mut z = (round << 32 | task).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// How a list is made.
#[derive(Clone, Copy)]
enum Rule {
    /// What can start first; of those the first of the given order.
    Given,
    /// What can start first, or so much of the longest tail later; of those that with the longest tail, exchanges counted so many times.
    Tail { patience: f64, exchanges: f64 },
    /// What can start first; of those a brief exchange, which would be long held up behind others, then that with the longest tail.
    Brief { exchanges: f64 },
}

/// An exchange is brief that takes less than this part of the longest.
const BRIEF: f64 = 0.02;

impl Rule {
    fn all() -> impl Iterator<Item = Rule> {
        let patience = [0.0, 0.005, 0.02, 0.05];
        let tails = patience
            .into_iter()
            .flat_map(|patience| [1.0, 2.0, 4.0].map(|exchanges| Rule::Tail { patience, exchanges }));
        let brief = [1.0, 4.0].into_iter().map(|exchanges| Rule::Brief { exchanges });
        std::iter::once(Rule::Given).chain(tails).chain(brief)
    }
}

/// Is a task an exchange?
fn is_link(tasks: &Tasks, at: usize) -> bool {
    tasks.unit[at] > StreamKind::Vector.number()
}

/// For each task: is it a brief exchange?
fn brief(tasks: &Tasks) -> Vec<bool> {
    let links = (0..tasks.len()).filter(|&at| is_link(tasks, at));
    let limit = BRIEF * links.map(|at| tasks.seconds[at]).fold(0.0, f64::max);
    (0..tasks.len()).map(|at| is_link(tasks, at) && tasks.seconds[at] < limit).collect()
}

/// For each task the seconds of the longest chain from it to the end.
fn tails(tasks: &Tasks, users: &[Vec<u32>], exchanges: f64) -> Vec<f64> {
    let mut tail: Vec<f64> =
        (0..tasks.len()).map(|at| tasks.seconds[at] * if is_link(tasks, at) { exchanges } else { 1.0 }).collect();
    for at in (0..tasks.len()).rev() {
        tail[at] += users[at].iter().map(|&user| tail[user as usize]).fold(0.0, f64::max);
    }
    tail
}

/// How urgent each task is by a rule, and for how many seconds what is more urgent is waited for.
fn urgency(tasks: &Tasks, users: &[Vec<u32>], rule: Rule) -> (Vec<f64>, f64) {
    let n = tasks.len();
    match rule {
        Rule::Given => ((0..n).map(|at| (n - at) as f64).collect(), 0.0),
        Rule::Tail { patience, exchanges } => {
            let tail = tails(tasks, users, exchanges);
            let longest = tail.iter().copied().fold(0.0, f64::max);
            (tail, patience * longest)
        }
        Rule::Brief { exchanges } => {
            let mut tail = tails(tasks, users, exchanges);
            let longest = tail.iter().copied().fold(0.0, f64::max);
            tail.iter_mut().zip(brief(tasks)).for_each(|(tail, brief)| *tail += if brief { longest } else { 0.0 });
            (tail, 0.0)
        }
    }
}

/// An order by list scheduling that keeps to the bound where it can.
fn list(tasks: &Tasks, users: &[Vec<u32>], tail: &[f64], patience: f64, bound: u64) -> Vec<u32> {
    let n = tasks.len();
    let mut waiting: Vec<usize> = tasks.needs.iter().map(Vec::len).collect();
    let mut ready: Vec<u32> = (0..n as u32).filter(|&at| waiting[at as usize] == 0).collect();
    let (mut start, mut free) = (vec![0.0f64; n], [0.0f64; StreamKind::COUNT]);
    let mut memory = Memory::new(tasks);
    let mut order = Vec::with_capacity(n);
    while !ready.is_empty() {
        let begin = |at: u32| start[at as usize].max(free[tasks.unit[at as usize]]);
        let fitting: Vec<u32> = ready.iter().copied().filter(|&at| memory.with(at, begin(at)) <= bound).collect();
        let soon = fitting.iter().map(|&at| begin(at)).fold(f64::INFINITY, f64::min) + patience;
        let longer = |a: &u32, b: &u32| tail[*a as usize].total_cmp(&tail[*b as usize]).then(b.cmp(a));
        let next = fitting.into_iter().filter(|&at| begin(at) <= soon).max_by(longer);
        // Where nothing fits, the given order is the best guess at what makes room.
        let next = next.unwrap_or_else(|| *ready.iter().min().expect("not empty"));
        ready.retain(|&at| at != next);
        let at = next as usize;
        let end = begin(next) + tasks.seconds[at];
        memory.run(next, end);
        free[tasks.unit[at]] = end;
        for &user in &users[at] {
            let user_at = user as usize;
            start[user_at] = start[user_at].max(end);
            waiting[user_at] -= 1;
            if waiting[user_at] == 0 {
                ready.push(user);
            }
        }
        order.push(next);
    }
    order
}

/// The memory of the frame while tasks run.
struct Memory<'a> {
    tasks: &'a Tasks,
    /// For each buffer how many tasks have still to touch it.
    uses: Vec<u32>,
    /// For each buffer until when what has touched it runs; none before.
    busy: Vec<Option<f64>>,
    /// Buffers that are there.
    there: Vec<u32>,
}

impl<'a> Memory<'a> {
    fn new(tasks: &'a Tasks) -> Memory<'a> {
        let n = tasks.bytes.len();
        Memory { tasks, uses: tasks.uses(), busy: vec![None; n], there: vec![] }
    }

    /// Bytes that are alive when a task begins at a time.
    fn with(&self, task: u32, at: f64) -> u64 {
        let alive = |b: &&u32| self.uses[**b as usize] > 0 || self.busy[**b as usize].is_some_and(|end| end > at);
        let new = self.tasks.touches[task as usize].iter().filter(|b| self.busy[**b as usize].is_none());
        self.there.iter().filter(alive).chain(new).map(|b| self.tasks.bytes[*b as usize]).sum()
    }

    fn run(&mut self, task: u32, end: f64) {
        let begun = end - self.tasks.seconds[task as usize];
        for &b in &self.tasks.touches[task as usize] {
            let at = b as usize;
            if self.busy[at].is_none() {
                self.there.push(b);
            }
            self.uses[at] -= 1;
            self.busy[at] = Some(self.busy[at].unwrap_or(0.0).max(end));
        }
        let (uses, busy) = (&self.uses, &self.busy);
        // Tasks are taken by the time at which they begin, up to what memory lets wait: what ended long before is gone for all of them.
        self.there.retain(|b| uses[*b as usize] > 0 || busy[*b as usize].is_some_and(|end| end > begun));
    }
}
