//! Speed of single kernels at the shapes of a small Mixture-of-Experts model: 2048 tokens of 256, 8 experts, 8 heads of 32.
//!
//! `cargo bench -p forebay-runtime --bench kernels` prints floating-point operations as items (`Gitem/s` are GFLOP/s) and traffic as bytes. `t=1` and `t=2`
//! are the workers of the pool; divan's own threads are not used.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, Divan};
use forebay_plan::{
    Arg, Attention, AttentionBackward, AttentionInputs, BatchDim, Buffer, DType, Gather, Groups, Kernel, MatDim,
    Matmul, RaggedDim, Reduce, ReduceOp, Region, ScatterAdd, ScorePair, Step, StepOp, Store, TopK, View,
};
use forebay_runtime::kernels::{
    Buf, Cpu, KernelCx, Prepared, RandomKeyArgs, Scratch, ScratchBytes, prepare, run, scratch_bytes,
};
use forebay_runtime::pool::Pool;

mod routed;

fn main() {
    Divan::from_args().main();
}

const WORKERS: [usize; 2] = [1, 2];

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line([f32; 16]);

/// Buffers with some numbers in them.
#[derive(Default)]
struct Memory {
    buffers: Vec<Buffer>,
    data: Vec<Vec<Line>>,
}

impl Memory {
    fn add(&mut self, dtype: DType, elements: usize) -> u32 {
        let bytes = elements * dtype.bytes() as usize;
        let mut lines = vec![Line([0.0; 16]); bytes.div_ceil(64) + 1];
        for (i, line) in lines.iter_mut().enumerate() {
            // From 0.5 to 2, as f32 and, each half, as bf16.
            line.0 = std::array::from_fn(|j| {
                f32::from_bits(0x3f00_3f00 + ((i * 7919 + j * 104_729) % 256) as u32 * 0x1_0001)
            });
        }
        let id = self.buffers.len() as u32;
        self.data.push(lines);
        self.buffers.push(Buffer { name: String::new(), dtype, elements: elements as u64, slot: id, offset: 0 });
        id
    }

    fn ints(&mut self, values: &[i32]) -> u32 {
        let id = self.add(DType::I32, values.len());
        let ptr = self.data[id as usize].as_mut_ptr().cast::<i32>();
        // SAFETY: the buffer has as many elements.
        unsafe { ptr.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        id
    }

    fn bench(self, bencher: Bencher, kernel: &Kernel, workers: usize, flops: usize, bytes: usize) {
        self.bench_all(bencher, std::slice::from_ref(kernel), workers, flops, bytes);
    }

    /// Kernels one after another.
    fn bench_all(mut self, bencher: Bencher, kernels: &[Kernel], workers: usize, flops: usize, bytes: usize) {
        let cpu = Cpu::detect();
        let prepare = |kernel: &Kernel| prepare(kernel, &self.buffers, cpu).expect("the kernel is good");
        let prepared: Vec<Prepared> = kernels.iter().map(prepare).collect();
        let pool = Pool::new(workers);
        let need = prepared.iter().fold(ScratchBytes::default(), |need, k| need.max(scratch_bytes(k)));
        let scratch = Scratch::new(need, workers);
        let buffers: Vec<Buf> = self
            .buffers
            .iter()
            .zip(&mut self.data)
            .map(|(b, d)| Buf { ptr: d.as_mut_ptr().cast(), dtype: b.dtype, elements: b.elements as usize })
            .collect();
        let cx = KernelCx {
            pool: &pool,
            scratch: &scratch,
            buffers: &buffers,
            key: RandomKeyArgs::default(),
            coordinates: &[],
        };
        let bencher = bencher.counter(BytesCount::new(bytes)).counter(ItemsCount::new(flops));
        let run = |kernel: &Prepared| {
            // SAFETY: the buffers are as large as the kernel's views.
            unsafe { run(kernel, &cx) }.expect("indices are in range");
        };
        bencher.bench_local(|| prepared.iter().for_each(run));
    }
}

fn view(buffer: u32, strides: &[u64]) -> View {
    View { buffer, offset: 0, strides: strides.to_vec() }
}

fn step(op: StepOp, args: &[Arg]) -> Step {
    Step { op, dtype: DType::F32, args: args.to_vec() }
}

mod products {
    use super::*;

