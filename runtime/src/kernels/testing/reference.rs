//! Regions by an interpreter that goes element by element. Arithmetic is exact in it (f64 rounded to f32 after each operation is the f32 operation); elementary functions
//! are those of [`crate::kernels::math`], whose accuracy has tests of its own.

use super::harness::{Memory, indices, offset, rounded};
use crate::kernels::math;
use forebay_plan::{Arg, DType, Load, Negative, Region, StepOp, View};

/// A row reduced in the order that the kernels document, written once more.
fn row_reduced(op: StepOp, x: &[f64], dtype: DType) -> f64 {
    let wide = if dtype == DType::Bf16 { DType::F32 } else { dtype };
    let (least, most) = match dtype {
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    };
    let (two, start) = match op {
        StepOp::RowSum => (StepOp::Add, 0.0),
        StepOp::RowMax => (StepOp::Max, least),
        _ => (StepOp::Min, most),
    };
    let join = |a: f64, b: f64| rounded(binary(two, a, b, dtype), wide);
    let lanes = if x.len() < 256 { x.len().next_power_of_two().min(16) } else { 64 };
    let chunks = x.chunks(1024).map(|chunk| {
        let mut acc = vec![start; lanes];
        chunk.iter().enumerate().for_each(|(i, &x)| acc[i % lanes] = join(acc[i % lanes], x));
        while acc.len() > 1 {
            let (low, high) = acc.split_at(acc.len() / 2);
            acc = low.iter().zip(high).map(|(&a, &b)| join(a, b)).collect();
        }
        acc[0]
    });
    chunks.fold(start, join)
}

fn wrap(x: f64) -> f64 {
    f64::from(x as i64 as i32)
}

fn unary(op: StepOp, x: f64, dtype: DType) -> f64 {
    let f32_or = |narrow: fn(f32) -> f32, wide: fn(f64) -> f64| {
        if dtype == DType::F64 { wide(x) } else { f64::from(narrow(x as f32)) }
    };
    match op {
        StepOp::Neg if dtype == DType::I32 => wrap(-x),
        StepOp::Neg => -x,
        StepOp::Exp => f32_or(math::exp, f64::exp),
        StepOp::Log => f32_or(math::log, f64::ln),
        StepOp::Tanh => f32_or(math::tanh, f64::tanh),
        StepOp::Sin => f32_or(math::sin_any, f64::sin),
        StepOp::Cos => f32_or(math::cos_any, f64::cos),
        StepOp::Sqrt => x.sqrt(),
        StepOp::Rsqrt => f32_or(|x| 1.0 / x.sqrt(), |x| 1.0 / x.sqrt()),
        StepOp::Abs if dtype == DType::I32 => wrap(x.abs()),
        StepOp::Abs => x.abs(),
        StepOp::Sign if x == 0.0 || x.is_nan() => x,
        StepOp::Sign => x.signum(),
        StepOp::Floor => x.floor(),
        StepOp::Not => f64::from(u8::from(x == 0.0)),
        StepOp::Lower => f64::from((x as f32).to_bits() as i16),
        op => panic!("{op:?}"),
    }
}

fn binary(op: StepOp, a: f64, b: f64, dtype: DType) -> f64 {
    let truth = |t: bool| f64::from(u8::from(t));
    match op {
        StepOp::Add if dtype == DType::I32 => wrap(a + b),
        StepOp::Sub if dtype == DType::I32 => wrap(a - b),
        StepOp::Mul if dtype == DType::I32 => f64::from((a as i32).wrapping_mul(b as i32)),
        StepOp::Div | StepOp::Rem if dtype == DType::I32 && b == 0.0 => 0.0,
        StepOp::Div if dtype == DType::I32 => wrap((a / b).floor()),
        StepOp::Rem if dtype == DType::I32 => wrap(a - b * (a / b).floor()),
        StepOp::Add => a + b,
        StepOp::Sub => a - b,
        StepOp::Mul => a * b,
        StepOp::Div => a / b,
        StepOp::Rem => {
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rounded(rest, dtype) + b } else { rest }
        }
        StepOp::Pow => a.powf(b),
        StepOp::Min => {
            if a < b || a.is_nan() {
                a
            } else {
                b
            }
        }
        StepOp::Max => {
            if a > b || a.is_nan() {
                a
            } else {
                b
            }
        }
        StepOp::Eq => truth(a == b),
        StepOp::Ne => truth(a != b),
        StepOp::Lt => truth(a < b),
        StepOp::Le => truth(a <= b),
        StepOp::Gt => truth(a > b),
        StepOp::Ge => truth(a >= b),
        StepOp::And => truth(a != 0.0 && b != 0.0),
        StepOp::Or => truth(a != 0.0 || b != 0.0),
        StepOp::Mark => {
            let truncated = f32::from_bits((b as f32).to_bits() & 0xffff_0000);
            let changed = half::bf16::from_f32(b as f32).to_f32() != truncated;
            if changed { -a.abs() } else { a.abs() }
        }
        op => panic!("{op:?}"),
    }
}

