//! What a shard of a model's layers costs: the table that strategies share whose ranks have the same parts of layers.
//!
//! A *probe* is compiled: the same layers, cut in the same way, in two stages and two micro-batches. Its programs are priced and replayed one by one.

use super::grown::Growth;
use crate::kind::Kind;
use crate::live::live;
use crate::lower::{Lane, Op, RoleOps};
use crate::price::{Action, Pricer};
use crate::replay::Machine;
use crate::replay::{Host, replay};
use crate::report::Options;
use crate::routes::Routes;
use crate::steps::{Fidelity, Order, Timed, timed};
use forebay_compiler::autodiff::Keep;
use forebay_compiler::optimizer::CHUNK;
use forebay_compiler::overlap::{self, Lanes};
use forebay_compiler::pipeline::{CompileOptions, compile_in_line};
use forebay_compiler::shard::{Cut, ShardedModel, Strategy, shard_model};
use forebay_cost::Cluster;
use forebay_dsl::model::CheckedModel;
use forebay_plan::{Call, Kernel, Plan, Role};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// Time on the device, and kernels that the host starts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds on the device.
    pub device: f64,
    /// Kernels' time of the host.
    pub launches: f64,
    /// Seconds of what [grows](super::grown) with the number of ranks.
    pub grows: f64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.device += other.device;
        self.launches += other.launches;
        self.grows += other.grows;
    }
}

/// One micro-batch through one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerCost {
    /// Forward.
    pub forward: Cost,
    /// Backward, or the half of it that others wait for.
    pub backward: Cost,
    /// Backward for the first micro-batch, which adds to nothing.
    pub first: Cost,
    /// The other half of the backward pass.
    pub weights: Cost,
    /// The same for the first micro-batch.
    pub first_weights: Cost,
    /// Bytes that it leaves for its backward pass.
    pub kept: f64,
    /// Bytes that its forward pass uses besides.
    pub forward_room: f64,
    /// Bytes that its backward pass, or the half of it that others wait for, uses besides.
    pub backward_room: f64,
    /// Bytes that this half leaves for the other, beside what the forward pass left.
    pub handed: f64,
    /// Bytes that the other half uses besides.
    pub weights_room: f64,
}

/// Parameters that are summed over the same ranks and that the optimizer treats alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Mesh dimensions of the ranks that sum their gradients: size and stride, the outermost of the probe's as [`Shard::outer`] says.
    pub sums: Vec<(u64, u64)>,
    /// Is the outermost dimension, the one that grows with the number of devices, among them?
    pub grows: bool,
    /// Elements on a rank, of all layers before a layer: as many as layers and one.
    pub before: Vec<f64>,
}

/// The table of a shard.
#[derive(Clone, Debug)]
pub struct Shard {
    /// For each layer of the model, what stands before and behind those that are repeated included.
    pub layers: Vec<LayerCost>,
    /// Counting the losses' terms, for each micro-batch.
    pub counts: Cost,
    /// Bytes from a stage to the next, and back.
    pub messages: [f64; 2],
    /// What a message costs its stage: sending, receiving.
    pub message: Cost,
    /// Bytes of a micro-batch's inputs.
    pub inputs: f64,
    /// Classes of parameters.
    pub classes: Vec<Class>,
    /// Ranks of the dimensions of a stage but the outermost, innermost first.
    pub inner: Vec<u64>,
    /// Is there a parameter that several layers use?
    pub tied: bool,
    /// Does the host wait for something in a layer?
    pub host_waits: bool,
    /// Bytes of states.
    pub states: f64,
    /// Sums of losses, the norm and other scalars, updates of states: once a step.
    pub scalars: Cost,
    /// What grows with the number of ranks.
    pub growth: Growth,
    /// Seconds of that, a micro-batch through all layers.
    pub grows: f64,
}

/// What tells shards apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardKey {
    pub(super) tp: u32,
    pub(super) cp: u32,
    pub(super) ep: u32,
    pub(super) etp: u32,
    /// Whether rows go to experts in parts, and shares are multiplied in before the down projection.
    pub(super) rows: (bool, bool),
    pub(super) mbs: u32,
    pub(super) algorithm: (u8, u32),
    pub(super) sp: bool,
    pub(super) split: bool,
    pub(super) recompute: bool,
    pub(super) keep: Keep,
    /// Whether elementwise work has a stream of its own, and programs are ordered.
    pub(super) overlap: (bool, bool),
    pub(super) room: u64,
    /// Bits of the imbalance.
    pub(super) imbalance: u64,
}

