//! A schedule of our own: for given costs, p2p and memory cap, an order that is better than the published ones.
//!
//! ```text
//! published schedules that respect the cap ──┐
//! a greedy one, for any cap and placement ───┴──► climbs (late acceptance) of growing length ──► the best seen
//!                                                   stop: the bound of the placement is reached, or the nodes are used up
//! halves of a backward that stand together become one where that is faster
//! ```
//!
//! The search begins with the published schedules, so it is never worse than the best of them at the same cap. It counts *nodes*, replays of a whole
//! schedule, never time: the same request gives the same schedule on every machine. Work is not run in pairs, but a published schedule with pairs is
//! taken when none beats it.

mod climb;
mod clock;
mod greedy;
mod join;
mod random;
mod shop;

use crate::bound::{Pairs, lower_bound};
use crate::{Costs, Item, Kind, Layout, Op, Placement, Schedule, ScheduleError, Size, Ticks, Work, replay};
use climb::Climb;
use shop::Shop;
use std::collections::HashMap;

/// The most operations that are searched over: an evaluation is linear in them.
pub const MAX_OPERATIONS: u64 = 1 << 19;
/// Replayed operations that a search does by default.
const DEFAULT_OPERATIONS: u64 = 3_000_000_000;
/// The most nodes of a search by default.
const DEFAULT_NODES: u64 = 4_000_000;
/// The first climb takes so small a part of all nodes; each further one is twice as long.
const FIRST_PART: u64 = 32;
/// A climb's acceptance looks back over so small a part of its nodes.
const HISTORY_PART: u64 = 200;
/// Within these.
const HISTORY: (u64, u64) = (500, 1 << 16);
/// How often a search tells how far it is.
const REPORTS: u64 = 100;

/// What is looked for.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Stages, chunks, micro-batches.
    pub size: Size,
    /// Of all layer groups; there are stages × chunks.
    pub costs: &'a Costs,
    /// The most activations (of a layer group and micro-batch each) that a stage may hold; `None` for any number.
    pub cap: Option<u32>,
    /// The placements to try.
    pub placements: &'a [Placement],
    /// Replays; `None` for a number that takes seconds to a minute.
    pub nodes: Option<u64>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The schedule.
    pub schedule: Schedule,
    /// Its makespan in ticks.
    pub makespan: Ticks,
    /// The published schedule that it is, if no better one was found.
    pub published: Option<Kind>,
    /// No schedule of the tried placements under the cap has a smaller makespan.
    pub bound: Ticks,
    /// Replays that it took.
    pub nodes: u64,
}

/// How far a search is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Replays done.
    pub nodes: u64,
    /// Of so many at most.
    pub of: u64,
    /// The best makespan so far, in ticks.
    pub best: Ticks,
    /// What cannot be beaten, in ticks.
    pub bound: Ticks,
}

/// The published schedules of a model cut into stages × chunks layer groups, with their makespans. Those that do not exist at that size are left out, and so is
/// DualPipe: it holds the weights twice.
///
/// # Panics
/// When the costs are not those of the groups ([`Costs::check`]).
pub fn published(size: Size, costs: &Costs) -> Vec<(Kind, Schedule, Ticks)> {
    let kinds = Kind::ALL.into_iter().filter(|k| k.placement() != Placement::TwoWay);
    let generated = kinds.filter_map(|kind| {
        let schedule = kind.generate(size).ok()?;
        let makespan = replay(&schedule, costs).ok()?.makespan;
        Some((kind, schedule, makespan))
    });
    generated.collect()
}

/// Searches; tells how far it is now and then.
///
/// # Errors
/// A placement cannot be searched, the cap is too small for one micro-batch, or there is too much work.
pub fn search(request: &Request, progress: &mut dyn FnMut(Progress)) -> Result<Found, ScheduleError> {
    check(request)?;
    let costs = request.costs;
    let shares = |g: usize| costs.whole[g] < costs.input[g] + costs.weight[g];
    if !(0..costs.whole.len()).any(shares) {
        return of_halves(request, progress);
    }
    // Half of the nodes for orders of halves, and half for orders in which nothing is split.
    let part = Request { nodes: Some(nodes(request).div_ceil(2)), ..request.clone() };
    let split = of_halves(&part, progress)?;
    let none = vec![0; costs.weight.len()];
    let wholes = Costs::halves(costs.forward.clone(), costs.whole.clone(), none).with_p2p(costs.p2p);
    let whole = of_halves(&Request { costs: &wholes, ..part }, progress)?;
    let nodes = split.nodes + whole.nodes;
    let schedule = unsplit(&whole.schedule);
    let makespan = replay(&schedule, costs).map_err(|stuck| ScheduleError::plain(stuck.to_string()))?.makespan;
    Ok(match makespan < split.makespan {
        true => Found { schedule, makespan, published: None, bound: split.bound, nodes },
        false => Found { nodes, ..split },
    })
}

