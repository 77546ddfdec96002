//! What a node costs, by counting: floating-point operations and bytes at its shapes, ragged axes at their bound.
//!
//! Conventions:
//! * a contraction is a multiplication and an addition for each point of the product of all its axes;
//! * every elementwise function counts 1 for each element of the result, a reduction or scan 1 for each element of its operand;
//! * views cost nothing, copies and index ops no operations; bytes are those of a node that runs alone: operands read once, the result
//!   written once. A gather or slice reads only what it takes.
//!
//! [`model_flops`] counts what a *model* costs, whatever computes it: matrix products only, of attention only the part under its mask, and of linear attention the
//! recurrence: the state read once and added to once for each position. A
//! causal mask counts 1/2 (exactly, not (S + 1) / 2S), a sliding window of w keys w / S when that is less. Masks by content (documents) count
//! as if they hid nothing. A step is three times its forward pass.

use crate::collective::CommKind;
use crate::graph::{Graph, InputRole, ValueId};
use crate::op::{BinaryOp, Op, UnaryOp};
use crate::types::{AxisId, DType, Type};
use std::ops::AddAssign;

/// Operations and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations (for ints: as if they were).
    pub flops: f64,
    /// Of elementwise work the vector instructions: an elementary function is several ([`instructions`]). Else the same.
    pub instructions: f64,
    /// Bytes read.
    pub read: f64,
    /// Bytes written.
    pub written: f64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.flops += other.flops;
        self.instructions += other.instructions;
        self.read += other.read;
        self.written += other.written;
    }
}

/// The cost of one node.
pub fn cost(graph: &Graph, value: ValueId) -> Cost {
    let node = graph.node(value);
    let bytes = |v: ValueId| graph.bytes(v) as f64;
    let result = numel(graph, &node.ty);
    let operand = || numel(graph, graph.ty(node.operands[0]));
    let mut distinct = node.operands.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let all: f64 = distinct.into_iter().map(bytes).sum();
    // As many bytes as are written, beside the index.
    let taken = || bytes(value) + node.operands.get(1).map_or(0.0, |&index| bytes(index));
    let (flops, read) = match &node.op {
        Op::Input | Op::Detach | Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } => return Cost::default(),
        Op::Const(_) | Op::Iota(_) => (0.0, 0.0),
        Op::Random { .. } | Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) => (result, all),
        Op::Broadcast(_) | Op::Reorder | Op::Pad { .. } | Op::Stack(_) | Op::Concat { .. } => (0.0, all),
        Op::Contract { .. } => (2.0 * products(graph, value), all),
        Op::Reduce { .. } | Op::Scan { .. } | Op::TopK { .. } | Op::ScatterAdd { .. } => (operand(), all),
        Op::LinearAttention(_) => (recurrence(graph, value), all),
        Op::Take { .. } | Op::Slice { .. } => (0.0, taken()),
        Op::Gather { .. } => (0.0, taken()),
        Op::Group { .. } | Op::Offsets { .. } | Op::Invert => (0.0, all),
        Op::Fused(fused) => return crate::fused::cost(graph, value, fused, &node.operands),
        // Links are priced elsewhere; this is what the rank's own memory sees.
        Op::Comm(comm) => match comm.kind {
            CommKind::Vary => return Cost::default(),
            CommKind::Shard { .. } => (0.0, bytes(value)),
            CommKind::AllReduce(_) | CommKind::ReduceScatter { .. } => (operand(), all),
            _ => (0.0, all),
        },
    };
    Cost { flops, instructions: flops * instructions(&node.op), read, written: bytes(value) }
}

/// Vector instructions for an element: 1, a division as well, but for elementary functions, which have as many as `docs/performance.md` counts in the
/// CPU's kernels.
fn instructions(op: &Op) -> f64 {
    match op {
        Op::Unary(UnaryOp::Exp) => 13.0,
        Op::Unary(UnaryOp::Log) => 17.0,
        // With what looks for arguments that are far away.
        Op::Unary(UnaryOp::Sin) => 19.0,
        Op::Unary(UnaryOp::Cos) => 21.0,
        Op::Unary(UnaryOp::Tanh) => 22.0,
        // Element by element, by the system's function.
        Op::Binary(BinaryOp::Pow) => 1400.0,
        _ => 1.0,
    }
}

fn numel(graph: &Graph, ty: &Type) -> f64 {
    size(graph, &ty.axes)
}

fn size(graph: &Graph, axes: &[AxisId]) -> f64 {
    graph.dims(axes).into_iter().map(|(_, n)| n as f64).product()
}

