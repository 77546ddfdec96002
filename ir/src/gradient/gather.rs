//! Gradients of `gather` and `scatter_add`.
//!
//! In general a gather's gradient is a `scatter_add`, which needs zeros, and an order of addition. Dispatch and combine of a
//! Mixture-of-Experts layer need neither, since `group` only permutes: each is undone by a gather the other way.
//!
//! ```text
//! %rows = group %chosen                 : i32[e, r]             // chosen: i32[n, k], or of as many elements
//! %xe   = gather %x at %rows / K        : [e, r, d]             // dispatch
//!     %slot = invert %rows              : i32[n, k]
//!     %d.x  = sum (gather %d.xe at %slot) over {k}
//!
//! %slot = invert %rows                  : i32[n, k]
//! %y    = gather %ye at %slot           : [n, k, d]             // combine
//!     %d.ye = gather (merge %d.y {n, k}) at %rows
//! ```
//!
//! A gather whose index has no axes of its own (the logit of the right class) picks one element of each row: its gradient is a
//! `select` against the positions, which fuses with what surrounds it.

use super::{Gradient, Rule, unit_axis};
use crate::graph::{Graph, ValueId};
use crate::infer::TypeError;
use crate::op::{BinaryOp, Op, ReduceKind};
use crate::types::{Axis, AxisId, Extent};

