//! Attention as one kernel: the result, its log-sum-exp, and in the backward graph all gradients.

use super::Emitter;
use super::dtype;
use super::places::Place;
use forebay_ir::fused::AttentionParts;
use forebay_ir::{AxisId, Fused, FusedKind, Graph, Op, Type, ValueId};
use forebay_plan::verify::{MAX_HEAD, MAX_PAIRS};
use forebay_plan::{self as plan, Kernel};

/// Is it a result of an attention kernel?
pub(super) fn is_attention(op: &Op) -> bool {
    matches!(op, Op::Fused(f) if matches!(f.kind, FusedKind::Attention | FusedKind::AttentionLse | FusedKind::AttentionGrad))
}

/// Which fused ops the kernels do; a log-sum-exp beside the result that it belongs to, where that is there.
pub(super) fn has_kernel(graph: &Graph) -> impl Fn(ValueId) -> bool {
    let kind = |v: ValueId| match &graph.node(v).op {
        Op::Fused(fused) => Some(fused.kind),
        _ => None,
    };
    let fits = |v: ValueId| fits(graph, v);
    move |value| match kind(value) {
        Some(FusedKind::Attention | FusedKind::AttentionGrad) => fits(value),
        Some(FusedKind::AttentionLse) => {
            let sibling = |v: &ValueId| kind(*v) == Some(FusedKind::Attention) && is_sibling(graph, *v, value);
            fits(graph.values().find(sibling).unwrap_or(value))
        }
        _ => false,
    }
}

/// Can the kernel do it? It knows batch axes, which all arrays may have or share, and beside them queries, keys, one head axis a pair and one axis of
/// values; anything else the body does as it is.
fn fits(graph: &Graph, value: ValueId) -> bool {
    let node = graph.node(value);
    let (Op::Fused(fused), parts) = (&node.op, parts(graph, value)) else { return false };
    let (t, u, heads) = (fused.axes[0], fused.axes[1], &fused.axes[2..]);
    let axes = |v: ValueId| graph.ty(v).axes.clone();
    if node.operands.iter().any(|&o| graph.ragged_axis(&axes(o)).is_some()) {
        return false;
    }
    let pair = |(&(q, k), head): (&(ValueId, ValueId), &AxisId)| {
        let own = |v: ValueId, has: AxisId, lacks: AxisId| {
            let others = heads.iter().any(|h| h != head && graph.ty(v).has(*h));
            graph.ty(v).has(has) && !graph.ty(v).has(lacks) && !others
        };
        own(q, t, u) && own(k, u, t)
    };
    if !parts.pairs.iter().zip(heads).all(pair) {
        return false;
    }
    let v = values(&parts);
    let elsewhere = |a: AxisId| parts.pairs.iter().any(|&(q, k)| graph.ty(q).has(a) || graph.ty(k).has(a));
    let elements = axes(v).into_iter().filter(|&a| a != u && (heads.contains(&a) || !elsewhere(a))).count();
    let Some(element) = value_axis(graph, &parts, v, fused).filter(|_| elements == 1) else { return false };
    // What is longer goes without the kernel.
    if parts.pairs.len() > MAX_PAIRS || heads.iter().chain([&element]).any(|&a| graph.size(a) > MAX_HEAD) {
        return false;
    }
    let batch = batch_axes(graph, &parts, v, fused, element);
    let within = |v: ValueId, more: &[AxisId]| axes(v).iter().all(|a| batch.contains(a) || more.contains(a));
    let exactly = |v: ValueId, more: &[AxisId]| within(v, more) && axes(v).len() == batch.len() + more.len();
    let of_keys = !graph.ty(v).has(t) && graph.ty(v).has(u);
    let marks = parts.documents.iter().chain(&parts.positions).all(|&(q, k)| within(q, &[t]) && within(k, &[u]));
    let sink = parts.sink.is_none_or(|s| within(s, &[]));
    let result = match parts.back {
        None if parts.v.is_none() => exactly(value, &[t]),
        None => exactly(value, &[t, element]),
        Some([out, lse, g]) => exactly(out, &[t, element]) && exactly(lse, &[t]) && exactly(g, &[t, element]),
    };
    of_keys && marks && sink && result
}

/// Are both made from the same operands by the same kernel?
pub(super) fn is_sibling(graph: &Graph, a: ValueId, b: ValueId) -> bool {
    let (Op::Fused(x), Op::Fused(y)) = (&graph.node(a).op, &graph.node(b).op) else { return false };
    let back = |f: &Fused| f.kind == FusedKind::AttentionGrad;
    if back(x) != back(y) || x.axes != y.axes || x.numbers[..6] != y.numbers[..6] {
        return false;
    }
    let (p, q) = (parts(graph, a), parts(graph, b));
    let values = p.v.is_none() || q.v.is_none() || p.v == q.v;
    let distinct = back(x) || x.kind != y.kind;
    values
        && distinct
        && p.pairs == q.pairs
        && p.documents == q.documents
        && p.sink == q.sink
        && p.positions == q.positions
        && p.back == q.back
}

/// What is averaged. A log-sum-exp that is made again by itself has nothing: the kernel averages keys then, and nobody reads that. So it is the kernel's in any case, and has the bits that
/// it had beside its result. (Where keys went round a ring, parts were merged: by itself it is of all keys at once, and rounded otherwise.)
fn values(parts: &AttentionParts) -> ValueId {
    parts.v.unwrap_or(parts.pairs[0].1)
}

fn parts(graph: &Graph, value: ValueId) -> AttentionParts {
    let node = graph.node(value);
    match &node.op {
        Op::Fused(fused) => AttentionParts::new(fused, &node.operands),
        op => unreachable!("`{}` is no attention", op.row().name),
    }
}

