//! From one layout of a value to another, with as little as that takes.
//!
//! ```text
//! rows of groups to their owners        dispatch, combine
//! an axis gains what another loses      all_to_all
//! terms of a sum, wanted in parts       reduce_scatter
//! terms of a sum                        all_reduce
//! an axis loses dimensions              unshard            (an all-gather where it is used for different work: `hoist`)
//! an axis gains dimensions              shard              (nothing is sent)
//! ```

use super::layout::{Form, Layout};
use super::partition::Partitioner;
use super::strategy::StrategyError;
use forebay_ir::{AxisId, Comm, CommKind, DType, Extent, Op, ReduceKind, Type, ValueId};

impl Partitioner<'_> {
    /// A value in a layout.
    pub fn form(&mut self, value: ValueId, wanted: &Layout) -> Result<Form, StrategyError> {
        let known = |p: &Self| p.forms[value.index()].iter().find(|f| f.layout == *wanted).cloned();
        if let Some(form) = known(self) {
            return Ok(form);
        }
        let form = match self.made_again(value, wanted)? {
            Some(form) => form,
            None => self.converted(value, wanted)?,
        };
        self.forms[value.index()].push(form.clone());
        Ok(form)
    }

    /// What every rank knows without parameters (positions, masks, what data says) is made in the wanted layout from the start; and merged axes are
    /// merged again.
    fn made_again(&mut self, value: ValueId, wanted: &Layout) -> Result<Option<Form>, StrategyError> {
        let node = self.whole.node(value);
        let own = self.own(value).clone();
        let operands = match &node.op {
            Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) | Op::Broadcast(_)
                if !self.trained[value.index()]
                    && !node.operands.is_empty()
                    && (own == Layout::default() || (own.partial.is_empty() && self.grows(value))) =>
            {
                let axes = |o: &ValueId| self.whole.ty(*o).axes.clone();
                let layouts: Vec<Layout> = node.operands.iter().map(|o| wanted.on(&axes(o))).collect();
                // Cutting one operand may be all there is to it; when nothing is left to cut, a part of the result is as good.
                layouts
                    .into_iter()
                    .zip(&node.operands)
                    .map(|(l, &o)| self.form(o, &l))
                    .collect::<Result<Vec<_>, _>>()?
            }
            // The narrow value is sent, and widened where it arrives: what is sent is less, and attention is still recognised behind it.
            Op::Cast(_) if wanted.partial == own.partial && self.widens(value) => {
                let layout =
                    Layout { partial: wanted.partial.clone(), ..wanted.on(&self.whole.ty(node.operands[0]).axes) };
                vec![self.form(node.operands[0], &layout)?]
            }
            // What is made of merged axes is made of them again.
            _ if self.moves_mixed(value, &own, wanted) && self.is_made_alike(value, &own, wanted) => {
                let layout = |o: ValueId| {
                    let mut layout = wanted.on(&self.whole.ty(o).axes);
                    if let Op::Rename { from, to } = &node.op {
                        layout = layout.with(*from, wanted.of(*to));
                    }
                    Layout { partial: own.partial.clone(), ..layout }
                };
                let layouts: Vec<Layout> = node.operands.iter().map(|&o| layout(o)).collect();
                let forms = layouts.iter().zip(&node.operands).map(|(l, &o)| self.form(o, l));
                forms.collect::<Result<Vec<_>, _>>()?
            }
            Op::Merge { from, into } if own.of(*into) != wanted.of(*into) => {
                let parts = from.clone();
                let positions = parts.iter().copied().find(|&a| self.is_of_tokens(a)).unwrap_or(parts[0]);
                let mut layout = wanted.on(&self.whole.ty(node.operands[0]).axes.clone());
                layout.partial = wanted.partial.clone();
                layout = layout.with(positions, wanted.of(*into));
                self.check_cut(positions, wanted.of(*into), None)?;
                vec![self.form(node.operands[0], &layout)?]
            }
            _ => return Ok(None),
        };
        let mut joint = wanted.clone();
        for form in &operands {
            for (axis, dims) in &form.layout.cut {
                joint.cut.entry(*axis).or_insert_with(|| dims.clone());
            }
        }
        let value = self.emit(value, &joint, &operands);
        Ok(Some(Form { layout: wanted.clone(), value }))
    }

    /// Are elements to be moved that are in the ranks' own order?
    fn moves_mixed(&self, value: ValueId, have: &Layout, wanted: &Layout) -> bool {
        let axes = &self.whole.ty(value).axes;
        axes.iter().any(|a| self.merged.is_mixed(*a) && have.of(*a) != wanted.of(*a))
    }

    /// Is a value made of its operands element by element, or row by row, in whatever layout they are?
    fn is_made_alike(&self, value: ValueId, own: &Layout, wanted: &Layout) -> bool {
        let node = self.whole.node(value);
        let whole = own.partial.is_empty() && wanted.partial.is_empty();
        match &node.op {
            Op::Unary(_) | Op::Cast(_) | Op::Detach | Op::Reorder | Op::Rename { .. } => own.partial == wanted.partial,
            Op::Binary(_) | Op::Select => whole,
            Op::Broadcast(_) => whole && !node.operands.is_empty(),
            Op::Reduce { over, .. } => {
                whole && over.iter().all(|a| self.own(node.operands[0]).of(*a).is_empty() && !self.merged.is_mixed(*a))
            }
            _ => false,
        }
    }

    /// Has a value more bytes than all that it is made from? A mask of queries and keys has.
    fn grows(&self, value: ValueId) -> bool {
        let operands = self.whole.node(value).operands.iter();
        operands.map(|&o| self.whole.bytes(o)).sum::<u64>() < self.whole.bytes(value)
    }

    /// Has a cast's result more bytes than its operand?
    pub(super) fn widens(&self, cast: ValueId) -> bool {
        let bytes = |value: ValueId| self.whole.ty(value).dtype.bytes();
        bytes(cast) > bytes(self.whole.node(cast).operands[0])
    }

    /// A value converted from the layout that its op gave it, or from one that needs less.
    fn converted(&mut self, value: ValueId, wanted: &Layout) -> Result<Form, StrategyError> {
        let is_free = |have: &Layout| {
            let extends = |(a, dims): (&AxisId, &Vec<u32>)| {
                wanted.of(*a).starts_with(dims) && self.same_order(*a, dims, wanted.of(*a))
            };
            have.partial == wanted.partial && have.cut.iter().all(extends)
        };
        let forms = &self.forms[value.index()];
        let form = forms.iter().find(|f| is_free(&f.layout)).unwrap_or(&forms[0]).clone();
        if self.moves_mixed(value, &form.layout, wanted) {
            let axis = self.whole.ty(value).axes.iter().find(|a| self.merged.is_mixed(**a)).expect("one is moved");
            return Err(StrategyError::new(
                format!(
                    "`{}`: ranks that share the positions of a row have the elements of `{}`, into which these are merged, in orders of their own, and need each other's",
                    self.whole.node(value).name,
                    self.whole.axis(*axis).name
                ),
                Some("merge axes only where their elements are looked up".to_string()),
            ));
        }
        let mut steps = Steps { partitioner: self, value, form, wanted };
        steps.rows()?;
        steps.exchange();
        steps.sums();
        steps.join();
        steps.cut();
        let form = steps.form;
        assert_eq!(form.layout, *wanted, "the steps lead from every layout to every other");
        Ok(form)
    }
}

