//! The forward pass.

use super::arrays::{Array, Batch, Inputs, Room};
use super::block::Block;
use super::operand::Operand;
use super::problem::{Problem, add_to_queries};
use super::rows;
use super::softmax::{self, Running, Wide};
use super::{KEYS, QUERIES, SERIAL};
use crate::kernels::cpu::Cpu;
use crate::kernels::matmul::tile::{Simd, Source};
use crate::kernels::matmul::with_product_flavour;
use crate::kernels::{KernelCx, KernelError, PrepareCx, PrepareError, ScratchBytes};
use forebay_plan as plan;
use forebay_plan::verify::MAX_PAIRS;
use std::ops::Range;

/// A prepared forward pass.
#[derive(Debug)]
pub(in crate::kernels) struct Forward {
    inputs: Inputs,
    cpu: Cpu,
    out: Array,
    lse: Array,
    places: Places,
}

/// Where everything is in a worker's workspace.
#[derive(Debug)]
struct Places {
    /// The keys of each pair, and a block of queries, turned.
    pairs: Vec<(Operand, usize)>,
    v: Operand,
    scores: usize,
    /// A block of the result, before it is divided by the sum.
    out: usize,
    most: usize,
    sum: usize,
    factor: usize,
    /// Documents and positions of a block of queries.
    marks: [usize; 2],
    room: Room,
}

impl Places {
    fn new(i: &Inputs) -> Places {
        let mut room = Room::default();
        let mut pair = |p: &super::arrays::Pair| {
            let keys = Operand::rows(i, &p.k, [i.keys, p.size], &mut room);
            (keys, room.take(i.words(p.size) * QUERIES))
        };
        Places {
            pairs: i.pairs.iter().map(&mut pair).collect(),
            v: Operand::panels(i, &i.v, [i.keys, i.value_size], &mut room),
            scores: room.take(KEYS * QUERIES),
            out: room.take(QUERIES * i.value_size),
            most: room.take(QUERIES),
            sum: room.take(QUERIES),
            factor: room.take(QUERIES),
            marks: [room.take(QUERIES), room.take(QUERIES)],
            room,
        }
    }
}

impl Forward {
    pub(in crate::kernels) fn prepare(k: &plan::Attention, cx: &PrepareCx) -> Result<Forward, PrepareError> {
        let batch = Batch::new(&k.inputs.batch, |_| false);
        let inputs = Inputs::new(&k.inputs, batch, cx)?;
        Ok(Forward {
            cpu: cx.cpu,
            out: inputs.batch.array(&k.out, k.inputs.dtype, cx, "the result")?,
            lse: inputs.batch.array(&k.lse, k.inputs.wide(), cx, "the lse")?,
            places: Places::new(&inputs),
            inputs,
        })
    }

    pub(in crate::kernels) fn scratch_bytes(&self) -> ScratchBytes {
        ScratchBytes { shared: 0, worker: self.places.room.bytes(self.inputs.dtype) }
    }

