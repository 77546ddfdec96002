//! What a step's programs take under a strategy: what `dispatch=auto`, `pieces=auto` and the passes of `overlap=all` are chosen by.
//!
//! The training step is compiled and its programs are priced, exchanges beside the work of the same program as they run: what a stage's calls take, one after
//! another, of the slowest stage. What stages wait for each other is in no price, nor is memory.

use crate::memory::{Price, one_after_another};
use crate::pipeline::{CompileOptions, compile_training};
use crate::shard::{Cut, Order, Strategy, StrategyError};
use forebay_dsl::model::CheckedModel;

/// What is priced.
#[derive(Clone, Copy)]
pub struct Priced<'a> {
    /// The model as it trains.
    pub model: &'a CheckedModel,
    /// The strategy and the number of micro-batches among them.
    pub options: &'a CompileOptions,
    /// What programs cost.
    pub price: &'a dyn Price,
}

impl Priced<'_> {
    /// Seconds of a step's programs on the slowest stage.
    ///
    /// # Errors
    /// When the strategy does not fit the model, or something in it has no price.
    pub fn seconds(&self, strategy: Strategy) -> Result<f64, StrategyError> {
        let mut options = CompileOptions { strategy, ..self.options.clone() };
        let (strategy, usual) = (&mut options.strategy, Strategy::default());
        // An order or a cut that is still to be found is found for the strategy that is taken.
        if strategy.schedule == Order::Search {
            (strategy.schedule, strategy.cap, strategy.nodes) = (usual.schedule, None, None);
        }
        if strategy.stages == Cut::Auto {
            strategy.stages = usual.stages;
        }
        let plan = compile_training(self.model, &options, &[options.micro_batches])?;
        let plan = plan.last().expect("a plan for each number of micro-batches");
        one_after_another(self.price, plan).map_err(|error| StrategyError::new(error, None))
    }

    /// Seconds of several ways, the fastest first, of equals the simplest. `ways` begin with that; others may not fit the model, and are left out then.
    ///
    /// # Errors
    /// When the simplest has no price.
    pub fn ways<T: Copy>(&self, ways: &[T], strategy: impl Fn(T) -> Strategy) -> Result<Vec<(T, f64)>, StrategyError> {
        let mut priced = vec![];
        for (n, &way) in ways.iter().enumerate() {
            match self.seconds(strategy(way)) {
                Ok(seconds) => priced.push((way, seconds)),
                Err(error) if n == 0 => return Err(error),
                Err(_) => {}
            }
        }
        priced.sort_by(|a, b| a.1.total_cmp(&b.1));
        Ok(priced)
    }
}
