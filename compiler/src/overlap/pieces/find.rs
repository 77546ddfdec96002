//! What can be cut into pieces, and what that gains.

use crate::overlap::lanes::Lanes;
use crate::shard::weights;
use forebay_ir::{AxisId, Comm, CommKind, Graph, InputRole, Op, ReduceKind, Type, ValueId};

/// A part of a graph that is repeated.
#[derive(Clone)]
pub(in crate::overlap) struct Region {
    /// The axis of tokens that is cut.
    pub tokens: AxisId,
    /// All axes that get shorter: the tokens', merges of it with others, that of all ranks' tokens.
    pub shorter: Vec<AxisId>,
    /// For each value: is it repeated?
    pub repeated: Vec<bool>,
    /// Of the repeated ones, those that others read: each has the axis of tokens.
    pub results: Vec<ValueId>,
}

impl Region {
    /// Has a type an axis that gets shorter?
    pub fn is_cut(&self, ty: &Type) -> bool {
        ty.axes.iter().any(|a| self.shorter.contains(a))
    }
}

/// The axis of all ranks' tokens, where a value gathers them.
pub(super) fn gathered(graph: &Graph, value: ValueId, tokens: AxisId) -> Option<AxisId> {
    let Op::Comm(comm) = &graph.node(value).op else { return None };
    match comm.kind {
        CommKind::AllGather { from, into } if from == tokens && graph.ty(value).dtype.is_float() => Some(into),
        _ => None,
    }
}

/// Do the ranks of a collective gather one axis as the other?
pub(super) fn is_gathered(graph: &Graph, comm: &Comm, (from, into): (AxisId, AxisId)) -> bool {
    let gathers = |op: &Op| match op {
        Op::Comm(other) => other.group == comm.group && other.kind == CommKind::AllGather { from, into },
        _ => false,
    };
    graph.nodes.iter().any(|node| gathers(&node.op))
}

/// For each value: does it follow from positions alone?
pub(super) fn positions(graph: &Graph) -> Vec<bool> {
    let mut found: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let is_rank = matches!(&node.op, Op::Comm(comm) if comm.kind == CommKind::Coordinate);
        found.push(is_rank || (node.op.is_elementwise() && node.operands.iter().all(|o| found[o.index()])));
    }
    found
}

/// Is a value made again for each piece, from its part of what it is made of? Masks and angles are, so that what they stand for is still seen.
pub(super) fn is_made_again(graph: &Graph, value: ValueId, positions: &[bool]) -> bool {
    let node = graph.node(value);
    match &node.op {
        Op::Merge { .. } => true,
        Op::Iota(_) => false,
        op => op.is_elementwise() && (positions[value.index()] || !node.ty.dtype.is_float()),
    }
}

/// Does something begin here that may be cut: a grouping of rows, or what ranks compute of all tokens?
pub(super) fn is_start(graph: &Graph, value: ValueId) -> bool {
    match &graph.node(value).op {
        Op::Group { .. } => true,
        Op::Comm(comm) => {
            matches!(comm.kind, CommKind::AllGather { .. } | CommKind::Vary) && graph.ty(value).dtype.is_float()
        }
        _ => false,
    }
}

/// Values that are read by others than repeated ones.
pub(super) fn results(graph: &Graph, repeated: &[bool]) -> Vec<ValueId> {
    let users = graph.users();
    let read_outside = |v: ValueId| {
        let reads = users[v.index()].iter().any(|u| !repeated[u.index()]);
        reads || graph.outputs.iter().any(|o| o.value == v)
    };
    graph.values().filter(|&v| repeated[v.index()] && read_outside(v)).collect()
}

