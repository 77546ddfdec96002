//! Borders of passes: layers that are one program, so that more runs beside what is under way, or results are sent earlier.
//!
//! ```text
//! F 0: receive · f1 · f2 · send        receive · f1 · [f2 · send · receive · f1] · [f2 · …
//! F 1: receive · f1 · f2 · send   ──►
//!
//! B 0: receive · b2 · b1 · send   ──►  receive · [b2 · b1] · send
//! ```
//!
//! At the end of a layer nothing is left to do but to wait for the last piece's sums; the next micro-batch, which needs nothing of it, begins beside them. Only
//! what is already in line is brought together, so nobody waits longer for a result than the next message takes to arrive, and
//! a stage's messages are as many and as far apart as before.
//!
//! A border is crossed where a stage has not gone backward yet, between passes through the same layers; and on no stage at all when stages would then wait for each other.
//! Where a backward pass goes on to another stage, its last two layers are one program, in which gradients of parameters come last: what the other stage waits for is there earlier by
//! those of two layers.

use super::Compiled;
use super::layers::{Cx, Half};
use super::pairs::{is_between, is_layer};
use super::phases::Scheduler;
use super::shared::Shared;
use super::stages::{Stage, Turn, Work};
use super::timeline::{Bind, Entry};
use crate::overlap::{Same, Sender};
use forebay_plan::{Access, Space};
use rustc_hash::FxHashSet;
use std::rc::Rc;

/// For each stage and turn: does it begin while the turn before it ends?
pub fn borders(stages: &[Stage], orders: &[Vec<Turn>]) -> Vec<Vec<bool>> {
    let crossed: Vec<Vec<bool>> = orders.iter().map(|order| filling(order)).collect();
    if ends(stages, orders, &crossed) {
        return crossed;
    }
    orders.iter().map(|order| vec![false; order.len()]).collect()
}

/// Forward passes that follow another one through the same layers, up to the first turn that goes backward.
fn filling(order: &[Turn]) -> Vec<bool> {
    let forward = |turn: &Turn| match turn {
        Turn::One(Work::Forward(_, chunk)) => Some(*chunk),
        _ => None,
    };
    let first = order.iter().position(|turn| forward(turn).is_none()).unwrap_or(order.len());
    let follows = |at: usize| (1..first).contains(&at) && forward(&order[at - 1]) == forward(&order[at]);
    (0..order.len()).map(follows).collect()
}

/// What one part of the model makes of a micro-batch: forward (results) or backward (gradients).
type Made = (usize, u32, bool);

/// Do all stages come to their end, when what a turn makes is sent only once there is what the next one needs, where that is crossed?
fn ends(stages: &[Stage], orders: &[Vec<Turn>], crossed: &[Vec<bool>]) -> bool {
    let parts = stages.iter().flat_map(|stage| &stage.chunks).map(|chunk| chunk.part + 1).max().unwrap_or(0);
    let mut made: FxHashSet<Made> = FxHashSet::default();
    let mut at = vec![0; stages.len()];
    loop {
        let mut moved = false;
        for (stage, (order, crossed)) in stages.iter().zip(orders.iter().zip(crossed)) {
            let at = &mut at[stage.number as usize];
            let is_there = |turn: &Turn, made: &FxHashSet<Made>| {
                turn.works().all(|work| match work {
                    Work::Forward(m, c) => {
                        let part = stage.chunks[c as usize].part;
                        part == 0 || made.contains(&(part - 1, m, false))
                    }
                    Work::Backward(m, c, half) => {
                        let part = stage.chunks[c as usize].part;
                        half == Half::Weights || part + 1 == parts || made.contains(&(part + 1, m, true))
                    }
                })
            };
            while let Some(turn) = order.get(*at) {
                let next = order.get(*at + 1).filter(|_| crossed[*at + 1]);
                if !is_there(turn, &made) || !next.is_none_or(|next| is_there(next, &made)) {
                    break;
                }
                for work in turn.works() {
                    made.insert(match work {
                        Work::Forward(m, c) => (stage.chunks[c as usize].part, m, false),
                        Work::Backward(m, c, _) => (stage.chunks[c as usize].part, m, true),
                    });
                }
                *at += 1;
                moved = true;
            }
        }
        if !moved {
            return at.iter().zip(orders).all(|(at, order)| *at == order.len());
        }
    }
}