struct Steps<'p, 'a> {
    partitioner: &'p mut Partitioner<'a>,
    value: ValueId,
    form: Form,
    wanted: &'p Layout,
}

impl Steps<'_, '_> {
    /// The dimensions that an axis has to lose: those after the ones that stay.
    fn surplus(&self, axis: AxisId) -> Vec<u32> {
        let (have, wanted) = (self.form.layout.of(axis), self.wanted.of(axis));
        let common = have.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        let common = if self.partitioner.same_order(axis, have, wanted) { common } else { 0 };
        have[common..].to_vec()
    }

    /// The dimensions that an axis has to gain, when it need not lose any before.
    fn missing(&self, axis: AxisId) -> Vec<u32> {
        let (have, wanted) = (self.form.layout.of(axis), self.wanted.of(axis));
        let stays = have.is_empty() || self.partitioner.same_order(axis, have, wanted);
        wanted.strip_prefix(have).filter(|_| stays).unwrap_or_default().to_vec()
    }

    fn plain_axes(&self) -> Vec<AxisId> {
        let whole = self.partitioner.whole;
        let axes = &whole.ty(self.value).axes;
        let ragged = whole.ragged_axis(axes);
        let parent = ragged.and_then(|r| whole.ragged_parent(r));
        axes.iter().copied().filter(|a| Some(*a) != ragged && (Some(*a) != parent || ragged.is_none())).collect()
    }