/// What follows from a choice of experts whose rows are exchanged, up to each token's result.
pub(in crate::overlap) fn mixture(graph: &Graph, group: ValueId, pieces: u64) -> Option<Region> {
    let Op::Group { ragged } = graph.node(group).op else { return None };
    let is_dispatch = |op: &Op| match op {
        Op::Comm(comm) => matches!(comm.kind, CommKind::Dispatch { from, .. } if from.1 == ragged),
        _ => false,
    };
    if !graph.nodes.iter().any(|node| is_dispatch(&node.op)) {
        return None;
    }
    let chosen = graph.node(group).operands[0];
    let choices = choices_of(graph, chosen)?;
    let axes = graph.ty(chosen).axes.iter().copied();
    let tokens = axes.filter(|&a| a != choices).find(|&a| graph.size(a).is_multiple_of(pieces))?;
    // The starts of the rows' groups follow from the choice as well, but from nothing that follows from it.
    let starts = graph.offsets_of(ragged)?;
    let mut repeated = vec![false; graph.nodes.len()];
    let mut open = vec![false; graph.nodes.len()];
    for value in graph.values() {
        let node = graph.node(value);
        let follows = node.operands.iter().any(|o| open[o.index()]);
        if follows || value == group || value == starts {
            repeated[value.index()] = true;
            let is_result = node.ty.has(tokens) && !node.ty.has(choices);
            open[value.index()] = !is_result;
        }
    }
    let results = results(graph, &repeated);
    let whole = |v: &ValueId| !open[v.index()] && graph.ragged_axis(&graph.ty(*v).axes).is_none();
    let merges = graph.nodes.iter().filter_map(|node| match &node.op {
        Op::Merge { from, into } if from.contains(&tokens) => Some(*into),
        _ => None,
    });
    let shorter: Vec<AxisId> = std::iter::once(tokens).chain(merges).collect();
    let looks_across = |v: ValueId| {
        let (node, is_cut) = (graph.node(v), |axis: &AxisId| shorter.contains(axis));
        match &node.op {
            Op::Reduce { over, .. } | Op::Contract { over } | Op::ScatterAdd { over, .. } => over.iter().any(is_cut),
            Op::Scan { axis, .. } | Op::TopK { axis, .. } | Op::Take { axis, .. } => is_cut(axis),
            Op::LinearAttention(op) => is_cut(&op.axis) || op.over.iter().any(is_cut),
            Op::Rename { from, .. } | Op::Slice { from, .. } | Op::Pad { from, .. } => is_cut(from),
            Op::Concat { from, .. } => from.iter().any(is_cut),
            // Rows look up tokens, by numbers that are those of the piece; but not what follows from rows.
            Op::Gather { axis } => is_cut(axis) && repeated[node.operands[0].index()],
            _ => false,
        }
    };
    let fits = results.iter().all(whole) && !graph.values().any(|v| repeated[v.index()] && looks_across(v));
    fits.then_some(Region { tokens, shorter, repeated, results })
}

/// The axis of a token's choices; nothing where it is not tokens that choose.
pub(in crate::overlap) fn choices_of(graph: &Graph, chosen: ValueId) -> Option<AxisId> {
    let node = graph.node(chosen);
    match &node.op {
        Op::TopK { into, .. } => Some(*into),
        Op::Comm(_) | Op::Cast(_) | Op::Detach | Op::Reorder | Op::Slice { .. } => {
            choices_of(graph, *node.operands.first()?)
        }
        _ => None,
    }
    .filter(|axis| node.ty.has(*axis))
}

/// What tensor-parallel ranks compute together of their tokens, token by token: from an all-gather to the reduce-scatters, or, where each of them has all tokens,
/// from what they have in common to the all-reduces.
pub(super) fn network(graph: &Graph, start: ValueId, pieces: u64) -> Option<Region> {
    let Op::Comm(comm) = &graph.node(start).op else { return None };
    let ends = |op: &Op, end: CommKind| match op {
        Op::Comm(other) => other.group == comm.group && other.kind == end,
        _ => false,
    };
    match comm.kind {
        CommKind::AllGather { from: tokens, into: all } => {
            let span = Span { starts: vec![start], tokens, within: all };
            let scatters = CommKind::ReduceScatter { from: all, into: tokens };
            let fits = graph.size(tokens).is_multiple_of(pieces);
            fits.then(|| span.region(graph, &|op| ends(op, scatters.clone())))?
        }
        CommKind::Vary => {
            let starts: Vec<ValueId> = alike(graph, start).collect();
            tokens_of(graph, start, pieces).find_map(|tokens| {
                let span = Span { starts: starts.clone(), tokens, within: tokens };
                span.region(graph, &|op| ends(op, CommKind::AllReduce(ReduceKind::Sum)))
            })
        }
        _ => None,
    }
}

