//! Products of f32 in tiles: a number of 24 bits is a sum of three of 8, each a bf16, so that a product of two is six products of bf16 and three that are too small to matter.
//!
//! ```text
//! x = x₀ + x₁ + x₂        x₀ = x rounded, x₁ = (x − x₀) rounded, x₂ = x − x₀ − x₁: all three exact
//! x·y ≈ x₂·y₀ + x₁·y₀ + x₁·y₁ + x₀·y₁ + x₀·y₂ + x₀·y₀        what is missing is below 2⁻²⁴ of x·y, mostly below 2⁻²⁶
//! ```
//!
//! (Henry, Tang and Heinecke, *Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations*, 2019.) A tile multiplies bf16 fifteen times as fast as
//! vectors multiply f32, so that six products take less than half as long; and what is rounded at the size of the sum is one addition for thirty-two products, not each product, so that sums are nearer to what they should be than
//! chains of multiply-adds of f32.
//!
//! An element is a chain of sums from zero for each 128 products, six sums for thirty-two of them, in the order above, where x is of the plan's A; block sums are added in order, and what was in C last, as in vectors. (One chain
//! through all blocks would be less work and less accurate.) Numbers and products below 2⁻¹⁰³ lose bits, since parts of
//! them are denormal; a row or column with an infinity, or with a number from 3.3962e38 on, comes to NaN.
//!
//! Panels are those of bf16, with three times as many words:
//!
//! ```text
//! A  [step][part][row][16 words]      B  [part of the panel][step][part][word][32 columns]
//! ```

mod pack;

#[cfg(test)]
pub(super) use pack::thirds;

use super::{Engine, LINE, PARTS, SIDE, STEP, Square, TileProduct, WIDTH, entries, halves};
use crate::kernels::matmul::pack::PackArgs;
use crate::kernels::matmul::product::Product;
use crate::kernels::matmul::tile::{Blocking, Simd, Source, TileArgs, compiled};

/// Parts of a number.
pub(super) const THIRDS: usize = 3;
/// Words of a step of a row or column.
const STEP_WORDS: usize = THIRDS * SIDE;
/// Bytes of a part of a step.
pub(super) const THIRD: usize = WIDTH * LINE;
/// Bytes of a step of a panel.
const STEP_BYTES: usize = THIRDS * THIRD;

/// The order of sums, which the instructions write out: parts of A and B. From one to the next one of them stays in its registers, which is why they are not in the order of their sizes; the largest is the last.
#[cfg(test)]
pub(super) const ORDER: [[usize; 2]; PRODUCTS] = [[2, 0], [1, 0], [1, 1], [0, 1], [0, 2], [0, 0]];

/// Multiply-adds of bf16 that one of f32 takes.
pub(in crate::kernels) const PRODUCTS: usize = 6;

