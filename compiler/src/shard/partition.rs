//! The walk over the graph: each value in the layout that its op gives it, and in others where they are wanted.

use super::axes;
use super::balance::Balance;
use super::divisors::{divisors, listed};
use super::hoist;
use super::layout::{Form, Layout};
use super::merged::Merged;
use super::mesh::{Dense, Mesh, Sparse};
use super::strategy::{CpAlgo, EtpGather, Strategy, StrategyError};
use forebay_ir::{AxisId, Comm, CommKind, DType, Extent, Graph, InputRole, Op, OutputRole, ReduceKind, Type, ValueId};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// The graph of every rank, and what lies outside of it.
#[derive(Clone, Debug)]
pub struct Sharded {
    /// The graph that each rank runs. Its inputs and outputs are those of the whole graph, in the same order.
    pub graph: Graph,
    /// For each input how it lies.
    pub inputs: Vec<Layout>,
    /// For each `Param` input, in order, the dimensions over which its gradient is a sum, data parallelism included.
    pub gradient_sums: Vec<Vec<u32>>,
    /// For each output how it lies. Only losses, metrics, statistics and counts may be sums; data parallelism is not counted.
    pub outputs: Vec<Layout>,
    /// The collectives, and why they are there.
    pub notes: Vec<Note>,
    /// Do rows of experts go in parts of their width?
    pub rows_in_parts: bool,
}

/// Why a collective is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// The value that is converted, in the whole graph.
    pub value: String,
    /// What is done.
    pub collective: &'static str,
    /// Mesh dimensions.
    pub group: Vec<u32>,
    /// How it lay before, and how it lies then.
    pub layouts: (String, String),
    /// The value for which it is wanted.
    pub wanted_by: String,
    /// Bytes that a rank sends to others in the forward pass of a micro-batch. Of the rows of experts: when each expert gets as many.
    pub bytes: u64,
}

/// Shards a segment's forward graph (or any other graph of the model).
///
/// # Errors
/// When an axis does not divide, or the graph does something that cannot be shared.
pub fn shard(graph: &Graph, mesh: &Mesh, strategy: &Strategy) -> Result<Sharded, StrategyError> {
    shard_with_statistics(graph, mesh, strategy, FxHashMap::default())
}

/// The same, with values that are means over data-parallel ranks: for each the mesh dimensions.
pub(super) fn shard_with_statistics(
    graph: &Graph,
    mesh: &Mesh,
    strategy: &Strategy,
    statistics: FxHashMap<ValueId, Vec<u32>>,
) -> Result<Sharded, StrategyError> {
    let params = axes::parameters(graph, mesh)?;
    let mut partitioner = Partitioner::new(graph, mesh, strategy, params);
    partitioner.statistics = statistics;
    partitioner.run()?;
    partitioner.finish()
}

/// Rows of a ragged axis on the ranks.
pub(super) struct Rows {
    /// The dimensions that cut the tokens that they come from.
    pub tokens: Vec<u32>,
    /// Rows of all groups, from this rank's tokens.
    pub local: AxisId,
    /// Rows of own groups: the axis, and the counts that [`CommKind::Dispatch`] takes.
    pub owned: Option<(AxisId, ValueId)>,
}

