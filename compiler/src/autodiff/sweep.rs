//! The reverse sweep: appends to a forward graph the gradients of its losses and carries.
//!
//! Values are visited from last to first, inputs as soon as they can be. When one is reached, all its readers have their cotangents; its own is the sum of what
//! they contribute. Two kinds of readers are taken together, because what they contribute has no overlap:
//!
//! ```text
//! takes of all elements of an axis      stack of the elements' cotangents
//! slices that tile an axis              concat of the slices' cotangents
//! ```

use super::{Options, grad_input_name};
use forebay_ir::gradient::{gradient, zeros};
use forebay_ir::{AxisId, BinaryOp, Graph, InputRole, Op, OutputRole, Type, ValueId};

/// A forward graph with its gradient.
pub(super) struct Joint {
    /// F's inputs and outputs, `Grad` inputs and outputs.
    pub graph: Graph,
    /// For each value: does it depend on a `Grad` input or on the gradient of a loss?
    pub backward: Vec<bool>,
}

pub(super) fn sweep(forward: &Graph, options: &Options) -> Joint {
    let mut sweep = Sweep::new(forward, options);
    sweep.run();
    let grads = sweep.wanted.clone();
    for (name, input) in grads {
        let ty = forward.ty(input).clone();
        let value = match sweep.cotangents[input.index()] {
            Some(value) => value,
            None => {
                zeros(&mut sweep.graph, &ty, &format!("d.{}", forward.node(input).name)).expect("inputs have types")
            }
        };
        sweep.graph.add_output(name, value, OutputRole::Grad);
    }
    let seeds = std::mem::take(&mut sweep.seeds);
    let mut graph = sweep.graph;
    let backward = depends_on_gradients(&graph, &seeds);
    for &seed in &seeds {
        graph.nodes[seed.index()].op = Op::Const(1.0);
    }
    bypass_detach(&mut graph);
    Joint { graph, backward }
}

struct Sweep<'f> {
    forward: &'f Graph,
    graph: Graph,
    /// Output name and input, of each wanted gradient.
    wanted: Vec<(String, ValueId)>,
    /// The gradients of losses. Told apart from other constants until it is known what depends on them.
    seeds: Vec<ValueId>,
    /// For each value of F: from outside, through a loss or a carry.
    given: Vec<Vec<ValueId>>,
    /// For each value of F: can a wanted gradient flow through it?
    active: Vec<bool>,
    cotangents: Vec<Option<ValueId>>,
}

