//! What `explain --sharding` says of exchanges that were taken apart.

use crate::shard::Note;
use forebay_ir::{Comm, CommKind, Graph, Op, ValueId};

/// Puts the collectives of a decomposed graph in the place of those that they stand for.
pub(super) fn renew(notes: &mut Vec<Note>, graph: &Graph, outer: &[u32]) {
    let whole = |note: &Note| {
        let rows = matches!(note.collective, "dispatch" | "combine" | "all_to_all");
        rows && note.group.starts_with(outer)
    };
    let Some(first) = notes.iter().position(whole) else { return };
    let group = notes[first].group.clone();
    let inner = &group[outer.len()..];
    notes.retain(|note| !whole(note));
    let users = graph.users();
    let new = graph.values().filter_map(|value| match &graph.node(value).op {
        Op::Comm(comm) => note(graph, value, comm, (outer, inner), users[value.index()].first().copied()),
        _ => None,
    });
    let new: Vec<Note> = new.collect();
    notes.splice(first..first, new);
}

/// The note of a collective between nodes, or of rows within one.
fn note(
    graph: &Graph,
    value: ValueId,
    comm: &Comm,
    (outer, inner): (&[u32], &[u32]),
    reader: Option<ValueId>,
) -> Option<Note> {
    let node = graph.node(value);
    let operand = *node.operands.first()?;
    let others = comm.ranks(graph) - 1;
    // Of rows that there is room for, those of an even choice.
    let even = |v: ValueId| {
        let ragged = graph.ragged_axis(&graph.ty(v).axes);
        ragged.map_or(graph.bytes(v), |r| graph.bytes(v) / graph.size(r).max(1) * graph.even_size(r))
    };
    let part = |bytes: u64| bytes / comm.ranks(graph) * others;
    let target = if inner.is_empty() { "rank" } else { "node" };
    let (before, after, bytes) = match comm.kind {
        CommKind::AllGather { .. } | CommKind::Unshard { .. } if comm.group == outer => {
            ("own tokens".to_string(), format!("tokens of all {target}s"), graph.bytes(operand) * others)
        }
        CommKind::ReduceScatter { .. } if comm.group == outer => {
            (format!("sums of a {target}"), "sums of own tokens".to_string(), part(graph.bytes(operand)))
        }
        CommKind::AllToAll { .. } if comm.group == inner && !node.ty.dtype.is_float() => {
            let before = "own counts of the node's experts".to_string();
            (before, "all counts of own experts".to_string(), part(graph.bytes(operand)))
        }
        CommKind::Dispatch { .. } if comm.group == outer => {
            (format!("by {target} with experts of a token"), "tokens that have come".to_string(), part(even(operand)))
        }
        CommKind::Combine { .. } if comm.group == outer => {
            (format!("sums of a {target}"), format!("by {target} with experts of a token"), part(even(value)))
        }
        CommKind::Dispatch { .. } if comm.group == inner => {
            ("by the node's experts".to_string(), "at experts".to_string(), part(even(operand)))
        }
        CommKind::Combine { .. } if comm.group == inner => {
            ("at experts".to_string(), "by the node's experts".to_string(), part(even(value)))
        }
        _ => return None,
    };
    Some(Note {
        value: graph.node(operand).name.clone(),
        collective: comm.name(),
        group: comm.group.clone(),
        layouts: (before, after),
        wanted_by: reader.map_or_else(String::new, |v| graph.node(v).name.clone()),
        bytes,
    })
}
