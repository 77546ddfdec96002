//! A product in normal form, and the pieces it consists of.

use super::super::{PrepareCx, PrepareError, ensure};
use forebay_plan as plan;
use forebay_plan::RaggedDim;
use std::ops::Range;

/// A dimension: size and strides in A, B, C (0 where it lacks the dimension).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dim {
    pub size: usize,
    pub strides: [usize; 3],
}

/// Ragged groups.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    pub buffer: usize,
    pub count: usize,
    /// Bound of the ragged dimension.
    pub bound: u64,
    pub ragged: RaggedDim,
    pub strides: [usize; 3],
}

/// A product in normal form: where C is contiguous in either direction, it is along n.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    /// Of A, B, C.
    pub buffers: [usize; 3],
    pub offsets: [usize; 3],
    pub batch: Vec<Dim>,
    pub m: Dim,
    pub n: Dim,
    /// Innermost summed dimension.
    pub k: Dim,
    pub k_outer: Vec<Dim>,
    pub groups: Option<Groups>,
    pub accumulate: bool,
    /// Is A the plan's B?
    pub turned: bool,
}

/// One two-dimensional product: one element of the batch, one group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Piece {
    /// Elements from the start of A, B and C.
    pub at: [usize; 3],
    pub m: usize,
    pub n: usize,
    /// Length of the innermost summed dimension.
    pub k: usize,
    /// How often it is repeated by the outer ones.
    pub k_outer: usize,
}

impl Piece {
    /// How many products make an element.
    pub fn depth(&self) -> usize {
        self.k * self.k_outer
    }
}

impl Problem {
    pub fn new(matmul: &plan::Matmul, cx: &PrepareCx) -> Result<Problem, PrepareError> {
        let buffers = [
            cx.buffer_of(matmul.a, matmul.dtype, "A")?,
            cx.buffer_of(matmul.b, matmul.dtype, "B")?,
            cx.buffer_of(matmul.c, matmul.dtype, "C")?,
        ];
        let dim = |d: &plan::MatDim, [x, y]: [usize; 2]| {
            let mut strides = [0; 3];
            strides[x] = d.1 as usize;
            strides[y] = d.2 as usize;
            Dim { size: d.0 as usize, strides }
        };
        let batch = matmul.batch.iter();
        let groups = match &matmul.groups {
            None => None,
            Some(g) => Some(Groups {
                buffer: cx.buffer_of(g.offsets, plan::DType::I32, "group offsets")?,
                count: g.count as usize,
                bound: match g.ragged {
                    RaggedDim::M => matmul.m.0,
                    RaggedDim::K => matmul.k.0,
                    RaggedDim::N => matmul.n.0,
                },
                ragged: g.ragged,
                strides: g.strides.map(|s| s as usize),
            }),
        };
        ensure(buffers[2] != buffers[0] && buffers[2] != buffers[1], || "C is an operand".into())?;
        let mut problem = Problem {
            buffers,
            offsets: matmul.offsets.map(|o| o as usize),
            batch: batch.map(|d| Dim { size: d.0 as usize, strides: [d.1, d.2, d.3].map(|s| s as usize) }).collect(),
            m: dim(&matmul.m, [0, 2]),
            n: dim(&matmul.n, [1, 2]),
            k: dim(&matmul.k, [0, 1]),
            k_outer: matmul.k_outer.iter().map(|d| dim(d, [0, 1])).collect(),
            groups,
            accumulate: matmul.accumulate,
            turned: false,
        };
        problem.normalise();
        Ok(problem)
    }

    /// Most products that make an element: ragged dimensions at their bound.
    pub fn deepest(&self) -> usize {
        self.k.size * self.k_outer.iter().map(|d| d.size).product::<usize>()
    }

    fn normalise(&mut self) {
        self.batch.retain(|d| d.size != 1);
        self.k_outer.retain(|d| d.size != 1);
        if self.groups.is_none() {
            while self.k_outer.last().is_some_and(|outer| continues(outer, &self.k)) {
                self.k.size *= self.k_outer.pop().expect("there is a last one").size;
            }
            // A batch dimension that only one operand has makes its rows or columns more.
            while self.batch.last().is_some_and(|outer| outer.strides[1] == 0 && continues(outer, &self.m)) {
                self.m.size *= self.batch.pop().expect("there is a last one").size;
            }
            while self.batch.last().is_some_and(|outer| outer.strides[0] == 0 && continues(outer, &self.n)) {
                self.n.size *= self.batch.pop().expect("there is a last one").size;
            }
        }
        let unit = |d: &Dim| d.size == 1 || d.strides[2] == 1;
        if !unit(&self.n) && unit(&self.m) {
            self.transpose();
        }
        if self.n.size == 1 {
            self.n.strides[2] = 1;
        }
    }

