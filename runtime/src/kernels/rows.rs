//! Reductions of contiguous rows, in an order that depends on the row's length alone.
//!
//! ```text
//! row    = chunks of CHUNK elements; their results are combined one after another
//! chunk  : element i goes to lane i mod LANES, lanes are folded in halves
//! LANES  = 64; 16 for rows below 256 elements; below 16, the power of two that holds them
//! ```
//!
//! A maximum or minimum is NaN when any element is.

#[cfg(target_arch = "x86_64")]
use super::cpu::Vectors;
use super::cpu::{Cpu, by_cpu};
use super::lanes::{self, Lanes, Vector};
use super::math;
use forebay_plan::ReduceOp;

/// Elements that are reduced on their own; whoever feeds a row in parts cuts it at multiples of this.
pub(crate) const CHUNK: usize = 1024;
/// Lanes of a long row: the most that there are.
pub(crate) const LANES: usize = 64;
/// Rows below this length use fewer lanes.
const SHORT: usize = 256;

/// What rows consist of.
pub(crate) trait Number: Copy + PartialOrd + 'static {
    const ZERO: Self;
    const LEAST: Self;
    const MOST: Self;
    /// The sum; of integers it wraps around.
    fn plus(self, other: Self) -> Self;
    /// As [`reduce_rows`].
    ///
    /// # Safety
    /// As there.
    unsafe fn reduce_rows(cpu: Cpu, op: ReduceOp, r: &Rows) {
        // SAFETY: the caller's contract.
        unsafe { reduce_by_lanes::<Self>(cpu, op, r) }
    }
}

