//! Products with an epilogue: bit for bit the product, then the region.

use crate::kernels::Cpu;
use crate::kernels::testing::harness::{Memory, Rng, bf16_levels};
use forebay_plan::{
    Arg, BatchDim, DType, Groups, Kernel, MatDim, Matmul, RaggedDim, RaggedLimit, Region, Step, StepOp, Store, View,
};

/// Sizes of a product; `columns` and `depth` of a group.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    groups: usize,
    rows: usize,
    columns: usize,
    depth: usize,
}

fn view(buffer: u32, strides: [u64; 2]) -> View {
    View { buffer, offset: 0, strides: strides.to_vec() }
}

fn product(rng: &mut Rng, memory: &mut Memory, s: Sizes, dtype: DType, ragged: Option<RaggedDim>) -> Matmul {
    let Sizes { batch, groups, rows, columns: n, depth: k } = s;
    let mut floats = |n: usize| memory.add(dtype, &rng.floats(n));
    let [rows64, n64, k64] = [rows, n, k].map(|x| x as u64);
    let (a, b, all) = match ragged {
        None => (floats(batch * rows * k), floats(batch * k * n), batch * rows),
        Some(RaggedDim::K) => (floats(k * rows), floats(k * n), groups * rows),
        Some(_) => (floats(rows * k), floats(groups * k * n), rows),
    };
    // Results need not begin where their buffer does.
    let before = rng.below(2) * 13;
    let c = memory.add(dtype, &vec![0.25; before + all * n]);
    let bound = if ragged == Some(RaggedDim::K) { k } else { rows };
    let strides = match ragged {
        Some(RaggedDim::K) => [0, 0, rows64 * n64],
        _ => [0, k64 * n64, 0],
    };
    let groups = ragged.map(|ragged| {
        let offsets = rng.offsets(groups, bound);
        Groups { offsets: memory.add(DType::I32, &offsets), count: groups as u64, even: 0, ragged, strides }
    });
    Matmul {
        dtype,
        a,
        b,
        c,
        offsets: [0, 0, before as u64],
        batch: if ragged.is_none() {
            vec![BatchDim(batch as u64, rows64 * k64, k64 * n64, rows64 * n64)]
        } else {
            vec![]
        },
        m: if ragged == Some(RaggedDim::K) { MatDim(rows64, 1, n64) } else { MatDim(rows64, k64, n64) },
        n: MatDim(n64, 1, 1),
        k: if ragged == Some(RaggedDim::K) { MatDim(k64, rows64, n64) } else { MatDim(k64, 1, n64) },
        k_outer: vec![],
        groups,
        accumulate: false,
        epilogue: None,
    }
}

/// `y = tanh(c + bias) * factor + residual` over rows and columns; over c in place, or elsewhere in another type.
fn region(rng: &mut Rng, memory: &mut Memory, matmul: &Matmul, over_result: bool) -> Region {
    let [rows, columns] = matmul.rows_and_columns().expect("side by side");
    let dtype = matmul.dtype;
    let mut floats = |n: u64| memory.add(dtype, &rng.floats(n as usize));
    let (bias, factor, residual) = (floats(columns), floats(rows), floats(rows * columns));
    let step = |op, args: &[Arg]| Step { op, dtype, args: args.to_vec() };
    let other = if dtype == DType::F32 { DType::F64 } else { DType::F32 };
    let mut steps = vec![
        step(StepOp::Add, &[Arg::Load(0), Arg::Load(1)]),
        step(StepOp::Tanh, &[Arg::Step(0)]),
        step(StepOp::Mul, &[Arg::Step(1), Arg::Load(2)]),
        step(StepOp::Add, &[Arg::Load(3), Arg::Step(2)]),
    ];
    let whole = [columns, 1];
    let result = View { offset: matmul.offsets[2], ..view(matmul.c, whole) };
    let (value, out) = if over_result {
        (Arg::Step(3), result.clone())
    } else {
        steps.push(Step { op: StepOp::Cast, dtype: other, args: vec![Arg::Step(3)] });
        (Arg::Step(4), view(memory.add(other, &vec![7.0; (rows * columns) as usize]), whole))
    };
    Region {
        dims: vec![rows, columns],
        row_dims: 1,
        ragged: None,
        loads: vec![
            result.into(),
            view(bias, [0, 1]).into(),
            view(factor, [1, 0]).into(),
            view(residual, whole).into(),
        ],
        steps,
        stores: vec![Store { value, view: out }],
    }
}

