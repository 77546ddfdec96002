//! Tiles by the processor's instructions.

use super::split::THIRDS;
use super::{Engine, SIDE, TileProduct};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::offset_of;

/// The processor's instructions.
pub(super) struct Amx;

/// Eight registers of 16 rows of 64 bytes: the operand of `LDTILECFG`.
#[repr(align(64))]
struct Shapes([u8; 64]);

static SHAPES: Shapes = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut register = 0;
    while register < 8 {
        bytes[16 + 2 * register] = 64;
        bytes[48 + register] = 16;
        register += 1;
    }
    Shapes(bytes)
};

/// Fetches so many lines: of two rows, or pairs of eight rows.
macro_rules! fetch {
    (two) => {
        "prefetchw [{next}]
         prefetchw [{next} + {next_row}]
         lea {next}, [{next} + 2 * {next_row}]"
    };
    (sixteen) => {
        concat!(fetch!(@pairs), "\n", fetch!(@pairs), "\n", fetch!(@pairs), "\n", fetch!(@pairs))
    };
    (@pairs) => {
        "prefetchw [{next}]
         prefetchw [{next} + 64]
         prefetchw [{next} + {next_row}]
         prefetchw [{next} + {next_row} + 64]
         lea {next}, [{next} + 2 * {next_row}]"
    };
}

