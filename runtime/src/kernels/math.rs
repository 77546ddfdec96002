//! Elementary functions: one of each for f32, shared by all kernels, as straight-line code for a single value, which compilers turn into vector code,
//! or a register of them ([`Lanes`]).
//!
//! Products are fused with the sums after them where the code says so, at every CPU level, and there are no approximate instructions: the bits are the
//! same everywhere. bf16 uses the f32 functions and rounds. f64 uses the standard library's functions, which are the platform's: the same on one machine, not on all.
//!
//! | f32 | error, ulp | method |
//! |---|---|---|
//! | [`exp`] | < 1 | `2ⁿ·eʳ`, r reduced with ln 2 in two parts, minimax polynomial |
//! | [`log`] | < 1 | `k·ln 2 + log(1 + f)`, f from -¼ to ½, minimax polynomial |
//! | [`tanh`] | < 1.8 | `m/(m + 2)` with m = e²ˣ - 1 = `2ⁿ·(e²ʳ - 1) + (2ⁿ - 1)`, minimax polynomial |
//! | [`sin`], [`cos`] | < 2, beyond 2¹⁶ < 2.7 | reduction by half turns, π in three parts, and minimax polynomial up to [`TRIG_LIMIT`], the f64 library function beyond; the sine of -0 is 0 |
//! | square root, division | 0.5 | the instructions |
//! | `rsqrt` | < 1.5 | `1 / sqrt(x)` |

use super::lanes::{Lanes, MAGIC};

/// The nearest bf16, ties to even, as an f32. NaNs stay NaNs.
#[inline(always)]
pub(crate) fn round_to_bf16<V: Lanes>(x: V) -> V {
    x.nearest_bf16()
}

/// What a stored bf16 is, exactly.
#[inline(always)]
pub(crate) fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bf16, ties to even, as it is stored.
#[inline(always)]
pub(crate) fn narrowed(x: f32) -> u16 {
    (round_to_bf16(x).to_bits() >> 16) as u16
}

/// ln 2 = HIGH + LOW.
const LN2_HIGH: f32 = std::f32::consts::LN_2;
const LN2_LOW: f32 = -1.904_654_3e-9;

/// A sum of powers of `x`, the highest first, by Horner's rule.
macro_rules! polynomial {
    ($x:expr; $highest:expr, $($coefficient:expr),+) => {{
        let p = V::splat($highest);
        $(let p = p.fused($x, V::splat($coefficient));)+
        p
    }};
}

/// x = n·ln 2 + r: n + [`MAGIC`], r, and `(eʳ - 1 - r) / r²`.
#[inline(always)]
fn split<V: Lanes>(x: V) -> (V, V, V) {
    let shifted = x.fused(V::splat(std::f32::consts::LOG2_E), V::splat(MAGIC));
    let n = shifted - V::splat(MAGIC);
    let r = n.fused(V::splat(-LN2_LOW), n.fused(V::splat(-LN2_HIGH), x));
    // For |r| < ln 2 / 2: the polynomial whose greatest error, times r²/eʳ, is least (Remez), 0.05 ulp of eʳ.
    let q = polynomial!(r; 1.381_446_7e-3, 8.368_78e-3, 4.166_839_4e-2, 0.166_665_2, 0.499_999_94);
    (shifted, r, q)
}

/// eˣ.
#[inline(always)]
pub(crate) fn exp<V: Lanes>(x: V) -> V {
    let c = V::splat;
    // Below, the result is zero: half of all scores are masked with -∞.
    let vanishes = x.lt(c(-104.0));
    // Above, it is infinite; a NaN stays one.
    let (shifted, r, q) = split(c(89.0).least(x));
    let p = q.fused(r, c(1.0));
    p.fused(r, c(1.0)).times_power(shifted, vanishes)
}

