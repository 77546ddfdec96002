//! Into how many pieces: `pieces=auto`, where the device is known.
//!
//! Each number is compiled and its programs are priced, as [`dispatch=auto`](crate::overlap::exchange) does: shorter products take longer for what they do, weights are read and their gradients added
//! once for each piece, elementwise work has more launches. What is cut where the rates of orders say so is one candidate; nothing cut is another.

use super::Pieces;
use crate::memory::Price;
use crate::overlap::exchange::seconds;
use crate::pipeline::CompileOptions;
use crate::shard::{Strategy, StrategyError};
use forebay_dsl::model::CheckedModel;

/// What the programs of a step take on the slowest stage, in seconds, for each way to cut, the fastest first.
pub type Cuts = Vec<(Pieces, f64)>;

/// The ways to cut, the simplest first.
const WAYS: [Pieces; 4] = [Pieces::Number(1), Pieces::Number(2), Pieces::Number(4), Pieces::Auto];

/// The fastest way to cut, and what the ways take. `options` has the strategy and the number of micro-batches.
///
/// # Errors
/// When the strategy does not fit the model.
pub fn settle(model: &CheckedModel, options: &CompileOptions, price: &dyn Price) -> Result<Cuts, StrategyError> {
    let mut cuts: Cuts = vec![];
    for pieces in WAYS {
        let strategy = Strategy { pieces, ..options.strategy.clone() };
        match seconds(model, &CompileOptions { strategy, ..options.clone() }, price) {
            Ok(seconds) => cuts.push((pieces, seconds)),
            Err(error) if pieces == Pieces::Number(1) => return Err(error),
            // There is nothing that can be cut so.
            Err(_) => {}
        }
    }
    // A stable sort: of equals the simplest.
    cuts.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok(cuts)
}