pub(super) struct Partitioner<'a> {
    pub whole: &'a Graph,
    pub mesh: &'a Mesh,
    /// The dimensions in which attention cuts heads instead of positions.
    pub heads_for_positions: Vec<u32>,
    pub max_rows: Option<u64>,
    pub local: Graph,
    /// For each value of the whole graph the layouts in which it is there; the first is its own.
    pub forms: Vec<Vec<Form>>,
    /// (axis, dimensions that cut it) → the axis of the local graph.
    pub cut_axes: FxHashMap<(AxisId, Vec<u32>), AxisId>,
    pub rows: FxHashMap<AxisId, Rows>,
    /// Does a gradient flow through the value?
    pub trained: Vec<bool>,
    pub weights: Vec<Option<ValueId>>,
    params: BTreeMap<ValueId, Layout>,
    /// For each input how it lies.
    inputs: Vec<Layout>,
    /// Axes made of others and of a row's positions, and of those among them the ones whose elements are in the ranks' own order where positions are cut.
    pub merged: Merged,
    /// How positions lie that travelling keys belong to.
    pub balance: Balance,
    /// The dimensions that cut positions between ops, outermost first.
    pub home: Vec<u32>,
    /// The dimensions of experts.
    pub expert_dims: Vec<u32>,
    pub expert_width_dims: Vec<u32>,
    /// The dimensions whose ranks send parts of experts' rows, not whole ones.
    pub row_part_dims: Vec<u32>,
    /// Are there rows that are sent so?
    pub rows_in_parts: bool,
    /// The collectives so far, each with the local value that it makes.
    notes: Vec<(ValueId, Note)>,
    /// Values that are means over data-parallel ranks.
    statistics: FxHashMap<ValueId, Vec<u32>>,
    /// The value that is being made, for notes.
    pub current: ValueId,
    users: Vec<Vec<ValueId>>,
}

