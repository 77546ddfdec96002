//! Tokens to those targets, nodes or ranks, that have one of their experts, and their results back.
//!
//! ```text
//! at the source                                              at the target
//! %to     = max over k (target of %chosen, or -1)            %here    = 0 where %mine has an expert of this target, or -1
//! %sent   = group %to {sent}      // (target, token) pairs   %arrived = group %here {arrived}   // of all sources' tokens, in the order in which they come
//! %xs     = gather %x at %sent / N                     ──►   %xu      = dispatch %xs
//!                                                            %all     = gather %xu at %place    // 0 for tokens that have not come
//! %y      = sum over N (gather %ys at %place)          ◄──   %ys      = combine (gather %part at %arrived)
//! ```
//!
//! Which tokens come, and from whom, every target knows by itself: what all have chosen is gathered before (k numbers a token).
//! Rows stand in the order of (source, token) on both sides, so that each is the inverse of a grouping, and gradients are look-ups too.

use forebay_ir::{AxisId, BinaryOp, Comm, CommKind, DType, Extent, Graph, Op, ReduceKind, Type, ValueId};

/// What a source and a target know of the tokens that travel.
pub(super) struct Unique {
    /// Mesh dimensions of the targets.
    outer: Vec<u32>,
    /// Axes of a rank's tokens, and of all sources'.
    own: Vec<AxisId>,
    all: Vec<AxisId>,
    /// The targets, as an axis beside those of tokens.
    each: AxisId,
    /// Targets with the rows for them, and this one with the rows that come.
    to: [AxisId; 2],
    from: [AxisId; 2],
    /// Elements `(token, each)` by target.
    sent: ValueId,
    /// Numbers of all sources' tokens that have come here.
    arrived: ValueId,
    /// Rows from each source.
    counts: ValueId,
}

/// What is known before anything has travelled.
pub(super) struct Choice<'a> {
    pub name: &'a str,
    /// `i32[tokens…, k]`: experts of own tokens.
    pub chosen: ValueId,
    /// `i32[all sources' tokens…, k]`: in numbers of this target's experts, or -1.
    pub mine: ValueId,
    /// The axis of a token's choices.
    pub choices: AxisId,
    /// Experts of a target.
    pub experts: u64,
    /// Experts' rows that a target has room for; each token that comes has one at least.
    pub room: u64,
    /// Mesh dimensions of the targets.
    pub outer: &'a [u32],
}

/// Of `targets`, how many have one of k experts that are chosen among all as likely, each at most once:
/// N (1 − C(E − E/N, k)/C(E, k)).
pub(super) fn reached(targets: u64, experts: u64, k: u64) -> f64 {
    let all = (targets * experts) as f64;
    let others = all - experts as f64;
    let none: f64 = (0..k).map(|i| ((others - i as f64) / (all - i as f64)).max(0.0)).product();
    targets as f64 * (1.0 - none)
}

/// A graph that grows by ops with names of one thing.
struct Maker<'a> {
    graph: &'a mut Graph,
    name: String,
}

