//! Tensors that outlive a step, and which part of them a rank holds.

use crate::mesh::Affine;
use crate::schema::{DType, Space};
use serde::{Deserialize, Serialize};

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorKind {
    /// A trainable parameter at master precision, or the half of it that its copy lacks ([`Form::LowerHalf`]).
    Param,
    /// Its copy in the compute type; made from the master, not saved.
    ComputeCopy,
    /// Its gradient; not saved.
    Gradient,
    /// AdamW's first moment.
    FirstMoment,
    /// AdamW's second moment.
    SecondMoment,
    /// State that is updated without gradients.
    State,
}

impl TensorKind {
    /// Is it part of a checkpoint?
    pub fn is_saved(self) -> bool {
        match self {
            TensorKind::Param | TensorKind::FirstMoment | TensorKind::SecondMoment | TensorKind::State => true,
            TensorKind::ComputeCopy | TensorKind::Gradient => false,
        }
    }
}

/// A tensor that outlives a step, at a fixed place of one of the memories: as a whole, or the part of it that a rank holds.
///
/// ```text
/// whole tensor [dims] ── block: cuts along dimensions ──► block, row-major ── range: a shard of a flat array ──► what is there
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// The instance name of the parameter or state: `layers.3.attention.wq`. The same for all kinds of tensors of a parameter.
    pub name: String,
    /// What it is for. (name, kind) is unique in a role.
    pub kind: TensorKind,
    /// Element type.
    pub dtype: DType,
    /// Sizes of the whole tensor, outermost first; row-major.
    pub dims: Vec<u64>,
    /// Which block of it this rank has; the whole of each dimension that is not named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block: Vec<Cut>,
    /// Which of the block's elements are there; all of them when `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<FlatRange>,
    /// Which memory it is in.
    #[serde(default, skip_serializing_if = "Space::is_device")]
    pub space: Space,
    /// Bytes from the start of the space: of the block's first element, or of the shard.
    pub offset: u64,
    /// The first value.
    pub init: Init,
    /// What of its elements is at that place.
    #[serde(default, skip_serializing_if = "Form::is_whole")]
    pub form: Form,
}

/// What of a tensor's elements is at its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// All of them.
    #[default]
    Whole,
    /// Of an f32 parameter the lower 16 bits. The rest is in tensors of the same name: the copy in bf16 is the element rounded to nearest, ties to even, and
    /// the sign of the second moment, which is never negative, says whether that changed the upper half.
    LowerHalf,
}

impl Form {
    fn is_whole(&self) -> bool {
        *self == Form::Whole
    }
}

/// A part along one dimension of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// Which dimension; each at most once.
    pub dim: u32,
    /// How many elements along it.
    pub size: u64,
    /// The first of them.
    pub first: Affine,
}

/// A part of a flat array in which the parameters of a group lie one behind the other; what lies between them is padding. The rank holds elements
/// `index · shard .. (index + 1) · shard` of that array, and of a tensor those that fall into it: perhaps none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlatRange {
    /// Where the block begins in the array, in elements.
    pub start: u64,
    /// Elements of a shard. Element e of the array is at [`Tensor::offset`]` + (e - index · shard) · bytes`.
    pub shard: u64,
    /// The rank's shard.
    pub index: Affine,
}

/// What a rank has of a tensor's block: elements `from..to` of it, row-major, one behind the other from a byte on. Empty when `from == to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The first element.
    pub from: u64,
    /// One past the last.
    pub to: u64,
    /// Where the first is: bytes from the start of the space.
    pub offset: u64,
}

/// (Sizes that no memory has saturate, so that plans which are not verified can be looked at.)
impl Tensor {
    /// Elements of the whole tensor.
    pub fn elements(&self) -> u64 {
        self.dims.iter().fold(1, |n, d| n.saturating_mul(*d))
    }

