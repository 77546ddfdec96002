//! Attention: scores, mask, softmax and values.

use super::masks::{Mask, Part, mask};
use super::{axes, narrowest, terms};
use crate::rewrite::Change;
use crate::rewrite::making::Maker;
use crate::rewrite::normal::{Forms, Product};
use crate::rewrite::term::{Egraph, Term};
use egg::Id;
use forebay_ir::{AxisId, BinaryOp, Fused, FusedKind, Op, UnaryOp};

/// What scores are made of.
#[derive(Clone, Debug)]
struct Scores {
    /// Queries, keys and the axis they are contracted over.
    pairs: Vec<(Id, Id, AxisId)>,
    scale: f64,
    mask: Mask,
}

pub(in crate::rewrite) fn attention(egraph: &Egraph, forms: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Contract { over } = op else { continue };
        let [u] = over[..] else { continue };
        for i in 0..2 {
            let v = egraph.find(term.args[1 - i]);
            let p = egraph.find(term.args[i]);
            let Some((whole, sink)) = probabilities(egraph, p, u) else { continue };
            for scores in decode(egraph, forms, whole, u, 12) {
                let Some(change) = change(egraph, class, &scores, sink, v, u) else { continue };
                let narrow = egraph[p].data.ty.dtype;
                found.push(change.from(move |maker| {
                    let kind = if sink.is_some() { FusedKind::SinkSoftmax } else { FusedKind::Softmax };
                    let operands: Vec<Id> = std::iter::once(whole).chain(sink).collect();
                    let mut p = maker.try_op(Op::Fused(Box::new(Fused::new(kind, [u], []))), &operands)?;
                    if maker.ty(p).dtype != narrow {
                        p = maker.try_op(Op::Cast(narrow), &[p])?;
                    }
                    maker.try_op(Op::Contract { over: vec![u] }, &[p, v])
                }));
            }
        }
    }
    found
}

fn change(egraph: &Egraph, class: Id, scores: &Scores, sink: Option<Id>, v: Id, u: AxisId) -> Option<Change> {
    let t = query_axis(egraph, scores)?;
    let own: Vec<AxisId> = axes(egraph, v).iter().copied().filter(|&a| a != u).collect();
    // Values are of keys, and queries are the rows of the scores.
    if own.contains(&t) || scores.pairs.iter().any(|(q, _, _)| !axes(egraph, *q).contains(&t)) {
        return None;
    }
    let mut operands: Vec<Id> = scores.pairs.iter().flat_map(|(q, k, _)| [*q, *k]).collect();
    let narrow = egraph[v].data.ty.dtype;
    if operands.iter().any(|&o| egraph[o].data.ty.dtype != narrow) {
        return None;
    }
    operands.push(v);
    if let Some((query, key)) = scores.mask.documents {
        operands.extend([query, key]);
    }
    operands.extend(sink.map(|s| narrowest(egraph, s)));
    let mut all = vec![t, u];
    all.extend(scores.pairs.iter().map(|p| p.2));
    let numbers = vec![
        scores.scale,
        f64::from(u8::from(scores.mask.causal)),
        scores.mask.window.unwrap_or(0) as f64,
        f64::from(u8::from(scores.mask.documents.is_some())),
        f64::from(u8::from(sink.is_some())),
        f64::from(u8::from(scores.mask.positions.is_some())),
    ];
    let fused = Fused { kind: FusedKind::Attention, axes: all, numbers };
    let wanted = egraph[class].data.ty.clone();
    let positions = scores.mask.positions.clone();
    Some(Change::new(class, move |maker| {
        let mut operands = operands.clone();
        for position in positions.iter().flat_map(|(query, key)| [query, key]) {
            operands.push(made(maker, position)?);
        }
        let value = maker.try_op(Op::Fused(Box::new(fused)), &operands)?;
        (*maker.ty(value) == wanted).then_some(value)
    }))
}

/// The sum of a position's parts.
fn made(maker: &mut Maker, position: &[Part]) -> Option<Id> {
    let mut sum: Option<Id> = None;
    for part in position {
        let part = match *part {
            Part::Iota(axis) => maker.try_op(Op::Iota(axis), &[])?,
            Part::Value(id) => id,
        };
        sum = Some(match sum {
            Some(sum) => maker.try_op(Op::Binary(BinaryOp::Add), &[sum, part])?,
            None => part,
        });
    }
    sum
}

