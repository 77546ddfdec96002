//! What a condition says of positions: linear forms of indices and of other whole numbers.

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
    /// Where queries and keys are, unless both are counted along their axes.
    pub positions: Option<(Position, Position)>,
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
        let speaks = |mask: &Mask| mask.causal || mask.window.is_some();
        if speaks(&self) && speaks(&other) && self.positions != other.positions {
            return None;
        }
        let positions = self.positions.or(other.positions);
        Some(Mask { query, causal: self.causal || other.causal, window, documents, positions })
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
                distance(egraph, &difference, u)
            }
            _ => None,
        }
    })
}

/// `q - k >= 0`, or `k - q + width - 1 >= 0`, of positions q of queries and k of keys.
fn distance(egraph: &Egraph, difference: &Linear, u: AxisId) -> Option<Mask> {
    let is_of_keys = |part: &Part| part.axes(egraph).contains(&u);
    let sign = -difference.parts.iter().find(|(part, _)| is_of_keys(part))?.1;
    let (query, key): (Vec<_>, Vec<_>) = difference.parts.iter().partition(|(part, k)| !is_of_keys(part) && *k == sign);
    if sign.abs() != 1 || key.iter().any(|(_, k)| *k != -sign) {
        return None;
    }
    let side = |parts: Vec<(Part, i64)>| -> Position {
        let mut parts: Position = parts.into_iter().map(|(part, _)| part).collect();
        parts.sort_unstable();
        parts
    };
    let (query, key) = (side(query), side(key));
    let of_keys: Vec<AxisId> = key.iter().flat_map(|part| part.axes(egraph)).collect();
    let mut own: Vec<AxisId> = query.iter().flat_map(|part| part.axes(egraph)).collect();
    own.retain(|axis| !of_keys.contains(axis));
    own.dedup();
    let [t] = own[..] else { return None };
    let plain = query == [Part::Iota(t)] && key == [Part::Iota(u)];
    let mask = Mask { query: Some(t), positions: (!plain).then_some((query, key)), ..Mask::default() };
    match (sign, difference.constant) {
        (1, 0) => Some(Mask { causal: true, ..mask }),
        (-1, far) if far >= 0 => Some(Mask { window: Some(far + 1), ..mask }),
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

/// A term of a position: what is counted along an axis, or other whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Iota(AxisId),
    Value(Id),
}

impl Part {
    fn axes(self, egraph: &Egraph) -> Vec<AxisId> {
        match self {
            Part::Iota(axis) => vec![axis],
            Part::Value(id) => axes(egraph, id).to_vec(),
        }
    }
}

/// The sum of these is where something is in a row.
pub(super) type Position = Vec<Part>;

/// A sum of positions, each times a number, and a constant.
#[derive(Clone, Debug, Default)]
struct Linear {
    parts: Vec<(Part, i64)>,
    constant: i64,
}

impl Linear {
    fn minus(mut self, other: &Linear) -> Linear {
        for &(of, k) in &other.parts {
            match self.parts.iter_mut().find(|t| t.0 == of) {
                Some(part) => part.1 -= k,
                None => self.parts.push((of, -k)),
            }
        }
        self.parts.retain(|t| t.1 != 0);
        Linear { constant: self.constant - other.constant, ..self }
    }

    fn one(part: Part) -> Linear {
        Linear { parts: vec![(part, 1)], constant: 0 }
    }
}

fn linear(egraph: &Egraph, class: Id, depth: usize) -> Option<Linear> {
    let depth = depth.checked_sub(1)?;
    if let Some(c) = egraph[class].data.constant {
        let small = c.fract() == 0.0 && c.abs() < 1e9;
        return small.then_some(Linear { constant: c as i64, ..Linear::default() });
    }
    let ty = &egraph[class].data.ty;
    let whole = || (ty.dtype == DType::I32).then(|| Linear::one(Part::Value(class)));
    // What has no axis is the same for all: there is nothing to gain from how it is made.
    if ty.axes.is_empty() {
        return whole();
    }
    let sum = terms(egraph, class).find_map(|(op, term)| {
        let arg = |i: usize| linear(egraph, egraph.find(term.args[i]), depth);
        match op {
            Op::Iota(axis) => Some(Linear::one(Part::Iota(*axis))),
            Op::Rename { from, to } => {
                let mut inner = arg(0)?;
                let alone = |part: &Part| matches!(part, Part::Iota(_)) || part.axes(egraph).is_empty();
                let renamed = |part: Part| if part == Part::Iota(*from) { Part::Iota(*to) } else { part };
                inner.parts.iter_mut().for_each(|(part, _)| *part = renamed(*part));
                inner.parts.iter().all(|(part, _)| alone(part)).then_some(inner)
            }
            // bf16 does not hold all numbers above 256.
            Op::Cast(to) if !matches!(to, DType::Bool | DType::BF16) => arg(0),
            Op::Unary(UnaryOp::Neg) => Some(Linear::default().minus(&arg(0)?)),
            Op::Binary(BinaryOp::Sub) => Some(arg(0)?.minus(&arg(1)?)),
            Op::Binary(BinaryOp::Add) => Some(arg(0)?.minus(&Linear::default().minus(&arg(1)?))),
            _ => None,
        }
    });
    sum.or_else(whole)
}
