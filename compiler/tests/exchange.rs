//! How rows of experts travel: which mixtures are decomposed, which are not, and that ranks compute the same.

mod snapshots;

use forebay_compiler::overlap::exchange::{Dispatch, decompose};
use forebay_ir::reference::{Mode, Tensor, evaluate_ranks, sample};
use forebay_ir::text::{parse_module, print_module, render};
use forebay_ir::{Graph, ValueId, verify};
use rustc_hash::FxHashMap;
use snapshots::snapshot;

const RANKS: i32 = 4;

fn outputs(graph: &Graph, given: &[Vec<Tensor>]) -> Vec<Vec<Tensor>> {
    let named = |own: &Vec<Tensor>| -> FxHashMap<ValueId, Tensor> {
        graph.inputs.iter().map(|i| i.value).zip(own.iter().cloned()).collect()
    };
    let given: Vec<_> = given.iter().map(named).collect();
    let all = evaluate_ranks(graph, &given, Mode::F64);
    all.iter().map(|values| graph.outputs.iter().map(|o| values[o.value.index()].clone()).collect()).collect()
}

fn assert_near(have: &[Vec<Tensor>], want: &[Vec<Tensor>], what: &str) {
    for (have, want) in have.iter().flatten().zip(want.iter().flatten()) {
        assert_eq!(have.dims, want.dims, "{what}");
        for (h, w) in have.data.iter().zip(&want.data) {
            assert!((h - w).abs() <= 1e-12 * w.abs().max(1.0), "{what}: {h} is not {w}");
        }
    }
}

#[test]
fn decomposed_exchanges_give_the_same_values() {
    insta::glob!("overlap/hierarchical.ir", |path| {
        let source = std::fs::read_to_string(path).expect("readable");
        let graphs =
            parse_module(&source).unwrap_or_else(|e| panic!("{}", render(&e, &source, &path.display().to_string())));
        let mut changed = vec![];
        for before in &graphs {
            verify::verify(before).unwrap_or_else(|v| panic!("{}", verify::render(before, &v)));
            let mut after = before.clone();
            let done = decompose(&mut after, Dispatch::Hierarchical, &[0]);
            verify::verify(&after).unwrap_or_else(|v| panic!("{}", verify::render(&after, &v)));
            assert_eq!(done, usize::from(before.name.starts_with("decomposed")), "{}", before.name);
            assert_eq!(after != *before, done > 0, "{}", before.name);
            for seed in 0..5 {
                let of_rank = |rank: i32| {
                    let sampled = sample::inputs(before, RANKS * seed + rank, &(-2.0..2.0));
                    before.inputs.iter().map(|i| sampled[&i.value].clone()).collect()
                };
                let given: Vec<Vec<Tensor>> = (0..RANKS).map(of_rank).collect();
                assert_near(&outputs(&after, &given), &outputs(before, &given), &format!("{} {seed}", before.name));
            }
            changed.extend((done > 0).then_some(after));
        }
        snapshot(path, &print_module(&changed));
    });
}
