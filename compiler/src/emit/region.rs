//! Regions: a cluster of nodes as one kernel over an iteration space.

use super::index::{Lookup, Target};
use super::places::Place;
use super::units::{Cluster, Units};
use super::{Emitter, dtype};
use forebay_ir::{AxisId, BinaryOp, Op, ReduceKind, Type, UnaryOp, ValueId};
use forebay_plan::{self as plan, Arg, Kernel, StepOp};
use rustc_hash::FxHashMap;

/// A region that is being written.
pub(super) struct Builder {
    /// Axes of the iteration space in order, without parents of ragged axes.
    axes: Vec<AxisId>,
    region: plan::Region,
    args: FxHashMap<ValueId, Arg>,
}

impl Emitter<'_> {
    pub(super) fn region(&mut self, units: &Units, cluster: &Cluster) {
        if let [value] = cluster.members[..]
            && matches!(self.graph.node(value).op, Op::Gather { .. })
        {
            let (place, lookup) = (self.places.dest(value), self.lookup(units, value));
            if lookup.divide == 1 && self.places.is_contiguous(self.graph.ty(value), &place) {
                return self.gather(value, &lookup);
            }
        }
        let axes = self.iteration_order(cluster);
        let mut builder = self.builder(axes, cluster.row.len());
        for &value in &cluster.members {
            self.member(units, &mut builder, value);
        }
        let stored: Vec<ValueId> = cluster.members.iter().copied().filter(|&v| self.places.is_needed(v)).collect();
        for &value in &stored {
            let place = self.places.dest(value);
            builder.store(builder.args[&value], &place);
        }
        let name = stored.last().or(cluster.members.last()).map(|&v| self.name(v)).expect("a region has members");
        if !builder.region.stores.is_empty() {
            self.push(&name, Kernel::Region(builder.finish()));
        }
    }

    /// A region that copies a value to a place.
    pub(super) fn copy(&mut self, value: ValueId, to: Place, name: &str) {
        let ty = self.graph.ty(value).clone();
        let from = self.place(value);
        self.copy_place(&ty, &from, &to, name);
    }

    /// A region that copies a value of a type from one place to another.
    pub(super) fn copy_place(&mut self, ty: &Type, from: &Place, to: &Place, name: &str) {
        let axes = self.graph.dims(&ty.axes).into_iter().map(|(a, _)| a).collect();
        let mut builder = self.builder(axes, 0);
        let load = builder.load(from);
        builder.store(load, to);
        self.push(name, Kernel::Region(builder.finish()));
    }

    /// A region that fills the whole of a value with zeros.
    pub(super) fn fill_zero(&mut self, ty: &Type, to: &Place, name: &str) {
        let axes = self.graph.dims(&ty.axes).into_iter().map(|(a, _)| a).collect();
        let mut builder = self.builder(axes, 0);
        // Rows past the last group are meant above all.
        builder.region.ragged = None;
        let zero = builder.step(StepOp::Cast, dtype(ty.dtype), vec![Arg::Const(0.0)]);
        builder.store(zero, to);
        self.push(name, Kernel::Region(builder.finish()));
    }

    /// Where a value is; what cannot be seen through strides is copied first.
    pub(super) fn place(&mut self, value: ValueId) -> Place {
        loop {
            match self.places.find(value) {
                Ok(place) => return place,
                Err(scattered) => {
                    let ty = self.graph.ty(scattered).clone();
                    let name = format!("{}.pack", self.name(scattered));
                    let to = self.places.scratch_place(&name, &ty);
                    self.copy(scattered, to.clone(), &name);
                    self.places.move_to(scattered, to);
                }
            }
        }
    }

    /// A value as a contiguous buffer in the order of its type.
    pub(super) fn packed(&mut self, value: ValueId) -> u32 {
        let place = self.place(value);
        let ty = self.graph.ty(value).clone();
        if self.places.is_contiguous(&ty, &place) {
            return place.buffer;
        }
        let name = format!("{}.pack", self.name(value));
        let to = self.places.scratch_place(&name, &ty);
        self.copy(value, to.clone(), &name);
        to.buffer
    }

    /// The order of the first member that has all axes, with the row innermost.
    fn iteration_order(&self, cluster: &Cluster) -> Vec<AxisId> {
        let ty = |v: ValueId| match self.graph.node(v).op {
            Op::Reduce { .. } => self.graph.ty(self.graph.node(v).operands[0]),
            _ => self.graph.ty(v),
        };
        let full = |v: &ValueId| ty(*v).axes.len() == cluster.space.len();
        let leader = cluster.members.iter().copied().find(full).expect("the member that began the region has its axes");
        let dims: Vec<AxisId> = self.graph.dims(&ty(leader).axes).into_iter().map(|(a, _)| a).collect();
        let (row, mut outer): (Vec<AxisId>, Vec<AxisId>) = dims.into_iter().partition(|a| cluster.row.contains(a));
        outer.extend(row);
        outer
    }

    /// A region over these axes, the last `row` of them its row.
    pub(super) fn builder(&mut self, axes: Vec<AxisId>, row: usize) -> Builder {
        let dims = axes.iter().map(|&a| self.graph.size(a)).collect();
        let ragged = self.ragged_limit(&axes);
        let row_dims = row.max(1).min(axes.len()) as u32;
        let region = plan::Region { dims, row_dims, ragged, loads: vec![], steps: vec![], stores: vec![] };
        Builder { axes, region, args: FxHashMap::default() }
    }

    /// The run-time limit of a ragged dimension among these.
    pub(super) fn ragged_limit(&mut self, axes: &[AxisId]) -> Option<plan::RaggedLimit> {
        let ragged = self.graph.ragged_axis(axes)?;
        let dim = axes.iter().position(|&a| a == ragged)? as u32;
        // Where nobody needs to know the groups, all rows up to the bound are worked on.
        self.graph.offsets_of(ragged)?;
        let (offsets, groups) = self.group_starts(ragged);
        Some(plan::RaggedLimit { dim, offsets, groups, even: self.graph.even_size(ragged) })
    }

    /// The buffer of the group starts of a ragged axis, and how many groups there are.
    pub(super) fn group_starts(&mut self, ragged: AxisId) -> (u32, u64) {
        let value = self.graph.offsets_of(ragged).expect("verified: a ragged axis has group starts");
        let groups = self.graph.size(self.graph.ragged_parent(ragged).expect("ragged axes have parents"));
        (self.packed(value), groups)
    }

    fn member(&mut self, units: &Units, builder: &mut Builder, value: ValueId) {
        let node = self.graph.node(value).clone();
        if matches!(node.op, Op::Gather { .. }) {
            let lookup = self.lookup(units, value);
            let arg = builder.load_through(&lookup);
            builder.args.insert(value, arg);
            return;
        }
        let args: Vec<Arg> = node.operands.iter().map(|&o| self.operand(units, builder, o)).collect();
        let to = dtype(node.ty.dtype);
        let same_type = |o: ValueId| self.graph.ty(o).dtype == node.ty.dtype;
        let arg = match &node.op {
            Op::Const(c) => Arg::Const(*c),
            Op::Iota(axis) => match builder.axes.iter().position(|a| a == axis) {
                Some(dim) => builder.step(StepOp::Index(dim as u32), to, vec![]),
                None => self.group_of_row(builder, *axis),
            },
            Op::Unary(op) => builder.step(unary(*op), to, args),
            Op::Binary(op) => builder.step(binary(*op), to, args),
            Op::Select => builder.step(StepOp::Select, to, args),
            Op::Cast(_) if same_type(node.operands[0]) => args[0],
            Op::Cast(_) => builder.step(StepOp::Cast, to, args),
            Op::Detach | Op::Broadcast(_) | Op::Reorder => args[0],
            Op::Reduce { kind, .. } => builder.step(row_reduction(*kind), to, args),
            op => unreachable!("`{}` does not join regions", op.row().name),
        };
        builder.args.insert(value, arg);
    }

    /// An operand of a member: computed here, a generator that is computed again, or a load.
    fn operand(&mut self, units: &Units, builder: &mut Builder, value: ValueId) -> Arg {
        if let Some(arg) = builder.args.get(&value) {
            return *arg;
        }
        if units.generator[value.index()] || units.in_passing[value.index()] {
            self.member(units, builder, value);
            return builder.args[&value];
        }
        let place = self.place(value);
        // A value of the groups, needed for each row, is looked up by the row's group.
        let by_group = self.graph.ragged_axis(&builder.axes).filter(|&ragged| {
            let parent = self.graph.ragged_parent(ragged).expect("ragged axes have parents");
            self.graph.ty(value).has(parent) && !self.graph.ty(value).has(ragged)
        });
        let arg = match by_group {
            Some(ragged) => builder.load_through(&self.lookup_by_group(place, ragged)),
            None => builder.load(&place),
        };
        builder.args.insert(value, arg);
        arg
    }

    /// The position along the parent of a ragged axis, for each row.
    fn group_of_row(&mut self, builder: &mut Builder, parent: AxisId) -> Arg {
        let ragged = self.graph.ragged_axis(&builder.axes).expect("only the parent of a ragged axis has no dimension");
        debug_assert_eq!(self.graph.ragged_parent(ragged), Some(parent));
        let buffer = self.row_groups(ragged);
        builder.load(&Place { buffer, offset: 0, strides: vec![(ragged, 1)] })
    }
}

