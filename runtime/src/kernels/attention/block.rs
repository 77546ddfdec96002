//! Which scores of a block are visible.

use super::arrays::Inputs;
use super::marks::{Marked, Marks};
use super::{KEYS, LANES, QUERIES};
use std::ops::Range;

/// Groups of [`LANES`] keys in a block.
const GROUPS: usize = KEYS / LANES;

/// A block of scores: keys `key..key + keys` by queries, counted from the block's first one.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// The first key.
    pub key: usize,
    /// Keys; the last block of all may have fewer than [`KEYS`].
    pub keys: usize,
    /// The first query.
    query: usize,
    /// Queries, and up to a multiple of [`LANES`] more that do not exist.
    width: usize,
    /// Do positions count along queries and keys, so that a mask is a matter of their numbers?
    causal: bool,
    window: usize,
    /// Is there anything in it that may not be visible?
    masked: bool,
    /// For each group of keys the queries that may see one of them, in steps of [`LANES`].
    seen: [(usize, usize); GROUPS],
    /// Where documents have to be compared.
    pub documents: Option<Marks>,
    /// Where positions have to be compared.
    pub positions: Option<Marks>,
    /// The least and the largest distance at which a query sees a key.
    pub distances: (i64, i64),
}

impl Block {
    /// The block of so many queries from `query` on and of keys number `number`; nothing, if no position of the ones may be seen from the others.
    ///
    /// # Safety
    /// The marks are those of the queries and of all keys.
    pub unsafe fn new(inputs: &Inputs, number: usize, query: usize, queries: usize, marked: &Marked) -> Option<Block> {
        let key = number * KEYS;
        let keys = (inputs.keys - key).min(KEYS);
        let width = queries.next_multiple_of(LANES);
        let counted = marked.positions.is_none();
        let (causal, window) = (inputs.causal && counted, if counted { inputs.window } else { 0 });
        let least = if inputs.causal { 0 } else { i64::MIN };
        let most = if inputs.window > 0 { inputs.window as i64 - 1 } else { i64::MAX };
        let mut positions = None;
        if let Some(marks) = marked.positions {
            // SAFETY: the caller's contract.
            let here = unsafe { marks.distances(key..key + keys) };
            if here.1 < least || here.0 > most {
                return None;
            }
            positions = Some(marks).filter(|_| here.0 < least || here.1 > most);
        }
        let mut block = Block {
            key,
            keys,
            query,
            width,
            causal,
            window,
            masked: false,
            seen: [(0, width); GROUPS],
            documents: marked.documents,
            positions,
            distances: (least, most),
        };
        let first = block.visible(keys - 1).0;
        let end = block.visible(0).1;
        let cut = first > 0 || end < queries as i32;
        block.masked = cut || block.documents.is_some() || block.positions.is_some();
        if cut {
            for group in 0..keys.div_ceil(LANES) {
                let last = ((group + 1) * LANES).min(keys) - 1;
                let (first, end) = (block.visible(group * LANES).0 as usize, block.visible(last).1 as usize);
                let (first, end) = (first / LANES * LANES, end.next_multiple_of(LANES).min(width));
                block.seen[group] = (first.min(end), end);
            }
        }
        Some(block)
    }

    /// The queries that may see a key of the block: `first..end`, what marks say aside.
    #[inline(always)]
    pub fn visible(&self, key: usize) -> (i32, i32) {
        let key = self.key + key;
        let from = |position: usize| position.saturating_sub(self.query).min(QUERIES) as i32;
        let first = if self.causal { from(key) } else { 0 };
        let end = if self.window > 0 { from(key + self.window) } else { QUERIES as i32 };
        (first, end)
    }

    /// May some query of `first..first + LANES` not see the key?
    #[inline(always)]
    pub fn hides(&self, key: usize, first: usize) -> bool {
        if !self.masked {
            return false;
        }
        let (start, end) = self.visible(key);
        let cut = start > first as i32 || end < (first + LANES) as i32;
        cut || self.documents.is_some() || self.positions.is_some()
    }

    /// Calls `run(keys, queries)` for groups of keys and the queries that may see them.
    pub fn spans(&self, mut run: impl FnMut(Range<usize>, Range<usize>)) {
        let mut group = 0;
        let groups = self.keys.div_ceil(LANES);
        while group < groups {
            let seen = self.seen[group];
            let first = group;
            while group < groups && self.seen[group] == seen {
                group += 1;
            }
            if seen.0 < seen.1 {
                run(first * LANES..(group * LANES).min(self.keys), seen.0..seen.1);
            }
        }
    }

    /// The keys that some query of `first..first + LANES` may see.
    #[inline(always)]
    pub fn seen_by(&self, first: usize) -> Range<usize> {
        let groups = self.keys.div_ceil(LANES);
        let sees = |group: &usize| (self.seen[*group].0..self.seen[*group].1).contains(&first);
        // What a causal mask or a window leaves is one run.
        let start = (0..groups).find(sees).unwrap_or(groups);
        let end = (start..groups).rev().find(sees).map_or(start, |last| last + 1);
        (start * LANES).min(self.keys)..(end * LANES).min(self.keys)
    }

    /// Calls `run(queries, keys)` for groups of queries that see the same keys; queries may be some more than there are.
    pub fn columns(&self, mut run: impl FnMut(Range<usize>, Range<usize>)) {
        let mut first = 0;
        while first < self.width {
            let keys = self.seen_by(first);
            let mut end = first + LANES;
            while end < self.width && self.seen_by(end) == keys {
                end += LANES;
            }
            if !keys.is_empty() {
                run(first..end, keys);
            }
            first = end;
        }
    }

    /// The first queries of all groups of [`LANES`].
    pub fn groups(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.width).step_by(LANES)
    }
}
