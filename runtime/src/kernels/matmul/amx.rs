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
use super::product::Product;
use super::tile::{A_WIDTH, Simd, Source, TileArgs, compiled};
use std::ops::Range;

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

/// Four registers of sums. Distances are in bytes.
#[derive(Clone, Copy)]
#[repr(C)]
struct Sums {
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
    /// What is fetched meanwhile, two lines a step.
    next: *const u8,
    next_row: usize,
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
                const TASKS_OF_GROUPS: usize = 8;

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
                        unsafe { product_of::<Flavour, $engine>(product) }
                    }
                    // SAFETY: the machine has the features (the trait's contract).
                    unsafe { featured(product) }
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
        let mut sums = Sums {
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
            // Something that exists: looking for a page that does not takes long.
            next: a.cast(),
            next_row: 0,
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

/// Steps of a small product that are done at once.
const STEPS: usize = 8;

/// A copy of what a register cannot read where it is: steps of thirty-two rows of A or columns of B, as in panels.
#[repr(align(64))]
struct Copied([std::mem::MaybeUninit<u32>; STEPS * SIDE * WIDTH]);

impl Copied {
    fn new() -> Copied {
        Copied([const { std::mem::MaybeUninit::uninit() }; STEPS * SIDE * WIDTH])
    }
}

/// A product of small matrices. Registers read what they can where it is.
///
/// # Safety
/// As [`Product::run`]; the thread has begun.
#[inline(always)]
unsafe fn product_of<S: Simd<T = f32>, E: Engine>(p: Product<f32>) {
    let (mut rows_of_a, mut columns_of_b) = (Copied::new(), Copied::new());
    for word in (0..p.depth).step_by(STEPS * SIDE) {
        let words = word..(word + STEPS * SIDE).min(p.depth);
        for row in (0..p.rows).step_by(WIDTH) {
            let rows = row..(row + WIDTH).min(p.rows);
            // SAFETY: the caller's contract: A, B and C have the elements.
            unsafe {
                let (a, a_row, a_step) = small_a::<S, E>(&p, rows.clone(), words.clone(), &mut rows_of_a);
                for column in (0..p.columns).step_by(WIDTH) {
                    let columns = column..(column + WIDTH).min(p.columns);
                    let (b, b_row) = small_b::<S>(&p, words.clone(), columns.clone(), &mut columns_of_b);
                    let sums = Sums {
                        a,
                        a_row,
                        a_step,
                        b,
                        b_row,
                        b_step: SIDE * b_row,
                        steps: words.len().div_ceil(SIDE),
                        from: [std::ptr::null(); 2],
                        from_row: 0,
                        to: [std::ptr::null_mut(); 2],
                        to_row: 0,
                        next: a[0].cast(),
                        next_row: 0,
                        tall: rows.len() > SIDE,
                        wide: columns.len() > SIDE,
                    };
                    small_c::<S, E>(&p, rows.clone(), columns, p.add || word > 0, sums);
                }
            }
        }
    }
}

/// Rows of A for registers: upper and lower ones, from one row to the next, from one step to the next.
#[inline(always)]
unsafe fn small_a<S: Simd<T = f32>, E: Engine>(
    p: &Product<f32>,
    rows: Range<usize>,
    words: Range<usize>,
    copied: &mut Copied,
) -> ([*const u32; 2], usize, usize) {
    // SAFETY: the caller's contract: A has the rows and words; the copy has room for as many steps.
    unsafe {
        let at = p.a.cast::<u32>().add(rows.start * p.a_row + words.start * p.a_step);
        let whole = rows.len().is_multiple_of(SIDE) && words.len().is_multiple_of(SIDE);
        if p.a_step == 1 && whole {
            return ([at, at.wrapping_add(SIDE * p.a_row)], p.a_row * size_of::<u32>(), LINE);
        }
        let to = copied.0.as_mut_ptr().cast::<u32>();
        for step in 0..words.len().div_ceil(SIDE) {
            let left = (words.len() - step * SIDE).min(SIDE);
            for half in 0..rows.len().div_ceil(SIDE) {
                let count = (rows.len() - half * SIDE).min(SIDE);
                let from = at.add(half * SIDE * p.a_row + step * SIDE * p.a_step);
                let to = to.add((step * WIDTH + half * SIDE) * SIDE);
                if p.a_step == 1 {
                    for row in 0..SIDE {
                        let left = if row < count { left } else { 0 };
                        copy_row::<S>(from.wrapping_add(row * p.a_row), left, to.add(row * SIDE));
                    }
                } else if p.a_row == 1 {
                    let mut square = [[0; SIDE]; SIDE];
                    for word in 0..left {
                        copy_row::<S>(from.add(word * p.a_step), count, square[word].as_mut_ptr());
                    }
                    *to.cast::<[[u32; SIDE]; SIDE]>() = E::turned(&square);
                } else {
                    for (row, word) in (0..SIDE).flat_map(|row| (0..SIDE).map(move |word| (row, word))) {
                        let exists = row < count && word < left;
                        let value = if exists { *from.add(row * p.a_row + word * p.a_step) } else { 0 };
                        *to.add(row * SIDE + word) = value;
                    }
                }
            }
        }
        let to = to.cast_const();
        ([to, to.add(SIDE * SIDE)], LINE, WIDTH * LINE)
    }
}

/// Columns of B for registers, and from one row to the next.
#[inline(always)]
unsafe fn small_b<S: Simd<T = f32>>(
    p: &Product<f32>,
    words: Range<usize>,
    columns: Range<usize>,
    copied: &mut Copied,
) -> (*const u32, usize) {
    // SAFETY: the caller's contract: B has the words and columns; the copy has room for as many steps.
    unsafe {
        let at = p.b.at.cast::<u32>().add(words.start * p.b.row + columns.start);
        if columns.len().is_multiple_of(SIDE) && words.len().is_multiple_of(SIDE) {
            return (at, p.b.row * size_of::<u32>());
        }
        let to = copied.0.as_mut_ptr().cast::<u32>();
        for word in 0..words.len().next_multiple_of(SIDE) {
            for half in 0..columns.len().div_ceil(SIDE) {
                let count = if word < words.len() { (columns.len() - half * SIDE).min(SIDE) } else { 0 };
                let from = at.wrapping_add(word * p.b.row + half * SIDE);
                copy_row::<S>(from, count, to.add(word * WIDTH + half * SIDE));
            }
        }
        (to.cast_const(), 2 * LINE)
    }
}

/// Makes sums in C, or adds to those there.
#[inline(always)]
unsafe fn small_c<S: Simd<T = f32>, E: Engine>(
    p: &Product<f32>,
    rows: Range<usize>,
    columns: Range<usize>,
    add: bool,
    mut sums: Sums,
) {
    // SAFETY: the caller's contract: C has the rows and columns.
    unsafe {
        let c = p.c.add(rows.start * p.c_row + columns.start);
        let whole = rows.len().is_multiple_of(SIDE) && columns.len().is_multiple_of(SIDE);
        let mut square = Square([const { std::mem::MaybeUninit::uninit() }; WIDTH * WIDTH]);
        let at = square.0.as_mut_ptr().cast::<f32>();
        let (to, row) = if whole { (c, p.c_row) } else { (at, WIDTH) };
        (sums.to, sums.to_row) = (halves(to, row), row * size_of::<f32>());
        if add {
            (sums.from, sums.from_row) = (sums.to.map(<*mut f32>::cast_const), sums.to_row);
        }
        let each = |run: &dyn Fn(*mut f32, *mut f32, usize)| {
            for row in 0..rows.len() {
                for first in (0..columns.len()).step_by(S::LANES) {
                    let count = (columns.len() - first).min(S::LANES);
                    run(c.add(row * p.c_row + first), at.add(row * WIDTH + first), count);
                }
            }
        };
        if !whole && add {
            at.write_bytes(0, WIDTH * WIDTH);
            each(&|c, at, count| S::store(at, S::load_part(c, count)));
        }
        E::sum(&sums);
        if !whole {
            each(&|c, at, count| S::store_part(c, S::load(at), count));
        }
    }
}

/// Copies the first words of a row, and zeros behind them.
#[inline(always)]
unsafe fn copy_row<S: Simd<T = f32>>(from: *const u32, count: usize, to: *mut u32) {
    for first in (0..SIDE).step_by(S::LANES) {
        // SAFETY: the caller's contract: there are as many words, and room for a row. Lanes that are not loaded are zeros.
        unsafe {
            let words = S::load_part(from.wrapping_add(first).cast(), count.saturating_sub(first).min(S::LANES));
            S::store(to.add(first).cast(), words);
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
    unsafe fn one_by_one(&self, first: usize, products: Range<usize>) {
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
    unsafe fn along(&self, first: usize, products: Range<usize>) {
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
    use std::mem::offset_of;

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
        ($sums:expr, [$($load:literal)*], [$($clear:literal)*], [$($step:literal)*], [$($store:literal)*]) => {
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
                "prefetchw [{next}]",
                "prefetchw [{next} + {next_row}]",
                "lea {next}, [{next} + 2 * {next_row}]",
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
                FROM = const offset_of!(Sums, from),
                FROM_ROW = const offset_of!(Sums, from_row),
                A = const offset_of!(Sums, a),
                A_ROW = const offset_of!(Sums, a_row),
                TO = const offset_of!(Sums, to),
                TO_ROW = const offset_of!(Sums, to_row),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            )
        };
    }

    impl Engine for Amx {
        #[inline(always)]
        unsafe fn sum(sums: &Sums) {
            // SAFETY: the caller's contract. A register reads 16 rows of 64 bytes, as far apart as they are.
            unsafe {
                match (sums.tall, sums.wide) {
                    (true, true) => sums!(
                        sums,
                        ["tileloadd tmm0, [{upper} + {row}]" "tileloadd tmm1, [{upper} + {row} + 64]"
                         "tileloadd tmm2, [{lower} + {row}]" "tileloadd tmm3, [{lower} + {row} + 64]"],
                        ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
                        ["tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                         "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"
                         "tileloadd tmm5, [{lower} + {row}]" "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"],
                        ["tilestored [{upper} + {row}], tmm0" "tilestored [{upper} + {row} + 64], tmm1"
                         "tilestored [{lower} + {row}], tmm2" "tilestored [{lower} + {row} + 64], tmm3"]
                    ),
                    (true, false) => sums!(
                        sums,
                        ["tileloadd tmm0, [{upper} + {row}]" "tileloadd tmm2, [{lower} + {row}]"],
                        ["tilezero tmm0" "tilezero tmm2"],
                        ["tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                         "tileloadd tmm5, [{lower} + {row}]" "tdpbf16ps tmm2, tmm5, tmm6"],
                        ["tilestored [{upper} + {row}], tmm0" "tilestored [{lower} + {row}], tmm2"]
                    ),
                    (false, true) => sums!(
                        sums,
                        ["tileloadd tmm0, [{upper} + {row}]" "tileloadd tmm1, [{upper} + {row} + 64]"],
                        ["tilezero tmm0" "tilezero tmm1"],
                        ["tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6"
                         "tileloaddt1 tmm7, [{b} + {b_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"],
                        ["tilestored [{upper} + {row}], tmm0" "tilestored [{upper} + {row} + 64], tmm1"]
                    ),
                    (false, false) => sums!(
                        sums,
                        ["tileloadd tmm0, [{upper} + {row}]"],
                        ["tilezero tmm0"],
                        ["tileloaddt1 tmm6, [{b} + {b_row}]" "tileloadd tmm4, [{upper} + {row}]" "tdpbf16ps tmm0, tmm4, tmm6"],
                        ["tilestored [{upper} + {row}], tmm0"]
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
            let values = |word: u32| [word << 16, word & 0xffff_0000].map(f32::from_bits);
            let columns = if sums.wide { WIDTH } else { SIDE };
            for row in 0..if sums.tall { WIDTH } else { SIDE } {
                let mut sum = [0.0f32; WIDTH];
                let (half, row) = (row / SIDE, row % SIDE);
                // SAFETY: the caller's contract.
                unsafe {
                    if !sums.from[0].is_null() {
                        let from = sums.from[half].byte_add(row * sums.from_row);
                        sum.as_mut_ptr().copy_from_nonoverlapping(from, columns);
                    }
                    for step in 0..sums.steps {
                        let mut chains = [[0.0f32; WIDTH]; 2];
                        for word in 0..SIDE {
                            let x = sums.a[half].byte_add(step * sums.a_step + row * sums.a_row).add(word);
                            let x = values(x.read_unaligned());
                            let y = sums.b.byte_add(step * sums.b_step + word * sums.b_row);
                            for column in 0..columns {
                                let y = values(y.add(column).read_unaligned());
                                (0..2).for_each(|half| chains[half][column] += x[half] * y[half]);
                            }
                        }
                        (0..columns).for_each(|column| sum[column] += chains[0][column] + chains[1][column]);
                    }
                    let to = sums.to[half].byte_add(row * sums.to_row);
                    to.copy_from_nonoverlapping(sum.as_ptr(), columns);
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
