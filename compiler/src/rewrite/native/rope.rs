//! Rotary positions, in whatever way the halves of an axis are taken apart and put together.
//!
//! Each half of a value is a polynomial in halves of others:
//!
//! ```text
//! merge(stack(a, b)), concat(a, b)      a, b
//! take(split(x), i), slice(x)           half i of x, wherever it stands as a factor
//! f * g, f + g, f - g, -f, cast f       half by half; what lacks the axis is the same in both
//! ```
//!
//! and a rope is a value whose halves are `e cos - o sin` and `o cos + e sin`.

use super::{axes, terms};
use crate::rewrite::Change;
use crate::rewrite::normal::Forms;
use crate::rewrite::term::Egraph;
use egg::Id;
use forebay_ir::{AxisId, BinaryOp, Extent, Fused, FusedKind, Op, UnaryOp};

/// How an axis is cut into two: halves one after the other, or every other element.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cut {
    axis: AxisId,
    interleaved: bool,
}

/// A factor of a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Atom {
    /// Half of a value: which value, which half.
    Half(Id, u64),
    /// The same in both halves, or made for one of them.
    Whole(Id),
}

/// Coefficients and factors.
type Polynomial = Vec<(f64, Vec<Atom>)>;

const MAX_TERMS: usize = 8;
/// So many ops are looked through.
const DEPTH: usize = 7;

pub(in crate::rewrite) fn rope(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    if !egraph[class].data.ty.dtype.is_float() {
        return found;
    }
    for cut in cuts(egraph, class) {
        let halves = Halves { egraph, cut };
        let Some([first, second]) = halves.of(class, DEPTH) else { continue };
        let Some(turn) = turned(&first, &second) else { continue };
        found.extend(halves.change(class, &turn));
    }
    found
}

/// The ways in which the last steps towards a class put it together.
fn cuts(egraph: &Egraph, class: Id) -> Vec<Cut> {
    let mut cuts = vec![];
    for (op, term) in terms(egraph, class) {
        match op {
            Op::Merge { from, into } if from.len() == 2 => {
                let size = |a: AxisId| egraph.analysis.scratch.size(a);
                if size(from[0]) == 2 {
                    cuts.push(Cut { axis: *into, interleaved: false });
                }
                if size(from[1]) == 2 {
                    cuts.push(Cut { axis: *into, interleaved: true });
                }
            }
            Op::Concat { from, into } if from.len() == 2 => cuts.push(Cut { axis: *into, interleaved: false }),
            // x * cos + turned(x) * sin: the sum itself is not put together, its terms are.
            Op::Binary(BinaryOp::Add | BinaryOp::Sub) => {
                let inner = term.args.iter().flat_map(|&a| terms(egraph, a));
                let factors = inner.filter(|(op, _)| matches!(op, Op::Binary(BinaryOp::Mul)));
                for factor in factors.flat_map(|(_, product)| product.args.clone()) {
                    cuts.extend(cuts_of_joined(egraph, factor, 3));
                }
            }
            _ => {}
        }
    }
    cuts.dedup();
    cuts.sort_by_key(|c| (c.axis, c.interleaved));
    cuts.dedup();
    cuts
}

fn cuts_of_joined(egraph: &Egraph, class: Id, depth: usize) -> Vec<Cut> {
    let Some(depth) = depth.checked_sub(1) else { return vec![] };
    let joins = |op: &Op| matches!(op, Op::Merge { .. } | Op::Concat { .. });
    if terms(egraph, class).any(|(op, _)| joins(op)) {
        return cuts(egraph, class);
    }
    let casts = terms(egraph, class).filter(|(op, _)| matches!(op, Op::Cast(_) | Op::Unary(UnaryOp::Neg)));
    casts.flat_map(|(_, term)| cuts_of_joined(egraph, term.args[0], depth)).collect()
}

/// What is turned: x, cos, sin, and whether it turns back.
#[derive(Clone, Copy)]
struct Turn {
    x: Id,
    cos: Id,
    sin: Id,
    back: bool,
}

