//! ZB-V: two chunks a stage in a V, so that stage 0 has both ends of the model and a loss soon comes back to where it is needed.
//!
//! ```text
//! stage r, chunk 0 = group r, chunk 1 = group 2p − 1 − r      a slot is F, or I and W
//! warm-up     2(p − r) − 1 × F0,   r × (F1 F0),   (p − r) × (F1 I1 W1)
//! steady      F0 I0 W0 F1 I1 W1
//! cool-down   r × (I0 I1),   (p − r) × (I0 W0),   then the Ws of chunk 1, those of chunk 0
//! ```
//!
//! No bubble but the fill, (p − 1)F, when F = I = W; every stage holds 2p chunks, as stage 0 of 1F1B. The rule is made for 2p − 1 micro-batches or
//! more; for fewer, the micro-batches that are not there are left out.

use super::Stage;
use crate::{Item, Op};

pub fn order(mut stage: Stage) -> Vec<Item> {
    let (p, r) = (stage.size.stages, stage.number);
    let micros = stage.size.micros.max(2 * p - 1);
    let mut turn = Turn { stage: &mut stage, done: [[0; 2]; 3] };
    (0..2 * (p - r) - 1).for_each(|_| turn.take(Op::F, 0));
    for _ in 0..r {
        turn.take(Op::F, 1);
        turn.take(Op::F, 0);
    }
    for _ in 0..p - r {
        turn.take(Op::F, 1);
        turn.take(Op::I, 1);
        turn.take(Op::W, 1);
    }
    while turn.done[0][1] < micros {
        if turn.done[0][0] < micros {
            turn.take(Op::F, 0);
        }
        turn.take(Op::I, 0);
        turn.take(Op::W, 0);
        turn.take(Op::F, 1);
        turn.take(Op::I, 1);
        turn.take(Op::W, 1);
    }
    for _ in 0..r {
        turn.take(Op::I, 0);
        turn.take(Op::I, 1);
    }
    for _ in 0..p - r {
        turn.take(Op::I, 0);
        turn.take(Op::W, 0);
    }
    for chunk in [1, 0] {
        while turn.done[2][chunk] < micros {
            turn.take(Op::W, chunk);
        }
    }
    stage.finish()
}

/// Counts all micro-batches of the rule, and does those that are there.
struct Turn<'a> {
    stage: &'a mut Stage,
    /// By op and chunk.
    done: [[u32; 2]; 3],
}

impl Turn<'_> {
    fn take(&mut self, op: Op, chunk: usize) {
        self.done[op as usize][chunk] += 1;
        self.stage.work(op, chunk);
    }
}
