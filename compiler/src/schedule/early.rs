//! What a backward pass makes again, made while the stage waits for the gradient.
//!
//! ```text
//! B: receive · b2 · b1 · send   ──►   again 2 · again 1 · receive · rest 2 · rest 1 · send
//! ```
//!
//! Once stages have made their last forward passes, they have nothing to do until the stage behind them sends a gradient. What layers make again needs none,
//! so it is made first: in as many layers, from the last on, as there is memory for (`memory/early.rs`). The drain of a pipeline then takes as long as
//! backward passes that make nothing again. Which turns may be waited for
//! [`stages::waits`](super::waits) says. Where a stage is busy after all, what is made again is better off within its layer, beside that one's exchanges: so where the device is known, the
//! plan with and the plan without are replayed ([`crate::pipeline`]).
//!
//! Left as they are: layers whose parameters are gathered each time, those that would have to wait for a copy from the host, and backward passes in halves, of which the
//! second fills the time.

use super::bind::{SavedLayout, Want};
use super::layers::{Cx, Half, Training, common, position};
use super::phases::{Scheduler, Turns};
use super::shared::{Pass, Shared, Wait};
use super::stages::{Turn, Work, has_gradient};
use super::timeline::Bind;
use crate::autodiff::{Differentiated, Early, early};
use std::rc::Rc;

/// A segment's backward pass in two parts.
pub struct EarlyParts {
    /// Their graphs.
    pub graphs: Early,
    /// What the forward pass saves, and what the first part leaves to the second.
    pub layout: SavedLayout,
}

impl EarlyParts {
    /// None where nothing can be made early. `saved` is what the forward pass saves.
    pub fn new(segment: &Differentiated, saved: &SavedLayout) -> Option<EarlyParts> {
        let graphs = early(&segment.backward).filter(|graphs| !saved.reads_swapped(&graphs.makes))?;
        debug_assert!(
            graphs.makes.outputs.iter().all(|o| !saved.has(&o.name)),
            "what is made early has a name of its own"
        );
        let layout = saved.with_handed(&graphs.makes);
        Some(EarlyParts { graphs, layout })
    }
}

/// The backward passes that a stage waits for, and that can make something early.
pub fn waits(cx: &Cx, training: &Training, turns: &Turns) -> Vec<Wait> {
    let wait = |turn: &Turn| match *turn {
        Turn::One(Work::Backward(micro_batch, chunk, Half::Whole)) => {
            let layers = layers(cx, training, chunk);
            (!layers.is_empty()).then_some(Wait { pass: (micro_batch, chunk), layers })
        }
        _ => None,
    };
    turns.order.iter().zip(turns.waits).filter(|(_, waits)| **waits).filter_map(|(turn, _)| wait(turn)).collect()
}

/// The layers of a chunk that can make something early, from the last on; none where the gradient comes from the stage itself.
fn layers(cx: &Cx, training: &Training, chunk: u32) -> Vec<(usize, u64)> {
    let (model, chunk) = (&cx.sharded.model, &cx.stage.chunks[chunk as usize]);
    let comes = chunk.sends.iter().any(|link| {
        link.stage != cx.stage.number && link.carries.iter().any(|source| has_gradient(model, training.flow, *source))
    });
    let bytes = |l: usize| {
        let parts = training.early[model.layers[l].segment].as_ref().filter(|_| !cx.is_gathered(l))?;
        Some((l, parts.layout.handed))
    };
    if comes { chunk.layers.clone().rev().map_while(bytes).collect() } else { vec![] }
}

impl Scheduler<'_> {
    /// For each segment its backward pass in two parts, where something is waited for.
    pub(super) fn early_parts(
        &mut self,
        cx: &Cx,
        segments: &[Differentiated],
        turns: &Turns,
    ) -> Vec<Option<Rc<EarlyParts>>> {
        if !turns.waits.contains(&true) {
            return vec![None; segments.len()];
        }
        let parts = |(s, segment): (usize, &Differentiated)| {
            let made = self.early.entry((s, cx.tags[s].clone()));
            made.or_insert_with(|| EarlyParts::new(segment, &cx.saved[s]).map(Rc::new)).clone()
        };
        segments.iter().enumerate().map(parts).collect()
    }

    /// Makes what the layers of a pass can make before the gradient comes.
    pub(super) fn make_early(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        pass: &mut Pass,
        training: &Training,
        (micro_batch, chunk): (u32, u32),
    ) {
        let model = &cx.sharded.model;
        let many = training.early_layers.get(&(micro_batch, chunk)).copied().unwrap_or(0);
        for l in cx.stage.chunks[chunk as usize].layers.clone().rev().take(many) {
            let layer = &model.layers[l];
            let s = layer.segment;
            let Some(parts) = &training.early[s] else { continue };
            let EarlyParts { graphs, layout } = &**parts;
            let name = format!("train.{}{}.backward_early", model.segments[s].name, cx.tags[s]);
            let program = self.programs.get(&name, layout, || graphs.makes.clone());
            let handed = shared.timeline.item(layout.handed);
            pass.handed.insert(l, handed);
            let slots = program.bind(shared, |want, _, shared| match want {
                Want::CarryIn(name) => {
                    Bind::Item(pass.carries[&layer.carries[position(&cx.names[s].carry_in, name)]], 0)
                }
                Want::Saved => Bind::Item(pass.saved[&l], 0),
                Want::Handed => Bind::Item(handed, 0),
                want => common(cx, shared, want, l, micro_batch),
            });
            shared.timeline.call(&program, l as u32, micro_batch, slots);
        }
    }
}