impl Builder {
    fn view(&self, place: &Place) -> plan::View {
        plan::View { buffer: place.buffer, offset: place.offset, strides: place.along(&self.axes) }
    }

    pub(super) fn load(&mut self, place: &Place) -> Arg {
        let view = self.view(place);
        self.push_load(plan::Load::from(view))
    }

    fn load_through(&mut self, lookup: &Lookup) -> Arg {
        let Target { stride: axis_stride, size: axis_size, even: axis_even, negative } = lookup.target;
        let index = self.view(&lookup.index);
        let through = Some(plan::Lookup { index, divide: lookup.divide, axis_stride, axis_size, axis_even, negative });
        self.push_load(plan::Load { view: self.view(&lookup.table), through })
    }

    fn push_load(&mut self, load: plan::Load) -> Arg {
        let at = self.region.loads.iter().position(|l| *l == load).unwrap_or_else(|| {
            self.region.loads.push(load);
            self.region.loads.len() - 1
        });
        Arg::Load(at as u32)
    }

    pub(super) fn step(&mut self, op: StepOp, dtype: plan::DType, args: Vec<Arg>) -> Arg {
        self.region.steps.push(plan::Step { op, dtype, args });
        Arg::Step(self.region.steps.len() as u32 - 1)
    }

    /// The region. A ragged dimension is never part of a row: when it is the last one, a row of one element follows it.
    pub(super) fn finish(mut self) -> plan::Region {
        let last = self.region.dims.len().wrapping_sub(1) as u32;
        if self.region.ragged.as_ref().is_some_and(|r| r.dim == last) {
            self.region.dims.push(1);
            for load in &mut self.region.loads {
                load.view.strides.push(0);
                load.through.iter_mut().for_each(|l| l.index.strides.push(0));
            }
            self.region.stores.iter_mut().for_each(|s| s.view.strides.push(0));
        }
        self.region
    }

