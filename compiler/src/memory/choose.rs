//! Which values are kept for the backward pass and which are made again: the least time within a number of bytes.
//!
//! Making a value again takes time once, and needs what it is made from: kept, or made again as well. For a price λ of a byte the cheapest choice
//! is one minimum cut, in which keeping costs λ · bytes and making again costs seconds ([`cut::priced_cut`]):
//!
//! ```text
//! least over choices of  seconds + λ · bytes                a corner of the front for each λ
//!
//! seconds │ z
//!         │  ·╲              corners: one cut each, exact
//!         │    ·  ╲          between corners: branch and bound, a value kept or not; a corner's line is the
//!         │        ·──── a   bound from below (Lagrangian relaxation, Geoffrion 1974)
//!         └──────────── bytes
//! ```
//!
//! Exact when the search ends before its limit of cuts; otherwise the choice comes with a bound. Deterministic: no clock, no randomness.

use crate::autodiff::cut::{self, Place};
use forebay_ir::{Graph, Op, Unit, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A graph whose later half reads some of its values.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The earlier graph.
    pub graph: &'a Graph,
    /// What is read later.
    pub wanted: Vec<ValueId>,
    /// For each value the bytes that keeping it takes, in all places where it is kept at once. Of an input only what is not there anyway.
    pub bytes: Vec<f64>,
    /// For each value the seconds that making it again takes, all times together.
    pub seconds: Vec<f64>,
}

/// Graphs that share one memory and one clock.
#[derive(Clone, Debug, Default)]
pub struct Problem<'a> {
    /// The graphs.
    pub parts: Vec<Part<'a>>,
}

/// What is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// For each part, in order.
    pub kept: Vec<Vec<ValueId>>,
    /// Bytes of what is kept.
    pub bytes: f64,
    /// Seconds of what is made again.
    pub seconds: f64,
}

/// A selection within a limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// What is kept.
    pub selection: Selection,
    /// No selection within the limit takes fewer seconds.
    pub bound: f64,
    /// Was it proven that nothing takes less time?
    pub exact: bool,
}

/// Prices of a byte at the ends of the front, as multiples of all seconds over all bytes: bytes only decide between equal times, and the other way round.
const CHEAPEST: f64 = 1e-10;
const DEAREST: f64 = 1e10;
/// Seconds below this part of all seconds make no difference.
const EQUAL: f64 = 1e-9;

/// Values that are decided: kept or not.
type Fixed = FxHashMap<(usize, ValueId), bool>;

impl Part<'_> {
    /// The values that are made again when these are kept.
    pub fn made_again(&self, kept: &[ValueId]) -> Vec<ValueId> {
        let kept: FxHashSet<ValueId> = kept.iter().copied().collect();
        let mut again = FxHashSet::default();
        let mut stack = self.wanted.clone();
        while let Some(value) = stack.pop() {
            let there = kept.contains(&value) || self.graph.node(value).op == Op::Input;
            if !there && again.insert(value) {
                stack.extend(self.graph.reads(value));
            }
        }
        let mut again: Vec<ValueId> = again.into_iter().collect();
        again.sort_unstable();
        again
    }

    fn cut(&self, number: usize, price: f64, unit: f64, fixed: &Fixed) -> Vec<ValueId> {
        let decided = |v: ValueId| fixed.get(&(number, v)).copied();
        let is_input = |v: ValueId| self.graph.node(v).op == Op::Input;
        let place = |v| if is_input(v) || decided(v) == Some(true) { Place::Before } else { Place::Either };
        // Beyond price, fewer tensors; and the tensor itself rather than a view.
        let tie = |v: ValueId| if self.graph.node(v).op.row().unit == Unit::None { 2 } else { 1 };
        let weight = |v: ValueId| match decided(v) {
            Some(false) => cut::UNBOUNDED,
            Some(true) => 0,
            None if is_input(v) && self.bytes[v.index()] == 0.0 => 0,
            None => (price * self.bytes[v.index()] * unit) as u64 * 16 + tie(v),
        };
        let again = |v: ValueId| (self.seconds[v.index()] * unit) as u64 * 16;
        let mut kept = cut::priced_cut(self.graph, &place, &weight, &again, &self.wanted);
        kept.extend(self.graph.values().filter(|&v| decided(v) == Some(true)));
        kept.retain(|&v| !is_input(v) || self.bytes[v.index()] > 0.0);
        kept.sort_unstable();
        kept.dedup();
        kept
    }
}

