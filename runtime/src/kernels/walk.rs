//! Walking a space of several dimensions in row-major order, with the offsets that arrays have there.

use super::{PrepareError, ensure};

/// Dimensions of a walk at most.
pub(crate) const MOST_DIMS: usize = 10;

/// Sizes, and for each of `N` arrays the strides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dims<const N: usize> {
    pub n: usize,
    pub sizes: [usize; MOST_DIMS],
    pub strides: [[usize; N]; MOST_DIMS],
}

impl<const N: usize> Dims<N> {
    /// No dimensions: one element.
    pub const NONE: Dims<N> = Dims { n: 0, sizes: [1; MOST_DIMS], strides: [[0; N]; MOST_DIMS] };

    /// Adds an inner dimension.
    pub fn push(&mut self, size: usize, strides: [usize; N]) -> Result<(), PrepareError> {
        ensure(self.n < MOST_DIMS, || format!("more than {MOST_DIMS} dimensions that do not collapse"))?;
        self.sizes[self.n] = size;
        self.strides[self.n] = strides;
        self.n += 1;
        Ok(())
    }

    /// Adds an inner dimension, or makes the innermost one longer where all arrays just go on.
    pub fn push_joined(&mut self, size: usize, strides: [usize; N]) -> Result<(), PrepareError> {
        if size == 1 {
            return Ok(());
        }
        if let Some(last) = self.n.checked_sub(1)
            && size > 0
            && (0..N).all(|i| self.strides[last][i] == size * strides[i])
        {
            self.sizes[last] *= size;
            self.strides[last] = strides;
            return Ok(());
        }
        self.push(size, strides)
    }

    /// Takes the innermost dimension off; size 1 when there is none.
    pub fn pop(&mut self) -> (usize, [usize; N]) {
        let Some(last) = self.n.checked_sub(1) else { return (1, [0; N]) };
        self.n = last;
        let inner = (self.sizes[last], self.strides[last]);
        self.sizes[last] = 1;
        self.strides[last] = [0; N];
        inner
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.sizes[..self.n].iter().product()
    }

    /// The offsets of an element.
    pub fn at(&self, number: usize) -> [usize; N] {
        Walk::new(self, number).offsets
    }
}

/// A place in a space, which moves on in row-major order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk<'a, const N: usize> {
    dims: &'a Dims<N>,
    at: [usize; MOST_DIMS],
    pub offsets: [usize; N],
}

impl<'a, const N: usize> Walk<'a, N> {
    /// At an element, by number.
    pub fn new(dims: &'a Dims<N>, number: usize) -> Walk<'a, N> {
        let mut walk = Walk { dims, at: [0; MOST_DIMS], offsets: [0; N] };
        let mut rest = number;
        for d in (0..dims.n).rev() {
            let size = dims.sizes[d].max(1);
            walk.at[d] = rest % size;
            rest /= size;
            for i in 0..N {
                walk.offsets[i] += walk.at[d] * dims.strides[d][i];
            }
        }
        walk
    }

    /// To the next element; past the last one to the first.
    pub fn step(&mut self) {
        for d in (0..self.dims.n).rev() {
            let strides = &self.dims.strides[d];
            self.at[d] += 1;
            if self.at[d] < self.dims.sizes[d] {
                (0..N).for_each(|i| self.offsets[i] += strides[i]);
                return;
            }
            (0..N).for_each(|i| self.offsets[i] -= (self.at[d] - 1) * strides[i]);
            self.at[d] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_like_nested_loops() {
        let mut dims = Dims::<2>::NONE;
        for (size, strides) in [(3, [100, 1]), (4, [10, 0]), (5, [2, 7])] {
            dims.push(size, strides).expect("three dimensions fit");
        }
        let mut walk = Walk::new(&dims, 0);
        let mut number = 0;
        for i in 0..3 {
            for j in 0..4 {
                for k in 0..5 {
                    let want = [i * 100 + j * 10 + k * 2, i + k * 7];
                    assert_eq!(walk.offsets, want);
                    assert_eq!(dims.at(number), want);
                    walk.step();
                    number += 1;
                }
            }
        }
        assert_eq!(walk.offsets, [0, 0]);
    }

    #[test]
    fn dimensions_that_go_on_are_joined() {
        let mut dims = Dims::<2>::NONE;
        for (size, strides) in [(3, [24, 0]), (4, [6, 0]), (1, [99, 99]), (6, [1, 5])] {
            dims.push_joined(size, strides).expect("they fit");
        }
        assert_eq!((dims.n, &dims.sizes[..2]), (2, &[12, 6][..]));
        assert_eq!(dims.strides[..2], [[6, 0], [1, 5]]);
    }
}