    pub(super) fn store(&mut self, value: Arg, place: &Place) {
        let view = self.view(place);
        self.region.stores.push(plan::Store { value, view });
    }
}

fn unary(op: UnaryOp) -> StepOp {
    match op {
        UnaryOp::Neg => StepOp::Neg,
        UnaryOp::Exp => StepOp::Exp,
        UnaryOp::Log => StepOp::Log,
        UnaryOp::Sqrt => StepOp::Sqrt,
        UnaryOp::Rsqrt => StepOp::Rsqrt,
        UnaryOp::Tanh => StepOp::Tanh,
        UnaryOp::Sin => StepOp::Sin,
        UnaryOp::Cos => StepOp::Cos,
        UnaryOp::Abs => StepOp::Abs,
        UnaryOp::Sign => StepOp::Sign,
        UnaryOp::Floor => StepOp::Floor,
        UnaryOp::Not => StepOp::Not,
    }
}

fn binary(op: BinaryOp) -> StepOp {
    match op {
        BinaryOp::Add => StepOp::Add,
        BinaryOp::Sub => StepOp::Sub,
        BinaryOp::Mul => StepOp::Mul,
        BinaryOp::Div => StepOp::Div,
        BinaryOp::Rem => StepOp::Rem,
        BinaryOp::Pow => StepOp::Pow,
        BinaryOp::Min => StepOp::Min,
        BinaryOp::Max => StepOp::Max,
        BinaryOp::Eq => StepOp::Eq,
        BinaryOp::Ne => StepOp::Ne,
        BinaryOp::Lt => StepOp::Lt,
        BinaryOp::Le => StepOp::Le,
        BinaryOp::Gt => StepOp::Gt,
        BinaryOp::Ge => StepOp::Ge,
        BinaryOp::And => StepOp::And,
        BinaryOp::Or => StepOp::Or,
    }
}

fn row_reduction(kind: ReduceKind) -> StepOp {
    match kind {
        ReduceKind::Sum => StepOp::RowSum,
        ReduceKind::Max => StepOp::RowMax,
        ReduceKind::Min => StepOp::RowMin,
    }
}
