//! The CPU kernels that execute a plan's instructions.
//!
//! A kernel is [prepared](prepare) once, when a plan is loaded: strides are collapsed, tile sizes chosen, regions compiled to programs over blocks. Running a
//! prepared kernel allocates nothing: workspace comes from a [`Scratch`] that is large enough for every kernel of the plan.
//!
//! ```text
//! load:  cpu = Cpu::detect()                         or Cpu::named("avx2")
//!        prepared = prepare(&kernel, &program.buffers, cpu)?         for each instruction
//!        need = need.max(scratch_bytes(&prepared))
//!        pool = Pool::new(threads)?;  scratch = Scratch::new(need, pool.workers())
//! step:  buffers[i] = Buf { ptr, dtype, elements }                   as the call's slots say
//!        unsafe { run(&prepared, &KernelCx { pool: &pool, scratch: &scratch, buffers: &buffers, key, coordinates }) }?
//! ```
//!
//! **Bits.** A result depends on the operands, the sizes and the CPU level, never on the number of workers: either the work is cut at fixed places, or
//! the cut does not change how any element is computed. Region arithmetic fuses the same products and sums at all CPU levels, within
//! functions only, so that these agree.
//!
//! **Errors.** The plan's verifier proves that views lie within buffers. What depends on data (indices, ragged offsets) is checked here and gives a
//! [`KernelError`]; outputs are then unspecified, but nothing outside of them was touched.

mod attention;
pub(crate) mod cpu;
pub(crate) mod draw;
pub(crate) mod halves;
mod index;
mod lanes;
mod linear;
pub(crate) mod math;
mod matmul;
pub(crate) mod narrow;
pub(crate) mod peak;
mod random;
mod ranks;
mod reduce;
mod region;
pub(crate) mod rows;
mod scan;
mod scratch;
mod sort;
pub(crate) mod walk;

#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "the fuzz targets use a part of it"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use cpu::{Cpu, Jit};
pub use scratch::{Scratch, ScratchBytes};

use crate::pool::Pool;
use forebay_plan::{Buffer, DType, Kernel};

/// A buffer as the executor resolved it.
#[derive(Clone, Copy, Debug)]
pub struct Buf {
    /// Its first element; aligned to 64 bytes.
    pub ptr: *mut u8,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub elements: usize,
}

// SAFETY: a buffer is memory that whoever runs kernels shares out among threads ([`run`]'s contract); the pointer itself is plain data.
unsafe impl Send for Buf {}
// SAFETY: as above.
unsafe impl Sync for Buf {}

/// What the host knows when an instruction runs: what random keys are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomKeyArgs {
    /// The run's seed (its low 32 bits).
    pub seed: i32,
    /// The step, counted from 1.
    pub step: i32,
    /// The call's layer.
    pub layer: u32,
    /// The call's micro-batch.
    pub micro_batch: u32,
}

/// What a kernel runs with.
#[derive(Clone, Copy, Debug)]
pub struct KernelCx<'a> {
    /// Who works.
    pub pool: &'a Pool,
    /// Workspace: at least [`scratch_bytes`] for as many workers as the pool has; used by no other kernel meanwhile.
    pub scratch: &'a Scratch,
    /// The program's buffers, by id.
    pub buffers: &'a [Buf],
    /// For random keys.
    pub key: RandomKeyArgs,
    /// Where the rank is in the mesh; empty for one rank.
    pub coordinates: &'a [u32],
}

/// Why a kernel cannot be prepared: the plan asks for something that has no meaning, which its verifier should have found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PrepareError(pub String);

/// Why a kernel stopped: its data do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// An index is not within its axis.
    #[error("index {value} (element {element} of the index) is outside 0..{limit}")]
    Index {
        /// The index.
        value: i64,
        /// It must be below this, and not negative.
        limit: u64,
        /// Which element of the index array holds it (the lowest, when there are several).
        element: u64,
    },
    /// Group offsets fall, or leave the ragged dimension.
    #[error("group offset {value} (number {element}) is not within {least}..={limit}")]
    Offsets {
        /// The offset.
        value: i64,
        /// Which.
        element: u64,
        /// The one before it.
        least: i64,
        /// The bound of the ragged dimension.
        limit: u64,
    },
    /// There cannot be so many rows.
    #[error("the count {value} (number {element}) is negative")]
    Count {
        /// The count.
        value: i64,
        /// Which.
        element: u64,
    },
    /// Ranks that exchange pieces have not as many rows.
    #[error("this rank has pieces of {own} elements, another one of its group of {other}")]
    Unequal {
        /// Elements of a piece here.
        own: u64,
        /// Elements of a piece there.
        other: u64,
    },
    /// More rows come than fit.
    #[error(
        "{rows} rows arrive, but there is room for {bound} (max_tokens_per_rank): at least {rows} would have done here"
    )]
    Rows {
        /// How many come.
        rows: u64,
        /// The planned bound.
        bound: u64,
    },
    /// A rank sends another number of rows than its receiver counts on.
    #[error("{sent} rows are sent for group {expert}, its owner counts on {counted}")]
    Counts {
        /// What the source's offsets say.
        sent: i64,
        /// What the owner's counts say.
        counted: i64,
        /// Which group of rows, of all.
        expert: u64,
    },
}

