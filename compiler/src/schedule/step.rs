//! The end of a step: gradients and losses over all ranks, norm, learning rate, AdamW, states.

use super::SavedLayout;
use super::bind::Want;
use super::flow::{input_names, output_names};
use super::layers::{Cx, position};
use super::phases::Scheduler;
use super::shared::{Part, Shared};
use super::tensors::local_elements;
use super::timeline::Bind;
use crate::emit::ALIGN;
use crate::memory::halves;
use crate::optimizer::{self, Keep, Optimizer};
use crate::overlap::Pass;
use crate::rewrite;
use crate::shard::Dense;
use forebay_ir::{DType, InputRole, OutputRole};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;

impl Scheduler<'_> {
    /// Gradients of parameters that no loss depends on are zero.
    pub(super) fn untouched_gradients(&mut self, cx: &Cx, shared: &mut Shared, written: &FxHashSet<usize>) {
        let layer = cx.sharded.model.layers.len() as u32;
        self.zero_gradients(cx, shared, &cx.stage.params, written);
        // Layers that no gradient reaches have summed nothing.
        for (g, group) in cx.layout.groups.iter().enumerate() {
            for (u, unit) in group.units.iter().enumerate() {
                if let Some(base) =
                    group.gradient_shards.filter(|_| unit.layer.is_some() && !shared.summed.contains(&(g, u)))
                {
                    let at = Bind::Fixed(base + unit.shard_start * self.wide.bytes());
                    self.zero(shared, unit.elements / group.shards, self.wide, at, (layer, 0));
                }
            }
        }
    }

    /// Zeros for the gradients of those parameters that have nothing in them.
    pub(super) fn zero_gradients(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        params: &[usize],
        written: &FxHashSet<usize>,
    ) {
        let sharded = cx.sharded;
        let layer = sharded.model.layers.len() as u32;
        for &i in params.iter().filter(|&&i| !written.contains(&i) && !cx.is_passing(i)) {
            let at = cx.gradient(shared, i);
            let elements = local_elements(&sharded.model.params[i], &sharded.params[i], &sharded.mesh);
            self.zero(shared, elements, self.wide, at, (layer, 0));
        }
    }

    /// Sums gradients over the ranks that have terms of them, where each rank keeps all.
    pub(super) fn sum_gradients(&mut self, cx: &Cx, shared: &mut Shared) {
        let at = (cx.sharded.model.layers.len() as u32, 0);
        for (g, group) in cx.layout.groups.iter().enumerate() {
            if !group.sums.is_empty() && group.shards == 1 {
                let gradients = Bind::Fixed(group.units[0].gradients.expect("gradients that are not shared are kept"));
                self.sum_unit(cx, shared, (g, 0), Keep::Whole, (gradients, gradients), at);
            }
        }
    }

    /// Sums the contributions of all layers, micro-batches and ranks to each loss.
    pub(super) fn sum_parts(&mut self, cx: &Cx, shared: &mut Shared) {
        let model = &cx.sharded.model;
        let layer = model.layers.len() as u32;
        let parts = std::mem::take(&mut shared.parts);
        let mut wants: Vec<Want> = vec![];
        for part in parts.keys() {
            if !wants.contains(&part.want) {
                wants.push(part.want.clone());
            }
        }
        for want in wants {
            let of: Vec<(&Part, &(super::timeline::Item, u32))> =
                parts.iter().filter(|(p, _)| p.want == want).collect();
            // Sums over different ranks first by themselves, then together.
            let together = shared.timeline.item(of.len() as u64 * ALIGN);
            let sum = Bind::Item(shared.timeline.permanent(ALIGN), 0);
            for (i, (part, (item, n))) in of.iter().enumerate() {
                let to = if of.len() == 1 { sum } else { Bind::Item(together, i as u64 * ALIGN) };
                let group: Vec<u32> = [cx.sharded.mesh.dense(Dense::Pp), part.sums.clone()].concat();
                self.sum_scalars(cx, shared, u64::from(*n), &group, Bind::Item(*item, 0), to, layer);
            }
            if of.len() > 1 {
                self.sum_scalars(cx, shared, of.len() as u64, &[], Bind::Item(together, 0), sum, layer);
            }
            let wide = self.wide;
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

    #[allow(clippy::too_many_arguments, reason = "what, over which ranks, from where to where")]
    fn sum_scalars(&mut self, cx: &Cx, shared: &mut Shared, n: u64, group: &[u32], from: Bind, to: Bind, layer: u32) {
        let (mesh, wide) = (&cx.sharded.mesh, self.wide);
        let over = if group.is_empty() { String::new() } else { format!(".{}", mesh.named(group, ".")) };
        let program = self.programs.get(&format!("sum.{n}{over}"), &SavedLayout::default(), || {
            optimizer::sum_of_scalars(n, group, &mesh.dims, wide)
        });
        let slots = program.bind(shared, |want, _, _| match want {
            Want::Metric(_) => to,
            _ => from,
        });
        shared.timeline.call(&program, layer, 0, slots);
    }

    /// Norm, learning rate and AdamW, then the updates of states. Returns the first call that changes what a checkpoint holds.
    pub(super) fn optimize(&mut self, cx: &Cx, shared: &mut Shared, optimizer: &Optimizer) -> u32 {
        let layer = cx.sharded.model.layers.len() as u32;
        let groups = &cx.layout.groups;
        let gradients: Vec<Bind> = (0..groups.len()).map(|g| self.own_gradients(cx, shared, g)).collect();
        let mut squares = vec![];
        for (group, gradients) in groups.iter().zip(&gradients) {
            let chunks = group.shard() / optimizer::CHUNK;
            let wide = self.wide;
            let program = self.programs.get(&format!("optimizer.squares.{chunks}"), &SavedLayout::default(), || {
                optimizer::squares(chunks, wide)
            });
            let sum = Bind::Item(shared.timeline.item(ALIGN), 0);
            let slots = program.bind(shared, |want, _, _| match want {
                Want::Metric(_) => sum,
                _ => *gradients,
            });
            shared.timeline.call(&program, layer, 0, slots);
            squares.push(sum);
        }
        let scalars = self.scalars(cx, shared, optimizer, &squares);

        let copies: Vec<Option<Bind>> = (0..groups.len()).map(|g| self.own_copies(cx, shared, g)).collect();
        let commit = shared.timeline.len();
        for (g, (gradients, copies)) in gradients.iter().zip(copies).enumerate() {
            let group = &cx.layout.groups[g];
            // Units are gathered one by one: while one is on its way, the next is updated.
            let one_by_one = self.programs.passes.has(Pass::Units) && group.units.iter().any(|u| u.copies.is_some());
            let units = 0..group.units.len();
            let parts = if group.shards > 1 && one_by_one { units.map(|u| u..u + 1).collect() } else { vec![units] };
            for units in parts {
                self.adamw(cx, shared, optimizer, (g, units), (*gradients, copies), &scalars);
            }
        }
        self.update_states(cx, shared);
        commit
    }

    /// Where the gradients lie that this rank's optimizer takes: its ranges of their sums, when masters are shared.
    fn own_gradients(&mut self, cx: &Cx, shared: &mut Shared, g: usize) -> Bind {
        let group = &cx.layout.groups[g];
        if group.shards == 1 {
            return Bind::Fixed(group.units[0].gradients.expect("gradients that are not shared are kept"));
        }
        let at = (cx.sharded.model.layers.len() as u32, 0);
        let own = match group.gradient_shards {
            Some(base) => Bind::Fixed(base),
            None => {
                let bytes = group.shard() * self.wide.bytes();
                Bind::Item(*shared.own.entry(g).or_insert_with(|| shared.timeline.item(bytes)), 0)
            }
        };
        for (u, unit) in group.units.iter().enumerate() {
            // Layers have summed theirs already.
            if let Some(gradients) = unit.gradients.filter(|_| !shared.summed.contains(&(g, u))) {
                let to = own.further(unit.shard_start * self.wide.bytes());
                self.sum_unit(cx, shared, (g, u), Keep::Shard, (Bind::Fixed(gradients), to), at);
            }
        }
        own
    }

    /// The scalars of the step, by name.
    fn scalars(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        optimizer: &Optimizer,
        squares: &[Bind],
    ) -> FxHashMap<String, Bind> {
        let mesh = &cx.sharded.mesh;
        let everyone: u64 = mesh.dims.iter().map(|d| u64::from(d.size)).product();
        let stages = mesh.ranks(&mesh.dense(Dense::Pp));
        // How many ranks have the same gradients.
        let replicas: Vec<u64> =
            cx.layout.groups.iter().map(|g| everyone / stages / (mesh.ranks(&g.cut) * g.shards) * g.holders).collect();
        let names: Vec<String> = replicas.iter().map(u64::to_string).collect();
        let name = format!("optimizer.scalars.{}", names.join("."));
        let program =
            self.programs.get(&name, &SavedLayout::default(), || optimizer::scalars(optimizer, &replicas, &mesh.dims));
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
        shared.timeline.call(&program, cx.sharded.model.layers.len() as u32, 0, slots);
        for name in ["grad_norm", "lr"] {
            shared.reports.push((name.into(), DType::F64, scalars[name], true));
        }
        scalars
    }

    /// Updates some of a group's units, and gathers them.
    fn adamw(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        optimizer: &Optimizer,
        (g, units): (usize, Range<usize>),
        (gradients, copies): (Bind, Option<Bind>),
        scalars: &FxHashMap<String, Bind>,
    ) {
        let layer = cx.sharded.model.layers.len() as u32;
        let group = &cx.layout.groups[g];
        let wide = self.wide;
        let n = group.units[units.clone()].iter().map(|u| u.elements).sum::<u64>() / group.shards;
        let start = group.units[units.start].shard_start;
        // Ranges become copies by gathering; else the same kernel makes both. What is in halves is not whole without its copy.
        let narrow = if group.shards > 1 && !group.split { wide } else { self.narrow };
        let rewriting = self.rewriting;
        let name = format!("optimizer.adamw.{}.{n}", if group.decays { "decay" } else { "no_decay" });
        let graph = || rewrite::rewrite(&optimizer::adamw(optimizer, n, group.decays, wide, narrow), rewriting).0;
        let program = self.programs.get_changed(&name, &SavedLayout::default(), graph, |program| {
            if group.split {
                halves::split(program, ["state.param", "state.copy", "state.second"]);
            }
        });
        let slots = program.bind(shared, |want, _, _| match want {
            Want::State(name) => Bind::Fixed(match name.as_str() {
                "param" => group.params + start * cx.layout.master_bytes(),
                "first" => group.first + start * wide.bytes(),
                "second" => group.second + start * wide.bytes(),
                _ => {
                    let all = copies
                        .unwrap_or_else(|| Bind::Fixed(group.units[0].copies.expect("what is not shared has copies")));
                    return all.further(start * self.narrow.bytes());
                }
            }),
            Want::GradIn(_) => gradients.further(start * wide.bytes()),
            Want::CarryIn(name) => scalars[name],
            want => unreachable!("AdamW has no {want:?}"),
        });
        shared.timeline.call(&program, layer, 0, slots);
        if group.shards > 1 {
            for u in units {
                let unit = &group.units[u];
                let from = match copies {
                    Some(own) => (own.further(unit.shard_start * self.narrow.bytes()), self.narrow),
                    None => (cx.masters((g, u)), wide),
                };
                if let Some(copies) = unit.copies {
                    self.gather(cx, shared, (g, u), from, Bind::Fixed(copies), (layer, 0));
                }
            }
        }
    }

    /// This rank's ranges of a group's copies, one after another as the masters are, where ranks share masters of which the copies have a half.
    fn own_copies(&mut self, cx: &Cx, shared: &mut Shared, g: usize) -> Option<Bind> {
        let (mesh, narrow, group) = (&cx.sharded.mesh, self.narrow, &cx.layout.groups[g]);
        if !group.split || group.shards == 1 {
            return None;
        }
        let own = Bind::Item(shared.timeline.item(group.shard() * narrow.bytes()), 0);
        for unit in &group.units {
            let name = format!("optimizer.own.{}.{}", unit.elements, mesh.named(&group.sums, "."));
            let program = self.programs.get(&name, &SavedLayout::default(), || {
                optimizer::own_range(unit.elements, &group.sums, &mesh.dims, narrow)
            });
            let copies = Bind::Fixed(unit.copies.expect("halves have copies beside them"));
            let slots = program.bind(shared, |want, _, _| match want {
                Want::CarryIn(_) => copies,
                _ => own.further(unit.shard_start * narrow.bytes()),
            });
            shared.timeline.call(&program, cx.sharded.model.layers.len() as u32, 0, slots);
        }
        Some(own)
    }

    fn update_states(&mut self, cx: &Cx, shared: &mut Shared) {
        let model = &cx.sharded.model;
        let order = model.update_order().expect("checked: layers do not update states that they read from each other");
        for l in order.into_iter().filter(|l| cx.stage.has(*l)) {
            let layer = &model.layers[l];
            self.sum_stats(cx, shared, l);
            let segment = &model.segments[layer.segment];
            let graph = segment.update.as_ref().expect("the order lists layers with updates");
            let states_in = input_names(graph, InputRole::State);
            let stats = input_names(graph, InputRole::Stat);
            let states_out = output_names(graph, OutputRole::State);
            let name = format!("train.{}.update", segment.name);
            let program = self.programs.get(&name, &SavedLayout::default(), || graph.clone());
            let slots = program.bind(shared, |want, bytes, shared| match want {
                Want::State(name) => {
                    let read = states_in.iter().position(|n| n == name).map(|i| layer.update_states[i]);
                    let state = read.unwrap_or_else(|| layer.update_outputs[position(&states_out, name)]);
                    Bind::Fixed(cx.layout.states[&state])
                }
                Want::Stat(name) => shared.stat(layer.update_stats[position(&stats, name)], bytes),
                want => unreachable!("updates have no {want:?}"),
            });
            shared.timeline.call(&program, l as u32, 0, slots);
        }
    }

    /// Statistics over all ranks, before they are used.
    fn sum_stats(&mut self, cx: &Cx, shared: &mut Shared, l: usize) {
        let layer = &cx.sharded.model.layers[l];
        let graph = cx.forward[layer.segment];
        for (name, stat) in output_names(graph, OutputRole::Stat).into_iter().zip(layer.stats.clone()) {
            let group =
                cx.sharded.sums[layer.segment].get(&(OutputRole::Stat, name.clone())).cloned().unwrap_or_default();
            if group.is_empty() {
                continue;
            }
            let value = graph.output(OutputRole::Stat, &name).expect("one of its outputs");
            let dims: Vec<u64> = graph.dims(&graph.ty(value).axes).into_iter().map(|(_, n)| n).collect();
            let of = graph.ty(value).dtype;
            let own = shared.stat(stat, graph.bytes(value));
            let all = shared.timeline.item(graph.bytes(value));
            shared.stats.insert(stat, all);
            self.all_reduce(cx, shared, (&dims, of), &group, (own, Bind::Item(all, 0)), l as u32);
        }
    }
}
