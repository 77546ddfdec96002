//! Copies of A and B in the order in which tiles read them, and the way of sums to C when a tile cannot write there itself.

use super::tile::{A_WIDTH, Simd, Source, prefetch_run};

/// Rows that are fetched ahead: they are so far apart that no processor guesses the next one.
pub(super) const AHEAD: usize = 8;

/// What is packed: element `(i, p)` of the source is at `src + i·across + p·along`, and goes to `dst[p·panel + i]`.
pub(in crate::kernels) struct PackArgs<X, T> {
    pub src: *const X,
    /// Elements of a panel's row that exist; the others become zero.
    pub width: usize,
    /// Rows of the panel: along the summed dimension.
    pub depth: usize,
    pub across: usize,
    pub along: usize,
    pub dst: *mut T,
    /// Elements of a panel's row: a multiple of the flavour's `TRANSPOSE`.
    pub panel: usize,
    /// How many panels: each has the `width` elements after those of the one before it.
    pub panels: usize,
    /// From one panel's place to the next one's.
    pub panel_step: usize,
    /// Where words hold pairs: does the first product complete the first word?
    pub completes: bool,
}

impl<X, T> Clone for PackArgs<X, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X, T> Copy for PackArgs<X, T> {}

/// Panels that are packed side by side: rows of A that lie across share cache lines, which would be gone from the cache when the next panel is packed
/// after the first.
pub(super) const SIDE_BY_SIDE: usize = 4;

/// Packs panels.
///
/// # Safety
/// The source has the elements, each panel's place `depth · panel`; the machine has the flavour's features.
#[inline(always)]
pub(super) unsafe fn pack_panel<S: Simd, X: Source<S::T>>(args: PackArgs<X, S::T>) {
    let fits = args.across == 1 && args.width == A_WIDTH && args.panel == A_WIDTH;
    // SAFETY: the caller's contract.
    unsafe {
        if S::PAIR == 2 {
            return super::pairs::pack_panel::<S, X>(args);
        }
        if fits && args.panels == SIDE_BY_SIDE {
            return rows_side_by_side::<S, X>(args);
        }
        for i in 0..args.panels {
            let (src, dst) = (args.src.add(i * args.width * args.across), args.dst.add(i * args.panel_step));
            one_panel::<S, X>(PackArgs { src, dst, ..args });
        }
    }
}

#[inline(always)]
unsafe fn one_panel<S: Simd, X: Source<S::T>>(args: PackArgs<X, S::T>) {
    // SAFETY: the caller's contract.
    unsafe {
        if args.across == 1 {
            rows_of_panel::<S, X>(args);
        } else if args.along == 1 {
            squares::<S, X>(args);
        } else {
            one_by_one::<S, X>(args);
        }
    }
}

/// Full panels of A whose rows lie across.
#[inline(always)]
unsafe fn rows_side_by_side<S: Simd, X: Source<S::T>>(args: PackArgs<X, S::T>) {
    for p in 0..args.depth {
        for i in 0..SIDE_BY_SIDE {
            // SAFETY: the caller's contract.
            unsafe {
                let src = args.src.add(p * args.along + i * A_WIDTH);
                widen_row::<S, X, A_WIDTH>(src, args.dst.add(i * args.panel_step + p * A_WIDTH));
            }
        }
    }
}

/// The source is contiguous across the panel: copy row by row.
#[inline(always)]
unsafe fn rows_of_panel<S: Simd, X: Source<S::T>>(args: PackArgs<X, S::T>) {
    for p in 0..args.depth {
        // SAFETY: the caller's contract.
        unsafe {
            let (src, dst) = (args.src.add(p * args.along), args.dst.add(p * args.panel));
            prefetch_run(src.wrapping_add(AHEAD * args.along), args.width);
            let whole = args.width / A_WIDTH * A_WIDTH;
            for i in (0..whole).step_by(A_WIDTH) {
                widen_row::<S, X, A_WIDTH>(src.add(i), dst.add(i));
            }
            widen_run::<S, X>(src.add(whole), dst.add(whole), args.width - whole);
            zero(dst.add(args.width), args.panel - args.width);
        }
    }
}

