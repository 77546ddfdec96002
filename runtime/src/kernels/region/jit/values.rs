//! Values of some columns side by side, and what instructions make of them: Cranelift's vectors have 128 bits, which are four columns of f32 and i32, and half of four of f64.
//!
//! Every operation is the one that the loops ([`super::super::ops`]) and tiles ([`super::super::tile`]) do, in the same order, so that the bits are theirs.

use super::super::program::Class;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{Endianness, InstBuilder, MemFlags, Type, Value, types};
use cranelift_frontend::FunctionBuilder;
use forebay_plan::StepOp;

/// How many columns are worked on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    One,
    /// So many registers of f32: side by side, their latencies hide each other.
    Vectors(usize),
}

impl Columns {
    pub fn count(self) -> usize {
        match self {
            Columns::One => 1,
            Columns::Vectors(n) => LANES * n,
        }
    }
}

/// Columns of a register of 32-bit numbers.
pub(super) const LANES: usize = 4;
/// Registers of a value at most.
const MOST: usize = 8;

/// A value of some columns: registers for one after the other. A condition is an i32 of all bits or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Val {
    parts: [Value; MOST],
    n: usize,
}

impl Val {
    pub fn new(all: &[Value]) -> Val {
        let mut parts = [all[0]; MOST];
        parts[..all.len()].copy_from_slice(all);
        Val { parts, n: all.len() }
    }

    /// Its registers.
    pub fn parts(&self) -> &[Value] {
        &self.parts[..self.n]
    }

    /// The number of a value of one column.
    pub fn scalar(&self) -> Value {
        debug_assert!(self.n == 1);
        self.parts[0]
    }
}

impl FromIterator<Value> for Val {
    fn from_iter<I: IntoIterator<Item = Value>>(all: I) -> Val {
        let all: Vec<Value> = all.into_iter().collect();
        Val::new(&all)
    }
}

/// Bytes of four columns' conditions as i32 from the upper and lower halves of i64.
const EVEN_WORDS: [u8; 16] = [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27];

/// Makes instructions for some columns.
pub(super) struct Lower<'a, 'b> {
    pub b: &'a mut FunctionBuilder<'b>,
    pub columns: Columns,
}

