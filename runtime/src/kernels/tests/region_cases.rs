//! Regions with a point of their own, against the interpreter.

use crate::kernels::testing::check;
use crate::kernels::testing::harness::{Memory, Rng};
use crate::kernels::{Cpu, prepare};
use forebay_plan::{Arg, DType, Kernel, RaggedLimit, Region, Step, StepOp, Store, View};

pub(in crate::kernels) fn view(buffer: u32, strides: &[u64]) -> View {
    View { buffer, offset: 0, strides: strides.to_vec() }
}

pub(in crate::kernels) fn step(op: StepOp, dtype: DType, args: &[Arg]) -> Step {
    Step { op, dtype, args: args.to_vec() }
}

/// Softmax in place: the store goes where every pass reads.
#[test]
fn softmax_in_place() {
    use Arg::{Load, Step as S};
    let mut rng = Rng::new(7);
    for n in [1, 5, 256, 2048, 2049, 8192] {
        let mut memory = Memory::default();
        let values = rng.floats(3 * n);
        let x = memory.add(DType::F32, &values);
        let region = Region {
            dims: vec![3, n as u64],
            row_dims: 1,
            ragged: None,
            loads: vec![view(x, &[n as u64, 1]).into()],
            steps: vec![
                step(StepOp::RowMax, DType::F32, &[Load(0)]),
                step(StepOp::Sub, DType::F32, &[Load(0), S(0)]),
                step(StepOp::Exp, DType::F32, &[S(1)]),
                step(StepOp::RowSum, DType::F32, &[S(2)]),
                step(StepOp::Div, DType::F32, &[S(2), S(3)]),
            ],
            stores: vec![Store { value: S(4), view: view(x, &[n as u64, 1]) }],
        };
        check(&region, &memory);
        let after = memory.done(&Kernel::Region(region)).get(x);
        for row in after.chunks(n) {
            assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-5);
        }
    }
}

/// Two arrays change places, which one of the stores would spoil if it did not wait.
#[test]
fn stores_do_not_spoil_loads() {
    for n in [100u64, 5000] {
        let mut memory = Memory::default();
        let values: Vec<f64> = (0..n).map(|i| i as f64).collect();
        let (a, b) = (memory.add(DType::F32, &values), memory.add(DType::F32, &vec![0.5; n as usize]));
        let region = Region {
            dims: vec![n],
            row_dims: 1,
            ragged: None,
            loads: vec![view(a, &[1]).into(), view(b, &[1]).into()],
            steps: vec![step(StepOp::Add, DType::F32, &[Arg::Load(0), Arg::Const(1.0)])],
            stores: vec![
                Store { value: Arg::Load(1), view: view(a, &[1]) },
                Store { value: Arg::Load(0), view: view(b, &[1]) },
            ],
        };
        check(&region, &memory);
    }
}

/// The same where one of them must wait for a later pass: then so must the other.
#[test]
fn stores_of_two_passes_do_not_spoil_loads() {
    use Arg::{Const, Load, Step as S};
    for n in [100usize, 5000] {
        let mut rng = Rng::new(n as u64);
        let mut memory = Memory::default();
        let [a, b, c] = [(); 3].map(|()| memory.add(DType::F32, &rng.floats(n)));
        let region = Region {
            dims: vec![n as u64],
            row_dims: 1,
            ragged: None,
            loads: vec![view(a, &[1]).into(), view(b, &[1]).into()],
            steps: vec![
                step(StepOp::RowSum, DType::F32, &[Load(0)]),
                step(StepOp::Add, DType::F32, &[Load(0), S(0)]),
                step(StepOp::Mul, DType::F32, &[Load(1), Const(2.0)]),
            ],
            stores: vec![
                Store { value: Load(1), view: view(a, &[1]) },
                Store { value: S(2), view: view(b, &[1]) },
                Store { value: S(1), view: view(c, &[1]) },
            ],
        };
        check(&region, &memory);
    }
}

/// A value of a row is updated while blocks of the row still use the old one.
#[test]
fn row_values_in_place() {
    use Arg::{Load, Step as S};
    for n in [64u64, 9000] {
        let mut rng = Rng::new(n);
        let mut memory = Memory::default();
        let (x, scale, y) = (rng.floats(2 * n as usize), rng.floats(2), rng.floats(2 * n as usize));
        let (x, scale, y) = (memory.add(DType::F32, &x), memory.add(DType::F32, &scale), memory.add(DType::F32, &y));
        let region = Region {
            dims: vec![2, n],
            row_dims: 1,
            ragged: None,
            loads: vec![view(x, &[n, 1]).into(), view(scale, &[1, 0]).into()],
            steps: vec![
                step(StepOp::Mul, DType::F32, &[Load(0), Load(1)]),
                step(StepOp::RowSum, DType::F32, &[S(0)]),
                step(StepOp::Add, DType::F32, &[S(1), Load(1)]),
                step(StepOp::Mul, DType::F32, &[S(0), S(1)]),
                step(StepOp::Add, DType::F32, &[S(3), Load(1)]),
            ],
            stores: vec![
                Store { value: S(2), view: view(scale, &[1, 0]) },
                Store { value: S(4), view: view(y, &[n, 1]) },
            ],
        };
        check(&region, &memory);
    }
}

