//! Choices, candidates, and adding what passes the type rule.

use super::{MAX_ELEMENTS, MAX_INPUT, sum_of_all};
use crate::graph::{Graph, InputRole, OutputRole, ValueId};
use crate::op::{BinaryOp, Op, ReduceKind, UnaryOp};
use crate::types::{AxisId, DType, Extent, Type};
use crate::verify;
use rustc_hash::FxHashMap;

/// Integers stay within this on both sides, so that f32 holds them exactly and no sum overflows.
const MAX_INTEGER: i64 = 1 << 20;

/// The smallest and the largest value that the elements of an integer value can have.
pub(super) type Range = (i64, i64);

pub(super) struct Builder<'a> {
    pub(super) graph: Graph,
    tape: std::slice::Iter<'a, u32>,
    allows: &'a dyn Fn(&Graph, &Op) -> bool,
    /// Of integer values; those without an entry may be anything.
    ranges: FxHashMap<ValueId, Range>,
    /// Results of `group` and the axes of what was grouped.
    pub(super) groups: Vec<(ValueId, Vec<AxisId>)>,
    /// The number of rows of ragged axes, which is less than the bound.
    pub(super) rows: FxHashMap<AxisId, u64>,
    pub(super) key: ValueId,
}

impl<'a> Builder<'a> {
    pub(super) fn new(tape: &'a [u32], allows: &'a dyn Fn(&Graph, &Op) -> bool) -> Builder<'a> {
        let mut graph = Graph::new("random");
        let axis = graph.add_axis("key", Extent::Fixed(4), None);
        let key = graph.add_input("rng", Type::new(DType::I32, [axis]), InputRole::Runtime);
        let (ranges, groups, rows) = Default::default();
        let mut builder = Builder { graph, tape: tape.iter(), allows, ranges, groups, rows, key };
        builder.ranges.insert(key, (0, MAX_INPUT));
        builder
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.tape.len() == 0
    }

    /// A number below `n`, which is not 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.tape.next().map_or(0, |&t| t as usize % n)
    }

    pub(super) fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(super) fn one_of<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        let i = self.below(from.len());
        Some(from[i].clone())
    }

    /// A subset, in order, with one element at least.
    pub(super) fn some_of<T: Copy>(&mut self, from: &[T]) -> Option<Vec<T>> {
        let certain = from.len().checked_sub(1).map(|last| self.below(last + 1))?;
        let mut chosen = Vec::new();
        for (i, &x) in from.iter().enumerate() {
            if i == certain || self.below(3) == 0 {
                chosen.push(x);
            }
        }
        Some(chosen)
    }

    /// A value for which this holds; late ones are likelier, so that graphs grow deep.
    pub(super) fn value(&mut self, holds: impl Fn(&Builder<'_>, ValueId) -> bool) -> Option<ValueId> {
        let fitting: Vec<ValueId> = self.graph.values().filter(|v| holds(self, *v)).collect();
        let (a, b) = (self.one_of(&fitting)?, self.one_of(&fitting)?);
        Some(a.max(b))
    }

    pub(super) fn dtype(&self, value: ValueId) -> DType {
        self.graph.ty(value).dtype
    }

    pub(super) fn is_number(&self, value: ValueId) -> bool {
        self.dtype(value) != DType::Bool
    }

    /// A value with a fixed axis, and the axis.
    pub(super) fn value_and_axis(
        &mut self,
        holds: impl Fn(&Builder<'_>, ValueId) -> bool,
    ) -> Option<(ValueId, AxisId)> {
        let value = self.value(|b, v| holds(b, v) && !b.fixed_axes(v).is_empty())?;
        let axes = self.fixed_axes(value);
        Some((value, self.one_of(&axes)?))
    }

    pub(super) fn fixed_axes(&self, value: ValueId) -> Vec<AxisId> {
        let axes = &self.graph.ty(value).axes;
        axes.iter().copied().filter(|a| !self.graph.is_ragged(*a)).collect()
    }

    /// Every axis that is not ragged.
    pub(super) fn all_fixed_axes(&self) -> Vec<AxisId> {
        (0..self.graph.axes.len() as u32).map(AxisId).filter(|a| !self.graph.is_ragged(*a)).collect()
    }

    /// An axis of this size that is none of these: an old one or a new one.
    pub(super) fn axis(&mut self, size: u64, none_of: &[AxisId], name: &str) -> AxisId {
        let fits = |b: &Builder<'_>, a: &AxisId| b.graph.size(*a) == size && !none_of.contains(a);
        let old: Vec<AxisId> = self.all_fixed_axes().into_iter().filter(|a| fits(self, a)).collect();
        match self.one_of(&old).filter(|_| self.flip()) {
            Some(axis) => axis,
            None => self.graph.add_axis(name, Extent::Fixed(size), None),
        }
    }

    pub(super) fn range(&self, value: ValueId) -> Option<Range> {
        self.ranges.get(&value).copied()
    }

    pub(super) fn set_range(&mut self, value: ValueId, range: Range) {
        self.ranges.insert(value, range);
    }

    /// Values that can be looked up in `n` elements.
    pub(super) fn is_index(&self, value: ValueId, n: u64) -> bool {
        self.range(value).is_some_and(|(low, high)| low >= 0 && (high as u64) < n)
    }

    /// Adds a node if its type is legal, it is not too large, and its integers are small.
    pub(super) fn add(&mut self, op: Op, operands: &[ValueId], name: &str) -> Option<ValueId> {
        let ty = crate::infer::infer(&self.graph, &op, operands).ok()?;
        let axes = if op.row().free_order { self.reordered(&ty.axes) } else { ty.axes };
        self.add_ordered(op, operands, &axes, name)
    }

    /// [`Builder::add`] with the result's axes given.
    pub(super) fn add_ordered(&mut self, op: Op, operands: &[ValueId], axes: &[AxisId], name: &str) -> Option<ValueId> {
        let ty = crate::infer::infer_ordered(&self.graph, &op, operands, axes).ok()?;
        verify::type_is_legal(&self.graph, &ty).ok()?;
        let is_allowed = (self.allows)(&self.graph, &op) && self.graph.numel(&ty) <= MAX_ELEMENTS;
        let range = self.range_of(&op, operands, &ty);
        // Nothing is known of a float that is cast, except to those that bring it back into a range.
        let is_small = match range {
            Some((low, high)) => -MAX_INTEGER <= low && high <= MAX_INTEGER,
            None => matches!(op, Op::Cast(_)),
        };
        if !is_allowed || ty.dtype == DType::I32 && !is_small {
            return None;
        }
        let value = self.graph.push(op, operands.to_vec(), ty, name);
        self.ranges.extend(range.map(|range| (value, range)));
        Some(value)
    }

    /// The axes in another order in which ragged ones stand behind their parents.
    fn reordered(&mut self, axes: &[AxisId]) -> Vec<AxisId> {
        let mut parts: Vec<Vec<AxisId>> = Vec::new();
        for &axis in axes {
            match parts.last_mut().filter(|_| self.graph.is_ragged(axis)) {
                Some(part) => part.push(axis),
                None => parts.push(vec![axis]),
            }
        }
        if parts.len() > 1 && self.below(3) == 0 {
            let (i, j) = (self.below(parts.len()), self.below(parts.len()));
            parts.swap(i, j);
        }
        parts.concat()
    }

    /// The range of a result; ops that make no integers have none, and the caller does not ask.
    fn range_of(&self, op: &Op, operands: &[ValueId], ty: &Type) -> Option<Range> {
        let of = |i: usize| match self.dtype(operands[i]) {
            DType::Bool => Some((0, 1)),
            _ => self.range(operands[i]),
        };
        let hull = |a: Range, b: Range| (a.0.min(b.0), a.1.max(b.1));
        let times = |a: Range, b: Range| {
            let products = [a.0 * b.0, a.0 * b.1, a.1 * b.0, a.1 * b.1];
            (products.into_iter().min().unwrap_or(0), products.into_iter().max().unwrap_or(0))
        };
        let elements = |axes: &[AxisId]| axes.iter().map(|a| self.graph.size(*a) as i64).product::<i64>();
        if ty.dtype != DType::I32 {
            return None;
        }
        match op {
            Op::Input | Op::Const(_) | Op::Random { .. } => None,
            Op::Iota(axis) => Some((0, self.graph.size(*axis) as i64 - 1)),
            Op::TopK { axis, .. } => Some((0, self.graph.size(*axis) as i64 - 1)),
            Op::Group { .. } => Some((0, self.graph.numel(self.graph.ty(operands[0])) as i64 - 1)),
            Op::Offsets { .. } => Some((0, self.graph.numel(self.graph.ty(operands[0])) as i64)),
            Op::Invert => Some((0, self.graph.numel(ty) as i64 - 1)),
            Op::Fused(_) | Op::Comm(_) => None,
            Op::Unary(UnaryOp::Neg) => of(0).map(|(low, high)| (-high, -low)),
            Op::Unary(UnaryOp::Abs) => of(0).map(|(low, high)| (0, high.max(-low))),
            Op::Unary(UnaryOp::Sign) => Some((-1, 1)),
            Op::Unary(_) => None,
            Op::Binary(BinaryOp::Rem) => of(1).filter(|b| b.0 > 0).map(|b| (0, b.1 - 1)),
            Op::Binary(op) => {
                let (a, b) = (of(0)?, of(1)?);
                match op {
                    BinaryOp::Add => Some((a.0 + b.0, a.1 + b.1)),
                    BinaryOp::Sub => Some((a.0 - b.1, a.1 - b.0)),
                    BinaryOp::Mul => Some(times(a, b)),
                    // Of a divisor that may be 0 nothing is known.
                    BinaryOp::Div => (b.0 > 0).then(|| hull(a, (0, 0))).map(|(low, high)| (low - 1, high)),
                    BinaryOp::Min | BinaryOp::Max => Some(hull(a, b)),
                    _ => None,
                }
            }
            Op::Select => Some(hull(of(1)?, of(2)?)),
            Op::Cast(_) => of(0),
            Op::Detach
            | Op::Broadcast(_)
            | Op::Reorder
            | Op::Rename { .. }
            | Op::Split { .. }
            | Op::Merge { .. }
            | Op::Take { .. }
            | Op::Slice { .. }
            | Op::Gather { .. } => of(0),
            Op::Pad { .. } => of(0).map(|range| hull(range, (0, 0))),
            Op::Reduce { kind: ReduceKind::Sum, over } => of(0).map(|r| hull(times(r, (elements(over), 0)), (0, 0))),
            // The maximum of no rows at all is the smallest integer.
            Op::Reduce { over, .. } if over.iter().any(|a| self.graph.is_ragged(*a)) => None,
            Op::Reduce { .. } => of(0),
            Op::Scan { axis, .. } => of(0).map(|range| hull(range, times(range, (elements(&[*axis]), 0)))),
            Op::ScatterAdd { over, .. } => of(0).map(|r| hull(times(r, (elements(over), 0)), (0, 0))),
            Op::Contract { .. } | Op::LinearAttention(_) => None,
            Op::Stack(_) | Op::Concat { .. } => {
                (1..operands.len()).try_fold(of(0)?, |range, i| Some(hull(range, of(i)?)))
            }
        }
    }

    /// Outputs of all kinds from the last values, and a loss when there is a float.
    pub(super) fn finish(mut self) -> Graph {
        let last: Vec<ValueId> = self.graph.values().rev().take(4).collect();
        for (i, value) in last.into_iter().enumerate() {
            self.graph.add_output(format!("out.{i}"), value, OutputRole::Output);
        }
        let floats = self.graph.values().rev().find(|v| self.dtype(*v).is_float());
        if let Some(value) = floats {
            let loss = sum_of_all(&mut self.graph, value, "loss");
            self.graph.add_output("total", loss, OutputRole::Loss);
        }
        self.graph
    }
}
