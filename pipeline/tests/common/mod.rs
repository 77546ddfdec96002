//! What the tests of schedules share: any valid schedule, and a second replay that is slow and obvious.

use forebay_pipeline::{Costs, Item, Kind, Layout, Op, Placement, Schedule, Size, Work};
use proptest::prelude::*;
use std::collections::HashMap;

pub fn size(stages: u32, chunks: u32, micros: u32) -> Size {
    Size::new(stages, chunks, micros).expect("a size")
}

pub fn generate(kind: Kind, stages: u32, chunks: u32, micros: u32) -> Schedule {
    kind.generate(size(stages, chunks, micros)).unwrap_or_else(|e| panic!("{}: {e}", kind.name()))
}

/// F=10 I=12 W=8 for each of the groups.
pub fn usual(schedule: &Schedule) -> Costs {
    Costs::equal(schedule.layout().groups(), 10, 12, 8)
}

/// Kinds at sizes that they have, some below the number of stages and some not a multiple of it.
pub fn any_generated() -> impl Strategy<Value = (Kind, Schedule)> {
    let kind = prop::sample::select(Kind::ALL.to_vec());
    (kind, 1..7u32, 1..4u32, 1..20u32).prop_filter_map("the kind does not exist at that size", |(kind, p, v, m)| {
        let v = if matches!(kind.placement(), Placement::Wave | Placement::TwoWay) { 2 } else { v };
        Some((kind, kind.generate(size(p, v, m)).ok()?))
    })
}

/// Costs by group, p2p and pairs of any kind, zero included.
pub fn any_costs(groups: u32) -> impl Strategy<Value = Costs> {
    let list = || prop::collection::vec(0..20u64, groups as usize);
    let shared = prop::collection::vec(0..12u64, groups as usize);
    (list(), list(), list(), shared, 0..5u64, prop::option::of(0..10u64)).prop_map(
        |(forward, input, weight, shared, p2p, over)| {
            let longest = forward.iter().chain(&[0]).max().copied().unwrap_or(0);
            let halves = Costs::halves(forward, input, weight);
            // Halves mostly share work, and sometimes cost less than the whole.
            let whole: Vec<u64> = halves.whole.iter().zip(shared).map(|(b, s)| (b + 2).saturating_sub(s)).collect();
            let backward = whole.iter().max().copied().unwrap_or(0);
            let pair = over.map(|over| (longest.max(backward) + over).min(longest + backward));
            Costs { whole, p2p, pair, ..halves }
        },
    )
}

/// Work in any order that needs allow, sometimes two works of a stage as a pair: a valid schedule like no published one.
pub fn any_schedule() -> impl Strategy<Value = Schedule> {
    let placement =
        prop::sample::select(vec![Placement::Blocked, Placement::Interleaved, Placement::Wave, Placement::TwoWay]);
    (placement, 1..5u32, 1..3u32, 1..6u32, any::<u64>()).prop_map(|(placement, p, v, m, seed)| {
        let chunks = if placement == Placement::TwoWay { 2 * v } else { v };
        random(Layout { size: size(p, chunks, m), placement }, seed)
    })
}

fn random(layout: Layout, seed: u64) -> Schedule {
    let mut state = seed | 1;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut orders: Vec<Vec<Item>> = vec![vec![]; layout.size.stages as usize];
    let mut ready: Vec<Work> = (0..layout.size.micros).map(|micro| Work { op: Op::F, group: 0, micro }).collect();
    let last = layout.groups() - 1;
    while !ready.is_empty() {
        let work = ready.swap_remove(below(ready.len()));
        let stage = layout.stage_of(work.group, work.micro);
        let partner = ready.iter().position(|w| layout.stage_of(w.group, w.micro) == stage && w.op != work.op);
        let mut done = vec![work];
        match partner {
            Some(at) if below(3) == 0 => done.push(ready.swap_remove(at)),
            _ => {}
        }
        orders[stage as usize].push(match done[..] {
            [one] => Item::One(one),
            [first, second] => Item::Pair(first, second),
            _ => unreachable!("one or two"),
        });
        for work in done {
            let Work { op, group, micro } = work;
            let mut backward = |group| {
                if below(2) == 0 {
                    ready.push(Work { op: Op::B, group, micro });
                } else {
                    ready.push(Work { op: Op::I, group, micro });
                }
            };
            match op {
                Op::F if group < last => ready.push(Work { op: Op::F, group: group + 1, micro }),
                Op::F => backward(group),
                Op::I | Op::B => {
                    if group > 0 {
                        backward(group - 1);
                    }
                    if op == Op::I {
                        ready.push(Work { op: Op::W, group, micro });
                    }
                }
                Op::W => {}
            }
        }
    }
    Schedule::new(layout, orders)
}