/// The natural logarithm: NaN below zero, -∞ at both zeros.
#[inline(always)]
pub(crate) fn log<V: Lanes>(x: V) -> V {
    let c = V::splat;
    let (mantissa, k) = x.mantissa_and_exponent();
    let f = mantissa - c(1.0);
    // (log(1 + f) - f + f²/2) / f³: the polynomial whose greatest error, relative to the logarithm, is least (Remez), 0.04 ulp.
    let p = polynomial!(f; -4.507_636_3e-2, 0.104_633_02, -0.131_614_52, 0.144_785_52, -0.166_473_95, 0.199_908_82, -0.250_000_92, 0.333_334_48);
    let y = p.fused(f, c(-0.5)).fused(f * f, f);
    // ln 2 in one part: what it lacks is 0.05 ulp of the product.
    k.fused(c(LN2_HIGH), y).log_ends(x)
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<V: Lanes>(x: V) -> V {
    let c = V::splat;
    /// The bias of exponents beside [`MAGIC`]: moving up leaves 2ⁿ.
    const BIASED: f32 = MAGIC + 127.0;
    // From here on the result rounds to one; a NaN stays one.
    let a = c(10.0).least(x.abs());
    // a = n·ln 2/2 + r. What ln 2 in one part lacks is less, from n = 1 on, than the result's last place.
    let shifted = a.fused(c(2.0 * std::f32::consts::LOG2_E), c(BIASED));
    let n = shifted - c(BIASED);
    let r = n.fused(c(-0.5 * LN2_HIGH), a);
    // For |r| < ln 2 / 4, (e²ʳ - 1 - 2r) / r²: the polynomial whose greatest error, relative to e²ʳ - 1, is least (Remez), 0.12 ulp.
    let q = polynomial!(r; 8.854_811e-2, 0.267_747_97, 0.666_684_1, 1.333_323_1, 1.999_999_9);
    let p = q.fused(r * r, r + r);
    let power = V::from_bits(V::up::<23>(shifted.bits()));
    let m = p.fused(power, power - c(1.0));
    // The quotient, and nearly what its division and the sum lose.
    let inverse = c(1.0) / (m + c(2.0));
    let y = m * inverse;
    let rest = y.neg().fused(m, y.fused(c(-2.0), m));
    rest.fused(inverse, y).with_sign_of(x)
}

/// Up to here the reduction of [`sin`] and [`cos`] is good: farther away half turns are counted less and less exactly.
pub(crate) const TRIG_LIMIT: f32 = 1_048_576.0;

/// π = A + B + C: A and B are cut off, not rounded, so that all three are positive.
const PI: [f32; 3] = [3.141_592_5, 1.509_957_9e-7, 1.078_060_6e-14];

/// The sine of r from -π/2 to π/2; its negative where the lowest bit of `turns` is set.
#[inline(always)]
fn half_turn<V: Lanes>(r: V, turns: V) -> V {
    let c = V::splat;
    let z = r * r;
    // (sin r - r) / r³: the polynomial whose greatest error, relative to the sine, is least (Remez), 0.06 ulp.
    let p = polynomial!(z; 2.599_518_2e-6, -1.980_685e-4, 8.333_03e-3, -0.166_666_58);
    // The polynomial may pass 1 where r has been rounded up.
    let y = c(-1.0).most(c(1.0).least(p.fused(z * r, r)));
    V::from_bits(V::bit_xor(y.bits(), V::up::<31>(turns.bits())))
}

/// The sine, for arguments up to [`TRIG_LIMIT`].
#[inline(always)]
pub(crate) fn sin<V: Lanes>(x: V) -> V {
    let c = V::splat;
    let turns = x.fused(c(std::f32::consts::FRAC_1_PI), c(MAGIC));
    let n = turns - c(MAGIC);
    // x - n·A is exact: a multiple of the last places of x and A, and small. So what follows is rounded by its own size, however small it is.
    let r = n.fused(c(-PI[2]), n.fused(c(-PI[1]), n.fused(c(-PI[0]), x)));
    half_turn(r, turns)
}

/// The cosine, for arguments up to [`TRIG_LIMIT`].
#[inline(always)]
pub(crate) fn cos<V: Lanes>(x: V) -> V {
    let c = V::splat;
    // x = (n + ½)·π - r, and cos x = (-1)ⁿ·sin r.
    let turns = x.fused(c(std::f32::consts::FRAC_1_PI), c(-0.5)) + c(MAGIC);
    let n = (turns - c(MAGIC)) + c(0.5);
    let r = n.fused(c(PI[2]), n.fused(c(PI[1]), n.fused(c(PI[0]), x.neg())));
    half_turn(r, turns)
}

/// The sine of any argument.
pub(crate) fn sin_any(x: f32) -> f32 {
    if x.abs() <= TRIG_LIMIT { sin(x) } else { f64::from(x).sin() as f32 }
}

/// The cosine of any argument.
pub(crate) fn cos_any(x: f32) -> f32 {
    if x.abs() <= TRIG_LIMIT { cos(x) } else { f64::from(x).cos() as f32 }
}

/// xʸ, by the f64 library function, rounded.
#[inline(always)]
pub(crate) fn pow(x: f32, y: f32) -> f32 {
    f64::from(x).powf(f64::from(y)) as f32
}

/// The larger; NaN when either is NaN.
#[inline(always)]
pub(crate) fn max<T: PartialOrd + Copy>(a: T, b: T) -> T {
    // `a` is NaN when it is not equal to itself; `b` comes through whenever the comparison fails.
    #[allow(clippy::eq_op)]
    let first = a > b || a != a;
    if first { a } else { b }
}

/// The smaller; NaN when either is NaN.
#[inline(always)]
pub(crate) fn min<T: PartialOrd + Copy>(a: T, b: T) -> T {
    #[allow(clippy::eq_op)]
    let first = a < b || a != a;
    if first { a } else { b }
}

/// The remainder with the sign of the divisor.
#[inline(always)]
pub(crate) fn remainder(a: f32, b: f32) -> f32 {
    let r = a % b;
    if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
}

/// The remainder with the sign of the divisor.
#[inline(always)]
pub(crate) fn remainder_f64(a: f64, b: f64) -> f64 {
    let r = a % b;
    if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
}

/// Division rounded towards minus infinity; 0 when the divisor is 0.
#[inline(always)]
pub(crate) fn floor_div(a: i32, b: i32) -> i32 {
    if b == 0 {
        return 0;
    }
    let q = a.wrapping_div(b);
    if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) { q - 1 } else { q }
}

/// `a - b·floor_div(a, b)`; 0 when the divisor is 0.
#[inline(always)]
pub(crate) fn floor_rem(a: i32, b: i32) -> i32 {
    if b == 0 {
        return 0;
    }
    let r = a.wrapping_rem(b);
    if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
}

#[cfg(test)]
mod tests;