/// Number of products of a contraction.
fn products(graph: &Graph, contract: ValueId) -> f64 {
    let mut axes: Vec<AxisId> =
        graph.node(contract).operands.iter().flat_map(|&o| graph.ty(o).axes.iter().copied()).collect();
    axes.sort_unstable();
    axes.dedup();
    size(graph, &axes)
}

/// Operations of a linear attention as a recurrence: each position reads the state of keys × values once and adds to it once.
fn recurrence(graph: &Graph, value: ValueId) -> f64 {
    let node = graph.node(value);
    let Op::LinearAttention(op) = &node.op else { unreachable!("a linear attention") };
    4.0 * numel(graph, &node.ty) * size(graph, &op.over)
}

/// The floating-point operations of a forward graph's matrix products, as a model is credited with them.
pub fn model_flops(graph: &Graph) -> f64 {
    model_flops_by_node(graph).into_iter().map(|(_, flops)| flops).sum()
}

/// The same for each contraction and linear attention.
pub fn model_flops_by_node(graph: &Graph) -> Vec<(ValueId, f64)> {
    let masks = Masks::find(graph);
    let flops = |v: ValueId| match graph.node(v).op {
        Op::Contract { .. } => Some((v, 2.0 * products(graph, v) * masks.useful_part(v))),
        Op::LinearAttention(_) => Some((v, recurrence(graph, v))),
        _ => None,
    };
    graph.values().filter_map(flops).collect()
}

struct Masks<'g> {
    graph: &'g Graph,
    linear: Vec<Option<Linear>>,
    /// For each value: the masks that it was under.
    under: Vec<Vec<Bound>>,
    /// For each value: the masks that all uses of it come under.
    hidden: Vec<Vec<Bound>>,
}

