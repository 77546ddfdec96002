//! Memory of each stage, from the plan's arena.

use crate::allocator::{Lead, Most, Reserved, launched, reserved};
use crate::framework::Framework;
use crate::kept::{
    copied_keys, gathered, has_experts, held_rows, message, returned, saved_by_kind, stand_ins, without_gradients,
};
use crate::kind::Kind;
use crate::live::live;
use crate::lower::{Recompute, RoleOps, again};
use forebay_plan::{DType, Phase, Plan, Program, Role};
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
    /// What a caching allocator reserves.
    #[serde(skip)]
    pub reserved: Option<Reserved>,
    /// What a caching allocator would like to reserve, where it is short of memory.
    #[serde(skip)]
    pub short_bytes: Option<f64>,
    /// Does a caching allocator stop the device for each micro-batch to get memory back?
    pub is_crowded: bool,
    /// What of the peak is allocated: without what such an allocator keeps beside tensors.
    #[serde(skip)]
    pub allocated: f64,
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

    /// What is reserved where the device waits for the host during a part of the step, which says how much of what was gathered stays.
    pub(crate) fn settle(&mut self, host_bound: f64) {
        let Some(reserved) = self.reserved else { return };
        let peak = reserved.peak(host_bound);
        (self.short_bytes, self.is_crowded) = (reserved.short(host_bound), reserved.is_crowded(host_bound));
        self.activations += peak - self.peak;
        self.peak = peak;
    }
}

/// The memory of a role, less what is computed again instead of kept; a caching allocator's is [settled](StageMemory::settle) when it is known how much the host is waited for.
pub fn memory(
    plan: &Plan,
    role: &Role,
    ops: &RoleOps,
    recompute: &Recompute,
    framework: &Framework,
    device_bytes: f64,
) -> StageMemory {
    let Some(phase) = role.phases.iter().find(|p| p.name == "train") else {
        return StageMemory::default();
    };
    let used = phase.memory;
    let fragmentation = used.placed.saturating_sub(used.live_peak) as f64;
    let (weights, optimizer) = (used.weights as f64, used.optimizer as f64);
    let away = if framework.host_optimizer_gbps > 0.0 { optimizer } else { 0.0 };
    let (optimizer, host) = (optimizer - away, role.host_bytes as f64 + away);
    let base = StageMemory { stage: ops.coordinate, weights, optimizer, host, ..StageMemory::default() };
    if framework.caching_allocator {
        return allocated(plan, role, phase, recompute, framework, (device_bytes, base));
    }
    let (saved, largest) = saved_at_peak(plan, role);
    let dropped = (saved - largest).max(0.0) * dropped_share(recompute);
    let gradients = used.gradients as f64;
    let activations = (used.activations as f64 - fragmentation - dropped).max(0.0);
    let placed = used.placed as f64 - dropped - away;
    StageMemory {
        gradients,
        activations,
        buffers: (placed - weights - gradients - optimizer - activations - fragmentation).max(0.0),
        fragmentation,
        peak: placed,
        ..base
    }
}

/// The part of what a layer saves that is not kept: full recomputation keeps the inputs of layers alone; parts of it drop in proportion to the kinds of work.
fn dropped_share(recompute: &Recompute) -> f64 {
    recompute.parts[Kind::Products.number()].max(0.35 * recompute.parts[Kind::Vector.number()])
}

/// What a framework holds of a forward pass of a program, bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Less than our plan: what comes back from experts.
    returned: f64,
    /// More: keys that are copied for each head.
    copied: f64,
    /// Less than that where its layer is computed again.
    dropped: f64,
    /// More: what was gathered and is not yet free.
    gathered: f64,
    /// The most of that which one product gathers.
    largest_gathered: f64,
}

impl Held {
    fn of(plan: &Plan, program: &Program, recompute: &Recompute, framework: &Framework) -> Held {
        if !program.name.ends_with(".forward") {
            return Held::default();
        }
        let returned = if framework.weighs_first { returned(program) } else { 0.0 };
        let copied = copied_keys(program);
        // Norms and activations are what is between products.
        let between = (recompute.parts[Kind::Vector.number()] / BETWEEN_PRODUCTS).min(1.0);
        let part = |kind: Kind| match kind {
            // A product reads what attention makes: it is kept unless that is made again with everything.
            Kind::Attention => recompute.parts[Kind::Products.number()].floor(),
            Kind::Vector => between,
            kind => recompute.parts[kind.number()],
        };
        let saved: f64 = saved_by_kind(program).iter().map(|(kind, bytes)| bytes * part(*kind)).sum();
        let [gathered, largest_gathered] =
            if framework.frees_gathered_late { gathered(plan, program) } else { [0.0; 2] };
        let dropped = saved - returned * part(Kind::Ep) + copied * part(Kind::Products);
        Held { returned, copied, dropped, gathered, largest_gathered }
    }
}

impl Held {
    /// That of a pass whose layer is computed again, or not.
    fn where_made(self, again: bool, recompute: &Recompute) -> Held {
        if again {
            Held { gathered: self.gathered * (1.0 - recompute.parts[Kind::Tp.number()]), ..self }
        } else {
            Held { dropped: 0.0, ..self }
        }
    }

    fn plus(self, other: Held, times: f64) -> Held {
        Held {
            returned: self.returned + times * other.returned,
            copied: self.copied + times * other.copied,
            dropped: self.dropped + times * other.dropped,
            gathered: self.gathered + times * other.gathered,
            largest_gathered: self.largest_gathered.max(other.largest_gathered),
        }
    }
}

/// The part of a layer's elementwise work that makes inputs of products: what norms and activations are together in the words of frameworks (`validate::layout`).
const BETWEEN_PRODUCTS: f64 = 0.6;

