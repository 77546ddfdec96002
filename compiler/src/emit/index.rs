//! Kernels that move or search data: reductions that are no row's, scans, gathers and scatters, sorting, and joining.

use super::Emitter;
use super::dtype;
use super::places::Place;
use super::units::{Units, divided_index, table_of_group};
use forebay_ir::{AxisId, DType, Direction, Graph, Op, ReduceKind, Type, ValueId};
use forebay_plan::{self as plan, Arg, Kernel, Negative, StepOp};

/// A contiguous array seen as `[before, axis, after]`.
struct Sandwich {
    outer: u64,
    n: u64,
    inner: u64,
}

/// The axis that an index counts along.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub stride: u64,
    pub size: u64,
    /// Rows that there are when experts are chosen evenly, where that is not all.
    pub even: Option<u64>,
    pub negative: Negative,
}

/// Where a gather finds its values.
pub(super) struct Lookup {
    /// The array, which the looked-up axis is a part of.
    pub table: Place,
    pub index: Place,
    pub target: Target,
    /// The index is divided by this.
    pub divide: u64,
}

/// What a negative number of a group's element, or of a row, is.
fn negative(graph: &Graph, axis: AxisId) -> Negative {
    if graph.leaves_out(axis) { Negative::Nothing } else { Negative::Wrong }
}

