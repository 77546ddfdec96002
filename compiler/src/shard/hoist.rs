//! Gradients that wait, and gatherings that are used for different work.
//!
//! ```text
//! param %gain                             param %gain          // its gradient is a sum over tp, made once at the end of the step
//! %g = vary %gain on tp             ==>
//! … %g …                                  … %gain …
//!
//! %w = unshard %x {seq_tp -> seq} on tp
//! %v = vary %w on tp                ==>   %v = all_gather %x {seq_tp -> seq} on tp     // its gradient: one reduce_scatter
//!
//! %r = gather %x at %token {n}            %v = vary %x on etp                          // gradients meet as tokens, not as their copies for experts
//! %v = vary %r on etp               ==>   %r = gather %v at %token {n}
//!
//! %f = cast %k : f32                      %v = vary %k on tp                           // a score reads a cast, which its fused form looks through
//! %v = vary %f on tp                ==>   %f = cast %v : f32
//! ```

use forebay_ir::{Comm, CommKind, Graph, InputRole, Op, ValueId};

/// What has changed.
pub(super) struct Hoisted {
    /// For each parameter, in order, the dimensions over which its gradient is now a sum.
    pub varied: Vec<Vec<u32>>,
    /// The `unshard` values that have become an `all_gather`, as they were numbered before.
    pub gathered: Vec<ValueId>,
    /// For each value as it was numbered before: is it still there?
    pub live: Vec<bool>,
}

pub(super) fn hoist(graph: &mut Graph) -> Hoisted {
    let mut users = graph.users();
    for value in graph.values().rev().collect::<Vec<_>>() {
        if vary_before(graph, value, &users[value.index()]) {
            users = graph.users();
        }
    }
    let params: Vec<ValueId> = graph.inputs.iter().filter(|i| i.role == InputRole::Param).map(|i| i.value).collect();
    let varied = params.iter().map(|&p| strip(graph, p, &users[p.index()], None)).collect();
    let users = graph.users();
    let mut gathered = vec![];
    for value in graph.values().collect::<Vec<_>>() {
        let Op::Comm(comm) = graph.node(value).op.clone() else { continue };
        let CommKind::Unshard { from, into } = comm.kind else { continue };
        if strip(graph, value, &users[value.index()], Some(&comm.group)).is_empty() {
            continue;
        }
        graph.nodes[value.index()].op =
            Op::Comm(Box::new(Comm { group: comm.group, kind: CommKind::AllGather { from, into } }));
        gathered.push(value);
    }
    let live = graph.prune().iter().map(Option::is_some).collect();
    Hoisted { varied, gathered, live }
}

/// Lets a value's operand vary instead of the value, where all that reads it is a `vary` and the operand is not larger: sums of gradients pass
/// through an op that is linear in it. Returns whether it did.
fn vary_before(graph: &mut Graph, value: ValueId, readers: &[ValueId]) -> bool {
    let node = graph.node(value);
    let moves = match &node.op {
        Op::Merge { .. }
        | Op::Split { .. }
        | Op::Rename { .. }
        | Op::Reorder
        | Op::Broadcast(_)
        | Op::Gather { .. } => true,
        // Gradients then meet in the narrow type, as those of what is narrow anyway do.
        Op::Cast(_) => graph.ty(node.operands[0]).dtype.is_float(),
        Op::Comm(comm) => matches!(comm.kind, CommKind::Dispatch { .. }),
        _ => false,
    };
    if !moves || !node.ty.dtype.is_float() || graph.bytes(node.operands[0]) > graph.bytes(value) {
        return false;
    }
    let [first, others @ ..] = readers else { return false };
    let is_vary = matches!(&graph.node(*first).op, Op::Comm(comm) if comm.kind == CommKind::Vary);
    let is_alike = |v: &ValueId| graph.node(*v).op == graph.node(*first).op;
    if !is_vary || !others.iter().all(is_alike) || graph.outputs.iter().any(|o| o.value == value) {
        return false;
    }
    for &other in others {
        replace(graph, other, *first);
    }
    // The two change places: what stood at the first reader still does, with the value's type.
    let operand = graph.node(value).operands[0];
    let vary = graph.node(*first).op.clone();
    let (ty, of_operand) = (graph.ty(value).clone(), graph.ty(operand).clone());
    let (op, mut operands) = (graph.node(value).op.clone(), graph.node(value).operands.clone());
    operands[0] = value;
    let before = &mut graph.nodes[value.index()];
    (before.op, before.operands, before.ty) = (vary, vec![operand], of_operand);
    let after = &mut graph.nodes[first.index()];
    (after.op, after.operands, after.ty) = (op, operands, ty);
    let name = std::mem::take(&mut after.name);
    graph.nodes[first.index()].name = std::mem::replace(&mut graph.nodes[value.index()].name, name);
    true
}

/// Takes out of all readers of a value, if each is a `vary`, the dimensions that they have in common: exactly `only`, when that is given. Returns
/// them.
fn strip(graph: &mut Graph, value: ValueId, readers: &[ValueId], only: Option<&[u32]>) -> Vec<u32> {
    let is_output = graph.outputs.iter().any(|o| o.value == value);
    let group = |v: &ValueId| match &graph.node(*v).op {
        Op::Comm(comm) if comm.kind == CommKind::Vary => Some(comm.group.clone()),
        _ => None,
    };
    let Some(groups) = readers.iter().map(group).collect::<Option<Vec<_>>>().filter(|_| !is_output) else {
        return vec![];
    };
    let Some(mut common) = groups.first().cloned() else { return vec![] };
    common.retain(|d| groups.iter().all(|g| g.contains(d)));
    if let Some(only) = only {
        if !only.iter().all(|d| common.contains(d)) {
            return vec![];
        }
        common = only.to_vec();
    }
    for &reader in readers {
        let Op::Comm(comm) = &mut graph.nodes[reader.index()].op else { unreachable!("just seen") };
        comm.group.retain(|d| !common.contains(d));
        if comm.group.is_empty() {
            replace(graph, reader, value);
        }
    }
    common
}

/// Lets everything that reads `old` read `new`.
fn replace(graph: &mut Graph, old: ValueId, new: ValueId) {
    graph.nodes.iter_mut().flat_map(|n| &mut n.operands).filter(|o| **o == old).for_each(|o| *o = new);
    graph.outputs.iter_mut().filter(|o| o.value == old).for_each(|o| o.value = new);
    // What nothing reads is pruned; until then it has to be a legal node.
    graph.nodes[old.index()].op = Op::Detach;
}
