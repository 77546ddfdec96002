//! First fit: each interval in turn at the first place where nothing that was placed before is in its way.

use super::super::align;
use super::Interval;

/// Where something lies, and when.
#[derive(Clone, Copy)]
struct Entry {
    start: u32,
    end: u32,
    from: u64,
    to: u64,
}

/// What was placed, in the order of its places, the lowest first.
///
/// To look for room is to go through all of them until there is a gap: a few comparisons each, of memory that lies in a row, which for the thousands of intervals of a
/// step is cheaper than to find those that are alive and to sort them.
#[derive(Default)]
struct Side(Vec<Entry>);

impl Side {
    /// The first place for so many bytes that is free during a life, and how many entries were looked at.
    fn first_free(&self, life: Interval, bytes: u64) -> (u64, usize) {
        let mut from = 0;
        for (n, entry) in self.0.iter().enumerate() {
            if entry.start <= life.end && life.start <= entry.end {
                if entry.from >= from + bytes {
                    return (from, n);
                }
                from = from.max(entry.to);
            }
        }
        (from, self.0.len())
    }

    /// What is alive at the same moments as its neighbour below, such as the data of each micro-batch, which are many, becomes one with it.
    fn insert(&mut self, life: Interval, from: u64, bytes: u64) {
        let (start, end, to) = (life.start, life.end, from + bytes);
        let at = self.0.partition_point(|entry| entry.from < from);
        match self.0[..at].last_mut() {
            Some(below) if (below.start, below.end, below.to) == (start, end, from) => below.to = to,
            _ => self.0.insert(at, Entry { start, end, from, to }),
        }
    }
}

/// What lives so briefly lies at the upper end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Above {
    /// Moments up to which a life is brief.
    pub life: u64,
    /// Bytes below which it lies, as long as there is room.
    pub limit: u64,
}

/// Each interval in turn at the lowest offset where nothing placed before is in its way, and how many entries were looked at for that. `above`: those that live briefly
/// at the highest one below a limit, where there is one.
pub fn first_fit(intervals: &[Interval], order: &[usize], above: Option<Above>) -> (Vec<u64>, u64) {
    let mut offsets = vec![0; intervals.len()];
    let mut looked_at = 0;
    // The second has all that lies below the limit, measured from there downwards.
    let (mut from_below, mut from_above) = (Side::default(), Side::default());
    for &i in order {
        let this = intervals[i];
        let bytes = align(this.bytes);
        if bytes == 0 {
            continue;
        }
        let downwards = above.filter(|above| this.life() <= above.life).and_then(|above| {
            let (down, looked) = from_above.first_free(this, bytes);
            looked_at += looked as u64;
            above.limit.checked_sub(down + bytes)
        });
        let from = downwards.unwrap_or_else(|| {
            let (from, looked) = from_below.first_free(this, bytes);
            looked_at += looked as u64;
            from
        });
        offsets[i] = from;
        looked_at += 1;
        from_below.insert(this, from, bytes);
        if let Some(above) = above.filter(|above| from < above.limit) {
            let down = above.limit.saturating_sub(from + bytes);
            from_above.insert(this, down, above.limit - from - down);
        }
    }
    (offsets, looked_at)
}
