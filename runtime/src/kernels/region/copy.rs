//! Between memory, seen through any strides, and registers, in which columns lie side by side.

use crate::kernels::cpu::by_cpu;
use crate::kernels::math;

/// What a copy does with an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Bytes1,
    Bytes2,
    Bytes4,
    Bytes8,
    /// bf16 to f32.
    Widen,
    /// f32 to bf16.
    Narrow,
    /// i16 to i32.
    WidenInt,
    /// The lower half of an i32.
    NarrowInt,
}

/// A rectangle, seen through strides of elements on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rectangle {
    pub from: *const u8,
    pub from_strides: [usize; 2],
    pub to: *mut u8,
    pub to_strides: [usize; 2],
    pub rows: usize,
    pub columns: usize,
}

#[inline(always)]
unsafe fn rectangle<A: Copy, D: Copy>(r: &Rectangle, f: impl Fn(A) -> D) {
    let (from, to) = (r.from.cast::<A>(), r.to.cast::<D>());
    let ([from_row, from_column], [to_row, to_column]) = (r.from_strides, r.to_strides);
    // SAFETY: the caller's contract: both sides have all elements, and do not overlap unless they are the same.
    unsafe {
        if from_column <= 1 && to_column == 1 {
            let dense = from_column == 1 && from_row == r.columns && to_row == r.columns;
            let (rows, columns) = if dense { (1, r.rows * r.columns) } else { (r.rows, r.columns) };
            for row in 0..rows {
                let (from, to) = (from.add(row * from_row), to.add(row * to_row));
                if from_column == 0 {
                    (0..columns).for_each(|i| *to.add(i) = f(*from));
                } else {
                    (0..columns).for_each(|i| *to.add(i) = f(*from.add(i)));
                }
            }
        } else if from_row == 1 || to_row == 1 {
            // A transposition: walk memory in its order, the register stays in the cache.
            for column in 0..r.columns {
                let (from, to) = (from.add(column * from_column), to.add(column * to_column));
                (0..r.rows).for_each(|row| *to.add(row * to_row) = f(*from.add(row * from_row)));
            }
        } else {
            for row in 0..r.rows {
                let (from, to) = (from.add(row * from_row), to.add(row * to_row));
                (0..r.columns).for_each(|column| *to.add(column * to_column) = f(*from.add(column * from_column)));
            }
        }
    }
}

#[inline(always)]
unsafe fn copy_body(how: Move, r: &Rectangle) {
    // SAFETY: the caller's contract.
    unsafe {
        match how {
            Move::Bytes1 => rectangle::<u8, u8>(r, |x| x),
            Move::Bytes2 => rectangle::<u16, u16>(r, |x| x),
            Move::Bytes4 => rectangle::<u32, u32>(r, |x| x),
            Move::Bytes8 => rectangle::<u64, u64>(r, |x| x),
            Move::Widen => rectangle::<u16, u32>(r, |x| u32::from(x) << 16),
            Move::WidenInt => rectangle::<i16, i32>(r, i32::from),
            Move::NarrowInt => rectangle::<i32, i16>(r, |x| x as i16),
            Move::Narrow => rectangle::<f32, u16>(r, math::narrowed),
        }
    }
}

by_cpu!(
    /// Copies a rectangle.
    ///
    /// # Safety
    /// Both sides have all elements. They do not overlap, or are the same.
    pub(crate) unsafe fn copy / copy_body(how: Move, r: &Rectangle)
);

#[inline(always)]
unsafe fn fill_index_body(first: usize, r: &Rectangle) {
    let to = r.to.cast::<i32>();
    for row in 0..r.rows {
        let first = (first + row * r.from_strides[0]) as i32;
        for column in 0..r.columns {
            // SAFETY: the caller's contract.
            unsafe {
                *to.add(row * r.to_strides[0] + column * r.to_strides[1]) =
                    first.wrapping_add((column * r.from_strides[1]) as i32);
            }
        }
    }
}

by_cpu!(
    /// `first + row·strides[0] + column·strides[1]`, with the strides of the source.
    ///
    /// # Safety
    /// The destination has all elements.
    pub(crate) unsafe fn fill_index / fill_index_body(first: usize, r: &Rectangle)
);
