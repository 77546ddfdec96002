//! The bytes that the kernels of a fused op move, counted by their views, against what its cost row says.

use forebay_compiler::emit::{Joins, standalone};
use forebay_ir::cost::{Cost, cost};
use forebay_ir::fused::{Fused, FusedKind};
use forebay_ir::{BinaryOp, Graph, InputRole, Op, OutputRole, ValueId};
use forebay_plan::{Program, Traffic, print};
use std::collections::BTreeSet;

/// Where kernels move more than the cost row says, and why.
fn exception(graph: &Graph, value: ValueId, fused: &Fused) -> Option<&'static str> {
    let operand = &graph.ty(graph.node(value).operands[0]).axes;
    let innermost = operand.iter().rev().take(fused.axes.len()).all(|a| fused.axes.contains(a));
    match fused.kind {
        FusedKind::RouterChoice => Some("a search is a kernel of its own: the scores go through memory"),
        FusedKind::RouterShareDx => Some("adds by index, which is a kernel of its own"),
        FusedKind::RouterShare if fused.numbers[0] == 0.0 => {
            Some("the maximum and sum of all scores, two numbers a token, go through memory")
        }
        FusedKind::Softmax | FusedKind::SoftmaxDx if !innermost => Some("the row of a region is innermost in memory"),
        FusedKind::AttentionLse if companion(graph, value, fused).is_none() => {
            Some("without its attention it is computed step by step")
        }
        _ => None,
    }
}

/// The op that a fused op's kernel does as well, and that its cost row leaves to it.
fn companion(graph: &Graph, value: ValueId, fused: &Fused) -> Option<ValueId> {
    let operands = &graph.node(value).operands;
    let is = |v: &ValueId, kind: FusedKind| matches!(&graph.node(*v).op, Op::Fused(f) if f.kind == kind);
    let shares = |v: &ValueId| graph.node(*v).operands.get(..2) == operands.get(..2);
    graph.values().filter(shares).find(|v| match fused.kind {
        FusedKind::AddRmsNorm => graph.node(*v).op == Op::Binary(BinaryOp::Add),
        FusedKind::Attention => is(v, FusedKind::AttentionLse),
        FusedKind::AttentionLse => is(v, FusedKind::Attention),
        _ => false,
    })
}

/// A graph of some nodes alone: their operands are inputs, they are the outputs.
fn alone(graph: &Graph, values: &[ValueId]) -> (Graph, Vec<ValueId>) {
    let mut new = graph.like("alone");
    let mut inputs: Vec<ValueId> = vec![];
    for &operand in values.iter().flat_map(|&v| &graph.node(v).operands) {
        if !inputs.contains(&operand) {
            inputs.push(operand);
            new.add_input(&graph.node(operand).name, graph.ty(operand).clone(), InputRole::Data);
        }
    }
    let input = |o: &ValueId| ValueId(inputs.iter().position(|i| i == o).expect("an operand") as u32);
    let results = values.iter().map(|&value| {
        let node = graph.node(value);
        let result = new.push(node.op.clone(), node.operands.iter().map(input).collect(), node.ty.clone(), &node.name);
        new.add_output(node.name.clone(), result, OutputRole::Output);
        result
    });
    let results = results.collect();
    (new, results)
}

fn moved(program: &Program) -> Traffic {
    let all = program.instructions.iter().map(|i| i.kernel.traffic(&program.buffers));
    all.fold(Traffic::default(), |a, b| Traffic { read: a.read + b.read, written: a.written + b.written })
}

/// What the rows of nodes say: what one kernel reads for all of them it reads once.
fn by_rows(graph: &Graph, values: &[ValueId]) -> Traffic {
    let costs: Vec<Cost> = values.iter().map(|&v| cost(graph, v)).collect();
    let attention = graph.nodes.iter().any(|n| matches!(&n.op, Op::Fused(f) if f.kind == FusedKind::Attention));
    let reads = costs.iter().map(|c| c.read);
    let read = if attention { reads.fold(0.0, f64::max) } else { reads.sum() };
    Traffic { read: read as u64, written: costs.iter().map(|c| c.written).sum::<f64>() as u64 }
}

#[test]
fn every_fused_op_is_one_kernel_and_moves_what_its_cost_row_says() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("ir/tests/text/fused.ir");
    let text = std::fs::read_to_string(path).unwrap();
    let graphs = forebay_ir::text::parse_module(&text).unwrap();
    let (mut seen, mut wrong) = (BTreeSet::new(), String::new());
    for graph in &graphs {
        for value in graph.values() {
            let Op::Fused(fused) = &graph.node(value).op else { continue };
            seen.insert(fused.kind);
            let values: Vec<ValueId> = [value].into_iter().chain(companion(graph, value, fused)).collect();
            let (small, results) = alone(graph, &values);
            let program = &standalone(&small, Joins::All).programs[0];
            let (have, want) = (moved(program), by_rows(&small, &results));
            let equal = have == want && program.instructions.len() == 1;
            if equal == exception(graph, value, fused).is_some() {
                let reason = exception(graph, value, fused).unwrap_or("no exception");
                wrong += &format!("{fused:?} ({reason}): {have:?}, by its row {want:?}\n{}\n", print::program(program));
            }
        }
    }
    let missing: Vec<FusedKind> = FusedKind::ALL.into_iter().filter(|k| !seen.contains(k)).collect();
    assert!(missing.is_empty(), "not tried: {missing:?}");
    assert!(wrong.is_empty(), "{wrong}");
}

/// Products with what is done to their blocks: each operand is read once, the result written once, and the product itself goes nowhere.
#[test]
fn an_epilogue_moves_no_more_than_its_operands_and_its_result() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("compiler/tests/emit/epilogue.ir");
    let text = std::fs::read_to_string(path).unwrap();
    let graphs = forebay_ir::text::parse_module(&text).unwrap();
    for name in ["bias", "residual", "activation", "cast"] {
        let graph = graphs.iter().find(|g| g.name == name).unwrap();
        let program = &standalone(graph, Joins::All).programs[0];
        let bytes = |values: Vec<ValueId>| values.into_iter().map(|v| graph.bytes(v)).sum::<u64>();
        let read = bytes(graph.inputs.iter().map(|i| i.value).collect());
        let written = bytes(graph.outputs.iter().map(|o| o.value).collect());
        // A product in another type than the result has a buffer of its own, which is written and read in the cache.
        let own = if name == "cast" { written / 2 } else { 0 };
        let want = Traffic { read, written: written + own };
        assert_eq!((moved(program), program.instructions.len()), (want, 1), "{}", print::program(program));
    }
}
