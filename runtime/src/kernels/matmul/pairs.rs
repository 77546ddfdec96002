//! Products of bf16 in pairs: a word of 32 bits holds two values that follow each other along the sum, and one instruction, `VDPBF16PS`, adds both
//! products to a sum of f32: twice as many as a fused multiply-add of f32, with half the bytes in panels. (On Intel's processors it takes so long that it is half as many:
//! there [`super::amx`] is for products of bf16, or panels of f32.)
//!
//! For each lane, as Intel's manual states it: `acc = fma(a.high, b.high, acc)`, then `acc = fma(a.low, b.low, acc)`, each rounded to
//! nearest even, with denormal operands taken for zeros and denormal results flushed to zero, whatever MXCSR says. A product of two bf16 has 16
//! bits and is exact in f32, so that multiplying and adding in two instructions gives the same bits. The emulations here do that in that order; they
//! keep denormal numbers. They are for tests: with AVX-512 but without the instruction, panels of f32 are faster, since taking pairs apart
//! costs more in each step of a tile than packing saves (`docs/performance.md`).
//!
//! Tiles that round their sums do it by `VCVTNEPS2BF16`, which takes denormals for zeros as well: the sum of two chains may be one. What is rounded elsewhere, since it is
//! added to what was there or rows of C do not lie side by side, stays denormal.

use super::pack::{AHEAD, PackArgs, SIDE_BY_SIDE};
#[cfg(any(test, target_arch = "x86_64"))]
use super::tile::entry_points;
use super::tile::{A_WIDTH, Simd, Source, prefetch_run};

