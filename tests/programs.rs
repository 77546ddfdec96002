//! Emitted programs against the oracle: random graphs are compiled to plans, run by the runtime, and compared value by value.

use forebay_compiler::emit::{Joins, standalone};
use forebay_ir::reference::{Mode, Tensor, evaluate};
use forebay_ir::{DType, Graph, InputRole, Op, OutputRole, ValueId, testing};
use forebay_plan as plan;
use forebay_runtime::data::Batch;
use forebay_runtime::exec::{ExecOptions, Executor};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rustc_hash::FxHashMap;

/// The graph in f64 throughout, so that rounding cannot flip a comparison or a choice. What random ops would take their key from is an input like any other.
fn in_f64(mut graph: Graph) -> Graph {
    graph.inputs.iter_mut().filter(|i| i.role == InputRole::Runtime).for_each(|i| i.role = InputRole::Data);
    for node in &mut graph.nodes {
        if node.ty.dtype.is_float() {
            node.ty.dtype = DType::F64;
        }
        if let Op::Cast(to) = &mut node.op
            && to.is_float()
        {
            *to = DType::F64;
        }
        if let Op::LinearAttention(op) = &mut node.op {
            op.result = DType::F64;
        }
    }
    graph
}

/// Every value that can be an output is one, so that the comparison finds the first op that is wrong.
fn with_all_outputs(mut graph: Graph) -> Graph {
    graph.outputs.clear();
    for value in graph.values() {
        if !matches!(graph.node(value).op, Op::Input) {
            graph.add_output(format!("v{}", value.0), value, OutputRole::Output);
        }
    }
    graph
}

fn inputs(graph: &Graph, seed: u64) -> FxHashMap<ValueId, Tensor> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    graph
        .inputs
        .iter()
        .map(|input| {
            let ty = graph.ty(input.value);
            let dims: Vec<u64> = graph.dims(&ty.axes).into_iter().map(|(_, n)| n).collect();
            let n = dims.iter().product::<u64>();
            let value = |u: f64| match ty.dtype {
                DType::I32 => (u * (testing::MAX_INPUT + 1) as f64).floor(),
                DType::Bool => (u * 2.0).floor(),
                // Eighths: sums of products are exact, in whatever order, and do not make a comparison of equals come out otherwise.
                _ => (32.0 * u).floor() / 8.0 - 2.0,
            };
            (input.value, Tensor::new(dims, (0..n).map(|_| value(next())).collect::<Vec<_>>()))
        })
        .collect()
}

fn to_bytes(dtype: plan::DType, data: &[f64]) -> Vec<u8> {
    match dtype {
        plan::DType::F64 => data.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        plan::DType::F32 => data.iter().flat_map(|v| (*v as f32).to_ne_bytes()).collect(),
        plan::DType::Bf16 => data.iter().flat_map(|v| half::bf16::from_f64(*v).to_ne_bytes()).collect(),
        plan::DType::I32 => data.iter().flat_map(|v| (*v as i32).to_ne_bytes()).collect(),
        plan::DType::I16 => data.iter().flat_map(|v| (*v as i16).to_ne_bytes()).collect(),
        plan::DType::Bool => data.iter().map(|v| *v as u8).collect(),
    }
}

fn from_bytes(dtype: plan::DType, bytes: &[u8]) -> Vec<f64> {
    let chunks = bytes.chunks_exact(dtype.bytes() as usize);
    chunks
        .map(|c| match dtype {
            plan::DType::F64 => f64::from_ne_bytes(c.try_into().unwrap()),
            plan::DType::F32 => f64::from(f32::from_ne_bytes(c.try_into().unwrap())),
            plan::DType::Bf16 => half::bf16::from_ne_bytes(c.try_into().unwrap()).to_f64(),
            plan::DType::I32 => f64::from(i32::from_ne_bytes(c.try_into().unwrap())),
            plan::DType::I16 => f64::from(i16::from_ne_bytes(c.try_into().unwrap())),
            plan::DType::Bool => f64::from(c[0]),
        })
        .collect()
}

