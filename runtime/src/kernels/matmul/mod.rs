//! Matrix products: batched, grouped over ragged dimensions, accumulating.
//!
//! **Order of sums.** The summed dimensions are taken as one list of K products, cut into blocks of [`Simd::BLOCK_K`]. Within a block an element is one chain of
//! fused multiply-adds from zero; block sums are added in order; what was in C is added last. Nothing else enters: not the tile, the position, the other
//! rows or columns, the batch, the workers.
//!
//! Where the machine multiplies pairs of bf16 (see [`pairs`]), products 2i and 2i + 1 of a block are one pair, and the chain has half the links. Where it multiplies tiles of
//! them (see [`amx`]), products 32i to 32i + 31 are one link of a single chain, wherever blocks end. There, products of f32 with 32 or more terms (a ragged dimension counts with its bound) are made in tiles as well, and are nearer to the
//! exact sums than those of vectors (see [`amx::split`]).
//!
//! **Cutting.** A product is cut into blocks of rows and columns, one task each. A task packs what it multiplies, but for a B of the type that is summed whose rows are rows
//! in memory, as far as a chain lies in one run there: tiles read that where it is.
//!
//! ```text
//! for each block of k: pack A;  for each panel of columns: pack B's panel, or not;  tiles, while the next panel is fetched
//! ```
//!
//! Where sums cannot go to C before they are complete (bf16) and there are no more than two chains, both are packed, and a tile does them one after the other: between them are
//! the sums of a tile, and A is packed once for all columns. Else sums of a block of columns lie in the workspace from one block of k to the next. At the end of a
//! task, what the next one reads first is fetched ([`ahead`]). (For AMX nothing of this is fetched, and chains are done one after the other: [`tile::Blocking`].)
//!
//! Tasks that share columns of a packed B pack them again, which is a 30th of their work. Packing B once for all of them was built as well, and was slower in
//! training steps: what has been packed lies in the last-level cache by the time that it is read, and writing it there waits for stores.

mod ahead;
#[cfg(any(test, target_arch = "x86_64"))]
pub(in crate::kernels) mod amx;
mod blocks;
pub(in crate::kernels) mod pack;
pub(in crate::kernels) mod pairs;
mod parts;
pub(in crate::kernels) mod portable;
mod problem;
pub(in crate::kernels) mod product;
pub(in crate::kernels) mod tile;
mod work;

#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) mod avx512;

#[cfg(all(test, target_arch = "x86_64"))]
use super::cpu::Vectors;
use super::cpu::{Bf16, Cpu};
use super::region::Parts;
use super::{KernelCx, KernelError, PrepareCx, PrepareError, ScratchBytes, ensure};
use forebay_plan as plan;
use forebay_plan::DType;
use problem::Problem;
use tile::{Simd, Source};

/// Columns of a task at most.
const MOST_COLUMNS: usize = 1024;
/// Elements of a block of sums that cannot go to C before they are complete: half of the second-level cache.
const SUMS: usize = 256 * 528;
/// Products below this many multiply-adds run on the calling thread: waking another costs as much.
const SERIAL: usize = 1 << 18;

/// Products of an element from which f32 is multiplied in tiles, where there are any: as many as an instruction sums.
const SPLIT_DEPTH: usize = 32;

/// Runs code with the flavour of vectors for a float type and a CPU level as `S`, and the type as stored as `X`.
macro_rules! with_flavour {
    ($dtype:expr, $cpu:expr, |$S:ident, $X:ident| $code:expr) => {{
        use $crate::kernels::matmul::portable;
        #[cfg(target_arch = "x86_64")]
        use $crate::kernels::matmul::{avx2, avx512};
        macro_rules! with {
            ($flavour:ty, $stored:ty) => {{
                type $S = $flavour;
                type $X = $stored;
                $code
            }};
        }
        match ($dtype, $cpu.vectors()) {
            #[cfg(target_arch = "x86_64")]
            (forebay_plan::DType::F64, $crate::kernels::cpu::Vectors::Avx512) => with!(avx512::F64x8, f64),
            #[cfg(target_arch = "x86_64")]
            (forebay_plan::DType::F64, $crate::kernels::cpu::Vectors::Avx2) => with!(avx2::F64x4, f64),
            (forebay_plan::DType::F64, _) => with!(portable::PortableF64, f64),
            #[cfg(target_arch = "x86_64")]
            (forebay_plan::DType::Bf16, $crate::kernels::cpu::Vectors::Avx512) => with!(avx512::F32x16, half::bf16),
            #[cfg(target_arch = "x86_64")]
            (forebay_plan::DType::Bf16, $crate::kernels::cpu::Vectors::Avx2) => with!(avx2::F32x8, half::bf16),
            (forebay_plan::DType::Bf16, _) => with!(portable::PortableF32, half::bf16),
            #[cfg(target_arch = "x86_64")]
            (_, $crate::kernels::cpu::Vectors::Avx512) => with!(avx512::F32x16, f32),
            #[cfg(target_arch = "x86_64")]
            (_, $crate::kernels::cpu::Vectors::Avx2) => with!(avx2::F32x8, f32),
            (_, _) => with!(portable::PortableF32, f32),
        }
    }};
}
pub(in crate::kernels) use with_flavour;

