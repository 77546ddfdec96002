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
    /// What lives within the step, at its peak: what is saved for backward passes and what calls hand on.
    pub activations: f64,
    /// State, statistics, inputs; and what one call alone uses, where the [`Peak`] is known.
    pub buffers: f64,
    /// What the placement takes beyond what is in use at its most.
    pub fragmentation: f64,
    /// All of it.
    pub peak: f64,
    /// Bytes of the host's memory: the optimizer's state, and what is swapped.
    pub host: f64,
    /// Where most is in use, where a timeline was made.
    #[serde(flatten)]
    pub located: Option<Peak>,
}

/// Where most memory is in use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Peak {
    /// When, seconds from the start of the step.
    pub peak_time_s: f64,
    /// The same as a part of the step.
    pub peak_at: f64,
    /// The call: program, layer and micro-batch.
    pub peak_call: String,
}

impl StageMemory {
    /// Says where the peak is; `scratch` are the bytes that its call alone uses.
    pub(crate) fn locate(&mut self, peak: Peak, scratch: f64) {
        let scratch = scratch.min(self.activations);
        self.activations -= scratch;
        self.buffers += scratch;
        self.located = Some(peak);
    }
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
    let (saved, largest) = saved_at_peak(plan, role);
    // Full recomputation keeps the inputs of layers alone; parts of it drop in proportion to the kinds of work.
    let share = recompute.parts[Kind::Products.number()].max(0.35 * recompute.parts[Kind::Vector.number()]);
    let dropped = (saved - largest).max(0.0) * share;
    let fragmentation = used.placed.saturating_sub(used.live_peak) as f64;
    let kept = (used.activations as f64 - fragmentation - dropped).max(0.0);
    let (unfused, reserved) = match framework.caching_allocator {
        true => ((framework.vector_passes - 1.0).max(0.0) / 3.0, RESERVED),
        false => (0.0, 0.0),
    };
    let activations = kept * (1.0 + unfused);
    // Our plans add gradients up in four bytes; other systems keep them as they sum them over ranks.
    let narrow = if framework.caching_allocator { framework.gradient_bytes / 4.0 } else { 1.0 };
    let (weights, optimizer) = (used.weights as f64, used.optimizer as f64);
    let gradients = used.gradients as f64 * narrow;
    let of_loss = framework.loss_bytes * logits(plan, role);
    let activations = activations + of_loss;
    let placed =
        used.placed as f64 - dropped + kept * unfused + of_loss + reserved - used.gradients as f64 * (1.0 - narrow);
    StageMemory {
        stage: ops.coordinate,
        weights,
        gradients,
        optimizer,
        activations,
        buffers: (placed - weights - gradients - optimizer - activations - fragmentation).max(0.0),
        fragmentation,
        peak: placed,
        host: role.host_bytes as f64,
        located: None,
    }
}

/// Logits of a micro-batch on a rank of the last stage; none on others.
fn logits(plan: &Plan, role: &Role) -> f64 {
    let has_loss = |phase: &forebay_plan::Phase| {
        phase.calls.iter().any(|c| plan.programs[c.program as usize].name.starts_with("train.epilogue"))
    };
    if !role.phases.iter().any(has_loss) {
        return 0.0;
    }
    let settings = &plan.settings;
    let ranks: f64 = plan.mesh.iter().filter(|d| d.name != "pp").map(|d| f64::from(d.size)).product();
    let tokens = settings.batch as f64 * settings.seq as f64 / f64::from(settings.micro_batches.max(1));
    tokens / ranks * settings.vocab as f64
}

/// Bytes that layers have saved for their backward passes when they are most, and the most of one layer.
fn saved_at_peak(plan: &Plan, role: &Role) -> (f64, f64) {
    let Some(phase) = role.phases.iter().find(|p| p.name == "train") else { return (0.0, 0.0) };
    let saved_of: Vec<f64> = plan
        .programs
        .iter()
        .map(|p| p.slots.iter().filter(|s| s.name == "saved").map(|s| s.bytes as f64).sum())
        .collect();
    let mut live: FxHashMap<(u32, u32), f64> = FxHashMap::default();
    let (mut now, mut most, mut largest) = (0.0, 0.0, 0.0);
    for call in &phase.calls {
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
        most = f64::max(most, now);
    }
    (most, largest)
}
