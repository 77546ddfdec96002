//! Writing whole tensors from outside of programs, on all workers.
//!
//! Parts are handed out as workers get free, like the tasks of kernels, so the pages that come with the first write come from the memory nodes of all workers.
//! No page has one user: which worker gets which part of a kernel is not fixed either.

use super::{Executor, tensor_bytes};
use forebay_plan::Tensor;
use std::sync::Mutex;

/// Elements of a part.
const PART: usize = 1 << 18;

impl Executor<'_> {
    /// Has nothing been written since the executor was made? Then all memory is zero.
    pub(crate) fn is_untouched(&self) -> bool {
        self.untouched
    }

    /// Fills a tensor: `fill` gets the number of a part's first element and the part.
    pub(crate) fn fill(&mut self, tensor: &Tensor, fill: &(dyn Fn(u64, &mut [u8]) + Sync)) {
        self.untouched = false;
        let part = PART * tensor.dtype.bytes() as usize;
        let bytes = self.device.bytes_mut(tensor.offset, tensor_bytes(tensor));
        let parts: Vec<Mutex<&mut [u8]>> = bytes.chunks_mut(part).map(Mutex::new).collect();
        self.pool.run(parts.len(), &|i, _| {
            fill((i * PART) as u64, &mut parts[i].lock().expect("each part is filled once"));
        });
    }

    /// Fills a tensor from another one of as many elements: `fill` gets the same part of both.
    pub(crate) fn fill_from(&mut self, from: &Tensor, to: &Tensor, fill: &(dyn Fn(&[u8], &mut [u8]) + Sync)) {
        self.untouched = false;
        let part = |tensor: &Tensor| PART * tensor.dtype.bytes() as usize;
        let range = |tensor: &Tensor| (tensor.offset, tensor_bytes(tensor));
        let (source, bytes) = self.device.bytes_and_mut(range(from), range(to));
        let parts = source.chunks(part(from)).zip(bytes.chunks_mut(part(to)).map(Mutex::new));
        let parts: Vec<(&[u8], Mutex<&mut [u8]>)> = parts.collect();
        self.pool.run(parts.len(), &|i, _| {
            fill(parts[i].0, &mut parts[i].1.lock().expect("each part is filled once"));
        });
    }
}
