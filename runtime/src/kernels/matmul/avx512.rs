//! AVX-512: 8 × 48 values of f32, 8 × 24 of f64: 24 accumulators, 3 vectors of B and one of A fill 28 of 32 registers.

use super::pack::SIDE_BY_SIDE;
use super::tile::{A_WIDTH, Simd, entry_points};
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
        #[inline(always)]
        unsafe fn transpose_two(src: *const f32, stride: usize, dst: *mut f32, width: usize) {
            // SAFETY: as above; 8 rows of 16 values are read, 16 of 8 written.
            unsafe {
                let (upper, lower) = (columns_of_four(src, stride), columns_of_four(src.add(4 * stride), stride));
                let first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
                let second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
                for j in 0..4 {
                    let to = dst.add(j * width);
                    let two = _mm512_permutex2var_pd(upper[j], first, lower[j]);
                    _mm256_storeu_pd(to.cast(), _mm512_castpd512_pd256(two));
                    _mm256_storeu_pd(to.add(4 * width).cast(), _mm512_extractf64x4_pd::<1>(two));
                    let two = _mm512_permutex2var_pd(upper[j], second, lower[j]);
                    _mm256_storeu_pd(to.add(8 * width).cast(), _mm512_castpd512_pd256(two));
                    _mm256_storeu_pd(to.add(12 * width).cast(), _mm512_extractf64x4_pd::<1>(two));
                }
            }
        }
        #[inline(always)]
        unsafe fn pairs(low: *const u16, high: *const u16) -> [[u32; A_WIDTH]; SIDE_BY_SIDE] {
            const FROM: [[u16; 32]; 2] = {
                let mut from = [[0; 32]; 2];
                let mut i = 0;
                while i < 32 {
                    from[i / 16][i % 16 * 2] = i as u16;
                    from[i / 16][i % 16 * 2 + 1] = i as u16 + 32;
                    i += 1;
                }
                from
            };
            // SAFETY: as above: both rows have 32 values; the result is two registers.
            unsafe {
                let (low, high) = (_mm512_loadu_si512(low.cast()), _mm512_loadu_si512(high.cast()));
                let pairs =
                    FROM.map(|from| _mm512_permutex2var_epi16(low, _mm512_loadu_si512(from.as_ptr().cast()), high));
                std::mem::transmute::<[__m512i; 2], [[u32; A_WIDTH]; SIDE_BY_SIDE]>(pairs)
            }
        }
        entry_points!(features "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", rows 1 2 3 4 5 6 7 8, vectors 1 2 3);
    }

    /// Columns of four rows of 16 values: register j has in its part i, of four values, column 4i + j.
    ///
    /// # Safety
    /// The machine has AVX-512, and the rows exist.
    #[inline(always)]
    unsafe fn columns_of_four(src: *const f32, stride: usize) -> [__m512d; 4] {
        // SAFETY: the caller's contract.
        unsafe {
            let r0 = _mm512_loadu_ps(src);
            let r1 = _mm512_loadu_ps(src.add(stride));
            let r2 = _mm512_loadu_ps(src.add(2 * stride));
            let r3 = _mm512_loadu_ps(src.add(3 * stride));
            let t0 = _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1));
            let t1 = _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1));
            let t2 = _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3));
            let t3 = _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3));
            [
                _mm512_unpacklo_pd(t0, t2),
                _mm512_unpackhi_pd(t0, t2),
                _mm512_unpacklo_pd(t1, t3),
                _mm512_unpackhi_pd(t1, t3),
            ]
        }
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
