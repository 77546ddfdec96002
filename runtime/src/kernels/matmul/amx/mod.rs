//! Products of bf16 in tiles: AMX multiplies sixteen rows of A by sixteen columns of B, thirty-two products deep, with one instruction, `TDPBF16PS`:
//! on the same processors `VDPBF16PS` takes thirty times as long.
//!
//! For each element and instruction, as Intel's manual states it: a chain of fused multiply-adds over the first values of sixteen pairs, one over the second
//! values, each from zero, then `c + (first + second)`. Each is rounded to nearest even, denormal numbers are taken for zeros and flushed to zero, whatever MXCSR says. An
//! element of a matrix product is one chain of such sums over all that is summed: tiles go on from what lies in memory, and blocks of the summed dimension end with a whole
//! instruction, so that it does not matter where. (Attention's are spans of positions, which begin at multiples of sixteen: see there.)
//!
//! A panel of A has thirty-two rows, two tiles of them, in steps of thirty-two products; words are as in [`super::pairs`]:
//!
//! ```text
//! A  [step][row][16 words]      B  [part][word][32 columns]
//! ```
//!
//! Rows that a panel of A lacks hold what was there before.
//!
//! A tile of sums is at most thirty-two rows and columns: four registers, with two for A and two for B; or one or two registers, where sixteen rows or columns are enough.
//! Registers are whole ones wherever C ends; what is too much is computed and thrown away.

#[cfg(test)]
mod emulation;
#[cfg(target_arch = "x86_64")]
mod instructions;
mod pack;
mod small;
pub(in crate::kernels) mod split;
#[cfg(test)]
mod tests;

use super::SUMS;
use super::pack::{PackArgs, SIDE_BY_SIDE};
use super::pairs::of_base;
use super::product::Product;
use super::tile::{A_WIDTH, Blocking, Simd, Source, TileArgs, compiled};

/// Rows of a register, and words of a row.
const SIDE: usize = 16;
/// Products that an instruction sums.
const STEP: usize = 2 * SIDE;
/// Rows of a panel of A, and columns of a part of one of B.
const WIDTH: usize = 2 * SIDE;
/// Bytes of a row of a register.
const LINE: usize = 64;
/// Parts of a panel of B.
const PARTS: usize = 4;

/// What makes the sums of up to four registers. Distances are in bytes.
#[derive(Clone, Copy)]
#[repr(C)]
struct TileProduct {
    /// Sixteen rows of A, and the sixteen below them; from one row to the next, and from one step to the next.
    a: [*const u32; 2],
    a_row: usize,
    a_step: usize,
    /// Columns of B: those of the second register follow those of the first.
    b: *const u32,
    b_row: usize,
    b_step: usize,
    /// Steps of the summed dimension: at least one.
    steps: usize,
    /// The sums so far, if there are any: upper rows, and lower ones.
    from: [*const f32; 2],
    from_row: usize,
    /// Where sums go.
    to: [*mut f32; 2],
    to_row: usize,
    /// What is fetched meanwhile: two lines a step, or of [parts](split) sixteen.
    next: *const u8,
    next_row: usize,
    /// Are there more rows, and more columns, than a register has?
    tall: bool,
    wide: bool,
    /// Of parts: does B come first in their order?
    turned: bool,
}

/// What multiplies tiles.
trait Engine {
    /// Makes sums.
    ///
    /// # Safety
    /// The machine has the instructions, the thread has begun; the panels have the steps, and both places the sums, of whole registers.
    unsafe fn sum(sums: &TileProduct);
    /// The same of numbers that lie in [parts](split).
    ///
    /// # Safety
    /// As [`Engine::sum`].
    unsafe fn sum_thirds(sums: &TileProduct);
    /// Takes apart numbers that follow each other along the sum, to words of each part.
    ///
    /// # Safety
    /// The machine has the instructions; there are as many numbers as a step has, and a row of words each.
    unsafe fn split_along(from: *const f32, to: [*mut u32; split::THIRDS]);
    /// The same of two products of sixteen rows or columns.
    ///
    /// # Safety
    /// The same; there are sixteen numbers each.
    unsafe fn split_across(from: [*const f32; 2], to: [*mut u32; split::THIRDS]);
    /// Turns a square of words.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn transposed(square: &[[u32; SIDE]; SIDE]) -> [[u32; SIDE]; SIDE];
    /// Gives the thread's registers their shape.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn begin();
    /// Gives the registers back.
    ///
    /// # Safety
    /// As [`Engine::begin`].
    unsafe fn end();
}

