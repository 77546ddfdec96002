//! Products of small matrices: registers read operands where they are, or copies.

use super::{Engine, LINE, SIDE, Square, TileProduct, WIDTH, halves};
use crate::kernels::matmul::product::Product;
use crate::kernels::matmul::tile::Simd;
use std::ops::Range;

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
pub(super) unsafe fn product_of<S: Simd<T = f32>, E: Engine>(p: Product<f32>) {
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
                    let product = TileProduct {
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
                        next: p.c.cast_const().cast(),
                        next_row: 0,
                        tall: rows.len() > SIDE,
                        wide: columns.len() > SIDE,
                        turned: false,
                    };
                    small_c::<S, E>(&p, rows.clone(), columns, p.add || word > 0, product);
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
                    for (word, row) in square.iter_mut().enumerate().take(left) {
                        copy_row::<S>(from.add(word * p.a_step), count, row.as_mut_ptr());
                    }
                    *to.cast::<[[u32; SIDE]; SIDE]>() = E::transposed(&square);
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
    mut product: TileProduct,
) {
    // SAFETY: the caller's contract: C has the rows and columns.
    unsafe {
        let c = p.c.add(rows.start * p.c_row + columns.start);
        let whole = rows.len().is_multiple_of(SIDE) && columns.len().is_multiple_of(SIDE);
        let mut square = Square([const { std::mem::MaybeUninit::uninit() }; WIDTH * WIDTH]);
        let at = square.0.as_mut_ptr().cast::<f32>();
        let (to, row) = if whole { (c, p.c_row) } else { (at, WIDTH) };
        (product.to, product.to_row) = (halves(to, row), row * size_of::<f32>());
        if add {
            (product.from, product.from_row) = (product.to.map(<*mut f32>::cast_const), product.to_row);
        }
        if whole {
            return E::sum(&product);
        }
        let parts = |row: usize| (0..columns.len()).step_by(S::LANES).map(move |first| (row, first));
        let parts = || (0..rows.len()).flat_map(parts);
        let lanes = |first: usize| (columns.len() - first).min(S::LANES);
        if add {
            at.write_bytes(0, WIDTH * WIDTH);
            for (row, first) in parts() {
                S::store(at.add(row * WIDTH + first), S::load_part(c.add(row * p.c_row + first), lanes(first)));
            }
        }
        E::sum(&product);
        for (row, first) in parts() {
            S::store_part(c.add(row * p.c_row + first), S::load(at.add(row * WIDTH + first)), lanes(first));
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
