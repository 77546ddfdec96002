//! The graph: axes, nodes in topological order, inputs and outputs.

use crate::collective::MeshDim;
use crate::infer::{self, TypeError};
use crate::op::Op;
use crate::types::{Axis, AxisId, DType, Extent, Type};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A value of a graph, which is the result of the node with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The node's position.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One operation applied to values that stand before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What.
    pub op: Op,
    /// To what.
    pub operands: Vec<ValueId>,
    /// The result's type.
    pub ty: Type,
    /// Unique within the graph, stable, from the source where there is one: `attention.q`.
    pub name: String,
}

/// What an input stands for. Inputs of one role are told apart by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InputRole {
    /// Training data: `tokens`, `labels`, `positions`, `documents`.
    Data,
    /// A value of an earlier segment.
    Carry,
    /// A trainable parameter, in the compute type.
    Param,
    /// State that is kept between steps.
    State,
    /// A statistic, summed over the step.
    Stat,
    /// The count that a `per` loss is divided by, summed over the step.
    Count,
    /// A tensor that the forward graph saved.
    Saved,
    /// The gradient of an output of the forward graph.
    Grad,
    /// What a gradient or statistic has summed up to so far.
    Accumulator,
    /// A scalar or small vector that the runtime sets: `step`, `rng`.
    Runtime,
}

/// What an output stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OutputRole {
    /// A value for later segments.
    Carry,
    /// A loss's contribution, already weighted and divided by its count: the total is the plain sum.
    Loss,
    /// A loss's value without its weight, for reporting.
    Metric,
    /// A statistic of this micro-batch.
    Stat,
    /// A count of this micro-batch.
    Count,
    /// The next value of a state.
    State,
    /// A tensor that the backward graphs need.
    Saved,
    /// The gradient of a carried input or of a parameter.
    Grad,
    /// What evaluation and generation read.
    Output,
}

/// A declared input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The node with [`Op::Input`].
    pub value: ValueId,
    /// What it stands for.
    pub role: InputRole,
}

/// A declared output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The name, unique among outputs of its role.
    pub name: String,
    /// The value.
    pub value: ValueId,
    /// What it stands for.
    pub role: OutputRole,
}

/// A dataflow graph. Nodes stand in topological order: an operand comes before its users.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The name, printed after `graph @`.
    pub name: String,
    /// The mesh whose ranks all run this graph; empty for one rank.
    pub mesh: Vec<MeshDim>,
    /// All axes. Graphs of one model share the table until one of them declares another axis: small graphs over all axes of a large one are made by the thousand.
    pub axes: Arc<Vec<Axis>>,
    /// All nodes; [`ValueId`] is the position.
    pub nodes: Vec<Node>,
    /// Inputs in order.
    pub inputs: Vec<Input>,
    /// Outputs in order.
    pub outputs: Vec<Output>,
    /// For each ragged axis the value that holds its group starts (`i32`, one more element than the parent has).
    pub offsets: Vec<(AxisId, ValueId)>,
    /// Names in use, and for each stem the counter its next copy gets.
    names: FxHashMap<String, u32>,
}

impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.name == other.name
            && self.mesh == other.mesh
            && self.axes == other.axes
            && self.nodes == other.nodes
            && self.inputs == other.inputs
            && self.outputs == other.outputs
            && self.offsets == other.offsets
    }
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Graph {
        Graph { name: name.into(), ..Graph::default() }
    }

    /// An empty graph over the same mesh and axes.
    pub fn like(&self, name: impl Into<String>) -> Graph {
        Graph { name: name.into(), mesh: self.mesh.clone(), axes: self.axes.clone(), ..Graph::default() }
    }

    /// The node that makes a value.
    pub fn node(&self, value: ValueId) -> &Node {
        &self.nodes[value.index()]
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &Type {
        &self.node(value).ty
    }

    /// An axis.
    pub fn axis(&self, axis: AxisId) -> &Axis {
        &self.axes[axis.0 as usize]
    }

    /// The size of an axis; the bound of the total for a ragged one.
    pub fn size(&self, axis: AxisId) -> u64 {
        match self.axis(axis).extent {
            Extent::Fixed(n) => n,
            Extent::Ragged { bound, .. } => bound,
        }
    }

    /// Is the axis ragged?
    pub fn is_ragged(&self, axis: AxisId) -> bool {
        matches!(self.axis(axis).extent, Extent::Ragged { .. })
    }

    /// The parent of a ragged axis.
    pub fn ragged_parent(&self, axis: AxisId) -> Option<AxisId> {
        match self.axis(axis).extent {
            Extent::Fixed(_) => None,
            Extent::Ragged { parent, .. } => Some(parent),
        }
    }

    /// Rows of a ragged axis when elements are spread evenly over groups; all of a fixed one.
    pub fn even_size(&self, axis: AxisId) -> u64 {
        match self.axis(axis).extent {
            Extent::Fixed(n) => n,
            Extent::Ragged { even, .. } => even,
        }
    }

    /// May elements be left out of the groups of this ragged axis, so that numbers of rows are -1?
    pub fn leaves_out(&self, axis: AxisId) -> bool {
        matches!(self.axis(axis).extent, Extent::Ragged { bound, even, .. } if even < bound)
    }

    /// The ragged axis among these, if there is one.
    pub fn ragged_axis(&self, axes: &[AxisId]) -> Option<AxisId> {
        axes.iter().copied().find(|&a| self.is_ragged(a))
    }

    /// The group starts of a ragged axis.
    pub fn offsets_of(&self, ragged: AxisId) -> Option<ValueId> {
        self.offsets.iter().find(|(a, _)| *a == ragged).map(|(_, v)| *v)
    }

    /// Physical dimensions, outermost first: (axis, size). The parent of a ragged axis in the same list takes no room.
    pub fn dims(&self, axes: &[AxisId]) -> Vec<(AxisId, u64)> {
        let parents: Vec<AxisId> = axes.iter().filter_map(|&a| self.ragged_parent(a)).collect();
        axes.iter().filter(|a| !parents.contains(a)).map(|&a| (a, self.size(a))).collect()
    }

    /// Number of elements of a type, ragged axes at their bound.
    pub fn numel(&self, ty: &Type) -> u64 {
        self.dims(&ty.axes).iter().map(|(_, n)| n).product()
    }

    /// Bytes of a value, ragged axes at their bound.
    pub fn bytes(&self, value: ValueId) -> u64 {
        self.numel(self.ty(value)) * self.ty(value).dtype.bytes()
    }

    /// Everything a node reads: its operands, and the group starts of the ragged axes in their types and its own.
    pub fn reads(&self, value: ValueId) -> Vec<ValueId> {
        let node = self.node(value);
        let mut reads = node.operands.clone();
        for ty in node.operands.iter().map(|&o| self.ty(o)).chain([&node.ty]) {
            for offsets in ty.axes.iter().filter_map(|&a| self.offsets_of(a)) {
                // The graph that makes the offsets makes the rows beside them, from the same operand.
                if offsets < value && !reads.contains(&offsets) {
                    reads.push(offsets);
                }
            }
        }
        reads
    }

    /// Declares a new axis under a unique name close to the wished one.
    pub fn add_axis(&mut self, name: &str, extent: Extent, label: Option<String>) -> AxisId {
        let name = match self.axis_named(name) {
            None => name.to_string(),
            Some(_) => (2..)
                .map(|i| format!("{name}_{i}"))
                .find(|n| self.axis_named(n).is_none())
                .expect("some number is free"),
        };
        self.push_axis(Axis { name, extent, label })
    }

    /// Declares an axis as it is; that its name is unique is the caller's to see.
    pub fn push_axis(&mut self, axis: Axis) -> AxisId {
        Arc::make_mut(&mut self.axes).push(axis);
        AxisId(self.axes.len() as u32 - 1)
    }

    /// Finds an axis by name.
    pub fn axis_named(&self, name: &str) -> Option<AxisId> {
        self.axes.iter().position(|a| a.name == name).map(|i| AxisId(i as u32))
    }

    /// Appends a declared input.
    pub fn add_input(&mut self, name: &str, ty: Type, role: InputRole) -> ValueId {
        let value = self.push(Op::Input, vec![], ty, name);
        self.inputs.push(Input { value, role });
        value
    }

    /// Declares an output.
    pub fn add_output(&mut self, name: impl Into<String>, value: ValueId, role: OutputRole) {
        self.outputs.push(Output { name: name.into(), value, role });
    }

    /// Finds an output.
    pub fn output(&self, role: OutputRole, name: &str) -> Option<ValueId> {
        self.outputs.iter().find(|o| o.role == role && o.name == name).map(|o| o.value)
    }

    /// Finds an input.
    pub fn input(&self, role: InputRole, name: &str) -> Option<ValueId> {
        self.inputs.iter().find(|i| i.role == role && self.node(i.value).name == name).map(|i| i.value)
    }

    /// Appends a node whose type follows from the type rule.
    ///
    /// # Errors
    /// When the operands' types do not fit the op.
    pub fn add(&mut self, op: Op, operands: &[ValueId], name: &str) -> Result<ValueId, TypeError> {
        let ty = infer::infer(self, &op, operands)?;
        Ok(self.push(op, operands.to_vec(), ty, name))
    }

    /// Appends a node whose result has these axes: for ops with a free order, and for those that make axes (`broadcast`, `random`, `invert`).
    ///
    /// # Errors
    /// When the operands' types do not fit the op, or the axes are not a permutation of what the type rule gives.
    pub fn add_ordered(
        &mut self,
        op: Op,
        operands: &[ValueId],
        axes: &[AxisId],
        name: &str,
    ) -> Result<ValueId, TypeError> {
        let ty = infer::infer_ordered(self, &op, operands, axes)?;
        Ok(self.push(op, operands.to_vec(), ty, name))
    }

    /// Appends a scalar constant.
    pub fn constant(&mut self, value: f64, dtype: DType) -> ValueId {
        self.push(Op::Const(value), vec![], Type::new(dtype, []), "c")
    }

    /// Appends a node of a known type, under a unique name close to the wished one. The verifier checks what this does not.
    pub fn push(&mut self, op: Op, operands: Vec<ValueId>, ty: Type, name: &str) -> ValueId {
        let name = self.unique_name(name);
        self.nodes.push(Node { op, operands, ty, name });
        ValueId(self.nodes.len() as u32 - 1)
    }

    /// `name`, or `name_2`, `name_3`, … when it is taken. Names that end in a counter continue it, so that clones of clones stay short.
    fn unique_name(&mut self, name: &str) -> String {
        if !self.names.contains_key(name) {
            self.names.insert(name.to_string(), 2);
            return name.to_string();
        }
        let stem = match name.rsplit_once('_') {
            Some((stem, digits))
                if !stem.is_empty() && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) =>
            {
                stem
            }
            _ => name,
        };
        let mut counter = self.names.get(stem).copied().unwrap_or(2);
        let mut copy = format!("{stem}_{counter}");
        while self.names.contains_key(&copy) {
            counter += 1;
            copy = format!("{stem}_{counter}");
        }
        self.names.insert(stem.to_string(), counter + 1);
        self.names.insert(copy.clone(), 2);
        copy
    }

    /// Takes over the inputs, outputs and starts of groups of a graph whose values are at `moved` here.
    pub fn interface_of(&mut self, graph: &Graph, moved: &[ValueId]) {
        self.inputs = graph.inputs.clone();
        self.inputs.iter_mut().for_each(|i| i.value = moved[i.value.index()]);
        self.outputs = graph.outputs.clone();
        self.outputs.iter_mut().for_each(|o| o.value = moved[o.value.index()]);
        self.offsets = graph.offsets.iter().map(|&(axis, v)| (axis, moved[v.index()])).collect();
    }

    /// All values in topological order.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = ValueId> + use<> {
        (0..self.nodes.len() as u32).map(ValueId)
    }

    /// For each value the nodes that read it as an operand, in order.
    pub fn users(&self) -> Vec<Vec<ValueId>> {
        let mut users = vec![Vec::new(); self.nodes.len()];
        for value in self.values() {
            for operand in &self.node(value).operands {
                users[operand.index()].push(value);
            }
        }
        users
    }

    /// Drops nodes and inputs that no output depends on.
    pub fn drop_unused_inputs(&mut self) {
        self.prune();
        let mut used = vec![false; self.nodes.len()];
        for value in self.values() {
            self.reads(value).iter().for_each(|r| used[r.index()] = true);
        }
        self.outputs.iter().for_each(|o| used[o.value.index()] = true);
        self.inputs.retain(|i| used[i.value.index()]);
        self.prune();
    }

    /// Drops nodes that no output depends on; inputs stay. Returns where each old value went.
    pub fn prune(&mut self) -> Vec<Option<ValueId>> {
        let mut live = vec![false; self.nodes.len()];
        for input in &self.inputs {
            live[input.value.index()] = true;
        }
        for output in &self.outputs {
            live[output.value.index()] = true;
        }
        for value in self.values().rev() {
            if live[value.index()] {
                for read in self.reads(value) {
                    live[read.index()] = true;
                }
            }
        }
        let mut moved = vec![None; self.nodes.len()];
        for (next, (i, _)) in live.iter().enumerate().filter(|(_, l)| **l).enumerate() {
            moved[i] = Some(ValueId(next as u32));
        }
        let kept = |v: ValueId| moved[v.index()].expect("what a live node reads is live");
        let nodes = std::mem::take(&mut self.nodes);
        for (i, mut node) in nodes.into_iter().enumerate() {
            if moved[i].is_some() {
                node.operands.iter_mut().for_each(|o| *o = kept(*o));
                self.nodes.push(node);
            } else {
                self.names.remove(&node.name);
            }
        }
        self.inputs.iter_mut().for_each(|i| i.value = kept(i.value));
        self.outputs.iter_mut().for_each(|o| o.value = kept(o.value));
        self.offsets.retain_mut(|(_, v)| match moved[v.index()] {
            Some(new) => {
                *v = new;
                true
            }
            None => false,
        });
        moved
    }
}