    fn apply(&mut self, kind: CommKind, group: &[u32], operands: &[ValueId], layout: Layout, sent: u64) {
        let partitioner = &mut *self.partitioner;
        let describe = |layout: &Layout| layout.describe(partitioner.whole, partitioner.mesh);
        let layouts = (describe(&self.form.layout), describe(&layout));
        let comm = Comm { group: group.to_vec(), kind };
        let value = if comm.sends() {
            partitioner.send(self.value, comm, operands, layouts, sent)
        } else {
            let name = format!("{}.{}", partitioner.whole.node(self.value).name, comm.name());
            partitioner.collective(comm.kind, group, operands, &name)
        };
        self.form = Form { layout, value };
    }

    fn ranks(&self, group: &[u32]) -> u64 {
        self.partitioner.mesh.ranks(group)
    }

    /// Rows go to the owners of their groups, or come back.
    fn rows(&mut self) -> Result<(), StrategyError> {
        let whole = self.partitioner.whole;
        let Some(ragged) = whole.ragged_axis(&whole.ty(self.value).axes) else { return Ok(()) };
        let parent = whole.ragged_parent(ragged).expect("ragged axes have parents");
        let (have, wanted) = (self.form.layout.of(parent).to_vec(), self.wanted.of(parent).to_vec());
        if have == wanted {
            return Ok(());
        }
        let name = &whole.axis(ragged).name;
        if !self.partitioner.rows.contains_key(&ragged) {
            return Err(StrategyError::new(
                format!("rows `{name}` that come from another segment cannot be shared"),
                None,
            ));
        }
        // Where parts are wanted, parts travel.
        self.sums_in_parts();
        self.cut();
        let group = if have.is_empty() { wanted.clone() } else { have.clone() };
        let (owned, counts) = self.partitioner.owned_rows(self.value, ragged, &group);
        let local = self.partitioner.rows[&ragged].local;
        let own_parent = self.partitioner.cut_axis(parent, &group);
        let tokens = self.partitioner.rows[&ragged].tokens.clone();
        let (source, owner) = ((parent, local), (own_parent, owned));
        let at_source = self.form.layout.clone().with(parent, &[]).with(ragged, &tokens);
        let sent = self.partitioner.bytes(self.value, &at_source);
        let sent = sent - sent / self.ranks(&group);
        let operands = [self.form.value, counts];
        if have.is_empty() {
            let rest: Vec<u32> = tokens.iter().copied().filter(|d| !group.contains(d)).collect();
            let layout = self.form.layout.clone().with(parent, &group).with(ragged, &rest);
            self.apply(CommKind::Dispatch { from: source, into: owner }, &group, &operands, layout, sent);
        } else {
            self.apply(CommKind::Combine { from: owner, into: source }, &group, &operands, at_source, sent);
        }
        Ok(())
    }

    /// What one axis loses, the innermost dimensions of it at least, another gains.
    fn exchange(&mut self) {
        for joined in self.plain_axes() {
            let surplus = self.surplus(joined);
            let have = self.form.layout.of(joined).to_vec();
            let gains = |s: &Self, a: AxisId| {
                let missing = s.missing(a);
                let rest = &have[..have.len() - missing.len().min(have.len())];
                let (before, after) = (s.form.layout.of(a), s.wanted.of(a));
                a != joined
                    && !missing.is_empty()
                    && surplus.ends_with(&missing)
                    && s.partitioner.same_order(joined, &have, rest)
                    && s.partitioner.same_order(a, before, after)
            };
            let Some(split) = self.plain_axes().into_iter().find(|&a| gains(self, a)) else { continue };
            let group = self.missing(split);
            let layout = &self.form.layout;
            let (before, after) = (layout.of(split).to_vec(), self.wanted.of(split).to_vec());
            let (part, whole) =
                (layout.of(joined).to_vec(), layout.of(joined)[..layout.of(joined).len() - group.len()].to_vec());
            let layout = layout.clone().with(split, &after).with(joined, &whole);
            let mut axis = |a: AxisId, dims: &[u32]| self.partitioner.cut_axis(a, dims);
            let kind = CommKind::AllToAll {
                split: (axis(split, &before), axis(split, &after)),
                join: (axis(joined, &part), axis(joined, &whole)),
            };
            let bytes = self.partitioner.bytes(self.value, &self.form.layout);
            let sent = bytes - bytes / self.ranks(&group);
            self.apply(kind, &group, &[self.form.value], layout, sent);
        }
    }

    /// The dimensions over which sums are wanted and not yet made.
    fn open(&self) -> Vec<u32> {
        self.form.layout.partial.iter().copied().filter(|d| !self.wanted.partial.contains(d)).collect()
    }

