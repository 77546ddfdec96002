//! The minimum cut against trying all sets.

use forebay_compiler::autodiff::cut::{Place, minimum_cut};
use forebay_ir::{Graph, Op, ValueId, testing};
use proptest::prelude::*;

/// Can `value` be had in the later graph when `kept` is handed over?
fn is_had(graph: &Graph, place: &[Place], kept: &[ValueId], value: ValueId) -> bool {
    match place[value.index()] {
        _ if kept.contains(&value) => true,
        Place::Before => false,
        Place::Either | Place::After => reads(graph, value).into_iter().all(|r| is_had(graph, place, kept, r)),
    }
}

fn reads(graph: &Graph, value: ValueId) -> Vec<ValueId> {
    let node = graph.node(value);
    let types = node.operands.iter().map(|&o| graph.ty(o)).chain([&node.ty]);
    let starts = types.flat_map(|ty| ty.axes.iter().filter_map(|&a| graph.offsets_of(a))).filter(|&s| s != value);
    node.operands.iter().copied().chain(starts).collect()
}

fn weight_of(kept: &[ValueId], weights: &[u64]) -> u64 {
    kept.iter().map(|v| weights[v.index()]).sum()
}

/// The least weight of a set of values that is enough.
fn least(graph: &Graph, place: &[Place], weights: &[u64], wanted: &[ValueId]) -> u64 {
    let candidates: Vec<ValueId> = graph.values().filter(|v| place[v.index()] != Place::After).collect();
    let sets = (0..1_u32 << candidates.len()).map(|bits| {
        candidates.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, &v)| v).collect::<Vec<ValueId>>()
    });
    let enough = |kept: &Vec<ValueId>| wanted.iter().all(|&w| is_had(graph, place, kept, w));
    sets.filter(enough).map(|kept| weight_of(&kept, weights)).min().expect("all values are enough")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_set_is_lighter(
        tape in proptest::collection::vec(any::<u32>(), 0..60),
        weights in proptest::collection::vec(0_u64..9, 64),
        places in proptest::collection::vec(0_u8..4, 64),
    ) {
        let graph = testing::graph(&tape);
        prop_assume!(graph.nodes.len() <= 14);
        let mut place: Vec<Place> = Vec::new();
        for value in graph.values() {
            let after = reads(&graph, value).iter().any(|r| place.get(r.index()) == Some(&Place::After));
            place.push(match places[value.index()] {
                _ if graph.node(value).op == Op::Input => Place::Before,
                _ if after => Place::After,
                0 => Place::After,
                1 => Place::Before,
                _ => Place::Either,
            });
        }
        let wanted: Vec<ValueId> = graph.outputs.iter().map(|o| o.value).collect();
        let cut = minimum_cut(&graph, &|v| place[v.index()], &|v| weights[v.index()], &wanted);
        prop_assert!(wanted.iter().all(|&w| is_had(&graph, &place, &cut, w)), "{cut:?} is not enough");
        prop_assert_eq!(weight_of(&cut, &weights), least(&graph, &place, &weights, &wanted));
    }
}
