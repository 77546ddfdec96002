//! Softmax over a block of transposed scores, and its gradient: vectors of queries, one key after the other.

use super::block::Block;
use super::{LANES, QUERIES};
use crate::kernels::cpu::by_cpu;
use crate::kernels::math;
use crate::kernels::matmul::tile::{Pass, Real, Simd};
use std::ops::Range;

/// What scores are kept in.
pub(super) trait Wide: Real + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    const LEAST: Self;
    const MOST: Self;
    /// The logarithm of e to the base of [`Wide::power`].
    const LOG_E: f64;
    fn of(value: f64) -> Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
    /// `self·factor + other`; fused where that is an operation of the processor, as in all that follows.
    fn fma(self, factor: Self, other: Self, fused: bool) -> Self;
    /// A power of the base that is cheapest: 2, or e.
    fn power(self, fused: bool) -> Self;
    fn log(self) -> Self;
    /// eˣ.
    #[inline(always)]
    fn exp(self, fused: bool) -> Self {
        self.times(Self::of(Self::LOG_E)).power(fused)
    }
}

macro_rules! wide {
    ($t:ty, $log_e:expr, $power:expr, $log:expr) => {
        impl Wide for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const LEAST: $t = <$t>::NEG_INFINITY;
            const MOST: $t = <$t>::INFINITY;
            const LOG_E: f64 = $log_e;
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
            fn fma(self, factor: $t, other: $t, fused: bool) -> $t {
                if fused { self.mul_add(factor, other) } else { self * factor + other }
            }
            #[inline(always)]
            fn power(self, fused: bool) -> $t {
                $power(self, fused)
            }
            #[inline(always)]
            fn log(self) -> $t {
                $log(self)
            }
        }
    };
}
wide!(f32, std::f64::consts::LOG2_E, power_of_two, math::log);
wide!(f64, 1.0, |x: f64, _| x.exp(), f64::ln);

