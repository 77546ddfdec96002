//! What is fetched while tiles multiply: what is packed next, what of C is added to or stored behind them, and what an epilogue reads and writes beside C. Tiles wait for nothing; reading at the pace
//! of packing, or of an epilogue, would wait for each line.

use super::tile::fetch_run;
use crate::kernels::region::Stream;
use std::ops::Range;

/// Runs of values.
#[derive(Clone, Copy)]
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

/// Streams that are fetched at most.
const MOST: usize = 8;

/// What an epilogue reads and writes beside C.
pub(super) struct Beside {
    streams: [Stream; MOST],
    count: usize,
    /// Elements of a row of the epilogue's region.
    columns: usize,
}

impl Beside {
    pub fn nothing() -> Beside {
        Beside { streams: [Stream { at: std::ptr::null(), bytes: 0, row: 0 }; MOST], count: 0, columns: 1 }
    }

    /// Streams of a region whose rows have so many elements: each once, without that of C.
    pub fn new(streams: impl Iterator<Item = Stream>, c: *const u8, columns: usize) -> Beside {
        let mut beside = Beside { columns, ..Beside::nothing() };
        for stream in streams {
            let known = stream.at == c || beside.streams().contains(&stream);
            if !known && beside.count < MOST {
                beside.streams[beside.count] = stream;
                beside.count += 1;
            }
        }
        beside
    }

    fn streams(&self) -> &[Stream] {
        &self.streams[..self.count]
    }

    /// What goes with a block of C, so many rows and columns from element `first` on: a run for each row. Nothing where those are not rows of the region.
    pub fn of_block(&self, first: usize, [rows, columns]: [usize; 2], row_stride: usize) -> BesideBlock {
        let mut block = BesideBlock { streams: [Upcoming::none(); MOST], count: 0 };
        if self.count > 0 && row_stride == self.columns {
            let (row, column) = (first / self.columns, first % self.columns);
            for (upcoming, stream) in block.streams.iter_mut().zip(self.streams()) {
                let at = stream.at.wrapping_add(row * stream.row + column * stream.bytes);
                *upcoming = Upcoming { at, runs: rows, stride: stream.row, length: columns * stream.bytes };
            }
            block.count = self.count;
        }
        block
    }
}

/// The part of [`Beside`] that goes with a block.
pub(super) struct BesideBlock {
    streams: [Upcoming<u8>; MOST],
    count: usize,
}

impl BesideBlock {
    /// Fetches some of the rows.
    #[inline(always)]
    pub fn fetch(&self, rows: Range<usize>) {
        self.streams[..self.count].iter().for_each(|stream| stream.fetch(rows.clone()));
    }
}

#[cfg(test)]
mod tests {
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

    /// C and what is there already are left out, and what there is no room for; blocks are found in the region's rows.
    #[test]
    fn streams_of_a_block() {
        let memory = [0u8; 4096];
        let at = |byte: usize| memory[byte..].as_ptr();
        let stream = |byte: usize| Stream { at: at(byte), bytes: 4, row: 64 };
        let beside = Beside::new([0, 1024, 2048, 1024].into_iter().map(stream), at(0), 16);
        assert!(beside.streams() == [stream(1024), stream(2048)]);
        let block = beside.of_block(2 * 16 + 3, [5, 6], 16);
        let Upcoming { at: first, runs, stride, length } = block.streams[0];
        assert_eq!((block.count, first), (2, at(1024 + 2 * 64 + 3 * 4)));
        assert_eq!((runs, stride, length), (5, 64, 24));
        assert_eq!(beside.of_block(0, [5, 6], 8).count, 0, "rows of the product that are parts of the region's");
        assert_eq!(Beside::new((1..12).map(|i| stream(i * 256)), at(0), 16).count, MOST);
        assert_eq!(Beside::nothing().of_block(5, [5, 6], 16).count, 0);
    }
}
