//! Workspace of kernels: allocated once, when a plan is loaded.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

/// How much workspace a kernel needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScratchBytes {
    /// Once, for all workers.
    pub shared: usize,
    /// For each worker of the pool.
    pub worker: usize,
}

impl ScratchBytes {
    /// What is enough for either.
    pub fn max(self, other: ScratchBytes) -> ScratchBytes {
        ScratchBytes { shared: self.shared.max(other.shared), worker: self.worker.max(other.worker) }
    }

    /// What a [`Scratch`] for so many workers takes.
    pub fn of_workers(self, workers: usize) -> u64 {
        let ScratchBytes { shared, worker } = self.in_pages();
        shared as u64 + workers as u64 * worker as u64
    }

    /// What a [`Scratch`] has of it.
    fn in_pages(self) -> ScratchBytes {
        ScratchBytes {
            shared: self.shared.next_multiple_of(ALIGN),
            worker: self.worker.next_multiple_of(ALIGN) + ALIGN,
        }
    }
}

/// The workspace: a shared part and a part for each worker. One kernel at a time may use it.
#[derive(Debug)]
pub struct Scratch {
    base: *mut u8,
    layout: Layout,
    bytes: ScratchBytes,
    workers: usize,
}

// SAFETY: only kernels read or write the memory, one kernel at a time ([`crate::kernels::run`]'s contract), each worker its own part.
unsafe impl Send for Scratch {}
// SAFETY: as above.
unsafe impl Sync for Scratch {}

/// Parts start on their own pages, so that no two workers share a cache line.
const ALIGN: usize = 4096;

impl Scratch {
    /// Workspace for kernels that need at most `bytes`, run by a pool of `workers`.
    pub fn new(bytes: ScratchBytes, workers: usize) -> Scratch {
        let size = usize::try_from(bytes.of_workers(workers)).expect("a size that fits");
        let bytes = bytes.in_pages();
        let layout = Layout::from_size_align(size, ALIGN).expect("a size that fits");
        // SAFETY: the size is not 0, each worker's part has at least a page.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        Scratch { base, layout, bytes, workers }
    }

    /// Makes every number in it NaN, whatever its type: what a kernel reads without having written it shows.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn spoil(&mut self) {
        // SAFETY: the whole allocation, and nobody else has it.
        unsafe { self.base.write_bytes(0xff, self.layout.size()) }
    }

    /// What it has.
    pub fn bytes(&self) -> ScratchBytes {
        self.bytes
    }

    /// How many workers have a part.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The shared part; on a page boundary.
    pub(crate) fn shared(&self) -> *mut u8 {
        self.base
    }

    /// The part of a worker; on a page boundary.
    pub(crate) fn worker(&self, worker: usize) -> *mut u8 {
        assert!(worker < self.workers);
        // SAFETY: within the allocation, as the assertion says.
        unsafe { self.base.add(self.bytes.shared + worker * self.bytes.worker) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base, self.layout) }
    }
}

/// The shared part of the workspace, for closures that run on several threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared<T>(*mut T);

impl<T> Shared<T> {
    /// From [`Scratch::shared`].
    pub(super) fn new(start: *mut T) -> Shared<T> {
        Shared(start)
    }

    pub(super) fn get(self) -> *mut T {
        self.0
    }
}

// SAFETY: tasks write places that do not overlap, and read only after all have written.
unsafe impl<T> Sync for Shared<T> {}
