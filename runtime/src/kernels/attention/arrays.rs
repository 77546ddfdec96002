//! The operands as prepared: where each array of a problem is.

use super::super::{Buf, PrepareCx, PrepareError, ensure};
use super::{KEYS, QUERIES, wide_bytes};
use crate::kernels::matmul::tile::{Simd, Source};
use crate::kernels::matmul::with_product_flavour;
use forebay_plan::verify::MAX_PAIRS;
use forebay_plan::{AttentionInputs, DType, Marks, View};

/// The dimensions of the batch, in the order in which problems are numbered.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub sizes: Vec<usize>,
    /// Which dimension of the plan each is.
    order: Vec<usize>,
}

impl Batch {
    /// The dimensions for which `inner` holds are the innermost ones.
    pub fn new(sizes: &[u64], inner: impl Fn(usize) -> bool) -> Batch {
        let (last, mut order): (Vec<usize>, Vec<usize>) = (0..sizes.len()).partition(|&d| inner(d));
        order.extend(last);
        Batch { sizes: order.iter().map(|&d| sizes[d] as usize).collect(), order }
    }

    /// How many problems.
    pub fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The array of a view.
    pub fn array(&self, view: &View, dtype: DType, cx: &PrepareCx, what: &str) -> Result<Array, PrepareError> {
        let (outer, inner) = view.strides.split_at_checked(self.order.len()).unwrap_or((&[], &view.strides));
        ensure(inner.len() <= 2 && outer.len() == self.order.len(), || format!("{what}: strides do not fit"))?;
        let inner_stride = |i: usize| inner.get(i).map_or(0, |s| *s as usize);
        Ok(Array {
            buffer: cx.buffer_of(view.buffer, dtype, what)?,
            offset: view.offset as usize,
            batch: self.order.iter().map(|&d| outer[d] as usize).collect(),
            row: inner_stride(0),
            step: inner_stride(1),
        })
    }

    /// The dimensions in the plan's order: size, what a step counts in the number of a problem, stride in an array.
    pub fn dims(&self, array: &Array) -> Vec<(usize, usize, usize)> {
        let mut dims: Vec<_> = self.order.iter().map(|&d| (d, 0, 0, 0)).collect();
        let mut step = 1;
        for (at, dim) in dims.iter_mut().enumerate().rev() {
            (dim.1, dim.2, dim.3) = (self.sizes[at], step, array.batch[at]);
            step *= self.sizes[at];
        }
        dims.sort_unstable();
        dims.into_iter().map(|(_, size, step, stride)| (size, step, stride)).collect()
    }

    /// Where a problem's part of an array begins, in elements.
    pub fn at(&self, array: &Array, problem: usize) -> usize {
        let (mut at, mut rest) = (array.offset, problem);
        for (size, stride) in self.sizes.iter().zip(&array.batch).rev() {
            at += rest % size * stride;
            rest /= size;
        }
        at
    }
}

/// An array `[batch…, positions, elements]`.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub buffer: usize,
    offset: usize,
    /// Strides of the batch, in its order.
    pub batch: Vec<usize>,
    /// From one position to the next.
    pub row: usize,
    /// From one element to the next.
    pub step: usize,
}

impl Array {
    /// The first element of a problem's part.
    ///
    /// # Safety
    /// The buffers are those that the kernel was prepared for.
    pub unsafe fn of<X>(&self, buffers: &[Buf], batch: &Batch, problem: usize) -> *mut X {
        // SAFETY: views lie within their buffers.
        unsafe { buffers[self.buffer].ptr.cast::<X>().add(batch.at(self, problem)) }
    }
}

/// One product of queries and keys.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub size: usize,
    pub q: Array,
    pub k: Array,
}

/// What is attended with.
#[derive(Clone, Debug)]
pub(super) struct Inputs {
    pub dtype: DType,
    /// Products in a word of what is multiplied: 2 where pairs of bf16 are.
    pub pair: usize,
    pub batch: Batch,
    pub queries: usize,
    pub keys: usize,
    pub pairs: Vec<Pair>,
    pub v: Array,
    pub value_size: usize,
    pub scale: f64,
    pub causal: bool,
    /// 0 for none.
    pub window: usize,
    /// Of queries and keys.
    pub documents: Option<[Array; 2]>,
    pub sink: Option<Array>,
    /// Of queries and keys, where both do not count from 0.
    pub positions: Option<[Array; 2]>,
}

