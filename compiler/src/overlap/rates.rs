//! How long instructions take, roughly: enough to say which order hides more.
//!
//! Whoever names no cluster gets the orders of one device (Ascend 910B and its links, by what the fitted cluster file `atlas-800t-a2.toml` says they reach);
//! an H100 is about twice as fast in all of them. With a cluster file orders go by its own times ([`super::times`]).

use super::lanes::Lanes;
use super::times::Times;
use forebay_ir::cost::cost;
use forebay_ir::{Comm, CommKind, Graph, Op, ValueId};
use forebay_plan::{Kernel, Program, StreamKind};

/// Seconds until a kernel begins.
const LAUNCH: f64 = 5e-6;
/// FLOP/s of matrix products.
const CUBE: f64 = 2e14;
/// FLOP/s of elementwise work.
const VECTOR: f64 = 1.6e13;
/// Bytes per second between memory and a kernel.
const MEMORY: f64 = 1e12;
/// Bytes per second that a rank sends to its node.
const WITHIN_NODE: f64 = 1.8e11;
/// Bytes per second that a rank sends to other nodes.
const BETWEEN_NODES: f64 = 2e10;

/// Seconds lost for each that is hidden (Atlas 800T A2 and H100 cluster files: 0.2 to 0.3).
const CONTENTION: f64 = 0.25;

/// The times of this device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates;

impl Times for Rates {
    fn instructions(&self, program: &Program, lanes: &Lanes) -> Vec<f64> {
        let kernels = program.instructions.iter().map(|i| &i.kernel);
        kernels.map(|kernel| seconds(program, kernel, lanes.of(kernel))).collect()
    }

    fn value(&self, graph: &Graph, value: ValueId, lanes: &Lanes) -> f64 {
        let node = graph.node(value);
        match &node.op {
            Op::Comm(comm) => sent(graph, value, comm) / link(lanes.of_group(&comm.group)),
            Op::Contract { .. } | Op::LinearAttention(_) => there(graph, value) * cost(graph, value).flops / CUBE,
            _ => 0.0,
        }
    }

    fn start(&self) -> f64 {
        LAUNCH
    }

    fn memory_rate(&self) -> f64 {
        MEMORY
    }

    fn slowdown(&self) -> f64 {
        CONTENTION
    }
}

/// The part of an op's rows that an even routing brings: those from other ranks have room for the worst case.
fn there(graph: &Graph, value: ValueId) -> f64 {
    let ragged = |v: &ValueId| graph.ragged_axis(&graph.ty(*v).axes);
    let rows = ragged(&value).or_else(|| graph.node(value).operands.iter().find_map(ragged));
    rows.map_or(1.0, |r| graph.even_size(r) as f64 / graph.size(r).max(1) as f64)
}

/// Bytes that a rank sends: of a sum that all have, its part of what others are to sum, and that sum to all.
fn sent(graph: &Graph, value: ValueId, comm: &Comm) -> f64 {
    let bytes = |v: ValueId| graph.bytes(v) as f64;
    let (given, made) = (graph.node(value).operands.first().map_or(0.0, |&o| bytes(o)), bytes(value));
    let others = 1.0 - 1.0 / comm.ranks(graph) as f64;
    match comm.kind {
        CommKind::Vary | CommKind::Coordinate | CommKind::Shard { .. } => 0.0,
        CommKind::AllReduce(_) => 2.0 * others * given * there(graph, value),
        CommKind::AllGather { .. } | CommKind::ReduceScatter { .. } => others * given.max(made) * there(graph, value),
        _ => given.min(made),
    }
}

/// Seconds of a kernel with the rows of an even choice of experts.
fn seconds(program: &Program, kernel: &Kernel, on: StreamKind) -> f64 {
    let share = kernel.ragged_rows().map_or(1.0, |rows| rows.share(1.0));
    let bytes = kernel.expected_bytes(&program.buffers, 1.0);
    let flops = kernel.flops();
    let seconds = match (kernel, on) {
        // What a rank reads is what it sends: the rows of an exchange are those that there are.
        (Kernel::AllToAllV(k), _) => (k.even * k.row * k.dtype.bytes()) as f64 / link(on),
        (Kernel::Exchange(_), _) => bytes / 2.0 / link(on),
        (kernel, _) if kernel.is_product() => (flops * share / CUBE).max(bytes / MEMORY),
        _ => (flops * share / VECTOR).max(bytes / MEMORY),
    };
    LAUNCH + seconds
}

/// Bytes per second that a rank sends over a kind of links.
fn link(on: StreamKind) -> f64 {
    if on == StreamKind::InterNode { BETWEEN_NODES } else { WITHIN_NODE }
}
