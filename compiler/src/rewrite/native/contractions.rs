//! Contractions among themselves, with slices and with zeros.

use super::{axes, has_any, terms};
use crate::rewrite::Change;
use crate::rewrite::normal::Forms;
use crate::rewrite::term::Egraph;
use egg::Id;
use forebay_ir::{AxisId, InputRole, Op, ReduceKind};

/// `contract(a, contract(b, w; C); N)` with w a weight: `contract(contract(a, w; N), b; C)`, or with b first. Multi-head latent attention absorbs its
/// up-projections into queries and into results this way (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
pub(in crate::rewrite) fn absorb(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, outer) in terms(egraph, class) {
        let Op::Contract { over: n } = op else { continue };
        for i in 0..2 {
            let (a, product) = (egraph.find(outer.args[i]), egraph.find(outer.args[1 - i]));
            if is_weight(egraph, a) {
                continue;
            }
            for (op, inner) in terms(egraph, product) {
                let Op::Contract { over: c } = op else { continue };
                let [x, y] = [egraph.find(inner.args[0]), egraph.find(inner.args[1])];
                if !is_weight(egraph, x) && !is_weight(egraph, y) {
                    continue;
                }
                for (first, second) in [(x, y), (y, x)] {
                    let of = |id: Id, over: &[AxisId]| over.iter().all(|axis| axes(egraph, id).contains(axis));
                    // Each sum is over axes of the two operands that it is moved to, and of no other.
                    let fits = of(first, n)
                        && !has_any(egraph, second, n)
                        && !has_any(egraph, a, c)
                        && egraph[a].data.ty.dtype == egraph[first].data.ty.dtype;
                    if !fits {
                        continue;
                    }
                    let (n, c, wanted) = (n.clone(), c.clone(), egraph[class].data.ty.clone());
                    found.push(Change::new(class, move |maker| {
                        let product = maker.try_op(Op::Contract { over: n }, &[a, first])?;
                        let value = maker.try_op(Op::Contract { over: c }, &[product, second])?;
                        (*maker.ty(value) == wanted).then_some(value)
                    }));
                }
            }
        }
    }
    found
}

/// A parameter, or another type of one.
fn is_weight(egraph: &Egraph, class: Id) -> bool {
    terms(egraph, class).any(|(op, term)| match op {
        Op::Input => egraph.analysis.role(term) == Some(InputRole::Param),
        Op::Cast(_) => is_weight(egraph, egraph.find(term.args[0])),
        _ => false,
    })
}

/// `slice(contract(x, w))` of an axis that only w has: `contract(x, slice(w))`.
pub(in crate::rewrite) fn slice_of_contract(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, slice) in terms(egraph, class) {
        let Op::Slice { from, into, start } = *op else { continue };
        for (op, contract) in terms(egraph, slice.args[0]) {
            let Op::Contract { over } = op else { continue };
            for i in 0..2 {
                let (x, w) = (egraph.find(contract.args[i]), egraph.find(contract.args[1 - i]));
                if axes(egraph, x).contains(&from) || !axes(egraph, w).contains(&from) || has_any(egraph, x, &[into]) {
                    continue;
                }
                let over = over.clone();
                found.push(Change::new(class, move |maker| {
                    let part = maker.try_op(Op::Slice { from, into, start }, &[w])?;
                    maker.try_op(Op::Contract { over }, &[x, part])
                }));
            }
        }
    }
    found
}

/// `slice(concat(…))` of exactly one part: that part.
pub(in crate::rewrite) fn slice_of_concat(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, slice) in terms(egraph, class) {
        let Op::Slice { from, into, start } = *op else { continue };
        let length = egraph.analysis.scratch.size(into);
        for (op, concat) in terms(egraph, slice.args[0]) {
            let Op::Concat { from: parts, into: whole } = op else { continue };
            if *whole != from {
                continue;
            }
            let mut at = 0;
            for (&axis, &part) in parts.iter().zip(&concat.args) {
                let size = egraph.analysis.scratch.size(axis);
                if (at, size) == (start, length) {
                    found.push(Change::new(class, move |maker| match axis == into {
                        true => Some(part),
                        false => maker.try_op(Op::Rename { from: axis, to: into }, &[part]),
                    }));
                }
                at += size;
            }
        }
    }
    found
}

/// `contract(a, pad(b))` where the padded axis is not summed: `pad(contract(a, b))`.
pub(in crate::rewrite) fn contract_of_pad(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, contract) in terms(egraph, class) {
        let Op::Contract { over } = op else { continue };
        for i in 0..2 {
            let (a, b) = (egraph.find(contract.args[i]), egraph.find(contract.args[1 - i]));
            for (op, pad) in terms(egraph, b) {
                let Op::Pad { from, into, start } = *op else { continue };
                if over.contains(&into) || axes(egraph, a).contains(&into) || axes(egraph, a).contains(&from) {
                    continue;
                }
                let (inner, over) = (egraph.find(pad.args[0]), over.clone());
                found.push(Change::new(class, move |maker| {
                    let product = maker.try_op(Op::Contract { over }, &[a, inner])?;
                    maker.try_op(Op::Pad { from, into, start }, &[product])
                }));
            }
        }
    }
    found
}

/// `slice(pad(x))` of exactly what was padded: x.
pub(in crate::rewrite) fn slice_of_pad(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, slice) in terms(egraph, class) {
        let Op::Slice { from, into, start } = *op else { continue };
        for (op, pad) in terms(egraph, slice.args[0]) {
            let Op::Pad { from: inner, into: padded, start: at } = *op else { continue };
            let size = |axis| egraph.analysis.scratch.size(axis);
            if padded != from || at != start || size(inner) != size(into) {
                continue;
            }
            let x = egraph.find(pad.args[0]);
            found.push(Change::new(class, move |maker| match inner == into {
                true => Some(x),
                false => maker.try_op(Op::Rename { from: inner, to: into }, &[x]),
            }));
        }
    }
    found
}

/// `sum(sum(x; A); B)`: `sum(x; A, B)`; the same for maxima and minima.
pub(in crate::rewrite) fn sum_of_sum(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, outer) in terms(egraph, class) {
        let Op::Reduce { kind, over } = op else { continue };
        for (op, inner) in terms(egraph, outer.args[0]) {
            let Op::Reduce { kind: same, over: first } = op else { continue };
            if kind != same {
                continue;
            }
            let mut all = [&over[..], first].concat();
            all.sort_unstable();
            let (kind, x): (ReduceKind, Id) = (*kind, egraph.find(inner.args[0]));
            found.push(Change::new(class, move |maker| maker.try_op(Op::Reduce { kind, over: all }, &[x])));
        }
    }
    found
}

/// `cast(gather(x, i))`: `gather(cast(x), i)`, so that less is moved.
pub(in crate::rewrite) fn cast_of_gather(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    // Its gradient would be summed in the narrower type.
    if egraph.analysis.before_gradients {
        return found;
    }
    for (op, cast) in terms(egraph, class) {
        let Op::Cast(to) = *op else { continue };
        for (op, gather) in terms(egraph, cast.args[0]) {
            let Op::Gather { axis } = *op else { continue };
            let (x, index) = (egraph.find(gather.args[0]), egraph.find(gather.args[1]));
            found.push(Change::new(class, move |maker| {
                let x = maker.try_op(Op::Cast(to), &[x])?;
                maker.try_op(Op::Gather { axis }, &[x, index])
            }));
        }
    }
    found
}
