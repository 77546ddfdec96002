//! Pieces of arrays: moving them, and combining those of all sources.

use crate::kernels::math;
use crate::kernels::rows::{Number, combine};
use crate::kernels::walk::{Dims, MOST_DIMS, Walk};
use crate::pool::Pool;
use forebay_plan::{DType, ReduceOp};

/// Elements that a thread is worth waking for.
const GRAIN: usize = 1 << 14;
/// Elements that are combined at a time.
const BLOCK: usize = 512;

/// An array of one rank as pieces, one for each member of a group. Piece i begins `start + i·step` elements into it; its element (j₀, j₁, …) is `Σ jₖ·strideₖ` further on.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    pub(super) ptr: *mut u8,
    pub(super) dtype: DType,
    pub(super) start: usize,
    pub(super) step: usize,
    dims: usize,
    sizes: [usize; MOST_DIMS],
    strides: [usize; MOST_DIMS],
}

// SAFETY: plain data; whoever follows the pointer answers for it ([`Transport`](super::Transport)'s contract).
unsafe impl Send for Pieces {}
// SAFETY: as above.
unsafe impl Sync for Pieces {}

impl Pieces {
    /// Pieces of an array; `None` when there are more dimensions than walks have.
    pub fn new(
        ptr: *mut u8,
        dtype: DType,
        [start, step]: [u64; 2],
        sizes: impl Iterator<Item = u64>,
        strides: &[u64],
    ) -> Option<Pieces> {
        let mut pieces = Pieces {
            ptr,
            dtype,
            start: start as usize,
            step: step as usize,
            dims: 0,
            sizes: [1; MOST_DIMS],
            strides: [0; MOST_DIMS],
        };
        for (size, stride) in sizes.zip(strides).filter(|(size, _)| *size != 1) {
            *pieces.sizes.get_mut(pieces.dims)? = size as usize;
            pieces.strides[pieces.dims] = *stride as usize;
            pieces.dims += 1;
        }
        Some(pieces)
    }

    /// Elements of a piece.
    pub fn elements(&self) -> usize {
        self.sizes[..self.dims].iter().product()
    }

    pub(super) fn same_shape(&self, other: &Pieces) -> bool {
        self.dtype == other.dtype && self.sizes == other.sizes
    }

    /// Bytes of an element.
    pub(super) fn width(&self) -> usize {
        self.dtype.bytes() as usize
    }

    /// A piece of the same shape whose elements from `first` on are contiguous at `ptr`; those before must not be touched.
    pub(super) fn packed(&self, ptr: *mut u8, first: usize) -> Pieces {
        let mut strides = [0; MOST_DIMS];
        let mut stride = 1;
        for d in (0..self.dims).rev() {
            strides[d] = stride;
            stride *= self.sizes[d];
        }
        Pieces { ptr: ptr.wrapping_sub(first * self.width()), start: 0, step: 0, strides, ..*self }
    }

    /// Where a piece begins.
    fn at(&self, piece: usize) -> *mut u8 {
        // In bounds, as the verifier has checked; not followed here.
        self.ptr.wrapping_add((self.start + piece * self.step) * self.width())
    }

    /// The dimensions of pieces that are walked together, joined where all just go on.
    fn together<const N: usize>(pieces: [&Pieces; N]) -> Dims<N> {
        let mut dims = Dims::NONE;
        for d in 0..pieces[0].dims {
            let joined = dims.push_joined(pieces[0].sizes[d], pieces.map(|p| p.strides[d]));
            joined.expect("no more dimensions than a walk has");
        }
        dims
    }
}

/// Visits elements `from..to` of a piece as runs: (first element of the run from the start of each piece, elements, strides).
fn runs<const N: usize>(dims: &Dims<N>, from: usize, to: usize, mut visit: impl FnMut([usize; N], usize, [usize; N])) {
    if from >= to {
        return;
    }
    let mut outer = *dims;
    let (length, strides) = outer.pop();
    let (mut at, mut walk) = (from, Walk::new(&outer, from / length));
    while at < to {
        let first = at % length;
        let count = (length - first).min(to - at);
        visit(std::array::from_fn(|i| walk.offsets[i] + first * strides[i]), count, strides);
        at += count;
        walk.step();
    }
}

