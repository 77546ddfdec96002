//! What is kept under a limit, against trying all sets.

use forebay_compiler::memory::choose::{Away, Part, Problem};
use forebay_ir::{Graph, Op, ValueId, testing};
use proptest::prelude::*;

/// All sets of values that are enough: bytes, and seconds of what is made again.
fn all_selections(problem: &Problem) -> Vec<(f64, f64)> {
    let mut selections = vec![(0.0, 0.0)];
    for part in problem.parts() {
        let values: Vec<ValueId> = part.graph.values().filter(|&v| part.graph.node(v).op != Op::Input).collect();
        let of_part: Vec<(f64, f64)> = (0..1_u32 << values.len())
            .map(|bits| {
                let kept: Vec<ValueId> =
                    values.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, &v)| v).collect();
                let again = part.made_again(&kept);
                let sum = |of: &[f64], values: &[ValueId]| values.iter().map(|v| of[v.index()]).sum::<f64>();
                (sum(&part.bytes, &kept), sum(&part.seconds, &again))
            })
            .collect();
        selections = selections.iter().flat_map(|a| of_part.iter().map(|b| (a.0 + b.0, a.1 + b.1))).collect();
    }
    selections
}

fn part<'a>(graph: &'a Graph, bytes: &[u16], seconds: &[u16]) -> Part<'a> {
    let is_input = |v: ValueId| graph.node(v).op == Op::Input;
    let of =
        |numbers: &[u16], v: ValueId| if is_input(v) { 0.0 } else { f64::from(numbers[v.index() % numbers.len()]) };
    let mut wanted: Vec<ValueId> = graph.outputs.iter().map(|o| o.value).filter(|&v| !is_input(v)).collect();
    wanted.dedup();
    Part {
        graph,
        wanted,
        bytes: graph.values().map(|v| 64.0 * of(bytes, v)).collect(),
        seconds: graph.values().map(|v| 1e-5 * of(seconds, v)).collect(),
        away: vec![],
        windows: vec![],
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// At every limit the time is the least of all sets within it; one byte less than the fewest bytes is refused, with those.
    #[test]
    fn no_set_within_the_limit_is_faster(
        tapes in proptest::collection::vec(proptest::collection::vec(any::<u32>(), 0..50), 1..3),
        bytes in proptest::collection::vec(1_u16..200, 16),
        seconds in proptest::collection::vec(0_u16..200, 16),
    ) {
        let graphs: Vec<Graph> = tapes.iter().map(|tape| testing::graph(tape)).collect();
        let free = |g: &Graph| g.nodes.iter().filter(|n| n.op != Op::Input).count();
        prop_assume!(graphs.iter().map(free).sum::<usize>() <= 14);
        let problem = Problem::new(graphs.iter().map(|g| part(g, &bytes, &seconds)).collect());
        let all = all_selections(&problem);
        let fewest = all.iter().map(|s| s.0).fold(f64::INFINITY, f64::min);
        let mut limits: Vec<f64> = all.iter().map(|s| s.0).collect();
        limits.sort_by(f64::total_cmp);
        limits.dedup();
        for limit in limits.iter().copied().step_by((limits.len() / 24).max(1)) {
            let least = all.iter().filter(|s| s.0 <= limit).map(|s| s.1).fold(f64::INFINITY, f64::min);
            let choice = problem.within(limit, u32::MAX).expect("some set is within the limit");
            let selection = &choice.selection;
            prop_assert!(choice.exact);
            prop_assert!(selection.bytes <= limit, "{} of {limit}", selection.bytes);
            prop_assert!((selection.seconds - least).abs() < 1e-9, "{} is not {least} within {limit}", selection.seconds);
            prop_assert!(choice.bound <= least + 1e-9);
            // What it says of the set is so.
            let again = problem.keeping(selection.kept.clone());
            prop_assert_eq!((again.bytes, again.seconds), (selection.bytes, selection.seconds));
        }
        if fewest > 0.0 {
            let refused = problem.within(fewest - 1.0, u32::MAX).expect_err("no set takes fewer bytes");
            prop_assert_eq!(refused.bytes, fewest);
        }
    }

    /// Few cuts give a choice within the limit and an honest bound.
    #[test]
    fn few_cuts_give_a_bound(
        tape in proptest::collection::vec(any::<u32>(), 0..60),
        bytes in proptest::collection::vec(1_u16..200, 16),
        seconds in proptest::collection::vec(0_u16..200, 16),
        share in 0.0..1.0,
    ) {
        let graph = testing::graph(&tape);
        prop_assume!(graph.nodes.iter().filter(|n| n.op != Op::Input).count() <= 14);
        let problem = Problem::new(vec![part(&graph, &bytes, &seconds)]);
        let all = all_selections(&problem);
        let (fewest, most) = (problem.least_bytes().bytes, problem.least_time().bytes);
        let limit = fewest + share * (most - fewest);
        let least = all.iter().filter(|s| s.0 <= limit).map(|s| s.1).fold(f64::INFINITY, f64::min);
        let choice = problem.by_cuts(limit, 1, &mut vec![]).expect("the fewest bytes are within the limit");
        prop_assert!(choice.selection.bytes <= limit);
        prop_assert!(choice.bound <= least + 1e-9 && least <= choice.selection.seconds + 1e-9);
        // What is left free is used, a value at a time.
        let improved = problem.improved(choice.selection.clone(), vec![], limit);
        prop_assert!(improved.bytes <= limit && improved.seconds <= choice.selection.seconds + 1e-12);
        prop_assert!(improved.seconds >= least - 1e-9);
    }

    /// Kept, swapped or made again: the best of all choices, within the limit.
    #[test]
    fn swapping_is_the_best_of_all(
        tapes in proptest::collection::vec(proptest::collection::vec(any::<u32>(), 0..30), 1..3),
        bytes in proptest::collection::vec(1_u16..200, 16),
        seconds in proptest::collection::vec(1_u16..200, 16),
        rate in 1e-9..1e-6f64,
        share in 0.0..1.0,
        windows in proptest::collection::vec(0.0..1.5f64, 0..6),
    ) {
        let graphs: Vec<Graph> = tapes.iter().map(|tape| testing::graph(tape)).collect();
        let made = |g: &Graph| g.values().filter(|&v| g.node(v).op != Op::Input).collect::<Vec<_>>();
        let values: Vec<(usize, ValueId)> =
            graphs.iter().enumerate().flat_map(|(n, g)| made(g).into_iter().map(move |v| (n, v))).collect();
        prop_assume!(values.len() <= 10);
        let parts = graphs.iter().enumerate().map(|(n, graph)| {
            let mut part = part(graph, &bytes, &seconds);
            let away = |v: ValueId| {
                let bytes = part.bytes[v.index()];
                (graph.node(v).op != Op::Input).then_some(Away { bytes: 0.25 * bytes, link: rate * bytes })
            };
            part.away = graph.values().map(away).collect();
            let link: f64 = part.away.iter().flatten().map(|a| a.link).sum();
            // Some of the copies of some runs are hidden.
            part.windows = windows.iter().skip(n).map(|w| w * link / windows.len() as f64).collect();
            part.windows.sort_by(f64::total_cmp);
            part
        });
        let problem = Problem::new(parts.collect());
        // Each value is made again, kept or swapped.
        let all: Vec<(f64, f64)> = (0..3_usize.pow(values.len() as u32)).map(|code| {
            let fate = |i: usize| code / 3_usize.pow(i as u32) % 3;
            let of = |fates: &[usize]| -> Vec<Vec<ValueId>> {
                let of_part = |n: usize| {
                    let own = values.iter().enumerate().filter(|(i, (part, _))| *part == n && fates.contains(&fate(*i)));
                    own.map(|(_, &(_, v))| v).collect()
                };
                (0..graphs.len()).map(of_part).collect()
            };
            let selection = problem.selection(of(&[1, 2]), of(&[2]));
            (selection.bytes, selection.seconds)
        }).collect();
        let fewest = all.iter().map(|s| s.0).fold(f64::INFINITY, f64::min);
        let most = problem.keeping(problem.parts().iter().map(|p| p.wanted.clone()).collect()).bytes;
        let limit = fewest + share * (most - fewest).max(0.0);
        let least = all.iter().filter(|s| s.0 <= limit + 1e-9).map(|s| s.1).fold(f64::INFINITY, f64::min);
        let choice = problem.within(limit + 1e-9, 4000).expect("the fewest bytes are within the limit");
        let selection = &choice.selection;
        prop_assert!(selection.bytes <= limit + 1e-9, "{} of {limit}", selection.bytes);
        prop_assert!(choice.exact && choice.bound <= least + 1e-9, "{} is no bound of {least}", choice.bound);
        prop_assert!((selection.seconds - least).abs() < 1e-8, "{} is not {least}", selection.seconds);
        // Cuts alone come with a bound, and what is improved from them is between the two.
        let mut beyond = vec![];
        let cuts = problem.by_cuts(limit + 1e-9, 4000, &mut beyond).expect("the fewest bytes are within the limit");
        prop_assert!(cuts.bound <= least + 1e-9, "{} is no bound of {least}", cuts.bound);
        prop_assert!(!cuts.exact || (cuts.selection.seconds - least).abs() < 1e-8);
        let improved = problem.improved(cuts.selection.clone(), beyond, limit + 1e-9);
        prop_assert!(improved.bytes <= limit + 1e-9 && improved.seconds <= cuts.selection.seconds + 1e-12);
        prop_assert!(improved.seconds >= least - 1e-9, "{} is better than {least}", improved.seconds);
        // Few cuts leave it to be found among all.
        let hasty = problem.within(limit + 1e-9, 1).expect("the fewest bytes are within the limit");
        prop_assert!((hasty.selection.seconds - least).abs() < 1e-8, "{} is not {least}", hasty.selection.seconds);
        let again = problem.selection(selection.kept.clone(), selection.swapped.clone());
        prop_assert_eq!(&again, selection);
        // Windows that hide everything make nothing dearer.
        let free = problem.with_windows(|_| vec![1e6]);
        let choice = free.within(limit + 1e-9, 4000).expect("the fewest bytes are within the limit");
        prop_assert!(choice.bound <= selection.seconds + 1e-9);
        prop_assert!(!choice.exact || choice.selection.seconds <= selection.seconds + 1e-9);
    }

    /// What is remembered from other limits changes no choice, to the bit.
    #[test]
    fn others_asked_before_change_nothing(
        tapes in proptest::collection::vec(proptest::collection::vec(any::<u32>(), 0..120), 1..3),
        bytes in proptest::collection::vec(1_u16..200, 16),
        seconds in proptest::collection::vec(1_u16..200, 16),
        rate in 1e-10..3e-8f64,
        shares in proptest::collection::vec(0.0..1.0f64, 1..5),
    ) {
        let graphs: Vec<Graph> = tapes.iter().map(|tape| testing::graph(tape)).collect();
        let parts: Vec<Part> = graphs.iter().map(|graph| {
            let mut part = part(graph, &bytes, &seconds);
            let away = |v: ValueId| Away { bytes: 0.25 * part.bytes[v.index()], link: rate * part.bytes[v.index()] };
            part.away = graph.values().map(|v| (v.index() % 3 == 0).then(|| away(v))).collect();
            part.windows = vec![20.0 * rate, 200.0 * rate];
            part
        }).collect();
        let problem = Problem::new(parts.clone());
        let (fewest, most) = (problem.least_bytes().bytes, problem.least_time().bytes);
        for share in shares {
            let limit = fewest + share * (most - fewest);
            let fresh = Problem::new(parts.clone());
            prop_assert_eq!(problem.within(limit, 100), fresh.within(limit, 100));
            prop_assert_eq!(problem.front(), fresh.front());
        }
    }

    /// The corners of the front are those of the lower convex hull of all sets.
    #[test]
    fn the_front_is_the_hull(
        tape in proptest::collection::vec(any::<u32>(), 0..60),
        bytes in proptest::collection::vec(1_u16..200, 16),
        seconds in proptest::collection::vec(1_u16..200, 16),
    ) {
        let graph = testing::graph(&tape);
        prop_assume!(graph.nodes.iter().filter(|n| n.op != Op::Input).count() <= 14);
        let problem = Problem::new(vec![part(&graph, &bytes, &seconds)]);
        let all = all_selections(&problem);
        let front = problem.front();
        for pair in front.windows(2) {
            prop_assert!(pair[1].bytes < pair[0].bytes && pair[1].seconds > pair[0].seconds);
            // Nothing lies below the line between two corners.
            let price = (pair[1].seconds - pair[0].seconds) / (pair[0].bytes - pair[1].bytes);
            let line = pair[0].seconds + price * pair[0].bytes;
            for s in &all {
                prop_assert!(s.1 + price * s.0 >= line - 1e-9, "{s:?} is below the front");
            }
        }
        prop_assert!((front[0].seconds - all.iter().map(|s| s.1).fold(f64::INFINITY, f64::min)).abs() < 1e-9);
    }
}