/// The axes of a dense value that can be cut into so many pieces, and are no parameter's.
fn tokens_of(graph: &Graph, value: ValueId, pieces: u64) -> impl Iterator<Item = AxisId> {
    let axes = &graph.ty(value).axes;
    let is_param = |axis: AxisId| params(graph).any(|v| graph.ty(v).has(axis));
    let is_dense = graph.ragged_axis(axes).is_none();
    axes.iter().copied().filter(move |&axis| is_dense && !is_param(axis) && graph.size(axis).is_multiple_of(pieces))
}

/// Products, and the sum of them over ranks, of which each rank has all tokens or its own.
pub(super) fn projection(graph: &Graph, sum: ValueId, pieces: u64) -> Option<Region> {
    let Op::Comm(comm) = &graph.node(sum).op else { return None };
    match comm.kind {
        CommKind::ReduceScatter { from: all, into: tokens } => {
            let fits = graph.size(tokens).is_multiple_of(pieces);
            fits.then(|| summed(graph, sum, (tokens, all)))?
        }
        CommKind::AllReduce(ReduceKind::Sum) => {
            tokens_of(graph, sum, pieces).find_map(|tokens| summed(graph, sum, (tokens, tokens)))
        }
        _ => None,
    }
}

/// From a sum over ranks up to the products that it is of, where nothing else reads what lies in between.
fn summed(graph: &Graph, sum: ValueId, (tokens, within): (AxisId, AxisId)) -> Option<Region> {
    let (users, weights) = (graph.users(), weights(graph));
    let mut repeated = vec![false; graph.nodes.len()];
    repeated[sum.index()] = true;
    let mut products = 0;
    for value in graph.values().rev().filter(|&v| v != sum) {
        let node = graph.node(value);
        // What a product is made of is there at once.
        let leads = |u: &ValueId| repeated[u.index()] && !matches!(graph.node(*u).op, Op::Contract { .. });
        let users = &users[value.index()];
        // Where a parameter has the axis it is a width, not tokens.
        let of_width = |o: &ValueId| graph.ty(*o).has(within) && weights[o.index()].is_some();
        let is_product =
            matches!(&node.op, Op::Contract { over } if !over.contains(&within) && !node.operands.iter().any(of_width));
        let passes = node.op.is_elementwise() && !node.operands.is_empty();
        if !users.is_empty() && users.iter().all(leads) && node.ty.has(within) && (is_product || passes) {
            repeated[value.index()] = true;
            products += usize::from(is_product);
        }
    }
    let results = results(graph, &repeated);
    let mut shorter = vec![tokens, within];
    shorter.dedup();
    (products > 0 && results == [sum]).then_some(Region { tokens, shorter, repeated, results })
}

/// The values that are made of the same as this one, by the same op; itself among them.
pub(super) fn alike(graph: &Graph, value: ValueId) -> impl Iterator<Item = ValueId> {
    let this = graph.node(value);
    graph.values().filter(move |&v| graph.node(v).op == this.op && graph.node(v).operands == this.operands)
}

/// Where ranks begin to work together.
struct Span {
    /// The first values.
    starts: Vec<ValueId>,
    /// The axis that is cut.
    tokens: AxisId,
    /// The axis of tokens that values in between have.
    within: AxisId,
}

impl Span {
    /// All that follows, to the ends; nothing where a value looks from one token to another, or something else reads what lies in between.
    fn region(&self, graph: &Graph, ends: &dyn Fn(&Op) -> bool) -> Option<Region> {
        let Span { starts, tokens, within } = self;
        let mut repeated = vec![false; graph.nodes.len()];
        let mut open = vec![false; graph.nodes.len()];
        for value in graph.values() {
            let node = graph.node(value);
            let begins = starts.contains(&value);
            if !begins && !node.operands.iter().any(|o| open[o.index()]) {
                continue;
            }
            let token_by_token = match &node.op {
                Op::Contract { over } | Op::Reduce { over, .. } => !over.contains(within),
                Op::Broadcast(_) | Op::Detach | Op::Reorder => true,
                op => op.is_elementwise() || begins,
            };
            // What others have of all ranks' tokens is not there in pieces.
            let other = |o: &ValueId| within != tokens && !repeated[o.index()] && graph.ty(*o).has(*within);
            let is_end = ends(&node.op);
            if !is_end && (!token_by_token || !node.ty.has(*within) || node.operands.iter().any(other)) {
                return None;
            }
            repeated[value.index()] = true;
            open[value.index()] = !is_end;
        }
        let results = results(graph, &repeated);
        let fits = !results.is_empty() && results.iter().all(|v| !open[v.index()]);
        let mut shorter = vec![*tokens, *within];
        shorter.dedup();
        fits.then_some(Region { tokens: *tokens, shorter, repeated, results })
    }
}

