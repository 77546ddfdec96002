//! RMS norms (arXiv 1910.07467). Statistics are wide; the normalised value has x's dtype before it meets the gain.

use super::Fused;
use super::body::Body;
use crate::graph::ValueId;
use crate::infer::TypeError;
use crate::op::{BinaryOp, UnaryOp};

type Result = std::result::Result<ValueId, TypeError>;

/// `1 / sqrt(mean(v * v) + eps)` of a wide value.
fn inverse(body: &mut Body, op: &Fused, v: ValueId) -> Result {
    let square = body.mul(v, v)?;
    let mean = body.mean(square, &op.axes)?;
    let shifted = body.with(BinaryOp::Add, mean, op.numbers[0])?;
    body.unary(UnaryOp::Rsqrt, shifted)
}

pub(super) fn rms(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let v = body.wide(x[0])?;
    let r = inverse(body, op, v)?;
    let y = body.mul(v, r)?;
    let dtype = body.dtype(x[0]);
    body.cast(y, dtype)
}

/// `r * (g - v * r² * mean(g * v))`.
pub(super) fn rms_dx(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let (v, g) = (body.wide(x[0])?, body.wide(x[1])?);
    let r = inverse(body, op, v)?;
    let product = body.mul(g, v)?;
    let mean = body.mean(product, &op.axes)?;
    let square = body.mul(r, r)?;
    let factor = body.mul(mean, square)?;
    let along = body.mul(v, factor)?;
    let across = body.sub(g, along)?;
    let dx = body.mul(across, r)?;
    let dtype = body.dtype(x[0]);
    body.cast(dx, dtype)
}

pub(super) fn rms_norm(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let y = rms(body, op, &x[..1])?;
    body.mul(y, x[1])
}

pub(super) fn rms_norm_dx(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let g = body.mul(x[2], x[1])?;
    rms_dx(body, op, &[x[0], g])
}

pub(super) fn add_rms_norm(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let sum = body.add(x[0], x[1])?;
    rms_norm(body, op, &[sum, x[2]])
}
