//! AVX2 and FMA: 8 values.

use super::{Lanes, Vector, operators};
use std::arch::x86_64::*;

/// 8 values.
#[derive(Clone, Copy)]
pub(crate) struct Floats(__m256);

/// 8 integers.
#[derive(Clone, Copy)]
pub(crate) struct Ints(__m256i);

operators!(Floats, Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps);
operators!(Ints, Add add _mm256_add_epi32, Sub sub _mm256_sub_epi32);

// SAFETY, for all intrinsics below: values of these types are made in code for machines that have the features (the traits' contracts).
impl Lanes for Floats {
    type Mask = __m256;
    type Ints = Ints;

    #[inline(always)]
    fn splat(x: f32) -> Floats {
        // SAFETY: as above; so for all methods.
        Floats(unsafe { _mm256_set1_ps(x) })
    }
    #[inline(always)]
    fn sqrt(self) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm256_sqrt_ps(self.0) })
    }
    #[inline(always)]
    fn fused(self, factor: Floats, summand: Floats) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm256_fmadd_ps(self.0, factor.0, summand.0) })
    }
    #[inline(always)]
    fn floor(self) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm256_floor_ps(self.0) })
    }
    #[inline(always)]
    fn least(self, other: Floats) -> Floats {
        // SAFETY: as above. The instruction gives its second operand unless the first is less.
        Floats(unsafe { _mm256_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn most(self, other: Floats) -> Floats {
        // SAFETY: as above. The instruction gives its second operand unless the first is greater.
        Floats(unsafe { _mm256_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn lt(self, other: Floats) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, other.0) }
    }
    #[inline(always)]
    fn le(self, other: Floats) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cmp_ps::<_CMP_LE_OQ>(self.0, other.0) }
    }
    #[inline(always)]
    fn equal(self, other: Floats) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0) }
    }
    #[inline(always)]
    fn both(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_and_ps(a, b) }
    }
    #[inline(always)]
    fn either(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_or_ps(a, b) }
    }
    #[inline(always)]
    fn not(a: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_xor_ps(a, Self::mask(true)) }
    }
    #[inline(always)]
    fn mask(holds: bool) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_castsi256_ps(_mm256_set1_epi32(-i32::from(holds))) }
    }
    #[inline(always)]
    fn any(a: __m256) -> bool {
        // SAFETY: as above.
        unsafe { _mm256_movemask_ps(a) != 0 }
    }
    #[inline(always)]
    fn or(self, mask: __m256, other: Floats) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm256_blendv_ps(other.0, self.0, mask) })
    }
    #[inline(always)]
    fn bits(self) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm256_castps_si256(self.0) })
    }
    #[inline(always)]
    fn from_bits(bits: Ints) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm256_castsi256_ps(bits.0) })
    }
    #[inline(always)]
    fn int(x: i32) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm256_set1_epi32(x) })
    }
    #[inline(always)]
    fn bit_and(a: Ints, b: Ints) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm256_and_si256(a.0, b.0) })
    }
    #[inline(always)]
    fn bit_or(a: Ints, b: Ints) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm256_or_si256(a.0, b.0) })
    }
    #[inline(always)]
    fn bit_xor(a: Ints, b: Ints) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm256_xor_si256(a.0, b.0) })
    }
    #[inline(always)]
    fn up<const N: u32>(a: Ints) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm256_sll_epi32(a.0, _mm_cvtsi32_si128(N as i32)) })
    }
    #[inline(always)]
    fn down<const N: u32>(a: Ints) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm256_sra_epi32(a.0, _mm_cvtsi32_si128(N as i32)) })
    }
    #[inline(always)]
    fn from_ints(a: Ints) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm256_cvtepi32_ps(a.0) })
    }
}

static MASK: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// The first `n ≤ 8` lanes.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    // SAFETY: the load lies within the table; the features are the trait's contract.
    unsafe { _mm256_loadu_si256(MASK.as_ptr().add(8 - n).cast()) }
}

impl Vector for Floats {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Floats {
        // SAFETY: the trait's contract; so for all methods.
        Floats(unsafe { _mm256_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Floats {
        // SAFETY: as above; masked values are not read.
        Floats(unsafe { _mm256_maskload_ps(p, first(n)) })
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: as above; masked values are not written.
        unsafe { _mm256_maskstore_ps(p, first(n), self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Floats {
        // SAFETY: as above.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            Floats(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn store_upper(self, p: *mut u16) {
        // SAFETY: as above.
        unsafe {
            let upper = _mm256_srli_epi32::<16>(_mm256_castps_si256(self.0));
            // Packing works within halves of a register: the quarters in the middle change places.
            let packed = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packus_epi32(upper, upper));
            _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(packed));
        }
    }
    #[inline(always)]
    unsafe fn load_mask(p: *const u8) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(wide, _mm256_setzero_si256()))
        }
    }
    #[inline(always)]
    unsafe fn store_mask(mask: __m256, p: *mut u8) {
        // SAFETY: as above.
        unsafe {
            let ones = _mm256_and_si256(_mm256_castps_si256(mask), _mm256_set1_epi32(1));
            let (low, high) = (_mm256_castsi256_si128(ones), _mm256_extracti128_si256::<1>(ones));
            let halves = _mm_packs_epi32(low, high);
            _mm_storel_epi64(p.cast(), _mm_packus_epi16(halves, halves));
        }
    }
}
