//! A graph whose later half reads some of its values: what having each of them there costs, in each way.

use crate::autodiff::cut::{Cuts, Place, UNBOUNDED};
use forebay_ir::{Graph, Op, Unit, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

/// A graph whose later half reads some of its values.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The earlier graph.
    pub graph: &'a Graph,
    /// What is read later.
    pub wanted: Vec<ValueId>,
    /// For each value the bytes of keeping it, times the copies that are kept at once. Of an input only bytes that are not resident anyway count.
    pub bytes: Vec<f64>,
    /// For each value the seconds that making it again takes, all times together.
    pub seconds: Vec<f64>,
    /// For each value what swapping it takes, if it can be. None at all where nothing can.
    pub away: Vec<Option<Away>>,
    /// For each run the seconds in which its copies are hidden, the least first.
    pub windows: Vec<f64>,
}

/// What swapping a value takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Away {
    /// Bytes on the device, of what is on its way.
    pub bytes: f64,
    /// Seconds of the link, all times together, one way.
    pub link: f64,
}

/// What a second of the link costs that computation hides: of two choices in as little time the one that copies less is the better.
pub(super) const HIDDEN_LINK: f64 = 0.05;

/// What is decided of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Question {
    /// Is it there at the backward pass, kept or swapped?
    There,
    /// If it is, is it swapped?
    Swapped,
}

/// What is decided.
pub(super) type Fixed = FxHashMap<(usize, ValueId, Question), bool>;

/// Prices: seconds of a byte, and for each part of a second of the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prices<'p> {
    pub byte: f64,
    pub link: &'p [f64],
}

/// What a part's selection takes: bytes, seconds of what is made again, and seconds of its link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub bytes: f64,
    pub again: f64,
    pub link: f64,
}

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

    /// What is kept when these may be, sorted: what is read, and what the rest of it is made from. Of inputs those that would not be there anyway.
    pub(super) fn needed(&self, is_there: impl Fn(ValueId) -> bool) -> Vec<ValueId> {
        let (mut seen, mut kept) = (FxHashSet::default(), vec![]);
        let mut stack = self.wanted.clone();
        while let Some(v) = stack.pop() {
            if !seen.insert(v) {
                continue;
            }
            match self.graph.node(v).op {
                Op::Input if self.bytes[v.index()] > 0.0 => kept.push(v),
                Op::Input => {}
                _ if is_there(v) => kept.push(v),
                _ => stack.extend(self.graph.reads(v)),
            }
        }
        kept.sort_unstable();
        kept
    }

    /// What keeping these values takes, of which some are swapped.
    pub(super) fn taken(&self, kept: &[ValueId], swapped: &[ValueId]) -> Taken {
        let again = self.made_again(kept).iter().map(|v| self.seconds[v.index()]).sum();
        let mut taken = Taken { bytes: 0.0, again, link: 0.0 };
        for v in kept {
            match self.away.get(v.index()).copied().flatten().filter(|_| swapped.contains(v)) {
                Some(away) => (taken.bytes, taken.link) = (taken.bytes + away.bytes, taken.link + away.link),
                None => taken.bytes += self.bytes[v.index()],
            }
        }
        taken
    }

    /// What having a value at the backward pass costs, and is it swapped then?
    pub(super) fn there(&self, number: usize, prices: Prices<'_>, fixed: &Fixed, v: ValueId) -> (f64, bool) {
        let kept = prices.byte * self.bytes[v.index()];
        let away = self.away.get(v.index()).copied().flatten();
        let away = away.map(|away| prices.byte * away.bytes + prices.link[number] * away.link);
        match (away, fixed.get(&(number, v, Question::Swapped))) {
            (None, _) | (_, Some(false)) => (kept, false),
            (Some(away), Some(true)) => (away, true),
            (Some(away), None) => (kept.min(away), away < kept),
        }
    }

    /// Seconds of the link that no window hides.
    pub(super) fn beyond(&self, link: f64) -> f64 {
        let each = link / self.windows.len().max(1) as f64;
        let beyond: f64 = self.windows.iter().map(|w| (each - w).max(0.0)).sum();
        if self.windows.is_empty() { link } else { beyond }
    }

    /// What seconds of the link cost.
    pub(super) fn cost(&self, link: f64) -> f64 {
        HIDDEN_LINK * link + (1.0 - HIDDEN_LINK) * self.beyond(link)
    }

    /// What one more second of the link costs.
    pub(super) fn slope(&self, link: f64) -> f64 {
        let n = self.windows.len().max(1) as f64;
        let beyond = self.windows.partition_point(|w| *w < link / n) as f64;
        let beyond = if self.windows.is_empty() { 1.0 } else { beyond / n };
        HIDDEN_LINK + (1.0 - HIDDEN_LINK) * beyond
    }

    /// The maximum over x of price · x − cost(x), in seconds: the cost is piecewise linear, so it is reached where a window is full.
    pub(super) fn rent(&self, price: f64) -> f64 {
        let n = self.windows.len() as f64;
        let (mut most, mut shorter) = (0.0f64, 0.0);
        for (count, w) in self.windows.iter().enumerate() {
            // With x = w · n the shorter windows are full before.
            let beyond = count as f64 * w - shorter;
            most = most.max((price - HIDDEN_LINK) * w * n - (1.0 - HIDDEN_LINK) * beyond);
            shorter += w;
        }
        most
    }

    /// Its cuts, at any price.
    pub(super) fn cuts(&self) -> Cuts {
        let is_input = |v: ValueId| self.graph.node(v).op == Op::Input;
        Cuts::new(self.graph, &|v| if is_input(v) { Place::Before } else { Place::Either }, &self.wanted)
    }

    /// The cheapest of its cuts, with what is decided.
    pub(super) fn cut(&self, cuts: &Cuts, number: usize, prices: Prices<'_>, unit: f64, fixed: &Fixed) -> Vec<ValueId> {
        let decided = |v: ValueId| fixed.get(&(number, v, Question::There)).copied();
        let is_input = |v: ValueId| self.graph.node(v).op == Op::Input;
        // Beyond price, fewer tensors; and the tensor itself rather than a view.
        let tie = |v: ValueId| if self.graph.node(v).op.row().unit == Unit::None { 2 } else { 1 };
        let again = |v: ValueId| (self.seconds[v.index()] * unit) as u64 * 16;
        let price = |v: ValueId| match decided(v) {
            Some(false) => (UNBOUNDED, again(v)),
            Some(true) => (0, UNBOUNDED),
            None if is_input(v) && self.bytes[v.index()] == 0.0 => (0, again(v)),
            None => ((self.there(number, prices, fixed, v).0 * unit) as u64 * 16 + tie(v), again(v)),
        };
        let mut kept = cuts.cheapest(&price);
        kept.extend(self.graph.values().filter(|&v| decided(v) == Some(true)));
        kept.retain(|&v| !is_input(v) || self.bytes[v.index()] > 0.0);
        kept.sort_unstable();
        kept.dedup();
        kept
    }
}