/// What a flavour with panels of its own has of its `Base`.
#[cfg(any(test, target_arch = "x86_64"))]
macro_rules! of_base {
    () => {
        type T = f32;
        type R = <Base as Simd>::R;
        const LANES: usize = Base::LANES;
        const TRANSPOSE: usize = Base::TRANSPOSE;
        const FUSED: bool = Base::FUSED;

        #[inline(always)]
        unsafe fn zero() -> Self::R {
            // SAFETY: the trait's contract, whose features include the base's; so for all methods here.
            unsafe { Base::zero() }
        }
        #[inline(always)]
        unsafe fn splat(p: *const f32) -> Self::R {
            // SAFETY: as above.
            unsafe { Base::splat(p) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self::R {
            // SAFETY: as above.
            unsafe { Base::load(p) }
        }
        #[inline(always)]
        unsafe fn store(p: *mut f32, v: Self::R) {
            // SAFETY: as above.
            unsafe { Base::store(p, v) }
        }
        #[inline(always)]
        unsafe fn load_part(p: *const f32, n: usize) -> Self::R {
            // SAFETY: as above.
            unsafe { Base::load_part(p, n) }
        }
        #[inline(always)]
        unsafe fn store_part(p: *mut f32, v: Self::R, n: usize) {
            // SAFETY: as above.
            unsafe { Base::store_part(p, v, n) }
        }
        #[inline(always)]
        unsafe fn fma(a: Self::R, b: Self::R, c: Self::R) -> Self::R {
            // SAFETY: as above.
            unsafe { Base::fma(a, b, c) }
        }
        #[inline(always)]
        unsafe fn add(a: Self::R, b: Self::R) -> Self::R {
            // SAFETY: as above.
            unsafe { Base::add(a, b) }
        }
        #[inline(always)]
        unsafe fn transpose(src: *const f32, stride: usize, rows: usize, dst: *mut f32, width: usize) {
            // SAFETY: as above.
            unsafe { Base::transpose(src, stride, rows, dst, width) }
        }
        #[inline(always)]
        unsafe fn transpose_two(src: *const f32, stride: usize, dst: *mut f32, width: usize) {
            // SAFETY: as above.
            unsafe { Base::transpose_two(src, stride, dst, width) }
        }
        #[inline(always)]
        unsafe fn pairs(low: *const u16, high: *const u16) -> [[u32; A_WIDTH]; SIDE_BY_SIDE] {
            // SAFETY: as above.
            unsafe { Base::pairs(low, high) }
        }
    };
}
#[cfg(any(test, target_arch = "x86_64"))]
pub(super) use of_base;

/// A flavour whose panels hold pairs: that of f32, but for `dot` and what makes words of values.
#[cfg(any(test, target_arch = "x86_64"))]
macro_rules! flavour {
    (
        $(#[$meta:meta])* $module:ident, $base:ty, dot($a:ident, $b:ident, $c:ident) $dot:expr,
        round($low:ident, $high:ident) $round:expr, zip($halves:ident) $zip:expr,
        store($p:ident, $v:ident, $n:ident) $store:expr, $($points:tt)*
    ) => {
        $(#[$meta])*
        mod $module {
            use super::*;

            type Base = $base;

            /// Pairs of bf16.
            #[derive(Clone, Copy)]
            pub struct Flavour;

            impl Simd for Flavour {
                of_base!();
                const PAIR: usize = 2;
                const ROWS: usize = Base::ROWS;
                const VECTORS: usize = Base::VECTORS;
                const BLOCK_K: usize = 512;

                #[inline(always)]
                unsafe fn store_rounded($p: *mut half::bf16, $v: Self::R, $n: usize) {
                    $store
                }
                #[inline(always)]
                unsafe fn dot($a: Self::R, $b: Self::R, $c: Self::R) -> Self::R {
                    $dot
                }
                #[inline(always)]
                unsafe fn round($low: Self::R, $high: Self::R) -> Self::R {
                    $round
                }
                #[inline(always)]
                unsafe fn zip($halves: Self::R) -> Self::R {
                    $zip
                }
                #[inline(always)]
                unsafe fn store_halves([first, second]: [*mut f32; 2], halves: Self::R) {
                    // SAFETY: a place for half of the words each.
                    unsafe {
                        let words = words_of::<Base>(halves);
                        let (half, words) = (Self::LANES / 2, words.as_ptr());
                        first.cast::<u32>().copy_from_nonoverlapping(words, half);
                        second.cast::<u32>().copy_from_nonoverlapping(words.add(half), half);
                    }
                }
                entry_points!($($points)*);
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) use instruction::Flavour as Instruction;

#[cfg(target_arch = "x86_64")]
flavour!(
    instruction,
    crate::kernels::matmul::avx512::F32x16,
    dot(a, b, c) {
        use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps};
        // SAFETY: the features are the trait's contract; both types are any 64 bytes.
        unsafe {
            let pairs = |x: __m512| std::mem::transmute::<__m512, __m512bh>(x);
            _mm512_dpbf16_ps(c, pairs(a), pairs(b))
        }
    },
    round(low, high) {
        use std::arch::x86_64::{__m512, __m512bh, _mm512_cvtne2ps_pbh};
        // SAFETY: as above.
        unsafe { std::mem::transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low)) }
    },
    zip(halves) {
        use std::arch::x86_64::*;
        const LANE_BY_LANE: [u16; 32] = {
            let mut from = [0; 32];
            let mut i = 0;
            while i < 16 {
                (from[2 * i], from[2 * i + 1]) = (i as u16, i as u16 + 16);
                i += 1;
            }
            from
        };
        // SAFETY: as above.
        unsafe {
            let from = _mm512_loadu_si512(LANE_BY_LANE.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_permutexvar_epi16(from, _mm512_castps_si512(halves)))
        }
    },
    store(p, v, n) {
        use std::arch::x86_64::{__m256bh, __m256i, _mm256_mask_storeu_epi16, _mm512_cvtneps_pbh};
        // SAFETY: as above; masked values are not written.
        unsafe {
            let halves = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v));
            _mm256_mask_storeu_epi16(p.cast(), ((1u32 << n) - 1) as u16, halves);
        }
    },
    features "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", rows 1 2 3 4 5 6 7 8, vectors 1 2 3
);

#[cfg(all(test, target_arch = "x86_64"))]
pub(in crate::kernels) use emulated_avx512::Flavour as Avx512;

#[cfg(all(test, target_arch = "x86_64"))]
flavour!(
    emulated_avx512,
    crate::kernels::matmul::avx512::F32x16,
    dot(a, b, c) {
        use std::arch::x86_64::*;
        // SAFETY: the features are the trait's contract.
        unsafe {
            let high = |x| _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(!0xffff)));
            let low = |x| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(x)));
            Base::fma(low(a), low(b), Base::fma(high(a), high(b), c))
        }
    },
    round(low, high) {
        // SAFETY: the features are the trait's contract.
        unsafe { rounded::<Base>(low, high) }
    },
    zip(halves) {
        // SAFETY: as above.
        unsafe { zipped::<Base>(halves) }
    },
    store(p, v, n) {
        // SAFETY: as above.
        unsafe { Base::store_rounded(p, v, n) }
    },
    features "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", rows 1 2 3 4 5 6 7 8, vectors 1 2 3
);

