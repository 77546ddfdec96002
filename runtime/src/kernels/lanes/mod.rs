//! Vectors of f32, whatever their width: elementary functions and loops that are written once, for a single value and for registers.
//!
//! Every operation is the IEEE one, rounded once, the fused multiply-add included, so that the bits are the same for all widths. Nothing is fused
//! that does not say so.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod pair;
pub(crate) mod portable;
mod scalar;

pub(crate) use pair::Pair;

use std::ops::{Add, Div, Mul, Sub};

/// Some values of f32.
///
/// Registers of vectors exist only in code that is compiled for the CPU features of their type: whoever makes the first one vouches for them.
pub(crate) trait Lanes:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// A condition for each value.
    type Mask: Copy;
    /// As many i32, which wrap around.
    type Ints: Copy + Add<Output = Self::Ints> + Sub<Output = Self::Ints>;

    fn splat(x: f32) -> Self;
    fn sqrt(self) -> Self;
    /// `self · factor + summand`, rounded once.
    fn fused(self, factor: Self, summand: Self) -> Self;
    /// Rounded towards minus infinity.
    fn floor(self) -> Self;
    /// `self` where it is less than `other`, else `other`.
    fn least(self, other: Self) -> Self;
    /// `self` where it is greater than `other`, else `other`.
    fn most(self, other: Self) -> Self;
    /// `self < other`, false for NaN.
    fn lt(self, other: Self) -> Self::Mask;
    /// `self <= other`, false for NaN.
    fn le(self, other: Self) -> Self::Mask;
    /// `self == other`, false for NaN.
    fn equal(self, other: Self) -> Self::Mask;
    /// Where both hold.
    fn both(a: Self::Mask, b: Self::Mask) -> Self::Mask;
    /// Where one of them holds.
    fn either(a: Self::Mask, b: Self::Mask) -> Self::Mask;
    /// Where it does not hold.
    fn not(a: Self::Mask) -> Self::Mask;
    /// Everywhere or nowhere.
    fn mask(holds: bool) -> Self::Mask;
    /// Does it hold anywhere?
    fn any(a: Self::Mask) -> bool;
    /// `self` where the condition holds, `other` elsewhere.
    fn or(self, mask: Self::Mask, other: Self) -> Self;
    fn bits(self) -> Self::Ints;
    fn from_bits(bits: Self::Ints) -> Self;
    fn int(x: i32) -> Self::Ints;
    fn bit_and(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn bit_or(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    fn bit_xor(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Bits moved up; zeros come in.
    fn up<const N: u32>(a: Self::Ints) -> Self::Ints;
    /// Bits moved down; copies of the sign come in.
    fn down<const N: u32>(a: Self::Ints) -> Self::Ints;
    /// The nearest f32.
    fn from_ints(a: Self::Ints) -> Self;

    /// The same without its sign.
    #[inline(always)]
    fn abs(self) -> Self {
        Self::from_bits(Self::bit_and(self.bits(), Self::int(i32::MAX)))
    }

    /// The same with the other sign.
    #[inline(always)]
    fn neg(self) -> Self {
        Self::from_bits(Self::bit_xor(self.bits(), Self::int(i32::MIN)))
    }

    /// Negative where `self` or `other` is (`self` has no sign, usually).
    #[inline(always)]
    fn with_sign_of(self, other: Self) -> Self {
        Self::from_bits(Self::bit_or(self.bits(), Self::bit_and(other.bits(), Self::int(i32::MIN))))
    }

    /// As [`math::min`](crate::kernels::math::min): NaN where either is.
    #[inline(always)]
    fn minimum(self, other: Self) -> Self {
        self.least(other).or(self.le(self), self)
    }

    /// As [`math::max`](crate::kernels::math::max).
    #[inline(always)]
    fn maximum(self, other: Self) -> Self {
        self.most(other).or(self.le(self), self)
    }

    /// `self · 2ⁿ`, rounded once, where `shifted` is n + [`MAGIC`]; 0 where the condition holds, whatever n is there. Elsewhere `self` is a number
    /// between ½ and 2 or NaN, and n between -151 and 128.
    #[inline(always)]
    fn times_power(self, shifted: Self, zero: Self::Mask) -> Self {
        let c = Self::splat;
        // 2ⁿ as two factors, of which the second is one of two, so that neither overflows and a denormal result is rounded once. Moving up
        // leaves n alone of `shifted`: the low bits of the other summand are zeros.
        let small = shifted.lt(c(MAGIC - 64.0));
        let bias = c(f32::from_bits((127 + 64) << 23)).or(small, c(f32::from_bits(126 << 23))).bits();
        let first = Self::from_bits(Self::up::<23>(shifted.bits()) + bias);
        let second = c(f32::from_bits((127 - 64) << 23)).or(small, c(2.0));
        // An exact zero before the second product: one that underflows takes a processor a hundred times as long.
        c(0.0).or(zero, self * first) * second
    }

    /// The nearest bf16, ties to even, as an f32. NaNs stay NaNs.
    #[inline(always)]
    fn nearest_bf16(self) -> Self {
        let bits = self.bits();
        let odd = Self::bit_and(Self::down::<16>(bits), Self::int(1));
        let rounded = Self::from_bits(bits + (Self::int(0x7fff) + odd));
        let quiet = Self::from_bits(Self::bit_or(bits, Self::int(0x0040_0000)));
        // A NaN is not equal to itself.
        let y = rounded.or(self.le(self), quiet);
        Self::from_bits(Self::bit_and(y.bits(), Self::int(!0xffff)))
    }

    /// m from ¾ on and below 1½, and a whole number k, so that `self` is m·2ᵏ; some numbers where it is not greater than zero, or not finite.
    #[inline(always)]
    fn mantissa_and_exponent(self) -> (Self, Self) {
        let c = Self::splat;
        let denormal = self.lt(c(f32::MIN_POSITIVE));
        let bits = (self * c(8_388_608.0)).or(denormal, self).bits();
        let k = Self::down::<23>(bits - Self::int(0x3f40_0000));
        let mantissa = Self::from_bits(bits - Self::up::<23>(k));
        (mantissa, Self::from_ints(k) - c(23.0).or(denormal, c(0.0)))
    }

    /// The logarithm's value at its ends: `self`, but -∞ for both zeros, NaN below them, and +∞ for +∞; a NaN stays one.
    #[inline(always)]
    fn log_ends(self, x: Self) -> Self {
        let c = Self::splat;
        let y = c(f32::NEG_INFINITY).or(x.le(c(0.0)), self);
        let y = x.or(c(f32::INFINITY).le(x), y);
        // NaN is not at least zero either.
        y.or(c(0.0).le(x), c(f32::NAN))
    }
}

/// 1.5·2²³: adding it to a number below 2²² leaves the nearest integer in the low bits of the sum.
pub(crate) const MAGIC: f32 = 12_582_912.0;

/// Values of a register at most.
const MOST_LANES: usize = 16;

/// Lanes in vector registers.
///
/// # Safety
/// All methods: the machine has the type's features, and pointers are good for what is read or written.
pub(crate) trait Vector: Lanes {
    /// Values in it.
    const LANES: usize;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// The first `n` values; the others are zeros.
    unsafe fn load_part(p: *const f32, n: usize) -> Self;
    /// Stores the first `n` values.
    unsafe fn store_part(self, p: *mut f32, n: usize);
    /// bf16 widened.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Stores the upper halves.
    unsafe fn store_upper(self, p: *mut u16);
    /// The first `n` bf16 widened; the others are zeros.
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const u16, n: usize) -> Self {
        let mut part = [0; MOST_LANES];
        // SAFETY: the trait's contract; there is room for a register.
        unsafe {
            part.as_mut_ptr().copy_from_nonoverlapping(p, n);
            Self::load_bf16(part.as_ptr())
        }
    }
    /// Stores the first `n` upper halves.
    #[inline(always)]
    unsafe fn store_upper_part(self, p: *mut u16, n: usize) {
        let mut part = [0; MOST_LANES];
        // SAFETY: as above.
        unsafe {
            self.store_upper(part.as_mut_ptr());
            p.copy_from_nonoverlapping(part.as_ptr(), n);
        }
    }
    /// Where bytes are not 0.
    unsafe fn load_mask(p: *const u8) -> Self::Mask;
    /// Bytes of 1 where it holds, of 0 elsewhere.
    unsafe fn store_mask(mask: Self::Mask, p: *mut u8);
}

/// The operators of a register's type, by intrinsics.
#[cfg(target_arch = "x86_64")]
macro_rules! operators {
    ($t:ident, $($trait:ident $method:ident $intrinsic:ident),*) => {
        $(impl std::ops::$trait for $t {
            type Output = $t;
            #[inline(always)]
            fn $method(self, other: $t) -> $t {
                // SAFETY: a value of this type exists, so the machine has the features.
                $t(unsafe { $intrinsic(self.0, other.0) })
            }
        })*
    };
}
#[cfg(target_arch = "x86_64")]
use operators;
