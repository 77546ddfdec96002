//! A backward graph in which values of the forward graph are computed again, each where it is read first.

use forebay_ir::{AxisId, Extent, Graph, InputRole, OutputRole, Type, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

/// A backward graph in the making, in which values of the forward graph are computed again.
pub(super) struct Splice<'a> {
    forward: &'a Graph,
    backward: &'a Graph,
    kept: &'a [ValueId],
    new: Graph,
    /// Where values of the forward graph are.
    again: FxHashMap<ValueId, ValueId>,
    /// Where values of the old backward graph are.
    moved: Vec<Option<ValueId>>,
    /// Saved inputs of the old backward graph that are values of the forward graph.
    saved: FxHashMap<ValueId, ValueId>,
    /// Axes of the forward graph that the backward graph has under another number.
    axes: FxHashMap<AxisId, AxisId>,
}

impl<'a> Splice<'a> {
    /// What the backward graph takes from the forward graph is to follow from `kept`.
    pub(super) fn new(forward: &'a Graph, backward: &'a Graph, kept: &'a [ValueId]) -> Splice<'a> {
        let outputs = forward.outputs.iter().filter(|o| o.role == OutputRole::Saved);
        let outputs: FxHashMap<&str, ValueId> = outputs.map(|o| (o.name.as_str(), o.value)).collect();
        let inputs = backward.inputs.iter().filter(|i| i.role == InputRole::Saved);
        let saved = inputs.filter_map(|i| Some((i.value, *outputs.get(backward.node(i.value).name.as_str())?)));
        let saved: FxHashMap<ValueId, ValueId> = saved.collect();
        Splice {
            forward,
            backward,
            kept,
            new: backward.like(backward.name.clone()),
            again: FxHashMap::default(),
            moved: vec![None; backward.nodes.len()],
            axes: shared_axes(forward, backward, &saved),
            saved,
        }
    }

    /// The backward graph that makes the rest again.
    pub(super) fn run(mut self) -> Graph {
        self.inputs();
        for value in self.backward.values() {
            if self.moved[value.index()].is_none() && !self.saved.contains_key(&value) {
                let node = self.backward.node(value);
                self.backward.reads(value).into_iter().for_each(|read| _ = self.value(read));
                let operands = node.operands.iter().map(|&o| self.value(o)).collect();
                self.moved[value.index()] = Some(self.new.push(node.op.clone(), operands, node.ty.clone(), &node.name));
            }
        }
        for output in &self.backward.outputs {
            let value = self.value(output.value);
            self.new.add_output(output.name.clone(), value, output.role);
        }
        let again: Vec<(AxisId, ValueId)> =
            self.forward.offsets.iter().filter_map(|&(axis, value)| Some((axis, *self.again.get(&value)?))).collect();
        let again: Vec<(AxisId, ValueId)> = again.into_iter().map(|(axis, value)| (self.axis(axis), value)).collect();
        for &(axis, value) in &self.backward.offsets {
            // What makes starts of groups in the backward graph anyway may stand behind rows that are made again, with starts of their own.
            let own = self.value(value);
            let others = again.iter().filter(|(other, _)| *other == axis).map(|(_, value)| *value);
            self.new.offsets.push((axis, others.fold(own, ValueId::min)));
        }
        for (axis, value) in again {
            if self.new.offsets_of(axis).is_none() {
                self.new.offsets.push((axis, value));
            }
        }
        self.new
    }

    /// Inputs in the order of the forward graph, then what it saves, starts of groups first, then the others.
    fn inputs(&mut self) {
        let wanted = self.needed();
        for input in &self.forward.inputs {
            let name = &self.forward.node(input.value).name;
            let there = self.backward.input(input.role, name);
            if there.is_some() || wanted.contains(&input.value) {
                let value = self.declare(self.forward, input.value, input.role);
                self.again.insert(input.value, value);
                there.into_iter().for_each(|old| self.moved[old.index()] = Some(value));
            }
        }
        let starts = |v: &ValueId| self.forward.offsets.iter().any(|(_, o)| o == v);
        let (first, then): (Vec<ValueId>, Vec<ValueId>) = self.kept.iter().partition(|v| starts(v));
        for value in first.into_iter().chain(then).filter(|v| wanted.contains(v)) {
            let declared = self.declare(self.forward, value, InputRole::Saved);
            self.again.insert(value, declared);
        }
        for input in &self.backward.inputs {
            if self.moved[input.value.index()].is_none() && !self.saved.contains_key(&input.value) {
                let value = self.declare(self.backward, input.value, input.role);
                self.moved[input.value.index()] = Some(value);
            }
        }
    }

    fn declare(&mut self, from: &Graph, value: ValueId, role: InputRole) -> ValueId {
        let node = from.node(value);
        let axes: Vec<AxisId> = match std::ptr::eq(from, self.forward) {
            true => node.ty.axes.iter().map(|&a| self.axis(a)).collect(),
            false => node.ty.axes.to_vec(),
        };
        self.new.add_input(&node.name, Type::new(node.ty.dtype, axes), role)
    }

    /// What this backward graph takes from the forward graph: what it reads of it, back to what is kept.
    fn needed(&self) -> FxHashSet<ValueId> {
        let mut needed = FxHashSet::default();
        let mut stack: Vec<ValueId> = self.saved.values().copied().collect();
        while let Some(value) = stack.pop() {
            if needed.insert(value) && !self.kept.contains(&value) {
                stack.extend(self.forward.reads(value));
            }
        }
        needed
    }

    /// Where a value of the old backward graph is; what was saved is computed now.
    fn value(&mut self, old: ValueId) -> ValueId {
        if let Some(value) = self.moved[old.index()] {
            return value;
        }
        let value = self.clone_of(self.saved[&old]);
        self.moved[old.index()] = Some(value);
        value
    }

    /// A value of the forward graph, with what it needs.
    fn clone_of(&mut self, value: ValueId) -> ValueId {
        let mut stack = vec![(value, false)];
        while let Some((value, ready)) = stack.pop() {
            if self.again.contains_key(&value) {
                continue;
            }
            if !ready {
                stack.push((value, true));
                stack.extend(self.forward.reads(value).into_iter().rev().map(|r| (r, false)));
                continue;
            }
            let node = self.forward.node(value);
            let operands = node.operands.iter().map(|o| self.again[o]).collect();
            let axes: Vec<AxisId> = node.ty.axes.iter().map(|&a| self.axis(a)).collect();
            let op = node.op.map_axes(|a| self.axis(a));
            let new = self.new.push(op, operands, Type::new(node.ty.dtype, axes), &node.name);
            self.again.insert(value, new);
        }
        self.again[&value]
    }

    /// The number of a forward axis in the backward graph. Both tables begin as one; rewriting appends to each.
    fn axis(&mut self, axis: AxisId) -> AxisId {
        if let Some(&known) = self.axes.get(&axis) {
            return known;
        }
        let own = self.forward.axis(axis).clone();
        let same = self.backward.axes.get(axis.0 as usize) == Some(&own);
        let taken = self.axes.values().any(|&other| other == axis);
        let new = if same && !taken {
            axis
        } else {
            let extent = match own.extent {
                Extent::Fixed(n) => Extent::Fixed(n),
                Extent::Ragged { parent, bound, even } => Extent::Ragged { parent: self.axis(parent), bound, even },
            };
            self.new.add_axis(&own.name, extent, own.label)
        };
        self.axes.insert(axis, new);
        new
    }
}

/// Axes of what both graphs have, by their numbers in the forward graph. Rewriting may have appended them to both tables, at places of their own: what the backward graph
/// does with a saved value it does by its own numbers.
fn shared_axes(forward: &Graph, backward: &Graph, saved: &FxHashMap<ValueId, ValueId>) -> FxHashMap<AxisId, AxisId> {
    let mut axes = FxHashMap::default();
    for (&taken, &made) in saved {
        let [own, others] = [&forward.node(made).ty.axes, &backward.node(taken).ty.axes];
        debug_assert_eq!(own.len(), others.len(), "a saved value has one type");
        axes.extend(own.iter().copied().zip(others.iter().copied()));
    }
    axes
}
