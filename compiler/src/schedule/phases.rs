//! The phases `train`, `eval` and `generate` of one rank.

use super::bind::{SavedLayout, Want, accumulating, restrict, widen};
use super::flow::{Flow, Names, output_names};
use super::tensors::Layout;
use super::timeline::{Bind, Item, Placed, Timeline};
use super::{Compiled, Programs};
use crate::autodiff::{Differentiated, Options};
use crate::emit::{ALIGN, dtype};
use crate::optimizer::{self, Optimizer};
use crate::pipeline::fused_gradients;
use crate::rewrite;
use crate::simplify::simplify;
use forebay_dsl::model::{CheckedModel, Source};
use forebay_ir::{DType, Graph, OutputRole, Type};
use forebay_plan as plan;
use indexmap::IndexMap;
use rustc_hash::FxHashMap;

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

/// Builds the phases of one plan.
pub struct Scheduler<'a> {
    layout: &'a Layout,
    /// For each parameter and state name of the training model its number.
    params: FxHashMap<&'a str, usize>,
    states: FxHashMap<&'a str, usize>,
    wide: DType,
    narrow: DType,
    rewriting: &'a rewrite::Options,
    programs: Programs,
}

/// One forward pass of the layers of a micro-batch, and what it leaves.
struct Pass {
    /// For each layer and carry output its memory.
    carries: FxHashMap<Source, Item>,
    /// For each layer its saved tensors.
    saved: Vec<Option<Item>>,
}

/// What all micro-batches of a phase share.
struct Shared {
    timeline: Timeline,
    /// Data by (input, micro-batch).
    data: IndexMap<(String, u32), Item>,
    scalars: IndexMap<&'static str, Item>,
    counts: FxHashMap<String, Item>,
    stats: FxHashMap<usize, Item>,
    /// Contributions to each loss and metric: the item and how many are in it so far.
    parts: IndexMap<Want, (Item, u32)>,
    outputs: IndexMap<String, (Item, Type)>,
    output_dims: FxHashMap<String, Vec<u64>>,
    reports: Vec<(String, DType, Bind, bool)>,
}

