//! The gradient rule of each op: from the cotangent of a result to the cotangent of an operand, in the same primitive ops.
//!
//! ```text
//! %y = mul %x, %gain            %d.x        = mul %d.y, %gain
//!                         ==>   %d.gain.mul = mul %d.y, %x
//!                               %d.gain     = sum %d.gain.mul over {t}      // %gain was broadcast along t
//! ```
//!
//! A cotangent has the type of its value, in the same physical order. Rules put the order into a node that has a free order; only
//! where there is none do they add a `reorder`.
//!
//! Choices where the derivative is not unique:
//! * `max` and `min` of two equal numbers give each half (as PyTorch's `maximum`), but nothing where the other one is a constant (as its `relu`);
//! * `reduce_max` and `reduce_min` give each of the n extremal elements 1/n (as PyTorch's `amax`);
//! * `sign`, `floor`, comparisons and everything that gives integers have none; `rem` is differentiated as `a - b * floor(a / b)`;
//! * `pow` is 0 in the base when the exponent is 0, and 0 in the exponent when the base is 0 and the exponent is not negative.
//!
//! Linear attention is undone by linear attention of other operands, the other way round: [`linear`].
//!
//! A gather through the rows of a `group` is undone by a gather through their inverse instead of a `scatter_add`: [`gather`].

mod gather;
mod linear;

use crate::collective::{Comm, CommKind};
use crate::graph::{Graph, Node, ValueId};
use crate::infer::TypeError;
use crate::op::{BinaryOp, Direction, Op, ReduceKind, UnaryOp};
use crate::types::{AxisId, Extent, Type};

type Gradient = Result<Option<ValueId>, TypeError>;

/// Appends what `cotangent`, the cotangent of the value `node`, contributes to the cotangent of its operand number `operand`.
/// `None` when nothing flows: integers, bools, steps, `detach`.
///
/// # Errors
/// Never on a graph that the type rules accept.
pub fn gradient(graph: &mut Graph, node: ValueId, operand: usize, cotangent: ValueId) -> Gradient {
    let this = graph.node(node).clone();
    let x = this.operands[operand];
    let wanted = graph.ty(x).clone();
    if !wanted.dtype.is_float() || !this.ty.dtype.is_float() {
        return Ok(None);
    }
    let name = format!("d.{}", graph.node(x).name);
    let first_new = graph.nodes.len();
    Rule { graph, y: node, node: this, operand, x, wanted, g: cotangent, name, first_new }.apply()
}

/// One application of a rule.
struct Rule<'g> {
    graph: &'g mut Graph,
    /// The value whose cotangent is known.
    y: ValueId,
    node: Node,
    /// Which operand the rule is for.
    operand: usize,
    x: ValueId,
    /// The operand's type, which the result has to have.
    wanted: Type,
    /// The cotangent of `y`.
    g: ValueId,
    /// Stem of the new nodes' names.
    name: String,
    /// Nodes from here on are this rule's own, and may be given another order.
    first_new: usize,
}

