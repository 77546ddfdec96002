//! The end of a step: gradients and losses over all ranks, norm, learning rate, AdamW, states.

use super::SavedLayout;
use super::bind::Want;
use super::flow::{input_names, output_names};
use super::layers::{Cx, position};
use super::offload::{Chunk, Offload, State};
use super::phases::Scheduler;
use super::shared::{Part, Shared};
use super::tensors::local_elements;
use super::timeline::Bind;
use super::units::{UnitId, runs};
use crate::emit::ALIGN;
use crate::memory::halves;
use crate::optimizer::{self, Keep, Optimizer};
use crate::overlap::Pass;
use crate::rewrite;
use crate::shard::Dense;
use forebay_ir::{DType, InputRole, OutputRole};
use forebay_plan as plan;
use rustc_hash::{FxHashMap, FxHashSet};

/// What a rank has of a group on the device at the end of a step.
struct Own {
    /// The gradients that its optimizer takes.
    gradients: Bind,
    /// Its ranges of the copies, where it needs them.
    copies: Option<Bind>,
}

/// What AdamW does about copies.
#[derive(Clone, Copy, Debug)]
enum Copies {
    /// It makes all that is there.
    To(Bind),
    /// It makes a part of what is there.
    Into(Bind),
    /// Masters are gathered, and copies made of them.
    Later,
}

