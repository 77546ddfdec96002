//! Memory in pieces: a map from disjoint ranges to what is known of them. All operations are logarithmic in the number of pieces, plus the pieces
//! touched, which are counted so that a caller can give up.

use std::collections::BTreeMap;

/// Disjoint ranges with a value each.
#[derive(Clone, Debug)]
pub struct Intervals<T> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Change {
        Set(u64, u64, u32),
        Add(u64, u64, u32),
        Fill(u64, u64, u32),
    }

    fn change() -> impl Strategy<Value = Change> {
        (0..3, 0..30u64, 0..12u64, 0..100u32).prop_map(|(kind, start, length, value)| match kind {
            0 => Change::Set(start, start + length, value),
            1 => Change::Add(start, start + length, value),
            _ => Change::Fill(start, start + length, value),
        })
    }

    proptest! {
        /// Against the same thing as an array.
        #[test]
        fn pieces_are_an_array(changes in prop::collection::vec(change(), 0..40), from in 0..40u64, length in 0..20u64) {
            let mut pieces = Intervals::default();
            let mut array = [None; 64];
            for change in changes {
                match change {
                    Change::Set(start, end, value) => {
                        pieces.set(start, end, value);
                        array[start as usize..end as usize].fill(Some(value));
                    }
                    Change::Add(start, end, value) => {
                        pieces.change(start, end, |v| *v += value);
                        array[start as usize..end as usize].iter_mut().flatten().for_each(|v| *v += value);
                    }
                    Change::Fill(start, end, value) => {
                        pieces.fill(start, end, &value);
                        array[start as usize..end as usize].iter_mut().for_each(|v| *v = v.or(Some(value)));
                    }
                }
            }
            let mut seen = vec![];
            pieces.scan(from, from + length, |start, end, value| {
                assert!(start < end);
                (start..end).for_each(|_| seen.push(value.copied()));
            });
            prop_assert_eq!(seen, array[from as usize..(from + length) as usize].to_vec());
        }
    }

    #[test]
    fn ranges_are_joined() {
        let merged = merge(vec![(5, 7), (0, 2), (2, 3), (6, 9), (4, 4)]);
        assert_eq!(merged, [(0, 3), (5, 9)]);
        let found: Vec<u64> = (0..10).filter(|i| overlaps(&merged, *i, i + 1)).collect();
        assert_eq!(found, [0, 1, 2, 5, 6, 7, 8]);
        assert!(!overlaps(&merged, 3, 5) && !overlaps(&merged, 6, 6) && overlaps(&merged, 3, 6));
    }
}
