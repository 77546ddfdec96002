//! AVX2 with FMA: 6 × 16 values of f32, 6 × 8 of f64: 12 accumulators, 2 vectors of B and one of A fill 15 of 16 registers.

use super::tile::{Simd, entry_points};
use std::arch::x86_64::*;

pub(in crate::kernels) use f32x8::Flavour as F32x8;
pub(in crate::kernels) use f64x4::Flavour as F64x4;

mod f32x8 {
    use super::*;

    /// 8 lanes of f32.
    #[derive(Clone, Copy)]
    pub struct Flavour;

    static MASK: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

    #[inline(always)]
    unsafe fn mask(n: usize) -> __m256i {
        // SAFETY: `n ≤ 8`, so the load lies within the table; the features are the trait's contract.
        unsafe { _mm256_loadu_si256(MASK.as_ptr().add(8 - n).cast()) }
    }

    impl Simd for Flavour {
        type T = f32;
        type R = __m256;
        const LANES: usize = 8;
        const ROWS: usize = 6;
        const VECTORS: usize = 2;
        const TRANSPOSE: usize = 8;
        const FUSED: bool = true;

        #[inline(always)]
        unsafe fn zero() -> __m256 {
            // SAFETY: the features are the trait's contract; so for all methods here.
            unsafe { _mm256_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn splat(p: *const f32) -> __m256 {
            // SAFETY: as above, and the pointer is good.
            unsafe { _mm256_broadcast_ss(&*p) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, v: __m256) {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn load_part(p: *const f32, n: usize) -> __m256 {
            // SAFETY: as above; masked lanes are not read.
            unsafe { _mm256_maskload_ps(p, mask(n)) }
        }
        #[inline(always)]
        unsafe fn store_part(p: *mut f32, v: __m256, n: usize) {
            // SAFETY: as above; masked lanes are not written.
            unsafe { _mm256_maskstore_ps(p, mask(n), v) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        unsafe fn add(a: __m256, b: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn transpose(src: *const f32, stride: usize, rows: usize, dst: *mut f32, width: usize) {
            // SAFETY: `rows` rows of 8 values are read, 8 rows of 8 written; rows that do not exist are not read.
            unsafe {
                // Rows i and i + 4 in one register, so that after two stages of unpacking each register is a row of the result.
                let pair = |i: usize, column: usize| {
                    let half = |i: usize| {
                        if i < rows { _mm_loadu_ps(src.add(i * stride + column)) } else { _mm_setzero_ps() }
                    };
                    _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(half(i)), half(i + 4))
                };
                for column in [0, 4] {
                    let r = [pair(0, column), pair(1, column), pair(2, column), pair(3, column)];
                    let t0 = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
                    let t1 = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
                    let t2 = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
                    let t3 = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
                    let d = dst.add(column * width);
                    _mm256_storeu_ps(d, _mm256_castpd_ps(_mm256_unpacklo_pd(t0, t2)));
                    _mm256_storeu_ps(d.add(width), _mm256_castpd_ps(_mm256_unpackhi_pd(t0, t2)));
                    _mm256_storeu_ps(d.add(2 * width), _mm256_castpd_ps(_mm256_unpacklo_pd(t1, t3)));
                    _mm256_storeu_ps(d.add(3 * width), _mm256_castpd_ps(_mm256_unpackhi_pd(t1, t3)));
                }
            }
        }
        entry_points!(features "avx2,fma", rows 1 2 3 4 5 6, vectors 1 2);
    }
}

mod f64x4 {
    use super::*;

    /// 4 lanes of f64.
    #[derive(Clone, Copy)]
    pub struct Flavour;

    static MASK: [i64; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];

    #[inline(always)]
    unsafe fn mask(n: usize) -> __m256i {
        // SAFETY: `n ≤ 4`, so the load lies within the table; the features are the trait's contract.
        unsafe { _mm256_loadu_si256(MASK.as_ptr().add(4 - n).cast()) }
    }

    impl Simd for Flavour {
        type T = f64;
        type R = __m256d;
        const LANES: usize = 4;
        const ROWS: usize = 6;
        const VECTORS: usize = 2;
        const TRANSPOSE: usize = 4;
        const FUSED: bool = true;

        #[inline(always)]
        unsafe fn zero() -> __m256d {
            // SAFETY: the features are the trait's contract; so for all methods here.
            unsafe { _mm256_setzero_pd() }
        }
        #[inline(always)]
        unsafe fn splat(p: *const f64) -> __m256d {
            // SAFETY: as above, and the pointer is good.
            unsafe { _mm256_broadcast_sd(&*p) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f64) -> __m256d {
            // SAFETY: as above.
            unsafe { _mm256_loadu_pd(p) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f64, v: __m256d) {
            // SAFETY: as above.
            unsafe { _mm256_storeu_pd(p, v) }
        }
        #[inline(always)]
        unsafe fn load_part(p: *const f64, n: usize) -> __m256d {
            // SAFETY: as above; masked lanes are not read.
            unsafe { _mm256_maskload_pd(p, mask(n)) }
        }
        #[inline(always)]
        unsafe fn store_part(p: *mut f64, v: __m256d, n: usize) {
            // SAFETY: as above; masked lanes are not written.
            unsafe { _mm256_maskstore_pd(p, mask(n), v) }
        }
        #[inline(always)]
        unsafe fn fma(a: __m256d, b: __m256d, c: __m256d) -> __m256d {
            // SAFETY: as above.
            unsafe { _mm256_fmadd_pd(a, b, c) }
        }
        #[inline(always)]
        unsafe fn add(a: __m256d, b: __m256d) -> __m256d {
            // SAFETY: as above.
            unsafe { _mm256_add_pd(a, b) }
        }
        #[inline(always)]
        unsafe fn transpose(src: *const f64, stride: usize, rows: usize, dst: *mut f64, width: usize) {
            // SAFETY: `rows` rows of 4 values are read, 4 rows of 4 written; rows that do not exist are not read.
            unsafe {
                let row = |i: usize| if i < rows { _mm256_loadu_pd(src.add(i * stride)) } else { _mm256_setzero_pd() };
                let r = [row(0), row(1), row(2), row(3)];
                let t0 = _mm256_unpacklo_pd(r[0], r[1]);
                let t1 = _mm256_unpackhi_pd(r[0], r[1]);
                let t2 = _mm256_unpacklo_pd(r[2], r[3]);
                let t3 = _mm256_unpackhi_pd(r[2], r[3]);
                _mm256_storeu_pd(dst, _mm256_permute2f128_pd::<0x20>(t0, t2));
                _mm256_storeu_pd(dst.add(width), _mm256_permute2f128_pd::<0x20>(t1, t3));
                _mm256_storeu_pd(dst.add(2 * width), _mm256_permute2f128_pd::<0x31>(t0, t2));
                _mm256_storeu_pd(dst.add(3 * width), _mm256_permute2f128_pd::<0x31>(t1, t3));
            }
        }
        entry_points!(features "avx2,fma", rows 1 2 3 4 5 6, vectors 1 2);
    }
}