    /// (batch, m, k, n) with A and B as they are or transposed in memory.
    fn dense(bencher: Bencher, workers: usize, dtype: DType, [b, m, k, n]: [usize; 4], turned: [bool; 2]) {
        let mut memory = Memory::default();
        let (a, bb, c) = (memory.add(dtype, b * m * k), memory.add(dtype, b * k * n), memory.add(dtype, b * m * n));
        let (m64, k64, n64) = (m as u64, k as u64, n as u64);
        let (sa, sb) = (if turned[0] { (1, m64) } else { (k64, 1) }, if turned[1] { (1, k64) } else { (n64, 1) });
        let kernel = Kernel::Matmul(Matmul {
            dtype,
            a,
            b: bb,
            c,
            offsets: [0; 3],
            batch: vec![BatchDim(b as u64, m64 * k64, k64 * n64, m64 * n64)],
            m: MatDim(m64, sa.0, n64),
            n: MatDim(n64, sb.1, 1),
            k: MatDim(k64, sa.1, sb.0),
            k_outer: vec![],
            groups: None,
            accumulate: false,
            epilogue: None,
        });
        let bytes = b * (m * k + k * n + m * n) * dtype.bytes() as usize;
        memory.bench(bencher, &kernel, workers, 2 * b * m * k * n, bytes);
    }

    #[divan::bench(args = WORKERS)]
    fn nn_2048x256x256(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::F32, [1, 2048, 256, 256], [false, false]);
    }

