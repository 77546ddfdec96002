//! Reverse-mode differentiation of a segment.
//!
//! ```text
//! forward F:  %h = contract %x, %w over {d}
//!             %y = mul %h, %h
//!
//! forward F           … as before, and output saved h
//! backward B = I + W  %d.h       = mul (mul %d.y, 2), %h        %h: saved, %d.y: the gradient of the output y
//!   I                 %carry.x   = contract %d.h, %w over {f}   and output saved d.h
//!   W                 %param.w   = contract %x, %d.h over {t}   %d.h: saved by I
//! ```
//!
//! Three steps, each in its file: [`sweep`] appends the gradient to F in one joint graph; [`cut`] decides which values cross from one graph to
//! the next; `extract` pulls the graphs out of the joint one. In between, [`crate::simplify`] merges what forward and backward have in common.
//!
//! Requires: a verified forward graph, before sharding (gradients of replicated values become partial sums there).
//! Keeps: the values of F's outputs bit for bit, its inputs and their order; the same value has the same name in all four graphs, which share one
//! table of axes. Drops `detach`, which means nothing any more.
//! Costs: a minimum cut over the joint graph; milliseconds for thousands of nodes.
//!
//! Gradients of values are named `d.` and the value's name. Inputs and outputs of the backward graphs:
//!
//! | what | role | name |
//! |---|---|---|
//! | saved tensor | `Saved`, in and out | the value's own |
//! | gradient of a carry output of F | `Grad` input | `grad.` and the output's name: [`grad_input_name`] |
//! | gradient of a carry input of F | `Grad` output | `carry.` and the input's name |
//! | gradient of a parameter | `Grad` output | `param.` and the parameter's name |
//!
//! Inputs of F that the backward graphs need are their inputs too, in the same roles: they need no saving.
//! Every wanted gradient is an output, zeros where nothing flows. Losses count as they are: their gradient is 1.

pub mod cut;
mod early;
mod extract;
mod keep;
mod network;
mod sweep;

pub use early::{Early, early};
pub use keep::Keep;

use crate::simplify::simplify;
use cut::Place;
use extract::{Needs, extract};
use forebay_ir::verify::{render, verify};
use forebay_ir::{FusedKind, Graph, InputRole, Op, Output, OutputRole, Unit, ValueId};

/// What the caller decides about a differentiation.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The `Carry` inputs of F whose gradients are wanted, by name.
    pub carry_inputs: Vec<String>,
    /// The `Carry` outputs of F that have a gradient, by name.
    pub carry_outputs: Vec<String>,
    /// What F saves.
    pub keep: Keep,
}

impl Options {
    /// The same gradients, with this of the forward pass saved.
    pub fn keeping(self, keep: Keep) -> Options {
        Options { keep, ..self }
    }

    /// All carries that can have a gradient have one.
    pub fn all_floats(forward: &Graph) -> Options {
        let float = |v: ValueId| forward.ty(v).dtype.is_float();
        let inputs = forward.inputs.iter().filter(|i| i.role == InputRole::Carry && float(i.value));
        let outputs = forward.outputs.iter().filter(|o| o.role == OutputRole::Carry && float(o.value));
        Options {
            carry_inputs: inputs.map(|i| forward.node(i.value).name.clone()).collect(),
            carry_outputs: outputs.map(|o| o.name.clone()).collect(),
            keep: Keep::Fewest,
        }
    }
}

/// A segment with its backward graphs.
#[derive(Clone, Debug)]
pub struct Differentiated {
    /// F with `Saved` outputs.
    pub forward: Graph,
    /// B: all gradients.
    pub backward: Graph,
    /// I: gradients of carry inputs, and `Saved` outputs for W.
    pub backward_input: Graph,
    /// W: gradients of parameters. Its `Saved` inputs come from F or, where F has none of that name, from I.
    pub backward_weight: Graph,
}

/// The name of the backward graphs' input for the gradient of a carry output.
pub fn grad_input_name(carry_output: &str) -> String {
    format!("grad.{carry_output}")
}

/// Differentiates a segment.
///
/// # Panics
/// When the forward graph breaks a type rule, or `options` names a carry that does not exist.
pub fn differentiate(forward: &Graph, options: &Options) -> Differentiated {
    // First by itself: what forward computes twice would get two gradients, rounded one by one.
    let mut simple = forward.clone();
    simplify(&mut simple);
    let sweep::Joint { mut graph, backward } = sweep::sweep(&simple, options);
    let moved = simplify(&mut graph);
    let backward = carried_over(&graph, &backward, &moved);

    let (kept, grads): (Vec<Output>, Vec<Output>) =
        graph.outputs.iter().cloned().partition(|o| o.role != OutputRole::Grad);
    let saved = saved_for_backward(&graph, &kept, &grads, &backward, options.keep);
    let in_order = |_| false;
    let stem = forward.name.strip_suffix(".forward").unwrap_or(&forward.name);
    let forward = extract(&graph, &forward.name, &with_saved(&graph, &kept, &saved), &[], Needs::AllInputs, &in_order);
    let b = extract(&graph, &format!("{stem}.backward"), &grads, &saved, Needs::UsedInputs, &|v| !backward[v.index()]);

    let (carry, param): (Vec<Output>, Vec<Output>) =
        b.outputs.iter().cloned().partition(|o| o.name.starts_with("carry."));
    let handed = saved_for_weights(&b, &carry, &param);
    let i = extract(
        &b,
        &format!("{stem}.backward_input"),
        &with_saved(&b, &carry, &handed),
        &[],
        Needs::UsedInputs,
        &in_order,
    );
    let w = extract(&b, &format!("{stem}.backward_weight"), &param, &handed, Needs::UsedInputs, &in_order);
    for graph in [&forward, &b, &i, &w] {
        debug_assert!(
            verify(graph).is_ok(),
            "{}",
            verify(graph).map_or_else(|v| render(graph, &v), |()| String::new())
        );
    }
    Differentiated { forward, backward: b, backward_input: i, backward_weight: w }
}