impl Problem<'_> {
    /// What keeping these values takes.
    pub fn selection(&self, kept: Vec<Vec<ValueId>>) -> Selection {
        let sum = |numbers: &[f64], values: &[ValueId]| values.iter().map(|v| numbers[v.index()]).sum::<f64>();
        let both = || self.parts.iter().zip(&kept);
        Selection {
            bytes: both().map(|(part, kept)| sum(&part.bytes, kept)).sum(),
            seconds: both().map(|(part, kept)| sum(&part.seconds, &part.made_again(kept))).sum(),
            kept,
        }
    }

    fn all_seconds(&self) -> f64 {
        self.parts.iter().flat_map(|p| &p.seconds).sum::<f64>().max(1e-30)
    }

    fn all_bytes(&self) -> f64 {
        self.parts.iter().flat_map(|p| &p.bytes).sum::<f64>().max(1.0)
    }

    /// The cheapest selection at this price of a byte, seconds.
    fn at(&self, price: f64, fixed: &Fixed) -> Selection {
        let unit = 2f64.powi(50) / (price * self.all_bytes() + self.all_seconds());
        self.selection(self.parts.iter().enumerate().map(|(n, part)| part.cut(n, price, unit, fixed)).collect())
    }

    /// The price of a byte at which all bytes cost so many times all seconds.
    fn price(&self, times: f64) -> f64 {
        times * self.all_seconds() / self.all_bytes()
    }

    fn fastest(&self, fixed: &Fixed) -> Selection {
        self.at(self.price(CHEAPEST), fixed)
    }

    fn smallest(&self, fixed: &Fixed) -> Selection {
        self.at(self.price(DEAREST), fixed)
    }

    /// The least time of all, in few bytes.
    pub fn least_time(&self) -> Selection {
        self.fastest(&Fixed::default())
    }

    /// The fewest bytes of all, in little time.
    pub fn least_bytes(&self) -> Selection {
        self.smallest(&Fixed::default())
    }

    /// The corners of the front of time against bytes, from the least time to the fewest bytes.
    pub fn front(&self) -> Vec<Selection> {
        let (first, last) = (self.least_time(), self.least_bytes());
        let mut corners = vec![first];
        self.corners(&mut corners, last);
        corners
    }

    /// Appends the corners after the last one, up to `end`.
    fn corners(&self, corners: &mut Vec<Selection>, end: Selection) {
        let mut ends = vec![end];
        while let Some(end) = ends.pop() {
            let start = corners.last().expect("the first is there");
            match self.between(start, &end, &Fixed::default()) {
                Some((corner, _)) if !self.is_above(&corner, start, &end) => ends.extend([end, corner]),
                _ if start.bytes > end.bytes => corners.push(end),
                _ => {}
            }
        }
    }

    /// The cheapest selection at the price at which two others cost the same, and the price. `None` when none lies between.
    fn between(&self, fast: &Selection, small: &Selection, fixed: &Fixed) -> Option<(Selection, f64)> {
        let (bytes, seconds) = (fast.bytes - small.bytes, small.seconds - fast.seconds);
        if bytes <= 0.0 || seconds <= EQUAL * self.all_seconds() {
            return None;
        }
        let price = seconds / bytes;
        Some((self.at(price, fixed), price))
    }

    /// Is a selection no cheaper than two others at the price at which these cost the same?
    fn is_above(&self, selection: &Selection, fast: &Selection, small: &Selection) -> bool {
        let price = (small.seconds - fast.seconds) / (fast.bytes - small.bytes);
        let cost = |s: &Selection| s.seconds + price * s.bytes;
        cost(selection) >= cost(fast) - EQUAL * self.all_seconds()
    }

    /// The least time within so many bytes, found with about so many cuts at most; `Err` is the selection of fewest bytes, when even that is too much.
    ///
    /// # Errors
    /// When nothing fits.
    pub fn within(&self, limit: f64, cuts: u32) -> Result<Choice, Selection> {
        let mut search = Search { problem: self, limit, best: None, cuts: 0 };
        let root = search.relax(&Fixed::default());
        let Some(root) = root else {
            return match search.best {
                Some(selection) => Ok(Choice { bound: selection.seconds, selection, exact: true }),
                None => Err(self.least_bytes()),
            };
        };
        let mut open = BinaryHeap::from([root]);
        while let Some(node) = open.pop() {
            if search.is_worse(node.bound) {
                continue;
            }
            if search.cuts >= cuts {
                open.push(node);
                break;
            }
            for keep in [true, false] {
                let mut fixed = node.fixed.clone();
                fixed.insert(node.branch, keep);
                open.extend(search.relax(&fixed).filter(|n| !search.is_worse(n.bound)));
            }
        }
        let selection = search.best.expect("what takes the fewest bytes fits");
        let bound = open.iter().map(|n| n.bound).fold(selection.seconds, f64::min);
        let exact = selection.seconds - bound <= EQUAL * self.all_seconds();
        Ok(Choice { selection, bound, exact })
    }
}

