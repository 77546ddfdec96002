//! Experts in pieces: rows of some of the tokens travel while the experts work on those of others.
//!
//! ```text
//! %xe = dispatch %x                        %xe0 = dispatch %x[first half]
//! %ye = experts %xe                  ──►   %xe1 = dispatch %x[second half]     // beside the experts of the first
//! %y  = combine %ye                        %y0 = combine (experts %xe0) · %y1 = combine (experts %xe1)
//!                                          %y = concat %y0, %y1
//! ```
//!
//! On the graph of a rank, before differentiation, so that backward passes come in pieces as well. What is repeated for each piece is all that follows from the
//! choice of experts until a token has its result: rows, counts, exchanges, products. Nothing there looks from one token to another.
//! This is what hides exchanges where no second micro-batch can: without a pipeline, and while one fills and drains (MindSpeed's and Tutel's pipelining of
//! all-to-all with experts, arXiv 2206.03382, section 3.3).
//!
//! Requires: a sharded graph of primitive ops. Keeps: values of the forward pass bit for bit; gradients of experts' parameters are sums over pieces, in another order of
//! terms. Costs: experts' weights are read, and kernels started, once for each piece. Each piece has its share of the room for rows from other ranks.
//! A mixture is left as it is when the tokens do not divide, or something else reads what lies in between.

use forebay_ir::{AxisId, CommKind, Extent, Graph, Op, Type, ValueId};
use rustc_hash::FxHashMap;

/// Cuts all mixtures whose rows are exchanged into so many pieces; how many were cut.
pub fn cut(graph: &mut Graph, pieces: u64) -> usize {
    let mut done = 0;
    if pieces <= 1 {
        return done;
    }
    // Values move with each cut: mixtures are found again, behind those that were looked at.
    let mut looked_at = 0;
    while let Some(group) = exchanged(graph).into_iter().nth(looked_at) {
        match mixture(graph, group, pieces) {
            Some(mixture) => {
                *graph = Cut::new(graph, &mixture, pieces).run();
                done += 1;
                looked_at += pieces as usize;
            }
            None => looked_at += 1,
        }
    }
    done
}

/// The groupings of rows that are exchanged, in order.
fn exchanged(graph: &Graph) -> Vec<ValueId> {
    let dispatched = |ragged: AxisId| {
        graph.nodes.iter().any(|node| match &node.op {
            Op::Comm(comm) => matches!(comm.kind, CommKind::Dispatch { from, .. } if from.1 == ragged),
            _ => false,
        })
    };
    let is_one = |v: &ValueId| matches!(graph.node(*v).op, Op::Group { ragged } if dispatched(ragged));
    graph.values().filter(is_one).collect()
}

/// What is repeated.
struct Mixture {
    /// The axis of tokens that is cut.
    tokens: AxisId,
    /// For each value: is it repeated?
    repeated: Vec<bool>,
    /// Of the repeated ones, those that others read: each has the axis of tokens.
    results: Vec<ValueId>,
}

/// What follows from a choice of experts, if it can be cut.
fn mixture(graph: &Graph, group: ValueId, pieces: u64) -> Option<Mixture> {
    let chosen = graph.node(group).operands[0];
    let choices = choices_of(graph, chosen)?;
    let axes = graph.ty(chosen).axes.iter().copied();
    let tokens = axes.filter(|&a| a != choices).find(|&a| graph.size(a).is_multiple_of(pieces))?;
    // The starts of the rows' groups follow from the choice as well, but from nothing that follows from it.
    let Op::Group { ragged } = graph.node(group).op else { return None };
    let starts = graph.offsets_of(ragged)?;
    let mut repeated = vec![false; graph.nodes.len()];
    let mut open = vec![false; graph.nodes.len()];
    for value in graph.values() {
        let node = graph.node(value);
        let follows = node.operands.iter().any(|o| open[o.index()]);
        if follows || value == group || value == starts {
            repeated[value.index()] = true;
            let has_result = node.ty.has(tokens) && !node.ty.has(choices);
            open[value.index()] = !has_result;
        }
    }
    let users = graph.users();
    let read_outside = |v: ValueId| {
        let reads = users[v.index()].iter().any(|u| !repeated[u.index()]);
        reads || graph.outputs.iter().any(|o| o.value == v)
    };
    let results: Vec<ValueId> = graph.values().filter(|&v| repeated[v.index()] && read_outside(v)).collect();
    let whole = |v: &ValueId| !open[v.index()] && graph.ragged_axis(&graph.ty(*v).axes).is_none();
    let sums_over_tokens = |v: ValueId| match &graph.node(v).op {
        Op::Reduce { over, .. } | Op::Contract { over } | Op::ScatterAdd { over, .. } => over.contains(&tokens),
        _ => false,
    };
    let fits = results.iter().all(whole) && !graph.values().any(|v| repeated[v.index()] && sums_over_tokens(v));
    fits.then_some(Mixture { tokens, repeated, results })
}

/// The axis of a token's choices; nothing where it is not tokens that choose.
fn choices_of(graph: &Graph, chosen: ValueId) -> Option<AxisId> {
    let node = graph.node(chosen);
    match &node.op {
        Op::TopK { into, .. } => Some(*into),
        Op::Comm(_) | Op::Cast(_) | Op::Detach | Op::Reorder => choices_of(graph, *node.operands.first()?),
        _ => None,
    }
    .filter(|axis| node.ty.has(*axis))
}