    /// Sums what are terms where parts are wanted.
    fn sums_in_parts(&mut self) {
        for axis in self.plain_axes() {
            let group = self.missing(axis);
            let (before, after) = (self.form.layout.of(axis).to_vec(), self.wanted.of(axis).to_vec());
            let in_order = self.partitioner.same_order(axis, &before, &after);
            if group.is_empty() || !in_order || !group.iter().all(|d| self.open().contains(d)) {
                continue;
            }
            let mut layout = self.form.layout.clone().with(axis, &after);
            layout.partial.retain(|d| !group.contains(d));
            let (from, into) = (self.partitioner.cut_axis(axis, &before), self.partitioner.cut_axis(axis, &after));
            let bytes = self.partitioner.bytes(self.value, &self.form.layout);
            let sent = bytes - bytes / self.ranks(&group);
            self.apply(CommKind::ReduceScatter { from, into }, &group, &[self.form.value], layout, sent);
        }
    }

    /// Sums what are terms, in parts where parts are wanted.
    fn sums(&mut self) {
        self.sums_in_parts();
        let group = self.open();
        if !group.is_empty() {
            let mut layout = self.form.layout.clone();
            layout.partial.retain(|d| !group.contains(d));
            let bytes = self.partitioner.bytes(self.value, &self.form.layout);
            let sent = 2 * (bytes - bytes / self.ranks(&group));
            self.apply(CommKind::AllReduce(ReduceKind::Sum), &group, &[self.form.value], layout, sent);
        }
    }

    /// Joins the parts of axes.
    fn join(&mut self) {
        for axis in self.plain_axes() {
            let group = self.surplus(axis);
            if group.is_empty() {
                continue;
            }
            let have = self.form.layout.of(axis).to_vec();
            let rest = have[..have.len() - group.len()].to_vec();
            let from = self.partitioner.cut_axis(axis, &have);
            let in_order = self.partitioner.same_order(axis, &have, &rest);
            let into =
                if in_order { self.partitioner.cut_axis(axis, &rest) } else { self.partitioner.slots_axis(axis) };
            let sent = self.partitioner.bytes(self.value, &self.form.layout) * (self.ranks(&group) - 1);
            let layout = self.form.layout.clone().with(axis, &rest);
            self.apply(CommKind::Unshard { from, into }, &group, &[self.form.value], layout, sent);
            if !in_order {
                self.form.value = self.partitioner.in_row_order(self.form.value, into, axis);
            }
        }
    }

    /// Cuts axes, by dimensions that cut no other.
    fn cut(&mut self) {
        for axis in self.plain_axes() {
            let group = self.missing(axis);
            let taken = self.form.layout.dims();
            if group.is_empty() || group.iter().any(|d| taken.contains(d)) {
                continue;
            }
            let (before, after) = (self.form.layout.of(axis).to_vec(), self.wanted.of(axis).to_vec());
            let (from, into) = (self.partitioner.cut_axis(axis, &before), self.partitioner.cut_axis(axis, &after));
            let layout = self.form.layout.clone().with(axis, &after);
            let in_order = self.partitioner.same_order(axis, &before, &after);
            if !in_order && self.partitioner.trained[self.value.index()] {
                // All ranks reorder alike, so that gradients come back as parts.
                let slots = self.partitioner.slots_axis(axis);
                let positions = self.partitioner.positions_of_slots(slots);
                let value = self.partitioner.reordered(self.form.value, from, positions, "in_slots");
                self.apply(CommKind::Shard { from: slots, into }, &group, &[value], layout, 0);
                continue;
            }
            let counted = !self.partitioner.is_keys(axis) || self.partitioner.balance.in_slots(&after);
            if !in_order || (self.partitioner.is_iota(self.value) && before.is_empty() && counted) {
                let positions = self.partitioner.own_positions(axis, into, &group);
                let value = match self.partitioner.is_iota(self.value) {
                    true => positions,
                    false => self.partitioner.reordered(self.form.value, from, positions, "shard"),
                };
                self.form = Form { value, layout };
                continue;
            }
            self.apply(CommKind::Shard { from, into }, &group, &[self.form.value], layout, 0);
        }
    }
}

