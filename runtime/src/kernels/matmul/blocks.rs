//! How C is cut into blocks, of which each is a task.

use super::MOST_COLUMNS;
use super::tile::Simd;
use std::ops::Range;

/// Largest sizes of a block: multiples of a tile's.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    rows: usize,
    columns: usize,
}

impl Cut {
    /// Blocks of at most so many rows and columns.
    pub fn new<S: Simd>(rows: usize, columns: usize) -> Cut {
        let cut = Cut { rows: rows / S::ROWS * S::ROWS, columns: columns / S::COLUMNS * S::COLUMNS };
        debug_assert!((1..=S::BLOCKING.rows).contains(&cut.rows) && (1..=MOST_COLUMNS).contains(&cut.columns));
        cut
    }

    /// How many blocks a C of this size has.
    pub fn blocks(self, m: usize, n: usize) -> usize {
        m.div_ceil(self.rows) * n.div_ceil(self.columns)
    }

    /// A block by number: its rows and columns, of even sizes, cut at tiles. All blocks of a band of rows follow each other, so that a worker has mostly the same rows as
    /// in the kernels before and after (the more evenly bands share blocks out, the more); among them those of the same columns, so that their panels stay in the cache.
    pub fn block<S: Simd>(self, number: usize, m: usize, n: usize, bands: usize) -> (Range<usize>, Range<usize>) {
        let (down, across) = (m.div_ceil(self.rows), n.div_ceil(self.columns));
        let bands = bands.min(down);
        let first_of = |band: usize| down * band / bands;
        // The last band that begins at or before the block.
        let band = (1..bands).rev().find(|&band| first_of(band) * across <= number).unwrap_or(0);
        let (first, height) = (first_of(band), first_of(band + 1) - first_of(band));
        let behind = number - first * across;
        let (row, column) = (first + behind % height, behind / height);
        let edge = |size: usize, tile: usize, i: usize, of: usize| size.min(size.div_ceil(tile) * i / of * tile);
        let rows = edge(m, S::ROWS, row, down)..edge(m, S::ROWS, row + 1, down);
        let columns = edge(n, S::COLUMNS, column, across)..edge(n, S::COLUMNS, column + 1, across);
        (rows, columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::matmul::portable::PortableF32;

    /// Every element is in one block, blocks are as large as the cut at most, and of two bands the first is the upper rows.
    #[test]
    fn blocks_cover_everything_once() {
        type S = PortableF32;
        for (m, n) in [(1, 1), (3, 500), (64, 64), (257, 33), (700, 1009), (1000, 100), (513, 2500)] {
            for (rows, columns) in [(256, 1008), (128, 480), (64, 192)] {
                let cut = Cut::new::<S>(rows, columns);
                for bands in [1, 2, 3, 7, 100] {
                    let mut seen = vec![0u8; m * n];
                    let (mut before, mut turns) = (0, 0);
                    for number in 0..cut.blocks(m, n) {
                        let (block_rows, block_columns) = cut.block::<S>(number, m, n, bands);
                        assert!((1..=rows).contains(&block_rows.len()), "{block_rows:?}");
                        assert!((1..=columns).contains(&block_columns.len()), "{block_columns:?}");
                        for row in block_rows.clone() {
                            seen[row * n..][block_columns.clone()].iter_mut().for_each(|times| *times += 1);
                        }
                        // Columns begin again with each band.
                        turns += usize::from(block_columns.start < before);
                        before = block_columns.start;
                        if bands == 2 && m.div_ceil(cut.rows) == 2 {
                            let upper = number < cut.blocks(m, n) / 2;
                            assert_eq!(upper, block_rows.start == 0, "block {number} of {m} × {n}: {block_rows:?}");
                        }
                    }
                    assert!(seen.iter().all(|&times| times == 1), "{m} × {n}, {rows} × {columns}, {bands} bands");
                    let wide = n.div_ceil(cut.columns) > 1;
                    assert_eq!(turns, if wide { bands.min(m.div_ceil(cut.rows)) - 1 } else { 0 });
                }
            }
        }
    }
}
