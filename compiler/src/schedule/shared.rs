//! What all micro-batches of a phase share.

use super::bind::Want;
use super::layers::Half;
use super::stages::Stage;
use super::swap::Swaps;
use super::tied::Sent;
use super::timeline::{Bind, Item, Timeline};
use super::units::UnitId;
use crate::emit::ALIGN;
use crate::shard::ShardedModel;
use forebay_dsl::model::Source;
use forebay_ir::{DType, Graph, OutputRole, Type};
use indexmap::IndexMap;
use rustc_hash::{FxHashMap, FxHashSet};

/// Contributions to a loss or metric that are summed over the same ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The loss (all losses make one total), or the metric.
    pub want: Want,
    /// Mesh dimensions of a stage.
    pub sums: Vec<u32>,
}

/// A layer's work on a micro-batch: what it saves lives from one call to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The layer's segment.
    pub segment: usize,
    /// The layer.
    pub layer: usize,
    /// The micro-batch.
    pub micro_batch: u32,
    /// The call that runs it forward.
    pub forward: u32,
    /// The last call that runs it backward; the same call when nothing does.
    pub backward: u32,
    /// The steps of the stage in which it runs forward, and first backward.
    pub steps: (u32, u32),
}

/// What of a layer runs in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The layer's segment.
    pub segment: usize,
    /// The backward pass or a half of it; none for the forward pass.
    pub backward: Option<Half>,
}

/// A backward pass whose gradient the stage waits for, with nothing else to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The micro-batch and the chunk.
    pub pass: (u32, u32),
    /// Its layers, the last of the chunk first, down to the first that makes nothing again, each with the bytes that it could make before the gradient comes.
    pub layers: Vec<(usize, u64)>,
}

/// How many layers of a pass, by micro-batch and chunk, make things before the gradient comes; from the last layer on.
pub type EarlyLayers = FxHashMap<(u32, u32), usize>;

/// The memory that a phase uses.
#[derive(Clone, Debug)]
pub struct Usage {
    /// Each layer's work on each micro-batch.
    pub spans: Vec<Span>,
    /// For each call the bytes above the persistent ones that are alive, those of a frame that are never in use at once left out.
    pub live: Vec<u64>,
    /// Parts in which backward passes run: 2 when that for the weights is apart.
    pub halves: u32,
    /// What runs in each step of the stage: a layer, or two at the same time.
    pub steps: Vec<Vec<Run>>,
    /// Passes whose gradients are waited for, in order.
    pub waits: Vec<Wait>,
}

/// A phase in the making.
pub struct Shared {
    pub timeline: Timeline,
    /// Micro-batches of the phase.
    pub micro_batches: u32,
    /// Data by (input, micro-batch).
    pub data: IndexMap<(String, u32), Item>,
    pub scalars: IndexMap<&'static str, Item>,
    /// Counts of the losses, over all ranks once they are known.
    pub counts: FxHashMap<String, Item>,
    pub stats: FxHashMap<usize, Item>,
    /// The item and how many are in it so far; the same list on all stages.
    pub parts: IndexMap<Part, (Item, u32)>,
    pub outputs: IndexMap<String, (Item, Type)>,
    pub output_dims: FxHashMap<String, Vec<u64>>,
    pub reports: Vec<(String, DType, Bind, bool)>,
    /// Parameters that were gathered for the layer at hand.
    pub gathered: FxHashMap<UnitId, Item>,
    /// The layer whose parameters were gathered while the one before it runs.
    pub ahead: Option<usize>,
    /// Gradients of the layer at hand that are summed when it is done.
    pub layer_gradients: FxHashMap<UnitId, Item>,
    /// The units whose sums have something in them.
    pub summed: FxHashSet<UnitId>,
    /// Those of them that have been summed over replicas, too.
    pub replicated: FxHashSet<UnitId>,
    /// What goes to the host's memory and back.
    pub swaps: Swaps,
    /// For each layer how often it has gone backward.
    pub backward: FxHashMap<usize, u32>,
    /// Layers that have gone backward for the last time, and whose gradients nobody has summed since.
    pub done: Vec<usize>,
    /// A layer and its micro-batch, whose gradients are summed behind the layer that runs next.
    pub ended: Option<(usize, u32)>,
    /// What the other stage that has it has been sent.
    pub sent: Vec<Sent>,
    /// This rank's ranges of a group's summed gradients, where they are not kept.
    pub own: FxHashMap<usize, Item>,
    /// This rank's ranges of sums that are made while the next layer runs, and added to those so far behind it.
    pub sums: Vec<(UnitId, Item)>,
    /// What links read or write while the next layer runs.
    pub beside: Vec<Item>,
    /// By layer and micro-batch.
    pub spans: IndexMap<(usize, u32), Span>,
}

