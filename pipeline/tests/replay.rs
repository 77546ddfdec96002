//! The replay against a slow and obvious one; the verifier against mutations.

use crate::common::{any_generated, generate, priced, simulate, size, usual};
use forebay_pipeline::bound::lower_bound;
use forebay_pipeline::{Costs, Decimal, Item, Kind, Layout, Op, Placement, Schedule, Work, replay, verify};
use proptest::prelude::*;

/// How a schedule is damaged.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Drop,
    Duplicate,
    Swap,
    Move,
    OtherMicro,
    OtherGroup,
    OtherOp,
}

fn damage() -> impl Strategy<Value = Damage> {
    use Damage::*;
    prop::sample::select(vec![Drop, Duplicate, Swap, Swap, Swap, Move, OtherMicro, OtherGroup, OtherOp])
}

/// The schedule after one mutation at a place that `at` and `to` choose; `None` when that changes nothing.
fn damaged(schedule: &Schedule, damage: Damage, at: usize, to: usize) -> Option<Schedule> {
    let mut orders = schedule.orders().to_vec();
    let stage = at % orders.len();
    let index = at / orders.len() % orders[stage].len();
    let item = orders[stage][index];
    let mut changed = |change: &dyn Fn(&mut Work)| {
        orders[stage][index] = match item {
            Item::One(mut work) => {
                change(&mut work);
                Item::One(work)
            }
            Item::Pair(mut first, second) => {
                change(&mut first);
                Item::Pair(first, second)
            }
        };
    };
    match damage {
        Damage::OtherMicro => {
            changed(&|w| w.micro = (w.micro + 1 + to as u32 % 3) % (schedule.layout().size.micros + 1))
        }
        Damage::OtherGroup => changed(&|w| w.group = (w.group + 1 + to as u32 % 3) % (schedule.layout().groups() + 1)),
        Damage::OtherOp => changed(&|w| w.op = [Op::F, Op::I, Op::W, Op::B][to % 4]),
        Damage::Drop => drop(orders[stage].remove(index)),
        Damage::Duplicate => {
            let to = to % (orders[stage].len() + 1);
            orders[stage].insert(to, item);
        }
        Damage::Swap => {
            let to = to % orders[stage].len();
            orders[stage].swap(index, to);
        }
        Damage::Move => {
            orders[stage].remove(index);
            let other = (stage + 1) % orders.len();
            let to = to % (orders[other].len() + 1);
            orders[other].insert(to, item);
        }
    }
    let result = Schedule::new(schedule.layout(), orders);
    (result != *schedule).then_some(result)
}

proptest! {
    #[test]
    fn replays_agree((schedule, costs) in priced()) {
        prop_assert_eq!(verify(&schedule, None), Ok(()));
        let timeline = replay(&schedule, &costs).expect("a valid schedule ends");
        let (makespan, peaks) = simulate(&schedule, &costs).expect("a valid schedule ends");
        prop_assert_eq!(timeline.makespan, makespan);
        prop_assert_eq!(&schedule.peaks(), &peaks);
        // Stages do one thing at a time.
        for spans in &timeline.spans {
            prop_assert!(spans.windows(2).all(|w| w[0].end <= w[1].start));
        }
    }

    /// No schedule is faster than the bound, with its own peak as the cap or none.
    #[test]
    fn nothing_beats_the_bound((schedule, costs) in priced()) {
        prop_assume!(costs.check(schedule.layout()).is_ok());
        let makespan = replay(&schedule, &costs).expect("it ends").makespan;
        let peak = schedule.peaks().into_iter().max();
        for cap in [None, peak] {
            prop_assert!(lower_bound(schedule.layout(), &costs, cap) <= makespan);
        }
    }

    /// A single mutation is found, with a message that names its stage, or it is harmless: all work is still there and the schedule ends.
    #[test]
    fn mutations_are_caught_or_harmless(
        (_, schedule) in any_generated(), damage in damage(), at in any::<usize>(), to in any::<usize>()
    ) {
        let Some(mutant) = damaged(&schedule, damage, at, to) else { return Ok(()) };
        match (verify(&mutant, None), damage) {
            (Err(problems), _) => prop_assert!(!problems.is_empty() && problems[0].to_string().starts_with("stage ")),
            (Ok(()), Damage::Swap) => {
                let works = |s: &Schedule| {
                    let mut works: Vec<Vec<Work>> = s.orders().iter().map(|o| o.iter().flat_map(Item::works).collect()).collect();
                    works.iter_mut().for_each(|w| w.sort());
                    works
                };
                prop_assert_eq!(works(&mutant), works(&schedule));
                let costs = Costs::equal(schedule.layout().groups(), 3, 4, 5);
                prop_assert!(simulate(&mutant, &costs).is_some());
            }
            // An F that is now twice is always found; so is an op that changed. One stage has nowhere to move things to but its own order.
            (Ok(()), Damage::Move) => prop_assert_eq!(schedule.orders().len(), 1),
            (Ok(()), _) => prop_assert!(false, "{:?} was not caught", damage),
        }
    }

    #[test]
    fn orders_are_text((_, schedule) in any_generated()) {
        prop_assert_eq!(Schedule::parse(schedule.layout(), &schedule.texts()), Ok(schedule));
    }
}

