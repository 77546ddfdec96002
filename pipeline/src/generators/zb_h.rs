//! ZB-H1 and ZB-H2: 1F1B with the backward in two parts. I is passed on at once, W fills what would be bubble.
//!
//! ```text
//! warm-up of stage r:   k(p − 1 − r) forwards, k = 1 for H1 and 2 for H2
//! then                  F I in turn; W follows kr turns behind, the rest at the end
//! ```
//!
//! H1: bubble (p − 1)(F + I − W), every stage holds p activations of a stage, as many as stage 0 of 1F1B. H2: from its first item to its last a
//! stage idles (p − 1)(F + I − 2W) at most, nothing when F = I = W, but it holds 2p − 1; the optimizer must then not wait for all stages.

use super::Stage;
use crate::{Item, Op};

pub fn order(mut stage: Stage, k: u32) -> Vec<Item> {
    let ahead = k * (stage.size.stages - 1 - stage.number);
    (0..ahead).for_each(|_| stage.work(Op::F, 0));
    for turn in 0..stage.size.micros {
        stage.work(Op::F, 0);
        stage.work(Op::I, 0);
        if turn >= k * stage.number {
            stage.oldest_weight();
        }
    }
    (0..stage.size.micros).for_each(|_| stage.oldest_weight());
    stage.finish()
}
