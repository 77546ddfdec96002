//! The layers of a stage on one micro-batch, forward and backward, and what goes between stages.

use super::Message;
use super::bind::{SavedLayout, Want, accumulating, widen};
use super::early::EarlyParts;
use super::flow::{Flow, Names, output_names};
use super::phases::Scheduler;
use super::shared::{EarlyLayers, Pass, Shared};
use super::stages::{Chunk, Link, Stage, has_gradient};
use super::swap::Visit;
use super::timeline::{Bind, Item};
use crate::autodiff::Differentiated;
use crate::emit::dtype;
use crate::optimizer;
use crate::overlap;
use crate::shard::ShardedModel;
use forebay_dsl::model::Source;
use forebay_ir::{DType, Graph, InputRole, OutputRole};
use rustc_hash::FxHashSet;
use std::rc::Rc;

/// What a message between stages is about. Each chunk has channels of its own, so that messages of one never wait for those of another.
#[derive(Clone, Copy)]
pub(super) enum About {
    Activations,
    Gradients,
    Tied,
}

impl About {
    pub(super) fn channel(self, chunk: u32) -> u32 {
        match self {
            About::Tied => 0,
            About::Activations => 1 + 2 * chunk,
            About::Gradients => 2 + 2 * chunk,
        }
    }
}

/// A phase's model on a stage.
pub struct Cx<'a> {
    pub sharded: &'a ShardedModel,
    pub stage: &'a Stage,
    pub layout: &'a super::Layout,
    /// Names of carries and tensors, for each segment.
    pub names: &'a [Names],
    /// For each segment what tells its programs from those of its other forms.
    pub tags: &'a [String],
    /// `train`, `eval` or `generate`.
    pub phase: &'a str,
    /// For each segment the graph that runs forward, and the layout of what it saves.
    pub forward: &'a [&'a Graph],
    pub saved: &'a [SavedLayout],
    /// The types of masters and of what programs read.
    pub wide: DType,
    pub narrow: DType,
}

/// What the backward passes of a step have in common.
pub struct Training<'a> {
    pub flow: &'a Flow,
    pub segments: &'a [Differentiated],
    /// The parameters whose gradients have something in them.
    pub written: FxHashSet<usize>,
    /// For each segment the layout of what its two halves of a backward pass save.
    pub handed: &'a [SavedLayout],
    /// For each segment its backward pass as what can be made before the gradient comes and the rest.
    pub early: &'a [Option<Rc<EarlyParts>>],
    /// The layers that do so.
    pub early_layers: &'a EarlyLayers,
}

/// What of a backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// All of it.
    Whole,
    /// The gradients that earlier layers wait for.
    Input,
    /// The gradients of parameters, from what the other half left.
    Weights,
}

impl Half {
    fn graph(self, segment: &Differentiated) -> &Graph {
        match self {
            Half::Whole => &segment.backward,
            Half::Input => &segment.backward_input,
            Half::Weights => &segment.backward_weight,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Half::Whole => "backward",
            Half::Input => "backward_input",
            Half::Weights => "backward_weight",
        }
    }
}

impl Cx<'_> {
    /// Elements and type of a carry.
    fn carry(&self, source: Source) -> (u64, DType) {
        let segment = &self.sharded.model.segments[self.sharded.model.layers[source.layer].segment];
        let mut carries = segment.forward.outputs.iter().filter(|o| o.role == OutputRole::Carry);
        let ty = segment.forward.ty(carries.nth(source.output).expect("a carry of the layer").value);
        (segment.forward.numel(ty), ty.dtype)
    }
}

