//! Passes, on graphs that are small enough to read and on example models.

mod autodiff;
mod autodiff_cut;
mod autodiff_models;
mod autodiff_support;
mod choose;
mod emit;
mod example_models;
mod exchange;
mod merge;
mod near;
mod oracle;
mod overlap;
mod pieces;
mod ring;
mod rules;
mod rules_support;
mod shard;
mod shares;
mod simplify;
mod snapshots;
