//! Schedules, from their rules to their drawings.

mod common;
mod draw;
mod generators;
mod layers;
mod published;
mod replay;
mod search;
