//! What the backward graphs find in memory although it would be cheap to make again.
//!
//! ```text
//! forward F   %h = rms_norm %x                  saved x, q                 saved x, q, h
//!             %q = contract %h, %wq       ──►
//! backward B  %h = rms_norm %x  (again)
//!             %d.wq = contract %h, %d.q                                    %d.wq = contract %h, %d.q
//! ```
//!
//! The forward graph makes what its products read in any case: to keep it costs bytes, and no time.

use super::extract::reads;
use forebay_ir::{CommKind, FusedKind, Graph, InputRole, Op, ValueId};
use std::fmt;

/// What is saved of a forward pass, where nothing else is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Keep {
    /// The fewest bytes from which no product, exchange or attention is made again: elementwise work and norms are.
    #[default]
    Fewest,
    /// Also what products and attention of the backward pass read, as it lies on a rank before it is gathered: what training systems keep whose operators
    /// are differentiated one by one (arXiv 2205.05198, section 4.1).
    Inputs,
}

impl Keep {
    /// What strategies may say.
    pub const ALL: [Keep; 2] = [Keep::Fewest, Keep::Inputs];

    /// Its name in strategies.
    pub fn name(self) -> &'static str {
        match self {
            Keep::Fewest => "fewest",
            Keep::Inputs => "inputs",
        }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// For each value of a joint graph: is it made before the backward pass and then kept, however cheap it is? `backward` says which values depend on a gradient.
/// What follows from parameters and constants alone is none of it: one copy of that would be kept for each layer and micro-batch.
pub(super) fn asked_for(graph: &Graph, backward: &[bool], keep: Keep) -> Vec<bool> {
    let mut asked = vec![false; graph.nodes.len()];
    if keep == Keep::Fewest {
        return asked;
    }
    let varies = varies(graph);
    let readers = graph.values().filter(|v| backward[v.index()] && wants_its_operands(&graph.node(*v).op));
    for read in readers.flat_map(|v| reads(graph, v)) {
        let kept = source(graph, read);
        asked[kept.index()] |= !backward[kept.index()] && varies[kept.index()];
    }
    asked
}

/// Products, linear attention, and the backward kernel of attention.
fn wants_its_operands(op: &Op) -> bool {
    match op {
        Op::Contract { .. } | Op::LinearAttention(_) => true,
        Op::Fused(fused) => fused.kind == FusedKind::AttentionGrad,
        _ => false,
    }
}

/// Which values are others for other rows of data.
fn varies(graph: &Graph) -> Vec<bool> {
    let mut varies = vec![false; graph.nodes.len()];
    for input in &graph.inputs {
        varies[input.value.index()] = !matches!(input.role, InputRole::Param | InputRole::State);
    }
    for value in graph.values() {
        varies[value.index()] |= reads(graph, value).iter().any(|read| varies[read.index()]);
    }
    varies
}

/// What a value is a view or a part of, a gathered whole, or a larger copy.
fn source(graph: &Graph, mut value: ValueId) -> ValueId {
    loop {
        let node = graph.node(value);
        let is_copy = match &node.op {
            Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Reorder | Op::Detach => true,
            // (All parts of a value are read, one by one.)
            Op::Slice { .. } => true,
            Op::Comm(comm) => {
                matches!(comm.kind, CommKind::Vary | CommKind::AllGather { .. } | CommKind::Unshard { .. })
            }
            Op::Cast(_) | Op::Broadcast(_) => graph.bytes(node.operands[0]) < graph.bytes(value),
            _ => false,
        };
        if !is_copy {
            return value;
        }
        value = node.operands[0];
    }
}
