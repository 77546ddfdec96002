//! One value.

use super::Lanes;
use std::ops::{Add, Sub};

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
    fn fused(self, factor: f32, summand: f32) -> f32 {
        self.mul_add(factor, summand)
    }
    #[inline(always)]
    fn floor(self) -> f32 {
        self.floor()
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
    fn equal(self, other: f32) -> bool {
        self == other
    }
    #[inline(always)]
    fn both(a: bool, b: bool) -> bool {
        a & b
    }
    #[inline(always)]
    fn either(a: bool, b: bool) -> bool {
        a | b
    }
    #[inline(always)]
    fn not(a: bool) -> bool {
        !a
    }
    #[inline(always)]
    fn mask(holds: bool) -> bool {
        holds
    }
    #[inline(always)]
    fn any(a: bool) -> bool {
        a
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