fn turned(first: &Polynomial, second: &Polynomial) -> Option<Turn> {
    let term = |p: &Polynomial, half: u64| {
        let mut found = p.iter().filter_map(|(k, atoms)| {
            let x = atoms.iter().find_map(|a| match a {
                Atom::Half(x, h) if *h == half => Some(*x),
                _ => None,
            })?;
            let rest: Vec<Atom> = atoms.iter().copied().filter(|a| *a != Atom::Half(x, half)).collect();
            match rest[..] {
                [Atom::Whole(factor)] => Some((*k, x, factor)),
                _ => None,
            }
        });
        let one = found.next();
        one.filter(|_| found.next().is_none())
    };
    if first.len() != 2 || second.len() != 2 {
        return None;
    }
    let ((ec, x, cos), (os, x2, sin)) = (term(first, 0)?, term(first, 1)?);
    let ((es, x3, sin2), (oc, x4, cos2)) = (term(second, 0)?, term(second, 1)?);
    let back = match (ec, os, oc, es) {
        (1.0, -1.0, 1.0, 1.0) => false,
        (1.0, 1.0, 1.0, -1.0) => true,
        _ => return None,
    };
    let same = x == x2 && x == x3 && x == x4 && cos == cos2 && sin == sin2 && cos != sin;
    same.then_some(Turn { x, cos, sin, back })
}

struct Halves<'e> {
    egraph: &'e Egraph,
    cut: Cut,
}

