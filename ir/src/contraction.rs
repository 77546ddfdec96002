//! What kind of matrix product a contraction is: which axes it sums and keeps says it, names do not.

use crate::graph::{Graph, ValueId};
use crate::op::Op;

/// Kinds of contractions. Each is one kernel, forward and backward alike: the gradients of a contraction are contractions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contraction {
    /// A product of fixed sizes, of one matrix or a batch of them.
    Matmul,
    /// Rows in ragged groups, each group with its own matrix: `[e, r, k] · [e, k, n] -> [e, r, n]`; forward, and dgrad.
    GroupedMatmul,
    /// Summed over the rows of each group: `[e, r, k] · [e, r, n] -> [e, k, n]`; wgrad.
    GroupedWgrad,
}

impl Contraction {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Contraction::Matmul => "matmul",
            Contraction::GroupedMatmul => "grouped_matmul",
            Contraction::GroupedWgrad => "grouped_wgrad",
        }
    }

    /// The kind of a value's op, if that is a contraction.
    pub fn of(graph: &Graph, value: ValueId) -> Option<Contraction> {
        let node = graph.node(value);
        let Op::Contract { over } = &node.op else { return None };
        let own_matrix = |ragged| {
            let parent = graph.ragged_parent(ragged);
            parent.is_some_and(|parent| node.operands.iter().all(|&o| graph.ty(o).has(parent)))
        };
        Some(match (graph.ragged_axis(over), graph.ragged_axis(&node.ty.axes)) {
            (Some(summed), _) if own_matrix(summed) => Contraction::GroupedWgrad,
            (_, Some(kept)) if own_matrix(kept) => Contraction::GroupedMatmul,
            _ => Contraction::Matmul,
        })
    }
}