impl<'g> Masks<'g> {
    fn find(graph: &'g Graph) -> Masks<'g> {
        let nothing = vec![Vec::new(); graph.nodes.len()];
        let mut masks = Masks { graph, linear: linear_values(graph), under: nothing.clone(), hidden: nothing };
        for value in graph.values() {
            masks.under[value.index()] = masks.inherited(value);
        }
        let users = graph.users();
        for value in graph.values().rev() {
            let is_output = graph.outputs.iter().any(|o| o.value == value);
            masks.hidden[value.index()] =
                if is_output { Vec::new() } else { masks.hides(value, &users[value.index()]) };
        }
        masks
    }

    /// `select(mask, s, -inf)` puts a value under a mask; elementwise functions and reductions of it stay there.
    fn inherited(&self, value: ValueId) -> Vec<Bound> {
        let node = self.graph.node(value);
        let mut bounds = self.mask(value).unwrap_or_default();
        match node.op {
            Op::Unary(_)
            | Op::Binary(_)
            | Op::Select
            | Op::Cast(_)
            | Op::Detach
            | Op::Broadcast(_)
            | Op::Reorder
            | Op::Reduce { .. } => {
                node.operands.iter().for_each(|o| add_new(&mut bounds, &self.under[o.index()]));
            }
            Op::Input
            | Op::Const(_)
            | Op::Iota(_)
            | Op::Random { .. }
            | Op::Contract { .. }
            | Op::Scan { .. }
            | Op::LinearAttention(_)
            | Op::Rename { .. }
            | Op::Split { .. }
            | Op::Merge { .. }
            | Op::Take { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Stack(_)
            | Op::Concat { .. }
            | Op::Gather { .. }
            | Op::ScatterAdd { .. }
            | Op::TopK { .. }
            | Op::Group { .. }
            | Op::Offsets { .. }
            | Op::Invert
            | Op::Fused(_)
            | Op::Comm(_) => {}
        }
        bounds
    }

    /// What a `select(mask, s, -inf)` says of distances.
    fn mask(&self, value: ValueId) -> Option<Vec<Bound>> {
        let node = self.graph.node(value);
        let is_mask = node.op == Op::Select
            && crate::gradient::constant_value(self.graph, node.operands[2]) == Some(f64::NEG_INFINITY);
        is_mask.then(|| self.bounds(node.operands[0]))
    }

    /// What the terms of a conjunction say of distances.
    fn bounds(&self, condition: ValueId) -> Vec<Bound> {
        let mut seen = Vec::new();
        let mut stack = vec![condition];
        while let Some(value) = stack.pop() {
            if !seen.contains(&value) {
                seen.push(value);
                let node = self.graph.node(value);
                if let Op::Binary(BinaryOp::And) | Op::Broadcast(_) | Op::Reorder = node.op {
                    stack.extend(&node.operands);
                }
            }
        }
        seen.into_iter().filter_map(|c| self.bound(c)).collect()
    }

    /// Reads `iota(u) <= iota(t)`, `iota(t) - iota(u) < w` and the other ways to write them.
    fn bound(&self, condition: ValueId) -> Option<Bound> {
        let node = self.graph.node(condition);
        let Op::Binary(op) = node.op else { return None };
        let side = |i: usize| self.linear[node.operands[i].index()].as_ref();
        // The larger side minus the smaller one, and whether they must differ.
        let (difference, strict) = match op {
            BinaryOp::Le => (side(1)?.minus(side(0)?)?, false),
            BinaryOp::Lt => (side(1)?.minus(side(0)?)?, true),
            BinaryOp::Ge => (side(0)?.minus(side(1)?)?, false),
            BinaryOp::Gt => (side(0)?.minus(side(1)?)?, true),
            _ => return None,
        };
        let Linear { terms, constant } = difference;
        let (&(plus, _), &(minus, _)) = (terms.iter().find(|t| t.1 == 1)?, terms.iter().find(|t| t.1 == -1)?);
        match constant {
            _ if terms.len() != 2 => None,
            // plus - minus >= 0
            0 => Some(Bound { query: plus, key: minus, at_least: Some(0), less_than: None }),
            // minus - plus < constant, or <= constant
            1.. => {
                let width = if strict { constant } else { constant + 1 };
                Some(Bound { query: minus, key: plus, at_least: None, less_than: Some(width) })
            }
            _ => None,
        }
    }

    /// The part of a contraction's products that count.
    fn useful_part(&self, contract: ValueId) -> f64 {
        let node = self.graph.node(contract);
        let probabilities = node.operands.iter().map(|&o| self.part(&self.under[o.index()], self.graph.ty(o)));
        let score = self.part(&self.hidden[contract.index()], &node.ty);
        probabilities.fold(score, f64::min)
    }

    /// The part of all pairs of positions of a type that masks let through.
    fn part(&self, bounds: &[Bound], ty: &Type) -> f64 {
        let causal = bounds.iter().filter(|b| b.at_least == Some(0) && ty.has(b.query) && ty.has(b.key));
        let part = |causal: &Bound| {
            let same = |b: &&Bound| (b.query, b.key) == (causal.query, causal.key);
            let window = bounds.iter().filter(same).filter_map(|b| b.less_than).min();
            let keys = self.graph.size(causal.key) as f64;
            window.map_or(0.5, |w| (w.max(0) as f64 / keys).min(0.5))
        };
        causal.map(part).fold(1.0, f64::min)
    }

    /// The masks over a score that is used for nothing but to be masked.
    fn hides(&self, score: ValueId, users: &[ValueId]) -> Vec<Bound> {
        let mut common: Option<Vec<Bound>> = None;
        for &user in users {
            let node = self.graph.node(user);
            let mut bounds = match node.op {
                Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) | Op::Detach | Op::Reorder => {
                    self.hidden[user.index()].clone()
                }
                _ => Vec::new(),
            };
            if node.op == Op::Select && node.operands[1] == score {
                add_new(&mut bounds, &self.mask(user).unwrap_or_default());
            }
            common = Some(match common {
                None => bounds,
                Some(common) => common.into_iter().filter(|b| bounds.contains(b)).collect(),
            });
        }
        common.unwrap_or_default()
    }
}

fn add_new(bounds: &mut Vec<Bound>, more: &[Bound]) {
    for bound in more {
        if !bounds.contains(bound) {
            bounds.push(*bound);
        }
    }
}

/// What a comparison says of `query - key`, the distance between two positions.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bound {
    query: AxisId,
    key: AxisId,
    /// The distance is at least this; 0 for both `<=` and `<`.
    at_least: Option<i64>,
    less_than: Option<i64>,
}

/// A sum of positions along axes, and a constant.
#[derive(Clone, Debug)]
struct Linear {
    terms: Vec<(AxisId, i64)>,
    constant: i64,
}

impl Linear {
    fn minus(&self, other: &Linear) -> Option<Linear> {
        let mut terms = self.terms.clone();
        for &(axis, factor) in &other.terms {
            match terms.iter_mut().find(|t| t.0 == axis) {
                Some(term) => term.1 = term.1.checked_sub(factor)?,
                None => terms.push((axis, factor.checked_neg()?)),
            }
        }
        terms.retain(|t| t.1 != 0);
        Some(Linear { terms, constant: self.constant.checked_sub(other.constant)? })
    }
}

