//! Units of parameters over links: gathered for the layers that read them, their gradients summed.
//!
//! ```text
//! compute    B 2 │ B 1     │ B 0     │             links    gather 2 │ gather 1 │ sum 2 · gather 0 │ sum 1 │ sum 0
//! vector         │ + sum 2 │ + sum 1 │ + sum 0
//! ```
//!
//! With the overlap pass `units` a layer's parameters are on their way while the layer before it runs, in other memory, and its gradients while the one behind it in the
//! backward pass runs. A stream does its work in order, and a backward pass begins with the exchange of experts' rows: over the same links a sum comes behind those of that layer,
//! beside its attention, and its gradients stay so much longer. The reduced gradients are accumulated only after that layer: streams do their work in order, so that an addition that waits for links
//! would hold back all work of its unit. With `zero=1` gradients are summed once a step: those of a layer behind its last backward pass (and the message that others
//! wait for), while other layers still run, instead of all of them at the end.

use super::Programs;
use super::SavedLayout;
use super::layers::Cx;
use super::phases::Scheduler;
use super::shared::Shared;
use super::tensors::{Group, Home};
use super::timeline::{Bind, Item};
use crate::optimizer::{self, Keep};
use crate::overlap::Pass;
use forebay_ir::{DType, Op};
use forebay_plan::StreamKind;
use rustc_hash::FxHashSet;
use std::ops::Range;

/// A unit: its group and its number there.
pub type UnitId = (usize, usize);

/// Units that follow on each other, and are summed together.
pub(super) fn runs(units: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = vec![];
    for unit in units {
        match runs.last_mut().filter(|run| run.end == unit) {
            Some(run) => run.end += 1,
            None => runs.push(unit..unit + 1),
        }
    }
    runs
}

impl Cx<'_> {
    /// Where programs read a parameter: where its copy is kept, or what was gathered last.
    pub(super) fn param(&self, shared: &Shared, param: usize) -> Bind {
        let Home { group, unit, element } = self.layout.params[&param];
        let bytes = element * self.narrow.bytes();
        match self.layout.groups[group].units[unit].copies {
            Some(copies) => Bind::Fixed(copies + bytes),
            None => Bind::Item(shared.gathered[&(group, unit)], bytes),
        }
    }

    /// This rank's range of the masters of a unit.
    pub(super) fn masters(&self, (g, u): UnitId) -> Bind {
        let group = &self.layout.groups[g];
        Bind::Fixed(group.params + group.units[u].shard_start * self.wide.bytes())
    }

    /// Where a parameter's gradient is summed up over layers and micro-batches, or within its layer.
    pub(super) fn gradient(&self, shared: &Shared, param: usize) -> Bind {
        let Home { group, unit, element } = self.layout.params[&param];
        let bytes = element * self.gradient_type(param).bytes();
        match self.layout.groups[group].units[unit].gradients {
            Some(gradients) => Bind::Fixed(gradients + bytes),
            None => Bind::Item(shared.layer_gradients[&(group, unit)], bytes),
        }
    }

    /// The type in which a parameter's gradient is kept.
    pub(super) fn gradient_type(&self, param: usize) -> DType {
        self.layout.groups[self.layout.params[&param].group].gradient
    }

    /// Is the gradient there only until its layer's sum has been made?
    pub(super) fn is_passing(&self, param: usize) -> bool {
        let Home { group, unit, .. } = self.layout.params[&param];
        self.layout.groups[group].units[unit].gradients.is_none()
    }

    /// The units of a layer.
    fn units_of(&self, l: usize) -> Vec<UnitId> {
        let groups = self.layout.groups.iter().enumerate();
        let units = groups.flat_map(|(g, group)| group.units.iter().enumerate().map(move |(u, unit)| ((g, u), unit)));
        units.filter(|(_, unit)| unit.layer == Some(l)).map(|(id, _)| id).collect()
    }

    /// Are parameters of the layer gathered each time it runs?
    pub(super) fn is_gathered(&self, l: usize) -> bool {
        self.units_of(l).iter().any(|&(g, u)| self.layout.groups[g].units[u].copies.is_none())
    }

    /// Those whose gradients are there only until they are summed.
    fn passing_units_of(&self, l: usize) -> Vec<UnitId> {
        let mut units = self.units_of(l);
        units.retain(|(g, u)| self.layout.groups[*g].units[*u].gradients.is_none());
        units
    }
}

