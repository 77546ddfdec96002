//! The phases `train`, `eval` and `generate` of a stage's ranks.

use super::bind::{Want, accumulating, restrict};
use super::early::{EarlyParts, waits};
use super::flow::{Flow, Names, input_names, output_names};
use super::layers::{Cx, Half, Training};
use super::shared::{EarlyLayers, Pass, Shared, Usage};
use super::stages::{Stage, Turn, Work};
use super::swap::Swaps;
use super::tensors::{Layout, scaled_number};
use super::timeline::{Bind, Frames, Placed};
use super::{Compiled, Programs, SavedLayout};
use crate::autodiff::{Differentiated, Keep, Options};
use crate::emit::{Joins, Rows, dtype};
use crate::memory::{self, Recompute, Swap, keep_starts};
use crate::optimizer::{self, Optimizer};
use crate::overlap::{self, Lanes, Passes};
use crate::pipeline::fused_gradients;
use crate::rewrite;
use crate::ring;
use crate::shard::{Dense, ShardedModel, StrategyError};
use crate::simplify::simplify;
use forebay_dsl::model::CheckedModel;
use forebay_ir::{DType, Graph, InputRole, OutputRole};
use forebay_plan as plan;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::rc::Rc;

/// What a forward-only phase is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardKind {
    /// Losses of held-back data.
    Eval,
    /// The model's outputs.
    Generate,
}

impl ForwardKind {
    fn name(self) -> &'static str {
        match self {
            ForwardKind::Eval => "eval",
            ForwardKind::Generate => "generate",
        }
    }
}

/// Builds the phases of one plan; programs are shared by all stages.
pub struct Scheduler<'a> {
    pub(super) wide: DType,
    pub(super) narrow: DType,
    pub(super) rewriting: &'a rewrite::Options,
    pub(super) programs: Programs,
    /// By phase: the graphs of its segments, made once for all stages.
    forward: FxHashMap<&'static str, Vec<Graph>>,
    /// By segment and tag, made once for all stages and tries.
    pub(super) early: FxHashMap<(usize, String), Option<Rc<EarlyParts>>>,
}

/// The segments of a model as they train.
#[derive(Clone, Debug)]
pub struct Segments {
    flow: Flow,
    /// Their graphs.
    pub list: Vec<Differentiated>,
    /// Where the strategy names what is made again: the forward graphs as they would be without that.
    pub unnamed: Vec<Graph>,
    /// For each the saved tensors that are swapped to the host, by name.
    pub swapped: Vec<Vec<String>>,
    /// Layers' calls that a copy to the host has before its memory is given up, and one from there before it is read.
    pub ahead: u32,
    /// For each what tells its programs from those of the same segment with other graphs: nothing, or `.` and a word.
    pub tags: Vec<String>,
    /// Where what is made again is made before the gradient comes.
    pub early: EarlyLayers,
    /// Where frames of calls that follow each other lie, where exchanges run beside other work.
    pub frames: Frames,
    /// Bytes of the device's arena that are enough, persistent ones included, so that no smaller one is looked for; 0 for the smallest.
    pub enough: u64,
}

impl Segments {
    /// Differentiates the segments of a model; what `recompute` names is computed again.
    ///
    /// # Errors
    /// When something is to be computed again that is not there.
    pub fn new(
        sharded: &ShardedModel,
        rewriting: &rewrite::Options,
        (keep, recompute, swap): (Keep, &Recompute, &Swap),
    ) -> Result<Segments, StrategyError> {
        let model = &sharded.model;
        let flow = Flow::new(model);
        let segments = (0..model.segments.len()).map(|s| differentiated(model, &flow, s, rewriting, keep));
        let mut list: Vec<Differentiated> = segments.collect();
        let names_some = *recompute != Recompute::Nothing;
        let unnamed = list.iter().filter(|_| names_some).map(|segment| segment.forward.clone()).collect();
        list.iter_mut().for_each(|segment| memory::recompute(segment, recompute, keep));
        let graphs: Vec<&Graph> = list.iter().flat_map(|d| [&d.forward, &d.backward]).collect();
        if let Some(name) = recompute.unknown(&graphs).first() {
            return Err(StrategyError::new(
                format!("recompute: no value and no op of the fused graphs is called `{name}`"),
                Some(format!("`full`, or a name that `forebay explain` shows; what is saved is {}", all_saved(&list))),
            ));
        }
        let forward: Vec<&Graph> = list.iter().map(|d| &d.forward).collect();
        if let Some(name) = swap.unknown(&forward).first() {
            return Err(StrategyError::new(
                format!("swap: no saved tensor that can leave the device is called `{name}`, and no op that makes one"),
                Some(format!("what is saved is {}", all_saved(&list))),
            ));
        }
        let swapped: Vec<Vec<String>> = forward.iter().map(|g| swap.of(g)).collect();
        list.iter_mut().zip(&swapped).for_each(|(segment, swapped)| keep_starts(segment, swapped));
        list.iter_mut().for_each(|segment| ring::travel_all(segment, &sharded.mesh.ring()));
        let tags = vec![String::new(); list.len()];
        Ok(Segments {
            flow,
            list,
            unnamed,
            swapped,
            ahead: 1,
            tags,
            early: EarlyLayers::default(),
            frames: Frames::AsRoomAllows,
            enough: 0,
        })
    }
}