/// Sums of one, two or four registers: those that are loaded or cleared, a step, those that are stored.
macro_rules! sums {
    ($sums:expr, [$($load:literal)*], [$($clear:literal)*], [$($step:literal)*], $lines:ident, [$($store:literal)*]) => {
        asm!(
            "mov {upper}, [{sums} + {FROM}]",
            "mov {lower}, [{sums} + {FROM} + 8]",
            "mov {row}, [{sums} + {FROM_ROW}]",
            "test {upper}, {upper}",
            "jz 3f",
            $($load,)*
            "jmp 4f",
            "3:",
            $($clear,)*
            "4:",
            "mov {upper}, [{sums} + {A}]",
            "mov {lower}, [{sums} + {A} + 8]",
            "mov {row}, [{sums} + {A_ROW}]",
            "5:",
            $($step,)*
            fetch!($lines),
            "add {upper}, {a_step}",
            "add {lower}, {a_step}",
            "add {b}, {b_step}",
            "dec {steps}",
            "jnz 5b",
            "mov {upper}, [{sums} + {TO}]",
            "mov {lower}, [{sums} + {TO} + 8]",
            "mov {row}, [{sums} + {TO_ROW}]",
            $($store,)*
            sums = in(reg) std::ptr::from_ref($sums),
            upper = out(reg) _,
            lower = out(reg) _,
            row = out(reg) _,
            a_step = in(reg) $sums.a_step,
            b = inout(reg) $sums.b => _,
            b_row = in(reg) $sums.b_row,
            b_step = in(reg) $sums.b_step,
            steps = inout(reg) $sums.steps => _,
            next = inout(reg) $sums.next => _,
            next_row = in(reg) $sums.next_row,
            FROM = const offset_of!(TileProduct, from),
            FROM_ROW = const offset_of!(TileProduct, from_row),
            A = const offset_of!(TileProduct, a),
            A_ROW = const offset_of!(TileProduct, a_row),
            TO = const offset_of!(TileProduct, to),
            TO_ROW = const offset_of!(TileProduct, to_row),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// Sums of so many registers, by these steps.
macro_rules! four {
    ($sums:expr, $steps:tt, $lines:ident) => {
        sums!(
            $sums,
            ["tileloadd tmm0, [{upper} + {row}]" "tileloadd tmm1, [{upper} + {row} + 64]"
             "tileloadd tmm2, [{lower} + {row}]" "tileloadd tmm3, [{lower} + {row} + 64]"],
            ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
            $steps,
            $lines,
            ["tilestored [{upper} + {row}], tmm0" "tilestored [{upper} + {row} + 64], tmm1"
             "tilestored [{lower} + {row}], tmm2" "tilestored [{lower} + {row} + 64], tmm3"]
        )
    };
}
macro_rules! upper_and_lower {
    ($sums:expr, $steps:tt, $lines:ident) => {
        sums!(
            $sums,
            ["tileloadd tmm0, [{upper} + {row}]" "tileloadd tmm2, [{lower} + {row}]"],
            ["tilezero tmm0" "tilezero tmm2"],
            $steps,
            $lines,
            ["tilestored [{upper} + {row}], tmm0" "tilestored [{lower} + {row}], tmm2"]
        )
    };
}
macro_rules! left_and_right {
    ($sums:expr, $steps:tt, $lines:ident) => {
        sums!(
            $sums,
            ["tileloadd tmm0, [{upper} + {row}]" "tileloadd tmm1, [{upper} + {row} + 64]"],
            ["tilezero tmm0" "tilezero tmm1"],
            $steps,
            $lines,
            ["tilestored [{upper} + {row}], tmm0" "tilestored [{upper} + {row} + 64], tmm1"]
        )
    };
}
macro_rules! one {
    ($sums:expr, $steps:tt, $lines:ident) => {
        sums!(
            $sums,
            ["tileloadd tmm0, [{upper} + {row}]"],
            ["tilezero tmm0"],
            $steps,
            $lines,
            ["tilestored [{upper} + {row}], tmm0"]
        )
    };
}

const _: () = assert!(super::split::THIRD == 2048, "where parts are in the steps below");

impl Amx {
    /// Sums of parts in the order of [`super::split`].
    ///
    /// # Safety
    /// As [`Engine::sum_thirds`].
    #[inline(always)]
    unsafe fn thirds_of_a_first(sums: &TileProduct) {
        // SAFETY: the caller's contract. A register reads 16 rows of 64 bytes, as far apart as they are.
        unsafe {
            match (sums.tall, sums.wide) {
                (true, true) => four!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row} + 4096]"
                 "tdpbf16ps tmm0, tmm4, tmm6" "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm5, [{lower} + {row} + 4096]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"
                 "tileloadd tmm4, [{upper} + {row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm5, [{lower} + {row} + 2048]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 2112]" "tdpbf16ps tmm1, tmm4, tmm7" "tdpbf16ps tmm3, tmm5, tmm7"
                 "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm5, [{lower} + {row}]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 4096]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 4160]" "tdpbf16ps tmm1, tmm4, tmm7" "tdpbf16ps tmm3, tmm5, tmm7"
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7" "tdpbf16ps tmm3, tmm5, tmm7"
                ], sixteen),
                (true, false) => upper_and_lower!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row} + 4096]"
                 "tdpbf16ps tmm0, tmm4, tmm6" "tileloadd tmm5, [{lower} + {row} + 4096]" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloadd tmm4, [{upper} + {row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm5, [{lower} + {row} + 2048]" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6" "tileloadd tmm5, [{lower} + {row}]"
                 "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 4096]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                ], sixteen),
                (false, true) => left_and_right!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row} + 4096]"
                 "tdpbf16ps tmm0, tmm4, tmm6" "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm4, [{upper} + {row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 2112]" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 4096]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 4160]" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"
                ], sixteen),
                (false, false) => one!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row} + 4096]"
                 "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm4, [{upper} + {row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 4096]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                ], sixteen),
            }
        }
    }

    /// The same with A's parts and B's exchanged.
    ///
    /// # Safety
    /// As [`Engine::sum_thirds`].
    #[inline(always)]
    unsafe fn thirds_of_b_first(sums: &TileProduct) {
        // SAFETY: the caller's contract. A register reads 16 rows of 64 bytes, as far apart as they are.
        unsafe {
            match (sums.tall, sums.wide) {
                (true, true) => four!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row} + 4096]" "tileloadd tmm4, [{upper} + {row}]"
                 "tdpbf16ps tmm0, tmm4, tmm6" "tileloaddt1 tmm7, [{b} + {b_row} + 4160]" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm5, [{lower} + {row}]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 2112]" "tdpbf16ps tmm1, tmm4, tmm7" "tdpbf16ps tmm3, tmm5, tmm7"
                 "tileloadd tmm4, [{upper} + {row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm5, [{lower} + {row} + 2048]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7" "tdpbf16ps tmm3, tmm5, tmm7"
                 "tileloadd tmm4, [{upper} + {row} + 4096]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm5, [{lower} + {row} + 4096]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"
                 "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm5, [{lower} + {row}]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"
                ], sixteen),
                (true, false) => upper_and_lower!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row} + 4096]" "tileloadd tmm4, [{upper} + {row}]"
                 "tdpbf16ps tmm0, tmm4, tmm6" "tileloadd tmm5, [{lower} + {row}]" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloadd tmm4, [{upper} + {row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm5, [{lower} + {row} + 2048]" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloadd tmm4, [{upper} + {row} + 4096]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm5, [{lower} + {row} + 4096]" "tdpbf16ps tmm2, tmm5, tmm6"
                 "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6" "tileloadd tmm5, [{lower} + {row}]"
                 "tdpbf16ps tmm2, tmm5, tmm6"
                ], sixteen),
                (false, true) => left_and_right!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row} + 4096]" "tileloadd tmm4, [{upper} + {row}]"
                 "tdpbf16ps tmm0, tmm4, tmm6" "tileloaddt1 tmm7, [{b} + {b_row} + 4160]" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 2112]" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm4, [{upper} + {row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm4, [{upper} + {row} + 4096]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
                ], sixteen),
                (false, false) => one!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row} + 4096]" "tileloadd tmm4, [{upper} + {row}]"
                 "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm6, [{b} + {b_row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm4, [{upper} + {row} + 2048]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm4, [{upper} + {row} + 4096]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                ], sixteen),
            }
        }
    }
}

