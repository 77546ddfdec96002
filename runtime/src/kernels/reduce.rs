//! Reductions over any dimensions.
//!
//! The reduced elements of a result, in row-major order, are one list; it is reduced as [`super::rows`] says, so that the bits depend on its length and
//! not on how it lies in memory.
//!
//! ```text
//! lines     the list is gathered into a chunk (or is contiguous) and reduced
//! columns   the innermost kept dimension is contiguous: lanes are rows of COLUMNS accumulators
//! ```
//!
//! Few results of long lists are cut into chunks for all workers, whose results are then combined in order.

use super::cpu::{Cpu, by_cpu};
use super::math;
use super::rows::{self, CHUNK, LANES, Number};
use super::scratch::Shared;
use super::walk::{Dims, Walk};
use super::{KernelCx, KernelError, PrepareCx, PrepareError, ScratchBytes, ensure};
use forebay_plan::{self as plan, DType, ReduceOp};
use half::bf16;

/// Results that are computed side by side.
const COLUMNS: usize = 64;
/// Elements that are worth a task.
const GRAIN: usize = 32 * 1024;
/// With fewer tasks than this the lists themselves are cut.
const FEW: usize = 16;

/// A prepared reduction.
#[derive(Debug)]
pub(super) struct Reduce {
    op: ReduceOp,
    dtype: DType,
    cpu: Cpu,
    input: (usize, usize),
    out: (usize, usize),
    accumulate: bool,
    /// Kept dimensions without the innermost: strides in input and output.
    kept: Dims<2>,
    /// The innermost kept dimension.
    inner: (usize, [usize; 2]),
    /// Reduced dimensions: strides in the input.
    reduced: Dims<1>,
    ragged: Option<Ragged>,
}

#[derive(Clone, Copy, Debug)]
struct Ragged {
    buffer: usize,
    groups: usize,
    /// Most elements of the ragged dimension.
    bound: u64,
    /// A result for each group: the number of results of one group.
    per_group: Option<usize>,
    /// The ragged dimension's stride in the input.
    stride: usize,
    /// Elements of the first reduced dimension for each ragged element.
    unit: usize,
}

/// What a list is read from.
trait Stored: Copy + 'static {
    type T: Number;
    fn widen(self) -> Self::T;
    fn narrow(value: Self::T) -> Self;
}

macro_rules! stored {
    ($($t:ty)*) => {$(
        impl Stored for $t {
            type T = $t;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(value: $t) -> $t {
                value
            }
        }
    )*};
}
stored!(f32 f64 i32);

impl Stored for bf16 {
    type T = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        math::widened(self.to_bits())
    }
    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        bf16::from_bits(math::narrowed(value))
    }
}

impl Reduce {
    pub(super) fn prepare(reduce: &plan::Reduce, cx: &PrepareCx) -> Result<Reduce, PrepareError> {
        let kept = reduce.kept as usize;
        let (dims, input, out) = (&reduce.dims, &reduce.input.strides, &reduce.out.strides);
        ensure(kept <= dims.len() && input.len() == dims.len() && out.len() == kept, || {
            "the strides do not fit the dimensions".into()
        })?;
        ensure(reduce.dtype.is_number(), || format!("a reduction of {}", reduce.dtype))?;
        ensure(!reduce.accumulate || reduce.op == ReduceOp::Sum, || "only sums accumulate".into())?;
        let mut result = Reduce {
            op: reduce.op,
            dtype: reduce.dtype,
            cpu: cx.cpu,
            input: (cx.buffer_of(reduce.input.buffer, reduce.dtype, "the input")?, reduce.input.offset as usize),
            out: (cx.buffer_of(reduce.out.buffer, reduce.dtype, "the output")?, reduce.out.offset as usize),
            accumulate: reduce.accumulate,
            kept: Dims::NONE,
            inner: (1, [0, 0]),
            reduced: Dims::NONE,
            ragged: None,
        };
        let mut skip = 0;
        if let Some(ragged) = &reduce.ragged {
            ensure(kept < dims.len(), || "no dimension is reduced".into())?;
            let groups = ragged.groups as usize;
            if ragged.per_group {
                let first = kept > 0 && dims[0] == ragged.groups && input[0] == 0;
                ensure(first, || "the first kept dimension does not count groups".into())?;
                // The group is the outermost dimension of the kept ones, whatever else is joined.
                result.kept.push(groups, [0, out[0] as usize])?;
                skip = 1;
            }
            let per_group = ragged.per_group.then(|| dims[1..kept].iter().product::<u64>() as usize);
            result.ragged = Some(Ragged {
                buffer: cx.buffer_of(ragged.offsets, DType::I32, "ragged offsets")?,
                groups,
                bound: dims[kept],
                per_group,
                stride: input[kept] as usize,
                unit: 1,
            });
        }
        for d in skip..kept {
            let strides = [input[d] as usize, out[d] as usize];
            // Joining with the group would lose it; its stride in the input is 0, so only an input stride of 0 could.
            if result.kept.n == skip {
                result.kept.push(dims[d] as usize, strides)?
            } else {
                result.kept.push_joined(dims[d] as usize, strides)?;
            }
        }
        if result.kept.n > skip {
            result.inner = result.kept.pop();
        }
        for d in kept..dims.len() {
            let stride = [input[d] as usize];
            if d == kept {
                result.reduced.push(dims[d] as usize, stride)?
            } else {
                result.reduced.push_joined(dims[d] as usize, stride)?;
            }
        }
        if let Some(ragged) = &mut result.ragged {
            let first = result.reduced.sizes[0];
            ragged.unit = first.checked_div(ragged.bound as usize).unwrap_or(1);
        }
        Ok(result)
    }

