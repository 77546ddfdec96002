//! Rotary positions.

use super::terms;
use crate::rewrite::Change;
use crate::rewrite::normal::{Forms, Product};
use crate::rewrite::term::Egraph;
use egg::Id;
use forebay_ir::{AxisId, Fused, FusedKind, Op};

/// A merge of two stacked halves, each a turned pair.
pub(in crate::rewrite) fn rope(egraph: &Egraph, forms: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, merge) in terms(egraph, class) {
        let Op::Merge { from, into } = op else { continue };
        let [major, minor] = from[..] else { continue };
        for (two, interleaved) in [(major, false), (minor, true)] {
            if egraph.analysis.scratch.size(two) != 2 {
                continue;
            }
            let pairs = if interleaved { major } else { minor };
            let Some([first, second]) = stacked(egraph, merge.args[0], two, 3) else { continue };
            let halves = Halves { two, pairs, axis: *into, interleaved };
            if let Some((x, cos, sin, back)) = halves.turned(egraph, forms, first, second) {
                let numbers = [interleaved, back].map(|f| f64::from(u8::from(f)));
                let fused = Fused::new(FusedKind::Rope, [*into, two, pairs], numbers);
                let wanted = egraph[class].data.ty.clone();
                found.push(Change::new(class, move |maker| {
                    let value = maker.try_op(Op::Fused(Box::new(fused)), &[x, cos, sin])?;
                    (*maker.ty(value) == wanted).then_some(value)
                }));
            }
        }
    }
    found
}

/// The two operands of a stack, through a cast.
fn stacked(egraph: &Egraph, class: Id, two: AxisId, depth: usize) -> Option<[Id; 2]> {
    let depth = depth.checked_sub(1)?;
    terms(egraph, class).find_map(|(op, term)| match op {
        Op::Stack(axis) if *axis == two && term.args.len() == 2 => {
            Some([egraph.find(term.args[0]), egraph.find(term.args[1])])
        }
        Op::Cast(_) => stacked(egraph, term.args[0], two, depth),
        _ => None,
    })
}

struct Halves {
    two: AxisId,
    pairs: AxisId,
    axis: AxisId,
    interleaved: bool,
}

impl Halves {
    /// `(e cos - o sin, o cos + e sin)`: x, cos, sin; and whether it turns back.
    fn turned(&self, egraph: &Egraph, forms: &Forms, first: Id, second: Id) -> Option<(Id, Id, Id, bool)> {
        for a in forms.sums(first) {
            let [(a0, ka0), (a1, ka1)] = a.terms[..] else { continue };
            for b in forms.sums(second) {
                let [(b0, kb0), (b1, kb1)] = b.terms[..] else { continue };
                let (a_terms, b_terms) = ([(a0, ka0), (a1, ka1)], [(b0, kb0), (b1, kb1)]);
                for (ec, os) in [(0, 1), (1, 0)] {
                    for (oc, es) in [(0, 1), (1, 0)] {
                        let found =
                            self.terms(egraph, forms, [a_terms[ec], a_terms[os], b_terms[oc], b_terms[es]]);
                        if found.is_some() {
                            return found;
                        }
                    }
                }
            }
        }
        None
    }

    /// The four terms `e cos`, `∓ o sin`, `o cos`, `± e sin`.
    fn terms(&self, egraph: &Egraph, forms: &Forms, terms: [(Id, f64); 4]) -> Option<(Id, Id, Id, bool)> {
        let [ec, os, oc, es] = terms;
        let back = match (ec.1, os.1, oc.1, es.1) {
            (1.0, -1.0, 1.0, 1.0) => false,
            (1.0, 1.0, 1.0, -1.0) => true,
            _ => return None,
        };
        let (x, cos) = self.half(egraph, forms, ec.0, 0)?;
        let (x2, sin) = self.half(egraph, forms, os.0, 1)?;
        let (x3, cos2) = self.half(egraph, forms, oc.0, 1)?;
        let (x4, sin2) = self.half(egraph, forms, es.0, 0)?;
        (x == x2 && x == x3 && x == x4 && cos == cos2 && sin == sin2).then_some((x, cos, sin, back))
    }

    /// A product of one half of x and something else.
    fn half(&self, egraph: &Egraph, forms: &Forms, class: Id, index: u64) -> Option<(Id, Id)> {
        for product in forms.products(class) {
            for &(factor, exponent) in &product.factors {
                if exponent != 1.0 {
                    continue;
                }
                let Some(x) = self.taken(egraph, factor, index, 4) else { continue };
                let Some(rest) = product.without(&Product::atom(factor), 1.0) else { continue };
                let axes: Vec<AxisId> = factors_axes(egraph, &rest);
                let dtype = egraph[class].data.ty.dtype;
                if let Some(other) = forms.class_of(dtype, &axes, &rest) {
                    return Some((x, other));
                }
            }
        }
        None
    }

    /// x of `take(split(x); two: index)`, through a cast.
    fn taken(&self, egraph: &Egraph, class: Id, index: u64, depth: usize) -> Option<Id> {
        let depth = depth.checked_sub(1)?;
        terms(egraph, class).find_map(|(op, term)| match op {
            Op::Cast(_) => self.taken(egraph, term.args[0], index, depth),
            Op::Take { axis, index: own } if (*axis, *own) == (self.two, index) => {
                terms(egraph, term.args[0]).find_map(|(op, split)| {
                    let into = if self.interleaved { [self.pairs, self.two] } else { [self.two, self.pairs] };
                    match op {
                        Op::Split { from, into: own } if *from == self.axis && *own == into => {
                            Some(egraph.find(split.args[0]))
                        }
                        _ => None,
                    }
                })
            }
            _ => None,
        })
    }
}

fn factors_axes(egraph: &Egraph, product: &Product) -> Vec<AxisId> {
    let mut axes: Vec<AxisId> =
        product.factors.iter().flat_map(|f| egraph[f.0].data.ty.axes.iter().copied()).collect();
    axes.sort_unstable();
    axes.dedup();
    axes
}
