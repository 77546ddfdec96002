//! The search: never worse than what is published, under the cap, above the bound, and best where that can be known.

use crate::common::{any_costs, priced, size};
use forebay_pipeline::bound::lower_bound;
use forebay_pipeline::search::{Found, Request, published, search};
use forebay_pipeline::{Costs, Item, Kind, Layout, Op, Placement, Schedule, Size, Work, replay, verify};
use proptest::prelude::*;
use std::collections::HashMap;

const ALL: &[Placement] = &[Placement::Wave, Placement::Interleaved, Placement::Blocked];

fn find(size: Size, costs: &Costs, cap: Option<u32>, placements: &[Placement], nodes: u64) -> Found {
    let request = Request { size, costs, cap, placements, nodes: Some(nodes) };
    let found = search(&request, &mut |_| ()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(verify(&found.schedule, cap), Ok(()));
    assert_eq!(replay(&found.schedule, costs).expect("it ends").makespan, found.makespan);
    assert!(found.bound <= found.makespan);
    assert!(found.nodes <= nodes, "{} replays of {nodes}", found.nodes);
    if found.published.is_none() {
        assert!(keeps_order(&found.schedule), "{:?}", found.schedule.texts());
    }
    found
}

/// Do the micro-batches of each op and layer group come in order?
fn keeps_order(schedule: &Schedule) -> bool {
    let mut done: HashMap<(Op, u32), u32> = HashMap::new();
    schedule.orders().iter().flatten().flat_map(Item::works).all(|work| {
        // The backward for the input is part of the whole one.
        let op = if work.op == Op::B { Op::I } else { work.op };
        let next = done.entry((op, work.group)).or_default();
        let in_order = work.micro >= *next;
        *next = work.micro + 1;
        in_order
    })
}

/// Where a whole backward takes less than its halves, it stays whole, and a step is shorter for it.
#[test]
fn halves_that_share_work_are_joined() {
    let halves = Costs::equal(4, 10, 12, 8).with_p2p(2);
    let [apart, joined] = [20, 12].map(|whole| {
        let costs = Costs { whole: vec![whole; 4], ..halves.clone() };
        find(size(4, 1, 8), &costs, None, &[Placement::Blocked], 20_000)
    });
    let works = joined.schedule.orders().iter().flatten().flat_map(Item::works);
    assert!(works.filter(|work| work.op == Op::B).count() > 0, "{:?}", joined.schedule.texts());
    assert!(joined.makespan < apart.makespan);
    // In a gap nobody waits for a half: with one stage all of them are joined.
    let alone = Costs { whole: vec![16], ..Costs::equal(1, 10, 12, 8) };
    let found = find(size(1, 1, 8), &alone, Some(1), &[Placement::Blocked], 100);
    assert_eq!((found.makespan, found.bound), (8 * 26, 8 * 26));
}

/// What brings works together to pairs is counted as well ([`find`] looks).
#[test]
fn few_nodes_are_few() {
    let costs = Costs::equal(8, 10, 12, 8).with_p2p(2).with_pair(Some(25));
    for nodes in [1, 2, 3, 5, 20, 100] {
        find(size(4, 2, 8), &costs, None, ALL, nodes);
    }
}

/// F=10 I=12 W=8, p2p=2, V placement, m = 2p.
fn yardstick(p: u32, cap: Option<u32>, nodes: u64) -> Found {
    find(size(p, 2, 2 * p), &Costs::equal(2 * p, 10, 12, 8).with_p2p(2), cap, &[Placement::Wave], nodes)
}

/// ZB-V takes 542 and 1110 at 8 and 16 chunks.
#[test]
fn yardsticks() {
    let four = [Some(8), Some(10), None].map(|cap| yardstick(4, cap, 600_000));
    assert_eq!(four.each_ref().map(|f| (f.makespan, f.bound)), [(534, 534), (516, 516), (516, 516)]);
    // With the default number of nodes all three reach their bounds.
    for (cap, enough, bound) in [(Some(16), 1100, 1086), (Some(20), 1056, 1046), (None, 1044, 1044)] {
        let found = yardstick(8, cap, 300_000);
        assert!(found.makespan <= enough && found.bound == bound, "{cap:?}: {} {}", found.makespan, found.bound);
    }
}

/// Less memory than ZB-V: what V-Half and V-Min hold.
#[test]
fn less_memory() {
    assert_eq!(yardstick(4, Some(6), 200_000).makespan, 586);
    assert!(yardstick(4, Some(4), 100_000).makespan <= 730);
    let one = yardstick(4, Some(2), 2_000);
    assert_eq!(one.schedule.peaks(), [2; 4]);
}

#[test]
fn the_same_every_time() {
    let [first, second] = [(); 2].map(|()| yardstick(4, Some(7), 20_000));
    assert_eq!((first.schedule, first.nodes), (second.schedule, second.nodes));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Under any cap that holds a micro-batch, with any costs: as good as the best published schedule that respects it.
    #[test]
    fn never_worse_than_published(
        (p, v, m) in (1..5u32, 1..4u32, 1..9u32), costs in any_costs(12), cap in prop::option::of(0..12u32)
    ) {
        let groups = (p * v) as usize;
        let cut = |list: &Vec<u64>| list[..groups].to_vec();
        let whole = cut(&costs.whole);
        let halves = Costs::halves(cut(&costs.forward), cut(&costs.input), cut(&costs.weight));
        let most = |list: &[u64]| list.iter().max().copied().unwrap_or(0);
        let (forward, backward) = (most(&halves.forward), most(&whole));
        let pair = costs.pair.map(|pair| pair.min(forward + backward).max(forward.max(backward)));
        let costs = Costs { whole, p2p: costs.p2p, pair, ..halves };
        let cap = cap.map(|more| v + more);
        let found = find(size(p, v, m), &costs, cap, ALL, 2_000);
        let fits = |s: &Schedule| cap.is_none_or(|cap| s.peaks().into_iter().all(|peak| peak <= cap));
        for (kind, schedule, makespan) in published(size(p, v, m), &costs) {
            prop_assert!(!fits(&schedule) || found.makespan <= makespan, "{} takes {makespan}", kind.name());
        }
    }
}

proptest! {
    /// What a search says that nothing beats is not beaten by any order with pairs that keeps to the cap.
    #[test]
    fn no_order_with_pairs_beats_the_bound((schedule, costs) in priced()) {
        let layout = schedule.layout();
        prop_assume!(layout.placement != Placement::TwoWay && costs.check(layout).is_ok());
        let makespan = replay(&schedule, &costs).expect("it ends").makespan;
        let cap = schedule.peaks().into_iter().max();
        let found = find(layout.size, &costs, cap.max(Some(layout.size.chunks)), &[layout.placement], 1);
        prop_assert!(found.bound <= makespan, "{} {makespan}", found.bound);
    }
}

#[test]
fn refused() {
    let costs = Costs::equal(8, 1, 1, 1);
    let error = |size, costs: &Costs, cap, placements: &[Placement]| {
        let request = Request { size, costs, cap, placements, nodes: None };
        search(&request, &mut |_| ()).expect_err("refused").to_string()
    };
    assert!(error(size(4, 2, 8), &costs, Some(1), ALL).contains("use a cap of 2 or more"));
    assert!(error(size(4, 2, 8), &costs, None, &[]).contains("needs a placement"));
    assert!(error(size(4, 2, 8), &costs, None, &[Placement::TwoWay]).contains("not searched"));
    assert!(error(size(4, 2, 40_000), &costs, None, ALL).contains("too many to search over"));
    assert!(error(size(4, 2, 8), &Costs::equal(7, 1, 1, 1), None, ALL).contains("7 costs F for 8"));
}

/// Where pairs save, what is found has pairs of its own, and its bound is one for orders with pairs.
#[test]
fn pairs_are_found() {
    let one = Costs::equal(2, 10, 12, 8).with_pair(Some(20));
    let found = find(size(1, 2, 8), &one, Some(2), ALL, 4_000);
    assert_eq!((found.makespan, found.schedule.peaks()), (410, vec![2]), "{:?}", found.schedule.texts());
    // The best orders without pairs take 534 and 516.
    let costs = Costs::equal(8, 10, 12, 8).with_p2p(2).with_pair(Some(25));
    for (cap, enough) in [(8, 533), (10, 511)] {
        let found = find(size(4, 2, 8), &costs, Some(cap), ALL, 1_000_000);
        assert!(found.makespan <= enough, "cap {cap}: {}", found.makespan);
        assert!(found.schedule.has_pairs() && found.published.is_none());
    }
    // Pairs that save nothing are not made, and change nothing.
    let apart = find(size(4, 2, 8), &Costs::equal(8, 10, 12, 8), Some(8), ALL, 4_000);
    let same = find(size(4, 2, 8), &Costs::equal(8, 10, 12, 8).with_pair(Some(30)), Some(8), ALL, 4_000);
    assert_eq!((apart.schedule, apart.bound, apart.nodes), (same.schedule, same.bound, same.nodes));
}

/// What a pair saves is not lost: where nothing without pairs is faster, the published one stays.
#[test]
fn published_pairs_are_kept() {
    let costs = Costs::equal(8, 10, 12, 8).with_pair(Some(20));
    let found = find(size(4, 2, 16), &costs, None, ALL, 2_000);
    assert!(matches!(found.published, Some(Kind::DualPipeV | Kind::InterleavedOverlap)), "{:?}", found.published);
    // The same told by what they hide; and nothing is kept where they hide nothing.
    let hiding = |hidden: u64| Costs { hidden: vec![hidden; 8], ..Costs::equal(8, 10, 12, 8) };
    let same = find(size(4, 2, 16), &hiding(10), None, ALL, 2_000);
    assert_eq!((same.published, same.makespan, same.bound), (found.published, found.makespan, found.bound));
    assert!(!find(size(4, 2, 16), &hiding(0), None, ALL, 2_000).schedule.has_pairs());
}

/// All orders of a small pipeline: the best makespan under a cap.
struct Every<'a> {
    layout: Layout,
    costs: &'a Costs,
    cap: u32,
    orders: Vec<Vec<Item>>,
    best: u64,
}

