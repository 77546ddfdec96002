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
//! Processors compute functions in f32, so that each op of bf16 by itself widens and rounds, which by AVX-512 is more instructions than most ops have. What
//! compilers of other frameworks do with elementwise ops that become one kernel (PyTorch's Inductor) happens here before there are kernels: what a value is
//! does not depend on where kernels begin and end, on what is kept or computed again, or on how the model is shared by ranks.
//!
//! An expression is elementwise, has a function in it, and nothing reads it but at its end. Sums of values and what is merely scaled stay as they are: ranks
//! add up parts of them in bf16. Bytes are the same, for better values; where expressions become several kernels, what is between them is twice as large.

use super::Options;
use forebay_ir::cost::is_function;
use forebay_ir::{BinaryOp, DType, FusedKind, Graph, Node, Op, Type, UnaryOp, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

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

/// For each value that is a part of an expression, the expression's end.
fn ends(graph: &Graph) -> Vec<Option<ValueId>> {
    let users = graph.users();
    let mut kept = vec![false; graph.nodes.len()];
    let others = graph.offsets.iter().map(|o| o.1);
    graph.outputs.iter().map(|o| o.value).chain(others).for_each(|v| kept[v.index()] = true);
    let mut ends: Vec<Option<ValueId>> = vec![None; graph.nodes.len()];
    for value in graph.values().rev() {
        let node = graph.node(value);
        let rounds = rounds(node);
        if !rounds && !compares(graph, node) {
            continue;
        }
        let mut of_users = users[value.index()].iter().map(|u| ends[u.index()]);
        let end = match of_users.next() {
            Some(first) if !kept[value.index()] && of_users.all(|e| e == first) => first,
            _ => None,
        };
        ends[value.index()] = end.or(rounds.then_some(value));
    }
    ends
}

/// The ends of expressions with a function in them that round more than once.
fn worthwhile(graph: &Graph, ends: &[Option<ValueId>]) -> FxHashSet<ValueId> {
    let mut parts: FxHashMap<ValueId, (usize, bool)> = FxHashMap::default();
    for (value, end) in graph.values().zip(ends) {
        let Some(end) = end else { continue };
        let node = graph.node(value);
        let (roundings, functions) = parts.entry(*end).or_default();
        *roundings += usize::from(rounds(node));
        *functions |= is_function(&node.op) || matches!(node.op, Op::Fused(_));
    }
    parts.into_iter().filter(|(_, (roundings, functions))| *roundings > 1 && *functions).map(|(end, _)| end).collect()
}

/// Does each element of the result come from those at its place, rounded to bf16?
fn rounds(node: &Node) -> bool {
    let elementwise = match &node.op {
        Op::Unary(_) | Op::Binary(_) | Op::Select => true,
        Op::Fused(fused) => {
            matches!(fused.kind, FusedKind::Sigmoid | FusedKind::Silu | FusedKind::Swiglu | FusedKind::ClampedSwiglu)
        }
        _ => false,
    };
    elementwise && node.ty.dtype == DType::BF16
}

/// Is it a condition on values of bf16?
fn compares(graph: &Graph, node: &Node) -> bool {
    let of_floats = || node.operands.iter().all(|&o| graph.ty(o).dtype == DType::BF16);
    match node.op {
        Op::Binary(op) => BinaryOp::is_comparison(op) && of_floats(),
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
    /// What stands for old values within expressions: their parts, and casts of what they read.
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
