//! Simulated steps, against replays by hand, published runs and each other.

mod blanks;
mod closed;
mod memory;
mod pipelines;
mod plans;
mod profiles;
mod replay;
mod steps;
