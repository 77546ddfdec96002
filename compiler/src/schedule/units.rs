//! Units of parameters over links: gathered for the layers that read them, their gradients summed.

use super::SavedLayout;
use super::layers::Cx;
use super::phases::Scheduler;
use super::shared::Shared;
use super::tensors::Home;
use super::timeline::Bind;
use crate::optimizer::{self, Keep};
use forebay_ir::DType;

/// A unit: its group and its number there.
pub type UnitId = (usize, usize);

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
        let bytes = element * self.wide.bytes();
        match self.layout.groups[group].units[unit].gradients {
            Some(gradients) => Bind::Fixed(gradients + bytes),
            None => Bind::Item(shared.layer_gradients[&(group, unit)], bytes),
        }
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
}

impl Scheduler<'_> {
    /// Gathers the parameters of a layer that are kept in ranges only.
    pub(super) fn gather_layer(&mut self, cx: &Cx, shared: &mut Shared, (l, micro_batch): (usize, u32)) {
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
        let name = format!("optimizer.gather.{}.{}", unit.elements, mesh.named(&group.sums, "."));
        let program = self.programs.get(&name, &SavedLayout::default(), || {
            optimizer::gathered(unit.elements, &group.sums, &mesh.dims, of, narrow)
        });
        let slots = program.bind(shared, |want, _, _| match want {
            super::bind::Want::CarryIn(_) => from,
            _ => to,
        });
        shared.timeline.call(&program, at.0, at.1, slots);
    }

    /// Room for the gradients of a layer, zeros: what no loss depends on, and the padding, count as well.
    pub(super) fn begin_gradients(&mut self, cx: &Cx, shared: &mut Shared, (l, micro_batch): (usize, u32)) {
        for (g, u) in cx.units_of(l) {
            let elements = cx.layout.groups[g].units[u].elements;
            let item = shared.timeline.item(elements * self.wide.bytes());
            shared.layer_gradients.insert((g, u), item);
            self.zero(shared, elements, self.wide, Bind::Item(item, 0), (l as u32, micro_batch));
        }
    }

    /// Adds each rank's range of the sums of a layer's gradients to those of the micro-batches before.
    pub(super) fn end_gradients(&mut self, cx: &Cx, shared: &mut Shared, (l, micro_batch): (usize, u32)) {
        for (g, u) in cx.units_of(l) {
            let group = &cx.layout.groups[g];
            let keep = if shared.summed.insert((g, u)) { Keep::Shard } else { Keep::Add };
            let from = Bind::Item(shared.layer_gradients[&(g, u)], 0);
            let base = group.gradient_shards.expect("layers' gradients are summed into ranges");
            let to = Bind::Fixed(base + group.units[u].shard_start * self.wide.bytes());
            self.sum_unit(cx, shared, (g, u), keep, (from, to), (l as u32, micro_batch));
        }
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
        let (mesh, wide) = (&cx.sharded.mesh, self.wide);
        let group = &cx.layout.groups[g];
        let elements = group.units[u].elements;
        let what = match keep {
            Keep::Whole => "all_reduce",
            Keep::Shard => "reduce_scatter",
            Keep::Add => "reduce_scatter.add",
        };
        let name = format!("optimizer.{what}.{elements}.{}", mesh.named(&group.sums, "."));
        let program = self
            .programs
            .get(&name, &SavedLayout::default(), || optimizer::summed(elements, &group.sums, keep, &mesh.dims, wide));
        let slots = program.bind(shared, |want, _, _| match want {
            super::bind::Want::CarryIn(_) => from,
            _ => to,
        });
        shared.timeline.call(&program, at.0, at.1, slots);
    }
}
