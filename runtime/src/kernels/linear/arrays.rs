//! Where the operands of a problem are, and copies of their rows.

use super::Linear;
use crate::kernels::Buf;
use crate::kernels::matmul::tile::{Source, prefetch_run};
use forebay_plan::{DType, View};

/// The dimensions of the batch, outermost first.
#[derive(Debug)]
pub(super) struct Batch(Vec<usize>);

impl Batch {
    pub fn new(sizes: &[u64]) -> Batch {
        Batch(sizes.iter().map(|&size| size as usize).collect())
    }

    /// How many problems.
    pub fn count(&self) -> usize {
        self.0.iter().product()
    }
}

/// An array `[batch…, positions, elements…]`.
#[derive(Debug)]
pub(super) struct Array {
    buffer: usize,
    offset: usize,
    /// Strides of the batch.
    batch: Vec<usize>,
    /// From one position to the next.
    row: usize,
    /// Sizes and strides of a row's elements but for the innermost ones, outermost first.
    outer: Vec<(usize, usize)>,
    /// Elements of a run: one, but for what the innermost dimension has.
    run: usize,
    /// From one element of a run to the next.
    step: usize,
}

impl Array {
    /// The array of a view with so many dimensions of the batch and these of elements.
    pub fn new(view: &View, buffer: usize, batch: usize, inner: &[u64]) -> Array {
        let strides: Vec<usize> = view.strides.iter().map(|&stride| stride as usize).collect();
        let mut outer: Vec<(usize, usize)> = vec![];
        for (&size, &stride) in inner.iter().zip(&strides[batch + 1..]).filter(|(size, _)| **size > 1) {
            let size = size as usize;
            match outer.last_mut() {
                // Elements just go on.
                Some(last) if last.1 == size * stride => *last = (last.0 * size, stride),
                _ => outer.push((size, stride)),
            }
        }
        let (run, step) = outer.pop().unwrap_or((1, 1));
        let (row, batch) = (strides[batch], strides[..batch].to_vec());
        Array { buffer, offset: view.offset as usize, batch, row, outer, run, step }
    }

    /// Where a run begins in its row.
    fn run_at(&self, mut number: usize) -> usize {
        let mut at = 0;
        for (size, stride) in self.outer.iter().rev() {
            at += number % size * stride;
            number /= size;
        }
        at
    }

    /// The first element of a problem's part.
    ///
    /// # Safety
    /// The buffers are those that the kernel was prepared for.
    unsafe fn part<X>(&self, buffers: &[Buf], batch: &Batch, problem: usize) -> *mut X {
        let (mut at, mut rest) = (self.offset, problem);
        for (size, stride) in batch.0.iter().zip(&self.batch).rev() {
            at += rest % size * stride;
            rest /= size;
        }
        // SAFETY: views lie within their buffers.
        unsafe { buffers[self.buffer].ptr.cast::<X>().add(at) }
    }

    /// A problem's rows, as they are walked.
    ///
    /// # Safety
    /// As [`Array::part`].
    pub unsafe fn walked<'a, X>(&'a self, linear: &Linear, buffers: &[Buf], problem: usize) -> Walked<'a, X> {
        // SAFETY: the caller's contract.
        let at = unsafe { self.part::<X>(buffers, &linear.batch, problem) };
        let last = linear.positions - 1;
        // Going back from the last position.
        let (first, row) =
            if linear.backward { (last * self.row, -(self.row as isize)) } else { (0, self.row as isize) };
        // SAFETY: there is such a position.
        Walked { array: self, at: unsafe { at.add(first) }, row }
    }
}

/// Rows of an array in the order in which positions are walked.
pub(super) struct Walked<'a, X> {
    array: &'a Array,
    at: *mut X,
    /// From one walked position to the next.
    row: isize,
}

impl<X> Clone for Walked<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for Walked<'_, X> {}

/// Rows in the workspace: as many elements, and zeros behind them up to a multiple of [`super::LANES`].
#[derive(Clone, Copy)]
pub(super) struct Rows<T> {
    pub at: *mut T,
    pub pitch: usize,
}

impl<T> Rows<T> {
    /// Those from one row on.
    pub fn from(&self, row: usize) -> Rows<T> {
        Rows { at: self.at.wrapping_add(row * self.pitch), pitch: self.pitch }
    }
}

/// Rows that are fetched ahead: heads lie side by side, so that a head's rows are far apart and no processor guesses the next one.
const AHEAD: usize = 8;

impl<X: Copy> Walked<'_, X> {
    /// A row's first element.
    ///
    /// # Safety
    /// There is such a row.
    #[inline(always)]
    pub unsafe fn row(self, number: usize) -> *mut X {
        // SAFETY: the caller's contract.
        unsafe { self.at.offset(number as isize * self.row) }
    }

    /// For each run of some columns of a row: how many columns come before it, where it is in the row, and how long it is.
    #[inline(always)]
    fn runs(self, [first, count]: [usize; 2], mut visit: impl FnMut(usize, usize, usize)) {
        let mut done = 0;
        while done < count {
            let (number, within) = ((first + done) / self.array.run, (first + done) % self.array.run);
            let length = (self.array.run - within).min(count - done);
            visit(done, self.array.run_at(number) + within * self.array.step, length);
            done += length;
        }
    }

    /// Copies the columns `first..first + count` of rows, wide.
    ///
    /// # Safety
    /// The array has the elements, the workspace room for them.
    #[inline(always)]
    pub unsafe fn load<T: Default>(self, rows: std::ops::Range<usize>, [first, count]: [usize; 2], to: Rows<T>)
    where
        X: Source<T>,
    {
        let step = self.array.step;
        self.runs([first, count], |done, place, length| {
            for (i, row) in rows.clone().enumerate() {
                // SAFETY: the caller's contract.
                unsafe {
                    let (from, to) = (self.row(row).cast_const().add(place), to.from(i).at.add(done));
                    if step == 1 {
                        prefetch_run(from.wrapping_offset(AHEAD as isize * self.row), length);
                        (0..length).for_each(|e| *to.add(e) = (*from.add(e)).widen());
                    } else {
                        (0..length).for_each(|e| *to.add(e) = (*from.add(e * step)).widen());
                    }
                }
            }
        });
        for i in 0..rows.len() {
            // SAFETY: as above.
            (count..count.next_multiple_of(super::LANES)).for_each(|e| unsafe { *to.from(i).at.add(e) = T::default() });
        }
    }

    /// Writes the columns `first..first + count` of rows, rounded.
    ///
    /// # Safety
    /// The array has the elements, and nobody else touches them.
    #[inline(always)]
    pub unsafe fn store<T: Copy>(self, rows: std::ops::Range<usize>, columns: [usize; 2], from: Rows<T>)
    where
        X: Source<T>,
    {
        let step = self.array.step;
        self.runs(columns, |done, place, length| {
            for (i, row) in rows.clone().enumerate() {
                // SAFETY: the caller's contract.
                unsafe {
                    let (to, from) = (self.row(row).add(place), from.from(i).at.cast_const().add(done));
                    if step == 1 {
                        (0..length).for_each(|e| *to.add(e) = X::narrow(*from.add(e)));
                    } else {
                        (0..length).for_each(|e| *to.add(e * step) = X::narrow(*from.add(e)));
                    }
                }
            }
        });
    }
}

/// Bytes of what sums are kept in.
pub(super) fn wide_bytes(dtype: DType) -> usize {
    if dtype == DType::F64 { 8 } else { 4 }
}
