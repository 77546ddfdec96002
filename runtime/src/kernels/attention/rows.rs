//! Moving rows between arrays and the workspace.

use super::arrays::Array;
use super::softmax::Wide;
use super::{LANES, QUERIES};
use crate::kernels::cpu::by_cpu;
use crate::kernels::matmul::pack::PackArgs;
use crate::kernels::matmul::tile::{Simd, Source, fetch_run, prefetch_run};
use std::ops::Range;

/// Rows in an array: strides as there.
#[derive(Clone, Copy)]
pub(super) struct Strided<X> {
    pub at: *mut X,
    pub row: usize,
    pub step: usize,
}

impl<X> Strided<X> {
    /// Rows of an array from a place on.
    pub fn new(at: *mut X, array: &Array) -> Strided<X> {
        Strided { at, row: array.row, step: array.step }
    }

    /// From a row on.
    ///
    /// # Safety
    /// There is such a row.
    pub unsafe fn from(self, row: usize) -> Strided<X> {
        // SAFETY: the caller's contract.
        Strided { at: unsafe { self.at.add(row * self.row) }, ..self }
    }
}

/// Rows that are fetched ahead: heads lie side by side, so that a head's rows are far apart and no processor guesses the next one.
const AHEAD: usize = 8;

/// Fetches a row that will be read soon.
#[inline(always)]
fn prefetch<X>(from: Strided<X>, row: usize, size: usize) {
    prefetch_run(from.at.wrapping_add(row * from.row), size);
}

#[inline(always)]
unsafe fn widen_body<T: Wide, X: Source<T>>(from: Strided<X>, rows: usize, size: usize, to: *mut T) {
    for row in 0..rows {
        // SAFETY: the caller's contract.
        unsafe {
            prefetch(from, row + AHEAD, size);
            let (from, to, step) = (from.at.cast_const().add(row * from.row), to.add(row * size), from.step);
            if step == 1 {
                (0..size).for_each(|i| *to.add(i) = (*from.add(i)).widen());
            } else {
                (0..size).for_each(|i| *to.add(i) = (*from.add(i * step)).widen());
            }
        }
    }
}

by_cpu!(
    /// Copies rows side by side.
    ///
    /// # Safety
    /// The array has the rows, the place room for them.
    pub(super) unsafe fn widen / widen_body<T: Wide, X: Source<T>>(from: Strided<X>, rows: usize, size: usize, to: *mut T)
);

#[inline(always)]
unsafe fn copy_body<T: Wide, X: Source<T>>(from: Strided<X>, rows: usize, [size, row]: [usize; 2], to: *mut X) {
    for number in 0..rows {
        // SAFETY: the caller's contract.
        unsafe {
            prefetch(from, number + AHEAD, size);
            let (from, to, step) = (from.at.cast_const().add(number * from.row), to.add(number * row), from.step);
            if step == 1 {
                to.copy_from_nonoverlapping(from, size);
            } else {
                (0..size).for_each(|i| *to.add(i) = *from.add(i * step));
            }
            (size..row).for_each(|i| *to.add(i) = X::narrow(T::ZERO));
        }
    }
}

by_cpu!(
    /// Copies rows as they are stored, with zeros behind each that make it as long as asked for.
    ///
    /// # Safety
    /// The array has the rows, the place room for them.
    pub(super) unsafe fn copy / copy_body<T: Wide, X: Source<T>>(from: Strided<X>, rows: usize, sizes: [usize; 2], to: *mut X)
);

/// Turns at most [`QUERIES`] rows: words of element `d`, or of two that follow each other, of row t go to column t of a row of [`QUERIES`]; rows that are not there
/// are zeros.
///
/// # Safety
/// The machine has the flavour's features; the array has the rows, the place as many rows of [`QUERIES`] as there are words.
pub(super) unsafe fn turn<S: Simd<T: Wide>, X: Source<S::T>>(
    from: Strided<X>,
    [rows, size]: [usize; 2],
    to: *mut S::T,
) {
    let args = PackArgs {
        src: from.at.cast_const(),
        width: rows,
        depth: size,
        across: from.row,
        along: from.step,
        dst: to,
        panel: QUERIES,
        panels: 1,
        panel_step: 0,
        completes: false,
    };
    // SAFETY: the caller's contract.
    unsafe { S::pack(args) }
}

/// Makes words of rows that follow each other, as many as a word holds; rows of words are [`panel_row`] long.
///
/// # Safety
/// The machine has the flavour's features; the array has the rows, the place room for them.
pub(super) unsafe fn join<S: Simd<T: Wide>, X: Source<S::T>>(
    from: Strided<X>,
    [rows, size]: [usize; 2],
    to: *mut S::T,
) {
    let args = PackArgs {
        src: from.at.cast_const(),
        width: size,
        depth: rows,
        across: from.step,
        along: from.row,
        dst: to,
        panel: panel_row(size),
        panels: 1,
        panel_step: 0,
        completes: false,
    };
    // SAFETY: the caller's contract; the row of a panel is a multiple of the side of every flavour's squares.
    unsafe { S::pack(args) }
}

