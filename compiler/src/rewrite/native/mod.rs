//! Rules that are found by functions: a family a file.

pub(super) mod algebra;
pub(super) mod attention;
pub(super) mod contractions;
pub(super) mod masks;
pub(super) mod masks_as_numbers;
pub(super) mod renames;
pub(super) mod rope;
pub(super) mod routing;
pub(super) mod softmax;

use super::term::{Egraph, Term};
use egg::Id;
use forebay_ir::{AxisId, Op};

/// The terms of a class with their ops.
fn terms(egraph: &Egraph, class: Id) -> impl Iterator<Item = (&Op, &Term)> {
    egraph[egraph.find(class)].nodes.iter().map(|t| (egraph.analysis.op(t), t))
}

fn axes(egraph: &Egraph, class: Id) -> &[AxisId] {
    &egraph[class].data.ty.axes
}

fn has_any(egraph: &Egraph, class: Id, wanted: &[AxisId]) -> bool {
    axes(egraph, class).iter().any(|a| wanted.contains(a))
}

/// The class under casts that lose nothing.
fn narrowest(egraph: &Egraph, class: Id) -> Id {
    let inner = terms(egraph, class).find_map(|(op, term)| {
        let from = &egraph[term.args[0..].first().copied()?].data.ty;
        let to = &egraph[class].data.ty;
        let widens = matches!(op, Op::Cast(_)) && from.dtype.is_float() && from.dtype.bytes() < to.dtype.bytes();
        widens.then_some(term.args[0])
    });
    inner.map_or(class, |inner| egraph.find(inner))
}
