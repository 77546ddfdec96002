//! Linear attention in chunks: what came before a chunk is a state, keys by values, and what is in it is a small block of scores.
//!
//! Positions are *walked* as they read each other: from the first one on, or, backward, from the last. A worker walks the positions of one index of the batch and of a
//! block of columns of its values, [`CHUNK`] positions at a time, with the state S in its workspace:
//!
//! ```text
//! A[t, s]  = decay[t, s] Σ_d q[t, d]·k[s, d]          rows of Q              × Kᵀ, what t reads of the chunk only
//! out[t]   = Σ_d (decay to t · q[t, d])·S[d]          rows of Q              × S
//!          + Σ_s A[t, s]·v[s]                         rows of A              × V
//! S[d]     = decay of all · S[d]
//!          + Σ_s (decay from s · k[s, d])·v[s]        rows of Kᵀ             × V
//! ```
//!
//! Where a system is solved, scores and queries have the other sign, results begin as values, and rows are made in blocks of [`BLOCK`]: what earlier blocks give is a product, the
//! rest is taken off row by row (see [`solve`]). The state then adds results where it added values.
//!
//! **Order of sums.** Chunks and blocks are counted from the first walked position. Every product is one chain of multiply-adds for an element (fused where the machine can do that), which is
//! then added to what is there. So an element depends on what it reads and on its place, not on other columns, on problems or workers; all vectors that fuse give equal bits.
//!
//! **Cutting.** A task is one index of the batch and a block of columns. Scores and copies of queries and keys are made for each block anew, so columns are cut only as far as all
//! workers need it.

mod arrays;
mod chunk;
mod decays;
mod solve;

use super::cpu::Cpu;
use super::matmul::tile::{Simd, Source};
use super::matmul::with_flavour;
use super::{KernelCx, KernelError, PrepareCx, PrepareError, ScratchBytes, ensure};
use arrays::{Array, Batch};
use chunk::{Places, Walk};
use decays::Wide;
use forebay_plan::{self as plan, LinearReads};
use std::marker::PhantomData;

/// Positions that are taken together: of the more, the fewer products go to the state, and the more to scores.
const CHUNK: usize = 64;
/// Rows of a chunk whose products end at the same position.
const BLOCK: usize = 16;
/// Columns of a task: at most, and at least where there are as many. Multiples of [`LANES`].
const MOST_COLUMNS: usize = 256;
const LEAST_COLUMNS: usize = 32;
/// Rows in the workspace have zeros behind them that make them a multiple of this: a multiple of every flavour's lanes.
const LANES: usize = 16;
/// Problems below this many multiply-adds run on the calling thread: waking another costs as much.
const SERIAL: usize = 1 << 18;

/// A prepared kernel.
#[derive(Debug)]
pub(super) struct Linear {
    dtype: plan::DType,
    cpu: Cpu,
    reads: LinearReads,
    backward: bool,
    batch: Batch,
    positions: usize,
    key_size: usize,
    value_size: usize,
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    out: Array,
    /// Are results stored as the sums that they are?
    keeps_wide: bool,
}

impl Linear {
    pub(super) fn prepare(k: &plan::LinearAttention, cx: &PrepareCx) -> Result<Linear, PrepareError> {
        ensure(k.dtype.is_float(), || format!("linear attention of {}", k.dtype))?;
        let rounded = k.result == k.dtype || k.result == k.wide();
        ensure(rounded, || format!("linear attention of {} gives no {}", k.dtype, k.result))?;
        let sizes = k.batch.iter().chain(&k.keys).chain(&k.values).chain([&k.positions]);
        ensure(sizes.min() > Some(&0), || "there is nothing to attend to".into())?;
        let array = |view: &plan::View, dtype, inner: &[u64], what: &str| {
            let dims = k.batch.len() + 1 + inner.len();
            ensure(view.strides.len() == dims, || format!("{what}: strides do not fit"))?;
            Ok(Array::new(view, cx.buffer_of(view.buffer, dtype, what)?, k.batch.len(), inner))
        };
        let arrays = [
            array(&k.q, k.dtype, &k.keys, "the queries")?,
            array(&k.k, k.dtype, &k.keys, "the keys")?,
            array(&k.v, k.dtype, &k.values, "the values")?,
            array(&k.g, k.wide(), &[], "the decays")?,
            array(&k.out, k.result, &k.values, "the result")?,
        ];
        let [q, key, v, g, out] = arrays;
        Ok(Linear {
            dtype: k.dtype,
            cpu: cx.cpu,
            reads: k.reads,
            backward: k.backward,
            batch: Batch::new(&k.batch),
            positions: k.positions as usize,
            key_size: k.key_size() as usize,
            value_size: k.value_size() as usize,
            q,
            k: key,
            v,
            g,
            out,
            keeps_wide: k.result == k.wide(),
        })
    }

    pub(super) fn scratch_bytes(&self) -> ScratchBytes {
        let elements = Places::new(self.key_size, self.value_size.min(MOST_COLUMNS)).elements;
        ScratchBytes { shared: 0, worker: elements * arrays::wide_bytes(self.dtype) }
    }

    /// # Safety
    /// As [`crate::kernels::run`].
    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // SAFETY: the caller's contract; the flavour's features are there, since a `Cpu` is never above the machine.
        with_flavour!(self.dtype, self.cpu, |S, X| unsafe { self.run_as::<S, X>(cx) });
        Ok(())
    }

    unsafe fn run_as<S: Simd<T: Wide>, X: Source<S::T>>(&self, cx: &KernelCx) {
        let problems = self.batch.count();
        let work =
            [problems, self.positions, self.key_size, self.value_size].into_iter().fold(2, usize::saturating_mul);
        let workers = if work <= SERIAL { 1 } else { cx.pool.workers() };
        let columns = self.columns(problems, workers);
        let blocks = self.value_size.div_ceil(columns);
        let task = |task: usize, worker: usize| {
            let first = task % blocks * columns;
            let walk = Walk::<S, X> {
                linear: self,
                places: Places::new(self.key_size, (self.value_size - first).min(columns)),
                buffers: cx.buffers,
                problem: task / blocks,
                first_column: first,
                space: cx.scratch.worker(worker).cast(),
                stored: PhantomData,
            };
            // SAFETY: the caller's contract; tasks have columns of their own, and workers their workspace.
            unsafe { S::apply(walk) };
        };
        if workers == 1 {
            (0..problems * blocks).for_each(|number| task(number, 0));
        } else {
            cx.pool.run(problems * blocks, &task);
        }
    }

    /// Columns of a task: as many as there may be, unless workers would wait for others.
    fn columns(&self, problems: usize, workers: usize) -> usize {
        let least = self.value_size.div_ceil(MOST_COLUMNS);
        let even = problems.is_multiple_of(workers) || problems >= 4 * workers;
        let wanted = if even { 1 } else { (4 * workers).div_ceil(problems) };
        let blocks = wanted.min(self.value_size.div_ceil(LEAST_COLUMNS)).max(least);
        self.value_size.div_ceil(blocks).next_multiple_of(LANES)
    }
}
