//! `out = 0 (unless accumulate); out[Σ v·out.strides + index[v]·axis_stride] += v`.
//!
//! Dimensions along which out has a stride are *aligned*: elements that differ there land in different places, so tasks may share them out. The others
//! are *summed*: what lands in one place differs there only, and is added in row-major order. Two ways:
//!
//! ```text
//! sorted   the index depends on summed dimensions only (rows of tokens to rows of experts or of an embedding): the summed elements are sorted by index,
//!          tasks own rows of out, and each row of out is written once
//! direct   otherwise (a score for each token and chosen expert): tasks own aligned elements, and add in order
//! ```

use super::{Indices, NONE_WRONG, Ragged};
use crate::kernels::cpu::by_cpu;
use crate::kernels::walk::{Dims, Walk};
use crate::kernels::{Cpu, KernelCx, KernelError, PrepareCx, PrepareError, ScratchBytes, ensure, math};
use forebay_plan::{self as plan, DType, Negative};
use half::bf16;
use std::sync::atomic::AtomicU64;

/// Elements that are worth a task.
const GRAIN: usize = 16 * 1024;
/// Elements of a run that are summed at once.
const RUN: usize = 512;

/// A prepared scatter-add.
#[derive(Debug)]
pub(in crate::kernels) struct ScatterAdd {
    cpu: Cpu,
    dtype: DType,
    v: (usize, usize),
    index: (usize, usize),
    out: (usize, usize),
    axis_stride: usize,
    axis_size: usize,
    negative: Negative,
    out_elements: usize,
    accumulate: bool,
    /// Aligned dimensions but the one in `run`: strides in v, index, out.
    aligned: Dims<3>,
    /// Summed dimensions: strides in v, index.
    summed: Dims<2>,
    /// An aligned dimension that is contiguous in v and out, and that the index lacks; size 1 when there is none.
    run: usize,
    sorted: bool,
    ragged: Option<(Ragged, Part)>,
}

/// Where a ragged dimension went.
#[derive(Clone, Copy, Debug)]
enum Part {
    Aligned(usize),
    Summed(usize),
}

/// What is added.
trait Addend: Copy + 'static {
    /// What it is summed in.
    type Sum: Copy + Default + 'static;
    fn widen(self) -> Self::Sum;
    fn narrow(sum: Self::Sum) -> Self;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
}

macro_rules! addend {
    ($($t:ty, $add:expr;)*) => {$(
        impl Addend for $t {
            type Sum = $t;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(sum: $t) -> $t {
                sum
            }
            #[inline(always)]
            fn add(a: $t, b: $t) -> $t {
                $add(a, b)
            }
        }
    )*};
}
addend!(f32, |a, b| a + b; f64, |a, b| a + b; i32, i32::wrapping_add;);

impl Addend for bf16 {
    type Sum = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        math::widened(self.to_bits())
    }
    #[inline(always)]
    fn narrow(sum: f32) -> bf16 {
        bf16::from_bits(math::narrowed(sum))
    }
    #[inline(always)]
    fn add(a: f32, b: f32) -> f32 {
        a + b
    }
}

