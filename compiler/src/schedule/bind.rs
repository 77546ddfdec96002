//! Slots: what each input and output of a segment's graph stands for in a call.

use crate::emit::{Home, Interface, Rows, align};
use forebay_ir::{AxisId, BinaryOp, DType, Graph, InputRole, Op, OutputRole, ValueId};
use forebay_plan::{Access, Slot, Space};

/// What a slot must be bound to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Want {
    /// A data input.
    Data(String),
    /// A carry input.
    CarryIn(String),
    /// A parameter in the compute type.
    Param(String),
    /// A state, read or updated in place.
    State(String),
    /// A statistic of the whole step.
    Stat(String),
    /// The count of a loss.
    Count(String),
    /// All saved tensors of the layer that stay on the device.
    Saved,
    /// All those that are in the host's memory between the passes.
    Swapped,
    /// All that an earlier part of the layer's backward pass leaves to a later one: that for the input to that for the weights, or what was made early.
    Handed,
    /// The gradient of a carry output.
    GradIn(String),
    /// A scalar.
    Scalar(String),
    /// A carry output.
    CarryOut(String),
    /// A loss's contribution.
    Loss(String),
    /// A loss's value without its weight.
    Metric(String),
    /// The gradient of a carry input.
    CarryGrad(String),
    /// The gradient of a parameter.
    ParamGrad(String),
    /// Something for the host.
    Output(String),
}

/// A graph with its slots.
pub struct Bound {
    /// For the emitter.
    pub interface: Interface,
    /// For each slot of the interface what it stands for.
    pub wants: Vec<Want>,
}

/// The layout of a layer's saved tensors: those of the forward pass in one slot, what of them is swapped in a second, those that a part of the backward pass leaves to the next in another.
#[derive(Clone, Debug, Default)]
pub struct SavedLayout {
    names: Vec<(String, Want, u64)>,
    /// What lies in the slot of what is swapped, in order.
    pub moved: Vec<Moved>,
    /// Bytes of the slot of the forward pass.
    pub bytes: u64,
    /// Bytes of the slot of what is swapped.
    pub swapped: u64,
    /// Bytes of the slot of what parts of the backward pass leave.
    pub handed: u64,
}

/// A tensor in the slot of what is swapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes from the start of the slot.
    pub offset: u64,
    /// Bytes, ragged axes at their bound.
    pub bytes: u64,
    /// Which of them are there; all, where that is not known on the device.
    pub rows: Option<RaggedRows>,
}

/// The rows of a ragged tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaggedRows {
    /// So many times the rows up to their bound.
    pub times: u64,
    /// The bound.
    pub bound: u64,
    /// Rows of an even choice of experts.
    pub even: u64,
    /// Bytes of a row.
    pub bytes: u64,
    /// The group starts, i32[groups + 1]: bytes from the start of the slot of what stays on the device.
    pub starts: u64,
    /// How many groups there are.
    pub groups: u64,
}

impl SavedLayout {
    /// The saved outputs of a forward graph, in order; those of the given names are swapped.
    pub fn new(forward: &Graph, swapped: &[String]) -> SavedLayout {
        let mut layout = SavedLayout::default();
        for output in forward.outputs.iter().filter(|o| o.role == OutputRole::Saved) {
            let want = if swapped.contains(&output.name) { Want::Swapped } else { Want::Saved };
            let bytes = if want == Want::Swapped { &mut layout.swapped } else { &mut layout.bytes };
            layout.names.push((output.name.clone(), want, *bytes));
            *bytes += align(forward.bytes(output.value));
        }
        layout.moved = layout.moved_of(forward);
        layout
    }

    /// What is swapped of the saved outputs of a forward graph.
    fn moved_of(&self, forward: &Graph) -> Vec<Moved> {
        let saved = forward.outputs.iter().filter(|o| o.role == OutputRole::Saved).zip(&self.names);
        let swapped = saved.filter(|(_, (_, want, _))| *want == Want::Swapped);
        let moved = swapped.map(|(output, (_, _, offset))| Moved {
            offset: *offset,
            bytes: align(forward.bytes(output.value)),
            rows: self.rows_of(forward, output.value),
        });
        moved.collect()
    }

