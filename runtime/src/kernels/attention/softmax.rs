//! Softmax over a block of transposed scores, and its gradient: vectors of queries, one key after the other.

use super::block::Block;
use super::{LANES, QUERIES};
use crate::kernels::cpu::by_cpu;
use crate::kernels::math;
use crate::kernels::matmul::tile::Real;

/// What scores are kept in.
pub(super) trait Wide: Real + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    const LEAST: Self;
    const MOST: Self;
    fn of(value: f64) -> Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
    fn exp(self) -> Self;
    fn log(self) -> Self;
}

macro_rules! wide {
    ($t:ty, $exp:expr, $log:expr) => {
        impl Wide for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const LEAST: $t = <$t>::NEG_INFINITY;
            const MOST: $t = <$t>::INFINITY;
            #[inline(always)]
            fn of(value: f64) -> $t {
                value as $t
            }
            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                self + other
            }
            #[inline(always)]
            fn minus(self, other: $t) -> $t {
                self - other
            }
            #[inline(always)]
            fn times(self, other: $t) -> $t {
                self * other
            }
            #[inline(always)]
            fn over(self, other: $t) -> $t {
                self / other
            }
            #[inline(always)]
            fn exp(self) -> $t {
                $exp(self)
            }
            #[inline(always)]
            fn log(self) -> $t {
                $log(self)
            }
        }
    };
}
wide!(f32, math::exp, math::log);
wide!(f64, f64::exp, f64::ln);

/// Documents of a block of queries, and of all keys.
#[derive(Clone, Copy)]
pub(super) struct DocumentsHere {
    /// [`QUERIES`] of them.
    pub queries: *const i32,
    pub keys: *const i32,
    /// From one key to the next.
    pub stride: usize,
}

/// Which queries of a group see a key.
#[inline(always)]
unsafe fn sight(block: &Block, documents: Option<&DocumentsHere>, key: usize, first: usize) -> [bool; LANES] {
    let (start, end) = block.visible(key);
    let mut sees = [false; LANES];
    for (i, sees) in sees.iter_mut().enumerate() {
        let t = (first + i) as i32;
        *sees = (t >= start) & (t < end);
    }
    if let Some(documents) = documents {
        // SAFETY: there is a document for each key and each of `QUERIES` queries.
        unsafe {
            let key = *documents.keys.add((block.key + key) * documents.stride);
            for (i, sees) in sees.iter_mut().enumerate() {
                *sees &= *documents.queries.add(first + i) == key;
            }
        }
    }
    sees
}

/// The state of a softmax over blocks: for each of [`QUERIES`] queries the largest score so far and the sum of exponentials relative to it.
#[derive(Clone, Copy)]
pub(super) struct Running<T> {
    pub most: *mut T,
    pub sum: *mut T,
    /// What earlier sums are to be multiplied by after a block.
    pub factor: *mut T,
}

#[inline(always)]
unsafe fn vector<T: Copy>(at: *mut T) -> &'static mut [T; LANES] {
    // SAFETY: the caller's contract: `LANES` elements that nobody else uses meanwhile.
    unsafe { &mut *at.cast::<[T; LANES]>() }
}

/// -∞ as 0, so that differences are numbers.
#[inline(always)]
fn finite<T: Wide>(most: T) -> T {
    if most == T::LEAST { T::ZERO } else { most }
}

