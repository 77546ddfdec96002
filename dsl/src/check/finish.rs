//! The last step: which values flow between layers, and the graphs in their final form.
//!
//! What a layer must compute follows backwards from losses, statistics and outputs through the variables that later layers use; the
//! rest is dropped. A segment has the outputs that any of its layers needs. Then each graph is written anew: inputs first, in the order of
//! their roles, names from the source before those made up.

use super::Checker;
use super::build::{Builder, NodeName};
use super::layers::SlotSource;
use super::value::{Declared, Outside};
use crate::diagnostics::{Diagnostic, quote};
use crate::model::{CheckedModel, Layer, Segment, Source, Tensor};
use forebay_ir::{Axis, AxisId, Extent, Graph, OutputRole, Type, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;

/// A finished graph and what its inputs stand for, in order.
struct Finished {
    graph: Graph,
    inputs: Vec<Outside>,
}

impl Finished {
    fn of_role<'f>(&'f self, wanted: impl Fn(&Outside) -> bool + 'f) -> impl Iterator<Item = Outside> + 'f {
        self.inputs.iter().copied().filter(move |o| wanted(o))
    }
}

/// Axes of tensors that live longer than a step, as the graph that first used them knows them.
type AxesOf = FxHashMap<Outside, Vec<(String, Option<String>, u64)>>;

impl<'a> Checker<'a> {
    /// The checked model, once all statements were gone through without errors, and warnings.
    pub(super) fn finish(mut self) -> (CheckedModel, Vec<Diagnostic>) {
        let needed = self.needed_exports();
        let alive: Vec<bool> = (0..self.segments.len()).map(|s| self.is_alive(s, &needed[s])).collect();
        let names = self.segment_names(&alive);
        let mut segments = Vec::new();
        let mut finished: FxHashMap<usize, (usize, Finished, Option<Finished>)> = FxHashMap::default();
        for at in (0..self.segments.len()).filter(|&s| alive[s]) {
            let forward = self.finish_forward(at, &needed[at], &names[at]);
            let update = self.finish_update(at, &names[at]);
            let graphs = (forward.graph.clone(), update.as_ref().map(|u| u.graph.clone()));
            finished.insert(at, (segments.len(), forward, update));
            segments.push(Segment { name: names[at].clone(), forward: graphs.0, update: graphs.1 });
        }
        let mut axes = AxesOf::default();
        let layers = self.finish_layers(&needed, &finished, &mut axes);
        let mut model = CheckedModel {
            name: self.model.name.name.clone(),
            constants: std::mem::take(&mut self.constants),
            batch: self.batch,
            seq: self.seq,
            inputs: self.inputs.iter().map(|i| i.name.name.clone()).collect(),
            params: vec![],
            states: vec![],
            stats: vec![],
            segments,
            layers,
            losses: self.losses.iter().map(|k| k.loss.clone()).collect(),
            counts: self.finish_counts(),
        };
        self.number_tensors(&mut model, &axes);
        (model, std::mem::take(&mut self.warnings))
    }

    /// For each segment the exports that some later layer needs.
    fn needed_exports(&self) -> Vec<BTreeSet<usize>> {
        let mut needed = vec![BTreeSet::new(); self.segments.len()];
        let mut layers_of = vec![Vec::new(); self.segments.len()];
        for (i, layer) in self.layers.iter().enumerate() {
            layers_of[layer.segment].push(i);
        }
        let mut queue: Vec<usize> = (0..self.segments.len()).rev().collect();
        while let Some(at) = queue.pop() {
            let live = self.live_nodes(at, &needed[at]);
            let segment = &self.segments[at];
            let slots = segment.forward.imports.iter().filter_map(|(outside, input)| match outside {
                Outside::Carry(slot) if live[input.index()] => Some(*slot),
                _ => None,
            });
            for slot in slots.collect::<Vec<_>>() {
                for &layer in &layers_of[at] {
                    let Some(source) = self.layers[layer].source_of(slot) else { continue };
                    let from = self.layers[source.layer].segment;
                    if needed[from].insert(source.export) && !queue.contains(&from) {
                        queue.push(from);
                    }
                }
            }
        }
        needed
    }

    /// Which nodes of a segment's forward graph are needed.
    fn live_nodes(&self, segment: usize, exports: &BTreeSet<usize>) -> Vec<bool> {
        let segment = &self.segments[segment];
        let forward = &segment.forward;
        let losses = forward.losses.values().flat_map(|l| [l.loss, l.metric]);
        let others = forward.stats.iter().map(|(_, v)| *v).chain(forward.outputs.values().copied());
        let exported = exports.iter().map(|&e| segment.exports[e].value);
        live_from(&forward.graph, losses.chain(others).chain(exported))
    }

    fn is_alive(&self, segment: usize, exports: &BTreeSet<usize>) -> bool {
        let raw = &self.segments[segment];
        let forward = &raw.forward;
        let computes = !forward.losses.is_empty() || !forward.stats.is_empty() || !forward.outputs.is_empty();
        computes || !exports.is_empty() || !raw.update.next_states.is_empty()
    }

    /// `prologue`, `layers`, `layers_2`, `middle`, `epilogue`.
    fn segment_names(&self, alive: &[bool]) -> Vec<String> {
        let repeats: Vec<usize> = (0..alive.len()).filter(|&s| alive[s] && self.segments[s].repeat.is_some()).collect();
        let mut taken = Taken::default();
        (0..alive.len())
            .map(|at| {
                let stem = match &self.segments[at].repeat {
                    Some(component) => component.clone(),
                    None if repeats.iter().all(|&r| r > at) => "prologue".into(),
                    None if repeats.iter().all(|&r| r < at) => "epilogue".into(),
                    None => "middle".into(),
                };
                if alive[at] { taken.free(&stem) } else { stem }
            })
            .collect()
    }

    fn finish_forward(&self, at: usize, exports: &BTreeSet<usize>, name: &str) -> Finished {
        let segment = &self.segments[at];
        let forward = &segment.forward;
        let mut outputs: Vec<(OutputRole, String, ValueId)> = Vec::new();
        for &export in exports {
            let export = &segment.exports[export];
            outputs.push((OutputRole::Carry, export.name.clone(), export.value));
        }
        outputs.extend(forward.losses.iter().map(|(name, l)| (OutputRole::Loss, name.clone(), l.loss)));
        outputs.extend(forward.losses.iter().map(|(name, l)| (OutputRole::Metric, name.clone(), l.metric)));
        outputs.extend(forward.stats.iter().map(|(i, v)| (OutputRole::Stat, self.stats[*i].path.clone(), *v)));
        outputs.extend(forward.outputs.iter().map(|(name, v)| (OutputRole::Output, name.clone(), *v)));
        rebuild(forward, &format!("{name}.forward"), outputs)
    }

    fn finish_update(&self, at: usize, name: &str) -> Option<Finished> {
        let update = &self.segments[at].update;
        if update.next_states.is_empty() {
            return None;
        }
        let outputs = update.next_states.iter();
        let outputs = outputs.map(|(i, v)| (OutputRole::State, self.states[*i].path.clone(), *v)).collect();
        Some(rebuild(update, &format!("{name}.update"), outputs))
    }

    fn finish_counts(&self) -> Option<Graph> {
        let counts = &self.counts.builder;
        if counts.outputs.is_empty() {
            return None;
        }
        let outputs = counts.outputs.iter().map(|(name, v)| (OutputRole::Count, name.clone(), *v)).collect();
        Some(rebuild(counts, "counts", outputs).graph)
    }

    /// The layers, with tensors still numbered as they were declared.
    fn finish_layers(
        &self,
        needed: &[BTreeSet<usize>],
        finished: &FxHashMap<usize, (usize, Finished, Option<Finished>)>,
        axes: &mut AxesOf,
    ) -> Vec<Layer> {
        let mut numbers: Vec<Option<usize>> = Vec::new();
        let mut next = 0;
        for layer in &self.layers {
            let alive = finished.contains_key(&layer.segment);
            numbers.push(alive.then_some(next));
            next += usize::from(alive);
        }
        let resolve = |source: SlotSource| {
            let from = self.layers[source.layer].segment;
            let output =
                needed[from].iter().position(|&e| e == source.export).expect("what a live layer imports is needed");
            Source { layer: numbers[source.layer].expect("a layer with needed exports is alive"), output }
        };
        let mut layers = Vec::new();
        for raw in &self.layers {
            let Some((number, forward, update)) = finished.get(&raw.segment) else { continue };
            let segment = &self.segments[raw.segment];
            let shift = |outside: Outside| raw.shifted(outside, segment);
            let stat_numbers: Vec<Outside> =
                segment.forward.stats.iter().map(|(i, _)| shift(Outside::Stat(*i))).collect();
            let next_states: Vec<Outside> =
                segment.update.next_states.keys().map(|i| shift(Outside::State(*i))).collect();
            note_axes(forward, &shift, axes);
            note_outputs(&forward.graph, OutputRole::Stat, &stat_numbers, axes);
            if let Some(update) = update {
                note_axes(update, &shift, axes);
                note_outputs(&update.graph, OutputRole::State, &next_states, axes);
            }
            let from = |graph: Option<&Finished>, wanted: fn(&Outside) -> bool| -> Vec<usize> {
                graph.into_iter().flat_map(|g| g.of_role(wanted)).map(|o| number_of(shift(o))).collect()
            };
            let carries = forward.inputs.iter().filter_map(|outside| match outside {
                Outside::Carry(slot) => {
                    Some(resolve(raw.source_of(*slot).expect("a layer knows what its segment imports")))
                }
                _ => None,
            });
            layers.push(Layer {
                segment: *number,
                name: raw.name.clone(),
                params: from(Some(forward), |o| matches!(o, Outside::Param(_))),
                states: from(Some(forward), |o| matches!(o, Outside::State(_))),
                stats: stat_numbers.into_iter().map(number_of).collect(),
                carries: carries.collect(),
                update_states: from(update.as_ref(), |o| matches!(o, Outside::State(_))),
                update_stats: from(update.as_ref(), |o| matches!(o, Outside::Stat(_))),
                update_outputs: next_states.into_iter().map(number_of).collect(),
            });
        }
        layers
    }

    /// Leaves tensors out that nothing uses, and numbers the others.
    fn number_tensors(&mut self, model: &mut CheckedModel, axes: &AxesOf) {
        let (params, states, stats) =
            (std::mem::take(&mut self.params), std::mem::take(&mut self.states), std::mem::take(&mut self.stats));
        let mut keep = |table: &[Declared], outside: fn(usize) -> Outside, what: &str| {
            let mut kept = Vec::new();
            let mut numbers = Vec::new();
            for (i, declared) in table.iter().enumerate() {
                numbers.push(kept.len());
                match axes.get(&outside(i)) {
                    Some(axes) => kept.push(declared.tensor(axes.clone())),
                    None => self.warn_unused(declared, what),
                }
            }
            (kept, numbers)
        };
        let (params, param_numbers) = keep(&params, Outside::Param, "parameter");
        let (states, state_numbers) = keep(&states, Outside::State, "state");
        let (stats, stat_numbers) = keep(&stats, Outside::Stat, "statistic");
        let renumber = |list: &mut Vec<usize>, numbers: &[usize]| list.iter_mut().for_each(|i| *i = numbers[*i]);
        for layer in &mut model.layers {
            renumber(&mut layer.params, &param_numbers);
            renumber(&mut layer.states, &state_numbers);
            renumber(&mut layer.stats, &stat_numbers);
            renumber(&mut layer.update_states, &state_numbers);
            renumber(&mut layer.update_stats, &stat_numbers);
            renumber(&mut layer.update_outputs, &state_numbers);
        }
        (model.params, model.states, model.stats) = (params, states, stats);
    }

    fn warn_unused(&mut self, declared: &Declared, what: &str) {
        if self.warned.insert((declared.source, declared.span)) {
            let message = format!("the {what} {} is never used", quote(&declared.name()));
            let warning = Diagnostic::warning("W0601", declared.source, declared.span, message);
            self.warnings.push(warning.label("it is left out of the model"));
        }
    }
}

impl Declared {
    fn tensor(&self, axes: Vec<(String, Option<String>, u64)>) -> Tensor {
        let number = |c: &super::constant::Constant| super::constant::number(c.value()).unwrap_or(0.0);
        let args: Vec<f64> = self.init.args.iter().map(number).collect();
        Tensor { name: self.name(), axes, init: self.init.kind.with(&args) }
    }
}

fn number_of(outside: Outside) -> usize {
    match outside {
        Outside::Data(i)
        | Outside::Param(i)
        | Outside::State(i)
        | Outside::Stat(i)
        | Outside::Carry(i)
        | Outside::Count(i) => i,
        Outside::Rng => 0,
    }
}

/// Notes the axes of inputs that stand for tensors of the model.
fn note_axes(finished: &Finished, shift: &dyn Fn(Outside) -> Outside, axes: &mut AxesOf) {
    for (input, outside) in finished.graph.inputs.iter().zip(&finished.inputs) {
        axes.entry(shift(*outside)).or_insert_with(|| describe(&finished.graph, input.value));
    }
}

fn note_outputs(graph: &Graph, role: OutputRole, tensors: &[Outside], axes: &mut AxesOf) {
    for (output, outside) in graph.outputs.iter().filter(|o| o.role == role).zip(tensors) {
        axes.entry(*outside).or_insert_with(|| describe(graph, output.value));
    }
}

fn describe(graph: &Graph, value: ValueId) -> Vec<(String, Option<String>, u64)> {
    let axes = graph.ty(value).axes.iter();
    axes.map(|&a| (graph.axis(a).name.clone(), graph.axis(a).label.clone(), graph.size(a))).collect()
}

/// Which nodes the roots depend on.
fn live_from(graph: &Graph, roots: impl Iterator<Item = ValueId>) -> Vec<bool> {
    let mut live = vec![false; graph.nodes.len()];
    roots.for_each(|root| live[root.index()] = true);
    for value in graph.values().rev() {
        if live[value.index()] {
            graph.reads(value).into_iter().for_each(|read| live[read.index()] = true);
        }
    }
    live
}

/// Names in use.
#[derive(Default)]
pub(super) struct Taken {
    names: FxHashSet<String>,
    /// For each wished name that was taken the number to try next: many equal wishes cost no more than different ones.
    next: FxHashMap<String, u32>,
}

impl Taken {
    /// The name, or with the first free number: `name`, `name_2`, ….
    pub(super) fn free(&mut self, wished: &str) -> String {
        let mut name = wished.to_string();
        if self.names.contains(&name) {
            let number = self.next.entry(wished.to_string()).or_insert(2);
            while self.names.contains(&name) {
                name = format!("{wished}_{number}");
                *number += 1;
            }
        }
        self.names.insert(name.clone());
        name
    }
}

/// The rank of an input among inputs, and in the choice of names.
fn ranks(outside: Outside) -> (u8, u8) {
    match outside {
        Outside::Data(_) => (0, 0),
        Outside::Carry(_) => (1, 3),
        Outside::Param(_) => (2, 4),
        Outside::State(_) => (3, 5),
        Outside::Stat(_) => (4, 6),
        Outside::Count(_) => (5, 1),
        Outside::Rng => (6, 2),
    }
}

/// The graph with live nodes only.
fn rebuild(builder: &Builder, name: &str, outputs: Vec<(OutputRole, String, ValueId)>) -> Finished {
    let old = &builder.graph;
    let live = live_from(old, outputs.iter().map(|(_, _, v)| *v));
    let mut inputs: Vec<(Outside, ValueId)> =
        builder.imports.iter().map(|(outside, input)| (*outside, *input)).collect();
    inputs.retain(|(_, value)| live[value.index()]);
    inputs.sort_by_key(|(outside, _)| (ranks(*outside).0, *outside));
    let names = node_names(builder, &live, &inputs);
    let mut target = Target {
        old,
        graph: Graph::new(name),
        axes: vec![None; old.axes.len()],
        axis_names: Taken::default(),
        moved: vec![None; old.nodes.len()],
    };
    for &(outside, value) in &inputs {
        let ty = target.ty(&old.node(value).ty);
        let new = target.graph.add_input(&names[value.index()], ty, outside.role());
        target.moved[value.index()] = Some(new);
    }
    for value in old.values().filter(|v| live[v.index()]) {
        if target.moved[value.index()].is_some() {
            continue;
        }
        let node = old.node(value);
        let op = node.op.map_axes(|a| target.axis(a));
        let ty = target.ty(&node.ty);
        let operands = node.operands.iter().map(|o| target.moved[o.index()].expect("operands come first")).collect();
        target.moved[value.index()] = Some(target.graph.push(op, operands, ty, &names[value.index()]));
    }
    for &(ragged, value) in &old.offsets {
        if let (Some(axis), Some(value)) = (target.axes[ragged.0 as usize], target.moved[value.index()]) {
            target.graph.offsets.push((axis, value));
        }
    }
    for (role, name, value) in outputs {
        let value = target.moved[value.index()].expect("outputs are live");
        target.graph.add_output(name, value, role);
    }
    Finished { graph: target.graph, inputs: inputs.into_iter().map(|(outside, _)| outside).collect() }
}

/// Names for the live nodes: inputs first, then names from the source, then the others.
fn node_names(builder: &Builder, live: &[bool], inputs: &[(Outside, ValueId)]) -> Vec<String> {
    let mut names = vec![String::new(); live.len()];
    let mut taken = Taken::default();
    let mut by_rank: Vec<&(Outside, ValueId)> = inputs.iter().collect();
    by_rank.sort_by_key(|(outside, _)| (ranks(*outside).1, *outside));
    let mut order: Vec<usize> = by_rank.iter().map(|(_, value)| value.index()).collect();
    let is_input: FxHashSet<usize> = order.iter().copied().collect();
    let others = |from_source: bool| {
        let named = move |(i, n): &(usize, &NodeName)| n.from_source == from_source && live[*i];
        builder.names.iter().enumerate().filter(named).map(|(i, _)| i).collect::<Vec<_>>()
    };
    order.extend(others(true).into_iter().filter(|i| !is_input.contains(i)));
    order.extend(others(false));
    for at in order {
        names[at] = taken.free(&builder.names[at].text);
    }
    names
}

/// A graph that is being written anew.
struct Target<'g> {
    old: &'g Graph,
    graph: Graph,
    axes: Vec<Option<AxisId>>,
    axis_names: Taken,
    moved: Vec<Option<ValueId>>,
}

impl Target<'_> {
    fn axis(&mut self, axis: AxisId) -> AxisId {
        if let Some(new) = self.axes[axis.0 as usize] {
            return new;
        }
        let Axis { name, extent, label } = self.old.axis(axis).clone();
        let extent = match extent {
            Extent::Fixed(n) => Extent::Fixed(n),
            Extent::Ragged { parent, bound, even } => Extent::Ragged { parent: self.axis(parent), bound, even },
        };
        let new = self.graph.push_axis(Axis { name: self.axis_names.free(&name), extent, label });
        self.axes[axis.0 as usize] = Some(new);
        new
    }

    fn ty(&mut self, ty: &Type) -> Type {
        let axes: Vec<AxisId> = ty.axes.iter().map(|&a| self.axis(a)).collect();
        Type::new(ty.dtype, axes)
    }
}
