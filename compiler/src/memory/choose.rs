//! Which values are kept for the backward pass, which are in the host's memory meanwhile, and which are made again: the least time within a number of bytes.
//!
//! Making a value again takes time once, and needs what it is made from: kept, or made again as well. For a price λ of a byte the cheapest choice
//! is one minimum cut, in which keeping costs λ · bytes and making again costs seconds ([`Cuts::cheapest`]):
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
//! A value that is swapped takes seconds of the link to the host instead of bytes. Each run of a graph has a *window* for its copies, the time that others compute
//! meanwhile. Seconds within windows cost a little (ε), those beyond count like any others. With n runs and windows w a graph's `link` seconds cost
//!
//! ```text
//! cost(link) = ε · link + (1 - ε) · Σ max(0, link / n - w)          convex
//! seconds = made again + Σ cost(link)                                of all graphs
//! ```
//!
//! For a price μ of a second of a graph's link, ε to 1, each value that is there at the backward pass is so in the cheaper way, which leaves the same minimum cut;
//! and `made again + Σ (μ · link - max over x of (μ · x - cost(x)))` is never more than the seconds, so all prices give a bound.
//!
//! Exact when the search ends before its limit of cuts, or where there are few values ([`few`](super::few)); otherwise the choice comes with a bound. Deterministic: no clock, no randomness.

use super::known::Known;
pub use super::part::{Away, Part};
use super::part::{Fixed, HIDDEN_LINK, Prices, Question, Taken};
use crate::autodiff::cut::Cuts;
use forebay_ir::ValueId;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Graphs that share one memory and one clock.
#[derive(Clone, Debug, Default)]
pub struct Problem<'a> {
    parts: Vec<Part<'a>>,
    /// Of each graph.
    cuts: Vec<Cuts>,
    /// What is cheapest does not depend on windows: problems that differ in these alone share it.
    known: Known,
}

/// Where a value is at the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// On the device.
    Kept,
    /// In the host's memory meanwhile.
    Swapped,
    /// It is made again.
    Again,
}

/// What is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// For each part, in order, what is not made again: sorted.
    pub kept: Vec<Vec<ValueId>>,
    /// For each part which of these are swapped.
    pub swapped: Vec<Vec<ValueId>>,
    /// Bytes of what is kept.
    pub bytes: f64,
    /// Seconds of what is made again.
    pub again: f64,
    /// For each part seconds of the link.
    pub link: Vec<f64>,
    /// Seconds of what is made again, of copies that nothing hides, and a little for the others.
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
/// A second of the link costs at most what it takes.
const DEAR_LINK: f64 = 1.0;
/// So often the price of the link is halved.
const HALVINGS: u32 = 5;
/// Seconds below this part of all seconds make no difference.
const EQUAL: f64 = 1e-9;

impl Selection {
    /// Seconds when those of the links have prices.
    fn at_link(&self, prices: &[f64]) -> f64 {
        self.again + prices.iter().zip(&self.link).map(|(price, link)| price * link).sum::<f64>()
    }
}

impl<'a> Problem<'a> {
    /// What there is to choose in these graphs.
    pub fn new(parts: Vec<Part<'a>>) -> Problem<'a> {
        let cuts = parts.iter().map(Part::cuts).collect();
        Problem { parts, cuts, known: Known::default() }
    }

    /// The graphs.
    pub fn parts(&self) -> &[Part<'a>] {
        &self.parts
    }

    /// The same with other seconds in which copies are hidden.
    pub fn with_windows(&self, windows: impl Fn(&[f64]) -> Vec<f64>) -> Problem<'a> {
        let mut other = self.clone();
        other.parts.iter_mut().for_each(|part| part.windows = windows(&part.windows));
        other
    }

    /// What keeping these values takes, of which some are swapped.
    pub fn selection(&self, kept: Vec<Vec<ValueId>>, swapped: Vec<Vec<ValueId>>) -> Selection {
        self.sum(self.parts.iter().zip(kept.into_iter().zip(swapped)).map(|(part, (kept, swapped))| {
            let taken = part.taken(&kept, &swapped);
            (kept, swapped, taken)
        }))
    }

