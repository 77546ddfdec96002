//! Products of small matrices, where they are.

use super::tile::{Simd, TileArgs};

/// Rows of a matrix: contiguous elements.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Rows<T> {
    pub at: *const T,
    /// From one row to the next.
    pub row: usize,
}

impl<T> Rows<T> {
    /// From a row on.
    ///
    /// # Safety
    /// There is such a row.
    pub unsafe fn from(self, row: usize) -> Rows<T> {
        // SAFETY: the caller's contract.
        Rows { at: unsafe { self.at.add(row * self.row) }, row: self.row }
    }
}

/// `C (+)= A·B`.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Product<T> {
    pub rows: usize,
    pub columns: usize,
    /// How many words are summed.
    pub depth: usize,
    pub a: *const T,
    /// From one row of A to the next.
    pub a_row: usize,
    /// From one word to the next.
    pub a_step: usize,
    /// Rows of B.
    pub b: Rows<T>,
    pub c: *mut T,
    /// From one row of C to the next.
    pub c_row: usize,
    /// Add to C instead of replacing it.
    pub add: bool,
}

impl<T> Product<T> {
    /// Computes it. An element is one chain of fused multiply-adds, and one addition; or, in tiles, one chain of sums of an instruction each, from what is in C on.
    ///
    /// # Safety
    /// The machine has the flavour's features; A, B and C have the elements.
    pub unsafe fn run<S: Simd<T = T>>(self) {
        // SAFETY: the caller's contract.
        unsafe { S::product(self) }
    }

    /// The same with the tiles of packed products.
    ///
    /// # Safety
    /// As [`Product::run`].
    pub(super) unsafe fn by_tiles<S: Simd<T = T>>(self) {
        let vectors = self.columns.div_ceil(S::LANES);
        // Panels and tiles of even sizes beat full ones and a rest.
        let panels = vectors.div_ceil(S::VECTORS);
        let tiles = self.rows.div_ceil(S::ROWS);
        let most = self.rows.div_ceil(tiles);
        // Tiles of as many rows, and tiles of one less.
        let full = self.rows - (most - 1) * tiles;
        for panel in 0..panels {
            let first = vectors * panel / panels * S::LANES;
            let end = (vectors * (panel + 1) / panels * S::LANES).min(self.columns);
            let run = |rows: usize, row: usize, count: usize| {
                let args = TileArgs {
                    rows,
                    columns: end - first,
                    depth: self.depth,
                    // SAFETY: the caller's contract.
                    a: unsafe { self.a.add(row * self.a_row) },
                    a_row: self.a_row,
                    a_step: self.a_step,
                    // SAFETY: as above.
                    b: unsafe { self.b.at.add(first) },
                    b_stride: self.b.row,
                    padded: false,
                    // SAFETY: as above.
                    c: unsafe { self.c.add(row * self.c_row + first) },
                    c_stride: self.c_row,
                    add: self.add,
                    rounded: None,
                    turned: false,
                    count,
                    a_next: rows * self.a_row,
                    c_next: rows * self.c_row,
                };
                // SAFETY: as above; a panel has at most `VECTORS` vectors and a tile at most `ROWS` rows.
                unsafe { S::tile(&args) };
            };
            run(most, 0, full);
            if full < tiles {
                run(most - 1, full * most, tiles - full);
            }
        }
    }
}
