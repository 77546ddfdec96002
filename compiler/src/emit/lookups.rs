//! Brings looked-up values and what is computed from them together, so that one region can do both.
//!
//! ```text
//! %w = cast %x, %y = gather %w at %i             %g = gather %x at %i, %y = cast %g
//!
//! %g = gather %x at %i : [t, k, d]               %i0 = take %i 0, %g0 = gather %x at %i0, %m0 = mul …
//! %m = mul %g, %share                    ==>     %i1 = take %i 1, %g1 = gather %x at %i1, %m1 = mul …
//! %y = sum %m over {k}                           %y = add %m0, %m1
//! ```
//!
//! Requires: a graph without fused ops that bodies stand for. Keeps: values bit for bit (but for the sign of a sum of zeros): sums are added up in the
//! order of the runtime's reductions. Cost: linear in nodes, those that are copied included.

use super::units::MAX_MEMBERS;
use forebay_ir::{AxisId, BinaryOp, DType, Graph, Op, ReduceKind, Type, ValueId};

/// Sums of more terms are a reduction's.
const MAX_TERMS: u64 = 16;

/// The graph with gathers before elementwise ops, and short sums of looked-up values term by term.
pub(super) fn brought_together(graph: Graph) -> Graph {
    if !graph.nodes.iter().any(|n| matches!(n.op, Op::Gather { .. })) {
        return graph;
    }
    term_by_term(&gathered_first(&graph))
}

/// Copies nodes of one graph to another; passes replace some on the way.
struct Copy<'g> {
    old: &'g Graph,
    new: Graph,
    moved: Vec<ValueId>,
    users: Vec<Vec<ValueId>>,
}

impl<'g> Copy<'g> {
    /// Copies all nodes, those in their own way for which `special` gives a value.
    fn all(old: &'g Graph, special: impl Fn(&mut Copy, ValueId) -> Option<ValueId>) -> Graph {
        let users = old.users();
        let mut copy = Copy { old, new: old.like(old.name.clone()), moved: Vec::with_capacity(old.nodes.len()), users };
        for value in old.values() {
            let moved = special(&mut copy, value).unwrap_or_else(|| {
                let node = old.node(value);
                let operands = node.operands.iter().map(|o| copy.moved[o.index()]).collect();
                copy.new.push(node.op.clone(), operands, node.ty.clone(), &node.name)
            });
            copy.moved.push(moved);
        }
        let Copy { mut new, moved, .. } = copy;
        let at = |v: ValueId| moved[v.index()];
        new.inputs = old.inputs.clone();
        new.inputs.iter_mut().for_each(|i| i.value = at(i.value));
        new.outputs = old.outputs.clone();
        new.outputs.iter_mut().for_each(|o| o.value = at(o.value));
        new.offsets = old.offsets.iter().map(|&(a, v)| (a, at(v))).collect();
        new.prune();
        new
    }

    fn is_output(&self, value: ValueId) -> bool {
        self.old.outputs.iter().any(|o| o.value == value)
    }

    fn push(&mut self, op: Op, operands: Vec<ValueId>, like: ValueId, axes: Vec<AxisId>) -> ValueId {
        let node = self.old.node(like);
        self.new.push(op, operands, Type::new(node.ty.dtype, axes), &node.name)
    }
}

/// A function of the elements at one place, without a say in where that is.
fn is_pointwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_))
}

/// Gathers of what is computed element by element, and is in no memory otherwise, become computations of what is gathered.
fn gathered_first(graph: &Graph) -> Graph {
    Copy::all(graph, |copy, value| {
        let Op::Gather { axis } = graph.node(value).op else { return None };
        let x = graph.node(value).operands[0];
        copy.computes_later(x, axis, value).then(|| copy.gathered(x, axis, value))
    })
}

impl Copy<'_> {
    /// May `x` be computed after the gather `gather`, rather than before?
    fn computes_later(&self, x: ValueId, axis: AxisId, gather: ValueId) -> bool {
        let node = self.old.node(x);
        let parent = self.old.ragged_parent(axis);
        let of_groups = |o: &ValueId| {
            let ty = self.old.ty(*o);
            !ty.has(axis) && parent.is_some_and(|p| ty.has(p))
        };
        let in_regions = |user: &ValueId| match &self.old.node(*user).op {
            Op::Gather { .. } => self.old.node(*user).operands[1] != x,
            Op::Reduce { over, .. } => node.ty.axes.iter().rev().take(over.len()).all(|a| over.contains(a)),
            op => is_pointwise(op),
        };
        let no_more_work = self.old.numel(self.old.ty(gather)) <= self.old.numel(&node.ty);
        // What was left out is 0, not the function of 0.
        let zero_stays = !self.old.leaves_out(axis) || matches!(node.op, Op::Cast(_));
        is_pointwise(&node.op)
            && zero_stays
            && node.ty.has(axis)
            && (no_more_work || matches!(node.op, Op::Cast(_)))
            && !node.operands.iter().any(of_groups)
            && !self.is_output(x)
            && self.users[x.index()].iter().all(in_regions)
    }

    /// What `gather` gives when it looks up `x`.
    fn gathered(&mut self, x: ValueId, axis: AxisId, gather: ValueId) -> ValueId {
        let node = self.old.node(x);
        let index = self.moved[self.old.node(gather).operands[1].index()];
        if !node.ty.has(axis) {
            return self.moved[x.index()];
        }
        if !self.computes_later(x, axis, gather) {
            let operands = [self.moved[x.index()], index];
            let name = &self.old.node(gather).name;
            return self.new.add(Op::Gather { axis }, &operands, name).expect("an operand of what was gathered");
        }
        let operands: Vec<ValueId> = node.operands.iter().map(|&o| self.gathered(o, axis, gather)).collect();
        let wanted = self.old.ty(gather);
        let have = |a: &AxisId| operands.iter().any(|&o| self.new.ty(o).has(*a));
        let axes = wanted.axes.iter().copied().filter(have).collect();
        self.push(node.op.clone(), operands, x, axes)
    }
}