    #[divan::bench(args = WORKERS)]
    fn nn_2048x256x512(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::F32, [1, 2048, 256, 512], [false, false]);
    }

    #[divan::bench(args = WORKERS)]
    fn nn_2048x256x1024(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::F32, [1, 2048, 256, 1024], [false, false]);
    }

    #[divan::bench(args = WORKERS)]
    fn nn_2048x256x512_bf16(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::Bf16, [1, 2048, 256, 512], [false, false]);
    }

    #[divan::bench(args = WORKERS)]
    fn nn_2048x256x512_f64(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::F64, [1, 2048, 256, 512], [false, false]);
    }

    #[divan::bench(args = WORKERS)]
    fn nt_2048x512x256(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::F32, [1, 2048, 512, 256], [false, true]);
    }

    #[divan::bench(args = WORKERS)]
    fn nt_512x512x256(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::F32, [1, 512, 512, 256], [false, true]);
    }

    #[divan::bench(args = WORKERS)]
    fn tn_256x2048x512(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::F32, [1, 256, 2048, 512], [true, false]);
    }

    #[divan::bench(args = WORKERS)]
    fn attention_scores_64x256x32x256(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::F32, [64, 256, 32, 256], [false, true]);
    }

    #[divan::bench(args = WORKERS)]
    fn attention_values_64x256x256x32(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::F32, [64, 256, 256, 32], [false, false]);
    }

    #[divan::bench(args = WORKERS)]
    fn attention_dkeys_64x256x256x32(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::F32, [64, 256, 256, 32], [true, false]);
    }

    #[divan::bench(args = WORKERS)]
    fn one_row_1x256x1024(bencher: Bencher, workers: usize) {
        dense(bencher, workers, DType::F32, [1, 1, 256, 1024], [false, false]);
    }

    /// Experts of uneven sizes, 4096 rows in all.
    fn grouped(bencher: Bencher, workers: usize, ragged: RaggedDim, d: usize, f: usize, turned: bool) {
        let (rows, experts) = (4096usize, 8usize);
        let mut memory = Memory::default();
        let starts = [0, 700, 1100, 1650, 2150, 2600, 3190, 3700, 4096];
        let offsets = memory.ints(&starts);
        let (r64, d64, f64) = (rows as u64, d as u64, f as u64);
        let kernel = if ragged == RaggedDim::M {
            // [rows, d] · [experts, d, f]
            let (a, b, c) = (
                memory.add(DType::F32, rows * d),
                memory.add(DType::F32, experts * d * f),
                memory.add(DType::F32, rows * f),
            );
            let sb = if turned { (1, d64) } else { (f64, 1) };
            Matmul {
                dtype: DType::F32,
                a,
                b,
                c,
                offsets: [0; 3],
                batch: vec![],
                m: MatDim(r64, d64, f64),
                n: MatDim(f64, sb.1, 1),
                k: MatDim(d64, 1, sb.0),
                k_outer: vec![],
                groups: Some(Groups { offsets, count: 8, ragged, strides: [0, d64 * f64, 0] }),
                accumulate: false,
                epilogue: None,
            }
        } else {
            // [rows, d]ᵀ · [rows, f], added to [experts, d, f]
            let (a, b, c) = (
                memory.add(DType::F32, rows * d),
                memory.add(DType::F32, rows * f),
                memory.add(DType::F32, experts * d * f),
            );
            Matmul {
                dtype: DType::F32,
                a,
                b,
                c,
                offsets: [0; 3],
                batch: vec![],
                m: MatDim(d64, 1, f64),
                n: MatDim(f64, 1, 1),
                k: MatDim(r64, d64, f64),
                k_outer: vec![],
                groups: Some(Groups { offsets, count: 8, ragged, strides: [0, 0, d64 * f64] }),
                accumulate: true,
                epilogue: None,
            }
        };
        let bytes = 4 * (rows * d + experts * d * f + rows * f);
        memory.bench(bencher, &Kernel::Matmul(kernel), workers, 2 * rows * d * f, bytes);
    }

    #[divan::bench(args = WORKERS)]
    fn experts_4096x256x512(bencher: Bencher, workers: usize) {
        grouped(bencher, workers, RaggedDim::M, 256, 512, false);
    }

    #[divan::bench(args = WORKERS)]
    fn experts_4096x512x256(bencher: Bencher, workers: usize) {
        grouped(bencher, workers, RaggedDim::M, 512, 256, false);
    }

    #[divan::bench(args = WORKERS)]
    fn experts_dx_4096x512x256(bencher: Bencher, workers: usize) {
        grouped(bencher, workers, RaggedDim::M, 512, 256, true);
    }

    #[divan::bench(args = WORKERS)]
    fn experts_dw_256x4096x512(bencher: Bencher, workers: usize) {
        grouped(bencher, workers, RaggedDim::K, 256, 512, false);
    }
}

/// Causal attention; only what is visible counts as work.
mod attention {
    use super::*;

    /// [batch, sequence, heads, size] in memory; the groups of queries that share a key and a value lie side by side.
    fn inputs(memory: &mut Memory, dtype: DType, [b, h, group, n, d]: [u64; 5]) -> (AttentionInputs, [View; 3], View) {
        let mut array = |heads: u64| {
            let buffer = memory.add(dtype, (b * n * heads * d) as usize);
            let own = if heads == h { [d * group, d] } else { [d, 0] };
            view(buffer, &[n * heads * d, own[0], own[1], heads * d, 1])
        };
        let (q, k, v) = (array(h), array(h / group), array(h / group));
        let results = [(); 3].map(|()| array(h));
        let lse = view(memory.add(DType::F32, (b * h * n) as usize), &[h * n, group * n, n, 1]);
        let inputs = AttentionInputs {
            dtype,
            batch: vec![b, h / group, group],
            queries: n,
            keys: n,
            pairs: vec![ScorePair { size: d, q, k }],
            v,
            value_size: d,
            scale: 1.0 / (d as f64).sqrt() / 16.0,
            causal: true,
            window: 0,
            documents: None,
            sink: None,
        };
        (inputs, results, lse)
    }