/// What a stage does, in order.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'a> {
    /// The turns.
    pub order: &'a [Turn],
    /// For each: does it begin while the one before it ends?
    pub crossed: &'a [bool],
    /// For each: has the stage nothing to do before it? Empty where that does not matter.
    pub waits: &'a [bool],
    /// Micro-batches of a step.
    pub micro_batches: u32,
}

impl<'a> Scheduler<'a> {
    /// A scheduler for float types, rewriting options, the units of a rank, the passes that let them work at the same time, and which nodes may be one kernel.
    pub fn new(
        (wide, narrow): (DType, DType),
        rewriting: &'a rewrite::Options,
        lanes: Lanes,
        passes: Passes,
        joins: Joins,
    ) -> Scheduler<'a> {
        Scheduler {
            wide,
            narrow,
            rewriting,
            programs: Programs::new(lanes, passes, joins),
            forward: FxHashMap::default(),
            early: FxHashMap::default(),
        }
    }

    /// All programs of the phases built so far.
    pub fn into_programs(self) -> Vec<plan::Program> {
        self.programs.into_list()
    }

    /// The training step of a stage over all micro-batches, and the memory that it uses.
    pub fn train(
        &mut self,
        (sharded, segments): (&ShardedModel, &Segments),
        stage: &Stage,
        layout: &Layout,
        turns: &Turns,
        optimizer: &Optimizer,
    ) -> (plan::Phase, Usage) {
        let Turns { order, crossed, micro_batches, .. } = *turns;
        let Segments { flow, list: segments, swapped, ahead, tags, early: early_layers, frames, enough, .. } = segments;
        let forward: Vec<&Graph> = segments.iter().map(|s| &s.forward).collect();
        let (names, saved) = (names(&sharded.model), saved(&forward, swapped));
        let cx = Cx {
            sharded,
            stage,
            layout,
            names: &names,
            tags,
            phase: "train",
            forward: &forward,
            saved: &saved,
            wide: self.wide,
            narrow: self.narrow,
        };
        let mut shared = self.begin(&cx, data_rows(sharded), micro_batches, *frames);
        shared.timeline.suffice(*enough);
        self.counts(&cx, &mut shared, micro_batches);

        let handed: Vec<SavedLayout> =
            segments.iter().zip(&saved).map(|(segment, saved)| saved.with_handed(&segment.backward_input)).collect();
        let early = self.early_parts(&cx, segments, turns);
        let mut training =
            Training { flow, segments, written: FxHashSet::default(), handed: &handed, early: &early, early_layers };
        let waits = waits(&cx, &training, turns);
        let mut passes: FxHashMap<(u32, u32), Pass> = FxHashMap::default();
        let crosses = self.programs.passes.has(overlap::Pass::Borders);
        shared.swaps = Swaps::new(&cx, turns, crosses, *ahead);
        let mut before = (0, false);
        for (turn, crossed) in order.iter().zip(crossed) {
            let mut starts = vec![];
            for work in turn.works() {
                starts.push(shared.timeline.len());
                self.work(&cx, &mut shared, &mut passes, &mut training, work);
                self.sum_done(&cx, &mut shared, &mut training.written, None);
            }
            match starts[..] {
                [first, second] => self.pair(&cx, &mut shared, (first, second)),
                [start] => {
                    let behind = (*crossed && crosses).then(|| self.cross(&cx, &mut shared, before, start)).flatten();
                    before = (behind.unwrap_or(start), behind.is_some());
                    if crosses && matches!(turn, Turn::One(Work::Backward(_, _, Half::Whole))) {
                        self.hurry(&cx, &mut shared, start);
                    }
                }
                _ => {}
            }
        }
        self.add_sums(&cx, &mut shared, (sharded.model.layers.len() as u32, 0));
        self.untouched_gradients(&cx, &mut shared, &training.written);
        let offload = self.begin_offload(&cx, &mut shared);
        self.sum_gradients(&cx, &mut shared);
        self.sum_parts(&cx, &mut shared);
        let commit = self.optimize(&cx, &mut shared, optimizer, offload);
        let steps = shared.swaps.runs(&cx);
        let (phase, usage) = self.finish(&cx, shared, micro_batches, commit, Share::Rows);
        let split =
            order.iter().flat_map(|turn| turn.works()).any(|w| matches!(w, Work::Backward(_, _, Half::Weights)));
        (phase, Usage { halves: if split { 2 } else { 1 }, steps, waits, ..usage })
    }

    /// One micro-batch through one chunk, forward or backward, and what comes after it.
    fn work(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        passes: &mut FxHashMap<(u32, u32), Pass>,
        training: &mut Training,
        work: Work,
    ) {
        match work {
            Work::Forward(m, c) => {
                let before = c.checked_sub(1).and_then(|before| passes.get(&(m, before)));
                let pass = self.forward_layers(cx, shared, (m, c), before);
                passes.insert((m, c), pass);
            }
            Work::Backward(m, c, half) => {
                let mut pass = passes.remove(&(m, c)).expect("a micro-batch goes forward before it goes backward");
                if half == Half::Weights {
                    self.backward_weights(cx, shared, &mut pass, training, (m, c));
                } else {
                    let kept = self.backward_layers(cx, shared, &mut pass, training, (m, c, half));
                    if let Some(before) = c.checked_sub(1).and_then(|before| passes.get_mut(&(m, before))) {
                        before.gradients.extend(kept);
                    }
                }
                if half == Half::Input {
                    passes.insert((m, c), pass);
                }
            }
        }
    }

    /// A phase of a stage that runs the layers forward only.
    pub fn forward(
        &mut self,
        sharded: &ShardedModel,
        stage: &Stage,
        layout: &Layout,
        kind: ForwardKind,
        micro_batches: u32,
    ) -> plan::Phase {
        let stage = &stage.one_way();
        let roles: &[OutputRole] = match kind {
            ForwardKind::Eval => &[OutputRole::Carry, OutputRole::Metric, OutputRole::Loss],
            ForwardKind::Generate => &[OutputRole::Carry, OutputRole::Output],
        };
        let rewriting = self.rewriting;
        let rewritten = |s: &forebay_dsl::model::Segment| {
            let mut graph = restrict(&s.forward, roles);
            simplify(&mut graph);
            let (mut graph, _) = rewrite::rewrite(&graph, rewriting);
            ring::travel(&mut graph, &sharded.mesh.ring());
            graph.drop_unused_inputs();
            graph
        };
        let graphs =
            self.forward.remove(kind.name()).unwrap_or_else(|| sharded.model.segments.iter().map(rewritten).collect());
        let forward: Vec<&Graph> = graphs.iter().collect();
        let (names, saved) = (names(&sharded.model), saved(&forward, &vec![vec![]; forward.len()]));
        let tags = vec![String::new(); forward.len()];
        let cx = Cx {
            sharded,
            stage,
            layout,
            names: &names,
            tags: &tags,
            phase: kind.name(),
            forward: &forward,
            saved: &saved,
            wide: self.wide,
            narrow: self.narrow,
        };
        // Generation is of one text, the same on all data-parallel ranks.
        let (rows, share) = match kind {
            ForwardKind::Eval => (data_rows(sharded), Share::Rows),
            ForwardKind::Generate => (Rows::whole(sharded.model.batch), Share::Nothing),
        };
        let mut shared = self.begin(&cx, rows, micro_batches, Frames::AsRoomAllows);
        if kind == ForwardKind::Eval {
            self.counts(&cx, &mut shared, micro_batches);
        }
        for micro_batch in 0..micro_batches {
            let mut before = None;
            for chunk in 0..stage.chunks.len() as u32 {
                let pass = self.forward_layers(&cx, &mut shared, (micro_batch, chunk), before.as_ref());
                before = Some(pass);
            }
        }
        self.sum_parts(&cx, &mut shared);
        let commit = shared.timeline.len();
        let (phase, _) = self.finish(&cx, shared, micro_batches, commit, share);
        self.forward.insert(kind.name(), graphs);
        phase
    }

    fn begin(&mut self, cx: &Cx, rows: Rows, micro_batches: u32, frames: Frames) -> Shared {
        self.programs.enter(rows, &cx.sharded.mesh.dims);
        let mut shared = Shared::new(cx.sharded, micro_batches);
        if self.programs.passes.has(overlap::Pass::Within) && !self.programs.lanes.is_one_rank() {
            shared.timeline.lay_frames(frames);
        }
        shared.prepare_parts(cx.sharded, cx.stage, cx.forward, micro_batches);
        shared
    }

    /// The counts of `per` losses, summed over the micro-batches and ranks before anything else: the losses are divided by them.
    fn counts(&mut self, cx: &Cx, shared: &mut Shared, micro_batches: u32) {
        let Some(graph) = &cx.sharded.model.counts else { return };
        let names = output_names(graph, OutputRole::Count);
        let layer = cx.sharded.model.layers.len() as u32;
        for micro_batch in 0..micro_batches {
            let first = micro_batch == 0;
            let name = format!("{}.counts{}", cx.phase, if first { "" } else { ".add" });
            let program = self.programs.get(&name, &SavedLayout::default(), || {
                let all: Vec<_> = names.iter().map(|n| (OutputRole::Count, n.clone())).collect();
                if first { graph.clone() } else { accumulating(graph, &all) }
            });
            let slots = program.bind(shared, |want, _, shared| match want {
                Want::Data(name) => shared.data(name, micro_batch),
                Want::Count(name) => shared.count(name),
                want => unreachable!("counts have no {want:?}"),
            });
            shared.timeline.call(&program, layer, micro_batch, slots);
        }
        for name in names {
            let group = cx.sharded.count_sums[&name].clone();
            if !group.is_empty() {
                let own = shared.counts[&name];
                let all = shared.timeline.item(crate::emit::ALIGN);
                shared.counts.insert(name, all);
                self.all_reduce(cx, shared, (&[], self.wide), &group, (Bind::Item(own, 0), Bind::Item(all, 0)), layer);
            }
        }
    }

    /// Sums something over ranks, into another place.
    pub(super) fn all_reduce(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (dims, of): (&[u64], DType),
        group: &[u32],
        (from, to): (Bind, Bind),
        layer: u32,
    ) {
        let mesh = &cx.sharded.mesh;
        let sizes: Vec<String> = dims.iter().map(u64::to_string).collect();
        let name = format!("sum.{of}[{}].{}", sizes.join("x"), mesh.named(group, "."));
        let program =
            self.programs.get(&name, &SavedLayout::default(), || optimizer::all_reduced(dims, group, &mesh.dims, of));
        let slots = program.bind(shared, |want, _, _| match want {
            Want::Metric(_) => to,
            _ => from,
        });
        shared.timeline.call(&program, layer, 0, slots);
    }

    fn finish(&self, cx: &Cx, shared: Shared, micro_batches: u32, commit: u32, share: Share) -> (plan::Phase, Usage) {
        let model = &cx.sharded.model;
        let Shared { timeline, data, scalars, outputs, reports, output_dims, spans, .. } = shared;
        let mut placed: Placed = timeline.place((cx.layout.bytes, cx.layout.host_bytes));
        let live = std::mem::take(&mut placed.curve);
        let usage = Usage { spans: spans.into_values().collect(), live, halves: 1, steps: vec![], waits: vec![] };
        let mesh = &cx.sharded.mesh;
        let ranks_of_data = match share {
            Share::Rows => mesh.dense(Dense::Dp),
            Share::Nothing => vec![],
        };
        let per_micro_batch = model.batch * mesh.ranks(&ranks_of_data);
        let first_row = |micro_batch: u32| plan::Affine {
            base: (u64::from(micro_batch) * per_micro_batch) as i64,
            ..scaled_number(&ranks_of_data, mesh, model.batch as i64)
        };
        let feeds = data
            .iter()
            .map(|((input, micro_batch), item)| plan::Feed {
                input: input.clone(),
                first_row: first_row(*micro_batch),
                rows: model.batch,
                offset: placed.offset(Bind::Item(*item, 0)),
            })
            .collect();
        let scalar = |name: &str| match name {
            "step" => plan::Scalar::Step,
            _ => plan::Scalar::Seed,
        };
        let phase = plan::Phase {
            name: cx.phase.to_string(),
            rows: per_micro_batch * u64::from(micro_batches),
            seq: model.seq,
            feeds,
            scalars: scalars
                .iter()
                .map(|(name, item)| plan::ScalarFeed {
                    scalar: scalar(name),
                    offset: placed.offset(Bind::Item(*item, 0)),
                })
                .collect(),
            commit,
            reports: reports
                .into_iter()
                .map(|(name, of, bind, before_commit)| plan::Report {
                    name,
                    dtype: dtype(of),
                    offset: placed.offset(bind),
                    before_commit,
                })
                .collect(),
            outputs: outputs
                .into_iter()
                .map(|(name, (item, ty))| plan::OutputTensor {
                    dims: output_dims[&name].clone(),
                    name,
                    dtype: dtype(ty.dtype),
                    offset: placed.offset(Bind::Item(item, 0)),
                })
                .collect(),
            memory: plan::MemoryUse {
                activations: placed.bytes,
                live_peak: cx.layout.bytes + placed.live,
                placed: cx.layout.bytes + placed.bytes,
                ..cx.layout.memory
            },
            calls: placed.calls,
        };
        (phase, usage)
    }
}

