//! Elementary functions: one of each for f32, shared by all kernels, as straight-line code for a single value, which compilers turn into vector code,
//! or a register of them ([`Lanes`]).
//!
//! No fused multiply-add and no approximate instructions: the bits are the same at every CPU level. bf16 uses the f32 functions and rounds.
//! f64 uses the standard library's functions, which are the platform's: the same on one machine, not on all.
//!
//! | f32 | error, ulp | method |
//! |---|---|---|
//! | [`exp`] | < 1.1 | `2ⁿ·eʳ`, r reduced with ln 2 in two parts, minimax polynomial |
//! | [`log`] | < 1 | the series in `f/(2 + f)` of FreeBSD's msun |
//! | [`tanh`] | < 2 | polynomial of Cephes below 5/8, `1 - 2/(e²ˣ + 1)` above |
//! | [`sin`], [`cos`] | < 0.51 | reduction and polynomials in f64 (msun) up to [`TRIG_LIMIT`], the f64 library function beyond |
//! | square root, division | 0.5 | the instructions; `rsqrt` is `1 / sqrt(x)` |

use super::lanes::Lanes;

/// The nearest bf16, ties to even, as an f32. NaNs stay NaNs.
#[inline(always)]
pub(crate) fn round_to_bf16<V: Lanes>(x: V) -> V {
    let bits = x.bits();
    let odd = V::bit_and(V::down::<16>(bits), V::int(1));
    let rounded = V::from_bits(bits + (V::int(0x7fff) + odd));
    let quiet = V::from_bits(V::bit_or(bits, V::int(0x0040_0000)));
    // A NaN is not equal to itself.
    let y = rounded.or(x.le(x), quiet);
    V::from_bits(V::bit_and(y.bits(), V::int(!0xffff)))
}

/// eˣ.
#[inline(always)]
pub(crate) fn exp<V: Lanes>(x: V) -> V {
    let c = V::splat;
    // 1.5·2²³: adding it leaves the nearest integer in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    // ln 2 = HIGH + LOW; n·HIGH is exact for the n that occur.
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -2.121_944_4e-4;
    // Below, the result is zero.
    let vanishes = x.lt(c(-104.0));
    let small = x.lt(c(-80.0));
    // Above, it is infinite; a NaN stays one.
    let x = c(89.0).least(x);
    let shifted = x * c(std::f32::consts::LOG2_E) + c(MAGIC);
    let n = shifted - c(MAGIC);
    let r = (x - n * c(HIGH)) - n * c(LOW);
    // (eʳ - 1 - r) / r² for |r| < ln 2 / 2: the polynomial whose greatest error, times r²/eʳ, is least (Remez), 0.03 ulp of eʳ.
    let p = c(1.381_422_2e-3);
    let p = p * r + c(8.368_899e-3);
    let p = p * r + c(4.166_840_4e-2);
    let p = p * r + c(0.166_665_2);
    let p = p * r + c(0.499_999_94);
    let y = (p * (r * r) + r) + c(1.0);
    // 2ⁿ as two factors, of which the second is one of two, so that neither overflows and a denormal result is rounded once. Moving up
    // leaves n alone of `shifted`: the low bits of the other summand are zeros.
    let bias = c(f32::from_bits((127 + 64) << 23)).or(small, c(f32::from_bits(126 << 23))).bits();
    let first = V::from_bits(V::up::<23>(shifted.bits()) + bias);
    let second = c(f32::from_bits((127 - 64) << 23)).or(small, c(2.0));
    // An exact zero: a product that underflows takes a processor a hundred times as long, and half of all scores are masked with -∞.
    c(0.0).or(vanishes, y * first) * second
}

