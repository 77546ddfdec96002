//! Activations, element by element. All of one is computed in the type that statistics are taken in, and rounded once: in bf16 that is
//! both closer and faster than a rounding after each step.

use super::Fused;
use super::body::Body;
use crate::graph::ValueId;
use crate::infer::TypeError;
use crate::op::{BinaryOp, UnaryOp};

type Result = std::result::Result<ValueId, TypeError>;

/// The function of wide operands, rounded to the dtype that they came in.
fn rounded_once(body: &mut Body, x: &[ValueId], f: impl FnOnce(&mut Body, &[ValueId]) -> Result) -> Result {
    let dtype = body.dtype(x[0]);
    let x = x.iter().map(|&x| body.wide(x)).collect::<std::result::Result<Vec<_>, _>>()?;
    let y = f(body, &x)?;
    body.cast(y, dtype)
}

pub(super) fn sigmoid(body: &mut Body, _: &Fused, x: &[ValueId]) -> Result {
    rounded_once(body, x, |body, x| wide_sigmoid(body, x[0]))
}

pub(super) fn silu(body: &mut Body, _: &Fused, x: &[ValueId]) -> Result {
    rounded_once(body, x, |body, x| wide_silu(body, x[0]))
}

pub(super) fn silu_dx(body: &mut Body, _: &Fused, x: &[ValueId]) -> Result {
    rounded_once(body, x, |body, x| wide_silu_dx(body, x[0], x[1]))
}

pub(super) fn swiglu(body: &mut Body, _: &Fused, x: &[ValueId]) -> Result {
    rounded_once(body, x, |body, x| {
        let a = wide_silu(body, x[0])?;
        body.mul(a, x[1])
    })
}

pub(super) fn swiglu_da(body: &mut Body, _: &Fused, x: &[ValueId]) -> Result {
    rounded_once(body, x, |body, x| {
        let g = body.mul(x[2], x[1])?;
        wide_silu_dx(body, x[0], g)
    })
}

/// The exponent is cut at 80, so neither the value nor what is made of it overflows in f32 or bf16.
fn wide_sigmoid(body: &mut Body, x: ValueId) -> Result {
    let negative = body.unary(UnaryOp::Neg, x)?;
    let cut = body.with(BinaryOp::Min, negative, 80.0)?;
    let exp = body.unary(UnaryOp::Exp, cut)?;
    let one = body.constant(1.0, exp);
    let sum = body.add(one, exp)?;
    body.div(one, sum)
}

fn wide_silu(body: &mut Body, x: ValueId) -> Result {
    let s = wide_sigmoid(body, x)?;
    body.mul(x, s)
}

/// `g * s * (1 + x * (1 - s))`.
fn wide_silu_dx(body: &mut Body, x: ValueId, g: ValueId) -> Result {
    let s = wide_sigmoid(body, x)?;
    let rest = body.from(1.0, s)?;
    let bend = body.mul(x, rest)?;
    let slope = body.with(BinaryOp::Add, bend, 1.0)?;
    let slope = body.mul(s, slope)?;
    body.mul(g, slope)
}

/// The parts of a clamped SwiGLU (gpt-oss, arXiv 2508.10925): the cut gate, its sigmoid, the cut and raised linear half.
struct Clamped {
    gate: ValueId,
    sigmoid: ValueId,
    linear: ValueId,
}

fn clamped(body: &mut Body, op: &Fused, a: ValueId, b: ValueId) -> std::result::Result<Clamped, TypeError> {
    let [limit, steepness, shift] = op.numbers[..] else { unreachable!("checked: three numbers") };
    let gate = body.with(BinaryOp::Min, a, limit)?;
    let steep = body.scaled(gate, steepness)?;
    let sigmoid = wide_sigmoid(body, steep)?;
    let above = body.with(BinaryOp::Max, b, -limit)?;
    let inside = body.with(BinaryOp::Min, above, limit)?;
    let linear = body.with(BinaryOp::Add, inside, shift)?;
    Ok(Clamped { gate, sigmoid, linear })
}

pub(super) fn clamped_swiglu(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    rounded_once(body, x, |body, x| {
        let Clamped { gate, sigmoid, linear } = clamped(body, op, x[0], x[1])?;
        let gated = body.mul(gate, sigmoid)?;
        body.mul(gated, linear)
    })
}

/// `g * linear * s * (1 + steepness * gate * (1 - s))`, and nothing where the gate is cut.
pub(super) fn clamped_swiglu_da(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    rounded_once(body, x, |body, x| {
        let Clamped { gate, sigmoid, linear } = clamped(body, op, x[0], x[1])?;
        let rest = body.from(1.0, sigmoid)?;
        let steep = body.scaled(gate, op.numbers[1])?;
        let bend = body.mul(steep, rest)?;
        let slope = body.with(BinaryOp::Add, bend, 1.0)?;
        let slope = body.mul(sigmoid, slope)?;
        let g = body.mul(x[2], linear)?;
        let dx = body.mul(g, slope)?;
        let free = body.with(BinaryOp::Lt, x[0], op.numbers[0])?;
        let zero = body.constant(0.0, dx);
        body.select(free, dx, zero)
    })
}

/// `g * gate * s`, and nothing where the linear half is cut.
pub(super) fn clamped_swiglu_db(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    rounded_once(body, x, |body, x| {
        let Clamped { gate, sigmoid, .. } = clamped(body, op, x[0], x[1])?;
        let gated = body.mul(gate, sigmoid)?;
        let dx = body.mul(x[2], gated)?;
        let (above, below) =
            (body.with(BinaryOp::Gt, x[1], -op.numbers[0])?, body.with(BinaryOp::Lt, x[1], op.numbers[0])?);
        let free = body.binary(BinaryOp::And, above, below)?;
        let zero = body.constant(0.0, dx);
        body.select(free, dx, zero)
    })
}