impl<'a> Partitioner<'a> {
    fn new(
        whole: &'a Graph,
        mesh: &'a Mesh,
        strategy: &Strategy,
        params: BTreeMap<ValueId, Layout>,
    ) -> Partitioner<'a> {
        let mut local = Graph::new(whole.name.clone());
        local.mesh = mesh.dims.clone();
        local.axes = whole.axes.clone();
        let mut home = mesh.dense(Dense::Cp);
        if strategy.sp {
            home.extend(mesh.dense(Dense::Tp));
        }
        Partitioner {
            whole,
            mesh,
            heads_for_positions: match strategy.cp_algo {
                CpAlgo::Gather | CpAlgo::Ring => vec![],
                CpAlgo::Ulysses | CpAlgo::Hybrid => mesh.heads(),
            },
            max_rows: strategy.max_tokens_per_rank,
            local,
            forms: vec![vec![]; whole.nodes.len()],
            cut_axes: FxHashMap::default(),
            rows: FxHashMap::default(),
            trained: trained(whole),
            weights: axes::weights(whole),
            params,
            inputs: vec![],
            merged: Merged::new(whole, !mesh.ring().is_empty()),
            balance: Balance::new(whole, mesh.ring(), mesh.ranks(&mesh.ring())),
            home,
            expert_dims: mesh.sparse(Sparse::Ep),
            expert_width_dims: mesh.sparse(Sparse::Etp),
            row_part_dims: match strategy.etp_gather {
                EtpGather::Before => vec![],
                EtpGather::After => mesh.sparse(Sparse::Etp),
            },
            rows_in_parts: false,
            notes: vec![],
            statistics: FxHashMap::default(),
            current: ValueId(0),
            users: whole.users(),
        }
    }

    fn run(&mut self) -> Result<(), StrategyError> {
        for value in self.whole.values() {
            self.current = value;
            match self.whole.node(value).op {
                Op::Input => self.input(value)?,
                _ => self.apply(value)?,
            }
            if let Some(group) = self.statistics.remove(&value) {
                self.mean_over(value, &group);
            }
        }
        Ok(())
    }

    fn input(&mut self, value: ValueId) -> Result<(), StrategyError> {
        let role = self.whole.inputs.iter().find(|i| i.value == value).expect("inputs are declared").role;
        let layout = match role {
            InputRole::Param => self.params[&value].clone(),
            InputRole::Carry => self.carry_layout(value)?,
            _ => Layout::default(),
        };
        let node = self.whole.node(value);
        self.inputs.push(layout.clone());
        let ty = self.local_type(&node.ty, &layout);
        let local = self.local.add_input(&node.name.clone(), ty, role);
        self.forms[value.index()].push(Form { layout, value: local });
        if role == InputRole::Data {
            self.positions_first(value)?;
        }
        Ok(())
    }

    /// Ranks that share the positions of a row start with their own; the whole row stays at hand.
    fn positions_first(&mut self, value: ValueId) -> Result<(), StrategyError> {
        let axes = &self.whole.ty(value).axes;
        let context = self.mesh.dense(Dense::Cp);
        let Some(positions) = axes.iter().copied().find(|&a| self.is_positions(a)).filter(|_| !context.is_empty())
        else {
            return Ok(());
        };
        self.carry_layout(value)?;
        self.form(value, &Layout::default().with(positions, &context))?;
        self.forms[value.index()].swap(0, 1);
        Ok(())
    }

    /// Between segments positions are cut, and nothing else is.
    fn carry_layout(&self, value: ValueId) -> Result<Layout, StrategyError> {
        let ty = self.whole.ty(value);
        let Some(seq) = ty.axes.iter().copied().find(|&a| self.is_positions(a)) else { return Ok(Layout::default()) };
        let n = self.whole.size(seq);
        let help = match self.mesh.dense(Dense::Cp).is_empty() {
            true => "a row has as many positions as `seq` says; sp=0 leaves them whole within tp".to_string(),
            false => {
                let works: Vec<u64> = divisors(n).into_iter().take_while(|d| *d <= 1024).collect();
                format!("use cp = {}", listed(&works))
            }
        };
        self.check_cut(seq, &self.home, Some(help))?;
        Ok(Layout::default().with(seq, &self.home))
    }

    /// Can positions be cut so?
    pub fn check_cut(&self, positions: AxisId, dims: &[u32], help: Option<String>) -> Result<(), StrategyError> {
        let (n, ranks) = (self.whole.size(positions), self.mesh.ranks(dims));
        if n.is_multiple_of(ranks) {
            return Ok(());
        }
        let (name, over) = (&self.whole.axis(positions).name, self.mesh.describe(dims));
        let message = format!("axis `{name}` has {n} positions, which do not divide over {over} = {ranks} ranks");
        Err(StrategyError::new(message, help))
    }

    /// Is it the axis of a row's positions?
    pub fn is_positions(&self, axis: AxisId) -> bool {
        axes::is_positions(self.whole, axis)
    }

    /// Makes a value the mean of what data-parallel ranks have. Each goes on with it for itself: its loss is one of as many terms.
    fn mean_over(&mut self, value: ValueId, group: &[u32]) {
        let Form { layout, value: own } = self.forms[value.index()][0].clone();
        let (name, ty) = (self.local.node(own).name.clone(), self.local.ty(own).clone());
        let share = self.local.constant(1.0 / self.mesh.ranks(group) as f64, ty.dtype);
        let op = Op::Binary(forebay_ir::BinaryOp::Mul);
        let scaled = self.local.add_ordered(op, &[own, share], &ty.axes, &format!("{name}.share")).expect("floats");
        let bytes = 2 * self.local.bytes(own);
        let comm = Comm { group: group.to_vec(), kind: CommKind::AllReduce(ReduceKind::Sum) };
        let layouts = ("of each data-parallel rank".into(), "their mean".into());
        let mean = self.send(value, comm, &[scaled], layouts, bytes - bytes / self.mesh.ranks(group));
        let mean = match self.trained[value.index()] {
            true => self.collective(CommKind::Vary, group, &[mean], &format!("{name}.varied")),
            false => mean,
        };
        self.forms[value.index()] = vec![Form { layout, value: mean }];
    }

    /// What reads a value in the whole graph.
    pub fn readers(&self, value: ValueId) -> &[ValueId] {
        &self.users[value.index()]
    }

    /// The layout that its op gave a value.
    pub fn own(&self, value: ValueId) -> &Layout {
        &self.forms[value.index()][0].layout
    }

    /// The local axis for an axis that is cut so.
    pub fn axis(&mut self, axis: AxisId, layout: &Layout) -> AxisId {
        if let Some(rows) = self.rows.get(&axis) {
            let parent = self.whole.ragged_parent(axis).expect("ragged axes have parents");
            return match layout.of(parent) {
                [] => rows.local,
                _ => rows.owned.as_ref().expect("rows are dispatched before they are used").0,
            };
        }
        self.cut_axis(axis, layout.of(axis))
    }

    /// The local axis for an axis that these dimensions cut.
    pub fn cut_axis(&mut self, axis: AxisId, dims: &[u32]) -> AxisId {
        if dims.is_empty() {
            return axis;
        }
        if let Some(known) = self.cut_axes.get(&(axis, dims.to_vec())) {
            return *known;
        }
        let size = self.whole.size(axis) / self.mesh.ranks(dims);
        let name = format!("{}_{}", self.whole.axis(axis).name, self.mesh.named(dims, "_"));
        let label = self.whole.axis(axis).label.clone();
        let new = self.local.add_axis(&name, Extent::Fixed(size), label);
        self.cut_axes.insert((axis, dims.to_vec()), new);
        new
    }

    /// A type on the ranks.
    pub fn local_type(&mut self, ty: &Type, layout: &Layout) -> Type {
        let axes: Vec<AxisId> = ty.axes.iter().map(|&a| self.axis(a, layout)).collect();
        Type::new(ty.dtype, axes)
    }

    /// Bytes of a value on a rank; rows of experts as many as there are when each expert gets as many.
    pub fn bytes(&self, value: ValueId, layout: &Layout) -> u64 {
        let rows = self.whole.ragged_axis(&self.whole.ty(value).axes);
        // Rows are as many where they go to as where they come from, when each expert gets as many.
        let Some((axis, rows)) = rows.and_then(|axis| Some((axis, self.rows.get(&axis)?))) else {
            let ranks: u64 = layout.cut.values().map(|dims| self.mesh.ranks(dims)).product();
            return self.whole.bytes(value) / ranks.max(1);
        };
        let parent = self.whole.ragged_parent(axis);
        let width = layout.cut.iter().filter(|(a, _)| **a != axis && Some(**a) != parent);
        let ranks: u64 = width.map(|(_, dims)| self.mesh.ranks(dims)).product();
        self.whole.bytes(value) / (ranks * self.mesh.ranks(&rows.tokens)).max(1)
    }

    /// A collective that sends something, with a note of why. Bytes are those that a rank sends; `layouts` say how the value lies before and after.
    pub fn send(
        &mut self,
        value: ValueId,
        comm: Comm,
        operands: &[ValueId],
        layouts: (String, String),
        bytes: u64,
    ) -> ValueId {
        let node = |v: ValueId| self.whole.node(v).name.clone();
        let note = Note {
            value: node(value),
            collective: comm.name(),
            group: comm.group.clone(),
            layouts,
            wanted_by: node(self.current),
            bytes,
        };
        let local = self.collective(comm.kind, &comm.group, operands, &format!("{}.{}", note.value, note.collective));
        self.notes.push((local, note));
        local
    }

    pub fn collective(&mut self, kind: CommKind, group: &[u32], operands: &[ValueId], name: &str) -> ValueId {
        let comm = Comm { group: group.to_vec(), kind };
        self.local
            .add(Op::Comm(Box::new(comm)), operands, name)
            .unwrap_or_else(|e| panic!("a collective of `{name}`: {e}"))
    }

    /// The rank's number in a group; one node for each group.
    pub fn coordinate(&mut self, group: &[u32]) -> ValueId {
        let wanted = Op::Comm(Box::new(Comm { group: group.to_vec(), kind: CommKind::Coordinate }));
        match self.local.values().find(|&v| self.local.node(v).op == wanted) {
            Some(known) => known,
            None => self.collective(CommKind::Coordinate, group, &[], &format!("rank.{}", self.mesh.named(group, "."))),
        }
    }

    /// A value as an operand of work that differs over these dimensions: what is the same on their ranks from here on is not.
    pub fn varied(&mut self, value: ValueId, form: &Form, dims: &[u32]) -> ValueId {
        let has = form.layout.dims();
        let mut missing: Vec<u32> = dims.iter().copied().filter(|d| !has.contains(d)).collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() || !self.trained[value.index()] || !self.local.ty(form.value).dtype.is_float() {
            return form.value;
        }
        let name = format!("{}.varied", self.local.node(form.value).name);
        self.collective(CommKind::Vary, &missing, &[form.value], &name)
    }

    fn finish(mut self) -> Result<Sharded, StrategyError> {
        let mut outputs = vec![];
        for output in &self.whole.outputs {
            self.current = output.value;
            let own = self.own(output.value).clone();
            let wanted = match output.role {
                OutputRole::Carry => self.carry_layout(output.value)?,
                OutputRole::Loss | OutputRole::Metric | OutputRole::Stat | OutputRole::Count => {
                    Layout { partial: own.partial.clone(), ..Layout::default() }
                }
                _ => Layout::default(),
            };
            let value = self.form(output.value, &wanted)?.value;
            outputs.push(wanted);
            self.local.add_output(output.name.clone(), value, output.role);
        }
        let mut graph = self.local;
        let hoisted = hoist::hoist(&mut graph);
        let notes = self.notes.into_iter().filter(|(value, _)| hoisted.live[value.index()]);
        let notes = notes.map(|(value, note)| match hoisted.gathered.contains(&value) {
            true => Note { collective: "all_gather", ..note },
            false => note,
        });
        let notes = notes.collect();
        let data = self.mesh.dense(Dense::Dp);
        let whole_params = self.whole.inputs.iter().filter(|i| i.role == InputRole::Param);
        let gradient_sums = whole_params.zip(hoisted.varied).map(|(input, varied)| {
            let cut = self.params[&input.value].dims();
            let mut dims: Vec<u32> = data.iter().copied().filter(|d| !cut.contains(d)).chain(varied).collect();
            dims.sort_unstable();
            dims.dedup();
            dims
        });
        let gradient_sums = gradient_sums.collect();
        let rows_in_parts = self.rows_in_parts;
        Ok(Sharded { graph, inputs: self.inputs, gradient_sums, outputs, notes, rows_in_parts })
    }
}