/// The probe of a strategy: two stages and micro-batches, and so many data-parallel ranks that every dimension of the mesh is there.
fn probe(strategy: &Strategy, layers: usize) -> Strategy {
    let experts = strategy.ep * strategy.etp;
    let row = strategy.tp * strategy.cp;
    let dp = (2 * experts).div_ceil(row).max(2).next_multiple_of(experts.div_ceil(row).max(1));
    Strategy {
        dp,
        pp: if layers >= 4 { 2 } else { 1 },
        vpp: 1,
        micro: Some(2),
        zero: 0,
        hsdp: None,
        stages: Cut::Even,
        ..strategy.clone()
    }
}

impl Shard {
    /// Compiles and prices the probe of a strategy.
    ///
    /// # Errors
    /// A strategy that does not fit the model: a sentence.
    pub fn new(
        model: &CheckedModel,
        strategy: &Strategy,
        cluster: &Cluster,
        options: &Options,
    ) -> Result<Shard, String> {
        let strategy = probe(strategy, model.layers.len());
        let compile = CompileOptions {
            compute: forebay_ir::DType::BF16,
            micro_batches: 2,
            strategy: strategy.clone(),
            clock: crate::clock(cluster, options.precision),
            ..CompileOptions::default()
        };
        let sharded = shard_model(model, &strategy).map_err(|error| error.to_string())?;
        let plans = compile_in_line(model, &sharded, &compile, &[2]).map_err(|error| error.to_string())?;
        let mut plan = plans.into_iter().next().ok_or("there is no plan")?;
        if options.framework.streams {
            overlap::spread(&mut plan, &Lanes::new(&sharded.mesh, &strategy.overlap, compile.clock));
        }
        let pricer = Pricer::new(&plan, cluster, &options.framework, options.precision, options.imbalance);
        let programs = Programs::new(&plan, &pricer, options, cluster.calibrated.overlap_slowdown.0);
        let mut shard = Shard {
            layers: vec![LayerCost::default(); model.layers.len()],
            counts: Cost::default(),
            messages: [0.0; 2],
            message: Cost::default(),
            inputs: (model.inputs.len() as u64 * model.batch * model.seq * 4) as f64,
            classes: classes(&sharded),
            inner: vec![],
            tied: is_tied(model),
            host_waits: programs.host_waits,
            states: 0.0,
            scalars: Cost::default(),
            growth: programs.growth.clone(),
            grows: 0.0,
        };
        // Dimensions of a stage, innermost last; the first of them grows.
        let stage: Vec<u64> = sharded.mesh.dims.iter().filter(|d| d.name != "pp").map(|d| u64::from(d.size)).collect();
        shard.inner = stage.iter().skip(1).rev().copied().collect();
        for role in &plan.roles {
            shard.add_role(&plan, role, &programs);
        }
        shard.grows = shard.layers.iter().map(|l| l.forward.grows + l.backward.grows + l.weights.grows).sum();
        Ok(shard)
    }

