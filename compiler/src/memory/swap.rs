//! Saved tensors that are in the host's memory between the forward and the backward pass, as the user names them.

use super::recompute::is_called;
use forebay_ir::{Graph, OutputRole, ValueId};
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

    /// The saved tensors of a forward graph that are meant.
    pub fn of(&self, forward: &Graph) -> Vec<String> {
        let meant = |v: ValueId| self.0.iter().any(|name| is_called(forward, v, name));
        let saved = forward.outputs.iter().filter(|o| o.role == OutputRole::Saved);
        saved.filter(|o| meant(o.value)).map(|o| o.name.clone()).collect()
    }

    /// The names that no saved tensor of any of the graphs has.
    pub fn unknown<'a>(&'a self, graphs: &[&Graph]) -> Vec<&'a str> {
        let saved = |g: &Graph, name: &str| {
            let mut saved = g.outputs.iter().filter(|o| o.role == OutputRole::Saved);
            saved.any(|o| is_called(g, o.value, name))
        };
        self.0.iter().map(String::as_str).filter(|name| !graphs.iter().any(|g| saved(g, name))).collect()
    }
}

impl fmt::Display for Swap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&if self.0.is_empty() { "none".to_string() } else { self.0.join("/") })
    }
}
