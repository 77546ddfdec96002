//! Regions: elementwise and row-wise work in one pass over memory.
//!
//! A region is compiled when the plan is loaded ([`compile`]) to a program of loops over blocks of about a thousand elements. Registers hold a block each, in the
//! worker's scratch: they stay in the first-level caches, so that memory is read and written once. Nothing is decided for each
//! element: an instruction picks its loop once for each block. Instructions that follow each other element by element are done together where the CPU has
//! vector registers for it ([`chain`], [`tile`]).

mod chain;
mod compile;
pub(super) mod copy;
mod exec;
mod ops;
mod program;
mod registers;
mod space;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_imports))]
mod tile;

use super::cpu::Cpu;
use super::{KernelCx, KernelError, PrepareCx, PrepareError, ScratchBytes};
use forebay_plan as plan;
use program::Program;

/// A prepared region.
#[derive(Debug)]
pub(super) struct Region {
    program: Program,
    cpu: Cpu,
}

impl Region {
    pub(super) fn prepare(region: &plan::Region, cx: &PrepareCx) -> Result<Region, PrepareError> {
        Ok(Region { program: compile::compile(region, cx)?, cpu: cx.cpu })
    }

    pub(super) fn scratch_bytes(&self) -> ScratchBytes {
        ScratchBytes { shared: 0, worker: exec::frame_bytes(&self.program) }
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // SAFETY: the caller's contract.
        unsafe { exec::run(&self.program, self.cpu, cx) }
    }
}