impl<'a> Scheduler<'a> {
    /// A scheduler for a training model and the layout of its tensors.
    pub fn new(
        model: &'a CheckedModel,
        layout: &'a Layout,
        wide: DType,
        narrow: DType,
        rewriting: &'a rewrite::Options,
    ) -> Scheduler<'a> {
        let number =
            |t: &'a [forebay_dsl::model::Tensor]| t.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
        Scheduler {
            layout,
            params: number(&model.params),
            states: number(&model.states),
            wide,
            narrow,
            rewriting,
            programs: Programs::default(),
        }
    }

    /// All programs of the phases built so far.
    pub fn into_programs(self) -> Vec<plan::Program> {
        self.programs.into_list()
    }

    /// The training step over all micro-batches.
    pub fn train(&mut self, model: &CheckedModel, micro_batches: u32, optimizer: &Optimizer) -> plan::Phase {
        let flow = Flow::new(model);
        let segments: Vec<Differentiated> =
            model.segments.iter().enumerate().map(|(s, _)| differentiated(model, &flow, s, self.rewriting)).collect();
        let mut shared = self.shared(model, micro_batches);
        shared.prepare_parts(model, segments.iter().map(|s| &s.forward), micro_batches);
        self.counts(model, &mut shared, micro_batches, "train");

        let mut written = FxHashMap::default();
        for micro_batch in 0..micro_batches {
            let pass = self.forward_layers(model, &mut shared, micro_batch, "train", |s| segments[s].forward.clone());
            self.backward_layers(model, &mut shared, micro_batch, &pass, &flow, &segments, &mut written);
        }
        self.untouched_gradients(model, &mut shared, &written);
        self.sum_parts(model, &mut shared);
        let commit = self.optimize(model, &mut shared, optimizer);
        self.finish(model, shared, "train", micro_batches, commit)
    }

    /// A phase that runs the layers forward only.
    pub fn forward(&mut self, model: &CheckedModel, kind: ForwardKind, micro_batches: u32) -> plan::Phase {
        let roles: &[OutputRole] = match kind {
            ForwardKind::Eval => &[OutputRole::Carry, OutputRole::Metric, OutputRole::Loss],
            ForwardKind::Generate => &[OutputRole::Carry, OutputRole::Output],
        };
        let graphs: Vec<Graph> = model
            .segments
            .iter()
            .map(|s| {
                let mut graph = restrict(&s.forward, roles);
                simplify(&mut graph);
                let (mut graph, _) = rewrite::rewrite(&graph, self.rewriting);
                graph.drop_unused_inputs();
                graph
            })
            .collect();
        let mut shared = self.shared(model, micro_batches);
        shared.prepare_parts(model, graphs.iter(), micro_batches);
        if kind == ForwardKind::Eval {
            self.counts(model, &mut shared, micro_batches, kind.name());
        }
        for micro_batch in 0..micro_batches {
            self.forward_layers(model, &mut shared, micro_batch, kind.name(), |s| graphs[s].clone());
        }
        self.sum_parts(model, &mut shared);
        let commit = shared.timeline.len();
        self.finish(model, shared, kind.name(), micro_batches, commit)
    }

    fn shared(&self, model: &CheckedModel, micro_batches: u32) -> Shared {
        let mut timeline = Timeline::default();
        let bytes = model.batch * model.seq * DType::I32.bytes();
        let data = (0..micro_batches)
            .flat_map(|m| model.inputs.iter().map(move |i| (i.clone(), m)))
            .map(|key| (key, timeline.permanent(bytes)))
            .collect();
        let scalars = ["step", "seed"].into_iter().map(|s| (s, timeline.permanent(ALIGN))).collect();
        Shared {
            timeline,
            data,
            scalars,
            counts: FxHashMap::default(),
            stats: FxHashMap::default(),
            parts: IndexMap::new(),
            outputs: IndexMap::new(),
            output_dims: FxHashMap::default(),
            reports: vec![],
        }
    }

    /// The counts of `per` losses, summed over the micro-batches before anything else: the losses are divided by them.
    fn counts(&mut self, model: &CheckedModel, shared: &mut Shared, micro_batches: u32, phase: &str) {
        let Some(graph) = &model.counts else { return };
        let names = output_names(graph, OutputRole::Count);
        for micro_batch in 0..micro_batches {
            let first = micro_batch == 0;
            let name = format!("{phase}.counts{}", if first { "" } else { ".add" });
            let program = self.programs.get(&name, &SavedLayout::default(), model.batch, || {
                let all: Vec<_> = names.iter().map(|n| (OutputRole::Count, n.clone())).collect();
                if first { graph.clone() } else { accumulating(graph, &all) }
            });
            let slots = program.bind(shared, |want, _, shared| match want {
                Want::Data(name) => shared.data(name, micro_batch),
                Want::Count(name) => shared.count(name),
                want => unreachable!("counts have no {want:?}"),
            });
            shared.timeline.call(&program, model.layers.len() as u32, micro_batch, slots);
        }
    }

    fn forward_layers(
        &mut self,
        model: &CheckedModel,
        shared: &mut Shared,
        micro_batch: u32,
        phase: &str,
        graph: impl Fn(usize) -> Graph,
    ) -> Pass {
        let mut pass = Pass { carries: FxHashMap::default(), saved: vec![] };
        let layouts: Vec<SavedLayout> = (0..model.segments.len()).map(|s| SavedLayout::new(&graph(s))).collect();
        let names: Vec<Names> = model.segments.iter().map(|s| Names::new(&s.forward)).collect();
        for (l, layer) in model.layers.iter().enumerate() {
            let (segment, names) = (&model.segments[layer.segment], &names[layer.segment]);
            let adds = micro_batch > 0 && !names.stats.is_empty();
            let name = format!("{phase}.{}.forward{}", segment.name, if adds { ".add" } else { "" });
            let program = self.programs.get(&name, &layouts[layer.segment], model.batch, || {
                let graph = graph(layer.segment);
                let stats: Vec<_> =
                    output_names(&graph, OutputRole::Stat).into_iter().map(|n| (OutputRole::Stat, n)).collect();
                if adds { accumulating(&graph, &stats) } else { graph }
            });
            let saved = (layouts[layer.segment].bytes > 0).then(|| shared.timeline.item(layouts[layer.segment].bytes));
            pass.saved.push(saved);
            let slots = program.bind(shared, |want, bytes, shared| match want {
                Want::CarryIn(name) => Bind::Item(pass.carries[&layer.carries[position(&names.carry_in, name)]], 0),
                Want::CarryOut(name) => {
                    let source = Source { layer: l, output: position(&names.carry_out, name) };
                    Bind::Item(*pass.carries.entry(source).or_insert_with(|| shared.timeline.item(bytes)), 0)
                }
                Want::Saved => Bind::Item(saved.expect("a program with saved tensors has bytes for them"), 0),
                Want::Loss(_) | Want::Metric(_) => shared.part(want),
                Want::Stat(name) => shared.stat(layer.stats[position(&names.stats, name)], bytes),
                Want::Output(name) => {
                    let graph = graph(layer.segment);
                    let value = graph.output(OutputRole::Output, name).expect("the slot is one of its outputs");
                    let ty = graph.ty(value).clone();
                    let item = shared.timeline.permanent(bytes);
                    shared.outputs.insert(name.clone(), (item, ty));
                    shared
                        .output_dims
                        .insert(name.clone(), graph.dims(&graph.ty(value).axes).iter().map(|d| d.1).collect());
                    Bind::Item(item, 0)
                }
                want => self.common(model, shared, want, l, names, micro_batch),
            });
            shared.timeline.call(&program, l as u32, micro_batch, slots);
        }
        pass
    }

    /// Slots that forward and backward programs have alike.
    fn common(
        &self,
        model: &CheckedModel,
        shared: &mut Shared,
        want: &Want,
        l: usize,
        names: &Names,
        micro_batch: u32,
    ) -> Bind {
        let layer = &model.layers[l];
        match want {
            Want::Data(name) => shared.data(name, micro_batch),
            Want::Param(name) => {
                let param = &model.params[layer.params[position(&names.params, name)]];
                Bind::Fixed(self.layout.param(self.params[param.name.as_str()]))
            }
            Want::State(name) => {
                let state = &model.states[layer.states[position(&names.states, name)]];
                Bind::Fixed(self.layout.states[self.states[state.name.as_str()]])
            }
            Want::Count(name) => shared.count(name),
            want => unreachable!("segments have no {want:?}"),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the state of the step, which the caller's loop owns")]
    fn backward_layers(
        &mut self,
        model: &CheckedModel,
        shared: &mut Shared,
        micro_batch: u32,
        pass: &Pass,
        flow: &Flow,
        segments: &[Differentiated],
        written: &mut FxHashMap<usize, ()>,
    ) {
        // Gradients of carries, by whose output they are.
        let mut gradients: FxHashMap<Source, Item> = FxHashMap::default();
        let names: Vec<Names> = model.segments.iter().map(|s| Names::new(&s.forward)).collect();
        for (l, layer) in model.layers.iter().enumerate().rev() {
            let (s, names) = (layer.segment, &names[layer.segment]);
            let graph = &segments[s].backward;
            if graph.outputs.is_empty() {
                continue;
            }
            self.missing_gradients(model, shared, (l, micro_batch), flow, segments, &mut gradients);
            // Which results are added to what is there: shared parameters, values that several layers read, all micro-batches but the first.
            let mut adds = vec![];
            for name in output_names(graph, OutputRole::Grad) {
                let there = match name.split_once('.') {
                    Some(("param", param)) => {
                        written.insert(layer.params[position(&names.params, param)], ()).is_some()
                    }
                    Some(("carry", carry)) => gradients.contains_key(&layer.carries[position(&names.carry_in, carry)]),
                    _ => unreachable!("gradients are of carries and parameters"),
                };
                if there {
                    adds.push((OutputRole::Grad, name));
                }
            }
            let layout = SavedLayout::new(&segments[s].forward);
            let program = self.programs.get(&backward_name(model, s, graph, &adds), &layout, model.batch, || {
                let mut graph = graph.clone();
                widen(&mut graph, self.wide);
                accumulating(&graph, &adds)
            });
            let slots = program.bind(shared, |want, bytes, shared| match want {
                Want::CarryIn(name) => Bind::Item(pass.carries[&layer.carries[position(&names.carry_in, name)]], 0),
                Want::Saved => Bind::Item(pass.saved[l].expect("what the forward program saved"), 0),
                Want::GradIn(name) => {
                    Bind::Item(gradients[&Source { layer: l, output: position(&names.carry_out, name) }], 0)
                }
                Want::CarryGrad(name) => {
                    let source = layer.carries[position(&names.carry_in, name)];
                    Bind::Item(*gradients.entry(source).or_insert_with(|| shared.timeline.item(bytes)), 0)
                }
                Want::ParamGrad(name) => {
                    let param = &model.params[layer.params[position(&names.params, name)]];
                    Bind::Fixed(self.layout.gradient(self.params[param.name.as_str()]))
                }
                want => self.common(model, shared, want, l, names, micro_batch),
            });
            shared.timeline.call(&program, l as u32, micro_batch, slots);
        }
    }

    /// Zeros for the gradients of outputs that no later layer of this model reads, although other layers of the segment are read.
    fn missing_gradients(
        &mut self,
        model: &CheckedModel,
        shared: &mut Shared,
        (l, micro_batch): (usize, u32),
        flow: &Flow,
        segments: &[Differentiated],
        gradients: &mut FxHashMap<Source, Item>,
    ) {
        let s = model.layers[l].segment;
        let forward = &segments[s].forward;
        let outputs = forward.outputs.iter().filter(|o| o.role == OutputRole::Carry);
        for (output, o) in outputs.enumerate() {
            let source = Source { layer: l, output };
            if flow.outputs[s][output] && !gradients.contains_key(&source) {
                let ty = forward.ty(o.value);
                let elements = forward.numel(ty);
                let item = shared.timeline.item(elements * ty.dtype.bytes());
                gradients.insert(source, item);
                self.zero(shared, elements, ty.dtype, Bind::Item(item, 0), (l as u32, micro_batch));
            }
        }
    }

    fn zero(&mut self, shared: &mut Shared, elements: u64, of: DType, at: Bind, (layer, micro_batch): (u32, u32)) {
        let name = format!("zeros.{elements}.{of}");
        let program = self.programs.get(&name, &SavedLayout::default(), 1, || optimizer::zeros(elements, of));
        shared.timeline.call(&program, layer, micro_batch, vec![at]);
    }

    /// Gradients of parameters that no loss depends on are zero.
    fn untouched_gradients(&mut self, model: &CheckedModel, shared: &mut Shared, written: &FxHashMap<usize, ()>) {
        for (i, param) in model.params.iter().enumerate() {
            if !written.contains_key(&i) {
                let at = Bind::Fixed(self.layout.gradient(self.params[param.name.as_str()]));
                self.zero(shared, param.numel(), self.wide, at, (model.layers.len() as u32, 0));
            }
        }
    }

    /// Sums the contributions of all layers and micro-batches to each loss.
    fn sum_parts(&mut self, model: &CheckedModel, shared: &mut Shared) {
        let layer = model.layers.len() as u32;
        for (want, (item, n)) in std::mem::take(&mut shared.parts) {
            if n == 0 {
                continue;
            }
            let wide = self.wide;
            let program = self
                .programs
                .get(&format!("sum.{n}"), &SavedLayout::default(), 1, || optimizer::sum_of_scalars(u64::from(n), wide));
            let sum = Bind::Item(shared.timeline.permanent(ALIGN), 0);
            let slots = program.bind(shared, |want, _, _| match want {
                Want::Metric(_) => sum,
                _ => Bind::Item(item, 0),
            });
            shared.timeline.call(&program, layer, 0, slots);
            match want {
                Want::Metric(name) => {
                    if model.losses.iter().any(|l| l.main && l.name == name) {
                        shared.reports.push(("loss".into(), wide, sum, true));
                    }
                    shared.reports.push((format!("loss.{name}"), wide, sum, true));
                }
                _ => shared.reports.push(("total_loss".into(), wide, sum, true)),
            }
        }
    }

    /// Norm, learning rate and AdamW, then the updates of states. Returns the first call that changes what a checkpoint holds.
    fn optimize(&mut self, model: &CheckedModel, shared: &mut Shared, optimizer: &Optimizer) -> u32 {
        let layer = model.layers.len() as u32;
        let nothing = SavedLayout::default();
        let groups = self.layout.groups.clone();
        let mut squares = vec![];
        for group in &groups {
            let chunks = group.elements / optimizer::CHUNK;
            let wide = self.wide;
            let program = self
                .programs
                .get(&format!("optimizer.squares.{chunks}"), &nothing, 1, || optimizer::squares(chunks, wide));
            let sum = Bind::Item(shared.timeline.item(ALIGN), 0);
            let slots = program.bind(shared, |want, _, _| match want {
                Want::Metric(_) => sum,
                _ => Bind::Fixed(group.gradients),
            });
            shared.timeline.call(&program, layer, 0, slots);
            squares.push(sum);
        }
        let program =
            self.programs.get("optimizer.scalars", &nothing, 1, || optimizer::scalars(optimizer, groups.len()));
        let mut scalars: FxHashMap<String, Bind> = FxHashMap::default();
        let slots = program.bind(shared, |want, _, shared| match want {
            Want::Scalar(_) => Bind::Item(shared.scalars["step"], 0),
            Want::CarryIn(name) => {
                squares[name.strip_prefix("squares.").and_then(|n| n.parse().ok()).unwrap_or(0usize)]
            }
            Want::Metric(name) => {
                let bind = Bind::Item(shared.timeline.permanent(ALIGN), 0);
                scalars.insert(name.clone(), bind);
                bind
            }
            want => unreachable!("the optimizer's scalars have no {want:?}"),
        });
        shared.timeline.call(&program, layer, 0, slots);
        for name in ["grad_norm", "lr"] {
            shared.reports.push((name.into(), DType::F64, scalars[name], true));
        }

        let commit = shared.timeline.len();
        let rewriting = self.rewriting;
        for group in &groups {
            let (n, wide, narrow) = (group.elements, self.wide, self.narrow);
            let name = format!("optimizer.adamw.{}", if group.decays { "decay" } else { "no_decay" });
            let adamw = || rewrite::rewrite(&optimizer::adamw(optimizer, n, group.decays, wide, narrow), rewriting).0;
            let program = self.programs.get(&name, &nothing, 1, adamw);
            let slots = program.bind(shared, |want, _, _| match want {
                Want::State(name) => Bind::Fixed(match name.as_str() {
                    "param" => group.params,
                    "first" => group.first,
                    "second" => group.second,
                    _ => group.copies,
                }),
                Want::GradIn(_) => Bind::Fixed(group.gradients),
                Want::CarryIn(name) => scalars[name],
                want => unreachable!("AdamW has no {want:?}"),
            });
            shared.timeline.call(&program, layer, 0, slots);
        }
        self.update_states(model, shared);
        commit
    }

    fn update_states(&mut self, model: &CheckedModel, shared: &mut Shared) {
        let order = model.update_order().expect("checked: layers do not update states that they read from each other");
        for l in order {
            let layer = &model.layers[l];
            let segment = &model.segments[layer.segment];
            let graph = segment.update.as_ref().expect("the order lists layers with updates");
            let states_in = super::flow::input_names(graph, forebay_ir::InputRole::State);
            let stats = super::flow::input_names(graph, forebay_ir::InputRole::Stat);
            let states_out = output_names(graph, OutputRole::State);
            let name = format!("train.{}.update", segment.name);
            let program = self.programs.get(&name, &SavedLayout::default(), model.batch, || graph.clone());
            let slots = program.bind(shared, |want, bytes, shared| match want {
                Want::State(name) => {
                    let read = states_in.iter().position(|n| n == name).map(|i| layer.update_states[i]);
                    let state = read.unwrap_or_else(|| layer.update_outputs[position(&states_out, name)]);
                    Bind::Fixed(self.layout.states[state])
                }
                Want::Stat(name) => shared.stat(layer.update_stats[position(&stats, name)], bytes),
                want => unreachable!("updates have no {want:?}"),
            });
            shared.timeline.call(&program, l as u32, 0, slots);
        }
    }

    fn finish(&self, model: &CheckedModel, shared: Shared, name: &str, micro_batches: u32, commit: u32) -> plan::Phase {
        let Shared { timeline, data, scalars, outputs, reports, output_dims, .. } = shared;
        let placed: Placed = timeline.place(self.layout.bytes);
        let feeds = data
            .iter()
            .map(|((input, micro_batch), item)| plan::Feed {
                input: input.clone(),
                first_row: plan::Affine { base: i64::from(*micro_batch) * model.batch as i64, terms: vec![] },
                rows: model.batch,
                offset: placed.offset(Bind::Item(*item, 0)),
            })
            .collect();
        let scalar = |name: &str| match name {
            "step" => plan::Scalar::Step,
            _ => plan::Scalar::Seed,
        };
        let persistent = self.layout.memory;
        plan::Phase {
            name: name.to_string(),
            rows: model.batch * u64::from(micro_batches),
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
                live_peak: self.layout.bytes + placed.live,
                placed: self.layout.bytes + placed.bytes,
                ..persistent
            },
            calls: placed.calls,
        }
    }
}