impl Target {
    fn of_axis(place: &Place, axis: AxisId, graph: &Graph) -> Target {
        let even = Some(graph.even_size(axis)).filter(|even| *even < graph.size(axis));
        Target { stride: place.stride(axis), size: graph.size(axis), even, negative: negative(graph, axis) }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Emitter<'_> {
    fn sandwich(&self, ty: &Type, axis: AxisId) -> Sandwich {
        let dims = self.graph.dims(&ty.axes);
        let at = dims.iter().position(|(a, _)| *a == axis).expect("verified: the operand has the axis");
        let product = |dims: &[(AxisId, u64)]| dims.iter().map(|(_, n)| n).product();
        Sandwich { outer: product(&dims[..at]), n: dims[at].1, inner: product(&dims[at + 1..]) }
    }

    fn axes_of(&self, ty: &Type) -> Vec<AxisId> {
        self.graph.dims(&ty.axes).into_iter().map(|(a, _)| a).collect()
    }

    pub(super) fn sizes(&self, axes: &[AxisId]) -> Vec<u64> {
        axes.iter().map(|&a| self.graph.size(a)).collect()
    }

    pub(super) fn view(&self, place: &Place, axes: &[AxisId]) -> plan::View {
        plan::View { buffer: place.buffer, offset: place.offset, strides: place.along(axes) }
    }

    /// The buffer of a result that must be contiguous.
    pub(super) fn result(&mut self, value: ValueId) -> u32 {
        let place = self.places.dest(value);
        debug_assert!(self.places.is_contiguous(self.graph.ty(value), &place), "only regions and products write parts");
        place.buffer
    }

    pub(super) fn reduce(&mut self, value: ValueId, kind: ReduceKind, over: &[AxisId], accumulate: Option<ValueId>) {
        let operand = self.graph.node(value).operands[0];
        let input = self.place(operand);
        let ty = self.graph.ty(operand).clone();
        let ragged_axis = self.graph.ragged_axis(&ty.axes);
        let ragged_parent = ragged_axis.and_then(|r| self.graph.ragged_parent(r));
        let summed_ragged = ragged_axis.filter(|r| over.contains(r));
        let per_group = summed_ragged.is_some() && ragged_parent.is_some_and(|p| !over.contains(&p));
        // The result's own axes in order; with one result for each group, the parent stands first.
        let mut kept = self.axes_of(self.graph.ty(value));
        if let Some(parent) = ragged_parent.filter(|_| per_group) {
            kept.retain(|a| *a != parent);
            kept.insert(0, parent);
        }
        let mut reduced: Vec<AxisId> = self.axes_of(&ty).into_iter().filter(|a| over.contains(a)).collect();
        if let Some(ragged) = summed_ragged {
            reduced.retain(|a| *a != ragged);
            reduced.insert(0, ragged);
        }
        let ragged = summed_ragged.map(|axis| {
            let (offsets, groups) = self.group_starts(axis);
            plan::RaggedReduce { offsets, groups, per_group, even: self.graph.even_size(axis) }
        });
        let out = self.places.dest(accumulate.unwrap_or(value));
        let axes: Vec<AxisId> = kept.iter().chain(&reduced).copied().collect();
        let op = match kind {
            ReduceKind::Sum => plan::ReduceOp::Sum,
            ReduceKind::Max => plan::ReduceOp::Max,
            ReduceKind::Min => plan::ReduceOp::Min,
        };
        let kernel = plan::Reduce {
            op,
            dtype: dtype(ty.dtype),
            dims: self.sizes(&axes),
            kept: kept.len() as u32,
            input: self.view(&input, &axes),
            out: self.view(&out, &kept),
            ragged,
            accumulate: accumulate.is_some(),
        };
        self.push(&self.name(value), Kernel::Reduce(kernel));
    }

    pub(super) fn scan(&mut self, value: ValueId, axis: AxisId, direction: Direction) {
        let operand = self.graph.node(value).operands[0];
        let ty = self.graph.ty(operand).clone();
        let Sandwich { outer, n, inner } = self.sandwich(&ty, axis);
        let backward = direction == Direction::Backward;
        let (input, out) = (self.packed(operand), self.result(value));
        let kernel = plan::Scan { dtype: dtype(ty.dtype), outer, n, inner, backward, input, out };
        self.push(&self.name(value), Kernel::Scan(kernel));
    }

    /// A gather that nothing is done with but to store it.
    pub(super) fn gather(&mut self, value: ValueId, lookup: &Lookup) {
        let ty = self.graph.ty(value).clone();
        let out = self.result(value);
        self.push_gather(&self.name(value), &ty, lookup, out);
    }

    fn push_gather(&mut self, name: &str, ty: &Type, lookup: &Lookup, out: u32) {
        debug_assert_eq!(lookup.divide, 1, "only regions divide an index");
        let axes = self.axes_of(ty);
        let kernel = plan::Gather {
            dtype: dtype(ty.dtype),
            dims: self.sizes(&axes),
            x: self.view(&lookup.table, &axes),
            index: self.view(&lookup.index, &axes),
            axis_stride: lookup.target.stride,
            axis_size: lookup.target.size,
            axis_even: lookup.target.even,
            negative: lookup.target.negative,
            out,
            ragged: self.ragged_limit(&axes),
        };
        self.push(name, Kernel::Gather(kernel));
    }

    /// Where a gather looks up.
    pub(super) fn lookup(&mut self, units: &Units, value: ValueId) -> Lookup {
        let node = self.graph.node(value);
        let Op::Gather { axis } = node.op else { unreachable!("only gathers look up") };
        let [x, index] = node.operands[..] else { unreachable!("verified") };
        let (index, divide) = match divided_index(self.graph, value) {
            Some(divided) if units.in_passing[index.index()] => divided,
            _ => (index, 1),
        };
        let mut table = self.place(x);
        let target = Target::of_axis(&table, axis, self.graph);
        let ty = self.graph.ty(value).clone();
        let (index, target) = self.index(index, &ty, &table, target, table_of_group(self.graph, value));
        // The region's space may have the axis.
        table.strides.retain(|(a, _)| *a != axis);
        Lookup { table, index, target, divide }
    }

    /// For each row of a ragged axis the group's part of a place.
    pub(super) fn lookup_by_group(&mut self, table: Place, ragged: AxisId) -> Lookup {
        let parent = self.graph.ragged_parent(ragged).expect("ragged axes have parents");
        let index = Place { buffer: self.row_groups(ragged), offset: 0, strides: vec![(ragged, 1)] };
        let target = Target::of_axis(&table, parent, self.graph);
        Lookup { table, index, target, divide: 1 }
    }

    pub(super) fn scatter_add(&mut self, value: ValueId, axis: AxisId, over: &[AxisId], accumulate: Option<ValueId>) {
        let [v, index] = self.graph.node(value).operands[..] else { unreachable!("verified") };
        let ty = self.graph.ty(v).clone();
        // Summed axes first, so that the order of the sum is theirs alone.
        let axes = self.axes_of(&ty);
        let v_place = self.place(v);
        let dest = self.places.dest(accumulate.unwrap_or(value));
        let by_group = self.graph.ragged_axis(&ty.axes).filter(|r| over.contains(r) && self.has_group_only(value, *r));
        let out = match by_group {
            None => dest.clone(),
            // An index over all groups' tables needs the groups right before the axis.
            Some(ragged) => {
                debug_assert!(accumulate.is_none(), "tables of groups do not accumulate");
                let first = [self.graph.ragged_parent(ragged).expect("ragged axes have parents"), axis];
                let rest = self.graph.ty(value).axes.iter().copied().filter(|a| !first.contains(a));
                let tables = Type::new(ty.dtype, first.into_iter().chain(rest).collect::<Vec<_>>());
                self.places.scratch_place(&format!("{}.of_groups", self.name(value)), &tables)
            }
        };
        let target = Target::of_axis(&out, axis, self.graph);
        let (index_place, target) = self.index(index, &ty, &out, target, by_group);
        let mut kept = out.clone();
        kept.strides.retain(|(a, _)| !over.contains(a) && *a != axis);
        let kernel = plan::ScatterAdd {
            dtype: dtype(ty.dtype),
            dims: self.sizes(&axes),
            v: self.view(&v_place, &axes),
            index: self.view(&index_place, &axes),
            out: self.view(&kept, &axes),
            axis_stride: target.stride,
            axis_size: target.size,
            negative: target.negative,
            out_elements: self.graph.numel(self.graph.ty(value)),
            ragged: self.ragged_limit(&axes),
            accumulate: accumulate.is_some(),
        };
        self.push(&self.name(value), Kernel::ScatterAdd(kernel));
        if by_group.is_some() {
            let ty = self.graph.ty(value).clone();
            self.copy_place(&ty, &out, &dest, &self.name(value));
        }
    }

    /// Has a value the groups of a ragged axis, but not its rows?
    fn has_group_only(&self, value: ValueId, ragged: AxisId) -> bool {
        let ty = self.graph.ty(value);
        !ty.has(ragged) && self.graph.ragged_parent(ragged).is_some_and(|parent| ty.has(parent))
    }

    /// The index of a gather or scatter over `space`. Rows that look into a table of their own group (`by_group`) get an index that counts over all groups' tables.
    fn index(
        &mut self,
        index: ValueId,
        space: &Type,
        table: &Place,
        target: Target,
        by_group: Option<AxisId>,
    ) -> (Place, Target) {
        let mut place = self.place(index);
        if let Some(ragged) = self.graph.ragged_axis(&space.axes).filter(|&r| self.has_group_only(index, r)) {
            place = self.spread(index, &place, ragged);
        }
        let Some(ragged) = by_group else { return (place, target) };
        let parent = self.graph.ragged_parent(ragged).expect("ragged axes have parents");
        let of_groups = Target::of_axis(table, parent, self.graph);
        let unit = gcd(of_groups.stride, target.stride).max(1);
        let steps = [of_groups, target].map(|t| t.stride / unit);
        let last = |t: Target, step: u64| (t.size.max(1) - 1) * step;
        let combined = Target {
            stride: unit,
            size: last(of_groups, steps[0]) + last(target, steps[1]) + 1,
            even: None,
            negative: Negative::Wrong,
        };
        let groups = Place { buffer: self.row_groups(ragged), offset: 0, strides: vec![(ragged, 1)] };
        // One for each row, whether the index has rows or only groups.
        let mut axes = self.axes_of(self.graph.ty(index));
        axes.retain(|a| *a != parent && *a != ragged);
        axes.insert(0, ragged);
        let full = Type::new(DType::I32, std::iter::once(parent).chain(axes.iter().copied()).collect::<Vec<_>>());
        let name = format!("{}.of_group", self.name(index));
        let to = self.places.scratch_place(&name, &full);
        let mut builder = self.builder(axes, 0);
        let (i, group) = (builder.load(&place), builder.load(&groups));
        let (int, truth) = (plan::DType::I32, plan::DType::Bool);
        let not_below = builder.step(StepOp::Ge, truth, vec![i, Arg::Const(0.0)]);
        let not_above = builder.step(StepOp::Lt, truth, vec![i, Arg::Const(target.size as f64)]);
        let inside = builder.step(StepOp::And, truth, vec![not_below, not_above]);
        let first = builder.step(StepOp::Mul, int, vec![group, Arg::Const(steps[0] as f64)]);
        let within = builder.step(StepOp::Mul, int, vec![i, Arg::Const(steps[1] as f64)]);
        let sum = builder.step(StepOp::Add, int, vec![first, within]);
        // An index outside of its table must not reach into the next group's: it becomes one that is nowhere.
        let checked = builder.step(StepOp::Select, int, vec![inside, sum, Arg::Const(-1.0)]);
        builder.store(checked, &to);
        self.push(&name, Kernel::Region(builder.finish()));
        (to, combined)
    }

    pub(super) fn top_k(&mut self, value: ValueId, axis: AxisId, into: AxisId) {
        let operand = self.graph.node(value).operands[0];
        let ty = self.graph.ty(operand).clone();
        let Sandwich { outer, n, inner } = self.sandwich(&ty, axis);
        let k = self.graph.size(into);
        let (input, out) = (self.packed(operand), self.result(value));
        self.push(
            &self.name(value),
            Kernel::TopK(plan::TopK { dtype: dtype(ty.dtype), outer, n, inner, k, input, out }),
        );
    }

    pub(super) fn group(&mut self, value: ValueId, ragged: AxisId) {
        let operand = self.graph.node(value).operands[0];
        let elements = self.graph.numel(self.graph.ty(operand));
        let groups = self.graph.size(self.graph.ragged_parent(ragged).expect("ragged axes have parents"));
        let (chosen, rows) = (self.packed(operand), self.result(value));
        let negative = negative(self.graph, ragged);
        let room = self.room(ragged, elements);
        if elements < self.graph.size(ragged) {
            // Rows past the last group are row 0's, so that whatever looks them up stays in range.
            let to = self.places.dest(value);
            self.fill_zero(&self.graph.ty(value).clone(), &to, &self.name(value));
        }
        self.push(&self.name(value), Kernel::Group(plan::Group { chosen, elements, groups, negative, room, rows }));
    }

    pub(super) fn offsets(&mut self, value: ValueId, parent: AxisId) {
        let operand = self.graph.node(value).operands[0];
        let elements = self.graph.numel(self.graph.ty(operand));
        let groups = self.graph.size(parent);
        let (chosen, out) = (self.packed(operand), self.result(value));
        let counted = self.graph.offsets.iter().find(|(_, starts)| *starts == value);
        let negative = counted.map_or(Negative::Wrong, |&(ragged, _)| negative(self.graph, ragged));
        self.push(&self.name(value), Kernel::Offsets(plan::Offsets { chosen, elements, groups, negative, out }));
    }

    pub(super) fn invert(&mut self, value: ValueId) {
        let operand = self.graph.node(value).operands[0];
        let elements = self.graph.numel(self.graph.ty(value));
        let (rows, out) = (self.packed(operand), self.result(value));
        let ragged = self.graph.ragged_axis(&self.graph.ty(operand).axes);
        let negative = ragged.map_or(Negative::Wrong, |ragged| negative(self.graph, ragged));
        let room = ragged.and_then(|ragged| self.room(ragged, elements));
        self.push(&self.name(value), Kernel::Invert(plan::Invert { rows, elements, negative, room, out }));
    }

    /// The rows of a ragged axis, where that is less than there are elements.
    fn room(&self, ragged: AxisId, elements: u64) -> Option<u64> {
        Some(self.graph.size(ragged)).filter(|room| *room < elements)
    }

    pub(super) fn random(&mut self, value: ValueId, site: u32, batch: Option<AxisId>) {
        let key = self.packed(self.graph.node(value).operands[0]);
        let axes = self.axes_of(self.graph.ty(value));
        let out = self.places.dest(value);
        let kernel =
            plan::Random { key, site, dims: self.sizes(&axes), batched: batch.is_some(), out: self.view(&out, &axes) };
        self.push(&self.name(value), Kernel::Random(kernel));
    }

    /// Copies the operands that were not written in place.
    pub(super) fn join(&mut self, value: ValueId) {
        let into = self.places.dest(value);
        let operands = self.graph.node(value).operands.clone();
        for (number, operand) in operands.into_iter().enumerate() {
            if !self.places.is_part(operand) {
                let part = self.places.part_at(&into, value, number);
                self.copy(operand, part, &self.name(value));
            }
        }
    }

    pub(super) fn pad(&mut self, value: ValueId, from: AxisId, into: AxisId, start: u64) {
        let operand = self.graph.node(value).operands[0];
        let name = self.name(value);
        let to = self.places.dest(value);
        self.fill_zero(&self.graph.ty(value).clone(), &to, &name);
        let mut window = to.clone();
        window.offset += start * to.stride(into);
        window.strides.iter_mut().filter(|(a, _)| *a == into).for_each(|(a, _)| *a = from);
        self.copy(operand, window, &name);
    }

    /// For each row of a ragged axis its group: made once a program.
    pub(super) fn row_groups(&mut self, ragged: AxisId) -> u32 {
        if let Some((_, buffer)) = self.row_groups.iter().find(|(a, _)| *a == ragged) {
            return *buffer;
        }
        let (offsets, groups) = self.group_starts(ragged);
        let rows = self.graph.size(ragged);
        let name = format!("{}.group", self.graph.axis(ragged).name);
        let out = self.places.scratch(&name, plan::DType::I32, rows);
        self.push(&name, Kernel::RowGroups(plan::RowGroups { offsets, groups, rows, out }));
        self.row_groups.push((ragged, out));
        out
    }

    /// A value that each group has, copied to each of the group's rows.
    fn spread(&mut self, value: ValueId, place: &Place, ragged: AxisId) -> Place {
        let parent = self.graph.ragged_parent(ragged).expect("ragged axes have parents");
        let ty = self.graph.ty(value);
        let mut axes = ty.axes.clone();
        axes.retain(|a| *a != parent);
        axes.splice(0..0, [parent, ragged]);
        let spread = Type::new(ty.dtype, axes);
        let name = format!("{}.rows", self.name(value));
        let to = self.places.scratch_place(&name, &spread);
        let lookup = self.lookup_by_group(place.clone(), ragged);
        self.push_gather(&name, &spread, &lookup, to.buffer);
        to
    }
}