impl Halves<'_> {
    fn of(&self, class: Id, depth: usize) -> Option<[Polynomial; 2]> {
        let class = self.egraph.find(class);
        let whole = |c: Id| -> [Polynomial; 2] { std::array::from_fn(|_| vec![(1.0, vec![Atom::Whole(c)])]) };
        if !axes(self.egraph, class).contains(&self.cut.axis) {
            return Some(whole(class));
        }
        let itself = || std::array::from_fn(|half| vec![(1.0, vec![Atom::Half(class, half as u64)])]);
        let Some(depth) = depth.checked_sub(1) else { return Some(itself()) };
        for (op, term) in terms(self.egraph, class) {
            let both = || Some((self.of(term.args[0], depth)?, self.of(*term.args.get(1)?, depth)?));
            let halves = match op {
                Op::Merge { .. } | Op::Concat { .. } => {
                    let Some([a, b]) = self.joined(class) else { continue };
                    [self.piece(a, depth), self.piece(b, depth)]
                }
                Op::Binary(BinaryOp::Add) => {
                    let Some(([a, b], [c, d])) = both() else { continue };
                    [sum(a, c, 1.0), sum(b, d, 1.0)]
                }
                Op::Binary(BinaryOp::Sub) => {
                    let Some(([a, b], [c, d])) = both() else { continue };
                    [sum(a, c, -1.0), sum(b, d, -1.0)]
                }
                Op::Binary(BinaryOp::Mul) => {
                    let Some(([a, b], [c, d])) = both() else { continue };
                    [product(&a, &c), product(&b, &d)]
                }
                Op::Unary(UnaryOp::Neg) => {
                    let Some([a, b]) = self.of(term.args[0], depth) else { continue };
                    [scaled(a, -1.0), scaled(b, -1.0)]
                }
                // The result is rounded once, at the end; what is rounded on the way stays as it is.
                Op::Cast(_) if depth + 1 == DEPTH || self.widens(class, term.args[0]) => {
                    match self.of(term.args[0], depth) {
                        Some(halves) => halves,
                        None => continue,
                    }
                }
                _ => continue,
            };
            if halves.iter().all(|h| h.len() <= MAX_TERMS) {
                return Some(halves);
            }
        }
        Some(itself())
    }

    /// The two parts that a class is put together from.
    fn joined(&self, class: Id) -> Option<[Id; 2]> {
        terms(self.egraph, class).find_map(|(op, term)| match op {
            Op::Concat { from, into } if *into == self.cut.axis && from.len() == 2 && !self.cut.interleaved => {
                let equal = self.size(from[0]) == self.size(from[1]);
                equal.then(|| [self.egraph.find(term.args[0]), self.egraph.find(term.args[1])])
            }
            Op::Merge { from, into } if *into == self.cut.axis && from.len() == 2 => {
                let two = if self.cut.interleaved { from[1] } else { from[0] };
                if self.size(two) == 2 { self.stacked(term.args[0], two, 3) } else { None }
            }
            _ => None,
        })
    }

    /// Is a cast of the second class to the first one of floats, and does it lose nothing?
    fn widens(&self, to: Id, from: Id) -> bool {
        let (to, from) = (self.egraph[self.egraph.find(to)].data.ty.dtype, self.egraph[from].data.ty.dtype);
        to.is_float() && from.is_float() && from.bytes() <= to.bytes()
    }

    fn size(&self, axis: AxisId) -> u64 {
        self.egraph.analysis.scratch.size(axis)
    }

    fn stacked(&self, class: Id, two: AxisId, depth: usize) -> Option<[Id; 2]> {
        let depth = depth.checked_sub(1)?;
        terms(self.egraph, class).find_map(|(op, term)| match op {
            Op::Stack(axis) if *axis == two && term.args.len() == 2 => {
                Some([self.egraph.find(term.args[0]), self.egraph.find(term.args[1])])
            }
            Op::Cast(_) => self.stacked(term.args[0], two, depth),
            _ => None,
        })
    }

    /// A part as a polynomial in halves of whole values.
    fn piece(&self, class: Id, depth: usize) -> Polynomial {
        let class = self.egraph.find(class);
        let Some(depth) = depth.checked_sub(1) else { return vec![(1.0, vec![Atom::Whole(class)])] };
        if let Some((x, half)) = self.half(class) {
            return vec![(1.0, vec![Atom::Half(x, half)])];
        }
        for (op, term) in terms(self.egraph, class) {
            let piece = |i: usize| self.piece(term.args[i], depth);
            let found = match op {
                Op::Binary(BinaryOp::Add) => sum(piece(0), piece(1), 1.0),
                Op::Binary(BinaryOp::Sub) => sum(piece(0), piece(1), -1.0),
                Op::Unary(UnaryOp::Neg) => scaled(piece(0), -1.0),
                Op::Cast(_) if depth + 2 == DEPTH || self.widens(class, term.args[0]) => piece(0),
                Op::Binary(BinaryOp::Mul) => {
                    let (a, b) = (piece(0), piece(1));
                    // Only what has halves in it is taken apart: cos and sin stay as they are.
                    let halves = |p: &Polynomial| p.iter().flat_map(|t| &t.1).any(|a| matches!(a, Atom::Half(..)));
                    match (halves(&a), halves(&b)) {
                        (false, false) => continue,
                        (true, false) => product(&a, &vec![(1.0, vec![Atom::Whole(self.egraph.find(term.args[1]))])]),
                        (false, true) => product(&vec![(1.0, vec![Atom::Whole(self.egraph.find(term.args[0]))])], &b),
                        (true, true) => product(&a, &b),
                    }
                }
                _ => continue,
            };
            let any = found.iter().flat_map(|t| &t.1).any(|a| matches!(a, Atom::Half(..)));
            if any && found.len() <= MAX_TERMS {
                return found;
            }
        }
        vec![(1.0, vec![Atom::Whole(class)])]
    }

    /// x and the number of `take(split(x))` or `slice(x)`.
    fn half(&self, class: Id) -> Option<(Id, u64)> {
        terms(self.egraph, class).find_map(|(op, term)| match op {
            Op::Cast(_) if self.widens(class, term.args[0]) => self.half(self.egraph.find(term.args[0])),
            Op::Slice { from, into, start } if *from == self.cut.axis && !self.cut.interleaved => {
                let half = self.size(*into);
                let fits = 2 * half == self.size(*from) && start.is_multiple_of(half);
                fits.then(|| (self.egraph.find(term.args[0]), start / half))
            }
            Op::Take { axis, index } => terms(self.egraph, term.args[0]).find_map(|(op, split)| match op {
                Op::Split { from, into } if *from == self.cut.axis && into.len() == 2 && self.size(*axis) == 2 => {
                    let two = if self.cut.interleaved { into[1] } else { into[0] };
                    (two == *axis).then(|| (self.egraph.find(split.args[0]), *index))
                }
                _ => None,
            }),
            _ => None,
        })
    }

    fn change(&self, class: Id, turn: &Turn) -> Option<Change> {
        let egraph = self.egraph;
        let (wanted, of_x) = (egraph[class].data.ty.clone(), egraph[turn.x].data.ty.clone());
        let half = self.size(self.cut.axis) / 2;
        // The axis of the pairs is the one of the angles that x does not have.
        let mut own = axes(egraph, turn.cos).iter().copied().filter(|a| !of_x.has(*a) && self.size(*a) == half);
        let pairs = own.next().filter(|_| own.next().is_none())?;
        if !axes(egraph, turn.sin).contains(&pairs) {
            return None;
        }
        let (cut, Turn { x, cos, sin, back }) = (self.cut, *turn);
        Some(Change::new(class, move |maker| {
            let scratch = &mut maker.egraph.analysis.scratch;
            let known = (0..scratch.axes.len() as u32).map(AxisId).find(|&a| {
                scratch.size(a) == 2 && !scratch.is_ragged(a) && !of_x.has(a) && a != pairs && a != cut.axis
            });
            let two = known.unwrap_or_else(|| scratch.add_axis("two", Extent::Fixed(2), None));
            let numbers = [cut.interleaved, back].map(|f| f64::from(u8::from(f)));
            let fused = Fused::new(FusedKind::Rope, [cut.axis, two, pairs], numbers);
            let value = maker.try_op(Op::Fused(Box::new(fused)), &[x, cos, sin])?;
            (*maker.ty(value) == wanted).then_some(value)
        }))
    }
}