/// Can a forward pass begin beside the last layer of one through the same layers? Between them there are messages only, and each has another layer.
pub(super) fn crosses(cx: &Cx, turn: &Turn) -> bool {
    let layers = |chunk: u32| cx.stage.chunks[chunk as usize].layers.clone();
    matches!(turn, Turn::One(Work::Forward(_, chunk)) if layers(*chunk).len() > 1 && layers(*chunk).all(|l| is_between(cx, l)))
}

/// Can the last two layers of a turn be one, since it is a backward pass that goes on to another stage?
pub(super) fn hurries(cx: &Cx, turn: &Turn) -> bool {
    let Turn::One(Work::Backward(_, chunk, Half::Whole)) = turn else { return false };
    let chunk = &cx.stage.chunks[*chunk as usize];
    let goes_on = chunk.receives.as_ref().is_some_and(|link| link.stage != cx.stage.number);
    goes_on && chunk.layers.clone().take(2).filter(|&l| is_between(cx, l)).count() == 2
}

impl Scheduler<'_> {
    /// Brings together the last layer of a pass, whose calls are those from `first` on, and the first layer of the next one, from `second` on, with the messages
    /// between them; where the calls that are left of the next one begin. `begun`: the pass's own first layer is part of what is before `first`.
    pub(super) fn cross(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (first, begun): (u32, bool),
        second: u32,
    ) -> Option<u32> {
        let calls = shared.timeline.take(first);
        let middle = (second - first) as usize;
        let found = self.border(cx, (&calls, begun), middle);
        self.replace(shared, calls, found.map(|found| (found, Sender::First)))
    }

    /// Brings together the last two layers of a backward pass that goes on to another stage, whose calls are those from `first` on.
    pub(super) fn hurry(&mut self, cx: &Cx, shared: &mut Shared, first: u32) {
        let calls = shared.timeline.take(first);
        let last = calls.iter().rposition(|call| self.is_heavy_layer(cx, call));
        let found = last.and_then(|last| {
            let before = calls[..last].iter().rposition(|call| self.copies(call).is_none())?;
            let sends = calls.get(last + 1).is_some_and(|call| self.programs.is_message(call.program));
            (sends && self.is_heavy_layer(cx, &calls[before])).then_some(((before, last), Sender::Last))
        });
        self.replace(shared, calls, found);
    }

    /// Puts calls back, some of them as one where that is possible and worth it; where the calls behind that begin. Copies from the host between them are made
    /// before, copies to it behind: nothing of what is brought together reads the ones or writes the others' memory.
    fn replace(
        &mut self,
        shared: &mut Shared,
        mut calls: Vec<Entry>,
        found: Option<((usize, usize), Sender)>,
    ) -> Option<u32> {
        let first = shared.timeline.len();
        let one = found.and_then(|((from, to), sender)| {
            let merged: Vec<Entry> = calls[from..=to].iter().filter(|c| self.copies(c).is_none()).cloned().collect();
            let (program, slots) = self.as_one(&merged, sender)?;
            Some((from, to, merged, program, slots))
        });
        let Some((from, to, merged, program, slots)) = one else {
            calls.into_iter().for_each(|call| shared.timeline.put(call));
            return None;
        };
        let behind = calls.split_off(to + 1);
        let between = calls.split_off(from);
        let copies = between.into_iter().filter(|call| self.copies(call).is_some());
        let (to_device, to_host): (Vec<Entry>, Vec<Entry>) =
            copies.partition(|call| self.copies(call) == Some(Space::Device));
        calls.into_iter().chain(to_device).for_each(|call| shared.timeline.put(call));
        let here = shared.timeline.len();
        // Random numbers depend on the layer and micro-batch of a call; at most one of them has them.
        let of = merged.iter().find(|call| self.programs.is_random(call.program)).unwrap_or(&merged[0]);
        shared.timeline.call(&program, of.layer, of.micro_batch, slots);
        merged.iter().flat_map(Entry::keeps).for_each(|&item| shared.timeline.keep(item));
        to_host.into_iter().for_each(|call| shared.timeline.put(call));
        let next = shared.timeline.len();
        behind.into_iter().for_each(|call| shared.timeline.put(call));
        let (from, to) = (first + from as u32, first + to as u32);
        for span in shared.spans.values_mut() {
            for call in [&mut span.forward, &mut span.backward] {
                if (from..=to).contains(call) {
                    *call = here;
                } else if *call > to {
                    *call = *call - (to + 1) + next;
                }
            }
        }
        Some(here + 1)
    }

    /// The last layer before a place and the first one behind it, when there are only messages and copies between them and each pass has other layers.
    fn border(&self, cx: &Cx, (calls, begun): (&[Entry], bool), middle: usize) -> Option<(usize, usize)> {
        let is_layer = |call: &Entry| self.is_heavy_layer(cx, call);
        let from = calls[..middle].iter().rposition(is_layer)?;
        let to = middle + calls[middle..].iter().position(is_layer)?;
        let others = (begun || calls[..from].iter().any(is_layer)) && calls[to + 1..].iter().any(is_layer);
        let passes = |call: &Entry| self.programs.is_message(call.program) || self.copies(call).is_some();
        (others && calls[from + 1..to].iter().all(passes)).then_some((from, to))
    }

    fn is_heavy_layer(&self, cx: &Cx, call: &Entry) -> bool {
        is_layer(cx, call) && self.programs.is_heavy(call.program)
    }

    /// The memory that a call copies swapped tensors to, if it does that.
    fn copies(&self, call: &Entry) -> Option<Space> {
        self.programs.copies(call.program)
    }

    /// Calls as one, and what its slots are bound to; nothing when that is not worth it or not possible.
    fn as_one(&mut self, calls: &[Entry], sender: Sender) -> Option<(Rc<Compiled>, Vec<Bind>)> {
        let mut slots: Vec<Bind> = vec![];
        let mut changed: Vec<bool> = vec![];
        let mut same: Vec<Vec<Same>> = vec![];
        for call in calls {
            let mut of_call = vec![];
            let own = &call.slots[..call.slots.len() - 1];
            let (mut more, mut more_changed) = (vec![], vec![]);
            for (j, bind) in own.iter().enumerate() {
                let changes = self.programs.access(call.program, j) != Access::Read;
                match slots.iter().position(|other| other == bind) {
                    // Two slots that are only read may lie in one place, which nothing changes then.
                    Some(i) if changes && slots[i + 1..].contains(bind) => return None,
                    Some(i) if changes || changed[i] => {
                        changed[i] = true;
                        of_call.push((i, j));
                    }
                    _ => {
                        more.push(*bind);
                        more_changed.push(changes);
                    }
                }
            }
            slots.extend(more);
            changed.extend(more_changed);
            same.push(of_call);
        }
        let programs: Vec<u32> = calls.iter().map(|call| call.program).collect();
        let program = self.programs.cross(&programs, &same[1..], sender)?;
        Some((program, slots))
    }
}

