//! Reductions, and work by index.

use super::memory::{Memory, view};
use super::{WORKERS, bench, ints};
use divan::Bencher;
use forebay_plan::{DType, Gather, Kernel, Negative, Reduce, ReduceOp, ScatterAdd, TopK};

/// Sums of columns (a bias' gradient), of rows, of everything.
#[divan::bench(args = [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)])]
fn sums_of_columns_rows_all(bencher: Bencher, (workers, kind): (usize, usize)) {
    let (m, n) = (2048u64, 512u64);
    let mut memory = Memory::default();
    let (x, out) = (memory.add(DType::F32, (m * n) as usize), memory.add(DType::F32, m as usize));
    let (dims, kept, strides) = match kind {
        0 => (vec![n, m], 1, vec![1, n]),
        1 => (vec![m, n], 1, vec![n, 1]),
        _ => (vec![m * n], 0, vec![1]),
    };
    let kernel = Kernel::Reduce(Reduce {
        op: ReduceOp::Sum,
        dtype: DType::F32,
        dims,
        kept,
        input: view(x, &strides),
        out: view(out, &vec![1; kept as usize]),
        ragged: None,
        accumulate: false,
    });
    bench(memory, bencher, &kernel, workers, (m * n) as usize, 4 * (m * n) as usize);
}

const TOKENS: usize = 2048;
const D: usize = 256;

fn shuffled(n: usize, below: usize) -> Vec<i32> {
    (0..n).map(|i| (i * 7919 % below) as i32).collect()
}

/// Rows of tokens for experts.
#[divan::bench(args = WORKERS)]
fn gather_rows(bencher: Bencher, workers: usize) {
    let mut memory = Memory::default();
    let index = ints(&mut memory, &shuffled(2 * TOKENS, TOKENS));
    let (x, out) = (memory.add(DType::F32, TOKENS * D), memory.add(DType::F32, 2 * TOKENS * D));
    let kernel = Kernel::Gather(Gather {
        dtype: DType::F32,
        dims: vec![2 * TOKENS as u64, D as u64],
        x: view(x, &[0, 1]),
        index: view(index, &[1, 0]),
        axis_stride: D as u64,
        axis_size: TOKENS as u64,
        axis_even: None,
        negative: Negative::Wrong,
        out,
        ragged: None,
    });
    bench(memory, bencher, &kernel, workers, 0, 16 * TOKENS * D);
}

/// Its gradient.
#[divan::bench(args = WORKERS)]
fn scatter_rows(bencher: Bencher, workers: usize) {
    let mut memory = Memory::default();
    let index = ints(&mut memory, &shuffled(2 * TOKENS, TOKENS));
    let (v, out) = (memory.add(DType::F32, 2 * TOKENS * D), memory.add(DType::F32, TOKENS * D));
    let kernel = Kernel::ScatterAdd(ScatterAdd {
        dtype: DType::F32,
        dims: vec![2 * TOKENS as u64, D as u64],
        v: view(v, &[D as u64, 1]),
        index: view(index, &[1, 0]),
        out: view(out, &[0, 1]),
        axis_stride: D as u64,
        axis_size: TOKENS as u64,
        negative: Negative::Wrong,
        out_elements: (TOKENS * D) as u64,
        ragged: None,
        accumulate: false,
    });
    bench(memory, bencher, &kernel, workers, 2 * TOKENS * D, 12 * TOKENS * D);
}

#[divan::bench(args = WORKERS)]
fn top_2_of_8(bencher: Bencher, workers: usize) {
    let mut memory = Memory::default();
    let (input, out) = (memory.add(DType::F32, TOKENS * 8), memory.add(DType::I32, TOKENS * 2));
    let (outer, n) = (TOKENS as u64, 8);
    let kernel = Kernel::TopK(TopK { dtype: DType::F32, outer, n, inner: 1, k: 2, input, out });
    bench(memory, bencher, &kernel, workers, 0, TOKENS * 40);
}
