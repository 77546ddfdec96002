//! Memory of each stage, from the plan's arena.

use crate::framework::Framework;
use crate::kind::Kind;
use crate::lower::{Recompute, RoleOps};
use forebay_plan::{Plan, Role};
use rustc_hash::FxHashMap;
use serde::Serialize;

/// Bytes of a rank of a stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StageMemory {
    /// Which.
    pub stage: u32,
    /// Parameters and copies.
    pub weights: f64,
    /// Gradients.
    pub gradients: f64,
    /// Moments.
    pub optimizer: f64,
    /// What lives between forward and backward, at its peak.
    pub activations: f64,
    /// Inputs, statistics and what the placement wastes.
    pub buffers: f64,
    /// All of it.
    pub peak: f64,
    /// Where the peak of saved activations is: the call, of all calls of the step, from 0 to 1.
    pub peak_at: f64,
}

/// What libraries and a caching allocator hold beside tensors, bytes: workspaces of products, buffers of collectives, pages that are not full. Measured of
/// PyTorch on H100, between small and large runs of one system (docs/cost-model.md).
const RESERVED: f64 = 0.7e9;

/// The memory of a role, less what is computed again instead of kept, as a framework keeps it.
///
/// A framework that makes more passes over memory than our fused plan keeps the results of a third of these for its backward pass: each step of an elementwise
/// formula reads one or two and keeps one.
pub fn memory(plan: &Plan, role: &Role, ops: &RoleOps, recompute: &Recompute, framework: &Framework) -> StageMemory {
    let Some(phase) = role.phases.iter().find(|p| p.name == "train") else {
        return StageMemory::default();
    };
    let used = phase.memory;
    let (saved, largest, peak_at) = saved_at_peak(plan, role);
    // Full recomputation keeps the inputs of layers alone; parts of it drop in proportion to the kinds of work.
    let share = recompute.parts[Kind::Products.number()].max(0.35 * recompute.parts[Kind::Vector.number()]);
    let dropped = (saved - largest).max(0.0) * share;
    let kept = (used.activations as f64 - dropped).max(0.0);
    let (unfused, reserved) = match framework.caching_allocator {
        true => ((framework.vector_passes - 1.0).max(0.0) / 3.0, RESERVED),
        false => (0.0, 0.0),
    };
    let activations = kept * (1.0 + unfused);
    let placed = used.placed as f64 - dropped + kept * unfused + reserved;
    let (weights, gradients, optimizer) = (used.weights as f64, used.gradients as f64, used.optimizer as f64);
    StageMemory {
        stage: ops.coordinate,
        weights,
        gradients,
        optimizer,
        activations,
        buffers: (placed - weights - gradients - optimizer - activations).max(0.0),
        peak: placed,
        peak_at,
    }
}

/// Bytes that layers have saved for their backward passes when they are most, the most of one layer, and when that is.
fn saved_at_peak(plan: &Plan, role: &Role) -> (f64, f64, f64) {
    let Some(phase) = role.phases.iter().find(|p| p.name == "train") else { return (0.0, 0.0, 0.0) };
    let saved_of: Vec<f64> = plan
        .programs
        .iter()
        .map(|p| p.slots.iter().filter(|s| s.name == "saved").map(|s| s.bytes as f64).sum())
        .collect();
    let mut live: FxHashMap<(u32, u32), f64> = FxHashMap::default();
    let (mut now, mut most, mut largest, mut at) = (0.0, 0.0, 0.0, 0);
    for (number, call) in phase.calls.iter().enumerate() {
        let program = &plan.programs[call.program as usize];
        let key = (call.layer, call.micro_batch);
        if program.name.ends_with(".forward") && !program.name.contains("logue.") {
            let bytes = saved_of[call.program as usize];
            now += bytes;
            largest = f64::max(largest, bytes);
            live.insert(key, bytes);
        } else if program.name.contains(".backward") {
            now -= live.remove(&key).unwrap_or(0.0);
        }
        if now > most {
            (most, at) = (now, number);
        }
    }
    (most, largest, at as f64 / phase.calls.len().max(1) as f64)
}
