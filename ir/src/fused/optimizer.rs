//! The optimizer: AdamW as its two moments and its step. One kernel makes all three in a pass over memory.
//!
//! Source: Loshchilov & Hutter, arXiv:1711.05101. Clipping is the factor `scale` of the gradient; bias corrections and the learning rate are in the
//! scalars `rate` and `root`, the decoupled decay in `keep`.

use super::Fused;
use super::body::Body;
use crate::graph::ValueId;
use crate::infer::TypeError;
use crate::op::{BinaryOp, UnaryOp};

type Result<T = ValueId> = std::result::Result<T, TypeError>;

/// From the moment, the gradient and its scale.
pub(super) fn first_moment(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let scaled = body.mul(x[1], x[2])?;
    average(body, op, x[0], scaled)
}

/// From the moment, the gradient and its scale.
pub(super) fn second_moment(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let scaled = body.mul(x[1], x[2])?;
    let square = body.mul(scaled, scaled)?;
    average(body, op, x[0], square)
}

fn average(body: &mut Body, op: &Fused, old: ValueId, new: ValueId) -> Result {
    let old = body.with(BinaryOp::Mul, old, op.numbers[0])?;
    let new = body.with(BinaryOp::Mul, new, op.numbers[1])?;
    body.add(old, new)
}

/// From the parameter, both new moments, and `keep`, `rate` and `root`.
pub(super) fn adamw(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let deviation = body.unary(UnaryOp::Sqrt, x[2])?;
    let corrected = body.mul(deviation, x[5])?;
    let divisor = body.with(BinaryOp::Add, corrected, op.numbers[0])?;
    let direction = body.div(x[1], divisor)?;
    let change = body.mul(direction, x[4])?;
    let kept = body.mul(x[0], x[3])?;
    body.sub(kept, change)
}
