//! Graphs of a `.ir` file, and what ranks compute of them by the oracle.

use forebay_ir::reference::{Mode, Tensor, evaluate_ranks, sample};
use forebay_ir::text::{parse_module, render};
use forebay_ir::{Graph, ValueId, verify};
use rustc_hash::FxHashMap;
use std::path::Path;

/// The graphs of a file, all of them sound.
pub fn graphs(path: &Path) -> Vec<Graph> {
    let source = std::fs::read_to_string(path).expect("readable");
    let graphs =
        parse_module(&source).unwrap_or_else(|e| panic!("{}", render(&e, &source, &path.display().to_string())));
    graphs.iter().for_each(sound);
    graphs
}

/// Stops when a graph is not what the verifier demands.
pub fn sound(graph: &Graph) {
    verify::verify(graph).unwrap_or_else(|v| panic!("{}", verify::render(graph, &v)));
}

/// Inputs of so many ranks, each its own.
pub fn given(graph: &Graph, ranks: i32, seed: i32) -> Vec<Vec<Tensor>> {
    let of_rank = |rank: i32| {
        let sampled = sample::inputs(graph, ranks * seed + rank, &(-2.0..2.0));
        graph.inputs.iter().map(|i| sampled[&i.value].clone()).collect()
    };
    (0..ranks).map(of_rank).collect()
}

/// The results of all ranks.
pub fn outputs(graph: &Graph, given: &[Vec<Tensor>]) -> Vec<Vec<Tensor>> {
    let named = |own: &Vec<Tensor>| -> FxHashMap<ValueId, Tensor> {
        graph.inputs.iter().map(|i| i.value).zip(own.iter().cloned()).collect()
    };
    let given: Vec<_> = given.iter().map(named).collect();
    let all = evaluate_ranks(graph, &given, Mode::F64);
    all.iter().map(|values| graph.outputs.iter().map(|o| values[o.value.index()].clone()).collect()).collect()
}
