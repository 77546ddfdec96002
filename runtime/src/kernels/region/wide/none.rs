//! Chains are not compiled on this processor: see `mod.rs` beside this file.

use super::chain::Micro;
use super::program::Slot;
use super::tile::Place;
use crate::kernels::cpu::Cpu;

/// There is none.
#[derive(Clone, Debug)]
pub(super) enum Wide {}

impl Wide {
    /// # Safety
    /// There is nothing to run.
    pub unsafe fn run(&self, _: &mut [Place], _: usize, _: usize) {
        match *self {}
    }
}

/// No row is long enough.
pub(super) const LEAST_COLUMNS: usize = usize::MAX;

pub(super) fn compile(_: &[Micro], _: &dyn Fn(Slot) -> bool, _: usize, _: Cpu) -> Option<Wide> {
    None
}
