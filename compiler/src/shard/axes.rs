//! Which axes of which parameters ranks share.
//!
//! Found from what the graph does with an axis, not from what it is called:
//!
//! * experts: an axis that owns ragged rows, in the parameters that these rows meet — cut by `ep`;
//! * inner axes: made by one product with parameters, summed by another, and in between nothing looks across them — heads, hidden widths, the
//!   vocabulary — cut by `tp`, in experts by `etp`. Of several that meet in a parameter the one with most parameters wins.

use super::divisors::{divisors, listed};
use super::layout::Layout;
use super::mesh::{Dense, Mesh, Sparse};
use super::strategy::StrategyError;
use forebay_ir::{AxisId, Graph, InputRole, Op, OutputRole, ReduceKind, ValueId};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// Is it the axis of a row's positions?
pub(super) fn is_positions(graph: &Graph, axis: AxisId) -> bool {
    graph.axis(axis).label.as_deref() == Some("seq")
}

/// For each value: is it a parameter, or one under another type or name?
pub(crate) fn weights(graph: &Graph) -> Vec<Option<ValueId>> {
    let mut of: Vec<Option<ValueId>> = vec![None; graph.nodes.len()];
    for input in graph.inputs.iter().filter(|i| i.role == InputRole::Param) {
        of[input.value.index()] = Some(input.value);
    }
    for value in graph.values() {
        let node = graph.node(value);
        if let Op::Cast(_) | Op::Reorder | Op::Detach | Op::Rename { .. } = node.op {
            of[value.index()] = of[node.operands[0].index()];
        }
    }
    of
}

/// The layout of each parameter of a segment's forward graph.
pub(super) fn parameters(graph: &Graph, mesh: &Mesh) -> Result<BTreeMap<ValueId, Layout>, StrategyError> {
    let finder = Finder { graph, mesh, weights: weights(graph), params: params(graph) };
    let mut layouts: BTreeMap<ValueId, Layout> = finder.params.iter().map(|&p| (p, Layout::default())).collect();
    let experts = finder.experts(&mut layouts)?;
    let (dense, sparse): (Vec<ValueId>, Vec<ValueId>) = finder.params.iter().partition(|p| !experts.contains(p));
    finder.inner(&dense, &mesh.dense(Dense::Tp), "tp", &mut layouts)?;
    finder.inner(&sparse, &mesh.sparse(Sparse::Etp), "etp", &mut layouts)?;
    Ok(layouts)
}

fn params(graph: &Graph) -> Vec<ValueId> {
    graph.inputs.iter().filter(|i| i.role == InputRole::Param).map(|i| i.value).collect()
}

struct Finder<'a> {
    graph: &'a Graph,
    mesh: &'a Mesh,
    weights: Vec<Option<ValueId>>,
    params: Vec<ValueId>,
}