impl<'b> Lower<'_, 'b> {
    /// The same for one column.
    pub fn one(&mut self) -> Lower<'_, 'b> {
        Lower { b: &mut *self.b, columns: Columns::One }
    }

    /// The type of a class in a register.
    pub fn type_of(&self, class: Class) -> Type {
        match (self.columns, class) {
            (Columns::One, Class::F32) => types::F32,
            (Columns::One, Class::F64) => types::F64,
            (Columns::One, Class::I32 | Class::Bool) => types::I32,
            (Columns::Vectors(_), Class::F32) => types::F32X4,
            (Columns::Vectors(_), Class::F64) => types::F64X2,
            (Columns::Vectors(_), Class::I32 | Class::Bool) => types::I32X4,
        }
    }

    /// Registers of a class's value.
    pub fn registers(&self, class: Class) -> usize {
        match (self.columns, class) {
            (Columns::One, _) => 1,
            (Columns::Vectors(n), Class::F64) => 2 * n,
            (Columns::Vectors(n), _) => n,
        }
    }

    pub fn is_one(&self) -> bool {
        self.columns == Columns::One
    }

    pub fn map(&mut self, a: Val, mut f: impl FnMut(&mut Self, Value) -> Value) -> Val {
        a.parts().iter().map(|&a| f(self, a)).collect()
    }

    fn map2(&mut self, a: Val, b: Val, mut f: impl FnMut(&mut Self, Value, Value) -> Value) -> Val {
        debug_assert!(a.n == b.n, "operands of one class");
        a.parts().iter().zip(b.parts()).map(|(&a, &b)| f(self, a, b)).collect()
    }

    fn map3(&mut self, [a, b, c]: [Val; 3], mut f: impl FnMut(&mut Self, [Value; 3]) -> Value) -> Val {
        debug_assert!(a.n == b.n && b.n == c.n, "operands of one size");
        (0..a.n).map(|i| f(self, [a.parts[i], b.parts[i], c.parts[i]])).collect()
    }

    /// The same number for all columns, from its low bytes.
    pub fn constant(&mut self, bytes: u64, class: Class) -> Val {
        let bytes = match class {
            Class::F64 => bytes,
            Class::F32 | Class::I32 => bytes & 0xffff_ffff,
            Class::Bool if bytes as u8 != 0 => 0xffff_ffff,
            Class::Bool => 0,
        };
        if self.is_one() {
            let scalar = match class {
                Class::F32 => self.b.ins().f32const(f32::from_bits(bytes as u32)),
                Class::F64 => self.b.ins().f64const(f64::from_bits(bytes)),
                Class::I32 | Class::Bool => self.b.ins().iconst(types::I32, bytes as i64),
            };
            return Val::new(&[scalar]);
        }
        let vector = self.vector(bytes, class);
        Val::new(&[vector; MOST][..self.registers(class)])
    }

    /// A register of one number: from memory, which an instruction can have as its operand.
    fn vector(&mut self, bytes: u64, class: Class) -> Value {
        let once = if class == Class::F64 { bytes } else { bytes | bytes << 32 };
        let all = [once.to_le_bytes(), once.to_le_bytes()].concat();
        let (ty, all) = (self.type_of(class), self.b.func.dfg.constants.insert(all.into()));
        self.b.ins().vconst(ty, all)
    }

    /// A number of one column for all.
    pub fn splat(&mut self, scalar: Value, class: Class) -> Val {
        if self.is_one() {
            return Val::new(&[scalar]);
        }
        let ty = self.type_of(class);
        let vector = self.b.ins().splat(ty, scalar);
        Val::new(&[vector; MOST][..self.registers(class)])
    }

    fn float(&mut self, x: f32) -> Value {
        self.constant(u64::from(x.to_bits()), Class::F32).parts[0]
    }

    fn double(&mut self, x: f64) -> Value {
        self.constant(x.to_bits(), Class::F64).parts[0]
    }

    pub fn int(&mut self, x: i32) -> Value {
        self.constant(u64::from(x as u32), Class::I32).parts[0]
    }

    fn number(&mut self, class: Class, x: f32) -> Value {
        if class == Class::F64 { self.double(x.into()) } else { self.float(x) }
    }

    /// The same bits as integers.
    pub fn bits(&mut self, a: Value) -> Value {
        let ty = self.b.func.dfg.value_type(a).as_int();
        self.cast(a, ty)
    }

    pub fn cast(&mut self, a: Value, ty: Type) -> Value {
        if self.b.func.dfg.value_type(a) == ty {
            return a;
        }
        let flags = MemFlags::new().with_endianness(Endianness::Little);
        self.b.ins().bitcast(ty, flags, a)
    }

    /// `a` where the mask has all bits, `b` where it has none.
    pub fn choose(&mut self, mask: Value, a: Value, b: Value) -> Value {
        let ty = self.b.func.dfg.value_type(a);
        let (a, b) = (self.bits(a), self.bits(b));
        let chosen = self.b.ins().bitselect(mask, a, b);
        self.cast(chosen, ty)
    }

    /// A comparison of floats, as a mask of their width.
    pub fn float_mask(&mut self, code: FloatCC, a: Value, b: Value) -> Value {
        let ty = self.b.func.dfg.value_type(a).as_int();
        let holds = self.b.ins().fcmp(code, a, b);
        if ty.is_vector() { holds } else { self.b.ins().bmask(ty, holds) }
    }

    pub fn int_mask(&mut self, code: IntCC, a: Value, b: Value) -> Value {
        let ty = self.b.func.dfg.value_type(a);
        let holds = self.b.ins().icmp(code, a, b);
        if ty.is_vector() { holds } else { self.b.ins().bmask(ty, holds) }
    }

    /// A condition from masks of a class's width.
    fn condition(&mut self, class: Class, mask: Val) -> Val {
        if class != Class::F64 {
            return mask;
        }
        if self.is_one() {
            return self.map(mask, |l, mask| l.b.ins().ireduce(types::I32, mask));
        }
        let pairs = mask.parts().chunks_exact(2);
        pairs
            .map(|pair| {
                let (low, high) = (self.cast(pair[0], types::I8X16), self.cast(pair[1], types::I8X16));
                let pattern = self.b.func.dfg.immediates.push(EVEN_WORDS[..].into());
                let words = self.b.ins().shuffle(low, high, pattern);
                self.cast(words, types::I32X4)
            })
            .collect()
    }

    /// A condition as masks of a class's width.
    fn masks(&mut self, condition: Val, class: Class) -> Val {
        match class {
            Class::F64 if self.is_one() => self.map(condition, |l, c| l.b.ins().sextend(types::I64, c)),
            Class::F64 => self.doubled(condition, |l, c| [l.b.ins().swiden_low(c), l.b.ins().swiden_high(c)]),
            _ => condition,
        }
    }

    /// Two registers for each.
    fn doubled(&mut self, a: Val, mut f: impl FnMut(&mut Self, Value) -> [Value; 2]) -> Val {
        a.parts().iter().flat_map(|&a| f(self, a)).collect()
    }

    /// A function of one number.
    pub fn unary(&mut self, class: Class, op: StepOp, a: Val) -> Val {
        if matches!(class, Class::F32 | Class::F64) {
            return self.map(a, |l, a| l.unary_float(class, op, a));
        }
        self.map(a, |l, a| match op {
            StepOp::Not => l.b.ins().bnot(a),
            StepOp::Neg => l.b.ins().ineg(a),
            StepOp::Abs => l.b.ins().iabs(a),
            StepOp::Sign => {
                let zero = l.int(0);
                let (one, positive) = (l.int(1), l.int_mask(IntCC::SignedGreaterThan, a, zero));
                let (up, down) = (l.b.ins().band(positive, one), l.b.ins().sshr_imm(a, 31));
                l.b.ins().bor(up, down)
            }
            op => unreachable!("{op:?} of one {class:?}"),
        })
    }

    fn unary_float(&mut self, class: Class, op: StepOp, a: Value) -> Value {
        match op {
            StepOp::Neg => self.b.ins().fneg(a),
            StepOp::Abs => self.b.ins().fabs(a),
            StepOp::Floor => self.b.ins().floor(a),
            StepOp::Sqrt => self.b.ins().sqrt(a),
            StepOp::Rsqrt => {
                let (one, root) = (self.number(class, 1.0), self.b.ins().sqrt(a));
                self.b.ins().fdiv(one, root)
            }
            StepOp::Sign => {
                let (zero, up, down) = (self.number(class, 0.0), self.number(class, 1.0), self.number(class, -1.0));
                let positive = self.float_mask(FloatCC::LessThan, zero, a);
                let negative = self.float_mask(FloatCC::LessThan, a, zero);
                let rest = self.choose(negative, down, a);
                self.choose(positive, up, rest)
            }
            op => unreachable!("{op:?} of one {class:?}"),
        }
    }

    /// A function of two numbers.
    pub fn binary(&mut self, class: Class, op: StepOp, a: Val, b: Val) -> Val {
        match class {
            Class::F32 | Class::F64 => self.map2(a, b, |l, a, b| match op {
                StepOp::Add => l.b.ins().fadd(a, b),
                StepOp::Sub => l.b.ins().fsub(a, b),
                StepOp::Mul => l.b.ins().fmul(a, b),
                StepOp::Div => l.b.ins().fdiv(a, b),
                StepOp::Min => l.first_if(FloatCC::LessThan, a, b),
                StepOp::Max => l.first_if(FloatCC::GreaterThan, a, b),
                op => unreachable!("{op:?} of {class:?}"),
            }),
            Class::I32 => self.map2(a, b, |l, a, b| match op {
                StepOp::Add => l.b.ins().iadd(a, b),
                StepOp::Sub => l.b.ins().isub(a, b),
                StepOp::Mul => l.b.ins().imul(a, b),
                StepOp::Min => l.b.ins().smin(a, b),
                StepOp::Max => l.b.ins().smax(a, b),
                StepOp::Div => l.each(a, b, |l, a, b| l.floor_div(a, b).0),
                StepOp::Rem => l.each(a, b, |l, a, b| l.floor_div(a, b).1),
                op => unreachable!("{op:?} of i32"),
            }),
            Class::Bool => self.map2(a, b, |l, a, b| match op {
                StepOp::And => l.b.ins().band(a, b),
                StepOp::Or => l.b.ins().bor(a, b),
                op => unreachable!("{op:?} of bools"),
            }),
        }
    }

    /// `a` where the comparison holds or `a` is NaN, else `b` ([`crate::kernels::math::max`]).
    pub fn first_if(&mut self, code: FloatCC, a: Value, b: Value) -> Value {
        let holds = self.float_mask(code, a, b);
        let nan = self.float_mask(FloatCC::Unordered, a, a);
        let first = self.b.ins().bor(holds, nan);
        self.choose(first, a, b)
    }

    /// An operation on integers, column by column.
    fn each(&mut self, a: Value, b: Value, mut f: impl FnMut(&mut Self, Value, Value) -> Value) -> Value {
        if self.is_one() {
            return f(self, a, b);
        }
        let mut all = a;
        for lane in 0..LANES as u8 {
            let (a, b) = (self.b.ins().extractlane(a, lane), self.b.ins().extractlane(b, lane));
            let value = f(self, a, b);
            all = self.b.ins().insertlane(all, value, lane);
        }
        all
    }

    /// The quotient rounded down and its remainder, both 0 when the divisor is. In 64 bits nothing overflows.
    fn floor_div(&mut self, a: Value, b: Value) -> (Value, Value) {
        let ins = |l: &mut Self, x| l.b.ins().sextend(types::I64, x);
        let (a, b) = (ins(self, a), ins(self, b));
        let one = self.b.ins().iconst(types::I64, 1);
        let divisor = self.b.ins().select(b, b, one);
        let quotient = self.b.ins().sdiv(a, divisor);
        let product = self.b.ins().imul(quotient, divisor);
        let rest = self.b.ins().isub(a, product);
        let zero = self.b.ins().iconst(types::I64, 0);
        let signs = self.b.ins().bxor(rest, divisor);
        let apart = self.b.ins().icmp(IntCC::SignedLessThan, signs, zero);
        let inexact = self.b.ins().icmp(IntCC::NotEqual, rest, zero);
        let down = self.b.ins().band(apart, inexact);
        let (lower, moved) = (self.b.ins().isub(quotient, one), self.b.ins().iadd(rest, divisor));
        let (quotient, rest) = (self.b.ins().select(down, lower, quotient), self.b.ins().select(down, moved, rest));
        let (quotient, rest) = (self.b.ins().select(b, quotient, zero), self.b.ins().select(b, rest, zero));
        (self.b.ins().ireduce(types::I32, quotient), self.b.ins().ireduce(types::I32, rest))
    }

    /// A comparison of two of a class.
    pub fn compare(&mut self, class: Class, op: StepOp, a: Val, b: Val) -> Val {
        use StepOp::*;
        let mask = match class {
            Class::F32 | Class::F64 => {
                let code = match op {
                    Eq => FloatCC::Equal,
                    Ne => FloatCC::NotEqual,
                    Lt => FloatCC::LessThan,
                    Le => FloatCC::LessThanOrEqual,
                    Gt => FloatCC::GreaterThan,
                    Ge => FloatCC::GreaterThanOrEqual,
                    op => unreachable!("{op:?} is no comparison"),
                };
                self.map2(a, b, |l, a, b| l.float_mask(code, a, b))
            }
            Class::I32 | Class::Bool => {
                // Of conditions, which are -1 and 0, the true one is the greater.
                let (a, b) = if class == Class::Bool { (b, a) } else { (a, b) };
                let code = match op {
                    Eq => IntCC::Equal,
                    Ne => IntCC::NotEqual,
                    Lt => IntCC::SignedLessThan,
                    Le => IntCC::SignedLessThanOrEqual,
                    Gt => IntCC::SignedGreaterThan,
                    Ge => IntCC::SignedGreaterThanOrEqual,
                    op => unreachable!("{op:?} is no comparison"),
                };
                self.map2(a, b, |l, a, b| l.int_mask(code, a, b))
            }
        };
        self.condition(class, mask)
    }

    /// `condition ? a : b`
    pub fn select(&mut self, class: Class, condition: Val, a: Val, b: Val) -> Val {
        let masks = self.masks(condition, class);
        self.map3([masks, a, b], |l, [mask, a, b]| l.choose(mask, a, b))
    }

    /// From a class to another.
    pub fn convert(&mut self, from: Class, to: Class, a: Val) -> Val {
        match (from, to) {
            (from, to) if from == to => a,
            (from, Class::Bool) => {
                let mask = self.map(a, |l, a| {
                    if from == Class::I32 {
                        let zero = l.int(0);
                        l.int_mask(IntCC::NotEqual, a, zero)
                    } else {
                        let zero = l.number(from, 0.0);
                        l.float_mask(FloatCC::NotEqual, a, zero)
                    }
                });
                self.condition(from, mask)
            }
            (Class::Bool, to) => {
                let one = match to {
                    Class::F64 => self.double(1.0),
                    Class::F32 => self.float(1.0),
                    _ => self.int(1),
                };
                let (ty, one) = (self.b.func.dfg.value_type(one), self.bits(one));
                let masks = self.masks(a, to);
                self.map(masks, |l, mask| {
                    let value = l.b.ins().band(mask, one);
                    l.cast(value, ty)
                })
            }
            (Class::F32, Class::I32) => {
                let ty = self.type_of(Class::I32);
                self.map(a, |l, a| l.b.ins().fcvt_to_sint_sat(ty, a))
            }
            (Class::I32, Class::F32) => {
                let ty = self.type_of(Class::F32);
                self.map(a, |l, a| l.b.ins().fcvt_from_sint(ty, a))
            }
            (from, to) => self.convert_width(from, to, a),
        }
    }

    /// Between f64 and the 32-bit classes.
    fn convert_width(&mut self, from: Class, to: Class, a: Val) -> Val {
        if self.is_one() {
            return self.map(a, |l, a| match (from, to) {
                (Class::F32, _) => l.b.ins().fpromote(types::F64, a),
                (Class::I32, _) => l.b.ins().fcvt_from_sint(types::F64, a),
                (_, Class::F32) => l.b.ins().fdemote(types::F32, a),
                _ => l.b.ins().fcvt_to_sint_sat(types::I32, a),
            });
        }
        match (from, to) {
            (Class::F32, _) => self.doubled(a, |l, a| {
                let upper = l.swapped(a);
                [a, upper].map(|a| l.b.ins().fvpromote_low(a))
            }),
            (Class::I32, _) => self.doubled(a, |l, a| {
                let halves = [l.b.ins().swiden_low(a), l.b.ins().swiden_high(a)];
                halves.map(|half| l.b.ins().fcvt_from_sint(types::F64X2, half))
            }),
            (_, Class::F32) => a.parts().chunks_exact(2).map(|pair| self.demoted(pair[0], pair[1])).collect(),
            _ => a.parts().chunks_exact(2).map(|pair| self.cut(pair)).collect(),
        }
    }

    /// f32 of four f64.
    fn demoted(&mut self, low: Value, high: Value) -> Value {
        let halves = [low, high].map(|half| self.b.ins().fvdemote(half));
        let [low, high] = halves.map(|half| self.cast(half, types::F64X2));
        let high = self.b.ins().extractlane(high, 0);
        let both = self.b.ins().insertlane(low, high, 1);
        self.cast(both, types::F32X4)
    }

    /// i32 of four f64, one by one: there is no instruction for it before AVX-512.
    fn cut(&mut self, halves: &[Value]) -> Value {
        let mut all = self.int(0);
        for lane in 0..LANES as u8 {
            let number = self.b.ins().extractlane(halves[lane as usize / 2], lane % 2);
            let number = self.b.ins().fcvt_to_sint_sat(types::I32, number);
            all = self.b.ins().insertlane(all, number, lane);
        }
        all
    }

    /// The upper two of four f32 in the place of the lower.
    fn swapped(&mut self, a: Value) -> Value {
        let wide = self.cast(a, types::F64X2);
        let upper = self.b.ins().extractlane(wide, 1);
        let both = self.b.ins().insertlane(wide, upper, 0);
        self.cast(both, types::F32X4)
    }

    /// Rounded to bf16 ([`crate::kernels::math::round_to_bf16`]).
    pub fn round(&mut self, a: Val) -> Val {
        self.map(a, |l, a| {
            let ty = l.b.func.dfg.value_type(a);
            let bits = l.bits(a);
            let (one, half) = (l.int(1), l.int(0x7fff));
            let upper = l.b.ins().ushr_imm(bits, 16);
            let odd = l.b.ins().band(upper, one);
            let carry = l.b.ins().iadd(half, odd);
            let rounded = l.b.ins().iadd(bits, carry);
            let quiet = l.int(0x0040_0000);
            let quiet = l.b.ins().bor(bits, quiet);
            let number = l.float_mask(FloatCC::Ordered, a, a);
            let chosen = l.b.ins().bitselect(number, rounded, quiet);
            let upper = l.int(!0xffff);
            let kept = l.b.ins().band(chosen, upper);
            l.cast(kept, ty)
        })
    }

    /// An f32 of its halves ([`crate::kernels::halves::join`]).
    pub fn join(&mut self, copy: Val, lower: Val, mark: Val) -> Val {
        self.map3([copy, lower, mark], |l, [copy, lower, mark]| {
            let ty = l.b.func.dfg.value_type(copy);
            let (copy, mark) = (l.bits(copy), l.bits(mark));
            let (magnitude, infinite) = (l.int(i32::MAX), l.int(0x7f80_0000));
            let size = l.b.ins().band(copy, magnitude);
            let nan = l.int_mask(IntCC::SignedGreaterThan, size, infinite);
            let (quiet, least) = (l.int(1 << 22), l.int(1 << 16));
            let unit = l.b.ins().bitselect(nan, quiet, least);
            let marked = l.b.ins().sshr_imm(mark, 31);
            let changed = l.b.ins().band(marked, unit);
            let upper = l.b.ins().isub(copy, changed);
            let low = l.int(0xffff);
            let lower = l.b.ins().band(lower, low);
            let both = l.b.ins().bor(upper, lower);
            l.cast(both, ty)
        })
    }

    /// The lower half of an f32, widened.
    pub fn lower(&mut self, a: Val) -> Val {
        self.map(a, |l, a| {
            let bits = l.bits(a);
            l.low_half(bits)
        })
    }

    /// The lower half of an integer with its sign.
    pub fn low_half(&mut self, bits: Value) -> Value {
        let up = self.b.ins().ishl_imm(bits, 16);
        self.b.ins().sshr_imm(up, 16)
    }

    /// A carrier with the mark of a number ([`crate::kernels::halves::mark`]).
    pub fn mark(&mut self, carrier: Val, x: Val) -> Val {
        let rounded = self.round(x);
        self.map3([carrier, x, rounded], |l, [carrier, x, rounded]| {
            let ty = l.b.func.dfg.value_type(carrier);
            let [carrier, x, rounded] = [carrier, x, rounded].map(|a| l.bits(a));
            let differs = l.b.ins().bxor(rounded, x);
            let upper = l.b.ins().ushr_imm(differs, 16);
            let zero = l.int(0);
            let changed = l.int_mask(IntCC::NotEqual, upper, zero);
            let (sign, magnitude) = (l.int(i32::MIN), l.int(i32::MAX));
            let (sign, size) = (l.b.ins().band(changed, sign), l.b.ins().band(carrier, magnitude));
            let both = l.b.ins().bor(size, sign);
            l.cast(both, ty)
        })
    }
}
