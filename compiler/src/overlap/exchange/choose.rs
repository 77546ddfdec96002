//! Which way is the fastest: `dispatch=auto`.
//!
//! Each way is made, and all collectives of the forward pass of a micro-batch are priced, one after another, with the copies of tokens that they send and bring; the backward pass mirrors them.
//! What fewer bytes between nodes save grows with the experts of a token and falls with the number of nodes; what they cost is the exchange within nodes, copies, and what it takes to start more collectives.

use super::Dispatch;
use crate::memory::Price;
use crate::pipeline::with_exchanges;
use crate::shard::{ShardedModel, Strategy, StrategyError};
use forebay_dsl::model::CheckedModel;
use forebay_ir::{Op, ValueId};

/// What the collectives and copies of each way take, in seconds of a micro-batch's forward pass on a rank, the fastest first.
pub type Ways = Vec<(Dispatch, f64)>;

/// The strategy with a way that is named, and what the ways take, when there was one to be found. How large a node is comes from the prices, where nobody says it.
///
/// # Errors
/// When the strategy does not fit the model.
pub fn settle(
    model: &CheckedModel,
    strategy: &Strategy,
    price: &dyn Price,
) -> Result<(Strategy, Option<Ways>), StrategyError> {
    let mut strategy = strategy.clone();
    if strategy.dispatch == Dispatch::Flat {
        return Ok((strategy, None));
    }
    strategy.node = strategy.node.or_else(|| price.node());
    if strategy.dispatch != Dispatch::Auto {
        return Ok((strategy, None));
    }
    strategy.mesh()?;
    let mut ways: Ways = vec![];
    for way in Dispatch::ALL {
        let candidate = Strategy { dispatch: way, ..strategy.clone() };
        match with_exchanges(model, &candidate) {
            Ok(sharded) => ways.push((way, seconds(&sharded, price))),
            // What does not fit at all does not fit flat either; what cannot be decomposed goes flat.
            Err(error) if way == Dispatch::Flat => return Err(error),
            Err(_) => {}
        }
    }
    // A stable sort: of equals the simplest.
    ways.sort_by(|a, b| a.1.total_cmp(&b.1));
    strategy.dispatch = ways[0].0;
    Ok((strategy, Some(ways)))
}

/// Seconds of all collectives of the layers' forward graphs, and of tokens that are copied for them: looked up to be sent, or looked up again when they have come.
fn seconds(sharded: &ShardedModel, price: &dyn Price) -> f64 {
    let of_segment = |number: usize| {
        let graph = &sharded.model.segments[number].forward;
        let users = graph.users();
        let moves = |v: &ValueId| matches!(graph.node(*v).op, Op::Comm(_) | Op::Gather { .. });
        let counts = |v: &ValueId| match &graph.node(*v).op {
            Op::Comm(comm) => comm.sends(),
            Op::Gather { .. } => graph.ty(*v).dtype.is_float() && users[v.index()].iter().any(moves),
            _ => false,
        };
        graph.values().filter(counts).map(|v| price.seconds(graph, v)).sum::<f64>()
    };
    let segments: Vec<f64> = (0..sharded.model.segments.len()).map(of_segment).collect();
    sharded.model.layers.iter().map(|layer| segments[layer.segment]).sum()
}
