//! Which way is the fastest: `dispatch=auto`.
//!
//! What fewer bytes between nodes save grows with the experts of a token and falls with the number of nodes; what they cost is the exchange within nodes, copies of tokens, and what it takes to start
//! more collectives. Whether that is worth it depends on what hides exchanges anyway. So each way is compiled and priced ([`crate::overlap`]).

use super::Dispatch;
use crate::overlap::Priced;
use crate::shard::{Strategy, StrategyError};

/// What the programs of each way take, in seconds of a step on the slowest stage, the fastest first.
pub type Ways = Vec<(Dispatch, f64)>;

/// The strategy with a way that is named, and what the ways take, when there was one to be found. How large a node is comes from the prices, where nobody says it.
///
/// # Errors
/// When the strategy does not fit the model.
pub fn settle(priced: &Priced) -> Result<(Strategy, Option<Ways>), StrategyError> {
    let mut strategy = priced.options.strategy.clone();
    if strategy.dispatch == Dispatch::Flat {
        return Ok((strategy, None));
    }
    if strategy.node.is_none() {
        let mesh = Strategy { dispatch: Dispatch::Flat, ..strategy.clone() }.mesh()?;
        let extents: Vec<u64> = mesh.dims.iter().rev().map(|d| u64::from(d.size)).collect();
        strategy.node = priced.price.node(&extents);
    }
    if strategy.dispatch != Dispatch::Auto {
        return Ok((strategy, None));
    }
    strategy.mesh()?;
    // What does not fit at all does not fit flat either; what cannot be decomposed goes flat.
    let ways = priced.ways(&Dispatch::ALL, |dispatch| Strategy { dispatch, ..strategy.clone() })?;
    strategy.dispatch = ways[0].0;
    Ok((strategy, Some(ways)))
}