impl<'f> Sweep<'f> {
    fn new(forward: &'f Graph, options: &Options) -> Sweep<'f> {
        let n = forward.nodes.len();
        let mut sweep = Sweep {
            forward,
            graph: forward.clone(),
            wanted: wanted(forward, options),
            seeds: Vec::new(),
            given: vec![Vec::new(); n],
            active: vec![false; n],
            cotangents: vec![None; n],
        };
        sweep.declare_gradients(options);
        sweep.find_active();
        sweep
    }

    fn declare_gradients(&mut self, options: &Options) {
        for name in &options.carry_outputs {
            let value = self.forward.output(OutputRole::Carry, name).expect("a carry output of this name exists");
            let name = grad_input_name(name);
            let ty = self.forward.ty(value).clone();
            let grad = self.graph.add_input(&name, ty, InputRole::Grad);
            assert_eq!(self.graph.node(grad).name, name, "names that start with `grad.` are free");
            self.given[value.index()].push(grad);
        }
        for output in self.forward.outputs.iter().filter(|o| o.role == OutputRole::Loss) {
            let seed = self.graph.constant(1.0, self.forward.ty(output.value).dtype);
            // Not a constant yet: `depends_on_gradients` starts from it.
            self.graph.nodes[seed.index()].op = Op::Input;
            self.seeds.push(seed);
            self.given[output.value.index()].push(seed);
        }
    }

    fn find_active(&mut self) {
        for (_, input) in &self.wanted {
            self.active[input.index()] = true;
        }
        for value in self.forward.values() {
            let node = self.forward.node(value);
            let through = node.op != Op::Detach && node.ty.dtype.is_float();
            self.active[value.index()] |= through && node.operands.iter().any(|o| self.active[o.index()]);
        }
    }

    /// An input comes right behind its first reader, not at the end with the others: the gradient of a weight is best computed while
    /// what it is made of is at hand.
    fn run(&mut self) {
        let mut users = self.forward.users();
        users.iter_mut().for_each(Vec::dedup);
        let is_input = |v: ValueId| self.forward.node(v).op == Op::Input;
        let mut order: Vec<ValueId> = Vec::with_capacity(users.len());
        for value in self.forward.values().rev().filter(|&v| !is_input(v)) {
            order.push(value);
            let mut operands = self.forward.node(value).operands.clone();
            operands.sort_unstable();
            operands.dedup();
            for operand in operands {
                if is_input(operand) && users[operand.index()].first() == Some(&value) {
                    order.push(operand);
                }
            }
        }
        order.extend(self.forward.values().filter(|&v| is_input(v) && users[v.index()].is_empty()));
        for value in order {
            if self.active[value.index()] {
                self.visit(value, &users[value.index()]);
            }
        }
    }

    fn visit(&mut self, value: ValueId, readers: &[ValueId]) {
        let first_new = self.graph.nodes.len();
        let mut parts = self.given[value.index()].clone();
        let readers: Vec<ValueId> = readers.iter().copied().filter(|r| self.cotangents[r.index()].is_some()).collect();
        let (stacked, readers) = self.stack_takes(value, readers);
        let (joined, readers) = self.join_slices(value, readers);
        parts.extend(stacked.into_iter().chain(joined));
        for reader in readers {
            let cotangent = self.cotangents[reader.index()].expect("readers without were left out");
            for operand in 0..self.forward.node(reader).operands.len() {
                if self.forward.node(reader).operands[operand] == value {
                    let part = gradient(&mut self.graph, reader, operand, cotangent);
                    let node = self.forward.node(reader);
                    parts.extend(
                        part.unwrap_or_else(|e| panic!("the gradient of `{}` ({:?}): {e}", node.name, node.op)),
                    );
                }
            }
        }
        let Some(sum) = self.sum(value, &parts) else { return };
        debug_assert_eq!(self.graph.ty(sum), self.forward.ty(value), "a cotangent has its value's type");
        if sum.index() >= first_new {
            // Rules name their nodes `d.x.mul`; the last one is what it was all for. `simplify` makes names unique.
            self.graph.nodes[sum.index()].name = self.name(value);
        }
        self.cotangents[value.index()] = Some(sum);
    }

    fn name(&self, value: ValueId) -> String {
        format!("d.{}", self.forward.node(value).name)
    }

    fn add(&mut self, op: Op, operands: &[ValueId], ty: &Type, name: &str) -> ValueId {
        self.graph.add_ordered(op, operands, &ty.axes, name).expect("cotangents have their values' types")
    }

    fn sum(&mut self, value: ValueId, parts: &[ValueId]) -> Option<ValueId> {
        let ty = self.forward.ty(value).clone();
        let name = format!("{}.add", self.name(value));
        parts.iter().copied().reduce(|a, b| self.add(Op::Binary(BinaryOp::Add), &[a, b], &ty, &name))
    }

    /// The readers that take each element of an axis together; and the other readers.
    fn stack_takes(&mut self, value: ValueId, readers: Vec<ValueId>) -> (Option<ValueId>, Vec<ValueId>) {
        let taken = |v: &ValueId| match self.forward.node(*v).op {
            Op::Take { axis, index } => Some((axis, index)),
            _ => None,
        };
        let Some((axis, _)) = readers.iter().find_map(taken) else { return (None, readers) };
        let of_axis = |v: &ValueId| taken(v).is_some_and(|(a, _)| a == axis);
        let (takes, others): (Vec<ValueId>, Vec<ValueId>) = readers.iter().copied().partition(of_axis);
        let mut elements: Vec<Vec<ValueId>> = vec![Vec::new(); self.forward.size(axis) as usize];
        for take in takes {
            let (_, index) = taken(&take).expect("just chosen");
            elements[index as usize].push(take);
        }
        if elements.iter().any(Vec::is_empty) {
            return (None, readers);
        }
        let elements: Vec<ValueId> = elements
            .iter()
            .map(|takes| {
                let parts: Vec<ValueId> = takes.iter().filter_map(|t| self.cotangents[t.index()]).collect();
                self.sum(takes[0], &parts).expect("each element is taken")
            })
            .collect();
        let name = format!("{}.stack", self.name(value));
        let ty = self.forward.ty(value).clone();
        (Some(self.add(Op::Stack(axis), &elements, &ty, &name)), others)
    }

    /// The readers that cut an axis into slices without gap or overlap together; and the other readers.
    fn join_slices(&mut self, value: ValueId, readers: Vec<ValueId>) -> (Option<ValueId>, Vec<ValueId>) {
        let sliced = |v: &ValueId| match self.forward.node(*v).op {
            Op::Slice { from, into, start } => Some((from, into, start)),
            _ => None,
        };
        let Some((axis, ..)) = readers.iter().find_map(sliced) else { return (None, readers) };
        let of_axis = |v: &ValueId| sliced(v).is_some_and(|(a, ..)| a == axis);
        let (mut slices, others): (Vec<ValueId>, Vec<ValueId>) = readers.iter().copied().partition(of_axis);
        slices.sort_by_key(|v| sliced(v).map(|(_, _, start)| start));
        let mut end = 0;
        let mut from: Vec<AxisId> = Vec::new();
        for slice in &slices {
            let (_, into, start) = sliced(slice).expect("just chosen");
            if start != end {
                return (None, readers);
            }
            end += self.forward.size(into);
            from.push(into);
        }
        if end != self.forward.size(axis) {
            return (None, readers);
        }
        let parts: Vec<ValueId> =
            slices.iter().map(|s| self.cotangents[s.index()].expect("readers without were left out")).collect();
        let name = format!("{}.concat", self.name(value));
        let ty = self.forward.ty(value).clone();
        (Some(self.add(Op::Concat { from, into: axis }, &parts, &ty, &name)), others)
    }
}

/// The wanted gradients: output name and input, in the order of F's inputs.
fn wanted(forward: &Graph, options: &Options) -> Vec<(String, ValueId)> {
    for name in &options.carry_inputs {
        assert!(forward.input(InputRole::Carry, name).is_some(), "there is no carry input `{name}`");
    }
    let gradient_of = |input: &forebay_ir::Input| {
        let node = forward.node(input.value);
        match input.role {
            InputRole::Carry if options.carry_inputs.contains(&node.name) => Some(format!("carry.{}", node.name)),
            InputRole::Param if node.ty.dtype.is_float() => Some(format!("param.{}", node.name)),
            _ => None,
        }
    };
    forward.inputs.iter().filter_map(|i| gradient_of(i).map(|name| (name, i.value))).collect()
}

fn depends_on_gradients(graph: &Graph, seeds: &[ValueId]) -> Vec<bool> {
    let mut backward = vec![false; graph.nodes.len()];
    let grads = graph.inputs.iter().filter(|i| i.role == InputRole::Grad).map(|i| i.value);
    grads.chain(seeds.iter().copied()).for_each(|v| backward[v.index()] = true);
    for value in graph.values() {
        backward[value.index()] |= graph.node(value).operands.iter().any(|o| backward[o.index()]);
    }
    backward
}

/// `detach` has done its work.
fn bypass_detach(graph: &mut Graph) {
    let mut through: Vec<ValueId> = graph.values().collect();
    for value in graph.values() {
        let node = &mut graph.nodes[value.index()];
        node.operands.iter_mut().for_each(|o| *o = through[o.index()]);
        if node.op == Op::Detach {
            through[value.index()] = node.operands[0];
        }
    }
    graph.outputs.iter_mut().for_each(|o| o.value = through[o.value.index()]);
    graph.offsets.iter_mut().for_each(|(_, v)| *v = through[v.index()]);
}
