//! Tiles in plain Rust, for tests of what is around them on every machine.

use super::split::{ORDER, THIRD, THIRDS, thirds};
use super::{Engine, SIDE, TileProduct, WIDTH};

/// Plain Rust. It keeps denormal numbers, and multiplies and adds one after the other: a product of two bf16 is exact in f32.
pub(super) struct Loops;

thread_local! {
    /// Has this thread begun?
    static BEGUN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Loops {
    /// Sums of products of so many parts of A and B.
    ///
    /// # Safety
    /// As [`Engine::sum`].
    unsafe fn sum_of(sums: &TileProduct, order: &[[usize; 2]]) {
        assert!(BEGUN.get(), "registers have no shape yet");
        let columns = if sums.wide { WIDTH } else { SIDE };
        let instruction = if sums.wide { instruction::<WIDTH> } else { instruction::<SIDE> };
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
                    for [x, y] in order {
                        let a = sums.a[half].byte_add(step * sums.a_step + row * sums.a_row + x * THIRD);
                        instruction(&mut sum, a, sums.b.byte_add(step * sums.b_step + y * THIRD), sums.b_row);
                    }
                }
                let to = sums.to[half].byte_add(row * sums.to_row);
                to.copy_from_nonoverlapping(sum.as_ptr(), columns);
            }
        }
    }
}

/// What an instruction adds to one row of so many sums; by whole rows of B, so that the compiler makes vectors of it: tests make millions of these.
///
/// # Safety
/// `a` points to `SIDE` words, `b` to `SIDE` rows of `COLUMNS` words each, `b_row` bytes apart.
unsafe fn instruction<const COLUMNS: usize>(sum: &mut [f32; WIDTH], a: *const u32, b: *const u32, b_row: usize) {
    let values = |word: u32| [word << 16, word & 0xffff_0000].map(f32::from_bits);
    let (mut first, mut second) = ([0.0f32; COLUMNS], [0.0f32; COLUMNS]);
    for word in 0..SIDE {
        // SAFETY: the caller's contract.
        let (x, row) = unsafe {
            let row = b.byte_add(word * b_row).cast::<[u32; COLUMNS]>();
            (values(a.add(word).read_unaligned()), row.read_unaligned())
        };
        for (column, word) in row.into_iter().enumerate() {
            let y = values(word);
            first[column] += x[0] * y[0];
            second[column] += x[1] * y[1];
        }
    }
    sum.iter_mut().zip(first.iter().zip(second)).for_each(|(sum, (first, second))| *sum += first + second);
}

/// Takes two numbers apart, to a word of each part.
///
/// # Safety
/// There are the numbers and places.
unsafe fn split(from: [*const f32; 2], to: [*mut u32; THIRDS]) {
    // SAFETY: the caller's contract.
    unsafe {
        let [low, high] = from.map(|from| thirds(from.read_unaligned()));
        (0..THIRDS).for_each(|third| to[third].write_unaligned(low[third] >> 16 | high[third] & 0xffff_0000));
    }
}

impl Engine for Loops {
    unsafe fn sum(sums: &TileProduct) {
        // SAFETY: the caller's contract.
        unsafe { Loops::sum_of(sums, &[[0, 0]]) }
    }

    unsafe fn sum_thirds(sums: &TileProduct) {
        // SAFETY: the caller's contract.
        unsafe { Loops::sum_of(sums, &ORDER.map(|[a, b]| if sums.turned { [b, a] } else { [a, b] })) }
    }

    unsafe fn split_along(from: *const f32, to: [*mut u32; THIRDS]) {
        for word in 0..SIDE {
            // SAFETY: the caller's contract.
            unsafe { split([from.add(2 * word), from.add(2 * word + 1)], to.map(|to| to.add(word))) };
        }
    }

    unsafe fn split_across(from: [*const f32; 2], to: [*mut u32; THIRDS]) {
        for i in 0..SIDE {
            // SAFETY: as above.
            unsafe { split(from.map(|from| from.add(i)), to.map(|to| to.add(i))) };
        }
    }

    unsafe fn transposed(square: &[[u32; SIDE]; SIDE]) -> [[u32; SIDE]; SIDE] {
        std::array::from_fn(|i| std::array::from_fn(|j| square[j][i]))
    }

    unsafe fn begin() {
        BEGUN.set(true);
    }

    unsafe fn end() {
        BEGUN.set(false);
    }
}
