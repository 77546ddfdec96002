//! Attention as one op (arXiv 2205.14135): scores and probabilities are never values of the graph.
//!
//! Axes: queries t, keys u, then a head axis for each pair of q and k; the scores of several pairs are summed (multi-head latent attention has two).
//! Operands: `q, k` of each pair, `v`, then the documents of queries and of keys, then the sink's logit, then the positions of queries
//! and of keys (whole numbers; without them both count from 0, and a query sees some key), as the attributes say; the gradient also takes the result, its log-sum-exp and the cotangent. What an operand lacks it shares: the heads of a group one key, all heads a rotary key.

use super::Fused;
use super::body::Body;
use crate::graph::ValueId;
use crate::infer::TypeError;
use crate::op::{BinaryOp, Op, ReduceKind, UnaryOp};
use crate::types::AxisId;

type Result<T = ValueId> = std::result::Result<T, TypeError>;

pub(super) const NUMBERS: &[&str] = &["scale", "causal", "window", "documents", "sink", "positions"];
pub(super) const GRAD_NUMBERS: &[&str] = &["scale", "causal", "window", "documents", "sink", "positions", "operand"];

/// The operands of an attention op by what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionParts {
    /// Queries and keys.
    pub pairs: Vec<(ValueId, ValueId)>,
    /// Values; `attention_lse` has none.
    pub v: Option<ValueId>,
    /// Documents of queries and keys.
    pub documents: Option<(ValueId, ValueId)>,
    /// The sink's logit.
    pub sink: Option<ValueId>,
    /// The positions of queries and keys.
    pub positions: Option<(ValueId, ValueId)>,
    /// For the gradient: result, log-sum-exp, cotangent.
    pub back: Option<[ValueId; 3]>,
}

impl AttentionParts {
    /// Sorts out the operands. The op has been checked.
    pub fn new(op: &Fused, operands: &[ValueId]) -> AttentionParts {
        let mut rest = operands.iter().copied();
        let mut next = || rest.next().expect("checked: as many operands as the attributes say");
        let pairs = (2..op.axes.len()).map(|_| (next(), next())).collect();
        let v = (op.kind != super::FusedKind::AttentionLse).then(&mut next);
        let documents = flag(op, 3).then(|| (next(), next()));
        let sink = flag(op, 4).then(&mut next);
        let positions = flag(op, 5).then(|| (next(), next()));
        let back = (op.kind == super::FusedKind::AttentionGrad).then(|| [next(), next(), next()]);
        AttentionParts { pairs, v, documents, sink, positions, back }
    }
}

fn flag(op: &Fused, number: usize) -> bool {
    op.numbers[number] != 0.0
}

/// How many operands the attributes ask for.
pub(super) fn operands(op: &Fused) -> Result<usize> {
    let fail = |what: &str| Err(TypeError(format!("`{}` {what}", op.kind.row().name)));
    if op.numbers[1..].iter().any(|n| n.fract() != 0.0 || *n < 0.0) {
        return fail("takes natural numbers, scale apart");
    }
    let back = if op.kind == super::FusedKind::AttentionGrad { 3 } else { 0 };
    let v = usize::from(op.kind != super::FusedKind::AttentionLse);
    let pairs = 2 * (op.axes.len() - 2);
    let sink = usize::from(flag(op, 4));
    let positions = 2 * usize::from(flag(op, 5));
    if back > 0 && op.numbers[6] as usize > pairs + sink {
        return fail("has no such operand to be differentiated in");
    }
    Ok(pairs + v + 2 * usize::from(flag(op, 3)) + sink + positions + back)
}

/// The scores, masked, and scaled.
fn scores(body: &mut Body, op: &Fused, parts: &AttentionParts) -> Result {
    let (t, u) = (op.axes[0], op.axes[1]);
    let mut sum: Option<ValueId> = None;
    for (&(q, k), &head) in parts.pairs.iter().zip(&op.axes[2..]) {
        let (q, k) = (body.wide(q)?, body.wide(k)?);
        let s = body.op(Op::Contract { over: vec![head] }, &[q, k])?;
        sum = Some(match sum {
            Some(sum) => body.add(sum, s)?,
            None => s,
        });
    }
    let sum = sum.ok_or_else(|| TypeError("attention needs queries and keys".into()))?;
    let mut s = body.scaled(sum, op.numbers[0])?;
    let hidden = body.constant(f64::NEG_INFINITY, s);
    if flag(op, 1) || flag(op, 2) {
        let (query, key) = match parts.positions {
            Some(positions) => positions,
            None => (body.op(Op::Iota(t), &[])?, body.op(Op::Iota(u), &[])?),
        };
        if flag(op, 1) {
            let sees = body.binary(BinaryOp::Le, key, query)?;
            s = body.select(sees, s, hidden)?;
        }
        if flag(op, 2) {
            let distance = body.sub(query, key)?;
            let near = body.with(BinaryOp::Lt, distance, op.numbers[2])?;
            s = body.select(near, s, hidden)?;
        }
    }
    if let Some((query, key)) = parts.documents {
        let same = body.binary(BinaryOp::Eq, key, query)?;
        s = body.select(same, s, hidden)?;
    }
    Ok(s)
}