/// The natural logarithm: NaN below zero, -∞ at both zeros.
#[inline(always)]
pub(crate) fn log<V: Lanes>(x: V) -> V {
    let c = V::splat;
    const LN2_HIGH: f32 = 0.693_138_1;
    const LN2_LOW: f32 = 9.058_001e-6;
    /// √½: mantissas are taken from here up to √2.
    const SQRT_HALF: i32 = 0x3f35_04f3;
    let denormal = x.lt(c(f32::MIN_POSITIVE));
    let scaled = (x * c(8_388_608.0)).or(denormal, x);
    let shifted = scaled.bits() - V::int(SQRT_HALF);
    let k = V::from_ints(V::down::<23>(shifted)) - c(23.0).or(denormal, c(0.0));
    let mantissa = V::from_bits(V::bit_and(shifted, V::int(0x007f_ffff)) + V::int(SQRT_HALF));
    let f = mantissa - c(1.0);
    let s = f / (c(2.0) + f);
    let z = s * s;
    let w = z * z;
    let t1 = w * (c(0.400_009_72) + w * c(0.242_790_79));
    let t2 = z * (c(0.666_666_6) + w * c(0.284_987_87));
    let half_square = c(0.5) * f * f;
    let y = s * (half_square + (t2 + t1)) + k * c(LN2_LOW) - half_square + f + k * c(LN2_HIGH);
    let y = c(f32::NEG_INFINITY).or(x.le(c(0.0)), y);
    let y = x.or(c(f32::INFINITY).le(x), y);
    // NaN is not at least zero either.
    y.or(c(0.0).le(x), c(f32::NAN))
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<V: Lanes>(x: V) -> V {
    let c = V::splat;
    let z = x * x;
    let p = c(-5.704_988_7e-3);
    let p = p * z + c(2.063_909e-2);
    let p = p * z - c(5.373_971_6e-2);
    let p = p * z + c(1.333_144_2e-1);
    let p = p * z - c(3.333_328e-1);
    let small = p * z * x + x;
    let a = x.abs();
    let large = c(1.0) - c(2.0) / (exp(a + a) + c(1.0));
    // The sum loses the sign of zero.
    small.or(a.lt(c(0.625)), large).copysign(x)
}

/// Up to here the reduction of [`sin`] and [`cos`] is good; 2²⁰ leaves 12 bits to spare.
pub(crate) const TRIG_LIMIT: f32 = 1_048_576.0;

/// The quadrant, and sine and cosine of what remains.
#[inline(always)]
fn quarter_turns(x: f32) -> (u64, f64, f64) {
    // 1.5·2⁵²: adding it leaves the nearest integer in the low bits.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    // π/2 = HIGH + LOW; n·HIGH is exact for the n that occur.
    const HIGH: f64 = 1.570_796_310_901_641_8;
    const LOW: f64 = 1.589_325_477_352_819_6e-8;
    let x = f64::from(x);
    let shifted = x * std::f64::consts::FRAC_2_PI + MAGIC;
    let n = shifted - MAGIC;
    let r = (x - n * HIGH) - n * LOW;
    let z = r * r;
    let w = z * z;
    let sine = {
        let tail = -0.000_198_393_348_360_966_32 + z * 0.000_002_718_311_493_989_822;
        let s = z * r;
        (r + s * (-0.166_666_666_416_265_24 + z * 0.008_333_329_385_889_463)) + s * w * tail
    };
    let cosine = {
        let tail = -0.001_388_676_377_460_993 + z * 0.000_024_390_448_796_277_41;
        ((1.0 + z * -0.499_999_997_251_031) + w * 0.041_666_623_323_739_06) + (w * z) * tail
    };
    (shifted.to_bits() & 3, sine, cosine)
}

/// The sine, for arguments up to [`TRIG_LIMIT`].
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    let (quadrant, sine, cosine) = quarter_turns(x);
    let y = if quadrant & 1 == 0 { sine } else { cosine } as f32;
    if quadrant & 2 == 0 { y } else { -y }
}

/// The cosine, for arguments up to [`TRIG_LIMIT`].
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    let (quadrant, sine, cosine) = quarter_turns(x);
    let y = if quadrant & 1 == 0 { cosine } else { sine } as f32;
    if (quadrant + 1) & 2 == 0 { y } else { -y }
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
