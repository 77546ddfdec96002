//! Keys that travel: where they do, where they do not, and that results stay the same.

use crate::snapshots;

use forebay_compiler::ring::travel;
use forebay_ir::reference::{Mode, Tensor, evaluate_ranks, sample};
use forebay_ir::text::{parse_module, print_module, render};
use forebay_ir::{Graph, InputRole, ValueId, verify};
use rustc_hash::FxHashMap;
use snapshots::snapshot;

/// What each rank is given: data are the same everywhere, all else is its own.
fn given(graph: &Graph, ranks: u64) -> Vec<FxHashMap<ValueId, Tensor>> {
    let all: Vec<_> = (0..ranks).map(|rank| sample::inputs(graph, rank as i32, &(-2.0..2.0))).collect();
    let data: Vec<ValueId> = graph.inputs.iter().filter(|i| i.role == InputRole::Data).map(|i| i.value).collect();
    let shared = |mut own: FxHashMap<ValueId, Tensor>| {
        data.iter().for_each(|v| drop(own.insert(*v, all[0][v].clone())));
        own
    };
    all.iter().cloned().map(shared).collect()
}

fn outputs(graph: &Graph, given: &[FxHashMap<ValueId, Tensor>], before: &Graph) -> Vec<Vec<Tensor>> {
    let inputs: Vec<(ValueId, ValueId)> =
        before.inputs.iter().zip(&graph.inputs).map(|(a, b)| (a.value, b.value)).collect();
    let given: Vec<FxHashMap<ValueId, Tensor>> =
        given.iter().map(|own| inputs.iter().map(|(a, b)| (*b, own[a].clone())).collect()).collect();
    let all = evaluate_ranks(graph, &given, Mode::F64);
    all.iter().map(|values| graph.outputs.iter().map(|o| values[o.value.index()].clone()).collect()).collect()
}

#[test]
fn travelling_keys_give_the_same_results() {
    insta::glob!("ring/*.ir", |path| {
        let source = std::fs::read_to_string(path).expect("readable");
        let graphs =
            parse_module(&source).unwrap_or_else(|e| panic!("{}", render(&e, &source, &path.display().to_string())));
        let mut travelled = vec![];
        for before in &graphs {
            verify::verify(before).unwrap_or_else(|v| panic!("{}", verify::render(before, &v)));
            let mut after = before.clone();
            travel(&mut after, &[0]);
            verify::verify(&after).unwrap_or_else(|v| panic!("{}", verify::render(&after, &v)));
            assert_eq!(after != *before, before.name.starts_with("travels"), "{}", before.name);
            let ranks = before.mesh.iter().map(|d| u64::from(d.size)).product();
            let given = given(before, ranks);
            let (want, have) = (outputs(before, &given, before), outputs(&after, &given, before));
            for (rank, (want, have)) in want.iter().zip(&have).enumerate() {
                for ((want, have), output) in want.iter().zip(have).zip(&before.outputs) {
                    let what = format!("{}: {} on rank {rank}", before.name, output.name);
                    assert_eq!(want.dims, have.dims, "{what}");
                    if output.name == "blind" {
                        // b, t and e: of four queries the first two see keys.
                        let seen = |at: usize| at / 2 % 4 < 2;
                        assert!(
                            have.data.iter().enumerate().all(|(at, x)| (*x == 0.0) != seen(at)),
                            "{what}: {have:?}"
                        );
                    }
                    for (w, h) in want.data.iter().zip(&have.data) {
                        assert!((w - h).abs() <= 1e-12 * w.abs().max(1.0), "{what}: {h} is not {w}");
                    }
                }
            }
            travelled.push(after);
        }
        snapshot(path, &print_module(&travelled));
    });
}
