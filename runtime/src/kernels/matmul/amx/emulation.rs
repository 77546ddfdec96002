//! Tiles in plain Rust, for tests of what is around them on every machine.

use super::{Engine, SIDE, TileProduct, WIDTH};

/// Plain Rust. It keeps denormal numbers, and multiplies and adds one after the other: a product of two bf16 is exact in f32.
pub(super) struct Loops;

thread_local! {
    /// Has this thread begun?
    static BEGUN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Engine for Loops {
    unsafe fn sum(sums: &TileProduct) {
        assert!(BEGUN.get(), "registers have no shape yet");
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
                    let mut chains = [[0.0f32; 2]; WIDTH];
                    for word in 0..SIDE {
                        let x = sums.a[half].byte_add(step * sums.a_step + row * sums.a_row).add(word);
                        let x = values(x.read_unaligned());
                        let y = sums.b.byte_add(step * sums.b_step + word * sums.b_row);
                        for (column, chains) in chains.iter_mut().enumerate().take(columns) {
                            let y = values(y.add(column).read_unaligned());
                            (0..2).for_each(|half| chains[half] += x[half] * y[half]);
                        }
                    }
                    (0..columns).for_each(|column| sum[column] += chains[column][0] + chains[column][1]);
                }
                let to = sums.to[half].byte_add(row * sums.to_row);
                to.copy_from_nonoverlapping(sum.as_ptr(), columns);
            }
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