    /// # Safety
    /// As [`crate::kernels::run`].
    pub(in crate::kernels) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // SAFETY: the caller's contract; the flavour's features are there, since a `Cpu` is never above the machine.
        with_product_flavour!(self.inputs.dtype, self.cpu, |S, X| unsafe { self.run_as::<S, X>(cx) });
        Ok(())
    }

    unsafe fn run_as<S: Simd<T: Wide>, X: Source<S::T>>(&self, cx: &KernelCx) {
        let (problems, blocks) = (self.inputs.batch.count(), self.inputs.query_blocks());
        let serial = self.inputs.work() <= SERIAL || cx.pool.workers() == 1;
        // Each part copies keys and values for itself: no more parts than keep all workers busy.
        let parts = if serial { 1 } else { (cx.pool.workers() * 4).div_ceil(problems).min(blocks) };
        let task = |task: usize, worker: usize| {
            let (problem, part) = (task / parts, task % parts);
            // SAFETY: the caller's contract; tasks have queries of their own, and workers their workspace.
            unsafe {
                let space = cx.scratch.worker(worker).cast::<S::T>();
                let blocks = blocks * part / parts..blocks * (part + 1) / parts;
                let problem = Problem { inputs: &self.inputs, cx, cpu: self.cpu, number: problem, space };
                S::begin();
                self.blocks::<S, X>(&problem, blocks);
                S::end();
            }
        };
        if serial {
            (0..problems * parts).for_each(|number| task(number, 0));
        } else {
            cx.pool.run(problems * parts, &task);
        }
    }

    /// Some blocks of queries of a problem.
    unsafe fn blocks<S: Simd<T: Wide>, X: Source<S::T>>(&self, problem: &Problem<S::T>, blocks: Range<usize>) {
        let (i, places) = (&self.inputs, &self.places);
        let unit = S::T::of(i.scale * S::T::LOG_E);
        // SAFETY: the caller's contract; the workspace has room for all places.
        unsafe {
            let parts = problem.parts::<X>();
            let at = |place: usize| problem.space.add(place);
            let running = Running { most: at(places.most), sum: at(places.sum), factor: at(places.factor) };
            let (scores, out) = (at(places.scores), at(places.out));
            let values = places.v.all::<S, X>(problem, parts.v);
            let mut keys = [values; MAX_PAIRS];
            places.pairs.iter().enumerate().for_each(|(p, (of, _))| keys[p] = of.all::<S, X>(problem, parts.k[p]));
            let mut copied = i.key_positions(blocks.start).start;
            for block in blocks {
                let (first, seen) = (block * QUERIES, i.key_positions(block));
                let queries = (i.queries - first).min(QUERIES);
                // Keys that no query sees are not copied either.
                let fresh = copied..seen.end.max(copied);
                places.v.copy::<S, X>(problem, parts.v, fresh.clone());
                for (p, (of, _)) in places.pairs.iter().enumerate() {
                    of.copy::<S, X>(problem, parts.k[p], fresh.clone());
                }
                copied = fresh.end;
                problem.turn_queries::<S, X>(&parts.q, first, queries, |p| places.pairs[p].1);
                let marked = problem.marks(first, queries, places.marks);
                self.start::<S::T, X>(problem, &running);
                std::slice::from_raw_parts_mut(out, queries * i.value_size).fill(S::T::ZERO);
                let numbers = i.key_blocks(first, first + queries);
                for number in numbers.clone() {
                    problem.fetch_next(&parts, block + 1, copied, (number - numbers.start, numbers.len()));
                    let Some(block) = Block::new(i, number, first, queries, &marked) else { continue };
                    problem.scores::<S>(&block, &keys, |p| places.pairs[p].1, places.scores);
                    let pass = softmax::Forward { scores, unit, block: &block, running };
                    pass.run::<S>();
                    rows::scale_rows(self.cpu, out, queries, i.value_size, running.factor);
                    add_to_queries::<S>(&block, scores, values, [queries, i.value_size], out);
                }
                softmax::finish(self.cpu, &running);
                rows::scale_rows(self.cpu, out, queries, i.value_size, running.factor);
                let result = problem.part::<X>(&self.out).from(first);
                rows::store(self.cpu, out, queries, i.value_size, S::T::ONE, result);
                let lse = problem.part::<S::T>(&self.lse).from(first);
                (0..queries).for_each(|t| *lse.at.add(t * lse.row) = *running.most.add(t));
            }
        }
    }

    /// Before the first block: nothing but the sink was seen.
    unsafe fn start<T: Wide, X: Source<T>>(&self, problem: &Problem<T>, running: &Running<T>) {
        let sink = match &self.inputs.sink {
            // SAFETY: the caller's contract.
            Some(sink) => unsafe { (*problem.part::<X>(sink).at).widen().times(T::of(T::LOG_E)) },
            None => T::LEAST,
        };
        // A sink of -∞ is none.
        let sum = if sink == T::LEAST { T::ZERO } else { T::ONE };
        for t in 0..QUERIES {
            // SAFETY: the caller's contract.
            unsafe {
                *running.most.add(t) = sink;
                *running.sum.add(t) = sum;
            }
        }
    }
}
