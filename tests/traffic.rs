//! The bytes that the kernels of a fused op move, counted by their views, against what its cost row says.

use forebay_compiler::emit::standalone;
use forebay_ir::cost::cost;
use forebay_ir::fused::FusedKind;
use forebay_ir::{Graph, InputRole, Op, OutputRole, ValueId};
use forebay_plan::{Program, Traffic, print};
use std::collections::BTreeSet;

/// The graph of one node alone: its operands are inputs, it is the output.
fn alone(graph: &Graph, value: ValueId) -> (Graph, ValueId) {
    let node = graph.node(value);
    let mut new = graph.like("alone");
    let mut distinct: Vec<ValueId> = vec![];
    let mut operands = vec![];
    for &operand in &node.operands {
        let known = distinct.iter().position(|&o| o == operand);
        operands.push(known.map_or_else(
            || {
                distinct.push(operand);
                new.add_input(&format!("operand.{}", distinct.len()), graph.ty(operand).clone(), InputRole::Data)
            },
            |at| ValueId(at as u32),
        ));
    }
    let value = new.push(node.op.clone(), operands, node.ty.clone(), "result");
    new.add_output("result", value, OutputRole::Output);
    (new, value)
}

fn moved(program: &Program) -> Traffic {
    let all = program.instructions.iter().map(|i| i.kernel.traffic(&program.buffers));
    all.fold(Traffic::default(), |a, b| Traffic { read: a.read + b.read, written: a.written + b.written })
}

#[test]
fn every_fused_op_moves_what_its_cost_row_says() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("ir/tests/text/fused.ir");
    let text = std::fs::read_to_string(path).unwrap();
    let graphs = forebay_ir::text::parse_module(&text).unwrap();
    let mut seen = BTreeSet::new();
    let mut wrong = String::new();
    for graph in &graphs {
        for value in graph.values() {
            let Op::Fused(fused) = &graph.node(value).op else { continue };
            let (graph, value) = alone(graph, value);
            seen.insert(fused.kind);
            let program = &standalone(&graph).programs[0];
            let (have, want) = (moved(program), cost(&graph, value));
            let want = Traffic { read: want.read as u64, written: want.written as u64 };
            if have != want || program.instructions.len() != 1 {
                wrong += &format!("{fused:?}: {have:?}, the cost row has {want:?}\n{}\n", print::program(program));
            }
        }
    }
    let missing: Vec<FusedKind> = FusedKind::ALL.into_iter().filter(|k| !seen.contains(k)).collect();
    assert!(missing.is_empty(), "not tried: {missing:?}");
    assert!(wrong.is_empty(), "{wrong}");
}
