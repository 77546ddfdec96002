//! Between memory and registers: elements widened when they are loaded, rounded or cut when they are stored.

use super::super::compile::class;
use super::super::program::Class;
use super::values::{LANES, Lower, Val};
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlags, Value, types};
use forebay_plan::DType;

/// Memory that may be anywhere between elements, and holds what the plan's verifier has proven to be there.
pub(super) fn memory() -> MemFlags {
    MemFlags::new().with_notrap()
}

impl Lower<'_, '_> {
    /// Elements side by side in memory, or one of them, as a register has them.
    pub fn load(&mut self, dtype: DType, at: Value) -> Val {
        if self.is_one() {
            return Val::new(&[self.load_one(dtype, at)]);
        }
        let registers = self.registers(class(dtype));
        let bytes = self.columns.count() * dtype.bytes() as usize / registers;
        (0..registers).map(|i| self.load_register(dtype, at, (i * bytes) as i32)).collect()
    }

    fn load_one(&mut self, dtype: DType, at: Value) -> Value {
        let flags = memory();
        match dtype {
            DType::F32 => self.b.ins().load(types::F32, flags, at, 0),
            DType::F64 => self.b.ins().load(types::F64, flags, at, 0),
            DType::I32 => self.b.ins().load(types::I32, flags, at, 0),
            DType::I16 => self.b.ins().sload16(types::I32, flags, at, 0),
            DType::Bf16 => {
                let bits = self.b.ins().uload16(types::I32, flags, at, 0);
                let bits = self.b.ins().ishl_imm(bits, 16);
                self.cast(bits, types::F32)
            }
            DType::Bool => {
                let byte = self.b.ins().load(types::I8, flags, at, 0);
                self.b.ins().bmask(types::I32, byte)
            }
        }
    }

    fn load_register(&mut self, dtype: DType, at: Value, offset: i32) -> Value {
        let flags = memory();
        match dtype {
            DType::F32 => self.b.ins().load(types::F32X4, flags, at, offset),
            DType::I32 => self.b.ins().load(types::I32X4, flags, at, offset),
            DType::F64 => self.b.ins().load(types::F64X2, flags, at, offset),
            DType::I16 => self.b.ins().sload16x4(flags, at, offset),
            DType::Bf16 => {
                let bits = self.b.ins().uload16x4(flags, at, offset);
                let bits = self.b.ins().ishl_imm(bits, 16);
                self.cast(bits, types::F32X4)
            }
            DType::Bool => {
                let word = self.b.ins().load(types::I32, flags, at, offset);
                let bytes = self.b.ins().scalar_to_vector(types::I32X4, word);
                let bytes = self.cast(bytes, types::I8X16);
                let halves = self.b.ins().uwiden_low(bytes);
                let words = self.b.ins().uwiden_low(halves);
                let zero = self.int(0);
                self.int_mask(IntCC::NotEqual, words, zero)
            }
        }
    }

    /// Elements that lie `stride` bytes apart.
    pub fn gather(&mut self, dtype: DType, at: Value, stride: i64) -> Val {
        let (ty, registers) = (self.type_of(class(dtype)), self.registers(class(dtype)));
        let lanes = self.columns.count() / registers;
        let mut one = self.one();
        let mut each = |column: usize| {
            let at = one.b.ins().iadd_imm(at, column as i64 * stride);
            one.load_one(dtype, at)
        };
        let values: Vec<Value> = (0..registers * lanes).map(&mut each).collect();
        let join = |values: &[Value]| {
            let first = self.b.ins().splat(ty, values[0]);
            let rest = values.iter().enumerate().skip(1);
            rest.fold(first, |all, (lane, &value)| self.b.ins().insertlane(all, value, lane as u8))
        };
        values.chunks_exact(lanes).map(join).collect()
    }

    /// Stores to elements that lie `stride` bytes apart, rounded or cut to the type.
    pub fn scatter(&mut self, dtype: DType, value: Val, at: Value, stride: i64) {
        let lanes = self.columns.count() / value.parts().len();
        for column in 0..self.columns.count() {
            let one = self.b.ins().extractlane(value.parts()[column / lanes], (column % lanes) as u8);
            let at = self.b.ins().iadd_imm(at, column as i64 * stride);
            self.one().store(dtype, Val::new(&[one]), at);
        }
    }

    /// The numbers from `first` on, `stride` apart.
    pub fn counting(&mut self, first: Value, stride: i32) -> Val {
        let all = self.splat(first, Class::I32);
        if self.is_one() || stride == 0 {
            return all;
        }
        let parts = all.parts().iter().enumerate();
        parts
            .map(|(i, &all)| {
                let steps = [0, 1, 2, 3].map(|lane| stride.wrapping_mul((LANES * i) as i32 + lane));
                let bytes: Vec<u8> = steps.iter().flat_map(|step| step.to_le_bytes()).collect();
                let steps = self.b.func.dfg.constants.insert(bytes.into());
                let steps = self.b.ins().vconst(types::I32X4, steps);
                self.b.ins().iadd(all, steps)
            })
            .collect()
    }

    /// Stores to elements side by side, rounded or cut to the type.
    pub fn store(&mut self, dtype: DType, value: Val, at: Value) {
        let value = match dtype {
            DType::Bf16 => self.round(value),
            DType::I16 => self.map(value, |l, a| l.low_half(a)),
            _ => value,
        };
        if self.is_one() {
            return self.store_one(dtype, value.parts()[0], at);
        }
        let bytes = self.columns.count() * dtype.bytes() as usize / value.parts().len();
        (0..value.parts().len()).for_each(|i| self.store_register(dtype, value.parts()[i], at, (i * bytes) as i32));
    }

    fn store_one(&mut self, dtype: DType, value: Value, at: Value) {
        let flags = memory();
        match dtype {
            DType::F32 | DType::I32 | DType::F64 => self.b.ins().store(flags, value, at, 0),
            DType::Bf16 => {
                let bits = self.bits(value);
                let bits = self.b.ins().ushr_imm(bits, 16);
                self.b.ins().istore16(flags, bits, at, 0)
            }
            DType::I16 => self.b.ins().istore16(flags, value, at, 0),
            DType::Bool => {
                let bit = self.b.ins().band_imm(value, 1);
                self.b.ins().istore8(flags, bit, at, 0)
            }
        };
    }

    fn store_register(&mut self, dtype: DType, value: Value, at: Value, offset: i32) {
        let (first, ty) = match dtype {
            DType::F32 | DType::I32 | DType::F64 => {
                self.b.ins().store(memory(), value, at, offset);
                return;
            }
            DType::Bf16 => {
                let bits = self.bits(value);
                let bits = self.b.ins().ushr_imm(bits, 16);
                (self.b.ins().unarrow(bits, bits), types::I64X2)
            }
            DType::I16 => (self.b.ins().snarrow(value, value), types::I64X2),
            DType::Bool => {
                let one = self.int(1);
                let bits = self.b.ins().band(value, one);
                let halves = self.b.ins().snarrow(bits, bits);
                (self.b.ins().unarrow(halves, halves), types::I32X4)
            }
        };
        let lanes = self.cast(first, ty);
        let first = self.b.ins().extractlane(lanes, 0);
        self.b.ins().store(memory(), first, at, offset);
    }
}