/// A micro-batch between its forward and its backward pass.
#[derive(Default)]
pub struct Pass {
    /// For each layer and carry output its memory.
    pub carries: FxHashMap<Source, Item>,
    /// For each layer its saved tensors.
    pub saved: FxHashMap<usize, Item>,
    /// For each layer what a part of its backward pass left to the next.
    pub handed: FxHashMap<usize, Item>,
    /// Gradients of carries, by whose output they are.
    pub gradients: FxHashMap<Source, Item>,
}

impl Shared {
    /// An empty phase.
    pub fn new(sharded: &ShardedModel, micro_batches: u32) -> Shared {
        let model = &sharded.model;
        let mut timeline = Timeline::default();
        let bytes = model.batch * model.seq * DType::I32.bytes();
        let data = (0..micro_batches)
            .flat_map(|m| model.inputs.iter().map(move |i| (i.clone(), m)))
            .map(|key| (key, timeline.permanent(bytes)))
            .collect();
        let scalars = ["step", "seed"].into_iter().map(|s| (s, timeline.permanent(ALIGN))).collect();
        Shared {
            timeline,
            micro_batches,
            data,
            scalars,
            counts: FxHashMap::default(),
            stats: FxHashMap::default(),
            parts: IndexMap::new(),
            outputs: IndexMap::new(),
            output_dims: FxHashMap::default(),
            reports: vec![],
            gathered: FxHashMap::default(),
            ahead: None,
            layer_gradients: FxHashMap::default(),
            summed: FxHashSet::default(),
            replicated: FxHashSet::default(),
            swaps: Swaps::default(),
            backward: FxHashMap::default(),
            done: vec![],
            ended: None,
            sent: vec![],
            own: FxHashMap::default(),
            sums: vec![],
            beside: vec![],
            spans: IndexMap::new(),
        }
    }

    /// The next call runs a layer forward.
    pub fn begin_span(&mut self, (layer, micro_batch): (usize, u32), segment: usize) {
        let call = self.timeline.len();
        let steps = self.swaps.between(layer, micro_batch).unwrap_or((0, 0));
        let span = Span { segment, layer, micro_batch, forward: call, backward: call, steps };
        self.spans.insert((layer, micro_batch), span);
    }

    /// The next call runs a layer backward, or a half of it.
    pub fn end_span(&mut self, at: (usize, u32)) {
        self.spans.get_mut(&at).expect("a layer goes forward before it goes backward").backward = self.timeline.len();
    }

    pub fn data(&self, name: &str, micro_batch: u32) -> Bind {
        Bind::Item(self.data[&(name.to_string(), micro_batch)], 0)
    }

    pub fn count(&mut self, name: &str) -> Bind {
        let timeline = &mut self.timeline;
        Bind::Item(*self.counts.entry(name.to_string()).or_insert_with(|| timeline.item(ALIGN)), 0)
    }

    pub fn stat(&mut self, stat: usize, bytes: u64) -> Bind {
        let timeline = &mut self.timeline;
        Bind::Item(*self.stats.entry(stat).or_insert_with(|| timeline.item(bytes)), 0)
    }

    /// One line for each contribution to a loss that this stage makes: how many there will be is known before.
    pub fn prepare_parts(&mut self, sharded: &ShardedModel, stage: &Stage, graphs: &[&Graph], micro_batches: u32) {
        let mut totals: IndexMap<Part, u64> = IndexMap::new();
        for (l, layer) in sharded.model.layers.iter().enumerate() {
            for output in &graphs[layer.segment].outputs {
                if let Some(part) = part_of(sharded, layer.segment, output.role, &output.name) {
                    let total = totals.entry(part).or_default();
                    *total += stage.micros(l, micro_batches).len() as u64;
                }
            }
        }
        for (part, n) in totals {
            let item = self.timeline.item(n.max(1) * ALIGN);
            self.parts.insert(part, (item, 0));
        }
    }

    /// Where the next contribution goes.
    pub fn part(&mut self, sharded: &ShardedModel, segment: usize, want: &Want) -> Bind {
        let (role, name) = match want {
            Want::Loss(name) => (OutputRole::Loss, name),
            Want::Metric(name) => (OutputRole::Metric, name),
            want => unreachable!("{want:?} is no contribution to a loss"),
        };
        let part = part_of(sharded, segment, role, name).expect("losses and metrics have parts");
        let (item, n) = self.parts.get_mut(&part).expect("counted before");
        *n += 1;
        Bind::Item(*item, u64::from(*n - 1) * ALIGN)
    }
}

fn part_of(sharded: &ShardedModel, segment: usize, role: OutputRole, name: &str) -> Option<Part> {
    let want = match role {
        // All losses add up to one total.
        OutputRole::Loss => Want::Loss(String::new()),
        OutputRole::Metric => Want::Metric(name.to_string()),
        _ => return None,
    };
    let sums = sharded.sums[segment].get(&(role, name.to_string())).cloned().unwrap_or_default();
    Some(Part { want, sums })
}
