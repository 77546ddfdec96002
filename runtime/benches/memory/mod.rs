//! Buffers, and kernels that run over them again and again.

use forebay_plan::{Buffer, DType, Kernel, View};
use forebay_runtime::kernels::{
    Buf, Cpu, KernelCx, Prepared, RandomKeyArgs, Scratch, ScratchBytes, prepare, run, scratch_bytes,
};
use forebay_runtime::pool::Pool;

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line([u32; 16]);

/// Buffers with some numbers in them.
#[derive(Default)]
pub struct Memory {
    pub buffers: Vec<Buffer>,
    data: Vec<Vec<Line>>,
}

impl Memory {
    /// A buffer of numbers from 0.5 to 2 in both signs, whether they are read as f32 or, each half, as bf16.
    pub fn add(&mut self, dtype: DType, elements: usize) -> u32 {
        self.filled(dtype, elements, |i| {
            let number = (i / 16 * 7919 + i % 16 * 104_729) as u32;
            ((number >> 8 & 1) * 0x8000_8000) | (0x3f00_3f00 + number % 256 * 0x1_0001)
        })
    }

    /// A buffer of these words of four bytes.
    pub fn filled(&mut self, dtype: DType, elements: usize, word: impl Fn(usize) -> u32) -> u32 {
        let words = (elements * dtype.bytes() as usize).div_ceil(4);
        let mut lines = vec![Line([0; 16]); words.div_ceil(16) + 1];
        (0..words).for_each(|i| lines[i / 16].0[i % 16] = word(i));
        let id = self.buffers.len() as u32;
        self.data.push(lines);
        self.buffers.push(Buffer { name: String::new(), dtype, elements: elements as u64, slot: id, offset: 0 });
        id
    }

    /// Where a buffer begins.
    pub fn start<T>(&mut self, id: u32) -> *mut T {
        self.data[id as usize].as_mut_ptr().cast()
    }

    /// Calls `body` with what runs the kernels once, one after another, with the instructions of a level.
    pub fn with<R>(mut self, cpu: Cpu, kernels: &[Kernel], workers: usize, body: impl FnOnce(&dyn Fn()) -> R) -> R {
        let prepare = |kernel: &Kernel| prepare(kernel, &self.buffers, cpu).expect("the kernel is good");
        let prepared: Vec<Prepared> = kernels.iter().map(prepare).collect();
        let pool = Pool::new(workers).expect("the system has threads");
        let need = prepared.iter().fold(ScratchBytes::default(), |need, k| need.max(scratch_bytes(k)));
        let scratch = Scratch::new(need, workers);
        let starts: Vec<*mut u8> = (0..self.buffers.len() as u32).map(|id| self.start(id)).collect();
        let place = |(b, ptr): (&Buffer, *mut u8)| Buf { ptr, dtype: b.dtype, elements: b.elements as usize };
        let buffers: Vec<Buf> = self.buffers.iter().zip(starts).map(place).collect();
        let key = RandomKeyArgs::default();
        let cx = KernelCx { pool: &pool, scratch: &scratch, buffers: &buffers, key, coordinates: &[] };
        let run = |kernel: &Prepared| {
            // SAFETY: the buffers are as large as the kernel's views.
            unsafe { run(kernel, &cx) }.expect("indices are in range");
        };
        body(&|| prepared.iter().for_each(run))
    }
}

/// A view from the buffer's start.
pub fn view(buffer: u32, strides: &[u64]) -> View {
    View { buffer, offset: 0, strides: strides.to_vec() }
}
