//! Simplification: what goes, what stays, and that no bit changes.

use crate::snapshots;

use forebay_compiler::simplify::simplify;
use forebay_ir::reference::{Mode, Tensor, evaluate, sample};
use forebay_ir::text::{parse_module, print, print_module, render};
use forebay_ir::{DType, Graph, ValueId, testing, verify};
use proptest::prelude::*;
use rustc_hash::FxHashMap;
use snapshots::snapshot;

/// Runs both graphs on the same inputs in typed semantics.
fn same_outputs(before: &Graph, after: &Graph, given: &FxHashMap<ValueId, Tensor>) {
    let inputs = before.inputs.iter().zip(&after.inputs);
    let moved = inputs.map(|(a, b)| (b.value, given[&a.value].clone())).collect();
    let (old, new) = (evaluate(before, given, Mode::Typed), evaluate(after, &moved, Mode::Typed));
    for (a, b) in before.outputs.iter().zip(&after.outputs) {
        let (old, new) = (&old[a.value.index()], &new[b.value.index()]);
        assert!(old.same_bits(new), "`{}` changed: {old:?}, {new:?}\n{}\n{}", a.name, print(before), print(after));
    }
}

#[test]
fn simplified_graphs_mean_the_same() {
    insta::glob!("simplify/*.ir", |path| {
        let source = std::fs::read_to_string(path).expect("readable");
        let graphs =
            parse_module(&source).unwrap_or_else(|e| panic!("{}", render(&e, &source, &path.display().to_string())));
        let simplified: Vec<Graph> = graphs
            .iter()
            .map(|before| {
                let mut after = before.clone();
                let moved = simplify(&mut after);
                verify::verify(&after).unwrap_or_else(|v| panic!("{}", verify::render(&after, &v)));
                assert_eq!(moved.len(), before.nodes.len(), "every old value is accounted for");
                for seed in 0..4 {
                    same_outputs(before, &after, &sample::inputs(before, seed, &(-3.0..3.0)));
                }
                let again = {
                    let mut again = after.clone();
                    simplify(&mut again);
                    again
                };
                assert_eq!(again, after, "a simplified graph is simple");
                after
            })
            .collect();
        snapshot(path, &print_module(&simplified));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_mean_the_same(tape in proptest::collection::vec(any::<u32>(), 0..300)) {
        let before = testing::graph(&tape);
        let mut after = before.clone();
        simplify(&mut after);
        verify::verify(&after).unwrap_or_else(|v| panic!("{}", verify::render(&after, &v)));
        let mut given = sample::inputs(&before, 1, &(-3.0..3.0));
        for (value, tensor) in &mut given {
            if before.ty(*value).dtype == DType::I32 {
                tensor.data.iter_mut().for_each(|x| *x = x.min(testing::MAX_INPUT as f64));
            }
        }
        same_outputs(&before, &after, &given);
    }
}
