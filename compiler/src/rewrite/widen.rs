//! Expressions of bf16 in f32, rounded once.
//!
//! ```text
//! %t = tanh %x : bf16[d]             %w = cast %x : f32[d]
//! %y = mul %t, %z : bf16[d]    ==>   %t = tanh %w : f32[d]
//!                                    %v = cast %z : f32[d]
//!                                    %y.wide = mul %t, %v : f32[d]
//!                                    %y = cast %y.wide : bf16[d]
//! ```
//!
//! Processors compute in f32 what is stored as bf16, and by AVX-512 rounding is more instructions than most ops have. What compilers of other frameworks
//! do within a kernel (PyTorch's Inductor) happens here before differentiation, when there are no kernels yet: what is rounded does not depend on where
//! kernels begin and end, nor on what is kept or computed again for the backward pass.
//!
//! An expression is elementwise, bends (a sum or a multiple by itself does not pay), and its parts are read by itself alone. Not a part of it is what joins two values
//! of its own size other than by a product: a residual sum stays one, which a norm may take up and ranks may have parts of; and inside of an expression
//! the backward pass would have to keep either both values, or the sum in f32, where the sum in bf16 was enough. A product's operands it needs anyway.

use super::Options;
use forebay_ir::{BinaryOp, DType, FusedKind, Graph, Node, Op, Type, UnaryOp, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Values from outside that an expression has at most.
const MOST: usize = 16;

/// Computes expressions in f32; returns the names of their ends.
pub(super) fn widen(graph: &mut Graph, _: &Options) -> Vec<String> {
    let ends = ends(graph);
    let worthwhile = worthwhile(graph, &ends);
    if worthwhile.is_empty() {
        return vec![];
    }
    let names = graph.values().filter(|v| worthwhile.contains(v)).map(|v| graph.node(v).name.clone()).collect();
    let mut wide =
        Wide { old: graph, new: graph.like(graph.name.clone()), moved: vec![], inside: FxHashMap::default() };
    for value in graph.values() {
        match ends[value.index()].filter(|end| worthwhile.contains(end)) {
            Some(end) => wide.push(value, value == end),
            None => wide.copy(value),
        }
    }
    let Wide { mut new, moved, .. } = wide;
    new.interface_of(graph, &moved);
    *graph = new;
    names
}

/// For each value that is a part of an expression, worthwhile or not, the expression's end.
fn ends(graph: &Graph) -> Vec<Option<ValueId>> {
    let users = graph.users();
    let mut kept = vec![false; graph.nodes.len()];
    graph.outputs.iter().for_each(|o| kept[o.value.index()] = true);
    let mut may_be: Vec<bool> =
        graph.values().map(|v| is_part(graph.node(v)) || compares(graph, graph.node(v))).collect();
    loop {
        let mut ends: Vec<Option<ValueId>> = vec![None; graph.nodes.len()];
        for value in graph.values().rev().filter(|v| may_be[v.index()]) {
            let mut of_users = users[value.index()].iter().map(|u| ends[u.index()]);
            let end = match of_users.next() {
                Some(first) if !kept[value.index()] && of_users.all(|e| e == first) => first,
                _ => None,
            };
            ends[value.index()] = end.or(is_part(graph.node(value)).then_some(value));
        }
        let joins = joins(graph, &ends);
        if joins.is_empty() {
            return ends;
        }
        joins.into_iter().for_each(|v| may_be[v.index()] = false);
    }
}

/// Parts that join two values of their size from outside of their expression other than by a product.
fn joins(graph: &Graph, ends: &[Option<ValueId>]) -> Vec<ValueId> {
    let mut found = vec![];
    // The values from outside that a part comes from.
    let mut leaves: Vec<Vec<ValueId>> = vec![vec![]; graph.nodes.len()];
    for value in graph.values().filter(|v| ends[v.index()].is_some()) {
        let node = graph.node(value);
        let is_constant = |v: ValueId| matches!(graph.node(v).op, Op::Const(_));
        let is_large = |v: &ValueId| {
            graph.ty(*v).dtype.is_float() && node.ty.axes.iter().all(|axis| graph.ty(*v).has(*axis)) && !is_constant(*v)
        };
        let of_operand = |&operand: &ValueId| {
            let is_inside = ends[operand.index()] == ends[value.index()];
            let mut from = if is_inside { leaves[operand.index()].clone() } else { vec![operand] };
            from.retain(is_large);
            from
        };
        let of_operands: Vec<Vec<ValueId>> = node.operands.iter().map(of_operand).collect();
        let mut own = of_operands.concat();
        own.sort_unstable();
        own.dedup();
        // What one operand has joined already, by a product, is not joined here.
        let joined = of_operands.iter().any(|from| own.iter().all(|v| from.contains(v)));
        let joins = !joined && !multiplies(&node.op) || own.len() > MOST;
        // What joins is outside from then on.
        leaves[value.index()] = if joins { vec![value] } else { own };
        found.extend(joins.then_some(value));
    }
    found
}

/// Does the backward pass need both operands in any case?
fn multiplies(op: &Op) -> bool {
    match op {
        Op::Binary(op) => matches!(op, BinaryOp::Mul | BinaryOp::Div | BinaryOp::Pow),
        Op::Fused(fused) => matches!(fused.kind, FusedKind::Swiglu | FusedKind::ClampedSwiglu),
        _ => false,
    }
}

/// The ends of expressions that bend and round more than once.
fn worthwhile(graph: &Graph, ends: &[Option<ValueId>]) -> FxHashSet<ValueId> {
    let mut parts: FxHashMap<ValueId, (usize, bool)> = FxHashMap::default();
    for (value, end) in graph.values().zip(ends) {
        let Some(end) = end else { continue };
        let node = graph.node(value);
        let (roundings, bent) = parts.entry(*end).or_default();
        *roundings += usize::from(is_part(node) && !is_exact(&node.op));
        *bent |= bends(&node.op);
    }
    parts.into_iter().filter(|(_, (roundings, bent))| *roundings > 1 && *bent).map(|(end, _)| end).collect()
}

/// Is the result of numbers of bf16 one of bf16 before it is rounded?
fn is_exact(op: &Op) -> bool {
    match op {
        Op::Unary(op) => matches!(op, UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Floor),
        Op::Binary(op) => matches!(op, BinaryOp::Min | BinaryOp::Max),
        op => matches!(op, Op::Select),
    }
}

/// Is it more than a sum, a product or a sign?
fn bends(op: &Op) -> bool {
    match op {
        Op::Unary(op) => !matches!(op, UnaryOp::Neg | UnaryOp::Not),
        Op::Binary(op) => matches!(op, BinaryOp::Div | BinaryOp::Pow | BinaryOp::Rem | BinaryOp::Min | BinaryOp::Max),
        _ => true,
    }
}

/// Does each element of the result come from those at its place, and is it rounded to bf16?
fn is_part(node: &Node) -> bool {
    let elementwise = match &node.op {
        Op::Unary(_) | Op::Binary(_) | Op::Select => true,
        Op::Fused(fused) => {
            matches!(fused.kind, FusedKind::Sigmoid | FusedKind::Silu | FusedKind::Swiglu | FusedKind::ClampedSwiglu)
        }
        _ => false,
    };
    elementwise && node.ty.dtype == DType::BF16
}

/// Is it a condition on values of bf16, or one of conditions?
fn compares(graph: &Graph, node: &Node) -> bool {
    let of_floats = || node.operands.iter().all(|&o| graph.ty(o).dtype == DType::BF16);
    match node.op {
        Op::Binary(op) => op.is_comparison() && of_floats() || op.is_logical() && node.ty.dtype == DType::Bool,
        Op::Unary(UnaryOp::Not) => node.ty.dtype == DType::Bool,
        _ => false,
    }
}

/// A graph in which expressions are wide.
struct Wide<'g> {
    old: &'g Graph,
    new: Graph,
    /// Where each old value is.
    moved: Vec<ValueId>,
    /// What stands for old values within expressions: their parts, and casts of what they read, which they share.
    inside: FxHashMap<ValueId, ValueId>,
}