/// The scores and the sink of what is a softmax over the keys, maybe narrowed.
fn probabilities(egraph: &Egraph, class: Id, u: AxisId) -> Option<(Id, Option<Id>)> {
    terms(egraph, class).find_map(|(op, term)| match op {
        Op::Fused(fused) if fused.kind == FusedKind::Softmax && fused.axes == [u] => {
            Some((egraph.find(term.args[0]), None))
        }
        Op::Fused(fused) if fused.kind == FusedKind::SinkSoftmax && fused.axes == [u] => {
            Some((egraph.find(term.args[0]), Some(egraph.find(term.args[1]))))
        }
        Op::Cast(to) if to.bytes() <= egraph[term.args[0]].data.ty.dtype.bytes() => {
            probabilities(egraph, term.args[0], u)
        }
        _ => None,
    })
}

/// More ways to read scores than this are not looked at.
const MAX_READINGS: usize = 4;

/// Reads scores from the outside in: masks, factors, the products of queries and keys. A product may be written in several ways.
fn decode(egraph: &Egraph, forms: &Forms, class: Id, u: AxisId, depth: usize) -> Vec<Scores> {
    let Some(depth) = depth.checked_sub(1) else { return vec![] };
    let class = egraph.find(class);
    for (op, term) in terms(egraph, class) {
        if let Op::Select = op {
            let found = selected(egraph, forms, &term.args, u, depth);
            if !found.is_empty() {
                return found;
            }
        }
    }
    for sum in forms.sums(class) {
        if sum.constant == 0.0 {
            let found = summed(egraph, forms, &sum.terms, class, u, depth);
            if !found.is_empty() {
                return found;
            }
        }
    }
    for product in forms.products(class) {
        if let [(inner, 1.0)] = product.factors[..]
            && inner != class
        {
            let mut found = decode(egraph, forms, inner, u, depth);
            // What is hidden stays hidden when it is scaled, but not when its sign is turned.
            found.retain(|s| product.coefficient > 0.0 || s.mask == Mask::default());
            if !found.is_empty() {
                found.iter_mut().for_each(|s| s.scale *= product.coefficient);
                return found;
            }
        }
    }
    let product = |(op, term): (&Op, &Term)| {
        let Op::Contract { over } = op else { return None };
        let [head] = over[..] else { return None };
        let [a, b] = [narrowest(egraph, term.args[0]), narrowest(egraph, term.args[1])];
        let is_key = |id: Id| axes(egraph, id).contains(&u);
        let (q, k) = match (is_key(a), is_key(b)) {
            (false, true) => (a, b),
            (true, false) => (b, a),
            _ => return None,
        };
        Some(Scores { pairs: vec![(q, k, head)], scale: 1.0, mask: Mask::default() })
    };
    terms(egraph, class).filter_map(product).take(MAX_READINGS).collect()
}

/// `select(mask, scores, -inf)`, or the other way round.
fn selected(egraph: &Egraph, forms: &Forms, args: &[Id], u: AxisId, depth: usize) -> Vec<Scores> {
    let hidden = |id: Id| egraph[id].data.constant == Some(f64::NEG_INFINITY);
    let (inner, negated) = match (hidden(args[1]), hidden(args[2])) {
        (false, true) => (args[1], false),
        (true, false) => (args[2], true),
        _ => return vec![],
    };
    let Some(outer) = mask(egraph, egraph.find(args[0]), u, negated) else { return vec![] };
    let with = |scores: Scores| Some(Scores { mask: scores.mask.clone().and(outer.clone())?, ..scores });
    decode(egraph, forms, inner, u, depth).into_iter().filter_map(with).collect()
}

