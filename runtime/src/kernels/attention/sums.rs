//! Gradients that several problems share: each problem leaves its part in the shared workspace, and parts are added in the order of problems.
//!
//! Problems are numbered with the dimensions that some gradient lacks innermost: the problems of a *unit* follow each other, and units share nothing. They
//! run in waves of whole units, or, where one unit would take too much room, of parts of one; sums then wait in the workspace for the next wave. What is
//! added in which order does not depend on any of this.

use super::LANES;
use super::arrays::{Array, Batch};
use super::rows::{self, Strided};
use super::softmax::Wide;
use crate::kernels::KernelCx;
use crate::kernels::cpu::Cpu;
use crate::kernels::matmul::tile::Source;
use crate::kernels::scratch::Shared;
use std::ops::Range;

/// Elements of a wave's parts: 16 MiB of f32. Tests have waves of parts of units.
const WAVE: usize = if cfg!(test) { 1 << 10 } else { 4 << 20 };
/// A wave has at least so many problems, for all workers to be busy.
const LEAST: usize = if cfg!(test) { 3 } else { 16 };
/// Elements that are added at a time.
const CHUNK: usize = 4096;

/// Dimensions: size, and what a step counts in the number of a problem.
type Steps = Vec<(usize, usize)>;

/// A gradient that problems share.
#[derive(Debug)]
struct Sum {
    array: Array,
    rows: usize,
    size: usize,
    /// Of the unit's dimensions those that the array has.
    own: Steps,
    /// Those that it lacks.
    summed: Steps,
    /// Where a problem's part has it.
    part: usize,
    /// Where unfinished sums are, after the parts.
    totals: usize,
    factor: f64,
}

impl Sum {
    /// How many rows are added at a time.
    fn chunk(&self) -> usize {
        (CHUNK / self.size).max(1)
    }

    /// How many tasks it makes of a unit.
    fn tasks(&self) -> usize {
        count(&self.own) * self.rows.div_ceil(self.chunk())
    }
}

/// Dimensions that an array has, and those that it lacks.
fn split(dims: impl Iterator<Item = (usize, usize, usize)>) -> (Steps, Steps) {
    let (own, summed): (Vec<_>, Vec<_>) = dims.partition(|(_, _, stride)| *stride != 0);
    let steps =
        |dims: Vec<(usize, usize, usize)>| -> Steps { dims.into_iter().map(|(size, step, _)| (size, step)).collect() };
    (steps(own), steps(summed))
}

fn count(dims: &[(usize, usize)]) -> usize {
    dims.iter().map(|(size, _)| size).product()
}

/// The number of a problem, by its number along some dimensions.
fn number(dims: &[(usize, usize)], mut rest: usize) -> usize {
    let mut number = 0;
    for (size, step) in dims.iter().rev() {
        number += rest % size * step;
        rest /= size;
    }
    number
}

/// All gradients that problems share.
#[derive(Debug)]
pub(super) struct Sums {
    sums: Vec<Sum>,
    problems: usize,
    /// How many of them make a unit.
    unit: usize,
    /// Elements of a problem's parts.
    part: usize,
    /// Elements of unfinished sums.
    totals: usize,
}

impl Sums {
    /// For problems of which the last `unit` dimensions make a unit.
    pub fn new(batch: &Batch, unit: usize) -> Sums {
        let unit = batch.sizes[batch.sizes.len() - unit..].iter().product();
        Sums { sums: vec![], problems: batch.count(), unit, part: 0, totals: 0 }
    }

    /// Adds a gradient; gives its number.
    pub fn push(&mut self, batch: &Batch, array: &Array, [rows, size]: [usize; 2], factor: f64) -> usize {
        // Steps of other dimensions are whole units.
        let dims = batch.dims(array).into_iter().filter(|(_, step, _)| *step < self.unit);
        let (own, summed) = split(dims);
        let (part, totals) = (self.part, self.totals);
        self.part += (rows * size).next_multiple_of(LANES);
        self.totals += (rows * size * count(&own)).next_multiple_of(LANES);
        self.sums.push(Sum { array: array.clone(), rows, size, own, summed, part, totals, factor });
        self.sums.len() - 1
    }

    /// How many problems make a wave.
    fn wave(&self) -> usize {
        let Some(fit) = WAVE.checked_div(self.part) else { return self.problems };
        let wave = fit.max(LEAST);
        let whole = wave / self.unit * self.unit;
        if whole > 0 { whole.min(self.problems) } else { wave }
    }

    /// What it takes of the shared workspace, in elements.
    pub fn shared(&self) -> usize {
        self.wave() * self.part + self.totals
    }

    /// What it takes of a worker's workspace, in elements.
    pub fn worker(&self) -> usize {
        self.sums.iter().map(|s| s.chunk() * s.size).max().unwrap_or(0)
    }

    /// Where a problem leaves its part of a gradient: it is the `slot`-th of its wave.
    pub fn place(&self, slot: usize, gradient: usize) -> usize {
        slot * self.part + self.sums[gradient].part
    }