impl Number for f32 {
    const ZERO: f32 = 0.0;
    const LEAST: f32 = f32::NEG_INFINITY;
    const MOST: f32 = f32::INFINITY;
    #[inline(always)]
    fn plus(self, other: f32) -> f32 {
        self + other
    }
    unsafe fn reduce_rows(cpu: Cpu, op: ReduceOp, r: &Rows) {
        // SAFETY: the caller's contract.
        unsafe {
            match lane_count(r.length) < LANES {
                true => reduce_by_lanes::<f32>(cpu, op, r),
                false => reduce_by_vectors(cpu, op, r),
            }
        }
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
fn in_lanes<T: Number, const LANES: usize>(x: &[T], start: T, f: impl Fn(T, T) -> T) -> T {
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
    fold_lanes(&mut acc, f)
}

/// Lanes, a power of two of them, as one: folded in halves.
#[inline(always)]
fn fold_lanes<T: Number>(acc: &mut [T], f: impl Fn(T, T) -> T) -> T {
    let mut width = acc.len() / 2;
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
    if length < SHORT { length.next_power_of_two().min(16) } else { LANES }
}

#[inline(always)]
fn chunk<T: Number>(x: &[T], length: usize, start: T, f: impl Fn(T, T) -> T) -> T {
    match lane_count(length) {
        1 => in_lanes::<T, 1>(x, start, f),
        2 => in_lanes::<T, 2>(x, start, f),
        4 => in_lanes::<T, 4>(x, start, f),
        8 => in_lanes::<T, 8>(x, start, f),
        16 => in_lanes::<T, 16>(x, start, f),
        _ => in_lanes::<T, LANES>(x, start, f),
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
fn reduce<T: Number>(op: ReduceOp, x: &[T], length: usize, so_far: T) -> T {
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
unsafe fn reduce_by_lanes_body<T: Number>(op: ReduceOp, r: &Rows) {
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
    /// Reduces rows of any numbers.
    ///
    /// # Safety
    /// As [`reduce_rows`].
    unsafe fn reduce_by_lanes / reduce_by_lanes_body<T: Number>(op: ReduceOp, r: &Rows)
);

/// Reduces rows.
///
/// # Safety
/// The pointers are good for the sizes.
pub(crate) unsafe fn reduce_rows<T: Number>(cpu: Cpu, op: ReduceOp, r: &Rows) {
    // SAFETY: the caller's contract.
    unsafe { T::reduce_rows(cpu, op, r) }
}

/// Reduces rows of f32 of [`LANES`] lanes, which are vectors: in arrays the compiler keeps so many in memory.
///
/// # Safety
/// As [`reduce_rows`].
unsafe fn reduce_by_vectors(cpu: Cpu, op: ReduceOp, r: &Rows) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        unsafe fn avx512(op: ReduceOp, r: &Rows) {
            // SAFETY: the caller's contract.
            unsafe { long_rows::<lanes::avx512::Floats>(op, r) }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(op: ReduceOp, r: &Rows) {
            // SAFETY: the caller's contract.
            unsafe { long_rows::<lanes::avx2::Floats>(op, r) }
        }
        match cpu.vectors() {
            // SAFETY: a `Cpu` is never above what the machine has; the rest is the caller's contract.
            Vectors::Avx512 => return unsafe { avx512(op, r) },
            // SAFETY: as above.
            Vectors::Avx2 => return unsafe { avx2(op, r) },
            Vectors::Portable => {}
        }
    }
    let _ = cpu;
    // SAFETY: the caller's contract.
    unsafe { long_rows::<lanes::portable::Floats>(op, r) }
}

/// How two vectors become one: [`combine`] of their lanes.
trait Joint {
    const OP: ReduceOp;
    fn join<V: Lanes>(a: V, b: V) -> V;
}

struct Sum;
struct Max;
struct Min;

impl Joint for Sum {
    const OP: ReduceOp = ReduceOp::Sum;
    #[inline(always)]
    fn join<V: Lanes>(a: V, b: V) -> V {
        a + b
    }
}

impl Joint for Max {
    const OP: ReduceOp = ReduceOp::Max;
    #[inline(always)]
    fn join<V: Lanes>(a: V, b: V) -> V {
        a.maximum(b)
    }
}

impl Joint for Min {
    const OP: ReduceOp = ReduceOp::Min;
    #[inline(always)]
    fn join<V: Lanes>(a: V, b: V) -> V {
        a.minimum(b)
    }
}

/// # Safety
/// As [`reduce_rows`], and the machine has the vectors' features.
#[inline(always)]
unsafe fn long_rows<V: Vector>(op: ReduceOp, r: &Rows) {
    // SAFETY: the caller's contract.
    unsafe {
        match op {
            ReduceOp::Sum => long_rows_of::<V, Sum>(r),
            ReduceOp::Max => long_rows_of::<V, Max>(r),
            ReduceOp::Min => long_rows_of::<V, Min>(r),
        }
    }
}

/// # Safety
/// As [`long_rows`].
#[inline(always)]
unsafe fn long_rows_of<V: Vector, J: Joint>(r: &Rows) {
    for row in 0..r.rows {
        // SAFETY: the caller's contract: `rows` rows of `columns` elements, and as many results.
        unsafe {
            let x = std::slice::from_raw_parts(r.from.cast::<f32>().add(row * r.stride), r.columns);
            let to = r.to.cast::<f32>().add(row);
            let mut so_far = if r.resume { *to } else { identity(J::OP) };
            for part in x.chunks(CHUNK) {
                so_far = combine(J::OP, so_far, many_lanes::<V, J>(part));
            }
            *to = so_far;
        }
    }
}

/// A chunk in [`LANES`] lanes.
///
/// # Safety
/// The machine has the vectors' features.
#[inline(always)]
unsafe fn many_lanes<V: Vector, J: Joint>(x: &[f32]) -> f32 {
    /// No vector has fewer than four lanes.
    const MOST: usize = LANES / 4;
    const { assert!(LANES.is_multiple_of(V::LANES) && LANES / V::LANES <= MOST) };
    let vectors = LANES / V::LANES;
    let mut acc = [V::splat(identity(J::OP)); MOST];
    let mut whole = x.chunks_exact(LANES);
    // SAFETY: the machine has the features; parts have as many elements as the vectors, arrays as many as they.
    unsafe {
        for part in &mut whole {
            for (v, acc) in acc.iter_mut().enumerate().take(vectors) {
                *acc = J::join(*acc, V::load(part.as_ptr().add(v * V::LANES)));
            }
        }
        if whole.remainder().is_empty() {
            // Folded in halves: vectors, then the lanes of the last.
            let mut width = vectors / 2;
            while width > 0 {
                for v in 0..width {
                    acc[v] = J::join(acc[v], acc[v + width]);
                }
                width /= 2;
            }
            let mut all = [0.0; LANES];
            acc[0].store(all.as_mut_ptr());
            return fold_lanes(&mut all[..V::LANES], |a, b| combine(J::OP, a, b));
        }
        let mut all = [0.0; LANES];
        (0..vectors).for_each(|v| acc[v].store(all.as_mut_ptr().add(v * V::LANES)));
        all.iter_mut().zip(whole.remainder()).for_each(|(acc, &x)| *acc = combine(J::OP, *acc, x));
        fold_lanes(&mut all, |a, b| combine(J::OP, a, b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::harness::Rng;

    /// Rows of all lengths near those at which something changes, whole and in parts, with what is special among their elements.
    #[test]
    fn vectors_have_the_bits_of_lanes() {
        let mut rng = Rng::new(5);
        let special = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        for level in ["portable", "avx2", "avx512"] {
            let cpu = Cpu::named(level).expect("a level");
            for length in [255, 256, 257, 300, 1023, 1024, 1025, 1088, 2048, 2500] {
                let small = [0.0, -0.0, 1e-40, -1e-40];
                let numbers: Vec<f32> = rng.floats(3 * length).into_iter().map(|x| x as f32).collect();
                let mut rows: Vec<Vec<f32>> = special
                    .iter()
                    .map(|&value| {
                        let mut x = numbers.clone();
                        (0..3).for_each(|row| x[row * length + row * 97 % length] = value);
                        x
                    })
                    .collect();
                rows.push((0..3 * length).map(|_| small[rng.below(4)]).collect());
                rows.push((0..3 * length).map(|_| small[rng.below(2)]).collect());
                rows.push(numbers);
                for x in rows {
                    for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
                        check(cpu, op, &x, length);
                    }
                }
            }
        }
    }

    fn check(cpu: Cpu, op: ReduceOp, x: &[f32], length: usize) {
        let mut results = [[0.0f32; 3]; 2];
        for (results, vectors) in results.iter_mut().zip([false, true]) {
            // The first chunk, then the rest.
            let cut = CHUNK.min(length);
            for (from, to) in [(0, cut), (cut, length)] {
                let rows = Rows {
                    from: x[from..].as_ptr().cast(),
                    stride: length,
                    to: results.as_mut_ptr().cast(),
                    rows: 3,
                    columns: to - from,
                    length,
                    resume: from > 0,
                };
                // SAFETY: there are three rows of `length` elements, and three results.
                unsafe {
                    match vectors {
                        true if from < to => reduce_rows::<f32>(cpu, op, &rows),
                        false if from < to => reduce_by_lanes::<f32>(cpu, op, &rows),
                        _ => {}
                    }
                }
            }
        }
        // A sum of NaN may be any NaN.
        let bits = |x: f32| if x.is_nan() && op == ReduceOp::Sum { f32::NAN.to_bits() } else { x.to_bits() };
        let bits = results.map(|of| of.map(bits));
        assert_eq!(bits[0], bits[1], "{op:?} of {length} on {}", cpu.name());
    }
}
