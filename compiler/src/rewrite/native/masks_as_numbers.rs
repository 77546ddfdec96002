//! Masked assignment as a multiplication.

use super::terms;
use crate::rewrite::Change;
use crate::rewrite::normal::Forms;
use crate::rewrite::term::Egraph;
use egg::Id;
use forebay_ir::{BinaryOp, Op};

/// `select(m, x, 0)` of integers: `x * cast(m)`. Of floats it would not be exact: NaN and infinity times 0 are NaN, and -x times 0 is -0.
pub(in crate::rewrite) fn select_as_product(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    let dtype = egraph[class].data.ty.dtype;
    if dtype.is_float() || dtype == forebay_ir::DType::Bool {
        return found;
    }
    for (op, select) in terms(egraph, class) {
        let (Op::Select, [m, x, zero]) = (op, &select.args[..]) else { continue };
        if egraph[*zero].data.constant != Some(0.0) {
            continue;
        }
        let (m, x) = (egraph.find(*m), egraph.find(*x));
        found.push(Change::new(class, move |maker| {
            let mask = maker.try_op(Op::Cast(dtype), &[m])?;
            maker.try_op(Op::Binary(BinaryOp::Mul), &[x, mask])
        }));
    }
    found
}
