//! Softmax over a block of transposed scores, and its gradient: vectors of queries, one key after the other.

use super::block::Block;
use super::{LANES, QUERIES};
use crate::kernels::cpu::by_cpu;
use crate::kernels::math;
use crate::kernels::matmul::tile::{Pass, Real, Simd};

/// What scores are kept in.
pub(super) trait Wide: Real + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    const LEAST: Self;
    const MOST: Self;
    fn of(value: f64) -> Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
    /// eˣ; with fused multiply-adds where they are operations of the processor.
    fn exp(self, fused: bool) -> Self;
    fn log(self) -> Self;
}

macro_rules! wide {
    ($t:ty, $exp:expr, $log:expr) => {
        impl Wide for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const LEAST: $t = <$t>::NEG_INFINITY;
            const MOST: $t = <$t>::INFINITY;
            #[inline(always)]
            fn of(value: f64) -> $t {
                value as $t
            }
            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                self + other
            }
            #[inline(always)]
            fn minus(self, other: $t) -> $t {
                self - other
            }
            #[inline(always)]
            fn times(self, other: $t) -> $t {
                self * other
            }
            #[inline(always)]
            fn over(self, other: $t) -> $t {
                self / other
            }
            #[inline(always)]
            fn exp(self, fused: bool) -> $t {
                $exp(self, fused)
            }
            #[inline(always)]
            fn log(self) -> $t {
                $log(self)
            }
        }
    };
}
wide!(f32, exp, math::log);
wide!(f64, |x: f64, _| x.exp(), f64::ln);

/// eˣ, as [`math::exp`] for what it is used for here: x is a score less the largest, or less the logarithm of a sum that it is part of, and what is
/// below 10⁻³⁷ is 0.
#[inline(always)]
fn exp(x: f32, fused: bool) -> f32 {
    // 1.5·2²³: adding it leaves the nearest integer in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    // ln 2 = HIGH + LOW; n·HIGH is exact for the n that occur.
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -2.121_944_4e-4;
    // NaN passes both comparisons. A score far above the sum that it is part of is none, and gives NaN.
    let vanishes = x < -86.0;
    let x = if x > 88.0 { f32::INFINITY } else { x };
    let fma = |a: f32, b: f32, c: f32| if fused { a.mul_add(b, c) } else { a * b + c };
    let shifted = fma(x, std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = fma(n, -LOW, fma(n, -HIGH, x));
    let p = 1.987_569_1e-4;
    let p = fma(p, r, 1.398_199_9e-3);
    let p = fma(p, r, 8.333_452e-3);
    let p = fma(p, r, 4.166_579_6e-2);
    let p = fma(p, r, 1.666_666_6e-1);
    let p = fma(p, r, 5e-1);
    let y = fma(p, r * r, r) + 1.0;
    // The low bits of the shifted number become an exponent; no result is denormal. A product, so that NaN stays NaN.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    let y = y * power;
    if vanishes { 0.0 } else { y }
}

/// Puts another value where a query does not see a key.
#[inline(always)]
unsafe fn hide<T: Wide>(x: &mut [T; LANES], block: &Block, (key, first): (usize, usize), hidden: T) {
    let (start, end) = block.visible(key);
    let (start, end) = (start - first as i32, end - first as i32);
    for (i, x) in (0..).zip(x.iter_mut()) {
        *x = if (i >= start) & (i < end) { *x } else { hidden };
    }
    if let Some(documents) = &block.documents {
        // SAFETY: the caller's contract; there are marks for each key and each of `QUERIES` queries.
        let (key, of) = unsafe { (documents.of_key(block.key + key), load(documents.queries.add(first))) };
        for (x, of) in x.iter_mut().zip(of) {
            *x = if of == key { *x } else { hidden };
        }
    }
    if let Some(positions) = &block.positions {
        // SAFETY: as above.
        let (key, of) = unsafe { (positions.of_key(block.key + key), load(positions.queries.add(first))) };
        let (least, most) = block.distances;
        for (x, of) in x.iter_mut().zip(of) {
            let distance = i64::from(of) - i64::from(key);
            *x = if (distance >= least) & (distance <= most) { *x } else { hidden };
        }
    }
}

/// The state of a softmax over blocks: for each of [`QUERIES`] queries the largest score so far and the sum of exponentials relative to it.
#[derive(Clone, Copy)]
pub(super) struct Running<T> {
    pub most: *mut T,
    pub sum: *mut T,
    /// What earlier sums are to be multiplied by after a block.
    pub factor: *mut T,
}

/// Values of a group of queries. All are read before any is written, so that they are one vector.
#[inline(always)]
unsafe fn load<T: Copy>(at: *const T) -> [T; LANES] {
    // SAFETY: the caller's contract: there are as many.
    unsafe { *at.cast::<[T; LANES]>() }
}

#[inline(always)]
unsafe fn save<T: Copy>(at: *mut T, x: [T; LANES]) {
    // SAFETY: the caller's contract: there is room.
    unsafe { *at.cast::<[T; LANES]>() = x };
}

/// -∞ as 0, so that differences are numbers.
#[inline(always)]
fn finite<T: Wide>(most: T) -> T {
    if most == T::LEAST { T::ZERO } else { most }
}

#[inline(always)]
unsafe fn forward_body<S: Simd<T: Wide>>(pass: &Forward<S::T>) {
    let &Forward { scores, block, running } = pass;
    for first in block.groups() {
        // SAFETY: the caller's contract; rows of scores have `QUERIES` elements.
        unsafe {
            let keys = block.seen_by(first);
            let factor = running.factor.add(first);
            if keys.is_empty() {
                save(factor, [S::T::ONE; LANES]);
                continue;
            }
            let at = |key: usize| scores.add(key * QUERIES + first);
            let before = load(running.most.add(first));
            let mut most = before;
            for key in keys.clone() {
                let mut x = load(at(key));
                if block.masked {
                    hide(&mut x, block, (key, first), S::T::LEAST);
                    save(at(key), x);
                }
                for (most, x) in most.iter_mut().zip(x) {
                    *most = if x > *most { x } else { *most };
                }
            }
            save(running.most.add(first), most);
            let base = most.map(finite);
            let mut sums = [S::T::ZERO; LANES];
            for key in keys {
                let mut x = load(at(key));
                (0..LANES).for_each(|i| x[i] = x[i].minus(base[i]).exp(S::FUSED));
                save(at(key), x);
                (0..LANES).for_each(|i| sums[i] = sums[i].plus(x[i]));
            }
            let mut change = before;
            (0..LANES).for_each(|i| change[i] = change[i].minus(base[i]).exp(S::FUSED));
            save(factor, change);
            let mut total = load(running.sum.add(first));
            (0..LANES).for_each(|i| total[i] = total[i].times(change[i]).plus(sums[i]));
            save(running.sum.add(first), total);
        }
    }
}

/// Makes scores exponentials relative to the largest so far, and brings the state up to date. Scores of queries that do not exist may be any numbers.
///
/// Its contract: `scores` has a row of [`QUERIES`] for each key of the block, the state as many; the block's marks are there.
#[derive(Clone, Copy)]
pub(super) struct Forward<'a, T> {
    pub scores: *mut T,
    pub block: &'a Block,
    pub running: Running<T>,
}

