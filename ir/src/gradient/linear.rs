//! The gradients of linear attention, which are linear attentions.
//!
//! Write `y[t] = Σ_s decay[t, s] (q[t] · k[s]) v[s]`, the sum over what t reads. The sum is one of three factors, so that each gradient is the same sum with others in their
//! places; where the gradient belongs to what is read (k, v) it is read the other way round:
//!
//! ```text
//! d.q[t] = Σ_s decay (d.y[t] · v[s]) k[s]       d.k[s] = Σ_t decay (v[s] · d.y[t]) q[t]       d.v[s] = Σ_t decay (k[s] · q[t]) d.y[t]
//! ```
//!
//! `solve` is `y = v - (scores) y`. Its gradient in v, w, is the solution of the transposed system, and those of q and k are those of the scores, whose gradient is
//! `-w[t] · y[s]`.
//!
//! A decay between two positions is `exp(G[later] - G[earlier])` with the running sum G of g. A position's part of the gradient of G is what it gets as a reader,
//! `q[t] · d.q[t]`, without what it gives as one that is read, `k[t] · d.k[t]`; both signs change where positions read those after them. g has the sum over later ones.
//! What a position has of itself is in both and would leave nothing but their rounding where little is remembered: so gradients of scores leave it out
//! (`exclusive`), and those of queries and keys get it by itself.

use super::{Gradient, Rule};
use crate::graph::ValueId;
use crate::infer::{TypeError, infer};
use crate::op::{BinaryOp, Direction, LinearAttention, LinearReads, Op, ReduceKind, UnaryOp};
use crate::types::{AxisId, DType};

