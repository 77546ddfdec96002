//! Loads through an index, and indices that lead nowhere.

use super::copy::{Move, Rectangle, copy};
use super::program::Program;
use super::space::{Place, Through};
use crate::kernels::cpu::Cpu;
use crate::kernels::index::{Indices, NONE_WRONG};
use crate::kernels::{KernelCx, KernelError};
use forebay_plan::{DType, Negative};
use std::sync::atomic::{AtomicU64, Ordering};

/// An array that is looked up along an axis.
pub(super) struct Table {
    cpu: Cpu,
    how: Move,
    data: *const u8,
    /// Of an element.
    bytes: usize,
    divide: usize,
    axis_stride: usize,
    axis_size: usize,
    negative: Negative,
}

impl Table {
    pub(super) fn new(cpu: Cpu, how: Move, data: *const u8, dtype: DType, through: &Through) -> Table {
        let Through { divide, axis_stride, axis_size, negative, .. } = *through;
        Table { cpu, how, data, bytes: dtype.bytes() as usize, divide, axis_stride, axis_size, negative }
    }

    /// Copies a rectangle: where index and table are at its first element (`[table, index]`, and their strides along rows and columns), and where it
    /// goes. Gives the first element of the index that is wrong; what belongs to such, and to one that means nothing, is 0.
    ///
    /// # Safety
    /// Index and destination have all elements of the rectangle; the table has them for every position along the axis.
    pub(super) unsafe fn look_up(
        &self,
        index: *const i32,
        [table_at, index_at]: [usize; 2],
        [table, index_strides]: [[usize; 2]; 2],
        to: *mut u8,
        to_strides: [usize; 2],
        [rows, columns]: [usize; 2],
    ) -> u64 {
        let first_wrong = AtomicU64::new(NONE_WRONG);
        // What divides to a position within the axis.
        let limit = self.axis_size.saturating_mul(self.divide);
        let indices = Indices { data: index, limit, negative: self.negative, first_wrong: &first_wrong };
        // An index is below 2³¹, and dividing 32 bits is much faster than 64.
        let divide = u32::try_from(self.divide).unwrap_or(u32::MAX);
        let to_bytes = if self.widens() { 4 } else { self.bytes };
        // One index for a run of columns, or one for each.
        let run = if index_strides[1] == 0 { columns } else { 1 };
        for row in 0..rows {
            for column in (0..columns).step_by(run.max(1)) {
                let at = |strides: [usize; 2]| row * strides[0] + column * strides[1];
                // SAFETY: the caller's contract; the position is within the axis.
                unsafe {
                    let to = to.add(at(to_strides) * to_bytes);
                    let Some(value) = indices.get(index_at + at(index_strides)) else {
                        (0..run).for_each(|i| to.add(i * to_strides[1] * to_bytes).write_bytes(0, to_bytes));
                        continue;
                    };
                    let position = (value as u32 / divide) as usize;
                    let element = table_at + at(table) + position * self.axis_stride;
                    let from = self.data.add(element * self.bytes);
                    let r = Rectangle { from, from_strides: [0, table[1]], to, to_strides, rows: 1, columns: run };
                    self.copy(&r);
                }
            }
        }
        first_wrong.into_inner()
    }

    /// Are elements wider in registers?
    fn widens(&self) -> bool {
        matches!(self.how, Move::Widen | Move::WidenInt)
    }

    #[inline(always)]
    unsafe fn copy(&self, r: &Rectangle) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.how {
                Move::Bytes4 if r.columns == 1 => *r.to.cast::<u32>() = *r.from.cast::<u32>(),
                _ if !self.widens() && r.from_strides[1] == 1 && r.to_strides[1] == 1 => {
                    r.from.copy_to_nonoverlapping(r.to, r.columns * self.bytes);
                }
                how => copy(self.cpu, how, r),
            }
        }
    }
}

/// The first index that leads nowhere: of the first load that has one, the lowest element.
pub(super) struct Wrong(AtomicU64);

/// Bits for the element; the load stands above. An array of so many indices does not fit a memory.
const ELEMENT_BITS: u32 = 48;

impl Wrong {
    pub(super) fn none() -> Wrong {
        Wrong(AtomicU64::new(NONE_WRONG))
    }

    /// `element`: [`NONE_WRONG`] when there is none.
    pub(super) fn add(&self, load: usize, element: u64) {
        if element != NONE_WRONG {
            self.0.fetch_min((load as u64) << ELEMENT_BITS | element, Ordering::Relaxed);
        }
    }

    /// # Safety
    /// The buffers are those of the run.
    pub(super) unsafe fn result(&self, program: &Program, cx: &KernelCx) -> Result<(), KernelError> {
        let first = self.0.load(Ordering::Relaxed);
        if first == NONE_WRONG {
            return Ok(());
        }
        let (load, element) = ((first >> ELEMENT_BITS) as usize, first & ((1 << ELEMENT_BITS) - 1));
        let through = program.accesses[load].through.expect("only what is looked up is wrong");
        let Place::Buffer { buffer, .. } = program.accesses[through.index].place else {
            unreachable!("an index is in memory")
        };
        // SAFETY: the element was read before.
        let value = unsafe { *cx.buffers[buffer].ptr.cast::<i32>().add(element as usize) }.into();
        Err(KernelError::Index { value, limit: through.axis_size.saturating_mul(through.divide) as u64, element })
    }
}