fn scaled(p: Polynomial, by: f64) -> Polynomial {
    p.into_iter().map(|(k, atoms)| (k * by, atoms)).collect()
}

fn sum(a: Polynomial, b: Polynomial, sign: f64) -> Polynomial {
    a.into_iter().chain(scaled(b, sign)).collect()
}

fn product(a: &Polynomial, b: &Polynomial) -> Polynomial {
    let pair = |(ka, xa): &(f64, Vec<Atom>), (kb, xb): &(f64, Vec<Atom>)| {
        let mut atoms = [&xa[..], xb].concat();
        atoms.sort_unstable();
        (ka * kb, atoms)
    };
    a.iter().flat_map(|x| b.iter().map(move |y| pair(x, y))).collect()
}

/// Sines and cosines of what is put together from parts, part by part.
pub(in crate::rewrite) fn angles(egraph: &Egraph, _: &Forms, class: Id) -> Vec<Change> {
    let mut found = vec![];
    for (op, term) in terms(egraph, class) {
        if !matches!(op, Op::Unary(UnaryOp::Cos | UnaryOp::Sin)) {
            continue;
        }
        for (join, parts) in terms(egraph, term.args[0]) {
            if !matches!(join, Op::Concat { .. } | Op::Stack(_) | Op::Merge { .. }) {
                continue;
            }
            let key = egraph.analysis.keys[parts.head as usize].clone();
            let (op, parts) = (op.clone(), parts.args.clone());
            found.push(Change::new(class, move |maker| {
                let parts: Option<Vec<Id>> = parts.iter().map(|&p| maker.try_op(op.clone(), &[p])).collect();
                Some(maker.add(key, &parts?))
            }));
        }
    }
    found
}
