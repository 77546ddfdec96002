//! The loops: each function does one operation for all rows and columns of a block. Operands are seen through a stride between rows and one, 0 or 1, between
//! columns, so that broadcasting costs nothing. Each function is compiled once for each CPU level; arithmetic is the same in all. Arithmetic on f32 is not here but in
//! [`super::tile`].

use super::program::Class;
use crate::kernels::cpu::by_cpu;
use crate::kernels::halves;
use crate::kernels::math;
use forebay_plan::StepOp;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// An operand of a loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arg {
    pub ptr: *mut u8,
    /// Elements from one row to the next.
    pub row: usize,
    /// Elements from one column to the next: 0 or 1.
    pub column: usize,
}

/// A loop: its size, destination (columns side by side) and operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loop {
    pub rows: usize,
    pub columns: usize,
    pub to: Arg,
    pub args: [Arg; 3],
}

impl Loop {
    /// Makes one row of all rows where every operand goes on seamlessly.
    pub fn flattened(mut self) -> Loop {
        let dense = |a: &Arg| if a.column == 1 { a.row == self.columns } else { a.row == 0 };
        if self.rows > 1 && self.to.row == self.columns && self.args.iter().all(dense) {
            self.columns *= self.rows;
            self.rows = 1;
        }
        self
    }
}

/// A row of the destination.
#[inline(always)]
unsafe fn target<'a, T>(l: &Loop, row: usize) -> &'a mut [T] {
    // SAFETY: a destination has all rows and columns and overlaps no operand (the callers' contract).
    unsafe { from_raw_parts_mut(l.to.ptr.cast::<T>().add(row * l.to.row), l.columns) }
}

/// A row of an operand whose columns lie side by side.
#[inline(always)]
unsafe fn row_of<'a, T>(a: &Arg, row: usize, columns: usize) -> &'a [T] {
    // SAFETY: as for `target`.
    unsafe { from_raw_parts(a.ptr.cast::<T>().add(row * a.row), columns) }
}

/// The value of an operand that has one for the whole row.
#[inline(always)]
unsafe fn value_of<T: Copy>(a: &Arg, row: usize) -> T {
    // SAFETY: as for `target`.
    unsafe { *a.ptr.cast::<T>().add(row * a.row) }
}

#[inline(always)]
unsafe fn map1<A: Copy, D: Copy>(l: &Loop, f: impl Fn(A) -> D) {
    let a = &l.args[0];
    for row in 0..l.rows {
        // SAFETY: the callers' contract.
        unsafe {
            let to = target::<D>(l, row);
            if a.column == 1 {
                to.iter_mut().zip(row_of::<A>(a, row, l.columns)).for_each(|(d, &x)| *d = f(x));
            } else {
                to.fill(f(value_of(a, row)));
            }
        }
    }
}

#[inline(always)]
unsafe fn map2<A: Copy, D: Copy>(l: &Loop, f: impl Fn(A, A) -> D) {
    let [a, b, _] = &l.args;
    for row in 0..l.rows {
        // SAFETY: the callers' contract.
        unsafe {
            let to = target::<D>(l, row);
            match (a.column, b.column) {
                (1, 1) => {
                    let (a, b) = (row_of::<A>(a, row, l.columns), row_of::<A>(b, row, l.columns));
                    to.iter_mut().zip(a).zip(b).for_each(|((d, &x), &y)| *d = f(x, y));
                }
                (1, _) => {
                    let y = value_of(b, row);
                    to.iter_mut().zip(row_of::<A>(a, row, l.columns)).for_each(|(d, &x)| *d = f(x, y));
                }
                (_, 1) => {
                    let x = value_of(a, row);
                    to.iter_mut().zip(row_of::<A>(b, row, l.columns)).for_each(|(d, &y)| *d = f(x, y));
                }
                _ => to.fill(f(value_of(a, row), value_of(b, row))),
            }
        }
    }
}

#[inline(always)]
unsafe fn binary_f64_body(op: StepOp, l: &Loop) {
    // SAFETY: the callers' contract; so below.
    unsafe {
        match op {
            StepOp::Add => map2::<f64, f64>(l, |x, y| x + y),
            StepOp::Sub => map2::<f64, f64>(l, |x, y| x - y),
            StepOp::Mul => map2::<f64, f64>(l, |x, y| x * y),
            StepOp::Div => map2::<f64, f64>(l, |x, y| x / y),
            StepOp::Min => map2::<f64, f64>(l, math::min),
            StepOp::Max => map2::<f64, f64>(l, math::max),
            StepOp::Rem => map2::<f64, f64>(l, math::remainder_f64),
            StepOp::Pow => map2::<f64, f64>(l, f64::powf),
            op => unreachable!("{op:?} of f64"),
        }
    }
}

