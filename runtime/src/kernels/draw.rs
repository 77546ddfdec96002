//! Random values from a distribution, as code for vectors: what tensors begin with.
//!
//! Element number `n` of the stream `key` is a function of the two alone. It is an f32 in plans of every type, so that runs in f32 and f64 begin with the
//! same numbers. From the 64 bits `h = hash::at(key, n)`:
//!
//! * uniform: `lo + (hi - lo)·u` in f64, rounded, with `u` of 53 bits in the open interval (0, 1);
//! * normal: `std·√2·erfinv(x)` with the sign of `x` from bit 63 of `h` and its size an odd multiple of 2⁻³¹ from bits 32 to 61: the inverse of the
//!   distribution function, up to 6.2 standard deviations;
//! * truncated: the same with `x` squeezed into ±(1 - 2·Φ(-2)).
//!
//! No fused multiply-add, as in [`math`]: the bits are the same at every CPU level.

use super::cpu::{Cpu, by_cpu};
use super::math;
use crate::hash;

/// Values drawn at once: 4 KiB of hashes on the stack.
const BLOCK: usize = 1024;
/// 1 - 2·Φ(-2): how much of a normal distribution lies within two standard deviations.
const WITHIN_TWO: f32 = 0.954_499_7;

/// A distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Distribution {
    /// Uniform from the first to the second.
    Uniform(f64, f64),
    /// Normal around 0, with this standard deviation.
    Normal(f64),
    /// The same, cut at two standard deviations.
    TruncatedNormal(f64),
}

/// Draws the values from number `first` on.
pub(crate) fn draw(cpu: Cpu, distribution: Distribution, key: u64, first: u64, out: &mut [f32]) {
    // SAFETY: the bodies are safe code, and a `Cpu` is never above the machine.
    unsafe {
        match distribution {
            Distribution::Uniform(lo, hi) => uniform(cpu, key, first, lo, hi - lo, out),
            Distribution::Normal(std) => normal(cpu, key, first, 1.0, std, out),
            Distribution::TruncatedNormal(std) => normal(cpu, key, first, WITHIN_TWO, std, out),
        }
    }
}

#[inline(always)]
unsafe fn uniform_body(key: u64, first: u64, lo: f64, range: f64, out: &mut [f32]) {
    for (place, number) in out.iter_mut().zip(first..) {
        *place = (lo + range * hash::unit(hash::at(key, number))) as f32;
    }
}

#[inline(always)]
unsafe fn normal_body(key: u64, first: u64, part: f32, std: f64, out: &mut [f32]) {
    let scale = (std * std::f64::consts::SQRT_2) as f32;
    let mut words = [0u32; BLOCK];
    for (block, start) in out.chunks_mut(BLOCK).zip((first..).step_by(BLOCK)) {
        // Two loops: one of 64-bit integers and one of f32 each fill their vectors.
        for (word, number) in words.iter_mut().zip(start..start + block.len() as u64) {
            *word = (hash::at(key, number) >> 32) as u32;
        }
        for (place, word) in block.iter_mut().zip(&words) {
            *place = scale * inverse_error(*word, part);
        }
    }
}

by_cpu!(unsafe fn uniform / uniform_body(key: u64, first: u64, lo: f64, range: f64, out: &mut [f32]));
by_cpu!(unsafe fn normal / normal_body(key: u64, first: u64, part: f32, std: f64, out: &mut [f32]));

/// `erfinv(part·x)`, with a relative error below 1e-6. `x` is made of a random word: its sign is bit 31, its size `(2m + 1)·2⁻³¹` with m from bits 0
/// to 29.
///
/// The form is Giles's (2010, "Approximating the erfinv function", single precision): `x` times a polynomial in `w = -log(1 - x²)`, or in √w
/// beyond 5, where `1 - |x|` is kept beside `x` so that the tail has all of its digits.
#[inline(always)]
fn inverse_error(word: u32, part: f32) -> f32 {
    const UNIT: f32 = 1.0 / (1u32 << 31) as f32;
    let twice = (word << 1 & i32::MAX as u32) as i32;
    let x = part * ((twice | 1) as f32 * UNIT);
    let rest = (1.0 - part) + part * ((i32::MAX - twice) as f32 * UNIT);
    let w = -math::log::<f32>(rest * (1.0 + x));
    let centre = w < 5.0;
    let r = if centre { w - 2.5 } else { w.sqrt() - 3.0 };
    let mut sum = 0.0;
    for (a, b) in POLYNOMIALS {
        sum = sum * r + if centre { a } else { b };
    }
    f32::from_bits((sum * x).to_bits() | word & 1 << 31)
}

/// Coefficients of the centre, which are Giles's, and of the tail up to w = 20.9 (he stops at 16), whose greatest relative error is least; highest power first.
const POLYNOMIALS: [(f32, f32); 9] = [
    (2.810_226_4e-8, -3.070_308e-5),
    (3.432_739_4e-7, -8.911_705e-5),
    (-3.523_387_7e-6, 1.149_637_2e-3),
    (-4.391_506_5e-6, -3.455_714_6e-3),
    (2.185_808_7e-4, 5.822_450_4e-3),
    (-1.253_725e-3, -7.694_304e-3),
    (-4.177_681_6e-3, 9.424_99e-3),
    (0.246_640_73, 1.001_679_8),
    (1.501_409_4, 2.832_977_3),
];

#[cfg(test)]
mod tests;