/// Selections in which some values are decided.
struct Node {
    fixed: Fixed,
    /// None of them takes fewer seconds.
    bound: f64,
    /// What to decide next.
    branch: (usize, ValueId),
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Node {}

impl PartialOrd for Node {
    fn partial_cmp(&self, other: &Node) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Node {
    /// The lowest bound is the greatest: it comes out of the heap first.
    fn cmp(&self, other: &Node) -> Ordering {
        other.bound.total_cmp(&self.bound).then_with(|| self.fixed.len().cmp(&other.fixed.len()))
    }
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    limit: f64,
    best: Option<Selection>,
    cuts: u32,
}

impl Search<'_> {
    /// Is nothing to be gained below this bound?
    fn is_worse(&self, bound: f64) -> bool {
        let trifle = EQUAL * self.problem.all_seconds();
        self.best.as_ref().is_some_and(|best| bound >= best.seconds - trifle)
    }

    fn meet(&mut self, selection: &Selection) -> bool {
        self.cuts += 1;
        let fits = selection.bytes <= self.limit;
        if fits && self.best.as_ref().is_none_or(|best| selection.seconds < best.seconds) {
            self.best = Some(selection.clone());
        }
        fits
    }

    /// Bounds the selections with these decisions, by the line between the two corners of their front beside the limit. `None` when the
    /// best of them is known, or none fits.
    fn relax(&mut self, fixed: &Fixed) -> Option<Node> {
        let problem = self.problem;
        let mut fast = problem.fastest(fixed);
        if self.meet(&fast) {
            return None;
        }
        let mut small = problem.smallest(fixed);
        if !self.meet(&small) {
            return None;
        }
        let mut bound = fast.seconds + problem.price(CHEAPEST) * (fast.bytes - self.limit);
        while let Some((corner, price)) = problem.between(&fast, &small, fixed) {
            bound = bound.max(corner.seconds + price * (corner.bytes - self.limit));
            let fits = self.meet(&corner);
            if problem.is_above(&corner, &fast, &small) {
                break;
            }
            if fits {
                small = corner;
            } else {
                fast = corner;
            }
        }
        let branch = self.difference(&fast, &small)?;
        Some(Node { fixed: fixed.clone(), bound, branch })
    }

    /// The largest value that one selection keeps and the other does not.
    fn difference(&self, a: &Selection, b: &Selection) -> Option<(usize, ValueId)> {
        let mut largest: Option<(f64, (usize, ValueId))> = None;
        for (n, (part, (a, b))) in self.problem.parts.iter().zip(a.kept.iter().zip(&b.kept)).enumerate() {
            let only = |x: &[ValueId], y: &[ValueId]| x.iter().copied().filter(|v| !y.contains(v)).collect::<Vec<_>>();
            for value in [only(a, b), only(b, a)].concat() {
                let bytes = part.bytes[value.index()];
                if largest.is_none_or(|(most, _)| bytes > most) {
                    largest = Some((bytes, (n, value)));
                }
            }
        }
        largest.map(|(_, at)| at)
    }
}