impl Engine for Amx {
    #[inline(always)]
    unsafe fn sum(sums: &TileProduct) {
        // SAFETY: the caller's contract. A register reads 16 rows of 64 bytes, as far apart as they are.
        unsafe {
            match (sums.tall, sums.wide) {
                (true, true) => four!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"
                 "tileloadd tmm5, [{lower} + {row}]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"
                ], two),
                (true, false) => upper_and_lower!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloadd tmm5, [{lower} + {row}]" "tdpbf16ps tmm2, tmm5, tmm6"
                ], two),
                (false, true) => left_and_right!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                 "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"
                ], two),
                (false, false) => one!(sums, [
                 "tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                ], two),
            }
        }
    }

    #[inline(always)]
    unsafe fn sum_thirds(sums: &TileProduct) {
        // SAFETY: the caller's contract.
        unsafe { if sums.turned { Amx::thirds_of_b_first(sums) } else { Amx::thirds_of_a_first(sums) } }
    }

    #[inline(always)]
    unsafe fn split_along(from: *const f32, to: [*mut u32; THIRDS]) {
        const UPPER_HALVES: [u16; 2 * SIDE] = {
            let mut from = [0; 2 * SIDE];
            let mut i = 0;
            while i < 2 * SIDE {
                from[i] = 2 * i as u16 + 1;
                i += 1;
            }
            from
        };
        // SAFETY: the caller's contract: two registers are read, and one is written to each place.
        unsafe {
            let (low, high) = (thirds(_mm512_loadu_ps(from)), thirds(_mm512_loadu_ps(from.add(SIDE))));
            let upper = _mm512_loadu_si512(UPPER_HALVES.as_ptr().cast());
            for third in 0..THIRDS {
                let words = _mm512_permutex2var_epi16(low[third], upper, high[third]);
                _mm512_storeu_si512(to[third].cast(), words);
            }
        }
    }

    #[inline(always)]
    unsafe fn split_across(from: [*const f32; 2], to: [*mut u32; THIRDS]) {
        // SAFETY: as above.
        unsafe {
            let (low, high) = (thirds(_mm512_loadu_ps(from[0])), thirds(_mm512_loadu_ps(from[1])));
            for third in 0..THIRDS {
                let words = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(low[third]), high[third]);
                _mm512_storeu_si512(to[third].cast(), words);
            }
        }
    }

    #[inline(always)]
    unsafe fn transposed(square: &[[u32; SIDE]; SIDE]) -> [[u32; SIDE]; SIDE] {
        // SAFETY: the level has AVX-512.
        unsafe { transposed(square) }
    }

    #[inline(always)]
    unsafe fn begin() {
        // SAFETY: the machine has the instruction (the caller's contract), and the shapes are valid ones.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES.0, options(nostack, readonly, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// The parts of sixteen numbers, each in the upper half of a word: as [`super::split`] has it.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn thirds(x: __m512) -> [__m512i; THIRDS] {
    // SAFETY: the caller's contract.
    unsafe {
        let (half, mask) = (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(!0xffff));
        let first = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), mask);
        let rest = _mm512_sub_ps(x, _mm512_castsi512_ps(first));
        let second = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(rest), half), mask);
        [first, second, _mm512_castps_si512(_mm512_sub_ps(rest, _mm512_castsi512_ps(second)))]
    }
}