    /// Runs all problems, as `task(problem, its number in the wave, worker)`, and adds what they leave.
    ///
    /// # Safety
    /// As [`crate::kernels::run`]; each problem writes its parts of the shared workspace, and nobody else touches it.
    pub unsafe fn run<T: Wide, X: Source<T>>(
        &self,
        cx: &KernelCx,
        cpu: Cpu,
        batch: &Batch,
        serial: bool,
        task: &(dyn Fn(usize, usize, usize) + Sync),
    ) {
        let (wave, unit) = (self.wave(), self.unit);
        let mut first = 0;
        while first < self.problems {
            let limit = if wave < unit { first / unit * unit + unit } else { self.problems };
            let end = (first + wave).min(limit);
            each(cx, end - first, serial, &|slot, worker| task(first + slot, slot, worker));
            let units = first / unit..end.div_ceil(unit);
            let tasks: usize = self.sums.iter().map(Sum::tasks).sum();
            each(cx, units.len() * tasks, serial, &|number, worker| {
                let (unit, mut rest) = (units.start + number / tasks, number % tasks);
                for sum in &self.sums {
                    if rest < sum.tasks() {
                        // SAFETY: the caller's contract; all problems of the wave are done, and tasks add rows of their own.
                        return unsafe { self.add::<T, X>(cx, cpu, batch, sum, (first..end, unit), rest, worker) };
                    }
                    rest -= sum.tasks();
                }
            });
            first = end;
        }
    }

    /// Adds some rows of a gradient of a unit.
    #[allow(clippy::too_many_arguments)]
    unsafe fn add<T: Wide, X: Source<T>>(
        &self,
        cx: &KernelCx,
        cpu: Cpu,
        batch: &Batch,
        sum: &Sum,
        (wave, unit): (Range<usize>, usize),
        task: usize,
        worker: usize,
    ) {
        let chunks = sum.rows.div_ceil(sum.chunk());
        let (own, row) = (task / chunks, task % chunks * sum.chunk());
        let rows = (sum.rows - row).min(sum.chunk());
        let (at, elements) = (row * sum.size, rows * sum.size);
        let start = unit * self.unit;
        let problem = start + number(&sum.own, own);
        let shared = Shared::new(cx.scratch.shared().cast::<T>());
        // SAFETY: the caller's contract; places are within the workspace asked for.
        unsafe {
            let total = std::slice::from_raw_parts_mut(cx.scratch.worker(worker).cast::<T>(), elements);
            let kept = shared.get().add(self.wave() * self.part + sum.totals + own * sum.rows * sum.size + at);
            if wave.start > start {
                total.copy_from_slice(std::slice::from_raw_parts(kept, elements));
            } else {
                total.fill(T::ZERO);
            }
            for other in 0..count(&sum.summed) {
                let problem = problem + number(&sum.summed, other);
                if wave.contains(&problem) {
                    let part = shared.get().add((problem - wave.start) * self.part + sum.part + at);
                    let part = std::slice::from_raw_parts(part, elements);
                    total.iter_mut().zip(part).for_each(|(total, &part)| *total = total.plus(part));
                }
            }
            if wave.end >= start + self.unit {
                let to = Strided::new(sum.array.of::<X>(cx.buffers, batch, problem), &sum.array).from(row);
                rows::store(cpu, total.as_ptr(), rows, sum.size, T::of(sum.factor), to);
            } else {
                std::slice::from_raw_parts_mut(kept, elements).copy_from_slice(total);
            }
        }
    }
}

/// A gradient of one element for each problem, summed over the dimensions that its array lacks.
#[derive(Debug)]
pub(super) struct Elements {
    array: Array,
    own: Steps,
    summed: Steps,
}

impl Elements {
    pub fn new(batch: &Batch, array: Array) -> Elements {
        let (own, summed) = split(batch.dims(&array).into_iter());
        Elements { array, own, summed }
    }

    /// Adds the elements of all problems.
    ///
    /// # Safety
    /// There is an element for each problem; nobody else touches the array.
    pub unsafe fn run<T: Wide, X: Source<T>>(&self, cx: &KernelCx, batch: &Batch, parts: *const T) {
        for own in 0..count(&self.own) {
            let problem = number(&self.own, own);
            // SAFETY: the caller's contract.
            unsafe {
                let part = |other| *parts.add(problem + number(&self.summed, other));
                let total = (0..count(&self.summed)).fold(T::ZERO, |total, other| total.plus(part(other)));
                *self.array.of::<X>(cx.buffers, batch, problem) = X::narrow(total);
            }
        }
    }
}

/// Runs tasks on the pool, or here.
fn each(cx: &KernelCx, tasks: usize, serial: bool, call: &(dyn Fn(usize, usize) + Sync)) {
    if serial {
        (0..tasks).for_each(|task| call(task, 0));
    } else {
        cx.pool.run(tasks, call);
    }
}