impl ScatterAdd {
    pub(in crate::kernels) fn prepare(scatter: &plan::ScatterAdd, cx: &PrepareCx) -> Result<ScatterAdd, PrepareError> {
        let (sizes, v, index, out) = (&scatter.dims, &scatter.v.strides, &scatter.index.strides, &scatter.out.strides);
        let fits = [v, index, out].iter().all(|s| s.len() == sizes.len());
        ensure(fits, || "the strides do not fit the dimensions".into())?;
        ensure(scatter.dtype.is_number(), || format!("a sum of {}", scatter.dtype))?;
        let ragged = Ragged::prepare(&scatter.ragged, sizes, cx)?;
        let ragged_dim = ragged.map(|r| r.dim);
        let is_run = |d: usize| v[d] == 1 && out[d] == 1 && index[d] == 0 && ragged_dim != Some(d);
        let run_dim = (0..sizes.len()).rev().find(|&d| is_run(d));
        let (mut aligned, mut summed, mut part) = (Dims::<3>::NONE, Dims::<2>::NONE, None);
        for d in 0..sizes.len() {
            if Some(d) == run_dim {
                continue;
            }
            let (size, strides) = (sizes[d] as usize, [v[d], index[d], out[d]].map(|s| s as usize));
            // The ragged dimension stays what it is: neither it nor the next one in its list joins the one before.
            let here = ragged_dim == Some(d);
            let after = match part {
                Some(Part::Aligned(p)) => strides[2] != 0 && p + 1 == aligned.n,
                Some(Part::Summed(p)) => strides[2] == 0 && p + 1 == summed.n,
                None => false,
            };
            match (strides[2] != 0, here || after) {
                (true, true) => aligned.push(size, strides)?,
                (true, false) => aligned.push_joined(size, strides)?,
                (false, true) => summed.push(size, [strides[0], strides[1]])?,
                (false, false) => summed.push_joined(size, [strides[0], strides[1]])?,
            }
            if here {
                part = Some(if strides[2] != 0 { Part::Aligned(aligned.n - 1) } else { Part::Summed(summed.n - 1) });
            }
        }
        let sorted = aligned.strides[..aligned.n].iter().all(|s| s[1] == 0) && summed.n > 0;
        Ok(ScatterAdd {
            cpu: cx.cpu,
            dtype: scatter.dtype,
            v: (cx.buffer_of(scatter.v.buffer, scatter.dtype, "v")?, scatter.v.offset as usize),
            index: (cx.buffer_of(scatter.index.buffer, DType::I32, "the index")?, scatter.index.offset as usize),
            out: (cx.buffer_of(scatter.out.buffer, scatter.dtype, "the output")?, scatter.out.offset as usize),
            axis_stride: scatter.axis_stride as usize,
            axis_size: scatter.axis_size as usize,
            negative: scatter.negative,
            out_elements: scatter.out_elements as usize,
            accumulate: scatter.accumulate,
            run: run_dim.map_or(1, |d| sizes[d] as usize),
            aligned,
            summed,
            sorted,
            ragged: ragged.zip(part),
        })
    }

    pub(in crate::kernels) fn scratch_bytes(&self) -> ScratchBytes {
        let wide = if self.dtype == DType::F64 { 8 } else { 4 };
        if self.sorted {
            let lists = (self.axis_size + 1 + self.summed.count()) * 4;
            ScratchBytes { shared: lists, worker: 0 }
        } else {
            // Sums of the axis, where they cannot be kept in out.
            ScratchBytes { shared: 0, worker: if self.sums_apart() { self.axis_size * wide } else { 0 } }
        }
    }

    /// Are several elements summed at higher precision than out has?
    fn sums_apart(&self) -> bool {
        self.dtype == DType::Bf16 && self.summed.count() > 1
    }

    pub(in crate::kernels) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
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

    unsafe fn run_as<X: Addend>(&self, cx: &KernelCx) -> Result<(), KernelError> {
        let first_wrong = AtomicU64::new(NONE_WRONG);
        // SAFETY: views begin within their buffers (the caller's contract).
        let mut job = unsafe {
            Job::<X> {
                scatter: self,
                cx,
                aligned: self.aligned,
                summed: self.summed,
                v: cx.buffers[self.v.0].ptr.cast::<X>().add(self.v.1),
                out: cx.buffers[self.out.0].ptr.cast::<X>().add(self.out.1),
                indices: Indices {
                    data: cx.buffers[self.index.0].ptr.cast::<i32>().add(self.index.1),
                    limit: self.axis_size,
                    negative: self.negative,
                    first_wrong: &first_wrong,
                },
            }
        };
        if let Some((ragged, part)) = &self.ragged {
            // SAFETY: the caller's contract.
            let size = unsafe { ragged.size(cx)? };
            match *part {
                Part::Aligned(d) => job.aligned.sizes[d] = size,
                Part::Summed(d) => job.summed.sizes[d] = size,
            }
        }
        let places = self.axis_size * self.aligned.count() * self.run;
        let all_written =
            self.sorted && places == self.out_elements && self.ragged.is_none_or(|(_, p)| matches!(p, Part::Summed(_)));
        if !self.accumulate && !all_written {
            // All zeros are zero bytes, of every type.
            let bytes = size_of::<X>();
            cx.pool.run_ranges(self.out_elements, 8 * GRAIN, &|first, end, _| {
                // SAFETY: out has so many elements from the start of its buffer (the caller's contract).
                unsafe { cx.buffers[self.out.0].ptr.add(first * bytes).write_bytes(0, (end - first) * bytes) };
            });
        }
        // SAFETY: the caller's contract.
        unsafe {
            if self.sorted {
                job.sorted()?;
            } else {
                job.direct();
            }
            job.indices.result()
        }
    }
}

