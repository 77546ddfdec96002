//! A graph under construction, and how the checker adds to it.

use super::Checker;
use super::axes::{Ax, AxisInfo, Size};
use super::value::{Checked, Outside, Reported, Tensor};
use crate::ast::Span;
use forebay_ir::{Axis, AxisId, DType, Extent, Graph, InputRole, Op, Type, ValueId, infer};
use indexmap::IndexMap;
use rustc_hash::FxHashMap;

/// What a graph is for: which names may be used in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The computation of a layer.
    Forward,
    /// What happens to states after a step.
    Update,
    /// The counts of losses.
    Counts,
}

/// The slots of `group(chosen, e, r)`.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    pub chosen: Tensor,
    /// Slot numbers in group order: `[e, r]`.
    pub rows: Tensor,
    pub parent: Ax,
    pub ragged: Ax,
    /// The row of each slot, once a combine needed it.
    pub inverse: Option<Tensor>,
    /// The element of x for each row, by the axes of `chosen` that x has.
    pub indices: Vec<(Vec<Ax>, Tensor)>,
}

/// The name of a node. Names from the source are taken before those made up for intermediate values.
#[derive(Clone, Debug)]
pub(super) struct NodeName {
    pub text: String,
    pub from_source: bool,
}

/// A loss's contribution.
#[derive(Clone, Debug)]
pub(super) struct LossParts {
    pub loss: ValueId,
    pub metric: ValueId,
}

/// A graph under construction. Its inputs, outputs and final names are decided at the end ([`super::finish`]).
#[derive(Debug)]
pub(super) struct Builder {
    pub number: u32,
    pub purpose: Purpose,
    pub graph: Graph,
    axis_ids: FxHashMap<Ax, AxisId>,
    /// For each axis of the graph the language's.
    pub axes: Vec<Ax>,
    pub names: Vec<NodeName>,
    /// The inputs made so far.
    pub imports: IndexMap<Outside, ValueId>,
    literals: FxHashMap<(u64, DType), Tensor>,
    pub rows: Vec<Rows>,
    /// Random ops so far.
    pub sites: u32,
    pub losses: IndexMap<String, LossParts>,
    pub stats: Vec<(usize, ValueId)>,
    pub outputs: IndexMap<String, ValueId>,
    /// The next values of states.
    pub next_states: IndexMap<usize, ValueId>,
}

impl Builder {
    pub(super) fn new(number: u32, purpose: Purpose) -> Builder {
        Builder {
            number,
            purpose,
            graph: Graph::new(""),
            axis_ids: FxHashMap::default(),
            axes: Vec::new(),
            names: Vec::new(),
            imports: IndexMap::new(),
            literals: FxHashMap::default(),
            rows: Vec::new(),
            sites: 0,
            losses: IndexMap::new(),
            stats: Vec::new(),
            outputs: IndexMap::new(),
            next_states: IndexMap::new(),
        }
    }

    /// Gives a value the name of a variable, unless it has one.
    pub(super) fn name_from_source(&mut self, value: ValueId, text: String) {
        let name = &mut self.names[value.index()];
        if !name.from_source {
            *name = NodeName { text, from_source: true };
        }
    }

    /// The import that this value is, if it is one.
    pub(super) fn import_of(&self, value: ValueId) -> Option<Outside> {
        if self.graph.node(value).op != Op::Input {
            return None;
        }
        self.imports.iter().find(|(_, input)| **input == value).map(|(outside, _)| *outside)
    }

    /// The graph's axis for one of the language.
    pub(super) fn axis_id(&mut self, table: &[AxisInfo], axis: Ax) -> AxisId {
        if let Some(&id) = self.axis_ids.get(&axis) {
            return id;
        }
        let info = &table[axis.0 as usize];
        let extent = match info.extent {
            Size::Fixed(n) => Extent::Fixed(n),
            Size::Ragged { parent, bound } => {
                Extent::Ragged { parent: self.axis_id(table, parent), bound, even: bound }
            }
        };
        let id = self.graph.push_axis(Axis { name: info.name.clone(), extent, label: info.label.clone() });
        self.axis_ids.insert(axis, id);
        self.axes.push(axis);
        id
    }