/// Rows of a ragged dimension that has one at most: no stride along it says whether a value is one of the row.
#[test]
fn a_ragged_dimension_of_one() {
    for (n, length) in [(100, 1.0), (100, 0.0), (9000, 1.0)] {
        let mut memory = Memory::default();
        let offsets = memory.add(DType::I32, &[0.0, length]);
        let [row, all, once] = [1, n, 1].map(|n| memory.add(DType::F32, &vec![2.5; n]));
        let region = Region {
            dims: vec![1, n as u64],
            row_dims: 1,
            ragged: Some(RaggedLimit { dim: 0, offsets, groups: 1, even: 0 }),
            loads: vec![view(row, &[1, 0]).into(), view(all, &[0, 1]).into()],
            steps: vec![
                step(StepOp::Exp, DType::F32, &[Arg::Load(0)]),
                step(StepOp::RowSum, DType::F32, &[Arg::Load(1)]),
            ],
            stores: vec![
                Store { value: Arg::Step(0), view: view(all, &[0, 1]) },
                Store { value: Arg::Step(1), view: view(once, &[0, 0]) },
            ],
        };
        check(&region, &memory);
    }
}

#[test]
fn special_values() {
    let mut memory = Memory::default();
    let values =
        [0.0, -0.0, 1.0, -1.0, 1e-42, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 3e38, -200.0, 1e7, 2e9, -3e9];
    let x = memory.add(DType::F32, &values);
    let n = values.len() as u64;
    use StepOp::*;
    for op in [Neg, Exp, Log, Sqrt, Rsqrt, Tanh, Sin, Cos, Abs, Sign, Floor] {
        for dtype in [DType::F32, DType::F64, DType::Bf16] {
            let mut memory = memory.clone();
            let y = memory.add(dtype, &vec![9.0; n as usize]);
            let region = Region {
                dims: vec![n],
                row_dims: 1,
                ragged: None,
                loads: vec![view(x, &[1]).into()],
                steps: vec![step(Cast, dtype, &[Arg::Load(0)]), step(op, dtype, &[Arg::Step(0)])],
                stores: vec![Store { value: Arg::Step(1), view: view(y, &[1]) }],
            };
            check(&region, &memory);
        }
    }
    for op in [Add, Sub, Mul, Div, Rem, Pow, Min, Max] {
        let (mut memory, m) = (memory.clone(), n as usize);
        let y = memory.add(DType::F32, &vec![9.0; m * m]);
        let region = Region {
            dims: vec![n, n],
            row_dims: 1,
            ragged: None,
            loads: vec![view(x, &[1, 0]).into(), view(x, &[0, 1]).into()],
            steps: vec![step(op, DType::F32, &[Arg::Load(0), Arg::Load(1)])],
            stores: vec![Store { value: Arg::Step(0), view: view(y, &[n, 1]) }],
        };
        check(&region, &memory);
    }
    for dtype in [DType::I32, DType::Bool, DType::F64, DType::Bf16] {
        let mut memory = memory.clone();
        let y = memory.add(dtype, &vec![0.0; n as usize]);
        let region = Region {
            dims: vec![n],
            row_dims: 1,
            ragged: None,
            loads: vec![view(x, &[1]).into()],
            steps: vec![step(Cast, dtype, &[Arg::Load(0)])],
            stores: vec![Store { value: Arg::Step(0), view: view(y, &[1]) }],
        };
        check(&region, &memory);
    }
}

/// Numbers of all sizes and both signs: the accuracy of single values (`math/tests.rs`) is that of registers at every level.
#[test]
fn functions_of_all_sizes() {
    use StepOp::*;
    let values: Vec<f64> = (0..1u32 << 15).map(|i| f64::from(f32::from_bits(i.wrapping_mul(131_071)))).collect();
    for op in [Exp, Log, Sqrt, Rsqrt, Tanh, Sin, Cos, Sign, Floor] {
        for dtype in [DType::F32, DType::Bf16] {
            let mut memory = Memory::default();
            let [x, y] = [(); 2].map(|()| memory.add(dtype, &values));
            let region = Region {
                dims: vec![values.len() as u64],
                row_dims: 1,
                ragged: None,
                loads: vec![view(x, &[1]).into()],
                steps: vec![step(op, dtype, &[Arg::Load(0)])],
                stores: vec![Store { value: Arg::Step(0), view: view(y, &[1]) }],
            };
            check(&region, &memory);
        }
    }
}

