//! Chains compiled to AVX-512 machine code.
//!
//! Cranelift has vectors of 128 bits. Where there are 512, a chain becomes a function of its own: its operations are written down ([`trace`]), given registers, and encoded
//! ([`emit`]), with as many vectors side by side as registers allow. It has the bits of the tiles, which do what is not compiled: powers and remainders, conditions of
//! whole rows, and chains with more values than registers.

mod assemble;
mod emit;
mod registers;
mod trace;

#[cfg(test)]
mod tests;

use super::chain::Micro;
use super::jit::{self, Code};
use super::program::Slot;
use super::tile::Place;
use crate::kernels::cpu::{Cpu, Jit, Vectors};
use std::sync::Arc;

/// Rows shorter than a vector are not worth one.
pub(super) const LEAST_COLUMNS: usize = emit::LANES;

/// Machine code of a chain.
#[derive(Clone, Debug)]
pub(super) struct Wide {
    code: Arc<Code>,
    constants: Arc<[u32]>,
}

impl Wide {
    /// Runs it on so many rows and columns, at least one each. Places are moved on.
    ///
    /// # Safety
    /// There is a place for each micro-operation of the chain, as [`super::tile::run`] wants them.
    pub unsafe fn run(&self, places: &mut [Place], rows: usize, columns: usize) {
        // SAFETY: the code was made for this signature, and lives as long as this; the rest is the caller's contract.
        unsafe {
            let entry = std::mem::transmute::<*const u8, emit::Entry>(self.code.entry());
            entry(places.as_mut_ptr(), rows, columns, self.constants.as_ptr());
        }
    }
}

/// Compiles a chain, with no more vectors side by side than rows of so many columns have; `outer` says which of the registers that it writes others read.
pub(super) fn compile(micros: &[Micro], outer: &dyn Fn(Slot) -> bool, columns: usize, cpu: Cpu) -> Option<Wide> {
    // BZHI cuts masks; whatever has AVX-512 has it.
    if cpu.jit() == Jit::Off || cpu.vectors() < Vectors::Avx512 || !std::arch::is_x86_feature_detected!("bmi2") {
        return None;
    }
    let emitted = emit::emit(&trace::trace(micros, outer)?, micros, columns, cpu.rounds_vectors())?;
    Some(Wide { code: jit::publish(&emitted.code, cpu)?, constants: emitted.constants.into() })
}
