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
use super::{Buf, KernelCx, KernelError, PrepareCx, PrepareError, ScratchBytes};
use forebay_plan as plan;
pub(super) use jit::compiled;
use program::Program;
use space::Place;

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

/// Elements in memory that a region of rows and columns reads or writes one by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stream {
    /// That of row 0 and column 0.
    pub at: *const u8,
    /// Bytes of an element.
    pub bytes: usize,
    /// Bytes from one row to the next.
    pub row: usize,
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

    /// What has an element for each of the region's, those of a row side by side.
    pub(super) fn streams(&self, buffers: &[Buf]) -> impl Iterator<Item = Stream> {
        self.program.accesses.iter().filter_map(|access| match access.place {
            Place::Buffer { buffer, offset } if access.strides[1] == 1 && access.strides[0] > 0 => {
                let bytes = access.dtype.bytes() as usize;
                let at = buffers[buffer].ptr.cast_const().wrapping_add(offset * bytes);
                Some(Stream { at, bytes, row: access.strides[0] * bytes })
            }
            _ => None,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::harness::Memory;
    use forebay_plan::{Arg, DType, Step, StepOp, Store, View};

    /// What has one element for a row, or for a column, is no stream; places are in bytes.
    #[test]
    fn streams_have_an_element_for_each() {
        let mut memory = Memory::default();
        let mut view = |dtype, offset: usize, strides: [u64; 2]| {
            let buffer = memory.add(dtype, &vec![0.5; offset + 12]);
            View { buffer, offset: offset as u64, strides: strides.to_vec() }
        };
        let loads = [
            view(DType::Bf16, 5, [4, 1]),
            view(DType::F32, 0, [0, 1]),
            view(DType::F32, 0, [1, 0]),
            view(DType::F32, 0, [1, 3]),
        ];
        let store = view(DType::F32, 2, [4, 1]);
        let step = |args: [Arg; 2]| Step { op: StepOp::Mul, dtype: DType::F32, args: args.to_vec() };
        let widened = Step { op: StepOp::Cast, dtype: DType::F32, args: vec![Arg::Load(0)] };
        let steps = vec![
            widened,
            step([Arg::Step(0), Arg::Load(1)]),
            step([Arg::Step(1), Arg::Load(2)]),
            step([Arg::Step(2), Arg::Load(3)]),
        ];
        let region = plan::Region {
            dims: vec![3, 4],
            row_dims: 1,
            ragged: None,
            loads: loads.iter().cloned().map(Into::into).collect(),
            steps,
            stores: vec![Store { value: Arg::Step(3), view: store.clone() }],
        };
        let cpu = Cpu::named("portable").expect("a level");
        let parts = Parts::prepare(&region, &PrepareCx { buffers: &memory.buffers, cpu }).expect("the region is good");
        let mut data = vec![0u8; 256];
        let buf = |number: usize| Buf { ptr: data.as_mut_ptr().wrapping_add(number), dtype: DType::F32, elements: 0 };
        let buffers: Vec<Buf> = (0..memory.buffers.len()).map(buf).collect();
        let at =
            |view: &View, bytes: usize| buffers[view.buffer as usize].ptr.wrapping_add(view.offset as usize * bytes);
        let stream = |view: &View, bytes: usize| Stream { at: at(view, bytes), bytes, row: 4 * bytes };
        assert_eq!(parts.streams(&buffers).collect::<Vec<_>>(), [stream(&loads[0], 2), stream(&store, 4)]);
    }
}