impl Finder<'_> {
    /// Cuts the parameters that rows of experts meet; returns them.
    fn experts(&self, layouts: &mut BTreeMap<ValueId, Layout>) -> Result<FxHashSet<ValueId>, StrategyError> {
        let (graph, dims) = (self.graph, self.mesh.sparse(Sparse::Ep));
        let ep = self.mesh.ranks(&dims);
        let mut experts = FxHashSet::default();
        for value in graph.values() {
            let node = graph.node(value);
            let Some(ragged) = graph.ragged_axis(&node.ty.axes) else { continue };
            let parent = graph.ragged_parent(ragged).expect("ragged axes have parents");
            let meets = |o: &&ValueId| graph.ty(**o).has(parent) && !graph.ty(**o).has(ragged);
            for param in node.operands.iter().filter(meets).filter_map(|o| self.weights[o.index()]) {
                let n = graph.size(parent);
                if n % ep != 0 {
                    return Err(self.indivisible(parent, "experts", n, "ep", ep));
                }
                if ep > 1 {
                    let layout = layouts.remove(&param).unwrap_or_default();
                    layouts.insert(param, layout.with(parent, &dims));
                }
                experts.insert(param);
            }
        }
        Ok(experts)
    }

    /// Cuts inner axes of these parameters, the ones with most elements first.
    fn inner(
        &self,
        params: &[ValueId],
        dims: &[u32],
        degree: &str,
        layouts: &mut BTreeMap<ValueId, Layout>,
    ) -> Result<(), StrategyError> {
        let ranks = self.mesh.ranks(dims);
        if ranks == 1 {
            return Ok(());
        }
        let mut candidates: Vec<(AxisId, Vec<ValueId>)> = vec![];
        for &param in params {
            for &axis in self.graph.ty(param).axes.iter().filter(|a| self.is_inner(**a)) {
                match candidates.iter_mut().find(|(a, _)| *a == axis) {
                    Some((_, of)) => of.push(param),
                    None => candidates.push((axis, vec![param])),
                }
            }
        }
        let elements = |of: &[ValueId]| of.iter().map(|&p| self.graph.numel(self.graph.ty(p))).sum::<u64>();
        // A stable sort: of equals the one that comes first in the parameters.
        candidates.sort_by_key(|(_, of)| std::cmp::Reverse(elements(of)));
        let mut refused: Vec<AxisId> = vec![];
        let mut taken: FxHashSet<ValueId> = FxHashSet::default();
        for (axis, of) in &candidates {
            if of.iter().any(|p| taken.contains(p)) {
                continue;
            }
            if !self.graph.size(*axis).is_multiple_of(ranks) {
                refused.push(*axis);
                continue;
            }
            for param in of {
                let layout = layouts.remove(param).unwrap_or_default();
                layouts.insert(*param, layout.with(*axis, dims));
                taken.insert(*param);
            }
        }
        // A matrix that could have been shared if only its axis were divisible.
        for &axis in &refused {
            let of = &candidates.iter().find(|(a, _)| *a == axis).expect("a candidate").1;
            let left_whole = of.iter().filter(|p| self.graph.ty(**p).axes.len() > 1).all(|p| !taken.contains(p));
            if left_whole {
                return Err(self.indivisible(axis, "elements", self.graph.size(axis), degree, ranks));
            }
        }
        Ok(())
    }

    fn indivisible(&self, axis: AxisId, what: &str, n: u64, degree: &str, ranks: u64) -> StrategyError {
        let works: Vec<u64> = divisors(n).into_iter().skip(1).take(8).collect();
        let name = &self.graph.axis(axis).name;
        let label = self.graph.axis(axis).label.as_ref().filter(|l| *l != name);
        let label = label.map(|l| format!(" ({l})")).unwrap_or_default();
        StrategyError::new(
            format!(
                "axis `{name}`{label} of `{}` has {n} {what}, which do not divide over {degree} = {ranks}",
                self.graph.name
            ),
            Some(format!("use {degree} = {}", if works.is_empty() { "1".to_string() } else { listed(&works) })),
        )
    }

    /// Does nothing between the products that make the axis and those that sum it look across it?
    fn is_inner(&self, axis: AxisId) -> bool {
        let graph = self.graph;
        let carried = |v: ValueId| graph.ty(v).has(axis);
        let on_border = graph.inputs.iter().any(|i| i.role == InputRole::Carry && carried(i.value))
            || graph.outputs.iter().any(|o| o.role == OutputRole::Carry && carried(o.value));
        if on_border || graph.is_ragged(axis) || graph.values().any(|v| self.owns_rows(axis, v)) {
            return false;
        }
        let mut is_used = false;
        graph.values().all(|value| {
            let node = graph.node(value);
            let touches = node.ty.has(axis) || node.operands.iter().any(|&o| graph.ty(o).has(axis));
            if !touches || self.weights[value.index()].is_some() {
                return !matches!(node.op, Op::Rename { from, to } if from == axis || to == axis);
            }
            is_used = true;
            self.keeps_apart(axis, value)
        }) && is_used
    }

    fn owns_rows(&self, axis: AxisId, value: ValueId) -> bool {
        let ragged = self.graph.ragged_axis(&self.graph.ty(value).axes);
        ragged.is_some_and(|r| self.graph.ragged_parent(r) == Some(axis))
    }

    /// Does the op work on each element of the axis by itself, or sum over it?
    fn keeps_apart(&self, axis: AxisId, value: ValueId) -> bool {
        let graph = self.graph;
        let node = graph.node(value);
        let weight = |i: usize| self.weights[node.operands[i].index()].is_some();
        match &node.op {
            Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_) | Op::Detach | Op::Reorder => true,
            Op::Contract { over } => !over.contains(&axis) || weight(0) || weight(1),
            Op::Reduce { kind: ReduceKind::Sum, .. } => true,
            Op::Reduce { over, .. } => !over.contains(&axis) || self.is_only_detached(value),
            Op::Gather { .. } => true,
            Op::TopK { axis: a, into } => ![a, into].contains(&&axis),
            Op::Rename { from, to } => ![from, to].contains(&&axis),
            Op::Split { from, into } => *from != axis && !into.contains(&axis),
            Op::Merge { from, into } => !from.contains(&axis) && *into != axis,
            Op::Scan { axis: a, .. } => *a != axis,
            Op::LinearAttention(op) => op.axis != axis && !op.over.contains(&axis),
            Op::Take { axis: a, .. } => *a != axis,
            Op::Slice { from, into, .. } | Op::Pad { from, into, .. } => ![from, into].contains(&&axis),
            Op::Stack(a) => *a != axis,
            Op::Concat { from, into } => !from.contains(&axis) && *into != axis,
            Op::ScatterAdd { axis: a, .. } => *a != axis,
            Op::Input
            | Op::Const(_)
            | Op::Iota(_)
            | Op::Random { .. }
            | Op::Broadcast(_)
            | Op::Group { .. }
            | Op::Offsets { .. }
            | Op::Invert
            | Op::Fused(_)
            | Op::Comm(_) => false,
        }
    }

    /// A maximum of which nothing but a constant is made: it has no gradient that ranks would have to share.
    fn is_only_detached(&self, value: ValueId) -> bool {
        let readers = |v: &ValueId| self.graph.node(*v).operands.contains(&value);
        self.graph.values().filter(readers).all(|v| self.graph.node(v).op == Op::Detach)
    }
}