/// Values that depend on a parameter or on what another segment made, along floats.
fn trained(graph: &Graph) -> Vec<bool> {
    let mut trained = vec![false; graph.nodes.len()];
    for input in &graph.inputs {
        let flows = matches!(input.role, InputRole::Param | InputRole::Carry);
        trained[input.value.index()] = flows && graph.ty(input.value).dtype.is_float();
    }
    for value in graph.values() {
        let node = graph.node(value);
        let any = node.operands.iter().any(|o| trained[o.index()]);
        trained[value.index()] |= any && node.ty.dtype.is_float() && node.op != Op::Detach;
    }
    trained
}

/// Can a sum over ranks wait until after the op? Its operands that are terms of sums: all of them, or one that the op is linear in.
pub(crate) fn is_linear(graph: &Graph, value: ValueId, operand: usize) -> bool {
    use forebay_ir::{BinaryOp, UnaryOp};
    let node = graph.node(value);
    if !node.ty.dtype.is_float() && node.ty.dtype != DType::I32 {
        return false;
    }
    match &node.op {
        Op::Unary(UnaryOp::Neg) | Op::Reduce { kind: ReduceKind::Sum, .. } => true,
        Op::Binary(BinaryOp::Mul) => true,
        Op::Binary(BinaryOp::Div) => operand == 0 && node.ty.dtype.is_float(),
        Op::Cast(to) => to.is_float() && graph.ty(node.operands[0]).dtype.is_float(),
        Op::Broadcast(_) | Op::Reorder | Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } => true,
        Op::Take { .. } | Op::Slice { .. } | Op::Pad { .. } => true,
        Op::Gather { .. } | Op::ScatterAdd { .. } => operand == 0,
        _ => false,
    }
}
