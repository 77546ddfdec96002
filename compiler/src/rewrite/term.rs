//! What an e-graph holds: terms over values of one graph, up to the physical order of axes.
//!
//! A term is an op of the IR with its attributes, applied to e-classes. Physical orders are no part of it: `reorder` is the identity here, and
//! [`super::build`] puts it back where an op needs one. Ops whose *meaning* depends on an order carry it ([`Key::orders`]).

use super::{Differentiation, Numerics, Options};
use egg::{Analysis, DidMerge, EGraph, Id, Language};
use forebay_ir::infer::infer_ordered;
use forebay_ir::reference::scalar;
use forebay_ir::{AxisId, BinaryOp, DType, Graph, InputRole, Node, Op, ReduceKind, Type, UnaryOp, ValueId};
use rustc_hash::FxHashMap;

/// The e-graph of one graph.
pub(super) type Egraph = EGraph<Term, World>;

/// An op applied to e-classes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Term {
    /// The op, as its number in [`World::keys`].
    pub head: u32,
    /// The operands.
    pub args: Vec<Id>,
}

impl Language for Term {
    type Discriminant = u32;

    fn discriminant(&self) -> u32 {
        self.head
    }

    fn matches(&self, other: &Term) -> bool {
        self.head == other.head && self.args.len() == other.args.len()
    }

    fn children(&self) -> &[Id] {
        &self.args
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.args
    }
}

/// An op with what else tells terms apart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    /// The op; inputs are told apart by `input`.
    pub op: Op,
    /// Which input.
    pub input: Option<u32>,
    /// The type, where the op does not say it.
    pub ty: Option<Type>,
    /// The operands' physical orders, where the result depends on them.
    pub orders: Option<Vec<Vec<AxisId>>>,
}

/// What is known of an e-class: true of all its terms, so that merging two classes must find the same, or know more.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Facts {
    /// Element type, and the axes as a sorted set.
    pub ty: Type,
    /// The number that a scalar constant is.
    pub constant: Option<f64>,
    /// No element is below zero (NaN apart).
    pub nonnegative: bool,
}

/// All ops of an e-graph, and the axes that they speak of.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub keys: Vec<Key>,
    numbers: FxHashMap<String, u32>,
    numerics: Numerics,
    /// Will the result be differentiated?
    pub before_gradients: bool,
    /// A graph over the same axes, for asking type rules.
    pub scratch: Graph,
    /// What the inputs are, by value.
    roles: FxHashMap<u32, InputRole>,
}

impl World {
    pub fn new(graph: &Graph, options: &Options) -> World {
        let (numerics, before_gradients) = (options.numerics, options.differentiation == Differentiation::ToCome);
        let roles = graph.inputs.iter().map(|i| (i.value.0, i.role)).collect();
        let (keys, numbers) = (vec![], FxHashMap::default());
        World { keys, numbers, numerics, before_gradients, scratch: graph.like("scratch"), roles }
    }

    /// The number of an op.
    pub fn head(&mut self, key: Key) -> u32 {
        let name = format!("{key:?}");
        if let Some(&number) = self.numbers.get(&name) {
            return number;
        }
        let number = self.keys.len() as u32;
        self.keys.push(key);
        self.numbers.insert(name, number);
        number
    }

    pub fn op(&self, term: &Term) -> &Op {
        &self.keys[term.head as usize].op
    }

    /// Does the order of operands not matter? Of 0 and -0 the second is the smaller and the larger one.
    pub fn commutes(&self, op: &Op) -> bool {
        use BinaryOp::{Add, And, Eq, Max, Min, Mul, Ne, Or};
        match op {
            Op::Binary(Min | Max) => self.numerics > Numerics::Exact,
            _ => matches!(op, Op::Binary(Add | Mul | Eq | Ne | And | Or) | Op::Contract { .. }),
        }
    }

    /// What the term is, if it is an input.
    pub fn role(&self, term: &Term) -> Option<InputRole> {
        self.roles.get(&self.keys[term.head as usize].input?).copied()
    }

    pub fn size(&self, axes: &[AxisId]) -> f64 {
        axes.iter().map(|&a| self.scratch.size(a) as f64).product()
    }