impl Rule<'_> {
    pub(super) fn linear_attention_rule(&mut self, op: &LinearAttention) -> Gradient {
        let value = match self.operand {
            number @ (0 | 1) => self.of_factor(op, number)?,
            2 => self.of_values(op)?,
            _ => self.of_decays(op)?,
        };
        // What is shared is summed while it is wide.
        let value = self.reduced(value)?;
        let value = self.as_type(value, self.wanted.dtype)?;
        self.fit(value)
    }

    fn operands(&self) -> [ValueId; 4] {
        self.node.operands[..].try_into().expect("four operands")
    }

    fn as_type(&mut self, value: ValueId, dtype: DType) -> Result<ValueId, TypeError> {
        if self.graph.ty(value).dtype == dtype { Ok(value) } else { self.op(Op::Cast(dtype), &[value]) }
    }

    /// The axes that values have for themselves, over which gradients of scores are summed.
    fn of_values_alone(&self) -> Vec<AxisId> {
        let [q, k, v, g] = self.operands().map(|o| self.graph.ty(o));
        let own = |a: &AxisId| ![q, k, g].iter().any(|t| t.has(*a));
        let mut axes: Vec<AxisId> = v.axes.iter().copied().filter(own).collect();
        axes.sort_unstable();
        axes
    }

    /// The op with other operands of the old ones' type and the same decays; in the order of the operand number `of`, whoever asks, so that it is there once.
    fn linear(&mut self, op: LinearAttention, qkv: [ValueId; 3], of: usize) -> Result<ValueId, TypeError> {
        let [q, _, _, g] = self.operands();
        let dtype = self.graph.ty(q).dtype;
        let mut operands = Vec::with_capacity(4);
        for value in qkv {
            operands.push(self.as_type(value, dtype)?);
        }
        operands.push(g);
        let op = Op::LinearAttention(Box::new(op));
        let mut axes = infer(self.graph, &op, &operands)?.axes;
        let like = &self.graph.ty(self.node.operands[of]).axes;
        // A stable sort: what the operand lacks stands before.
        axes.sort_by_key(|a| like.iter().position(|b| a == b).map_or(0, |at| at + 1));
        self.ordered(op, &operands, &axes)
    }

    /// The gradient of what is read with the scores: of the values, and of a system's right side.
    fn of_values(&mut self, op: &LinearAttention) -> Result<ValueId, TypeError> {
        let [q, k, v, _] = self.operands();
        let (direction, result) = (op.direction.opposite(), self.graph.ty(v).dtype);
        self.linear(LinearAttention { direction, result, over: op.over.clone(), ..*op }, [k, q, self.g], 2)
    }

    /// What the scores' gradient is a product of: the cotangent of what reads, and what is read. `solve` has them with a minus.
    fn of_scores(&mut self, op: &LinearAttention) -> Result<(ValueId, ValueId), TypeError> {
        let [_, _, v, _] = self.operands();
        if op.reads == LinearReads::Solve { Ok((self.of_values(op)?, self.y)) } else { Ok((self.g, v)) }
    }

    /// The gradient of a factor of the scores: queries (0) or keys (1).
    fn of_factor(&mut self, op: &LinearAttention, number: usize) -> Result<ValueId, TypeError> {
        let beyond = self.beyond_own(op, number)?;
        if op.reads == LinearReads::Inclusive { self.with_own(beyond, number) } else { Ok(beyond) }
    }

    /// The gradient of a factor, what a position has of itself left out.
    fn beyond_own(&mut self, op: &LinearAttention, number: usize) -> Result<ValueId, TypeError> {
        let (cotangent, read) = self.of_scores(op)?;
        let (operands, over) = (self.operands(), self.of_values_alone());
        let (direction, [a, b]) = match number {
            0 => (op.direction, [cotangent, read]),
            _ => (op.direction.opposite(), [read, cotangent]),
        };
        let (reads, result) = (LinearReads::Exclusive, self.graph.ty(operands[3]).dtype);
        let op_of_factor = LinearAttention { axis: op.axis, over, direction, reads, result };
        let value = self.linear(op_of_factor, [a, b, operands[1 - number]], number)?;
        self.signed(op, value)
    }

    /// Adds what a position has of itself, `(d.y[t] · v[t])` times the other factor.
    fn with_own(&mut self, beyond: ValueId, number: usize) -> Result<ValueId, TypeError> {
        let wide = self.graph.ty(beyond).dtype;
        let operands = self.operands();
        let (cotangent, v) = (self.as_type(self.g, wide)?, self.as_type(operands[2], wide)?);
        let axes = self.graph.ty(cotangent).axes.clone();
        let product = self.ordered(Op::Binary(BinaryOp::Mul), &[cotangent, v], &axes)?;
        let over = self.of_values_alone();
        let score = self.op(Op::Reduce { kind: ReduceKind::Sum, over }, &[product])?;
        let axes = self.graph.ty(beyond).axes.clone();
        let other = self.as_type(operands[1 - number], wide)?;
        let own = self.ordered(Op::Binary(BinaryOp::Mul), &[score, other], &axes)?;
        self.ordered(Op::Binary(BinaryOp::Add), &[beyond, own], &axes)
    }

    fn signed(&mut self, op: &LinearAttention, value: ValueId) -> Result<ValueId, TypeError> {
        if op.reads != LinearReads::Solve {
            return Ok(value);
        }
        let axes = self.graph.ty(value).axes.clone();
        self.ordered(Op::Unary(UnaryOp::Neg), &[value], &axes)
    }

    fn of_decays(&mut self, op: &LinearAttention) -> Result<ValueId, TypeError> {
        let [q, k, ..] = self.operands();
        let of_queries = self.beyond_own(op, 0)?;
        let of_keys = self.beyond_own(op, 1)?;
        let reading = self.product(q, of_queries)?;
        let read = self.product(k, of_keys)?;
        let (plus, minus) = match op.direction {
            Direction::Forward => (reading, read),
            Direction::Backward => (read, reading),
        };
        let difference = self.op(Op::Binary(BinaryOp::Sub), &[plus, minus])?;
        self.op(Op::Scan { axis: op.axis, direction: Direction::Backward }, &[difference])
    }

    /// The product of an operand and its wide gradient, summed over all axes that decays lack. (No matrix product: nothing is shared.)
    fn product(&mut self, operand: ValueId, gradient: ValueId) -> Result<ValueId, TypeError> {
        let operand = self.as_type(operand, self.wanted.dtype)?;
        let axes = self.graph.ty(gradient).axes.clone();
        let product = self.ordered(Op::Binary(BinaryOp::Mul), &[operand, gradient], &axes)?;
        let mut over = axes;
        over.retain(|&a| !self.wanted.has(a));
        over.sort_unstable();
        self.op(Op::Reduce { kind: ReduceKind::Sum, over }, &[product])
    }
}
