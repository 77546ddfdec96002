//! The parts that a task works on, and where they are.

use super::problem::Piece;
use super::tile::Simd;
use std::ops::Range;

/// A task: a block of C.
pub(super) struct Task {
    pub piece: Piece,
    pub rows: Range<usize>,
    pub columns: Range<usize>,
}

/// A task's block of C, and the worker's memory for it.
pub(super) struct Block<'p, X, T> {
    pub piece: &'p Piece,
    pub rows: Range<usize>,
    pub columns: Range<usize>,
    /// The block's first element in C.
    pub c: *mut X,
    pub packed_a: *mut T,
    pub packed_b: *mut T,
    /// Sums that tiles do not write into C, and how far it is from one row of them to the next.
    pub sums: *mut T,
    pub sums_stride: usize,
    /// Are they those of a tile at a time, or of a panel, where chains are done one by one, which rounds them to C?
    pub brief: bool,
    /// How much of the summed dimension is done for a panel of B before the next panel: a chain, or all of them.
    pub span: usize,
    /// Do tiles write into C?
    pub straight: bool,
    /// Rows of a tile: tiles of even size beat full ones and a rest.
    pub tile_rows: usize,
}

impl<X, T> Block<'_, X, T> {
    /// Where the sums of a tile are: of one at this row and column of the block.
    pub fn place_of_sums<S: Simd>(&self, [row, column]: [usize; 2]) -> usize {
        match (self.brief, S::BLOCKING.chain_by_chain) {
            (false, _) => row * self.sums_stride + column,
            (true, true) => row * self.sums_stride,
            (true, false) => 0,
        }
    }

    /// How much of the summed dimension is done at once from `k` on.
    pub fn length<S: Simd>(&self, k: usize) -> usize {
        chained::<S>(self.piece, k).len()
    }
}

/// Rows of A for tiles, packed or where they are.
#[derive(Clone, Copy)]
pub(super) struct Rows<T> {
    pub a: *const T,
    /// From one row to the next.
    pub row: usize,
    /// From one product to the next.
    pub step: usize,
    /// From one tile's rows to the next one's.
    pub panel: usize,
}

/// Columns of B for tiles, packed or where they are.
#[derive(Clone, Copy)]
pub(super) struct Columns<T> {
    pub b: *const T,
    /// From one product to the next.
    pub step: usize,
    /// Are rows as long as tiles?
    pub padded: bool,
}

impl<T> Columns<T> {
    pub fn none() -> Columns<T> {
        Columns { b: std::ptr::null(), step: 0, padded: false }
    }
}

/// The products that are summed in one chain with the one at `first`, where a chain begins.
pub(super) fn chained<S: Simd>(piece: &Piece, first: usize) -> Range<usize> {
    first..(first + S::BLOCK_K).min(piece.depth())
}
