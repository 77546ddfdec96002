//! Rows on their way to the experts and back.

use super::{axes, has_any, terms};
use crate::rewrite::Change;
use crate::rewrite::conditions::has_op;
use crate::rewrite::making::Maker;
use crate::rewrite::normal::{Forms, Product};
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

/// Is the class a table of rows that a group has sorted?
fn is_ragged(egraph: &Egraph, class: Id) -> bool {
    axes(egraph, class).iter().any(|&a| egraph.analysis.scratch.is_ragged(a))
}

pub(in crate::rewrite) fn share_after(egraph: &Egraph, forms: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    if !is_ragged(egraph, class) {
        return found;
    }
    for (op, term) in terms(egraph, class) {
        let Op::Contract { over } = op else { continue };
        for i in 0..2 {
            let (x, other) = (egraph.find(term.args[i]), egraph.find(term.args[1 - i]));
            for product in forms.products(x) {
                let outside: Vec<(Id, f64)> = product
                    .factors
                    .iter()
                    .copied()
                    .filter(|f| is_ragged(egraph, f.0) && !has_any(egraph, f.0, over))
                    .filter(|f| axes(egraph, f.0).iter().all(|a| axes(egraph, class).contains(a)))
                    .collect();
                let inside: Vec<(Id, f64)> = product.factors.iter().copied().filter(|f| !outside.contains(f)).collect();
                if outside.is_empty() || inside.is_empty() {
                    continue;
                }
                let inside = Product { coefficient: product.coefficient, factors: inside };
                let outside = Product { coefficient: 1.0, factors: outside };
                let (dtype, over, wanted) = (egraph[class].data.ty.dtype, over.clone(), egraph[x].data.ty.clone());
                found.push(Change::new(class, move |maker| {
                    let inside = maker.product(&inside, dtype)?;
                    if *maker.ty(inside) != wanted {
                        return None;
                    }
                    let contract = maker.try_op(Op::Contract { over }, &[inside, other])?;
                    maker.product(&Product::atom(contract).times(&outside), dtype)
                }));
            }
        }
    }
    found
}

pub(in crate::rewrite) fn gather_product(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Gather { axis } = op else { continue };
        let (axis, x, place) = (*axis, egraph.find(term.args[0]), egraph.find(term.args[1]));
        if !egraph.analysis.scratch.is_ragged(axis) {
            continue;
        }
        for (op, product) in terms(egraph, x) {
            if *op != Op::Binary(BinaryOp::Mul) {
                continue;
            }
            let [a, b] = [egraph.find(product.args[0]), egraph.find(product.args[1])];
            if !axes(egraph, a).contains(&axis) || !axes(egraph, b).contains(&axis) {
                continue;
            }
            found.push(Change::new(class, move |maker| {
                let a = maker.try_op(Op::Gather { axis }, &[a, place])?;
                let b = maker.try_op(Op::Gather { axis }, &[b, place])?;
                maker.try_op(Op::Binary(BinaryOp::Mul), &[a, b])
            }));
        }
    }
    found
}

pub(in crate::rewrite) fn there_and_back(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Gather { axis } = op else { continue };
        // Elements that were left out do not come back.
        let scratch = &egraph.analysis.scratch;
        if !scratch.is_ragged(*axis) || scratch.leaves_out(*axis) {
            continue;
        }
        let place = egraph.find(term.args[1]);
        for (op, permute) in terms(egraph, term.args[0]) {
            let Op::Fused(fused) = op else { continue };
            if fused.kind != FusedKind::Permute || fused.numbers[0] != 1.0 {
                continue;
            }
            let (x, rows) = (egraph.find(permute.args[0]), egraph.find(permute.args[1]));
            let inverts = terms(egraph, place).any(|(op, t)| *op == Op::Invert && egraph.find(t.args[0]) == rows);
            // Elements are numbered in the order in which they are merged, which has to be that of the inverse.
            let numbered = terms(egraph, place).any(|(op, t)| {
                let key = &egraph.analysis.keys[t.head as usize];
                *op == Op::Invert && key.ty.as_ref().is_some_and(|ty| ty.axes == fused.axes[1..])
            });
            // What was not grouped has no row.
            let size = |axes: &[AxisId]| egraph.analysis.size(axes);
            let whole = terms(egraph, rows).any(|(op, t)| {
                matches!(op, Op::Group { .. }) && size(axes(egraph, t.args[0])) == size(&fused.axes[1..])
            });
            if inverts && numbered && whole && egraph[x].data.ty == egraph[class].data.ty {
                found.push(Change::new(class, move |_| Some(x)));
            }
        }
    }
    found
}

pub(in crate::rewrite) fn combine(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Contract { over } = op else { continue };
        for i in 0..2 {
            let (share, rows) = (egraph.find(term.args[i]), egraph.find(term.args[1 - i]));
            for (op, gather) in terms(egraph, rows) {
                let Op::Gather { axis } = op else { continue };
                let (y, place) = (egraph.find(gather.args[0]), egraph.find(gather.args[1]));
                let inverse = has_op(egraph, place, |op| matches!(op, Op::Invert));
                if over.len() != 1 || !inverse || axes(egraph, share) != axes(egraph, place) {
                    continue;
                }
                let fused = Fused::new(FusedKind::Unpermute, [*axis, over[0]], []);
                let wanted = egraph[class].data.ty.clone();
                found.push(Change::new(class, move |maker| {
                    let value = maker.try_op(Op::Fused(Box::new(fused)), &[y, share, place])?;
                    (*maker.ty(value) == wanted).then_some(value)
                }));
            }
        }
    }
    found
}

