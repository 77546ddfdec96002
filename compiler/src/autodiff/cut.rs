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
//! Dinic's algorithm: O(V²E), in practice linear on such graphs. The result depends on the graph only.

use super::extract::{needed, reads};
use forebay_ir::{CommKind, FusedKind, Graph, Op, ValueId};
use std::collections::VecDeque;

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
    priced_cut(graph, place, weight, &|_| 0, wanted)
}

/// The same where computing a value in the later graph costs something too, once: `again`, of values with [`Place::Either`]. That is an edge from
/// the source to the value, cut when the value is made after the cut: then all that it is made from is kept, or made there as well.
pub fn priced_cut(
    graph: &Graph,
    place: &dyn Fn(ValueId) -> Place,
    weight: &dyn Fn(ValueId) -> u64,
    again: &dyn Fn(ValueId) -> u64,
    wanted: &[ValueId],
) -> Vec<ValueId> {
    let live = needed(graph, wanted, &[]);
    let (source, target) = (0, 1);
    let enter = |v: ValueId| 2 + 2 * v.index();
    let leave = |v: ValueId| 3 + 2 * v.index();
    let mut network = Network::new(2 + 2 * graph.nodes.len());
    for &value in &live {
        let at = place(value);
        if at != Place::After {
            network.edge(enter(value), leave(value), weight(value).min(UNBOUNDED - 1));
        }
        if at == Place::Before {
            network.edge(source, enter(value), UNBOUNDED);
            continue;
        }
        if at == Place::Either && again(value) > 0 {
            network.edge(source, enter(value), again(value).min(UNBOUNDED - 1));
        }
        for read in reads(graph, value).into_iter().filter(|&r| place(r) != Place::After) {
            let to = if at == Place::After { target } else { enter(value) };
            network.edge(leave(read), to, UNBOUNDED);
        }
    }
    for &value in wanted.iter().filter(|&&v| place(v) != Place::After) {
        network.edge(leave(value), target, UNBOUNDED);
    }
    network.saturate(source, target);
    let later = network.reaching(target);
    live.into_iter().filter(|&v| place(v) != Place::After && later[leave(v)] && !later[enter(v)]).collect()
}

/// More than all weights together.
pub const UNBOUNDED: u64 = 1 << 60;

/// A flow network with integer capacities; edge `i ^ 1` is the reverse of edge `i`.
struct Network {
    edges: Vec<(usize, u64)>,
    out: Vec<Vec<usize>>,
}

impl Network {
    fn new(vertices: usize) -> Network {
        Network { edges: Vec::new(), out: vec![Vec::new(); vertices] }
    }

    fn edge(&mut self, from: usize, to: usize, capacity: u64) {
        for (from, to, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.out[from].push(self.edges.len());
            self.edges.push((to, capacity));
        }
    }

    /// Pushes as much as fits from `source` to `target`.
    fn saturate(&mut self, source: usize, target: usize) {
        while let Some(level) = self.levels(source, target) {
            let mut next = vec![0; self.out.len()];
            while self.augment(source, target, &level, &mut next) {}
        }
    }

    /// Distances from the source along edges with room; `None` when the target is out of reach.
    fn levels(&self, source: usize, target: usize) -> Option<Vec<usize>> {
        let mut level = vec![usize::MAX; self.out.len()];
        level[source] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(vertex) = queue.pop_front() {
            for &edge in &self.out[vertex] {
                let (to, room) = self.edges[edge];
                if room > 0 && level[to] == usize::MAX {
                    level[to] = level[vertex] + 1;
                    queue.push_back(to);
                }
            }
        }
        (level[target] != usize::MAX).then_some(level)
    }

    /// Finds one path with room along increasing levels and fills it. `next` remembers which edges of a vertex lead nowhere.
    fn augment(&mut self, source: usize, target: usize, level: &[usize], next: &mut [usize]) -> bool {
        let mut path: Vec<usize> = Vec::new();
        let mut vertex = source;
        while vertex != target {
            match self.out[vertex].get(next[vertex]) {
                Some(&edge) => {
                    let (to, room) = self.edges[edge];
                    if room > 0 && level[to] == level[vertex] + 1 {
                        path.push(edge);
                        vertex = to;
                    } else {
                        next[vertex] += 1;
                    }
                }
                None => {
                    let Some(edge) = path.pop() else { return false };
                    vertex = self.edges[edge ^ 1].0;
                    next[vertex] += 1;
                }
            }
        }
        let room = path.iter().map(|&e| self.edges[e].1).min().expect("the target is not the source");
        for edge in path {
            self.edges[edge].1 -= room;
            self.edges[edge ^ 1].1 += room;
        }
        true
    }

    /// The vertices that can still send something to `target`.
    fn reaching(&self, target: usize) -> Vec<bool> {
        let mut reaching = vec![false; self.out.len()];
        reaching[target] = true;
        let mut stack = vec![target];
        while let Some(vertex) = stack.pop() {
            for &edge in &self.out[vertex] {
                let (from, room) = (self.edges[edge].0, self.edges[edge ^ 1].1);
                if room > 0 && !reaching[from] {
                    reaching[from] = true;
                    stack.push(from);
                }
            }
        }
        reaching
    }
}