    /// Bytes of the whole tensor.
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.bytes())
    }

    /// Sizes of the block, outermost first.
    pub fn local_dims(&self) -> impl Iterator<Item = u64> + Clone {
        (0..).zip(&self.dims).map(|(dim, size)| self.cut(dim).map_or(*size, |cut| cut.size))
    }

    /// Elements of the block.
    pub fn local_elements(&self) -> u64 {
        self.local_dims().fold(1, u64::saturating_mul)
    }

    /// Elements of its place in memory: of the block, or of the shard, which it may share with others.
    pub fn place_elements(&self) -> u64 {
        self.range.as_ref().map_or_else(|| self.local_elements(), |range| range.shard)
    }

    /// Type of what is at its place.
    pub fn place_dtype(&self) -> DType {
        match self.form {
            Form::Whole => self.dtype,
            Form::LowerHalf => DType::I16,
        }
    }

    /// Bytes of its place in memory.
    pub fn place_bytes(&self) -> u64 {
        self.place_elements().saturating_mul(self.place_dtype().bytes())
    }

    /// The cut along a dimension.
    pub fn cut(&self, dim: u32) -> Option<&Cut> {
        self.block.iter().find(|cut| cut.dim == dim)
    }

    /// Where the block begins in the whole tensor, for each dimension.
    pub fn block_start(&self, coordinates: &[u32]) -> impl Iterator<Item = u64> + Clone {
        (0..self.dims.len() as u32)
            .map(|dim| self.cut(dim).map_or(0, |cut| u64::try_from(cut.first.at(coordinates)).unwrap_or(0)))
    }

    /// What a rank has of the block.
    pub fn held(&self, coordinates: &[u32]) -> Held {
        let elements = self.local_elements();
        let Some(FlatRange { start, shard, index }) = &self.range else {
            return Held { from: 0, to: elements, offset: self.offset };
        };
        let index = u64::try_from(index.at(coordinates)).unwrap_or(0);
        let (first, end) = (index.saturating_mul(*shard), index.saturating_add(1).saturating_mul(*shard));
        let of_block = |e: u64| e.saturating_sub(*start).min(elements);
        let (from, to) = (of_block(first), of_block(end));
        let before = start.saturating_add(from).saturating_sub(first).min(*shard);
        Held { from, to, offset: self.offset.saturating_add(before.saturating_mul(self.place_dtype().bytes())) }
    }
}

/// How a tensor is initialised. Random ones are drawn from (seed, tensor name, element).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// All elements equal.
    Constant(#[serde(with = "crate::float")] f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(#[serde(with = "crate::float")] f64),
    /// The same, cut at two standard deviations.
    TruncatedNormal(#[serde(with = "crate::float")] f64),
    /// Uniform in `[lo, hi)`.
    Uniform(#[serde(with = "crate::float")] f64, #[serde(with = "crate::float")] f64),
    /// A rounded copy of the parameter of the same name (for [`TensorKind::ComputeCopy`]).
    FromParam,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_of_a_flat_array_cover_its_tensors_once() {
        let tensor = |start, dims: &[u64]| Tensor {
            name: "w".into(),
            kind: TensorKind::FirstMoment,
            dtype: DType::F32,
            dims: dims.to_vec(),
            block: vec![Cut { dim: 1, size: 3, first: Affine::along(0, 3) }],
            range: Some(FlatRange { start, shard: 8, index: Affine::along(1, 1) }),
            space: Space::Device,
            offset: 640,
            init: Init::Constant(0.0),
            form: Form::Whole,
        };
        // Blocks of [2, 3] and [3, 3] elements in an array of 24 with padding between them: three shards of 8.
        let (first, second) = (tensor(0, &[2, 6]), tensor(12, &[3, 6]));
        let held = |t: &Tensor| [0, 1, 2].map(|i| t.held(&[1, i])).map(|h| (h.from, h.to, h.offset - 640));
        assert_eq!(held(&first), [(0, 6, 0), (6, 6, 0), (6, 6, 0)].map(|(a, b, c)| (a, b, if a == b { 0 } else { c })));
        assert_eq!(held(&second)[1..], [(0, 4, 16), (4, 9, 0)]);
        assert_eq!(held(&second)[0].0, held(&second)[0].1);
        assert_eq!(first.local_dims().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(first.block_start(&[1, 0]).collect::<Vec<_>>(), [0, 3]);
        assert_eq!((first.local_elements(), first.place_bytes()), (6, 32));
    }
}
