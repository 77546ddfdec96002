//! Rows on their way to the experts and back.

use super::terms;
use crate::rewrite::Change;
use crate::rewrite::conditions::has_op;
use crate::rewrite::normal::Forms;
use crate::rewrite::term::Egraph;
use egg::Id;
use forebay_ir::{AxisId, BinaryOp, Fused, FusedKind, Op, ReduceKind};

pub(in crate::rewrite) fn permute(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Gather { axis } = op else { continue };
        let Some((rows, copies)) = grouped(egraph, egraph.find(term.args[1])) else { continue };
        let x = egraph.find(term.args[0]);
        let merged = terms(egraph, x).find_map(|(op, merge)| match op {
            Op::Merge { from, into } if into == axis => Some((egraph.find(merge.args[0]), from.clone())),
            _ => None,
        });
        let (x, from): (Id, Vec<AxisId>) = merged.unwrap_or((x, vec![]));
        let axes = [&[*axis], &from[..]].concat();
        let fused = Fused::new(FusedKind::Permute, axes, [copies]);
        let wanted = egraph[class].data.ty.clone();
        found.push(Change::new(class, move |maker| {
            let value = maker.try_op(Op::Fused(Box::new(fused)), &[x, rows])?;
            (*maker.ty(value) == wanted).then_some(value)
        }));
    }
    found
}

/// The rows of a group, and what element numbers are divided by.
fn grouped(egraph: &Egraph, class: Id) -> Option<(Id, f64)> {
    let is_group = |id: Id| has_op(egraph, id, |op| matches!(op, Op::Group { .. }));
    if is_group(class) {
        return Some((class, 1.0));
    }
    terms(egraph, class).find_map(|(op, term)| match op {
        Op::Binary(BinaryOp::Div) if is_group(egraph.find(term.args[0])) => {
            egraph[term.args[1]].data.constant.map(|copies| (egraph.find(term.args[0]), copies))
        }
        _ => None,
    })
}

pub(in crate::rewrite) fn permute_dx(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, sum) in terms(egraph, class) {
        let Op::Reduce { kind: ReduceKind::Sum, over } = op else { continue };
        for (op, gather) in terms(egraph, sum.args[0]) {
            let Op::Gather { axis } = op else { continue };
            let (x, place) = (egraph.find(gather.args[0]), egraph.find(gather.args[1]));
            let inverse = has_op(egraph, place, |op| matches!(op, Op::Invert));
            let of_place = &egraph[place].data.ty.axes;
            if !inverse || !over.iter().all(|a| of_place.contains(a)) {
                continue;
            }
            let fused = Fused::new(FusedKind::PermuteDx, [&[*axis], &over[..]].concat(), []);
            found.push(Change::new(class, move |maker| maker.try_op(Op::Fused(Box::new(fused)), &[x, place])));
        }
    }
    found
}
