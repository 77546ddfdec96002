//! Graph → program: which nodes run together as one kernel, where each value lives, and the instructions.
//!
//! ```text
//! %n = mul %x, %x                          region  load x · mul · row_sum · … · store y
//! %s = sum %n over {d}            ==>      matmul  attention.q  [2048×256]·[256×256]
//! %y = mul %x, %r                          …
//! %q = contract %y, %wq over {d}
//! ```
//!
//! * [`lookups`] rewrites the graph so that what is looked up can be read where it is needed.
//! * [`units`] puts nodes into *units*: one kernel each; elementwise and row-reduction work that shares an iteration space becomes one region.
//! * [`places`] says which buffer a value is in, and how: renames, splits, slices and the like are other strides over the same data.
//! * [`region`], [`matmul`], [`attention`], [`linear`], [`index`] and [`ranks`] write the kernels.
//! * [`epilogue`] joins elementwise regions with the matrix products before them.
//! * [`frame`] gives the buffers that live within the program their offsets, by [`pack`].
//!
//! Requires: a verified graph. Keeps: values bit for bit (regions round where the graph rounds). One stream.

mod arrivals;
mod attention;
mod epilogue;
mod frame;
mod index;
mod linear;
mod lookups;
mod matmul;
mod pack;
mod places;
mod ranks;
mod region;
mod standalone;
mod units;

pub use frame::place as place_frame;
pub use pack::{Interval, Packing, max_live, pack, pack_briefly, pack_within};
pub use standalone::standalone;

use crate::simplify::simplify;
use forebay_ir::fused::expand_all;
use forebay_ir::{Graph, Op, ValueId};
use forebay_plan as plan;
use places::Places;
use units::{UnitKind, Units};

/// Buffers start at multiples of this, in bytes: a cache line.
pub const ALIGN: u64 = 64;

/// Where an input or output of the graph lives: in a slot of the program, this many bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Index into [`Interface::slots`].
    pub slot: usize,
    /// Bytes; a multiple of [`ALIGN`].
    pub offset: u64,
}

/// The rows of a micro-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// On this rank.
    pub rows: u64,
    /// On all data-parallel ranks.
    pub per_micro_batch: u64,
    /// The first one of this rank.
    pub first_row: plan::Affine,
}

impl Rows {
    /// All rows on one rank.
    pub fn whole(rows: u64) -> Rows {
        Rows { rows, per_micro_batch: rows, first_row: plan::Affine::default() }
    }
}

/// How a graph's inputs and outputs are laid out in the program's slots. The emitter adds the slot `frame`.
///
/// An output may have the home of an input of the same type (in place): then every other read of that input happens before.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// The slots, without the frame.
    pub slots: Vec<plan::Slot>,
    /// One for each of the graph's inputs; `None` for the random key, which the program makes itself.
    pub inputs: Vec<Option<Home>>,
    /// One for each of the graph's outputs.
    pub outputs: Vec<Home>,
    /// Rows of a micro-batch, for random keys.
    pub rows: Rows,
    /// Whether work is meant to run beside exchanges.
    pub exchanges: Exchanges,
    /// Which nodes may be one kernel.
    pub joins: Joins,
}

/// Which nodes may be one kernel. Values are the same bits either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Joins {
    /// Those that share an iteration space, and elementwise work with the product before it.
    #[default]
    All,
    /// None: each elementwise node, look-up, reduction and product is a kernel of its own whose result is stored. To see what joining is worth, and which join a
    /// mistake is in. What has one kernel by its nature (attention, what adds to memory) keeps it, and what depends on positions alone is still computed where it is read.
    Off,
}

/// When the exchanges of a program run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exchanges {
    /// In turn with its work: kernels are formed for the least memory traffic.
    #[default]
    InTurn,
    /// Beside its work: no kernel makes an exchange wait for another one that it does not need.
    BesideWork,
}

/// A program and what its memory needs.
#[derive(Clone, Debug)]
pub struct Emitted {
    /// The program; its last slot is the frame.
    pub program: plan::Program,
    /// Maximum over the instructions of the frame bytes that are live: the least that any placement needs.
    pub frame_live: u64,
}