    /// The input for something from outside; each is made once.
    pub(super) fn import(
        &mut self,
        table: &[AxisInfo],
        outside: Outside,
        name: &str,
        dtype: DType,
        axes: &[Ax],
    ) -> ValueId {
        if let Some(&input) = self.imports.get(&outside) {
            return input;
        }
        let ids: Vec<AxisId> = axes.iter().map(|&a| self.axis_id(table, a)).collect();
        let value = self.graph.push(Op::Input, vec![], Type::new(dtype, ids), "n");
        self.push_name(name.to_string(), true);
        self.imports.insert(outside, value);
        value
    }

    fn push_name(&mut self, text: String, from_source: bool) {
        self.names.push(NodeName { text, from_source });
    }
}

impl Outside {
    /// The role of the input.
    pub(super) fn role(self) -> InputRole {
        match self {
            Outside::Data(_) => InputRole::Data,
            Outside::Param(_) => InputRole::Param,
            Outside::State(_) => InputRole::State,
            Outside::Stat(_) => InputRole::Stat,
            Outside::Carry(_) => InputRole::Carry,
            Outside::Count(_) => InputRole::Count,
            Outside::Rng => InputRole::Runtime,
        }
    }
}

impl<'a> Checker<'a> {
    /// The graph under construction.
    pub(super) fn builder(&mut self) -> &mut Builder {
        if self.updating { &mut self.update } else { &mut self.forward }
    }

    /// The graph's axis for one of the language.
    pub(super) fn axis_id(&mut self, axis: Ax) -> AxisId {
        let builder = if self.updating { &mut self.update } else { &mut self.forward };
        builder.axis_id(&self.axes, axis)
    }

    pub(super) fn axis_ids(&mut self, axes: &[Ax]) -> Vec<AxisId> {
        axes.iter().map(|&a| self.axis_id(a)).collect()
    }

