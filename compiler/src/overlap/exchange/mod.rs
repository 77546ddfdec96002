//! How the rows of experts travel between nodes.
//!
//! A token has k experts on the ranks of several nodes. Links within a node are many times as fast as those between nodes, so that it matters how often a token
//! crosses the latter (FLOPs are the same, whichever way):
//!
//! ```text
//! flat           an all-to-all of the rows over all ranks: a row for each expert      k · (N − 1)/N copies of a token leave its node, of N nodes
//! hierarchical   tokens to all nodes, then rows to the experts within each            N − 1
//! node-dedup     tokens to the nodes that have one of their experts, then the same    (N − 1) · p, p the part of nodes that a token reaches
//! rank-dedup     tokens to the ranks that have one of their experts, and no more      as node-dedup, with ranks instead of nodes
//! ```
//!
//! On the graph of a rank, after it was cut in pieces and before differentiation, so that the backward pass mirrors it. Which tokens a mixture has, what its rows are made
//! of and what becomes of them is found as pieces find it.

mod choose;
mod hierarchical;
mod notes;
mod unique;

pub use choose::{Ways, settle};

use crate::shard::{Mesh, ShardedModel, StrategyError};
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
    /// Tokens once to each node that has one of their experts, and rows within nodes.
    NodeDedup,
    /// Tokens once to each rank that has one of their experts.
    RankDedup,
    /// The fastest by the prices of links.
    Auto,
}

impl Dispatch {
    /// All ways, the simplest first.
    pub const ALL: [Dispatch; 4] = [Dispatch::Flat, Dispatch::Hierarchical, Dispatch::NodeDedup, Dispatch::RankDedup];

    /// From a name in strategies.
    pub fn named(name: &str) -> Option<Dispatch> {
        Dispatch::ALL.into_iter().chain([Dispatch::Auto]).find(|way| way.name() == name)
    }

    /// Its name in strategies.
    pub fn name(self) -> &'static str {
        match self {
            Dispatch::Flat => "flat",
            Dispatch::Hierarchical => "hierarchical",
            Dispatch::NodeDedup => "node-dedup",
            Dispatch::RankDedup => "rank-dedup",
            Dispatch::Auto => "auto",
        }
    }
}

impl fmt::Display for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Lets the rows of experts of a model travel as a strategy says.
///
/// # Errors
/// When it names a way that none can travel.
pub fn decomposed(mut sharded: ShardedModel, dispatch: Dispatch) -> Result<ShardedModel, StrategyError> {
    let outer = targets(&sharded.mesh, dispatch);
    let mut done = 0;
    for (segment, notes) in sharded.model.segments.iter_mut().zip(&mut sharded.notes) {
        let changed = decompose(&mut segment.forward, dispatch, &outer);
        if changed > 0 {
            notes::renew(notes, &segment.forward, &outer);
        }
        done += changed;
    }
    if done == 0 && dispatch != Dispatch::Flat {
        return Err(nothing_to_decompose(dispatch, &sharded.mesh));
    }
    Ok(sharded)
}

/// Lets the rows of all mixtures of a graph travel so; how many do that did not before.
///
/// `outer` are the mesh dimensions of experts' ranks that are between those which tokens go to: between nodes, or all of them where they go to ranks.
pub fn decompose(graph: &mut Graph, dispatch: Dispatch, outer: &[u32]) -> usize {
    if matches!(dispatch, Dispatch::Flat | Dispatch::Auto) {
        return 0;
    }
    let mut done = 0;
    // Values move with each change: what is left to look at is found again, behind what was.
    let mut looked_at = 0;
    while let Some(group) = graph.values().filter(|&v| is_group(graph, v)).nth(looked_at) {
        looked_at += 1;
        if let Some(changed) = Hierarchy::of(graph, group, outer, dispatch).and_then(Hierarchy::run) {
            *graph = changed;
            done += 1;
        }
    }
    done
}

/// The mesh dimensions that tokens are sent over.
fn targets(mesh: &Mesh, dispatch: Dispatch) -> Vec<u32> {
    match dispatch {
        Dispatch::RankDedup => mesh.of_experts(),
        _ => mesh.between_nodes(),
    }
}

fn is_group(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.node(value).op, Op::Group { .. })
}

/// Why no rows travel so.
fn nothing_to_decompose(dispatch: Dispatch, mesh: &Mesh) -> StrategyError {
    if dispatch == Dispatch::Auto {
        let help = "name it, or let `forebay compile`, `train` or `simulate` find it".to_string();
        return StrategyError::new("dispatch = auto: it is not known yet which way is the fastest", Some(help));
    }
    let outer = targets(mesh, dispatch);
    let over = match outer.is_empty() {
        true => "as ranks do not share experts (ep = 1)".to_string(),
        false => format!("over {}", mesh.describe(&outer)),
    };
    StrategyError::new(
        format!("dispatch = {dispatch}: there are no experts whose rows can travel so {over}"),
        Some("leave `dispatch` out: it is for tokens that choose experts, whose results are added up".to_string()),
    )
}
