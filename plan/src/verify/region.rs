//! A region by itself: its row, its steps, its stores.

use super::footprint::distinct;
use super::kernels::Cx;
use super::rules::Rule;
use super::{MAX_LOADS, MAX_STEPS, MAX_STORES};
use crate::kernel::*;
use crate::operands::Extent;
use crate::schema::DType;

/// How much of everything.
pub(super) fn limits(cx: &mut Cx, k: &Region) {
    let counts = [
        ("loads", k.loads.len(), MAX_LOADS),
        ("stores", k.stores.len(), MAX_STORES),
        ("steps", k.steps.len(), MAX_STEPS),
    ];
    for (what, n, most) in counts {
        cx.ensure(n <= most, Rule::Sizes, || format!("{n} {what}; the most is {most}"));
    }
}

pub(super) fn check(cx: &mut Cx, k: &Region) {
    row(cx, k);
    for (at, step) in k.steps.iter().enumerate() {
        if args(cx, k, at, step) {
            types(cx, k, at, step);
        }
    }
    stores(cx, k);
}

fn row(cx: &mut Cx, k: &Region) {
    let (row, dims) = (k.row_dims as usize, k.dims.len());
    let some = if dims == 0 { row == 0 } else { (1..=dims).contains(&row) };
    cx.ensure(some, Rule::RegionForm, || format!("{row} of {dims} dimensions are the row"));
    if let Some(ragged) = &k.ragged {
        let outside = (ragged.dim as usize) < k.outer_dims();
        cx.ensure(outside, Rule::RegionForm, || {
            format!("the ragged dimension {} is not outside of the row", ragged.dim)
        });
    }
    cx.ensure(!k.stores.is_empty(), Rule::RegionForm, || "nothing is stored".into());
}

/// Are the arguments there?
fn args(cx: &mut Cx, k: &Region, at: usize, step: &Step) -> bool {
    let (n, takes) = (step.args.len(), arity(step.op));
    let enough =
        cx.ensure(n == takes, Rule::StepArgs, || format!("step {at} `{:?}` has {n} arguments, not {takes}", step.op));
    let known = step.args.iter().all(|arg| known(k, *arg, at));
    let index = match step.op {
        StepOp::Index(dim) => k.dims.get(dim as usize).is_some_and(|size| *size <= 1 << 31),
        _ => true,
    };
    cx.ensure(index, Rule::StepArgs, || {
        format!("step {at} `{:?}`: no such dimension, or too long for an i32", step.op)
    });
    cx.ensure(known, Rule::StepArgs, || format!("step {at} takes what is no load and no earlier step"))
        && enough
        && index
}

/// Is it a load, a constant, or a step before `end`?
fn known(k: &Region, arg: Arg, end: usize) -> bool {
    match arg {
        Arg::Load(i) => (i as usize) < k.loads.len(),
        Arg::Step(i) => (i as usize) < end,
        Arg::Const(_) => true,
    }
}

fn arity(op: StepOp) -> usize {
    match op {
        StepOp::Index(_) => 0,
        StepOp::Neg | StepOp::Exp | StepOp::Log | StepOp::Sqrt | StepOp::Rsqrt | StepOp::Tanh | StepOp::Sin => 1,
        StepOp::Cos | StepOp::Abs | StepOp::Sign | StepOp::Floor | StepOp::Not | StepOp::Cast => 1,
        StepOp::RowSum | StepOp::RowMax | StepOp::RowMin | StepOp::Lower => 1,
        StepOp::Add
        | StepOp::Sub
        | StepOp::Mul
        | StepOp::Div
        | StepOp::Rem
        | StepOp::Pow
        | StepOp::Min
        | StepOp::Max => 2,
        StepOp::Eq | StepOp::Ne | StepOp::Lt | StepOp::Le | StepOp::Gt | StepOp::Ge | StepOp::And | StepOp::Or => 2,
        StepOp::Mark => 2,
        StepOp::Select | StepOp::Join => 3,
    }
}

/// The type of a value; constants take any.
fn type_of(cx: &Cx, k: &Region, arg: Arg) -> Option<DType> {
    match arg {
        Arg::Load(i) => Some(cx.buffer(k.loads[i as usize].view.buffer).dtype),
        Arg::Step(i) => Some(k.steps[i as usize].dtype),
        Arg::Const(_) => None,
    }
}

