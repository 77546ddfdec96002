//! What a rank works out about rows that come from others, and about itself.

use super::{KernelCx, KernelError, PrepareCx, PrepareError, checked_offsets};
use forebay_plan::{self as plan, Affine, DType};

/// A prepared [`plan::ExchangedOffsets`].
#[derive(Debug)]
pub(super) struct ExchangedOffsets {
    counts: usize,
    out: usize,
    sources: usize,
    experts: usize,
}

impl ExchangedOffsets {
    pub(super) fn prepare(k: &plan::ExchangedOffsets, cx: &PrepareCx) -> Result<ExchangedOffsets, PrepareError> {
        Ok(ExchangedOffsets {
            counts: cx.buffer_of(k.counts, DType::I32, "the counts")?,
            out: cx.buffer_of(k.out, DType::I32, "the result")?,
            sources: k.sources as usize,
            experts: k.experts as usize,
        })
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        let counts = cx.buffers[self.counts].ptr.cast::<i32>().cast_const();
        let out = cx.buffers[self.out].ptr.cast::<i32>();
        let mut start = 0i32;
        for expert in 0..=self.experts {
            // SAFETY: there are `sources · experts` counts and `experts + 1` starts (the caller's contract).
            unsafe { out.add(expert).write(start) };
            for source in 0..self.sources {
                if expert == self.experts {
                    break;
                }
                let element = source * self.experts + expert;
                // SAFETY: as above.
                let value = unsafe { counts.add(element).read() };
                let sum = start.checked_add(value).filter(|_| value >= 0);
                start = sum.ok_or(KernelError::Count { value: value.into(), element: element as u64 })?;
            }
        }
        Ok(())
    }
}

/// A prepared [`plan::GroupSizes`].
#[derive(Debug)]
pub(super) struct GroupSizes {
    offsets: usize,
    out: usize,
    groups: usize,
}

impl GroupSizes {
    pub(super) fn prepare(k: &plan::GroupSizes, cx: &PrepareCx) -> Result<GroupSizes, PrepareError> {
        Ok(GroupSizes {
            offsets: cx.buffer_of(k.offsets, DType::I32, "the offsets")?,
            out: cx.buffer_of(k.out, DType::I32, "the result")?,
            groups: k.groups as usize,
        })
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // SAFETY: there are `groups + 1` offsets and `groups` results (the caller's contract).
        unsafe {
            let offsets = checked_offsets(cx, self.offsets, self.groups, i32::MAX as u64)?;
            let out = cx.buffers[self.out].ptr.cast::<i32>();
            (0..self.groups).for_each(|i| out.add(i).write(*offsets.add(i + 1) - *offsets.add(i)));
        }
        Ok(())
    }
}

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
