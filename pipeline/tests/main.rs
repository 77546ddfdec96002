//! Schedules, from their rules to their drawings.

mod common;
mod draw;
mod generators;
mod layers;
mod replay;
mod search;
