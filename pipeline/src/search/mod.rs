//! A schedule of our own: for given costs, p2p and memory cap, an order that is better than the published ones.
//!
//! ```text
//! published schedules that respect the cap ──┐
//! a greedy one, for any cap and placement ───┴──► climbs (late acceptance) of growing length ──► the best seen
//!                                                   stop: the bound of the placement is reached, or the nodes are used up
//! where pairs save: forwards come to the backwards next to them, and climbs go on from there, in which an F and a backward behind it are a pair
//! halves of a backward that stand together become one where that is faster
//! ```
//!
//! The search begins with the published schedules, so it is never worse than the best of them at the same cap. It counts *nodes*, replays of a whole
//! schedule, never time: the same request gives the same schedule on every machine.

mod climb;
mod clock;
mod cuts;
mod greedy;
mod join;
mod pair;
mod random;
mod shop;

use crate::bound::lower_bound;
use crate::{Costs, Item, Kind, Layout, Op, Placement, Schedule, ScheduleError, Size, Ticks, Work, replay};
use climb::Climb;
pub use cuts::{FoundCut, search_cuts};
use shop::Shop;
use std::collections::{HashMap, VecDeque};

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
/// Bringing works together to pairs takes so small a part of what is left, for each start.
const PAIRING_PART: u64 = 16;
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
    let Request { size, costs, cap, .. } = *request;
    let published: Vec<_> = published(size, costs).into_iter().filter(|(_, s, _)| within(s, cap)).collect();
    let tried = |kind: Kind| request.placements.iter().any(|p| lies_so(kind, Layout { size, placement: *p }));
    let best = published.iter().filter(|(kind, ..)| tried(*kind)).min_by_key(|(.., makespan)| *makespan);
    let layouts = request.placements.iter().map(|p| Layout { size, placement: *p });
    let layouts = layouts.chain(best.iter().map(|(_, best, _)| best.layout()));
    let bound = layouts.map(|layout| lower_bound(layout, costs, cap)).min().unwrap_or(0);
    let (found, nodes) = Spaces { request, published: &published, bound }.all(progress);
    Ok(match (best, found) {
        (Some((kind, best, least)), (_, makespan)) if *least <= makespan => {
            Found { schedule: best.clone(), makespan: *least, published: Some(*kind), bound, nodes }
        }
        (_, (schedule, makespan)) => Found { schedule, makespan, published: None, bound, nodes },
    })
}

/// In which orders a search looks: nodes are shared out among these spaces.
struct Spaces<'a> {
    request: &'a Request<'a>,
    published: &'a [(Kind, Schedule, Ticks)],
    /// What nothing beats.
    bound: Ticks,
}

impl Spaces<'_> {
    /// Orders of halves; where a whole backward takes less than these, orders of whole ones; and where pairs save, both of them with pairs, which
    /// begin with what was found without.
    fn all(&self, progress: &mut dyn FnMut(Progress)) -> ((Schedule, Ticks), u64) {
        let costs = self.request.costs;
        let groups = 0..costs.whole.len();
        let shares = groups.clone().any(|g| costs.whole[g] < costs.input[g] + costs.weight[g]);
        let none = vec![0; costs.weight.len()];
        let wholes = Costs { input: costs.whole.clone(), weight: none, ..costs.clone() };
        let backwards = [Some((costs, false)), shares.then_some((&wholes, true))];
        let saves = costs.pairs_save();
        let of = nodes(self.request);
        let spaces = (1 + u64::from(shares)) * (1 + u64::from(saves));
        let mut hunt = Hunt { nodes: 0, until: 0, of, best: Ticks::MAX, bound: self.bound, progress };
        let mut found = vec![];
        for (costs, whole) in backwards.into_iter().flatten() {
            let mut lines: Vec<Line> = self.placements().map(|p| Line::new(self, p, costs)).collect();
            for pairs in [false, true].into_iter().take(1 + usize::from(saves)) {
                hunt.until = (hunt.until + of.div_ceil(spaces)).min(of);
                if pairs {
                    lines = lines.into_iter().filter_map(|line| line.with_pairs(self, costs, &mut hunt)).collect();
                }
                hunt.all(&mut lines);
                found.extend(lines.iter().min_by_key(|l| l.makespan).map(|line| self.finished(line, whole)));
            }
        }
        let best = found.into_iter().min_by_key(|(_, makespan)| *makespan).expect("orders of halves");
        (best, hunt.nodes)
    }

    /// The published schedules that lie as a shop does, as its orders.
    fn published_orders<'b>(&'b self, shop: &'b Shop) -> impl Iterator<Item = Vec<Vec<u32>>> + use<'b> {
        let same = self.published.iter().filter(|(kind, ..)| lies_so(*kind, shop.layout));
        same.map(|(_, schedule, _)| shop.orders_of(schedule))
    }

    fn placements(&self) -> impl Iterator<Item = Placement> {
        self.request.placements.iter().copied()
    }

    /// The schedule of the best orders of a line, with its makespan.
    fn finished(&self, line: &Line, whole: bool) -> (Schedule, Ticks) {
        let schedule = line.shop.schedule(&line.orders);
        let schedule = if whole { unsplit(&schedule) } else { schedule };
        join::halves(in_order(&schedule), self.request.costs)
    }
}

