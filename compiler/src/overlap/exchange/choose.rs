//! Which way is the fastest: `dispatch=auto`.
//!
//! Each way is made and compiled, and its programs are priced, exchanges beside the work of the same program as they run: what a stage's calls take, one after another, of the slowest stage. What
//! fewer bytes between nodes save grows with the experts of a token and falls with the number of nodes; what they cost is the exchange within nodes, copies of tokens, and what it takes to start
//! more collectives. Whether that is worth it depends on what hides exchanges anyway. What stages wait for each other is in no price, nor is memory.

use super::Dispatch;
use crate::memory::{Price, one_after_another};
use crate::pipeline::{CompileOptions, compile_training};
use crate::shard::{Cut, Order, Strategy, StrategyError};
use forebay_dsl::model::CheckedModel;

/// What the programs of each way take, in seconds of a step on the slowest stage, the fastest first.
pub type Ways = Vec<(Dispatch, f64)>;

/// The strategy with a way that is named, and what the ways take, when there was one to be found. How large a node is comes from the prices, where nobody says it.
/// `options` has the strategy and the number of micro-batches.
///
/// # Errors
/// When the strategy does not fit the model.
pub fn settle(
    model: &CheckedModel,
    options: &CompileOptions,
    price: &dyn Price,
) -> Result<(Strategy, Option<Ways>), StrategyError> {
    let mut strategy = options.strategy.clone();
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
        match seconds(model, &CompileOptions { strategy: candidate, ..options.clone() }, price) {
            Ok(seconds) => ways.push((way, seconds)),
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

/// Seconds of a step's programs on the slowest stage.
///
/// # Errors
/// When the strategy does not fit the model.
pub(crate) fn seconds(model: &CheckedModel, options: &CompileOptions, price: &dyn Price) -> Result<f64, StrategyError> {
    let mut options = options.clone();
    let (strategy, usual) = (&mut options.strategy, Strategy::default());
    // An order or a cut that is still to be found is found for the way that is taken.
    if strategy.schedule == Order::Search {
        (strategy.schedule, strategy.cap, strategy.nodes) = (usual.schedule, None, None);
    }
    if strategy.stages == Cut::Auto {
        strategy.stages = usual.stages;
    }
    let plan = compile_training(model, &options, &[options.micro_batches])?;
    let plan = plan.last().expect("a plan for each number of micro-batches");
    one_after_another(price, plan).map_err(|error| StrategyError::new(error, None))
}