fn position(names: &[String], name: &str) -> usize {
    names.iter().position(|n| n == name).expect("programs ask for what their segment has")
}

/// The differentiated segment, with the losses that training needs.
fn differentiated(model: &CheckedModel, flow: &Flow, s: usize, rewriting: &rewrite::Options) -> Differentiated {
    let roles = [OutputRole::Carry, OutputRole::Loss, OutputRole::Metric, OutputRole::Stat];
    let forward = restrict(&model.segments[s].forward, &roles);
    let names = Names::new(&model.segments[s].forward);
    let chosen = |names: &[String], flags: &[bool]| {
        names.iter().zip(flags).filter(|(_, f)| **f).map(|(n, _)| n.clone()).collect::<Vec<_>>()
    };
    let there = super::flow::input_names(&forward, forebay_ir::InputRole::Carry);
    let mut carry_inputs = chosen(&names.carry_in, &flow.inputs[s]);
    carry_inputs.retain(|n| there.contains(n));
    let options =
        Options { carry_inputs, carry_outputs: chosen(&names.carry_out, &flow.outputs[s]), ..Options::default() };
    fused_gradients(&forward, &options, rewriting).0
}

/// `train.layers.backward`, `train.layers.backward.add` when all gradients of parameters are added, else with the names of those that are.
fn backward_name(model: &CheckedModel, s: usize, graph: &Graph, adds: &[(OutputRole, String)]) -> String {
    let stem = format!("train.{}.backward", model.segments[s].name);
    let params = |names: &mut dyn Iterator<Item = &str>| names.filter(|n| n.starts_with("param.")).count();
    let all = params(&mut graph.outputs.iter().map(|o| o.name.as_str()));
    let added = params(&mut adds.iter().map(|(_, n)| n.as_str()));
    match (adds.len(), added) {
        (0, _) => stem,
        (n, p) if n == p && p == all => format!("{stem}.add"),
        _ => format!("{stem}.add[{}]", adds.iter().map(|(_, n)| n.as_str()).collect::<Vec<_>>().join(",")),
    }
}

