//! The published schedules: their numbers, their formulas, their small orders, and what they refuse.

use crate::common::{any_generated, generate, size, usual};
use forebay_pipeline::{Costs, Item, Kind, Layout, Placement, Size, replay, verify};
use proptest::prelude::*;

/// Makespans of one amount of work, 2 chunks a stage and m = 2p, as the published generators give them with F=10 I=12 W=8, F&B=25; and the largest peak.
#[test]
fn same_work_one_table() {
    let kinds = [
        Kind::OneFOneB,
        Kind::Interleaved,
        Kind::ZbH1,
        Kind::ZbV,
        Kind::VHalf,
        Kind::VMin,
        Kind::InterleavedOverlap,
        Kind::DualPipeV,
    ];
    let makespans = [
        (4, 0, [660, 570, 564, 516, 558, 688, 515, 502]),
        (8, 0, [1380, 1170, 1156, 1044, 1190, 1434, 1055, 1022]),
        (4, 2, [692, 598, 588, 542, 596, 768, 563, 542]),
        (8, 2, [1460, 1230, 1212, 1110, 1278, 1638, 1159, 1130]),
    ];
    for (p, p2p, wanted) in makespans {
        let makespan = |kind: Kind| {
            let schedule = generate(kind, p, 2, 2 * p);
            replay(&schedule, &usual(&schedule).with_p2p(p2p).with_pair(Some(25))).expect("it ends").makespan
        };
        assert_eq!(kinds.map(makespan), wanted, "p = {p}, p2p = {p2p}");
    }
    for (p, wanted) in [(4, [8, 11, 8, 8, 6, 4, 12, 9]), (8, [16, 23, 16, 16, 10, 8, 24, 17])] {
        let peak = |kind: Kind| generate(kind, p, 2, 2 * p).peaks().into_iter().max().expect("a stage");
        assert_eq!(kinds.map(peak), wanted, "p = {p}");
    }
}

fn makespan(kind: Kind, size: (u32, u32, u32), costs: [u64; 3]) -> u64 {
    let (p, v, m) = size;
    let schedule = generate(kind, p, v, m);
    let costs = Costs::equal(schedule.layout().groups(), costs[0], costs[1], costs[2]);
    replay(&schedule, &costs).expect("it ends").makespan
}

fn peak(kind: Kind, p: u32, v: u32, m: u32) -> u32 {
    generate(kind, p, v, m).peaks().into_iter().max().expect("a stage")
}

