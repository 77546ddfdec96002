//! Saved tensors are made again where the backward graph reads them first, from fewer bytes that are saved instead.
//!
//! ```text
//! forward F   %q = contract %x, %wq              saved q, o                        saved q
//!             %o = attention %q, %k, %v    ──►
//! backward B  … %o …                             saved %q, %o                      saved %q
//!                                                                                  %o = attention %q, %k, %v
//!                                                … %o …                            … %o …
//! ```
//!
//! Which values are kept is a minimum cut through F: what may be computed again is, as long as that saves bytes (a whole block:
//! arXiv 1604.06174; parts of it: arXiv 2205.05198, section 5). Collectives are repeated like anything else, by all their ranks.
//!
//! Requires: graphs after the last rewriting, so that a clone is what F computes, op for op, and has the same bits. Random numbers are a
//! hash of their place, and choices of routers follow from the same scores.
//! Keeps: every gradient bit for bit. Costs: the time of what is computed again.

use super::splice::Splice;
use crate::autodiff::{Differentiated, Keep, cut};
use crate::simplify::simplify;
use cut::Place;
use forebay_ir::verify::{render, verify};
use forebay_ir::{Graph, InputRole, Op, Output, OutputRole, Unit, ValueId};
use std::fmt;

/// What the backward pass may compute again although that is not cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Nothing.
    #[default]
    Nothing,
    /// Everything between the inputs of a block and its outputs. The first and the last segment of a model keep next to nothing beside their
    /// inputs, or would repeat the dearest product of all: they are left as they are.
    Full,
    /// Values of these names, and the results of ops of these names.
    Named(Vec<String>),
}

impl Recompute {
    /// Reads `none`, `full`, or names separated by `/`.
    pub fn parse(text: &str) -> Option<Recompute> {
        match text {
            "none" => Some(Recompute::Nothing),
            "full" => Some(Recompute::Full),
            _ => {
                let names: Vec<String> = text.split('/').map(|n| n.trim().to_string()).collect();
                names.iter().all(|n| !n.is_empty()).then_some(Recompute::Named(names))
            }
        }
    }

    fn allows(&self, forward: &Graph, value: ValueId) -> bool {
        match self {
            Recompute::Nothing => false,
            Recompute::Full => true,
            Recompute::Named(names) => names.iter().any(|name| is_called(forward, value, name)),
        }
    }

    /// The names that nothing in any of the graphs has.
    pub fn unknown<'a>(&'a self, graphs: &[&Graph]) -> Vec<&'a str> {
        let Recompute::Named(names) = self else { return vec![] };
        let known = |name: &str| graphs.iter().any(|g| g.values().any(|v| is_called(g, v, name)));
        names.iter().map(String::as_str).filter(|name| !known(name)).collect()
    }
}

/// What a value can be named by: its own name or that of its op.
pub(super) fn is_called(graph: &Graph, value: ValueId, name: &str) -> bool {
    let node = graph.node(value);
    node.op != Op::Input && (node.name == name || node.op.row().name == name)
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recompute::Nothing => f.write_str("none"),
            Recompute::Full => f.write_str("full"),
            Recompute::Named(names) => f.write_str(&names.join("/")),
        }
    }
}

/// Applies the choice to a segment.
pub fn recompute(segment: &mut Differentiated, what: &Recompute, usual: Keep) {
    let has = |role| segment.forward.inputs.iter().any(|i| i.role == role);
    let is_block = has(InputRole::Carry) && segment.forward.outputs.iter().any(|o| o.role == OutputRole::Carry);
    if *what == Recompute::Nothing || (*what == Recompute::Full && !is_block) {
        return;
    }
    let kept = kept(&segment.forward, what, usual);
    keep(segment, &kept);
}

/// Saves these values alone for the backward graphs, which make all others that they read again. What they read must follow from these
/// values and from the inputs of the forward graph.
pub fn keep(segment: &mut Differentiated, kept: &[ValueId]) {
    rename_handed(segment, kept);
    let forward = &segment.forward;
    for backward in [&mut segment.backward, &mut segment.backward_input, &mut segment.backward_weight] {
        *backward = Splice::new(forward, backward, kept).run();
        simplify(backward);
        debug_assert!(
            verify(backward).is_ok(),
            "{}",
            verify(backward).map_or_else(|v| render(backward, &v), |()| String::new())
        );
    }
    let forward = &mut segment.forward;
    forward.outputs.retain(|o| o.role != OutputRole::Saved);
    for &value in kept {
        forward.add_output(forward.node(value).name.clone(), value, OutputRole::Saved);
    }
    forward.prune();
}

/// The weights' half takes by name what the forward graph saves and what the input's half hands it. The latter may make again what is now saved too:
/// what it hands gets another name then, for after rewriting two values of a name need not be the same.
fn rename_handed(segment: &mut Differentiated, kept: &[ValueId]) {
    let Differentiated { forward, backward_input, backward_weight, .. } = segment;
    let saves = |name: &str| kept.iter().any(|&v| forward.node(v).name == name);
    for n in 0..backward_input.outputs.len() {
        let Output { name, role, .. } = &backward_input.outputs[n];
        if *role != OutputRole::Saved || !saves(name) {
            continue;
        }
        // No later choice of what is saved takes it either.
        let is_free = |name: &String| {
            let handed = backward_input.output(OutputRole::Saved, name).is_some();
            !handed && forward.values().all(|v| forward.node(v).name != *name)
        };
        let free = (2..).map(|n| format!("{name}_{n}")).find(is_free).expect("some number is free");
        if let Some(input) = backward_weight.input(InputRole::Saved, name) {
            backward_weight.nodes[input.index()].name.clone_from(&free);
        }
        backward_input.outputs[n].name = free;
    }
}

/// The values to save: the fewest bytes from which all that is saved now can be had.
fn kept(forward: &Graph, what: &Recompute, usual: Keep) -> Vec<ValueId> {
    let saved = forward.outputs.iter().filter(|o| o.role == OutputRole::Saved);
    let saved: Vec<ValueId> = saved.map(|o| o.value).collect();
    let place = |v: ValueId| match &forward.node(v).op {
        Op::Input => Place::Before,
        _ if what.allows(forward, v) => Place::Either,
        // What is cheap is made again with what it is made from; where inputs are kept, not what is saved so far.
        op if cut::is_cheap(op) && (usual == Keep::Fewest || !saved.contains(&v)) => Place::Either,
        _ => Place::Before,
    };
    // Inputs are there anyway. Beyond bytes, fewer tensors; and the tensor itself rather than a view.
    let weight = |v: ValueId| match &forward.node(v).op {
        Op::Input => 0,
        op if op.row().unit == Unit::None => forward.bytes(v) * 16 + 2,
        _ => forward.bytes(v) * 16 + 1,
    };
    let mut kept = cut::minimum_cut(forward, &place, &weight, &saved);
    kept.retain(|&v| forward.node(v).op != Op::Input);
    kept
}
