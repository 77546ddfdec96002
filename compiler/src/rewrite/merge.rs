//! Horizontal merges: projections of one value as one projection.
//!
//! ```text
//! %q = contract %x, %wq over {d}             %w   = concat %wq, %wk {n, m -> all}
//! %k = contract %x, %wk over {d}      ==>    %all = contract %x, %w over {d}
//!                                            %q   = slice %all {all -> n: 0}, %k = slice %all {all -> m: 4}
//! ```
//!
//! No extraction can see this: each projection alone prefers to stay alone, and only together they read x once. So it is a search of its own: for each
//! value the projections of it, and the cost of the device decides. A product that is bound by its FLOPs gains nothing but launches, and the joined
//! weight has to be written each time; so it happens for many narrow projections of a long value, and not for wide ones.
//!
//! Keeps: every bit; the order of a sum depends on the summed axis alone.

use super::Options;
use forebay_ir::{AxisId, Extent, Graph, InputRole, Node, Op, Type, ValueId};

/// One projection.
struct Projection {
    value: ValueId,
    weight: ValueId,
    /// The weight's axes that are neither summed nor x's.
    own: Vec<AxisId>,
}

/// Merges the projections of each value where that is cheaper; returns their names.
pub(super) fn merge_projections(graph: &mut Graph, options: &Options) -> Vec<String> {
    let mut names = vec![];
    while let Some((merged, group)) = next(graph, options) {
        *graph = merged;
        names.extend(group);
    }
    names
}

fn next(graph: &Graph, options: &Options) -> Option<(Graph, Vec<String>)> {
    let mut seen: Vec<(ValueId, Vec<AxisId>)> = vec![];
    for value in graph.values() {
        let Some((x, over, _)) = projection(graph, value) else { continue };
        if seen.contains(&(x, over.clone())) {
            continue;
        }
        seen.push((x, over.clone()));
        let group = group(graph, value, x, &over);
        if group.len() < 2 {
            continue;
        }
        let apart: f64 = group.iter().map(|p| options.profile.seconds(graph, p.value)).sum();
        let (merged, made) = merged(graph, x, &over, &group);
        let together: f64 = made.iter().map(|&v| options.profile.seconds(&merged, v)).sum();
        if together < apart {
            return Some((merged, group.iter().map(|p| graph.node(p.value).name.clone()).collect()));
        }
    }
    None
}

/// x, the summed axes and the rest, of a contraction of a value with a weight.
fn projection(graph: &Graph, value: ValueId) -> Option<(ValueId, Vec<AxisId>, Projection)> {
    let node = graph.node(value);
    let Op::Contract { over } = &node.op else { return None };
    let [a, b] = node.operands[..] else { return None };
    let (x, weight) = match (is_weight(graph, a), is_weight(graph, b)) {
        (false, true) => (a, b),
        (true, false) => (b, a),
        _ => return None,
    };
    let own = |axis: &AxisId| !over.contains(axis) && !graph.ty(x).has(*axis);
    let own: Vec<AxisId> = graph.ty(weight).axes.iter().copied().filter(own).collect();
    let side_by_side = !own.is_empty() && graph.ty(weight).axes.windows(own.len()).any(|w| w == own);
    side_by_side.then(|| (x, over.clone(), Projection { value, weight, own }))
}

fn is_weight(graph: &Graph, value: ValueId) -> bool {
    match graph.node(value).op {
        Op::Input => graph.inputs.iter().any(|i| i.value == value && i.role == InputRole::Param),
        Op::Cast(_) => is_weight(graph, graph.node(value).operands[0]),
        _ => false,
    }
}

