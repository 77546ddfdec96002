//! What a rank works out about itself.

use super::{KernelCx, KernelError, PrepareCx, PrepareError};
use forebay_plan::{self as plan, Affine, DType};

/// A prepared [`plan::Coordinate`].
#[derive(Debug)]
pub(super) struct Coordinate {
    out: usize,
    value: Affine,
}

impl Coordinate {
    pub(super) fn prepare(k: &plan::Coordinate, cx: &PrepareCx) -> Result<Coordinate, PrepareError> {
        Ok(Coordinate { out: cx.buffer_of(k.out, DType::I32, "the result")?, value: k.value.clone() })
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        let value = self.value.at(cx.coordinates) as i32;
        // SAFETY: the result has an element (the caller's contract).
        unsafe { cx.buffers[self.out].ptr.cast::<i32>().write(value) };
        Ok(())
    }
}