impl<T: Wide> Forward<'_, T> {
    /// Does it.
    ///
    /// # Safety
    /// The contract above; the machine has the flavour's features.
    pub unsafe fn run<S: Simd<T = T>>(self) {
        struct With<'a, S: Simd>(Forward<'a, S::T>);
        impl<S: Simd<T: Wide>> Pass for With<'_, S> {
            #[inline(always)]
            unsafe fn run(self) {
                // SAFETY: the caller's contract.
                unsafe { forward_body::<S>(&self.0) }
            }
        }
        // SAFETY: the caller's contract.
        unsafe { S::apply(With::<S>(self)) }
    }
}

#[inline(always)]
unsafe fn finish_body<T: Wide>(running: &Running<T>) {
    for i in 0..QUERIES {
        // SAFETY: the caller's contract.
        unsafe {
            let sum = *running.sum.add(i);
            // Queries that see nothing have no exponentials to divide by.
            *running.factor.add(i) = if sum == T::ZERO { T::ZERO } else { T::ONE.over(sum) };
            let most = running.most.add(i);
            *most = finite(*most).plus(sum.log());
        }
    }
}

by_cpu!(
    /// After the last block: makes the factor that of the result, and the largest score the lse.
    ///
    /// # Safety
    /// The state has [`QUERIES`] of each.
    pub(super) unsafe fn finish / finish_body<T: Wide>(running: &Running<T>)
);

/// A block of the backward pass.
#[derive(Clone, Copy)]
pub(super) struct Gradients<T> {
    /// Scores, which become p.
    pub scores: *mut T,
    /// Gradients of p, which become those of scores, but for the factor of scores.
    pub gradients: *mut T,
    /// [`QUERIES`] of them; +∞ for queries that do not exist.
    pub lse: *const T,
    /// [`QUERIES`] of them.
    pub delta: *const T,
}

#[inline(always)]
unsafe fn backward_body<S: Simd<T: Wide>>(pass: &Backward<S::T>) {
    let &Backward { block, gradients: g } = pass;
    for first in block.groups() {
        // SAFETY: the caller's contract; rows have `QUERIES` elements.
        unsafe {
            let lse = load(g.lse.add(first)).map(finite);
            let delta = load(g.delta.add(first));
            for key in block.seen_by(first) {
                let at = key * QUERIES + first;
                let (mut p, mut d) = (load(g.scores.add(at)), load(g.gradients.add(at)));
                (0..LANES).for_each(|i| p[i] = p[i].minus(lse[i]).exp(S::FUSED));
                if block.masked {
                    hide(&mut p, block, (key, first), S::T::ZERO);
                    hide(&mut d, block, (key, first), S::T::ZERO);
                }
                (0..LANES).for_each(|i| d[i] = p[i].times(d[i].minus(delta[i])));
                save(g.scores.add(at), p);
                save(g.gradients.add(at), d);
            }
        }
    }
}

/// Makes scores p, and gradients of p those of scores.
///
/// Its contract: the arrays have a row of [`QUERIES`] for each key of the block; the block's marks are there.
#[derive(Clone, Copy)]
pub(super) struct Backward<'a, T> {
    pub block: &'a Block,
    pub gradients: Gradients<T>,
}

impl<T: Wide> Backward<'_, T> {
    /// Does it.
    ///
    /// # Safety
    /// The contract above; the machine has the flavour's features.
    pub unsafe fn run<S: Simd<T = T>>(self) {
        struct With<'a, S: Simd>(Backward<'a, S::T>);
        impl<S: Simd<T: Wide>> Pass for With<'_, S> {
            #[inline(always)]
            unsafe fn run(self) {
                // SAFETY: the caller's contract.
                unsafe { backward_body::<S>(&self.0) }
            }
        }
        // SAFETY: the caller's contract.
        unsafe { S::apply(With::<S>(self)) }
    }
}