/// Runs a graph's plan and gives each output's elements.
fn run(graph: &Graph, given: &FxHashMap<ValueId, Tensor>, (threads, joins): (usize, Joins)) -> Vec<Vec<f64>> {
    let plan = standalone(graph, joins);
    let options = ExecOptions { threads, ..ExecOptions::default() };
    let mut executor = Executor::new(&plan, &options).unwrap_or_else(|e| panic!("{e}"));
    let (given_tensors, made): (Vec<_>, Vec<_>) = plan.roles[0].tensors.iter().partition(|t| t.name.starts_with("in."));
    for tensor in given_tensors {
        let input = graph.inputs.iter().find(|i| tensor.name == format!("in.{}", graph.node(i.value).name));
        let bytes = to_bytes(tensor.dtype, &given[&input.expect("the graph's").value].data);
        executor.tensor_mut(tensor).copy_from_slice(&bytes);
    }
    let phase = executor.phase_named("train").unwrap();
    executor.start(phase, &Batch::new(1, 1), 1).unwrap();
    executor.commit(phase, 1).unwrap();
    made.iter().map(|t| from_bytes(t.dtype, executor.tensor(t))).collect()
}

fn close(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}

fn check(graph: &Graph, seed: u64) {
    forebay_ir::verify::verify(graph).unwrap_or_else(|e| panic!("{e:?}"));
    let given = inputs(graph, seed);
    let wanted = evaluate(graph, &given, Mode::F64);
    let got = run(graph, &given, (1, Joins::All));
    let apart = run(graph, &given, (1, Joins::Off));
    for ((output, got), apart) in graph.outputs.iter().zip(&got).zip(&apart) {
        let wanted = &wanted[output.value.index()];
        // Rows of a ragged axis past its total hold anything.
        let ty = graph.ty(output.value);
        let ragged = graph.ragged_axis(&ty.axes).is_some();
        for (i, ((a, apart), b)) in got.iter().zip(apart).zip(&wanted.data).enumerate() {
            let anything = ragged && *b == 0.0;
            assert!(
                a.to_bits() == apart.to_bits() || anything,
                "element {i} is {a}, and {apart} with each op a kernel"
            );
            if !(close(*a, *b) || anything) {
                let node = graph.node(output.value);
                let text = forebay_ir::text::print(graph);
                panic!("%{} ({}): element {i} is {a}, the oracle has {b}\n{text}", node.name, node.op.row().name);
            }
        }
    }
    let bits = |values: &[Vec<f64>]| -> Vec<u64> { values.iter().flatten().map(|v| v.to_bits()).collect() };
    assert_eq!(bits(&got), bits(&run(graph, &given, (2, Joins::All))), "the same bits on two threads");
}

fn deterministic_ops(_: &Graph, op: &Op) -> bool {
    // Random ops have an f32 result by definition; they have known-answer tests of their own.
    !matches!(op, Op::Random { .. })
}

/// Tables that each group has for itself: looked up and added to by rows, by indices that rows or only groups have.
#[test]
fn tables_of_groups() {
    let text = "graph @tables {
  axis t = 6, k = 2, e = 4, e_1 = 5, r = ragged(e, 12), n = 5, d = 2
  offsets r = %starts
  data %chosen : i32[t, k]
  data %of_group : i32[e]
  param %table : f64[e, n, d]

  %rows = group %chosen {r} : i32[e, r]
  %starts = offsets %chosen {e -> e_1} : i32[e_1]
  %c = const 5 : i32
  %of_row = rem %rows, %c : i32[e, r]
  %looked_up = gather %table at %of_row {n} : f64[e, r, d]
  %sum = mul %looked_up, %looked_up : f64[e, r, d]
  %by_row = scatter_add %sum at %of_row {n} over {r} : f64[n, e, d]
  %by_group = scatter_add %sum at %of_group {n} over {r} : f64[n, e, d]
  %all = scatter_add %sum at %of_row {n} over {e, r} : f64[n, d]
  %twice = mul %by_group, %by_row : f64[n, e, d]
  return output by_row = %by_row
  return output by_group = %by_group
  return output all = %all
  return output twice = %twice
}
";
    let graph =
        forebay_ir::text::parse(text).unwrap_or_else(|e| panic!("{}", forebay_ir::text::render(&e, text, "tables")));
    for seed in 0..20 {
        check(&graph, seed);
    }
    check(&with_all_outputs(graph), 1);
}

