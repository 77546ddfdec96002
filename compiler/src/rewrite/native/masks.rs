//! What a condition says of positions: linear forms of indices.

use super::{axes, terms};
use crate::rewrite::term::Egraph;
use egg::Id;
use forebay_ir::{AxisId, BinaryOp, DType, Op, UnaryOp};

/// The parts of an attention mask: the keys that a query sees.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Mask {
    /// The queries' axis, when the mask speaks of it.
    pub query: Option<AxisId>,
    /// Only keys up to the query.
    pub causal: bool,
    /// Only so many keys up to the query.
    pub window: Option<i64>,
    /// Only keys of the query's document: documents of queries and keys.
    pub documents: Option<(Id, Id)>,
    /// The position of the first query, where queries are a part of a row.
    pub start: Option<Id>,
}

impl Mask {
    /// Both masks at once.
    pub fn and(self, other: Mask) -> Option<Mask> {
        let query = match (self.query, other.query) {
            (Some(a), Some(b)) if a != b => return None,
            (a, b) => a.or(b),
        };
        let window = match (self.window, other.window) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let documents = match (self.documents, other.documents) {
            (Some(a), Some(b)) if a != b => return None,
            (a, b) => a.or(b),
        };
        // What speaks of positions speaks of the same ones.
        let positions = |mask: &Mask| mask.causal || mask.window.is_some();
        if positions(&self) && positions(&other) && self.start != other.start {
            return None;
        }
        let start = self.start.or(other.start);
        Some(Mask { query, causal: self.causal || other.causal, window, documents, start })
    }
}

/// Reads a condition as a mask over the keys `u`; `negated` reads its opposite.
pub(super) fn mask(egraph: &Egraph, condition: Id, u: AxisId, negated: bool) -> Option<Mask> {
    terms(egraph, condition).find_map(|(op, term)| {
        let arg = |i: usize| egraph.find(term.args[i]);
        match op {
            Op::Unary(UnaryOp::Not) => mask(egraph, arg(0), u, !negated),
            Op::Binary(BinaryOp::And) if !negated => {
                mask(egraph, arg(0), u, false)?.and(mask(egraph, arg(1), u, false)?)
            }
            Op::Binary(BinaryOp::Or) if negated => mask(egraph, arg(0), u, true)?.and(mask(egraph, arg(1), u, true)?),
            Op::Binary(BinaryOp::Eq) if !negated => same_document(egraph, arg(0), arg(1), u),
            Op::Binary(BinaryOp::Ne) if negated => same_document(egraph, arg(0), arg(1), u),
            Op::Binary(op) if op.is_comparison() => {
                // Everything as `difference >= 0`.
                let (mut a, mut b) = (linear(egraph, arg(0), 8)?, linear(egraph, arg(1), 8)?);
                let op = match (op, negated) {
                    (op, false) => *op,
                    (BinaryOp::Lt, true) => BinaryOp::Ge,
                    (BinaryOp::Le, true) => BinaryOp::Gt,
                    (BinaryOp::Gt, true) => BinaryOp::Le,
                    (BinaryOp::Ge, true) => BinaryOp::Lt,
                    _ => return None,
                };
                if matches!(op, BinaryOp::Le | BinaryOp::Lt) {
                    std::mem::swap(&mut a, &mut b);
                }
                let strict = matches!(op, BinaryOp::Lt | BinaryOp::Gt);
                let mut difference = a.minus(&b);
                difference.constant -= i64::from(strict);
                distance(&difference, u)
            }
            _ => None,
        }
    })
}

/// `t - u >= 0`, or `u - t + width - 1 >= 0`.
fn distance(difference: &Linear, u: AxisId) -> Option<Mask> {
    let [(a, ka), (b, kb)] = difference.terms[..] else { return None };
    let (t, kt, ku) = if a == u { (b, kb, ka) } else { (a, ka, kb) };
    if a != u && b != u {
        return None;
    }
    let start = match difference.starts[..] {
        [] => None,
        [(start, k)] if k == kt => Some(start),
        _ => return None,
    };
    match (kt, ku, difference.constant) {
        (1, -1, 0) => Some(Mask { query: Some(t), causal: true, start, ..Mask::default() }),
        (-1, 1, far) if far >= 0 => Some(Mask { query: Some(t), window: Some(far + 1), start, ..Mask::default() }),
        _ => None,
    }
}

fn same_document(egraph: &Egraph, a: Id, b: Id, u: AxisId) -> Option<Mask> {
    let is_of_keys = |id: Id| axes(egraph, id).contains(&u);
    let (query, key) = match (is_of_keys(a), is_of_keys(b)) {
        (false, true) => (a, b),
        (true, false) => (b, a),
        _ => return None,
    };
    let whole = |id: Id| egraph[id].data.ty.dtype == DType::I32;
    let (of_query, of_key) = (axes(egraph, query), axes(egraph, key));
    let mut own = of_query.iter().copied().filter(|x| !of_key.contains(x));
    let t = own.next()?;
    (own.next().is_none() && whole(query) && whole(key)).then(|| Mask {
        query: Some(t),
        documents: Some((query, key)),
        ..Mask::default()
    })
}

/// A sum of positions along axes, of whole numbers that the ranks know, and a constant.
#[derive(Clone, Debug, Default)]
struct Linear {
    terms: Vec<(AxisId, i64)>,
    starts: Vec<(Id, i64)>,
    constant: i64,
}

impl Linear {
    fn minus(&self, other: &Linear) -> Linear {
        Linear {
            terms: without(&self.terms, &other.terms),
            starts: without(&self.starts, &other.starts),
            constant: self.constant - other.constant,
        }
    }
}

fn without<T: Copy + PartialEq>(a: &[(T, i64)], b: &[(T, i64)]) -> Vec<(T, i64)> {
    let mut terms = a.to_vec();
    for &(of, k) in b {
        match terms.iter_mut().find(|t| t.0 == of) {
            Some(term) => term.1 -= k,
            None => terms.push((of, -k)),
        }
    }
    terms.retain(|t| t.1 != 0);
    terms
}

fn linear(egraph: &Egraph, class: Id, depth: usize) -> Option<Linear> {
    let depth = depth.checked_sub(1)?;
    let zero = Linear::default();
    if let Some(c) = egraph[class].data.constant {
        let small = c.fract() == 0.0 && c.abs() < 1e9;
        return small.then_some(Linear { constant: c as i64, ..zero });
    }
    let scalar = egraph[class].data.ty.axes.is_empty() && egraph[class].data.ty.dtype == DType::I32;
    let start = scalar.then(|| Linear { starts: vec![(class, 1)], ..Linear::default() });
    start.or_else(|| {
        terms(egraph, class).find_map(|(op, term)| {
            let arg = |i: usize| linear(egraph, egraph.find(term.args[i]), depth);
            match op {
                Op::Iota(axis) => Some(Linear { terms: vec![(*axis, 1)], ..Linear::default() }),
                Op::Rename { from, to } => {
                    let mut inner = arg(0)?;
                    inner.terms.iter_mut().filter(|t| t.0 == *from).for_each(|t| t.0 = *to);
                    Some(inner)
                }
                // bf16 does not hold all numbers above 256.
                Op::Cast(to) if !matches!(to, DType::Bool | DType::BF16) => arg(0),
                Op::Unary(UnaryOp::Neg) => Some(zero.minus(&arg(0)?)),
                Op::Binary(BinaryOp::Sub) => Some(arg(0)?.minus(&arg(1)?)),
                Op::Binary(BinaryOp::Add) => Some(arg(0)?.minus(&zero.minus(&arg(1)?))),
                _ => None,
            }
        })
    })
}
