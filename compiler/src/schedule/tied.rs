//! What several stages of a pipeline have terms of: gradients of parameters that layers on different stages share, and all of a part of the model that is on two
//! stages, where micro-batches come from both ends. The first of the stages adds the terms up, in the order of the stages, and tells the others, so that all have the same bits.
//!
//! ```text
//! stage 0     receive 3's · add · send to 3
//! stage 3     send to 0 ·         receive from 0
//! ```

use super::layers::{About, Cx};
use super::phases::Scheduler;
use super::shared::Shared;
use super::timeline::Bind;
use super::{Message, SavedLayout};
use crate::emit::align;
use crate::optimizer;
use forebay_ir::DType;

impl Scheduler<'_> {
    /// Gradients of parameters that several stages have, each summed over the ranks of its stage: `gradients` of each group.
    pub(super) fn tied_gradients(&mut self, cx: &Cx, shared: &mut Shared, gradients: &[Bind]) {
        let layer = cx.sharded.model.layers.len() as u32;
        for (group, gradients) in cx.layout.groups.iter().zip(gradients) {
            // As they were summed over ranks: unit by unit.
            for unit in &group.units {
                let own = gradients.further(unit.shard_start * group.gradient.bytes());
                let what = (own, unit.elements / group.shards, group.gradient);
                self.sum_over_stages(cx, shared, &group.holders, what, layer);
            }
        }
    }

    /// Sums so many elements of a type, which are contiguous, over some stages: none or one where nothing is to be done.
    pub(super) fn sum_over_stages(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        stages: &[u32],
        (own, elements, of): (Bind, u64, DType),
        layer: u32,
    ) {
        let Some((&first, others)) = stages.split_first().filter(|(_, others)| !others.is_empty()) else { return };
        let (at, channel) = ((layer, 0), About::Tied.channel(0));
        let what = (own, elements, of);
        if cx.stage.number != first {
            self.message(shared, what, Message::Send, (first, channel), at);
            self.message(shared, what, Message::Receive, (first, channel), at);
            return;
        }
        for &other in others {
            let received = Bind::Item(shared.timeline.item(align(elements * of.bytes())), 0);
            self.message(shared, (received, elements, of), Message::Receive, (other, channel), at);
            let name = format!("optimizer.add.{elements}{}", self.of_gradients(of));
            let program = self.programs.get(&name, &SavedLayout::default(), || optimizer::added(elements, of));
            let slots = program.bind(shared, |want, _, _| match want {
                super::bind::Want::State(_) => own,
                _ => received,
            });
            shared.timeline.call(&program, at.0, at.1, slots);
        }
        for &other in others {
            self.message(shared, what, Message::Send, (other, channel), at);
        }
    }
}
