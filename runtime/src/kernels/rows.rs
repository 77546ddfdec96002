//! Reductions of contiguous rows, in an order that depends on the row's length alone.
//!
//! ```text
//! row    = chunks of CHUNK elements; their results are combined one after another
//! chunk  : element i goes to lane i mod LANES, lanes are folded in halves
//! LANES  = 64; 16 for rows below 256 elements; below 16, the power of two that holds them
//! ```
//!
//! A maximum or minimum is NaN when any element is.

use super::cpu::by_cpu;
use super::math;
use forebay_plan::ReduceOp;

/// Elements that are reduced on their own; whoever feeds a row in parts cuts it at multiples of this.
pub(crate) const CHUNK: usize = 1024;
/// Rows below this length use fewer lanes.
const SHORT: usize = 256;

/// What rows consist of.
pub(crate) trait Number: Copy + PartialOrd + 'static {
    const ZERO: Self;
    const LEAST: Self;
    const MOST: Self;
    /// The sum; of integers it wraps around.
    fn plus(self, other: Self) -> Self;
}

impl Number for f32 {
    const ZERO: f32 = 0.0;
    const LEAST: f32 = f32::NEG_INFINITY;
    const MOST: f32 = f32::INFINITY;
    #[inline(always)]
    fn plus(self, other: f32) -> f32 {
        self + other
    }
}

impl Number for f64 {
    const ZERO: f64 = 0.0;
    const LEAST: f64 = f64::NEG_INFINITY;
    const MOST: f64 = f64::INFINITY;
    #[inline(always)]
    fn plus(self, other: f64) -> f64 {
        self + other
    }
}

impl Number for i32 {
    const ZERO: i32 = 0;
    const LEAST: i32 = i32::MIN;
    const MOST: i32 = i32::MAX;
    #[inline(always)]
    fn plus(self, other: i32) -> i32 {
        self.wrapping_add(other)
    }
}

/// What a reduction of nothing gives.
#[inline(always)]
pub(crate) fn identity<T: Number>(op: ReduceOp) -> T {
    match op {
        ReduceOp::Sum => T::ZERO,
        ReduceOp::Max => T::LEAST,
        ReduceOp::Min => T::MOST,
    }
}

/// Two results as one.
#[inline(always)]
pub(crate) fn combine<T: Number>(op: ReduceOp, a: T, b: T) -> T {
    match op {
        ReduceOp::Sum => a.plus(b),
        ReduceOp::Max => math::max(a, b),
        ReduceOp::Min => math::min(a, b),
    }
}

#[inline(always)]
fn lanes<T: Number, const LANES: usize>(x: &[T], start: T, f: impl Fn(T, T) -> T) -> T {
    let mut acc = [start; LANES];
    let mut whole = x.chunks_exact(LANES);
    for part in &mut whole {
        let part: &[T; LANES] = part.try_into().expect("parts are whole");
        for l in 0..LANES {
            acc[l] = f(acc[l], part[l]);
        }
    }
    for (acc, &x) in acc.iter_mut().zip(whole.remainder()) {
        *acc = f(*acc, x);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            acc[l] = f(acc[l], acc[l + width]);
        }
        width /= 2;
    }
    acc[0]
}

/// How many lanes a row of a length has: a power of two up to 16, or 64.
#[inline(always)]
pub(crate) fn lane_count(length: usize) -> usize {
    if length < SHORT { length.next_power_of_two().min(16) } else { 64 }
}

#[inline(always)]
fn chunk<T: Number>(x: &[T], length: usize, start: T, f: impl Fn(T, T) -> T) -> T {
    match lane_count(length) {
        1 => lanes::<T, 1>(x, start, f),
        2 => lanes::<T, 2>(x, start, f),
        4 => lanes::<T, 4>(x, start, f),
        8 => lanes::<T, 8>(x, start, f),
        16 => lanes::<T, 16>(x, start, f),
        _ => lanes::<T, 64>(x, start, f),
    }
}

#[inline(always)]
fn fold<T: Number>(x: &[T], length: usize, so_far: T, start: T, f: impl Fn(T, T) -> T + Copy) -> T {
    if length <= CHUNK {
        return f(so_far, chunk(x, length, start, f));
    }
    x.chunks(CHUNK).fold(so_far, |acc, part| f(acc, chunk(part, length, start, f)))
}

/// A part of a row added to the result of the parts before it ([`identity`] at first). `length` is that of the whole row; parts are cut at multiples of [`CHUNK`].
#[inline(always)]
pub(crate) fn reduce<T: Number>(op: ReduceOp, x: &[T], length: usize, so_far: T) -> T {
    match op {
        ReduceOp::Sum => fold(x, length, so_far, T::ZERO, T::plus),
        ReduceOp::Max => fold(x, length, so_far, T::LEAST, math::max),
        ReduceOp::Min => fold(x, length, so_far, T::MOST, math::min),
    }
}

/// Rows that are reduced together: `to[row] = reduce(from[row·stride..][..columns])`, continued when `resume`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub from: *const u8,
    pub stride: usize,
    pub to: *mut u8,
    pub rows: usize,
    pub columns: usize,
    /// Columns of whole rows.
    pub length: usize,
    pub resume: bool,
}

#[inline(always)]
unsafe fn reduce_rows_body<T: Number>(op: ReduceOp, r: &Rows) {
    for row in 0..r.rows {
        // SAFETY: the caller's contract: `rows` rows of `columns` elements, and as many results.
        unsafe {
            let x = std::slice::from_raw_parts(r.from.cast::<T>().add(row * r.stride), r.columns);
            let to = r.to.cast::<T>().add(row);
            let so_far = if r.resume { *to } else { identity(op) };
            *to = reduce(op, x, r.length, so_far);
        }
    }
}

by_cpu!(
    /// Reduces rows.
    ///
    /// # Safety
    /// The pointers are good for the sizes.
    pub(crate) unsafe fn reduce_rows / reduce_rows_body<T: Number>(op: ReduceOp, r: &Rows)
);