impl Scheduler<'_> {
    /// The forward pass of a micro-batch through the layers of a chunk. `before` is that through the chunk before, which may be where its inputs are.
    pub(super) fn forward_layers(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (micro_batch, chunk): (u32, u32),
        before: Option<&Pass>,
    ) -> Pass {
        let mut pass = Pass::default();
        let Chunk { layers, receives, sends, .. } = &cx.stage.chunks[chunk as usize];
        let channel = About::Activations.channel(chunk);
        for (peer, source) in each(receives) {
            if peer == cx.stage.number {
                let before = before.expect("the part before is on this stage");
                pass.carries.insert(source, before.carries[&source]);
                continue;
            }
            let (elements, of) = cx.carry(source);
            let item = shared.timeline.item(elements * of.bytes());
            pass.carries.insert(source, item);
            let at = (layers.start as u32, micro_batch);
            self.message(shared, (Bind::Item(item, 0), elements, of), Message::Receive, (peer, channel), at);
        }
        for l in layers.clone() {
            let next = (l + 1 < layers.end).then_some(l + 1);
            self.forward_layer(cx, shared, &mut pass, (l, micro_batch), next);
        }
        // The part that follows reads from the channel of its own chunk.
        let channel = sends.as_ref().map_or(0, |link| About::Activations.channel(link.chunk));
        for (peer, source) in each(sends).filter(|(peer, _)| *peer != cx.stage.number) {
            let (elements, of) = cx.carry(source);
            let (bind, at) = (Bind::Item(pass.carries[&source], 0), (layers.end as u32 - 1, micro_batch));
            self.message(shared, (bind, elements, of), Message::Send, (peer, channel), at);
        }
        pass
    }

    /// `next`: the layer behind it, if it is one of the chunk.
    fn forward_layer(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        pass: &mut Pass,
        (l, micro_batch): (usize, u32),
        next: Option<usize>,
    ) {
        let model = &cx.sharded.model;
        let layer = &model.layers[l];
        let (s, names, graph) = (layer.segment, &cx.names[layer.segment], cx.forward[layer.segment]);
        let adds = layer.stats.iter().any(|stat| shared.stats.contains_key(stat));
        let (segment, tag) = (&model.segments[s].name, &cx.tags[s]);
        let name = format!("{}.{segment}{tag}.forward{}", cx.phase, if adds { ".add" } else { "" });
        let program = self.programs.get(&name, &cx.saved[s], || {
            let stats: Vec<_> =
                output_names(graph, OutputRole::Stat).into_iter().map(|n| (OutputRole::Stat, n)).collect();
            if adds { accumulating(graph, &stats) } else { graph.clone() }
        });
        self.copy_in(cx, shared, Visit::Forward(l, micro_batch));
        self.gather_layer(cx, shared, (l, micro_batch), next);
        let saved = (cx.saved[s].bytes > 0).then(|| shared.timeline.item(cx.saved[s].bytes));
        pass.saved.extend(saved.map(|item| (l, item)));
        let swapped = (cx.saved[s].swapped > 0).then(|| shared.timeline.item(cx.saved[s].swapped));
        let slots = program.bind(shared, |want, bytes, shared| match want {
            Want::CarryIn(name) => Bind::Item(pass.carries[&layer.carries[position(&names.carry_in, name)]], 0),
            Want::CarryOut(name) => {
                let source = Source { layer: l, output: position(&names.carry_out, name) };
                Bind::Item(*pass.carries.entry(source).or_insert_with(|| shared.timeline.item(bytes)), 0)
            }
            Want::Saved => Bind::Item(saved.expect("a program with saved tensors has bytes for them"), 0),
            Want::Swapped => Bind::Item(swapped.expect("a program with swapped tensors has bytes for them"), 0),
            Want::Loss(_) | Want::Metric(_) => shared.part(cx.sharded, s, want),
            Want::Stat(name) => shared.stat(layer.stats[position(&names.stats, name)], bytes),
            Want::Output(name) => {
                let value = graph.output(OutputRole::Output, name).expect("the slot is one of its outputs");
                let ty = graph.ty(value).clone();
                let item = shared.timeline.permanent(bytes);
                shared.outputs.insert(name.clone(), (item, ty));
                let dims = graph.dims(&graph.ty(value).axes).iter().map(|d| d.1).collect();
                shared.output_dims.insert(name.clone(), dims);
                Bind::Item(item, 0)
            }
            want => common(cx, shared, want, l, micro_batch),
        });
        shared.begin_span((l, micro_batch), s);
        shared.timeline.call(&program, l as u32, micro_batch, slots);
        shared.left(Visit::Forward(l, micro_batch));
        shared.layer_ran();
        if let Some(item) = swapped {
            self.copy_out(cx, shared, (l, micro_batch), (item, saved));
        }
    }

    /// The backward for the weights of a micro-batch through the layers of a chunk: nobody waits for it.
    pub(super) fn backward_weights(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        pass: &mut Pass,
        training: &mut Training,
        (micro_batch, chunk): (u32, u32),
    ) {
        let layers = cx.stage.chunks[chunk as usize].layers.clone();
        for l in layers.clone().rev() {
            self.backward_layer(cx, shared, pass, training, (l, micro_batch, Half::Weights), layers.start);
            self.sum_done(cx, shared, &mut training.written, None);
        }
    }

    /// The backward pass of a micro-batch through the layers of a chunk, or the half of it that others wait for. What the part before waits for on
    /// this same stage is handed back.
    pub(super) fn backward_layers(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        pass: &mut Pass,
        training: &mut Training,
        (micro_batch, chunk, half): (u32, u32, Half),
    ) -> Vec<(Source, Item)> {
        let model = &cx.sharded.model;
        let Chunk { layers, receives, sends, .. } = &cx.stage.chunks[chunk as usize];
        let flows = |(_, source): &(u32, Source)| has_gradient(model, training.flow, *source);
        if half == Half::Whole {
            self.make_early(cx, shared, pass, training, (micro_batch, chunk));
        }
        let channel = About::Gradients.channel(chunk);
        for (peer, source) in each(sends).filter(flows).filter(|(peer, _)| *peer != cx.stage.number) {
            let (elements, of) = cx.carry(source);
            let item = shared.timeline.item(elements * of.bytes());
            pass.gradients.insert(source, item);
            let at = (layers.end as u32 - 1, micro_batch);
            self.message(shared, (Bind::Item(item, 0), elements, of), Message::Receive, (peer, channel), at);
        }
        for l in layers.clone().rev() {
            self.backward_layer(cx, shared, pass, training, (l, micro_batch, half), layers.start);
            if receives.is_none() {
                // Nobody waits for this stage.
                let later = l > layers.start && !shared.done.is_empty() && self.exchanges_first(cx, l, l - 1);
                self.sum_done(cx, shared, &mut training.written, later.then_some(l));
            }
        }
        // The part before reads from the channel of its own chunk.
        let channel = receives.as_ref().map_or(0, |link| About::Gradients.channel(link.chunk));
        let mut kept = vec![];
        for (peer, source) in each(receives).filter(flows) {
            let (elements, of) = cx.carry(source);
            let known = pass.gradients.get(&source).copied();
            let item = known.unwrap_or_else(|| self.zero_gradient(cx, shared, source, micro_batch));
            if peer == cx.stage.number {
                kept.push((source, item));
                continue;
            }
            let (bind, at) = (Bind::Item(item, 0), (layers.start as u32, micro_batch));
            self.message(shared, (bind, elements, of), Message::Send, (peer, channel), at);
        }
        kept
    }

    /// `first`: the first layer of the chunk, which comes last.
    fn backward_layer(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        pass: &mut Pass,
        training: &mut Training,
        (l, micro_batch, half): (usize, u32, Half),
        first: usize,
    ) {
        let model = &cx.sharded.model;
        let layer = &model.layers[l];
        let (s, names) = (layer.segment, &cx.names[layer.segment]);
        let early = training.early[s].as_ref().filter(|_| half == Half::Whole && pass.handed.contains_key(&l));
        let graph = early.map_or_else(|| half.graph(&training.segments[s]), |early| &early.graphs.rest);
        if training.segments[s].backward.outputs.is_empty() {
            return;
        }
        if half != Half::Weights {
            self.missing_gradients(cx, shared, pass, training, (l, micro_batch));
        }
        if graph.outputs.is_empty() {
            return;
        }
        let adds = added(cx, pass, training, graph, l);
        let reads_params = |l: usize| {
            let graph = half.graph(&training.segments[model.layers[l].segment]);
            !graph.outputs.is_empty() && graph.inputs.iter().any(|i| i.role == InputRole::Param)
        };
        if reads_params(l) {
            let next = l.checked_sub(1).filter(|&next| next >= first && reads_params(next));
            self.gather_layer(cx, shared, (l, micro_batch), next);
        }
        if half != Half::Input {
            self.begin_gradients(cx, shared, (l, micro_batch));
        }
        self.copy_in(cx, shared, Visit::Backward(l, micro_batch, half));
        let wide = self.wide;
        let single = single(cx, graph, l);
        let part = if early.is_some() { "backward_rest" } else { half.name() };
        let part = format!("{}{}.{part}", model.segments[s].name, cx.tags[s]);
        let name = backward_name(&part, graph, (&single, cx.narrow), &adds);
        let layout = match (early, half) {
            (Some(early), _) => &early.layout,
            (None, Half::Whole) => &cx.saved[s],
            (None, Half::Input | Half::Weights) => &training.handed[s],
        };
        let program = self.programs.get(&name, layout, || {
            let mut graph = graph.clone();
            widen(&mut graph, wide, &single);
            accumulating(&graph, &adds)
        });
        let slots = program.bind(shared, |want, bytes, shared| match want {
            Want::CarryIn(name) => Bind::Item(pass.carries[&layer.carries[position(&names.carry_in, name)]], 0),
            Want::Saved => Bind::Item(pass.saved[&l], 0),
            Want::Swapped => Bind::Item(shared.swaps.here(l, micro_batch), 0),
            Want::Handed => Bind::Item(*pass.handed.entry(l).or_insert_with(|| shared.timeline.item(bytes)), 0),
            Want::GradIn(name) => {
                Bind::Item(pass.gradients[&Source { layer: l, output: position(&names.carry_out, name) }], 0)
            }
            Want::CarryGrad(name) => {
                let source = layer.carries[position(&names.carry_in, name)];
                Bind::Item(*pass.gradients.entry(source).or_insert_with(|| shared.timeline.item(bytes)), 0)
            }
            Want::ParamGrad(name) => cx.gradient(shared, layer.params[position(&names.params, name)]),
            want => common(cx, shared, want, l, micro_batch),
        });
        shared.end_span((l, micro_batch));
        shared.timeline.call(&program, l as u32, micro_batch, slots);
        shared.left(Visit::Backward(l, micro_batch, half));
        shared.layer_ran();
        self.add_sums(cx, shared, (l as u32, micro_batch));
        if half != Half::Input {
            let next = (half == Half::Whole && l > first).then(|| l - 1);
            self.end_gradients(cx, shared, (l, micro_batch), next);
            // (Not where no parameter has a gradient: a pass in halves has nothing to do there, and stages need not have the same halves.)
            let has_gradients = training.segments[s].backward.outputs.iter().any(|o| o.name.starts_with("param."));
            let times = shared.backward.entry(l).or_default();
            *times += 1;
            if has_gradients
                && *times == cx.stage.micros(l, shared.micro_batches).len() as u32
                && self.programs.passes.has(overlap::Pass::Units)
            {
                shared.done.push(l);
            }
        }
    }

    /// Zeros for the gradients of outputs that no later layer of this model reads, although other layers of the segment are read.
    fn missing_gradients(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        pass: &mut Pass,
        training: &Training,
        (l, micro_batch): (usize, u32),
    ) {
        let s = cx.sharded.model.layers[l].segment;
        for (output, _) in training.flow.outputs[s].iter().enumerate().filter(|(_, flows)| **flows) {
            let source = Source { layer: l, output };
            pass.gradients.entry(source).or_insert_with(|| self.zero_gradient(cx, shared, source, micro_batch));
        }
    }

    /// A gradient that nothing contributes to.
    fn zero_gradient(&mut self, cx: &Cx, shared: &mut Shared, source: Source, micro_batch: u32) -> Item {
        let (elements, of) = cx.carry(source);
        let item = shared.timeline.item(elements * of.bytes());
        self.zero(shared, elements, of, Bind::Item(item, 0), (source.layer as u32, micro_batch));
        item
    }

    /// Zeros somewhere.
    pub(super) fn zero(
        &mut self,
        shared: &mut Shared,
        elements: u64,
        of: DType,
        at: Bind,
        (layer, micro_batch): (u32, u32),
    ) {
        let name = format!("zeros.{elements}.{of}");
        let program = self.programs.get(&name, &SavedLayout::default(), || optimizer::zeros(elements, of));
        shared.timeline.call(&program, layer, micro_batch, vec![at]);
    }

    /// A value goes to another stage, or comes from one.
    pub(super) fn message(
        &mut self,
        shared: &mut Shared,
        (bind, elements, of): (Bind, u64, DType),
        way: Message,
        (peer, channel): (u32, u32),
        (layer, micro_batch): (u32, u32),
    ) {
        // The pipeline is the outermost dimension of the mesh.
        let program = self.programs.message(way, elements, dtype(of), 0, peer, channel);
        shared.timeline.call(&program, layer, micro_batch, vec![bind]);
    }
}