    /// Cᵀ = Bᵀ·Aᵀ, with the same sums.
    fn transpose(&mut self) {
        self.turned = !self.turned;
        self.buffers.swap(0, 1);
        self.offsets.swap(0, 1);
        for dim in self.batch.iter_mut().chain(&mut self.k_outer).chain([&mut self.m, &mut self.n, &mut self.k]) {
            dim.strides.swap(0, 1);
        }
        std::mem::swap(&mut self.m, &mut self.n);
        if let Some(groups) = &mut self.groups {
            groups.strides.swap(0, 1);
            groups.ragged = match groups.ragged {
                RaggedDim::M => RaggedDim::N,
                RaggedDim::N => RaggedDim::M,
                RaggedDim::K => RaggedDim::K,
            };
        }
    }

    /// How many pieces.
    pub fn pieces(&self) -> usize {
        self.batches() * self.groups.as_ref().map_or(1, |g| g.count)
    }

    fn batches(&self) -> usize {
        self.batch.iter().map(|d| d.size).product()
    }

    /// Multiply-adds, with ragged dimensions at their bound; as many as there can be where that is more than a number holds.
    pub fn work(&self) -> usize {
        [self.batches(), self.m.size, self.n.size, self.deepest()].into_iter().fold(1, usize::saturating_mul)
    }

    /// A piece by number: groups innermost.
    pub fn piece(&self, number: usize, offsets: Option<*const i32>) -> Piece {
        let k_outer = self.k_outer.iter().map(|d| d.size).product();
        let mut piece = Piece { at: self.offsets, m: self.m.size, n: self.n.size, k: self.k.size, k_outer };
        let mut rest = number;
        if let (Some(groups), Some(offsets)) = (&self.groups, offsets) {
            let group = rest % groups.count;
            rest /= groups.count;
            // SAFETY: there are `count + 1` offsets, checked to rise from 0 to at most the bound.
            let (first, end) = unsafe { (*offsets.add(group) as usize, *offsets.add(group + 1) as usize) };
            let (dim, size) = match groups.ragged {
                RaggedDim::M => (&self.m, &mut piece.m),
                RaggedDim::K => (&self.k, &mut piece.k),
                RaggedDim::N => (&self.n, &mut piece.n),
            };
            *size = end - first;
            for (operand, at) in piece.at.iter_mut().enumerate() {
                *at += first * dim.strides[operand] + group * groups.strides[operand];
            }
        }
        for dim in self.batch.iter().rev() {
            let index = rest % dim.size;
            rest /= dim.size;
            for (operand, at) in piece.at.iter_mut().enumerate() {
                *at += index * dim.strides[operand];
            }
        }
        piece
    }

    /// Calls `run(p, length, a, b)` for each contiguous run of the products `block`: products
    /// `p..p + length` of the block, whose first is at `a` and `b` elements from the piece's start.
    pub fn runs(&self, piece: &Piece, block: Range<usize>, mut run: impl FnMut(usize, usize, usize, usize)) {
        let Range { start: first, end } = block;
        let mut p = first;
        while p < end {
            let (mut outer, inner) = (p / piece.k, p % piece.k);
            let length = (piece.k - inner).min(end - p);
            let (mut a, mut b) = (inner * self.k.strides[0], inner * self.k.strides[1]);
            for dim in self.k_outer.iter().rev() {
                a += outer % dim.size * dim.strides[0];
                b += outer % dim.size * dim.strides[1];
                outer /= dim.size;
            }
            run(p - first, length, a, b);
            p += length;
        }
    }
}

/// Does `outer` count on where `inner` ends, in all operands?
fn continues(outer: &Dim, inner: &Dim) -> bool {
    (0..3).all(|i| outer.strides[i] == inner.size * inner.strides[i])
}