    /// A sorted set of the graph's axes.
    pub(super) fn axis_set(&mut self, axes: &[Ax]) -> Vec<AxisId> {
        let mut ids = self.axis_ids(axes);
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Appends a node with the order of axes that the type rule gives.
    pub(super) fn emit(&mut self, op: Op, operands: &[&Tensor], span: Span) -> Checked<Tensor> {
        let nodes: Vec<ValueId> = operands.iter().map(|t| t.node).collect();
        let name = self.node_name(&op);
        match infer::infer(&self.builder().graph, &op, &nodes) {
            Ok(ty) => self.push(op, nodes, ty, name, span),
            Err(error) => Err(self.does_not_fit(&error.0, span)),
        }
    }

    /// Appends a node whose axes stand in this order.
    pub(super) fn emit_in(&mut self, op: Op, operands: &[&Tensor], axes: &[Ax], span: Span) -> Checked<Tensor> {
        let nodes: Vec<ValueId> = operands.iter().map(|t| t.node).collect();
        let name = self.node_name(&op);
        let ids = self.axis_ids(axes);
        match infer::infer_ordered(&self.builder().graph, &op, &nodes, &ids) {
            Ok(ty) => self.push(op, nodes, ty, name, span),
            Err(error) => Err(self.does_not_fit(&error.0, span)),
        }
    }

    /// Appends a node whose axes stand in the order of `order` when it lists all of them, else in the type rule's order.
    pub(super) fn emit_toward(
        &mut self,
        op: Op,
        operands: &[&Tensor],
        order: Option<&[Ax]>,
        span: Span,
    ) -> Checked<Tensor> {
        let nodes: Vec<ValueId> = operands.iter().map(|t| t.node).collect();
        let name = self.node_name(&op);
        let builder = self.builder();
        let mut ty = match infer::infer(&builder.graph, &op, &nodes) {
            Ok(ty) => ty,
            Err(error) => return Err(self.does_not_fit(&error.0, span)),
        };
        if let Some(order) = order {
            let places: Option<Vec<usize>> =
                ty.axes.iter().map(|a| order.iter().position(|o| *o == builder.axes[a.0 as usize])).collect();
            if let Some(mut places) = places {
                places.sort_unstable();
                let axes: Vec<Ax> = places.into_iter().map(|p| order[p]).collect();
                return self.emit_in(op, operands, &axes, span);
            }
        }
        ty.axes.shrink_to_fit();
        self.push(op, nodes, ty, name, span)
    }

    fn node_name(&self, op: &Op) -> String {
        format!("{}{}", self.frame().path, op.row().name)
    }

    fn push(&mut self, op: Op, nodes: Vec<ValueId>, ty: Type, name: String, span: Span) -> Checked<Tensor> {
        if self.builder().graph.nodes.len() >= self.options.limits.nodes {
            return Err(self.too_much_work(span, "one layer has too many operations"));
        }
        let builder = self.builder();
        let dtype = ty.dtype;
        let axes: Vec<Ax> = ty.axes.iter().map(|a| builder.axes[a.0 as usize]).collect();
        let node = builder.graph.push(op, nodes, ty, "n");
        builder.push_name(name, false);
        if self.numel(&axes).is_none() {
            let message = format!("a tensor with the axes {} has too many elements", self.list(&axes));
            let diagnostic = self.error("E0405", span, message).label(self.sizes(&axes));
            return Err(self.report(diagnostic));
        }
        Ok(Tensor { node, dtype, axes })
    }

    /// A type rule that the checks before it did not foresee.
    fn does_not_fit(&mut self, message: &str, span: Span) -> Reported {
        let diagnostic = self.error("E0299", span, message.to_string());
        self.report(diagnostic)
    }

    /// A scalar constant; each is made once.
    pub(super) fn literal(&mut self, value: f64, dtype: DType) -> Tensor {
        let builder = self.builder();
        if let Some(tensor) = builder.literals.get(&(value.to_bits(), dtype)) {
            return tensor.clone();
        }
        let node = builder.graph.push(Op::Const(value), vec![], Type::new(dtype, []), "n");
        builder.push_name("c".into(), false);
        let tensor = Tensor { node, dtype, axes: vec![] };
        builder.literals.insert((value.to_bits(), dtype), tensor.clone());
        tensor
    }

    /// Something from outside as an input of the graph under construction.
    pub(super) fn import(&mut self, outside: Outside, name: &str) -> Tensor {
        let (axes, dtype) = self.outside_type(outside);
        let builder = if self.updating { &mut self.update } else { &mut self.forward };
        let node = builder.import(&self.axes, outside, name, dtype, &axes);
        Tensor { node, dtype, axes }
    }

    /// Axes and element type of something from outside.
    fn outside_type(&mut self, outside: Outside) -> (Vec<Ax>, DType) {
        match outside {
            Outside::Data(i) => (self.inputs[i].axes.clone(), DType::I32),
            Outside::Param(i) => (self.params[i].axes.clone(), self.options.narrow),
            Outside::State(i) => (self.states[i].axes.clone(), self.options.wide),
            Outside::Stat(i) => (self.stats[i].axes.clone(), self.options.wide),
            Outside::Carry(i) => (self.slots[i].axes.clone(), self.slots[i].dtype),
            Outside::Count(_) => (vec![], self.options.wide),
            Outside::Rng => (vec![self.key_axis()], DType::I32),
        }
    }

    /// The axis of the random key: seed, step, instance, batch offset.
    fn key_axis(&mut self) -> Ax {
        if let Some(axis) = self.key_axis {
            return axis;
        }
        let axis = self.new_axis("key", Size::Fixed(4), None, Span::default());
        self.key_axis = Some(axis);
        axis
    }
}