/// A kernel that is ready to run.
#[derive(Debug)]
pub struct Prepared(Inner);

#[derive(Debug)]
enum Inner {
    Matmul(Box<matmul::Matmul>),
    Region(Box<region::Region>),
    Attention(Box<attention::Forward>),
    AttentionBackward(Box<attention::Backward>),
    LinearAttention(Box<linear::Linear>),
    Reduce(Box<reduce::Reduce>),
    Scan(scan::Scan),
    Gather(Box<index::Gather>),
    ScatterAdd(Box<index::ScatterAdd>),
    TopK(sort::TopK),
    Group(sort::Group),
    Offsets(sort::Offsets),
    Invert(sort::Invert),
    RowGroups(sort::RowGroups),
    Random(Box<random::Random>),
    RandomKey(random::Key),
    Coordinate(ranks::Coordinate),
}

/// Prepares a kernel for the CPU level. `buffers` are those of its program.
///
/// # Errors
/// When the kernel has no meaning: a buffer that does not exist, operands of the wrong type or number. (Sizes and ranges of views are the plan verifier's.)
pub fn prepare(kernel: &Kernel, buffers: &[Buffer], cpu: Cpu) -> Result<Prepared, PrepareError> {
    let cx = PrepareCx { buffers, cpu };
    Ok(Prepared(match kernel {
        Kernel::Matmul(k) => Inner::Matmul(Box::new(matmul::Matmul::prepare(k, &cx)?)),
        Kernel::Region(k) => Inner::Region(Box::new(region::Region::prepare(k, &cx)?)),
        Kernel::Attention(k) => Inner::Attention(Box::new(attention::Forward::prepare(k, &cx)?)),
        Kernel::AttentionBackward(k) => Inner::AttentionBackward(Box::new(attention::Backward::prepare(k, &cx)?)),
        Kernel::LinearAttention(k) => Inner::LinearAttention(Box::new(linear::Linear::prepare(k, &cx)?)),
        Kernel::Reduce(k) => Inner::Reduce(Box::new(reduce::Reduce::prepare(k, &cx)?)),
        Kernel::Scan(k) => Inner::Scan(scan::Scan::prepare(k, &cx)?),
        Kernel::Gather(k) => Inner::Gather(Box::new(index::Gather::prepare(k, &cx)?)),
        Kernel::ScatterAdd(k) => Inner::ScatterAdd(Box::new(index::ScatterAdd::prepare(k, &cx)?)),
        Kernel::TopK(k) => Inner::TopK(sort::TopK::prepare(k, &cx)?),
        Kernel::Group(k) => Inner::Group(sort::Group::prepare(k, &cx)?),
        Kernel::Offsets(k) => Inner::Offsets(sort::Offsets::prepare(k, &cx)?),
        Kernel::Invert(k) => Inner::Invert(sort::Invert::prepare(k, &cx)?),
        Kernel::RowGroups(k) => Inner::RowGroups(sort::RowGroups::prepare(k, &cx)?),
        Kernel::Random(k) => Inner::Random(Box::new(random::Random::prepare(k, &cx)?)),
        Kernel::RandomKey { out, per_micro_batch, first_row, .. } => Inner::RandomKey(random::Key {
            out: cx.buffer_of(*out, DType::I32, "the random key")?,
            per_micro_batch: *per_micro_batch,
            first_row: first_row.clone(),
        }),
        Kernel::Coordinate(k) => Inner::Coordinate(ranks::Coordinate::prepare(k, &cx)?),
        Kernel::Exchange(_) | Kernel::AllToAllV(_) | Kernel::Send(_) | Kernel::Recv(_) => {
            return Err(PrepareError("it talks to other ranks, which is not a kernel's to do".into()));
        }
    }))
}

