//! AVX-512: 8 × 48 values of f32, 8 × 24 of f64: 24 accumulators, 3 vectors of B and one of A fill 28 of 32 registers.

use super::tile::{Simd, entry_points};
use std::arch::x86_64::*;

pub(in crate::kernels) use f32x16::Flavour as F32x16;
pub(in crate::kernels) use f64x8::Flavour as F64x8;

mod f32x16 {
    use super::*;

    /// 16 lanes of f32.
    #[derive(Clone, Copy)]
    pub struct Flavour;

    impl Simd for Flavour {
        type T = f32;
        type R = __m512;
        const LANES: usize = 16;
        const ROWS: usize = 8;
        const VECTORS: usize = 3;
        const TRANSPOSE: usize = 8;
        const FUSED: bool = true;

        #[inline(always)]
        unsafe fn zero() -> __m512 {
            // SAFETY: the features are the trait's contract; so for all methods here.
            unsafe { _mm512_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn splat(p: *const f32) -> __m512 {
            // SAFETY: as above, and the pointer is good.
            unsafe { _mm512_set1_ps(*p) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, v: __m512) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn load_part(p: *const f32, n: usize) -> __m512 {
            // SAFETY: as above; masked lanes are not read.
            unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as u16, p) }
        }
        #[inline(always)]
        unsafe fn store_part(p: *mut f32, v: __m512, n: usize) {
            // SAFETY: as above; masked lanes are not written.
            unsafe { _mm512_mask_storeu_ps(p, ((1u32 << n) - 1) as u16, v) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn store_rounded(p: *mut half::bf16, v: __m512, n: usize) {
            use crate::kernels::lanes::{Lanes, Vector, avx512::Floats};
            // SAFETY: as above; masked lanes are not written.
            unsafe { Floats(v).nearest_bf16().store_upper_part(p.cast(), n) }
        }
        #[inline(always)]
        unsafe fn transpose(src: *const f32, stride: usize, rows: usize, dst: *mut f32, width: usize) {
            // SAFETY: whoever has AVX-512 has AVX2.
            unsafe { super::super::avx2::F32x8::transpose(src, stride, rows, dst, width) }
        }
        entry_points!(features "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", rows 1 2 3 4 5 6 7 8, vectors 1 2 3);
    }
}

mod f64x8 {
    use super::*;

    /// 8 lanes of f64.
    #[derive(Clone, Copy)]
    pub struct Flavour;

    impl Simd for Flavour {
        type T = f64;
        type R = __m512d;
        const LANES: usize = 8;
        const ROWS: usize = 8;
        const VECTORS: usize = 3;
        const TRANSPOSE: usize = 4;
        const FUSED: bool = true;

        #[inline(always)]
        unsafe fn zero() -> __m512d {
            // SAFETY: the features are the trait's contract; so for all methods here.
            unsafe { _mm512_setzero_pd() }
        }
        #[inline(always)]
        unsafe fn splat(p: *const f64) -> __m512d {
            // SAFETY: as above, and the pointer is good.
            unsafe { _mm512_set1_pd(*p) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f64) -> __m512d {
            // SAFETY: as above.
            unsafe { _mm512_loadu_pd(p) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f64, v: __m512d) {
            // SAFETY: as above.
            unsafe { _mm512_storeu_pd(p, v) }
        }
        #[inline(always)]
        unsafe fn load_part(p: *const f64, n: usize) -> __m512d {
            // SAFETY: as above; masked lanes are not read.
            unsafe { _mm512_maskz_loadu_pd(((1u32 << n) - 1) as u8, p) }
        }
        #[inline(always)]
        unsafe fn store_part(p: *mut f64, v: __m512d, n: usize) {
            // SAFETY: as above; masked lanes are not written.
            unsafe { _mm512_mask_storeu_pd(p, ((1u32 << n) - 1) as u8, v) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m512d, b: __m512d, c: __m512d) -> __m512d {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_pd(a, b, c) }
        }
        #[inline(always)]
        unsafe fn add(a: __m512d, b: __m512d) -> __m512d {
            // SAFETY: as above.
            unsafe { _mm512_add_pd(a, b) }
        }
        #[inline(always)]
        unsafe fn transpose(src: *const f64, stride: usize, rows: usize, dst: *mut f64, width: usize) {
            // SAFETY: whoever has AVX-512 has AVX2.
            unsafe { super::super::avx2::F64x4::transpose(src, stride, rows, dst, width) }
        }
        entry_points!(features "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", rows 1 2 3 4 5 6 7 8, vectors 1 2 3);
    }
}
