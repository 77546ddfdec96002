//! Interleaved 1F1B (virtual pipeline, VPP): micro-batches go round the stages once a chunk, a round of p micro-batches at a time.
//!
//! ```text
//! forwards, in turns of p:   chunk 0, chunk 1, …, chunk v-1, then the next round; backwards the same from chunk v-1
//! warm-up of stage r:        2(p − 1 − r) + (v − 1)p forwards, then one forward and one backward in turn
//! ```
//!
//! Bubble (p − 1)(F + B) in chunk times, a v-th of 1F1B's; stage 0 holds vp + p − 1 chunks.
//!
//! With *one more* forward in the warm-up the forward and the backward of a turn belong to different micro-batches and never wait for each other:
//! they run as a pair, and each can hide the other's communication. Stage 0 then holds vp + p chunks.
//!
//! A round need not have p micro-batches: as in PyTorch, m micro-batches make ⌊m/p⌋ equal rounds (one when m < p).

use super::Stage;
use crate::{Item, Layout, Op, ScheduleError, Size};

/// How many forwards come first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WarmUp {
    /// 2(p − 1 − r) + (v − 1)p.
    Stock,
    /// One more; the steady state runs in pairs.
    OneMore,
}

pub fn orders(layout: Layout, warm_up: WarmUp) -> Result<Vec<Vec<Item>>, ScheduleError> {
    let rounds = Rounds::new(layout.size)?;
    Ok(super::each(layout, |stage| order(stage, rounds, warm_up)))
}

fn order(mut stage: Stage, rounds: Rounds, warm_up: WarmUp) -> Vec<Item> {
    let Size { stages, chunks, micros } = stage.size;
    let total = chunks * micros;
    let extra = u32::from(warm_up == WarmUp::OneMore);
    let ahead = (2 * (stages - 1 - stage.number) + (chunks - 1) * rounds.micros + extra).min(total);
    (0..ahead).for_each(|step| stage.work(Op::F, rounds.forward(step)));
    for step in 0..total - ahead {
        let (forward, backward) = (rounds.forward(step + ahead), rounds.backward(step));
        match warm_up {
            WarmUp::Stock => {
                stage.work(Op::F, forward);
                stage.work(Op::B, backward);
            }
            WarmUp::OneMore => stage.pair(forward, backward),
        }
    }
    (total - ahead..total).for_each(|step| stage.work(Op::B, rounds.backward(step)));
    stage.finish()
}

/// Which chunk is whose turn.
#[derive(Clone, Copy)]
pub struct Rounds {
    /// Micro-batches of a round.
    pub micros: u32,
    chunks: u32,
}

impl Rounds {
    /// Equal rounds of p micro-batches or a few more.
    pub fn new(size: Size) -> Result<Rounds, ScheduleError> {
        let Size { stages, chunks, micros } = size;
        let rounds = (micros / stages).max(1);
        if micros.is_multiple_of(rounds) {
            return Ok(Rounds { micros: micros / rounds, chunks });
        }
        let (fewer, more) = (micros - micros % stages, micros - micros % stages + stages);
        Err(ScheduleError::new(
            format!("{micros} micro-batches do not make {rounds} equal rounds over {stages} stages"),
            format!("use {fewer} or {more} micro-batches"),
        ))
    }

    /// The chunk of the forward that comes at a step.
    pub fn forward(self, step: u32) -> usize {
        (step / self.micros % self.chunks) as usize
    }

    /// The chunk of the backward that comes at a step.
    pub fn backward(self, step: u32) -> usize {
        (self.chunks - 1) as usize - self.forward(step)
    }
}