impl Maker<'_> {
    fn add(&mut self, op: Op, operands: &[ValueId], what: &str) -> ValueId {
        let name = format!("{}.{what}", self.name);
        self.graph.add(op, operands, &name).unwrap_or_else(|e| panic!("`{name}`: {e}"))
    }

    fn ordered(&mut self, op: Op, operands: &[ValueId], axes: &[AxisId], what: &str) -> ValueId {
        let name = format!("{}.{what}", self.name);
        self.graph.add_ordered(op, operands, axes, &name).unwrap_or_else(|e| panic!("`{name}`: {e}"))
    }

    fn integer(&mut self, n: i64) -> ValueId {
        self.graph.constant(n as f64, DType::I32)
    }

    fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId, what: &str) -> ValueId {
        self.add(Op::Binary(op), &[a, b], what)
    }

    fn comm(&mut self, kind: CommKind, group: &[u32], operands: &[ValueId], what: &str) -> ValueId {
        self.add(Op::Comm(Box::new(Comm { group: group.to_vec(), kind })), operands, what)
    }

    fn fixed(&mut self, name: &str, size: u64) -> AxisId {
        self.graph.add_axis(name, Extent::Fixed(size), None)
    }

    /// Elements by value: a parent axis of so many values, the rows, where each group starts.
    fn group(&mut self, chosen: ValueId, [parent, rows]: [AxisId; 2], what: &str) -> ValueId {
        let bordered = self.graph.size(parent) + 1;
        let into = self.fixed(&format!("{what}_starts"), bordered);
        let grouped = self.add(Op::Group { ragged: rows }, &[chosen], what);
        let starts = self.add(Op::Offsets { parent, into }, &[chosen], &format!("{what}.starts"));
        self.graph.offsets.push((rows, starts));
        grouped
    }

    /// Several axes of tokens, which stand first, as one.
    fn merged(&mut self, value: ValueId, axes: &[AxisId], what: &str) -> (ValueId, AxisId) {
        if let [axis] = axes {
            return (value, *axis);
        }
        let size = axes.iter().map(|&a| self.graph.size(a)).product();
        let into = self.fixed("tokens", size);
        (self.add(Op::Merge { from: axes.to_vec(), into }, &[value], what), into)
    }
}

impl Unique {
    pub fn new(graph: &mut Graph, choice: &Choice) -> Unique {
        let tokens = |graph: &Graph, value: ValueId| -> Vec<AxisId> {
            graph.ty(value).axes.iter().copied().filter(|&a| a != choice.choices).collect()
        };
        let (own, all) = (tokens(graph, choice.chosen), tokens(graph, choice.mine));
        let count = |axes: &[AxisId]| axes.iter().map(|&a| graph.size(a)).product::<u64>();
        let (owned, of_all, k) = (count(&own), count(&all), graph.size(choice.choices));
        let n = of_all / owned;
        let even = (owned as f64 * reached(n, choice.experts, k)).round() as u64;
        let rows = |bound: u64, parent: AxisId| {
            // Less than there is room for: some are left out (`Graph::leaves_out`).
            Extent::Ragged { parent, bound, even: even.min(bound - 1) }
        };
        let mut maker = Maker { graph, name: choice.name.to_string() };
        let targets = maker.fixed("targets", n);
        let sent = maker.graph.add_axis("sent", rows(owned * n.min(k).max(1), targets), None);
        let each = maker.fixed("each", n);
        let here = maker.fixed("here", 1);
        let arrived = maker.graph.add_axis("arrived", rows(of_all.min(choice.room), here), None);
        let (to, from) = ([targets, sent], [here, arrived]);
        let pairs = maker.pairs(choice, each);
        let sent = maker.group(pairs, to, "sent");
        let comes = maker.comes(choice);
        let arrived = maker.group(comes, from, "arrived");
        let counts = maker.counts(comes, (&own, &all), here);
        Unique { outer: choice.outer.to_vec(), own, all, each, to, from, sent, arrived, counts }
    }

    /// Does a value have a rank's tokens outermost, and nothing else of them?
    pub fn has_tokens(&self, ty: &Type) -> bool {
        ty.axes.starts_with(&self.own)
    }

    /// What all sources' tokens have of a value; 0 for those that have not come.
    pub fn send(&self, graph: &mut Graph, value: ValueId) -> ValueId {
        let name = graph.node(value).name.clone();
        let mut maker = Maker { graph, name };
        let (tokens, axis) = maker.merged(value, &self.own, "tokens");
        let targets = maker.integer(maker.graph.size(self.to[0]) as i64);
        let token = maker.binary(BinaryOp::Div, self.sent, targets, "token");
        let rows = maker.add(Op::Gather { axis }, &[tokens, token], "sent");
        let [to, from] = [self.to, self.from].map(|[parent, rows]| (parent, rows));
        let come =
            maker.comm(CommKind::Dispatch { from: to, into: from }, &self.outer, &[rows, self.counts], "dispatch");
        let place = maker.ordered(Op::Invert, &[self.arrived], &self.all, "place");
        maker.add(Op::Gather { axis: self.from[1] }, &[come, place], "all")
    }

