//! The backward pass.

use super::arrays::{Array, Batch, Inputs, Room};
use super::block::Block;
use super::operand::Operand;
use super::problem::{Pairs, Parts, Problem, add_to_keys, add_to_queries, transposed};
use super::rows::{self, Strided};
use super::softmax::{self, Gradients, Wide};
use super::sums::{Elements, Sums};
use super::{KEYS, QUERIES, SERIAL, wide_bytes};
use crate::kernels::cpu::Cpu;
use crate::kernels::matmul::product::Rows;
use crate::kernels::matmul::tile::{Simd, Source};
use crate::kernels::matmul::with_product_flavour;
use crate::kernels::scratch::Shared;
use crate::kernels::{KernelCx, KernelError, PrepareCx, PrepareError, ScratchBytes, ensure};
use forebay_plan as plan;
use forebay_plan::verify::MAX_PAIRS;

/// The keys of each pair, as rows and as panels.
type Keys<T> = Pairs<[Rows<T>; 2]>;

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

/// A problem's parts of the result and of its gradient.
#[derive(Clone, Copy)]
struct Given<X> {
    out: Strided<X>,
    d_out: Strided<X>,
}

/// Where everything is in a worker's workspace.
#[derive(Debug)]
struct Places {
    pairs: Vec<PairPlaces>,
    v: Operand,
    d_v: usize,
    /// A block of gradients of the result, turned, and its rows.
    d_out: (usize, Operand),
    scores: usize,
    gradients: usize,
    /// Gradients of scores as words of keys, where those are pairs.
    words: usize,
    lse: usize,
    delta: usize,
    /// Documents and positions of a block of queries.
    marks: [usize; 2],
    room: Room,
}

#[derive(Debug)]
struct PairPlaces {
    k: Operand,
    /// The same keys to be summed over, where that is another form.
    k_panels: Option<Operand>,
    d_k: usize,
    /// A block of queries, turned, and its rows.
    q: (usize, Operand),
    /// A block of gradients of queries.
    d_q: usize,
}