/// The number with these halves; it is no NaN.
fn joined(copy: f64, lower: f64, mark: f64) -> f64 {
    let before = if mark.is_sign_negative() { 0x1_0000 } else { 0 };
    let upper = (copy as f32).to_bits().wrapping_sub(before);
    f64::from(f32::from_bits(upper | u32::from(lower as i16 as u16)))
}

/// What a load reads for an element; nothing outside of its buffer.
fn loaded(load: &Load, element: &[usize], memory: &[Vec<f64>]) -> Option<f64> {
    let at = |view: &View| view.offset as usize + offset(element, &view.strides);
    let mut place = at(&load.view);
    if let Some(l) = &load.through {
        // A row without elements may have no index.
        let index = memory[l.index.buffer as usize].get(at(&l.index)).copied().unwrap_or(0.0);
        if index < 0.0 && l.negative == Negative::Nothing {
            return Some(0.0);
        }
        place += (index as u64 / l.divide * l.axis_stride) as usize;
    }
    memory[load.view.buffer as usize].get(place).copied()
}

/// What the region leaves in the buffers.
pub(super) fn interpret(region: &Region, memory: &Memory) -> Vec<Vec<f64>> {
    let dims: Vec<usize> = region.dims.iter().map(|&d| d as usize).collect();
    let dtype_of = |arg: Arg| match arg {
        Arg::Load(l) => Some(memory.buffers[region.loads[l as usize].view.buffer as usize].dtype),
        Arg::Step(s) => Some(region.steps[s as usize].dtype),
        Arg::Const(_) => None,
    };
    let before: Vec<Vec<f64>> = (0..memory.buffers.len()).map(|b| memory.get(b as u32)).collect();
    let mut after = before.clone();
    let mut sizes = dims.clone();
    if let Some(ragged) = &region.ragged {
        sizes[ragged.dim as usize] = before[ragged.offsets as usize][ragged.groups as usize] as usize;
    }
    let (outer, row) = sizes.split_at(dims.len() - region.row_dims as usize);
    for at in indices(outer) {
        let mut elements: Vec<Vec<usize>> = indices(row).map(|r| [&at[..], &r[..]].concat()).collect();
        // A row without elements still has values of the row: they are computed for an element that is not stored.
        let empty = elements.is_empty();
        if empty {
            elements.push([&at[..], &vec![0; row.len()][..]].concat());
        }
        let mut steps: Vec<Vec<f64>> = vec![];
        for step in &region.steps {
            let operand = match step.op {
                StepOp::Cast => step.args.iter().find_map(|&a| dtype_of(a)).unwrap_or(step.dtype),
                StepOp::Lower => DType::F32,
                _ if step.dtype == DType::Bool => step.args.iter().find_map(|&a| dtype_of(a)).unwrap_or(DType::F64),
                _ => step.dtype,
            };
            let value = |arg: Arg, i: usize, want: DType| match arg {
                Arg::Const(c) => rounded(c, want),
                Arg::Step(s) => steps[s as usize][i],
                Arg::Load(l) => loaded(&region.loads[l as usize], &elements[i], &before).unwrap_or(0.0),
            };
            let n = elements.len();
            let all = |i: usize| (0..n).map(|e| value(step.args[i], e, operand)).collect::<Vec<_>>();
            let result: Vec<f64> = match step.op {
                op if op.is_row_reduction() => {
                    let row = if empty { vec![] } else { all(0) };
                    vec![row_reduced(op, &row, step.dtype); n]
                }
                StepOp::Index(d) => elements.iter().map(|e| e[d as usize] as f64).collect(),
                StepOp::Cast => all(0),
                StepOp::Join => {
                    let halves = all(0).into_iter().zip(all(1)).zip(all(2));
                    halves.map(|((copy, lower), mark)| joined(copy, lower, mark)).collect()
                }
                StepOp::Select => (0..n)
                    .map(|e| {
                        let take = value(step.args[0], e, DType::Bool) != 0.0;
                        value(step.args[if take { 1 } else { 2 }], e, step.dtype)
                    })
                    .collect(),
                op if step.args.len() == 1 => all(0).into_iter().map(|x| unary(op, x, operand)).collect(),
                op => all(0).into_iter().zip(all(1)).map(|(a, b)| binary(op, a, b, operand)).collect(),
            };
            // An f32 operation, then a bf16.
            let exact = |x: f64| if step.dtype == DType::Bf16 { rounded(x, DType::F32) } else { x };
            steps.push(result.into_iter().map(|x| rounded(exact(x), step.dtype)).collect());
        }
        for store in &region.stores {
            let dtype = memory.buffers[store.view.buffer as usize].dtype;
            let once = store.view.strides[outer.len()..].iter().all(|&s| s == 0);
            if empty && !(once && region.steps.iter().any(|s| s.op.is_row_reduction())) {
                continue;
            }
            for (i, element) in elements.iter().enumerate() {
                let value = match store.value {
                    Arg::Const(c) => c,
                    Arg::Step(s) => steps[s as usize][i],
                    Arg::Load(l) => {
                        let load = &region.loads[l as usize];
                        loaded(load, element, &before).expect("within its buffer")
                    }
                };
                let place = store.view.offset as usize + offset(element, &store.view.strides);
                after[store.view.buffer as usize][place] = rounded(value, dtype);
            }
        }
    }
    after
}