    /// What parts keep and swap, and what that takes, together.
    fn sum(&self, of_parts: impl Iterator<Item = (Vec<ValueId>, Vec<ValueId>, Taken)>) -> Selection {
        let mut all = Selection { kept: vec![], swapped: vec![], bytes: 0.0, again: 0.0, link: vec![], seconds: 0.0 };
        for (kept, swapped, taken) in of_parts {
            all.kept.push(kept);
            all.swapped.push(swapped);
            (all.bytes, all.again) = (all.bytes + taken.bytes, all.again + taken.again);
            all.link.push(taken.link);
        }
        all.seconds = all.again + self.cost(&all.link);
        all
    }

    /// What seconds of the links cost.
    fn cost(&self, links: &[f64]) -> f64 {
        self.parts.iter().zip(links).map(|(part, link)| part.cost(*link)).sum()
    }

    /// A selection with other values of one part kept and swapped.
    pub(super) fn with_part(
        &self,
        of: &Selection,
        n: usize,
        (kept, swapped): (Vec<ValueId>, Vec<ValueId>),
    ) -> Selection {
        let (was, now) = (self.parts[n].taken(&of.kept[n], &of.swapped[n]), self.parts[n].taken(&kept, &swapped));
        let mut other = of.clone();
        (other.kept[n], other.swapped[n], other.link[n]) = (kept, swapped, now.link);
        (other.bytes, other.again) = (of.bytes - was.bytes + now.bytes, of.again - was.again + now.again);
        other.seconds = other.again + self.cost(&other.link);
        other
    }

    /// The same with nothing swapped.
    pub fn keeping(&self, kept: Vec<Vec<ValueId>>) -> Selection {
        let none = vec![vec![]; kept.len()];
        self.selection(kept, none)
    }

    fn all_seconds(&self) -> f64 {
        let links = self.parts.iter().flat_map(|p| p.away.iter().flatten()).map(|a| a.link);
        (self.parts.iter().flat_map(|p| &p.seconds).sum::<f64>() + links.sum::<f64>()).max(1e-30)
    }

    pub(super) fn all_bytes(&self) -> f64 {
        self.parts.iter().flat_map(|p| &p.bytes).sum::<f64>().max(1.0)
    }

    /// The cheapest selection at these prices.
    fn at(&self, prices: Prices<'_>, fixed: &Fixed) -> Selection {
        let unit = 2f64.powi(50) / (prices.byte * self.all_bytes() + self.all_seconds());
        let of_part = |(n, part): (usize, &Part)| {
            self.known.cheapest(n, prices, fixed, || {
                let kept = part.cut(&self.cuts[n], n, prices, unit, fixed);
                let swapped: Vec<ValueId> =
                    kept.iter().copied().filter(|&v| part.there(n, prices, fixed, v).1).collect();
                let taken = part.taken(&kept, &swapped);
                (kept, swapped, taken)
            })
        };
        self.sum(self.parts.iter().enumerate().map(of_part).map(|c| (c.kept.clone(), c.swapped.clone(), c.taken)))
    }

    /// Seconds of the links that computation does not hide, for each part's seconds of its link.
    pub fn beyond(&self, links: &[f64]) -> f64 {
        self.parts.iter().zip(links).map(|(part, link)| part.beyond(*link)).sum()
    }

    /// Can anything be swapped?
    pub fn swaps(&self) -> bool {
        self.parts.iter().any(|p| p.away.iter().any(Option::is_some))
    }

    /// The price of a byte at which all bytes cost so many times all seconds.
    fn price(&self, times: f64) -> f64 {
        times * self.all_seconds() / self.all_bytes()
    }

    /// The same price of all links.
    fn links(&self, price: f64) -> Vec<f64> {
        vec![price; self.parts.len()]
    }

    fn fastest(&self, link: &[f64], fixed: &Fixed) -> Selection {
        self.at(Prices { byte: self.price(CHEAPEST), link }, fixed)
    }

    fn smallest(&self, link: &[f64], fixed: &Fixed) -> Selection {
        self.at(Prices { byte: self.price(DEAREST), link }, fixed)
    }

    /// The least time of all, in few bytes.
    pub fn least_time(&self) -> Selection {
        self.fastest(&self.links(DEAR_LINK), &Fixed::default())
    }

