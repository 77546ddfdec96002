//! Which values go from one graph to a later one: a minimum cut.
//!
//! Each value is a pair of vertices joined by an edge whose capacity is what it costs to keep the value:
//!
//! ```text
//! source ──∞──▶ (a₁)──bytes──▶(a₂)──∞──▶(b₁)──bytes──▶(b₂)──∞──▶ target        b = exp a;  a before, b's reader after
//! ```
//!
//! Values made before the cut hang on the source, what later values read hangs on the target. The edges that a minimum cut severs are the
//! values to keep; of several minimum cuts the one nearest to the target is taken, which leaves the least to compute again.

use super::extract::{needed, reads};
use super::network::Network;
pub use super::network::UNBOUNDED;
use forebay_ir::{CommKind, FusedKind, Graph, Op, ValueId};

/// Where a value may be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the earlier graph only.
    Before,
    /// In the later graph only. What depends on such a value has this place too.
    After,
    /// In either, or in both.
    Either,
}

/// May an op be computed twice without a thought? Elementwise ops, views and copies: they cost memory traffic only, and mostly become a
/// part of a kernel that runs anyway. Random numbers are a hash of their position.
pub fn is_cheap(op: &Op) -> bool {
    match op {
        Op::Const(_) | Op::Iota(_) | Op::Random { .. } => true,
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) | Op::Detach | Op::Broadcast(_) | Op::Reorder => true,
        Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } => true,
        Op::Take { .. } | Op::Slice { .. } | Op::Pad { .. } | Op::Stack(_) | Op::Concat { .. } => true,
        Op::Fused(fused) => is_cheap_fused(fused.kind),
        Op::Comm(comm) => is_cheap_comm(&comm.kind),
        Op::Input
        | Op::Contract { .. }
        | Op::Reduce { .. }
        | Op::Scan { .. }
        | Op::LinearAttention(_)
        | Op::Gather { .. }
        | Op::ScatterAdd { .. }
        | Op::TopK { .. }
        | Op::Group { .. }
        | Op::Offsets { .. }
        | Op::Invert => false,
    }
}

/// What costs little on links: nothing at all, or one gathering again of what would be n times as large to keep (arXiv 2205.05198, section 4.2.2).
fn is_cheap_comm(kind: &CommKind) -> bool {
    match kind {
        CommKind::Coordinate | CommKind::Vary | CommKind::Shard { .. } => true,
        CommKind::AllGather { .. } | CommKind::Unshard { .. } => true,
        CommKind::AllReduce(_)
        | CommKind::ReduceScatter { .. }
        | CommKind::Rotate { .. }
        | CommKind::AllToAll { .. }
        | CommKind::Dispatch { .. }
        | CommKind::Combine { .. } => false,
    }
}

/// Fused ops that read and write little more than what they would otherwise be saved as.
fn is_cheap_fused(kind: FusedKind) -> bool {
    match kind {
        FusedKind::Rms
        | FusedKind::RmsDx
        | FusedKind::RmsNorm
        | FusedKind::RmsNormDx
        | FusedKind::AddRmsNorm
        | FusedKind::Sigmoid
        | FusedKind::Silu
        | FusedKind::SiluDx
        | FusedKind::Swiglu
        | FusedKind::SwigluDa
        | FusedKind::ClampedSwiglu
        | FusedKind::ClampedSwigluDa
        | FusedKind::ClampedSwigluDb
        | FusedKind::SoftmaxDx
        | FusedKind::CrossEntropyDx
        | FusedKind::Rope
        | FusedKind::RouterShare
        | FusedKind::RouterShareDx => true,
        FusedKind::Softmax
        | FusedKind::SinkSoftmax
        | FusedKind::LogSumExp
        | FusedKind::CrossEntropy
        | FusedKind::Attention
        | FusedKind::AttentionLse
        | FusedKind::AttentionGrad
        | FusedKind::Permute
        | FusedKind::PermuteDx
        | FusedKind::Unpermute
        | FusedKind::UnpermuteDrows
        | FusedKind::UnpermuteDshare
        | FusedKind::RouterChoice
        | FusedKind::AdamwFirst
        | FusedKind::AdamwSecond
        | FusedKind::Adamw => false,
    }
}

