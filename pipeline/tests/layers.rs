//! Cuts of layers into groups, against all cuts.

use crate::common::{any_schedule, size};
use forebay_pipeline::layers::{Cut, LayerCosts, cut, fitted, lower_bound, refine};
use forebay_pipeline::search::{Request, search_cuts};
use forebay_pipeline::{Costs, Kind, Layout, Placement, replay, verify};
use proptest::prelude::*;

fn layers(totals: &[u64]) -> Vec<LayerCosts> {
    totals.iter().map(|t| LayerCosts::halves(t / 3, t / 3, t - 2 * (t / 3))).collect()
}

fn slowest(totals: &[u64], ends: &[usize], layout: Layout) -> u64 {
    let mut loads = vec![0; layout.size.stages as usize];
    let mut start = 0;
    for (group, &end) in (0..).zip(ends) {
        assert!(start < end);
        loads[layout.stage_of(group, 0) as usize] += totals[start..end].iter().sum::<u64>();
        start = end;
    }
    assert_eq!(start, totals.len());
    loads.into_iter().max().expect("a stage")
}

/// All ways to choose boundaries.
fn best(totals: &[u64], layout: Layout, ends: &mut Vec<usize>) -> u64 {
    let left = layout.groups() as usize - ends.len();
    if left == 1 {
        ends.push(totals.len());
        let value = slowest(totals, ends, layout);
        ends.pop();
        return value;
    }
    let start = ends.last().map_or(0, |e| *e);
    let tried = (start + 1..=totals.len() - (left - 1)).map(|end| {
        ends.push(end);
        let value = best(totals, layout, ends);
        ends.pop();
        value
    });
    tried.min().expect("there are layers enough")
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let placement = prop::sample::select(vec![Placement::Blocked, Placement::Interleaved, Placement::Wave]);
    (placement, 1..4u32, 1..4u32).prop_map(|(placement, p, v)| Layout { size: size(p, v, 4), placement })
}

proptest! {
    #[test]
    fn the_slowest_stage_is_as_fast_as_can_be(
        layout in any_layout(), totals in prop::collection::vec(0..30u64, 9..12)
    ) {
        let made = cut(&layers(&totals), layout).expect("layers enough");
        let value = slowest(&totals, &made.ends, layout);
        let least = best(&totals, layout, &mut vec![]);
        prop_assert!(value >= least);
        prop_assert!(!made.exact || value == least, "{} instead of {least}", value);
        prop_assert!(made.exact || layout.size.chunks > 2);
        let costs = made.costs(&layers(&totals));
        let all: u64 = costs.forward.iter().chain(&costs.input).chain(&costs.weight).sum();
        prop_assert_eq!(all, totals.iter().sum::<u64>());
    }

    /// Moving layers on never makes the makespan worse, and sometimes better: the slowest stage is not all.
    #[test]
    fn refined_cuts_are_no_slower(totals in prop::collection::vec(1..30u64, 8..14)) {
        let layers = layers(&totals);
        let schedule = Kind::ZbV.generate(size(2, 2, 4)).expect("a schedule");
        let makespan = |costs| replay(&schedule, &costs).expect("it ends").makespan;
        let even = cut(&layers, schedule.layout()).expect("layers enough");
        let before = makespan(even.costs(&layers));
        let mut tried = 0;
        let after = refine(even, 50, |cut| { tried += 1; makespan(cut.costs(&layers)) });
        prop_assert!(makespan(after.costs(&layers)) <= before && tried <= 51);
    }
}

/// Boundaries that leave each group a layer, by numbers that say how many more it has.
fn any_cut(layers: usize, groups: usize, more: &[usize]) -> Cut {
    let mut left = layers - groups;
    let mut end = 0;
    let mut ends: Vec<usize> = (0..groups)
        .map(|group| {
            let more = more[group % more.len()] % (left + 1);
            (left, end) = (left - more, end + 1 + more);
            end
        })
        .collect();
    ends[groups - 1] = layers;
    Cut { ends, exact: false }
}

proptest! {
    /// What no cut beats is beaten by no order of any cut, with its own peak as the cap or none, with pairs that save and without.
    #[test]
    fn no_cut_beats_the_bound(
        schedule in any_schedule(),
        costs in prop::collection::vec((0..20u64, 0..20u64, 0..20u64), 16..20),
        more in prop::collection::vec(0..9usize, 1..9),
        (p2p, saves) in (0..5u64, any::<bool>()),
    ) {
        let layout = schedule.layout();
        prop_assume!(layout.placement != Placement::TwoWay);
        let layers: Vec<LayerCosts> = costs.into_iter().map(|(f, i, w)| LayerCosts::halves(f, i, w)).collect();
        let cut = any_cut(layers.len(), layout.groups() as usize, &more);
        let costs = cut.costs(&layers).with_p2p(p2p);
        let longest = costs.forward.iter().chain(&costs.whole).max().copied();
        let costs = costs.with_pair(longest.filter(|_| saves));
        prop_assert_eq!(costs.check(layout), Ok(()));
        let makespan = replay(&schedule, &costs).expect("it ends").makespan;
        for cap in [None, schedule.peaks().into_iter().max()] {
            let bound = lower_bound(&layers, layout, &costs, cap);
            prop_assert!(bound <= makespan, "{} {}", bound, makespan);
        }
    }
}

