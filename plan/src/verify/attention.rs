//! Attention by itself: its sizes, its factor, its results.

use super::footprint::distinct;
use super::kernels::Cx;
use super::rules::Rule;
use super::{MAX_HEAD, MAX_PAIRS, MAX_RANK};
use crate::kernel::*;
use crate::operands::{LSE, Operand, Usage};

/// Sizes, and strides for each dimension.
pub(super) fn sizes(cx: &mut Cx, k: &AttentionInputs) {
    let n = k.pairs.len();
    cx.ensure((1..=MAX_PAIRS).contains(&n), Rule::Sizes, || {
        format!("{n} pairs of queries and keys; between 1 and {MAX_PAIRS} are possible")
    });
    // Positions and elements are dimensions as well.
    let rank = k.batch.len() + 2;
    cx.ensure(rank <= MAX_RANK, Rule::Sizes, || format!("{rank} dimensions; the most is {MAX_RANK}"));
    let heads = k.pairs.iter().map(|p| p.size).chain([k.value_size]);
    for size in heads {
        cx.ensure(size <= MAX_HEAD, Rule::Sizes, || format!("a head of {size} elements; the most is {MAX_HEAD}"));
        cx.loops(k.batch.iter().copied().chain([k.queries, k.keys, size]));
    }
}

/// One stride for each dimension, in as many views as there should be.
pub(super) fn strides(cx: &mut Cx, kernel: &Kernel) {
    let (k, rest, counted) = match kernel {
        Kernel::Attention(k) => (&k.inputs, vec![(&k.out, 2), (&k.lse, 1)], true),
        Kernel::AttentionBackward(k) => {
            let mut views = vec![(&k.out, 2), (&k.lse, 1), (&k.d_out, 2)];
            views.extend(k.d_q.iter().chain(&k.d_k).chain([&k.d_v]).flatten().map(|v| (v, 2)));
            views.extend(k.d_sink.iter().map(|v| (v, 0)));
            let pairs = k.inputs.pairs.len();
            (&k.inputs, views, k.d_q.len() == pairs && k.d_k.len() == pairs)
        }
        _ => return,
    };
    cx.ensure(counted, Rule::Sizes, || "not every pair has its gradients, or none for them".into());
    let mut views: Vec<(&View, usize)> = k.pairs.iter().flat_map(|p| [(&p.q, 2), (&p.k, 2)]).collect();
    views.push((&k.v, 2));
    views.extend(k.documents.iter().chain(&k.positions).flat_map(|d| [(&d.queries, 1), (&d.keys, 1)]));
    views.extend(k.sink.iter().map(|s| (s, 0)));
    views.extend(rest);
    for (view, inner) in views {
        let (n, dims) = (view.strides.len(), k.batch.len() + inner);
        cx.ensure(n == dims, Rule::Sizes, || format!("{n} strides for {dims} dimensions"));
    }
}

pub(super) fn check(cx: &mut Cx, kernel: &Kernel, operands: &[Operand]) {
    let k = match kernel {
        Kernel::Attention(k) => &k.inputs,
        Kernel::AttentionBackward(k) => {
            let some = k.d_q.iter().chain(&k.d_k).chain([&k.d_v, &k.d_sink]).any(Option::is_some);
            cx.ensure(some, Rule::Attention, || "no gradient is wanted".into());
            let known = k.d_sink.is_none() || k.inputs.sink.is_some();
            cx.ensure(known, Rule::Attention, || "the gradient of a sink that is not there".into());
            &k.inputs
        }
        _ => return,
    };
    cx.ensure(k.dtype.is_float(), Rule::Attention, || format!("attention of {}", k.dtype));
    cx.ensure(k.scale.is_finite(), Rule::Attention, || format!("scores times {}", k.scale));
    let sums = matches!(kernel, Kernel::AttentionBackward(_));
    let batch = k.batch.len();
    for operand in operands {
        let (outer, inner) = operand.dims.split_at(batch);
        // Workspaces hold whole heads: no array may seem larger than its buffer.
        cx.ensure(inner.len() < 2 || distinct(inner), Rule::Attention, || {
            format!("{}: two of its positions or elements are in one place", operand.what)
        });
        // There is a place for each problem where gradients are put together.
        let own = operand.what != LSE || distinct(&operand.dims);
        cx.ensure(own, Rule::Attention, || "two queries share one lse".into());
        if operand.usage == Usage::Write {
            // A gradient is summed where it has no stride.
            let own = outer.iter().filter(|(_, stride)| !sums || *stride != 0).chain(inner);
            cx.apart(&own.copied().collect::<Vec<_>>());
        }
    }
}
