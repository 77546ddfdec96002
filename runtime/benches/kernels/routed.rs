//! Rows on their way to experts and back: in one pass, and by the kernels that it stands for.

use super::memory::{Memory, view};
use super::{bench_all, ints, step};
use Arg::{Const, Load, Step as S};
use divan::Bencher;
use forebay_plan::{Arg, DType, Gather, Kernel, Lookup, Negative, Reduce, ReduceOp, Region, Step, StepOp, Store, View};

const TOKENS: u64 = 2048;
const COPIES: u64 = 2;
const ROWS: u64 = TOKENS * COPIES;
const D: u64 = 256;

/// One pass or several kernels, on one worker or two.
const ARGS: [(usize, bool); 4] = [(1, true), (1, false), (2, true), (2, false)];

/// A permutation of the rows.
fn permutation() -> Vec<i32> {
    (0..ROWS as i32).map(|i| i * 1229 % ROWS as i32).collect()
}

fn region(dims: &[u64], loads: Vec<forebay_plan::Load>, steps: Vec<Step>, store: Arg, to: View) -> Kernel {
    let stores = vec![Store { value: store, view: to }];
    Kernel::Region(Region { dims: dims.to_vec(), row_dims: 1, ragged: None, loads, steps, stores })
}

fn looked_up(table: u32, axis_size: u64, index: View, divide: u64) -> forebay_plan::Load {
    let strides = [&vec![0; index.strides.len() - 1][..], &[1]].concat();
    let through = Some(Lookup { index, divide, axis_stride: D, axis_size, axis_even: None, negative: Negative::Wrong });
    forebay_plan::Load { view: view(table, &strides), through }
}

fn gather(dims: &[u64], x: u32, axis_size: u64, index: View, out: u32) -> Kernel {
    let forebay_plan::Load { view: x, .. } = looked_up(x, axis_size, index.clone(), 1);
    let dims = dims.to_vec();
    Kernel::Gather(Gather {
        dtype: DType::F32,
        dims,
        x,
        index,
        axis_stride: D,
        axis_size,
        axis_even: None,
        negative: Negative::Wrong,
        out,
        ragged: None,
    })
}

/// The rows of tokens, for the experts: at rows / copies.
#[divan::bench(args = ARGS)]
fn permute(bencher: Bencher, (workers, one_pass): (usize, bool)) {
    let mut memory = Memory::default();
    let (rows, token) = (ints(&mut memory, &permutation()), ints(&mut memory, &vec![0; ROWS as usize]));
    let (x, out) = (memory.add(DType::F32, (TOKENS * D) as usize), memory.add(DType::F32, (ROWS * D) as usize));
    let kernels = if one_pass {
        let load = looked_up(x, TOKENS, view(rows, &[1, 0]), COPIES);
        vec![region(&[ROWS, D], vec![load], vec![], Load(0), view(out, &[D, 1]))]
    } else {
        let divide = vec![Step { op: StepOp::Div, dtype: DType::I32, args: vec![Load(0), Const(COPIES as f64)] }];
        vec![
            region(&[ROWS], vec![view(rows, &[1]).into()], divide, S(0), view(token, &[1])),
            gather(&[ROWS, D], x, TOKENS, view(token, &[1, 0]), out),
        ]
    };
    let bytes = 4 * (TOKENS * D + ROWS * D + ROWS) as usize;
    bench_all(memory, bencher, &kernels, workers, 0, bytes);
}

/// The weighted sum of each token's rows.
#[divan::bench(args = ARGS)]
fn unpermute(bencher: Bencher, (workers, one_pass): (usize, bool)) {
    let mut memory = Memory::default();
    let place = ints(&mut memory, &permutation());
    let (share, x) = (memory.add(DType::F32, ROWS as usize), memory.add(DType::F32, (ROWS * D) as usize));
    let [gathered, weighted] = [(); 2].map(|()| memory.add(DType::F32, (ROWS * D) as usize));
    let out = memory.add(DType::F32, (TOKENS * D) as usize);
    let kernels = if one_pass {
        let part = |buffer, copy| View { buffer, offset: copy, strides: vec![COPIES, 0] };
        let loads = vec![
            looked_up(x, ROWS, part(place, 0), 1),
            part(share, 0).into(),
            looked_up(x, ROWS, part(place, 1), 1),
            part(share, 1).into(),
        ];
        let steps = vec![
            step(StepOp::Mul, &[Load(0), Load(1)]),
            step(StepOp::Mul, &[Load(2), Load(3)]),
            step(StepOp::Add, &[S(0), S(1)]),
        ];
        vec![region(&[TOKENS, D], loads, steps, S(2), view(out, &[D, 1]))]
    } else {
        let whole = |buffer| view(buffer, &[COPIES * D, D, 1]);
        let of_copies = |buffer| view(buffer, &[COPIES, 1, 0]);
        let loads = vec![whole(gathered).into(), of_copies(share).into()];
        let product = vec![step(StepOp::Mul, &[Load(0), Load(1)])];
        let sum = Reduce {
            op: ReduceOp::Sum,
            dtype: DType::F32,
            dims: vec![TOKENS, D, COPIES],
            kept: 2,
            input: view(weighted, &[COPIES * D, 1, D]),
            out: view(out, &[D, 1]),
            ragged: None,
            accumulate: false,
        };
        vec![
            gather(&[TOKENS, COPIES, D], x, ROWS, of_copies(place), gathered),
            region(&[TOKENS, COPIES, D], loads, product, S(0), whole(weighted)),
            Kernel::Reduce(sum),
        ]
    };
    let bytes = 4 * (ROWS * D + TOKENS * D + 2 * ROWS) as usize;
    bench_all(memory, bencher, &kernels, workers, 3 * (TOKENS * D) as usize, bytes);
}