impl Cx<'_> {
    /// Where the copies of a group that ranks do not share begin.
    fn copies_of(&self, g: usize) -> Bind {
        Bind::Fixed(self.layout.groups[g].units[0].copies.expect("what is not shared has copies"))
    }
}

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
            self.zero(shared, elements, cx.gradient_type(i), at, (layer, 0));
        }
    }

    /// Sums gradients over the ranks that have terms of them, where each rank keeps all.
    pub(super) fn sum_gradients(&mut self, cx: &Cx, shared: &mut Shared) {
        let at = (cx.sharded.model.layers.len() as u32, 0);
        for (g, group) in cx.layout.groups.iter().enumerate() {
            if !group.sums.is_empty() && group.shards == 1 {
                // Layers may have summed theirs already.
                for run in runs((0..group.units.len()).filter(|&u| !shared.summed.contains(&(g, u)))) {
                    let units = &group.units[run];
                    let first = units[0].gradients.expect("gradients that are not shared are kept");
                    let elements = units.iter().map(|u| u.elements).sum();
                    self.sum_over(cx, shared, (elements, &group.sums), Keep::Whole, [Bind::Fixed(first); 2], at);
                }
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
    pub(super) fn optimize(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        optimizer: &Optimizer,
        offload: Option<Offload>,
    ) -> u32 {
        let layer = cx.sharded.model.layers.len() as u32;
        let groups = &cx.layout.groups;
        let gradients: Vec<Bind> = (0..groups.len()).map(|g| self.own_gradients(cx, shared, g)).collect();
        self.tied_gradients(cx, shared, &gradients);
        let mut squares = vec![];
        for (group, gradients) in groups.iter().zip(&gradients) {
            let chunks = group.shard() / optimizer::CHUNK;
            let (wide, of) = (self.wide, group.gradient);
            let name = format!("optimizer.squares.{chunks}{}", self.of_gradients(of));
            let program = self.programs.get(&name, &SavedLayout::default(), || optimizer::squares(chunks, of, wide));
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
        let own: Vec<Own> =
            gradients.into_iter().zip(copies).map(|(gradients, copies)| Own { gradients, copies }).collect();
        let commit = match offload {
            Some(offload) => self.update_chunks(cx, shared, optimizer, (&own, &scalars), offload),
            None => self.update_units(cx, shared, optimizer, (&own, &scalars)),
        };
        self.update_states(cx, shared);
        commit
    }

    /// Updates what is on the device, group by group. Returns the first call of that.
    fn update_units(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        optimizer: &Optimizer,
        (own, scalars): (&[Own], &FxHashMap<String, Bind>),
    ) -> u32 {
        let commit = shared.timeline.len();
        for (g, group) in cx.layout.groups.iter().enumerate() {
            // Units are gathered one by one: while one is on its way, the next is updated.
            let one_by_one = self.programs.passes.has(Pass::Units) && group.units.iter().any(|u| u.copies.is_some());
            let units = 0..group.units.len();
            let parts = if group.shards > 1 && one_by_one { units.map(|u| u..u + 1).collect() } else { vec![units] };
            for units in parts {
                let elements = group.units[units.clone()].iter().map(|u| u.elements).sum::<u64>() / group.shards;
                let start = group.units[units.start].shard_start;
                let at = |base: u64, width: u64| Bind::Fixed(base + start * width);
                let state = State {
                    param: at(group.params, cx.layout.master_bytes()),
                    first: at(group.first, cx.layout.moments.bytes()),
                    second: at(group.second, cx.layout.moments.bytes()),
                };
                let copies = match (group.shards, own[g].copies) {
                    (_, Some(own)) => Copies::To(own.further(start * self.narrow.bytes())),
                    (1, None) => Copies::To(cx.copies_of(g)),
                    _ => Copies::Later,
                };
                let gradients = own[g].gradients.further(start * group.gradient.bytes());
                self.adamw(cx, shared, optimizer, (g, elements), (state, gradients, copies), scalars);
                for u in units.filter(|_| group.shards > 1) {
                    let from = match own[g].copies {
                        Some(own) => (own.further(group.units[u].shard_start * self.narrow.bytes()), self.narrow),
                        None => (cx.masters((g, u)), self.wide),
                    };
                    self.gather_unit(cx, shared, (g, u), from);
                }
            }
        }
        commit
    }

    /// Updates what comes from the host's memory, chunk by chunk. Returns the first call that changes what a checkpoint holds.
    fn update_chunks(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        optimizer: &Optimizer,
        (own, scalars): (&[Own], &FxHashMap<String, Bind>),
        mut offload: Offload,
    ) -> u32 {
        let narrow = self.narrow.bytes();
        let mut commit = None;
        while let Some((chunk, state)) = offload.next_chunk() {
            let (g, u) = chunk.unit;
            let group = &cx.layout.groups[g];
            let masters_away = group.masters_in == plan::Space::Host;
            let copies = match (group.shards, own[g].copies) {
                (_, Some(own)) => Copies::To(own.further(chunk.start * narrow)),
                (1, None) => Copies::Into(cx.copies_of(g).further(chunk.start * narrow)),
                _ if masters_away && self.narrow != self.wide => {
                    Copies::To(self.own_range(cx, shared, &mut offload, chunk))
                }
                _ => Copies::Later,
            };
            // Masters that are away are changed by the copy back; of those in halves the other half may be in copies that are here.
            let here = !masters_away || (group.split && group.shards == 1);
            let update = shared.timeline.len();
            commit.get_or_insert(if here { update } else { update + 1 });
            let gradients = own[g].gradients.further(chunk.start * group.gradient.bytes());
            self.adamw(cx, shared, optimizer, (g, chunk.elements), (state, gradients, copies), scalars);
            let last = self.end_chunk(cx, shared, &mut offload, (chunk, state));
            if last && group.shards > 1 {
                let unit = &group.units[u];
                let from = match own[g].copies {
                    Some(own) => (own.further(unit.shard_start * narrow), self.narrow),
                    None if masters_away => {
                        let first = Chunk { start: unit.shard_start, ..chunk };
                        (self.own_range(cx, shared, &mut offload, first), self.narrow)
                    }
                    None => (cx.masters((g, u)), self.wide),
                };
                self.gather_unit(cx, shared, (g, u), from);
            }
        }
        commit.unwrap_or(shared.timeline.len())
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
        self.sum_replicas(cx, shared, (g, 0..group.units.len()), own, at);
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
        let replicas: Vec<u64> = cx
            .layout
            .groups
            .iter()
            .map(|g| everyone / stages / (mesh.ranks(&g.cut) * g.shards) * g.holders.len().max(1) as u64)
            .collect();
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

    /// What tells a program that reads gradients of this type from that of sums.
    pub(super) fn of_gradients(&self, of: DType) -> String {
        if of == self.wide { String::new() } else { format!(".{of}") }
    }

    /// Updates so many elements of a group.
    fn adamw(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        optimizer: &Optimizer,
        (g, n): (usize, u64),
        (state, gradients, copies): (State, Bind, Copies),
        scalars: &FxHashMap<String, Bind>,
    ) {
        let layer = cx.sharded.model.layers.len() as u32;
        let group = &cx.layout.groups[g];
        let wide = self.wide;
        // Ranges become copies by gathering; else the same kernel makes both. What is in halves is not whole without its copy.
        let (narrow, kind) = match copies {
            Copies::To(_) => (self.narrow, ""),
            Copies::Into(_) => (self.narrow, ".part"),
            Copies::Later => (wide, ".alone"),
        };
        let kind = if self.narrow == wide { "" } else { kind };
        let types = optimizer::Types { wide, narrow, gradients: group.gradient, moments: cx.layout.moments };
        let rewriting = self.rewriting;
        let (decays, of) = (if group.decays { "decay" } else { "no_decay" }, self.of_gradients(group.gradient));
        let name = format!("optimizer.adamw.{decays}.{n}{kind}{of}");
        let graph = || rewrite::rewrite(&optimizer::adamw(optimizer, n, group.decays, types), rewriting).0;
        let program = self.programs.get_changed(&name, &SavedLayout::default(), graph, |program| {
            if group.split {
                halves::split(program, ["state.param", "state.copy", "state.second"]);
            }
            if matches!(copies, Copies::Into(_)) {
                let copies = program.slots.iter_mut().find(|s| s.name == "state.copy");
                copies.into_iter().for_each(|slot| slot.access = plan::Access::Update);
            }
        });
        let slots = program.bind(shared, |want, _, _| match want {
            Want::State(name) => match (name.as_str(), copies) {
                ("param", _) => state.param,
                ("first", _) => state.first,
                ("second", _) => state.second,
                (_, Copies::To(copies) | Copies::Into(copies)) => copies,
                (name, Copies::Later) => unreachable!("AdamW has no {name} where ranges are gathered"),
            },
            Want::GradIn(_) => gradients,
            Want::CarryIn(name) => scalars[name],
            want => unreachable!("AdamW has no {want:?}"),
        });
        shared.timeline.call(&program, layer, 0, slots);
    }

    /// Gathers a unit's copies from the ranks' ranges, where copies are kept.
    fn gather_unit(&mut self, cx: &Cx, shared: &mut Shared, (g, u): UnitId, from: (Bind, DType)) {
        if let Some(copies) = cx.layout.groups[g].units[u].copies {
            let layer = cx.sharded.model.layers.len() as u32;
            self.gather(cx, shared, (g, u), from, Bind::Fixed(copies), (layer, 0));
        }
    }

    /// With split masters that ranks share (ZeRO), this rank's ranges of a group's compute copies, packed in the order of its masters.
    fn own_copies(&mut self, cx: &Cx, shared: &mut Shared, g: usize) -> Option<Bind> {
        let (mesh, narrow, group) = (&cx.sharded.mesh, self.narrow, &cx.layout.groups[g]);
        if !group.split || group.shards == 1 {
            return None;
        }
        let own = Bind::Item(shared.timeline.item(group.shard() * narrow.bytes()), 0);
        for unit in &group.units {
            let name = format!("optimizer.own.{}.{}", unit.elements, mesh.named(&group.shared, "."));
            let program = self.programs.get(&name, &SavedLayout::default(), || {
                optimizer::own_range(unit.elements, &group.shared, &mesh.dims, narrow)
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
            let value = graph.output(OutputRole::Stat, &name).expect("one of its outputs");
            let dims: Vec<u64> = graph.dims(&graph.ty(value).axes).into_iter().map(|(_, n)| n).collect();
            let of = graph.ty(value).dtype;
            let own = shared.stat(stat, graph.bytes(value));
            let here = if group.is_empty() {
                own
            } else {
                let all = shared.timeline.item(graph.bytes(value));
                shared.stats.insert(stat, all);
                self.all_reduce(cx, shared, (&dims, of), &group, (own, Bind::Item(all, 0)), l as u32);
                Bind::Item(all, 0)
            };
            let elements = dims.iter().product();
            self.sum_over_stages(cx, shared, &cx.stage.stages_with(l), (here, elements, of), l as u32);
        }
    }
}