/// From one row of words to the next.
pub(super) fn panel_row(size: usize) -> usize {
    size.next_multiple_of(LANES)
}

/// Fetches a part of some rows, one of so many, for what reads them later. Rows need not exist.
#[inline(always)]
pub(super) fn fetch<X>(from: Strided<X>, size: usize, rows: &Range<usize>, (part, parts): (usize, usize)) {
    if from.step != 1 {
        return;
    }
    for row in rows.start + rows.len() * part / parts..rows.start + rows.len() * (part + 1) / parts {
        fetch_run(from.at.wrapping_add(row * from.row), size);
    }
}

#[inline(always)]
unsafe fn scale_body<T: Wide>(x: *mut T, n: usize, factor: T) {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(x, n) }.iter_mut().for_each(|x| *x = x.times(factor));
}

#[inline(always)]
unsafe fn scale_rows_body<T: Wide>(x: *mut T, rows: usize, size: usize, factors: *const T) {
    for row in 0..rows {
        // SAFETY: the caller's contract.
        unsafe {
            let factor = *factors.add(row);
            // Most maxima do not move; the product would change no bit.
            if factor != T::ONE {
                scale_body(x.add(row * size), size, factor);
            }
        }
    }
}

by_cpu!(
    /// Multiplies each row by a factor of its own.
    ///
    /// # Safety
    /// There are as many rows, and factors.
    pub(super) unsafe fn scale_rows / scale_rows_body<T: Wide>(x: *mut T, rows: usize, size: usize, factors: *const T)
);

#[inline(always)]
unsafe fn store_body<T: Wide, X: Source<T>>(from: *const T, rows: usize, size: usize, factor: T, to: Strided<X>) {
    for row in 0..rows {
        // SAFETY: the caller's contract.
        unsafe {
            let (from, to, step) = (from.add(row * size), to.at.add(row * to.row), to.step);
            if step == 1 {
                (0..size).for_each(|i| *to.add(i) = X::narrow((*from.add(i)).times(factor)));
            } else {
                (0..size).for_each(|i| *to.add(i * step) = X::narrow((*from.add(i)).times(factor)));
            }
        }
    }
}

by_cpu!(
    /// Writes rows times a factor to an array, rounded.
    ///
    /// # Safety
    /// The array has the rows, and nobody else touches them.
    pub(super) unsafe fn store / store_body<T: Wide, X: Source<T>>(from: *const T, rows: usize, size: usize, factor: T, to: Strided<X>)
);

#[inline(always)]
unsafe fn dots_body<T: Wide, X: Source<T>>(a: Strided<X>, b: Strided<X>, rows: usize, size: usize, to: *mut T) {
    for row in 0..rows {
        // SAFETY: the caller's contract.
        unsafe {
            prefetch(a, row + AHEAD, size);
            prefetch(b, row + AHEAD, size);
            let (x, y) = (a.at.cast_const().add(row * a.row), b.at.cast_const().add(row * b.row));
            *to.add(row) =
                if (a.step, b.step) == (1, 1) { dot(x, y, size, (1, 1)) } else { dot(x, y, size, (a.step, b.step)) };
        }
    }
}

#[inline(always)]
unsafe fn dot<T: Wide, X: Source<T>>(x: *const X, y: *const X, size: usize, steps: (usize, usize)) -> T {
    let mut sums = [T::ZERO; DOT];
    // SAFETY: the caller's contract.
    let term = |i: usize| unsafe { (*x.add(i * steps.0)).widen().times((*y.add(i * steps.1)).widen()) };
    let whole = size / DOT * DOT;
    for first in (0..whole).step_by(DOT) {
        (0..DOT).for_each(|i| sums[i] = sums[i].plus(term(first + i)));
    }
    for i in whole..size {
        sums[i - whole] = sums[i - whole].plus(term(i));
    }
    let mut width = DOT / 2;
    while width > 0 {
        (0..width).for_each(|i| sums[i] = sums[i].plus(sums[i + width]));
        width /= 2;
    }
    sums[0]
}

/// Sums side by side in a dot product.
const DOT: usize = 16;

by_cpu!(
    /// The dot product of each row of two arrays.
    ///
    /// # Safety
    /// The arrays have the rows, the result room.
    pub(super) unsafe fn dots / dots_body<T: Wide, X: Source<T>>(a: Strided<X>, b: Strided<X>, rows: usize, size: usize, to: *mut T)
);
