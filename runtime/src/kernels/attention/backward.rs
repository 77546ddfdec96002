//! The backward pass.

use super::arrays::{Array, Batch, Inputs, Room};
use super::block::Block;
use super::problem::{Problem, add_to_keys, add_to_queries, transposed};
use super::product::Rows;
use super::rows;
use super::softmax::{self, Gradients, Wide};
use super::sums::{Elements, Sums};
use super::{KEYS, QUERIES, SERIAL, wide_bytes};
use crate::kernels::cpu::Cpu;
use crate::kernels::matmul::tile::{Simd, Source};
use crate::kernels::matmul::with_flavour;
use crate::kernels::scratch::Shared;
use crate::kernels::{KernelCx, KernelError, PrepareCx, PrepareError, ScratchBytes, ensure};
use forebay_plan as plan;
use forebay_plan::verify::MAX_PAIRS;

/// A prepared backward pass.
#[derive(Debug)]
pub(in crate::kernels) struct Backward {
    inputs: Inputs,
    cpu: Cpu,
    out: Array,
    lse: Array,
    d_out: Array,
    pairs: Vec<PairGradients>,
    d_v: Option<Target>,
    d_sink: Option<Elements>,
    sums: Sums,
    places: Places,
}

/// The gradients of a pair.
#[derive(Debug)]
struct PairGradients {
    q: Option<Target>,
    k: Option<Target>,
}

/// Where a gradient goes.
#[derive(Debug)]
struct Target {
    array: Array,
    /// Its number among those that problems share.
    shared: Option<usize>,
}

/// Where everything is in a worker's workspace.
#[derive(Debug)]
struct Places {
    pairs: Vec<PairPlaces>,
    v: usize,
    d_v: usize,
    /// A block of gradients of the result, as rows and turned.
    d_out: [usize; 2],
    scores: usize,
    gradients: usize,
    lse: usize,
    delta: usize,
    /// Documents and positions of a block of queries.
    marks: [usize; 2],
    room: Room,
}

#[derive(Debug)]
struct PairPlaces {
    k: usize,
    d_k: usize,
    /// A block of queries, as rows and turned.
    q: [usize; 2],
    /// A block of gradients of queries.
    d_q: usize,
}

impl Places {
    fn new(i: &Inputs, d_out: &Array) -> Places {
        let mut room = Room::default();
        let mut take = |array: &Array, rows: usize, size: usize| {
            if i.stays(array, size) { 0 } else { room.take(rows * size) }
        };
        let v = take(&i.v, i.keys, i.value_size);
        let d_out_rows = take(d_out, QUERIES, i.value_size);
        let copies: Vec<[usize; 2]> =
            i.pairs.iter().map(|p| [take(&p.k, i.keys, p.size), take(&p.q, QUERIES, p.size)]).collect();
        let pair = |(p, [k, q]): (&super::arrays::Pair, [usize; 2])| PairPlaces {
            k,
            d_k: room.take(i.keys * p.size),
            q: [q, room.take(QUERIES * p.size)],
            d_q: room.take(QUERIES * p.size),
        };
        Places {
            pairs: i.pairs.iter().zip(copies).map(pair).collect(),
            v,
            d_v: room.take(i.keys * i.value_size),
            d_out: [d_out_rows, room.take(QUERIES * i.value_size)],
            scores: room.take(KEYS * QUERIES),
            gradients: room.take(KEYS * QUERIES),
            lse: room.take(QUERIES),
            delta: room.take(QUERIES),
            marks: [room.take(QUERIES), room.take(QUERIES)],
            room,
        }
    }
}