impl Rule<'_> {
    fn apply(mut self) -> Gradient {
        let op = self.node.op.clone();
        match op {
            Op::Input | Op::Const(_) | Op::Iota(_) | Op::Random { .. } => Ok(None),
            Op::Unary(op) => self.unary_rule(op),
            Op::Binary(op) => self.binary_rule(op),
            Op::Select => self.select_rule(),
            Op::Cast(_) => self.op(Op::Cast(self.wanted.dtype), &[self.g]).and_then(|v| self.fit(v)),
            Op::Detach => Ok(None),
            Op::Broadcast(_) | Op::Reorder => self.fit(self.g),
            Op::Contract { .. } => self.contract_rule(),
            Op::Reduce { kind, over } => self.reduce_rule(kind, over),
            Op::Scan { axis, direction } => {
                let direction = match direction {
                    Direction::Forward => Direction::Backward,
                    Direction::Backward => Direction::Forward,
                };
                self.view(Op::Scan { axis, direction })
            }
            Op::Rename { from, to } => self.view(Op::Rename { from: to, to: from }),
            Op::Split { from, into } => self.view(Op::Merge { from: into, into: from }),
            Op::Merge { from, into } => self.view(Op::Split { from: into, into: from }),
            Op::Take { axis, index } => self.take_rule(axis, index),
            Op::Slice { from, into, start } => self.view(Op::Pad { from: into, into: from, start }),
            Op::Pad { from, into, start } => self.view(Op::Slice { from: into, into: from, start }),
            Op::Stack(axis) => self.view(Op::Take { axis, index: self.operand as u64 }),
            Op::Concat { from, into } => {
                let start = from[..self.operand].iter().map(|&a| self.graph.size(a)).sum();
                self.view(Op::Slice { from: into, into: from[self.operand], start })
            }
            Op::Gather { axis } => self.gather_rule(axis),
            Op::ScatterAdd { axis, .. } => self.scatter_rule(axis),
            Op::LinearAttention(op) => self.linear_attention_rule(&op),
            Op::TopK { .. } | Op::Group { .. } | Op::Offsets { .. } | Op::Invert => Ok(None),
            Op::Comm(comm) => self.comm_rule(&comm),
            Op::Fused(fused) => {
                match crate::fused::gradient(self.graph, self.y, &fused, self.operand, self.g, &self.name.clone())? {
                    Some(value) => self.fit(value),
                    None => Ok(None),
                }
            }
        }
    }

    fn unary_rule(&mut self, op: UnaryOp) -> Gradient {
        let (g, x, y) = (self.g, self.x, self.y);
        let gradient = match op {
            UnaryOp::Neg => self.unary(UnaryOp::Neg, g)?,
            UnaryOp::Exp => self.binary(BinaryOp::Mul, g, y)?,
            UnaryOp::Log => self.binary(BinaryOp::Div, g, x)?,
            UnaryOp::Sqrt => {
                let half = self.scaled(g, 0.5)?;
                self.binary(BinaryOp::Div, half, y)?
            }
            UnaryOp::Rsqrt => {
                let half = self.scaled(g, -0.5)?;
                let square = self.binary(BinaryOp::Mul, y, y)?;
                let cube = self.binary(BinaryOp::Mul, square, y)?;
                self.binary(BinaryOp::Mul, half, cube)?
            }
            UnaryOp::Tanh => {
                let square = self.binary(BinaryOp::Mul, y, y)?;
                let one = self.constant(1.0);
                let slope = self.binary(BinaryOp::Sub, one, square)?;
                self.binary(BinaryOp::Mul, g, slope)?
            }
            UnaryOp::Sin => {
                let slope = self.unary(UnaryOp::Cos, x)?;
                self.binary(BinaryOp::Mul, g, slope)?
            }
            UnaryOp::Cos => {
                let slope = self.unary(UnaryOp::Sin, x)?;
                let product = self.binary(BinaryOp::Mul, g, slope)?;
                self.unary(UnaryOp::Neg, product)?
            }
            UnaryOp::Abs => {
                let slope = self.unary(UnaryOp::Sign, x)?;
                self.binary(BinaryOp::Mul, g, slope)?
            }
            UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Not => return Ok(None),
        };
        self.fit(gradient)
    }

    fn binary_rule(&mut self, op: BinaryOp) -> Gradient {
        let (g, y, first) = (self.g, self.y, self.operand == 0);
        let (a, b) = (self.node.operands[0], self.node.operands[1]);
        let gradient = match op {
            BinaryOp::Add => g,
            BinaryOp::Sub if first => g,
            // Reduce first: the negation is then of the smaller one.
            BinaryOp::Sub => {
                let sum = self.reduced(g)?;
                self.unary(UnaryOp::Neg, sum)?
            }
            BinaryOp::Mul => self.binary(BinaryOp::Mul, g, if first { b } else { a })?,
            BinaryOp::Div if first => self.binary(BinaryOp::Div, g, b)?,
            BinaryOp::Div => {
                let quotient = self.binary(BinaryOp::Div, g, b)?;
                let product = self.binary(BinaryOp::Mul, quotient, y)?;
                let sum = self.reduced(product)?;
                self.unary(UnaryOp::Neg, sum)?
            }
            BinaryOp::Rem if first => g,
            BinaryOp::Rem => {
                let quotient = self.binary(BinaryOp::Div, a, b)?;
                let whole = self.unary(UnaryOp::Floor, quotient)?;
                let product = self.binary(BinaryOp::Mul, g, whole)?;
                let sum = self.reduced(product)?;
                self.unary(UnaryOp::Neg, sum)?
            }
            BinaryOp::Pow => return self.pow_rule(a, b),
            BinaryOp::Min | BinaryOp::Max => {
                let this_wins = if (op == BinaryOp::Max) == first { BinaryOp::Gt } else { BinaryOp::Lt };
                let wins = self.binary(this_wins, a, b)?;
                let mut otherwise = self.constant(0.0);
                if constant_value(self.graph, if first { b } else { a }).is_none() {
                    let half = self.scaled(g, 0.5)?;
                    let tie = self.binary(BinaryOp::Eq, a, b)?;
                    otherwise = self.select(tie, half, otherwise)?;
                }
                self.select(wins, g, otherwise)?
            }
            BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => return Ok(None),
            BinaryOp::And | BinaryOp::Or => return Ok(None),
        };
        self.fit(gradient)
    }

    fn pow_rule(&mut self, a: ValueId, b: ValueId) -> Gradient {
        let (g, y) = (self.g, self.y);
        let gradient = match (self.operand, constant_value(self.graph, b)) {
            (0, Some(0.0)) => return Ok(None),
            (0, Some(1.0)) => g,
            (0, Some(2.0)) => {
                let twice = self.scaled(g, 2.0)?;
                self.binary(BinaryOp::Mul, twice, a)?
            }
            (0, Some(exponent)) => {
                let less = self.constant(exponent - 1.0);
                let power = self.binary(BinaryOp::Pow, a, less)?;
                let scaled = self.scaled(g, exponent)?;
                self.binary(BinaryOp::Mul, scaled, power)?
            }
            (0, None) => {
                let (zero, one) = (self.constant(0.0), self.constant(1.0));
                let less = self.binary(BinaryOp::Sub, b, one)?;
                let power = self.binary(BinaryOp::Pow, a, less)?;
                let slope = self.binary(BinaryOp::Mul, b, power)?;
                let product = self.binary(BinaryOp::Mul, g, slope)?;
                let flat = self.binary(BinaryOp::Eq, b, zero)?;
                self.select(flat, zero, product)?
            }
            _ => {
                let zero = self.constant(0.0);
                let log = self.unary(UnaryOp::Log, a)?;
                let slope = self.binary(BinaryOp::Mul, y, log)?;
                let product = self.binary(BinaryOp::Mul, g, slope)?;
                let (at_zero, rising) = (self.binary(BinaryOp::Eq, a, zero)?, self.binary(BinaryOp::Ge, b, zero)?);
                let flat = self.binary(BinaryOp::And, at_zero, rising)?;
                self.select(flat, zero, product)?
            }
        };
        self.fit(gradient)
    }

    fn select_rule(&mut self) -> Gradient {
        let (condition, zero) = (self.node.operands[0], self.constant(0.0));
        let gradient = match self.operand {
            1 => self.select(condition, self.g, zero)?,
            _ => self.select(condition, zero, self.g)?,
        };
        self.fit(gradient)
    }

    /// The axes of the other operand that this one lacks are summed; a summed axis comes back from the other operand.
    fn contract_rule(&mut self) -> Gradient {
        let other = self.node.operands[1 - self.operand];
        let mut over: Vec<AxisId> =
            self.graph.ty(other).axes.iter().copied().filter(|&a| !self.wanted.has(a)).collect();
        over.sort_unstable();
        let op = if over.is_empty() { Op::Binary(BinaryOp::Mul) } else { Op::Contract { over } };
        let operands = if self.operand == 0 { [self.g, other] } else { [other, self.g] };
        self.ordered(op, &operands, &self.wanted.axes.clone()).map(Some)
    }

    fn reduce_rule(&mut self, kind: ReduceKind, over: Vec<AxisId>) -> Gradient {
        let axes = self.wanted.axes.clone();
        match kind {
            ReduceKind::Sum => self.ordered(Op::Broadcast(over), &[self.g], &axes).map(Some),
            ReduceKind::Max | ReduceKind::Min => {
                let extremal = self.ordered(Op::Binary(BinaryOp::Eq), &[self.x, self.y], &axes)?;
                let ones = self.ordered(Op::Cast(self.wanted.dtype), &[extremal], &axes)?;
                let count = self.op(Op::Reduce { kind: ReduceKind::Sum, over }, &[ones])?;
                let share = self.op(Op::Binary(BinaryOp::Div), &[self.g, count])?;
                let zero = self.constant(0.0);
                self.ordered(Op::Select, &[extremal, share, zero], &axes).map(Some)
            }
        }
    }

    fn comm_rule(&mut self, comm: &Comm) -> Gradient {
        if let CommKind::AllReduce(ReduceKind::Max | ReduceKind::Min) = comm.kind {
            return Err(TypeError(format!("`{}` has no gradient", comm.name())));
        }
        let Some(back) = comm.gradient(self.graph) else { return Ok(None) };
        let mut operands = vec![self.g];
        // How many rows come from where is the same both ways.
        operands.extend(&self.node.operands[1..]);
        let value = self.op(Op::Comm(Box::new(back)), &operands)?;
        self.fit(value)
    }

    fn take_rule(&mut self, axis: AxisId, index: u64) -> Gradient {
        let unit = unit_axis(self.graph);
        let mut axes = self.wanted.axes.clone();
        axes.iter_mut().filter(|a| **a == axis).for_each(|a| *a = unit);
        let column = self.ordered(Op::Broadcast(vec![unit]), &[self.g], &axes)?;
        let padded = self.op(Op::Pad { from: unit, into: axis, start: index }, &[column])?;
        self.fit(padded)
    }

    /// An op of the cotangent alone.
    fn view(&mut self, op: Op) -> Gradient {
        let value = self.op(op, &[self.g])?;
        self.fit(value)
    }

    fn push_name(&self, op: &Op) -> String {
        format!("{}.{}", self.name, op.row().name)
    }

    /// A node in its default order.
    fn op(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId, TypeError> {
        let name = self.push_name(&op);
        self.graph.add(op, operands, &name)
    }

    /// A node in a given order.
    fn ordered(&mut self, op: Op, operands: &[ValueId], axes: &[AxisId]) -> Result<ValueId, TypeError> {
        let name = self.push_name(&op);
        self.graph.add_ordered(op, operands, axes, &name)
    }

    /// An elementwise node in the order of `y`, which has all axes of all operands of an elementwise op.
    fn elementwise(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId, TypeError> {
        let has = |a: &AxisId| operands.iter().any(|&o| self.graph.ty(o).has(*a));
        let axes: Vec<AxisId> = self.node.ty.axes.iter().copied().filter(has).collect();
        self.ordered(op, operands, &axes)
    }

    fn unary(&mut self, op: UnaryOp, x: ValueId) -> Result<ValueId, TypeError> {
        self.op(Op::Unary(op), &[x])
    }

    fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> Result<ValueId, TypeError> {
        self.elementwise(Op::Binary(op), &[a, b])
    }

    fn select(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Result<ValueId, TypeError> {
        self.elementwise(Op::Select, &[condition, a, b])
    }

    fn scaled(&mut self, x: ValueId, by: f64) -> Result<ValueId, TypeError> {
        let by = self.constant(by);
        self.binary(BinaryOp::Mul, x, by)
    }

    fn constant(&mut self, value: f64) -> ValueId {
        self.graph.constant(value, self.wanted.dtype)
    }

    /// Sums `value` over the axes that the operand was broadcast along.
    fn reduced(&mut self, value: ValueId) -> Result<ValueId, TypeError> {
        let mut over: Vec<AxisId> =
            self.graph.ty(value).axes.iter().copied().filter(|&a| !self.wanted.has(a)).collect();
        if over.is_empty() {
            return Ok(value);
        }
        self.make_order(value);
        over.sort_unstable();
        self.op(Op::Reduce { kind: ReduceKind::Sum, over }, &[value])
    }

    /// Brings `value` to the operand's axes, in the operand's order. Axes that it lacks are filled with copies.
    fn fit(&mut self, value: ValueId) -> Gradient {
        let mut value = self.reduced(value)?;
        let lacks: Vec<AxisId> = self.wanted.axes.iter().copied().filter(|&a| !self.graph.ty(value).has(a)).collect();
        let wanted = self.wanted.axes.clone();
        if !lacks.is_empty() {
            value = self.ordered(Op::Broadcast(lacks), &[value], &wanted)?;
        }
        self.make_order(value);
        if self.graph.ty(value).axes != wanted {
            value = self.ordered(Op::Reorder, &[value], &wanted)?;
        }
        Ok(Some(value))
    }

    /// Gives a node of this rule with a free order the operand's order, so that what is left of it after a sum needs no `reorder`.
    fn make_order(&mut self, value: ValueId) {
        let axes = &self.graph.ty(value).axes;
        let kept: Vec<AxisId> = axes.iter().copied().filter(|&a| self.wanted.has(a)).collect();
        let own = value.index() >= self.first_new && self.graph.node(value).op.row().free_order;
        if !own || self.wanted.axes.iter().copied().filter(|a| kept.contains(a)).eq(kept.iter().copied()) {
            return;
        }
        let mut order: Vec<AxisId> = axes.iter().copied().filter(|&a| !self.wanted.has(a)).collect();
        // A ragged axis stays behind its parent, which the operand may have alone.
        let behind: Vec<AxisId> = order
            .iter()
            .copied()
            .filter(|&a| self.graph.ragged_parent(a).is_some_and(|p| self.wanted.has(p)))
            .collect();
        order.retain(|a| !behind.contains(a));
        for &axis in self.wanted.axes.iter().filter(|a| kept.contains(a)) {
            order.push(axis);
            order.extend(behind.iter().filter(|&&r| self.graph.ragged_parent(r) == Some(axis)));
        }
        self.graph.nodes[value.index()].ty.axes = order;
    }
}

/// The number that all elements of a value are, when that can be seen.
pub fn constant_value(graph: &Graph, mut value: ValueId) -> Option<f64> {
    loop {
        let node = graph.node(value);
        match node.op {
            Op::Const(c) => return Some(c),
            Op::Broadcast(_) | Op::Reorder | Op::Detach => value = node.operands[0],
            _ => return None,
        }
    }
}

/// An axis of one element, for values that lack one.
fn unit_axis(graph: &mut Graph) -> AxisId {
    match graph.axis_named("unit") {
        Some(axis) if graph.axis(axis).extent == Extent::Fixed(1) => axis,
        _ => graph.add_axis("unit", Extent::Fixed(1), None),
    }
}

/// The cotangent of a value that nothing flows to: zeros of its type.
///
/// # Errors
/// Never on a graph that the type rules accept.
pub fn zeros(graph: &mut Graph, ty: &Type, name: &str) -> Result<ValueId, TypeError> {
    let zero = graph.constant(0.0, ty.dtype);
    if ty.axes.is_empty() {
        return Ok(zero);
    }
    graph.add_ordered(Op::Broadcast(ty.axes.clone()), &[zero], &ty.axes, name)
}
