//! The search: never worse than what is published, under the cap, above the bound, and best where that can be known.

use crate::common::{any_costs, size};
use forebay_pipeline::bound::{Pairs, lower_bound};
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
        let costs = Costs { whole, p2p: costs.p2p, pair: costs.pair, ..halves };
        let cap = cap.map(|more| v + more);
        let found = find(size(p, v, m), &costs, cap, ALL, 2_000);
        let fits = |s: &Schedule| cap.is_none_or(|cap| s.peaks().into_iter().all(|peak| peak <= cap));
        for (kind, schedule, makespan) in published(size(p, v, m), &costs) {
            prop_assert!(!fits(&schedule) || found.makespan <= makespan, "{} takes {makespan}", kind.name());
        }
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

/// All orders of a small pipeline, one work at a time: the best makespan under a cap.
struct Every<'a> {
    layout: Layout,
    costs: &'a Costs,
    cap: u32,
    orders: Vec<Vec<Item>>,
    best: u64,
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
        // By group: how many F, I, W are done. Micro-batches are alike, so they keep their order.
        self.order(stage, &groups, &mut vec![[0; 3]; groups.len()]);
    }

    fn order(&mut self, stage: u32, groups: &[u32], done: &mut Vec<[u32; 3]>) {
        let micros = self.layout.size.micros;
        if done.iter().all(|d| d[2] == micros) {
            return self.stage(stage + 1);
        }
        let held: u32 = done.iter().map(|d| d[0] - d[2]).sum();
        for (at, &group) in groups.iter().enumerate() {
            for (kind, op) in [Op::F, Op::I, Op::W].into_iter().enumerate() {
                let limit = if kind == 0 { micros } else { done[at][kind - 1] };
                if done[at][kind] == limit || kind == 0 && held == self.cap {
                    continue;
                }
                self.orders[stage as usize].push(Item::One(Work { op, group, micro: done[at][kind] }));
                done[at][kind] += 1;
                self.order(stage, groups, done);
                done[at][kind] -= 1;
                self.orders[stage as usize].pop();
            }
        }
    }
}

/// On pipelines small enough to try all orders, the search finds the best one and the bound is below it.
#[test]
fn best_of_all_orders() {
    let cases = [
        (2, 1, 3, Placement::Blocked, vec![[3, 4, 2], [5, 2, 3]], 1),
        (2, 1, 3, Placement::Blocked, vec![[2, 2, 2], [2, 2, 2]], 0),
        (3, 1, 2, Placement::Blocked, vec![[1, 2, 1], [3, 1, 2], [2, 2, 2]], 2),
        (1, 2, 2, Placement::Wave, vec![[1, 2, 1], [3, 1, 2]], 2),
        (2, 2, 1, Placement::Wave, vec![[1, 2, 1], [3, 1, 2], [2, 2, 5], [1, 1, 4]], 1),
        (2, 2, 1, Placement::Interleaved, vec![[1, 2, 1], [3, 1, 2], [2, 2, 5], [1, 1, 4]], 1),
    ];
    for (p, v, m, placement, groups, p2p) in cases {
        let column = |at: usize| groups.iter().map(|g| g[at]).collect();
        let costs = Costs::halves(column(0), column(1), column(2)).with_p2p(p2p);
        let layout = Layout { size: size(p, v, m), placement };
        for cap in v..=v * m {
            let best = Every::best(layout, &costs, cap);
            let found = find(layout.size, &costs, Some(cap), &[placement], 20_000);
            assert_eq!(found.makespan, best, "{layout:?} cap {cap}");
            assert!(lower_bound(layout, &costs, Some(cap), Pairs::None) <= best);
        }
    }
}

/// The last stage of the fill cannot start before (p − 1)(F + p2p), and then has all its work to do.
#[test]
fn bound_of_equal_stages() {
    for (p, v, m) in [(4, 2, 8), (8, 2, 16), (4, 1, 8), (16, 4, 64)] {
        let layout =
            Layout { size: size(p, v, m), placement: if v == 1 { Placement::Blocked } else { Placement::Interleaved } };
        let bound = lower_bound(layout, &Costs::equal(p * v, 10, 12, 8).with_p2p(2), None, Pairs::None);
        assert_eq!(bound, u64::from(p - 1) * 12 + u64::from(m * v) * 30);
    }
}