    fn add_role(&mut self, plan: &Plan, role: &Role, programs: &Programs) {
        let Some(phase) = role.phases.iter().find(|p| p.name == "train") else { return };
        let uses = live(plan, role, phase);
        let last = self.layers.len() as u32;
        let after = |call: Option<usize>| call.map_or(0.0, |n| uses[n].after as f64);
        let persistent = role.persistent_bytes as f64;
        let name = |call: &Call| plan.programs[call.program as usize].name.as_str();
        self.states += phase.memory.other as f64;
        let own: Vec<usize> = (0..self.layers.len())
            .filter(|&l| phase.calls.iter().any(|c| c.layer as usize == l && part(name(c)) == Some(Part::Forward)))
            .collect();
        let split = phase.calls.iter().any(|call| part(name(call)) == Some(Part::Weights));
        let mut halves = split.then(|| Halves::new(&own));
        // What calls that belong to no pass by their names cost, until a pass comes.
        let mut leading = Cost::default();
        let mut current: Option<(u32, u32, Part)> = None;
        // Behind all passes stands the end of the step.
        let passes = phase.calls.iter().rposition(|call| call.layer != last && part(name(call)).is_some());
        let mut scalars = Cost::default();
        for (n, call) in phase.calls.iter().enumerate() {
            let cost = programs.costs[call.program as usize];
            let before = after(n.checked_sub(1));
            if let Some(bytes) = sent(plan, call) {
                let stage = usize::from(name(call).starts_with("send.") && self.is_last(plan, role));
                if call.micro_batch == 1 {
                    self.messages[stage] += bytes;
                    self.message = cost;
                }
                current = None;
                continue;
            }
            if name(call).starts_with("receive.") {
                current = None;
                continue;
            }
            if Some(n) > passes {
                // The others are priced by their elements.
                let by_elements = name(call).starts_with("optimizer.") && !name(call).starts_with("optimizer.scalars");
                if !by_elements {
                    scalars += cost;
                }
                continue;
            }
            if call.layer == last {
                if name(call).contains(".counts") && call.micro_batch == 1 && role.coordinates.iter().all(|c| c.0 == 0)
                {
                    self.counts += cost;
                }
                continue;
            }
            let part = part(name(call));
            let layer = &mut self.layers[call.layer as usize];
            let Some(part) = part else {
                match current.filter(|(l, m, _)| (*l, *m) == (call.layer, call.micro_batch)) {
                    Some((.., part)) => layer.add(part, call.micro_batch, cost),
                    None => leading += cost,
                }
                continue;
            };
            layer.add(part, call.micro_batch, std::mem::take(&mut leading));
            layer.add(part, call.micro_batch, cost);
            let during = uses[n].bytes as f64 - persistent;
            match part {
                Part::Forward if call.micro_batch == 0 => {
                    layer.kept = after(Some(n)) - before;
                    layer.forward_room = (during - before).max(0.0);
                }
                Part::Backward if call.micro_batch == 1 => layer.backward_room = during,
                _ => {}
            }
            if let Some(halves) = &mut halves {
                halves.pass(layer, (call, part), (before, during, after(Some(n))), self.messages[0]);
            }
            current = Some((call.layer, call.micro_batch, part));
        }
        if scalars.device > self.scalars.device {
            self.scalars = scalars;
        }
        if split {
            return;
        }
        // The last micro-batch goes backward alone: what is in use beside what the layers up to this one have kept is the pass's own.
        let received = if own.first() == Some(&0) { 0.0 } else { self.messages[0] };
        let mut held = received;
        for l in own {
            held += self.layers[l].kept;
            self.layers[l].backward_room = (self.layers[l].backward_room - held).max(0.0);
        }
    }

    fn is_last(&self, plan: &Plan, role: &Role) -> bool {
        let dim = plan.mesh.iter().position(|d| d.name == "pp");
        dim.is_some_and(|d| role.coordinates[d].0 + 1 == plan.mesh[d].size)
    }
}

/// What backward passes in halves hold in a role of the probe, pass by pass: in front of the second half a micro-batch keeps what it left for the first and more.
struct Halves {
    /// The first layer, where a message comes to it.
    first: Option<u32>,
    /// By layer and micro-batch.
    held: BTreeMap<(u32, u32), f64>,
}

impl Halves {
    fn new(own: &[usize]) -> Halves {
        let first = own.first().filter(|l| **l > 0).map(|l| *l as u32);
        Halves { first, held: BTreeMap::new() }
    }

    /// A pass through a layer: bytes before, during and after it, those that outlive the step left out.
    fn pass(
        &mut self,
        layer: &mut LayerCost,
        (call, part): (&Call, Part),
        (before, during, after): (f64, f64, f64),
        message: f64,
    ) {
        let at = (call.layer, call.micro_batch);
        let others: f64 = self.held.iter().filter(|(of, _)| **of != at).map(|(_, bytes)| bytes).sum();
        match part {
            Part::Forward => {
                let comes = if self.first == Some(call.layer) { message } else { 0.0 };
                self.held.insert(at, layer.kept + comes);
            }
            Part::Backward => {
                let own = self.held.entry(at).or_default();
                if call.micro_batch == 0 {
                    layer.handed = (after - before).max(0.0);
                } else {
                    layer.backward_room = (during - others - *own).max(0.0);
                }
                *own += layer.handed;
            }
            Part::Weights => {
                let own = self.held.remove(&at).unwrap_or_default();
                if call.micro_batch == 1 {
                    layer.weights_room = (during - others - own).max(0.0);
                }
            }
        }
    }
}

impl LayerCost {
    fn add(&mut self, part: Part, micro_batch: u32, cost: Cost) {
        let slot = match (part, micro_batch) {
            (Part::Forward, 1) => &mut self.forward,
            (Part::Backward, 0) => &mut self.first,
            (Part::Backward, 1) => &mut self.backward,
            (Part::Weights, 0) => &mut self.first_weights,
            (Part::Weights, 1) => &mut self.weights,
            _ => return,
        };
        *slot += cost;
    }
}

/// What a program of a layer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Forward,
    Backward,
    Weights,
}

fn part(program: &str) -> Option<Part> {
    if !program.starts_with("train.") {
        None
    } else if program.contains(".forward") {
        Some(Part::Forward)
    } else if program.contains(".backward_weight") {
        Some(Part::Weights)
    } else if program.contains(".backward") {
        Some(Part::Backward)
    } else {
        None
    }
}

