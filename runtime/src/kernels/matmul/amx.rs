//! Products of bf16 in tiles: AMX multiplies sixteen rows of A by sixteen columns of B, thirty-two products deep, with one instruction, `TDPBF16PS`: sixteen times what
//! `VDPBF16PS` does on the same processors.
//!
//! For each element and instruction, as Intel's manual states it: a chain of fused multiply-adds over the first values of sixteen pairs, one over the second
//! values, each from zero, then `c + (first + second)`. Each is rounded to nearest even, denormal numbers are taken for zeros and flushed to zero, whatever MXCSR says. An
//! element is one chain of such sums over all that is summed: tiles go on from what lies in memory, so that it does not matter where blocks of the summed dimension end
//! (but they end with a whole instruction).
//!
//! A panel of A has thirty-two rows, two tiles of them, in steps of thirty-two products; words are as in [`super::pairs`]:
//!
//! ```text
//! [step][row][16 words]         B's panels are those of pairs: [word][32 columns]
//! ```
//!
//! A tile of sums is thirty-two rows and columns: four registers, with two for A and two for B. It is a whole one wherever C has fewer rows or columns; what is
//! too much is computed and thrown away.

use super::pack::PackArgs;
use super::pack::SIDE_BY_SIDE;
use super::pairs::of_base;
use super::tile::{A_WIDTH, Simd, Source, TileArgs, compiled};

/// Rows of a register, and words of a row.
const SIDE: usize = 16;
/// Products that an instruction sums.
const STEP: usize = 2 * SIDE;
/// Rows of a panel of A, and columns of a part of one of B.
const WIDTH: usize = 2 * SIDE;
/// Parts of a panel of B.
const PARTS: usize = 4;

/// Four registers of sums.
struct Sums {
    /// A panel of A, and one of B.
    a: *const u32,
    b: *const u32,
    /// Steps of the summed dimension.
    steps: usize,
    /// The sums so far, if there are any, and how many bytes it is from one row to the next.
    from: (*const f32, usize),
    /// Where sums go.
    to: (*mut f32, usize),
    /// What is fetched meanwhile, two lines a step, and how many bytes it is from one to the next.
    next: (*const u8, usize),
    /// Are there more rows, and more columns, than a register has?
    tall: bool,
    wide: bool,
}

