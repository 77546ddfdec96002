//! Tensors as wholes: put together from what ranks have of them, and cut to it. One tensor at a time, so that no second copy of the model is needed.

use super::{Executor, Rank};
use forebay_plan::{Tensor, TensorKind};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

/// What a rank has of a tensor: its elements, in terms of the whole tensor's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    /// The first element of the block that is there, and one past the last.
    from: u64,
    to: u64,
    /// For each dimension the block's size and beginning, and the stride in the whole tensor.
    dims: Vec<(u64, u64, u64)>,
    /// Elements that lie side by side in both.
    run: u64,
}

impl Part {
    pub fn new(tensor: &Tensor, coordinates: &[u32]) -> Part {
        let held = tensor.held(coordinates);
        let sizes: Vec<u64> = tensor.local_dims().collect();
        let mut dims: Vec<_> = sizes.iter().zip(tensor.block_start(coordinates)).map(|(n, s)| (*n, s, 1)).collect();
        let mut stride = 1;
        for (dim, size) in dims.iter_mut().zip(&tensor.dims).rev() {
            dim.2 = stride;
            stride *= size;
        }
        // Whole dimensions at the end, and the one before them.
        let whole = sizes.iter().zip(&tensor.dims).rev().take_while(|(part, all)| part == all).count();
        let run = sizes.iter().rev().take(whole + 1).product();
        Part { from: held.from, to: held.to, dims, run }
    }

    /// Elements that are there.
    pub fn elements(&self) -> u64 {
        self.to - self.from
    }

    /// The whole tensor's number of the i-th element that is there.
    fn whole_index(&self, i: u64) -> u64 {
        let mut rest = self.from + i;
        self.dims.iter().rev().fold(0, |sum, (size, start, stride)| {
            let at = rest % size;
            rest /= size;
            sum + (at + start) * stride
        })
    }

    /// Visits runs that lie side by side: (first element here, first of the whole tensor, how many).
    pub fn runs(&self, visit: impl FnMut(usize, usize, usize)) {
        self.runs_among(0..self.elements(), visit);
    }

    /// The same of some of the elements that are there.
    pub fn runs_among(&self, elements: Range<u64>, mut visit: impl FnMut(usize, usize, usize)) {
        let mut at = elements.start;
        while at < elements.end {
            let count = (self.run - (self.from + at) % self.run).min(elements.end - at);
            visit(at as usize, self.whole_index(at) as usize, count as usize);
            at += count;
        }
    }
}

impl<'p> Rank<'p> {
    /// Its tensor of this name and kind.
    pub fn find(&self, name: &str, kind: TensorKind) -> Option<&'p Tensor> {
        self.role.tensors.iter().find(|t| t.kind == kind && t.name == name)
    }
}

impl<'p> Executor<'p> {
    /// The tensors of all ranks, each once.
    pub fn tensors(&self) -> Vec<&'p Tensor> {
        let mut seen = HashSet::new();
        let all = self.plan.roles.iter().flat_map(|role| &role.tensors);
        all.filter(|t| seen.insert((t.name.as_str(), t.kind))).collect()
    }

    /// All bytes of a tensor: where they are, or put together from all ranks.
    pub fn whole(&self, tensor: &Tensor) -> Cow<'_, [u8]> {
        if let [rank] = self.ranks.as_slice()
            && tensor.block.is_empty()
            && tensor.range.is_none()
        {
            return Cow::Borrowed(rank.tensor(tensor));
        }
        let width = tensor.dtype.bytes() as usize;
        let mut whole = vec![0; tensor.bytes() as usize];
        let mut seen = HashSet::new();
        for rank in &self.ranks {
            let Some(own) = rank.find(&tensor.name, tensor.kind) else { continue };
            let part = Part::new(own, &rank.coordinates);
            let bytes = rank.tensor(own);
            // Replicas are read once.
            if seen.insert(part.clone()) {
                part.runs(|here, there, n| {
                    whole[there * width..(there + n) * width].copy_from_slice(&bytes[here * width..(here + n) * width]);
                });
            }
        }
        Cow::Owned(whole)
    }

    /// Gives every rank what it has of a tensor.
    ///
    /// # Panics
    /// When there are not as many bytes as the tensor has.
    pub fn set_whole(&mut self, tensor: &Tensor, whole: &[u8]) {
        assert_eq!(whole.len() as u64, tensor.bytes(), "the bytes of `{}`", tensor.name);
        let width = tensor.dtype.bytes() as usize;
        for rank in &mut self.ranks {
            let Some(own) = rank.find(&tensor.name, tensor.kind) else { continue };
            let part = Part::new(own, &rank.coordinates);
            let bytes = rank.tensor_mut(own);
            part.runs(|here, there, n| {
                bytes[here * width..(here + n) * width].copy_from_slice(&whole[there * width..(there + n) * width]);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_plan::{Affine, Cut, DType, FlatRange, Init};

    #[test]
    fn parts_cover_the_whole_tensor() {
        let cut = |dim, size, along| Cut { dim, size, first: Affine::along(along, size as i64) };
        let tensor = Tensor {
            name: "w".into(),
            kind: TensorKind::Param,
            dtype: DType::F32,
            dims: vec![4, 3, 6, 5],
            block: vec![cut(0, 2, 0), cut(2, 3, 1)],
            range: Some(FlatRange { start: 7, shard: 33, index: Affine::along(2, 1) }),
            offset: 0,
            init: Init::Constant(0.0),
        };
        let mut seen = vec![0; 360];
        for (i, j, k) in (0..8).map(|n| (n / 4, n / 2 % 2, n % 2)).flat_map(|(i, j, k)| [(i, j, k), (i, j, k + 2)]) {
            let part = Part::new(&tensor, &[i, j, k]);
            let mut local = 0;
            part.runs(|here, there, n| {
                assert_eq!(here, local);
                assert!((0..n).all(|e| part.whole_index((here + e) as u64) == (there + e) as u64));
                seen[there..there + n].iter_mut().for_each(|s| *s += 1);
                local += n;
            });
            assert_eq!(local as u64, part.elements());
            // Cut somewhere, the same elements.
            let each = |ranges: [Range<u64>; 2]| {
                let mut all = vec![];
                for range in ranges {
                    part.runs_among(range, |here, there, n| all.extend((0..n).map(|e| (here + e, there + e))));
                }
                all
            };
            let (middle, end) = (part.elements() / 3, part.elements());
            assert_eq!(each([0..middle, middle..end]), each([0..end, end..end]));
        }
        // 7 + 90 elements of a block in shards of 33: three; the fourth is empty.
        assert!(seen.iter().all(|n| *n == 1), "{seen:?}");
    }
}
