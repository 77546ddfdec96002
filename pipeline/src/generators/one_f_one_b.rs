//! 1F1B: as many forwards ahead as stages follow, then a forward and a backward in turn.
//!
//! ```text
//! F0 F1 .  .  . B0  F2 B1  F3 B2  . B3
//!    F0 B0  F1 B1   F2 B2  F3 B3
//! ```
//!
//! Bubble (p − 1)(F + B), as GPipe; stage r holds p − r activations of a stage.

use super::Stage;
use crate::{Item, Op};

pub fn order(mut stage: Stage) -> Vec<Item> {
    let ahead = stage.size.stages - 1 - stage.number;
    (0..ahead).for_each(|_| stage.work(Op::F, 0));
    for _ in 0..stage.size.micros {
        stage.work(Op::F, 0);
        stage.work(Op::B, 0);
    }
    stage.finish()
}