/// How much of a layer group is done. Micro-batches are alike, so they keep their order.
#[derive(Clone, Default)]
struct Done {
    forward: u32,
    backward: u32,
    /// The micro-batches whose I is done and whose W is not.
    halves: Vec<u32>,
}

impl Every<'_> {
    fn best(layout: Layout, costs: &Costs, cap: u32) -> u64 {
        let orders = vec![vec![]; layout.size.stages as usize];
        let mut every = Every { layout, costs, cap, orders, best: u64::MAX };
        every.stage(0);
        every.best
    }

    /// All orders of a stage and of those behind it.
    fn stage(&mut self, stage: u32) {
        if stage == self.layout.size.stages {
            let schedule = Schedule::new(self.layout, self.orders.clone());
            if let Ok(timeline) = replay(&schedule, self.costs) {
                self.best = self.best.min(timeline.makespan);
            }
            return;
        }
        let groups = self.layout.groups_of(stage);
        self.order(stage, &groups, &vec![Done::default(); groups.len()]);
    }

    fn order(&mut self, stage: u32, groups: &[u32], done: &[Done]) {
        let micros = self.layout.size.micros;
        if done.iter().all(|d| d.backward == micros && d.halves.is_empty()) {
            return self.stage(stage + 1);
        }
        let held: u32 = done.iter().map(|d| d.forward - d.backward + d.halves.len() as u32).sum();
        let work = |at: usize, op: Op, micro: u32| Work { op, group: groups[at], micro };
        let forwards = (0..groups.len()).filter(|at| done[*at].forward < micros && held < self.cap);
        let backwards = (0..groups.len()).filter(|at| done[*at].backward < done[*at].forward);
        let halves = (0..groups.len()).filter(|at| !done[*at].halves.is_empty());
        let mut items: Vec<Item> = vec![];
        items.extend(forwards.clone().map(|at| Item::One(work(at, Op::F, done[at].forward))));
        items.extend(backwards.clone().map(|at| Item::One(work(at, Op::I, done[at].backward))));
        items.extend(halves.map(|at| Item::One(work(at, Op::W, done[at].halves[0]))));
        if self.costs.pairs_save() {
            let pairs = forwards.flat_map(|f| backwards.clone().map(move |b| (f, b)));
            let pair =
                |(f, b): (usize, usize)| Item::Pair(work(f, Op::F, done[f].forward), work(b, Op::B, done[b].backward));
            items.extend(pairs.map(pair));
        }
        for item in items {
            let mut next = done.to_vec();
            for work in item.works() {
                let at = groups.iter().position(|g| *g == work.group).expect("a group of the stage");
                match work.op {
                    Op::F => next[at].forward += 1,
                    Op::W => drop(next[at].halves.remove(0)),
                    Op::I | Op::B => next[at].backward += 1,
                }
                if work.op == Op::I {
                    next[at].halves.push(work.micro);
                }
            }
            self.orders[stage as usize].push(item);
            self.order(stage, groups, &next);
            self.orders[stage as usize].pop();
        }
    }
}