/// Sizes of tiles, and what an engine does for a flavour, compiled for its CPU features: tiles, and the packing of rows of A and columns of B, `X` being what they are stored in.
macro_rules! entries {
    (
        $engine:ty, tile [$($tile:tt)*], rows [$($rows:tt)*], columns [$($columns:tt)*],
        features $($features:literal)?
    ) => {
        const ROWS: usize = WIDTH;
        const VECTORS: usize = PARTS * WIDTH / Self::LANES;
        const PANEL: usize = WIDTH;
        const GRAIN: usize = SIDE;

        unsafe fn begin() {
            // SAFETY: the trait's contract; so for all methods here.
            unsafe { <$engine>::begin() }
        }
        unsafe fn end() {
            // SAFETY: as above.
            unsafe { <$engine>::end() }
        }
        unsafe fn tile(args: &TileArgs<f32>) {
            $(#[target_feature(enable = $features)])?
            unsafe fn featured(args: &TileArgs<f32>) {
                // SAFETY: the caller's contract.
                unsafe { $($tile)*(args) }
            }
            // SAFETY: the machine has the features (the trait's contract).
            unsafe { featured(args) }
        }
        unsafe fn pack_a<X: Source<f32>>(args: PackArgs<X, f32>, first: usize) {
            $(#[target_feature(enable = $features)])?
            unsafe fn featured<X: Source<f32>>(args: PackArgs<X, f32>, first: usize) {
                // SAFETY: the caller's contract.
                unsafe { $($rows)*(args, first) }
            }
            // SAFETY: the machine has the features (the trait's contract).
            unsafe { featured(args, first) }
        }
        unsafe fn pack_b<X: Source<f32>>(args: PackArgs<X, f32>, first: usize, words: usize) {
            $(#[target_feature(enable = $features)])?
            unsafe fn featured<X: Source<f32>>(args: PackArgs<X, f32>, first: usize, words: usize) {
                // SAFETY: the caller's contract.
                unsafe { $($columns)*(args, first, words) }
            }
            // SAFETY: the machine has the features (the trait's contract).
            unsafe { featured(args, first, words) }
        }
        compiled!($(features $features)?);
    };
}
use entries;

macro_rules! flavour {
    ($module:ident, $base:ty, $engine:ty, features $($features:literal)?) => {
        mod $module {
            use super::*;

            type Base = $base;

            /// Tiles of pairs of bf16.
            #[derive(Clone, Copy)]
            pub struct Flavour;

            const _: () = {
                assert!(Flavour::BLOCK_K.is_multiple_of(STEP), "a block ends with an instruction");
                assert!(Flavour::COLUMNS == PARTS * WIDTH && Flavour::PANEL == WIDTH && Flavour::ROWS == WIDTH);
                assert!(SIDE_BY_SIDE * A_WIDTH == WIDTH, "two rows of values make a row of words");
                assert!(Flavour::BLOCKING.rows * Flavour::COLUMNS <= SUMS, "sums of a panel");
            };

            impl Simd for Flavour {
                of_base!();
                const PAIR: usize = 2;
                const BLOCK_K: usize = 512;
                const BLOCKING: Blocking = Blocking {
                    rows: 512,
                    chain_by_chain: true,
                    fetches: false,
                    epilogue: 1 << 17,
                };

                #[inline(always)]
                fn panel_words(products: usize) -> usize {
                    products.div_ceil(STEP) * SIDE
                }
                #[inline(always)]
                unsafe fn store_rounded(p: *mut half::bf16, v: Self::R, n: usize) {
                    // SAFETY: the trait's contract; so for all methods here.
                    unsafe { Base::store_rounded(p, v, n) }
                }
                #[inline(always)]
                unsafe fn dot(a: Self::R, b: Self::R, c: Self::R) -> Self::R {
                    // SAFETY: as above.
                    unsafe { Base::dot(a, b, c) }
                }
                #[inline(always)]
                unsafe fn round(low: Self::R, high: Self::R) -> Self::R {
                    // SAFETY: as above.
                    unsafe { Base::round(low, high) }
                }
                #[inline(always)]
                unsafe fn zip(halves: Self::R) -> Self::R {
                    // SAFETY: as above.
                    unsafe { Base::zip(halves) }
                }
                #[inline(always)]
                unsafe fn store_halves(to: [*mut f32; 2], halves: Self::R) {
                    // SAFETY: as above.
                    unsafe { Base::store_halves(to, halves) }
                }
                unsafe fn product(product: Product<f32>) {
                    $(#[target_feature(enable = $features)])?
                    unsafe fn featured(product: Product<f32>) {
                        // SAFETY: the caller's contract.
                        unsafe { small::product_of::<Flavour, $engine>(product) }
                    }
                    // SAFETY: the machine has the features (the trait's contract).
                    unsafe { featured(product) }
                }
                entries!(
                    $engine, tile [tile_of::<Flavour, $engine>], rows [pack::pack_rows::<Flavour, $engine, X>],
                    columns [pack::pack_columns::<Flavour, X>], features $($features)?
                );
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) use hardware::Flavour as Hardware;

#[cfg(target_arch = "x86_64")]
flavour!(
    hardware,
    crate::kernels::matmul::pairs::Instruction,
    instructions::Amx,
    features "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
);

#[cfg(all(test, target_arch = "x86_64"))]
pub(in crate::kernels) use emulated_avx2::Flavour as Avx2;

#[cfg(all(test, target_arch = "x86_64"))]
flavour!(emulated_avx2, crate::kernels::matmul::pairs::Avx2, emulation::Loops, features "avx2,fma");

#[cfg(test)]
pub(in crate::kernels) use emulated_portable::Flavour as Portable;

#[cfg(test)]
flavour!(emulated_portable, crate::kernels::matmul::pairs::Portable, emulation::Loops, features);

/// A tile.
///
/// # Safety
/// As [`Simd::tile`].
#[inline(always)]
unsafe fn tile_of<S: Simd<T = f32>, E: Engine>(args: &TileArgs<f32>) {
    debug_assert!(args.padded && args.count == 1 && args.depth.is_multiple_of(SIDE));
    let (steps, bytes) = (args.depth / SIDE, args.c_stride * size_of::<f32>());
    for part in 0..args.columns.div_ceil(WIDTH) {
        let first = part * WIDTH;
        let c = args.c.wrapping_add(first);
        let a = args.a.cast();
        let mut sums = TileProduct {
            a: [a, a.wrapping_add(SIDE * SIDE)],
            a_row: LINE,
            a_step: WIDTH * LINE,
            b: args.b.wrapping_add(first * args.depth).cast(),
            b_row: 2 * LINE,
            b_step: WIDTH * LINE,
            steps,
            from: if args.add { halves(c, args.c_stride).map(<*mut f32>::cast_const) } else { [std::ptr::null(); 2] },
            from_row: bytes,
            to: halves(c, args.c_stride),
            to_row: bytes,
            // Something of the sums, which are in the cache: looking for a page that does not exist takes long.
            next: c.cast_const().cast(),
            next_row: 0,
            tall: args.rows > SIDE,
            wide: args.columns - first > SIDE,
            turned: false,
        };
        // SAFETY: the caller's contract: sums that are not rounded lie in the workspace, which has room for whole tiles.
        unsafe {
            let Some((rounded, stride)) = args.rounded else {
                E::sum(&sums);
                continue;
            };
            let to = rounded.add(first);
            let mut square = Square([const { std::mem::MaybeUninit::uninit() }; WIDTH * WIDTH]);
            let at = square.0.as_mut_ptr().cast::<f32>();
            (sums.to, sums.to_row) = (halves(at, WIDTH), WIDTH * size_of::<f32>());
            // C is needed when the sums are done: long enough to fetch it meanwhile.
            (sums.next, sums.next_row) = (to.cast(), stride * size_of::<half::bf16>());
            E::sum(&sums);
            round_square::<S>(at, args.rows, (args.columns - first).min(WIDTH), (to, stride));
        }
    }
}

/// Rounds sums to rows of C.
///
/// # Safety
/// The sums and C have the elements.
#[inline(always)]
unsafe fn round_square<S: Simd<T = f32>>(
    sums: *const f32,
    rows: usize,
    columns: usize,
    (c, stride): (*mut half::bf16, usize),
) {
    // SAFETY: the caller's contract.
    unsafe {
        let vector = |row: usize, j: usize| S::load(sums.add(row * WIDTH + j * S::LANES));
        for row in 0..rows {
            let to = c.add(row * stride);
            if columns == WIDTH {
                for j in (0..WIDTH / S::LANES).step_by(2) {
                    S::store(to.add(j * S::LANES).cast(), S::round(vector(row, j), vector(row, j + 1)));
                }
            } else {
                for j in 0..columns.div_ceil(S::LANES) {
                    let first = j * S::LANES;
                    S::store_rounded(to.add(first), vector(row, j), (columns - first).min(S::LANES));
                }
            }
        }
    }
}

/// A place, and the one sixteen rows below it.
fn halves<T>(at: *mut T, row: usize) -> [*mut T; 2] {
    [at, at.wrapping_add(SIDE * row)]
}

#[repr(align(64))]
struct Square([std::mem::MaybeUninit<f32>; WIDTH * WIDTH]);

/// Has this machine AMX for bf16, and may this process use it? Linux grants it to those who ask.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(in crate::kernels) fn is_there() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    /// `ARCH_REQ_XCOMP_PERM` of the kernel's `asm/prctl.h`, and the number of the tiles' state.
    const REQUEST: libc::c_long = 0x1023;
    const TILES: libc::c_long = 18;
    if __cpuid(0).eax < 7 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    let [bf16, tiles] = [22, 24].map(|bit| features >> bit & 1 == 1);
    // SAFETY: the call asks for a permission, and touches no memory; it fails where there is no such state or call.
    bf16 && tiles && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILES) } == 0
}

#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) use instructions::{MULTIPLY_ADDS, probe};
