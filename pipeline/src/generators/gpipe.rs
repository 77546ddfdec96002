//! GPipe: all forwards, then all backwards.
//!
//! ```text
//! F0 F1 F2 F3 . . . . . . B0  B1  B2  B3
//!    F0 F1 F2 F3 . .  B0  B1  B2  B3
//! ```
//!
//! Bubble (p − 1)(F + B); every activation of the step is held.

use super::Stage;
use crate::{Item, Op};

pub fn order(mut stage: Stage) -> Vec<Item> {
    for op in [Op::F, Op::B] {
        (0..stage.size.micros).for_each(|_| stage.work(op, 0));
    }
    stage.finish()
}
