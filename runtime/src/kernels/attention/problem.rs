//! What the forward and the backward pass of one problem share: its rows in the workspace, and blocks of scores.

use super::QUERIES;
use super::arrays::{Array, Inputs};
use super::block::Block;
use super::marks::{Marked, Marks};
use super::rows::{self, Strided};
use super::softmax::Wide;
use crate::kernels::KernelCx;
use crate::kernels::cpu::Cpu;
use crate::kernels::matmul::product::{Product, Rows};
use crate::kernels::matmul::tile::{Simd, Source};
use forebay_plan::verify::MAX_PAIRS;

/// One index of the batch, on one worker.
#[derive(Clone, Copy)]
pub(super) struct Problem<'a, T> {
    pub inputs: &'a Inputs,
    pub cx: &'a KernelCx<'a>,
    pub cpu: Cpu,
    pub number: usize,
    /// The worker's workspace.
    pub space: *mut T,
}

/// Rows of each pair.
pub(super) type Pairs<R> = [R; MAX_PAIRS];

/// Where a problem's parts of its arrays are.
#[derive(Clone, Copy)]
pub(super) struct Parts<X> {
    pub q: Pairs<Strided<X>>,
    pub k: Pairs<Strided<X>>,
    pub v: Strided<X>,
}

/// The methods' contract is that of [`crate::kernels::run`], and that places have room.
impl<T: Wide> Problem<'_, T> {
    /// The problem's part of an array.
    pub unsafe fn part<X>(&self, array: &Array) -> Strided<X> {
        // SAFETY: the caller's contract.
        Strided::new(unsafe { array.of::<X>(self.cx.buffers, &self.inputs.batch, self.number) }, array)
    }

    /// Its parts of all arrays of queries, keys and values.
    pub unsafe fn parts<X: Copy>(&self) -> Parts<X> {
        // SAFETY: the caller's contract.
        unsafe {
            let v = self.part(&self.inputs.v);
            let mut parts = Parts { q: [v; MAX_PAIRS], k: [v; MAX_PAIRS], v };
            for (p, pair) in self.inputs.pairs.iter().enumerate() {
                (parts.q[p], parts.k[p]) = (self.part(&pair.q), self.part(&pair.k));
            }
            parts
        }
    }

    /// Turns a block of queries, of each pair.
    pub unsafe fn turn_queries<S: Simd<T = T>, X: Source<T>>(
        &self,
        q: &Pairs<Strided<X>>,
        first: usize,
        queries: usize,
        place: impl Fn(usize) -> usize,
    ) {
        for (p, pair) in self.inputs.pairs.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { rows::turn::<S, X>(q[p].from(first), [queries, pair.size], self.space.add(place(p))) };
        }
    }

    /// Fetches a part, of so many, of what is read first for a block of queries: the queries, and keys and values that have not been copied. Products of the block
    /// before it do not wait for memory; copies would.
    pub fn fetch_next<X: Copy>(&self, parts: &Parts<X>, block: usize, copied: usize, share: (usize, usize)) {
        let (i, first) = (self.inputs, block * QUERIES);
        if first >= i.queries {
            return;
        }
        let queries = first..(first + QUERIES).min(i.queries);
        let keys = copied..i.key_positions(block).end.max(copied);
        for (p, pair) in i.pairs.iter().enumerate() {
            rows::fetch(parts.q[p], pair.size, &queries, share);
            rows::fetch(parts.k[p], pair.size, &keys, share);
        }
        rows::fetch(parts.v, i.value_size, &keys, share);
    }

    /// The scores of a block, given turned queries.
    pub unsafe fn scores<S: Simd<T = T>>(
        &self,
        block: &Block,
        keys: &Pairs<Rows<T>>,
        turned: impl Fn(usize) -> usize,
        place: usize,
    ) {
        for (p, pair) in self.inputs.pairs.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe {
                let turned = self.space.add(turned(p)).cast_const();
                transposed::<S>(block, keys[p], pair.size, turned, self.space.add(place), p > 0);
            }
        }
    }

    /// The documents and the positions of a block of queries, copied side by side, and of all keys.
    pub unsafe fn marks(&self, first: usize, queries: usize, places: [usize; 2]) -> Marked {
        let here = |of: &Option<[Array; 2]>, place: usize| {
            let [of_queries, of_keys] = of.as_ref()?;
            // SAFETY: the caller's contract; the place has room for `QUERIES` elements that are not smaller.
            unsafe {
                let (from, keys) = (self.part::<i32>(of_queries).from(first), self.part::<i32>(of_keys));
                let to = self.space.add(place).cast::<i32>();
                for t in 0..QUERIES {
                    // What does not exist is like the last one: it makes nothing visible.
                    *to.add(t) = *from.at.add(t.min(queries - 1) * from.row);
                }
                Some(Marks { queries: to, keys: keys.at, stride: keys.row })
            }
        };
        let i = self.inputs;
        Marked { documents: here(&i.documents, places[0]), positions: here(&i.positions, places[1]) }
    }
}

