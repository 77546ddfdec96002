//! Linear attention by itself.

use super::footprint::distinct;
use super::kernels::Cx;
use super::rules::Rule;
use super::{MAX_KEY, MAX_RANK};
use crate::kernel::LinearAttention;
use crate::operands::{Operand, Usage};

/// Sizes, and strides for each dimension.
pub(super) fn sizes(cx: &mut Cx, k: &LinearAttention) {
    let of_a_position = k.keys.len().max(k.values.len());
    let rank = k.batch.len() + 1 + of_a_position;
    cx.ensure(rank <= MAX_RANK, Rule::Sizes, || format!("{rank} dimensions; the most is {MAX_RANK}"));
    for dims in [&k.keys, &k.values] {
        cx.loops(k.batch.iter().copied().chain([k.positions]).chain(dims.iter().copied()));
    }
    let size = k.keys.iter().fold(1u64, |n, d| n.saturating_mul(*d));
    cx.ensure(size <= MAX_KEY, Rule::Sizes, || format!("a key of {size} elements; the most is {MAX_KEY}"));
    let views =
        [(&k.q, k.keys.len()), (&k.k, k.keys.len()), (&k.v, k.values.len()), (&k.g, 0), (&k.out, k.values.len())];
    for (view, inner) in views {
        let (n, dims) = (view.strides.len(), k.batch.len() + 1 + inner);
        cx.ensure(n == dims, Rule::Sizes, || format!("{n} strides for {dims} dimensions"));
    }
}

pub(super) fn check(cx: &mut Cx, k: &LinearAttention, operands: &[Operand]) {
    cx.ensure(k.dtype.is_float(), Rule::LinearAttention, || format!("linear attention of {}", k.dtype));
    let rounded = k.result == k.dtype || k.result == k.wide();
    cx.ensure(rounded, Rule::LinearAttention, || format!("linear attention of {} gives no {}", k.dtype, k.result));
    for operand in operands {
        // Workspaces hold whole heads: no array may seem larger than its buffer.
        let inner = operand.dims.split_at(k.batch.len()).1;
        cx.ensure(distinct(inner), Rule::LinearAttention, || {
            format!("{}: two of its positions or elements are in one place", operand.what)
        });
        if operand.usage == Usage::Write {
            cx.apart(&operand.dims);
        }
    }
}