/// Which gradients of a layer are added to what is there: of shared parameters, of values that several layers read, of all micro-batches but the first.
fn added(cx: &Cx, pass: &Pass, training: &mut Training, graph: &Graph, l: usize) -> Vec<(OutputRole, String)> {
    let layer = &cx.sharded.model.layers[l];
    let names = &cx.names[layer.segment];
    let mut adds = vec![];
    for name in output_names(graph, OutputRole::Grad) {
        let there = match name.split_once('.') {
            Some(("param", param)) => {
                let param = layer.params[position(&names.params, param)];
                !training.written.insert(param) || cx.is_passing(param)
            }
            Some(("carry", carry)) => pass.gradients.contains_key(&layer.carries[position(&names.carry_in, carry)]),
            _ => unreachable!("gradients are of carries and parameters"),
        };
        if there {
            adds.push((OutputRole::Grad, name));
        }
    }
    adds
}

/// Which gradients of a layer's parameters are no sums, and are kept in the type in which they are computed.
fn single(cx: &Cx, graph: &Graph, l: usize) -> Vec<String> {
    let layer = &cx.sharded.model.layers[l];
    let names = &cx.names[layer.segment];
    let of_param = |name: &String| match name.split_once('.') {
        Some(("param", param)) => cx.gradient_type(layer.params[position(&names.params, param)]) != cx.wide,
        _ => false,
    };
    output_names(graph, OutputRole::Grad).into_iter().filter(of_param).collect()
}