/// Runs a prepared kernel; returns when all of its work is done.
///
/// # Errors
/// When data do not fit: an index outside its axis, offsets that are not offsets.
///
/// # Safety
/// `cx.buffers` are as the kernel was prepared for (ids, dtypes, sizes), point to live memory aligned to 64 bytes, and every view of the
/// kernel lies within its buffer. Two of the kernel's buffers overlap only where both are read, or where they are the same place
/// (one buffer, or one slot and offset) and the kernel's documentation allows that. Nobody else writes what is read or touches what is
/// written meanwhile, or uses the scratch, which has at least [`scratch_bytes`] for as many workers as the pool.
pub unsafe fn run(prepared: &Prepared, cx: &KernelCx) -> Result<(), KernelError> {
    debug_assert!(cx.scratch.workers() >= cx.pool.workers());
    // SAFETY: the caller's contract is each kernel's.
    unsafe {
        match &prepared.0 {
            Inner::Matmul(k) => k.run(cx),
            Inner::Region(k) => k.run(cx),
            Inner::Attention(k) => k.run(cx),
            Inner::AttentionBackward(k) => k.run(cx),
            Inner::LinearAttention(k) => k.run(cx),
            Inner::Reduce(k) => k.run(cx),
            Inner::Scan(k) => k.run(cx),
            Inner::Gather(k) => k.run(cx),
            Inner::ScatterAdd(k) => k.run(cx),
            Inner::TopK(k) => k.run(cx),
            Inner::Group(k) => k.run(cx),
            Inner::Offsets(k) => k.run(cx),
            Inner::Invert(k) => k.run(cx),
            Inner::RowGroups(k) => k.run(cx),
            Inner::Random(k) => k.run(cx),
            Inner::RandomKey(k) => k.run(cx),
            Inner::Coordinate(k) => k.run(cx),
        }
    }
}

/// How many parts of regions this process has compiled to machine code (equal ones once), and the time for all of them.
pub fn compiled() -> (u64, std::time::Duration) {
    region::compiled()
}

/// The workspace that running a prepared kernel takes.
pub fn scratch_bytes(prepared: &Prepared) -> ScratchBytes {
    match &prepared.0 {
        Inner::Matmul(k) => k.scratch_bytes(),
        Inner::Region(k) => k.scratch_bytes(),
        Inner::Attention(k) => k.scratch_bytes(),
        Inner::AttentionBackward(k) => k.scratch_bytes(),
        Inner::LinearAttention(k) => k.scratch_bytes(),
        Inner::Reduce(k) => k.scratch_bytes(),
        Inner::ScatterAdd(k) => k.scratch_bytes(),
        Inner::TopK(k) => k.scratch_bytes(),
        Inner::Group(k) => k.scratch_bytes(),
        Inner::Offsets(k) => k.scratch_bytes(),
        Inner::Scan(_)
        | Inner::Gather(_)
        | Inner::Invert(_)
        | Inner::RowGroups(_)
        | Inner::Random(_)
        | Inner::RandomKey(_)
        | Inner::Coordinate(_) => ScratchBytes::default(),
    }
}

/// What preparing takes.
struct PrepareCx<'a> {
    buffers: &'a [Buffer],
    cpu: Cpu,
}

impl PrepareCx<'_> {
    /// A buffer's index and type.
    fn buffer(&self, id: u32) -> Result<(usize, DType), PrepareError> {
        match self.buffers.get(id as usize) {
            Some(buffer) => Ok((id as usize, buffer.dtype)),
            None => Err(PrepareError(format!("there is no buffer {id}"))),
        }
    }

    /// A buffer's index, when it has the type.
    fn buffer_of(&self, id: u32, want: DType, what: &str) -> Result<usize, PrepareError> {
        let (index, dtype) = self.buffer(id)?;
        ensure(dtype == want, || format!("{what} is {dtype:?}, not {want:?}"))?;
        Ok(index)
    }

    /// Do the buffers begin at one place?
    fn same_place(&self, a: usize, b: usize) -> bool {
        let (x, y) = (&self.buffers[a], &self.buffers[b]);
        a == b || (x.slot == y.slot && x.offset == y.offset)
    }
}

fn ensure(condition: bool, message: impl FnOnce() -> String) -> Result<(), PrepareError> {
    if condition { Ok(()) } else { Err(PrepareError(message())) }
}

/// Reads group offsets: `offsets[0] ≥ 0`, not falling, at most `bound`.
///
/// # Safety
/// The buffer holds `count + 1` i32.
unsafe fn checked_offsets(cx: &KernelCx, buffer: usize, count: usize, bound: u64) -> Result<*const i32, KernelError> {
    let offsets = cx.buffers[buffer].ptr.cast::<i32>().cast_const();
    let mut least = 0;
    for element in 0..=count {
        // SAFETY: `element ≤ count`.
        let value = unsafe { *offsets.add(element) };
        if value < least || value as u64 > bound {
            let (value, least) = (value.into(), least.into());
            return Err(KernelError::Offsets { value, element: element as u64, least, limit: bound });
        }
        least = value;
    }
    Ok(offsets)
}