fn check(rng: &mut Rng, sizes: Sizes, dtype: DType, ragged: Option<RaggedDim>, over_result: bool) {
    let mut memory = Memory::default();
    let mut matmul = product(rng, &mut memory, sizes, dtype, ragged);
    let region = region(rng, &mut memory, &matmul, over_result);
    let out = region.stores[0].view.buffer;
    let limit = matmul.groups.as_ref().filter(|g| g.ragged == RaggedDim::M);
    let limit = limit.map(|g| RaggedLimit { dim: 0, offsets: g.offsets, groups: g.count, even: g.even });
    let apart = Kernel::Region(Region { ragged: limit, ..region.clone() });
    let plain = Kernel::Matmul(matmul.clone());
    matmul.epilogue = Some(Box::new(region));
    let joined = Kernel::Matmul(matmul);
    let levels = ["avx512", "avx2", "portable"].map(|level| Cpu::named(level).expect("a level"));
    for cpu in levels.into_iter().chain(bf16_levels()) {
        let mut want = memory.clone();
        want.run_on(&plain, 1, cpu).expect("no indices");
        want.run_on(&apart, 1, cpu).expect("no indices");
        for workers in 1..=3 {
            let mut have = memory.clone();
            have.run_on(&joined, workers, cpu).expect("no indices");
            let bits = |m: &Memory| m.get(out).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(bits(&have) == bits(&want), "{cpu:?}, {workers} workers, {sizes:?} {dtype:?} {ragged:?}");
        }
    }
}

#[test]
fn products_of_all_kinds() {
    let mut rng = Rng::new(21);
    for round in 0..60 {
        let sizes = Sizes {
            batch: 1 + rng.below(3),
            groups: 1 + rng.below(4),
            rows: rng.below(70),
            columns: 1 + rng.below(120),
            depth: rng.below(60),
        };
        let dtype = rng.pick(&[DType::F32, DType::F64, DType::Bf16]);
        let ragged = rng.pick(&[None, Some(RaggedDim::M), Some(RaggedDim::K)]);
        check(&mut rng, sizes, dtype, ragged, round % 2 == 0);
    }
}

/// Rows longer than a block of a region, a summed dimension of several blocks, more rows than a task has; one row, which makes columns of the batch.
#[test]
fn sizes_beyond_blocks() {
    let mut rng = Rng::new(22);
    let sizes = |batch, rows, columns, depth| Sizes { batch, groups: 3, rows, columns, depth };
    check(&mut rng, sizes(1, 530, 300, 40), DType::F32, None, true);
    check(&mut rng, sizes(1, 20, 5000, 300), DType::F32, None, false);
    check(&mut rng, sizes(2, 40, 1100, 700), DType::Bf16, None, true);
    check(&mut rng, sizes(5, 1, 90, 30), DType::F64, None, true);
    check(&mut rng, sizes(1, 700, 520, 64), DType::F32, Some(RaggedDim::M), true);
    check(&mut rng, sizes(1, 90, 520, 700), DType::Bf16, Some(RaggedDim::K), false);
    // Where tiles multiply, one task's block is more than an epilogue is given at once.
    check(&mut rng, sizes(1, 512, 1024, 40), DType::Bf16, None, true);
    check(&mut rng, sizes(1, 512, 1024, 40), DType::F32, None, true);
}
