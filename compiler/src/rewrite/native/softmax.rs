//! Shifts of rows.

use super::{has_any, terms};
use crate::rewrite::Change;
use crate::rewrite::normal::{Forms, Sum};
use crate::rewrite::term::Egraph;
use egg::Id;
use forebay_ir::{AxisId, BinaryOp, Fused, FusedKind, Op};

/// The terms of a sum that change along the axes, and the others.
fn split(egraph: &Egraph, sum: &Sum, over: &[AxisId]) -> Option<(Sum, Sum)> {
    let (own, common): (Vec<_>, Vec<_>) = sum.terms.iter().partition(|t| has_any(egraph, t.0, over));
    let common = Sum { constant: sum.constant, terms: common };
    let shifts = !common.terms.is_empty() || common.constant != 0.0;
    (shifts && !own.is_empty()).then_some((Sum { constant: 0.0, terms: own }, common))
}

pub(in crate::rewrite) fn shift(egraph: &Egraph, forms: &Forms, class: Id) -> Vec<Change> {
    shifted(egraph, forms, class, FusedKind::Softmax)
}

pub(in crate::rewrite) fn log_sum_exp_shift(egraph: &Egraph, forms: &Forms, class: Id) -> Vec<Change> {
    shifted(egraph, forms, class, FusedKind::LogSumExp)
}

fn shifted(egraph: &Egraph, forms: &Forms, class: Id, kind: FusedKind) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Fused(fused) = op else { continue };
        if fused.kind != kind {
            continue;
        }
        for sum in forms.sums(egraph.find(term.args[0])) {
            let Some((own, common)) = split(egraph, sum, &fused.axes) else { continue };
            let (fused, wanted) = (fused.clone(), egraph[term.args[0]].data.ty.clone());
            let (source, args) = (op.clone(), term.args.clone());
            let result = egraph[class].data.ty.clone();
            let change = Change::new(class, move |maker| {
                let own = maker.sum(&own, wanted.dtype)?;
                if maker.ty(own).axes != wanted.axes {
                    return None;
                }
                let value = maker.try_op(Op::Fused(fused), &[own])?;
                if kind == FusedKind::Softmax {
                    return Some(value);
                }
                let common = match common.terms[..] {
                    [] => maker.constant(common.constant, result.dtype)?,
                    _ => maker.sum(&common, result.dtype)?,
                };
                maker.try_op(Op::Binary(BinaryOp::Add), &[value, common])
            });
            found.push(change.from(move |maker| maker.try_op(source, &args)));
        }
    }
    found
}

pub(in crate::rewrite) fn sink_shift(egraph: &Egraph, forms: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Fused(fused) = op else { continue };
        if fused.kind != FusedKind::SinkSoftmax {
            continue;
        }
        let [x, s] = term.args[..] else { continue };
        for sum in forms.sums(egraph.find(x)) {
            let Some((own, common)) = split(egraph, sum, &fused.axes) else { continue };
            for sink in forms.sums(egraph.find(s)) {
                let Some(rest) = sink.without(&common, 1.0).filter(|r| !r.terms.is_empty()) else { continue };
                let (op, own) = (Fused { kind: fused.kind, axes: fused.axes.clone(), numbers: vec![] }, own.clone());
                let wanted = egraph[x].data.ty.clone();
                let source = fused.clone();
                let change = Change::new(class, move |maker| {
                    let own = maker.sum(&own, wanted.dtype)?;
                    let rest = maker.sum(&rest, wanted.dtype)?;
                    if maker.ty(own).axes != wanted.axes {
                        return None;
                    }
                    maker.try_op(Op::Fused(Box::new(op)), &[own, rest])
                });
                found.push(change.from(move |maker| maker.try_op(Op::Fused(source), &[x, s])));
            }
        }
    }
    found
}