#[cfg(test)]
mod tests {
    use super::super::stages::{Chunk, Way};
    use super::*;
    use std::collections::BTreeMap;

    /// A stage with these parts of the model.
    fn stage(number: u32, parts: &[usize]) -> Stage {
        let chunk = |&part: &usize| Chunk { part, way: Way::Only, layers: part..part + 1, receives: None, sends: None };
        let chunks = parts.iter().map(chunk).collect();
        Stage { number, of: 2, chunks, params: vec![], states: vec![], tied: BTreeMap::new() }
    }

    fn forward(passes: &[(u32, u32)]) -> Vec<Turn> {
        passes.iter().map(|&(micro, chunk)| Turn::One(Work::Forward(micro, chunk))).collect()
    }

    #[test]
    fn borders_are_crossed_where_passes_follow_each_other() {
        let stages = [stage(0, &[0, 2]), stage(1, &[1, 3])];
        let orders = [&[(0, 0), (1, 0), (0, 1), (1, 1)][..]; 2].map(forward);
        assert_eq!(borders(&stages, &orders), [[false, true, false, true]; 2]);
    }

    /// The second stage would send the first result only when it has the second message, which the first stage sends only when it has had that result.
    #[test]
    fn no_border_is_crossed_where_stages_would_wait_for_each_other() {
        let stages = [stage(0, &[0, 2]), stage(1, &[1, 3])];
        let orders = [forward(&[(0, 0), (0, 1), (1, 0), (1, 1)]), forward(&[(0, 0), (1, 0), (0, 1), (1, 1)])];
        assert_eq!(borders(&stages, &orders), [[false; 4]; 2]);
    }
}