/// GB that are allocated beside tensors: workspaces of products (32 MiB for each of a few streams and libraries).
const ALLOCATED_GB: f64 = 0.15;

/// GB of workspaces of grouped products: 32 MiB for each of four streams (Transformer Engine, `general_grouped_gemm`).
const GROUPED_GB: f64 = 0.134;

/// The memory of a role where tensors come and go with the calls.
///
/// Gradients are summed over ranks and parameters gathered where they are, or while little else is in use: the peak is within forward and backward passes.
fn allocated(
    plan: &Plan,
    role: &Role,
    phase: &Phase,
    recompute: &Recompute,
    framework: &Framework,
    (device_bytes, base): (f64, StageMemory),
) -> StageMemory {
    // The plans of other systems keep gradients in four bytes (`Gradients::Wide`); those systems as they sum them over ranks.
    let parameters = phase.memory.gradients as f64 / 4.0;
    let gradients = parameters * framework.gradient_bytes;
    // (State in the memory of hosts is none of the device's.)
    let away = phase.memory.optimizer as f64 - base.optimizer;
    let outlives = role.persistent_bytes as f64 - away - phase.memory.gradients as f64 + gradients;
    let stand_ins = if framework.adds_in_products { stand_ins(plan, role) } else { 0.0 };
    let sent = if framework.holds_sent { message(plan, role) } else { 0.0 };
    let beside = parameters * framework.half_gradient_bytes + stand_ins + sent;
    let again = again(plan, role, base.stage, recompute);
    let held: Vec<Held> = plan.programs.iter().map(|p| Held::of(plan, p, recompute, framework)).collect();
    let more: Vec<f64> = plan.programs.iter().map(|p| more_scratch(p, framework)).collect();
    let logits = logits(plan, role);
    let mut passes: FxHashMap<(u32, u32), Held> = FxHashMap::default();
    let mut all = Held::default();
    let mut most = Most::default();
    for (call, now) in phase.calls.iter().zip(live(plan, role, phase)) {
        let program = &plan.programs[call.program as usize];
        if program.name.starts_with("optimizer.") {
            continue;
        }
        let (key, number) = ((call.layer, call.micro_batch), call.program as usize);
        if program.name.ends_with(".forward") {
            let pass = held[number].where_made(again.contains(&call.layer), recompute);
            passes.insert(key, pass);
            all = all.plus(pass, 1.0);
        }
        // The layer at work has all of its values.
        let at_work = passes.get(&key).map_or(0.0, |pass| pass.dropped);
        let of_call = now.scratch as f64 + more[number];
        let within = now.bytes as f64 - role.persistent_bytes as f64 + more[number];
        // What comes back from experts is there while its layer runs.
        let returned = all.returned - held[number].returned;
        let kept = within - returned + all.copied - (all.dropped - at_work);
        let loss = logits * loss_bytes(program, framework);
        most.meet(reserved(framework, kept, launched(all.gathered, all.largest_gathered), loss), of_call);
        if program.name.contains(".backward")
            && let Some(pass) = passes.remove(&key)
        {
            all = all.plus(pass, -1.0);
        }
    }
    let degree = |name: &str| plan.mesh.iter().find(|dim| dim.name == name).map_or(1, |dim| dim.size);
    let lead = Lead::of(base.stage, degree("pp"), plan.settings.micro_batches);
    let stays = outlives + beside + framework.reserved_gb * 1e9;
    let [least, roomy] = [most.least, most.roomy].map(|step| stays + step);
    let activations = (most.least - most.scratch).max(0.0);
    StageMemory {
        gradients,
        activations,
        buffers: (least - base.weights - gradients - base.optimizer - activations).max(0.0),
        peak: least,
        allocated: outlives + beside + most.allocated + workspaces_gb(plan, role, framework) * 1e9,
        reserved: Some(Reserved {
            least,
            roomy,
            device_bytes,
            lead,
            splits: framework.fixed_segments && (lead != Lead::Alone || degree("tp") > 1),
        }),
        ..base
    }
}

/// GB of workspaces that are allocated.
fn workspaces_gb(plan: &Plan, role: &Role, framework: &Framework) -> f64 {
    ALLOCATED_GB + if framework.adds_in_products && has_experts(plan, role) { GROUPED_GB } else { 0.0 }
}

/// What a call needs more than its frame: experts' rows that names hold while a forward pass runs (one that is made again for its backward pass is not counted), less the gradients that
/// products add up themselves.
fn more_scratch(program: &Program, framework: &Framework) -> f64 {
    let rows = if framework.holds_sent && program.name.ends_with(".forward") { held_rows(program) } else { 0.0 };
    rows - if framework.adds_in_products { without_gradients(program) } else { 0.0 }
}

/// Bytes that a program saves for a backward pass.
fn saved(program: &Program) -> f64 {
    program.slots.iter().filter(|s| s.name == "saved").map(|s| s.bytes as f64).sum()
}

/// Bytes that each logit takes more than in our plan, while a program runs that has logits. Ours keeps them, in half precision, and while it goes backward their gradient; made in parts,
/// all that one takes is there for one part of them at a time.
fn loss_bytes(program: &Program, framework: &Framework) -> f64 {
    if !program.name.contains("epilogue.") {
        return 0.0;
    }
    let kept = DType::Bf16.bytes() as f64;
    let planned = if program.name.contains(".backward") { 2.0 * kept } else { kept };
    (planned + framework.loss_bytes) / framework.loss_chunks - planned
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
    let saved_of: Vec<f64> = plan.programs.iter().map(saved).collect();
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
