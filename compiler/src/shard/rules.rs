//! Which layouts an op takes, and which it gives.
//!
//! Each mesh dimension is given to at most one axis of all that an op sees. Who claims it: an operand that is cut by it. Where two axes are claimed
//! for one dimension,
//!
//! * parameters keep their layout: activations are many, and are converted once for all that need them so;
//! * attention over positions of other ranks follows the strategy: heads for positions (Ulysses), or the keys of all ranks, gathered or one part after
//!   another;
//! * else the larger operand stays as it is;
//! * terms of sums of experts' rows are added up in parts of a row where parts are what ranks send.

use super::layout::{Form, Layout};
use super::partition::{Partitioner, Rows, is_linear};
use super::strategy::StrategyError;
use forebay_ir::{AxisId, BinaryOp, Comm, CommKind, DType, Extent, Op, ReduceKind, Type, ValueId};

impl Partitioner<'_> {
    /// Makes a value: operands in the layouts that the op takes, and the op on them.
    pub(super) fn apply(&mut self, value: ValueId) -> Result<(), StrategyError> {
        let node = self.whole.node(value);
        match node.op.clone() {
            Op::Group { ragged } => self.group(value, ragged),
            Op::Offsets { parent, into } => self.offsets(value, parent, into),
            Op::Invert => self.invert(value),
            Op::Gather { axis } => self.gather(value, axis),
            Op::Reduce { kind: kind @ (ReduceKind::Max | ReduceKind::Min), over } => self.extremum(value, kind, &over),
            Op::Random { .. } if self.whole.ragged_axis(&node.ty.axes).is_some() => Err(StrategyError::new(
                format!("`{}`: random numbers for the rows of experts depend on how ranks share them", node.name),
                Some("draw them before rows are grouped".to_string()),
            )),
            _ => self.plain(value, &[]),
        }
    }

    /// An op that works on each element, or sums; `whole` are the axes that it has to see as a whole.
    fn plain(&mut self, value: ValueId, whole: &[AxisId]) -> Result<(), StrategyError> {
        let node = self.whole.node(value);
        let mut whole = whole.to_vec();
        whole.extend(self.seen_whole(value));
        let mut joint = self.joint(value, &whole);
        let wanted: Vec<Layout> = node
            .operands
            .iter()
            .map(|&o| Layout { partial: self.kept_sums(o, &joint), ..joint.on(&self.whole.ty(o).axes) })
            .collect();
        let forms = wanted.iter().zip(&node.operands).map(|(l, &o)| self.form(o, l)).collect::<Result<Vec<_>, _>>()?;
        self.carry_over(value, &mut joint);
        let mut layout = joint.on(&node.ty.axes);
        layout.partial = joint.partial.clone();
        if let Op::Contract { over } | Op::Reduce { over, .. } | Op::ScatterAdd { over, .. } = &node.op {
            over.iter().for_each(|a| layout.partial.extend(joint.of(*a)));
            layout.partial.sort_unstable();
            layout.partial.dedup();
        }
        let local = self.emit(value, &joint, &forms);
        let local = self.keys_in_slots(value, local, &layout);
        self.forms[value.index()].push(Form { layout, value: local });
        Ok(())
    }

    /// A value with all keys, in the order of their slots; one in the order of positions is permuted into it.
    fn keys_in_slots(&mut self, value: ValueId, local: ValueId, layout: &Layout) -> ValueId {
        match self.whole.node(value).op {
            Op::Iota(axis) if self.is_keys(axis) => self.positions_of_slots(axis),
            Op::Rename { from, to } if self.is_keys(to) && !self.is_keys(from) && layout.of(to).is_empty() => {
                let operand = self.local.node(local).operands[0];
                let positions = self.positions_of_slots(to);
                self.reordered(operand, from, positions, "in_slots")
            }
            _ => local,
        }
    }

    /// The sums that an operand may stay.
    fn kept_sums(&self, operand: ValueId, joint: &Layout) -> Vec<u32> {
        self.own(operand).partial.iter().copied().filter(|d| joint.partial.contains(d)).collect()
    }

    /// Axes that an op cannot work on in parts.
    fn seen_whole(&self, value: ValueId) -> Vec<AxisId> {
        let node = self.whole.node(value);
        match &node.op {
            Op::Scan { axis, .. } | Op::Take { axis, .. } | Op::Stack(axis) | Op::Iota(axis) => vec![*axis],
            Op::LinearAttention(op) => op.over.iter().chain([&op.axis]).copied().collect(),
            Op::TopK { axis, into } => vec![*axis, *into],
            Op::Slice { from, into, .. } | Op::Pad { from, into, .. } => vec![*from, *into],
            Op::Concat { from, into } => from.iter().chain([into]).copied().collect(),
            // What keys are made of comes in the order of slots, or is brought into it as a whole.
            Op::Rename { from, to } if self.is_keys(*to) && !self.is_keys(*from) => {
                let in_slots = self.balance.in_slots(self.own(node.operands[0]).of(*from));
                if in_slots { vec![] } else { vec![*from] }
            }
            // Under a name that is not one of keys they have the order of the row, which the ring's parts have not.
            Op::Rename { from, to } if self.is_positions(*from) && !self.is_positions(*to) && !self.is_keys(*to) => {
                let in_slots = self.balance.in_slots(self.own(node.operands[0]).of(*from));
                if in_slots { vec![*from] } else { vec![] }
            }
            Op::ScatterAdd { axis, .. } => vec![*axis],
            Op::Random { .. } | Op::Const(_) => node.ty.axes.clone(),
            Op::Broadcast(axes) => axes.clone(),
            Op::Split { from, into } => {
                if let Some(at) = self.merged.cut_part(*from, into) {
                    return into.iter().copied().enumerate().filter(|(i, _)| *i != at).map(|(_, a)| a).collect();
                }
                let dims = self.own(node.operands[0]).of(*from);
                let divides = self.whole.size(into[0]).is_multiple_of(self.mesh.ranks(dims));
                let in_order = !self.is_positions(*from) || !self.balance.in_slots(dims);
                if divides && in_order && !self.merged.is_mixed(*from) {
                    into[1..].to_vec()
                } else {
                    [&[*from], &into[..]].concat()
                }
            }
            Op::Merge { from, .. } => {
                // One of the axes may be cut: positions, which only ranks' own numbers look up, or else the outermost.
                let positions = from.iter().position(|&a| self.is_of_tokens(a));
                let stays = positions.unwrap_or(0);
                from.iter().enumerate().filter(|(i, _)| *i != stays).map(|(_, a)| *a).collect()
            }
            _ => vec![],
        }
    }

    /// Says of the axes that an op makes what holds of those that they are made from.
    fn carry_over(&mut self, value: ValueId, joint: &mut Layout) {
        let whole = self.whole;
        let node = whole.node(value);
        let moved = |joint: &mut Layout, from: AxisId, to: AxisId| {
            let dims = joint.of(from).to_vec();
            *joint = joint.clone().with(to, &dims);
        };
        match &node.op {
            Op::Rename { from, to } => moved(joint, *from, *to),
            Op::Split { from, into } => moved(joint, *from, into[self.merged.cut_part(*from, into).unwrap_or(0)]),
            // A copy for each row is a copy for each row of the rank.
            Op::Broadcast(axes) => {
                let Some((ragged, rows)) = axes.iter().find_map(|a| Some((*a, self.rows.get(a)?))) else { return };
                let mut dims = rows.tokens.clone();
                let owners = joint.of(whole.ragged_parent(ragged).expect("ragged axes have parents")).to_vec();
                if !owners.is_empty() {
                    dims.retain(|d| !owners.contains(d));
                    self.owned_rows(value, ragged, &owners);
                }
                *joint = joint.clone().with(ragged, &dims);
            }
            Op::Merge { from, into } => {
                let Some(cut) = from.iter().position(|a| !joint.of(*a).is_empty()) else { return };
                moved(joint, from[cut], *into);
            }
            _ => {}
        }
    }

    /// One layout for all axes of an op's operands: whose dimension is whose.
    fn joint(&self, value: ValueId, whole: &[AxisId]) -> Layout {
        let mut joint = Layout::default();
        let mut won: Vec<(AxisId, u32)> = vec![];
        for dim in 0..self.mesh.dims.len() as u32 {
            match self.winner(value, dim, whole, &won) {
                Winner::Axis(axis) => won.push((axis, dim)),
                Winner::Sum => joint.partial.push(dim),
                Winner::Nobody => {}
            }
        }
        // The order of an axis's dimensions is that of the operand in which most of them are there already.
        for &(axis, _) in &won {
            let of_axis: Vec<u32> = won.iter().filter(|(a, _)| *a == axis).map(|(_, d)| *d).collect();
            let lists = self.whole.node(value).operands.iter().map(|&o| self.own(o).of(axis));
            let known = lists.filter(|l| l.iter().all(|d| of_axis.contains(d))).max_by_key(|l| l.len()).unwrap_or(&[]);
            let rest = of_axis.iter().copied().filter(|d| !known.contains(d));
            let dims: Vec<u32> = known.iter().copied().chain(rest).collect();
            joint.cut.insert(axis, dims);
        }
        joint
    }

    /// Who gets a dimension.
    fn winner(&self, value: ValueId, dim: u32, whole: &[AxisId], won: &[(AxisId, u32)]) -> Winner {
        let node = self.whole.node(value);
        let allowed = |a: &AxisId| !whole.contains(a);
        let claims: Vec<(usize, AxisId)> =
            node.operands.iter().enumerate().filter_map(|(i, &o)| Some((i, self.own(o).axis_of(dim)?))).collect();
        let is_weight = |i: usize| self.weights[node.operands[i].index()].is_some();
        if let Some(&(_, axis)) = claims.iter().find(|(i, _)| is_weight(*i)) {
            return Winner::Axis(axis);
        }
        let sums: Vec<usize> =
            (0..node.operands.len()).filter(|&i| self.own(node.operands[i]).partial.contains(&dim)).collect();
        if !sums.is_empty() && self.stays_sum(value, dim, &sums, &claims) {
            return Winner::Sum;
        }
        if let Op::Contract { over } = &node.op
            && let Some(winner) = self.of_product(value, over, dim, &claims, won)
        {
            return winner;
        }
        let bytes = |i: usize| self.bytes(node.operands[i], self.own(node.operands[i]));
        let mut allowed_claims: Vec<(usize, AxisId)> = claims.iter().copied().filter(|(_, a)| allowed(a)).collect();
        // The larger operand stays where it is. Of equals it is the one of positions: what is wanted of all of them (keys) is gathered.
        allowed_claims.sort_by_key(|(i, axis)| (std::cmp::Reverse(bytes(*i)), !self.is_positions(*axis)));
        if let Some((_, axis)) = allowed_claims.first() {
            return Winner::Axis(*axis);
        }
        // Rows that ranks send parts of are added up in parts.
        if let [sum, ..] = sums[..]
            && self.row_part_dims.contains(&dim)
            && let Some(rows) = self.whole.ragged_axis(&self.whole.ty(node.operands[sum]).axes)
            && let Some(width) = self.width_of_rows(node.operands[sum], rows)
            && node.ty.has(width)
            && allowed(&width)
            && self.divides(width, dim, won)
        {
            return Winner::Axis(width);
        }
        // What remembers positions sees all of them, of some heads.
        if let Op::LinearAttention(op) = &node.op
            && claims.iter().any(|(_, axis)| *axis == op.axis)
            && let Some(heads) = self.heads(node.operands[2], &[op.axis], dim, won)
        {
            return Winner::Axis(heads);
        }
        // What was claimed cannot stay: where positions are at home is as good a place, and costs no more than anywhere else.
        if !sums.is_empty() || !claims.is_empty() {
            let from: Vec<ValueId> =
                sums.iter().copied().chain(claims.iter().map(|c| c.0)).map(|i| node.operands[i]).collect();
            if let Some(axis) = self.at_home(&from, dim, won).filter(allowed) {
                return Winner::Axis(axis);
            }
        }
        Winner::Nobody
    }

    /// The axis of positions that all these values have, if the dimension may cut it.
    fn at_home(&self, values: &[ValueId], dim: u32, won: &[(AxisId, u32)]) -> Option<AxisId> {
        if !self.home.contains(&dim) {
            return None;
        }
        let axes = &self.whole.ty(*values.first()?).axes;
        let axis = axes.iter().copied().find(|&a| self.is_positions(a))?;
        let all = values.iter().all(|&v| self.whole.ty(v).has(axis));
        (all && self.divides(axis, dim, won)).then_some(axis)
    }

    /// Can the dimension cut the axis as well?
    fn divides(&self, axis: AxisId, dim: u32, won: &[(AxisId, u32)]) -> bool {
        let dims: Vec<u32> = won.iter().filter(|(a, _)| *a == axis).map(|(_, d)| *d).chain([dim]).collect();
        !self.whole.is_ragged(axis) && self.whole.size(axis).is_multiple_of(self.mesh.ranks(&dims))
    }

    /// Does the op wait for the sum over a dimension of these operands? Not when another one would have to be gathered that is larger than the sum, when the
    /// sum is there already because others read it, or when what is summed would be wider: the narrow sum is sent, and widened where it arrives.
    fn stays_sum(&self, value: ValueId, dim: u32, sums: &[usize], claims: &[(usize, AxisId)]) -> bool {
        let node = self.whole.node(value);
        if matches!(node.op, Op::Contract { .. }) {
            return false;
        }
        if let Op::Binary(BinaryOp::Add | BinaryOp::Sub) = node.op {
            return sums.len() == 2;
        }
        let [sum] = sums[..] else { return false };
        let widens = matches!(node.op, Op::Cast(_)) && self.widens(value);
        let repeated = node.operands.iter().filter(|&&o| o == node.operands[sum]).count() > 1;
        if repeated || !is_linear(self.whole, value, sum) || widens {
            return false;
        }
        let forms = &self.forms[node.operands[sum].index()];
        if forms.iter().any(|form| !form.layout.partial.contains(&dim)) {
            return false;
        }
        let bytes = |i: usize| self.bytes(node.operands[i], &self.own(node.operands[i]).whole());
        claims.iter().all(|&(i, _)| i != sum && 2 * bytes(i) <= bytes(sum))
    }

    /// What a product with parameters, or one of two activations, does with a dimension that is claimed.
    fn of_product(
        &self,
        value: ValueId,
        over: &[AxisId],
        dim: u32,
        claims: &[(usize, AxisId)],
        won: &[(AxisId, u32)],
    ) -> Option<Winner> {
        let node = self.whole.node(value);
        let weight = (0..2).find(|&i| self.weights[node.operands[i].index()].is_some());
        match (weight, claims) {
            // A cut summed axis would cut the parameter too, which stays as it is.
            (Some(weight), [(i, axis)]) if over.contains(axis) && *i != weight => {
                let home = self.at_home(&[node.operands[*i]], dim, won);
                Some(home.map_or(Winner::Nobody, Winner::Axis))
            }
            (None, [(a, first), (b, second)]) if first != second => {
                let query = [(*a, *first), (*b, *second)].into_iter().find(|(_, axis)| self.is_positions(*axis));
                let (operand, positions) = query?;
                if !self.heads_for_positions.contains(&dim) {
                    return Some(Winner::Axis(positions));
                }
                Some(Winner::Axis(self.heads(node.operands[operand], over, dim, won).unwrap_or(positions)))
            }
            _ => None,
        }
    }

    /// An axis of a query that can be cut instead of its positions.
    fn heads(&self, query: ValueId, over: &[AxisId], dim: u32, won: &[(AxisId, u32)]) -> Option<AxisId> {
        let is_batch = |a: AxisId| self.whole.axis(a).label.as_deref() == Some("batch");
        let axes = self.whole.ty(query).axes.iter().copied();
        let mut axes = axes.filter(|a| !over.contains(a) && !self.is_positions(*a) && !is_batch(*a));
        // What cuts the axis already in the query stays.
        axes.find(|&a| {
            let dims: Vec<u32> = self.own(query).of(a).to_vec();
            let with: Vec<(AxisId, u32)> = won
                .iter()
                .copied()
                .chain(dims.into_iter().filter(|d| !won.contains(&(a, *d))).map(|d| (a, d)))
                .collect();
            self.divides(a, dim, &with)
        })
    }

    /// A node on the ranks: the op over their axes, operands as they are.
    pub(super) fn emit(&mut self, value: ValueId, joint: &Layout, forms: &[Form]) -> ValueId {
        let node = self.whole.node(value).clone();
        let mut dims = joint.dims();
        forms.iter().for_each(|f| dims.extend(f.layout.dims()));
        let operands: Vec<ValueId> =
            node.operands.iter().zip(forms).map(|(&o, form)| self.varied(o, form, &dims)).collect();
        let op = node.op.map_axes(|a| self.axis(a, joint));
        let ty = self.local_type(&node.ty, joint);
        match op {
            Op::Const(_) | Op::Random { .. } => self.local.push(op, operands, ty, &node.name),
            _ => self
                .local
                .add_ordered(op, &operands, &ty.axes, &node.name)
                .unwrap_or_else(|e| panic!("`{}` on the ranks: {e}", node.name)),
        }
    }

    /// The extremum over an axis that is cut: of each part, then of all ranks. It has no gradient then; where one is wanted the axis is gathered.
    fn extremum(&mut self, value: ValueId, kind: ReduceKind, over: &[AxisId]) -> Result<(), StrategyError> {
        let x = self.whole.node(value).operands[0];
        let own = self.own(x).clone();
        let group: Vec<u32> = over.iter().flat_map(|a| own.of(*a)).copied().collect();
        let needs_gradient =
            self.trained[x.index()] && !self.readers(value).iter().all(|v| self.whole.node(*v).op == Op::Detach);
        if group.is_empty() || needs_gradient {
            return self.plain(value, over);
        }
        let form = self.form(x, &own.whole())?;
        let part = self.emit(value, &own.whole(), &[form]);
        let layout = own.on(&self.whole.ty(value).axes.clone());
        let bytes = self.bytes(value, &layout);
        let sent = 2 * (bytes - bytes / self.mesh.ranks(&group));
        let layouts = (own.describe(self.whole, self.mesh), layout.describe(self.whole, self.mesh));
        let comm = Comm { group, kind: CommKind::AllReduce(kind) };
        let all = self.send(value, comm, &[part], layouts, sent);
        self.forms[value.index()].push(Form { layout, value: all });
        Ok(())
    }

    /// How the tokens that experts' rows come from are cut: by everything but the ranks that share the width of an expert, so that no two ranks do
    /// the same rows.
    fn token_layout(&self, chosen: ValueId) -> Layout {
        let axes = &self.whole.ty(chosen).axes;
        let own = self.own(chosen).whole();
        let positions = axes.iter().copied().find(|&a| self.is_positions(a));
        let wide = |d: &u32| self.expert_width_dims.contains(d);
        let Some(positions) = positions else { return own.without(&self.expert_width_dims) };
        let mut dims: Vec<u32> = own.of(positions).iter().copied().filter(|d| !wide(d)).collect();
        use super::mesh::Dense::{Cp, Tp};
        for dim in [self.mesh.dense(Cp), self.mesh.dense(Tp)].concat() {
            let won: Vec<(AxisId, u32)> = dims.iter().map(|&d| (positions, d)).collect();
            if !wide(&dim) && !dims.contains(&dim) && own.axis_of(dim).is_none() && self.divides(positions, dim, &won) {
                dims.push(dim);
            }
        }
        own.with(positions, &dims)
    }

    /// Groups the ranks' own rows.
    fn group(&mut self, value: ValueId, ragged: AxisId) -> Result<(), StrategyError> {
        let chosen = self.whole.node(value).operands[0];
        let layout = self.token_layout(chosen);
        let form = self.form(chosen, &layout)?;
        let parent = self.whole.ragged_parent(ragged).expect("ragged axes have parents");
        let elements = self.local.numel(self.local.ty(form.value));
        let name = self.whole.axis(ragged).name.clone();
        let local = self.local.add_axis(&name, Extent::Ragged { parent, bound: elements, even: elements }, None);
        let tokens = layout.dims();
        if let Some(dim) = self.expert_dims.iter().find(|d| self.is_within_rows(**d) && !tokens.contains(d)) {
            return Err(StrategyError::new(
                format!(
                    "`{}`: the tokens of a row cannot be cut over `{}`, over which experts are shared",
                    self.whole.node(value).name,
                    self.mesh.dims[*dim as usize].name
                ),
                Some("use a seq that ep divides".to_string()),
            ));
        }
        self.rows.insert(ragged, Rows { tokens: tokens.clone(), local, owned: None });
        let node = self.whole.node(value);
        let op = Op::Group { ragged: local };
        let rows = self.local.add(op, &[form.value], &node.name).expect("as many rows as elements");
        self.forms[value.index()].push(Form { layout: Layout::default().with(ragged, &tokens), value: rows });
        Ok(())
    }

    /// Does the dimension join ranks that have the same rows of data?
    fn is_within_rows(&self, dim: u32) -> bool {
        use super::mesh::Dense::{Cp, Ring, Tp};
        matches!(self.mesh.kinds[dim as usize].0, Ring | Cp | Tp)
    }

    fn offsets(&mut self, value: ValueId, parent: AxisId, into: AxisId) -> Result<(), StrategyError> {
        let node = self.whole.node(value);
        let layout = self.token_layout(node.operands[0]);
        let form = self.form(node.operands[0], &layout)?;
        let starts = self.local.add(Op::Offsets { parent, into }, &[form.value], &node.name).expect("the same groups");
        for (ragged, _) in self.whole.offsets.iter().filter(|(_, v)| *v == value) {
            let rows = self
                .rows
                .get(ragged)
                .ok_or_else(|| StrategyError::new("rows are counted before they are grouped", None))?;
            self.local.offsets.push((rows.local, starts));
        }
        self.forms[value.index()].push(Form { layout: Layout::default(), value: starts });
        Ok(())
    }

    fn invert(&mut self, value: ValueId) -> Result<(), StrategyError> {
        let node = self.whole.node(value);
        let rows = node.operands[0];
        let Op::Group { .. } = self.whole.node(rows).op else {
            return Err(StrategyError::new(format!("`{}` inverts what is no grouping", node.name), None));
        };
        let layout = self.token_layout(self.whole.node(rows).operands[0]);
        let own = self.own(rows).clone();
        let form = self.form(rows, &own)?;
        let ty = self.local_type(&node.ty, &layout);
        let place =
            self.local.add_ordered(Op::Invert, &[form.value], &ty.axes, &node.name).expect("a place for each row");
        self.forms[value.index()].push(Form { layout: layout.on(&node.ty.axes), value: place });
        Ok(())
    }

    /// Looks up. In an axis that is cut each rank looks up what it has, and the results are terms of a sum; rows and tokens are looked up by the
    /// ranks' own numbers.
    fn gather(&mut self, value: ValueId, axis: AxisId) -> Result<(), StrategyError> {
        let node = self.whole.node(value);
        let (x, index) = (node.operands[0], node.operands[1]);
        let rows =
            [self.whole.ragged_axis(&self.whole.ty(index).axes), Some(axis).filter(|a| self.whole.is_ragged(*a))];
        let by_own_numbers = rows[1].is_some() || rows[0].is_some() && self.is_of_tokens(axis);
        if by_own_numbers {
            return self.gather_rows(value, axis);
        }
        let group = self.own(x).of(axis).to_vec();
        // What is smaller than the results (and often there as a whole already) is not worth a sum of them.
        let gathered = self.weights[x.index()].is_none() && self.whole.bytes(x) < self.whole.bytes(value);
        // Elements that ranks have in orders of their own are not found by their numbers.
        if group.is_empty() || gathered || self.merged.is_mixed(axis) {
            return self.plain(value, &[axis]);
        }
        // The index as every rank has it; the sum comes back in parts where parts are wanted.
        let mut joint = self.joint(value, &[]);
        joint = joint.without(&group);
        joint.partial.retain(|d| !group.contains(d));
        joint.cut.insert(axis, group.clone());
        let x_form =
            self.form(x, &Layout { partial: self.kept_sums(x, &joint), ..joint.on(&self.whole.ty(x).axes.clone()) })?;
        let index_form = self.form(index, &joint.on(&self.whole.ty(index).axes.clone()))?;
        let looked_up = self.masked_gather(value, axis, &joint, &x_form, &index_form);
        let mut layout = joint.on(&node.ty.axes);
        layout.partial = joint.partial.iter().chain(&group).copied().collect();
        layout.partial.sort_unstable();
        self.forms[value.index()].push(Form { layout, value: looked_up });
        Ok(())
    }

    /// ```text
    /// own  = index - rank · part            here = 0 <= own < part
    /// y    = where(here, x[clamped own], 0)
    /// ```
    fn masked_gather(&mut self, value: ValueId, axis: AxisId, joint: &Layout, x: &Form, index: &Form) -> ValueId {
        let node = self.whole.node(value).clone();
        let group = joint.of(axis).to_vec();
        let cut = self.axis(axis, joint);
        let part = self.local.size(cut) as f64;
        let rank = self.coordinate(&group);
        // A position is looked up where it lies.
        let index = match self.is_positions(axis) && self.balance.in_slots(&group) {
            true => self.slots(index.value, self.whole.size(axis)),
            false => index.value,
        };
        let mut dims = joint.dims();
        dims.extend(&x.layout.partial);
        let x = self.varied(node.operands[0], x, &dims);
        let result = self.local_type(&node.ty, joint);
        let graph = &mut self.local;
        let integer =
            |graph: &mut forebay_ir::Graph, n: f64| graph.push(Op::Const(n), vec![], Type::new(DType::I32, []), "c");
        let (size, zero, last) = (integer(graph, part), integer(graph, 0.0), integer(graph, part - 1.0));
        let add = |graph: &mut forebay_ir::Graph, op: Op, operands: &[ValueId], what: &str| {
            let name = format!("{}.{what}", node.name);
            graph.add(op, operands, &name).unwrap_or_else(|e| panic!("`{name}`: {e}"))
        };
        let binary = Op::Binary;
        let first = add(graph, binary(BinaryOp::Mul), &[rank, size], "first");
        let own = add(graph, binary(BinaryOp::Sub), &[index, first], "own");
        let from = add(graph, binary(BinaryOp::Ge), &[own, zero], "from");
        let to = add(graph, binary(BinaryOp::Le), &[own, last], "to");
        let here = add(graph, binary(BinaryOp::And), &[from, to], "here");
        let raised = add(graph, binary(BinaryOp::Max), &[own, zero], "raised");
        let clamped = add(graph, binary(BinaryOp::Min), &[raised, last], "clamped");
        let looked_up = add(graph, Op::Gather { axis: cut }, &[x, clamped], "part");
        let dtype = node.ty.dtype;
        let nothing = graph.push(Op::Const(0.0), vec![], Type::new(dtype, []), "c");
        graph
            .add_ordered(Op::Select, &[here, looked_up, nothing], &result.axes, &node.name)
            .expect("the axes of the result")
    }

    /// Is the axis made of a row's positions, so that elements are numbered by token?
    pub(super) fn is_of_tokens(&self, axis: AxisId) -> bool {
        self.is_positions(axis) || self.merged.is_of_tokens(axis)
    }

    /// A look-up by numbers of the ranks' own rows or tokens.
    fn gather_rows(&mut self, value: ValueId, axis: AxisId) -> Result<(), StrategyError> {
        let node = self.whole.node(value);
        let (x, index) = (node.operands[0], node.operands[1]);
        let (x_axes, index_axes) = (self.whole.ty(x).axes.clone(), self.whole.ty(index).axes.clone());
        let ragged = Some(axis).filter(|a| self.whole.is_ragged(*a)).or_else(|| self.whole.ragged_axis(&index_axes));
        let ragged = ragged.expect("one of the two has rows");
        let Some(rows) = self.rows.get(&ragged) else {
            return Err(StrategyError::new(
                format!("rows `{}` that come from another segment cannot be shared", self.whole.axis(ragged).name),
                None,
            ));
        };
        let tokens = rows.tokens.clone();
        let parent = self.whole.ragged_parent(ragged).expect("ragged axes have parents");
        // Everything else of x stays as it is.
        let mut joint = self.joint(value, &[parent, axis]);
        joint = joint.without(&tokens);
        joint.partial.retain(|d| !tokens.contains(d));
        if let Some(width) = self.width_in_parts(x, axis) {
            self.rows_in_parts = true;
            let parts = self.row_part_dims.clone();
            joint = joint.without(&parts).with(width, &parts);
            joint.partial.retain(|d| !parts.contains(d));
        }
        let x_wanted = Layout { partial: self.kept_sums(x, &joint), ..joint.on(&x_axes) }.with(axis, &tokens);
        let index_own = self.own(index).on(&index_axes);
        let index_wanted = if index_own.of(ragged).is_empty() {
            self.by_tokens(&index_own, &index_axes, &tokens)
        } else {
            index_own.with(parent, &[]).with(ragged, &tokens)
        };
        let forms = [self.form(x, &x_wanted)?, self.form(index, &index_wanted)?];
        let mut layout = Layout { partial: joint.partial.clone(), ..joint.clone() };
        index_wanted.cut.iter().for_each(|(a, d)| drop(layout.cut.insert(*a, d.clone())));
        let mut all = layout.clone().with(axis, &tokens);
        all.partial.clear();
        let local = self.emit(value, &all, &forms);
        let partial = layout.partial.clone();
        let layout = Layout { partial, ..layout.on(&node.ty.axes) };
        self.forms[value.index()].push(Form { layout, value: local });
        Ok(())
    }

    /// The axis of a row's elements, of a value with rows along an axis: the longest.
    fn width_of_rows(&self, x: ValueId, rows: AxisId) -> Option<AxisId> {
        let parent = self.whole.ragged_parent(rows);
        let of_a_row = self.whole.ty(x).axes.iter().copied().filter(|&a| a != rows && Some(a) != parent);
        of_a_row.max_by_key(|&a| self.whole.size(a))
    }

    /// The axis of a row's elements, where ranks that share the width of an expert send parts of it.
    fn width_in_parts(&self, x: ValueId, rows: AxisId) -> Option<AxisId> {
        let width = self.width_of_rows(x, rows).filter(|_| !self.row_part_dims.is_empty())?;
        self.whole.size(width).is_multiple_of(self.mesh.ranks(&self.row_part_dims)).then_some(width)
    }

    /// The layout of an index by token: positions cut as the rows' tokens are.
    fn by_tokens(&self, own: &Layout, axes: &[AxisId], tokens: &[u32]) -> Layout {
        match axes.iter().copied().find(|&a| self.is_positions(a)) {
            Some(positions) => own.clone().with(positions, tokens),
            None => own.clone(),
        }
    }
}

/// Who gets a mesh dimension.
enum Winner {
    Axis(AxisId),
    /// The result is a sum over it.
    Sum,
    Nobody,
}
