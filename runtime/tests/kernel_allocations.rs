//! Running a prepared kernel allocates nothing, on any thread.

use forebay_plan::{
    Arg, Attention, AttentionBackward, AttentionInputs, BatchDim, Buffer, DType, Gather, Group, Groups, Invert, Kernel,
    LinearAttention, LinearReads, MatDim, Matmul, Negative, Offsets, RaggedDim, RaggedLimit, Random, Reduce, ReduceOp,
    Region, RowGroups, Scan, ScatterAdd, ScorePair, Step, StepOp, Store, TopK, View,
};
use forebay_runtime::kernels::{Buf, Cpu, KernelCx, RandomKeyArgs, Scratch, ScratchBytes, prepare, run, scratch_bytes};
use forebay_runtime::pool::Pool;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Memory {
    buffers: Vec<Buffer>,
    data: Vec<Vec<[u64; 8]>>,
}

impl Memory {
    fn add(&mut self, dtype: DType, elements: u64) -> u32 {
        let slot = self.buffers.len() as u32;
        self.buffers.push(Buffer { name: String::new(), dtype, elements, slot, offset: 0 });
        self.data.push(vec![[0; 8]; elements as usize / 4 + 16]);
        slot
    }

    fn ints(&mut self, values: impl ExactSizeIterator<Item = i32>) -> u32 {
        let slot = self.add(DType::I32, values.len() as u64);
        let ptr = self.data[slot as usize].as_mut_ptr().cast::<i32>();
        // SAFETY: the buffer has room for them.
        values.enumerate().for_each(|(i, value)| unsafe { *ptr.add(i) = value });
        slot
    }
}

fn view(buffer: u32, strides: &[u64]) -> View {
    View { buffer, offset: 0, strides: strides.to_vec() }
}

fn matmul(memory: &mut Memory, dtype: DType, [b, m, n, k]: [u64; 4], accumulate: bool) -> Matmul {
    Matmul {
        dtype,
        a: memory.add(dtype, b * m * k),
        b: memory.add(dtype, b * k * n),
        c: memory.add(dtype, b * m * n),
        offsets: [0; 3],
        batch: vec![BatchDim(b, m * k, k * n, m * n)],
        m: MatDim(m, k, n),
        n: MatDim(n, 1, 1),
        k: MatDim(k, 1, n),
        k_outer: vec![],
        groups: None,
        accumulate,
        epilogue: None,
    }
}

fn products(memory: &mut Memory) -> Vec<Kernel> {
    let mut all: Vec<Matmul> = [DType::F32, DType::F64, DType::Bf16]
        .into_iter()
        .flat_map(|dtype| [[1, 600, 300, 300], [9, 100, 40, 32], [1, 5, 100, 600], [1, 1, 1, 1]].map(|s| (dtype, s)))
        .map(|(dtype, sizes)| matmul(memory, dtype, sizes, dtype == DType::F32))
        .collect();
    let offsets = memory.ints([0, 40, 40, 300].into_iter());
    for ragged in [RaggedDim::M, RaggedDim::K] {
        let mut grouped = matmul(memory, DType::F32, [1, 300, 64, 300], false);
        grouped.batch.clear();
        (grouped.b, grouped.c) = (memory.add(DType::F32, 3 * 300 * 64), memory.add(DType::F32, 3 * 300 * 64));
        let strides = if ragged == RaggedDim::M { [0, 300 * 64, 0] } else { [0, 0, 300 * 64] };
        grouped.groups = Some(Groups { offsets, count: 3, even: 0, ragged, strides });
        all.push(grouped);
    }
    all.into_iter().map(Kernel::Matmul).collect()
}

fn regions(memory: &mut Memory) -> Vec<Kernel> {
    let mut all = vec![];
    let offsets = memory.ints([0, 10, 33].into_iter());
    for (dtype, n) in [(DType::F32, 64), (DType::F32, 5000), (DType::Bf16, 300), (DType::F64, 8)] {
        let (x, y, scale) = (memory.add(dtype, 50 * n), memory.add(dtype, 50 * n), memory.add(dtype, 50));
        let step = |op, args: &[Arg]| Step { op, dtype, args: args.to_vec() };
        all.push(Kernel::Region(Region {
            dims: vec![50, n],
            row_dims: 1,
            ragged: Some(RaggedLimit { dim: 0, offsets, groups: 2, even: 0 }),
            loads: vec![view(x, &[n, 1]).into()],
            steps: vec![
                step(StepOp::RowMax, &[Arg::Load(0)]),
                step(StepOp::Sub, &[Arg::Load(0), Arg::Step(0)]),
                step(StepOp::Sin, &[Arg::Step(1)]),
                step(StepOp::RowSum, &[Arg::Step(2)]),
                step(StepOp::Div, &[Arg::Step(2), Arg::Step(3)]),
            ],
            stores: vec![
                Store { value: Arg::Step(4), view: view(y, &[1, 50]) },
                Store { value: Arg::Step(3), view: view(scale, &[1, 0]) },
            ],
        }));
    }
    all
}