/// 2ˣ, with a relative error of less than 1.5·2⁻²³ (1.7·2⁻²³ where multiply-adds round twice), for what it is used for here: x is a score less the largest, or less the logarithm of a sum that it is part of,
/// and what is below 10⁻³⁷ is 0.
#[inline(always)]
fn power_of_two(x: f32, fused: bool) -> f32 {
    // 1.5·2²³ + 127: adding it leaves the nearest integer in the low bits, and beside it what exponents are biased by.
    const MAGIC: f32 = 12_583_039.0;
    // NaN passes both comparisons. A score far above the sum that it is part of is none, and gives NaN.
    let vanishes = x < -123.0;
    let x = if x > 127.0 { f32::INFINITY } else { x };
    let shifted = x + MAGIC;
    let r = x - (shifted - MAGIC);
    // For |r| ≤ ½: the polynomial whose greatest error, relative to 2ʳ, is least (Remez), among those that are 1 at 0: 9·10⁻⁸.
    let p = 1.326_472_7e-3_f32;
    let p = p.fma(r, 9.671_513e-3, fused);
    let p = p.fma(r, 5.550_733_6e-2, fused);
    let p = p.fma(r, 2.402_224_2e-1, fused);
    // Of the polynomial, and so not quite ln 2.
    #[allow(clippy::approx_constant)]
    let p = p.fma(r, 6.931_47e-1, fused);
    let y = p.fma(r, 1.0, fused);
    // No result is denormal. A product, so that NaN stays NaN.
    let y = y * f32::from_bits(shifted.to_bits() << 23);
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

/// The state of a softmax over blocks: for each of [`QUERIES`] queries the largest score so far, in units of powers, and the sum of exponentials relative to it.
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

/// Maxima side by side: one waits for the one before it.
const MAXIMA: usize = 4;

#[inline(always)]
unsafe fn forward_body<S: Simd<T: Wide>>(pass: &Forward<S::T>) {
    let &Forward { scores, unit, block, running } = pass;
    for first in block.groups() {
        // SAFETY: the caller's contract; rows of scores have `QUERIES` elements.
        unsafe {
            let keys = block.seen_by(first);
            let factor = running.factor.add(first);
            if keys.is_empty() {
                save(factor, [S::T::ONE; LANES]);
                continue;
            }
            let before = load(running.most.add(first));
            let most = largest(pass, first, keys.clone(), before);
            save(running.most.add(first), most);
            let mut base = most;
            (0..LANES).for_each(|i| base[i] = S::T::ZERO.minus(finite(most[i])));
            let mut sums = [S::T::ZERO; LANES];
            for key in keys.clone().step_by(S::PAIR) {
                let x = load(scores.add(key * QUERIES + first));
                let low = exponentials::<S>(x, (unit, &base), block, (key, first), &mut sums);
                if S::PAIR == 1 {
                    save(scores.add(key * QUERIES + first), low);
                    continue;
                }
                let mut high = [S::T::ZERO; LANES];
                if key + 1 < keys.end {
                    let x = load(scores.add((key + 1) * QUERIES + first));
                    high = exponentials::<S>(x, (unit, &base), block, (key + 1, first), &mut sums);
                }
                // Rows that have been read make room for words.
                let to = scores.add(key / 2 * QUERIES + first);
                for i in (0..LANES).step_by(S::LANES) {
                    let halves = S::round(S::load(low.as_ptr().add(i)), S::load(high.as_ptr().add(i)));
                    S::store(to.add(i), S::zip(halves));
                }
            }
            let mut change = before;
            (0..LANES).for_each(|i| change[i] = change[i].plus(base[i]).power(S::FUSED));
            save(factor, change);
            let mut total = load(running.sum.add(first));
            (0..LANES).for_each(|i| total[i] = total[i].times(change[i]).plus(sums[i]));
            save(running.sum.add(first), total);
        }
    }
}

/// The largest visible scores of a group of queries, in units of powers, and `before`.
#[inline(always)]
unsafe fn largest<T: Wide>(pass: &Forward<T>, first: usize, keys: Range<usize>, before: [T; LANES]) -> [T; LANES] {
    let mut most = [before; MAXIMA];
    let whole = keys.end - keys.len() % MAXIMA;
    // SAFETY: the caller's contract.
    unsafe {
        for key in (keys.start..whole).step_by(MAXIMA) {
            for (i, most) in most.iter_mut().enumerate() {
                larger(most, visible_scores(pass, key + i, first));
            }
        }
        (whole..keys.end).for_each(|key| larger(&mut most[0], visible_scores(pass, key, first)));
    }
    let [mut all, rest @ ..] = most;
    rest.into_iter().for_each(|x| larger(&mut all, x));
    all
}

/// Scores of a group of queries in units of powers, -∞ where a query does not see the key.
#[inline(always)]
unsafe fn visible_scores<T: Wide>(pass: &Forward<T>, key: usize, first: usize) -> [T; LANES] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut x = load(pass.scores.add(key * QUERIES + first));
        (0..LANES).for_each(|i| x[i] = x[i].times(pass.unit));
        if pass.block.hides(key, first) {
            hide(&mut x, pass.block, (key, first), T::LEAST);
        }
        x
    }
}

#[inline(always)]
fn larger<T: Wide>(most: &mut [T; LANES], x: [T; LANES]) {
    (0..LANES).for_each(|i| most[i] = if x[i] > most[i] { x[i] } else { most[i] });
}

/// Powers of scores times a unit less a base, 0 where a query does not see the key; adds them to sums.
#[inline(always)]
unsafe fn exponentials<S: Simd<T: Wide>>(
    mut x: [S::T; LANES],
    (unit, less): (S::T, &[S::T; LANES]),
    block: &Block,
    (key, first): (usize, usize),
    sums: &mut [S::T; LANES],
) -> [S::T; LANES] {
    (0..LANES).for_each(|i| x[i] = x[i].fma(unit, less[i], S::FUSED).power(S::FUSED));
    if block.hides(key, first) {
        // SAFETY: the caller's contract.
        unsafe { hide(&mut x, block, (key, first), S::T::ZERO) };
    }
    (0..LANES).for_each(|i| sums[i] = sums[i].plus(x[i]));
    x
}

