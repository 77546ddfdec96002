//! What the forward and the backward pass of one problem share: its rows in the workspace, and blocks of scores.

use super::QUERIES;
use super::arrays::{Array, Inputs};
use super::block::Block;
use super::marks::{Marked, Marks};
use super::product::{Product, Rows};
use super::rows::{self, Strided};
use super::softmax::Wide;
use crate::kernels::KernelCx;
use crate::kernels::cpu::Cpu;
use crate::kernels::matmul::tile::{Simd, Source};
use forebay_plan::verify::MAX_PAIRS;
use std::ops::Range;

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

/// Keys of each pair.
pub(super) type Keys<T> = [Rows<T>; MAX_PAIRS];

/// The methods' contract is that of [`crate::kernels::run`], and that places have room.
impl<T: Wide> Problem<'_, T> {
    /// The problem's part of an array.
    pub unsafe fn part<X>(&self, array: &Array) -> Strided<X> {
        // SAFETY: the caller's contract.
        Strided::new(unsafe { array.of::<X>(self.cx.buffers, &self.inputs.batch, self.number) }, array)
    }

    /// Some rows of an array for products: where they are, or copied to a place that has room for all.
    pub unsafe fn rows<X: Source<T>>(&self, array: &Array, size: usize, range: Range<usize>, place: usize) -> Rows<T> {
        // SAFETY: the caller's contract. Rows that stay are of the wide type and contiguous.
        unsafe {
            let from = self.part::<X>(array);
            if self.inputs.stays(array, size) {
                return Rows { at: from.at.cast_const().cast::<T>(), row: from.row };
            }
            let to = self.space.add(place);
            if !range.is_empty() {
                let first = range.start;
                rows::widen::<T, X>(self.cpu, from.from(first), range.len(), size, to.add(first * size));
            }
            Rows { at: to, row: size }
        }
    }

    /// The keys of each pair, for a range of positions; `place` says where.
    pub unsafe fn keys<X: Source<T>>(&self, range: &Range<usize>, place: impl Fn(usize) -> usize) -> Keys<T> {
        let mut keys = [Rows { at: std::ptr::null(), row: 0 }; MAX_PAIRS];
        for (p, pair) in self.inputs.pairs.iter().enumerate() {
            // SAFETY: the caller's contract.
            keys[p] = unsafe { self.rows::<X>(&pair.k, pair.size, range.clone(), place(p)) };
        }
        keys
    }

    /// Turns a block of queries, of each pair, times the factor of scores.
    pub unsafe fn turn_queries<S: Simd<T = T>, X: Source<T>>(
        &self,
        first: usize,
        queries: usize,
        place: impl Fn(usize) -> usize,
    ) {
        for (p, pair) in self.inputs.pairs.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe {
                let from = self.part::<X>(&pair.q).from(first);
                let to = self.space.add(place(p));
                rows::turn::<S, X>(self.cpu, from, [queries, pair.size], T::of(self.inputs.scale), to);
            }
        }
    }

    /// The scores of a block, given turned queries.
    pub unsafe fn scores<S: Simd<T = T>>(
        &self,
        block: &Block,
        keys: &Keys<T>,
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
/// The machine has the flavour's features; there is a row for each key, `size` turned rows of [`QUERIES`], and room for the block.
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
                depth: size,
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

/// Adds to each query's row the rows of its visible keys, times a transposed block.
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
                depth: keys.len(),
                a: factors.add(keys.start * QUERIES + columns.start),
                a_row: 1,
                a_step: QUERIES,
                b: rows.from(block.key + keys.start),
                c: to.add(columns.start * size),
                c_row: size,
                add: true,
            };
            product.run::<S>();
        }
    });
}

/// Adds to each key's row the rows of queries that see it, times a transposed block.
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
                depth: columns.len(),
                a: factors.add(keys.start * QUERIES + columns.start),
                a_row: QUERIES,
                a_step: 1,
                b: rows.from(columns.start),
                c: to.add((block.key + keys.start) * size),
                c_row: size,
                add: true,
            };
            product.run::<S>();
        }
    });
}
