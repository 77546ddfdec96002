//! `out[o] = x[Σ o·x.strides + index[Σ o·index.strides]·axis_stride]`.
//!
//! Along the innermost dimension either whole runs are copied (an index for each run: rows of an embedding, tokens of an expert), or elements are picked
//! one by one (an index for each element: the weights of the chosen experts).

use super::{Indices, NONE_WRONG, Ragged};
use crate::kernels::region::copy::{Move, Rectangle, copy};
use crate::kernels::walk::{Dims, Walk};
use crate::kernels::{Cpu, KernelCx, KernelError, PrepareCx, PrepareError, ensure};
use forebay_plan::{self as plan, DType, Negative};
use std::sync::atomic::AtomicU64;

/// Elements that are worth a task.
const GRAIN: usize = 16 * 1024;

/// A prepared gather.
#[derive(Debug)]
pub(in crate::kernels) struct Gather {
    cpu: Cpu,
    bytes: usize,
    x: (usize, usize),
    index: (usize, usize),
    out: usize,
    axis_stride: usize,
    axis_size: usize,
    negative: Negative,
    /// Dimensions but the innermost: strides in x, index, out.
    outer: Dims<3>,
    inner: (usize, [usize; 3]),
    /// The dimension counts in `outer`; or it is the inner one.
    ragged: Option<Ragged>,
}

impl Gather {
    pub(in crate::kernels) fn prepare(gather: &plan::Gather, cx: &PrepareCx) -> Result<Gather, PrepareError> {
        let (sizes, x, index) = (&gather.dims, &gather.x.strides, &gather.index.strides);
        ensure(x.len() == sizes.len() && index.len() == sizes.len(), || {
            "the strides do not fit the dimensions".into()
        })?;
        let mut ragged = Ragged::prepare(&gather.ragged, sizes, cx)?;
        let ragged_dim = ragged.map(|r| r.dim);
        let mut dims = Dims::<3>::NONE;
        let mut out_stride: usize = sizes.iter().product::<u64>() as usize;
        for (d, &size) in sizes.iter().enumerate() {
            out_stride = out_stride.checked_div(size as usize).unwrap_or(0);
            let strides = [x[d] as usize, index[d] as usize, out_stride];
            // The ragged dimension stays what it is: neither it nor the next one joins the one before.
            let apart = ragged_dim.is_some_and(|r| r == d || r + 1 == d);
            if apart {
                dims.push(size as usize, strides)?;
            } else {
                dims.push_joined(size as usize, strides)?;
            }
            if let Some(r) = ragged.as_mut().filter(|_| ragged_dim == Some(d)) {
                r.dim = dims.n - 1;
            }
        }
        let inner = dims.pop();
        Ok(Gather {
            cpu: cx.cpu,
            bytes: gather.dtype.bytes() as usize,
            x: (cx.buffer_of(gather.x.buffer, gather.dtype, "x")?, gather.x.offset as usize),
            index: (cx.buffer_of(gather.index.buffer, DType::I32, "the index")?, gather.index.offset as usize),
            out: cx.buffer_of(gather.out, gather.dtype, "the output")?,
            axis_stride: gather.axis_stride as usize,
            axis_size: gather.axis_size as usize,
            negative: gather.negative,
            outer: dims,
            inner,
            ragged,
        })
    }

    pub(in crate::kernels) unsafe fn run(&self, cx: &KernelCx) -> Result<(), KernelError> {
        let (mut outer, mut inner) = (self.outer, self.inner.0);
        if let Some(ragged) = &self.ragged {
            // SAFETY: the caller's contract.
            let size = unsafe { ragged.size(cx)? };
            if ragged.dim == outer.n { inner = size } else { outer.sizes[ragged.dim] = size }
        }
        let first_wrong = AtomicU64::new(NONE_WRONG);
        let indices = Indices {
            // SAFETY: the view begins within its buffer.
            data: unsafe { cx.buffers[self.index.0].ptr.cast::<i32>().add(self.index.1) },
            limit: self.axis_size,
            negative: self.negative,
            first_wrong: &first_wrong,
        };
        // The innermost dimension is cut, for arrays that have no other.
        let pieces = inner.div_ceil(GRAIN);
        let grain = GRAIN.div_ceil(inner.clamp(1, GRAIN));
        cx.pool.run_ranges(outer.count() * pieces, grain, &|first, end, _| {
            let mut walk = Walk::new(&outer, first / pieces);
            for task in first..end {
                let begin = task % pieces * GRAIN;
                let length = (inner - begin).min(GRAIN);
                let mut at = walk.offsets;
                (0..3).for_each(|i| at[i] += begin * self.inner.1[i]);
                // SAFETY: the caller's contract; tasks write runs of their own.
                unsafe { self.run_of(cx, &indices, at, length) };
                if (task + 1).is_multiple_of(pieces) {
                    walk.step();
                }
            }
        });
        // SAFETY: as above.
        unsafe { indices.result() }
    }

    unsafe fn run_of(&self, cx: &KernelCx, indices: &Indices, at: [usize; 3], length: usize) {
        let [x_stride, index_stride, out_stride] = self.inner.1;
        // SAFETY: the caller's contract.
        unsafe {
            let x = cx.buffers[self.x.0].ptr.add((self.x.1 + at[0]) * self.bytes).cast_const();
            let out = cx.buffers[self.out].ptr.add(at[2] * self.bytes);
            if index_stride == 0 {
                let Some(index) = indices.get(at[1]) else {
                    (0..length).for_each(|i| out.add(i * out_stride.max(1) * self.bytes).write_bytes(0, self.bytes));
                    return;
                };
                let from = x.add(index * self.axis_stride * self.bytes);
                if x_stride == 1 {
                    std::ptr::copy_nonoverlapping(from, out, length * self.bytes);
                    return;
                }
                let how = match self.bytes {
                    1 => Move::Bytes1,
                    2 => Move::Bytes2,
                    4 => Move::Bytes4,
                    _ => Move::Bytes8,
                };
                let [from_strides, to_strides] = [[0, x_stride], [0, out_stride.max(1)]];
                copy(self.cpu, how, &Rectangle { from, from_strides, to: out, to_strides, rows: 1, columns: length });
            } else {
                match self.bytes {
                    1 => self.pick::<u8>(indices, x.cast(), at[1], out.cast(), length),
                    2 => self.pick::<u16>(indices, x.cast(), at[1], out.cast(), length),
                    4 => self.pick::<u32>(indices, x.cast(), at[1], out.cast(), length),
                    _ => self.pick::<u64>(indices, x.cast(), at[1], out.cast(), length),
                }
            }
        }
    }

    unsafe fn pick<T: Copy>(&self, indices: &Indices, x: *const T, index: usize, out: *mut T, length: usize) {
        let [x_stride, index_stride, out_stride] = self.inner.1;
        for i in 0..length {
            // SAFETY: as above; the index is within the axis.
            unsafe {
                match indices.get(index + i * index_stride) {
                    Some(at) => *out.add(i * out_stride) = *x.add(i * x_stride + at * self.axis_stride),
                    None => out.add(i * out_stride).write_bytes(0, 1),
                }
            }
        }
    }
}
