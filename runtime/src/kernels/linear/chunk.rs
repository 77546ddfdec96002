//! One problem's walk from chunk to chunk.

use super::arrays::{Rows, Walked};
use super::decays::{Decays, Wide, sign};
use super::solve::substitute;
use super::{BLOCK, CHUNK, LANES, Linear};
use crate::kernels::Buf;
use crate::kernels::matmul::pack::PackArgs;
use crate::kernels::matmul::product::{self, Product};
use crate::kernels::matmul::tile::{Pass, Simd, Source};
use forebay_plan::LinearReads;

/// From one row of a chunk's scores, or of turned keys, to the next.
const ACROSS: usize = pitch(CHUNK);

/// From one row to the next: an odd number of vectors, so that rows do not share the few places that a cache has for addresses a power of two apart.
const fn pitch(size: usize) -> usize {
    (size.div_ceil(LANES) | 1) * LANES
}

/// Where everything is in a worker's workspace, in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Columns of values.
    columns: usize,
    /// The queries of a chunk; first its keys, until they have been turned.
    q: usize,
    /// The keys, turned: a row for each element.
    k: usize,
    scores: usize,
    v: usize,
    out: usize,
    state: usize,
    pub elements: usize,
}

impl Places {
    pub fn new(key_size: usize, columns: usize) -> Places {
        let mut elements = 0;
        let mut take = |n: usize| {
            elements += n;
            elements - n
        };
        Places {
            columns,
            q: take(CHUNK * pitch(key_size)),
            k: take(key_size * ACROSS),
            scores: take(CHUNK * ACROSS),
            v: take(CHUNK * pitch(columns)),
            out: take(CHUNK * pitch(columns)),
            state: take(key_size * pitch(columns)),
            elements,
        }
    }
}

/// The walk over one problem, for a block of columns of its values.
pub(super) struct Walk<'a, S: Simd, X> {
    pub linear: &'a Linear,
    pub places: Places,
    pub buffers: &'a [Buf],
    pub problem: usize,
    pub first_column: usize,
    pub space: *mut S::T,
    pub stored: std::marker::PhantomData<X>,
}

impl<S: Simd<T: Wide>, X: Source<S::T>> Pass for Walk<'_, S, X> {
    #[inline(always)]
    unsafe fn run(self) {
        let (l, size) = (self.linear, self.linear.key_size);
        let columns = [self.first_column, self.places.columns];
        // SAFETY: the caller's contract: the buffers hold the views, and there is room for all places.
        unsafe {
            let [q, k, v] = [&l.q, &l.k, &l.v].map(|array| array.walked::<X>(l, self.buffers, self.problem));
            let g = l.g.walked::<S::T>(l, self.buffers, self.problem);
            // Results of a system begin as values.
            let values = if l.reads == LinearReads::Solve { self.out() } else { self.v() };
            for first in (0..l.positions).step_by(CHUNK) {
                let n = (l.positions - first).min(CHUNK);
                let rows = first..first + n;
                k.load(rows.clone(), [0, size], self.q());
                self.turn_keys(n);
                q.load(rows.clone(), [0, size], self.q());
                v.load(rows.clone(), columns, values);
                let decays = Decays::new::<S::T>(n, |i| self.log(g, first + i));
                self.scores(&decays, n);
                let remembers = first > 0;
                if remembers {
                    self.read_state(&decays, n);
                }
                match l.reads {
                    LinearReads::Solve => self.solve(n),
                    _ => self.read_chunk(n, remembers),
                }
                self.store(rows, columns);
                if first + n < l.positions {
                    self.add_to_state(&decays, n, values, remembers);
                }
            }
        }
    }
}

