//! The Forebay compiler: from a checked model to an executable plan.
//!
//! [`pipeline`] is the way through: [`autodiff`] makes backward graphs, [`simplify`] cleans up, [`emit`] turns graphs into programs, [`schedule`] lays out
//! memory and calls. Pure: no files, no environment, no clock; the same input gives the same bytes.

pub mod autodiff;
pub mod emit;
pub mod memory;
pub mod module;
pub mod optimizer;
pub mod overlap;
pub mod pipeline;
pub mod rewrite;
pub mod ring;
pub mod schedule;
pub mod settle;
pub mod shard;
pub mod shares;
pub mod simplify;
pub mod summary;
