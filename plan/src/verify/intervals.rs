//! Memory in pieces: a map from disjoint ranges to what is known of them. All operations are logarithmic in the number of pieces, plus the pieces
//! touched, which are counted so that a caller can give up.

use std::collections::BTreeMap;

/// Disjoint ranges with a value each.
#[derive(Clone, Debug)]
pub(super) struct Intervals<T> {
    pieces: BTreeMap<u64, Piece<T>>,
    touched: u64,
}

#[derive(Clone, Debug)]
struct Piece<T> {
    end: u64,
    value: T,
}

impl<T> Default for Intervals<T> {
    fn default() -> Self {
        Intervals { pieces: BTreeMap::new(), touched: 0 }
    }
}

impl<T: Clone> Intervals<T> {
    /// The pieces that overlap `start..end` in order, cut off at its ends, and the holes between them (`None`).
    pub fn scan(&mut self, start: u64, end: u64, mut visit: impl FnMut(u64, u64, Option<&T>)) {
        if start >= end {
            return;
        }
        let first = self.pieces.range(..=start).next_back().filter(|(_, p)| p.end > start).map_or(start, |(s, _)| *s);
        let mut at = start;
        for (&from, piece) in self.pieces.range(first..end) {
            self.touched += 1;
            if from > at {
                visit(at, from, None);
            }
            visit(from.max(start), piece.end.min(end), Some(&piece.value));
            at = piece.end;
        }
        if at < end {
            visit(at, end, None);
        }
    }

    /// Pieces touched since it was last asked.
    pub fn take_touched(&mut self) -> u64 {
        std::mem::take(&mut self.touched)
    }

    /// Changes what is known of `start..end`, piece by piece; holes are not visited.
    pub fn change(&mut self, start: u64, end: u64, mut change: impl FnMut(&mut T)) {
        if start >= end {
            return;
        }
        self.cut(start);
        self.cut(end);
        for (_, piece) in self.pieces.range_mut(start..end) {
            self.touched += 1;
            change(&mut piece.value);
        }
    }

    /// Makes `start..end` one piece.
    pub fn set(&mut self, start: u64, end: u64, value: T) {
        if start >= end {
            return;
        }
        if self.pieces.get(&start).is_some_and(|p| p.end == end) {
            self.touched += 1;
            self.pieces.insert(start, Piece { end, value });
            return;
        }
        self.cut(start);
        self.cut(end);
        while let Some((&from, _)) = self.pieces.range(start..end).next() {
            self.touched += 1;
            self.pieces.remove(&from);
        }
        self.pieces.insert(start, Piece { end, value });
    }

    /// Makes pieces of the holes in `start..end`.
    pub fn fill(&mut self, start: u64, end: u64, value: &T) {
        let mut holes = vec![];
        self.scan(start, end, |from, to, piece| {
            if piece.is_none() {
                holes.push((from, to));
            }
        });
        for (from, to) in holes {
            self.pieces.insert(from, Piece { end: to, value: value.clone() });
        }
    }

    /// Cuts the piece that has `at` in its middle.
    fn cut(&mut self, at: u64) {
        if let Some((_, piece)) = self.pieces.range_mut(..at).next_back().filter(|(_, p)| p.end > at) {
            let rest = Piece { end: piece.end, value: piece.value.clone() };
            piece.end = at;
            self.pieces.insert(at, rest);
        }
    }
}

/// Puts ranges in order and joins those that touch.
pub(super) fn merge(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.retain(|(start, end)| start < end);
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = vec![];
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// Does `start..end` overlap one of these ordered, disjoint ranges?
pub(super) fn overlaps(ranges: &[(u64, u64)], start: u64, end: u64) -> bool {
    let after = ranges.partition_point(|r| r.1 <= start);
    start < end && ranges.get(after).is_some_and(|r| r.0 < end)
}
