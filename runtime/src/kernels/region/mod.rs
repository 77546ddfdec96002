//! Regions: elementwise and row-wise work in one pass over memory.
//!
//! A region is compiled when the plan is loaded ([`compile`]) to a program of loops over blocks of some thousand elements. Registers hold a block each, in the
//! worker's scratch: they stay in the caches of its core, so that memory is read and written once. Nothing is decided for each
//! element: an instruction picks its loop once for each block. Instructions on f32 and conditions that follow each other element by element are done together in vector
//! registers ([`chain`], [`tile`]), or compiled to machine code where that is faster ([`jit`]).

mod chain;
mod compile;
pub(super) mod copy;
mod exec;
mod jit;
mod lookup;
mod ops;
mod pieces;
mod program;
mod registers;
mod space;
mod steps;
mod tile;
#[cfg(target_arch = "x86_64")]
mod wide;
#[cfg(not(target_arch = "x86_64"))]
#[path = "wide/none.rs"]
mod wide;

use super::cpu::Cpu;
use super::{KernelCx, KernelError, PrepareCx, PrepareError, ScratchBytes};
use forebay_plan as plan;
pub(super) use jit::compiled;
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

/// A region of rows and columns that is run on a part of them at a time, by whoever has just made what it reads.
#[derive(Debug)]
pub(super) struct Parts {
    program: Program,
    cpu: Cpu,
}

impl Parts {
    pub(super) fn prepare(region: &plan::Region, cx: &PrepareCx) -> Result<Parts, PrepareError> {
        Ok(Parts { program: compile::compile_in_parts(region, cx)?, cpu: cx.cpu })
    }

    /// Bytes that a run needs.
    pub(super) fn scratch_bytes(&self) -> usize {
        exec::frame_bytes(&self.program)
    }

    /// Runs the part of `size` rows and columns from `origin` on.
    ///
    /// # Safety
    /// The buffers hold the region, the part lies within it, and the scratch has its bytes.
    pub(super) unsafe fn run(&self, cx: &KernelCx, scratch: *mut u8, origin: [usize; 2], size: [usize; 2]) {
        // SAFETY: the caller's contract; regions that look something up have been refused.
        unsafe { exec::run_part(&self.program, self.cpu, cx, scratch, origin, size) }
    }
}
