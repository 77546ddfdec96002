//! Elementary functions: one of each for f32, shared by all kernels, as straight-line code for a single value, which compilers turn into vector code,
//! or a register of them ([`Lanes`]).
//!
//! Products are fused with the sums after them where the code says so, at every CPU level, and there are no approximate instructions: the bits are the
//! same everywhere. bf16 uses the f32 functions and rounds. f64 uses the standard library's functions, which are the platform's: the same on one machine, not on all.
//!
//! | f32 | error, ulp | method |
//! |---|---|---|
//! | [`exp`] | < 1 | `2ⁿ·eʳ`, r reduced with ln 2 in two parts, minimax polynomial |
//! | [`log`] | < 1 | `k·ln 2 + log(1 + f)`, f from √½ - 1 to √2 - 1, minimax polynomial |
//! | [`tanh`] | < 1.5 | polynomial of Cephes below 5/8, `1 - 2/(e²ˣ + 1)` by the polynomial of [`exp`] above |
//! | [`sin`], [`cos`] | < 0.51 | reduction by half turns and minimax polynomial in f64 up to [`TRIG_LIMIT`], the f64 library function beyond |
//! | square root, division | 0.5 | the instructions; `rsqrt` is `1 / sqrt(x)` |

use super::lanes::{Lanes, MAGIC, Wide};

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
    /// √½: mantissas are taken from here up to √2.
    const SQRT_HALF: i32 = 0x3f35_04f3;
    /// The least bit of an exponent, as a number.
    const ONE: f32 = 8_388_608.0;
    let denormal = x.lt(c(f32::MIN_POSITIVE));
    let bits = (x * c(ONE)).or(denormal, x).bits();
    let power = V::bit_and(bits - V::int(SQRT_HALF), V::int(0xff80_0000_u32 as i32));
    let k = V::from_ints(power) - c(23.0 * ONE).or(denormal, c(0.0));
    let f = V::from_bits(bits - power) - c(1.0);
    // (log(1 + f) - f + f²/2) / f³: the polynomial whose greatest error, relative to the logarithm, is least (Remez), 0.1 ulp.
    let p = polynomial!(f; -7.634_33e-2, 0.127_614_14, -0.131_601_69, 0.142_017_82, -0.166_233_61, 0.200_012_26, -0.250_008_2, 0.333_333_3);
    let y = p.fused(f, c(-0.5)).fused(f * f, f);
    // ln 2 in one part: what it lacks is 0.05 ulp of the product.
    k.fused(c(LN2_HIGH / ONE), y).log_ends(x)
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<V: Lanes>(x: V) -> V {
    let c = V::splat;
    let z = x * x;
    let p = polynomial!(z; -5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 0.133_314_42, -0.333_332_8);
    let small = p.fused(z * x, x);
    let a = x.abs();
    // From here on the result rounds to one; a NaN stays one.
    let (shifted, r, q) = split(c(20.0).least(a + a));
    // e²ˣ + 1 = 2ⁿ·eʳ + 1.
    let power = V::from_bits(V::up::<23>(shifted.bits()) + V::int(127 << 23));
    let sum = q.fused(r, c(1.0)).fused(r, c(1.0)).fused(power, c(1.0));
    let large = c(1.0) - c(2.0) / sum;
    let y = small.or(a.lt(c(0.625)), large);
    // The second is positive, and the first loses the sign of zero.
    V::from_bits(V::bit_or(y.bits(), V::bit_and(x.bits(), V::int(i32::MIN))))
}

/// Up to here the reduction of [`sin`] and [`cos`] is good. (It is good much farther; but no model needs that, and the tests reach it.)
pub(crate) const TRIG_LIMIT: f32 = 1_048_576.0;

/// π = HIGH + LOW.
const PI_HIGH: f64 = std::f64::consts::PI;
const PI_LOW: f64 = 1.224_646_799_147_353_2e-16;
/// 1.5·2⁵²: adding it leaves the nearest integer in the low bits.
const WIDE_MAGIC: f64 = 6_755_399_441_055_744.0;

/// The sine of r from -π/2 to π/2; its negative where the lowest bit of `turns` is set.
#[inline(always)]
fn half_turn<W: Wide>(r: W, turns: W) -> W {
    let c = W::splat;
    let z = r * r;
    // (sin r - r) / r³: the polynomial whose greatest error, relative to the sine, is least (Remez), 0.0004 ulp of f32.
    let p = c(-2.388_834_333_978_137e-8);
    let p = p.fused(z, c(2.752_535_305_263_579_3e-6));
    let p = p.fused(z, c(-0.000_198_408_676_138_417_08));
    let p = p.fused(z, c(0.008_333_331_104_166_786));
    let p = p.fused(z, c(-0.166_666_666_260_475_4));
    p.fused(z * r, r).negated_where_odd(turns)
}

/// The sine, for arguments up to [`TRIG_LIMIT`].
#[inline(always)]
pub(crate) fn sin<V: Lanes>(x: V) -> V {
    let (c, x) = (V::Wide::splat, x.widen());
    let turns = x.fused(c(std::f64::consts::FRAC_1_PI), c(WIDE_MAGIC));
    let n = turns - c(WIDE_MAGIC);
    let r = n.fused(c(-PI_LOW), n.fused(c(-PI_HIGH), x));
    V::narrow(half_turn(r, turns))
}

/// The cosine, for arguments up to [`TRIG_LIMIT`].
#[inline(always)]
pub(crate) fn cos<V: Lanes>(x: V) -> V {
    let (c, x) = (V::Wide::splat, x.widen());
    // x = (n + ½)·π - r, and cos x = (-1)ⁿ·sin r.
    let turns = x.fused(c(std::f64::consts::FRAC_1_PI), c(-0.5)) + c(WIDE_MAGIC);
    let n = (turns - c(WIDE_MAGIC)) + c(0.5);
    let r = n.fused(c(PI_LOW), n.fused(c(PI_HIGH), x.neg()));
    V::narrow(half_turn(r, turns))
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