    /// The rows of a value, where their number is on the device between the passes. What a grouping makes is wanted whole: elements in no group are behind the last one, and its
    /// inverse has them as well.
    fn rows_of(&self, forward: &Graph, value: ValueId) -> Option<RaggedRows> {
        let ty = forward.ty(value);
        if !ty.dtype.is_float() {
            return None;
        }
        let ragged = forward.ragged_axis(&ty.axes)?;
        let starts = forward.offsets_of(ragged)?;
        let (_, _, at) =
            self.names.iter().find(|(n, want, _)| *want == Want::Saved && *n == forward.node(starts).name)?;
        let dims = forward.dims(&ty.axes);
        let place = dims.iter().position(|(axis, _)| *axis == ragged)?;
        let size = |dims: &[(AxisId, u64)]| dims.iter().map(|d| d.1).product::<u64>();
        Some(RaggedRows {
            times: size(&dims[..place]),
            bound: dims[place].1,
            even: forward.even_size(ragged),
            bytes: size(&dims[place + 1..]) * ty.dtype.bytes(),
            starts: *at,
            groups: forward.size(forward.ragged_parent(ragged)?),
        })
    }

    /// The same with what the first of two parts of a backward pass saves.
    pub fn with_handed(&self, first: &Graph) -> SavedLayout {
        let mut layout = self.clone();
        for output in first.outputs.iter().filter(|o| o.role == OutputRole::Saved) {
            layout.names.push((output.name.clone(), Want::Handed, layout.handed));
            layout.handed += align(first.bytes(output.value));
        }
        layout
    }

    /// Is there a tensor of this name?
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|(known, ..)| known == name)
    }

    /// Does a graph read something that is swapped?
    pub fn reads_swapped(&self, graph: &Graph) -> bool {
        let saved = graph.inputs.iter().filter(|i| i.role == InputRole::Saved);
        saved.map(|i| self.place(&graph.node(i.value).name, false)).any(|(want, ..)| want == Want::Swapped)
    }

    /// The slot, its bytes, and where in it: of what is saved the last of that name, of what is read the first, since what a graph saves again
    /// is for those that follow.
    fn place(&self, name: &str, is_output: bool) -> (Want, u64, u64) {
        let mut of_name = self.names.iter().filter(|(n, ..)| n == name);
        let found = if is_output { of_name.next_back() } else { of_name.next() };
        let (_, want, offset) = found.expect("a backward graph reads what an earlier one saved");
        let bytes = match want {
            Want::Saved => self.bytes,
            Want::Swapped => self.swapped,
            _ => self.handed,
        };
        (want.clone(), bytes, *offset)
    }
}

/// Lays out a graph's inputs and outputs in slots.
pub fn bind(graph: &Graph, saved: &SavedLayout, rows: Rows) -> Bound {
    let mut binder = Binder { slots: vec![], wants: vec![] };
    let outputs: Vec<Home> = graph.outputs.iter().map(|o| binder.output(graph, o, saved)).collect();
    let inputs = graph.inputs.iter().map(|i| binder.input(graph, i.value, i.role, saved)).collect();
    let interface = Interface { slots: binder.slots, inputs, outputs, rows, ..Interface::default() };
    Bound { interface, wants: binder.wants }
}

struct Binder {
    slots: Vec<Slot>,
    wants: Vec<Want>,
}

impl Binder {
    fn slot(&mut self, want: Want, access: Access, bytes: u64) -> Home {
        if let Some(slot) = self.wants.iter().position(|w| *w == want) {
            if self.slots[slot].access != access {
                self.slots[slot].access = Access::Update;
            }
            return Home { slot, offset: 0 };
        }
        let name = want.name();
        self.slots.push(Slot { name, access, space: Space::Device, bytes });
        self.wants.push(want);
        Home { slot: self.slots.len() - 1, offset: 0 }
    }

    fn output(&mut self, graph: &Graph, output: &forebay_ir::Output, saved: &SavedLayout) -> Home {
        let name = output.name.clone();
        let bytes = align(graph.bytes(output.value));
        let want = match output.role {
            OutputRole::Saved => {
                let (want, bytes, offset) = saved.place(&name, true);
                return Home { offset, ..self.slot(want, Access::Write, bytes) };
            }
            OutputRole::Carry => Want::CarryOut(name),
            OutputRole::Loss => Want::Loss(name),
            OutputRole::Metric => Want::Metric(name),
            OutputRole::Stat => Want::Stat(name),
            OutputRole::Count => Want::Count(name),
            OutputRole::State => Want::State(name),
            OutputRole::Output => Want::Output(name),
            OutputRole::Grad => match name.split_once('.') {
                Some(("carry", carry)) => Want::CarryGrad(carry.to_string()),
                Some(("param", param)) => Want::ParamGrad(param.to_string()),
                _ => unreachable!("gradients are of carries and parameters"),
            },
        };
        self.slot(want, Access::Write, bytes)
    }

