//! Rotary position embedding (arXiv 2104.09864): pairs of an axis are turned by angles.

use super::Fused;
use super::body::Body;
use crate::graph::ValueId;
use crate::infer::TypeError;
use crate::op::Op;
use crate::types::AxisId;

type Result = std::result::Result<ValueId, TypeError>;

/// How the axis is split: major first.
pub(super) fn parts(op: &Fused) -> Vec<AxisId> {
    let [_, two, pairs] = op.axes[..] else { unreachable!("checked: three axes") };
    if op.numbers[0] != 0.0 { vec![pairs, two] } else { vec![two, pairs] }
}

/// `(e cos - o sin, o cos + e sin)`, or with `back` the same with `-sin`. A pair is (e, o).
pub(super) fn rope(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let [axis, two, _] = op.axes[..] else { unreachable!("checked: three axes") };
    let parts = parts(op);
    let (cos, sin) = (x[1], x[2]);
    let pair = body.op(Op::Split { from: axis, into: parts.clone() }, &[x[0]])?;
    let even = body.op(Op::Take { axis: two, index: 0 }, &[pair])?;
    let odd = body.op(Op::Take { axis: two, index: 1 }, &[pair])?;
    let wide = body.dtype(cos);
    let (even, odd) = (body.cast(even, wide)?, body.cast(odd, wide)?);
    let (ec, os) = (body.mul(even, cos)?, body.mul(odd, sin)?);
    let (oc, es) = (body.mul(odd, cos)?, body.mul(even, sin)?);
    let back = op.numbers[1] != 0.0;
    let first = if back { body.add(ec, os)? } else { body.sub(ec, os)? };
    let second = if back { body.sub(oc, es)? } else { body.add(oc, es)? };
    // Rounded before they are joined, so that whoever computes them writes them to where they belong.
    let dtype = body.dtype(x[0]);
    let (first, second) = (body.cast(first, dtype)?, body.cast(second, dtype)?);
    let turned = body.op(Op::Stack(two), &[first, second])?;
    // The two halves stand where they are split off; the pairs keep their place.
    let mut order = body.graph.ty(pair).axes.clone();
    let extra: Vec<AxisId> = body.graph.ty(turned).axes.iter().copied().filter(|a| !order.contains(a)).collect();
    order.splice(0..0, extra);
    let turned = match body.graph.ty(turned).axes == order {
        true => turned,
        false => body.graph.add_ordered(Op::Reorder, &[turned], &order, "rope.reorder")?,
    };
    body.op(Op::Merge { from: parts, into: axis }, &[turned])
}