/// Each rule is broken once.
#[test]
fn the_verifier_says_what_is_wrong_and_where() {
    let layout = Layout { size: size(2, 1, 2), placement: Placement::Blocked };
    let say = |cap, orders: [&str; 2]| {
        let problems = verify(&Schedule::parse(layout, &orders).expect("orders"), cap).expect_err("it is wrong");
        problems.iter().map(|p| format!("{p}\n")).collect::<String>()
    };
    let (zero, one) = ("F0:0 F0:1 B0:0 B0:1", "F1:0 B1:0 F1:1 B1:1");
    assert!(verify(&Schedule::parse(layout, &[zero, one]).expect("orders"), Some(2)).is_ok());
    let told = [
        say(None, ["F0:0 F0:1 B0:0 B0:1 F2:0", one]),
        say(None, ["F0:0 F0:1 B0:0 B0:1 F0:2", one]),
        say(None, ["F0:0 F0:1 B0:0 B0:1 F1:0", "B1:0 F1:1 B1:1"]),
        say(None, ["F0:0 F0:1 B0:0", one]),
        say(None, ["F0:0 F0:1 I0:0 B0:1", one]),
        say(None, ["F0:0 F0:1 W0:0 B0:1", one]),
        say(None, ["F0:0 F0:1 F0:0 B0:0 B0:1", one]),
        say(None, ["F0:0 F0:1 B0:0 I0:0 B0:1", one]),
        say(None, ["F0:0 F0:1 I0:0 I0:0 W0:0 B0:1", one]),
        say(None, ["F0:0 F0:1 W0:0 I0:0 B0:1", one]),
        say(None, [zero, "F1:0&B1:0 F1:1 B1:1"]),
        say(None, ["F0:0 B0:1 F0:1 B0:0", one]),
        say(None, ["F0:0 B0:0 F0:1 B0:1", "F1:0 F1:1 B1:0 B1:1"]),
        say(Some(1), [zero, one]),
    ];
    insta::assert_snapshot!(told.join("\n"));
}

proptest! {
    /// Size and placement follow from the orders. With one chunk a stage, or one stage, all placements are the same.
    #[test]
    fn layouts_follow_from_orders((_, schedule) in any_generated()) {
        let layout = schedule.layout();
        let inferred = Schedule::infer(&schedule.texts()).expect("a valid schedule");
        prop_assert_eq!(inferred.orders(), schedule.orders());
        prop_assert_eq!(inferred.layout().size, layout.size);
        let same = layout.size.chunks == 1 || layout.size.stages == 1;
        prop_assert!(same || inferred.layout().placement == layout.placement);
    }
}

#[test]
fn orders_of_no_layout_are_refused() {
    let error = |texts: &[&str]| Schedule::infer(texts).expect_err("refused").to_string();
    assert!(error(&[]).contains("at least one of stages"));
    assert!(error(&["", ""]).contains("at least one of chunks"));
    assert!(error(&["F0:0 F1:0", "F0:0"]).contains("do not lie on the stages"));
    assert!(error(&["F4294967295:4294967295"]).contains("too many"));
    assert!(error(&["F0:0 B0:0", "F1:0"]).contains("1:0"));
}

#[test]
fn what_is_no_order() {
    let layout = Layout { size: size(2, 1, 2), placement: Placement::Blocked };
    for wrong in
        ["F", "F0", "F0:", "F:0", "X0:0", "F0:0&", "F-1:0", "F0:+1", "F0:99999999999", "é0:0", "F0:0&B0:0&W0:0"]
    {
        let error = Schedule::parse(layout, &[wrong, ""]).expect_err(wrong).to_string();
        assert!(error.starts_with("stage 0: ") && error.contains("written like F0:3"), "{error}");
    }
    assert_eq!(Schedule::parse(layout, &["F0:0"]).expect_err("one order").to_string(), "1 orders for 2 stages");
}