impl Rule<'_> {
    pub(super) fn gather_rule(&mut self, axis: AxisId) -> Gradient {
        let index = self.node.operands[1];
        let index_axes = self.graph.ty(index).axes.clone();
        let mut own: Vec<AxisId> = index_axes.iter().copied().filter(|&a| !self.wanted.has(a)).collect();
        if own == index_axes && !own.is_empty() {
            if let Some(divided) = rows_of(self.graph, index)
                && let Some(gradient) = self.undo_dispatch(axis, &divided)?
            {
                return self.fit(gradient);
            }
            if let Some(gradient) = self.undo_combine(axis, index, &index_axes)? {
                return self.fit(gradient);
            }
        }
        if own.is_empty() && !self.graph.is_ragged(axis) {
            return self.one_hot(axis, index);
        }
        let (mut g, mut index) = (self.g, index);
        if own.is_empty() {
            // `scatter_add` has to sum over something.
            let unit = unit_axis(self.graph);
            g = self.op(Op::Broadcast(vec![unit]), &[g])?;
            index = self.op(Op::Broadcast(vec![unit]), &[index])?;
            own.push(unit);
        }
        own.sort_unstable();
        let scattered = self.op(Op::ScatterAdd { axis, over: own }, &[g, index])?;
        self.fit(scattered)
    }

    /// `select(position == index, g, 0)`.
    fn one_hot(&mut self, axis: AxisId, index: ValueId) -> Gradient {
        let zero = self.constant(0.0);
        let positions = self.op(Op::Iota(axis), &[])?;
        let hit = self.wanted.axes.clone();
        let hit: Vec<AxisId> = hit.into_iter().filter(|&a| a == axis || self.graph.ty(index).has(a)).collect();
        let here = self.ordered(Op::Binary(BinaryOp::Eq), &[positions, index], &hit)?;
        self.ordered(Op::Select, &[here, self.g, zero], &self.wanted.axes.clone()).map(Some)
    }

    /// The rows of x went to `rows / by`: each of them `by` times.
    fn undo_dispatch(&mut self, axis: AxisId, rows: &Rows) -> Result<Option<ValueId>, TypeError> {
        let bijective =
            !self.graph.is_ragged(axis) && self.graph.size(axis).checked_mul(rows.by) == Some(rows.elements);
        if !bijective {
            return Ok(None);
        }
        let ragged = self.graph.ragged_axis(&self.graph.ty(rows.value).axes).expect("rows are ragged");
        let mut axes = vec![axis];
        if rows.by > 1 {
            axes.push(self.copies_axis(rows));
        }
        let slot = self.ordered(Op::Invert, &[rows.value], &axes)?;
        let copies = self.op(Op::Gather { axis: ragged }, &[self.g, slot])?;
        if rows.by == 1 {
            return Ok(Some(copies));
        }
        self.op(Op::Reduce { kind: ReduceKind::Sum, over: vec![axes[1]] }, &[copies]).map(Some)
    }

    /// The axis of the copies of one row: the last axis of what was grouped, where that is it.
    fn copies_axis(&mut self, rows: &Rows) -> AxisId {
        let last = self.graph.ty(rows.chosen).axes.last().copied();
        match last {
            Some(last) if self.graph.size(last) == rows.by && !self.wanted.has(last) && !self.node.ty.has(last) => last,
            _ => {
                let label = last.and_then(|a| self.graph.axis(a).label.clone());
                self.graph.add_axis("copy", Extent::Fixed(rows.by), label)
            }
        }
    }

    /// The rows of x, in group order, went to the places they came from.
    fn undo_combine(&mut self, axis: AxisId, index: ValueId, places: &[AxisId]) -> Result<Option<ValueId>, TypeError> {
        let inverted = self.graph.node(index);
        if inverted.op != Op::Invert {
            return Ok(None);
        }
        let rows = inverted.operands[0];
        let Some(Rows { by: 1, elements, .. }) = rows_of(self.graph, rows) else { return Ok(None) };
        let n: u64 = places.iter().map(|&a| self.graph.size(a)).product();
        if n != elements || self.graph.ragged_axis(&self.graph.ty(rows).axes) != Some(axis) {
            return Ok(None);
        }
        let (mut g, mut place) = (self.g, places[0]);
        if places.len() > 1 {
            place = self.graph.add_axis("place", Extent::Fixed(n), None);
            g = self.op(Op::Merge { from: places.to_vec(), into: place }, &[g])?;
        }
        self.op(Op::Gather { axis: place }, &[g, rows]).map(Some)
    }

    /// Each element of v gets the gradient of the element it was added to.
    pub(super) fn scatter_rule(&mut self, axis: AxisId) -> Gradient {
        let mut index = self.node.operands[1];
        // A gather from a ragged axis takes its parent away, so that an axis of the index must not be called the same.
        let parent = self.graph.ragged_parent(axis).filter(|&p| self.graph.ty(index).has(p));
        let renamed = parent.map(|from| {
            let Axis { name, extent, label } = self.graph.axis(from).clone();
            (from, self.graph.add_axis(&name, extent, label))
        });
        if let Some((from, to)) = renamed {
            index = self.op(Op::Rename { from, to }, &[index])?;
        }
        let (g, index) = self.beside_parent(axis, index)?;
        let mut gathered = self.op(Op::Gather { axis }, &[g, index])?;
        if let Some((from, to)) = renamed {
            gathered = self.op(Op::Rename { from: to, to: from }, &[gathered])?;
        }
        // Summed axes that the index lacks are filled by `fit`.
        self.fit(gathered)
    }

    /// The cotangent and the index in orders in which the index's axes can take the place of `axis`: a ragged one of them stands
    /// directly behind its parent, so that `axis` does in the cotangent, and no other axis of the index comes between.
    fn beside_parent(&mut self, axis: AxisId, index: ValueId) -> Result<(ValueId, ValueId), TypeError> {
        let g = self.graph.ty(self.g).clone();
        let index_axes = self.graph.ty(index).axes.clone();
        let own = index_axes.iter().copied().filter(|&a| !g.has(a));
        let mut parents = own.filter_map(|a| self.graph.ragged_parent(a).map(|p| [p, a]));
        let Some(pair) = parents.find(|[parent, _]| g.has(*parent)) else {
            return Ok((self.g, index));
        };
        let gone = [self.graph.ragged_parent(axis), Some(axis)];
        let mut axes: Vec<AxisId> = g.axes.iter().copied().filter(|&a| !gone.contains(&Some(a))).collect();
        let at = 1 + axes.iter().position(|&a| a == pair[0]).expect("the parent stays");
        axes.splice(at..at, gone.into_iter().flatten());
        let g = self.ordered(Op::Reorder, &[self.g], &axes)?;
        let first: Vec<AxisId> =
            pair.into_iter().chain(index_axes.iter().copied().filter(|a| !pair.contains(a))).collect();
        let index = if first == index_axes { index } else { self.ordered(Op::Reorder, &[index], &first)? };
        Ok((g, index))
    }
}

/// Row numbers of a group, divided by a constant.
struct Rows {
    /// The result of `group`.
    value: ValueId,
    /// Its operand.
    chosen: ValueId,
    /// Number of grouped elements.
    elements: u64,
    by: u64,
}

/// Recognises the rows of a `group`, or those divided by constants.
fn rows_of(graph: &Graph, index: ValueId) -> Option<Rows> {
    let (mut value, mut by) = (index, 1_u64);
    loop {
        let node = graph.node(value);
        match node.op {
            Op::Group { .. } => {
                let chosen = node.operands[0];
                return Some(Rows { value, chosen, elements: graph.numel(graph.ty(chosen)), by });
            }
            Op::Binary(BinaryOp::Div) => {
                let divisor = super::constant_value(graph, node.operands[1]);
                by = by.checked_mul(divisor.filter(|&c| c >= 1.0 && c.fract() == 0.0)? as u64)?;
                value = node.operands[0];
            }
            _ => return None,
        }
    }
}