/// A graph in the making.
struct Cut<'a> {
    old: &'a Graph,
    mixture: &'a Mixture,
    pieces: u64,
    new: Graph,
    /// Where values are that are there once.
    moved: Vec<ValueId>,
    /// For each piece where its own values are.
    own: Vec<FxHashMap<ValueId, ValueId>>,
    /// For each piece its own axes.
    axes: Vec<FxHashMap<AxisId, AxisId>>,
}

impl<'a> Cut<'a> {
    fn new(old: &'a Graph, mixture: &'a Mixture, pieces: u64) -> Cut<'a> {
        let each = pieces as usize;
        Cut {
            old,
            mixture,
            pieces,
            new: old.like(old.name.clone()),
            moved: vec![ValueId(0); old.nodes.len()],
            own: vec![FxHashMap::default(); each],
            axes: vec![FxHashMap::default(); each],
        }
    }

    fn run(mut self) -> Graph {
        for value in self.old.values() {
            let node = self.old.node(value);
            if !self.mixture.repeated[value.index()] {
                let operands = node.operands.iter().map(|o| self.moved[o.index()]).collect();
                self.moved[value.index()] = self.new.push(node.op.clone(), operands, node.ty.clone(), &node.name);
                continue;
            }
            let parts: Vec<ValueId> = (0..self.pieces as usize).map(|piece| self.repeat(value, piece)).collect();
            if self.mixture.results.contains(&value) {
                let from = (0..self.pieces as usize).map(|piece| self.axis(self.mixture.tokens, piece)).collect();
                let op = Op::Concat { from, into: self.mixture.tokens };
                self.moved[value.index()] = self.new.push(op, parts, node.ty.clone(), &node.name);
            }
        }
        let Cut { old, mixture, mut new, moved, own, axes, .. } = self;
        let at = |v: ValueId| moved[v.index()];
        new.inputs = old.inputs.iter().map(|i| forebay_ir::Input { value: at(i.value), role: i.role }).collect();
        for output in &old.outputs {
            new.add_output(output.name.clone(), at(output.value), output.role);
        }
        for &(axis, starts) in &old.offsets {
            if mixture.repeated[starts.index()] {
                let of_pieces =
                    own.iter().zip(&axes).filter_map(|(own, axes)| Some((*axes.get(&axis)?, *own.get(&starts)?)));
                new.offsets.extend(of_pieces);
            } else {
                new.offsets.push((axis, at(starts)));
            }
        }
        new.prune();
        new
    }

    /// A value of one piece.
    fn repeat(&mut self, value: ValueId, piece: usize) -> ValueId {
        let node = self.old.node(value);
        let operands = node.operands.iter().map(|&o| self.part(o, piece)).collect();
        let op = node.op.map_axes(|a| self.axis(a, piece));
        let ty = self.ty(&node.ty, piece);
        let new = self.new.push(op, operands, ty, &format!("{}.{piece}", node.name));
        self.own[piece].insert(value, new);
        new
    }

    /// What a piece reads: a value of its own, or its part of one that is there once.
    fn part(&mut self, value: ValueId, piece: usize) -> ValueId {
        if let Some(&own) = self.own[piece].get(&value) {
            return own;
        }
        let node = self.old.node(value);
        let cut = self.is_cut(&node.ty);
        if !cut {
            return self.moved[value.index()];
        }
        let ty = self.ty(&node.ty, piece);
        let name = format!("{}.{piece}", node.name);
        let new = if node.ty.has(self.mixture.tokens) {
            let into = self.axis(self.mixture.tokens, piece);
            let start = piece as u64 * self.new.size(into);
            let op = Op::Slice { from: self.mixture.tokens, into, start };
            self.new.push(op, vec![self.moved[value.index()]], ty, &name)
        } else {
            // Tokens that have been merged into one axis: a part of each is cut before.
            let operands = node.operands.iter().map(|&o| self.part(o, piece)).collect();
            let op = node.op.map_axes(|a| self.axis(a, piece));
            self.new.push(op, operands, ty, &name)
        };
        self.own[piece].insert(value, new);
        new
    }

    /// Does a type have the tokens' axis, or one that is made of it?
    fn is_cut(&self, ty: &Type) -> bool {
        ty.axes.iter().any(|&a| a == self.mixture.tokens || self.merged(a))
    }

    /// Is an axis a merge of the tokens' with others?
    fn merged(&self, axis: AxisId) -> bool {
        let of_tokens = |op: &Op| match op {
            Op::Merge { from, into } => *into == axis && from.contains(&self.mixture.tokens),
            _ => false,
        };
        self.old.nodes.iter().any(|node| of_tokens(&node.op))
    }

    fn ty(&mut self, ty: &Type, piece: usize) -> Type {
        let axes: Vec<AxisId> = ty.axes.iter().map(|&a| self.axis(a, piece)).collect();
        Type::new(ty.dtype, axes)
    }

    /// An axis as a piece has it: of tokens and rows its part.
    fn axis(&mut self, axis: AxisId, piece: usize) -> AxisId {
        if let Some(&known) = self.axes[piece].get(&axis) {
            return known;
        }
        let whole = self.old.axis(axis).clone();
        let starts = self.old.offsets_of(axis);
        let extent = match whole.extent {
            Extent::Fixed(n) if axis == self.mixture.tokens || self.merged(axis) => {
                Some(Extent::Fixed(n / self.pieces))
            }
            Extent::Ragged { parent, bound } if starts.is_some_and(|v| self.mixture.repeated[v.index()]) => {
                Some(Extent::Ragged { parent, bound: bound.div_ceil(self.pieces) })
            }
            _ => None,
        };
        let own =
            extent.map_or(axis, |extent| self.new.add_axis(&format!("{}_{piece}", whole.name), extent, whole.label));
        self.axes[piece].insert(axis, own);
        own
    }
}