/// Grouped queries with a sink, whose keys and values are shared, forward and backward.
fn attention(memory: &mut Memory) -> Vec<Kernel> {
    let mut all = vec![];
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        let (n, size) = (200, 24);
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let mut heads = |dtype, size: u64| View {
            buffer: memory.add(dtype, 2 * 3 * n * size),
            offset: 0,
            strides: [3 * n * size, n * size, size, 1][..if size == 1 { 3 } else { 4 }].to_vec(),
        };
        let [q, out, d_out, d_q] = [(); 4].map(|()| heads(dtype, size));
        let lse = heads(wide, 1);
        let mut shared = || view(memory.add(dtype, 2 * n * size), &[n * size, 0, size, 1]);
        let [k, v, d_k, d_v] = [(); 4].map(|()| shared());
        let [sink, d_sink] = [(); 2].map(|()| view(memory.add(dtype, 3), &[0, 1]));
        let inputs = AttentionInputs {
            dtype,
            batch: vec![2, 3],
            queries: n,
            keys: n,
            pairs: vec![ScorePair { size, q, k }],
            v,
            value_size: size,
            scale: 0.2,
            causal: true,
            window: 150,
            documents: None,
            positions: None,
            sink: Some(sink),
        };
        all.push(Kernel::Attention(Attention { inputs: inputs.clone(), out: out.clone(), lse: lse.clone() }));
        let (d_q, d_k, d_v, d_sink) = (vec![Some(d_q)], vec![Some(d_k)], Some(d_v), Some(d_sink));
        all.push(Kernel::AttentionBackward(AttentionBackward { inputs, out, lse, d_out, d_q, d_k, d_v, d_sink }));
    }
    all
}

/// Linear attention of every kind, with queries and keys for all heads.
fn linear(memory: &mut Memory) -> Vec<Kernel> {
    let (n, [key, value]) = (200, [24, 40]);
    let mut all = vec![];
    for (dtype, reads) in [
        (DType::F32, LinearReads::Inclusive),
        (DType::Bf16, LinearReads::Exclusive),
        (DType::F64, LinearReads::Solve),
        (DType::F32, LinearReads::Solve),
    ] {
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let [q, k] = [(); 2].map(|()| view(memory.add(dtype, n * key), &[0, key, 1]));
        let [v, out] = [(); 2].map(|()| view(memory.add(dtype, 3 * n * value), &[n * value, value, 1]));
        let g = view(memory.add(wide, 3 * n), &[n, 1]);
        let (batch, keys, values) = (vec![3], vec![key], vec![value]);
        let backward = dtype == DType::F32;
        let result = dtype;
        let kernel =
            LinearAttention { dtype, result, reads, backward, batch, positions: n, keys, values, q, k, v, g, out };
        all.push(Kernel::LinearAttention(kernel));
    }
    all
}