/// The same for matrix products and attention, whose operands may be pairs or tiles of bf16.
macro_rules! with_product_flavour {
    ($dtype:expr, $cpu:expr, |$S:ident, $X:ident| $code:expr) => {{
        #[cfg(any(test, target_arch = "x86_64"))]
        macro_rules! with_bf16 {
            ($flavour:ty) => {{
                type $X = half::bf16;
                type $S = $flavour;
                $code
            }};
        }
        match ($dtype, $cpu.bf16()) {
            #[cfg(target_arch = "x86_64")]
            (forebay_plan::DType::Bf16, own @ $crate::kernels::cpu::Bf16::Tiles) if $cpu.has(own) => {
                with_bf16!($crate::kernels::matmul::amx::Hardware)
            }
            #[cfg(target_arch = "x86_64")]
            (forebay_plan::DType::Bf16, own @ $crate::kernels::cpu::Bf16::Pairs) if $cpu.has(own) => {
                with_bf16!($crate::kernels::matmul::pairs::Instruction)
            }
            #[cfg(test)]
            (forebay_plan::DType::Bf16, $crate::kernels::cpu::Bf16::Tiles) => match $cpu.vectors() {
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::cpu::Vectors::Avx512 | $crate::kernels::cpu::Vectors::Avx2 => {
                    with_bf16!($crate::kernels::matmul::amx::Avx2)
                }
                _ => with_bf16!($crate::kernels::matmul::amx::Portable),
            },
            #[cfg(test)]
            (forebay_plan::DType::Bf16, $crate::kernels::cpu::Bf16::Pairs) => match $cpu.vectors() {
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::cpu::Vectors::Avx512 => with_bf16!($crate::kernels::matmul::pairs::Avx512),
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::cpu::Vectors::Avx2 => with_bf16!($crate::kernels::matmul::pairs::Avx2),
                _ => with_bf16!($crate::kernels::matmul::pairs::Portable),
            },
            (_, _) => $crate::kernels::matmul::with_flavour!($dtype, $cpu, |$S, $X| $code),
        }
    }};
}
pub(in crate::kernels) use with_product_flavour;

/// The same for a prepared product, which may be one of f32 in tiles.
macro_rules! with_flavour_of {
    ($matmul:expr, |$S:ident, $X:ident| $code:expr) => {{
        #[cfg(any(test, target_arch = "x86_64"))]
        macro_rules! with_split {
            ($flavour:ident) => {{
                type $X = f32;
                type $S = amx::split::$flavour;
                $code
            }};
        }
        match $matmul.cpu.vectors() {
            #[cfg(target_arch = "x86_64")]
            _ if $matmul.split && $matmul.cpu.has(Bf16::Tiles) => with_split!(Hardware),
            #[cfg(all(test, target_arch = "x86_64"))]
            Vectors::Avx512 | Vectors::Avx2 if $matmul.split => with_split!(Avx2),
            #[cfg(test)]
            _ if $matmul.split => with_split!(Portable),
            _ => with_product_flavour!($matmul.dtype, $matmul.cpu, |$S, $X| $code),
        }
    }};
}

/// A prepared product.
#[derive(Debug)]
pub(super) struct Matmul {
    problem: Problem,
    dtype: DType,
    cpu: Cpu,
    /// Are its products made of those of bf16, in tiles?
    #[cfg_attr(not(any(test, target_arch = "x86_64")), expect(dead_code, reason = "there are no tiles"))]
    split: bool,
    epilogue: Option<Epilogue>,
}

