//! What is fetched while tiles multiply: what is read next, to be packed or where it is, and what of C is added to or stored behind them. Tiles wait for nothing; reading
//! at the pace of packing would wait for each line.

use super::tile::fetch_run;
use std::ops::Range;

/// Runs of values.
pub(super) struct Upcoming<X> {
    pub at: *const X,
    pub runs: usize,
    /// From one run to the next.
    pub stride: usize,
    /// Values of a run.
    pub length: usize,
}

impl<X> Upcoming<X> {
    pub fn none() -> Upcoming<X> {
        Upcoming { at: std::ptr::null(), runs: 0, stride: 0, length: 0 }
    }

    /// Fetches some of the runs.
    #[inline(always)]
    pub fn fetch(&self, runs: Range<usize>) {
        for run in runs {
            fetch_run(self.at.wrapping_add(run * self.stride), self.length);
        }
    }
}

/// Shares runs out among turns, as evenly as may be. A tile is a turn, which has no time for divisions.
pub(super) struct Turns {
    next: usize,
    runs: usize,
    /// How much of the next run is due: a run is `turns`.
    due: usize,
    turns: usize,
}

impl Turns {
    /// So many runs in so many turns, of which those before `first` have been taken.
    pub fn new(runs: usize, first: usize, turns: usize) -> Turns {
        Turns { next: runs * first / turns, runs, due: runs * first % turns, turns }
    }

    /// The runs of the next turn.
    #[inline(always)]
    pub fn take(&mut self) -> Range<usize> {
        let first = self.next;
        self.due += self.runs;
        while self.due >= self.turns {
            self.due -= self.turns;
            self.next += 1;
        }
        first..self.next
    }
}

#[cfg(test)]
mod tests {
    use super::super::tile::{CACHE_LINE, lines};
    use super::*;

    /// Each run has a turn, in order, and each turn its share, wherever it is begun.
    #[test]
    fn turns_share_out_all_runs() {
        for (runs, turns) in [(0, 1), (1, 3), (7, 3), (256, 16), (1000, 7), (5, 5), (256, 352)] {
            let shares = |first: usize| {
                let mut taken = Turns::new(runs, first, turns);
                (first..turns).map(move |_| taken.take()).collect::<Vec<_>>()
            };
            let all = shares(0);
            assert!(all.iter().cloned().flatten().eq(0..runs), "{runs} runs in {turns} turns: {all:?}");
            assert!(all.iter().all(|share| share.len() <= runs.div_ceil(turns)), "{all:?}");
            for first in 1..turns {
                assert_eq!(shares(first), all[first..], "{runs} runs in {turns} turns, from {first} on");
            }
        }
    }

    /// Wherever a run begins, and no others.
    #[test]
    fn all_lines_of_a_run_are_fetched() {
        for (offset, n) in (0..64).flat_map(|offset| (0..200).map(move |n| (offset, n))) {
            let at = std::ptr::without_provenance::<u8>(4096 + offset);
            let fetched = std::cell::RefCell::new(vec![]);
            lines(at, n, |line| fetched.borrow_mut().push(line.addr() / CACHE_LINE));
            let wanted: Vec<usize> = match n {
                0 => vec![],
                n => (at.addr() / CACHE_LINE..=(at.addr() + n - 1) / CACHE_LINE).collect(),
            };
            let mut fetched = fetched.into_inner();
            fetched.dedup();
            assert_eq!(fetched, wanted, "{n} bytes from {offset} on");
        }
    }
}