/// Parameters.
fn params(graph: &Graph) -> impl Iterator<Item = ValueId> {
    graph.inputs.iter().filter(|i| i.role == InputRole::Param).map(|i| i.value)
}

/// Seconds that pieces hide, and that they cost.
#[derive(Clone, Copy)]
pub(super) struct Gain {
    /// What is hidden of a region's exchanges, less what it slows down, and less the traffic of attention's scores where it ends among them.
    pub hidden: f64,
    /// Kernels that start and weights that are read once for each piece, and copies.
    pub cost: f64,
}

/// What so many pieces of a region gain.
pub(super) fn gain(graph: &Graph, region: &Region, pieces: u64, lanes: &Lanes) -> Gain {
    let times = lanes.times();
    let (mut links, mut work, mut extra) = (0.0, 0.0, 0.0);
    let is_param = |v: ValueId| params(graph).any(|param| param == v);
    for value in graph.values().filter(|v| region.repeated[v.index()]) {
        let node = graph.node(value);
        match &node.op {
            Op::Comm(_) => {
                links += times.value(graph, value, lanes);
                extra += times.start();
            }
            Op::Contract { .. } => {
                work += times.value(graph, value, lanes);
                let weights = node.operands.iter().filter(|o| is_param(**o)).map(|&o| graph.bytes(o) as f64);
                extra += times.start() + weights.sum::<f64>() / times.memory_rate();
            }
            _ => {}
        }
    }
    let copied: u64 = copied(graph, region, &positions(graph)).iter().map(|&v| 2 * graph.bytes(v)).sum();
    let others = pieces as f64 - 1.0;
    let scores = 2.0 * scores(graph, region) as f64 / times.memory_rate();
    Gain {
        hidden: (1.0 - times.slowdown()) * links.min(work) * others / pieces as f64 - scores,
        cost: others * extra + copied as f64 / times.memory_rate(),
    }
}

/// Bytes of attention's scores that the region reads and does not make: they have to be in memory, which they are not where one kernel makes them and sums what they
/// weigh. Scores have an axis that products sum over and no parameter has, which is that of the keys.
fn scores(graph: &Graph, region: &Region) -> u64 {
    let sums = graph.nodes.iter().flat_map(|node| match &node.op {
        Op::Contract { over } => over.as_slice(),
        _ => &[],
    });
    let is_key = |axis: &&AxisId| !region.shorter.contains(*axis) && !params(graph).any(|v| graph.ty(v).has(**axis));
    let keys: Vec<AxisId> = sums.filter(is_key).copied().collect();
    let is_score = |v: &ValueId| region.is_cut(graph.ty(*v)) && graph.ty(*v).axes.iter().any(|a| keys.contains(a));
    read(graph, region).into_iter().filter(is_score).map(|v| graph.bytes(v)).sum()
}

/// What the region reads and does not make, each value once.
fn read(graph: &Graph, region: &Region) -> Vec<ValueId> {
    let repeated = graph.values().filter(|v| region.repeated[v.index()]);
    let reads = repeated.flat_map(|v| graph.node(v).operands.iter().copied());
    let mut read: Vec<ValueId> = reads.filter(|v| !region.repeated[v.index()]).collect();
    read.sort_unstable();
    read.dedup();
    read
}

/// Values that are copied for the pieces: a piece has some of each rank's tokens, so what is cut or joined of all ranks' is no part that lies in one place.
pub(super) fn copied(graph: &Graph, region: &Region, positions: &[bool]) -> Vec<ValueId> {
    let is_of_all = |v: ValueId| region.is_cut(graph.ty(v)) && !graph.ty(v).has(region.tokens);
    let is_copied = |v: &ValueId| is_of_all(*v) && !is_made_again(graph, *v, positions);
    let mut copied: Vec<ValueId> = read(graph, region).into_iter().filter(is_copied).collect();
    copied.extend(region.results.iter().filter(|&&v| is_of_all(v)));
    copied.sort_unstable();
    copied.dedup();
    copied
}