/// The same order with whole backwards, each where the half for the input is.
fn unsplit(schedule: &Schedule) -> Schedule {
    let whole = |item: &Item| match *item {
        Item::One(work) if work.op == Op::I => Some(Item::One(Work { op: Op::B, ..work })),
        Item::One(work) if work.op == Op::W => None,
        item => Some(item),
    };
    let order = |order: &Vec<Item>| order.iter().filter_map(whole).collect();
    Schedule::new(schedule.layout(), schedule.orders().iter().map(order).collect())
}

/// The same work with the micro-batches of each layer group in order, so that sums over them are added as in published schedules: the k-th F of a group is
/// that of micro-batch k, so is the k-th I or B, and the k-th W belongs to the k-th I. Nothing gets later: when the k-th F of a group starts, k have
/// ended in the group before, and any of them will do, since micro-batches cost the same. Each group is on one stage.
fn in_order(schedule: &Schedule) -> Schedule {
    let mut next: HashMap<(Op, u32), u32> = HashMap::new();
    // By group, the micro-batches whose I waits for its W.
    let mut halves: HashMap<u32, VecDeque<u32>> = HashMap::new();
    let mut renamed = |work: Work| {
        let halves = halves.entry(work.group).or_default();
        if work.op == Op::W {
            return Work { micro: halves.pop_front().expect("a W comes after its I"), ..work };
        }
        let pass = if work.op == Op::F { Op::F } else { Op::I };
        let next = next.entry((pass, work.group)).or_default();
        *next += 1;
        if work.op == Op::I {
            halves.push_back(*next - 1);
        }
        Work { micro: *next - 1, ..work }
    };
    let mut item = |item: &Item| match *item {
        Item::One(work) => Item::One(renamed(work)),
        Item::Pair(first, second) => Item::Pair(renamed(first), renamed(second)),
    };
    let mut order = |order: &Vec<Item>| order.iter().map(&mut item).collect();
    Schedule::new(schedule.layout(), schedule.orders().iter().map(&mut order).collect())
}

/// Does a schedule keep to the cap?
fn within(schedule: &Schedule, cap: Option<u32>) -> bool {
    cap.is_none_or(|cap| schedule.peaks().iter().all(|peak| *peak <= cap))
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
    /// What no order of the shop beats.
    goal: Ticks,
    /// Where climbs begin.
    starts: Vec<Vec<Vec<u32>>>,
    orders: Vec<Vec<u32>>,
    makespan: Ticks,
}

