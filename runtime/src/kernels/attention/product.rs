//! Products of small matrices by the tiles of the matrix product.

use crate::kernels::matmul::tile::{Simd, TileArgs};

/// Rows of a matrix: contiguous elements.
#[derive(Clone, Copy)]
pub(super) struct Rows<T> {
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
pub(super) struct Product<T> {
    pub rows: usize,
    pub columns: usize,
    /// How many products are summed.
    pub depth: usize,
    pub a: *const T,
    /// From one row of A to the next.
    pub a_row: usize,
    /// From one product to the next.
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
    /// Computes it. An element is one chain of fused multiply-adds, and one addition.
    ///
    /// # Safety
    /// The machine has the flavour's features; A, B and C have the elements.
    pub unsafe fn run<S: Simd<T = T>>(self) {
        let vectors = self.columns.div_ceil(S::LANES);
        // Panels and tiles of even sizes beat full ones and a rest.
        let panels = vectors.div_ceil(S::VECTORS);
        let tiles = self.rows.div_ceil(S::ROWS);
        for panel in 0..panels {
            let first = vectors * panel / panels * S::LANES;
            let end = (vectors * (panel + 1) / panels * S::LANES).min(self.columns);
            for tile in 0..tiles {
                let (row, next) = (self.rows * tile / tiles, self.rows * (tile + 1) / tiles);
                // SAFETY: the caller's contract; a panel has at most `VECTORS` vectors and a tile at most `ROWS` rows.
                unsafe {
                    S::tile(TileArgs {
                        rows: next - row,
                        columns: end - first,
                        depth: self.depth,
                        a: self.a.add(row * self.a_row),
                        a_row: self.a_row,
                        a_step: self.a_step,
                        b: self.b.at.add(first),
                        b_stride: self.b.row,
                        padded: false,
                        c: self.c.add(row * self.c_row + first),
                        c_stride: self.c_row,
                        add: self.add,
                        rounded: None,
                    });
                }
            }
        }
    }
}