    fn forward(bencher: Bencher, workers: usize, dtype: DType, sizes: [u64; 5]) {
        let mut memory = Memory::default();
        let (inputs, [out, ..], lse) = inputs(&mut memory, dtype, sizes);
        let kernel = Kernel::Attention(Attention { inputs, out, lse });
        let (flops, bytes) = (kernel.flops() as usize, kernel.traffic(&memory.buffers).bytes() as usize);
        memory.bench(bencher, &kernel, workers, flops, bytes);
    }

    fn backward(bencher: Bencher, workers: usize, dtype: DType, sizes: [u64; 5]) {
        let mut memory = Memory::default();
        let (inputs, [out, d_out, d_q], lse) = inputs(&mut memory, dtype, sizes);
        let elements = |memory: &Memory, view: &View| memory.buffers[view.buffer as usize].elements as usize;
        let keys = elements(&memory, &inputs.v);
        let mut gradient = || View { buffer: memory.add(dtype, keys), ..inputs.v.clone() };
        let (d_k, d_v) = (gradient(), gradient());
        let (d_q, d_k, d_v) = (vec![Some(d_q)], vec![Some(d_k)], Some(d_v));
        let kernel = AttentionBackward { inputs, out, lse, d_out, d_q, d_k, d_v, d_sink: None };
        let kernel = Kernel::AttentionBackward(kernel);
        let (flops, bytes) = (kernel.flops() as usize, kernel.traffic(&memory.buffers).bytes() as usize);
        memory.bench(bencher, &kernel, workers, flops, bytes);
    }

    const SMALL: [u64; 5] = [8, 8, 1, 256, 32];
    const LARGE: [u64; 5] = [4, 16, 1, 512, 64];

    #[divan::bench(args = WORKERS)]
    fn forward_8x8x256x32(bencher: Bencher, workers: usize) {
        forward(bencher, workers, DType::F32, SMALL);
    }

    #[divan::bench(args = WORKERS)]
    fn backward_8x8x256x32(bencher: Bencher, workers: usize) {
        backward(bencher, workers, DType::F32, SMALL);
    }

    #[divan::bench(args = WORKERS)]
    fn forward_4x16x512x64(bencher: Bencher, workers: usize) {
        forward(bencher, workers, DType::F32, LARGE);
    }

    #[divan::bench(args = WORKERS)]
    fn backward_4x16x512x64(bencher: Bencher, workers: usize) {
        backward(bencher, workers, DType::F32, LARGE);
    }

    #[divan::bench(args = WORKERS)]
    fn forward_bf16_4x16x512x64(bencher: Bencher, workers: usize) {
        forward(bencher, workers, DType::Bf16, LARGE);
    }

    #[divan::bench(args = WORKERS)]
    fn backward_bf16_4x16x512x64(bencher: Bencher, workers: usize) {
        backward(bencher, workers, DType::Bf16, LARGE);
    }

    #[divan::bench(args = WORKERS)]
    fn backward_grouped_4x16_4x512x64(bencher: Bencher, workers: usize) {
        backward(bencher, workers, DType::F32, [4, 16, 4, 512, 64]);
    }
}

mod regions {
    use super::*;
    use Arg::{Const, Load, Step as S};

    fn region(dims: &[u64], loads: Vec<View>, steps: Vec<Step>, stores: Vec<Store>) -> Kernel {
        let loads = loads.into_iter().map(Into::into).collect();
        Kernel::Region(Region { dims: dims.to_vec(), row_dims: 1, ragged: None, loads, steps, stores })
    }