fn sent(plan: &Plan, call: &Call) -> Option<f64> {
    let sends = plan.programs[call.program as usize].instructions.iter().filter_map(|i| match &i.kernel {
        Kernel::Send(k) => Some((k.elements * k.dtype.bytes()) as f64),
        _ => None,
    });
    sends.reduce(|a, b| a + b)
}

/// The plan's programs, each replayed alone.
struct Programs {
    costs: Vec<Cost>,
    host_waits: bool,
    growth: Growth,
}

impl Programs {
    fn new(plan: &Plan, pricer: &Pricer, options: &Options, slowdown: f64) -> Programs {
        let order = if options.framework.streams { Order::Streams } else { Order::InLine };
        let (mut host_waits, mut growth) = (false, Growth::default());
        let routes = pricer.routes();
        let of = |program: &forebay_plan::Program| {
            let priced = pricer.program(program);
            host_waits |= priced.iter().any(|p| p.host_waits && p.action == Action::Work);
            let timed = timed(program, &priced, &[1.0; Kind::COUNT], Fidelity::Calls, order);
            let grows = if part(&program.name).is_some() { growth.note(plan, program, pricer) } else { 0.0 };
            Cost { grows, ..alone(timed, slowdown, &routes) }
        };
        Programs { costs: plan.programs.iter().map(of).collect(), host_waits, growth }
    }
}

/// How long a program takes by itself.
fn alone(mut timed: Timed, slowdown: f64, routes: &Routes) -> Cost {
    let launches = timed.steps.iter().map(|s| s.launches).sum();
    let waits = |action: &Action| matches!(action, Action::Receive { .. } | Action::Meet);
    timed.steps.iter_mut().filter(|s| waits(&s.action)).for_each(|s| s.action = Action::Work);
    // Instructions that others wait for keep their events; the host is never late.
    let op = Op { program: 0, call: None, lane: Lane::Main, reads: true };
    let ops = RoleOps::plain(0, vec![op]);
    let outcomes = replay(
        &[timed],
        &[ops],
        &[vec![]],
        Machine { host: Host { dispatch: 0.0, regain: 0.0 }, slowdown, routes, straggler: None },
    );
    Cost { device: outcomes.map_or(0.0, |o| o[0].end), launches, grows: 0.0 }
}

/// Parameters by the ranks that sum their gradients.
fn classes(sharded: &ShardedModel) -> Vec<Class> {
    let (mesh, model) = (&sharded.mesh, &sharded.model);
    let stage: Vec<usize> = (0..mesh.dims.len()).filter(|&d| mesh.dims[d].name != "pp").collect();
    let stride = |dim: usize| mesh.dims[dim + 1..].iter().map(|d| u64::from(d.size)).product::<u64>();
    type Alike = (bool, Vec<u32>, Vec<u32>);
    let mut alike: Vec<(Alike, Vec<f64>)> = vec![];
    let mut seen = FxHashSet::default();
    for (l, layer) in model.layers.iter().enumerate() {
        for &param in layer.params.iter().filter(|p| seen.insert(**p)) {
            let shard = &sharded.params[param];
            let mut cut = shard.dims();
            cut.sort_unstable();
            let key = (model.params[param].axes.len() >= 2, shard.sums.clone(), cut.clone());
            let elements = model.params[param].numel() / mesh.ranks(&cut);
            let at = alike.iter().position(|(k, _)| *k == key).unwrap_or_else(|| {
                alike.push((key, vec![0.0; model.layers.len()]));
                alike.len() - 1
            });
            alike[at].1[l] += elements as f64;
        }
    }
    let class = |((_, sums, _), of_layers): ((bool, Vec<u32>, Vec<u32>), Vec<f64>)| {
        let outer = stage.first().copied();
        let mut before = vec![0.0];
        of_layers.iter().for_each(|n| before.push(before[before.len() - 1] + n));
        let inner = sums.iter().map(|d| *d as usize).filter(|d| Some(*d) != outer);
        Class {
            sums: inner.map(|d| (u64::from(mesh.dims[d].size), stride(d))).collect(),
            grows: sums.iter().any(|d| Some(*d as usize) == outer),
            before,
        }
    };
    alike.into_iter().map(class).collect()
}

fn is_tied(model: &CheckedModel) -> bool {
    let mut seen = FxHashSet::default();
    model.layers.iter().flat_map(|l| &l.params).any(|p| !seen.insert(*p))
}

/// Elements of a class with the padding of its unit.
pub fn padded(elements: f64, ranks: u64) -> f64 {
    let unit = (CHUNK * ranks) as f64;
    if elements > 0.0 { (elements / unit).ceil() * unit } else { 0.0 }
}
