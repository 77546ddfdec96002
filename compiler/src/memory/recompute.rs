//! Saved tensors are made again where the backward graph reads them first, from fewer bytes that are saved instead.
//!
//! ```text
//! forward F   %q = contract %x, %wq              saved q, o                        saved q
//!             %o = attention %q, %k, %v    ──►
//! backward B  … %o …                             saved %q, %o                      saved %q
//!                                                                                  %o = attention %q, %k, %v
//!                                                … %o …                            … %o …
//! ```
//!
//! Which values are kept is a minimum cut through F: what may be computed again is, as long as that saves bytes (a whole block:
//! arXiv 1604.06174; parts of it: arXiv 2205.05198, section 5). Collectives are repeated like anything else, by all their ranks.
//!
//! Requires: graphs after the last rewriting, so that a clone is what F computes, op for op, and has the same bits. Random numbers are a
//! hash of their place, and choices of routers follow from the same scores.
//! Keeps: every gradient bit for bit. Costs: the time of what is computed again.

use crate::autodiff::{Differentiated, cut};
use crate::simplify::simplify;
use cut::Place;
use forebay_ir::{AxisId, Extent, Graph, InputRole, Op, OutputRole, Type, Unit, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt;

/// What the backward pass may compute again although that is not cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Nothing.
    #[default]
    Nothing,
    /// Everything between the inputs of a block and its outputs. The first and the last segment of a model keep next to nothing beside their
    /// inputs, or would repeat the dearest product of all: they are left as they are.
    Full,
    /// Values of these names, and the results of ops of these names.
    Named(Vec<String>),
}

impl Recompute {
    /// Reads `none`, `full`, or names separated by `/`.
    pub fn parse(text: &str) -> Option<Recompute> {
        match text {
            "none" => Some(Recompute::Nothing),
            "full" => Some(Recompute::Full),
            _ => {
                let names: Vec<String> = text.split('/').map(|n| n.trim().to_string()).collect();
                names.iter().all(|n| !n.is_empty()).then_some(Recompute::Named(names))
            }
        }
    }

    fn allows(&self, forward: &Graph, value: ValueId) -> bool {
        match self {
            Recompute::Nothing => false,
            Recompute::Full => true,
            Recompute::Named(names) => names.iter().any(|name| is_called(forward, value, name)),
        }
    }

    /// The names that nothing in any of the graphs has.
    pub fn unknown<'a>(&'a self, graphs: &[&Graph]) -> Vec<&'a str> {
        let Recompute::Named(names) = self else { return vec![] };
        let known = |name: &str| graphs.iter().any(|g| g.values().any(|v| is_called(g, v, name)));
        names.iter().map(String::as_str).filter(|name| !known(name)).collect()
    }
}

/// What a value can be named by: its own name or that of its op.
fn is_called(graph: &Graph, value: ValueId, name: &str) -> bool {
    let node = graph.node(value);
    node.op != Op::Input && (node.name == name || node.op.row().name == name)
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recompute::Nothing => f.write_str("none"),
            Recompute::Full => f.write_str("full"),
            Recompute::Named(names) => f.write_str(&names.join("/")),
        }
    }
}

/// Applies the choice to a segment.
pub fn recompute(segment: &mut Differentiated, what: &Recompute) {
    let has = |role| segment.forward.inputs.iter().any(|i| i.role == role);
    let is_block = has(InputRole::Carry) && segment.forward.outputs.iter().any(|o| o.role == OutputRole::Carry);
    if *what == Recompute::Nothing || (*what == Recompute::Full && !is_block) {
        return;
    }
    let forward = &segment.forward;
    let kept = kept(forward, what);
    for backward in [&mut segment.backward, &mut segment.backward_input, &mut segment.backward_weight] {
        *backward = Splice::new(forward, backward, &kept).run();
        simplify(backward);
    }
    let forward = &mut segment.forward;
    forward.outputs.retain(|o| o.role != OutputRole::Saved);
    for value in kept {
        forward.add_output(forward.node(value).name.clone(), value, OutputRole::Saved);
    }
    forward.prune();
}

/// The values to save: the fewest bytes from which all that is saved now can be had.
fn kept(forward: &Graph, what: &Recompute) -> Vec<ValueId> {
    let saved = forward.outputs.iter().filter(|o| o.role == OutputRole::Saved);
    let saved: Vec<ValueId> = saved.map(|o| o.value).collect();
    let place = |v: ValueId| match &forward.node(v).op {
        Op::Input => Place::Before,
        op if cut::is_cheap(op) || what.allows(forward, v) => Place::Either,
        _ => Place::Before,
    };
    // Inputs are there anyway. Beyond bytes, fewer tensors; and the tensor itself rather than a view.
    let weight = |v: ValueId| match &forward.node(v).op {
        Op::Input => 0,
        op if op.row().unit == Unit::None => forward.bytes(v) * 16 + 2,
        _ => forward.bytes(v) * 16 + 1,
    };
    let mut kept = cut::minimum_cut(forward, &place, &weight, &saved);
    kept.retain(|&v| forward.node(v).op != Op::Input);
    kept
}

/// A backward graph in the making, in which values of the forward graph are computed again.
struct Splice<'a> {
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
    fn new(forward: &'a Graph, backward: &'a Graph, kept: &'a [ValueId]) -> Splice<'a> {
        let outputs = forward.outputs.iter().filter(|o| o.role == OutputRole::Saved);
        let outputs: FxHashMap<&str, ValueId> = outputs.map(|o| (o.name.as_str(), o.value)).collect();
        let inputs = backward.inputs.iter().filter(|i| i.role == InputRole::Saved);
        let saved = inputs.filter_map(|i| Some((i.value, *outputs.get(backward.node(i.value).name.as_str())?)));
        Splice {
            forward,
            backward,
            kept,
            new: backward.like(backward.name.clone()),
            again: FxHashMap::default(),
            moved: vec![None; backward.nodes.len()],
            saved: saved.collect(),
            axes: FxHashMap::default(),
        }
    }

    fn run(mut self) -> Graph {
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
        for &(axis, value) in &self.backward.offsets {
            let value = self.value(value);
            self.new.offsets.push((axis, value));
        }
        for &(axis, value) in &self.forward.offsets {
            let axis = self.axis(axis);
            if let Some(&value) = self.again.get(&value)
                && self.new.offsets_of(axis).is_none()
            {
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
        let new = if same {
            axis
        } else {
            let extent = match own.extent {
                Extent::Fixed(n) => Extent::Fixed(n),
                Extent::Ragged { parent, bound } => Extent::Ragged { parent: self.axis(parent), bound },
            };
            self.new.add_axis(&own.name, extent, own.label)
        };
        self.axes.insert(axis, new);
        new
    }
}