impl Inputs {
    pub fn new(k: &AttentionInputs, batch: Batch, cx: &PrepareCx) -> Result<Inputs, PrepareError> {
        ensure(k.dtype.is_float(), || format!("attention of {:?}", k.dtype))?;
        let sizes = k.pairs.iter().map(|p| p.size).chain([k.queries, k.keys, k.value_size]).chain(k.batch.clone());
        ensure(!k.pairs.is_empty() && sizes.min() > Some(0), || "there is nothing to attend to".into())?;
        ensure(k.pairs.len() <= MAX_PAIRS, || format!("{} pairs of queries and keys", k.pairs.len()))?;
        let array = |view: &View, what: &str| batch.array(view, k.dtype, cx, what);
        let pair = |p: &forebay_plan::ScorePair| {
            Ok(Pair { size: p.size as usize, q: array(&p.q, "queries")?, k: array(&p.k, "keys")? })
        };
        let marks = |of: &Option<Marks>, what: &str| {
            let array = |view: &View| batch.array(view, DType::I32, cx, what);
            let pair = |of: &Marks| Ok([array(&of.queries)?, array(&of.keys)?]);
            of.as_ref().map(pair).transpose()
        };
        let (documents, positions) = (marks(&k.documents, "documents")?, marks(&k.positions, "positions")?);
        Ok(Inputs {
            dtype: k.dtype,
            pair: with_product_flavour!(k.dtype, cx.cpu, |S, X| products_in_a_word::<S, X>()),
            queries: k.queries as usize,
            keys: k.keys as usize,
            pairs: k.pairs.iter().map(pair).collect::<Result<_, PrepareError>>()?,
            v: array(&k.v, "values")?,
            value_size: k.value_size as usize,
            scale: k.scale,
            causal: k.causal,
            window: k.window.min(1 << 32) as usize,
            documents,
            sink: k.sink.as_ref().map(|s| array(s, "the sink")).transpose()?,
            positions,
            batch,
        })
    }

    /// Elements of all keys of one position.
    pub fn score_size(&self) -> usize {
        self.pairs.iter().map(|p| p.size).sum()
    }

    /// Blocks of queries.
    pub fn query_blocks(&self) -> usize {
        self.queries.div_ceil(QUERIES)
    }

    /// Multiply-adds of all scores; masks do not count.
    pub fn work(&self) -> usize {
        let positions = self.batch.count().saturating_mul(self.queries).saturating_mul(self.keys);
        positions.saturating_mul(self.score_size() + self.value_size)
    }

    /// The blocks of keys that queries `first..end` may see; all of them, where positions are given.
    pub fn key_blocks(&self, first: usize, end: usize) -> std::ops::Range<usize> {
        let counted = self.positions.is_none();
        let visible = if self.causal && counted { end.min(self.keys) } else { self.keys };
        let passed = if self.window > 0 && counted { (first + 1).saturating_sub(self.window) } else { 0 };
        passed.min(visible) / KEYS..visible.div_ceil(KEYS)
    }

    /// The keys that a block of queries may see.
    pub fn key_positions(&self, block: usize) -> std::ops::Range<usize> {
        let first = block * QUERIES;
        let blocks = self.key_blocks(first, (first + QUERIES).min(self.queries));
        blocks.start * KEYS..(blocks.end * KEYS).min(self.keys)
    }

    /// Words that hold so many products.
    pub fn words(&self, products: usize) -> usize {
        products.div_ceil(self.pair)
    }

    /// Can rows of an array be read where they are, all through a problem? Rows far apart cost more than one copy, unless they are read only once.
    pub fn stays(&self, array: &Array, size: usize) -> bool {
        self.dtype != DType::Bf16 && array.step == 1 && (array.row == size || self.query_blocks() == 1)
    }
}

fn products_in_a_word<S: Simd, X: Source<S::T>>() -> usize {
    S::PAIR
}

/// Places in a workspace, in elements.
#[derive(Debug, Default)]
pub(super) struct Room(usize);

impl Room {
    /// The place of so many elements; on a cache line.
    pub fn take(&mut self, elements: usize) -> usize {
        let at = self.0;
        self.0 = (at + elements).next_multiple_of(16);
        at
    }

    pub fn bytes(&self, dtype: DType) -> usize {
        self.0 * wide_bytes(dtype)
    }
}
