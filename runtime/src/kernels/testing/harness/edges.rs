//! Buffers that end where memory does: whoever reads behind one is stopped by the system. (Guards only show what was written.)

use super::{GUARD, Memory, buf, bytes_of, run_in};
use crate::kernels::{Buf, Cpu};
use forebay_plan::Kernel;

/// Bytes at the end of pages of their own, before one that nobody may read.
struct Edge {
    pages: *mut u8,
    mapped: usize,
    bytes: *mut u8,
}

impl Edge {
    fn new(data: &[u8]) -> Edge {
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("pages have a size");
        let whole = data.len().next_multiple_of(page);
        let (readable, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new pages are mapped, of which the last one is closed; data is copied to the end of the others.
        unsafe {
            let pages = libc::mmap(std::ptr::null_mut(), whole + page, readable, private, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED, "there is memory");
            let pages = pages.cast::<u8>();
            assert_eq!(libc::mprotect(pages.add(whole).cast(), page, libc::PROT_NONE), 0, "a page can be closed");
            let bytes = pages.add(whole - data.len());
            bytes.copy_from_nonoverlapping(data.as_ptr(), data.len());
            Edge { pages, mapped: whole + page, bytes }
        }
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and nobody has the address any more.
        unsafe { libc::munmap(self.pages.cast(), self.mapped) };
    }
}

impl Memory {
    /// What a kernel that must succeed leaves where nothing can be read behind its buffers.
    pub fn done_at_edges(&self, kernel: &Kernel, workers: usize, cpu: Cpu) -> Memory {
        let mut after = self.clone();
        let sizes: Vec<usize> = self.buffers.iter().map(|b| (b.elements * b.dtype.bytes()) as usize).collect();
        let data =
            |memory: &mut Memory, i: usize| -> Vec<u8> { bytes_of(&mut memory.data[i])[GUARD..][..sizes[i]].to_vec() };
        let edges: Vec<Edge> = (0..sizes.len()).map(|i| Edge::new(&data(&mut after, i))).collect();
        let buffers: Vec<Buf> = self.buffers.iter().zip(&edges).map(|(buffer, edge)| buf(buffer, edge.bytes)).collect();
        run_in(&buffers, &self.prepared(kernel, cpu), workers).unwrap_or_else(|e| panic!("{e}: {kernel:?}"));
        for ((data, edge), &size) in after.data.iter_mut().zip(&edges).zip(&sizes) {
            // SAFETY: the edge has as many bytes.
            let bytes = unsafe { std::slice::from_raw_parts(edge.bytes, size) };
            bytes_of(data)[GUARD..][..size].copy_from_slice(bytes);
        }
        after
    }
}
