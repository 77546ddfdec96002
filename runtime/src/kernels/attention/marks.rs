//! Numbers of queries and keys that masks compare: documents, and positions.

use super::QUERIES;

/// A number for each of a block of queries, and for each key of the problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    /// [`QUERIES`] of them; those of queries that do not exist are like that of the last one.
    pub queries: *const i32,
    pub keys: *const i32,
    /// From one key to the next.
    pub stride: usize,
}

impl Marks {
    /// # Safety
    /// The problem has the key.
    #[inline(always)]
    pub unsafe fn of_key(&self, key: usize) -> i32 {
        // SAFETY: the caller's contract.
        unsafe { *self.keys.add(key * self.stride) }
    }

    /// The least and the largest distance from one of these keys to a query.
    ///
    /// # Safety
    /// The problem has the keys, of which there is at least one.
    pub unsafe fn distances(&self, keys: std::ops::Range<usize>) -> (i64, i64) {
        let span = |values: &mut dyn Iterator<Item = i32>| {
            values.fold((i64::MAX, i64::MIN), |(least, most), x| (least.min(x.into()), most.max(x.into())))
        };
        // SAFETY: the caller's contract.
        let queries = span(&mut (0..QUERIES).map(|t| unsafe { *self.queries.add(t) }));
        // SAFETY: the caller's contract.
        let keys = span(&mut keys.map(|u| unsafe { self.of_key(u) }));
        (queries.0 - keys.1, queries.1 - keys.0)
    }
}

/// The marks of a block of queries that there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marked {
    pub documents: Option<Marks>,
    pub positions: Option<Marks>,
}