impl Backward {
    pub(in crate::kernels) fn prepare(k: &plan::AttentionBackward, cx: &PrepareCx) -> Result<Backward, PrepareError> {
        let pairs = k.inputs.pairs.len();
        ensure(k.d_q.len() == pairs && k.d_k.len() == pairs, || "not every pair has its gradients".into())?;
        ensure(k.d_sink.is_none() || k.inputs.sink.is_some(), || "there is no sink".into())?;
        // Dimensions that some gradient lacks. That of the sink is so small that each problem has a place of its own for it.
        let lacks = |d: usize| {
            let gradients = || k.d_q.iter().chain(&k.d_k).chain([&k.d_v]).flatten();
            k.inputs.batch[d] > 1 && gradients().any(|view| view.strides.get(d) == Some(&0))
        };
        let batch = Batch::new(&k.inputs.batch, lacks);
        let shared = (0..k.inputs.batch.len()).filter(|&d| lacks(d)).count();
        let inputs = Inputs::new(&k.inputs, batch, cx)?;
        let (batch, dtype) = (&inputs.batch, inputs.dtype);
        let mut sums = Sums::new(batch, shared);
        let mut target = |view: &Option<plan::View>, sizes: [usize; 2], factor: f64, what: &str| {
            let Some(view) = view else { return Ok(None) };
            let array = batch.array(view, dtype, cx, what)?;
            let lacks = array.batch.iter().zip(&batch.sizes).any(|(stride, size)| *stride == 0 && *size > 1);
            let shared = lacks.then(|| sums.push(batch, &array, sizes, factor));
            Ok(Some(Target { array, shared }))
        };
        let mut gradients = vec![];
        for ((pair, d_q), d_k) in inputs.pairs.iter().zip(&k.d_q).zip(&k.d_k) {
            gradients.push(PairGradients {
                q: target(d_q, [inputs.queries, pair.size], inputs.scale, "the gradient of queries")?,
                k: target(d_k, [inputs.keys, pair.size], inputs.scale, "the gradient of keys")?,
            });
        }
        let d_v = target(&k.d_v, [inputs.keys, inputs.value_size], 1.0, "the gradient of values")?;
        let d_out = batch.array(&k.d_out, dtype, cx, "the gradient of the result")?;
        Ok(Backward {
            cpu: cx.cpu,
            out: batch.array(&k.out, dtype, cx, "the result")?,
            lse: batch.array(&k.lse, k.inputs.wide(), cx, "the lse")?,
            pairs: gradients,
            d_v,
            d_sink: match &k.d_sink {
                Some(view) => Some(Elements::new(batch, batch.array(view, dtype, cx, "the gradient of the sink")?)),
                None => None,
            },
            sums,
            places: Places::new(&inputs, &d_out),
            d_out,
            inputs,
        })
    }

    pub(in crate::kernels) fn scratch_bytes(&self) -> ScratchBytes {
        let dtype = self.inputs.dtype;
        let sinks = if self.d_sink.is_some() { self.inputs.batch.count() } else { 0 };
        ScratchBytes {
            shared: (self.sums.shared() + sinks) * wide_bytes(dtype),
            worker: self.places.room.bytes(dtype).max(self.sums.worker() * wide_bytes(dtype)),
        }
    }