    /// Are results computed side by side?
    fn columns(&self) -> bool {
        let contiguous_list = self.reduced.n > 0 && self.reduced.strides[self.reduced.n - 1] == [1];
        self.inner.1[0] == 1 && self.inner.0 > 1 && !contiguous_list
    }

    /// Tasks that own their results.
    fn units(&self) -> usize {
        let across = if self.columns() { self.inner.0.div_ceil(COLUMNS) } else { self.inner.0 };
        self.kept.count() * across
    }

    /// Are lists cut for several workers?
    fn cuts_lists(&self) -> bool {
        let per_group = self.ragged.is_some_and(|r| r.per_group.is_some());
        self.units() < FEW && !per_group && self.reduced.count() >= 8 * CHUNK
    }

    pub(super) fn scratch_bytes(&self) -> ScratchBytes {
        let shared = if self.cuts_lists() {
            self.units() * self.reduced.count().div_ceil(CHUNK) * if self.columns() { COLUMNS } else { 1 } * 8
        } else {
            0
        };
        ScratchBytes { shared, worker: (LANES * COLUMNS + CHUNK) * 8 }
    }

    pub(super) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // SAFETY: the caller's contract.
        unsafe {
            match self.dtype {
                DType::F32 => self.run_as::<f32>(cx),
                DType::F64 => self.run_as::<f64>(cx),
                DType::I32 => self.run_as::<i32>(cx),
                DType::Bf16 => self.run_as::<bf16>(cx),
                DType::I16 | DType::Bool => unreachable!("refused when prepared"),
            }
        }
    }

    unsafe fn run_as<X: Stored>(&self, cx: &KernelCx) -> Result<(), KernelError> {
        let offsets = match &self.ragged {
            // SAFETY: the buffer holds the offsets (the caller's contract).
            Some(r) => Some(unsafe { super::checked_offsets(cx, r.buffer, r.groups, r.bound)? }),
            None => None,
        };
        let job = Job::<X> {
            reduce: self,
            cx,
            offsets,
            // SAFETY: views begin within their buffers.
            input: unsafe { cx.buffers[self.input.0].ptr.cast::<X>().add(self.input.1) },
            // SAFETY: as above.
            out: unsafe { cx.buffers[self.out.0].ptr.cast::<X>().add(self.out.1) },
        };
        let units = self.units();
        // SAFETY: the caller's contract, and the offsets were checked.
        unsafe {
            if !self.cuts_lists() {
                let work = self.reduced.count().max(1) * if self.columns() { COLUMNS } else { 1 };
                cx.pool.run_ranges(units, GRAIN.div_ceil(work), &|first, end, worker| {
                    (first..end).for_each(|unit| job.whole(unit, worker));
                });
            } else {
                job.in_chunks(units);
            }
        }
        Ok(())
    }
}

/// A reduction that is running.
struct Job<'a, X> {
    reduce: &'a Reduce,
    cx: &'a KernelCx<'a>,
    offsets: Option<*const i32>,
    input: *mut X,
    out: *mut X,
}

