//! Saved tensors that are in the host's memory between the forward and the backward pass, as the user names them.

use super::recompute::{is_called, keep};
use crate::autodiff::Differentiated;
use forebay_ir::{Graph, Op, OutputRole, ValueId};
use std::fmt;

/// Saved tensors to swap, by their names or those of the ops that make them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swap(Vec<String>);

impl Swap {
    /// Reads `none`, or names separated by `/`.
    pub fn parse(text: &str) -> Option<Swap> {
        if text == "none" {
            return Some(Swap::default());
        }
        let names: Vec<String> = text.split('/').map(|n| n.trim().to_string()).collect();
        names.iter().all(|n| !n.is_empty()).then_some(Swap(names))
    }

    /// The saved tensors of a forward graph that are meant. Group starts stay: copies of ragged tensors read them.
    pub fn of(&self, forward: &Graph) -> Vec<String> {
        let named = |v: ValueId| self.0.iter().any(|name| is_called(forward, v, name));
        let meant = |v: ValueId| named(v) && !is_starts(forward, v);
        let saved = forward.outputs.iter().filter(|o| o.role == OutputRole::Saved);
        saved.filter(|o| meant(o.value)).map(|o| o.name.clone()).collect()
    }

    /// The names that no saved tensor of any of the graphs has which could leave: group starts stay.
    pub fn unknown<'a>(&'a self, graphs: &[&Graph]) -> Vec<&'a str> {
        let saved = |g: &Graph, name: &str| {
            let mut saved = g.outputs.iter().filter(|o| o.role == OutputRole::Saved);
            saved.any(|o| is_called(g, o.value, name) && !is_starts(g, o.value))
        };
        self.0.iter().map(String::as_str).filter(|name| !graphs.iter().any(|g| saved(g, name))).collect()
    }
}

/// The names of the saved tensors of a forward graph that can be made again or swapped: not its inputs, and not group starts.
pub fn saved_names(forward: &Graph) -> impl Iterator<Item = &str> {
    let saved = forward.outputs.iter().filter(|o| o.role == OutputRole::Saved).map(|o| o.value);
    let named = saved.filter(|v| forward.node(*v).op != Op::Input && !is_starts(forward, *v));
    named.map(|v| forward.node(v).name.as_str())
}

/// Does a value hold the group starts of a ragged axis?
pub(super) fn is_starts(graph: &Graph, value: ValueId) -> bool {
    graph.offsets.iter().any(|(_, starts)| *starts == value)
}

/// The group starts that copies of these values read.
pub(super) fn starts_of(graph: &Graph, values: &[ValueId]) -> Vec<ValueId> {
    let starts = |v: &ValueId| graph.ragged_axis(&graph.ty(*v).axes).and_then(|axis| graph.offsets_of(axis));
    let mut starts: Vec<ValueId> = values.iter().filter_map(starts).collect();
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// Saves the group starts that copies of these saved tensors read, where the backward pass alone would have made them again.
pub fn keep_starts(segment: &mut Differentiated, swapped: &[String]) {
    let forward = &segment.forward;
    let outputs = forward.outputs.iter().filter(|o| o.role == OutputRole::Saved);
    let mut saved: Vec<ValueId> = outputs.map(|o| o.value).collect();
    let leaving: Vec<ValueId> = saved.iter().copied().filter(|v| swapped.contains(&forward.node(*v).name)).collect();
    let mut starts = starts_of(forward, &leaving);
    starts.retain(|v| forward.node(*v).op != Op::Input && !saved.contains(v));
    if !starts.is_empty() {
        saved.extend(starts);
        saved.sort_unstable();
        keep(segment, &saved);
    }
}

impl fmt::Display for Swap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&if self.0.is_empty() { "none".to_string() } else { self.0.join("/") })
    }
}
