//! What the verifier knows of order, for whoever spreads instructions over streams: clocks, maps of memory, and what a caller must know of a program.

pub use super::clock::Clock;
pub use super::flow::{Known, SlotSummary, Summary};
pub use super::intervals::Intervals;

use super::rules::{Findings, Violation};
use crate::schema::Program;

/// What a caller must know of a program.
///
/// # Errors
/// When the program is not valid: what is wrong with it.
pub fn summarise(program: &Program) -> Result<Summary, Vec<Violation>> {
    let mut findings = Findings::default();
    let summary = super::program::check(program, &mut findings);
    findings.result()?;
    Ok(summary.expect("there is one when nothing was found"))
}
