//! How the rows of experts travel between nodes.
//!
//! A token has k experts on the ranks of several nodes. Links within a node are many times as fast as those between nodes, so that it matters how often a token
//! crosses the latter (FLOPs are the same, whichever way):
//!
//! ```text
//! flat           an all-to-all of the rows over all ranks: a row for each expert    k · (N − 1)/N copies of a token leave its node, of N nodes
//! hierarchical   tokens to all nodes, then rows to the experts within each          N − 1
//! ```
//!
//! On the graph of a rank, after it was cut in pieces and before differentiation, so that the backward pass mirrors it. Which tokens a mixture has, what its rows are made
//! of and what becomes of them is found as pieces find it.

mod hierarchical;

use crate::shard::{Mesh, StrategyError};
use forebay_ir::{Graph, Op, ValueId};
use hierarchical::Hierarchy;
use std::fmt;

/// The way that rows of experts travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dispatch {
    /// From each rank to each.
    #[default]
    Flat,
    /// Tokens once to each node, and rows within nodes.
    Hierarchical,
}

impl Dispatch {
    /// All ways.
    pub const ALL: [Dispatch; 2] = [Dispatch::Flat, Dispatch::Hierarchical];

    /// Its name in strategies.
    pub fn name(self) -> &'static str {
        match self {
            Dispatch::Flat => "flat",
            Dispatch::Hierarchical => "hierarchical",
        }
    }
}

impl fmt::Display for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Lets the rows of all mixtures of a graph travel so; how many do that did not before.
///
/// `outer` are the mesh dimensions of experts' ranks that are between nodes.
pub fn decompose(graph: &mut Graph, dispatch: Dispatch, outer: &[u32]) -> usize {
    if dispatch == Dispatch::Flat {
        return 0;
    }
    let mut done = 0;
    // Values move with each change: what is left to look at is found again, behind what was.
    let mut looked_at = 0;
    while let Some(group) = graph.values().filter(|&v| is_group(graph, v)).nth(looked_at) {
        looked_at += 1;
        if let Some(changed) = Hierarchy::of(graph, group, outer).and_then(Hierarchy::run) {
            *graph = changed;
            done += 1;
        }
    }
    done
}

fn is_group(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.node(value).op, Op::Group { .. })
}

/// Why no rows travel so.
pub fn nothing_to_decompose(dispatch: Dispatch, mesh: &Mesh) -> StrategyError {
    let outer = mesh.describe(&mesh.between_nodes());
    StrategyError::new(
        format!("dispatch = {dispatch}: there are no experts whose rows can travel so over {outer}"),
        Some("leave `dispatch` out: it is for tokens that choose experts, whose results are added up".to_string()),
    )
}
