//! Kernels that talk to other ranks, each by itself.

use super::kernels::{Cx, numbers, positions, ragged_dim};
use super::rules::Rule;
use crate::kernel::*;

pub(super) fn exchange(cx: &mut Cx, k: &Exchange) {
    ragged_dim(cx, &k.ragged, k.dims.len());
    let piece = k.dims.iter().copied().zip(k.out_strides.iter().copied());
    if k.shift != 0 {
        let steps = k.reduce.is_none() && (k.x_step, k.out_step) == (0, 0);
        cx.ensure(steps && k.shift < k.ranks, Rule::Exchange, || {
            format!("a shift by {} of {} ranks", k.shift, k.ranks)
        });
        cx.apart(&piece.collect::<Vec<_>>());
    } else if k.reduce.is_some() {
        numbers(cx, k.dtype, Rule::Exchange);
        cx.ensure(k.out_step == 0, Rule::Exchange, || "pieces that are combined have one place".into());
        cx.apart(&piece.collect::<Vec<_>>());
    } else {
        cx.apart(&std::iter::once((k.ranks, k.out_step)).chain(piece).collect::<Vec<_>>());
    }
}

pub(super) fn all_to_all_v(cx: &mut Cx, k: &AllToAllV) {
    cx.ensure(k.experts.is_multiple_of(k.ranks), Rule::Exchange, || {
        format!("{} groups of rows cannot be shared out to {} ranks", k.experts, k.ranks)
    });
    positions(cx, k.bound.max(k.tokens));
}