/// Elementwise work on blocks of C.
#[derive(Debug)]
struct Epilogue {
    region: Parts,
    /// Elements of a row of C.
    columns: usize,
}

impl Matmul {
    pub(super) fn prepare(matmul: &plan::Matmul, cx: &PrepareCx) -> Result<Matmul, PrepareError> {
        let dtype = matmul.dtype;
        let float = matches!(dtype, DType::F32 | DType::F64 | DType::Bf16);
        ensure(float, || format!("a matrix product of {dtype:?}"))?;
        let problem = Problem::new(matmul, cx)?;
        let epilogue = match &matmul.epilogue {
            None => None,
            Some(region) => {
                let over = matmul.rows_and_columns().is_some_and(|size| region.dims == size);
                ensure(over && !matmul.accumulate, || "an epilogue that is not over the rows of C".into())?;
                Some(Epilogue { region: Parts::prepare(region, cx)?, columns: matmul.n.0 as usize })
            }
        };
        // The length of the sum decides, a ragged one by its bound, and nothing else: bits are not to depend on how many rows and columns there are.
        let deep = problem.deepest() >= SPLIT_DEPTH || cx.cpu.emulates();
        let split = dtype == DType::F32 && cx.cpu.bf16() == Bf16::Tiles && deep;
        Ok(Matmul { problem, dtype, cpu: cx.cpu, split, epilogue })
    }

    pub(super) fn scratch_bytes(&self) -> ScratchBytes {
        let epilogue = self.epilogue.as_ref().map_or(0, |e| e.region.scratch_bytes());
        let own = with_flavour_of!(self, |S, X| own_scratch::<S, X>());
        let shared = self.problem.groups.as_ref().map_or(0, |groups| groups.count * size_of::<usize>());
        ScratchBytes { shared, worker: own + epilogue }
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // SAFETY: the caller's contract; the flavour's features are there, since a `Cpu` is never above the machine.
        unsafe { with_flavour_of!(self, |S, X| self.run_as::<S, X>(cx)) }
    }

    unsafe fn run_as<S: Simd, X: Source<S::T>>(&self, cx: &KernelCx) -> Result<(), KernelError> {
        let offsets = match &self.problem.groups {
            // SAFETY: the buffer holds the offsets (the caller's contract).
            Some(groups) => Some(unsafe { super::checked_offsets(cx, groups.buffer, groups.count, groups.bound)? }),
            None => None,
        };
        let [a, b, c] = self.problem.buffers.map(|buffer| cx.buffers[buffer].ptr.cast::<X>());
        let job = work::Job::<X> {
            problem: &self.problem,
            offsets,
            a,
            b,
            c,
            scratch: cx.scratch,
            direct: X::PLAIN && self.problem.n.strides[2] == 1,
            finished: &|first, [rows, columns], stride, worker| {
                let Some(epilogue) = &self.epilogue else { return };
                // SAFETY: the block is a part of C, which the region is over; the scratch lies behind the product's own.
                unsafe {
                    let scratch = cx.scratch.worker(worker).add(own_scratch::<S, X>());
                    epilogue.run(cx, scratch, first, [rows, columns], stride);
                }
            },
        };
        // SAFETY: the caller's contract, and the offsets were checked.
        unsafe { job.run::<S>(cx.pool) };
        Ok(())
    }
}

impl Epilogue {
    /// Works on a block of C: `size` rows and columns from element `first` on, rows `stride` apart.
    ///
    /// # Safety
    /// As [`Parts::run`].
    unsafe fn run(&self, cx: &KernelCx, scratch: *mut u8, first: usize, [rows, columns]: [usize; 2], stride: usize) {
        let part = |at: usize, size: [usize; 2]| {
            // SAFETY: the caller's contract.
            unsafe { self.region.run(cx, scratch, [at / self.columns, at % self.columns], size) };
        };
        if first % self.columns + columns <= self.columns && (stride == self.columns || rows == 1) {
            return part(first, [rows, columns]);
        }
        // Rows of the product that are several rows of C.
        for row in 0..rows {
            let (mut at, end) = (first + row * stride, first + row * stride + columns);
            while at < end {
                let length = (self.columns - at % self.columns).min(end - at);
                part(at, [1, length]);
                at += length;
            }
        }
    }
}

/// Bytes of a worker's scratch that the product itself needs.
fn own_scratch<S: Simd, X: Source<S::T>>() -> usize {
    (work::worker_elements::<S, X>() * size_of::<S::T>()).next_multiple_of(64)
}
