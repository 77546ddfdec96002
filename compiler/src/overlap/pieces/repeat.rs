//! A graph in which a region is repeated for each piece.

use super::find::Region;
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
        }
    }

    /// The new graph.
    pub fn run(mut self) -> Graph {
        for value in self.old.values() {
            let node = self.old.node(value);
            if !self.region.repeated[value.index()] {
                self.moved.keep(self.old, value, &mut self.new);
                continue;
            }
            let parts: Vec<ValueId> = (0..self.pieces as usize).map(|piece| self.repeat(value, piece)).collect();
            if self.region.results.contains(&value) {
                let from = (0..self.pieces as usize).map(|piece| self.axis(self.region.tokens, piece)).collect();
                let op = Op::Concat { from, into: self.region.tokens };
                self.moved.set(value, self.new.push(op, parts, node.ty.clone(), &node.name));
            }
        }
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
            return self.moved.at(value);
        }
        let ty = self.ty(&node.ty, piece);
        let name = format!("{}.{piece}", node.name);
        let new = if node.ty.has(self.region.tokens) {
            let into = self.axis(self.region.tokens, piece);
            let start = piece as u64 * self.new.size(into);
            let op = Op::Slice { from: self.region.tokens, into, start };
            self.new.push(op, vec![self.moved.at(value)], ty, &name)
        } else {
            // Tokens that have been merged into one axis: a part of each is cut before.
            let operands = node.operands.iter().map(|&o| self.part(o, piece)).collect();
            let op = node.op.map_axes(|a| self.axis(a, piece));
            self.new.push(op, operands, ty, &name)
        };
        self.own[piece].insert(value, new);
        new
    }

    /// Has a type an axis that gets shorter?
    fn is_cut(&self, ty: &Type) -> bool {
        ty.axes.iter().any(|a| self.region.shorter.contains(a))
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
