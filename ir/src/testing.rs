//! Random legal graphs for tests of this crate and of others.
//!
//! A graph is a function of a *tape* of numbers: each choice takes the next one, and the graph ends with the tape. A property test asks
//! for a vector of `u32` and so shrinks graphs by shortening the vector, without this crate knowing the test library.
//!
//! The graphs pass the verifier and can be executed: indices stay inside what they look up, integers stay small, and integer divisors are
//! constants, provided that integer inputs are between 0 and [`MAX_INPUT`]. Floats may become infinite or NaN.

mod build;
mod grow;

use crate::graph::{Graph, ValueId};
use crate::op::{Op, ReduceKind};
use crate::types::AxisId;
use build::Builder;

/// The largest value of an integer input; the smallest is 0.
pub const MAX_INPUT: i64 = 2;

/// The most elements of a value.
pub const MAX_ELEMENTS: u64 = 2048;

/// The graph of a tape. Some 5 numbers of the tape make a node.
pub fn graph(tape: &[u32]) -> Graph {
    graph_where(tape, |_, _| true)
}

/// The graph of a tape, with no other nodes than those that the filter lets pass (inputs and constants are not asked about).
pub fn graph_where(tape: &[u32], allows: impl Fn(&Graph, &Op) -> bool) -> Graph {
    let mut builder = Builder::new(tape, &allows);
    builder.declare();
    while !builder.is_at_end() {
        builder.grow();
    }
    builder.finish()
}

/// Appends the sum over all axes of a float value, as a tensor without axes.
pub fn sum_of_all(graph: &mut Graph, value: ValueId, name: &str) -> ValueId {
    let mut over: Vec<AxisId> = graph.ty(value).axes.clone();
    over.sort_unstable();
    if over.is_empty() {
        return value;
    }
    graph.add(Op::Reduce { kind: ReduceKind::Sum, over }, &[value], name).expect("numbers can be summed")
}
