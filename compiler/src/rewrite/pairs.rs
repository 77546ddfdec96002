//! Joint choices that extraction cannot see, because each of the two ops by itself prefers to stay as it is.
//!
//! ```text
//! %x = add %a, %b                                %x = add %a, %b
//! %y = rms_norm %x, %gain {d} (eps 1e-6)   ==>   %y = add_rms_norm %a, %b, %gain {d} (eps 1e-6)
//! ```
//!
//! A residual add is needed by itself, so a norm that reads the sum looks cheaper than one that reads both parts. Together they are one pass over
//! memory: the kernel of the norm writes the sum as well.

use super::Options;
use forebay_ir::{BinaryOp, Fused, FusedKind, Graph, Op};

/// Joins a difference of a log-sum-exp, which is needed by itself, and the label's logit.
pub(super) fn join_losses(graph: &mut Graph, _: &Options) -> Vec<String> {
    let mut joined = vec![];
    for value in graph.values() {
        let node = graph.node(value);
        let (Op::Binary(BinaryOp::Sub), [total, own]) = (&node.op, &node.operands[..]) else { continue };
        let (total, own) = (graph.node(*total), graph.node(*own));
        let (Op::Fused(sum), Op::Gather { axis }) = (&total.op, &own.op) else { continue };
        let same = sum.kind == FusedKind::LogSumExp && sum.axes == [*axis] && total.operands[0] == own.operands[0];
        if same && total.ty == node.ty {
            let operands = own.operands.clone();
            let fused = Fused::new(FusedKind::CrossEntropy, [*axis], []);
            let node = &mut graph.nodes[value.index()];
            (node.op, node.operands) = (Op::Fused(Box::new(fused)), operands);
            joined.push(node.name.clone());
        }
    }
    joined
}

/// Joins norms with the residual adds before them.
pub(super) fn join_adds(graph: &mut Graph, _: &Options) -> Vec<String> {
    let mut joined = vec![];
    for value in graph.values() {
        let node = graph.node(value);
        let Op::Fused(fused) = &node.op else { continue };
        if fused.kind != FusedKind::RmsNorm {
            continue;
        }
        let (x, gain) = (node.operands[0], node.operands[1]);
        let sum = graph.node(x);
        let whole = sum.operands.iter().all(|&o| graph.ty(o) == &sum.ty);
        if sum.op != Op::Binary(BinaryOp::Add) || !whole {
            continue;
        }
        let operands = vec![sum.operands[0], sum.operands[1], gain];
        let fused = Fused { kind: FusedKind::AddRmsNorm, axes: fused.axes.clone(), numbers: fused.numbers.clone() };
        let node = &mut graph.nodes[value.index()];
        (node.op, node.operands) = (Op::Fused(Box::new(fused)), operands);
        joined.push(node.name.clone());
    }
    joined
}
