//! Axes that positions of a row have been merged into.
//!
//! ```text
//! %f = merge %x {b, t -> n}        whole: b0t0 b0t1 b0t2 b0t3 b1t0 …        the first of two ranks: b0t0 b0t1 b1t0 b1t1
//! ```
//!
//! A rank merges the positions that it has. So unless they are the outermost of what is merged, and in the order of the row, its elements are no run of the whole axis: they are
//! numbered by the rank's own tokens, and what is wanted of them in another layout is made of the merged axes again.

use super::axes::is_positions;
use forebay_ir::{AxisId, Graph, Op};

/// Which axes are such.
#[derive(Debug, Default)]
pub(super) struct Merged {
    tokens: Vec<AxisId>,
    mixed: Vec<AxisId>,
    /// What mixed axes were merged from, positions or what has them at a place.
    parts: Vec<(AxisId, Vec<AxisId>, usize)>,
}

impl Merged {
    /// Of a whole graph; `slots`: are positions in another order than the row's where they are cut?
    pub fn new(graph: &Graph, slots: bool) -> Merged {
        let mut merged = Merged::default();
        // Axes may have got their names in any order.
        loop {
            let known = (merged.tokens.len(), merged.mixed.len());
            for node in &graph.nodes {
                let (from, into) = match &node.op {
                    Op::Merge { from, into } => (from.as_slice(), *into),
                    Op::Rename { from, to } if merged.is_of_tokens(*from) => (std::slice::from_ref(from), *to),
                    _ => continue,
                };
                let Some(at) = from.iter().position(|&a| is_positions(graph, a) || merged.is_of_tokens(a)) else {
                    continue;
                };
                let is_outermost = from[..at].iter().all(|&a| graph.size(a) == 1);
                let mixed = !is_outermost || slots || merged.is_mixed(from[at]);
                merged.add(into, mixed);
                if mixed && matches!(node.op, Op::Merge { .. }) && merged.parts.iter().all(|p| p.0 != into) {
                    merged.parts.push((into, from.to_vec(), at));
                }
            }
            if known == (merged.tokens.len(), merged.mixed.len()) {
                return merged;
            }
        }
    }

    fn add(&mut self, axis: AxisId, mixed: bool) {
        if !self.tokens.contains(&axis) {
            self.tokens.push(axis);
        }
        if mixed && !self.mixed.contains(&axis) {
            self.mixed.push(axis);
        }
    }

    /// Are positions among what the axis is made of?
    pub fn is_of_tokens(&self, axis: AxisId) -> bool {
        self.tokens.contains(&axis)
    }

    /// Which of these parts of a mixed axis has what cuts it: when they are those that it was merged from, positions among them.
    pub fn cut_part(&self, axis: AxisId, parts: &[AxisId]) -> Option<usize> {
        self.parts.iter().find(|(a, from, _)| *a == axis && from == parts).map(|(_, _, at)| *at)
    }

    /// Are its elements in the ranks' own order where it is cut?
    pub fn is_mixed(&self, axis: AxisId) -> bool {
        self.mixed.contains(&axis)
    }
}