fn graphs(text: &str) -> Vec<Graph> {
    forebay_ir::text::parse_module(text).unwrap_or_else(|e| panic!("{}", forebay_ir::text::render(&e, text, "graphs")))
}

/// Every fused op, and the fused backward ops of each, as the kernels do them.
#[test]
fn fused_ops() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("ir/tests/text/fused.ir");
    for graph in graphs(&std::fs::read_to_string(path).unwrap()) {
        for seed in 0..4 {
            check(&in_f64(graph.clone()), seed);
        }
        check(&with_all_outputs(in_f64(graph)), 4);
    }
}

/// Attention whose arrays have axes that the attention kernels do not know: the body is run instead.
#[test]
fn attention_of_unusual_axes() {
    let attention = |params: &str, operands: &str, numbers: &str, ty: &str| {
        let text = format!(
            "graph @unusual {{
  axis t = 3, u = 4, h = 2, d = 2, e = 2, x = 3
  param %q : f64[t, h, d]
{params}

  %y = attention {operands} {{t, u, d}} (scale 0.5, causal 1, window 0, {numbers}) : f64[{ty}]
  return output y = %y
}}
"
        );
        for seed in 0..4 {
            graphs(&text).iter().for_each(|graph| check(graph, seed));
        }
    };
    let none = "documents 0, sink 0, positions 0";
    let keys = "  param %k : f64[u, h, d]\n  param %v : f64[u, h, e]\n";
    attention(
        &format!("{keys}  param %s : f64[h, t]"),
        "%q, %k, %v, %s",
        "documents 0, sink 1, positions 0",
        "h, t, e",
    );
    attention("  param %k : f64[t, u, h, d]\n  param %v : f64[u, h, e]", "%q, %k, %v", none, "h, t, e");
    attention("  param %k : f64[u, h, d]\n  param %v : f64[u, h, d, e]", "%q, %k, %v", none, "h, t, d, e");
    attention("  param %k : f64[u, h, d]\n  param %v : f64[u, h, e, x]", "%q, %k, %v", none, "h, t, e, x");
    let documents = format!("{keys}  data %a : i32[t, x]\n  data %b : i32[u, x]");
    attention(&documents, "%q, %k, %v, %a, %b", "documents 1, sink 0, positions 0", "h, t, x, e");
    // Positions that buffers say; the sink is for queries that see no key.
    let positions = format!("{keys}  param %s : f64[h]\n  data %a : i32[t]\n  data %b : i32[u]");
    attention(&positions, "%q, %k, %v, %s, %a, %b", "documents 0, sink 1, positions 1", "h, t, e");
    attention(
        &format!("{keys}  param %s : f64[h, x]"),
        "%q, %k, %v, %s",
        "documents 0, sink 1, positions 0",
        "h, t, x, e",
    );
}

/// A few, always the same; or many, new ones each time, with `FOREBAY_TEST_ALL=1`.
fn config() -> ProptestConfig {
    let all = crate::common::all_cases();
    let (cases, rng_seed) = if all { (10_000, RngSeed::Random) } else { (192, RngSeed::Fixed(1)) };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_value_of_random_graphs(tape in prop::collection::vec(any::<u32>(), 5..200), seed: u64) {
        check(&with_all_outputs(in_f64(testing::graph_where(&tape, deterministic_ops))), seed);
    }

    #[test]
    fn outputs_of_random_graphs(tape in prop::collection::vec(any::<u32>(), 5..400), seed: u64) {
        check(&in_f64(testing::graph_where(&tape, deterministic_ops)), seed);
    }
}