/// The same order with whole backwards, each where the half for the input is.
fn unsplit(schedule: &Schedule) -> Schedule {
    let whole = |work: Work| match work.op {
        Op::I => Some(Item::One(Work { op: Op::B, ..work })),
        Op::W => None,
        Op::F | Op::B => Some(Item::One(work)),
    };
    let order = |order: &Vec<Item>| order.iter().flat_map(Item::works).filter_map(whole).collect();
    Schedule::new(schedule.layout(), schedule.orders().iter().map(order).collect())
}

/// A search among orders of halves.
fn of_halves(request: &Request, progress: &mut dyn FnMut(Progress)) -> Result<Found, ScheduleError> {
    let Request { size, costs, cap, .. } = *request;
    let within = |schedule: &Schedule| cap.is_none_or(|cap| schedule.peaks().iter().all(|peak| *peak <= cap));
    let published: Vec<_> = published(size, costs).into_iter().filter(|(_, s, _)| within(s)).collect();
    let mut lines: Vec<Line> = request.placements.iter().map(|p| Line::new(request, *p, &published)).collect();
    let goal = lines.iter().map(|l| l.goal).min().unwrap_or(0);
    let mut hunt = Hunt { nodes: 0, of: nodes(request), best: Ticks::MAX, goal, progress };
    hunt.all(&mut lines);
    let line = lines.iter().min_by_key(|l| l.makespan).expect("at least one placement");
    let (schedule, makespan) = join::halves(in_order(&line.shop.schedule(&line.orders)), costs);
    let layouts = request.placements.iter().map(|p| Layout { size, placement: *p });
    let bound = layouts.map(|l| lower_bound(l, costs, cap, Pairs::None)).min().unwrap_or(0);
    let tried = |kind: Kind| request.placements.iter().any(|p| lies_so(kind, Layout { size, placement: *p }));
    let best = published.iter().filter(|(kind, ..)| tried(*kind)).min_by_key(|(.., makespan)| *makespan);
    Ok(match best {
        Some((kind, best, least)) if *least <= makespan => {
            let paired = if best.has_pairs() { Pairs::Allowed } else { Pairs::None };
            let bound = bound.min(lower_bound(best.layout(), costs, cap, paired));
            Found { schedule: best.clone(), makespan: *least, published: Some(*kind), bound, nodes: hunt.nodes }
        }
        _ => Found { schedule, makespan, published: None, bound, nodes: hunt.nodes },
    })
}

/// The same work with the micro-batches of each layer group in order, so that sums over them are added as in published schedules: the k-th F of a group is
/// that of micro-batch k, and so for I and W. Nothing gets later: when the k-th F of a group starts, k have ended in the group before, and any of
/// them will do, since micro-batches cost the same. Each group is on one stage, and no work is in pairs.
fn in_order(schedule: &Schedule) -> Schedule {
    let mut next: HashMap<(Op, u32), u32> = HashMap::new();
    let mut renamed = |work: Work| {
        let next = next.entry((work.op, work.group)).or_default();
        *next += 1;
        Item::One(Work { micro: *next - 1, ..work })
    };
    let mut order = |order: &Vec<Item>| order.iter().flat_map(Item::works).map(&mut renamed).collect();
    Schedule::new(schedule.layout(), schedule.orders().iter().map(&mut order).collect())
}

/// Does a kind place groups so? With one chunk a stage all placements are the same.
fn lies_so(kind: Kind, layout: Layout) -> bool {
    kind.placement() == layout.placement || layout.size.chunks == 1
}

fn check(request: &Request) -> Result<(), ScheduleError> {
    let Size { stages, chunks, micros } = request.size;
    let Some(first) = request.placements.first() else {
        return Err(ScheduleError::plain("a search needs a placement to try"));
    };
    if request.placements.contains(&Placement::TwoWay) {
        return Err(ScheduleError::new("the two-way placement is not searched", "use plain, interleaved or v"));
    }
    request.costs.check(Layout { size: request.size, placement: *first })?;
    let operations = 3 * u64::from(stages) * u64::from(chunks) * u64::from(micros);
    if operations > MAX_OPERATIONS {
        return Err(ScheduleError::new(
            format!("{operations} pieces of work are too many to search over; the most is {MAX_OPERATIONS}"),
            "the steady state repeats: search with fewer micro-batches",
        ));
    }
    match request.cap {
        Some(cap) if cap < chunks => Err(ScheduleError::new(
            format!(
                "a cap of {cap} chunks cannot hold one micro-batch: all {chunks} chunks of a stage do their F before the first I"
            ),
            format!("use a cap of {chunks} or more"),
        )),
        _ => Ok(()),
    }
}

