//! Into how many pieces: `pieces=auto`, where the device is known.
//!
//! Shorter products take longer for what they do, weights are read and their gradients added once for each piece, elementwise work has more launches. So each
//! number is compiled and priced ([`crate::overlap`]). What is cut where the rates of orders say so is one candidate; nothing cut is another.

use super::Pieces;
use crate::overlap::Priced;
use crate::shard::{Strategy, StrategyError};

/// What the programs of a step take on the slowest stage, in seconds, for each way to cut, the fastest first.
pub type Cuts = Vec<(Pieces, f64)>;

/// The ways to cut, the simplest first.
const WAYS: [Pieces; 4] = [Pieces::Number(1), Pieces::Number(2), Pieces::Number(4), Pieces::Auto];

/// What the ways to cut take under a strategy.
///
/// # Errors
/// When the strategy does not fit the model, or something in it has no price.
pub fn settle(priced: &Priced, strategy: &Strategy) -> Result<Cuts, StrategyError> {
    priced.ways(&WAYS, |pieces| Strategy { pieces, ..strategy.clone() })
}