#[cfg(all(test, target_arch = "x86_64"))]
pub(in crate::kernels) use emulated_avx2::Flavour as Avx2;

#[cfg(all(test, target_arch = "x86_64"))]
flavour!(
    emulated_avx2,
    crate::kernels::matmul::avx2::F32x8,
    dot(a, b, c) {
        use std::arch::x86_64::*;
        // SAFETY: the features are the trait's contract.
        unsafe {
            let high = |x| _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(!0xffff)));
            let low = |x| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(x)));
            Base::fma(low(a), low(b), Base::fma(high(a), high(b), c))
        }
    },
    round(low, high) {
        // SAFETY: the features are the trait's contract.
        unsafe { rounded::<Base>(low, high) }
    },
    zip(halves) {
        // SAFETY: as above.
        unsafe { zipped::<Base>(halves) }
    },
    store(p, v, n) {
        // SAFETY: as above.
        unsafe { Base::store_rounded(p, v, n) }
    },
    features "avx2,fma", rows 1 2 3 4 5 6, vectors 1 2
);

#[cfg(test)]
pub(in crate::kernels) use emulated_portable::Flavour as Portable;

#[cfg(test)]
flavour!(
    emulated_portable,
    crate::kernels::matmul::portable::PortableF32,
    dot(a, b, c) {
        let high = |x: [f32; 4]| x.map(|x| f32::from_bits(x.to_bits() & 0xffff_0000));
        let low = |x: [f32; 4]| x.map(|x| f32::from_bits(x.to_bits() << 16));
        // SAFETY: plain Rust takes no features.
        unsafe { Base::fma(low(a), low(b), Base::fma(high(a), high(b), c)) }
    },
    round(low, high) {
        // SAFETY: the features are the trait's contract.
        unsafe { rounded::<Base>(low, high) }
    },
    zip(halves) {
        // SAFETY: as above.
        unsafe { zipped::<Base>(halves) }
    },
    store(p, v, n) {
        // SAFETY: as above.
        unsafe { Base::store_rounded(p, v, n) }
    },
    rows 1 2 3 4, vectors 1 2
);

/// A vector's words; lanes that there are not are zeros.
///
/// # Safety
/// The machine has the flavour's features.
#[cfg(any(test, target_arch = "x86_64"))]
#[inline(always)]
unsafe fn words_of<S: Simd<T = f32>>(x: S::R) -> [u32; 16] {
    let mut words = [0; 16];
    // SAFETY: no vector has more lanes.
    unsafe { S::store(words.as_mut_ptr().cast(), x) };
    words
}

/// [`Simd::round`] by plain Rust.
///
/// # Safety
/// As [`words_of`].
#[cfg(test)]
#[inline(always)]
unsafe fn rounded<S: Simd<T = f32>>(low: S::R, high: S::R) -> S::R {
    // SAFETY: the caller's contract; half of the words come from each.
    unsafe {
        let values = [words_of::<S>(low), words_of::<S>(high)];
        let value = |i: usize| crate::kernels::math::narrowed(f32::from_bits(values[i / S::LANES][i % S::LANES]));
        let words: [u32; 16] =
            std::array::from_fn(|i| if i < S::LANES { word(value(2 * i), value(2 * i + 1)) } else { 0 });
        S::load(words.as_ptr().cast())
    }
}

/// [`Simd::zip`] by plain Rust.
///
/// # Safety
/// As [`words_of`].
#[cfg(test)]
#[inline(always)]
unsafe fn zipped<S: Simd<T = f32>>(halves: S::R) -> S::R {
    // SAFETY: the caller's contract.
    unsafe {
        let words = words_of::<S>(halves);
        let value = |i: usize| (words[i / 2] >> (i % 2 * 16)) as u16;
        let pairs: [u32; 16] =
            std::array::from_fn(|i| if i < S::LANES { word(value(i), value(S::LANES + i)) } else { 0 });
        S::load(pairs.as_ptr().cast())
    }
}

