//! Larger regions: what leads to experts comes in pieces as well, as long as that hides more than it costs.
//!
//! ```text
//! attention ── project ── router ─┬ dispatch 0 ··        attention 0 ── project 0 ── router 0 ── dispatch 0 ··
//!                                 └ dispatch 1 ··   ──►  attention 1 ── project 1 ── router 1 ── dispatch 1 ··
//! ```
//!
//! From the region upwards, value by value, whatever treats each token by itself: other axes than the tokens' may be summed, so attention belongs to it by its queries.
//! What a *whole* operand follows from, such as keys and values, which each query looks at, is left: it is there at once, so pieces of it would gain nothing.

use super::find::{Region, alike, copied, gathered, is_gathered, positions, results};
use forebay_ir::{AxisId, CommKind, Graph, Op, ValueId};

/// Regions of the same tokens as one.
pub(super) fn joined(graph: &Graph, mut region: Region, others: Vec<Region>) -> Region {
    for other in others {
        region.repeated.iter_mut().zip(other.repeated).for_each(|(a, b)| *a |= b);
        region.shorter.extend(other.shorter);
    }
    region.shorter.sort_unstable();
    region.shorter.dedup();
    region.results = results(graph, &region.repeated);
    region
}

/// Leaves out what makes less than it would have to copy: its result is copied instead.
fn trimmed(graph: &Graph, mut region: Region, base: &[bool]) -> Region {
    let positions = positions(graph);
    let bytes = |region: &Region| -> u64 { copied(graph, region, &positions).iter().map(|&v| graph.bytes(v)).sum() };
    for value in graph.values().filter(|v| !base[v.index()]) {
        if region.repeated[value.index()] {
            let mut without = region.clone();
            without.repeated[value.index()] = false;
            without.results = results(graph, &without.repeated);
            if bytes(&without) < bytes(&region) {
                region = without;
            }
        }
    }
    region
}

/// The region, or the one of those that it grows into that is worth most; with what that is.
pub(super) fn grown(graph: &Graph, region: Region, worth: &dyn Fn(&Region) -> f64) -> (Region, f64) {
    let base = region.repeated.clone();
    let now = worth(&region);
    let mut best = (region.clone(), now);
    let mut growing = Growing::new(graph, region);
    for value in graph.values().rev() {
        if growing.step(value) {
            growing.region.results = results(graph, &growing.region.repeated);
            let now = worth(&growing.region);
            if now > best.1 {
                best = (growing.region.clone(), now);
            }
        }
    }
    (trimmed(graph, narrowed(graph, best.0), &base), best.1)
}

/// What is widened for the region alone is widened in it: pieces of what is narrow are fewer bytes, and kernels that read narrow operands are still seen.
fn narrowed(graph: &Graph, region: Region) -> Region {
    let mut growing = Growing::new(graph, region);
    for value in graph.values().rev() {
        let node = graph.node(value);
        let widens = matches!(node.op, Op::Cast(_)) && graph.bytes(value) > graph.bytes(node.operands[0]);
        let is_read_here = || growing.users[value.index()].iter().all(|u| growing.region.repeated[u.index()]);
        if widens && is_read_here() {
            growing.step(value);
        }
    }
    growing.region.results = results(graph, &growing.region.repeated);
    growing.region
}

fn is_vary(graph: &Graph, value: ValueId) -> bool {
    matches!(&graph.node(value).op, Op::Comm(comm) if comm.kind == CommKind::Vary)
}

struct Growing<'a> {
    graph: &'a Graph,
    users: Vec<Vec<ValueId>>,
    region: Region,
    /// For each value: does something whole that the region reads follow from it?
    whole: Vec<bool>,
}

impl<'a> Growing<'a> {
    fn new(graph: &'a Graph, mut region: Region) -> Growing<'a> {
        let gathered: Vec<AxisId> = graph.values().filter_map(|v| gathered(graph, v, region.tokens)).collect();
        region.shorter.extend(gathered);
        region.shorter.sort_unstable();
        region.shorter.dedup();
        let users = graph.users();
        // What varies from one place on becomes one value, whose gradient is summed once: it is cut for all that read it, or for nothing.
        let users_of = |value: ValueId| match is_vary(graph, value) {
            true => alike(graph, value).flat_map(|v| users[v.index()].clone()).collect(),
            false => users[value.index()].clone(),
        };
        let users = graph.values().map(users_of).collect();
        Growing { graph, users, region, whole: vec![false; graph.nodes.len()] }
    }

    /// Looks at a value whose users have been looked at; has it become part of the region?
    fn step(&mut self, value: ValueId) -> bool {
        if self.region.repeated[value.index()] {
            return false;
        }
        let is_cut = self.region.is_cut(self.graph.ty(value));
        let is_repeated = |u: &ValueId| self.region.repeated[u.index()];
        let users = &self.users[value.index()];
        let is_read = users.iter().any(is_repeated);
        let is_whole = (is_read && !is_cut) || users.iter().any(|u| !is_repeated(u) && self.whole[u.index()]);
        if is_read && !is_whole && self.is_token_by_token(value) {
            self.region.repeated[value.index()] = true;
            return true;
        }
        self.whole[value.index()] = is_whole;
        false
    }

    /// Does a value have tokens along one axis, and look at no other token?
    fn is_token_by_token(&self, value: ValueId) -> bool {
        let (tokens, shorter) = (self.region.tokens, &self.region.shorter);
        let graph = self.graph;
        let node = graph.node(value);
        let cut = |v: ValueId| graph.ty(v).axes.iter().copied().filter(|a| shorter.contains(a));
        let mut own = cut(value);
        let (Some(axis), None) = (own.next(), own.next()) else { return false };
        let among = |axes: &[AxisId]| axes.contains(&axis);
        let looks_across = match &node.op {
            Op::Comm(comm) => match comm.kind {
                CommKind::AllGather { .. } => return gathered(graph, value, tokens) == Some(axis),
                CommKind::ReduceScatter { from, into } => {
                    return into == tokens && is_gathered(graph, comm, (into, from));
                }
                CommKind::AllReduce(_) | CommKind::Vary => false,
                _ => true,
            },
            // The value has the tokens of its operands, which have no others (below): what is summed is another axis.
            Op::Contract { .. } | Op::Reduce { .. } => false,
            Op::Gather { axis } | Op::Scan { axis, .. } | Op::Take { axis, .. } => shorter.contains(axis),
            Op::TopK { axis, into } => among(&[*axis, *into]),
            Op::Rename { from, to } => among(&[*from, *to]),
            Op::Split { from, into } => among(&[*from]) || among(into),
            Op::Merge { from, into } | Op::Concat { from, into } => among(from) || among(&[*into]),
            Op::Slice { from, into, .. } | Op::Pad { from, into, .. } => among(&[*from, *into]),
            Op::Stack(new) => among(&[*new]),
            Op::Const(_) | Op::Iota(_) => true,
            op => !op.is_elementwise(),
        };
        !looks_across && node.operands.iter().all(|&o| cut(o).all(|a| a == axis)) && self.is_dense(value)
    }

    /// Rows of experts are cut with what they follow from.
    fn is_dense(&self, value: ValueId) -> bool {
        let node = self.graph.node(value);
        let none = |v: ValueId| self.graph.ragged_axis(&self.graph.ty(v).axes).is_none();
        none(value) && node.operands.iter().all(|&o| none(o))
    }
}