/// Each value that goes between two parts, with the other stage.
fn each(link: &Option<Link>) -> impl Iterator<Item = (u32, Source)> + '_ {
    link.iter().flat_map(|link| link.carries.iter().map(|source| (link.stage, *source)))
}

/// Slots that forward and backward programs have alike.
pub(super) fn common(cx: &Cx, shared: &mut Shared, want: &Want, l: usize, micro_batch: u32) -> Bind {
    let layer = &cx.sharded.model.layers[l];
    let names = &cx.names[layer.segment];
    match want {
        Want::Data(name) => shared.data(name, micro_batch),
        Want::Param(name) => cx.param(shared, layer.params[position(&names.params, name)]),
        Want::State(name) => Bind::Fixed(cx.layout.states[&layer.states[position(&names.states, name)]]),
        Want::Count(name) => shared.count(name),
        want => unreachable!("segments have no {want:?}"),
    }
}

pub(super) fn position(names: &[String], name: &str) -> usize {
    names.iter().position(|n| n == name).expect("programs ask for what their segment has")
}

/// `train.layers.backward`; `.bf16` when all gradients of parameters are in that type, `.add` when all of them are added, else with the names of those that are.
fn backward_name(
    part: &str,
    graph: &Graph,
    (single, narrow): (&[String], DType),
    adds: &[(OutputRole, String)],
) -> String {
    let params = |names: &mut dyn Iterator<Item = &str>| names.filter(|n| n.starts_with("param.")).count();
    let all = params(&mut graph.outputs.iter().map(|o| o.name.as_str()));
    let of = match single.len() {
        0 => String::new(),
        n if n == all => format!(".{narrow}"),
        _ => format!(".{narrow}[{}]", single.join(",")),
    };
    let stem = format!("train.{part}{of}");
    let added = params(&mut adds.iter().map(|(_, n)| n.as_str()));
    match (adds.len(), added) {
        (0, _) => stem,
        (n, p) if n == p && p == all => format!("{stem}.add"),
        _ => format!("{stem}.add[{}]", adds.iter().map(|(_, n)| n.as_str()).collect::<Vec<_>>().join(",")),
    }
}
