//! Interleaved zero bubble: the order of interleaved 1F1B with half the warm-up per stage, its backward in two parts, W behind.
//!
//! ```text
//! warm-up of stage r:   (p − 1 − r) + (v − 1)p forwards
//! then                  F I  F I  … and from the r-th turn on  F I W;  at the end  I W, and the Ws that are left
//! ```
//!
//! Bubble (p − 1)(F + I − W) in chunk times; every stage holds vp chunks at most. With v = 1 this is ZB-H1.

use super::Stage;
use super::interleaved::Rounds;
use crate::{Item, Layout, Op, ScheduleError, Size};

pub fn orders(layout: Layout) -> Result<Vec<Vec<Item>>, ScheduleError> {
    let rounds = Rounds::new(layout.size)?;
    Ok(super::each(layout, |stage| order(stage, rounds)))
}

fn order(mut stage: Stage, rounds: Rounds) -> Vec<Item> {
    let Size { stages, chunks, micros } = stage.size;
    let total = chunks * micros;
    let ahead = (stages - 1 - stage.number + (chunks - 1) * rounds.micros).min(total);
    (0..ahead).for_each(|step| stage.work(Op::F, rounds.forward(step)));
    for step in 0..total {
        if step + ahead < total {
            stage.work(Op::F, rounds.forward(step + ahead));
        }
        stage.work(Op::I, rounds.backward(step));
        if step >= stage.number {
            stage.oldest_weight();
        }
    }
    (0..total).for_each(|_| stage.oldest_weight());
    stage.finish()
}