fn types(cx: &mut Cx, k: &Region, at: usize, step: &Step) {
    let number = DType::is_number;
    let found: Vec<Option<DType>> = step.args.iter().map(|a| type_of(cx, k, *a)).collect();
    let result = step.dtype;
    // What the arguments must be, and whether the result may be what it is.
    let (wanted, fits) = match step.op {
        StepOp::Exp | StepOp::Log | StepOp::Sqrt | StepOp::Rsqrt | StepOp::Tanh | StepOp::Sin | StepOp::Cos => {
            (vec![result], result.is_float())
        }
        StepOp::Floor => (vec![result], result.is_float()),
        StepOp::Pow => (vec![result; 2], result.is_float()),
        StepOp::Neg | StepOp::Abs | StepOp::Sign => (vec![result], number(result)),
        StepOp::RowSum | StepOp::RowMax | StepOp::RowMin => (vec![result], number(result)),
        StepOp::Add | StepOp::Sub | StepOp::Mul | StepOp::Div | StepOp::Rem | StepOp::Min | StepOp::Max => {
            (vec![result; 2], number(result))
        }
        StepOp::Not => (vec![DType::Bool], result == DType::Bool),
        StepOp::And | StepOp::Or => (vec![DType::Bool; 2], result == DType::Bool),
        StepOp::Eq | StepOp::Ne | StepOp::Lt | StepOp::Le | StepOp::Gt | StepOp::Ge => {
            // Two constants are compared as they are written.
            let operand = found[0].or(found[1]).unwrap_or(DType::F64);
            (vec![operand; 2], result == DType::Bool)
        }
        StepOp::Select => (vec![DType::Bool, result, result], true),
        StepOp::Cast => {
            let whole = |d: DType| d != DType::I16;
            (vec![found[0].filter(|d| whole(*d)).unwrap_or(DType::F64)], whole(result))
        }
        StepOp::Join => (vec![DType::Bf16, DType::I16, DType::F32], result == DType::F32),
        StepOp::Lower => (vec![DType::F32], result == DType::I16),
        StepOp::Mark => (vec![DType::F32; 2], result == DType::F32),
        StepOp::Index(_) => (vec![], result == DType::I32),
    };
    cx.ensure(fits, Rule::StepTypes, || format!("step {at} `{:?}` cannot give {result}", step.op));
    for ((arg, found), wanted) in step.args.iter().zip(found).zip(wanted) {
        let matches = match (arg, found) {
            (Arg::Const(value), _) => representable(*value, wanted),
            (_, found) => found == Some(wanted),
        };
        cx.ensure(matches, Rule::StepTypes, || {
            format!("step {at} `{:?}` takes {wanted}, not {}", step.op, words(*arg, found))
        });
    }
}

fn words(arg: Arg, found: Option<DType>) -> String {
    match (arg, found) {
        (Arg::Const(value), _) => format!("the constant {value}"),
        (_, Some(dtype)) => dtype.to_string(),
        (_, None) => "nothing".into(),
    }
}

fn representable(value: f64, dtype: DType) -> bool {
    match dtype {
        DType::F64 | DType::F32 | DType::Bf16 => true,
        DType::I32 => value.trunc() == value && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&value),
        DType::I16 => value.trunc() == value && (f64::from(i16::MIN)..=f64::from(i16::MAX)).contains(&value),
        DType::Bool => value == 0.0 || value == 1.0,
    }
}

fn stores(cx: &mut Cx, k: &Region) {
    let extents = k.extents();
    for (at, store) in k.stores.iter().enumerate() {
        let dtype = cx.buffer(store.view.buffer).dtype;
        let fits = known(k, store.value, k.steps.len())
            && match store.value {
                Arg::Const(value) => representable(value, dtype),
                value => type_of(cx, k, value) == Some(dtype),
            };
        if cx.ensure(fits, Rule::StoreType, || {
            format!("store {at} puts what is not there, or of another type, into a buffer of {dtype}")
        }) {
            place(cx, k, at, k.extent(store.value, &extents));
        }
    }
}

/// Does every element, or every row, have its own place?
fn place(cx: &mut Cx, k: &Region, at: usize, extent: Extent) {
    let view = &k.stores[at].view;
    let dims: Vec<(u64, u64)> = k.dims.iter().copied().zip(view.strides.iter().copied()).collect();
    let (outer, row) = dims.split_at(k.outer_dims());
    // What is the same along a row may be stored once for the row. Without reductions nothing keeps the row together.
    let once = reduces(k) && extent != Extent::Element && row.iter().all(|(size, stride)| *size == 1 || *stride == 0);
    cx.ensure(distinct(if once { outer } else { &dims }), Rule::Distinct, || {
        format!("store {at}: two elements may land in one place")
    });
}

fn reduces(k: &Region) -> bool {
    k.steps.iter().any(|s| s.op.is_row_reduction())
}