// SAFETY: tasks read the input and write results of their own.
unsafe impl<X> Sync for Job<'_, X> {}

/// The list (or the lists side by side) of a unit.
#[derive(Clone, Copy)]
struct Unit {
    /// Elements from the start of input and output.
    at: [usize; 2],
    /// Results side by side.
    columns: usize,
    reduced: Dims<1>,
}

impl<X: Stored> Job<'_, X> {
    fn unit(&self, number: usize) -> Unit {
        let r = self.reduce;
        let (across, columns) = if r.columns() { (r.inner.0.div_ceil(COLUMNS), COLUMNS) } else { (r.inner.0, 1) };
        let (row, first) = (number / across, number % across * columns);
        let mut at = r.kept.at(row);
        at[0] += first * r.inner.1[0];
        at[1] += first * r.inner.1[1];
        let mut reduced = r.reduced;
        if let (Some(ragged), Some(offsets)) = (&r.ragged, self.offsets) {
            let (begin, end) = match ragged.per_group {
                Some(results) => {
                    let group = (row * r.inner.0 + first) / results.max(1);
                    // SAFETY: there are `groups + 1` offsets.
                    unsafe { (*offsets.add(group) as usize, *offsets.add(group + 1) as usize) }
                }
                // SAFETY: as above.
                None => (0, unsafe { *offsets.add(ragged.groups) } as usize),
            };
            at[0] += begin * ragged.stride;
            reduced.sizes[0] = (end - begin) * ragged.unit;
        }
        Unit { at, columns: columns.min(r.inner.0 - first), reduced }
    }

    /// A unit from its first chunk to its last.
    unsafe fn whole(&self, number: usize, worker: usize) {
        let unit = self.unit(number);
        let length = unit.reduced.count();
        let mut totals = [rows::identity::<X::T>(self.reduce.op); COLUMNS];
        // SAFETY: the caller's contract.
        unsafe {
            for first in (0..length).step_by(CHUNK) {
                let chunk = self.chunk(&unit, first, length, worker);
                for (total, &value) in totals.iter_mut().zip(std::slice::from_raw_parts(chunk, unit.columns)) {
                    *total = rows::combine(self.reduce.op, *total, value);
                }
            }
            self.write(&unit, &totals);
        }
    }

    /// All units, chunk by chunk.
    unsafe fn in_chunks(&self, units: usize) {
        let width = if self.reduce.columns() { COLUMNS } else { 1 };
        let length = self.unit(0).reduced.count();
        let chunks = length.div_ceil(CHUNK);
        let shared = Shared::new(self.cx.scratch.shared().cast::<X::T>());
        self.cx.pool.run_ranges(units * chunks, (GRAIN / CHUNK / width).max(1), &|first, end, worker| {
            for task in first..end {
                let unit = self.unit(task / chunks);
                // SAFETY: the scratch has `width` values for each chunk of each unit.
                unsafe {
                    let chunk = self.chunk(&unit, task % chunks * CHUNK, length, worker);
                    std::ptr::copy_nonoverlapping(chunk, shared.get().add(task * width), unit.columns);
                }
            }
        });
        for number in 0..units {
            let unit = self.unit(number);
            let mut totals = [rows::identity::<X::T>(self.reduce.op); COLUMNS];
            for chunk in 0..chunks {
                for (column, total) in totals[..unit.columns].iter_mut().enumerate() {
                    // SAFETY: as above; all tasks are done.
                    let value = unsafe { *shared.get().add((number * chunks + chunk) * width + column) };
                    *total = rows::combine(self.reduce.op, *total, value);
                }
            }
            // SAFETY: the caller's contract.
            unsafe { self.write(&unit, &totals) };
        }
    }

    /// The chunk of a unit's list from element `first` on, reduced: a value for each column.
    unsafe fn chunk(&self, unit: &Unit, first: usize, length: usize, worker: usize) -> *const X::T {
        let elements = (length - first).min(CHUNK);
        let space = self.cx.scratch.worker(worker).cast::<X::T>();
        // SAFETY: the list lies in the input; the scratch has room for lanes and for a chunk.
        unsafe {
            let input = self.input.cast_const().add(unit.at[0]);
            let part = Part { input, reduced: &unit.reduced, first, elements, length, columns: unit.columns, space };
            if self.reduce.columns() {
                columns_chunk::<X>(self.reduce.cpu, self.reduce.op, &part);
            } else {
                line_chunk::<X>(self.reduce.cpu, &part);
                let (from, length) = (space.add(LANES * COLUMNS).cast_const().cast(), length.min(CHUNK));
                let list =
                    rows::Rows { from, stride: 0, to: space.cast(), rows: 1, columns: elements, length, resume: false };
                rows::reduce_rows::<X::T>(self.reduce.cpu, self.reduce.op, &list);
            }
        }
        space
    }

    unsafe fn write(&self, unit: &Unit, totals: &[X::T]) {
        for (column, &total) in totals[..unit.columns].iter().enumerate() {
            // SAFETY: results lie in the output.
            unsafe {
                let to = self.out.add(unit.at[1] + column * self.reduce.inner.1[1]);
                let value = if self.reduce.accumulate { (*to).widen().plus(total) } else { total };
                *to = X::narrow(value);
            }
        }
    }
}