    /// The type of a term, axes sorted.
    fn ty(&mut self, term: &Term, operands: &[Type]) -> Type {
        let key = self.keys[term.head as usize].clone();
        let mut ty = match key.ty {
            Some(ty) => ty,
            None => self.with_operands(&key, operands, |graph, values| {
                forebay_ir::infer::infer(graph, &key.op, values)
                    .unwrap_or_else(|e| panic!("a rule made a term of a wrong type: {:?}: {e}", key.op))
            }),
        };
        ty.axes.sort_unstable();
        ty
    }

    /// Does the type rule accept the op?
    pub fn accepts(&mut self, op: &Op, operands: &[Type]) -> bool {
        let key = Key { op: op.clone(), input: None, ty: None, orders: None };
        self.with_operands(&key, operands, |graph, values| forebay_ir::infer::infer(graph, op, values).is_ok())
    }

    /// Asks something of a graph in which the operands are inputs, in orders that the op can work with.
    pub fn with_operands<T>(&mut self, key: &Key, operands: &[Type], ask: impl FnOnce(&Graph, &[ValueId]) -> T) -> T {
        self.scratch.nodes.clear();
        for (i, ty) in operands.iter().enumerate() {
            let axes = match &key.orders {
                Some(orders) => orders[i].clone(),
                None => needed_order(&self.scratch, &key.op, &behind_parents(&self.scratch, &ty.axes)),
            };
            let ty = Type::new(ty.dtype, axes);
            self.scratch.nodes.push(Node { op: Op::Input, operands: vec![], ty, name: String::new() });
        }
        let values: Vec<ValueId> = (0..operands.len() as u32).map(ValueId).collect();
        ask(&self.scratch, &values)
    }
}

/// Axes with each ragged one behind its parent.
pub(super) fn behind_parents(graph: &Graph, axes: &[AxisId]) -> Vec<AxisId> {
    let mut order: Vec<AxisId> =
        axes.iter().copied().filter(|&a| graph.ragged_parent(a).is_none_or(|p| !axes.contains(&p))).collect();
    for &axis in axes {
        if let Some(parent) = graph.ragged_parent(axis).filter(|p| axes.contains(p)) {
            let at = order.iter().position(|&a| a == parent).expect("parents are no ragged axes themselves");
            order.insert(at + 1, axis);
        }
    }
    order
}

/// The axes in an order that the op takes: `merge` wants what it merges side by side, and so does what contains a merge.
pub(super) fn needed_order(graph: &Graph, op: &Op, axes: &[AxisId]) -> Vec<AxisId> {
    let together: Vec<AxisId> = match op {
        Op::Merge { from, .. } => from.clone(),
        Op::Fused(fused) => match fused.kind {
            forebay_ir::FusedKind::Permute => fused.axes[1..].to_vec(),
            forebay_ir::FusedKind::UnpermuteDrows => {
                let mut together = fused.axes[3..].to_vec();
                together = if together.is_empty() { vec![fused.axes[1]] } else { together };
                together.push(fused.axes[2]);
                together
            }
            _ => vec![],
        },
        _ => vec![],
    };
    let together: Vec<AxisId> = together.into_iter().filter(|a| axes.contains(a)).collect();
    let Some(first) = together.first() else { return axes.to_vec() };
    if axes.windows(together.len()).any(|w| w == together) {
        return axes.to_vec();
    }
    let mut order: Vec<AxisId> = axes.iter().copied().filter(|a| !together[1..].contains(a)).collect();
    let at = order.iter().position(|a| a == first).expect("it was not taken out");
    order.splice(at + 1..at + 1, together[1..].iter().copied());
    behind_parents(graph, &order)
}

impl Analysis<Term> for World {
    type Data = Facts;

    fn make(egraph: &mut Egraph, term: &Term, _: Id) -> Facts {
        let facts: Vec<Facts> = term.args.iter().map(|&a| egraph[a].data.clone()).collect();
        let types: Vec<Type> = facts.iter().map(|f| f.ty.clone()).collect();
        let ty = egraph.analysis.ty(term, &types);
        let constant = match egraph.analysis.op(term) {
            Op::Const(value) => Some(scalar::round(*value, ty.dtype)),
            _ => None,
        };
        let nonnegative =
            constant.is_some_and(|c| c >= 0.0) || stays_nonnegative(egraph.analysis.op(term), term, &facts);
        Facts { ty, constant, nonnegative }
    }