impl Partitioner<'_> {
    fn is_iota(&self, value: ValueId) -> bool {
        matches!(self.whole.node(value).op, Op::Iota(_))
    }

    /// Do elements of the axis stand in one order in both layouts?
    fn same_order(&self, axis: AxisId, a: &[u32], b: &[u32]) -> bool {
        self.is_keys(axis) || !self.is_positions(axis) || self.balance.in_slots(a) == self.balance.in_slots(b)
    }

    /// An axis as long as another, for what is in the order of slots.
    fn slots_axis(&mut self, axis: AxisId) -> AxisId {
        let name = format!("{}_slots", self.whole.axis(axis).name);
        self.local.add_axis(&name, Extent::Fixed(self.whole.size(axis)), None)
    }

    /// A value in the order of the row, given in that of slots.
    fn in_row_order(&mut self, value: ValueId, slots: AxisId, axis: AxisId) -> ValueId {
        let here = self.local.add(Op::Iota(axis), &[], "here").expect("positions");
        let numbers = self.slots(here, self.whole.size(axis));
        self.reordered(value, slots, numbers, "in_order")
    }

    /// The rows that arrive for own groups: their axis, and how many come from where. Made once for each ragged axis.
    ///
    /// ```text
    /// sizes[e]            = starts[e + 1] - starts[e]
    /// counts[source, e']  = sizes, each rank's part for its own groups           all_to_all
    /// starts'[e' + 1]     = 0, running sums over e' of the sums over sources
    /// ```
    pub(super) fn owned_rows(&mut self, value: ValueId, ragged: AxisId, group: &[u32]) -> (AxisId, ValueId) {
        if let Some(owned) = self.rows[&ragged].owned {
            return owned;
        }
        let whole = self.whole;
        let parent = whole.ragged_parent(ragged).expect("ragged axes have parents");
        let local = self.rows[&ragged].local;
        let name = whole.axis(ragged).name.clone();
        let own = self.cut_axis(parent, group);
        let ranks = self.mesh.ranks(group);
        let graph = &mut self.local;
        let starts = graph.offsets_of(local).expect("group starts come before what is done with rows");
        let bordered = graph.ty(starts).axes[0];
        let mut add = |op: Op, operands: &[ValueId], what: &str| {
            graph.add(op, operands, &format!("{name}.{what}")).unwrap_or_else(|e| panic!("counting rows: {e}"))
        };
        let ends = add(Op::Slice { from: bordered, into: parent, start: 1 }, &[starts], "ends");
        let begins = add(Op::Slice { from: bordered, into: parent, start: 0 }, &[starts], "begins");
        let sizes = add(Op::Binary(forebay_ir::BinaryOp::Sub), &[ends, begins], "sizes");
        let one = graph.add_axis("one", Extent::Fixed(1), None);
        let source = graph.add_axis("source", Extent::Fixed(ranks), None);
        let ahead = graph
            .add_ordered(Op::Broadcast(vec![one]), &[sizes], &[one, parent], &format!("{name}.to_send"))
            .expect("a new axis of one element");
        let kind = CommKind::AllToAll { split: (parent, own), join: (one, source) };
        let layouts = ("own counts of all experts".to_string(), "all counts of own experts".to_string());
        let bytes = (ranks - 1) * self.local.size(own) * DType::I32.bytes();
        let counts = self.send(value, Comm { group: group.to_vec(), kind }, &[ahead], layouts, bytes);
        let graph = &mut self.local;
        let own_size = graph.size(own);
        let own_starts = graph.add_axis(&format!("{}_starts", graph.axis(own).name), Extent::Fixed(own_size + 1), None);
        let mut add = |op: Op, operands: &[ValueId], what: &str| {
            graph.add(op, operands, &format!("{name}.{what}")).unwrap_or_else(|e| panic!("counting rows: {e}"))
        };
        let received = add(Op::Reduce { kind: ReduceKind::Sum, over: vec![source] }, &[counts], "received");
        let running = add(Op::Scan { axis: own, direction: forebay_ir::Direction::Forward }, &[received], "running");
        let zero = graph.push(Op::Const(0.0), vec![], Type::new(DType::I32, []), "zero");
        let first = graph.add_axis("first", Extent::Fixed(1), None);
        let zero = graph.add(Op::Broadcast(vec![first]), &[zero], "first").expect("a new axis of one element");
        let kind = Op::Concat { from: vec![first, own], into: own_starts };
        let starts = graph.add(kind, &[zero, running], &format!("{name}.starts")).expect("sizes add up");
        // The worst case: all rows of all sources are for this rank.
        let (even, worst) = (graph.size(local), graph.size(local) * ranks);
        let bound = self.max_rows.map_or(worst, |most| most.min(worst));
        let extent = Extent::Ragged { parent: own, bound, even: even.min(bound) };
        let owned = graph.add_axis(&format!("{name}_own"), extent, None);
        graph.offsets.push((owned, starts));
        let rows = self.rows.get_mut(&ragged).expect("just looked at");
        rows.owned = Some((owned, counts));
        (owned, counts)
    }
}