impl Line {
    /// With the best published schedule of the placement and the greedy one to begin with, and no pairs.
    fn new(spaces: &Spaces, placement: Placement, costs: &Costs) -> Line {
        let request = spaces.request;
        let layout = Layout { size: request.size, placement };
        let shop = Shop::new(layout, costs, request.cap.unwrap_or(u32::MAX));
        let Costs { forward, input, weight, p2p, .. } = costs;
        let halves = Costs::halves(forward.clone(), input.clone(), weight.clone()).with_p2p(*p2p);
        let goal = lower_bound(layout, &halves, request.cap);
        let mut clock = clock::Clock::new(&shop);
        let mut timed = |orders: Vec<Vec<u32>>| Some((clock.replay(&shop, &orders)?, orders));
        let best = spaces.published_orders(&shop).filter_map(&mut timed).min_by_key(|(makespan, _)| *makespan);
        let greedy = timed(greedy::orders(&shop)).expect("the greedy schedule was made by doing it");
        Line::of(shop, goal, best.into_iter().chain([greedy]).collect()).expect("the greedy schedule")
    }

    /// The same placement in orders with pairs. It begins with what was found without, and with the best published schedule, both after works came together.
    /// `None` when in all of these stages wait for each other once there are pairs, or no nodes are left.
    fn with_pairs(self, spaces: &Spaces, costs: &Costs, hunt: &mut Hunt) -> Option<Line> {
        let shop = self.shop.with_pairs(costs);
        let goal = lower_bound(shop.layout, costs, spaces.request.cap);
        let mut clock = clock::Clock::new(&shop);
        let mut best: Option<(Ticks, Vec<Vec<u32>>)> = None;
        for orders in spaces.published_orders(&shop).take(hunt.left() as usize) {
            hunt.nodes += 1;
            let makespan = clock.replay(&shop, &orders).unwrap_or(Ticks::MAX);
            if best.as_ref().is_none_or(|(least, _)| makespan < *least) {
                best = Some((makespan, orders));
            }
        }
        let published = best.map(|(_, orders)| orders);
        let mut starts = vec![];
        for orders in std::iter::once(self.orders).chain(published).chain(self.starts) {
            if hunt.left() < 2 {
                break;
            }
            starts.extend(pair::paired(&shop, &orders, hunt.left() / PAIRING_PART, &mut hunt.nodes));
        }
        Line::of(shop, goal, starts)
    }

    /// With starts and their makespans; `None` without any.
    fn of(shop: Shop, goal: Ticks, mut starts: Vec<(Ticks, Vec<Vec<u32>>)>) -> Option<Line> {
        starts.sort_by_key(|(makespan, _)| *makespan);
        let (makespan, orders) = starts.first()?.clone();
        Some(Line { goal, starts: starts.into_iter().map(|(_, orders)| orders).collect(), orders, makespan, shop })
    }
}

/// Nodes, and who wants to know.
struct Hunt<'a> {
    nodes: u64,
    /// Nodes of this space and those before.
    until: u64,
    of: u64,
    best: Ticks,
    bound: Ticks,
    progress: &'a mut dyn FnMut(Progress),
}

impl Hunt<'_> {
    /// Nodes that are left for this space.
    fn left(&self) -> u64 {
        self.until.saturating_sub(self.nodes)
    }

    /// A short climb for each placement, then longer and longer ones for the best.
    fn all(&mut self, lines: &mut [Line]) {
        let Some(least) = lines.iter().map(|l| l.makespan).min() else { return };
        self.best = self.best.min(least);
        let first = (self.left() / FIRST_PART).max(1);
        for line in &mut *lines {
            self.climb(line, 0, first);
        }
        let line = lines.iter_mut().min_by_key(|l| l.makespan).expect("at least one placement");
        let mut round = 1;
        while self.left() > 0 && self.climb(line, round, first << round.min(20)) {
            round += 1;
        }
    }

    /// One climb, from one of the starts in turn; whether another may find more.
    fn climb(&mut self, line: &mut Line, round: u64, nodes: u64) -> bool {
        let nodes = nodes.min(self.left());
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
            let Hunt { nodes, of, best, bound, .. } = *self;
            (self.progress)(Progress { nodes, of, best, bound });
        }
        let (nodes, (orders, makespan)) = (climb.nodes(), climb.best());
        if makespan < line.makespan {
            (line.orders, line.makespan) = (orders.to_vec(), makespan);
        }
        nodes > 0
    }
}