    /// The fewest bytes of all, in little time.
    pub fn least_bytes(&self) -> Selection {
        self.smallest(&self.links(DEAR_LINK), &Fixed::default())
    }

    /// The corners of the front of time against bytes, from the least time to the fewest bytes, with every second of the link counted.
    pub fn front(&self) -> Vec<Selection> {
        let (first, last) = (self.least_time(), self.least_bytes());
        let mut corners = vec![first];
        self.corners(&mut corners, last);
        corners
    }

    /// Appends the corners after the last one, up to `end`.
    fn corners(&self, corners: &mut Vec<Selection>, end: Selection) {
        let (mut ends, link) = (vec![end], self.links(DEAR_LINK));
        while let Some(end) = ends.pop() {
            let start = corners.last().expect("the first is there");
            match self.between(start, &end, &link, &Fixed::default()) {
                Some((corner, _)) if !self.is_above(&corner, start, &end, &link) => ends.extend([end, corner]),
                _ if start.bytes > end.bytes => corners.push(end),
                _ => {}
            }
        }
    }

    /// The cheapest selection at the price at which two others cost the same, and the price. `None` when none lies between.
    fn between(&self, fast: &Selection, small: &Selection, link: &[f64], fixed: &Fixed) -> Option<(Selection, f64)> {
        let (bytes, seconds) = (fast.bytes - small.bytes, small.at_link(link) - fast.at_link(link));
        if bytes <= 0.0 || seconds <= EQUAL * self.all_seconds() {
            return None;
        }
        let price = seconds / bytes;
        Some((self.at(Prices { byte: price, link }, fixed), price))
    }

    /// Is a selection no cheaper than two others at the price at which these cost the same?
    fn is_above(&self, selection: &Selection, fast: &Selection, small: &Selection, link: &[f64]) -> bool {
        let price = (small.at_link(link) - fast.at_link(link)) / (fast.bytes - small.bytes);
        let cost = |s: &Selection| s.at_link(link) + price * s.bytes;
        cost(selection) >= cost(fast) - EQUAL * self.all_seconds()
    }

    /// The least time within so many bytes, found with about so many cuts at most; `Err` is the selection of fewest bytes, when even that is too much.
    ///
    /// # Errors
    /// When nothing fits.
    pub fn within(&self, limit: f64, cuts: u32) -> Result<Choice, Selection> {
        let mut beyond = vec![];
        let mut choice = self.by_cuts(limit, cuts, &mut beyond)?;
        if !choice.exact {
            choice.selection = self.improved(choice.selection, beyond, limit);
            if let Some(best) = self.of_few(&choice.selection, limit) {
                return Ok(Choice { bound: best.seconds, selection: best, exact: true });
            }
            choice.exact = choice.selection.seconds - choice.bound <= EQUAL * self.all_seconds();
        }
        Ok(choice)
    }

    /// The same by cuts alone. Appends what was met `beyond` the limit and near it.
    ///
    /// # Errors
    /// When nothing fits.
    pub fn by_cuts(&self, limit: f64, cuts: u32, beyond: &mut Vec<Selection>) -> Result<Choice, Selection> {
        let mut prices = self.links(HIDDEN_LINK);
        if !self.swaps() {
            return self.at_prices_of_links(limit, cuts, &prices, beyond);
        }
        // Copies that are hidden first; then for each part the price at which one more second costs as much.
        let each = cuts / (HALVINGS + 2);
        let mut best = self.at_prices_of_links(limit, each, &prices, beyond)?;
        let mut between = vec![(HIDDEN_LINK, DEAR_LINK); self.parts.len()];
        let mut last = best.selection.link.clone();
        for _ in 0..=HALVINGS {
            if best.exact {
                break;
            }
            for (n, part) in self.parts.iter().enumerate() {
                let (cheap, dear) = &mut between[n];
                *(if part.slope(last[n]) > prices[n] { &mut *cheap } else { &mut *dear }) = prices[n];
                prices[n] = 0.5 * (*cheap + *dear);
            }
            let choice = self.at_prices_of_links(limit, each, &prices, beyond)?;
            last.clone_from(&choice.selection.link);
            best.bound = best.bound.max(choice.bound);
            if choice.selection.seconds < best.selection.seconds {
                best.selection = choice.selection;
            }
            best.exact = best.selection.seconds - best.bound <= EQUAL * self.all_seconds();
        }
        Ok(best)
    }

