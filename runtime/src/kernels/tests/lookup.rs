//! Loads through an index: sizes around those of blocks, ragged rows, and indices that lead nowhere. (Random ones are among the random regions.)

use super::region_cases::{step, view};
use crate::kernels::testing::check;
use crate::kernels::testing::harness::{Memory, Rng};
use crate::kernels::{Cpu, KernelError, prepare};
use forebay_plan::{Arg, DType, Kernel, Load, Lookup, Negative, RaggedLimit, Region, StepOp, Store, View};

const DTYPES: [DType; 5] = [DType::F32, DType::Bf16, DType::F64, DType::I32, DType::Bool];

fn some(rng: &mut Rng, memory: &mut Memory, dtype: DType, elements: usize) -> u32 {
    let values: Vec<f64> = (0..elements).map(|_| rng.below(200) as f64 - 100.0).collect();
    memory.add(dtype, &values)
}

fn below(rng: &mut Rng, n: usize, limit: usize) -> Vec<f64> {
    (0..n).map(|_| rng.below(limit) as f64).collect()
}

/// Rows by index, as they are and with something done to them: the row a block, part of one, or several of them.
#[test]
fn rows() {
    let mut rng = Rng::new(5);
    for (n, (rows, d)) in [(1, 1), (7, 1), (1, 1024), (5, 1023), (33, 31), (3, 2049), (300, 8), (9, 4100), (2, 20_000)]
        .into_iter()
        .enumerate()
    {
        for dtype in DTYPES {
            let mut memory = Memory::default();
            let (axis, divide) = (rng.pick(&[1, 6]), rng.pick(&[1, 2, 3]));
            let chosen = below(&mut rng, rows, axis * divide);
            let (x, index) = (some(&mut rng, &mut memory, dtype, axis * d), memory.add(DType::I32, &chosen));
            let [plain, compared] = [dtype, DType::Bool].map(|t| memory.add(t, &vec![1.0; rows * d]));
            let (d, strides) = (d as u64, [d as u64, 1]);
            let through = Lookup {
                index: view(index, &[1, 0]),
                divide: divide as u64,
                axis_stride: d,
                axis_size: axis as u64,
                axis_even: None,
                negative: Negative::Wrong,
            };
            let ragged = (n % 2 == 1).then(|| RaggedLimit {
                dim: 0,
                offsets: memory.add(DType::I32, &[0.0, 0.0, (rows - rows / 3) as f64]),
                groups: 2,
                even: 0,
            });
            let mut region = Region {
                dims: vec![rows as u64, d],
                row_dims: 1,
                ragged,
                loads: vec![Load { view: view(x, &[0, 1]), through: Some(through) }],
                steps: vec![],
                stores: vec![Store { value: Arg::Load(0), view: view(plain, &strides) }],
            };
            check(&region, &memory);
            region.steps = vec![step(StepOp::Ne, DType::Bool, &[Arg::Load(0), Arg::Const(1.0)])];
            region.stores.push(Store { value: Arg::Step(0), view: view(compared, &strides) });
            check(&region, &memory);
            if matches!(dtype, DType::F32 | DType::Bf16 | DType::F64) {
                // So much that follows each other goes through vector registers.
                let once = |op, from| step(op, dtype, &[from]);
                region.steps = vec![
                    once(StepOp::Neg, Arg::Load(0)),
                    once(StepOp::Abs, Arg::Step(0)),
                    step(StepOp::Add, dtype, &[Arg::Step(1), Arg::Load(0)]),
                    once(StepOp::Neg, Arg::Step(2)),
                ];
                region.stores = vec![Store { value: Arg::Step(3), view: view(plain, &strides) }];
                check(&region, &memory);
            }
        }
    }
}