fn nodes(request: &Request) -> u64 {
    request.nodes.unwrap_or_else(|| default_nodes(request.size))
}

/// The nodes of a search when nobody says how many.
pub fn default_nodes(size: Size) -> u64 {
    let Size { stages, chunks, micros } = size;
    let operations = 3 * u64::from(stages) * u64::from(chunks) * u64::from(micros);
    (DEFAULT_OPERATIONS / operations).min(DEFAULT_NODES)
}

/// A placement, and the best orders for it so far.
struct Line {
    shop: Shop,
    /// What no order of halves beats.
    goal: Ticks,
    /// Where climbs begin.
    starts: Vec<Vec<Vec<u32>>>,
    orders: Vec<Vec<u32>>,
    makespan: Ticks,
}

impl Line {
    /// With the best published schedule of the placement and the greedy one to begin with.
    fn new(request: &Request, placement: Placement, published: &[(Kind, Schedule, Ticks)]) -> Line {
        let layout = Layout { size: request.size, placement };
        let shop = Shop::new(layout, request.costs, request.cap.unwrap_or(u32::MAX));
        let Costs { forward, input, weight, p2p, .. } = request.costs;
        let halves = Costs::halves(forward.clone(), input.clone(), weight.clone()).with_p2p(*p2p);
        let goal = lower_bound(layout, &halves, request.cap, Pairs::None);
        let mut clock = clock::Clock::new(&shop);
        let same = published.iter().filter(|(kind, ..)| lies_so(*kind, layout));
        let mut timed = |orders: Vec<Vec<u32>>| Some((clock.replay(&shop, &orders)?, orders));
        let best =
            same.filter_map(|(_, schedule, _)| timed(shop.orders_of(schedule))).min_by_key(|(makespan, _)| *makespan);
        let greedy = timed(greedy::orders(&shop)).expect("the greedy schedule was made by doing it");
        let mut starts: Vec<_> = best.into_iter().chain([greedy]).collect();
        starts.sort_by_key(|(makespan, _)| *makespan);
        let (makespan, orders) = starts[0].clone();
        Line { goal, starts: starts.into_iter().map(|(_, orders)| orders).collect(), orders, makespan, shop }
    }
}

/// Nodes, and who wants to know.
struct Hunt<'a> {
    nodes: u64,
    of: u64,
    best: Ticks,
    goal: Ticks,
    progress: &'a mut dyn FnMut(Progress),
}

impl Hunt<'_> {
    /// A short climb for each placement, then longer and longer ones for the best.
    fn all(&mut self, lines: &mut [Line]) {
        self.best = lines.iter().map(|l| l.makespan).min().unwrap_or(0);
        let first = (self.of / FIRST_PART).max(1);
        for line in &mut *lines {
            self.climb(line, 0, first);
        }
        let line = lines.iter_mut().min_by_key(|l| l.makespan).expect("at least one placement");
        let mut round = 1;
        while self.nodes < self.of && self.best > line.goal && self.climb(line, round, first << round.min(20)) {
            round += 1;
        }
    }

    /// One climb, from one of the starts in turn; whether another may find more.
    fn climb(&mut self, line: &mut Line, round: u64, nodes: u64) -> bool {
        let nodes = nodes.min(self.of - self.nodes);
        let goal = line.goal;
        if nodes == 0 || self.best <= goal {
            return false;
        }
        let start = line.starts[round as usize % line.starts.len()].clone();
        let history = (nodes / HISTORY_PART).clamp(HISTORY.0, HISTORY.1) as usize;
        let mut climb = Climb::new(&line.shop, start, history, round).expect("starts have been replayed");
        let slice = (self.of / REPORTS).max(1);
        let done_before = self.nodes;
        let mut going = true;
        while going && climb.nodes() < nodes {
            going = climb.run(slice.min(nodes - climb.nodes()), goal);
            self.nodes = done_before + climb.nodes();
            self.best = self.best.min(climb.best().1);
            let Hunt { nodes, of, best, goal, .. } = *self;
            (self.progress)(Progress { nodes, of, best, bound: goal });
        }
        let (nodes, (orders, makespan)) = (climb.nodes(), climb.best());
        if makespan < line.makespan {
            (line.orders, line.makespan) = (orders.to_vec(), makespan);
        }
        nodes > 0
    }
}
