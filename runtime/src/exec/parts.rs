//! Tensors as wholes: put together from what ranks have of them, and cut to it. One tensor at a time, so that no second copy of the model is needed.
//!
//! With several processes, every part comes from the first rank that has it; what the first process gathers to write it down, it asks for tensor by tensor.

use super::fleet::Fleet;
use super::halves::Holds;
use super::{ExecError, Executor, Rank};
use crate::comm::{Say, coordinates};
use forebay_plan::{Role, Tensor, TensorKind};
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

/// Memory of this process can always be read.
pub(super) const AT_HAND: &str = "a rank of this process has its memory at hand";

impl<'p> Rank<'p> {
    /// Its tensor of this name and kind.
    pub fn find(&self, name: &str, kind: TensorKind) -> Option<&'p Tensor> {
        find(self.role, name, kind)
    }
}

/// A role's tensor of this name and kind.
pub(super) fn find<'p>(role: &'p Role, name: &str, kind: TensorKind) -> Option<&'p Tensor> {
    role.tensors.iter().find(|t| t.kind == kind && t.name == name)
}

/// A part of a tensor, and the first rank that has it.
struct Piece<'p> {
    rank: u32,
    /// The rank's tensor.
    own: &'p Tensor,
    part: Part,
}

/// What the first process wants: the number of a tensor, or nothing more.
const NOTHING_MORE: u32 = u32::MAX;

impl<'p> Executor<'p> {
    /// The tensors of all ranks, each once.
    pub fn tensors(&self) -> Vec<&'p Tensor> {
        let mut seen = HashSet::new();
        let all = self.plan.roles.iter().flat_map(|role| &role.tensors);
        all.filter(|t| seen.insert((t.name.as_str(), t.kind))).collect()
    }

    /// All bytes of a tensor: where they are, or put together from all ranks. All processes get them.
    ///
    /// # Errors
    /// When another process has given up.
    pub fn whole(&self, tensor: &Tensor) -> Result<Cow<'_, [u8]>, ExecError> {
        if let Some(bytes) = self.at_hand(tensor) {
            return Ok(bytes);
        }
        let pieces = self.pieces(tensor);
        self.processes.others().try_for_each(|other| self.tell_pieces(other, &pieces))?;
        self.put_together(tensor, &pieces)
    }

    /// The same for the first process alone. The others are in [`Executor::give_tensors`] meanwhile.
    ///
    /// # Errors
    /// When another process has given up.
    pub fn gathered(&self, tensor: &Tensor) -> Result<Cow<'_, [u8]>, ExecError> {
        if let Some(bytes) = self.at_hand(tensor) {
            return Ok(bytes);
        }
        if self.processes.count() > 1 {
            let same = |t: &&Tensor| (&t.name, t.kind) == (&tensor.name, tensor.kind);
            let number = self.tensors().iter().position(same).expect("a tensor of the plan");
            self.want(number as u32)?;
        }
        self.put_together(tensor, &self.pieces(tensor))
    }

    /// The first process has gathered what it wants.
    ///
    /// # Errors
    /// When another process has given up.
    pub fn gathered_all(&self) -> Result<(), ExecError> {
        self.want(NOTHING_MORE)
    }

    fn want(&self, number: u32) -> Result<(), ExecError> {
        Ok(self
            .processes
            .others()
            .try_for_each(|other| self.processes.tell(other, Say::Want, &number.to_le_bytes()))?)
    }

    /// Gives the first process what it gathers, as long as it does.
    ///
    /// # Errors
    /// When another process has given up.
    pub fn give_tensors(&self) -> Result<(), ExecError> {
        let tensors = self.tensors();
        loop {
            let mut number = [0; 4];
            self.processes.hear(0, Say::Want, &mut number)?;
            let Some(tensor) = tensors.get(u32::from_le_bytes(number) as usize) else { return Ok(()) };
            self.tell_pieces(0, &self.pieces(tensor))?;
        }
    }

    /// A tensor that the only rank has all of.
    fn at_hand(&self, tensor: &Tensor) -> Option<Cow<'_, [u8]>> {
        let alone = self.ranks() == 1 && tensor.block.is_empty() && tensor.range.is_none();
        self.ranks.first().filter(|_| alone).map(|rank| rank.numbers(tensor).expect(AT_HAND))
    }

    /// The parts of a tensor, each once, in the order of the ranks that are the first to have them.
    fn pieces(&self, tensor: &Tensor) -> Vec<Piece<'p>> {
        let mut seen = HashSet::new();
        let of_rank = |(rank, role): (u32, &&'p Role)| {
            let own = find(role, &tensor.name, tensor.kind)?;
            Some(Piece { rank, own, part: Part::new(own, &coordinates(&self.plan.mesh, rank)) })
        };
        let all = (0..).zip(&self.roles).filter_map(of_rank);
        all.filter(|piece| seen.insert(piece.part.clone())).collect()
    }

    /// Sends another process those that are here.
    fn tell_pieces(&self, to: u32, pieces: &[Piece]) -> Result<(), ExecError> {
        for piece in pieces {
            if let Some(rank) = self.ranks.iter().find(|rank| rank.number == piece.rank) {
                self.processes.tell(to, Say::Part, &rank.numbers(piece.own)?)?;
            }
        }
        Ok(())
    }

    /// The whole of parts that are here and parts that come.
    fn put_together(&self, tensor: &Tensor, pieces: &[Piece]) -> Result<Cow<'_, [u8]>, ExecError> {
        let width = tensor.dtype.bytes() as usize;
        let mut whole = vec![0; tensor.bytes() as usize];
        let mut heard = vec![];
        for Piece { rank, own, part } in pieces {
            let bytes = match (self.ranks.iter().find(|r| r.number == *rank), &self.fleet) {
                (Some(rank), _) => rank.numbers(own)?,
                (None, Some(fleet)) => Cow::Owned(fleet.on(*rank).numbers(own)?.into_owned()),
                (None, None) => {
                    let process = self.processes.others().find(|p| self.processes.ranks_of(*p).contains(rank));
                    heard.resize(part.elements() as usize * width, 0);
                    self.processes.hear(process.expect("every rank is somewhere"), Say::Part, &mut heard)?;
                    Cow::Borrowed(&heard[..])
                }
            };
            part.runs(|here, there, n| {
                whole[there * width..(there + n) * width].copy_from_slice(&bytes[here * width..(here + n) * width]);
            });
        }
        Ok(Cow::Owned(whole))
    }

    /// Gives every rank of this process what it has of a tensor. Of a parameter in halves, this is its copy as well.
    ///
    /// # Errors
    /// When a device does not take it.
    ///
    /// # Panics
    /// When there are not as many bytes as the tensor has.
    pub fn set_whole(&mut self, tensor: &Tensor, whole: &[u8]) -> Result<(), ExecError> {
        assert_eq!(whole.len() as u64, tensor.bytes(), "the bytes of `{}`", tensor.name);
        for rank in &mut self.ranks {
            let Some(own) = rank.find(&tensor.name, tensor.kind) else { continue };
            rank.set(own, whole)?;
        }
        for mut rank in self.fleet.iter().flat_map(Fleet::all) {
            let Some(own) = find(rank.role(), &tensor.name, tensor.kind) else { continue };
            rank.set(own, whole)?;
        }
        Ok(())
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
            form: forebay_plan::Form::Whole,
            space: forebay_plan::Space::Device,
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
