//! Regions: elementwise work and row reductions in one pass. (Activations other than SwiGLU: `--bench activations`.)

use super::memory::{Memory, view};
use super::{WORKERS, bench, step};
use Arg::{Const, Load, Step as S};
use divan::Bencher;
use forebay_plan::{Arg, DType, Kernel, Region, Step, StepOp, Store, View};

fn region(dims: &[u64], loads: Vec<View>, steps: Vec<Step>, stores: Vec<Store>) -> Kernel {
    let loads = loads.into_iter().map(Into::into).collect();
    Kernel::Region(Region { dims: dims.to_vec(), row_dims: 1, ragged: None, loads, steps, stores })
}

/// silu(gate)·up
#[divan::bench(args = [(1, 4096 * 512), (2, 4096 * 512), (1, 16 * 1024), (1, 16 << 20), (2, 16 << 20)])]
fn swiglu(bencher: Bencher, (workers, n): (usize, usize)) {
    swiglu_of(DType::F32, bencher, workers, n);
}

#[divan::bench(args = [(1, 16 * 1024), (1, 4096 * 512), (2, 4096 * 512)])]
fn swiglu_bf16(bencher: Bencher, (workers, n): (usize, usize)) {
    swiglu_of(DType::Bf16, bencher, workers, n);
}

fn swiglu_of(dtype: DType, bencher: Bencher, workers: usize, n: usize) {
    let mut memory = Memory::default();
    let [gate, up, out] = [(); 3].map(|()| memory.add(dtype, n));
    let step = |op, args: &[Arg]| Step { op, dtype, args: args.to_vec() };
    let steps = vec![
        step(StepOp::Neg, &[Load(0)]),
        step(StepOp::Exp, &[S(0)]),
        step(StepOp::Add, &[S(1), Const(1.0)]),
        step(StepOp::Div, &[Load(0), S(2)]),
        step(StepOp::Mul, &[S(3), Load(1)]),
    ];
    let stores = vec![Store { value: S(4), view: view(out, &[1]) }];
    let kernel = region(&[n as u64], vec![view(gate, &[1]), view(up, &[1])], steps, stores);
    bench(memory, bencher, &kernel, workers, 5 * n, 3 * n * dtype.bytes() as usize);
}

/// So many additions of a constant, one after the other: what one more costs is an instruction's dispatch and its arithmetic.
#[divan::bench(args = [4, 20])]
fn additions(bencher: Bencher, count: u32) {
    let mut memory = Memory::default();
    let n = 16 * 1024;
    let [x, out] = [(); 2].map(|()| memory.add(DType::F32, n));
    let value = |i: u32| if i == 0 { Load(0) } else { S(i - 1) };
    let steps = (0..count).map(|i| step(StepOp::Add, &[value(i), Const(1.0)])).collect();
    let stores = vec![Store { value: value(count), view: view(out, &[1]) }];
    let kernel = region(&[n as u64], vec![view(x, &[1])], steps, stores);
    bench(memory, bencher, &kernel, 1, count as usize * n, 8 * n);
}

#[divan::bench(args = [(1, 2048, 256), (2, 2048, 256), (2, 16384, 1024)])]
fn rms_norm(bencher: Bencher, (workers, rows, d): (usize, usize, usize)) {
    let mut memory = Memory::default();
    let (x, gain, out) =
        (memory.add(DType::F32, rows * d), memory.add(DType::F32, d), memory.add(DType::F32, rows * d));
    let scale = memory.add(DType::F32, rows);
    let d64 = d as u64;
    let steps = vec![
        step(StepOp::Mul, &[Load(0), Load(0)]),
        step(StepOp::RowSum, &[S(0)]),
        step(StepOp::Mul, &[S(1), Const(1.0 / d as f64)]),
        step(StepOp::Add, &[S(2), Const(1e-6)]),
        step(StepOp::Rsqrt, &[S(3)]),
        step(StepOp::Mul, &[Load(0), S(4)]),
        step(StepOp::Mul, &[S(5), Load(1)]),
    ];
    let stores =
        vec![Store { value: S(4), view: view(scale, &[1, 0]) }, Store { value: S(6), view: view(out, &[d64, 1]) }];
    let loads = vec![view(x, &[d64, 1]), view(gain, &[0, 1])];
    let kernel = region(&[rows as u64, d64], loads, steps, stores);
    bench(memory, bencher, &kernel, workers, 4 * rows * d, 8 * rows * d);
}

/// Causal softmax of attention scores.
#[divan::bench(args = [(1, 64, 256), (2, 64, 256)])]
fn causal_softmax(bencher: Bencher, (workers, batch, t): (usize, usize, usize)) {
    let mut memory = Memory::default();
    let n = batch * t * t;
    let (x, out) = (memory.add(DType::F32, n), memory.add(DType::F32, n));
    let t64 = t as u64;
    let int = |op| Step { op, dtype: DType::I32, args: vec![] };
    let steps = vec![
        int(StepOp::Index(1)),
        int(StepOp::Index(2)),
        Step { op: StepOp::Le, dtype: DType::Bool, args: vec![S(1), S(0)] },
        step(StepOp::Mul, &[Load(0), Const(0.17)]),
        step(StepOp::Select, &[S(2), S(3), Const(f64::NEG_INFINITY)]),
        step(StepOp::RowMax, &[S(4)]),
        step(StepOp::Sub, &[S(4), S(5)]),
        step(StepOp::Exp, &[S(6)]),
        step(StepOp::RowSum, &[S(7)]),
        step(StepOp::Div, &[S(7), S(8)]),
    ];
    let stores = vec![Store { value: S(9), view: view(out, &[t64 * t64, t64, 1]) }];
    let kernel = region(&[batch as u64, t64, t64], vec![view(x, &[t64 * t64, t64, 1])], steps, stores);
    bench(memory, bencher, &kernel, workers, 8 * n, 8 * n);
}

