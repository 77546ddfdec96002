//! Factors of sums and contractions.

use super::{axes, has_any, terms};
use crate::rewrite::Change;
use crate::rewrite::normal::{Forms, Product};
use crate::rewrite::term::Egraph;
use egg::Id;
use forebay_ir::{AxisId, BinaryOp, DType, Op, ReduceKind};

/// `contract(a, b; A)` where every axis is in both.
pub(in crate::rewrite) fn dot(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Contract { over } = op else { continue };
        let [a, b] = term.args[..] else { continue };
        // In bf16 the product would be rounded before it is summed.
        if axes(egraph, a) != axes(egraph, b) || egraph[a].data.ty.dtype == DType::BF16 {
            continue;
        }
        let over = over.clone();
        found.push(Change::new(class, move |maker| {
            let product = maker.op(Op::Binary(BinaryOp::Mul), &[a, b]);
            maker.try_op(Op::Reduce { kind: ReduceKind::Sum, over }, &[product])
        }));
    }
    found
}

/// More factors than this under one sum are not looked at.
const MAX_FACTORS: usize = 4;

/// `sum(a * b; A)` where both have the summed axes and each has others besides: a matrix product.
pub(in crate::rewrite) fn contraction(egraph: &Egraph, forms: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Reduce { kind: ReduceKind::Sum, over } = op else { continue };
        for product in forms.products(egraph.find(term.args[0])) {
            if !(2..=MAX_FACTORS).contains(&product.factors.len()) {
                continue;
            }
            for (i, &(b, exponent)) in product.factors.iter().enumerate() {
                let mut rest = product.factors.clone();
                rest.remove(i);
                let mut of_rest: Vec<AxisId> = rest.iter().flat_map(|f| axes(egraph, f.0).to_vec()).collect();
                of_rest.sort_unstable();
                of_rest.dedup();
                let summed = over.iter().all(|a| of_rest.contains(a) && axes(egraph, b).contains(a));
                let own = |x: &[AxisId], y: &[AxisId]| x.iter().any(|a| !y.contains(a));
                if exponent != 1.0 || !summed || !own(&of_rest, axes(egraph, b)) || !own(axes(egraph, b), &of_rest) {
                    continue;
                }
                let a = Product { coefficient: 1.0, factors: rest };
                let (over, coefficient) = (over.clone(), product.coefficient);
                let (dtype, wanted) = (egraph[class].data.ty.dtype, egraph[class].data.ty.clone());
                found.push(Change::new(class, move |maker| {
                    let a = maker.product(&a, dtype)?;
                    let contract = maker.try_op(Op::Contract { over }, &[a, b])?;
                    let value = maker.product(&Product { coefficient, ..Product::atom(contract) }, dtype)?;
                    (*maker.ty(value) == wanted).then_some(value)
                }));
            }
        }
    }
    found
}

/// The factors that do not change along a sum, outside of it.
pub(in crate::rewrite) fn factor_of_sum(egraph: &Egraph, forms: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Reduce { kind: ReduceKind::Sum, over } = op else { continue };
        for product in forms.products(egraph.find(term.args[0])) {
            let (inside, outside): (Vec<_>, Vec<_>) = product.factors.iter().partition(|f| has_any(egraph, f.0, over));
            let nothing = outside.is_empty() && product.coefficient == 1.0;
            let inside = Product { coefficient: 1.0, factors: inside };
            let mut left: Vec<_> = inside.factors.iter().flat_map(|f| axes(egraph, f.0).to_vec()).collect();
            left.sort_unstable();
            if nothing || !over.iter().all(|a| left.contains(a)) {
                continue;
            }
            let outside = Product { coefficient: product.coefficient, factors: outside };
            let (over, dtype) = (over.clone(), egraph[class].data.ty.dtype);
            found.push(Change::new(class, move |maker| {
                let inside = maker.product(&inside, dtype)?;
                let sum = maker.try_op(Op::Reduce { kind: ReduceKind::Sum, over }, &[inside])?;
                maker.product(&Product::atom(sum).times(&outside), dtype)
            }));
        }
    }
    found
}

/// The numbers that an operand is multiplied with, outside of a contraction.
pub(in crate::rewrite) fn factor_of_contract(egraph: &Egraph, forms: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let Op::Contract { over } = op else { continue };
        for i in 0..2 {
            let Some(product) = forms.products(egraph.find(term.args[i])).first() else { continue };
            if product.coefficient == 1.0 || product.coefficient == 0.0 || product.factors.is_empty() {
                continue;
            }
            let (coefficient, inside) = (product.coefficient, Product { coefficient: 1.0, ..product.clone() });
            let (other, over) = (term.args[1 - i], over.clone());
            let (dtype, wanted) = (egraph[class].data.ty.dtype, egraph[term.args[i]].data.ty.clone());
            found.push(Change::new(class, move |maker| {
                let inside = maker.product(&inside, wanted.dtype)?;
                if *maker.ty(inside) != wanted {
                    return None;
                }
                let contract = maker.try_op(Op::Contract { over }, &[inside, other])?;
                maker.product(&Product { coefficient, ..Product::atom(contract) }, dtype)
            }));
        }
    }
    found
}

/// Small whole powers as products.
pub(in crate::rewrite) fn powers(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        let (Op::Binary(BinaryOp::Pow), &[x, exponent]) = (op, &term.args[..]) else { continue };
        let Some(exponent) = egraph[exponent].data.constant else { continue };
        if [2.0, 3.0, 4.0].contains(&exponent) {
            found.push(Change::new(class, move |maker| maker.power(x, exponent)));
        }
    }
    found
}