proptest! {
    /// Every generator makes a valid schedule at every size that it has.
    #[test]
    fn all_are_valid((kind, schedule) in any_generated()) {
        prop_assert!(verify(&schedule, None).is_ok(), "{}: {:?}", kind.name(), verify(&schedule, None));
        prop_assert_eq!(schedule.layout().placement, kind.placement());
        let pairs = matches!(kind, Kind::InterleavedOverlap | Kind::DualPipe | Kind::DualPipeV);
        prop_assert!(pairs || !schedule.has_pairs());
    }

    /// (p − 1)(F + B) for GPipe and 1F1B at any m and for interleaved 1F1B at whole rounds; peaks m, p and vp + p − 1.
    #[test]
    fn bubbles_of_one_backward(p in 1..9u32, v in 1..4u32, rounds in 1..5u32, f in 1..20u64, b in 1..20u64) {
        let (m, one) = (p * rounds, [f, b, 0]);
        let fill = u64::from(p - 1) * (f + b);
        let work = |v: u32, m: u32| u64::from(v * m) * (f + b);
        for m in [m, m + 1] {
            prop_assert_eq!(makespan(Kind::GPipe, (p, 1, m), one), work(1, m) + fill);
            prop_assert_eq!(makespan(Kind::OneFOneB, (p, 1, m), one), work(1, m) + fill);
            prop_assert_eq!((peak(Kind::GPipe, p, 1, m), peak(Kind::OneFOneB, p, 1, m)), (m, p.min(m)));
        }
        prop_assert_eq!(makespan(Kind::Interleaved, (p, v, m), one), work(v, m) + fill);
        let ahead = (v * p + p - 1).min(v * m);
        prop_assert_eq!(peak(Kind::Interleaved, p, v, m), ahead);
        prop_assert_eq!(peak(Kind::InterleavedOverlap, p, v, m), (ahead + 1).min(v * m));
    }

    /// (p − 1)(F + I − W) for ZB-H1 and interleaved zero bubble when F, I ≥ W and the pipeline fills; at most vp chunks are held.
    #[test]
    fn bubbles_of_two_backwards(p in 1..7u32, v in 1..4u32, rounds in 2..5u32, w in 1..9u64, f in 0..4u64, i in 0..4u64) {
        let m = p * rounds;
        let costs = [w + f.max(i), w + f.max(i), w];
        let work = u64::from(v * m) * costs.iter().sum::<u64>();
        let bubble = u64::from(p - 1) * (costs[0] + costs[1] - costs[2]);
        prop_assert_eq!(makespan(Kind::ZbH1, (p, 1, m), costs), u64::from(m) * costs.iter().sum::<u64>() + bubble);
        prop_assert_eq!(makespan(Kind::InterleavedZb, (p, v, m), costs), work + bubble);
        prop_assert_eq!((peak(Kind::ZbH1, p, 1, m), peak(Kind::InterleavedZb, p, v, m)), (p, v * p));
    }

    /// With F = I = W: ZB-H2 and ZB-V have no bubble but the fill.
    #[test]
    fn zero_bubble(p in 1..9u32, more in 0..20u32) {
        let m = 2 * p + more;
        let fill = u64::from(p - 1);
        prop_assert_eq!(makespan(Kind::ZbH2, (p, 1, m), [1, 1, 1]), 3 * u64::from(m) + fill);
        prop_assert_eq!(makespan(Kind::ZbV, (p, 2, m), [1, 1, 1]), 6 * u64::from(m) + fill);
        prop_assert_eq!((peak(Kind::ZbH2, p, 1, m), peak(Kind::ZbV, p, 2, m)), (2 * p - 1, 2 * p));
    }

    /// V-Half holds 2⌊(p + 2)/2⌋ chunks and V-Min 2⌊(p + 4)/3⌋, once there are micro-batches enough.
    #[test]
    fn memory_of_patterns(p in 2..12u32, more in 0..9u32) {
        let m = 2 * p + more;
        prop_assert_eq!(peak(Kind::VHalf, p, 2, m), 2 * ((p + 2) / 2));
        prop_assert!(peak(Kind::VMin, p, 2, m) <= 2 * ((p + 4) / 3));
    }

    /// The most idle stage of DualPipe and DualPipeV idles (h − 1)(F&B + B − 3W) when F = I = W, h the stages of a half; they hold 2h + 1 chunks.
    #[test]
    fn dualpipe(h in 1..7u32, more in 0..9u32, unit in 1..9u64, saved in 0..9u64) {
        let pair = 3 * unit - saved.min(unit);
        let formula = u64::from(h - 1) * (pair + 2 * unit - 3 * unit);
        for (kind, p, m) in [(Kind::DualPipeV, h, 2 * h + more), (Kind::DualPipe, 2 * h, 4 * h + 2 * more)] {
            let schedule = generate(kind, p, 2, m);
            let costs = Costs::equal(schedule.layout().groups(), unit, unit, unit).with_pair(Some(pair));
            let timeline = replay(&schedule, &costs).expect("it ends");
            let idle = timeline.busy.iter().map(|b| timeline.makespan - b).max().expect("a stage");
            prop_assert_eq!(idle, formula, "{}", kind.name());
            prop_assert!(schedule.peaks().into_iter().all(|peak| peak <= 2 * h + 1));
        }
    }

    /// More chunks of a schedule that cuts the model once only cut its work finer.
    #[test]
    fn blocked_chunks_are_one_larger_chunk(p in 1..6u32, v in 1..4u32, m in 1..12u32, p2p in 0..4u64) {
        for kind in [Kind::GPipe, Kind::OneFOneB, Kind::ZbH1, Kind::ZbH2] {
            let time = |v: u32, k: u64| {
                let schedule = generate(kind, p, v, m);
                let costs = Costs::equal(schedule.layout().groups(), 10 * k, 12 * k, 8 * k).with_p2p(p2p);
                replay(&schedule, &costs).expect("it ends").makespan
            };
            // The last W of a chunk no longer waits for the others.
            prop_assert_eq!(time(v, 1), time(1, u64::from(v)), "{}", kind.name());
            prop_assert_eq!(peak(kind, p, v, m), v * peak(kind, p, 1, m));
        }
    }
}

