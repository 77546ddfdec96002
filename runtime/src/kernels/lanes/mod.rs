//! Vectors of f32, whatever their width: elementary functions and loops that are written once, for a single value and for registers.
//!
//! Every operation is the IEEE one, rounded once, so that the bits are the same for all widths. There is no fused multiply-add here.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;

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
    /// `self` where it is less than `other`, else `other`.
    fn least(self, other: Self) -> Self;
    /// `self` where it is greater than `other`, else `other`.
    fn most(self, other: Self) -> Self;
    /// `self < other`, false for NaN.
    fn lt(self, other: Self) -> Self::Mask;
    /// `self <= other`, false for NaN.
    fn le(self, other: Self) -> Self::Mask;
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

    /// The absolute value with the sign of another.
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        let sign = Self::bit_and(sign.bits(), Self::int(i32::MIN));
        Self::from_bits(Self::bit_xor(self.abs().bits(), sign))
    }
}

impl Lanes for f32 {
    type Mask = bool;
    type Ints = Int;

    #[inline(always)]
    fn splat(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        self.sqrt()
    }
    #[inline(always)]
    fn least(self, other: f32) -> f32 {
        if self < other { self } else { other }
    }
    #[inline(always)]
    fn most(self, other: f32) -> f32 {
        if self > other { self } else { other }
    }
    #[inline(always)]
    fn lt(self, other: f32) -> bool {
        self < other
    }
    #[inline(always)]
    fn le(self, other: f32) -> bool {
        self <= other
    }
    #[inline(always)]
    fn or(self, mask: bool, other: f32) -> f32 {
        if mask { self } else { other }
    }
    #[inline(always)]
    fn bits(self) -> Int {
        Int(self.to_bits() as i32)
    }
    #[inline(always)]
    fn from_bits(bits: Int) -> f32 {
        f32::from_bits(bits.0 as u32)
    }
    #[inline(always)]
    fn int(x: i32) -> Int {
        Int(x)
    }
    #[inline(always)]
    fn bit_and(a: Int, b: Int) -> Int {
        Int(a.0 & b.0)
    }
    #[inline(always)]
    fn bit_or(a: Int, b: Int) -> Int {
        Int(a.0 | b.0)
    }
    #[inline(always)]
    fn bit_xor(a: Int, b: Int) -> Int {
        Int(a.0 ^ b.0)
    }
    #[inline(always)]
    fn up<const N: u32>(a: Int) -> Int {
        Int(a.0 << N)
    }
    #[inline(always)]
    fn down<const N: u32>(a: Int) -> Int {
        Int(a.0 >> N)
    }
    #[inline(always)]
    fn from_ints(a: Int) -> f32 {
        a.0 as f32
    }
}

/// One i32 that wraps around.
#[derive(Clone, Copy)]
pub(crate) struct Int(i32);

impl Add for Int {
    type Output = Int;
    #[inline(always)]
    fn add(self, other: Int) -> Int {
        Int(self.0.wrapping_add(other.0))
    }
}

impl Sub for Int {
    type Output = Int;
    #[inline(always)]
    fn sub(self, other: Int) -> Int {
        Int(self.0.wrapping_sub(other.0))
    }
}

/// Two that go through everything side by side: the operations of one hide the latency of the other's.
#[derive(Clone, Copy)]
pub(crate) struct Pair<V>(V, V);

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
}

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
