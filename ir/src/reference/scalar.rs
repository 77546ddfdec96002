//! What the elementwise functions mean, one element at a time. Numbers are held in f64, which is exact for every dtype.
//!
//! * NaN: arithmetic, `min`, `max` and `sign` hand it on; comparisons with it are false, except `ne`.
//! * `min` and `max` of equal numbers give the second operand (it matters for -0 only).
//! * i32 arithmetic wraps around. Division rounds towards minus infinity, the remainder has the sign of the divisor; dividing by 0 gives 0.
//! * Casts from float to i32 truncate, saturate, and make 0 of NaN; to bool: everything but 0 is true.
//! * bf16 results are rounded to f32 first and to bf16 then, as a unit that computes in f32 does; ties go to even.

use crate::op::{BinaryOp, UnaryOp};
use crate::types::DType;

/// The nearest number of the dtype, ties to even. Ints wrap around.
pub fn round(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => x,
        DType::F32 => x as f32 as f64,
        DType::BF16 => round_bf16(x as f32) as f64,
        DType::I32 => wrap(x),
        DType::Bool => (x != 0.0) as u8 as f64,
    }
}

/// The nearest bf16, ties to even.
pub fn round_bf16(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    f32::from_bits(nearest & 0xffff_0000)
}

/// The low 32 bits of a whole number, with sign. Products of two i32 exceed f64's precision and do not come here.
fn wrap(x: f64) -> f64 {
    x as i64 as i32 as f64
}

/// An elementwise function of one operand, before rounding.
pub fn unary(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sign if x == 0.0 || x.is_nan() => x,
        UnaryOp::Sign => x.signum(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Not => (x == 0.0) as u8 as f64,
    }
}

/// An elementwise function of two operands of a dtype, before rounding.
pub fn binary(op: BinaryOp, a: f64, b: f64, dtype: DType) -> f64 {
    if dtype == DType::I32 && matches!(op, BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem) {
        return integer(op, a as i64, b as i64) as f64;
    }
    let truth = |t: bool| t as u8 as f64;
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Rem => {
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
        }
        BinaryOp::Pow => a.powf(b),
        BinaryOp::Min => {
            if a < b || a.is_nan() {
                a
            } else {
                b
            }
        }
        BinaryOp::Max => {
            if a > b || a.is_nan() {
                a
            } else {
                b
            }
        }
        BinaryOp::Eq => truth(a == b),
        BinaryOp::Ne => truth(a != b),
        BinaryOp::Lt => truth(a < b),
        BinaryOp::Le => truth(a <= b),
        BinaryOp::Gt => truth(a > b),
        BinaryOp::Ge => truth(a >= b),
        BinaryOp::And => truth(a != 0.0 && b != 0.0),
        BinaryOp::Or => truth(a != 0.0 || b != 0.0),
    }
}

fn integer(op: BinaryOp, a: i64, b: i64) -> i32 {
    match op {
        BinaryOp::Mul => (a * b) as i32,
        _ if b == 0 => 0,
        BinaryOp::Div => (a.div_euclid(b) - (b < 0 && a.rem_euclid(b) != 0) as i64) as i32,
        _ => {
            let rest = a % b;
            (if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }) as i32
        }
    }
}

/// A conversion.
pub fn cast(x: f64, from: DType, to: DType) -> f64 {
    match to {
        DType::I32 if from.is_float() => x as i32 as f64,
        _ => round(x, to),
    }
}