/// The cut whose slowest stage is fastest takes 504, and nothing beats that for its groups; another cut takes 500.
#[test]
fn a_bound_of_one_cut_is_none_of_all() {
    let layers = [(8, 6, 2), (16, 8, 6), (2, 5, 4), (11, 6, 16), (7, 18, 2), (14, 15, 12)];
    let layers = layers.map(|(f, i, w)| LayerCosts::halves(f, i, w));
    let (size, links) = (size(2, 2, 6), Costs::equal(0, 0, 0, 0));
    let placements = [Placement::Wave, Placement::Interleaved, Placement::Blocked];
    let request = Request { size, costs: &links, cap: None, placements: &placements, nodes: Some(2_000) };
    let found = search_cuts(&layers, &request, &mut |_| ()).expect("found");
    assert_eq!(verify(&found.found.schedule, None), Ok(()));
    assert_eq!(replay(&found.found.schedule, &found.costs).expect("it ends").makespan, found.found.makespan);
    let other = Cut { ends: vec![1, 3, 5, 6], exact: false }.costs(&layers);
    let other = forebay_pipeline::search::search(&Request { costs: &other, ..request }, &mut |_| ()).expect("found");
    assert_eq!((found.found.makespan, found.found.bound, other.makespan), (504, 504, 500));
    // An even share of all work is 468, and the second stage waits for a layer: 472 at least.
    assert!((472..=500).contains(&found.bound), "{}", found.bound);
}

/// Real sizes: 61 layers, three of them dense, an embedding, a head and a layer of multi-token prediction, over 16 stages of two chunks.
#[test]
fn a_model_of_real_size() {
    let totals: Vec<u64> = [vec![40], vec![190; 3], vec![300; 58], vec![330, 260]].concat();
    for placement in [Placement::Wave, Placement::Interleaved] {
        let layout = Layout { size: size(16, 2, 32), placement };
        let made = cut(&layers(&totals), layout).expect("layers enough");
        assert!(made.exact);
        // 64 slots of equal number, the usual way, have a stage of four MoE layers.
        let usual: Vec<usize> = (1..32).map(|g| g * 2).chain([totals.len()]).collect();
        assert!(slowest(&totals, &made.ends, layout) <= slowest(&totals, &usual, layout));
    }
}

/// With two groups a stage, the cut whose slowest stage is fastest may have groups of one layer and of ten; groups that are alike make the shorter pipeline.
#[test]
fn a_cut_is_no_slower_than_groups_that_are_alike() {
    let mut costs = vec![LayerCosts::halves(10000, 11000, 9000); 82];
    (costs[0], costs[81]) = (LayerCosts::halves(1, 0, 1), LayerCosts::halves(7100, 7100, 7000));
    for kind in [Kind::VMin, Kind::VHalf, Kind::ZbV, Kind::OneFOneB] {
        let schedule = kind.generate(size(8, 2, 16)).expect("a schedule");
        let makespan = |costs: &Costs| Some(replay(&schedule, costs).ok()?.makespan);
        let (fitted, _) = fitted(&costs, schedule.layout(), |costs| costs, makespan).expect("a cut");
        let even = Cut { ends: (1..=16).map(|g| if g == 16 { 82 } else { 1 + 5 * g }).collect(), exact: false };
        assert!(makespan(&fitted) <= makespan(&even.costs(&costs)), "{kind:?}");
    }
}

#[test]
fn refused() {
    let layout = Layout { size: size(4, 2, 8), placement: Placement::Wave };
    let error = |totals: &[u64], layout| cut(&layers(totals), layout).expect_err("refused").to_string();
    assert!(error(&[1; 7], layout).contains("7 layers do not fill 8 layer groups"));
    assert!(error(&[1; 1025], layout).contains("the most is 1024"));
    assert!(error(&[u64::MAX / 9; 9], layout).contains("too large"));
    assert!(error(&[1; 9], Layout { placement: Placement::TwoWay, ..layout }).contains("two-way"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// A search over layers is never slower than a published schedule on the cut that is best for it.
    #[test]
    fn a_search_is_as_fast_as_published_orders_on_their_own_cuts(
        stages in 2..5u32, micros in 1..8u32, p2p in 0..4u64,
        costs in prop::collection::vec((1..13u64, 1..13u64, 1..13u64), 6..11)
    ) {
        let layers: Vec<LayerCosts> = costs.iter().map(|&(f, i, w)| LayerCosts::halves(f, i, w)).collect();
        let size = size(stages, 1, micros);
        let links = Costs::equal(0, 0, 0, 0).with_p2p(p2p);
        let request = Request { size, costs: &links, cap: None, placements: &[Placement::Blocked], nodes: Some(300) };
        let found = search_cuts(&layers, &request, &mut |_| ()).expect("a schedule").found;
        for kind in [Kind::GPipe, Kind::OneFOneB, Kind::ZbH1, Kind::ZbH2] {
            let schedule = kind.generate(size).expect("a schedule");
            let makespan = |costs: &Costs| Some(replay(&schedule, costs).ok()?.makespan);
            let (costs, _) = fitted(&layers, schedule.layout(), |costs| costs.with_p2p(p2p), makespan).expect("a cut");
            prop_assert!(Some(found.makespan) <= makespan(&costs), "{kind:?}: {} instead of {:?}", found.makespan, makespan(&costs));
        }
    }
}