    /// silu(gate)·up
    #[divan::bench(args = [(1, 4096 * 512), (2, 4096 * 512), (1, 16 * 1024), (1, 16 << 20), (2, 16 << 20)])]
    fn swiglu(bencher: Bencher, (workers, n): (usize, usize)) {
        let mut memory = Memory::default();
        let [gate, up, out] = [(); 3].map(|()| memory.add(DType::F32, n));
        let steps = vec![
            step(StepOp::Neg, &[Load(0)]),
            step(StepOp::Exp, &[S(0)]),
            step(StepOp::Add, &[S(1), Const(1.0)]),
            step(StepOp::Div, &[Load(0), S(2)]),
            step(StepOp::Mul, &[S(3), Load(1)]),
        ];
        let stores = vec![Store { value: S(4), view: view(out, &[1]) }];
        let kernel = region(&[n as u64], vec![view(gate, &[1]), view(up, &[1])], steps, stores);
        memory.bench(bencher, &kernel, workers, 5 * n, 12 * n);
    }

    /// Activations that have no name here: x·tanh(log(1 + eˣ)), and max(gate, 0)²·up.
    #[divan::bench(args = [(1, 16 * 1024), (1, 4096 * 512), (2, 4096 * 512)])]
    fn softplus_gate(bencher: Bencher, (workers, n): (usize, usize)) {
        let mut memory = Memory::default();
        let [x, out] = [(); 2].map(|()| memory.add(DType::F32, n));
        let steps = vec![
            step(StepOp::Exp, &[Load(0)]),
            step(StepOp::Add, &[S(0), Const(1.0)]),
            step(StepOp::Log, &[S(1)]),
            step(StepOp::Tanh, &[S(2)]),
            step(StepOp::Mul, &[Load(0), S(3)]),
        ];
        let stores = vec![Store { value: S(4), view: view(out, &[1]) }];
        memory.bench(bencher, &region(&[n as u64], vec![view(x, &[1])], steps, stores), workers, 5 * n, 8 * n);
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
        memory.bench(bencher, &kernel, 1, count as usize * n, 8 * n);
    }

    #[divan::bench(args = [(1, 16 * 1024), (1, 4096 * 512), (2, 4096 * 512)])]
    fn squared_gate(bencher: Bencher, (workers, n): (usize, usize)) {
        let mut memory = Memory::default();
        let [gate, up, out] = [(); 3].map(|()| memory.add(DType::F32, n));
        let steps = vec![
            step(StepOp::Max, &[Load(0), Const(0.0)]),
            step(StepOp::Mul, &[S(0), S(0)]),
            step(StepOp::Mul, &[S(1), Load(1)]),
        ];
        let stores = vec![Store { value: S(2), view: view(out, &[1]) }];
        let kernel = region(&[n as u64], vec![view(gate, &[1]), view(up, &[1])], steps, stores);
        memory.bench(bencher, &kernel, workers, 3 * n, 12 * n);
    }

    #[divan::bench(args = [(1, 16 * 1024), (1, 4096 * 512), (2, 4096 * 512)])]
    fn swiglu_bf16(bencher: Bencher, (workers, n): (usize, usize)) {
        let mut memory = Memory::default();
        let [gate, up, out] = [(); 3].map(|()| memory.add(DType::Bf16, n));
        let step = |op, args: &[Arg]| Step { op, dtype: DType::Bf16, args: args.to_vec() };
        let steps = vec![
            step(StepOp::Neg, &[Load(0)]),
            step(StepOp::Exp, &[S(0)]),
            step(StepOp::Add, &[S(1), Const(1.0)]),
            step(StepOp::Div, &[Load(0), S(2)]),
            step(StepOp::Mul, &[S(3), Load(1)]),
        ];
        let stores = vec![Store { value: S(4), view: view(out, &[1]) }];
        let kernel = region(&[n as u64], vec![view(gate, &[1]), view(up, &[1])], steps, stores);
        memory.bench(bencher, &kernel, workers, 5 * n, 6 * n);
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
        memory.bench(bencher, &kernel, workers, 4 * rows * d, 8 * rows * d);
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
        memory.bench(bencher, &kernel, workers, 8 * n, 8 * n);
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
        memory.bench(bencher, &kernel, workers, 5 * rows * n, 8 * rows * n);
    }