/// The projections of x like `first`: weights that differ in their own axes only, and are there when the first one is computed.
fn group(graph: &Graph, first: ValueId, x: ValueId, over: &[AxisId]) -> Vec<Projection> {
    let shape = |p: &Projection| -> (Vec<Option<AxisId>>, Type) {
        let ty = graph.ty(p.weight);
        let mut axes: Vec<Option<AxisId>> = ty.axes.iter().map(|a| (!p.own.contains(a)).then_some(*a)).collect();
        axes.dedup_by(|a, b| a.is_none() && b.is_none());
        (axes, Type::new(ty.dtype, []))
    };
    let Some((.., like)) = projection(graph, first) else { return vec![] };
    let like = shape(&like);
    graph
        .values()
        .filter_map(|v| projection(graph, v))
        .filter(|(y, summed, p)| *y == x && summed == over && p.weight < first && shape(p) == like)
        .map(|(.., p)| p)
        .collect()
}

/// The graph with one projection, and the nodes that are to be paid for: the joined weight and the product. Slices are views.
fn merged(graph: &Graph, x: ValueId, over: &[AxisId], group: &[Projection]) -> (Graph, Vec<ValueId>) {
    let mut new = graph.like(graph.name.clone());
    let mut moved: Vec<ValueId> = Vec::with_capacity(graph.nodes.len());
    let mut parts: Vec<(AxisId, u64)> = vec![];
    let mut made = vec![];
    let mut all = None;
    for value in graph.values() {
        let node = graph.node(value);
        if let Some(number) = group.iter().position(|p| p.value == value) {
            if all.is_none() {
                let whole = product(graph, &mut new, &moved, x, over, group, &mut parts);
                made = vec![whole.0, whole.1];
                all = Some((whole.1, whole.2));
            }
            let (product, axis) = all.expect("just made");
            let part = slice(graph, &mut new, (product, axis), parts[number], &group[number]);
            moved.push(in_order(&mut new, part, node));
            continue;
        }
        let operands = node.operands.iter().map(|o| moved[o.index()]).collect();
        moved.push(new.push(node.op.clone(), operands, node.ty.clone(), &node.name));
    }
    new.interface_of(graph, &moved);
    (new, made)
}

/// The joined weight, the product with it, and the axis of all parts.
fn product(
    graph: &Graph,
    new: &mut Graph,
    moved: &[ValueId],
    x: ValueId,
    over: &[AxisId],
    group: &[Projection],
    parts: &mut Vec<(AxisId, u64)>,
) -> (ValueId, ValueId, AxisId) {
    let mut weights = vec![];
    let mut total = 0;
    for p in group {
        let size: u64 = p.own.iter().map(|&a| graph.size(a)).product();
        let part = new.add_axis("part", Extent::Fixed(size), None);
        let weight = moved[p.weight.index()];
        let op = match p.own[..] {
            [from] => Op::Rename { from, to: part },
            _ => Op::Merge { from: p.own.clone(), into: part },
        };
        weights.push(new.add(op, &[weight], "part").expect("the axes stand side by side"));
        parts.push((part, total));
        total += size;
    }
    let axis = new.add_axis("parts", Extent::Fixed(total), None);
    let from = parts.iter().map(|p| p.0).collect();
    let joined = new.add(Op::Concat { from, into: axis }, &weights, "parts").expect("weights of one shape");
    let product = new
        .add(Op::Contract { over: over.to_vec() }, &[moved[x.index()], joined], "projections")
        .expect("as each weight alone");
    (joined, product, axis)
}

fn slice(
    graph: &Graph,
    new: &mut Graph,
    (product, axis): (ValueId, AxisId),
    (part, start): (AxisId, u64),
    p: &Projection,
) -> ValueId {
    let name = &graph.node(p.value).name;
    let slice = Op::Slice { from: axis, into: part, start };
    let slice = new.add(slice, &[product], name).expect("a part of the whole");
    let op = match p.own[..] {
        [to] => Op::Rename { from: part, to },
        _ => Op::Split { from: part, into: p.own.clone() },
    };
    new.add(op, &[slice], name).expect("the axes that it had")
}

fn in_order(new: &mut Graph, value: ValueId, node: &Node) -> ValueId {
    match new.ty(value).axes == node.ty.axes {
        true => value,
        false => new.add_ordered(Op::Reorder, &[value], &node.ty.axes, &node.name).expect("the same axes"),
    }
}