/// One element a row, beside a reduction of the whole row: a label's logit.
#[test]
fn an_element_of_the_reduced_row() {
    let mut rng = Rng::new(6);
    for (rows, n) in [(1, 1), (4, 7), (3, 256), (2, 2048), (3, 2049), (2, 5000)] {
        for dtype in [DType::F32, DType::Bf16, DType::F64] {
            let mut memory = Memory::default();
            let x = some(&mut rng, &mut memory, dtype, rows * n);
            let chosen = below(&mut rng, rows, n);
            let label = memory.add(DType::I32, &chosen);
            let out = memory.add(dtype, &vec![0.0; rows]);
            let through = Lookup {
                index: view(label, &[1, 0]),
                divide: 1,
                axis_stride: 1,
                axis_size: n as u64,
                axis_even: None,
                negative: Negative::Wrong,
            };
            let n = n as u64;
            let region = Region {
                dims: vec![rows as u64, n],
                row_dims: 1,
                ragged: None,
                loads: vec![view(x, &[n, 1]).into(), Load { view: view(x, &[n, 0]), through: Some(through) }],
                steps: vec![
                    step(StepOp::RowMax, dtype, &[Arg::Load(0)]),
                    step(StepOp::Sub, dtype, &[Arg::Step(0), Arg::Load(1)]),
                ],
                stores: vec![Store { value: Arg::Step(1), view: view(out, &[1, 0]) }],
            };
            check(&region, &memory);
        }
    }
}

/// The first index of the first load that has a wrong one, whoever finds it.
#[test]
fn indices_outside_are_errors() {
    let mut rng = Rng::new(8);
    for (dims, strides, divide) in [
        ([40, 64], [1, 0], 1),
        ([40, 64], [1, 0], 3),
        ([9, 300], [300, 1], 1),
        ([2, 5000], [5000, 1], 2),
        ([1, 1], [0, 0], 1),
    ] {
        let elements = (dims[0] * strides[0]).max(1) as usize;
        let axis = 5;
        let mut memory = Memory::default();
        let x = some(&mut rng, &mut memory, DType::F32, axis * dims[1] as usize);
        let good = below(&mut rng, elements, axis * divide);
        let mut bad = good.clone();
        let mut wrong: Vec<usize> = (0..3).map(|_| rng.below(elements)).collect();
        wrong.iter().for_each(|&at| bad[at] = rng.pick(&[-1.0, (axis * divide) as f64, 2147483647.0, -2147483648.0]));
        wrong.sort_unstable();
        let indices = [good, bad].map(|i| memory.add(DType::I32, &i));
        let out = memory.add(DType::F32, &vec![0.0; (dims[0] * dims[1]) as usize]);
        let load = |index: u32| {
            let index = View { buffer: index, offset: 0, strides: strides.to_vec() };
            let through = Lookup {
                index,
                divide: divide as u64,
                axis_stride: dims[1],
                axis_size: axis as u64,
                axis_even: None,
                negative: Negative::Wrong,
            };
            Load { view: view(x, &[0, 1]), through: Some(through) }
        };
        let region = Region {
            dims: dims.to_vec(),
            row_dims: 1,
            ragged: None,
            loads: vec![load(indices[0]), load(indices[1])],
            steps: vec![step(StepOp::Add, DType::F32, &[Arg::Load(0), Arg::Load(1)])],
            stores: vec![Store { value: Arg::Step(0), view: view(out, &[dims[1], 1]) }],
        };
        let (element, value) = (wrong[0] as u64, memory.get(indices[1])[wrong[0]] as i64);
        let error = Some(KernelError::Index { value, limit: (axis * divide) as u64, element });
        assert_eq!(memory.run_everywhere(&Kernel::Region(region.clone()), true).err(), error);
        // The same straight from memory to memory.
        let copy = Region {
            loads: vec![load(indices[1])],
            steps: vec![],
            stores: vec![Store { value: Arg::Load(0), ..region.stores[0].clone() }],
            ..region
        };
        assert_eq!(memory.run_everywhere(&Kernel::Region(copy), true).err(), error);
    }
}

/// Nothing is stored where it is looked up, or where an index is read.
#[test]
fn not_in_place() {
    let mut memory = Memory::default();
    let [x, index] = [DType::I32; 2].map(|t| memory.add(t, &[0.0; 8]));
    let out = memory.add(DType::I32, &[0.0; 8]);
    let through = Lookup {
        index: view(index, &[1]),
        divide: 1,
        axis_stride: 1,
        axis_size: 8,
        axis_even: None,
        negative: Negative::Wrong,
    };
    let to = |buffer| {
        Kernel::Region(Region {
            dims: vec![8],
            row_dims: 1,
            ragged: None,
            loads: vec![Load { view: view(x, &[0]), through: Some(through.clone()) }],
            steps: vec![],
            stores: vec![Store { value: Arg::Load(0), view: view(buffer, &[1]) }],
        })
    };
    let prepares = |buffer| prepare(&to(buffer), &memory.buffers, Cpu::detect()).is_ok();
    assert_eq!([out, x, index].map(prepares), [true, false, false]);
}