/// softmax over a vocabulary.
#[divan::bench(args = [(1, 512, 256), (1, 64, 8192), (2, 64, 8192), (1, 16, 50_000)])]
fn softmax(bencher: Bencher, (workers, rows, n): (usize, usize, usize)) {
    let mut memory = Memory::default();
    let (x, out) = (memory.add(DType::F32, rows * n), memory.add(DType::F32, rows * n));
    let steps = vec![
        step(StepOp::RowMax, &[Load(0)]),
        step(StepOp::Sub, &[Load(0), S(0)]),
        step(StepOp::Exp, &[S(1)]),
        step(StepOp::RowSum, &[S(2)]),
        step(StepOp::Div, &[S(2), S(3)]),
    ];
    let strides = [n as u64, 1];
    let stores = vec![Store { value: S(4), view: view(out, &strides) }];
    let kernel = region(&[rows as u64, n as u64], vec![view(x, &strides)], steps, stores);
    bench(memory, bencher, &kernel, workers, 5 * rows * n, 8 * rows * n);
}

/// Softmax over 8 experts.
#[divan::bench(args = WORKERS)]
fn router_softmax(bencher: Bencher, workers: usize) {
    softmax(bencher, (workers, 2048, 8));
}

#[divan::bench(args = [(1, 1 << 14), (1, 1 << 20), (2, 1 << 20), (2, 8 << 20)])]
fn adamw(bencher: Bencher, (workers, n): (usize, usize)) {
    let mut memory = Memory::default();
    let [p, m, v, g] = [(); 4].map(|()| memory.add(DType::F32, n));
    let rate = memory.add(DType::F32, 1);
    let steps = vec![
        step(StepOp::Mul, &[Load(1), Const(0.9)]),
        step(StepOp::Mul, &[Load(3), Const(0.1)]),
        step(StepOp::Add, &[S(0), S(1)]),
        step(StepOp::Mul, &[Load(2), Const(0.95)]),
        step(StepOp::Mul, &[Load(3), Load(3)]),
        step(StepOp::Mul, &[S(4), Const(0.05)]),
        step(StepOp::Add, &[S(3), S(5)]),
        step(StepOp::Mul, &[S(6), Load(4)]),
        step(StepOp::Sqrt, &[S(7)]),
        step(StepOp::Add, &[S(8), Const(1e-8)]),
        step(StepOp::Mul, &[S(2), Load(4)]),
        step(StepOp::Div, &[S(10), S(9)]),
        step(StepOp::Mul, &[Load(0), Const(0.01)]),
        step(StepOp::Add, &[S(11), S(12)]),
        step(StepOp::Mul, &[S(13), Load(4)]),
        step(StepOp::Sub, &[Load(0), S(14)]),
    ];
    let flat = |b| view(b, &[1]);
    let stores = vec![
        Store { value: S(2), view: flat(m) },
        Store { value: S(6), view: flat(v) },
        Store { value: S(15), view: flat(p) },
    ];
    let kernel = region(&[n as u64], vec![flat(p), flat(m), flat(v), flat(g), view(rate, &[0])], steps, stores);
    bench(memory, bencher, &kernel, workers, 16 * n, 28 * n);
}

/// Rotary embedding of queries, from [b, t, h, 2, dh/2] to [b, h, t, 2, dh/2].
#[divan::bench(args = WORKERS)]
fn rope(bencher: Bencher, workers: usize) {
    let (b, t, h, d) = (8u64, 256u64, 8u64, 16u64);
    let n = (b * t * h * d) as usize;
    let mut memory = Memory::default();
    let (x, out) = (memory.add(DType::F32, 2 * n), memory.add(DType::F32, 2 * n));
    let [cos, sin] = [(); 2].map(|()| memory.add(DType::F32, (t * d) as usize));
    let from = [t * h * 2 * d, h * 2 * d, 2 * d, 1];
    let to = [h * t * 2 * d, 2 * d, t * 2 * d, 1];
    let table = [0, d, 0, 1];
    let half = |buffer, strides: &[u64], second: u64| View { buffer, offset: second * d, strides: strides.to_vec() };
    let steps = vec![
        step(StepOp::Mul, &[Load(0), Load(2)]),
        step(StepOp::Mul, &[Load(1), Load(3)]),
        step(StepOp::Sub, &[S(0), S(1)]),
        step(StepOp::Mul, &[Load(1), Load(2)]),
        step(StepOp::Mul, &[Load(0), Load(3)]),
        step(StepOp::Add, &[S(3), S(4)]),
    ];
    let loads = vec![half(x, &from, 0), half(x, &from, 1), view(cos, &table), view(sin, &table)];
    let stores = vec![Store { value: S(2), view: half(out, &to, 0) }, Store { value: S(5), view: half(out, &to, 1) }];
    bench(memory, bencher, &region(&[b, t, h, d], loads, steps, stores), workers, 6 * n, 16 * n);
}

/// A plain copy, and one that turns a matrix.
#[divan::bench(args = [(1, false), (2, false), (1, true), (2, true)])]
fn copy(bencher: Bencher, (workers, turned): (usize, bool)) {
    let (m, n) = (2048u64, 1024u64);
    let mut memory = Memory::default();
    let [x, out] = [(); 2].map(|()| memory.add(DType::F32, (m * n) as usize));
    let from = if turned { [1, m] } else { [n, 1] };
    let stores = vec![Store { value: Load(0), view: view(out, &[n, 1]) }];
    let kernel = region(&[m, n], vec![view(x, &from)], vec![], stores);
    bench(memory, bencher, &kernel, workers, 0, 8 * (m * n) as usize);
}