    fn merge(&mut self, to: &mut Facts, from: Facts) -> DidMerge {
        assert_eq!(to.ty, from.ty, "equal terms have equal types");
        if let (Some(a), Some(b)) = (to.constant, from.constant) {
            assert!(a.to_bits() == b.to_bits() || a == b || a.is_nan() && b.is_nan(), "{a} is not {b}");
        }
        let merged = Facts {
            ty: from.ty.clone(),
            constant: to.constant.or(from.constant),
            nonnegative: to.nonnegative || from.nonnegative,
        };
        let same = |a: &Facts| a.constant.is_some() == merged.constant.is_some() && a.nonnegative == merged.nonnegative;
        let changed = DidMerge(!same(to), !same(&from));
        *to = merged;
        changed
    }
}

/// Is the result above zero whatever the operands are, or because they are?
fn stays_nonnegative(op: &Op, term: &Term, facts: &[Facts]) -> bool {
    let known = |i: usize| facts[i].nonnegative;
    match op {
        Op::Unary(UnaryOp::Exp | UnaryOp::Abs | UnaryOp::Sqrt | UnaryOp::Rsqrt) => true,
        Op::Binary(BinaryOp::Mul) if term.args[0] == term.args[1] => true,
        Op::Binary(BinaryOp::Add | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Min) => known(0) && known(1),
        Op::Binary(BinaryOp::Max) => known(0) || known(1),
        Op::Binary(BinaryOp::Pow) => known(0) || facts[1].constant == Some(2.0),
        Op::Select => known(1) && known(2),
        Op::Iota(_) => true,
        Op::Cast(_) | Op::Detach | Op::Broadcast(_) | Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } => {
            known(0)
        }
        Op::Take { .. } | Op::Slice { .. } | Op::Gather { .. } => known(0),
        Op::Reduce { kind: ReduceKind::Sum | ReduceKind::Max | ReduceKind::Min, .. } => known(0),
        Op::Contract { .. } => term.args[0] == term.args[1] || known(0) && known(1),
        Op::Fused(fused) => matches!(
            fused.kind,
            forebay_ir::FusedKind::Sigmoid | forebay_ir::FusedKind::Softmax | forebay_ir::FusedKind::SinkSoftmax
        ),
        _ => false,
    }
}

/// The key of a node, without its name.
pub(super) fn key_of(graph: &Graph, value: ValueId) -> Key {
    let node = graph.node(value);
    let operand_orders = || Some(node.operands.iter().map(|&o| graph.ty(o).axes.clone()).collect());
    let plain = Key { op: node.op.clone(), input: None, ty: None, orders: None };
    match &node.op {
        Op::Input => Key { input: Some(value.0), ty: Some(node.ty.clone()), ..plain },
        Op::Const(_) | Op::Random { .. } => Key { ty: Some(node.ty.clone()), orders: operand_orders(), ..plain },
        Op::Invert => Key { ty: Some(node.ty.clone()), orders: operand_orders(), ..plain },
        // Rows come to stand behind their parent only where it stands before what is looked up.
        Op::Gather { .. } if meets_parent(graph, node) => Key { orders: operand_orders(), ..plain },
        // Elements are numbered, or added up, in the order in which they lie.
        Op::Group { .. } | Op::Offsets { .. } | Op::ScatterAdd { .. } | Op::Concat { .. } => {
            Key { orders: operand_orders(), ..plain }
        }
        // Counts are by source, then by group.
        Op::Comm(comm) if comm.arity() == 2 => Key { orders: operand_orders(), ..plain },
        _ => plain,
    }
}

/// Does an index bring rows to an x that has their parent?
fn meets_parent(graph: &Graph, node: &Node) -> bool {
    let [x, index] = [0, 1].map(|i| graph.ty(node.operands[i]));
    let rows = graph.ragged_axis(&index.axes).filter(|r| !x.has(*r));
    rows.and_then(|r| graph.ragged_parent(r)).is_some_and(|p| x.has(p))
}

/// Can the op give its result in this order?
pub(super) fn can_have_order(graph: &Graph, op: &Op, operands: &[ValueId], axes: &[AxisId]) -> bool {
    infer_ordered(graph, op, operands, axes).is_ok()
}

/// The constant of a dtype, as a key.
pub(super) fn constant_key(value: f64, dtype: DType) -> Key {
    Key { op: Op::Const(value), input: None, ty: Some(Type::new(dtype, [])), orders: Some(vec![]) }
}