/// Products of rows, one for each key, with turned rows, one for each query: the visible part of a transposed block.
///
/// # Safety
/// The machine has the flavour's features; there is a row of `size` elements for each key, as many turned ones of [`QUERIES`], and room for the block.
pub(super) unsafe fn transposed<S: Simd>(
    block: &Block,
    rows: Rows<S::T>,
    size: usize,
    turned: *const S::T,
    to: *mut S::T,
    add: bool,
) {
    block.spans(|keys, queries| {
        // SAFETY: the caller's contract; turned rows have zeros for queries that do not exist.
        unsafe {
            let product = Product {
                rows: keys.len(),
                columns: queries.len(),
                depth: S::words(size),
                a: rows.from(block.key + keys.start).at,
                a_row: rows.row,
                a_step: 1,
                b: Rows { at: turned.add(queries.start), row: QUERIES },
                c: to.add(keys.start * QUERIES + queries.start),
                c_row: QUERIES,
                add,
            };
            product.run::<S>();
        }
    });
}

/// Adds to each query's row the rows of its visible keys, in panels, times a transposed block of words of as many keys as a word holds.
///
/// # Safety
/// The machine has the flavour's features; there is a row for each key, and one of `size` elements for each of `queries` queries.
pub(super) unsafe fn add_to_queries<S: Simd>(
    block: &Block,
    factors: *const S::T,
    rows: Rows<S::T>,
    [queries, size]: [usize; 2],
    to: *mut S::T,
) {
    block.columns(|columns, keys| {
        let columns = columns.start..columns.end.min(queries);
        // SAFETY: the caller's contract.
        unsafe {
            let product = Product {
                rows: columns.len(),
                columns: size,
                depth: S::words(keys.len()),
                a: factors.add(keys.start / S::PAIR * QUERIES + columns.start),
                a_row: 1,
                a_step: QUERIES,
                b: rows.from((block.key + keys.start) / S::PAIR),
                c: to.add(columns.start * size),
                c_row: size,
                add: true,
            };
            product.run::<S>();
        }
    });
}

/// Adds to each key's row the rows of queries that see it, in panels, times a transposed block, in each row words of as many queries as a word holds.
///
/// # Safety
/// The machine has the flavour's features; there is a row for each of `queries` queries, and one of `size` elements for each key of the problem.
pub(super) unsafe fn add_to_keys<S: Simd>(
    block: &Block,
    factors: *const S::T,
    rows: Rows<S::T>,
    [queries, size]: [usize; 2],
    to: *mut S::T,
) {
    block.spans(|keys, columns| {
        let columns = columns.start..columns.end.min(queries);
        // SAFETY: the caller's contract.
        unsafe {
            let product = Product {
                rows: keys.len(),
                columns: size,
                depth: S::words(columns.len()),
                a: factors.add(keys.start * QUERIES + columns.start / S::PAIR),
                a_row: QUERIES,
                a_step: 1,
                b: rows.from(columns.start / S::PAIR),
                c: to.add((block.key + keys.start) * size),
                c_row: size,
                add: true,
            };
            product.run::<S>();
        }
    });
}