/// The cheapest set of values that `wanted` and everything [`Place::After`] can be computed from, in order.
pub fn minimum_cut(
    graph: &Graph,
    place: &dyn Fn(ValueId) -> Place,
    weight: &dyn Fn(ValueId) -> u64,
    wanted: &[ValueId],
) -> Vec<ValueId> {
    Cuts::new(graph, place, wanted).cheapest(&|v| (weight(v), 0))
}

/// The cuts of a graph between what is computed before and what later needs: made once for many prices.
#[derive(Clone, Debug)]
pub struct Cuts {
    /// The values that may be kept, in order.
    values: Vec<ValueId>,
    /// Those of them that have to be computed before the cut, in the same order.
    before: Vec<bool>,
    network: Network,
}

const SOURCE: usize = 0;
const TARGET: usize = 1;

impl Cuts {
    /// The cuts from which `wanted` and everything [`Place::After`] can be computed.
    pub fn new(graph: &Graph, place: &dyn Fn(ValueId) -> Place, wanted: &[ValueId]) -> Cuts {
        let live = needed(graph, wanted, &[]);
        let values: Vec<ValueId> = live.iter().copied().filter(|&v| place(v) != Place::After).collect();
        let before: Vec<bool> = values.iter().map(|&v| place(v) == Place::Before).collect();
        let mut numbers = vec![u32::MAX; graph.nodes.len()];
        for (number, value) in values.iter().enumerate() {
            numbers[value.index()] = number as u32;
        }
        let number = |v: ValueId| Some(numbers[v.index()]).filter(|n| *n != u32::MAX);
        // For each value what keeping it costs, and what making it later does; these come first.
        let mut edges: Vec<(u32, u32)> =
            (0..values.len() as u32).flat_map(|n| [(enter(n), leave(n)), (SOURCE as u32, enter(n))]).collect();
        for &value in &live {
            let to = match place(value) {
                Place::Before => continue,
                Place::Either => enter(numbers[value.index()]),
                Place::After => TARGET as u32,
            };
            edges.extend(reads(graph, value).into_iter().filter_map(number).map(|read| (leave(read), to)));
        }
        edges.extend(wanted.iter().filter_map(|&v| number(v)).map(|n| (leave(n), TARGET as u32)));
        let network = Network::new(2 + 2 * values.len(), &edges);
        Cuts { values, before, network }
    }

    /// The cheapest, in order, and of the cheapest ones the nearest to what is wanted. `price`: what keeping a value costs, and what computing it later does, once. That is an edge from
    /// the source to the value, cut when the value is made after the cut: then all that it is made from is kept, or made there as well. What is
    /// [`UNBOUNDED`] to compute later is computed before.
    pub fn cheapest(&self, price: &dyn Fn(ValueId) -> (u64, u64)) -> Vec<ValueId> {
        let of_values = self.values.iter().zip(&self.before).flat_map(|(&v, before)| {
            let (keep, again) = price(v);
            [keep.min(UNBOUNDED - 1), if *before { UNBOUNDED } else { again.min(UNBOUNDED) }]
        });
        let later = self.network.behind(SOURCE, TARGET, of_values.chain(std::iter::repeat(UNBOUNDED)));
        let is_cut = |n: u32| later[leave(n) as usize] && !later[enter(n) as usize];
        (0..).zip(&self.values).filter(|&(n, _)| is_cut(n)).map(|(_, &v)| v).collect()
    }
}

fn enter(number: u32) -> u32 {
    2 + 2 * number
}

fn leave(number: u32) -> u32 {
    3 + 2 * number
}
