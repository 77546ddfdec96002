//! Triangular systems of a few rows, by substitution.

use super::arrays::Rows;
use crate::kernels::matmul::tile::Simd;

/// Vectors of columns at a time: as many chains of multiply-adds, which do not wait for each other.
const VECTORS: usize = 4;

/// Adds to each of some rows the rows before it, times the row's factors. There are `columns` of them, whole vectors.
///
/// # Safety
/// The machine has the flavour's features; there are the rows, and a factor for each pair of them.
#[inline(always)]
pub(super) unsafe fn substitute<S: Simd>(count: usize, columns: usize, factors: Rows<S::T>, rows: Rows<S::T>) {
    let mut column = 0;
    // SAFETY: the caller's contract.
    unsafe {
        while column + VECTORS * S::LANES <= columns {
            vectors::<S, VECTORS>(count, factors, Rows { at: rows.at.add(column), ..rows });
            column += VECTORS * S::LANES;
        }
        while column < columns {
            vectors::<S, 1>(count, factors, Rows { at: rows.at.add(column), ..rows });
            column += S::LANES;
        }
    }
}

/// # Safety
/// As [`substitute`].
#[inline(always)]
unsafe fn vectors<S: Simd, const N: usize>(count: usize, factors: Rows<S::T>, rows: Rows<S::T>) {
    for t in 1..count {
        // SAFETY: the caller's contract.
        unsafe {
            let place = |row: usize, vector: usize| rows.at.add(row * rows.pitch + vector * S::LANES);
            let mut sums: [S::R; N] = std::array::from_fn(|i| S::load(place(t, i)));
            for s in 0..t {
                let factor = S::splat(factors.at.add(t * factors.pitch + s));
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = S::fma(factor, S::load(place(s, i)), *sum);
                }
            }
            for (i, sum) in sums.into_iter().enumerate() {
                S::store(place(t, i), sum);
            }
        }
    }
}