#[inline(always)]
unsafe fn binary_i32_body(op: StepOp, l: &Loop) {
    // SAFETY: as above.
    unsafe {
        match op {
            StepOp::Add => map2::<i32, i32>(l, i32::wrapping_add),
            StepOp::Sub => map2::<i32, i32>(l, i32::wrapping_sub),
            StepOp::Mul => map2::<i32, i32>(l, i32::wrapping_mul),
            StepOp::Div => map2::<i32, i32>(l, math::floor_div),
            StepOp::Rem => map2::<i32, i32>(l, math::floor_rem),
            StepOp::Min => map2::<i32, i32>(l, math::min),
            StepOp::Max => map2::<i32, i32>(l, math::max),
            op => unreachable!("{op:?} of i32"),
        }
    }
}

#[inline(always)]
unsafe fn binary_bool_body(op: StepOp, l: &Loop) {
    // SAFETY: as above.
    unsafe {
        match op {
            StepOp::And => map2::<u8, u8>(l, |x, y| x & y),
            StepOp::Or => map2::<u8, u8>(l, |x, y| x | y),
            op => unreachable!("{op:?} of bools"),
        }
    }
}

macro_rules! comparison {
    ($l:expr, $op:expr, $t:ty) => {
        match $op {
            StepOp::Eq => map2::<$t, u8>($l, |x, y| (x == y) as u8),
            StepOp::Ne => map2::<$t, u8>($l, |x, y| (x != y) as u8),
            StepOp::Lt => map2::<$t, u8>($l, |x, y| (x < y) as u8),
            StepOp::Le => map2::<$t, u8>($l, |x, y| (x <= y) as u8),
            StepOp::Gt => map2::<$t, u8>($l, |x, y| (x > y) as u8),
            StepOp::Ge => map2::<$t, u8>($l, |x, y| (x >= y) as u8),
            op => unreachable!("{op:?} is no comparison"),
        }
    };
}

#[inline(always)]
unsafe fn compare_body(class: Class, op: StepOp, l: &Loop) {
    // SAFETY: as above.
    unsafe {
        match class {
            Class::F32 => comparison!(l, op, f32),
            Class::F64 => comparison!(l, op, f64),
            Class::I32 => comparison!(l, op, i32),
            Class::Bool => comparison!(l, op, u8),
        }
    }
}

#[inline(always)]
unsafe fn unary_f64_body(op: StepOp, l: &Loop) {
    // SAFETY: as above.
    unsafe {
        match op {
            StepOp::Neg => map1::<f64, f64>(l, |x| -x),
            StepOp::Exp => map1::<f64, f64>(l, f64::exp),
            StepOp::Log => map1::<f64, f64>(l, f64::ln),
            StepOp::Sqrt => map1::<f64, f64>(l, f64::sqrt),
            StepOp::Rsqrt => map1::<f64, f64>(l, |x| 1.0 / x.sqrt()),
            StepOp::Tanh => map1::<f64, f64>(l, f64::tanh),
            StepOp::Sin => map1::<f64, f64>(l, f64::sin),
            StepOp::Cos => map1::<f64, f64>(l, f64::cos),
            StepOp::Abs => map1::<f64, f64>(l, f64::abs),
            StepOp::Sign => map1::<f64, f64>(l, |x| {
                if x > 0.0 {
                    1.0
                } else if x < 0.0 {
                    -1.0
                } else {
                    x
                }
            }),
            StepOp::Floor => map1::<f64, f64>(l, f64::floor),
            op => unreachable!("{op:?} of one f64"),
        }
    }
}

#[inline(always)]
unsafe fn unary_i32_body(op: StepOp, l: &Loop) {
    // SAFETY: as above.
    unsafe {
        match op {
            StepOp::Neg => map1::<i32, i32>(l, i32::wrapping_neg),
            StepOp::Abs => map1::<i32, i32>(l, i32::wrapping_abs),
            StepOp::Sign => map1::<i32, i32>(l, i32::signum),
            op => unreachable!("{op:?} of one i32"),
        }
    }
}