/// The source is contiguous along the panel: transpose squares.
#[inline(always)]
unsafe fn squares<S: Simd, X: Source<S::T>>(args: PackArgs<X, S::T>) {
    let side = S::TRANSPOSE;
    let whole = args.depth / side * side;
    let mut first = 0;
    while first < args.panel {
        let rows = args.width.saturating_sub(first).min(side);
        // SAFETY: `first + side ≤ panel`, since the side divides it; sources are read for `rows` rows and `depth` columns only.
        unsafe {
            let (src, dst) = (args.src.wrapping_add(first * args.across), args.dst.add(first));
            let twice = if X::PLAIN && rows == side { whole / (2 * side) * (2 * side) } else { 0 };
            for p in (0..twice).step_by(2 * side) {
                S::transpose_two(src.add(p).cast(), args.across, dst.add(p * args.panel), args.panel);
            }
            for p in (twice..whole).step_by(side) {
                square::<S, X>(src.wrapping_add(p), args.across, rows, dst.add(p * args.panel), args.panel);
            }
            for p in whole..args.depth {
                for i in 0..side {
                    let value = if i < rows { (*src.add(i * args.across + p)).widen() } else { S::T::default() };
                    *dst.add(p * args.panel + i) = value;
                }
            }
        }
        first += side;
    }
}

#[inline(always)]
unsafe fn square<S: Simd, X: Source<S::T>>(src: *const X, stride: usize, rows: usize, dst: *mut S::T, width: usize) {
    // SAFETY: the caller's contract: `rows` rows of `TRANSPOSE` values.
    unsafe {
        if X::PLAIN {
            S::transpose(src.cast::<S::T>(), stride, rows, dst, width);
        } else {
            let mut wide = [S::T::default(); 256];
            for i in 0..rows {
                widen_run::<S, X>(src.add(i * stride), wide.as_mut_ptr().add(i * S::TRANSPOSE), S::TRANSPOSE);
            }
            S::transpose(wide.as_ptr(), S::TRANSPOSE, rows, dst, width);
        }
    }
}

#[inline(always)]
unsafe fn one_by_one<S: Simd, X: Source<S::T>>(args: PackArgs<X, S::T>) {
    for p in 0..args.depth {
        for i in 0..args.panel {
            // SAFETY: the caller's contract.
            unsafe {
                let value = if i < args.width {
                    (*args.src.add(i * args.across + p * args.along)).widen()
                } else {
                    S::T::default()
                };
                *args.dst.add(p * args.panel + i) = value;
            }
        }
    }
}

/// All are read before the first is written, which makes them one vector.
#[inline(always)]
unsafe fn widen_row<S: Simd, X: Source<S::T>, const N: usize>(src: *const X, dst: *mut S::T) {
    // SAFETY: the caller's contract.
    unsafe {
        let row: [S::T; N] = std::array::from_fn(|i| (*src.add(i)).widen());
        dst.cast::<[S::T; N]>().write_unaligned(row);
    }
}

#[inline(always)]
unsafe fn widen_run<S: Simd, X: Source<S::T>>(src: *const X, dst: *mut S::T, n: usize) {
    for i in 0..n {
        // SAFETY: the caller's contract.
        unsafe { *dst.add(i) = (*src.add(i)).widen() };
    }
}

#[inline(always)]
unsafe fn zero<T: Default>(dst: *mut T, n: usize) {
    for i in 0..n {
        // SAFETY: the caller's contract.
        unsafe { *dst.add(i) = T::default() };
    }
}

/// A block of sums and where it goes.
pub(in crate::kernels) struct FinishArgs<X, T> {
    pub sums: *const T,
    /// From one row of sums to the next.
    pub stride: usize,
    pub rows: usize,
    pub columns: usize,
    pub c: *mut X,
    /// Strides of C.
    pub row_stride: usize,
    pub column_stride: usize,
    /// Add to C instead of replacing it.
    pub add: bool,
}

/// Stores or adds a block of sums, each rounded once.
///
/// # Safety
/// The arrays have the elements; the machine has the flavour's features.
#[inline(always)]
pub(super) unsafe fn finish_block<S: Simd, X: Source<S::T>>(args: FinishArgs<X, S::T>) {
    for i in 0..args.rows {
        // SAFETY: the caller's contract.
        unsafe {
            let (sums, c) = (args.sums.add(i * args.stride), args.c.add(i * args.row_stride));
            if args.column_stride == 1 {
                prefetch_run(c.wrapping_add(AHEAD * args.row_stride), args.columns);
            }
            if args.column_stride != 1 {
                for j in 0..args.columns {
                    let (sum, c) = (*sums.add(j), c.add(j * args.column_stride));
                    *c = X::narrow(if args.add { (*c).widen() + sum } else { sum });
                }
            } else if args.add {
                for j in 0..args.columns {
                    *c.add(j) = X::narrow((*c.add(j)).widen() + *sums.add(j));
                }
            } else {
                for j in 0..args.columns {
                    *c.add(j) = X::narrow(*sums.add(j));
                }
            }
        }
    }
}
