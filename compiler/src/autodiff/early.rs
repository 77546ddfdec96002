//! The part of a backward graph that needs no gradient: what it makes again.
//!
//! ```text
//! backward   %o = attention %q, %k, %v        makes   %o = attention %q, %k, %v,  and output saved o
//!            %d.w = contract %o, %d.y    ──►  rest    %d.w = contract %o, %d.y                           %o: saved by `makes`
//! ```
//!
//! A stage that waits for a gradient can make it meanwhile. What crosses is a minimum cut: the fewest bytes from which the rest makes nothing dear
//! again. Elementwise work is done where it is read.
//!
//! Requires: a verified backward graph, after the last rewriting. Keeps: the values of its outputs bit for bit; the same value has the same name in
//! both graphs.

use super::cut::{self, Place};
use super::extract::{Needs, extract, reads};
use super::{values, with_saved};
use forebay_ir::verify::{render, verify};
use forebay_ir::{FusedKind, Graph, InputRole, Op, ValueId};

/// A backward graph in two parts.
#[derive(Clone, Debug)]
pub struct Early {
    /// Without gradients, from what the forward graph saved; its outputs are `Saved`.
    pub makes: Graph,
    /// All outputs of the backward graph.
    pub rest: Graph,
}

/// Products, attention of both kinds, rows of tokens and exchanges. Look-ups and inverted indices, which a backward graph has of its own, take less time than a program more.
fn is_worth_a_program(op: &Op) -> bool {
    match op {
        Op::Contract { .. } | Op::LinearAttention(_) => true,
        Op::Fused(fused) => matches!(fused.kind, FusedKind::Attention | FusedKind::Permute | FusedKind::Unpermute),
        Op::Comm(_) => !cut::is_cheap(op),
        _ => false,
    }
}

/// The two parts; none where nothing that takes long can be made without a gradient.
pub fn early(backward: &Graph) -> Option<Early> {
    let mut waits = vec![false; backward.nodes.len()];
    for input in backward.inputs.iter().filter(|i| i.role == InputRole::Grad) {
        waits[input.value.index()] = true;
    }
    for value in backward.values() {
        waits[value.index()] |= reads(backward, value).iter().any(|read| waits[read.index()]);
    }
    // A layer whose gradient is its own, that of a loss, has nothing to wait for.
    if !waits.contains(&true) {
        return None;
    }
    let place = |v| match &backward.node(v).op {
        Op::Input => Place::Before,
        _ if waits[v.index()] => Place::After,
        op if !cut::is_cheap(op) => Place::Before,
        _ => Place::Either,
    };
    // Inputs are there anyway. Beyond bytes, fewer tensors.
    let weight = |v| if backward.node(v).op == Op::Input { 0 } else { backward.bytes(v) * 16 + 1 };
    let mut made = cut::minimum_cut(backward, &place, &weight, &values(&backward.outputs));
    made.retain(|&v| backward.node(v).op != Op::Input);
    let name = &backward.name;
    let outputs = with_saved(backward, &[], &made);
    let makes = extract(backward, &format!("{name}_early"), &outputs, &[], Needs::UsedInputs, &|_| false);
    if !makes.values().any(|v| is_worth_a_program(&makes.node(v).op)) {
        return None;
    }
    let late = |v: ValueId| !waits[v.index()];
    let rest = extract(backward, &format!("{name}_rest"), &backward.outputs, &made, Needs::UsedInputs, &late);
    for graph in [&makes, &rest] {
        debug_assert!(
            verify(graph).is_ok(),
            "{}",
            verify(graph).map_or_else(|v| render(graph, &v), |()| String::new())
        );
    }
    Some(Early { makes, rest })
}
