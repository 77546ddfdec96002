//! Decays between the positions of a chunk, from their logarithms.

use super::CHUNK;
use crate::kernels::matmul::tile::{Real, Source};
use forebay_plan::LinearReads;
use std::ops::Mul;

/// What is computed in.
pub(super) trait Wide: Real + Source<Self> + Mul<Output = Self> {
    /// Is it so much narrower than f64 that a product of two roundings there rounds as well as one?
    const NARROW: bool;
    fn of(x: f64) -> Self;
    fn value(self) -> f64;
}

impl Wide for f32 {
    const NARROW: bool = true;
    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn value(self) -> f64 {
        self.into()
    }
}

impl Wide for f64 {
    const NARROW: bool = false;
    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn value(self) -> f64 {
        self
    }
}

/// Logarithms whose exponentials, and those of their negatives, are far from the ends of f64.
const MODERATE: f64 = 690.0;

/// The decays of a chunk. Sums of logarithms are made of what lies between two positions alone: no difference of sums is taken, in which what came before would leave its error, or
/// -∞ less -∞. But for results in f32, and where all sums are moderate, the exponential of a difference is a product of two: one for each position instead of one for each pair.
pub(super) struct Decays {
    n: usize,
    /// The logarithm of the decay from the walked position before to this one.
    logs: [f64; CHUNK],
    /// From before the chunk to each position.
    pub incoming: [f64; CHUNK],
    /// From each position to the last one of the chunk.
    pub outgoing: [f64; CHUNK],
    /// The reciprocals of what comes in, where products of both are good.
    reciprocals: Option<[f64; CHUNK]>,
}

impl Decays {
    /// Of `n` positions, whose logarithms are given.
    #[inline(always)]
    pub fn new<T: Wide>(n: usize, log: impl Fn(usize) -> f64) -> Decays {
        let zeros = [0.0; CHUNK];
        let mut decays = Decays { n, logs: zeros, incoming: zeros, outgoing: zeros, reciprocals: None };
        let mut sums = [0.0; CHUNK];
        let (mut sum, mut moderate) = (0.0f64, T::NARROW);
        for (i, so_far) in sums.iter_mut().enumerate().take(n) {
            decays.logs[i] = log(i);
            sum += decays.logs[i];
            *so_far = sum;
            decays.incoming[i] = sum.exp();
            // Not so for NaN.
            moderate &= sum.abs() <= MODERATE;
        }
        if moderate {
            let mut reciprocals = [0.0; CHUNK];
            for i in 0..n {
                reciprocals[i] = (-sums[i]).exp();
                decays.outgoing[i] = decays.incoming[n - 1] * reciprocals[i];
            }
            decays.reciprocals = Some(reciprocals);
        } else {
            let mut sum = 0.0f64;
            for i in (0..n).rev() {
                decays.outgoing[i] = sum.exp();
                sum += decays.logs[i];
            }
        }
        decays
    }

    /// From before the chunk to its last position.
    pub fn total(&self) -> f64 {
        self.incoming[self.n - 1]
    }

    /// Multiplies the scores of a position with its decays, and hides what it does not read: there are `columns`.
    ///
    /// # Safety
    /// There are as many scores.
    #[inline(always)]
    pub unsafe fn apply<T: Wide>(&self, reads: LinearReads, position: usize, columns: usize, scores: *mut T) {
        // SAFETY: the caller's contract.
        let scores = unsafe { std::slice::from_raw_parts_mut(scores, columns) };
        let (earlier, rest) = scores.split_at_mut(position);
        let sign = sign(reads);
        match &self.reciprocals {
            Some(reciprocals) => {
                let here = sign * self.incoming[position];
                for (score, there) in earlier.iter_mut().zip(reciprocals) {
                    *score = *score * T::of(here * there);
                }
            }
            None => {
                let mut sum = 0.0;
                for (score, log) in earlier.iter_mut().zip(&self.logs[1..]).rev() {
                    sum += log;
                    *score = *score * T::of(sign * sum.exp());
                }
            }
        }
        let own = if reads == LinearReads::Inclusive { rest[0] } else { T::default() };
        rest.fill(T::default());
        rest[0] = own;
    }
}

/// What scores and queries are multiplied with: a system takes off what an attention adds.
#[inline(always)]
pub(super) fn sign(reads: LinearReads) -> f64 {
    if reads == LinearReads::Solve { -1.0 } else { 1.0 }
}