/// Makes scores exponentials relative to the largest so far, and brings the state up to date. Scores of queries that do not exist may be any numbers.
/// Where words hold pairs, exponentials become words of two keys each, a row of them in place of each two rows of scores.
///
/// Its contract: `scores` has a row of [`QUERIES`] for each key of the block, the state as many; the block's marks are there.
#[derive(Clone, Copy)]
pub(super) struct Forward<'a, T> {
    pub scores: *mut T,
    /// What scores are multiplied by: their factor, for powers of a base that is not e.
    pub unit: T,
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
            *most = finite(*most).times(T::of(1.0 / T::LOG_E)).plus(sum.log());
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
    /// Where words hold pairs, the gradients of scores once more, as words of two keys.
    pub words: *mut T,
    /// What scores are multiplied by, as in [`Forward`].
    pub unit: T,
    /// [`QUERIES`] of them, in units of powers; +∞ for queries that do not exist.
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
            let mut lse = load(g.lse.add(first));
            lse.iter_mut().for_each(|lse| *lse = S::T::ZERO.minus(finite(*lse)));
            let delta = load(g.delta.add(first));
            let keys = block.seen_by(first);
            for key in keys.clone().step_by(S::PAIR) {
                let (p, d) = gradients_of::<S>(pass, (key, first), &lse, &delta);
                if S::PAIR == 1 {
                    let at = key * QUERIES + first;
                    save(g.scores.add(at), p);
                    save(g.gradients.add(at), d);
                    continue;
                }
                let mut next = [[S::T::ZERO; LANES]; 2];
                if key + 1 < keys.end {
                    next = gradients_of::<S>(pass, (key + 1, first), &lse, &delta).into();
                }
                for i in (0..LANES).step_by(S::LANES) {
                    let both = |low: &[S::T; LANES], high: &[S::T; LANES]| {
                        S::round(S::load(low.as_ptr().add(i)), S::load(high.as_ptr().add(i)))
                    };
                    let (p, d) = (both(&p, &next[0]), both(&d, &next[1]));
                    // Values that have been read, of this group or an earlier one, make room.
                    let at = [key, key + 1].map(|key| key * QUERIES + (first + i) / 2);
                    S::store_halves(at.map(|at| g.scores.add(at)), p);
                    S::store_halves(at.map(|at| g.gradients.add(at)), d);
                    S::store(g.words.add(key / 2 * QUERIES + first + i), S::zip(d));
                }
            }
        }
    }
}

/// What a group of queries has of p and of the gradients of scores at a key.
#[inline(always)]
unsafe fn gradients_of<S: Simd<T: Wide>>(
    &Backward { block, gradients: g }: &Backward<S::T>,
    (key, first): (usize, usize),
    less: &[S::T; LANES],
    delta: &[S::T; LANES],
) -> ([S::T; LANES], [S::T; LANES]) {
    // SAFETY: the caller's contract.
    unsafe {
        let at = key * QUERIES + first;
        let (mut p, mut d) = (load(g.scores.add(at)), load(g.gradients.add(at)));
        (0..LANES).for_each(|i| p[i] = p[i].fma(g.unit, less[i], S::FUSED).power(S::FUSED));
        if block.hides(key, first) {
            hide(&mut p, block, (key, first), S::T::ZERO);
            hide(&mut d, block, (key, first), S::T::ZERO);
        }
        (0..LANES).for_each(|i| d[i] = p[i].times(d[i].minus(delta[i])));
        (p, d)
    }
}

/// Makes scores p, and gradients of p those of scores. Where words hold pairs, both become rows of bf16, and the latter words of two keys as well.
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

#[cfg(test)]
mod tests {
    use super::power_of_two;

    /// Against f64, for all scores that a softmax meets, with multiply-adds that round once and such that round twice.
    #[test]
    fn powers_of_two_are_accurate() {
        let steps = (-123 * 8192..=127 * 8192).map(|i| i as f32 / 8192.0);
        let small = (0..0x3f80_0000u32).step_by(4093).flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)]);
        for x in steps.chain(small) {
            let want = f64::from(x).exp2();
            for (fused, limit) in [(true, 1.5), (false, 1.7)] {
                let error = (f64::from(power_of_two(x, fused)) / want - 1.0).abs() * 2f64.powi(23);
                assert!(error < limit, "{error} · 2⁻²³ at {x:e}, fused: {fused}");
            }
        }
    }

    #[test]
    fn powers_of_two_that_vanish_or_are_none() {
        for fused in [true, false] {
            let power = |x| power_of_two(x, fused);
            assert_eq!([-123.5, -1e30, f32::NEG_INFINITY].map(power), [0.0; 3]);
            assert_eq!([0.0, -0.0, 1.0, -123.0].map(power), [1.0, 1.0, 2.0, 2f32.powi(-123)]);
            assert!([127.5, f32::INFINITY, f32::NAN].map(power).iter().all(|y| y.is_nan()));
        }
    }
}
