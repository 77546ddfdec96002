//! Arrays of 4 values, which compilers turn into registers of whatever the target has at least.

use super::{Lanes, Vector};
use std::ops::{Add, Div, Mul, Sub};

const N: usize = 4;

/// 4 values.
#[derive(Clone, Copy)]
pub(crate) struct Floats([f32; N]);

/// 4 integers, or conditions: all bits or none.
#[derive(Clone, Copy)]
pub(crate) struct Ints([i32; N]);

/// An array from an expression for each element.
macro_rules! each {
    (|$i:ident| $value:expr) => {
        std::array::from_fn(|$i| $value)
    };
}

macro_rules! operators {
    ($t:ident, $($trait:ident $method:ident |$a:ident, $b:ident| $value:expr),*) => {
        $(impl $trait for $t {
            type Output = $t;
            #[inline(always)]
            fn $method(self, other: $t) -> $t {
                $t(each!(|i| { let ($a, $b) = (self.0[i], other.0[i]); $value }))
            }
        })*
    };
}
operators!(Floats, Add add |a, b| a + b, Sub sub |a, b| a - b, Mul mul |a, b| a * b, Div div |a, b| a / b);
operators!(Ints, Add add |a, b| a.wrapping_add(b), Sub sub |a, b| a.wrapping_sub(b));

/// Has every processor of the target a fused multiply-add?
const FUSES: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

/// `a·b + c`, rounded once, where that is no instruction.
///
/// The product is exact in f64, and the sum is rounded to odd there: when it is not exact, its last bit is set. Odd numbers are never the middle between two f32, so
/// that rounding once more gives what rounding the exact sum gives (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008).
#[inline(always)]
pub(super) fn fused(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // What the sum is less than the exact one (Knuth's two-sum); NaN where it is not finite.
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    let bits = sum.to_bits();
    // The sum is even and not exact: the neighbour towards the exact sum is odd.
    let away = (error > 0.0) == (sum > 0.0);
    let odd = if away { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let inexact = (error > 0.0) | (error < 0.0);
    f64::from_bits(if inexact & (bits & 1 == 0) { odd } else { bits }) as f32
}

#[inline(always)]
fn all_bits(holds: bool) -> i32 {
    -i32::from(holds)
}

impl Lanes for Floats {
    type Mask = Ints;
    type Ints = Ints;

    #[inline(always)]
    fn splat(x: f32) -> Floats {
        Floats([x; N])
    }
    #[inline(always)]
    fn sqrt(self) -> Floats {
        Floats(each!(|i| self.0[i].sqrt()))
    }
    #[inline(always)]
    fn fused(self, factor: Floats, summand: Floats) -> Floats {
        let (a, b, c) = (self.0, factor.0, summand.0);
        if FUSES { Floats(each!(|i| a[i].mul_add(b[i], c[i]))) } else { Floats(each!(|i| fused(a[i], b[i], c[i]))) }
    }
    #[inline(always)]
    fn floor(self) -> Floats {
        Floats(each!(|i| self.0[i].floor()))
    }
    #[inline(always)]
    fn least(self, other: Floats) -> Floats {
        Floats(each!(|i| if self.0[i] < other.0[i] { self.0[i] } else { other.0[i] }))
    }
    #[inline(always)]
    fn most(self, other: Floats) -> Floats {
        Floats(each!(|i| if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] }))
    }
    #[inline(always)]
    fn lt(self, other: Floats) -> Ints {
        Ints(each!(|i| all_bits(self.0[i] < other.0[i])))
    }
    #[inline(always)]
    fn le(self, other: Floats) -> Ints {
        Ints(each!(|i| all_bits(self.0[i] <= other.0[i])))
    }
    #[inline(always)]
    fn equal(self, other: Floats) -> Ints {
        Ints(each!(|i| all_bits(self.0[i] == other.0[i])))
    }
    #[inline(always)]
    fn both(a: Ints, b: Ints) -> Ints {
        Self::bit_and(a, b)
    }
    #[inline(always)]
    fn either(a: Ints, b: Ints) -> Ints {
        Self::bit_or(a, b)
    }
    #[inline(always)]
    fn not(a: Ints) -> Ints {
        Self::bit_xor(a, Self::mask(true))
    }
    #[inline(always)]
    fn mask(holds: bool) -> Ints {
        Ints([all_bits(holds); N])
    }
    #[inline(always)]
    fn any(a: Ints) -> bool {
        a.0.iter().fold(0, |any, bits| any | bits) != 0
    }
    #[inline(always)]
    fn or(self, mask: Ints, other: Floats) -> Floats {
        let (mask, a, b) = (mask.0, self.bits().0, other.bits().0);
        Floats::from_bits(Ints(each!(|i| a[i] & mask[i] | b[i] & !mask[i])))
    }
    #[inline(always)]
    fn bits(self) -> Ints {
        Ints(each!(|i| self.0[i].to_bits() as i32))
    }
    #[inline(always)]
    fn from_bits(bits: Ints) -> Floats {
        Floats(each!(|i| f32::from_bits(bits.0[i] as u32)))
    }
    #[inline(always)]
    fn int(x: i32) -> Ints {
        Ints([x; N])
    }
    #[inline(always)]
    fn bit_and(a: Ints, b: Ints) -> Ints {
        Ints(each!(|i| a.0[i] & b.0[i]))
    }
    #[inline(always)]
    fn bit_or(a: Ints, b: Ints) -> Ints {
        Ints(each!(|i| a.0[i] | b.0[i]))
    }
    #[inline(always)]
    fn bit_xor(a: Ints, b: Ints) -> Ints {
        Ints(each!(|i| a.0[i] ^ b.0[i]))
    }
    #[inline(always)]
    fn up<const BITS: u32>(a: Ints) -> Ints {
        Ints(each!(|i| a.0[i] << BITS))
    }
    #[inline(always)]
    fn down<const BITS: u32>(a: Ints) -> Ints {
        Ints(each!(|i| a.0[i] >> BITS))
    }
    #[inline(always)]
    fn from_ints(a: Ints) -> Floats {
        Floats(each!(|i| a.0[i] as f32))
    }
}