#[test]
fn integers() {
    let mut memory = Memory::default();
    let values = [0.0, 1.0, -1.0, 7.0, -7.0, 3.0, -3.0, f64::from(i32::MIN), f64::from(i32::MAX)];
    let x = memory.add(DType::I32, &values);
    let n = values.len() as u64;
    use StepOp::*;
    for op in [Add, Sub, Mul, Div, Rem, Min, Max] {
        let mut memory = memory.clone();
        let y = memory.add(DType::I32, &vec![0.0; (n * n) as usize]);
        let region = Region {
            dims: vec![n, n],
            row_dims: 1,
            ragged: None,
            loads: vec![view(x, &[1, 0]).into(), view(x, &[0, 1]).into()],
            steps: vec![step(op, DType::I32, &[Arg::Load(0), Arg::Load(1)])],
            stores: vec![Store { value: Arg::Step(0), view: view(y, &[n, 1]) }],
        };
        check(&region, &memory);
    }
}

/// A parameter in halves: put together, changed, taken apart again in place; where rows are whole tiles, where they are not, and where one number is for all.
#[test]
fn halves_of_numbers() {
    let mut rng = Rng::new(11);
    for (n, stride) in [(4096u64, 1u64), (37, 1), (5, 0)] {
        let numbers: Vec<f32> =
            (0..n).map(|i| f32::from_bits((rng.next() as u32 & 0xbf7f_ffff) | (i as u32 & 1) << 15)).collect();
        let floats = |of: &dyn Fn(f32) -> f32| numbers.iter().map(|x| f64::from(of(*x))).collect::<Vec<f64>>();
        let is_up = |x: f32| half::bf16::from_f32(x).to_f32().to_bits() >> 16 != x.to_bits() >> 16;
        let mut memory = Memory::default();
        let copy = memory.add(DType::Bf16, &floats(&|x| x));
        let lower: Vec<f64> = numbers.iter().map(|x| f64::from(x.to_bits() as i16)).collect();
        let lower = memory.add(DType::I16, &lower);
        let mark = memory.add(DType::F32, &floats(&|x| if is_up(x) { -2.5 } else { 2.5 }));
        let whole = memory.add(DType::F32, &vec![0.0; n as usize]);
        let (l, s) = (Arg::Load, Arg::Step);
        let at = |buffer| view(buffer, &[1]);
        let region = Region {
            dims: vec![n],
            row_dims: 1,
            ragged: None,
            loads: vec![view(copy, &[stride]).into(), at(lower).into(), at(mark).into()],
            steps: vec![
                step(StepOp::Join, DType::F32, &[l(0), l(1), l(2)]),
                step(StepOp::Abs, DType::F32, &[l(2)]),
                step(StepOp::Mul, DType::F32, &[s(0), Arg::Const(0.9)]),
                step(StepOp::Mul, DType::F32, &[s(1), Arg::Const(0.5)]),
                step(StepOp::Cast, DType::Bf16, &[s(2)]),
                step(StepOp::Lower, DType::I16, &[s(2)]),
                step(StepOp::Mark, DType::F32, &[s(3), s(2)]),
            ],
            stores: vec![
                Store { value: s(0), view: at(whole) },
                Store { value: s(5), view: at(lower) },
                Store { value: s(6), view: at(mark) },
            ],
        };
        let mut in_place = region.clone();
        in_place.stores.push(Store { value: s(4), view: at(copy) });
        check(if stride == 1 { &in_place } else { &region }, &memory);
        if stride == 1 {
            let mut after = memory.clone();
            after.run_on(&Kernel::Region(in_place), 2, Cpu::detect()).expect("it runs");
            let back: Vec<f64> = floats(&|x| x);
            assert_eq!(after.get(whole), back, "what was taken apart comes back");
        }
    }
}

#[test]
fn plans_without_meaning_are_refused() {
    let mut memory = Memory::default();
    let x = memory.add(DType::F32, &[0.0; 8]);
    let good = Region {
        dims: vec![8],
        row_dims: 1,
        ragged: None,
        loads: vec![view(x, &[1]).into()],
        steps: vec![step(StepOp::Exp, DType::F32, &[Arg::Load(0)])],
        stores: vec![Store { value: Arg::Step(0), view: view(x, &[1]) }],
    };
    let refused = |change: &dyn Fn(&mut Region)| {
        let mut region = good.clone();
        change(&mut region);
        prepare(&Kernel::Region(region), &memory.buffers, Cpu::detect()).expect_err("it has no meaning");
    };
    assert!(prepare(&Kernel::Region(good.clone()), &memory.buffers, Cpu::detect()).is_ok());
    refused(&|r| r.loads[0].view.buffer = 5);
    refused(&|r| r.loads[0].view.strides.clear());
    refused(&|r| r.steps[0].args.clear());
    refused(&|r| r.steps[0].args[0] = Arg::Step(0));
    refused(&|r| r.steps[0].args[0] = Arg::Load(1));
    refused(&|r| r.steps[0].dtype = DType::I32);
    refused(&|r| r.steps[0].op = StepOp::Not);
    refused(&|r| r.stores[0].value = Arg::Step(1));
    refused(&|r| r.stores[0].view.offset = 1);
    refused(&|r| r.row_dims = 2);
    refused(&|r| r.steps[0] = step(StepOp::Index(1), DType::I32, &[]));
    refused(&|r| r.ragged = Some(RaggedLimit { dim: 1, offsets: x, groups: 1, even: 0 }));
}
