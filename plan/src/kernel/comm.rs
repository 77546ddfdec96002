//! Kernels that talk to other ranks, and what belongs to them.
//!
//! A *group* is given by mesh dimensions: the ranks that agree with a rank in all other coordinates, numbered row-major over these dimensions. What a
//! rank gives and takes has sizes that the plan states or that buffers hold; no size is agreed on at run time without both sides knowing it.

use super::{BufferId, RaggedLimit, ReduceOp, is_zero};
use crate::mesh::Affine;
use crate::schema::DType;
use serde::{Deserialize, Serialize};

/// Every rank gives every rank of its group a piece of an array: all dense collectives.
///
/// For each source s and destination d of the group, the piece `x of s [x_offset + d·x_step + Σ i·x_strides]` arrives at `out of d [out_offset + s·out_step + Σ
/// i·out_strides]`. With `reduce`, `out_step` is 0 and the pieces of all sources are combined in the order of s: (((0, 1), 2), …), bf16 in f32
/// and rounded once; so the order depends on the group's size alone, and all ranks get the same bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// Element type of x and out.
    pub dtype: DType,
    /// Mesh dimensions of the group, outermost first, each at most once.
    pub group: Vec<u32>,
    /// How many ranks the group has: the product of the dimensions' sizes.
    pub ranks: u64,
    /// What this rank gives.
    pub x: BufferId,
    /// What it gets.
    pub out: BufferId,
    /// Sizes of a piece, outermost first.
    pub dims: Vec<u64>,
    /// Elements from the start of x.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub x_offset: u64,
    /// Elements from the start of out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub out_offset: u64,
    /// Strides of a piece in x.
    pub x_strides: Vec<u64>,
    /// From the piece for one rank to that for the next; 0 when all get the same.
    pub x_step: u64,
    /// Strides of a piece in out.
    pub out_strides: Vec<u64>,
    /// From the piece of one rank to that of the next.
    pub out_step: u64,
    /// Combines the pieces of all sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce: Option<ReduceOp>,
    /// When not 0: takes the piece of one source only, of the rank that stands so many places before this one in the group, round. Everyone gives the
    /// same to all then, and both steps are 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shift: u64,
    /// When a dimension of a piece is ragged: only its first `offsets[last]` elements are moved, of which all members have as many; the rest of out is left
    /// as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ragged: Option<RaggedLimit>,
}

/// What an exchange is commonly called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeKind {
    /// Everyone gets everyone's array.
    AllGather,
    /// Everyone has a piece for everyone.
    AllToAll,
    /// Everyone gets the combination of all arrays.
    AllReduce,
    /// Everyone gets a piece of the combination.
    ReduceScatter,
    /// Everyone gets the array of one other.
    Shift,
}

impl ExchangeKind {
    /// `all_gather`, …
    pub fn name(self) -> &'static str {
        match self {
            ExchangeKind::AllGather => "all_gather",
            ExchangeKind::AllToAll => "all_to_all",
            ExchangeKind::AllReduce => "all_reduce",
            ExchangeKind::ReduceScatter => "reduce_scatter",
            ExchangeKind::Shift => "shift",
        }
    }
}

impl Exchange {
    /// What it is commonly called.
    pub fn kind(&self) -> ExchangeKind {
        if self.shift != 0 {
            return ExchangeKind::Shift;
        }
        match (self.reduce, self.x_step) {
            (None, 0) => ExchangeKind::AllGather,
            (None, _) => ExchangeKind::AllToAll,
            (Some(_), 0) => ExchangeKind::AllReduce,
            (Some(_), _) => ExchangeKind::ReduceScatter,
        }
    }

    /// Elements of a piece. Saturates.
    pub fn piece(&self) -> u64 {
        self.dims.iter().fold(1, |n, d| n.saturating_mul(*d))
    }
}

/// Rows to the ranks that own their experts, or back: as many as the buffers say.
///
/// Rank d of the group owns experts `d·experts/ranks .. (d+1)·experts/ranks`. *Dispatch*: x holds a rank's rows by expert, where `offsets` says; out gets the
/// rows of the own experts, ordered by (expert, source, row). *Combine* is the inverse: x holds rows ordered by (own expert, source, row), out gets them
/// back where `offsets` says. Rows past the last are neither read nor written. More rows than `bound` are a run-time error that names the
/// instruction, the rows and the bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllToAllV {
    /// Element type of x and out.
    pub dtype: DType,
    /// Mesh dimensions of the group, outermost first, each at most once.
    pub group: Vec<u32>,
    /// How many ranks the group has.
    pub ranks: u64,
    /// What this rank gives: rows, contiguous.
    pub x: BufferId,
    /// What it gets: rows, contiguous.
    pub out: BufferId,
    /// Elements of a row.
    pub row: u64,
    /// Experts of the whole group; a multiple of `ranks`.
    pub experts: u64,
    /// i32[experts + 1]: where each expert's rows start on this rank as a source.
    pub offsets: BufferId,
    /// i32[ranks, experts/ranks]: how many rows each source has for each own expert.
    pub counts: BufferId,
    /// There or back?
    pub direction: Direction,
    /// Rows that there is room for where experts are owned.
    pub bound: u64,
    /// Rows that there is room for at a source.
    pub tokens: u64,
    /// Rows that a source has when experts are chosen evenly: what costs are counted with.
    pub even: u64,
}

/// Where rows go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To the owners of their experts.
    Dispatch,
    /// Back to where they came from.
    Combine,
}

impl AllToAllV {
    /// Experts that a rank owns.
    pub fn own(&self) -> u64 {
        self.experts / self.ranks.max(1)
    }

    /// Rows that there is room for in (x, out).
    pub fn room(&self) -> (u64, u64) {
        match self.direction {
            Direction::Dispatch => (self.tokens, self.bound),
            Direction::Combine => (self.bound, self.tokens),
        }
    }
}

/// Where the rank is: an affine function of its coordinates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coordinate {
    /// `i32[1]`
    pub out: BufferId,
    /// What is written; representable on every rank.
    pub value: Affine,
}

/// An array for one other rank, or from it. Messages of one (sender, receiver, channel) arrive in the order in which they were sent; sending never waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Element type.
    pub dtype: DType,
    /// The array.
    pub buffer: BufferId,
    /// How many elements, contiguous from its start. Both sides agree.
    pub elements: u64,
    /// The mesh dimension along which the other rank is; all other coordinates are the same.
    pub dim: u32,
    /// The other rank's coordinate there.
    pub peer: u32,
    /// Keeps apart what is sent for different purposes.
    pub channel: u32,
}
