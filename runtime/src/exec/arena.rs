//! The memory of a rank: one block, zeroed, whose pages the system provides when they are first touched.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// The alignment of an arena's start: a cache line, and what the plan's offsets are multiples of.
pub const ALIGN: u64 = 64;

/// A block of zeroed memory.
#[derive(Debug)]
pub struct Arena {
    block: *mut u8,
    layout: Layout,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the arena owns its block; access goes through `&self` and `&mut self` or is unsafe.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// So many bytes, or nothing when the system refuses.
    pub fn new(bytes: u64) -> Option<Arena> {
        // Asking for little alignment gets untouched pages from the system (`calloc`); more would make the allocator write zeros to all of them.
        let size = usize::try_from(bytes.checked_add(ALIGN)?).ok()?;
        let layout = Layout::from_size_align(size, 16).ok()?;
        // SAFETY: the size is at least `ALIGN`.
        let block = unsafe { alloc_zeroed(layout) };
        if block.is_null() {
            return None;
        }
        let skip = block.align_offset(ALIGN as usize);
        assert!(skip < ALIGN as usize, "bytes can be aligned");
        ask_for_large_pages(block, size);
        // SAFETY: `skip` bytes are left over at the end.
        let start = unsafe { block.add(skip) };
        Some(Arena { block, layout, start, bytes: size - ALIGN as usize })
    }

    /// How many bytes it has.
    pub fn len(&self) -> u64 {
        self.bytes as u64
    }

    /// Does it have none?
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address of a byte, or of the end.
    pub fn at(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.len(), "an offset lies within the arena");
        // SAFETY: within the block or at its end, as the assertion says.
        unsafe { self.start.add(offset as usize) }
    }

    /// Some bytes.
    pub fn bytes(&self, offset: u64, len: u64) -> &[u8] {
        self.check(offset, len);
        // SAFETY: within the block, initialised, and nobody writes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.at(offset), len as usize) }
    }

    /// Some bytes, to change.
    pub fn bytes_mut(&mut self, offset: u64, len: u64) -> &mut [u8] {
        self.check(offset, len);
        // SAFETY: within the block, initialised, and nobody else reads or writes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.at(offset), len as usize) }
    }

    /// Some bytes, and others to change: (offset, length) of each.
    pub fn bytes_and_mut(&mut self, read: (u64, u64), write: (u64, u64)) -> (&[u8], &mut [u8]) {
        self.check(read.0, read.1);
        self.check(write.0, write.1);
        assert!(read.0 + read.1 <= write.0 || write.0 + write.1 <= read.0, "the ranges are apart");
        // SAFETY: within the block and initialised; the ranges share no byte, and nobody else reads or writes while `self` is borrowed.
        unsafe {
            (
                std::slice::from_raw_parts(self.at(read.0), read.1 as usize),
                std::slice::from_raw_parts_mut(self.at(write.0), write.1 as usize),
            )
        }
    }

    fn check(&self, offset: u64, len: u64) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len()), "a range lies within the arena");
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.block, self.layout) }
    }
}

/// Asks the system to provide the whole large pages (2 MiB) of a block at once, which are faster to get than 512 small ones each. It is a wish: what comes of it
/// does not matter.
#[cfg(target_os = "linux")]
fn ask_for_large_pages(block: *mut u8, size: usize) {
    const LARGE: usize = 2 << 20;
    let skip = block.align_offset(LARGE);
    let whole = size.saturating_sub(skip) / LARGE * LARGE;
    if whole > 0 {
        // SAFETY: the range lies within the block, which is ours and was just allocated; the advice changes no byte of it.
        unsafe { libc::madvise(block.add(skip).cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_large_pages(_: *mut u8, _: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_separate() {
        for bytes in [0, 1, 64, 1000, 1 << 20] {
            let mut arena = Arena::new(bytes).expect("there is memory");
            assert_eq!(arena.len(), bytes);
            assert_eq!(arena.at(0) as usize % 64, 0);
            assert!(arena.bytes(0, bytes).iter().all(|b| *b == 0));
            arena.bytes_mut(0, bytes).fill(7);
            assert!(arena.bytes(0, bytes).iter().all(|b| *b == 7));
        }
    }

    #[test]
    fn too_much_is_refused() {
        assert!(Arena::new(u64::MAX).is_none());
        assert!(Arena::new(u64::MAX - 64).is_none());
        assert!(Arena::new(1 << 62).is_none());
    }

    #[test]
    fn reading_and_writing_at_once() {
        let mut arena = Arena::new(64).expect("there is memory");
        arena.bytes_mut(0, 8).fill(3);
        let (read, write) = arena.bytes_and_mut((0, 8), (8, 8));
        write.copy_from_slice(read);
        assert_eq!(arena.bytes(8, 9), [3, 3, 3, 3, 3, 3, 3, 3, 0]);
    }

    #[test]
    #[should_panic(expected = "the ranges are apart")]
    fn bytes_are_not_read_and_written_at_once() {
        Arena::new(64).expect("there is memory").bytes_and_mut((0, 9), (8, 8));
    }

    #[test]
    #[should_panic(expected = "a range lies within the arena")]
    fn ranges_are_checked() {
        Arena::new(64).expect("there is memory").bytes(60, 5);
    }
}
