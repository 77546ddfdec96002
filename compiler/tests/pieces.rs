//! Experts in pieces: which mixtures are cut, which are not, and that results stay the same, bit for bit.

mod snapshots;

use forebay_compiler::overlap::Lanes;
use forebay_compiler::overlap::pieces::{Pieces, cut};
use forebay_ir::reference::{Mode, Tensor, evaluate_ranks, sample};
use forebay_ir::text::{parse_module, print_module, render};
use forebay_ir::{Graph, ValueId, verify};
use rustc_hash::FxHashMap;
use snapshots::snapshot;

fn outputs(graph: &Graph, given: &[Vec<Tensor>]) -> Vec<Vec<Tensor>> {
    let named = |own: &Vec<Tensor>| -> FxHashMap<ValueId, Tensor> {
        graph.inputs.iter().map(|i| i.value).zip(own.iter().cloned()).collect()
    };
    let given: Vec<_> = given.iter().map(named).collect();
    let all = evaluate_ranks(graph, &given, Mode::F64);
    all.iter().map(|values| graph.outputs.iter().map(|o| values[o.value.index()].clone()).collect()).collect()
}

#[test]
fn pieces_give_the_same_bits() {
    insta::glob!("overlap/pieces.ir", |path| {
        let source = std::fs::read_to_string(path).expect("readable");
        let graphs =
            parse_module(&source).unwrap_or_else(|e| panic!("{}", render(&e, &source, &path.display().to_string())));
        let mut changed = vec![];
        for before in &graphs {
            verify::verify(before).unwrap_or_else(|v| panic!("{}", verify::render(before, &v)));
            let mut after = before.clone();
            let done = cut(&mut after, Pieces::Number(2), &Lanes::default());
            verify::verify(&after).unwrap_or_else(|v| panic!("{}", verify::render(&after, &v)));
            assert_eq!(done, usize::from(before.name.starts_with("cut")), "{}", before.name);
            assert_eq!(after != *before, done > 0, "{}", before.name);
            for seed in 0..5 {
                let of_rank = |rank: i32| {
                    let sampled = sample::inputs(before, 2 * seed + rank, &(-2.0..2.0));
                    before.inputs.iter().map(|i| sampled[&i.value].clone()).collect()
                };
                let given: Vec<Vec<Tensor>> = (0..2).map(of_rank).collect();
                assert_eq!(outputs(before, &given), outputs(&after, &given), "{} {seed}", before.name);
            }
            changed.push(after);
        }
        snapshot(path, &print_module(&changed));
    });
}