pub(super) fn attention(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let parts = AttentionParts::new(op, x);
    let v = parts.v.expect("attention has values");
    let s = scores(body, op, &parts)?;
    let u = op.axes[1];
    let over = Fused::new(super::FusedKind::Softmax, [u], []);
    let p = match parts.sink {
        Some(sink) => super::softmax::sink_softmax(body, &over, &[s, sink])?,
        None if parts.positions.is_some() => super::softmax::softmax_or_nothing(body, s, u)?,
        None => super::softmax::softmax(body, &over, &[s])?,
    };
    let dtype = body.dtype(v);
    let p = body.cast(p, dtype)?;
    body.op(Op::Contract { over: vec![u] }, &[p, v])
}

pub(super) fn log_sum_exp(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let parts = AttentionParts::new(op, x);
    let s = scores(body, op, &parts)?;
    let u = op.axes[1];
    let Some(sink) = parts.sink else {
        if parts.positions.is_some() {
            return super::softmax::log_sum_exp_or_nothing(body, s, u);
        }
        let over = Fused::new(super::FusedKind::LogSumExp, [u], []);
        return super::softmax::log_sum_exp(body, &over, &[s]);
    };
    let sink = body.wide(sink)?;
    let top = body.reduce(ReduceKind::Max, s, &[u])?;
    let top = body.binary(BinaryOp::Max, top, sink)?;
    let less = body.sub(s, top)?;
    let w = body.unary(UnaryOp::Exp, less)?;
    let sum = body.sum(w, &[u])?;
    let own = body.sub(sink, top)?;
    let own = body.unary(UnaryOp::Exp, own)?;
    let sum = body.add(sum, own)?;
    let log = body.unary(UnaryOp::Log, sum)?;
    body.add(top, log)
}

/// With p = exp(s - lse) and delta = sum(g * out): dv = p g, ds = p (g v - delta), dq = scale ds k, dk = scale ds q, and -exp(sink - lse) delta.
pub(super) fn gradient_part(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let parts = AttentionParts::new(op, x);
    let number = op.numbers[6] as usize;
    let v = parts.v.expect("the gradient has values");
    let [out, mut lse, g] = parts.back.expect("the gradient has a cotangent");
    if parts.positions.is_some() {
        lse = body.with(BinaryOp::Max, lse, super::softmax::LEAST)?;
    }
    let pairs = 2 * parts.pairs.len();
    let target = match number {
        n if n < pairs => [parts.pairs[n / 2].0, parts.pairs[n / 2].1][n % 2],
        n if n == pairs => v,
        _ => parts.sink.ok_or_else(|| TypeError("attention without a sink has no gradient in it".into()))?,
    };
    let (axes, dtype) = (body.graph.ty(target).axes.clone(), body.dtype(target));
    let (g, wide_out) = (body.wide(g)?, body.wide(out)?);
    let dx = if number > pairs {
        let delta = delta(body, g, wide_out, lse)?;
        let sink = body.wide(target)?;
        let less = body.sub(sink, lse)?;
        let p = body.unary(UnaryOp::Exp, less)?;
        let product = body.mul(p, delta)?;
        let sum = body.summed_onto(product, &axes)?;
        body.unary(UnaryOp::Neg, sum)?
    } else {
        let s = scores(body, op, &parts)?;
        let less = body.sub(s, lse)?;
        let p = body.unary(UnaryOp::Exp, less)?;
        if number == pairs {
            body.product_onto(p, g, &axes)?
        } else {
            let v = body.wide(v)?;
            let scores: Vec<AxisId> = body.graph.ty(p).axes.clone();
            let dp = body.product_onto(g, v, &scores)?;
            let delta = delta(body, g, wide_out, lse)?;
            let less = body.sub(dp, delta)?;
            let ds = body.mul(p, less)?;
            let ds = body.scaled(ds, op.numbers[0])?;
            let (q, k) = parts.pairs[number / 2];
            let other = body.wide(if number.is_multiple_of(2) { k } else { q })?;
            body.product_onto(ds, other, &axes)?
        }
    };
    body.cast(dx, dtype)
}

/// `sum(g * out)` over the axes of the values that queries do not have.
fn delta(body: &mut Body, g: ValueId, out: ValueId, lse: ValueId) -> Result {
    let product = body.mul(g, out)?;
    let axes = body.graph.ty(lse).axes.clone();
    body.summed_onto(product, &axes)
}