impl Emitter<'_> {
    pub(super) fn attention(&mut self, members: &[ValueId]) {
        let graph = self.graph;
        // The one with the most operands: a log-sum-exp has no values.
        let whole = *members.iter().max_by_key(|v| graph.node(**v).operands.len()).expect("a unit has members");
        let (Op::Fused(fused), parts) = (graph.node(whole).op.clone(), parts(graph, whole)) else { unreachable!() };
        let v = values(&parts);
        let (t, u) = (fused.axes[0], fused.axes[1]);
        let heads = &fused.axes[2..];
        let value_axis = value_axis(graph, &parts, v, &fused).expect("kernels are for values with elements");
        let batch = batch_axes(graph, &parts, v, &fused, value_axis);

        let dims: Vec<u64> = batch.iter().map(|&a| graph.size(a)).collect();
        let view = |place: &Place, own: &[AxisId]| view(place, &batch, own);
        let mut pairs = vec![];
        for (&(q, k), &head) in parts.pairs.iter().zip(heads) {
            let (q, k) = (self.place(q), self.place(k));
            pairs.push(plan::ScorePair { size: graph.size(head), q: view(&q, &[t, head]), k: view(&k, &[u, head]) });
        }
        let mut marks = |of: Option<(ValueId, ValueId)>| {
            of.map(|(query, key)| plan::Marks {
                queries: view(&self.place(query), &[t]),
                keys: view(&self.place(key), &[u]),
            })
        };
        let (documents, positions) = (marks(parts.documents), marks(parts.positions));
        let inputs = plan::AttentionInputs {
            dtype: dtype(graph.ty(v).dtype),
            batch: dims,
            queries: graph.size(t),
            keys: graph.size(u),
            pairs,
            v: view(&self.place(v), &[u, value_axis]),
            value_size: graph.size(value_axis),
            scale: fused.numbers[0],
            causal: fused.numbers[1] != 0.0,
            window: fused.numbers[2] as u64,
            documents,
            sink: parts.sink.map(|sink| view(&self.place(sink), &[])),
            positions,
        };
        let name = self.name(whole);
        let kernel = match parts.back {
            None => {
                let mut of = |kind: FusedKind| {
                    let member = members.iter().find(|m| matches!(&graph.node(**m).op, Op::Fused(f) if f.kind == kind));
                    member.map(|&m| self.places.dest(m))
                };
                let (out, lse) = (of(FusedKind::Attention), of(FusedKind::AttentionLse));
                let out = out.unwrap_or_else(|| {
                    let axes = [&graph.node(whole).ty.axes[..], &[value_axis]].concat();
                    self.places.scratch_place(&format!("{name}.out"), &Type::new(graph.ty(v).dtype, axes))
                });
                let lse = lse.unwrap_or_else(|| {
                    let axes: Vec<AxisId> =
                        graph.node(whole).ty.axes.iter().copied().filter(|&a| a != value_axis).collect();
                    let wide = match graph.ty(v).dtype {
                        forebay_ir::DType::F64 => forebay_ir::DType::F64,
                        _ => forebay_ir::DType::F32,
                    };
                    self.places.scratch_place(&format!("{name}.lse"), &Type::new(wide, axes))
                });
                Kernel::Attention(plan::Attention { inputs, out: view(&out, &[t, value_axis]), lse: view(&lse, &[t]) })
            }
            Some([out, lse, g]) => {
                let n = parts.pairs.len();
                let mut of = |number: usize, own: &[AxisId]| {
                    let is =
                        |m: &&ValueId| matches!(&graph.node(**m).op, Op::Fused(f) if f.numbers[6] as usize == number);
                    members.iter().find(is).map(|&m| view(&self.places.dest(m), own))
                };
                let d_q = (0..n).map(|i| of(2 * i, &[t, heads[i]])).collect();
                let d_k = (0..n).map(|i| of(2 * i + 1, &[u, heads[i]])).collect();
                let (d_v, d_sink) = (of(2 * n, &[u, value_axis]), of(2 * n + 1, &[]));
                Kernel::AttentionBackward(plan::AttentionBackward {
                    inputs,
                    out: view(&self.place(out), &[t, value_axis]),
                    lse: view(&self.place(lse), &[t]),
                    d_out: view(&self.place(g), &[t, value_axis]),
                    d_q,
                    d_k,
                    d_v,
                    d_sink,
                })
            }
        };
        self.push(&name, kernel);
    }
}

fn view(place: &Place, batch: &[AxisId], own: &[AxisId]) -> plan::View {
    let axes = [batch, own].concat();
    plan::View { buffer: place.buffer, offset: place.offset, strides: place.along(&axes) }
}

/// The axis of a value's elements: queries and keys have it as a head axis, or not at all.
fn value_axis(graph: &Graph, parts: &AttentionParts, v: ValueId, fused: &Fused) -> Option<AxisId> {
    let (u, heads) = (fused.axes[1], &fused.axes[2..]);
    let elsewhere = |a: AxisId| parts.pairs.iter().any(|&(q, k)| graph.ty(q).has(a) || graph.ty(k).has(a));
    graph.ty(v).axes.iter().copied().rfind(|&a| a != u && (heads.contains(&a) || !elsewhere(a)))
}

/// The axes of independent attentions, in the order of the queries.
fn batch_axes(graph: &Graph, parts: &AttentionParts, v: ValueId, fused: &Fused, value_axis: AxisId) -> Vec<AxisId> {
    let all = parts.pairs.iter().flat_map(|&(q, k)| [q, k]).chain([v]);
    let mut axes: Vec<AxisId> = vec![];
    for axis in all.flat_map(|x| graph.ty(x).axes.clone()) {
        if axis != value_axis && !fused.axes.contains(&axis) && !axes.contains(&axis) {
            axes.push(axis);
        }
    }
    axes
}