/// Packs panels of pairs: value `(i, p)` goes to the low half of word `i` of row `p / 2` for even `p`, to the
/// high half for odd ones. What lacks a partner gets a zero, until a later call [completes](PackArgs::completes) it.
///
/// # Safety
/// As [`super::pack::pack_panel`]; `X` has 16 bits, the words have 32.
#[inline(always)]
pub(super) unsafe fn pack_panel<S: Simd, X: Source<S::T>>(args: PackArgs<X, S::T>) {
    debug_assert!(size_of::<X>() == 2 && size_of::<S::T>() == 4);
    let mut panel = Panel {
        src: args.src.cast::<u16>(),
        width: args.width,
        across: args.across,
        along: args.along,
        dst: args.dst.cast::<u32>(),
        row: args.panel,
        panels: args.panels,
        panel_step: args.panel_step,
    };
    let mut depth = args.depth;
    // SAFETY: the caller's contract; each call goes on where the one before it ended.
    unsafe {
        if args.completes && depth > 0 {
            panel.each(|word, src, exists| *word |= if exists { u32::from(*src) << 16 } else { 0 });
            panel.advance(1, 1);
            depth -= 1;
        }
        let pairs = depth / 2;
        if panel.across == 1 && (panel.width, panel.row, panel.panels) == (A_WIDTH, A_WIDTH, SIDE_BY_SIDE) {
            panel.rows_side_by_side::<S>(pairs);
        } else if panel.across == 1 {
            panel.rows::<S>(pairs);
        } else if panel.along == 1 {
            panel.squares::<S>(pairs);
        } else {
            panel.one_by_one(pairs);
        }
        panel.advance(2 * pairs, pairs);
        if depth % 2 == 1 {
            panel.each(|word, src, exists| *word = if exists { u32::from(*src) } else { 0 });
        }
    }
}

/// What is left to pack.
#[derive(Clone, Copy)]
struct Panel {
    src: *const u16,
    width: usize,
    across: usize,
    along: usize,
    dst: *mut u32,
    /// Words of a panel's row.
    row: usize,
    /// How many panels, each with the `width` values after those of the one before it.
    panels: usize,
    panel_step: usize,
}

/// All methods: the source has the values, the destination the rows.
impl Panel {
    #[inline(always)]
    unsafe fn advance(&mut self, products: usize, rows: usize) {
        self.src = self.src.wrapping_add(products * self.along);
        self.dst = self.dst.wrapping_add(rows * self.row);
    }

    /// The panels one after the other.
    #[inline(always)]
    fn split(self) -> impl Iterator<Item = Panel> {
        (0..self.panels).map(move |i| Panel {
            src: self.src.wrapping_add(i * self.width * self.across),
            dst: self.dst.wrapping_add(i * self.panel_step),
            ..self
        })
    }

    /// Calls `f(word, value, is there such a value?)` for a row of words.
    #[inline(always)]
    unsafe fn each(self, f: impl Fn(&mut u32, *const u16, bool)) {
        for panel in self.split() {
            for i in 0..panel.row {
                // SAFETY: the row has the word; `f` reads values that exist.
                unsafe { f(&mut *panel.dst.add(i), panel.src.wrapping_add(i * panel.across), i < panel.width) };
            }
        }
    }

    /// The source is contiguous across full panels of A: a cache line of two rows becomes a row of words in each panel.
    #[inline(always)]
    unsafe fn rows_side_by_side<S: Simd>(self, pairs: usize) {
        for p in 0..pairs {
            // SAFETY: the caller's contract.
            unsafe {
                let low = self.src.add(2 * p * self.along);
                for (i, row) in S::pairs(low, low.add(self.along)).into_iter().enumerate() {
                    self.dst.add(i * self.panel_step + p * A_WIDTH).cast::<[u32; A_WIDTH]>().write_unaligned(row);
                }
            }
        }
    }