/// Sums over few terms of looked-up values become sums of as many values.
fn term_by_term(graph: &Graph) -> Graph {
    Copy::all(graph, |copy, value| {
        let node = graph.node(value);
        let Op::Reduce { kind: ReduceKind::Sum, over } = &node.op else { return None };
        let operand = node.operands[0];
        let axes: Vec<AxisId> = graph.ty(operand).axes.iter().copied().filter(|a| over.contains(a)).collect();
        let terms: u64 = axes.iter().map(|&a| graph.size(a)).product();
        let innermost = graph.ty(operand).axes.ends_with(&axes);
        let ragged = graph.ragged_axis(over).is_some();
        if innermost || ragged || !(1..=MAX_TERMS).contains(&terms) {
            return None;
        }
        let tree = Tree::of(copy, operand, over)?;
        // Each term's own nodes, its addition, and its cast.
        let each = tree.nodes + 1 + usize::from(node.ty.dtype == DType::BF16);
        let fits = tree.gathers > 0 && each * terms as usize <= MAX_MEMBERS;
        if !fits {
            return None;
        }
        let sizes: Vec<u64> = axes.iter().map(|&a| graph.size(a)).collect();
        let mut values = vec![];
        for mut number in 0..terms {
            // Row-major: the last axis counts first.
            let mut at: Vec<(AxisId, u64)> = vec![];
            for (&axis, &size) in axes.iter().zip(&sizes).rev() {
                at.push((axis, number % size));
                number /= size;
            }
            values.push(copy.term(&tree, operand, &at));
        }
        Some(copy.sum(values, value))
    })
}

/// What is computed for one sum alone.
struct Tree {
    /// The nodes that are computed for each term.
    own: Vec<ValueId>,
    nodes: usize,
    gathers: usize,
}

impl Tree {
    /// `None` when something as large as the operand is used elsewhere as well, and so is in memory or in another region.
    fn of(copy: &Copy, operand: ValueId, over: &[AxisId]) -> Option<Tree> {
        let mut tree = Tree { own: vec![], nodes: 0, gathers: 0 };
        let mut stack = vec![operand];
        while let Some(value) = stack.pop() {
            let node = copy.old.node(value);
            let alone = copy.users[value.index()].len() == 1 && !copy.is_output(value);
            let gathers = matches!(node.op, Op::Gather { .. });
            if !node.ty.axes.iter().any(|a| over.contains(a)) || tree.own.contains(&value) {
                continue;
            }
            if alone && (gathers || is_pointwise(&node.op)) {
                tree.own.push(value);
                tree.nodes += usize::from(!gathers);
                tree.gathers += usize::from(gathers);
                stack.extend(&node.operands);
            } else if node.op.is_elementwise() && node.ty.axes.len() == copy.old.ty(operand).axes.len() {
                return None;
            }
        }
        Some(tree)
    }
}

impl Copy<'_> {
    /// A value at positions of the summed axes.
    fn term(&mut self, tree: &Tree, value: ValueId, at: &[(AxisId, u64)]) -> ValueId {
        let node = self.old.node(value);
        let here: Vec<(AxisId, u64)> = at.iter().copied().filter(|(a, _)| node.ty.has(*a)).collect();
        if !tree.own.contains(&value) {
            let moved = self.moved[value.index()];
            let take = |new: &mut Graph, from, (axis, index)| {
                new.add(Op::Take { axis, index }, &[from], &node.name).expect("the value has the axis")
            };
            return here.into_iter().fold(moved, |from, at| take(&mut self.new, from, at));
        }
        let operands = node.operands.iter().map(|&o| self.term(tree, o, at)).collect();
        let axes = node.ty.axes.iter().copied().filter(|a| !here.iter().any(|(b, _)| a == b)).collect();
        self.push(node.op.clone(), operands, value, axes)
    }

    /// The sum as reductions do it (`runtime/src/kernels/rows.rs`): as many lanes as the next power of two, folded in halves; bf16 in f32, rounded once.
    fn sum(&mut self, mut values: Vec<ValueId>, sum: ValueId) -> ValueId {
        let ty = self.old.ty(sum).clone();
        let narrow = ty.dtype == DType::BF16;
        let wide = Type::new(if narrow { DType::F32 } else { ty.dtype }, ty.axes.clone());
        let name = &self.old.node(sum).name;
        let partial = format!("{name}.part");
        if narrow {
            let widen = |v: &mut ValueId| *v = self.new.push(Op::Cast(DType::F32), vec![*v], wide.clone(), &partial);
            values.iter_mut().for_each(widen);
        }
        let mut half = values.len().next_power_of_two() / 2;
        while half > 0 {
            for i in half..values.len() {
                let pair = vec![values[i - half], values[i]];
                let name = if values.len() == 2 && !narrow { name } else { &partial };
                values[i - half] = self.new.push(Op::Binary(BinaryOp::Add), pair, wide.clone(), name);
            }
            values.truncate(half);
            half /= 2;
        }
        if narrow { self.new.push(Op::Cast(DType::BF16), values, ty, name) } else { values[0] }
    }
}