/// `condition ? a : b` for values of one size.
#[inline(always)]
unsafe fn select_of<T: Copy>(l: &Loop) {
    let [condition, a, b] = &l.args;
    for row in 0..l.rows {
        // SAFETY: as above.
        unsafe {
            let to = target::<T>(l, row);
            if condition.column == 0 {
                let chosen = if value_of::<u8>(condition, row) != 0 { a } else { b };
                match chosen.column {
                    1 => to.copy_from_slice(row_of(chosen, row, l.columns)),
                    _ => to.fill(value_of(chosen, row)),
                }
                continue;
            }
            let to = to.iter_mut().zip(row_of::<u8>(condition, row, l.columns));
            match (a.column, b.column) {
                (1, 1) => {
                    let (a, b) = (row_of::<T>(a, row, l.columns), row_of::<T>(b, row, l.columns));
                    to.zip(a).zip(b).for_each(|(((d, &c), &x), &y)| *d = if c != 0 { x } else { y });
                }
                (1, _) => {
                    let y = value_of::<T>(b, row);
                    to.zip(row_of::<T>(a, row, l.columns)).for_each(|((d, &c), &x)| *d = if c != 0 { x } else { y });
                }
                (_, 1) => {
                    let x = value_of::<T>(a, row);
                    to.zip(row_of::<T>(b, row, l.columns)).for_each(|((d, &c), &y)| *d = if c != 0 { x } else { y });
                }
                _ => {
                    let (x, y) = (value_of::<T>(a, row), value_of::<T>(b, row));
                    to.for_each(|(d, &c)| *d = if c != 0 { x } else { y });
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn select_body(class: Class, l: &Loop) {
    // SAFETY: as above.
    unsafe {
        match class.bytes() {
            8 => select_of::<u64>(l),
            4 => select_of::<u32>(l),
            _ => select_of::<u8>(l),
        }
    }
}

#[inline(always)]
unsafe fn convert_body(from: Class, to: Class, l: &Loop) {
    // SAFETY: as above. Casts to i32 saturate and make 0 of NaN.
    unsafe {
        match (from, to) {
            (Class::F32, Class::F32) | (Class::I32, Class::I32) => map1::<u32, u32>(l, |x| x),
            (Class::F64, Class::F64) => map1::<u64, u64>(l, |x| x),
            (Class::Bool, Class::Bool) => map1::<u8, u8>(l, |x| x),
            (Class::F32, Class::F64) => map1::<f32, f64>(l, f64::from),
            (Class::F32, Class::I32) => map1::<f32, i32>(l, |x| x as i32),
            (Class::F32, Class::Bool) => map1::<f32, u8>(l, |x| (x != 0.0) as u8),
            (Class::F64, Class::F32) => map1::<f64, f32>(l, |x| x as f32),
            (Class::F64, Class::I32) => map1::<f64, i32>(l, |x| x as i32),
            (Class::F64, Class::Bool) => map1::<f64, u8>(l, |x| (x != 0.0) as u8),
            (Class::I32, Class::F32) => map1::<i32, f32>(l, |x| x as f32),
            (Class::I32, Class::F64) => map1::<i32, f64>(l, f64::from),
            (Class::I32, Class::Bool) => map1::<i32, u8>(l, |x| (x != 0) as u8),
            (Class::Bool, Class::F32) => map1::<u8, f32>(l, f32::from),
            (Class::Bool, Class::F64) => map1::<u8, f64>(l, f64::from),
            (Class::Bool, Class::I32) => map1::<u8, i32>(l, i32::from),
        }
    }
}

#[inline(always)]
unsafe fn not_body(l: &Loop) {
    // SAFETY: as above.
    unsafe { map1::<u8, u8>(l, |x| (x == 0) as u8) }
}

#[inline(always)]
unsafe fn join_body(l: &Loop) {
    let [upper, lower, mark] = &l.args;
    for row in 0..l.rows {
        // SAFETY: as above.
        unsafe {
            let to = target::<u32>(l, row);
            if [upper, lower, mark].iter().all(|a| a.column == 1) {
                let halves = row_of::<u32>(upper, row, l.columns).iter().zip(row_of::<i32>(lower, row, l.columns));
                let all = to.iter_mut().zip(halves).zip(row_of::<u32>(mark, row, l.columns));
                all.for_each(|((d, (&upper, &lower)), &mark)| *d = halves::join(upper, lower, mark));
                continue;
            }
            for (column, d) in to.iter_mut().enumerate() {
                let at = |a: &Arg| a.ptr.cast::<u32>().add(row * a.row + column * a.column).read();
                *d = halves::join(at(upper), at(lower) as i32, at(mark));
            }
        }
    }
}

#[inline(always)]
unsafe fn lower_body(l: &Loop) {
    // SAFETY: as above.
    unsafe { map1::<u32, i32>(l, halves::lower) }
}

#[inline(always)]
unsafe fn mark_body(l: &Loop) {
    // SAFETY: as above.
    unsafe { map2::<f32, u32>(l, halves::mark) }
}

by_cpu!(pub(super) unsafe fn join / join_body(l: &Loop));
by_cpu!(pub(super) unsafe fn lower / lower_body(l: &Loop));
by_cpu!(pub(super) unsafe fn mark / mark_body(l: &Loop));
by_cpu!(pub(super) unsafe fn binary_f64 / binary_f64_body(op: StepOp, l: &Loop));
by_cpu!(pub(super) unsafe fn binary_i32 / binary_i32_body(op: StepOp, l: &Loop));
by_cpu!(pub(super) unsafe fn binary_bool / binary_bool_body(op: StepOp, l: &Loop));
by_cpu!(pub(super) unsafe fn compare / compare_body(class: Class, op: StepOp, l: &Loop));
by_cpu!(pub(super) unsafe fn unary_f64 / unary_f64_body(op: StepOp, l: &Loop));
by_cpu!(pub(super) unsafe fn unary_i32 / unary_i32_body(op: StepOp, l: &Loop));
by_cpu!(pub(super) unsafe fn select / select_body(class: Class, l: &Loop));
by_cpu!(pub(super) unsafe fn convert / convert_body(from: Class, to: Class, l: &Loop));
by_cpu!(pub(super) unsafe fn not / not_body(l: &Loop));
