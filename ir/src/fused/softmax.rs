//! Softmax and what is made of it. Results are wide. The largest entry is subtracted before `exp`.

use super::Fused;
use super::body::Body;
use crate::graph::ValueId;
use crate::infer::TypeError;
use crate::op::{BinaryOp, Op, ReduceKind, UnaryOp};
use crate::types::AxisId;

type Result = std::result::Result<ValueId, TypeError>;

pub(super) fn softmax(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let v = body.wide(x[0])?;
    let top = body.reduce(ReduceKind::Max, v, &op.axes)?;
    let less = body.sub(v, top)?;
    let w = body.unary(UnaryOp::Exp, less)?;
    let sum = body.sum(w, &op.axes)?;
    body.div(w, sum)
}

/// Below every score that is one.
pub(super) const LEAST: f64 = -1e30;

/// The exponentials of scores that may all be -∞, relative to the largest, which is a number; their sum; the largest.
fn exponentials(body: &mut Body, s: ValueId, u: AxisId) -> std::result::Result<[ValueId; 3], TypeError> {
    let top = body.reduce(ReduceKind::Max, s, &[u])?;
    let top = body.with(BinaryOp::Max, top, LEAST)?;
    let less = body.sub(s, top)?;
    let w = body.unary(UnaryOp::Exp, less)?;
    let sum = body.sum(w, &[u])?;
    Ok([w, sum, top])
}

/// Softmax, or zeros where all scores are -∞. (Otherwise the largest has the exponential 1, and the sum is no less.)
pub(super) fn softmax_or_nothing(body: &mut Body, s: ValueId, u: AxisId) -> Result {
    let [w, sum, _] = exponentials(body, s, u)?;
    let sum = body.with(BinaryOp::Max, sum, 1.0)?;
    body.div(w, sum)
}

/// The logarithm of the sum of exponentials, -∞ where all scores are.
pub(super) fn log_sum_exp_or_nothing(body: &mut Body, s: ValueId, u: AxisId) -> Result {
    let [_, sum, top] = exponentials(body, s, u)?;
    let log = body.unary(UnaryOp::Log, sum)?;
    body.add(top, log)
}

/// `p * (g - sum(g * p))`.
pub(super) fn softmax_dx(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let (p, g) = (x[0], x[1]);
    let product = body.mul(g, p)?;
    let sum = body.sum(product, &op.axes)?;
    let less = body.sub(g, sum)?;
    body.mul(p, less)
}

pub(super) fn sink_softmax(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let (v, s) = (body.wide(x[0])?, body.wide(x[1])?);
    let top = body.reduce(ReduceKind::Max, v, &op.axes)?;
    let top = body.binary(BinaryOp::Max, top, s)?;
    let less = body.sub(v, top)?;
    let w = body.unary(UnaryOp::Exp, less)?;
    let sum = body.sum(w, &op.axes)?;
    let sink = body.sub(s, top)?;
    let sink = body.unary(UnaryOp::Exp, sink)?;
    let sum = body.add(sum, sink)?;
    body.div(w, sum)
}

pub(super) fn log_sum_exp(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let v = body.wide(x[0])?;
    let top = body.reduce(ReduceKind::Max, v, &op.axes)?;
    let less = body.sub(v, top)?;
    let w = body.unary(UnaryOp::Exp, less)?;
    let sum = body.sum(w, &op.axes)?;
    let log = body.unary(UnaryOp::Log, sum)?;
    body.add(top, log)
}

pub(super) fn cross_entropy(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let v = body.wide(x[0])?;
    let total = log_sum_exp(body, op, &[v])?;
    let own = body.op(Op::Gather { axis: op.axes[0] }, &[v, x[1]])?;
    body.sub(total, own)
}

pub(super) fn cross_entropy_dx(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let (v, label, total, g) = (body.wide(x[0])?, x[1], x[2], x[3]);
    let less = body.sub(v, total)?;
    let p = body.unary(UnaryOp::Exp, less)?;
    let position = body.op(Op::Iota(op.axes[0]), &[])?;
    let own = body.binary(BinaryOp::Eq, position, label)?;
    let rest = body.with(BinaryOp::Sub, p, 1.0)?;
    let error = body.select(own, rest, p)?;
    let dx = body.mul(error, g)?;
    let dtype = body.dtype(x[0]);
    body.cast(dx, dtype)
}
