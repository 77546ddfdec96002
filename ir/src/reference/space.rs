//! Index spaces: loops over named axes with, for each tensor, the distance that a step along an axis means in its data.

use crate::graph::Graph;
use crate::types::AxisId;

/// One loop.
#[derive(Clone, Debug)]
enum Loop {
    /// Over all elements of an axis.
    Plain(AxisId, usize),
    /// Over all rows of a ragged axis: for each the element of the parent that owns it.
    Rows { ragged: AxisId, parent: AxisId, owners: Vec<usize> },
}

/// The product of some axes.
#[derive(Clone, Debug)]
pub(super) struct Space {
    loops: Vec<Loop>,
}

impl Space {
    /// The product of `axes`. `owners` gives the owner of each row of a ragged axis.
    pub fn new(graph: &Graph, axes: &[AxisId], owners: &mut dyn FnMut(AxisId) -> Vec<usize>) -> Space {
        let mut loops = Vec::new();
        for &axis in axes {
            match graph.ragged_parent(axis) {
                Some(parent) => loops.push(Loop::Rows { ragged: axis, parent, owners: owners(axis) }),
                // The rows visit all elements of their parent.
                None if axes.iter().any(|&a| graph.ragged_parent(a) == Some(axis)) => {}
                None => loops.push(Loop::Plain(axis, graph.size(axis) as usize)),
            }
        }
        Space { loops }
    }

    /// Visits all points in order, the last axis fastest, with the offset that each layout gives to the point.
    pub fn walk(&self, layouts: &[&Layout], visit: &mut dyn FnMut(&[usize])) {
        let mut offsets: Vec<usize> = layouts.iter().map(|l| l.base).collect();
        self.descend(0, layouts, &mut offsets, visit);
    }

    fn descend(&self, depth: usize, layouts: &[&Layout], offsets: &mut Vec<usize>, visit: &mut dyn FnMut(&[usize])) {
        let Some(this) = self.loops.get(depth) else { return visit(offsets) };
        let start = offsets.clone();
        match this {
            Loop::Plain(axis, n) => {
                let steps: Vec<usize> = layouts.iter().map(|l| l.stride(*axis)).collect();
                for i in 0..*n {
                    (0..steps.len()).for_each(|t| offsets[t] = start[t] + i * steps[t]);
                    self.descend(depth + 1, layouts, offsets, visit);
                }
            }
            Loop::Rows { ragged, parent, owners } => {
                let steps: Vec<(usize, usize)> =
                    layouts.iter().map(|l| (l.stride(*ragged), l.stride(*parent))).collect();
                for (row, owner) in owners.iter().enumerate() {
                    (0..steps.len()).for_each(|t| offsets[t] = start[t] + row * steps[t].0 + owner * steps[t].1);
                    self.descend(depth + 1, layouts, offsets, visit);
                }
            }
        }
        *offsets = start;
    }
}

/// Where the elements of a tensor lie.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    strides: Vec<(AxisId, usize)>,
    base: usize,
}

impl Layout {
    /// The layout of a tensor with these axes. The parent of a ragged axis beside it has no stride.
    pub fn new(graph: &Graph, axes: &[AxisId]) -> Layout {
        let dims = graph.dims(axes);
        let mut stride = 1;
        let mut strides = Vec::new();
        for (axis, n) in dims.into_iter().rev() {
            strides.push((axis, stride));
            stride *= n as usize;
        }
        Layout { strides, base: 0 }
    }

    /// Distance between neighbours along an axis; 0 along axes that the tensor lacks.
    pub fn stride(&self, axis: AxisId) -> usize {
        self.strides.iter().find(|(a, _)| *a == axis).map_or(0, |(_, s)| *s)
    }

    /// The same data with one axis called otherwise.
    pub fn renamed(mut self, from: AxisId, to: AxisId) -> Layout {
        self.strides.iter_mut().filter(|(a, _)| *a == from).for_each(|(a, _)| *a = to);
        self
    }

    /// The data from element `start` of an axis on.
    pub fn from(mut self, axis: AxisId, start: u64) -> Layout {
        self.base += start as usize * self.stride(axis);
        self
    }

    /// The data at the first element of an axis.
    pub fn without(mut self, axis: AxisId) -> Layout {
        self.strides.retain(|(a, _)| *a != axis);
        self
    }
}