/// A scatter-add that is running.
struct Job<'a, X> {
    scatter: &'a ScatterAdd,
    cx: &'a KernelCx<'a>,
    aligned: Dims<3>,
    summed: Dims<2>,
    v: *mut X,
    out: *mut X,
    indices: Indices<'a>,
}

// SAFETY: tasks read v and the index, and write places of their own.
unsafe impl<X> Sync for Job<'_, X> {}

/// Elements of each index, as positions in the list of all: `list[starts[i] .. starts[i + 1]]`.
#[derive(Clone, Copy)]
struct Lists {
    starts: *mut u32,
    list: *mut u32,
}

// SAFETY: written by one thread before others read.
unsafe impl Sync for Lists {}

impl<X: Addend> Job<'_, X> {
    unsafe fn sorted(&self) -> Result<(), KernelError> {
        let scatter = self.scatter;
        // SAFETY: the scratch has room for the lists.
        let lists = unsafe {
            let starts = self.cx.scratch.shared().cast::<u32>();
            let lists = Lists { starts, list: starts.add(scatter.axis_size + 1) };
            self.sort(lists)?;
            lists
        };
        let lists = &lists;
        let runs = scatter.run.div_ceil(RUN);
        let lines = self.aligned.count() * runs;
        let average = self.summed.count() / scatter.axis_size.max(1) + 1;
        let grain = GRAIN.div_ceil((average * scatter.run.min(RUN)).max(1));
        self.cx.pool.run_ranges(scatter.axis_size * lines, grain, &|first, end, _| {
            for task in first..end {
                let (place, line) = (task / lines, task % lines);
                let [v, _, out] = self.aligned.at(line / runs);
                let begin = line % runs * RUN;
                // SAFETY: positions in the list are elements of v; the place is within the axis.
                unsafe {
                    let (from, to) = (*lists.starts.add(place) as usize, *lists.starts.add(place + 1) as usize);
                    let sum = Sum {
                        v: self.v.cast_const().add(v + begin),
                        elements: std::slice::from_raw_parts(lists.list.add(from), to - from),
                        summed: &self.summed,
                        out: self.out.add(out + begin + place * scatter.axis_stride),
                        length: (scatter.run - begin).min(RUN),
                        accumulate: scatter.accumulate,
                    };
                    add_list::<X>(scatter.cpu, &sum);
                }
            }
        });
        Ok(())
    }

    /// Sorts the summed elements by index, stably.
    unsafe fn sort(&self, lists: Lists) -> Result<(), KernelError> {
        let axis = self.scatter.axis_size;
        let count = self.summed.count();
        // SAFETY: starts have a place for each index and one more, the list one for each element; the caller's contract.
        unsafe {
            let starts = std::slice::from_raw_parts_mut(lists.starts, axis + 1);
            starts.fill(0);
            let mut walk = Walk::new(&self.summed, 0);
            for _ in 0..count {
                if let Some(index) = self.indices.get(walk.offsets[1]) {
                    starts[index] += 1;
                }
                walk.step();
            }
            self.indices.result()?;
            // Ends of runs; filling from the last element on turns them into starts.
            let mut end = 0;
            for start in starts.iter_mut() {
                end += *start;
                *start = end;
            }
            for number in (0..count).rev() {
                let Some(index) = self.indices.get(self.summed.at(number)[1]) else { continue };
                starts[index] -= 1;
                *lists.list.add(starts[index] as usize) = number as u32;
            }
        }
        Ok(())
    }

    unsafe fn direct(&self) {
        let scatter = self.scatter;
        let count = self.summed.count();
        let apart = scatter.sums_apart();
        // Where sums are kept apart, the whole axis is summed for one element of the run at a time.
        let (parts, width) = if apart { (scatter.run, 1) } else { (scatter.run.div_ceil(RUN), RUN) };
        let work = count * width.min(scatter.run) + if apart { scatter.axis_size } else { 0 };
        self.cx.pool.run_ranges(self.aligned.count() * parts, GRAIN.div_ceil(work.max(1)), &|first, end, worker| {
            for task in first..end {
                let mut at = self.aligned.at(task / parts);
                let begin = task % parts * width;
                at[0] += begin;
                at[2] += begin;
                // SAFETY: the caller's contract; tasks have aligned elements of their own.
                unsafe {
                    if apart {
                        self.axis_sums(at, worker);
                    } else {
                        self.line(at, (scatter.run - begin).min(width));
                    }
                }
            }
        });
    }

    /// All summed elements of an aligned one, added to out one after another.
    unsafe fn line(&self, at: [usize; 3], length: usize) {
        let mut walk = Walk::new(&self.summed, 0);
        for _ in 0..self.summed.count() {
            // SAFETY: the caller's contract; the index is within the axis.
            unsafe {
                if let Some(index) = self.indices.get(at[1] + walk.offsets[1]) {
                    let v = self.v.add(at[0] + walk.offsets[0]);
                    let out = self.out.add(at[2] + index * self.scatter.axis_stride);
                    for i in 0..length {
                        *out.add(i) = X::narrow(X::add((*out.add(i)).widen(), (*v.add(i)).widen()));
                    }
                }
            }
            walk.step();
        }
    }

    /// The sums of all places of the axis, for one aligned element.
    unsafe fn axis_sums(&self, at: [usize; 3], worker: usize) {
        let scatter = self.scatter;
        // SAFETY: the scratch has a sum for each place; the caller's contract.
        unsafe {
            let sums = self.cx.scratch.worker(worker).cast::<X::Sum>();
            let place = |i: usize| self.out.add(at[2] + i * scatter.axis_stride);
            for i in 0..scatter.axis_size {
                *sums.add(i) = (*place(i)).widen();
            }
            let mut walk = Walk::new(&self.summed, 0);
            for _ in 0..self.summed.count() {
                if let Some(index) = self.indices.get(at[1] + walk.offsets[1]) {
                    *sums.add(index) = X::add(*sums.add(index), (*self.v.add(at[0] + walk.offsets[0])).widen());
                }
                walk.step();
            }
            for i in 0..scatter.axis_size {
                *place(i) = X::narrow(*sums.add(i));
            }
        }
    }
}

/// A run of out: the sum of runs of v.
struct Sum<'a, X> {
    v: *const X,
    elements: &'a [u32],
    summed: &'a Dims<2>,
    out: *mut X,
    length: usize,
    accumulate: bool,
}

#[inline(always)]
unsafe fn add_list_body<X: Addend>(sum: &Sum<X>) {
    let mut acc = [X::Sum::default(); RUN];
    let acc = &mut acc[..sum.length];
    // SAFETY: the caller's contract: all runs have `length` elements.
    unsafe {
        let out = std::slice::from_raw_parts_mut(sum.out, sum.length);
        if sum.accumulate {
            acc.iter_mut().zip(&*out).for_each(|(a, &x)| *a = x.widen());
        }
        for &element in sum.elements {
            let v = std::slice::from_raw_parts(sum.v.add(sum.summed.at(element as usize)[0]), sum.length);
            acc.iter_mut().zip(v).for_each(|(a, &x)| *a = X::add(*a, x.widen()));
        }
        out.iter_mut().zip(&*acc).for_each(|(x, &a)| *x = X::narrow(a));
    }
}

by_cpu!(unsafe fn add_list / add_list_body<X: Addend>(sum: &Sum<X>));