    /// # Safety
    /// As [`crate::kernels::run`].
    pub(in crate::kernels) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        // SAFETY: the caller's contract; the flavour's features are there, since a `Cpu` is never above the machine.
        with_flavour!(self.inputs.dtype, self.cpu, |S, X| unsafe { self.run_as::<S, X>(cx) });
        Ok(())
    }

    unsafe fn run_as<S: Simd<T: Wide>, X: Source<S::T>>(&self, cx: &KernelCx) {
        let shared = Shared::new(cx.scratch.shared().cast::<S::T>());
        let serial = self.inputs.work() <= SERIAL;
        let task = |number: usize, slot: usize, worker: usize| {
            // SAFETY: the caller's contract; workers have their workspace, and problems their gradients.
            unsafe {
                let space = cx.scratch.worker(worker).cast::<S::T>();
                let problem = Problem { inputs: &self.inputs, cx, cpu: self.cpu, number, space };
                self.problem::<S, X>(&problem, shared, slot);
            }
        };
        // SAFETY: as above.
        unsafe {
            self.sums.run::<S::T, X>(cx, self.cpu, &self.inputs.batch, serial, &task);
            if let Some(sinks) = &self.d_sink {
                sinks.run::<S::T, X>(cx, &self.inputs.batch, shared.get().add(self.sums.shared()));
            }
        }
    }

    unsafe fn problem<S: Simd<T: Wide>, X: Source<S::T>>(
        &self,
        problem: &Problem<S::T>,
        shared: Shared<S::T>,
        slot: usize,
    ) {
        let (i, places) = (&self.inputs, &self.places);
        let seen = i.key_blocks(0, i.queries);
        let range = seen.start * KEYS..(seen.end * KEYS).min(i.keys);
        let mut sink = S::T::ZERO;
        // SAFETY: the caller's contract; the workspace has room for all places.
        unsafe {
            let at = |place: usize| problem.space.add(place);
            let keys = problem.keys::<X>(&range, |p| places.pairs[p].k);
            let values = problem.rows::<X>(&i.v, i.value_size, range, places.v);
            let clear = |place, n| std::slice::from_raw_parts_mut(at(place), n).fill(S::T::ZERO);
            clear(places.d_v, i.keys * i.value_size);
            for (pair, places) in i.pairs.iter().zip(&places.pairs) {
                clear(places.d_k, i.keys * pair.size);
            }
            for first in (0..i.queries).step_by(QUERIES) {
                let queries = (i.queries - first).min(QUERIES);
                sink = sink.plus(self.start::<S::T, X>(problem, first, queries));
                self.block::<S, X>(problem, first, &keys, values);
                for ((pair, target), places) in i.pairs.iter().zip(&self.pairs).zip(&places.pairs) {
                    if let Some(target) = &target.q {
                        let size = [queries, pair.size];
                        self.leave::<S::T, X>(problem, target, (shared, slot), first, size, i.scale, places.d_q);
                    }
                }
            }
            for ((pair, target), places) in i.pairs.iter().zip(&self.pairs).zip(&places.pairs) {
                if let Some(target) = &target.k {
                    let size = [i.keys, pair.size];
                    self.leave::<S::T, X>(problem, target, (shared, slot), 0, size, i.scale, places.d_k);
                }
            }
            if let Some(target) = &self.d_v {
                let size = [i.keys, i.value_size];
                self.leave::<S::T, X>(problem, target, (shared, slot), 0, size, 1.0, places.d_v);
            }
            if self.d_sink.is_some() {
                *shared.get().add(self.sums.shared() + problem.number) = sink;
            }
        }
    }

    /// The lse and delta of a block of queries; gives their part of the sink's gradient.
    unsafe fn start<T: Wide, X: Source<T>>(&self, problem: &Problem<T>, first: usize, queries: usize) -> T {
        let i = &self.inputs;
        // SAFETY: the caller's contract.
        unsafe {
            let (lse, delta) = (problem.space.add(self.places.lse), problem.space.add(self.places.delta));
            let given = problem.part::<T>(&self.lse).from(first);
            for t in 0..QUERIES {
                *lse.add(t) = if t < queries { *given.at.add(t * given.row) } else { T::MOST };
                *delta.add(t) = T::ZERO;
            }
            let (out, d_out) = (problem.part::<X>(&self.out), problem.part::<X>(&self.d_out));
            rows::dots(self.cpu, d_out.from(first), out.from(first), queries, i.value_size, delta);
            let (Some(_), Some(sink)) = (&self.d_sink, &i.sink) else { return T::ZERO };
            let sink: T = (*problem.part::<X>(sink).at).widen();
            (0..queries).fold(T::ZERO, |sum, t| {
                // Without a sink and a visible key both are -∞, and there is no gradient.
                let p = if sink == T::LEAST { T::ZERO } else { sink.minus(*lse.add(t)).exp(false) };
                sum.minus(p.times(*delta.add(t)))
            })
        }
    }

    /// A block of queries: adds to the gradients of keys and values, makes those of the queries.
    unsafe fn block<S: Simd<T: Wide>, X: Source<S::T>>(
        &self,
        problem: &Problem<S::T>,
        first: usize,
        keys: &[Rows<S::T>; MAX_PAIRS],
        values: Rows<S::T>,
    ) {
        let (i, places) = (&self.inputs, &self.places);
        let queries = (i.queries - first).min(QUERIES);
        let range = first..first + queries;
        let at = |place: usize| problem.space.wrapping_add(place);
        let (scores, gradients) = (at(places.scores), at(places.gradients));
        // SAFETY: the caller's contract.
        unsafe {
            problem.turn_queries::<S, X>(first, queries, |p| places.pairs[p].q[1]);
            let d_out = problem.part::<X>(&self.d_out).from(first);
            rows::turn::<S, X>(self.cpu, d_out, [queries, i.value_size], S::T::ONE, at(places.d_out[1]));
            let d_out = self.rows::<S::T, X>(problem, &self.d_out, i.value_size, range.clone(), places.d_out[0]);
            let mut q = [Rows { at: std::ptr::null(), row: 0 }; MAX_PAIRS];
            for (p, pair) in i.pairs.iter().enumerate() {
                q[p] = self.rows::<S::T, X>(problem, &pair.q, pair.size, range.clone(), places.pairs[p].q[0]);
                let d_q = at(places.pairs[p].d_q);
                std::slice::from_raw_parts_mut(d_q, queries * pair.size).fill(S::T::ZERO);
            }
            let marked = problem.marks(first, queries, places.marks);
            let state = Gradients { scores, gradients, lse: at(places.lse), delta: at(places.delta) };
            for number in i.key_blocks(first, first + queries) {
                let Some(block) = Block::new(i, number, first, queries, &marked) else { continue };
                problem.scores::<S>(&block, keys, |p| places.pairs[p].q[1], places.scores);
                transposed::<S>(&block, values, i.value_size, at(places.d_out[1]), gradients, false);
                let pass = softmax::Backward { block: &block, gradients: state };
                pass.run::<S>();
                if self.d_v.is_some() {
                    add_to_keys::<S>(&block, scores, d_out, [queries, i.value_size], at(places.d_v));
                }
                for (p, pair) in i.pairs.iter().enumerate() {
                    let size = [queries, pair.size];
                    if self.pairs[p].k.is_some() {
                        add_to_keys::<S>(&block, gradients, q[p], size, at(places.pairs[p].d_k));
                    }
                    if self.pairs[p].q.is_some() {
                        add_to_queries::<S>(&block, gradients, keys[p], size, at(places.pairs[p].d_q));
                    }
                }
            }
        }
    }

    /// A block of rows for products: where they are, or copied to a place that has room for a block.
    unsafe fn rows<T: Wide, X: Source<T>>(
        &self,
        problem: &Problem<T>,
        array: &Array,
        size: usize,
        range: std::ops::Range<usize>,
        place: usize,
    ) -> Rows<T> {
        // SAFETY: the caller's contract.
        unsafe {
            let from = problem.part::<X>(array).from(range.start);
            if self.inputs.stays(array, size) {
                return Rows { at: from.at.cast_const().cast::<T>(), row: from.row };
            }
            rows::widen::<T, X>(self.cpu, from, range.len(), size, problem.space.add(place));
            Rows { at: problem.space.add(place), row: size }
        }
    }

    /// Some rows of a gradient, to where they belong.
    #[allow(clippy::too_many_arguments)]
    unsafe fn leave<T: Wide, X: Source<T>>(
        &self,
        problem: &Problem<T>,
        target: &Target,
        (shared, slot): (Shared<T>, usize),
        first: usize,
        [rows, size]: [usize; 2],
        factor: f64,
        place: usize,
    ) {
        // SAFETY: the caller's contract; shared gradients have a place for each problem of a wave.
        unsafe {
            let from = problem.space.add(place).cast_const();
            match target.shared {
                Some(number) => {
                    let to = shared.get().add(self.sums.place(slot, number) + first * size);
                    to.copy_from_nonoverlapping(from, rows * size);
                }
                None => {
                    let to = problem.part::<X>(&target.array).from(first);
                    rows::store(self.cpu, from, rows, size, T::of(factor), to);
                }
            }
        }
    }
}
