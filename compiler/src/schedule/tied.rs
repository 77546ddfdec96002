//! What several stages of a pipeline have terms of: gradients of parameters that layers on different stages share, and all of a part of the model that is on two
//! stages, where micro-batches come from both ends. All of them get the same bits.
//!
//! ```text
//! two stages     each sends its own, receives the other's, and adds it: a sum of two has one order
//! more           the first receives the others', adds them in the order of the stages, and sends the sum to all
//! ```
//!
//! Gradients of a layer that two stages have are sent as soon as they are summed over ranks, while other layers go backward; they are received at the end of the step.

use super::layers::{About, Cx};
use super::phases::Scheduler;
use super::shared::Shared;
use super::tensors::{Home, LINE, local_elements, only_layer};
use super::timeline::Bind;
use super::units::UnitId;
use super::{Message, SavedLayout};
use crate::emit::align;
use crate::optimizer;
use forebay_ir::DType;
use rustc_hash::FxHashSet;
use std::ops::Range;

/// So many elements of a type, which are contiguous.
type What = (Bind, u64, DType);

/// Gradients that the other stage that has them has been sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    group: usize,
    channel: u32,
    /// The first of them in this rank's range of its group, and how many.
    start: u64,
    elements: u64,
}

impl Scheduler<'_> {
    /// Gradients of parameters that several stages have, each summed over the ranks of its stage: `gradients` of each group.
    pub(super) fn tied_gradients(&mut self, cx: &Cx, shared: &mut Shared, gradients: &[Bind]) {
        let layer = cx.sharded.model.layers.len() as u32;
        for (g, (group, gradients)) in cx.layout.groups.iter().zip(gradients).enumerate() {
            let of = |start: u64, elements: u64| {
                (gradients.further(start * group.gradient.bytes()), elements, group.gradient)
            };
            let mut sent: Vec<Sent> = shared.sent.iter().copied().filter(|sent| sent.group == g).collect();
            sent.sort_unstable_by_key(|sent| sent.start);
            for &Sent { channel, start, elements, .. } in &sent {
                self.add_from(shared, (other(cx, &group.holders), channel), of(start, elements), layer);
            }
            // The rest as it was summed over ranks: unit by unit.
            for (u, unit) in group.units.iter().enumerate() {
                let range = unit.shard_start..unit.shard_start + unit.elements / group.shards;
                for left in left(&sent, range).into_iter().filter(|left| has_any(cx, (g, u), left)) {
                    self.sum_over_stages(cx, shared, &group.holders, of(left.start, left.end - left.start), layer);
                }
            }
        }
    }

    /// Sends the gradients of a unit, which have been summed over ranks, to the other stage that has its layer. `own`: this rank's ranges of the group.
    pub(super) fn send_unit(&mut self, cx: &Cx, shared: &mut Shared, (g, u): UnitId, own: Bind, layer: u32) {
        let (group, unit) = (&cx.layout.groups[g], &cx.layout.groups[g].units[u]);
        if group.holders.len() != 2 {
            return;
        }
        let is_of_unit = |i: &&usize| (cx.layout.params[i].group, cx.layout.params[i].unit) == (g, u);
        let first = *cx.stage.params.iter().find(is_of_unit).expect("a unit has parameters");
        self.send_early(cx, shared, (g, first), own, (unit.shard_start, unit.elements / group.shards), layer);
    }

    /// Sends the gradients of a layer that no ranks sum to the other stage that has it.
    pub(super) fn send_layer(&mut self, cx: &Cx, shared: &mut Shared, written: &mut FxHashSet<usize>, l: usize) {
        let group_of = |i: usize| &cx.layout.groups[cx.layout.params[&i].group];
        let alone = |i: usize| group_of(i).sums.is_empty() && group_of(i).holders.len() == 2;
        let of_layer = &cx.sharded.model.layers[l].params;
        let mut params: Vec<usize> =
            of_layer.iter().copied().filter(|&i| alone(i) && only_layer(cx.sharded, cx.stage, i) == Some(l)).collect();
        // In the order in which the stage has them.
        params.sort_unstable();
        self.zero_gradients(cx, shared, &params, written);
        written.extend(&params);
        // Parameters that lie side by side go together.
        let home = |i: usize| cx.layout.params[&i];
        let end = |i: usize| {
            home(i).element + local_elements(&cx.sharded.model.params[i], &cx.sharded.params[i], &cx.sharded.mesh)
        };
        let follows =
            |&a: &usize, &b: &usize| home(a).group == home(b).group && end(a).next_multiple_of(LINE) == home(b).element;
        for run in params.chunk_by(follows) {
            let (first, last) = (run[0], run[run.len() - 1]);
            let Home { group: g, element, .. } = home(first);
            let own =
                Bind::Fixed(cx.layout.groups[g].units[0].gradients.expect("gradients that are not shared are kept"));
            self.send_early(cx, shared, (g, first), own, (element, end(last) - element), l as u32);
        }
    }

    /// Sends gradients of a group, the first parameter's first, to the other of its two stages. Layers are done in another order there, so that each message has a channel of its own, behind
    /// those of the chunks.
    fn send_early(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (g, first): (usize, usize),
        own: Bind,
        (start, elements): (u64, u64),
        layer: u32,
    ) {
        let group = &cx.layout.groups[g];
        let channel = About::Activations.channel(cx.stage.chunks.len() as u32) + first as u32;
        let what = (own.further(start * group.gradient.bytes()), elements, group.gradient);
        self.message(shared, what, Message::Send, (other(cx, &group.holders), channel), (layer, 0));
        shared.sent.push(Sent { group: g, channel, start, elements });
    }

    /// Sums something over some stages: none or one where nothing is to be done.
    pub(super) fn sum_over_stages(&mut self, cx: &Cx, shared: &mut Shared, stages: &[u32], own: What, layer: u32) {
        let (at, channel) = ((layer, 0), About::Tied.channel(0));
        match *stages {
            [] | [_] => {}
            [a, b] => {
                let other = other(cx, &[a, b]);
                self.message(shared, own, Message::Send, (other, channel), at);
                self.add_from(shared, (other, channel), own, layer);
            }
            [first, ..] if cx.stage.number != first => {
                self.message(shared, own, Message::Send, (first, channel), at);
                self.message(shared, own, Message::Receive, (first, channel), at);
            }
            [_, ref others @ ..] => {
                others.iter().for_each(|&other| self.add_from(shared, (other, channel), own, layer));
                others.iter().for_each(|&other| self.message(shared, own, Message::Send, (other, channel), at));
            }
        }
    }

    /// Adds what comes from another stage through a channel to what is here.
    fn add_from(&mut self, shared: &mut Shared, from: (u32, u32), own: What, layer: u32) {
        let (_, elements, of) = own;
        let received = Bind::Item(shared.timeline.item(align(elements * of.bytes())), 0);
        self.message(shared, (received, elements, of), Message::Receive, from, (layer, 0));
        self.add_to(shared, own, received, (layer, 0));
    }

    /// Adds so many elements to others.
    pub(super) fn add_to(&mut self, shared: &mut Shared, (sum, elements, of): What, term: Bind, at: (u32, u32)) {
        let name = format!("optimizer.add.{elements}{}", self.of_gradients(of));
        let program = self.programs.get(&name, &SavedLayout::default(), || optimizer::added(elements, of));
        let slots = program.bind(shared, |want, _, _| match want {
            super::bind::Want::State(_) => sum,
            _ => term,
        });
        shared.timeline.call(&program, at.0, at.1, slots);
    }
}

/// What of a range has not been sent: parameters begin at whole lines. `sent`: sorted by their starts.
fn left(sent: &[Sent], range: Range<u64>) -> Vec<Range<u64>> {
    let mut start = range.start;
    let mut left = vec![];
    for sent in sent.iter().filter(|sent| range.contains(&sent.start)) {
        left.push(start..sent.start);
        start = (sent.start + sent.elements).next_multiple_of(LINE);
    }
    left.push(start..range.end);
    left
}

/// Is there more in a range of a unit than the space between parameters? (Where ranks share a unit, it is sent as a whole.)
fn has_any(cx: &Cx, (g, u): UnitId, range: &Range<u64>) -> bool {
    let is_there =
        |home: &Home| (home.group, home.unit) == (g, u) && range.contains(&cx.layout.groups[g].element(*home));
    let whole = cx.layout.groups[g].shards > 1;
    if whole { !range.is_empty() } else { cx.layout.params.values().any(is_there) }
}

/// The other one of two stages.
fn other(cx: &Cx, stages: &[u32]) -> u32 {
    *stages.iter().find(|stage| **stage != cx.stage.number).expect("there are two")
}