macro_rules! flavour {
    ($module:ident, $base:ty, $engine:ty, features $($features:literal)?) => {
        mod $module {
            use super::*;
            use crate::kernels::matmul::pack::SIDE_BY_SIDE;
            use crate::kernels::matmul::tile::A_WIDTH;

            type Base = $base;

            /// Tiles of parts of f32.
            #[derive(Clone, Copy)]
            pub struct Flavour;

            const _: () = {
                assert!(Flavour::BLOCK_K.is_multiple_of(STEP), "a block ends with an instruction");
                assert!(Flavour::BLOCKING.rows * Flavour::COLUMNS <= crate::kernels::matmul::SUMS, "sums of a panel");
            };

            impl Simd for Flavour {
                crate::kernels::matmul::pairs::of_base!();
                const PAIR: usize = 1;
                const BLOCK_K: usize = 128;
                const IN_PLACE: bool = false;
                const BLOCKING: Blocking = Blocking {
                    rows: 512,
                    chain_by_chain: true,
                    fetches: false,
                    epilogue: 1 << 18,
                };

                #[inline(always)]
                fn panel_words(products: usize) -> usize {
                    products.div_ceil(STEP) * STEP_WORDS
                }
                unsafe fn product(_: Product<f32>) {
                    unreachable!("attention multiplies f32 in vectors")
                }
                entries!(
                    $engine, tile [tile_of::<Flavour, $engine>], rows [pack::pack_rows::<$engine, X>],
                    columns [pack::pack_columns::<$engine, X>], features $($features)?
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
    crate::kernels::matmul::avx512::F32x16,
    crate::kernels::matmul::amx::instructions::Amx,
    features "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
);

#[cfg(all(test, target_arch = "x86_64"))]
pub(in crate::kernels) use emulated_avx2::Flavour as Avx2;

#[cfg(all(test, target_arch = "x86_64"))]
flavour!(
    emulated_avx2,
    crate::kernels::matmul::avx2::F32x8,
    crate::kernels::matmul::amx::emulation::Loops,
    features "avx2,fma"
);

#[cfg(test)]
pub(in crate::kernels) use emulated_portable::Flavour as Portable;

#[cfg(test)]
flavour!(
    emulated_portable,
    crate::kernels::matmul::portable::PortableF32,
    crate::kernels::matmul::amx::emulation::Loops,
    features
);

/// A tile.
///
/// # Safety
/// As [`Simd::tile`].
#[inline(always)]
unsafe fn tile_of<S: Simd<T = f32>, E: Engine>(args: &TileArgs<f32>) {
    debug_assert!(args.padded && args.count == 1 && args.rounded.is_none() && args.depth.is_multiple_of(STEP_WORDS));
    let bytes = args.c_stride * size_of::<f32>();
    let a = args.a.cast();
    for part in 0..args.columns.div_ceil(WIDTH) {
        let first = part * WIDTH;
        let (c, columns) = (args.c.wrapping_add(first), (args.columns - first).min(WIDTH));
        // What is summed next, mostly.
        let is_last = first + WIDTH >= args.columns;
        let next = if is_last { args.c.wrapping_add(WIDTH * args.c_stride) } else { c.wrapping_add(WIDTH) };
        let mut sums = TileProduct {
            a: [a, a.wrapping_add(SIDE * SIDE)],
            a_row: LINE,
            a_step: STEP_BYTES,
            b: args.b.wrapping_add(first * args.depth).cast(),
            b_row: 2 * LINE,
            b_step: STEP_BYTES,
            steps: args.depth / STEP_WORDS,
            from: [std::ptr::null(); 2],
            from_row: 0,
            to: halves(c, args.c_stride),
            to_row: bytes,
            next: next.cast_const().cast(),
            next_row: bytes,
            tall: args.rows > SIDE,
            wide: columns > SIDE,
            turned: args.turned,
        };
        // SAFETY: the caller's contract: C has the rows and columns.
        unsafe {
            if !args.add && args.rows.is_multiple_of(SIDE) && columns.is_multiple_of(SIDE) {
                E::sum_thirds(&sums);
                continue;
            }
            let mut square = Square([const { std::mem::MaybeUninit::uninit() }; WIDTH * WIDTH]);
            let at = square.0.as_mut_ptr().cast::<f32>();
            (sums.to, sums.to_row) = (halves(at, WIDTH), WIDTH * size_of::<f32>());
            E::sum_thirds(&sums);
            for row in 0..args.rows {
                let (from, to) = (at.add(row * WIDTH), c.add(row * args.c_stride));
                for j in (0..columns).step_by(S::LANES) {
                    let (sum, to, n) = (S::load(from.add(j)), to.add(j), (columns - j).min(S::LANES));
                    match (args.add, n == S::LANES) {
                        (false, _) => S::store_part(to, sum, n),
                        (true, true) => S::store(to, S::add(S::load(to), sum)),
                        (true, false) => S::store_part(to, S::add(S::load_part(to, n), sum), n),
                    }
                }
            }
        }
    }
}