impl Shared {
    /// Are gradients of a layer still being summed over the ranks that share them?
    fn is_summing(&self, cx: &Cx, l: usize) -> bool {
        let of_layer = |&((g, u), _): &(UnitId, Item)| cx.layout.groups[g].units[u].layer == Some(l);
        self.ended.is_some_and(|(ended, _)| ended == l) || self.sums.iter().any(of_layer)
    }

    /// A layer has run: what was on its way meanwhile need not wait any longer.
    pub(super) fn layer_ran(&mut self) {
        for item in std::mem::take(&mut self.beside) {
            self.timeline.keep(item);
        }
    }
}

impl Scheduler<'_> {
    /// Gathers the parameters of a layer that are kept in ranges only, unless that was done while the layer before ran; and those of the layer that comes `next`.
    pub(super) fn gather_layer(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (l, micro_batch): (usize, u32),
        next: Option<usize>,
    ) {
        if shared.ahead.take() != Some(l) {
            self.gather_units(cx, shared, (l, micro_batch));
        }
        if let Some(next) = next.filter(|_| self.programs.passes.has(Pass::Units)) {
            let from = shared.timeline.len();
            self.gather_units(cx, shared, (next, micro_batch));
            // What is on its way must not be in the way of the layer that runs meanwhile.
            shared.beside.extend(shared.timeline.frames(from));
            shared.ahead = Some(next);
        }
    }

    fn gather_units(&mut self, cx: &Cx, shared: &mut Shared, (l, micro_batch): (usize, u32)) {
        for (g, u) in cx.units_of(l) {
            let unit = &cx.layout.groups[g].units[u];
            if unit.copies.is_none() {
                let item = shared.timeline.item(unit.elements * self.narrow.bytes());
                shared.gathered.insert((g, u), item);
                let masters = cx.masters((g, u));
                self.gather(cx, shared, (g, u), (masters, self.wide), Bind::Item(item, 0), (l as u32, micro_batch));
            }
        }
    }

    /// Gathers what programs read from the ranks' ranges of it, in this type.
    pub(super) fn gather(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (g, u): UnitId,
        (from, of): (Bind, DType),
        to: Bind,
        at: (u32, u32),
    ) {
        let (mesh, narrow) = (&cx.sharded.mesh, self.narrow);
        let group = &cx.layout.groups[g];
        let unit = &group.units[u];
        let name = format!("optimizer.gather.{}.{}", unit.elements, mesh.named(&group.shared, "."));
        let program = self.programs.get(&name, &SavedLayout::default(), || {
            optimizer::gathered(unit.elements, &group.shared, &mesh.dims, of, narrow)
        });
        let slots = program.bind(shared, |want, _, _| match want {
            super::bind::Want::CarryIn(_) => from,
            _ => to,
        });
        shared.timeline.call(&program, at.0, at.1, slots);
    }

    /// Room for the gradients of a layer, zeros: what no loss depends on, and the padding, count as well.
    pub(super) fn begin_gradients(&mut self, cx: &Cx, shared: &mut Shared, (l, micro_batch): (usize, u32)) {
        for (g, u) in cx.passing_units_of(l) {
            let elements = cx.layout.groups[g].units[u].elements;
            let item = shared.timeline.item(elements * self.wide.bytes());
            shared.layer_gradients.insert((g, u), item);
            self.zero(shared, elements, self.wide, Bind::Item(item, 0), (l as u32, micro_batch));
        }
    }

    /// A layer has gone backward: sums its gradients over the ranks, or leaves that until the `next` layer has run.
    pub(super) fn end_gradients(&mut self, cx: &Cx, shared: &mut Shared, at: (usize, u32), next: Option<usize>) {
        if let Some(before) = shared.ended.take() {
            self.sum_layer(cx, shared, before);
        }
        match next.is_some_and(|next| self.exchanges_first(cx, at.0, next)) {
            true => shared.ended = Some(at),
            false => self.sum_layer(cx, shared, at),
        }
    }

    /// Does the layer that runs next exchange anything over the links that the sums of a layer's gradients take? Sums in front of it would hold it up.
    pub(super) fn exchanges_first(&self, cx: &Cx, l: usize, next: usize) -> bool {
        let Programs { lanes, passes, .. } = &self.programs;
        let groups = cx.units_of(l).into_iter().map(|(g, _)| &cx.layout.groups[g]);
        let sums: Vec<StreamKind> = groups.flat_map(Group::sums_over).map(|dims| lanes.of_group(dims)).collect();
        let graph = &cx.sharded.model.segments[cx.sharded.model.layers[next].segment].forward;
        let meets = |value| match &graph.node(value).op {
            Op::Comm(comm) => sums.contains(&lanes.of_group(&comm.group)),
            _ => false,
        };
        passes.has(Pass::Units) && graph.values().any(meets)
    }

    /// Adds each rank's range of the sums of a layer's gradients to those of the micro-batches before.
    fn sum_layer(&mut self, cx: &Cx, shared: &mut Shared, (l, micro_batch): (usize, u32)) {
        let beside = self.programs.passes.has(Pass::Units);
        for (g, u) in cx.passing_units_of(l) {
            let group = &cx.layout.groups[g];
            let is_first = shared.summed.insert((g, u));
            let gradients = shared.layer_gradients[&(g, u)];
            let so_far = self.sum_so_far(cx, (g, u));
            let (keep, to) = match (is_first, beside) {
                (true, _) => (Keep::Shard, so_far),
                (false, false) => (Keep::Add, so_far),
                (false, true) => {
                    let own = shared.timeline.item(group.units[u].elements / group.shards * self.wide.bytes());
                    shared.sums.push(((g, u), own));
                    (Keep::Shard, Bind::Item(own, 0))
                }
            };
            self.sum_unit(cx, shared, (g, u), keep, (Bind::Item(gradients, 0), to), (l as u32, micro_batch));
            if beside {
                shared.beside.push(gradients);
            }
        }
    }

    /// Adds the sums that were made while a layer ran to those so far.
    pub(super) fn add_sums(&mut self, cx: &Cx, shared: &mut Shared, at: (u32, u32)) {
        let wide = self.wide;
        for ((g, u), own) in std::mem::take(&mut shared.sums) {
            let group = &cx.layout.groups[g];
            let elements = group.units[u].elements / group.shards;
            let so_far = self.sum_so_far(cx, (g, u));
            self.add_to(shared, (so_far, elements, wide), Bind::Item(own, 0), at);
        }
    }

    /// Sums the gradients of layers that have gone backward for the last time, where that would be left to the end of the step; of all `but` one.
    pub(super) fn sum_done(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        written: &mut FxHashSet<usize>,
        but: Option<usize>,
    ) {
        let waits = |l: &usize| Some(*l) == but || shared.is_summing(cx, *l);
        let (later, now): (Vec<usize>, Vec<usize>) = shared.done.iter().copied().partition(waits);
        shared.done = later;
        for l in now {
            for (g, u) in cx.units_of(l) {
                let (group, unit) = (&cx.layout.groups[g], &cx.layout.groups[g].units[u]);
                let Some(gradients) = unit.gradients.map(Bind::Fixed) else {
                    // Summed over the ranks that share them with each micro-batch.
                    let own = Bind::Fixed(group.gradient_shards.expect("layers' gradients are summed into ranges"));
                    self.sum_replicas(cx, shared, (g, u..u + 1), own, (l as u32, 0));
                    continue;
                };
                let of_unit = |i: &usize| (cx.layout.params[i].group, cx.layout.params[i].unit) == (g, u);
                let params: Vec<usize> = cx.stage.params.iter().copied().filter(of_unit).collect();
                self.zero_gradients(cx, shared, &params, written);
                written.extend(params);
                shared.summed.insert((g, u));
                // Of gradients that ranks do not share each has all of the sum, where they were.
                let all = group.units[0].gradients.filter(|_| group.shards == 1).map(Bind::Fixed);
                let own = all.unwrap_or_else(|| {
                    let bytes = group.shard() * self.wide.bytes();
                    Bind::Item(*shared.own.entry(g).or_insert_with(|| shared.timeline.item(bytes)), 0)
                });
                let (keep, to) = match group.shards {
                    1 => (Keep::Whole, gradients),
                    _ => (Keep::Shard, own.further(unit.shard_start * self.wide.bytes())),
                };
                self.sum_unit(cx, shared, (g, u), keep, (gradients, to), (l as u32, 0));
                self.sum_replicas(cx, shared, (g, u..u + 1), own, (l as u32, 0));
                self.send_unit(cx, shared, (g, u), own, l as u32);
            }
            self.send_layer(cx, shared, written, l);
        }
    }

    /// Where this rank's range of a unit's summed gradients is kept.
    fn sum_so_far(&self, cx: &Cx, (g, u): UnitId) -> Bind {
        let group = &cx.layout.groups[g];
        let base = group.gradient_shards.expect("layers' gradients are summed into ranges");
        Bind::Fixed(base + group.units[u].shard_start * self.wide.bytes())
    }

    /// Sums the gradients of a unit over the ranks.
    pub(super) fn sum_unit(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (g, u): UnitId,
        keep: Keep,
        (from, to): (Bind, Bind),
        at: (u32, u32),
    ) {
        let group = &cx.layout.groups[g];
        let over = if keep == Keep::Whole { &group.sums } else { &group.shared };
        self.sum_over(cx, shared, (group.units[u].elements, over), keep, [from, to], at);
    }

    /// Sums this rank's ranges of units' gradients, which have been summed over the ranks that share them, over those that have replicas of them; once for what follows on each other. `own`: all
    /// of its ranges of the group.
    pub(super) fn sum_replicas(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (g, units): (usize, Range<usize>),
        own: Bind,
        at: (u32, u32),
    ) {
        let group = &cx.layout.groups[g];
        let left = units.filter(|&u| !group.replicas.is_empty() && shared.replicated.insert((g, u)));
        for run in runs(left) {
            let units = &group.units[run];
            let elements = units.iter().map(|u| u.elements / group.shards).sum();
            let ranges = own.further(units[0].shard_start * self.wide.bytes());
            self.sum_over(cx, shared, (elements, &group.replicas), Keep::Whole, [ranges, ranges], at);
        }
    }

    /// Sums so many elements over the ranks of a group, from one place to another.
    pub(super) fn sum_over(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (elements, group): (u64, &[u32]),
        keep: Keep,
        [from, to]: [Bind; 2],
        at: (u32, u32),
    ) {
        let (mesh, wide) = (&cx.sharded.mesh, self.wide);
        let what = match keep {
            Keep::Whole => "all_reduce",
            Keep::Shard => "reduce_scatter",
            Keep::Add => "reduce_scatter.add",
        };
        let name = format!("optimizer.{what}.{elements}.{}", mesh.named(group, "."));
        let program = self
            .programs
            .get(&name, &SavedLayout::default(), || optimizer::summed(elements, group, keep, &mesh.dims, wide));
        let slots = program.bind(shared, |want, _, _| match want {
            super::bind::Want::CarryIn(_) => from,
            _ => to,
        });
        shared.timeline.call(&program, at.0, at.1, slots);
    }
}