impl Wide<'_> {
    fn copy(&mut self, value: ValueId) {
        let node = self.old.node(value);
        let operands = node.operands.iter().map(|o| self.moved[o.index()]).collect();
        self.moved.push(self.new.push(node.op.clone(), operands, node.ty.clone(), &node.name));
    }

    /// A part of an expression; the end is rounded, and is what others read.
    fn push(&mut self, value: ValueId, is_end: bool) {
        let node = self.old.node(value);
        let operands = node.operands.iter().map(|&o| self.operand(o)).collect();
        let ty = widened(&node.ty);
        if !is_end {
            let part = self.new.push(node.op.clone(), operands, ty, &node.name);
            self.inside.insert(value, part);
            // Nobody else reads it.
            self.moved.push(part);
            return;
        }
        let whole = self.new.push(node.op.clone(), operands, ty, &format!("{}.wide", node.name));
        self.moved.push(self.new.push(Op::Cast(DType::BF16), vec![whole], node.ty.clone(), &node.name));
    }

    fn operand(&mut self, value: ValueId) -> ValueId {
        if let Some(&known) = self.inside.get(&value) {
            return known;
        }
        let (node, here) = (self.old.node(value), self.moved[value.index()]);
        let wide = match node.op {
            _ if node.ty.dtype != DType::BF16 => return here,
            Op::Const(number) => self.new.constant(number, DType::F32),
            _ => self.new.push(Op::Cast(DType::F32), vec![here], widened(&node.ty), &format!("{}.wide", node.name)),
        };
        self.inside.insert(value, wide);
        wide
    }
}

fn widened(ty: &Type) -> Type {
    let dtype = if ty.dtype == DType::BF16 { DType::F32 } else { ty.dtype };
    Type { dtype, ..ty.clone() }
}