/// What data-parallel ranks have each for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    Rows,
    Nothing,
}

/// What each segment saves, and swaps.
fn saved(forward: &[&Graph], swapped: &[Vec<String>]) -> Vec<SavedLayout> {
    forward.iter().zip(swapped).map(|(g, swapped)| SavedLayout::new(g, swapped)).collect()
}

/// What saved tensors can be named by, for people.
fn all_saved(list: &[Differentiated]) -> String {
    let saved: BTreeSet<&str> = list.iter().flat_map(|d| memory::saved_names(&d.forward)).collect();
    saved.into_iter().collect::<Vec<_>>().join(", ")
}

fn names(model: &CheckedModel) -> Vec<Names> {
    model.segments.iter().map(|s| Names::new(&s.forward)).collect()
}

/// The rows of a micro-batch on a data-parallel rank.
fn data_rows(sharded: &ShardedModel) -> Rows {
    let data = sharded.mesh.dense(Dense::Dp);
    let rows = sharded.model.batch;
    Rows {
        rows,
        per_micro_batch: rows * sharded.mesh.ranks(&data),
        first_row: scaled_number(&data, &sharded.mesh, rows as i64),
    }
}

/// The differentiated segment, with the losses that training needs.
fn differentiated(
    model: &CheckedModel,
    flow: &Flow,
    s: usize,
    rewriting: &rewrite::Options,
    keep: Keep,
) -> Differentiated {
    let roles = [OutputRole::Carry, OutputRole::Loss, OutputRole::Metric, OutputRole::Stat];
    let forward = restrict(&model.segments[s].forward, &roles);
    let names = Names::new(&model.segments[s].forward);
    let chosen = |names: &[String], flags: &[bool]| {
        names.iter().zip(flags).filter(|(_, f)| **f).map(|(n, _)| n.clone()).collect::<Vec<_>>()
    };
    let there = input_names(&forward, InputRole::Carry);
    let mut carry_inputs = chosen(&names.carry_in, &flow.inputs[s]);
    carry_inputs.retain(|n| there.contains(n));
    let carry_outputs = chosen(&names.carry_out, &flow.outputs[s]);
    fused_gradients(&forward, &Options { carry_inputs, carry_outputs, keep }, rewriting, &Recompute::Nothing).0
}

impl Compiled {
    /// Binds every slot but the frame.
    pub(super) fn bind(&self, shared: &mut Shared, mut how: impl FnMut(&Want, u64, &mut Shared) -> Bind) -> Vec<Bind> {
        self.wants.iter().zip(&self.bytes).map(|(want, bytes)| how(want, *bytes, shared)).collect()
    }
}