/// Copies piece `piece` of `from` to piece `to_piece` of `to`: elements `range`.
///
/// # Safety
/// Both are readable and writable there, of one shape, and do not overlap; nobody else touches what is written.
pub(super) unsafe fn copy(from: &Pieces, piece: usize, to: &Pieces, to_piece: usize, range: (usize, usize)) {
    let (source, target, width) = (from.at(piece), to.at(to_piece), from.width());
    runs(&Pieces::together([from, to]), range.0, range.1, |[x, out], count, strides| {
        // (Only elements of the range need be there, so the way to them may begin elsewhere.)
        let (x, out) = (source.wrapping_add(x * width), target.wrapping_add(out * width));
        // SAFETY: the run lies within both pieces (the caller's contract).
        unsafe {
            if strides == [1, 1] || count == 1 {
                return std::ptr::copy_nonoverlapping(x, out, count * width);
            }
            for i in 0..count {
                let (x, out) = (x.add(i * strides[0] * width), out.add(i * strides[1] * width));
                std::ptr::copy_nonoverlapping(x, out, width);
            }
        }
    });
}

/// Copies whole pieces on all workers: to each piece of the target that of a source.
///
/// # Safety
/// As of [`copy`], for each.
pub(super) unsafe fn copy_all(
    pool: &Pool,
    to: &Pieces,
    pieces: usize,
    source: &(dyn Fn(usize) -> (Pieces, usize) + Sync),
) {
    let elements = to.elements();
    let parts = (elements / GRAIN).clamp(1, 4 * pool.workers());
    pool.run(pieces * parts, &|task, _| {
        let (piece, part) = (task / parts, task % parts);
        let (from, index) = source(piece);
        let range = (elements * part / parts, elements * (part + 1) / parts);
        // SAFETY: the caller's contract; tasks have elements of their own.
        unsafe { copy(&from, index, to, piece, range) };
    });
}

/// Copies a range of elements of the first piece on all workers.
///
/// # Safety
/// As of [`copy`].
pub(super) unsafe fn copy_part(pool: &Pool, from: &Pieces, to: &Pieces, (first, end): (usize, usize)) {
    pool.run_ranges(end - first, GRAIN, &|from_element, to_element, _| {
        // SAFETY: the caller's contract; tasks have elements of their own.
        unsafe { copy(from, 0, to, 0, (first + from_element, first + to_element)) };
    });
}

/// `out[range] = combine over all sources of their piece`, in the order of the sources, on all workers.
///
/// # Safety
/// All sources are readable there and `out` is writable, of one shape; nobody else touches what is written.
pub(super) unsafe fn reduce(
    pool: &Pool,
    op: ReduceOp,
    sources: &[Pieces],
    piece: usize,
    out: &Pieces,
    range: (usize, usize),
) {
    let elements = range.1 - range.0;
    pool.run_ranges(elements.div_ceil(BLOCK), GRAIN / BLOCK, &|first, end, _| {
        for block in first..end {
            let from = range.0 + block * BLOCK;
            let to = (from + BLOCK).min(range.1);
            // SAFETY: the caller's contract; blocks have elements of their own.
            unsafe {
                let block = Block { op, sources, piece, out, from, to };
                match out.dtype {
                    DType::F32 => block.run::<f32, f32>(|x| x, |x| x),
                    DType::F64 => block.run::<f64, f64>(|x| x, |x| x),
                    DType::I32 => block.run::<i32, i32>(|x| x, |x| x),
                    DType::Bf16 => block.run::<u16, f32>(math::widened, math::narrowed),
                    DType::I16 | DType::Bool => unreachable!("the verifier refuses to combine what is no number"),
                }
            }
        }
    });
}

/// Elements that are combined at a time.
struct Block<'a> {
    op: ReduceOp,
    sources: &'a [Pieces],
    piece: usize,
    out: &'a Pieces,
    from: usize,
    to: usize,
}

impl Block<'_> {
    unsafe fn run<X: Copy, T: Number>(&self, widen: impl Fn(X) -> T, narrow: impl Fn(T) -> X) {
        let mut sums = [T::ZERO; BLOCK];
        for (number, x) in self.sources.iter().enumerate() {
            let start = x.at(self.piece).cast::<X>();
            let mut done = 0;
            runs(&Pieces::together([x]), self.from, self.to, |[at], count, [stride]| {
                for (i, sum) in sums[done..done + count].iter_mut().enumerate() {
                    // SAFETY: within the source's piece (the caller's contract).
                    let value = widen(unsafe { start.wrapping_add(at + i * stride).read() });
                    *sum = if number == 0 { value } else { combine(self.op, *sum, value) };
                }
                done += count;
            });
        }
        let start = self.out.at(0).cast::<X>();
        let mut done = 0;
        runs(&Pieces::together([self.out]), self.from, self.to, |[at], count, [stride]| {
            for (i, sum) in sums[done..done + count].iter().enumerate() {
                // SAFETY: within the result (the caller's contract).
                unsafe { start.wrapping_add(at + i * stride).write(narrow(*sum)) };
            }
            done += count;
        });
    }
}