    /// The source is contiguous across the panel: two of its rows become one of words.
    #[inline(always)]
    unsafe fn rows<S: Simd>(self, pairs: usize) {
        for panel in self.split() {
            for p in 0..pairs {
                // SAFETY: the caller's contract.
                unsafe {
                    let (low, dst) = (panel.src.add(2 * p * panel.along), panel.dst.add(p * panel.row));
                    let high = low.add(panel.along);
                    prefetch_run(low.wrapping_add(AHEAD * panel.along), panel.width);
                    prefetch_run(high.wrapping_add(AHEAD * panel.along), panel.width);
                    let mut i = 0;
                    while i + SIDE_BY_SIDE * A_WIDTH <= panel.width {
                        let four = S::pairs(low.add(i), high.add(i));
                        dst.add(i).cast::<[[u32; A_WIDTH]; SIDE_BY_SIDE]>().write_unaligned(four);
                        i += SIDE_BY_SIDE * A_WIDTH;
                    }
                    while i + 2 * A_WIDTH <= panel.width {
                        let two: [[u32; A_WIDTH]; 2] = words(low.add(i), high.add(i));
                        dst.add(i).cast::<[[u32; A_WIDTH]; 2]>().write_unaligned(two);
                        i += 2 * A_WIDTH;
                    }
                    while i < panel.width {
                        *dst.add(i) = word(*low.add(i), *high.add(i));
                        i += 1;
                    }
                    while i < panel.row {
                        *dst.add(i) = 0;
                        i += 1;
                    }
                }
            }
        }
    }

    /// The source is contiguous along the panel: it holds words already, and squares of them are transposed.
    #[inline(always)]
    unsafe fn squares<S: Simd>(self, pairs: usize) {
        let side = S::TRANSPOSE;
        let whole = pairs / side * side;
        for panel in self.split() {
            for first in (0..panel.row).step_by(side) {
                let rows = panel.width.saturating_sub(first).min(side);
                let src = panel.src.wrapping_add(first * panel.across);
                // SAFETY: `side` divides the row; sources are read for `rows` rows and `pairs` words only.
                unsafe {
                    let dst = panel.dst.add(first);
                    let mut done = 0;
                    if rows == side && panel.across.is_multiple_of(2) {
                        while done + 2 * side <= whole {
                            let (src, dst) = (src.wrapping_add(2 * done), dst.add(done * panel.row));
                            S::transpose_two(src.cast::<S::T>(), panel.across / 2, dst.cast::<S::T>(), panel.row);
                            done += 2 * side;
                        }
                    }
                    for p in (done..whole).step_by(side) {
                        let (src, dst) = (src.wrapping_add(2 * p), dst.add(p * panel.row).cast::<S::T>());
                        if panel.across.is_multiple_of(2) {
                            S::transpose(src.cast::<S::T>(), panel.across / 2, rows, dst, panel.row);
                        } else {
                            // Rows that are no whole number of words apart.
                            let mut words = [0u32; A_WIDTH * A_WIDTH];
                            for i in 0..rows {
                                let row = words.as_mut_ptr().add(i * side).cast::<u16>();
                                row.copy_from_nonoverlapping(src.add(i * panel.across), 2 * side);
                            }
                            S::transpose(words.as_ptr().cast::<S::T>(), side, rows, dst, panel.row);
                        }
                    }
                    for p in whole..pairs {
                        for i in 0..side {
                            let at = src.wrapping_add(i * panel.across + 2 * p).cast::<u32>();
                            *dst.add(p * panel.row + i) = if i < rows { at.read_unaligned() } else { 0 };
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn one_by_one(self, pairs: usize) {
        for panel in self.split() {
            for p in 0..pairs {
                for i in 0..panel.row {
                    // SAFETY: the caller's contract.
                    unsafe {
                        let low = panel.src.wrapping_add(i * panel.across + 2 * p * panel.along);
                        let high = low.wrapping_add(panel.along);
                        *panel.dst.add(p * panel.row + i) = if i < panel.width { word(*low, *high) } else { 0 };
                    }
                }
            }
        }
    }
}

/// Runs of two rows as words. All are read before the first is written, which makes them vectors.
///
/// # Safety
/// The rows have as many values.
#[inline(always)]
pub(super) unsafe fn words<const N: usize>(low: *const u16, high: *const u16) -> [[u32; A_WIDTH]; N] {
    // SAFETY: the caller's contract.
    let [low, high] = [low, high].map(|row| unsafe { row.cast::<[[u16; A_WIDTH]; N]>().read_unaligned() });
    std::array::from_fn(|i| std::array::from_fn(|j| word(low[i][j], high[i][j])))
}

/// Two values as one word.
#[inline(always)]
fn word(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}