    /// The same when seconds of the links have prices.
    fn at_prices_of_links(
        &self,
        limit: f64,
        cuts: u32,
        link: &[f64],
        beyond: &mut Vec<Selection>,
    ) -> Result<Choice, Selection> {
        let mut search = Search { problem: self, limit, link, best: None, beyond: None, least: f64::INFINITY, cuts: 0 };
        let root = search.relax(&Fixed::default());
        let Some(root) = root else {
            return match search.best {
                Some(selection) => {
                    let bound = search.least.min(selection.seconds);
                    let exact = selection.seconds - bound <= EQUAL * self.all_seconds();
                    Ok(Choice { bound, selection, exact })
                }
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
        let (closed, selection) = (search.least, search.best.expect("what takes the fewest bytes fits"));
        beyond.extend(search.beyond);
        let bound = open.iter().map(|n| n.bound).fold(selection.seconds.min(closed), f64::min);
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
    branch: (usize, ValueId, Question),
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
    /// The prices of a second of the link.
    link: &'a [f64],
    best: Option<Selection>,
    /// What was met beyond the limit in the fewest bytes.
    beyond: Option<Selection>,
    /// The least of what bounds the decisions that were looked at to their end.
    least: f64,
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
        if !fits && self.beyond.as_ref().is_none_or(|beyond| selection.bytes < beyond.bytes) {
            self.beyond = Some(selection.clone());
        }
        fits
    }

    /// What is left of a selection's seconds when the link has its price: no more than they are, and of the cheapest selection no more than any other's.
    fn bound_of(&self, selection: &Selection) -> f64 {
        let rents = self.problem.parts.iter().zip(self.link).map(|(part, price)| part.rent(*price));
        selection.at_link(self.link) - rents.sum::<f64>()
    }

    /// Bounds the selections with these decisions, by the line between the two corners of their front beside the limit. `None` when the
    /// best of them is known, or none fits.
    fn relax(&mut self, fixed: &Fixed) -> Option<Node> {
        let problem = self.problem;
        let mut fast = problem.fastest(self.link, fixed);
        if self.meet(&fast) {
            self.least = self.least.min(self.bound_of(&fast));
            return None;
        }
        let mut small = problem.smallest(self.link, fixed);
        if !self.meet(&small) {
            return None;
        }
        let mut bound = self.bound_of(&fast) + problem.price(CHEAPEST) * (fast.bytes - self.limit);
        while let Some((corner, price)) = problem.between(&fast, &small, self.link, fixed) {
            bound = bound.max(self.bound_of(&corner) + price * (corner.bytes - self.limit));
            let fits = self.meet(&corner);
            if problem.is_above(&corner, &fast, &small, self.link) {
                break;
            }
            if fits {
                small = corner;
            } else {
                fast = corner;
            }
        }
        let branch = self.difference(&fast, &small, Question::There);
        let Some(branch) = branch.or_else(|| self.difference(&fast, &small, Question::Swapped)) else {
            self.least = self.least.min(bound);
            return None;
        };
        Some(Node { fixed: fixed.clone(), bound, branch })
    }

    /// The largest value for which two selections answer a question differently.
    fn difference(&self, a: &Selection, b: &Selection, question: Question) -> Option<(usize, ValueId, Question)> {
        let of = |s: &Selection| match question {
            Question::There => s.kept.clone(),
            Question::Swapped => s.swapped.clone(),
        };
        let mut largest: Option<(f64, (usize, ValueId, Question))> = None;
        for (n, (part, (a, b))) in self.problem.parts.iter().zip(of(a).iter().zip(&of(b))).enumerate() {
            let only = |x: &[ValueId], y: &[ValueId]| x.iter().copied().filter(|v| !y.contains(v)).collect::<Vec<_>>();
            for value in [only(a, b), only(b, a)].concat() {
                let bytes = part.bytes[value.index()];
                if largest.is_none_or(|(most, _)| bytes > most) {
                    largest = Some((bytes, (n, value, question)));
                }
            }
        }
        largest.map(|(_, at)| at)
    }
}
