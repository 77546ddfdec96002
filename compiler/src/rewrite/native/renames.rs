//! Renames move outwards, where they meet what undoes them or a sum that forgets them.

use super::{axes, terms};
use crate::rewrite::Change;
use crate::rewrite::normal::Forms;
use crate::rewrite::term::Egraph;
use egg::Id;
use forebay_ir::{AxisId, Op};

/// The renames that a class is the result of.
fn renames(egraph: &Egraph, class: Id) -> Vec<(AxisId, AxisId, Id)> {
    let rename = |(op, term): (&Op, &crate::rewrite::term::Term)| match op {
        Op::Rename { from, to } => Some((*from, *to, term.args[0])),
        _ => None,
    };
    terms(egraph, class).filter_map(rename).collect()
}

pub(in crate::rewrite) fn undo(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (from, to, inner) in renames(egraph, class) {
        for (first, second, x) in renames(egraph, inner) {
            if (first, second) == (to, from) {
                found.push(Change::new(class, move |_| Some(x)));
            }
        }
    }
    found
}

pub(in crate::rewrite) fn reduce(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Reduce { kind, over } = op else { continue };
        for (from, to, x) in renames(egraph, term.args[0]) {
            let mut renamed: Vec<AxisId> = over.iter().map(|&a| if a == to { from } else { a }).collect();
            renamed.sort_unstable();
            let (kind, summed) = (*kind, over.contains(&to));
            if axes(egraph, class).contains(&from) {
                continue;
            }
            found.push(Change::new(class, move |maker| {
                let reduced = maker.try_op(Op::Reduce { kind, over: renamed }, &[x])?;
                if summed { Some(reduced) } else { maker.try_op(Op::Rename { from, to }, &[reduced]) }
            }));
        }
    }
    found
}

pub(in crate::rewrite) fn elementwise(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        if !matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_)) {
            continue;
        }
        let Some((from, to)) = term.args.iter().flat_map(|&a| renames(egraph, a)).map(|r| (r.0, r.1)).next() else {
            continue;
        };
        if axes(egraph, class).contains(&from) {
            continue;
        }
        let before: Option<Vec<Id>> = term
            .args
            .iter()
            .map(|&arg| match renames(egraph, arg).into_iter().find(|r| (r.0, r.1) == (from, to)) {
                Some((_, _, x)) => Some(x),
                None => (!axes(egraph, arg).contains(&to)).then_some(arg),
            })
            .collect();
        let Some(before) = before else { continue };
        let op = op.clone();
        found.push(Change::new(class, move |maker| {
            let value = maker.try_op(op, &before)?;
            maker.try_op(Op::Rename { from, to }, &[value])
        }));
    }
    found
}
