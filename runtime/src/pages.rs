//! Large pages of the system (2 MiB), which are faster to get than 512 small ones each, and in which neighbours in a program are neighbours in a cache: small ones lie anywhere in
//! physical memory, so that those of a buffer that should fill half of a cache compete for some of its lines and leave others.

/// Bytes of one.
pub(crate) const LARGE: usize = 2 << 20;

/// Asks the system to provide the whole large pages of a block that was just allocated, and zeroed, at once. It is a wish: what comes of it does not matter.
///
/// # Safety
/// The block has `size` bytes.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn ask_for_large(block: *mut u8, size: usize) {
    let skip = block.align_offset(LARGE);
    let whole = size.saturating_sub(skip) / LARGE * LARGE;
    if whole > 0 {
        // SAFETY: the range lies within the block (the caller's contract); the advice changes no byte of it.
        unsafe { libc::madvise(block.add(skip).cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) unsafe fn ask_for_large(_: *mut u8, _: usize) {}