impl Compiled {
    /// Binds every slot but the frame.
    fn bind(&self, shared: &mut Shared, mut how: impl FnMut(&Want, u64, &mut Shared) -> Bind) -> Vec<Bind> {
        self.wants.iter().zip(&self.bytes).map(|(want, bytes)| how(want, *bytes, shared)).collect()
    }
}

impl Shared {
    fn data(&self, name: &str, micro_batch: u32) -> Bind {
        Bind::Item(self.data[&(name.to_string(), micro_batch)], 0)
    }

    fn count(&mut self, name: &str) -> Bind {
        let timeline = &mut self.timeline;
        Bind::Item(*self.counts.entry(name.to_string()).or_insert_with(|| timeline.item(ALIGN)), 0)
    }

    fn stat(&mut self, stat: usize, bytes: u64) -> Bind {
        let timeline = &mut self.timeline;
        Bind::Item(*self.stats.entry(stat).or_insert_with(|| timeline.item(bytes)), 0)
    }

    /// One line for each contribution to a loss: how many there will be is known before.
    fn prepare_parts<'g>(&mut self, model: &CheckedModel, graphs: impl Iterator<Item = &'g Graph>, micro_batches: u32) {
        let graphs: Vec<&Graph> = graphs.collect();
        let mut totals: IndexMap<Want, u64> = IndexMap::new();
        for layer in &model.layers {
            for output in &graphs[layer.segment].outputs {
                if let Some(want) = part_of(output.role, &output.name) {
                    *totals.entry(want).or_default() += u64::from(micro_batches);
                }
            }
        }
        for (want, n) in totals {
            let item = self.timeline.item(n * ALIGN);
            self.parts.insert(want, (item, 0));
        }
    }

    fn part(&mut self, want: &Want) -> Bind {
        let key = match want {
            // All losses add up to one total.
            Want::Loss(_) => Want::Loss(String::new()),
            want => want.clone(),
        };
        let (item, n) = self.parts.get_mut(&key).expect("counted before");
        *n += 1;
        Bind::Item(*item, u64::from(*n - 1) * ALIGN)
    }
}

fn part_of(role: OutputRole, name: &str) -> Option<Want> {
    match role {
        OutputRole::Loss => Some(Want::Loss(String::new())),
        OutputRole::Metric => Some(Want::Metric(name.to_string())),
        _ => None,
    }
}
