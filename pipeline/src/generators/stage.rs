//! The order of a stage while it is made: each slot takes the next micro-batch.

use crate::{Item, Layout, Op, Placement, Size, Work};
use std::collections::VecDeque;

/// A stage and its order so far.
///
/// Its *slots* are the runs of the model that it works on in one go: for a blocked placement all its groups at once, for others one group each; of
/// DualPipe the first is the way micro-batches come in near this stage. Slots count in the order in which a micro-batch passes them.
pub struct Stage {
    /// Which stage.
    pub number: u32,
    /// Of how many, and so on.
    pub size: Size,
    slots: Vec<Slot>,
    order: Vec<Item>,
    /// Backwards for the input whose backward for the weights is still to come: first come, first served.
    pending: VecDeque<Work>,
}

struct Slot {
    /// Its layer groups: the first and how many.
    first: u32,
    count: u32,
    /// Its micro-batches: the first and the number behind the last.
    from: u32,
    to: u32,
    /// How many micro-batches each op has done, by op: F, I or B, W.
    done: [u32; 3],
}

impl Stage {
    /// With nothing done.
    pub fn new(layout: Layout, number: u32) -> Stage {
        let size = layout.size;
        let slot = |first, count, from, to| Slot { first, count, from, to, done: [0; 3] };
        let all = |first, count| slot(first, count, 0, size.micros);
        let slots = match layout.placement {
            Placement::Blocked => vec![all(number * size.chunks, size.chunks)],
            Placement::Interleaved | Placement::Wave => {
                layout.groups_of(number).into_iter().map(|group| all(group, 1)).collect()
            }
            Placement::TwoWay => {
                let (block, half) = (size.chunks / 2, size.micros / 2);
                let (near, far) = (number, size.stages - 1 - number);
                let mut ways = [slot(near * block, block, 0, half), slot(far * block, block, half, size.micros)];
                ways.sort_by_key(|way| way.first);
                ways.into()
            }
        };
        let order = Vec::with_capacity(3 * (size.chunks * size.micros) as usize);
        Stage { number, size, slots, order, pending: VecDeque::new() }
    }

    /// What it has done.
    pub fn finish(self) -> Vec<Item> {
        self.order
    }

    /// Micro-batches of a slot whose op is still to do.
    pub fn left(&self, op: Op, slot: usize) -> u32 {
        let slot = &self.slots[slot];
        slot.to - slot.from - slot.done[index(op)]
    }

    /// The op on a slot's next micro-batch; nothing when there is none.
    pub fn work(&mut self, op: Op, slot: usize) {
        if self.left(op, slot) == 0 {
            return;
        }
        let works = self.next(op, slot);
        if op == Op::I {
            self.pending.extend(works.iter().map(|w| Work { op: Op::W, ..*w }));
        }
        self.order.extend(works.into_iter().map(Item::One));
    }

    /// A forward and a whole backward together; one alone when the other has none left.
    pub fn pair(&mut self, forward: usize, backward: usize) {
        match (self.left(Op::F, forward), self.left(Op::B, backward)) {
            (0, _) => self.work(Op::B, backward),
            (_, 0) => self.work(Op::F, forward),
            _ => {
                let (forwards, backwards) = (self.next(Op::F, forward), self.next(Op::B, backward));
                self.order.extend(forwards.into_iter().zip(backwards).map(|(f, b)| Item::Pair(f, b)));
            }
        }
    }

    /// The backward for the weights that has waited longest, of whatever slot; nothing when none waits.
    pub fn oldest_weight(&mut self) {
        // All groups of a slot together.
        let slot = |work: Work| self.slots.iter().position(|s| (s.first..s.first + s.count).contains(&work.group));
        if let Some(slot) = self.pending.front().and_then(|w| slot(*w)) {
            let count = self.slots[slot].count as usize;
            self.slots[slot].done[index(Op::W)] += 1;
            self.order.extend(self.pending.drain(..count).map(Item::One));
        }
    }

    fn next(&mut self, op: Op, slot: usize) -> Vec<Work> {
        let slot = &mut self.slots[slot];
        let micro = slot.from + slot.done[index(op)];
        slot.done[index(op)] += 1;
        if op == Op::B {
            slot.done[index(Op::W)] += 1;
        }
        let groups = slot.first..slot.first + slot.count;
        let work = |group| Work { op, group, micro };
        if op == Op::F { groups.map(work).collect() } else { groups.rev().map(work).collect() }
    }
}

fn index(op: Op) -> usize {
    match op {
        Op::F => 0,
        Op::I | Op::B => 1,
        Op::W => 2,
    }
}
