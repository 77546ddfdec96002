//! Which loop a step is, given the classes of its operands and result.

use super::super::{PrepareError, ensure};
use super::program::{Class, Op};
use forebay_plan::{DType, ReduceOp, StepOp};

pub(super) fn is_comparison(op: StepOp) -> bool {
    matches!(op, StepOp::Eq | StepOp::Ne | StepOp::Lt | StepOp::Le | StepOp::Gt | StepOp::Ge)
}

pub(super) fn check_arity(i: usize, op: StepOp, have: usize) -> Result<(), PrepareError> {
    use StepOp::*;
    let want = match op {
        Index(_) => 0,
        Neg | Exp | Log | Sqrt | Rsqrt | Tanh | Sin | Cos | Abs | Sign | Floor | Not | Cast | RowSum | RowMax
        | RowMin | Lower => 1,
        Add | Sub | Mul | Div | Rem | Pow | Min | Max | Eq | Ne | Lt | Le | Gt | Ge | And | Or | Mark => 2,
        Select | Join => 3,
    };
    ensure(have == want, || format!("step {i}: {op:?} takes {want} operands, not {have}"))
}

/// The type of an argument, where the others are of type `operand`.
pub(super) fn wanted(op: StepOp, at: usize, operand: DType) -> DType {
    match (op, at) {
        (StepOp::Select, 0) => DType::Bool,
        (StepOp::Join, 1) => DType::I16,
        _ => operand,
    }
}

/// The loop for a step whose operands are of a class; nothing when there is none.
pub(super) fn operation(op: StepOp, from: Class, to: Class) -> Option<Op> {
    use StepOp::*;
    let float = matches!(from, Class::F32 | Class::F64);
    let number = from != Class::Bool;
    let reduce = match op {
        RowSum => Some(ReduceOp::Sum),
        RowMax => Some(ReduceOp::Max),
        RowMin => Some(ReduceOp::Min),
        _ => None,
    };
    if let Some(reduce) = reduce {
        return (number && from == to).then_some(Op::Reduce(from, reduce));
    }
    match op {
        Cast => Some(Op::Convert(from, to)),
        Lower => (from == Class::F32 && to == Class::I32).then_some(Op::Lower),
        _ if is_comparison(op) => (to == Class::Bool).then_some(Op::Compare(from, op)),
        _ if from != to => None,
        Neg | Abs | Sign => number.then_some(Op::Unary(from, op)),
        Exp | Log | Sqrt | Rsqrt | Tanh | Sin | Cos | Floor => float.then_some(Op::Unary(from, op)),
        Not => (from == Class::Bool).then_some(Op::Unary(from, op)),
        Add | Sub | Mul | Div | Rem | Min | Max => number.then_some(Op::Binary(from, op)),
        Pow => float.then_some(Op::Binary(from, op)),
        And | Or => (from == Class::Bool).then_some(Op::Binary(from, op)),
        Select => Some(Op::Select(from)),
        Join => (from == Class::F32).then_some(Op::Join),
        Mark => (from == Class::F32).then_some(Op::Mark),
        _ => None,
    }
}