impl Places {
    fn new(i: &Inputs, d_out: &Array) -> Places {
        let mut room = Room::default();
        let v = Operand::rows(i, &i.v, [i.keys, i.value_size], &mut room);
        let mut pair = |p: &super::arrays::Pair| PairPlaces {
            k: Operand::rows(i, &p.k, [i.keys, p.size], &mut room),
            k_panels: (i.pair > 1).then(|| Operand::panels(i, &p.k, [i.keys, p.size], &mut room)),
            d_k: room.take(i.keys * p.size),
            q: (room.take(i.words(p.size) * QUERIES), Operand::panels(i, &p.q, [QUERIES, p.size], &mut room)),
            d_q: room.take(QUERIES * p.size),
        };
        Places {
            pairs: i.pairs.iter().map(&mut pair).collect(),
            v,
            d_v: room.take(i.keys * i.value_size),
            d_out: (
                room.take(i.words(i.value_size) * QUERIES),
                Operand::panels(i, d_out, [QUERIES, i.value_size], &mut room),
            ),
            scores: room.take(KEYS * QUERIES),
            gradients: room.take(KEYS * QUERIES),
            words: room.take(if i.pair > 1 { i.words(KEYS) * QUERIES } else { 0 }),
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
        with_product_flavour!(self.inputs.dtype, self.cpu, |S, X| unsafe { self.run_as::<S, X>(cx) });
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
                S::begin();
                self.problem::<S, X>(&problem, shared, slot);
                S::end();
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
        let mut sink = S::T::ZERO;
        // SAFETY: the caller's contract; the workspace has room for all places.
        unsafe {
            let at = |place: usize| problem.space.add(place);
            let parts = problem.parts::<X>();
            let rows = Given { out: problem.part(&self.out), d_out: problem.part(&self.d_out) };
            let values = places.v.all::<S, X>(problem, parts.v);
            let mut keys = [[values; 2]; MAX_PAIRS];
            for (p, places) in places.pairs.iter().enumerate() {
                let (k, panels) = (&places.k, places.k_panels.as_ref().unwrap_or(&places.k));
                keys[p] = [k, panels].map(|of| of.all::<S, X>(problem, parts.k[p]));
            }
            let clear = |place, n| std::slice::from_raw_parts_mut(at(place), n).fill(S::T::ZERO);
            clear(places.d_v, i.keys * i.value_size);
            for (pair, places) in i.pairs.iter().zip(&places.pairs) {
                clear(places.d_k, i.keys * pair.size);
            }
            let mut copied = i.key_positions(0).start;
            for block in 0..i.query_blocks() {
                let first = block * QUERIES;
                let queries = (i.queries - first).min(QUERIES);
                // Keys that no query sees are not copied either.
                let fresh = copied..i.key_positions(block).end.max(copied);
                places.v.copy::<S, X>(problem, parts.v, fresh.clone());
                for (p, places) in places.pairs.iter().enumerate() {
                    let forms = [Some(&places.k), places.k_panels.as_ref()];
                    forms.into_iter().flatten().for_each(|of| of.copy::<S, X>(problem, parts.k[p], fresh.clone()));
                }
                copied = fresh.end;
                sink = sink.plus(self.start::<S::T, X>(problem, &rows, first, queries));
                self.block::<S, X>(problem, (&parts, &rows), first, (&keys, values), copied);
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
    unsafe fn start<T: Wide, X: Source<T>>(
        &self,
        problem: &Problem<T>,
        rows: &Given<X>,
        first: usize,
        queries: usize,
    ) -> T {
        let i = &self.inputs;
        // SAFETY: the caller's contract.
        unsafe {
            let (lse, delta) = (problem.space.add(self.places.lse), problem.space.add(self.places.delta));
            let given = problem.part::<T>(&self.lse).from(first);
            for t in 0..QUERIES {
                *lse.add(t) = if t < queries { *given.at.add(t * given.row) } else { T::MOST };
                *delta.add(t) = T::ZERO;
            }
            rows::dots(self.cpu, rows.d_out.from(first), rows.out.from(first), queries, i.value_size, delta);
            let mut gradient = T::ZERO;
            if let (Some(_), Some(sink)) = (&self.d_sink, &i.sink) {
                let sink: T = (*problem.part::<X>(sink).at).widen();
                for t in 0..queries {
                    // Without a sink and a visible key both are -∞, and there is no gradient.
                    let p = if sink == T::LEAST { T::ZERO } else { sink.minus(*lse.add(t)).exp(false) };
                    gradient = gradient.minus(p.times(*delta.add(t)));
                }
            }
            (0..QUERIES).for_each(|t| *lse.add(t) = (*lse.add(t)).times(T::of(T::LOG_E)));
            gradient
        }
    }

    /// A block of queries: adds to the gradients of keys and values, makes those of the queries. The keys of each pair are there as rows and as panels, and have been
    /// copied up to a position.
    unsafe fn block<S: Simd<T: Wide>, X: Source<S::T>>(
        &self,
        problem: &Problem<S::T>,
        (parts, given): (&Parts<X>, &Given<X>),
        first: usize,
        (keys, values): (&Keys<S::T>, Rows<S::T>),
        copied: usize,
    ) {
        let (i, places) = (&self.inputs, &self.places);
        let queries = (i.queries - first).min(QUERIES);
        let range = first..first + queries;
        let next = range.end..(range.end + QUERIES).min(i.queries);
        let at = |place: usize| problem.space.wrapping_add(place);
        let (scores, gradients) = (at(places.scores), at(places.gradients));
        // SAFETY: the caller's contract.
        unsafe {
            problem.turn_queries::<S, X>(&parts.q, first, queries, |p| places.pairs[p].q.0);
            let (turned, d_out) = (at(places.d_out.0), &places.d_out.1);
            rows::turn::<S, X>(given.d_out.from(first), [queries, i.value_size], turned);
            let d_out = d_out.block::<S, X>(problem, given.d_out, range.clone());
            let mut q = [d_out; MAX_PAIRS];
            for (p, pair) in i.pairs.iter().enumerate() {
                q[p] = places.pairs[p].q.1.block::<S, X>(problem, parts.q[p], range.clone());
                let d_q = at(places.pairs[p].d_q);
                std::slice::from_raw_parts_mut(d_q, queries * pair.size).fill(S::T::ZERO);
            }
            let marked = problem.marks(first, queries, places.marks);
            let (unit, words) = (S::T::of(i.scale * S::T::LOG_E), at(places.words));
            let state = Gradients { scores, gradients, words, unit, lse: at(places.lse), delta: at(places.delta) };
            let (key_rows, numbers) = (keys.map(|[rows, _]| rows), i.key_blocks(first, first + queries));
            for number in numbers.clone() {
                let share = (number - numbers.start, numbers.len());
                problem.fetch_next(parts, first / QUERIES + 1, copied, share);
                [given.out, given.d_out].into_iter().for_each(|of| rows::fetch(of, i.value_size, &next, share));
                let Some(block) = Block::new(i, number, first, queries, &marked) else { continue };
                problem.scores::<S>(&block, &key_rows, |p| places.pairs[p].q.0, places.scores);
                transposed::<S>(&block, values, i.value_size, turned, gradients, false);
                let pass = softmax::Backward { block: &block, gradients: state };
                pass.run::<S>();
                if self.d_v.is_some() {
                    add_to_keys::<S>(&block, scores, d_out, [queries, i.value_size], at(places.d_v));
                }
                let by_keys = if S::PAIR > 1 { words } else { gradients };
                for (p, pair) in i.pairs.iter().enumerate() {
                    let size = [queries, pair.size];
                    if self.pairs[p].k.is_some() {
                        add_to_keys::<S>(&block, gradients, q[p], size, at(places.pairs[p].d_k));
                    }
                    if self.pairs[p].q.is_some() {
                        add_to_queries::<S>(&block, by_keys, keys[p][1], size, at(places.pairs[p].d_q));
                    }
                }
            }
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