#[inline(always)]
unsafe fn forward_body<T: Wide>(
    scores: *mut T,
    block: &Block,
    documents: Option<&DocumentsHere>,
    running: &Running<T>,
) {
    for first in block.groups() {
        // SAFETY: the caller's contract; rows of scores have `QUERIES` elements.
        unsafe {
            let keys = block.seen_by(first);
            let (most, factor) = (vector(running.most.add(first)), vector(running.factor.add(first)));
            if keys.is_empty() {
                *factor = [T::ONE; LANES];
                continue;
            }
            let before = *most;
            for key in keys.clone() {
                let s = vector(scores.add(key * QUERIES + first));
                if block.masked {
                    let sees = sight(block, documents, key, first);
                    (0..LANES).for_each(|i| s[i] = if sees[i] { s[i] } else { T::LEAST });
                }
                (0..LANES).for_each(|i| most[i] = if s[i] > most[i] { s[i] } else { most[i] });
            }
            let base: [T; LANES] = std::array::from_fn(|i| finite(most[i]));
            let mut sums = [T::ZERO; LANES];
            for key in keys {
                let s = vector(scores.add(key * QUERIES + first));
                (0..LANES).for_each(|i| s[i] = s[i].minus(base[i]).exp());
                (0..LANES).for_each(|i| sums[i] = sums[i].plus(s[i]));
            }
            (0..LANES).for_each(|i| factor[i] = before[i].minus(base[i]).exp());
            let total = vector(running.sum.add(first));
            (0..LANES).for_each(|i| total[i] = total[i].times(factor[i]).plus(sums[i]));
        }
    }
}

by_cpu!(
    /// Makes scores exponentials relative to the largest so far, and brings the state up to date. Scores of queries that do not exist may be any numbers.
    ///
    /// # Safety
    /// `scores` has a row of [`QUERIES`] for each key of the block, the state as many, documents are there if given.
    pub(super) unsafe fn forward / forward_body<T: Wide>(scores: *mut T, block: &Block, documents: Option<&DocumentsHere>, running: &Running<T>)
);

#[inline(always)]
unsafe fn finish_body<T: Wide>(running: &Running<T>) {
    for i in 0..QUERIES {
        // SAFETY: the caller's contract.
        unsafe {
            let sum = *running.sum.add(i);
            // Queries that see nothing have no exponentials to divide by.
            *running.factor.add(i) = if sum == T::ZERO { T::ZERO } else { T::ONE.over(sum) };
            let most = running.most.add(i);
            *most = finite(*most).plus(sum.log());
        }
    }
}

by_cpu!(
    /// After the last block: makes the factor that of the result, and the largest score the lse.
    ///
    /// # Safety
    /// The state has [`QUERIES`] of each.
    pub(super) unsafe fn finish / finish_body<T: Wide>(running: &Running<T>)
);

/// A block of the backward pass.
#[derive(Clone, Copy)]
pub(super) struct Gradients<T> {
    /// Scores, which become p.
    pub scores: *mut T,
    /// Gradients of p, which become those of scores, but for the factor of scores.
    pub gradients: *mut T,
    /// [`QUERIES`] of them; +∞ for queries that do not exist.
    pub lse: *const T,
    /// [`QUERIES`] of them.
    pub delta: *const T,
}

#[inline(always)]
unsafe fn backward_body<T: Wide>(block: &Block, documents: Option<&DocumentsHere>, g: &Gradients<T>) {
    for first in block.groups() {
        // SAFETY: the caller's contract; rows have `QUERIES` elements.
        unsafe {
            let lse: [T; LANES] = std::array::from_fn(|i| finite(*g.lse.add(first + i)));
            let delta: [T; LANES] = std::array::from_fn(|i| *g.delta.add(first + i));
            for key in block.seen_by(first) {
                let at = key * QUERIES + first;
                let (s, d) = (vector(g.scores.add(at)), vector(g.gradients.add(at)));
                (0..LANES).for_each(|i| s[i] = s[i].minus(lse[i]).exp());
                if block.masked {
                    let sees = sight(block, documents, key, first);
                    (0..LANES).for_each(|i| s[i] = if sees[i] { s[i] } else { T::ZERO });
                    (0..LANES).for_each(|i| d[i] = if sees[i] { d[i] } else { delta[i] });
                }
                (0..LANES).for_each(|i| d[i] = s[i].times(d[i].minus(delta[i])));
            }
        }
    }
}

by_cpu!(
    /// Makes scores p, and gradients of p those of scores.
    ///
    /// # Safety
    /// The arrays have a row of [`QUERIES`] for each key of the block, documents are there if given.
    pub(super) unsafe fn backward / backward_body<T: Wide>(block: &Block, documents: Option<&DocumentsHere>, g: &Gradients<T>)
);