/// For each value the linear form that it is, if it is one.
fn linear_values(graph: &Graph) -> Vec<Option<Linear>> {
    let mut forms: Vec<Option<Linear>> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let of = |i: usize| forms[node.operands[i].index()].clone();
        let zero = Linear { terms: vec![], constant: 0 };
        let form = match &node.op {
            Op::Iota(axis) => Some(Linear { terms: vec![(*axis, 1)], constant: 0 }),
            Op::Const(c) if c.fract() == 0.0 => Some(Linear { terms: vec![], constant: *c as i64 }),
            Op::Cast(DType::Bool) => None,
            Op::Cast(_) | Op::Broadcast(_) | Op::Reorder | Op::Detach => of(0),
            Op::Rename { from, to } => of(0).map(|mut form| {
                form.terms.iter_mut().filter(|t| t.0 == *from).for_each(|t| t.0 = *to);
                form
            }),
            Op::Unary(UnaryOp::Neg) => of(0).and_then(|x| zero.minus(&x)),
            Op::Binary(BinaryOp::Sub) => of(0).zip(of(1)).and_then(|(a, b)| a.minus(&b)),
            Op::Binary(BinaryOp::Add) => of(0).zip(of(1)).and_then(|(a, b)| a.minus(&zero.minus(&b)?)),
            _ => None,
        };
        forms.push(form);
    }
    forms
}

/// For each parameter how many of its elements a token meets: those that it is multiplied with in contractions, directly or through casts and
/// views, but not more than there are. A parameter that is in no contraction (a gain, an embedding) counts as a whole.
pub fn active_parameters(graph: &Graph, tokens: u64) -> Vec<(ValueId, f64)> {
    let products = products_with(graph);
    let params = graph.inputs.iter().filter(|i| i.role == InputRole::Param).map(|i| i.value);
    let active = |param: ValueId| match products[param.index()] {
        0.0 => numel(graph, graph.ty(param)),
        products => numel(graph, graph.ty(param)).min(products / tokens as f64),
    };
    params.map(|p| (p, active(p))).collect()
}

/// Does the value have something for each group of a ragged axis of the user, but not for each row?
fn is_of_groups(graph: &Graph, value: ValueId, user: ValueId) -> bool {
    let ragged = graph.ragged_axis(&graph.ty(user).axes);
    ragged.is_some_and(|r| !graph.ty(value).has(r) && graph.ragged_parent(r).is_some_and(|p| graph.ty(value).has(p)))
}

/// For each value the products of all contractions that it goes into, and of expert biases with their rows.
fn products_with(graph: &Graph) -> Vec<f64> {
    let mut total = vec![0.0; graph.nodes.len()];
    for user in graph.values().rev() {
        let node = graph.node(user);
        let mut distinct = node.operands.clone();
        if let Op::Contract { .. } = node.op {
            distinct.dedup();
        }
        for operand in distinct {
            total[operand.index()] += match node.op {
                Op::Contract { .. } => products(graph, user),
                // An expert's bias meets the rows of its expert only.
                Op::Binary(_) if is_of_groups(graph, operand, user) => numel(graph, &node.ty),
                Op::Binary(_) => 0.0,
                Op::Cast(_)
                | Op::Detach
                | Op::Broadcast(_)
                | Op::Reorder
                | Op::Rename { .. }
                | Op::Split { .. }
                | Op::Merge { .. }
                | Op::Take { .. }
                | Op::Slice { .. }
                | Op::Pad { .. } => total[user.index()],
                // Only this operand's share of what they are together.
                Op::Stack(_) | Op::Concat { .. } => {
                    total[user.index()] * numel(graph, graph.ty(operand)) / numel(graph, &node.ty)
                }
                Op::Input
                | Op::Const(_)
                | Op::Iota(_)
                | Op::Random { .. }
                | Op::Unary(_)
                | Op::Select
                | Op::Reduce { .. }
                | Op::Scan { .. }
                | Op::LinearAttention(_)
                | Op::Gather { .. }
                | Op::ScatterAdd { .. }
                | Op::TopK { .. }
                | Op::Group { .. }
                | Op::Offsets { .. }
                | Op::Invert
                | Op::Fused(_)
                | Op::Comm(_) => 0.0,
            };
        }
    }
    total
}