/// Emits a graph as a program.
pub fn emit(graph: &Graph, interface: &Interface) -> Emitted {
    let graph = lookups::brought_together(without_no_ops(&ranks::looked_up(&bodies(graph))));
    let graph = &offsets_first(inputs_not_passed_on(graph));
    let units = Units::new(graph, interface);
    let places = Places::new(graph, interface, &units);
    let mut emitter = Emitter { graph, places, instructions: vec![], row_groups: vec![] };
    emitter.random_keys(interface);
    for unit in units.order() {
        emitter.unit(&units, unit);
    }
    emitter.copy_outputs(interface);
    emitter.finish(interface)
}

/// The graph with the bodies of fused ops that have no kernel of their own: regions do them in one pass.
fn bodies(graph: &Graph) -> Graph {
    if !graph.nodes.iter().any(|n| matches!(n.op, Op::Fused(_))) {
        return graph.clone();
    }
    let mut graph = expand_all(graph, &attention::has_kernel(graph));
    simplify(&mut graph);
    graph
}

/// The graph with the operand in the place of each `detach`, which means nothing once gradients have been taken, and of each `reorder` of what is
/// joined for it alone, which can be joined in that order.
fn without_no_ops(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    let users = graph.users();
    let alone = |graph: &Graph, v: ValueId| users[v.index()].len() == 1 && !graph.outputs.iter().any(|o| o.value == v);
    let mut same: Vec<ValueId> = graph.values().collect();
    for i in 0..graph.nodes.len() {
        let node = &mut graph.nodes[i];
        node.operands.iter_mut().for_each(|o| *o = same[o.index()]);
        if node.op == Op::Detach {
            same[i] = node.operands[0];
        } else if node.op == Op::Reorder {
            let (joined, order) = (node.operands[0], node.ty.axes.clone());
            if matches!(graph.node(joined).op, Op::Stack(_) | Op::Concat { .. }) && alone(&graph, joined) {
                graph.nodes[joined.index()].ty.axes = order;
                same[i] = joined;
            }
        }
    }
    graph.outputs.iter_mut().for_each(|o| o.value = same[o.value.index()]);
    graph.prune();
    graph
}

/// The graph in which an output that is an input, or a view of one, is copied by a node of its own: so that the copy is ordered among the other
/// reads of the input, and comes before what is written over it.
fn inputs_not_passed_on(mut graph: Graph) -> Graph {
    for i in 0..graph.outputs.len() {
        let value = graph.outputs[i].value;
        if graph.node(units::source(&graph, value)).op == Op::Input {
            let (ty, name) = (graph.ty(value).clone(), format!("{}.passed", graph.node(value).name));
            graph.outputs[i].value = graph.push(Op::Reorder, vec![value], ty, &name);
        }
    }
    graph
}

/// The graph with its inputs first, and the group starts of each ragged axis right behind what they are computed from: everything ragged needs
/// them.
fn offsets_first(mut graph: Graph) -> Graph {
    let mut order: Vec<ValueId> = graph.inputs.iter().map(|i| i.value).collect();
    let mut placed = vec![false; graph.nodes.len()];
    let starts: Vec<ValueId> = graph.values().filter(|&v| matches!(graph.node(v).op, Op::Offsets { .. })).collect();
    let ready = |v: ValueId, placed: &[bool]| graph.node(v).operands.iter().all(|o| placed[o.index()]);
    order.iter().for_each(|v| placed[v.index()] = true);
    let place_starts = |order: &mut Vec<ValueId>, placed: &mut Vec<bool>| {
        for &start in &starts {
            if !placed[start.index()] && ready(start, placed) {
                placed[start.index()] = true;
                order.push(start);
            }
        }
    };
    place_starts(&mut order, &mut placed);
    for value in graph.values() {
        if !placed[value.index()] {
            placed[value.index()] = true;
            order.push(value);
            place_starts(&mut order, &mut placed);
        }
    }
    let mut moved = vec![ValueId(0); order.len()];
    order.iter().enumerate().for_each(|(new, old)| moved[old.index()] = ValueId(new as u32));
    let nodes = std::mem::take(&mut graph.nodes);
    graph.nodes = order.iter().map(|old| nodes[old.index()].clone()).collect();
    graph.nodes.iter_mut().flat_map(|n| &mut n.operands).for_each(|o| *o = moved[o.index()]);
    graph.inputs.iter_mut().for_each(|i| i.value = moved[i.value.index()]);
    graph.outputs.iter_mut().for_each(|o| o.value = moved[o.value.index()]);
    graph.offsets.iter_mut().for_each(|(_, v)| *v = moved[v.index()]);
    graph
}

