//! Cuts of layers into groups, against all cuts.

use crate::common::size;
use forebay_pipeline::layers::{LayerCosts, cut, refine};
use forebay_pipeline::{Kind, Layout, Placement, replay};
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

#[test]
fn refused() {
    let layout = Layout { size: size(4, 2, 8), placement: Placement::Wave };
    let error = |totals: &[u64], layout| cut(&layers(totals), layout).expect_err("refused").to_string();
    assert!(error(&[1; 7], layout).contains("7 layers do not fill 8 layer groups"));
    assert!(error(&[1; 1025], layout).contains("the most is 1024"));
    assert!(error(&[u64::MAX / 9; 9], layout).contains("too large"));
    assert!(error(&[1; 9], Layout { placement: Placement::TwoWay, ..layout }).contains("two-way"));
}