/// Scores of several pairs, and masks that are added.
fn summed(egraph: &Egraph, forms: &Forms, parts: &[(Id, f64)], whole: Id, u: AxisId, depth: usize) -> Vec<Scores> {
    let mut all: Vec<Option<Scores>> = vec![None];
    let mut masks = Mask::default();
    for &(part, coefficient) in parts {
        if part == whole {
            return vec![];
        }
        // Taken away, it would put above all others what it hides.
        if coefficient > 0.0
            && let Some(mask) = added_mask(egraph, part, u)
        {
            let Some(both) = masks.clone().and(mask) else { return vec![] };
            masks = both;
            continue;
        }
        let mut readings = decode(egraph, forms, part, u, depth);
        readings.retain(|s| coefficient > 0.0 || s.mask == Mask::default());
        readings.iter_mut().for_each(|s| s.scale *= coefficient);
        let pairs = all.iter().flat_map(|before| readings.iter().map(move |own| joined(before.as_ref(), own)));
        all = pairs.flatten().map(Some).take(MAX_READINGS).collect();
    }
    let with = |scores: Scores| Some(Scores { mask: scores.mask.clone().and(masks.clone())?, ..scores });
    all.into_iter().flatten().filter_map(with).collect()
}

/// The pairs of both, when they have the same scale.
fn joined(before: Option<&Scores>, own: &Scores) -> Option<Scores> {
    let Some(before) = before else { return Some(own.clone()) };
    let mask = before.mask.clone().and(own.mask.clone())?;
    (before.scale == own.scale).then(|| Scores {
        pairs: [&before.pairs[..], &own.pairs].concat(),
        scale: own.scale,
        mask,
    })
}

/// `select(mask, 0, -inf)`.
fn added_mask(egraph: &Egraph, class: Id, u: AxisId) -> Option<Mask> {
    terms(egraph, class).find_map(|(op, term)| {
        let constant = |i: usize| egraph[term.args[i]].data.constant;
        match (op, op == &Op::Select) {
            (_, true) if constant(1) == Some(0.0) && constant(2) == Some(f64::NEG_INFINITY) => {
                mask(egraph, egraph.find(term.args[0]), u, false)
            }
            (_, true) if constant(2) == Some(0.0) && constant(1) == Some(f64::NEG_INFINITY) => {
                mask(egraph, egraph.find(term.args[0]), u, true)
            }
            _ => None,
        }
    })
}

/// The axis of the queries: the one that the mask speaks of, else the longest that keys do not have.
fn query_axis(egraph: &Egraph, scores: &Scores) -> Option<AxisId> {
    if let Some(query) = scores.mask.query {
        return Some(query);
    }
    let (q, ..) = scores.pairs[0];
    let own = axes(egraph, q).iter().copied().filter(|a| scores.pairs.iter().all(|p| !axes(egraph, p.1).contains(a)));
    own.max_by_key(|&a| (egraph.analysis.scratch.size(a), std::cmp::Reverse(a)))
}

/// `contract(exp(s), v) / z`: the division first.
pub(in crate::rewrite) fn late_division(egraph: &Egraph, forms: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for product in forms.products(class) {
        for &(contract, _) in product.factors.iter().filter(|f| f.1 == 1.0) {
            for (op, term) in terms(egraph, contract) {
                let Op::Contract { over } = op else { continue };
                for i in 0..2 {
                    let (e, v) = (egraph.find(term.args[i]), egraph.find(term.args[1 - i]));
                    let is_exp = terms(egraph, e).any(|(op, _)| matches!(op, Op::Unary(UnaryOp::Exp)));
                    if !is_exp {
                        continue;
                    }
                    let divides = |f: &&(Id, f64)| {
                        let of = axes(egraph, f.0);
                        f.1 == -1.0
                            && !of.is_empty()
                            && of.iter().all(|a| axes(egraph, e).contains(a) && !over.contains(a))
                    };
                    let Some(&(z, _)) = product.factors.iter().find(divides) else { continue };
                    let below = Product { coefficient: 1.0, factors: vec![(z, -1.0)] };
                    let rest = product.factors.iter().copied().filter(|f| f.0 != z && f.0 != contract).collect();
                    let rest = Product { coefficient: product.coefficient, factors: rest };
                    let (dtype, over) = (egraph[class].data.ty.dtype, over.clone());
                    found.push(Change::new(class, move |maker| {
                        let p = maker.product(&Product::atom(e).times(&below), dtype)?;
                        let o = maker.try_op(Op::Contract { over }, &[p, v])?;
                        maker.product(&Product::atom(o).times(&rest), dtype)
                    }));
                }
            }
        }
    }
    found
}