/// The state of an emission.
struct Emitter<'a> {
    graph: &'a Graph,
    places: Places<'a>,
    instructions: Vec<plan::Instruction>,
    /// For ragged axes: the buffer that holds each row's group.
    row_groups: Vec<(forebay_ir::AxisId, u32)>,
}

impl Emitter<'_> {
    fn push(&mut self, name: &str, kernel: plan::Kernel) {
        self.instructions.push(plan::Instruction {
            name: name.to_string(),
            stream: 0,
            waits: vec![],
            records: None,
            captured: false,
            kernel,
        });
    }

    fn random_keys(&mut self, interface: &Interface) {
        for (input, home) in self.graph.inputs.iter().zip(&interface.inputs) {
            if home.is_none() {
                let place = self.places.dest(input.value);
                let Rows { rows, per_micro_batch, first_row } = interface.rows.clone();
                let key = plan::Kernel::RandomKey { out: place.buffer, rows, per_micro_batch, first_row };
                self.push(&self.name(input.value), key);
            }
        }
    }

    fn name(&self, value: ValueId) -> String {
        self.graph.node(value).name.clone()
    }

    fn unit(&mut self, units: &Units, unit: usize) {
        match &units.list[unit].kind {
            UnitKind::Region(cluster) => self.region(units, cluster),
            UnitKind::Kernel { value, accumulate } => self.kernel(*value, *accumulate),
            UnitKind::Attention(members) => self.attention(members),
        }
    }

    fn kernel(&mut self, value: ValueId, accumulate: Option<ValueId>) {
        match &self.graph.node(value).op {
            Op::Contract { over } => self.contract(value, over, accumulate),
            Op::Reduce { kind, over } => self.reduce(value, *kind, over, accumulate),
            Op::Scan { axis, direction } => self.scan(value, *axis, *direction),
            Op::LinearAttention(op) => self.linear_attention(value, op),
            Op::ScatterAdd { axis, over } => self.scatter_add(value, *axis, over, accumulate),
            Op::TopK { axis, into } => self.top_k(value, *axis, *into),
            Op::Group { ragged } => self.group(value, *ragged),
            Op::Offsets { parent, .. } => self.offsets(value, *parent),
            Op::Invert => self.invert(value),
            Op::Comm(comm) => self.comm(value, &comm.clone()),
            Op::Random { site, batch } => self.random(value, *site, *batch),
            Op::Stack(_) | Op::Concat { .. } => self.join(value),
            Op::Pad { from, into, start } => self.pad(value, *from, *into, *start),
            op => unreachable!("`{}` is never a kernel of its own", op.row().name),
        }
    }

    /// Values that are outputs but live somewhere else (views, values with two homes, what would have been written too early) are copied at the end.
    fn copy_outputs(&mut self, interface: &Interface) {
        for (output, home) in self.graph.outputs.iter().zip(&interface.outputs) {
            if !self.places.is_home(output.value, *home) {
                let to = self.places.home_place(output.value, *home);
                self.copy(output.value, to, &format!("{}.copy", self.name(output.value)));
            }
        }
    }

    fn finish(self, interface: &Interface) -> Emitted {
        let mut slots = interface.slots.clone();
        let frame = slots.len() as u32;
        let (mut buffers, mut instructions) = (self.places.buffers, self.instructions);
        if interface.joins == Joins::All {
            epilogue::join(&mut instructions, &mut buffers, frame);
        }
        let layout = frame::place(&mut buffers, &instructions, frame, |at| at as u32);
        slots.push(plan::Slot {
            name: "frame".into(),
            access: plan::Access::Scratch,
            space: plan::Space::Device,
            bytes: layout.bytes,
        });
        let program = plan::Program {
            name: self.graph.name.clone(),
            slots,
            buffers,
            streams: vec![plan::StreamKind::Cube],
            events: 0,
            instructions,
        };
        Emitted { program, frame_live: layout.live }
    }
}

/// The plan's name for a dtype.
pub fn dtype(dtype: forebay_ir::DType) -> plan::DType {
    match dtype {
        forebay_ir::DType::F64 => plan::DType::F64,
        forebay_ir::DType::F32 => plan::DType::F32,
        forebay_ir::DType::BF16 => plan::DType::Bf16,
        forebay_ir::DType::I32 => plan::DType::I32,
        forebay_ir::DType::Bool => plan::DType::Bool,
    }
}

/// `bytes` rounded up to a multiple of [`ALIGN`].
pub fn align(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGN) * ALIGN
}