/// The methods' contract is that of [`Pass::run`]; `n` is the number of positions in the chunk.
impl<S: Simd<T: Wide>, X: Source<S::T>> Walk<'_, S, X> {
    fn rows(&self, place: usize, pitch: usize) -> Rows<S::T> {
        Rows { at: self.space.wrapping_add(place), pitch }
    }

    fn q(&self) -> Rows<S::T> {
        self.rows(self.places.q, pitch(self.linear.key_size))
    }

    fn k(&self) -> Rows<S::T> {
        self.rows(self.places.k, ACROSS)
    }

    fn score_rows(&self) -> Rows<S::T> {
        self.rows(self.places.scores, ACROSS)
    }

    fn v(&self) -> Rows<S::T> {
        self.rows(self.places.v, pitch(self.places.columns))
    }

    fn out(&self) -> Rows<S::T> {
        self.rows(self.places.out, pitch(self.places.columns))
    }

    fn state(&self) -> Rows<S::T> {
        self.rows(self.places.state, pitch(self.places.columns))
    }

    /// Columns with the zeros behind them: whole vectors.
    fn columns(&self) -> usize {
        self.places.columns.next_multiple_of(LANES)
    }

    /// The logarithm of the decay from the walked position before to this one: the later one's, wherever the walk comes from.
    #[inline(always)]
    unsafe fn log(&self, g: Walked<S::T>, position: usize) -> f64 {
        let later = if self.linear.backward { position.checked_sub(1) } else { Some(position) };
        // SAFETY: there is such a position. Before the first one is nothing that decays.
        later.map_or(0.0, |later| unsafe { *g.row(later) }.value())
    }

    /// Writes the chunk's results.
    #[inline(always)]
    unsafe fn store(&self, rows: std::ops::Range<usize>, columns: [usize; 2]) {
        let (l, from) = (self.linear, self.out());
        // SAFETY: the caller's contract; the array has the type of what is written.
        unsafe {
            if l.keeps_wide {
                l.out.walked::<S::T>(l, self.buffers, self.problem).store(rows, columns, from);
            } else {
                l.out.walked::<X>(l, self.buffers, self.problem).store(rows, columns, from);
            }
        }
    }

    /// Turns the keys, which lie where queries will.
    #[inline(always)]
    unsafe fn turn_keys(&self, n: usize) {
        let (from, to) = (self.q(), self.k());
        let args = PackArgs {
            src: from.at.cast_const(),
            width: n,
            depth: self.linear.key_size,
            across: from.pitch,
            along: 1,
            dst: to.at,
            panel: to.pitch,
            panels: 1,
            panel_step: 0,
            completes: false,
        };
        // SAFETY: the caller's contract; rows are a multiple of the side of every flavour's squares.
        unsafe { S::pack::<S::T>(args) }
    }

    /// The scores of the chunk with their decays, in rows that end with their blocks.
    #[inline(always)]
    unsafe fn scores(&self, decays: &Decays, n: usize) {
        let (q, k, to) = (self.q(), self.k(), self.score_rows());
        for first in (0..n).step_by(BLOCK) {
            let end = first + BLOCK;
            // SAFETY: the caller's contract; turned keys have zeros for positions that do not exist.
            unsafe {
                let rows = (n - first).min(BLOCK);
                multiply::<S>([rows, end, self.linear.key_size], q.from(first), k, to.from(first), false);
                for t in first..end.min(n) {
                    decays.apply(self.linear.reads, t, end, to.at.add(t * to.pitch));
                }
            }
        }
    }

    /// Results: what the state gives, added to values where a system is solved.
    #[inline(always)]
    unsafe fn read_state(&self, decays: &Decays, n: usize) {
        let (q, state, out, size) = (self.q(), self.state(), self.out(), self.linear.key_size);
        let (sign, solves) = (sign(self.linear.reads), self.linear.reads == LinearReads::Solve);
        // SAFETY: the caller's contract.
        unsafe {
            for t in 0..n {
                scale(q.at.add(t * q.pitch), size, S::T::of(sign * decays.incoming[t]));
            }
            multiply::<S>([n, self.columns(), size], q, state, out, solves);
        }
    }

    /// Results: what the values up to the end of each block give, added to what there is, if anything. A value that is not finite is not for positions that do not
    /// read it, whose scores are zeros: then each row ends where it reads to.
    #[inline(always)]
    unsafe fn read_chunk(&self, n: usize, add: bool) {
        let own = usize::from(self.linear.reads == LinearReads::Inclusive);
        // SAFETY: the caller's contract.
        if unsafe { !self.values_are_finite(n) } {
            let out = self.out();
            for t in 0..n {
                // SAFETY: the caller's contract.
                unsafe {
                    if t + own > 0 {
                        self.block(t, 1, t + own, self.v(), add);
                    } else if !add {
                        std::slice::from_raw_parts_mut(out.at, self.columns()).fill(S::T::default());
                    }
                }
            }
            return;
        }
        for first in (0..n).step_by(BLOCK) {
            let rows = (n - first).min(BLOCK);
            // SAFETY: the caller's contract.
            unsafe { self.block(first, rows, first + rows, self.v(), add) };
        }
    }

    #[inline(always)]
    unsafe fn values_are_finite(&self, n: usize) -> bool {
        let v = self.v();
        // SAFETY: the caller's contract: there are as many rows.
        let row = |t: usize| unsafe { std::slice::from_raw_parts(v.at.add(t * v.pitch), self.places.columns) };
        (0..n).all(|t| row(t).iter().all(|x| x.value().is_finite()))
    }

    /// Results of a system, from what is left of the values.
    #[inline(always)]
    unsafe fn solve(&self, n: usize) {
        let (scores, out) = (self.score_rows(), self.out());
        for first in (0..n).step_by(BLOCK) {
            let rows = (n - first).min(BLOCK);
            // SAFETY: the caller's contract.
            unsafe {
                if first > 0 {
                    self.block(first, rows, first, out, true);
                }
                let factors = Rows { at: scores.from(first).at.add(first), ..scores };
                substitute::<S>(rows, self.columns(), factors, out.from(first));
            }
        }
    }

    /// Scores of a block of rows times the rows of the first so many positions.
    #[inline(always)]
    unsafe fn block(&self, first: usize, rows: usize, positions: usize, values: Rows<S::T>, add: bool) {
        let (scores, out) = (self.score_rows(), self.out());
        // SAFETY: the caller's contract.
        unsafe {
            multiply::<S>([rows, self.columns(), positions], scores.from(first), values, out.from(first), add);
        }
    }

    /// The state behind the chunk, from that before it, if there is any.
    #[inline(always)]
    unsafe fn add_to_state(&self, decays: &Decays, n: usize, values: Rows<S::T>, remembers: bool) {
        let (k, state, size) = (self.k(), self.state(), self.linear.key_size);
        let total = decays.total();
        // What is forgotten is not multiplied with zero, which would keep what is not a number.
        let remembers = remembers && total != 0.0;
        let mut outgoing = [S::T::default(); CHUNK];
        outgoing.iter_mut().zip(&decays.outgoing).for_each(|(to, from)| *to = S::T::of(*from));
        // SAFETY: the caller's contract.
        unsafe {
            for element in 0..size {
                let row = std::slice::from_raw_parts_mut(k.at.add(element * k.pitch), CHUNK);
                row.iter_mut().zip(&outgoing).for_each(|(x, factor)| *x = *x * *factor);
                if remembers && total != 1.0 {
                    scale(state.at.add(element * state.pitch), self.columns(), S::T::of(total));
                }
            }
            multiply::<S>([size, self.columns(), n], k, values, state, remembers);
        }
    }
}

/// `c (+)= a b`: so many rows, columns and terms.
///
/// # Safety
/// The machine has the flavour's features; there are the rows, whose columns are whole vectors.
#[inline(always)]
unsafe fn multiply<S: Simd>(
    [rows, columns, depth]: [usize; 3],
    a: Rows<S::T>,
    b: Rows<S::T>,
    c: Rows<S::T>,
    add: bool,
) {
    let b = product::Rows { at: b.at, row: b.pitch };
    let product = Product { rows, columns, depth, a: a.at, a_row: a.pitch, a_step: 1, b, c: c.at, c_row: c.pitch, add };
    // SAFETY: the caller's contract.
    unsafe { product.run::<S>() };
}

/// Multiplies elements with a factor.
#[inline(always)]
unsafe fn scale<T: Wide>(at: *mut T, n: usize, factor: T) {
    // SAFETY: the caller's contract: there are as many elements.
    unsafe { std::slice::from_raw_parts_mut(at, n) }.iter_mut().for_each(|x| *x = *x * factor);
}
