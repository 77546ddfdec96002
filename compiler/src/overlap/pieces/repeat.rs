//! A graph in which a region is repeated for each piece.

use super::find::{Region, is_made_again, positions};
use crate::overlap::moved::Moved;
use forebay_ir::{AxisId, Extent, Graph, Op, Type, ValueId};
use rustc_hash::FxHashMap;

/// A graph in the making.
pub(super) struct Cut<'a> {
    old: &'a Graph,
    region: &'a Region,
    pieces: u64,
    new: Graph,
    /// Where values are that are there once.
    moved: Moved,
    /// For each piece where its own values are.
    own: Vec<FxHashMap<ValueId, ValueId>>,
    /// For each piece its own axes.
    axes: Vec<FxHashMap<AxisId, AxisId>>,
    /// For each value: does it follow from positions alone?
    positions: Vec<bool>,
    /// An axis of the ranks whose tokens are gathered, once it is needed.
    ranks: Option<AxisId>,
}

impl<'a> Cut<'a> {
    pub fn new(old: &'a Graph, region: &'a Region, pieces: u64) -> Cut<'a> {
        let each = pieces as usize;
        Cut {
            old,
            region,
            pieces,
            new: old.like(old.name.clone()),
            moved: Moved::of(old),
            own: vec![FxHashMap::default(); each],
            axes: vec![FxHashMap::default(); each],
            positions: positions(old),
            ranks: None,
        }
    }

    /// The new graph, and the axes of its pieces' tokens.
    pub fn run(mut self) -> (Graph, Vec<AxisId>) {
        for value in self.old.values() {
            if !self.region.repeated[value.index()] {
                self.moved.keep(self.old, value, &mut self.new);
                continue;
            }
            let parts: Vec<ValueId> = (0..self.pieces as usize).map(|piece| self.repeat(value, piece)).collect();
            if self.region.results.contains(&value) {
                let whole = self.join(value, parts);
                self.moved.set(value, whole);
            }
        }
        let own_tokens = (0..self.pieces as usize).map(|piece| self.axis(self.region.tokens, piece)).collect();
        let Cut { old, region, mut new, moved, own, axes, .. } = self;
        moved.interface(old, &mut new);
        for &(axis, starts) in &old.offsets {
            if region.repeated[starts.index()] {
                let of_pieces =
                    own.iter().zip(&axes).filter_map(|(own, axes)| Some((*axes.get(&axis)?, *own.get(&starts)?)));
                new.offsets.extend(of_pieces);
            } else {
                new.offsets.push((axis, moved.at(starts)));
            }
        }
        new.prune();
        (new, own_tokens)
    }

    /// The pieces of a value as one.
    fn join(&mut self, value: ValueId, parts: Vec<ValueId>) -> ValueId {
        let node = self.old.node(value);
        let tokens = self.region.tokens;
        let own: Vec<AxisId> = (0..parts.len()).map(|piece| self.axis(tokens, piece)).collect();
        if node.ty.has(tokens) {
            return self.new.push(Op::Concat { from: own, into: tokens }, parts, node.ty.clone(), &node.name);
        }
        // Of tokens of all ranks a piece has some of each rank's.
        let all = self.all_of(&node.ty);
        let ranks = self.ranks_axis(all);
        let split = |ty: &Type, all: AxisId, each: AxisId| with_axis(ty, all, &[ranks, each]);
        let mut of_ranks = Vec::with_capacity(parts.len());
        for (piece, (part, each)) in parts.into_iter().zip(&own).enumerate() {
            let all = self.axis(all, piece);
            let ty = split(self.new.ty(part), all, *each);
            let op = Op::Split { from: all, into: vec![ranks, *each] };
            of_ranks.push(self.new.push(op, vec![part], ty, &format!("{}.{piece}.split", node.name)));
        }
        let ty = split(&node.ty, all, tokens);
        let joined =
            self.new.push(Op::Concat { from: own, into: tokens }, of_ranks, ty, &format!("{}.split", node.name));
        self.new.push(Op::Merge { from: vec![ranks, tokens], into: all }, vec![joined], node.ty.clone(), &node.name)
    }

    /// A piece of a value with tokens of all ranks: some of each rank's.
    fn of_each_rank(&mut self, value: ValueId, piece: usize) -> ValueId {
        let node = self.old.node(value);
        let (all, tokens) = (self.all_of(&node.ty), self.region.tokens);
        let (own_all, own) = (self.axis(all, piece), self.axis(tokens, piece));
        let ranks = self.ranks_axis(all);
        let start = piece as u64 * self.new.size(own);
        let name = format!("{}.{piece}", node.name);
        let ty = with_axis(&node.ty, all, &[ranks, tokens]);
        let op = Op::Split { from: all, into: vec![ranks, tokens] };
        let split = self.new.push(op, vec![self.moved.at(value)], ty, &format!("{name}.split"));
        let ty = with_axis(&node.ty, all, &[ranks, own]);
        let op = Op::Slice { from: tokens, into: own, start };
        let part = self.new.push(op, vec![split], ty, &format!("{name}.slice"));
        let ty = with_axis(&node.ty, all, &[own_all]);
        self.new.push(Op::Merge { from: vec![ranks, own], into: own_all }, vec![part], ty, &name)
    }

    /// The axis of a type with the tokens of all ranks.
    fn all_of(&self, ty: &Type) -> AxisId {
        let shorter = |a: &&AxisId| self.region.shorter.contains(a);
        *ty.axes.iter().find(shorter).expect("what is cut has an axis that is")
    }

    /// An axis of the ranks that have the tokens of an axis.
    fn ranks_axis(&mut self, all: AxisId) -> AxisId {
        let ranks = self.old.size(all) / self.old.size(self.region.tokens);
        *self.ranks.get_or_insert_with(|| self.new.add_axis("ranks", Extent::Fixed(ranks), None))
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
        if !self.region.is_cut(&node.ty) {
            return self.moved.at(value);
        }
        let ty = self.ty(&node.ty, piece);
        let name = format!("{}.{piece}", node.name);
        let new = if node.ty.has(self.region.tokens) {
            let into = self.axis(self.region.tokens, piece);
            let start = piece as u64 * self.new.size(into);
            let op = Op::Slice { from: self.region.tokens, into, start };
            self.new.push(op, vec![self.moved.at(value)], ty, &name)
        } else if !is_made_again(self.old, value, &self.positions) {
            self.of_each_rank(value, piece)
        } else {
            let operands = node.operands.iter().map(|&o| self.part(o, piece)).collect();
            let op = node.op.map_axes(|a| self.axis(a, piece));
            self.new.push(op, operands, ty, &name)
        };
        self.own[piece].insert(value, new);
        new
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
            Extent::Fixed(n) if self.region.shorter.contains(&axis) => Some(Extent::Fixed(n / self.pieces)),
            Extent::Ragged { parent, bound, even } if starts.is_some_and(|v| self.region.repeated[v.index()]) => {
                let [bound, even] = [bound, even].map(|rows| rows.div_ceil(self.pieces));
                Some(Extent::Ragged { parent, bound, even })
            }
            _ => None,
        };
        let own =
            extent.map_or(axis, |extent| self.new.add_axis(&format!("{}_{piece}", whole.name), extent, whole.label));
        self.axes[piece].insert(axis, own);
        own
    }
}

/// A type with others in the place of an axis.
fn with_axis(ty: &Type, axis: AxisId, others: &[AxisId]) -> Type {
    let axes = ty.axes.iter().flat_map(|a| if *a == axis { others.to_vec() } else { vec![*a] });
    Type::new(ty.dtype, axes.collect::<Vec<AxisId>>())
}