    /// Sums of all targets, by own token, from what this target has for all sources' tokens.
    pub fn give_back(&self, graph: &mut Graph, value: ValueId) -> ValueId {
        let name = graph.node(value).name.clone();
        let mut maker = Maker { graph, name };
        let (tokens, axis) = maker.merged(value, &self.all, "tokens");
        let rows = maker.add(Op::Gather { axis }, &[tokens, self.arrived], "arrived");
        let [to, from] = [self.to, self.from].map(|[parent, rows]| (parent, rows));
        let back = maker.comm(CommKind::Combine { from, into: to }, &self.outer, &[rows, self.counts], "combine");
        let axes: Vec<AxisId> = self.own.iter().copied().chain([self.each]).collect();
        let place = maker.ordered(Op::Invert, &[self.sent], &axes, "place");
        let parts = maker.add(Op::Gather { axis: self.to[1] }, &[back, place], "parts");
        maker.add(Op::Reduce { kind: ReduceKind::Sum, over: vec![self.each] }, &[parts], "sum")
    }
}

impl Maker<'_> {
    /// `i32[tokens…, each]`: the target's number where the token has an expert there, or -1.
    fn pairs(&mut self, choice: &Choice, each: AxisId) -> ValueId {
        let (experts, none) = (self.integer(choice.experts as i64), self.integer(-1));
        let of = self.binary(BinaryOp::Div, choice.chosen, experts, "target");
        let numbers = self.add(Op::Iota(each), &[], "numbers");
        let hit = self.binary(BinaryOp::Eq, of, numbers, "hit");
        let number = self.add(Op::Select, &[hit, numbers, none], "number");
        self.add(Op::Reduce { kind: ReduceKind::Max, over: vec![choice.choices] }, &[number], "to")
    }

    /// `i32[all sources' tokens…]`: 0 where the token has an expert here, or -1.
    fn comes(&mut self, choice: &Choice) -> ValueId {
        let over = vec![choice.choices];
        let largest = self.add(Op::Reduce { kind: ReduceKind::Max, over }, &[choice.mine], "largest");
        let zero = self.integer(0);
        self.binary(BinaryOp::Min, largest, zero, "comes")
    }

    /// `i32[source, here]`: how many tokens come from each.
    fn counts(&mut self, comes: ValueId, (own, all): (&[AxisId], &[AxisId]), here: AxisId) -> ValueId {
        let one = self.integer(1);
        let counted = self.binary(BinaryOp::Add, comes, one, "counted");
        let split = all.iter().zip(own).find(|(a, b)| a != b).expect("all sources have more tokens than one");
        let size = self.graph.size(*split.0) / self.graph.size(*split.1);
        let source = self.fixed("source", size);
        let op = Op::Split { from: *split.0, into: vec![source, *split.1] };
        let by_source = self.add(op, &[counted], "by_source");
        let mut over = own.to_vec();
        over.sort_unstable();
        let sums = self.add(Op::Reduce { kind: ReduceKind::Sum, over }, &[by_source], "from");
        self.ordered(Op::Broadcast(vec![here]), &[sums], &[source, here], "counts")
    }
}

#[cfg(test)]
mod tests {
    use super::reached;

    /// Against all choices of 3 among 8 experts, two of each target.
    #[test]
    fn targets_that_a_token_reaches() {
        let choices: Vec<u32> = (0..1u32 << 8).filter(|choice| choice.count_ones() == 3).collect();
        let targets = |choice: &u32| (0..4).filter(|t| choice >> (2 * t) & 3 != 0).count() as f64;
        let mean = choices.iter().map(targets).sum::<f64>() / choices.len() as f64;
        assert!((reached(4, 2, 3) - mean).abs() < 1e-12, "{} of 4, counted {mean}", reached(4, 2, 3));
        assert_eq!(reached(4, 2, 8), 4.0);
    }
}