/// On pipelines small enough to try all orders, with pairs where they save, the search finds the best one and the bound is below it.
#[test]
fn best_of_all_orders() {
    let cases = [
        (2, 1, 3, Placement::Blocked, vec![[3, 4, 2], [5, 2, 3]], 1),
        (2, 1, 3, Placement::Blocked, vec![[2, 2, 2], [2, 2, 2]], 0),
        (3, 1, 2, Placement::Blocked, vec![[1, 2, 1], [3, 1, 2], [2, 2, 2]], 2),
        (1, 1, 4, Placement::Blocked, vec![[4, 3, 2]], 0),
        (1, 2, 2, Placement::Wave, vec![[1, 2, 1], [3, 1, 2]], 2),
        (2, 2, 1, Placement::Wave, vec![[1, 2, 1], [3, 1, 2], [2, 2, 5], [1, 1, 4]], 1),
        (2, 2, 1, Placement::Interleaved, vec![[1, 2, 1], [3, 1, 2], [2, 2, 5], [1, 1, 4]], 1),
    ];
    for (p, v, m, placement, groups, p2p) in cases {
        let column = |at: usize| groups.iter().map(|g| g[at]).collect();
        let costs = Costs::halves(column(0), column(1), column(2)).with_p2p(p2p);
        let longest = costs.forward.iter().chain(&costs.whole).max().copied();
        let layout = Layout { size: size(p, v, m), placement };
        for (cap, pair) in (v..=v * m).flat_map(|cap| [(cap, None), (cap, longest)]) {
            let costs = costs.clone().with_pair(pair);
            let best = Every::best(layout, &costs, cap);
            let found = find(layout.size, &costs, Some(cap), &[placement], 20_000);
            assert_eq!(found.makespan, best, "{layout:?} cap {cap} pair {pair:?}");
            assert!(lower_bound(layout, &costs, Some(cap)) <= best);
        }
    }
}

/// The last stage of the fill cannot start before (p − 1)(F + p2p), and then has all its work to do.
#[test]
fn bound_of_equal_stages() {
    for (p, v, m) in [(4, 2, 8), (8, 2, 16), (4, 1, 8), (16, 4, 64)] {
        let layout =
            Layout { size: size(p, v, m), placement: if v == 1 { Placement::Blocked } else { Placement::Interleaved } };
        let bound = lower_bound(layout, &Costs::equal(p * v, 10, 12, 8).with_p2p(2), None);
        assert_eq!(bound, u64::from(p - 1) * 12 + u64::from(m * v) * 30);
    }
}