    fn input(&mut self, graph: &Graph, value: ValueId, role: InputRole, saved: &SavedLayout) -> Option<Home> {
        let name = graph.node(value).name.clone();
        let bytes = align(graph.bytes(value));
        let want = match role {
            InputRole::Runtime if name == "rng" => return None,
            InputRole::Saved => {
                let (want, bytes, offset) = saved.place(&name, false);
                return Some(Home { offset, ..self.slot(want, Access::Read, bytes) });
            }
            InputRole::Accumulator => {
                // The accumulator is the output of the same name, in place.
                let slot = graph.outputs.iter().find(|o| accumulator_name(o.role, &o.name) == name);
                let output = slot.expect("an accumulator belongs to an output");
                let home = self.output(graph, output, saved);
                self.slots[home.slot].access = Access::Update;
                return Some(home);
            }
            InputRole::Data => Want::Data(name),
            InputRole::Carry => Want::CarryIn(name),
            InputRole::Param => Want::Param(name),
            InputRole::State => Want::State(name),
            InputRole::Stat => Want::Stat(name),
            InputRole::Count => Want::Count(name),
            InputRole::Grad => Want::GradIn(name.strip_prefix("grad.").unwrap_or(&name).to_string()),
            InputRole::Runtime => Want::Scalar(name),
        };
        Some(self.slot(want, Access::Read, bytes))
    }
}

impl Want {
    /// Do other layers, or other stages, wait for what a program writes here?
    pub fn is_awaited(&self) -> bool {
        matches!(self, Want::CarryOut(_) | Want::CarryGrad(_))
    }

    fn name(&self) -> String {
        match self {
            Want::Data(n) => format!("data.{n}"),
            Want::CarryIn(n) => format!("in.{n}"),
            Want::Param(n) => format!("param.{n}"),
            Want::State(n) => format!("state.{n}"),
            Want::Stat(n) => format!("stat.{n}"),
            Want::Count(n) => format!("count.{n}"),
            Want::Saved => "saved".into(),
            Want::Swapped => "swapped".into(),
            Want::Handed => "handed".into(),
            Want::GradIn(n) => format!("grad_in.{n}"),
            Want::Scalar(n) => format!("scalar.{n}"),
            Want::CarryOut(n) => format!("out.{n}"),
            Want::Loss(n) => format!("loss.{n}"),
            Want::Metric(n) => format!("metric.{n}"),
            Want::CarryGrad(n) => format!("grad.in.{n}"),
            Want::ParamGrad(n) => format!("grad.param.{n}"),
            Want::Output(n) => format!("output.{n}"),
        }
    }
}

fn accumulator_name(role: OutputRole, name: &str) -> String {
    let role = match role {
        OutputRole::Stat => "stat",
        OutputRole::Count => "count",
        _ => "grad",
    };
    format!("acc.{role}.{name}")
}

/// The graph with the named outputs added to what is there already.
pub fn accumulating(graph: &Graph, outputs: &[(OutputRole, String)]) -> Graph {
    let mut graph = graph.clone();
    for i in 0..graph.outputs.len() {
        let output = graph.outputs[i].clone();
        if !outputs.contains(&(output.role, output.name.clone())) {
            continue;
        }
        let ty = graph.ty(output.value).clone();
        let axes = ty.axes.clone();
        let so_far = graph.add_input(&accumulator_name(output.role, &output.name), ty, InputRole::Accumulator);
        let name = format!("{}.sum", output.name);
        let sum = graph.add_ordered(Op::Binary(BinaryOp::Add), &[so_far, output.value], &axes, &name);
        graph.outputs[i].value = sum.expect("both have the output's type");
    }
    graph
}

/// Parameter gradients that are sums, and statistics, are kept in the wide type; those of the names `single` are no sums, and stay as they are.
pub fn widen(graph: &mut Graph, wide: DType, single: &[String]) {
    for i in 0..graph.outputs.len() {
        let output = graph.outputs[i].clone();
        let kept = output.role == OutputRole::Grad && output.name.starts_with("param.");
        if kept && graph.ty(output.value).dtype != wide && !single.contains(&output.name) {
            let name = format!("{}.wide", output.name);
            graph.outputs[i].value = graph.add(Op::Cast(wide), &[output.value], &name).expect("floats can be cast");
        }
    }
}

/// The graph with the outputs of these roles only, and without the inputs that they do not need.
pub fn restrict(graph: &Graph, roles: &[OutputRole]) -> Graph {
    let mut graph = graph.clone();
    graph.outputs.retain(|o| roles.contains(&o.role));
    graph.drop_unused_inputs();
    graph
}
