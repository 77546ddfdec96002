//! Looking up by index, and its transpose: adding at indices.

mod gather;
mod scatter;

pub(super) use gather::Gather;
pub(super) use scatter::ScatterAdd;

use super::{KernelCx, KernelError, PrepareCx, PrepareError, ensure};
use forebay_plan::{self as plan, DType, Negative};
use std::sync::atomic::{AtomicU64, Ordering};

/// A ragged dimension: only a part that is known at run time is there.
#[derive(Clone, Copy, Debug)]
struct Ragged {
    dim: usize,
    buffer: usize,
    groups: usize,
    bound: u64,
}

impl Ragged {
    fn prepare(
        limit: &Option<plan::RaggedLimit>,
        dims: &[u64],
        cx: &PrepareCx,
    ) -> Result<Option<Ragged>, PrepareError> {
        let Some(limit) = limit else { return Ok(None) };
        let dim = limit.dim as usize;
        ensure(dim < dims.len(), || format!("there is no dimension {dim}"))?;
        let buffer = cx.buffer_of(limit.offsets, DType::I32, "ragged offsets")?;
        Ok(Some(Ragged { dim, buffer, groups: limit.groups as usize, bound: dims[dim] }))
    }

    /// How many elements there are.
    unsafe fn size(&self, cx: &KernelCx) -> Result<usize, KernelError> {
        // SAFETY: the buffer holds the offsets (the caller's contract).
        unsafe {
            let offsets = super::checked_offsets(cx, self.buffer, self.groups, self.bound)?;
            Ok(*offsets.add(self.groups) as usize)
        }
    }
}

/// The index array of a kernel: reads indices and remembers the first that is wrong.
pub(super) struct Indices<'a> {
    pub data: *const i32,
    pub limit: usize,
    pub negative: Negative,
    pub first_wrong: &'a AtomicU64,
}

// SAFETY: the array is only read.
unsafe impl Sync for Indices<'_> {}

pub(super) const NONE_WRONG: u64 = u64::MAX;

impl Indices<'_> {
    /// The index at an element, when it is in range; nothing for one that means nothing, and for a wrong one.
    #[inline(always)]
    pub(super) unsafe fn get(&self, element: usize) -> Option<usize> {
        // SAFETY: the element exists (the caller's contract).
        let value = unsafe { *self.data.add(element) };
        // Negative ones become large.
        if (value as u32 as usize) < self.limit.min(1 << 31) {
            return Some(value as usize);
        }
        if value >= 0 || self.negative == Negative::Wrong {
            self.first_wrong.fetch_min(element as u64, Ordering::Relaxed);
        }
        None
    }

    unsafe fn result(&self) -> Result<(), KernelError> {
        let element = self.first_wrong.load(Ordering::Relaxed);
        if element == NONE_WRONG {
            return Ok(());
        }
        // SAFETY: the element was read before.
        let value = unsafe { *self.data.add(element as usize) }.into();
        Err(KernelError::Index { value, limit: self.limit as u64, element })
    }
}
