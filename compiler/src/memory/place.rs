//! Where the shares of experts are multiplied in, when that is left open (`shares=auto`): both are compiled for the memory there is, and the one that takes less time is taken.
//!
//! `before` saves less, so that less is made again and copied; `after` takes no longer by itself. Which is faster follows from the memory. It changes rounding, so that nobody gets it who does not ask for it.

use super::{Aim, Misfit, Price};
use crate::pipeline::{CompileError, Compiled};
use crate::shard::StrategyError;
use crate::shares::Shares;

/// What multiplying shares in somewhere comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Where.
    pub shares: Shares,
    /// Seconds of a step ([`Price::step`]); none where it does not fit.
    pub seconds: Option<f64>,
    /// Bytes of the fullest device; where it does not fit, the least that a stage needs which does not.
    pub bytes: u64,
}

/// Compiles with each place, and takes the faster; the smaller, where the fewest bytes are asked for. Of equals, behind.
///
/// # Errors
/// When the strategy does not fit the model, or neither fits into memory. That shares cannot be multiplied in before is none.
pub fn choose(
    aim: Aim,
    price: &dyn Price,
    compile: &mut dyn FnMut(Shares) -> Result<Compiled, CompileError>,
) -> Result<Compiled, CompileError> {
    let mut places = vec![];
    let mut best: Option<(Compiled, f64)> = None;
    let mut misfit: Option<Misfit> = None;
    for shares in Shares::PLACES {
        match compile(shares) {
            Ok(compiled) => {
                let seconds = price.step(&compiled.plan).map_err(|error| StrategyError::new(error, None))?;
                let bytes = compiled.plan.roles.iter().map(|role| role.device_bytes).max().unwrap_or(0);
                places.push(Place { shares, seconds: Some(seconds), bytes });
                let weight = if aim == Aim::Least { bytes as f64 } else { seconds };
                if best.as_ref().is_none_or(|(_, least)| weight < *least) {
                    best = Some((compiled, weight));
                }
            }
            Err(CompileError::Memory(error)) => {
                places.push(Place { shares, seconds: None, bytes: error.least });
                misfit = Some(misfit.filter(|other| other.least <= error.least).unwrap_or(error));
            }
            Err(CompileError::Strategy(_)) if shares == Shares::Before => {}
            Err(error) => return Err(error),
        }
    }
    match (best, misfit) {
        (Some((compiled, _)), _) => Ok(Compiled { places, ..compiled }),
        (None, Some(misfit)) => Err(CompileError::Memory(misfit)),
        (None, None) => unreachable!("behind the projection is everywhere"),
    }
}
