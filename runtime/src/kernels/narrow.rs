//! Copies of f32 in bf16, outside of plans: of bytes, which need not be where numbers may be.

use super::cpu::{Cpu, by_cpu};
use super::math;

/// Rounds each f32 of `from` to the bf16 at its place in `to`, to nearest, ties to even, as a cast kernel does.
pub(crate) fn to_bf16(cpu: Cpu, from: &[u8], to: &mut [u8]) {
    debug_assert_eq!(from.len(), 2 * to.len());
    // SAFETY: the body is safe code, and a `Cpu` is never above the machine.
    unsafe { round_all(cpu, from.as_chunks().0, to.as_chunks_mut().0) }
}

#[inline(always)]
unsafe fn round_all_body(from: &[[u8; 4]], to: &mut [[u8; 2]]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = math::narrowed(f32::from_ne_bytes(*from)).to_ne_bytes();
    }
}

by_cpu!(unsafe fn round_all / round_all_body(from: &[[u8; 4]], to: &mut [[u8; 2]]));
