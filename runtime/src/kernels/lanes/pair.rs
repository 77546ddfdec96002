//! Two side by side.

use super::{Lanes, Vector};
use std::ops::{Add, Div, Mul, Sub};

/// Two that go through everything side by side: the operations of one hide the latency of the other's.
#[derive(Clone, Copy)]
pub(crate) struct Pair<V>(pub V, pub V);

macro_rules! both {
    ($($trait:ident $method:ident),*) => {
        $(impl<V: $trait<Output = V>> $trait for Pair<V> {
            type Output = Pair<V>;
            #[inline(always)]
            fn $method(self, other: Pair<V>) -> Pair<V> {
                Pair(self.0.$method(other.0), self.1.$method(other.1))
            }
        })*
    };
}
both!(Add add, Sub sub, Mul mul, Div div);

impl<V: Lanes> Lanes for Pair<V> {
    type Mask = Pair<V::Mask>;
    type Ints = Pair<V::Ints>;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Pair(V::splat(x), V::splat(x))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Pair(self.0.sqrt(), self.1.sqrt())
    }
    #[inline(always)]
    fn fused(self, factor: Self, summand: Self) -> Self {
        Pair(self.0.fused(factor.0, summand.0), self.1.fused(factor.1, summand.1))
    }
    #[inline(always)]
    fn floor(self) -> Self {
        Pair(self.0.floor(), self.1.floor())
    }
    #[inline(always)]
    fn least(self, other: Self) -> Self {
        Pair(self.0.least(other.0), self.1.least(other.1))
    }
    #[inline(always)]
    fn most(self, other: Self) -> Self {
        Pair(self.0.most(other.0), self.1.most(other.1))
    }
    #[inline(always)]
    fn lt(self, other: Self) -> Self::Mask {
        Pair(self.0.lt(other.0), self.1.lt(other.1))
    }
    #[inline(always)]
    fn le(self, other: Self) -> Self::Mask {
        Pair(self.0.le(other.0), self.1.le(other.1))
    }
    #[inline(always)]
    fn equal(self, other: Self) -> Self::Mask {
        Pair(self.0.equal(other.0), self.1.equal(other.1))
    }
    #[inline(always)]
    fn both(a: Self::Mask, b: Self::Mask) -> Self::Mask {
        Pair(V::both(a.0, b.0), V::both(a.1, b.1))
    }
    #[inline(always)]
    fn either(a: Self::Mask, b: Self::Mask) -> Self::Mask {
        Pair(V::either(a.0, b.0), V::either(a.1, b.1))
    }
    #[inline(always)]
    fn not(a: Self::Mask) -> Self::Mask {
        Pair(V::not(a.0), V::not(a.1))
    }
    #[inline(always)]
    fn mask(holds: bool) -> Self::Mask {
        Pair(V::mask(holds), V::mask(holds))
    }
    #[inline(always)]
    fn any(a: Self::Mask) -> bool {
        V::any(V::either(a.0, a.1))
    }
    #[inline(always)]
    fn or(self, mask: Self::Mask, other: Self) -> Self {
        Pair(self.0.or(mask.0, other.0), self.1.or(mask.1, other.1))
    }
    #[inline(always)]
    fn bits(self) -> Self::Ints {
        Pair(self.0.bits(), self.1.bits())
    }
    #[inline(always)]
    fn from_bits(bits: Self::Ints) -> Self {
        Pair(V::from_bits(bits.0), V::from_bits(bits.1))
    }
    #[inline(always)]
    fn int(x: i32) -> Self::Ints {
        Pair(V::int(x), V::int(x))
    }
    #[inline(always)]
    fn bit_and(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        Pair(V::bit_and(a.0, b.0), V::bit_and(a.1, b.1))
    }
    #[inline(always)]
    fn bit_or(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        Pair(V::bit_or(a.0, b.0), V::bit_or(a.1, b.1))
    }
    #[inline(always)]
    fn bit_xor(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        Pair(V::bit_xor(a.0, b.0), V::bit_xor(a.1, b.1))
    }
    #[inline(always)]
    fn up<const N: u32>(a: Self::Ints) -> Self::Ints {
        Pair(V::up::<N>(a.0), V::up::<N>(a.1))
    }
    #[inline(always)]
    fn down<const N: u32>(a: Self::Ints) -> Self::Ints {
        Pair(V::down::<N>(a.0), V::down::<N>(a.1))
    }
    #[inline(always)]
    fn from_ints(a: Self::Ints) -> Self {
        Pair(V::from_ints(a.0), V::from_ints(a.1))
    }
    #[inline(always)]
    fn times_power(self, shifted: Self, zero: Self::Mask) -> Self {
        Pair(self.0.times_power(shifted.0, zero.0), self.1.times_power(shifted.1, zero.1))
    }
    #[inline(always)]
    fn nearest_bf16(self) -> Self {
        Pair(self.0.nearest_bf16(), self.1.nearest_bf16())
    }
    #[inline(always)]
    fn mantissa_and_exponent(self) -> (Self, Self) {
        let ((m, k), (n, l)) = (self.0.mantissa_and_exponent(), self.1.mantissa_and_exponent());
        (Pair(m, n), Pair(k, l))
    }
    #[inline(always)]
    fn log_ends(self, x: Self) -> Self {
        Pair(self.0.log_ends(x.0), self.1.log_ends(x.1))
    }
}

impl<V: Vector> Vector for Pair<V> {
    const LANES: usize = 2 * V::LANES;

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the trait's contract; so for all methods.
        unsafe { Pair(V::load(p), V::load(p.add(V::LANES))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as above.
        unsafe {
            self.0.store(p);
            self.1.store(p.add(V::LANES));
        }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        let second = n.saturating_sub(V::LANES);
        // SAFETY: as above; of a part without values nothing is read.
        unsafe { Pair(V::load_part(p, n - second), V::load_part(p.wrapping_add(V::LANES), second)) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        let second = n.saturating_sub(V::LANES);
        // SAFETY: as above; of a part without values nothing is written.
        unsafe {
            self.0.store_part(p, n - second);
            self.1.store_part(p.wrapping_add(V::LANES), second);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: as above.
        unsafe { Pair(V::load_bf16(p), V::load_bf16(p.add(V::LANES))) }
    }
    #[inline(always)]
    unsafe fn store_upper(self, p: *mut u16) {
        // SAFETY: as above.
        unsafe {
            self.0.store_upper(p);
            self.1.store_upper(p.add(V::LANES));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const u16, n: usize) -> Self {
        let second = n.saturating_sub(V::LANES);
        // SAFETY: as above; of a part without values nothing is read.
        unsafe { Pair(V::load_bf16_part(p, n - second), V::load_bf16_part(p.wrapping_add(V::LANES), second)) }
    }
    #[inline(always)]
    unsafe fn store_upper_part(self, p: *mut u16, n: usize) {
        let second = n.saturating_sub(V::LANES);
        // SAFETY: as above; of a part without values nothing is written.
        unsafe {
            self.0.store_upper_part(p, n - second);
            self.1.store_upper_part(p.wrapping_add(V::LANES), second);
        }
    }
    #[inline(always)]
    unsafe fn load_mask(p: *const u8) -> Self::Mask {
        // SAFETY: as above.
        unsafe { Pair(V::load_mask(p), V::load_mask(p.add(V::LANES))) }
    }
    #[inline(always)]
    unsafe fn store_mask(mask: Self::Mask, p: *mut u8) {
        // SAFETY: as above.
        unsafe {
            V::store_mask(mask.0, p);
            V::store_mask(mask.1, p.add(V::LANES));
        }
    }
}