    /// Softmax over 8 experts.
    #[divan::bench(args = WORKERS)]
    fn router_softmax(bencher: Bencher, workers: usize) {
        softmax(bencher, (workers, 2048, 8));
    }

    #[divan::bench(args = [(1, 1 << 20), (2, 1 << 20), (2, 8 << 20)])]
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
        memory.bench(bencher, &kernel, workers, 16 * n, 28 * n);
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
        let half =
            |buffer, strides: &[u64], second: u64| View { buffer, offset: second * d, strides: strides.to_vec() };
        let steps = vec![
            step(StepOp::Mul, &[Load(0), Load(2)]),
            step(StepOp::Mul, &[Load(1), Load(3)]),
            step(StepOp::Sub, &[S(0), S(1)]),
            step(StepOp::Mul, &[Load(1), Load(2)]),
            step(StepOp::Mul, &[Load(0), Load(3)]),
            step(StepOp::Add, &[S(3), S(4)]),
        ];
        let loads = vec![half(x, &from, 0), half(x, &from, 1), view(cos, &table), view(sin, &table)];
        let stores =
            vec![Store { value: S(2), view: half(out, &to, 0) }, Store { value: S(5), view: half(out, &to, 1) }];
        memory.bench(bencher, &region(&[b, t, h, d], loads, steps, stores), workers, 6 * n, 16 * n);
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
        memory.bench(bencher, &kernel, workers, 0, 8 * (m * n) as usize);
    }
}

mod others {
    use super::*;

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
        memory.bench(bencher, &kernel, workers, (m * n) as usize, 4 * (m * n) as usize);
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
        let index = memory.ints(&shuffled(2 * TOKENS, TOKENS));
        let (x, out) = (memory.add(DType::F32, TOKENS * D), memory.add(DType::F32, 2 * TOKENS * D));
        let kernel = Kernel::Gather(Gather {
            dtype: DType::F32,
            dims: vec![2 * TOKENS as u64, D as u64],
            x: view(x, &[0, 1]),
            index: view(index, &[1, 0]),
            axis_stride: D as u64,
            axis_size: TOKENS as u64,
            out,
            ragged: None,
        });
        memory.bench(bencher, &kernel, workers, 0, 16 * TOKENS * D);
    }

    /// Its gradient.
    #[divan::bench(args = WORKERS)]
    fn scatter_rows(bencher: Bencher, workers: usize) {
        let mut memory = Memory::default();
        let index = memory.ints(&shuffled(2 * TOKENS, TOKENS));
        let (v, out) = (memory.add(DType::F32, 2 * TOKENS * D), memory.add(DType::F32, TOKENS * D));
        let kernel = Kernel::ScatterAdd(ScatterAdd {
            dtype: DType::F32,
            dims: vec![2 * TOKENS as u64, D as u64],
            v: view(v, &[D as u64, 1]),
            index: view(index, &[1, 0]),
            out: view(out, &[0, 1]),
            axis_stride: D as u64,
            axis_size: TOKENS as u64,
            out_elements: (TOKENS * D) as u64,
            ragged: None,
            accumulate: false,
        });
        memory.bench(bencher, &kernel, workers, 2 * TOKENS * D, 12 * TOKENS * D);
    }

    #[divan::bench(args = WORKERS)]
    fn top_2_of_8(bencher: Bencher, workers: usize) {
        let mut memory = Memory::default();
        let (input, out) = (memory.add(DType::F32, TOKENS * 8), memory.add(DType::I32, TOKENS * 2));
        let (outer, n) = (TOKENS as u64, 8);
        let kernel = Kernel::TopK(TopK { dtype: DType::F32, outer, n, inner: 1, k: 2, input, out });
        memory.bench(bencher, &kernel, workers, 0, TOKENS * 40);
    }
}