/// What multiplies tiles.
trait Engine {
    /// Makes sums.
    ///
    /// # Safety
    /// The machine has the instructions, the thread has begun; the panels have the steps, and both places the sums, of whole registers.
    unsafe fn sum(sums: &Sums);
    /// Turns a square of words.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn turned(square: &[[u32; SIDE]; SIDE]) -> [[u32; SIDE]; SIDE];
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

macro_rules! flavour {
    ($module:ident, $base:ty, $engine:ty, features $($features:literal)?) => {
        mod $module {
            use super::*;

            type Base = $base;

            /// Tiles of pairs of bf16.
            #[derive(Clone, Copy)]
            pub struct Flavour;

            impl Simd for Flavour {
                of_base!();
                const ROWS: usize = WIDTH;
                const VECTORS: usize = PARTS * WIDTH / Base::LANES;
                const BLOCK_K: usize = 512;
                const PANEL: usize = WIDTH;
                const GRAIN: usize = SIDE;
                const MOST_ROWS: usize = 512;
                const CHAIN_BY_CHAIN: bool = true;
                const FETCHES: bool = false;

                #[inline(always)]
                fn words(products: usize) -> usize {
                    products.div_ceil(STEP) * SIDE
                }
                #[inline(always)]
                unsafe fn store_rounded(p: *mut half::bf16, v: Self::R, n: usize) {
                    // SAFETY: the trait's contract; so for all methods here.
                    unsafe { Base::store_rounded(p, v, n) }
                }
                #[inline(always)]
                unsafe fn round(low: Self::R, high: Self::R) -> Self::R {
                    // SAFETY: as above.
                    unsafe { Base::round(low, high) }
                }
                unsafe fn begin() {
                    // SAFETY: as above.
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
                        unsafe { tile_of::<Flavour, $engine>(args) }
                    }
                    // SAFETY: the machine has the features (the trait's contract).
                    unsafe { featured(args) }
                }
                unsafe fn pack_a<X: Source<f32>>(args: PackArgs<X, f32>, first: usize) {
                    $(#[target_feature(enable = $features)])?
                    unsafe fn featured<X: Source<f32>>(args: PackArgs<X, f32>, first: usize) {
                        // SAFETY: the caller's contract.
                        unsafe { pack_rows::<Flavour, $engine, X>(args, first) }
                    }
                    // SAFETY: the machine has the features (the trait's contract).
                    unsafe { featured(args, first) }
                }
                unsafe fn pack_b<X: Source<f32>>(args: PackArgs<X, f32>, first: usize, words: usize) {
                    $(#[target_feature(enable = $features)])?
                    unsafe fn featured<X: Source<f32>>(args: PackArgs<X, f32>, first: usize, words: usize) {
                        // SAFETY: the caller's contract.
                        unsafe { pack_columns::<Flavour, X>(args, first, words) }
                    }
                    // SAFETY: the machine has the features (the trait's contract).
                    unsafe { featured(args, first, words) }
                }
                compiled!($(features $features)?);
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

#[cfg(test)]
pub(in crate::kernels) use emulated::Flavour as Emulated;

#[cfg(test)]
flavour!(emulated, crate::kernels::matmul::pairs::Portable, emulation::Loops, features);

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
        let mut sums = Sums {
            a: args.a.cast(),
            b: args.b.wrapping_add(first * args.depth).cast(),
            steps,
            from: if args.add { (c, bytes) } else { (std::ptr::null(), bytes) },
            to: (c, bytes),
            next: (args.a.cast(), 0),
            tall: args.rows > SIDE,
            wide: args.columns - first > SIDE,
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
            sums.to = (at, WIDTH * size_of::<f32>());
            // C is needed when the sums are done: long enough to fetch it meanwhile.
            sums.next = (to.cast(), stride * size_of::<half::bf16>());
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

#[repr(align(64))]
struct Square([std::mem::MaybeUninit<f32>; WIDTH * WIDTH]);

/// Packs rows of A from product `first` of the panel on. The last step is filled up with zeros; a later call may go on in it.
///
/// # Safety
/// The source has the elements, each panel the steps.
#[inline(always)]
unsafe fn pack_rows<S: Simd, E: Engine, X: Copy>(args: PackArgs<X, f32>, first: usize) {
    debug_assert!(size_of::<X>() == 2 && args.width <= WIDTH && args.panels <= SIDE_BY_SIDE);
    let rows = Rows {
        src: args.src.cast(),
        count: args.width,
        across: args.across,
        along: args.along,
        dst: args.dst.cast(),
        panels: args.panels,
        panel_step: 2 * args.panel_step,
    };
    // What completes a step of an earlier call.
    let begun = (first.next_multiple_of(STEP) - first).min(args.depth);
    // SAFETY: the caller's contract; products are taken in order, up to `depth`.
    unsafe {
        rows.one_by_one(first, 0..begun);
        for p in (begun..args.depth).step_by(STEP) {
            let products = p..(p + STEP).min(args.depth);
            match (rows.across, rows.along) {
                (_, 1) => rows.along(first, products),
                (1, _) if products.len() == STEP && rows.count == WIDTH => rows.across::<S, E>(first, products.start),
                _ => {
                    rows.clear(first + p);
                    rows.one_by_one(first, products);
                }
            }
        }
    }
}

/// Rows that are packed: `count` for each of the panels.
struct Rows {
    src: *const u16,
    count: usize,
    across: usize,
    along: usize,
    dst: *mut u16,
    panels: usize,
    panel_step: usize,
}

/// All methods: the source has the products, counted from the first one; the panels have those from `first` on.
impl Rows {
    /// Where a product of a row goes.
    #[inline(always)]
    unsafe fn place(&self, panel: usize, row: usize, product: usize) -> *mut u16 {
        // SAFETY: the caller's contract.
        unsafe { self.dst.add(panel * self.panel_step + (product / STEP * WIDTH + row) * STEP + product % STEP) }
    }

    /// Each row: its panel, its number there, and its first product.
    #[inline(always)]
    fn each(&self) -> impl Iterator<Item = (usize, usize, *const u16)> {
        let (src, across, count) = (self.src, self.across, self.count);
        (0..self.panels * count).map(move |row| (row / count, row % count, src.wrapping_add(row * across)))
    }

    #[inline(always)]
    unsafe fn one_by_one(&self, first: usize, products: std::ops::Range<usize>) {
        for p in products {
            for (panel, row, from) in self.each() {
                // SAFETY: the caller's contract.
                unsafe { *self.place(panel, row, first + p) = *from.add(p * self.along) };
            }
        }
    }

    /// Makes the rows of a step zeros.
    #[inline(always)]
    unsafe fn clear(&self, product: usize) {
        for panel in 0..self.panels {
            // SAFETY: the caller's contract; the rows of a step follow each other.
            unsafe { self.place(panel, 0, product).write_bytes(0, self.count * STEP) };
        }
    }

    /// A step of rows that lie along the sum.
    #[inline(always)]
    unsafe fn along(&self, first: usize, products: std::ops::Range<usize>) {
        for (panel, row, from) in self.each() {
            // SAFETY: the caller's contract.
            unsafe {
                let from = from.add(products.start);
                let to = self.place(panel, row, first + products.start).cast::<[u16; STEP]>();
                if products.len() == STEP {
                    *to = from.cast::<[u16; STEP]>().read_unaligned();
                } else {
                    let mut values = [0; STEP];
                    values.as_mut_ptr().copy_from_nonoverlapping(from, products.len());
                    *to = values;
                }
            }
        }
    }

    /// A whole step of full panels whose rows lie side by side: products of all of them follow each other.
    #[inline(always)]
    unsafe fn across<S: Simd, E: Engine>(&self, first: usize, product: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut squares = [[[[0u32; SIDE]; SIDE]; 2]; SIDE_BY_SIDE];
            for word in 0..SIDE {
                let low = self.src.add((product + 2 * word) * self.along);
                for (panel, squares) in squares.iter_mut().enumerate().take(self.panels) {
                    let low = low.add(panel * WIDTH);
                    let words = S::pairs(low, low.add(self.along));
                    let [upper, lower] = std::mem::transmute::<[[u32; A_WIDTH]; SIDE_BY_SIDE], [[u32; SIDE]; 2]>(words);
                    (squares[0][word], squares[1][word]) = (upper, lower);
                }
            }
            for (panel, squares) in squares.iter().enumerate().take(self.panels) {
                for (half, square) in squares.iter().enumerate() {
                    let place = self.place(panel, half * SIDE, first + product);
                    *place.cast::<[[u32; SIDE]; SIDE]>() = E::turned(square);
                }
            }
        }
    }
}

/// Packs columns of B from product `first` of a panel of so many words on. The last step is filled up with zeros; a later call may go on in it.
///
/// # Safety
/// The source has the elements, the destination the panel.
#[inline(always)]
unsafe fn pack_columns<S: Simd<T = f32>, X: Source<f32>>(args: PackArgs<X, f32>, first: usize, words: usize) {
    debug_assert!(size_of::<X>() == 2 && args.width <= PARTS * WIDTH);
    let part = words * WIDTH;
    let (from, end) = (first / 2, (first + args.depth).div_ceil(2));
    let whole = args.width / WIDTH;
    // SAFETY: the caller's contract; words of a part follow each other.
    unsafe {
        for i in 0..args.width.div_ceil(WIDTH) {
            args.dst.add(i * part + end * WIDTH).write_bytes(0, (end.next_multiple_of(SIDE) - end) * WIDTH);
        }
        let mut rest = 0;
        if args.across == 1 && first.is_multiple_of(2) && args.depth.is_multiple_of(2) {
            // Of all parts at a time: lines that follow each other.
            rest = whole;
            for word in from..end {
                let low = args.src.add((2 * word - first) * args.along).cast::<u16>();
                let high = low.add(args.along);
                for i in 0..whole {
                    let to = args.dst.add(i * part + word * WIDTH);
                    *to.cast::<[[u32; A_WIDTH]; SIDE_BY_SIDE]>() = S::pairs(low.add(i * WIDTH), high.add(i * WIDTH));
                }
            }
        }
        for i in rest..args.width.div_ceil(WIDTH) {
            S::pack(PackArgs {
                src: args.src.add(i * WIDTH * args.across),
                width: (args.width - i * WIDTH).min(WIDTH),
                dst: args.dst.add(i * part + from * WIDTH),
                panel: WIDTH,
                ..args
            });
        }
    }
}

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

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86-64 has the level"))]
pub(in crate::kernels) fn is_there() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
pub(crate) use instructions::{MULTIPLY_ADDS, probe};

#[cfg(target_arch = "x86_64")]
mod instructions {
    use super::{Engine, SIDE, Sums};
    use std::arch::asm;
    use std::arch::x86_64::*;

    /// The processor's.
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

    /// Sums of one, two or four registers: those that are loaded or cleared, a step, those that are stored.
    macro_rules! sums {
        ($sums:expr, [$($load:literal)*], [$($clear:literal)*], [$($step:literal)*], [$($store:literal)*]) => {{
            let Sums { a, b, steps, from: (from, from_row), to: (to, to_row), next: (next, next_row), .. } = *$sums;
            asm!(
                "test {from}, {from}",
                "jz 3f",
                $($load,)*
                "jmp 4f",
                "3:",
                $($clear,)*
                "4:",
                "5:",
                $($step,)*
                "prefetchw [{next}]",
                "prefetchw [{next} + {next_row}]",
                "lea {next}, [{next} + 2 * {next_row}]",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 5b",
                $($store,)*
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                steps = inout(reg) steps => _,
                from = in(reg) from,
                from_row = in(reg) from_row,
                from_lower = in(reg) from.wrapping_byte_add(SIDE * from_row),
                next = inout(reg) next => _,
                next_row = in(reg) next_row,
                to = in(reg) to,
                to_row = in(reg) to_row,
                to_lower = in(reg) to.wrapping_byte_add(SIDE * to_row),
                a_row = in(reg) 64usize,
                b_row = in(reg) 128usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }};
    }

    impl Engine for Amx {
        #[inline(always)]
        unsafe fn sum(sums: &Sums) {
            // SAFETY: the caller's contract. A register reads 16 rows of 64 bytes, of A 64 bytes apart, of B 128, and of sums as far apart as they are; there is at least
            // one step.
            unsafe {
                match (sums.tall, sums.wide) {
                    (true, true) => sums!(
                        sums,
                        ["tileloadd tmm0, [{from} + {from_row}]" "tileloadd tmm1, [{from} + {from_row} + 64]"
                         "tileloadd tmm2, [{from_lower} + {from_row}]" "tileloadd tmm3, [{from_lower} + {from_row} + 64]"],
                        ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
                        ["tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{a} + {a_row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                         "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"
                         "tileloadd tmm5, [{a} + {a_row} + 1024]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"],
                        ["tilestored [{to} + {to_row}], tmm0" "tilestored [{to} + {to_row} + 64], tmm1"
                         "tilestored [{to_lower} + {to_row}], tmm2" "tilestored [{to_lower} + {to_row} + 64], tmm3"]
                    ),
                    (true, false) => sums!(
                        sums,
                        ["tileloadd tmm0, [{from} + {from_row}]" "tileloadd tmm2, [{from_lower} + {from_row}]"],
                        ["tilezero tmm0" "tilezero tmm2"],
                        ["tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{a} + {a_row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                         "tileloadd tmm5, [{a} + {a_row} + 1024]" "tdpbf16ps tmm2, tmm5, tmm6"],
                        ["tilestored [{to} + {to_row}], tmm0" "tilestored [{to_lower} + {to_row}], tmm2"]
                    ),
                    (false, true) => sums!(
                        sums,
                        ["tileloadd tmm0, [{from} + {from_row}]" "tileloadd tmm1, [{from} + {from_row} + 64]"
                         "/* {from_lower} */"],
                        ["tilezero tmm0" "tilezero tmm1"],
                        ["tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{a} + {a_row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                         "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"],
                        ["tilestored [{to} + {to_row}], tmm0" "tilestored [{to} + {to_row} + 64], tmm1" "/* {to_lower} */"]
                    ),
                    (false, false) => sums!(
                        sums,
                        ["tileloadd tmm0, [{from} + {from_row}]" "/* {from_lower} */"],
                        ["tilezero tmm0"],
                        ["tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{a} + {a_row}]" "tdpbf16ps tmm0, tmm4, tmm6"],
                        ["tilestored [{to} + {to_row}], tmm0" "/* {to_lower} */"]
                    ),
                }
            }
        }

        #[inline(always)]
        unsafe fn turned(square: &[[u32; SIDE]; SIDE]) -> [[u32; SIDE]; SIDE] {
            // SAFETY: whoever has AMX has AVX-512.
            unsafe { turned(square) }
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

    /// # Safety
    /// The machine has AVX-512.
    #[inline(always)]
    unsafe fn turned(square: &[[u32; SIDE]; SIDE]) -> [[u32; SIDE]; SIDE] {
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

    /// Multiply-adds of a round of [`probe`].
    pub(crate) const MULTIPLY_ADDS: usize = 4 * SIDE * SIDE * super::STEP;

    /// Multiplies tiles for so many rounds, in registers only.
    ///
    /// # Safety
    /// The machine has AMX.
    pub(crate) unsafe fn probe(rounds: u32) {
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
}

#[cfg(test)]
mod emulation {
    use super::{Engine, SIDE, Sums, WIDTH};

    /// Plain Rust. It keeps denormal numbers, and multiplies and adds one after the other: a product of two bf16 is exact in f32.
    pub(super) struct Loops;

    impl Engine for Loops {
        unsafe fn sum(sums: &Sums) {
            let halves = |word: u32| [word << 16, word & 0xffff_0000].map(f32::from_bits);
            let columns = if sums.wide { WIDTH } else { SIDE };
            for row in 0..if sums.tall { WIDTH } else { SIDE } {
                let mut sum = [0.0f32; WIDTH];
                // SAFETY: the caller's contract.
                unsafe {
                    let (from, from_row) = sums.from;
                    if !from.is_null() {
                        sum.as_mut_ptr().copy_from_nonoverlapping(from.byte_add(row * from_row), columns);
                    }
                    for step in 0..sums.steps {
                        let mut chains = [[0.0f32; WIDTH]; 2];
                        for word in 0..SIDE {
                            let x = halves(*sums.a.add((step * WIDTH + row) * SIDE + word));
                            let y = &*sums.b.add((step * SIDE + word) * WIDTH).cast::<[u32; WIDTH]>();
                            for (column, &y) in y.iter().enumerate() {
                                let y = halves(y);
                                (0..2).for_each(|half| chains[half][column] += x[half] * y[half]);
                            }
                        }
                        (0..WIDTH).for_each(|column| sum[column] += chains[0][column] + chains[1][column]);
                    }
                    let (to, to_row) = sums.to;
                    to.byte_add(row * to_row).copy_from_nonoverlapping(sum.as_ptr(), columns);
                }
            }
        }

        unsafe fn turned(square: &[[u32; SIDE]; SIDE]) -> [[u32; SIDE]; SIDE] {
            std::array::from_fn(|i| std::array::from_fn(|j| square[j][i]))
        }

        unsafe fn begin() {}

        unsafe fn end() {}
    }
}