/// What scores are made of: logits, and which function of `router_choice` makes them. Positions have no gradient, so it does not matter whether
/// scores have one.
fn scored(egraph: &Egraph, class: Id, experts: AxisId) -> Option<(Id, f64)> {
    let attached = terms(egraph, class).find_map(|(op, term)| (*op == Op::Detach).then(|| term.args[0]));
    terms(egraph, attached.unwrap_or(class)).find_map(|(op, term)| match op {
        Op::Fused(op) if op.kind == FusedKind::Softmax && op.axes == [experts] => {
            Some((egraph.find(term.args[0]), 0.0))
        }
        Op::Fused(op) if op.kind == FusedKind::Sigmoid => Some((egraph.find(term.args[0]), 1.0)),
        _ => None,
    })
}

/// The function that leaves logits as they are.
const PLAIN: f64 = 2.0;

pub(in crate::rewrite) fn best_logits(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::TopK { axis, into } = *op else { continue };
        let Some((logits, _)) = scored(egraph, term.args[0], axis) else { continue };
        let fused = Fused::new(FusedKind::RouterChoice, [axis, into], [PLAIN]);
        found.push(Change::new(class, move |maker| maker.try_op(Op::Fused(Box::new(fused)), &[logits])));
    }
    found
}

pub(in crate::rewrite) fn choice(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::TopK { axis, into } = *op else { continue };
        let all = (egraph.find(term.args[0]), vec![]);
        for (inner, groups) in std::iter::once(all).chain(grouped_scores(egraph, term.args[0])) {
            let mut made_of: Vec<(Vec<Id>, f64)> = vec![];
            made_of.extend(scored(egraph, inner, axis).map(|(logits, score)| (vec![logits], score)));
            for (op, sum) in terms(egraph, inner) {
                let (Op::Binary(BinaryOp::Add), &[a, b]) = (op, &sum.args[..]) else { continue };
                for (score, bias) in [(a, b), (b, a)] {
                    let of = scored(egraph, score, axis);
                    made_of.extend(of.map(|(logits, score)| (vec![logits, egraph.find(bias)], score)));
                }
            }
            if made_of.is_empty() && !groups.is_empty() {
                made_of.push((vec![inner], PLAIN));
            }
            for (operands, score) in made_of {
                let fused = Fused::new(FusedKind::RouterChoice, [&[axis, into], &groups[..]].concat(), [score]);
                let groups: Option<[AxisId; 4]> = groups.clone().try_into().ok();
                let searched = egraph.find(term.args[0]);
                found.push(Change::new(class, move |maker| {
                    let kept = groups.map(|groups| of_best_groups(&mut maker.finder(), inner, axis, groups));
                    let holds = kept.is_none_or(|kept| kept.is_some_and(|k| maker.egraph.find(k) == searched));
                    holds.then(|| maker.try_op(Op::Fused(Box::new(fused)), &operands)).flatten()
                }));
            }
        }
    }
    found
}

/// The scores of the best groups, and -inf for the others, if the e-graph has them: as the body of `router_choice` spells them.
fn of_best_groups(
    maker: &mut Maker,
    scores: Id,
    experts: AxisId,
    [groups, members, leaders, winners]: [AxisId; 4],
) -> Option<Id> {
    let dtype = maker.ty(scores).dtype;
    let (zero, one) = (maker.constant(0.0, dtype)?, maker.constant(1.0, dtype)?);
    let least = maker.constant(f64::NEG_INFINITY, dtype)?;
    let sum = |over| Op::Reduce { kind: ReduceKind::Sum, over: vec![over] };
    let member = maker.try_op(Op::Split { from: experts, into: vec![groups, members] }, &[scores])?;
    let best = maker.try_op(Op::TopK { axis: members, into: leaders }, &[member])?;
    let best = maker.try_op(Op::Gather { axis: members }, &[member, best])?;
    let strength = maker.try_op(sum(leaders), &[best])?;
    let winner = maker.try_op(Op::TopK { axis: groups, into: winners }, &[strength])?;
    let number = maker.try_op(Op::Iota(groups), &[])?;
    let same = maker.try_op(Op::Binary(BinaryOp::Eq), &[winner, number])?;
    let wins = maker.try_op(Op::Select, &[same, one, zero])?;
    let wins = maker.try_op(sum(winners), &[wins])?;
    let open = maker.try_op(Op::Binary(BinaryOp::Gt), &[wins, zero])?;
    let kept = maker.try_op(Op::Select, &[open, member, least])?;
    maker.try_op(Op::Merge { from: vec![groups, members], into: experts }, &[kept])
}

/// What scores of the best groups may be made of: all scores; groups, members, leaders and winners.
fn grouped_scores(egraph: &Egraph, class: Id) -> Vec<(Id, Vec<AxisId>)> {
    let mut found = vec![];
    for (op, _) in terms(egraph, class) {
        let Op::Merge { from, into: experts } = op else { continue };
        let [groups, members] = from[..] else { continue };
        let (mut scores, mut leaders, mut winners) = (vec![], vec![], vec![]);
        for class in egraph.classes() {
            for (op, term) in terms(egraph, class.id) {
                match op {
                    Op::Split { from, into } if from == experts && into[..] == [groups, members] => {
                        scores.push(egraph.find(term.args[0]));
                    }
                    Op::TopK { axis, into } if *axis == members => leaders.push(*into),
                    Op::TopK { axis, into } if *axis == groups => winners.push(*into),
                    _ => {}
                }
            }
        }
        for list in [&mut leaders, &mut winners] {
            list.sort_unstable();
            list.dedup();
        }
        scores.sort_unstable();
        for &score in &scores {
            for &leader in &leaders {
                found.extend(winners.iter().map(|&winner| (score, vec![groups, members, leader, winner])));
            }
        }
    }
    found
}
