//! Writing bodies: primitive ops one after another, with the casts and constants that they need.

use crate::graph::{Graph, ValueId};
use crate::infer::TypeError;
use crate::op::{BinaryOp, Op, ReduceKind, UnaryOp};
use crate::types::{AxisId, DType};

type Result<T> = std::result::Result<T, TypeError>;

/// Appends primitive ops to a graph.
pub(super) struct Body<'g> {
    pub graph: &'g mut Graph,
    name: String,
}

impl<'g> Body<'g> {
    pub fn new(graph: &'g mut Graph, name: &str) -> Body<'g> {
        Body { graph, name: name.to_string() }
    }

    pub fn op(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId> {
        let name = format!("{}.{}", self.name, op.row().name);
        self.graph.add(op, operands, &name)
    }

    pub fn dtype(&self, x: ValueId) -> DType {
        self.graph.ty(x).dtype
    }

    pub fn unary(&mut self, op: UnaryOp, x: ValueId) -> Result<ValueId> {
        self.op(Op::Unary(op), &[x])
    }

    pub fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.op(Op::Binary(op), &[a, b])
    }

    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(BinaryOp::Mul, a, b)
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(BinaryOp::Add, a, b)
    }

    pub fn sub(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(BinaryOp::Sub, a, b)
    }

    pub fn div(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(BinaryOp::Div, a, b)
    }

    /// A constant of x's dtype.
    pub fn constant(&mut self, value: f64, like: ValueId) -> ValueId {
        let dtype = self.dtype(like);
        self.graph.constant(value, dtype)
    }

    /// `x op constant`.
    pub fn with(&mut self, op: BinaryOp, x: ValueId, value: f64) -> Result<ValueId> {
        let value = self.constant(value, x);
        self.binary(op, x, value)
    }

    pub fn scaled(&mut self, x: ValueId, by: f64) -> Result<ValueId> {
        if by == 1.0 { Ok(x) } else { self.with(BinaryOp::Mul, x, by) }
    }

    /// `constant - x`.
    pub fn from(&mut self, value: f64, x: ValueId) -> Result<ValueId> {
        let value = self.constant(value, x);
        self.sub(value, x)
    }

    pub fn select(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.op(Op::Select, &[condition, a, b])
    }

    pub fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId> {
        if self.dtype(x) == to { Ok(x) } else { self.op(Op::Cast(to), &[x]) }
    }

    /// x in the type that statistics are taken in.
    pub fn wide(&mut self, x: ValueId) -> Result<ValueId> {
        match self.dtype(x) {
            DType::BF16 => self.cast(x, DType::F32),
            _ => Ok(x),
        }
    }

    pub fn reduce(&mut self, kind: ReduceKind, x: ValueId, over: &[AxisId]) -> Result<ValueId> {
        let mut over = over.to_vec();
        over.sort_unstable();
        self.op(Op::Reduce { kind, over }, &[x])
    }

    pub fn sum(&mut self, x: ValueId, over: &[AxisId]) -> Result<ValueId> {
        self.reduce(ReduceKind::Sum, x, over)
    }

    pub fn mean(&mut self, x: ValueId, over: &[AxisId]) -> Result<ValueId> {
        let n: f64 = over.iter().map(|&a| self.graph.size(a) as f64).product();
        let sum = self.sum(x, over)?;
        self.with(BinaryOp::Div, sum, n)
    }

    /// The product of a and b, summed over the axes that `wanted` lacks.
    pub fn product_onto(&mut self, a: ValueId, b: ValueId, wanted: &[AxisId]) -> Result<ValueId> {
        let (a, b) = (self.summed_alone(a, b, wanted)?, self.summed_alone(b, a, wanted)?);
        let both = |axis: &AxisId| self.graph.ty(b).has(*axis) && !wanted.contains(axis);
        let mut over: Vec<AxisId> = self.graph.ty(a).axes.iter().copied().filter(both).collect();
        over.sort_unstable();
        if over.is_empty() { self.mul(a, b) } else { self.op(Op::Contract { over }, &[a, b]) }
    }

    /// `x` summed over the axes that neither `other` nor `wanted` has.
    fn summed_alone(&mut self, x: ValueId, other: ValueId, wanted: &[AxisId]) -> Result<ValueId> {
        let alone = |axis: &AxisId| !self.graph.ty(other).has(*axis) && !wanted.contains(axis);
        let over: Vec<AxisId> = self.graph.ty(x).axes.iter().copied().filter(alone).collect();
        if over.is_empty() { Ok(x) } else { self.sum(x, &over) }
    }

    /// `x` summed over the axes that `wanted` lacks.
    pub fn summed_onto(&mut self, x: ValueId, wanted: &[AxisId]) -> Result<ValueId> {
        let over: Vec<AxisId> = self.graph.ty(x).axes.iter().copied().filter(|a| !wanted.contains(a)).collect();
        if over.is_empty() { Ok(x) } else { self.sum(x, &over) }
    }
}

/// The value with its axes in the given order: by its own node when that is new and free in its order, else by a `reorder`.
pub(super) fn in_order(graph: &mut Graph, value: ValueId, first_new: usize, axes: &[AxisId], name: &str) -> ValueId {
    if graph.ty(value).axes == axes {
        return value;
    }
    if value.index() >= first_new && graph.node(value).op.row().free_order {
        graph.nodes[value.index()].ty.axes = axes.to_vec();
        return value;
    }
    graph.add_ordered(Op::Reorder, &[value], axes, name).expect("the same axes in another order")
}