/// Which values of the simplified graph depend on a gradient that comes from outside, or on a loss.
fn carried_over(graph: &Graph, backward: &[bool], moved: &[Option<ValueId>]) -> Vec<bool> {
    let mut now = vec![false; graph.nodes.len()];
    for (old, new) in moved.iter().enumerate() {
        let Some(new) = new else { continue };
        // A constant that a gradient was folded to is as good as any other constant.
        now[new.index()] |= backward[old] && !graph.node(*new).operands.is_empty();
    }
    for input in graph.inputs.iter().filter(|i| i.role == InputRole::Grad) {
        now[input.value.index()] = true;
    }
    // What merged with a value of F can be had from F.
    let kept: Vec<ValueId> = graph.outputs.iter().filter(|o| o.role != OutputRole::Grad).map(|o| o.value).collect();
    for value in extract::needed(graph, &kept, &[]) {
        now[value.index()] = false;
    }
    for value in graph.values() {
        now[value.index()] |= extract::reads(graph, value).iter().any(|r| now[r.index()]);
    }
    now
}

/// The values that go from F to B, inputs left out: the fewest bytes such that B computes no dear value of F again, and none that is kept.
fn saved_for_backward(graph: &Graph, kept: &[Output], grads: &[Output], backward: &[bool], keep: Keep) -> Vec<ValueId> {
    let mut in_forward = vec![false; graph.nodes.len()];
    for value in extract::needed(graph, &values(kept), &[]) {
        in_forward[value.index()] = true;
    }
    let asked = keep::asked_for(graph, backward, keep);
    let place = |v: ValueId| match &graph.node(v).op {
        _ if backward[v.index()] => Place::After,
        Op::Input => Place::Before,
        _ if in_forward[v.index()] && asked[v.index()] => Place::Before,
        // The forward kernel makes it on the way.
        Op::Fused(fused) if matches!(fused.kind, FusedKind::AttentionLse | FusedKind::LogSumExp) => Place::Before,
        op if in_forward[v.index()] && !cut::is_cheap(op) => Place::Before,
        _ => Place::Either,
    };
    // Inputs are there anyway. Beyond bytes, fewer tensors; then the tensor itself rather than a view, and what F makes in any case.
    let weight = |v: ValueId| match &graph.node(v).op {
        Op::Input => 0,
        op if op.row().unit == Unit::None => graph.bytes(v) * 16 + 2,
        _ => graph.bytes(v) * 16 + if in_forward[v.index()] { 1 } else { 3 },
    };
    let mut saved = cut::minimum_cut(graph, &place, &weight, &values(grads));
    saved.retain(|&v| graph.node(v).op != Op::Input);
    saved
}

/// The values that W takes, inputs of B among them: the fewest bytes that live from I to W.
fn saved_for_weights(graph: &Graph, carry: &[Output], param: &[Output]) -> Vec<ValueId> {
    let mut in_input = vec![false; graph.nodes.len()];
    for value in extract::needed(graph, &values(carry), &[]) {
        in_input[value.index()] = true;
    }
    let place = |v: ValueId| match &graph.node(v).op {
        Op::Input => Place::Before,
        _ if !in_input[v.index()] => Place::After,
        op if !cut::is_cheap(op) => Place::Before,
        _ => Place::Either,
    };
    let role = |v: ValueId| graph.inputs.iter().find(|i| i.value == v).map(|i| i.role);
    let weight = |v: ValueId| match role(v) {
        None | Some(InputRole::Saved | InputRole::Grad | InputRole::Carry) => graph.bytes(v) * 16 + 1,
        Some(
            InputRole::Data
            | InputRole::Param
            | InputRole::State
            | InputRole::Stat
            | InputRole::Count
            | InputRole::Accumulator
            | InputRole::Runtime,
        ) => 0,
    };
    let mut handed = cut::minimum_cut(graph, &place, &weight, &values(param));
    handed.retain(|&v| graph.node(v).op != Op::Input);
    handed
}

fn values(outputs: &[Output]) -> Vec<ValueId> {
    outputs.iter().map(|o| o.value).collect()
}

fn with_saved(graph: &Graph, outputs: &[Output], saved: &[ValueId]) -> Vec<Output> {
    let saved =
        saved.iter().map(|&value| Output { name: graph.node(value).name.clone(), value, role: OutputRole::Saved });
    outputs.iter().cloned().chain(saved).collect()
}
