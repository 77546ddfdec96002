//! AVX-512: 16 values.

use super::{Lanes, MAGIC, Vector, operators};
use std::arch::x86_64::*;

/// 16 values.
#[derive(Clone, Copy)]
pub(crate) struct Floats(pub __m512);

/// 16 integers.
#[derive(Clone, Copy)]
pub(crate) struct Ints(__m512i);

operators!(Floats, Add add _mm512_add_ps, Sub sub _mm512_sub_ps, Mul mul _mm512_mul_ps, Div div _mm512_div_ps);
operators!(Ints, Add add _mm512_add_epi32, Sub sub _mm512_sub_epi32);

// SAFETY, for all intrinsics below: values of these types are made in code for machines that have the features (the traits' contracts).
impl Lanes for Floats {
    type Mask = __mmask16;
    type Ints = Ints;

    #[inline(always)]
    fn splat(x: f32) -> Floats {
        // SAFETY: as above; so for all methods.
        Floats(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    fn sqrt(self) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm512_sqrt_ps(self.0) })
    }
    #[inline(always)]
    fn fused(self, factor: Floats, summand: Floats) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm512_fmadd_ps(self.0, factor.0, summand.0) })
    }
    #[inline(always)]
    fn floor(self) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(self.0) })
    }
    #[inline(always)]
    fn least(self, other: Floats) -> Floats {
        // SAFETY: as above. The instruction gives its second operand unless the first is less.
        Floats(unsafe { _mm512_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn most(self, other: Floats) -> Floats {
        // SAFETY: as above. The instruction gives its second operand unless the first is greater.
        Floats(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn lt(self, other: Floats) -> __mmask16 {
        // SAFETY: as above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, other.0) }
    }
    #[inline(always)]
    fn le(self, other: Floats) -> __mmask16 {
        // SAFETY: as above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LE_OQ>(self.0, other.0) }
    }
    #[inline(always)]
    fn equal(self, other: Floats) -> __mmask16 {
        // SAFETY: as above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0) }
    }
    #[inline(always)]
    fn both(a: __mmask16, b: __mmask16) -> __mmask16 {
        a & b
    }
    #[inline(always)]
    fn either(a: __mmask16, b: __mmask16) -> __mmask16 {
        a | b
    }
    #[inline(always)]
    fn not(a: __mmask16) -> __mmask16 {
        !a
    }
    #[inline(always)]
    fn mask(holds: bool) -> __mmask16 {
        if holds { !0 } else { 0 }
    }
    #[inline(always)]
    fn any(a: __mmask16) -> bool {
        a != 0
    }
    #[inline(always)]
    fn or(self, mask: __mmask16, other: Floats) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm512_mask_blend_ps(mask, other.0, self.0) })
    }
    #[inline(always)]
    fn bits(self) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm512_castps_si512(self.0) })
    }
    #[inline(always)]
    fn from_bits(bits: Ints) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm512_castsi512_ps(bits.0) })
    }
    #[inline(always)]
    fn int(x: i32) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm512_set1_epi32(x) })
    }
    #[inline(always)]
    fn bit_and(a: Ints, b: Ints) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm512_and_si512(a.0, b.0) })
    }
    #[inline(always)]
    fn bit_or(a: Ints, b: Ints) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm512_or_si512(a.0, b.0) })
    }
    #[inline(always)]
    fn bit_xor(a: Ints, b: Ints) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm512_xor_si512(a.0, b.0) })
    }
    #[inline(always)]
    fn up<const N: u32>(a: Ints) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm512_slli_epi32::<N>(a.0) })
    }
    #[inline(always)]
    fn down<const N: u32>(a: Ints) -> Ints {
        // SAFETY: as above.
        Ints(unsafe { _mm512_srai_epi32::<N>(a.0) })
    }
    #[inline(always)]
    fn from_ints(a: Ints) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm512_cvtepi32_ps(a.0) })
    }
    #[inline(always)]
    fn times_power(self, shifted: Floats, zero: __mmask16) -> Floats {
        let n = shifted - Floats::splat(MAGIC);
        // SAFETY: as above. Where a value is masked, nothing underflows.
        Floats(unsafe { _mm512_maskz_scalef_ps(!zero, self.0, n.0) })
    }
    #[inline(always)]
    fn nearest_bf16(self) -> Floats {
        // SAFETY: as above.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
            let up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
            let up = _mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
            let rounded = Floats(_mm512_castsi512_ps(up)).by_kind(self, 0x22);
            Floats::from_bits(Floats::bit_and(rounded.bits(), Floats::int(!0xffff)))
        }
    }
    #[inline(always)]
    fn mantissa_and_exponent(self) -> (Floats, Floats) {
        // SAFETY: as above. VGETEXP counts for mantissas from 1 to 2; of one below 1 it is one less.
        unsafe {
            let mantissa = _mm512_getmant_ps::<_MM_MANT_NORM_P75_1P5, _MM_MANT_SIGN_SRC>(self.0);
            (Floats(mantissa), Floats(_mm512_sub_ps(_mm512_getexp_ps(self.0), _mm512_getexp_ps(mantissa))))
        }
    }
    #[inline(always)]
    fn log_ends(self, x: Floats) -> Floats {
        self.by_kind(x, 0x0353_0422)
    }
}

impl Floats {
    /// `self`, or something else by the kind of x: of `table`, four bits each belong to quiet and signalling NaN, zero, one, -∞, +∞, other negative and other
    /// positive numbers, the lowest first. 0 is `self`, 2 is x as a quiet NaN, 3 a NaN, 4 and 5 are the infinities.
    #[inline(always)]
    fn by_kind(self, x: Floats, table: i32) -> Floats {
        // SAFETY: as above.
        Floats(unsafe { _mm512_fixupimm_ps::<0>(self.0, x.0, _mm512_set1_epi32(table)) })
    }
}

impl Vector for Floats {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Floats {
        // SAFETY: the trait's contract; so for all methods.
        Floats(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Floats {
        // SAFETY: as above; masked values are not read.
        Floats(unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as u16, p) })
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: as above; masked values are not written.
        unsafe { _mm512_mask_storeu_ps(p, ((1u32 << n) - 1) as u16, self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Floats {
        // SAFETY: as above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Floats(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn store_upper(self, p: *mut u16) {
        // SAFETY: as above.
        unsafe {
            let upper = _mm512_srli_epi32::<16>(_mm512_castps_si512(self.0));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(upper));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const u16, n: usize) -> Floats {
        // SAFETY: as above; masked values are not read.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(((1u32 << n) - 1) as u16, p.cast()));
            Floats(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn store_upper_part(self, p: *mut u16, n: usize) {
        // SAFETY: as above; masked values are not written.
        unsafe {
            let upper = _mm512_srli_epi32::<16>(_mm512_castps_si512(self.0));
            _mm256_mask_storeu_epi16(p.cast(), ((1u32 << n) - 1) as u16, _mm512_cvtepi32_epi16(upper));
        }
    }
    #[inline(always)]
    unsafe fn load_mask(p: *const u8) -> __mmask16 {
        // SAFETY: as above.
        unsafe {
            let bytes = _mm_loadu_si128(p.cast());
            _mm_test_epi8_mask(bytes, bytes)
        }
    }
    #[inline(always)]
    unsafe fn store_mask(mask: __mmask16, p: *mut u8) {
        // SAFETY: as above.
        unsafe { _mm_storeu_si128(p.cast(), _mm_maskz_set1_epi8(mask, 1)) }
    }
}
