//! First fit: each interval in turn at the first place where nothing that was placed before is in its way.

use super::super::align;
use super::Interval;

/// A place, and when there is something: what lies at the same bytes at other times. Most of a step's intervals are the same bytes of one micro-batch after the other,
/// so that places are far fewer than intervals.
#[derive(Clone, Copy)]
struct Place {
    from: u64,
    to: u64,
    /// The first moment at which there is something, and the last.
    start: u32,
    end: u32,
    /// Where its lives are.
    lives: usize,
}

/// What was placed, in the order of its places, the lowest first.
///
/// To look for room is to go through all places until there is a gap: a few comparisons each, of memory that lies in a row, and a binary search where something is there before and
/// after.
#[derive(Default)]
struct Side {
    places: Vec<Place>,
    /// For each place when something is there, the first first; nothing is there twice.
    lives: Vec<Vec<(u32, u32)>>,
}

impl Side {
    /// The first place for so many bytes that is free during a life, and how many places were looked at.
    fn first_free(&self, life: Interval, bytes: u64) -> (u64, usize) {
        let mut from = 0;
        for (n, place) in self.places.iter().enumerate() {
            if self.is_taken(place, life) {
                if place.from >= from + bytes {
                    return (from, n);
                }
                from = from.max(place.to);
            }
        }
        (from, self.places.len())
    }

    fn is_taken(&self, place: &Place, life: Interval) -> bool {
        if place.start > life.end || life.start > place.end {
            return false;
        }
        let lives = &self.lives[place.lives];
        let next = lives.partition_point(|(_, end)| *end < life.start);
        lives.get(next).is_some_and(|(start, _)| *start <= life.end)
    }

    /// What is alive at the same moments as its neighbour below, such as the data of each micro-batch, which are many, becomes one with it.
    fn insert(&mut self, life: Interval, from: u64, bytes: u64) {
        let (start, end, to) = (life.start, life.end, from + bytes);
        let at = self.places.partition_point(|place| (place.from, place.to) < (from, to));
        if let Some(place) = self.places.get_mut(at).filter(|place| (place.from, place.to) == (from, to)) {
            (place.start, place.end) = (place.start.min(start), place.end.max(end));
            let lives = &mut self.lives[place.lives];
            lives.insert(lives.partition_point(|(before, _)| *before < start), (start, end));
            return;
        }
        match self.places[..at].last_mut() {
            Some(below) if below.to == from && self.lives[below.lives] == [(start, end)] => below.to = to,
            _ => {
                self.places.insert(at, Place { from, to, start, end, lives: self.lives.len() });
                self.lives.push(vec![(start, end)]);
            }
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