/// Both works of each pair of the steady state are independent, so that each can hide the other's communication.
#[test]
fn one_more_forward_makes_pairs_independent() {
    let schedule = generate(Kind::InterleavedOverlap, 4, 2, 12);
    let pairs = schedule.orders().iter().flatten().filter_map(|item| match item {
        Item::Pair(f, b) => Some((*f, *b)),
        Item::One(_) => None,
    });
    let pairs: Vec<_> = pairs.collect();
    assert_eq!(pairs.len(), (0..4).map(|r| 24 - (2 * (3 - r) + 4 + 1)).sum::<usize>());
    assert!(pairs.iter().all(|(f, b)| f.micro != b.micro));
}

fn small(kind: Kind, p: u32, m: u32) -> String {
    generate(kind, p, kind.default_chunks(), m).texts().join("\n")
}

#[test]
fn small_orders() {
    let named = |kind: Kind| format!("{}\n{}\n", kind.name(), small(kind, 2, 4));
    insta::assert_snapshot!(Kind::ALL.map(named).join("\n"));
}

#[test]
fn what_does_not_exist_is_refused() {
    let error = |kind: Kind, p, v, m| kind.generate(size(p, v, m)).expect_err("there is none").to_string();
    let told = [
        error(Kind::ZbV, 4, 3, 8),
        error(Kind::Interleaved, 4, 2, 11),
        error(Kind::InterleavedZb, 4, 2, 11),
        error(Kind::DualPipe, 3, 2, 8),
        error(Kind::DualPipe, 4, 2, 9),
        error(Kind::DualPipe, 4, 3, 8),
        error(Kind::DualPipeV, 4, 2, 7),
        error(Kind::VHalf, 200, 2, 8),
        Size::new(1_000_000_000, 4, 1_000_000_000).expect_err("too large").to_string(),
        Size::new(4, 0, 8).expect_err("nothing").to_string(),
        Size::new(1 << 17, 1, 1).expect_err("too many").to_string(),
        Size::new(4, 65, 1).expect_err("too many").to_string(),
        Size::new(4096, 64, 4096).expect_err("too large").to_string(),
    ];
    insta::assert_snapshot!(told.join("\n"));
}

/// The hint of a refusal works.
#[test]
fn hints_work() {
    for m in 1..40 {
        if let Err(error) = Kind::Interleaved.generate(size(5, 2, m)) {
            let hint = error.hint.expect("a hint");
            let numbers: Vec<u32> = hint.split_whitespace().filter_map(|w| w.parse().ok()).collect();
            assert_eq!(numbers.len(), 2);
            numbers.into_iter().for_each(|m| drop(generate(Kind::Interleaved, 5, 2, m)));
        }
    }
}

/// A stage has the groups that lie on it, in order.
#[test]
fn groups_of_a_stage() {
    for placement in [Placement::Blocked, Placement::Interleaved, Placement::Wave, Placement::TwoWay] {
        for (p, v, m) in [(1, 2, 2), (2, 2, 1), (3, 4, 2), (4, 6, 3), (5, 2, 4)] {
            let layout = Layout { size: size(p, v, m), placement };
            for stage in 0..p {
                let lies = |group: &u32| (0..m).any(|k| layout.stage_of(*group, k) == stage);
                let lying: Vec<u32> = (0..layout.groups()).filter(lies).collect();
                let held = layout.groups_of(stage).into_iter().filter(|g| layout.micros_of(stage, *g) > 0);
                assert_eq!(held.collect::<Vec<_>>(), lying, "{layout:?} stage {stage}");
            }
        }
    }
}

#[test]
fn kinds_with_pairs_make_pairs() {
    for kind in Kind::ALL {
        let schedule = kind.generate(size(4, kind.default_chunks(), 16)).expect("a schedule");
        assert_eq!(schedule.has_pairs(), kind.has_pairs(), "{}", kind.name());
    }
}

#[test]
fn placements_cover_each_group_once_a_way() {
    for kind in Kind::ALL {
        let layout = generate(kind, 4, kind.default_chunks(), 8).layout();
        let micros =
            |g| (0..4).map(|s| if layout.groups_of(s).contains(&g) { layout.micros_of(s, g) } else { 0 }).sum::<u32>();
        assert!((0..layout.groups()).all(|g| micros(g) == 8), "{}", kind.name());
        assert_eq!(
            layout.groups(),
            if layout.placement == Placement::Blocked || layout.placement == Placement::TwoWay { 4 } else { 8 }
        );
    }
}