// SAFETY, for all pointers below: they are good for what is read or written (the trait's contract).
impl Vector for Floats {
    const LANES: usize = N;

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Floats {
        // SAFETY: as above; so for all methods.
        Floats(unsafe { p.cast::<[f32; N]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as above.
        unsafe { p.cast::<[f32; N]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Floats {
        let mut values = [0.0; N];
        // SAFETY: as above.
        unsafe { values.as_mut_ptr().copy_from_nonoverlapping(p, n) };
        Floats(values)
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: as above.
        unsafe { p.copy_from_nonoverlapping(self.0.as_ptr(), n) };
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Floats {
        // SAFETY: as above.
        let halves = unsafe { p.cast::<[u16; N]>().read_unaligned() };
        Floats(each!(|i| f32::from_bits(u32::from(halves[i]) << 16)))
    }
    #[inline(always)]
    unsafe fn store_upper(self, p: *mut u16) {
        // SAFETY: as above.
        unsafe { p.cast::<[u16; N]>().write_unaligned(each!(|i| (self.0[i].to_bits() >> 16) as u16)) };
    }
    #[inline(always)]
    unsafe fn load_mask(p: *const u8) -> Ints {
        // SAFETY: as above.
        let bytes = unsafe { p.cast::<[u8; N]>().read_unaligned() };
        Ints(each!(|i| all_bits(bytes[i] != 0)))
    }
    #[inline(always)]
    unsafe fn store_mask(mask: Ints, p: *mut u8) {
        // SAFETY: as above.
        unsafe { p.cast::<[u8; N]>().write_unaligned(each!(|i| (mask.0[i] & 1) as u8)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums that are exact, near the middle between two f32, denormal, overflowing and special.
    #[test]
    fn what_is_fused_without_an_instruction() {
        let special =
            [0.0, -0.0, 1.0, -1.0, 1e-45, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN, 1.0 + f32::EPSILON];
        let mut state = 1u32;
        let mut number = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        };
        for round in 0..2_000_000u32 {
            let mut pick = || match number() >> 28 {
                0 => special[(number() >> 16) as usize % special.len()],
                // Few bits, so that sums often lie in the middle.
                1..=5 => f32::from_bits(number() & 0xfff0_0000),
                // Near 1, so that the summands meet.
                6..=11 => f32::from_bits(0x3f80_0000 + (number() >> 4) % 0x0100_0000),
                _ => f32::from_bits(number()),
            };
            let (a, b, c) = (pick(), pick(), pick());
            let c = if round % 4 == 0 { -(a * b) } else { c };
            let (have, want) = (fused(a, b, c), a.mul_add(b, c));
            assert!(have.to_bits() == want.to_bits() || (have.is_nan() && want.is_nan()), "{a:e} · {b:e} + {c:e}");
        }
    }
}