/// A chunk to reduce. The result is written to the start of `space`.
struct Part<'a, X: Stored> {
    input: *const X,
    reduced: &'a Dims<1>,
    first: usize,
    elements: usize,
    /// Of the whole list.
    length: usize,
    columns: usize,
    space: *mut X::T,
}

/// Calls `run(number of the first, offset of the first, stride, length)` for runs along the innermost reduced dimension.
#[inline(always)]
fn runs(reduced: &Dims<1>, first: usize, elements: usize, mut run: impl FnMut(usize, usize, usize, usize)) {
    let mut outer = *reduced;
    let (size, [stride]) = outer.pop();
    let mut walk = Walk::new(&outer, first / size.max(1));
    let (mut inner, mut done) = (first % size.max(1), 0);
    while done < elements {
        let length = (size - inner).min(elements - done);
        run(done, walk.offsets[0] + inner * stride, stride, length);
        done += length;
        inner = 0;
        walk.step();
    }
}

/// Puts the elements of a list side by side, behind the lanes.
#[inline(always)]
unsafe fn line_chunk_body<X: Stored>(part: &Part<X>) {
    // SAFETY: the list lies in the input, a chunk fits behind the lanes.
    unsafe {
        let gathered = part.space.add(LANES * COLUMNS);
        runs(part.reduced, part.first, part.elements, |at, offset, stride, length| {
            let (from, to) = (part.input.add(offset), gathered.add(at));
            if stride == 1 {
                (0..length).for_each(|i| *to.add(i) = (*from.add(i)).widen());
            } else {
                (0..length).for_each(|i| *to.add(i) = (*from.add(i * stride)).widen());
            }
        });
    }
}

#[inline(always)]
unsafe fn columns_chunk_body<X: Stored>(op: ReduceOp, part: &Part<X>) {
    // SAFETY: the columns of the list lie in the input, lanes in the scratch.
    unsafe {
        match op {
            ReduceOp::Sum => columns_of(part, X::T::ZERO, X::T::plus),
            ReduceOp::Max => columns_of(part, X::T::LEAST, math::max),
            ReduceOp::Min => columns_of(part, X::T::MOST, math::min),
        }
    }
}

#[inline(always)]
unsafe fn columns_of<X: Stored>(part: &Part<X>, start: X::T, f: impl Fn(X::T, X::T) -> X::T + Copy) {
    // As many lanes as a contiguous list of this length would have.
    let lanes = rows::lane_count(part.length);
    // SAFETY: as above.
    unsafe {
        let lane = |l: usize| std::slice::from_raw_parts_mut(part.space.add(l * COLUMNS), part.columns);
        (0..lanes).for_each(|l| lane(l).fill(start));
        runs(part.reduced, part.first, part.elements, |at, offset, stride, length| {
            for i in 0..length {
                let x = std::slice::from_raw_parts(part.input.add(offset + i * stride), part.columns);
                lane((at + i) & (lanes - 1)).iter_mut().zip(x).for_each(|(acc, &x)| *acc = f(*acc, x.widen()));
            }
        });
        let mut width = lanes / 2;
        while width > 0 {
            for l in 0..width {
                lane(l).iter_mut().zip(&*lane(l + width)).for_each(|(a, &b)| *a = f(*a, b));
            }
            width /= 2;
        }
    }
}

by_cpu!(unsafe fn line_chunk / line_chunk_body<X: Stored>(part: &Part<X>));
by_cpu!(unsafe fn columns_chunk / columns_chunk_body<X: Stored>(op: ReduceOp, part: &Part<X>));
