//! DualPipe and DualPipeV: micro-batches come from both ends, and a forward of one way runs with a backward of the other as a pair.
//!
//! ```text
//! DualPipe, p stages        way 0: blocks 0 … p−1 on stages 0 … p−1      way 1: blocks 0 … p−1 on stages p−1 … 0      half of the micro-batches each
//! DualPipeV, p stages       the V: way 0 is down, way 1 is up again      all micro-batches take both
//! ```
//!
//! The eight steps are those of DeepSeek's program. With h half-stages (p/2, or p for the V), r the distance from the outer end and n micro-batches a way:
//!
//! ```text
//! 1  2(h−r−1) × F0            4  n−2h+r+1 × F0&B1 F1&B0     (the first F0 and B1 of the innermost stage are apart)
//! 2  r+1 × F0 F1              5  h−r−1 × B1 F1&B0
//! 3  h−r−1 × I1 W F1          6  r+1 × B1 B0, the second half of them I
//!                             7  h−r−1 × W I0       8  r+1 × W
//! ```
//!
//! Bubble (h − 1)(F&B + B − 3W) when F = I = W; stages hold 2h + 1 chunks at most.

use super::Stage;
use crate::{Item, Layout, Op, Placement, ScheduleError, Size};

pub fn orders(layout: Layout) -> Result<Vec<Vec<Item>>, ScheduleError> {
    check(layout)?;
    Ok(super::each(layout, |stage| order(stage, layout.placement)))
}

fn check(layout: Layout) -> Result<(), ScheduleError> {
    let Size { stages, micros, .. } = layout.size;
    let two_way = layout.placement == Placement::TwoWay;
    let name = if two_way { "dualpipe" } else { "dualpipev" };
    if two_way && !stages.is_multiple_of(2) {
        return Err(ScheduleError::new(
            format!("{name} folds its stages in the middle, and {stages} is odd"),
            format!("use {} stages, or dualpipev", stages + 1),
        ));
    }
    if two_way && !micros.is_multiple_of(2) {
        return Err(ScheduleError::new(
            format!("{name} sends half of the micro-batches from each end, and {micros} is odd"),
            format!("use {} micro-batches", micros + 1),
        ));
    }
    if micros < 2 * stages {
        return Err(ScheduleError::new(
            format!("{name} over {stages} stages needs {} micro-batches, twice the stages, not {micros}", 2 * stages),
            format!("use {} micro-batches or more", 2 * stages),
        ));
    }
    Ok(())
}

fn order(mut stage: Stage, placement: Placement) -> Vec<Item> {
    let Size { stages, micros, .. } = stage.size;
    let (half, rank, micros) = match placement {
        Placement::TwoWay => (stages / 2, stage.number.min(stages - 1 - stage.number), micros / 2),
        Placement::Blocked | Placement::Interleaved | Placement::Wave => (stages, stage.number, micros),
    };
    let outer = half - rank - 1;
    (0..2 * outer).for_each(|_| stage.work(Op::F, 0));
    for _ in 0..=rank {
        stage.work(Op::F, 0);
        stage.work(Op::F, 1);
    }
    for _ in 0..outer {
        stage.work(Op::I, 1);
        stage.oldest_weight();
        stage.work(Op::F, 1);
    }
    for turn in 0..micros + rank + 1 - 2 * half {
        if turn == 0 && outer == 0 {
            stage.work(Op::F, 0);
            stage.work(Op::B, 1);
        } else {
            stage.pair(0, 1);
        }
        stage.pair(1, 0);
    }
    for _ in 0..outer {
        stage.work(Op::B, 1);
        stage.pair(1, 0);
    }
    // From the middle on, the backward comes in two parts: of 2(rank + 1) the last rank + 1.
    for turn in 0..2 * (rank + 1) {
        let op = if turn > rank { Op::I } else { Op::B };
        stage.work(op, if turn.is_multiple_of(2) { 1 } else { 0 });
    }
    for _ in 0..outer {
        stage.oldest_weight();
        stage.work(Op::I, 0);
    }
    (0..=rank).for_each(|_| stage.oldest_weight());
    stage.finish()
}