fn others(memory: &mut Memory) -> Vec<Kernel> {
    let dtype = DType::F32;
    let index = memory.ints((0..400).map(|i| i * 7 % 50));
    let rows = memory.ints((0..400).map(|i| i * 7 % 400));
    let (x, v, out) = (memory.add(dtype, 50 * 300), memory.add(dtype, 400 * 300), memory.add(dtype, 400 * 300));
    let int = memory.add(DType::I32, 1000);
    let offsets = memory.add(DType::I32, 51);
    let starts = memory.ints([0, 100, 400].into_iter());
    let key = memory.add(DType::I32, 4);
    let reduce = |dims: &[u64], kept, strides: &[u64], to: &[u64]| {
        let (op, input, out) = (ReduceOp::Sum, view(v, strides), view(out, to));
        Kernel::Reduce(Reduce { op, dtype, dims: dims.to_vec(), kept, input, out, ragged: None, accumulate: true })
    };
    let scatter = |index_strides: &[u64], out_strides: &[u64], axis_stride| {
        Kernel::ScatterAdd(ScatterAdd {
            dtype,
            dims: vec![400, 300],
            v: view(v, &[300, 1]),
            index: view(index, index_strides),
            out: view(x, out_strides),
            axis_stride,
            axis_size: 50,
            negative: Negative::Wrong,
            out_elements: 50 * 300,
            ragged: None,
            accumulate: false,
        })
    };
    vec![
        reduce(&[300, 400], 1, &[1, 300], &[1]),
        reduce(&[400, 300], 1, &[300, 1], &[1]),
        reduce(&[120_000], 0, &[1], &[]),
        Kernel::Gather(Gather {
            dtype,
            dims: vec![400, 300],
            x: view(x, &[0, 1]),
            index: view(index, &[1, 0]),
            axis_stride: 300,
            axis_size: 50,
            axis_even: None,
            negative: Negative::Wrong,
            out,
            ragged: None,
        }),
        scatter(&[1, 0], &[0, 1], 300),
        Kernel::Scan(Scan { dtype, outer: 4, n: 100, inner: 300, backward: true, input: v, out }),
        Kernel::TopK(TopK { dtype, outer: 400, n: 300, inner: 1, k: 2, input: v, out: int }),
        Kernel::TopK(TopK { dtype, outer: 2, n: 300, inner: 1, k: 200, input: v, out: int }),
        Kernel::Group(Group {
            room: None,
            chosen: index,
            elements: 400,
            groups: 50,
            rows: int,
            negative: Negative::Wrong,
        }),
        Kernel::Offsets(Offsets { chosen: index, elements: 400, groups: 50, out: offsets, negative: Negative::Wrong }),
        Kernel::Invert(Invert { rows, elements: 400, room: None, out: int, negative: Negative::Wrong }),
        Kernel::RowGroups(RowGroups { offsets: starts, groups: 2, rows: 400, out: int }),
        Kernel::RandomKey { out: key, rows: 8, per_micro_batch: 8, first_row: forebay_plan::Affine::default() },
        Kernel::Random(Random { key, site: 1, dims: vec![400, 300], batched: true, out: view(out, &[300, 1]) }),
    ]
}

/// A thread allocates when it starts, which may be after its first job.
fn wait_for_helper(pool: &Pool) {
    let started = AtomicBool::new(false);
    while !started.load(Ordering::SeqCst) {
        pool.run(2, &|_, worker| match worker {
            0 => std::thread::sleep(std::time::Duration::from_millis(1)),
            _ => started.store(true, Ordering::SeqCst),
        });
    }
}

#[test]
fn kernels_do_not_allocate() {
    let mut memory = Memory { buffers: vec![], data: vec![] };
    let mut kernels = products(&mut memory);
    kernels.extend(regions(&mut memory));
    kernels.extend(attention(&mut memory));
    kernels.extend(linear(&mut memory));
    kernels.extend(others(&mut memory));
    let buffers: Vec<Buf> = memory
        .buffers
        .iter()
        .zip(&mut memory.data)
        .map(|(b, d)| Buf { ptr: d.as_mut_ptr().cast(), dtype: b.dtype, elements: b.elements as usize })
        .collect();
    for cpu in ["avx512", "avx2", "portable"].map(|name| Cpu::named(name).expect("a level")) {
        let prepare = |k: &Kernel| prepare(k, &memory.buffers, cpu).unwrap_or_else(|e| panic!("{e}: {k:?}"));
        let prepared: Vec<_> = kernels.iter().map(prepare).collect();
        let need = prepared.iter().map(scratch_bytes).fold(ScratchBytes::default(), ScratchBytes::max);
        let pool = Pool::new(2).expect("the system has threads");
        wait_for_helper(&pool);
        let scratch = Scratch::new(need, pool.workers());
        let cx = KernelCx {
            pool: &pool,
            scratch: &scratch,
            buffers: &buffers,
            key: RandomKeyArgs::default(),
            coordinates: &[],
        };
        for (kernel, prepared) in kernels.iter().zip(&prepared) {
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            for _ in 0..3 {
                // SAFETY: all views lie within their buffers, which nobody else uses.
                unsafe { run(prepared, &cx) }.unwrap_or_else(|e| panic!("{e}: {kernel:?}"));
            }
            assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), before, "{kernel:?}");
        }
    }
}