/// A schedule, and costs of its groups.
pub fn priced() -> impl Strategy<Value = (Schedule, Costs)> {
    let schedule = prop_oneof![any_schedule(), any_generated().prop_map(|(_, schedule)| schedule)];
    schedule.prop_flat_map(|s| (Just(s.clone()), any_costs(s.layout().groups())))
}

/// Makespan and peaks, second by second: `None` when it never ends. Shares nothing with the crate but the types.
pub fn simulate(schedule: &Schedule, costs: &Costs) -> Option<(u64, Vec<u32>)> {
    let layout = schedule.layout();
    let cost = |w: &Work| {
        let g = w.group as usize;
        match w.op {
            Op::F => costs.forward[g],
            Op::I => costs.input[g],
            Op::W => costs.weight[g],
            Op::B => costs.whole[g],
        }
    };
    let hidden = |w: &Work| costs.hidden.get(w.group as usize).copied().unwrap_or(0);
    let length = |item: &Item| match item {
        Item::One(w) => cost(w),
        Item::Pair(a, b) if a.op == Op::F && b.op == Op::B => {
            costs.pair.unwrap_or(cost(a) + cost(b) - hidden(a).min(hidden(b)))
        }
        Item::Pair(a, b) => cost(a) + cost(b),
    };
    // The end of F and of I by (is F, group, micro-batch), with the stage.
    let mut ended: HashMap<(bool, u32, u32), (u64, usize)> = HashMap::new();
    let mut next = vec![0; schedule.orders().len()];
    let mut free = vec![0u64; schedule.orders().len()];
    let mut makespan = 0;
    let most: u64 = schedule.orders().iter().flatten().map(|i| length(i) + costs.p2p + 1).sum::<u64>() + 1;
    for now in 0..=most {
        let mut again = true;
        while again {
            again = false;
            for (stage, order) in schedule.orders().iter().enumerate() {
                let Some(item) = order.get(next[stage]) else { continue };
                let there = |key: (bool, u32, u32)| {
                    ended.get(&key).is_some_and(|(end, from)| end + if *from == stage { 0 } else { costs.p2p } <= now)
                };
                let can = |w: Work| match w.op {
                    Op::F => w.group == 0 || there((true, w.group - 1, w.micro)),
                    Op::W => there((false, w.group, w.micro)),
                    Op::I | Op::B => {
                        there((true, w.group, w.micro))
                            && (w.group + 1 == layout.groups() || there((false, w.group + 1, w.micro)))
                    }
                };
                if free[stage] > now || !item.works().all(can) {
                    continue;
                }
                let end = now + length(item);
                for w in item.works() {
                    match w.op {
                        Op::F => drop(ended.insert((true, w.group, w.micro), (end, stage))),
                        Op::I | Op::B => drop(ended.insert((false, w.group, w.micro), (end, stage))),
                        Op::W => {}
                    }
                }
                (free[stage], next[stage], again) = (end, next[stage] + 1, true);
                makespan = makespan.max(end);
            }
        }
    }
    let all = next.iter().zip(schedule.orders()).all(|(n, order)| *n == order.len());
    let peak = |order: &Vec<Item>| {
        let (mut held, mut peak) = (0i64, 0);
        for item in order {
            held += item.works().filter(|w| w.op == Op::F).count() as i64;
            peak = peak.max(held);
            held -= item.works().filter(|w| w.op == Op::W || w.op == Op::B).count() as i64;
        }
        peak as u32
    };
    all.then(|| (makespan, schedule.orders().iter().map(peak).collect()))
}
