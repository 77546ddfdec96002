//! Operands of products as tiles read them: where they are, or copied to the workspace of a worker.
//!
//! A product of rows of A and columns of B sums over words, each one value or a pair of bf16 (see [`crate::kernels::matmul`]). What is summed over is either
//! the elements of a row, or the rows. In *rows* the words of a row follow each other; in *panels* a row of words belongs to one row of the array, or to two that follow each other. For words
//! of one value both are the same.

use super::arrays::{Array, Inputs, Room};
use super::problem::Problem;
use super::rows::{self, Strided};
use super::softmax::Wide;
use crate::kernels::matmul::product::Rows;
use crate::kernels::matmul::tile::{Simd, Source};
use std::ops::Range;

/// An operand as prepared.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    size: usize,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    /// Rows of the array itself.
    InPlace,
    /// Copies of rows, at a place of the workspace.
    Rows(usize),
    /// Panels.
    Panels(usize),
}

impl Operand {
    /// Rows of an array whose elements are summed over, with room for so many.
    pub fn rows(i: &Inputs, array: &Array, [count, size]: [usize; 2], room: &mut Room) -> Operand {
        let form = if i.stays(array, size) { Form::InPlace } else { Form::Rows(room.take(count * i.words(size))) };
        Operand { size, form }
    }

    /// Rows of an array that are summed over, with room for so many.
    pub fn panels(i: &Inputs, array: &Array, [count, size]: [usize; 2], room: &mut Room) -> Operand {
        match i.pair {
            1 => Operand::rows(i, array, [count, size], room),
            _ => Operand { size, form: Form::Panels(room.take(i.words(count) * rows::panel_row(size))) },
        }
    }

    /// All rows of an array, from its first one on; copies must have been made by [`Operand::copy`].
    ///
    /// # Safety
    /// That of [`Problem`]'s methods.
    pub unsafe fn all<S: Simd<T: Wide>, X: Source<S::T>>(
        &self,
        problem: &Problem<S::T>,
        array: Strided<X>,
    ) -> Rows<S::T> {
        // SAFETY: the caller's contract. Rows that stay are of the wide type and contiguous.
        unsafe {
            match self.form {
                Form::InPlace => Rows { at: array.at.cast_const().cast::<S::T>(), row: array.row },
                Form::Rows(place) => Rows { at: problem.space.add(place), row: S::words(self.size) },
                Form::Panels(place) => Rows { at: problem.space.add(place), row: rows::panel_row(self.size) },
            }
        }
    }

    /// Copies some rows of an array to where [`Operand::all`] has them. They begin with a whole word.
    ///
    /// # Safety
    /// That of [`Problem`]'s methods; there is room for the rows.
    pub unsafe fn copy<S: Simd<T: Wide>, X: Source<S::T>>(
        &self,
        problem: &Problem<S::T>,
        array: Strided<X>,
        range: Range<usize>,
    ) {
        if range.is_empty() {
            return;
        }
        let (size, count, first) = (self.size, range.len(), range.start);
        // SAFETY: the caller's contract.
        unsafe {
            let from = array.from(first);
            match self.form {
                Form::InPlace => {}
                Form::Rows(place) if S::PAIR == 1 => {
                    rows::widen::<S::T, X>(problem.cpu, from, count, size, problem.space.add(place + first * size));
                }
                Form::Rows(place) => {
                    let to = problem.space.add(place + first * S::words(size)).cast::<X>();
                    rows::copy::<S::T, X>(problem.cpu, from, count, [size, S::words(size) * S::PAIR], to);
                }
                Form::Panels(place) => {
                    let to = problem.space.add(place + first / S::PAIR * rows::panel_row(size));
                    rows::join::<S, X>(from, [count, size], to);
                }
            }
        }
    }

    /// A block of rows: where it is, or copied to where there is room for one.
    ///
    /// # Safety
    /// As [`Operand::copy`].
    pub unsafe fn block<S: Simd<T: Wide>, X: Source<S::T>>(
        &self,
        problem: &Problem<S::T>,
        array: Strided<X>,
        range: Range<usize>,
    ) -> Rows<S::T> {
        // SAFETY: the caller's contract.
        unsafe {
            let block = array.from(range.start);
            self.copy::<S, X>(problem, block, 0..range.len());
            self.all::<S, X>(problem, block)
        }
    }
}