/// Both ways at once take an even number of stages and micro-batches for each; many chunks one way are no more for it.
#[test]
fn layouts_of_two_ways_are_told_from_others() {
    let refused = |texts: &[&str]| Schedule::infer(texts).expect_err("refused").to_string();
    assert!(refused(&["F0:0 B0:0 F2:1 B2:1", "F1:0 F1:1 B1:1 B1:0", "F2:0 B2:0 F0:1 B0:1"]).contains("do not lie"));
    assert!(refused(&["F1:0 B1:0", "F0:0 B0:0"]).contains("do not lie"));
    let many = generate(Kind::Interleaved, 2, 40, 4);
    assert_eq!(Schedule::infer(&many.texts()).expect("a valid schedule").layout(), many.layout());
}

#[test]
fn costs_are_exact_and_checked() {
    let ticks = |text: &str, decimals| text.parse::<Decimal>().map(|d| d.ticks(decimals));
    assert_eq!(ticks("10.250", 3), Ok(Some(10_250)));
    assert_eq!(ticks("10.25", 1), Ok(None));
    assert_eq!(ticks("18446744073709551615", 0), Ok(Some(u64::MAX)));
    assert_eq!(ticks("18446744073709551615", 1), Ok(None));
    for wrong in ["", "-1", "1.", ".5", "1e3", "nan", "1_000", "18446744073709551616", "0.0000000001", "1.2.3"] {
        assert!(wrong.parse::<Decimal>().is_err(), "{wrong}");
    }
    let schedule = generate(Kind::DualPipeV, 2, 2, 4);
    let layout = schedule.layout();
    let error = |costs: Costs| costs.check(layout).expect_err("wrong costs").to_string();
    assert!(error(Costs::equal(3, 1, 1, 1)).contains("3 costs F for 4 layer groups"));
    assert!(error(Costs::equal(4, u64::MAX / 64, 1, 1)).contains("too large"));
    let pair = |pair| error(Costs::equal(4, 10, 12, 8).with_pair(Some(pair)).with_decimals(1));
    assert!(pair(19).contains("a pair of 1.9 is shorter than one of its parts, which takes 2"), "{}", pair(19));
    assert!(pair(31).contains("a pair of 3.1 is longer than its parts one after the other, which take 3"));
    assert!(pair(31).contains("2 to 3 here"));
    assert_eq!(usual(&schedule).with_pair(Some(20)).check(layout), Ok(()));
    let hiding = |hidden: &[u64]| Costs { hidden: hidden.to_vec(), ..Costs::equal(4, 10, 12, 8) };
    assert!(error(hiding(&[1, 1])).contains("for 2 of 4 layer groups"));
    assert!(error(hiding(&[10, 10, 11, 10])).contains("hides 11, more than one of its parts"));
    assert_eq!(hiding(&[10, 0, 3, 10]).check(layout), Ok(()));
    assert_eq!(usual(&schedule).stage_work(layout), [240, 240]);
}

/// What pairs hide differs from group to group: of two the smaller number counts.
#[test]
fn pairs_hide_what_both_groups_can() {
    for kind in [Kind::DualPipeV, Kind::InterleavedOverlap] {
        let schedule = generate(kind, 2, 2, 6);
        let costs = Costs { hidden: vec![7, 0, 9, 10], ..Costs::equal(4, 10, 12, 8) };
        let with = replay(&schedule, &costs).expect("it ends").makespan;
        assert_eq!(Some(with), simulate(&schedule, &costs).map(|(makespan, _)| makespan));
        let without = replay(&schedule, &Costs::equal(4, 10, 12, 8)).expect("it ends").makespan;
        let all = replay(&schedule, &Costs::equal(4, 10, 12, 8).with_pair(Some(20))).expect("it ends").makespan;
        assert!(all < with && with < without, "{}: {all} {with} {without}", kind.name());
        assert!(lower_bound(schedule.layout(), &costs, None) <= with);
    }
}

/// Halves, where micro-batches of one way and the other lie on different stages.
#[test]
fn both_ways_are_work_of_a_stage() {
    let layout = Layout { size: size(2, 2, 4), placement: Placement::TwoWay };
    let costs = Costs::halves(vec![1, 10], vec![0, 0], vec![0, 0]);
    assert_eq!(costs.stage_work(layout), [22, 22]);
}
