//! The subcommands, one file each.

pub mod bench;
pub mod calibrate;
pub mod check;
pub mod compile;
pub mod explain;
pub mod fmt;
pub mod generate;
pub mod memory;
pub mod plan;
pub mod rules;
pub mod run;
pub mod schedule;
pub mod sharding;
pub mod simulate;
pub mod train;
pub mod validate;