/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn transposed(square: &[[u32; SIDE]; SIDE]) -> [[u32; SIDE]; SIDE] {
    // SAFETY: the caller's contract; a row is a register.
    unsafe {
        let rows: [__m512i; SIDE] = std::mem::transmute_copy(square);
        // Pairs of rows, then fours: register 4g + j has in its part i, of four words, column 4i + j of rows 4g.. .
        let mut fours = rows;
        for g in 0..4 {
            let r = &rows[4 * g..];
            let t0 = _mm512_unpacklo_epi32(r[0], r[1]);
            let t1 = _mm512_unpackhi_epi32(r[0], r[1]);
            let t2 = _mm512_unpacklo_epi32(r[2], r[3]);
            let t3 = _mm512_unpackhi_epi32(r[2], r[3]);
            fours[4 * g] = _mm512_unpacklo_epi64(t0, t2);
            fours[4 * g + 1] = _mm512_unpackhi_epi64(t0, t2);
            fours[4 * g + 2] = _mm512_unpacklo_epi64(t1, t3);
            fours[4 * g + 3] = _mm512_unpackhi_epi64(t1, t3);
        }
        let mut out = fours;
        for j in 0..4 {
            let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
            let ab_even = _mm512_shuffle_i32x4::<0x88>(a, b);
            let ab_odd = _mm512_shuffle_i32x4::<0xdd>(a, b);
            let cd_even = _mm512_shuffle_i32x4::<0x88>(c, d);
            let cd_odd = _mm512_shuffle_i32x4::<0xdd>(c, d);
            out[j] = _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even);
            out[4 + j] = _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd);
            out[8 + j] = _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even);
            out[12 + j] = _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd);
        }
        std::mem::transmute(out)
    }
}

/// How many multiply-adds [`probe`] does in a round.
pub(in crate::kernels) const MULTIPLY_ADDS: usize = 4 * SIDE * SIDE * super::STEP;

/// Multiplies tiles for so many rounds, in registers only.
///
/// # Safety
/// The machine has AMX.
pub(in crate::kernels) unsafe fn probe(rounds: u32) {
    // SAFETY: the caller's contract; registers are this thread's.
    unsafe {
        Amx::begin();
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", "tilezero tmm4", "tilezero tmm5",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm5", "tdpbf16ps tmm1, tmm4, tmm5",
            "tdpbf16ps tmm2, tmm4, tmm5", "tdpbf16ps tmm3, tmm4, tmm5",
            "dec {:e}",
            "jnz 2b",
            inout(reg) rounds.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
            options(nostack, nomem),
        );
        Amx::end();
    }
}
