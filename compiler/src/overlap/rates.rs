//! How long instructions take, roughly: enough to say which order hides more.
//!
//! A plan is the same whatever cluster it is simulated on, so these are the rates of one device (Ascend 910B and its links, by what the fitted cluster file
//! `atlas-800t-a2.toml` says they reach), and not those of a cluster file. An H100 is about twice as fast in all of them.

use forebay_plan::{Kernel, Program, StreamKind};
use rustc_hash::FxHashMap;

/// Seconds until a kernel begins.
pub(super) const LAUNCH: f64 = 5e-6;
/// FLOP/s of matrix products.
pub(super) const CUBE: f64 = 2e14;
/// FLOP/s of elementwise work.
const VECTOR: f64 = 1.6e13;
/// Bytes per second between memory and a kernel.
pub(super) const MEMORY: f64 = 1e12;
/// Bytes per second that a rank sends to its node.
const WITHIN_NODE: f64 = 1.8e11;
/// Bytes per second that a rank sends to other nodes.
const BETWEEN_NODES: f64 = 2e10;

/// Prices the instructions of a program.
pub(super) struct Rates {
    /// Bounds of rows from other ranks, and the part of them that an even routing brings.
    shares: FxHashMap<u64, f64>,
}

impl Rates {
    /// For a program.
    pub fn new(program: &Program) -> Rates {
        let exchanged = program.instructions.iter().filter_map(|i| match &i.kernel {
            Kernel::AllToAllV(k) => Some([k.bound, k.tokens].map(|room| (room, k.even as f64 / room.max(1) as f64))),
            _ => None,
        });
        Rates { shares: exchanged.flatten().map(|(room, share)| (room, share.min(1.0))).collect() }
    }

    /// Seconds of an instruction.
    pub fn seconds(&self, program: &Program, kernel: &Kernel, on: StreamKind) -> f64 {
        let of_room = |bound: u64| self.shares.get(&bound).copied().unwrap_or(1.0);
        let share = kernel.ragged_bound().map_or(1.0, of_room);
        let bytes = kernel.expected_bytes(&program.buffers, of_room);
        let flops = kernel.flops();
        let seconds = match (kernel, on) {
            // What a rank reads is what it sends: the rows of an exchange are those that there are.
            (Kernel::AllToAllV(k), _) => (k.even * k.row * k.dtype.bytes()) as f64 / link(on),
            // A message is on its way while its stream goes on, and before it is asked for.
            (Kernel::Send(_) | Kernel::Recv(_), _) => return 0.0,
            (Kernel::Exchange(_), _) => bytes / 2.0 / link(on),
            (Kernel::Matmul(_) | Kernel::Attention(_) | Kernel::AttentionBackward(_), _) => {
                (flops * share / CUBE).max(bytes / MEMORY)
            }
            _ => (flops * share / VECTOR).max(bytes / MEMORY),
        };
        LAUNCH + seconds
    }
}

/// Bytes per second that a rank sends over a kind of links.
pub(super) fn link(on: StreamKind) -> f64 {
    if on == StreamKind::InterNode { BETWEEN_NODES } else { WITHIN_NODE }
}
