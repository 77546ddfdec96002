//! How a value of the whole model lies on the ranks.

use super::mesh::Mesh;
use forebay_ir::{AxisId, Graph, ValueId};
use std::collections::BTreeMap;

/// How a value lies on the ranks of a stage. In dimensions that are not named every rank has the same; those of data parallelism are never named:
/// each of their ranks has rows of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    /// For each axis that is cut: the mesh dimensions that cut it, outermost first.
    pub cut: BTreeMap<AxisId, Vec<u32>>,
    /// The dimensions whose ranks hold terms of a sum, sorted.
    pub partial: Vec<u32>,
}

impl Layout {
    /// The dimensions that cut an axis.
    pub fn of(&self, axis: AxisId) -> &[u32] {
        self.cut.get(&axis).map_or(&[], Vec::as_slice)
    }

    /// The axis that a dimension cuts.
    pub fn axis_of(&self, dim: u32) -> Option<AxisId> {
        self.cut.iter().find(|(_, dims)| dims.contains(&dim)).map(|(axis, _)| *axis)
    }

    /// All dimensions in which ranks differ.
    pub fn dims(&self) -> Vec<u32> {
        let mut dims: Vec<u32> = self.cut.values().flatten().chain(&self.partial).copied().collect();
        dims.sort_unstable();
        dims
    }

    /// The same with one more axis cut.
    pub fn with(mut self, axis: AxisId, dims: &[u32]) -> Layout {
        match dims {
            [] => drop(self.cut.remove(&axis)),
            _ => drop(self.cut.insert(axis, dims.to_vec())),
        }
        self
    }

    /// The same with no axis cut by these dimensions.
    pub fn without(mut self, dims: &[u32]) -> Layout {
        self.cut.values_mut().for_each(|of_axis| of_axis.retain(|d| !dims.contains(d)));
        self.cut.retain(|_, of_axis| !of_axis.is_empty());
        self
    }

    /// The same without terms of a sum.
    pub fn whole(&self) -> Layout {
        Layout { cut: self.cut.clone(), partial: vec![] }
    }

    /// Only what is said of these axes; no terms of a sum.
    pub fn on(&self, axes: &[AxisId]) -> Layout {
        Layout {
            cut: self.cut.iter().filter(|(a, _)| axes.contains(a)).map(|(a, d)| (*a, d.clone())).collect(),
            partial: vec![],
        }
    }

    /// `seq/tp, kv/tp; sum over cp` for people.
    pub fn describe(&self, graph: &Graph, mesh: &Mesh) -> String {
        let mut parts: Vec<String> =
            self.cut.iter().map(|(a, dims)| format!("{}/{}", graph.axis(*a).name, mesh.describe(dims))).collect();
        if !self.partial.is_empty() {
            parts.push(format!("a sum over {}", mesh.describe(&self.partial)));
        }
        if parts.is_empty() { "whole".to_string() } else { parts.join(", ") }
    }
}

/// A value of the whole model as the ranks' graph has it.
#[derive(Clone, Debug)]
pub(super) struct Form {
    pub layout: Layout,
    pub value: ValueId,
}
