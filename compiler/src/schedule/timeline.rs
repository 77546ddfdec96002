//! A phase in the making: calls in order, and the memory items they use, each alive from its first to its last call.

use crate::emit::{Interval, Packing, align, max_live, pack_briefly, pack_within};
use forebay_plan as plan;
use std::collections::BTreeSet;

/// Memory that lives within the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Item(usize);

/// What a slot of a call is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bind {
    /// A fixed place in the arena.
    Fixed(u64),
    /// An item, this many bytes from its start.
    Item(Item, u64),
}

impl Bind {
    /// So many bytes further on.
    pub fn further(self, bytes: u64) -> Bind {
        match self {
            Bind::Fixed(offset) => Bind::Fixed(offset + bytes),
            Bind::Item(item, offset) => Bind::Item(item, offset + bytes),
        }
    }
}

struct ItemLife {
    bytes: u64,
    permanent: bool,
    space: plan::Space,
}

/// A call in the making.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The program.
    pub program: u32,
    /// The layer.
    pub layer: u32,
    /// The micro-batch.
    pub micro_batch: u32,
    /// What its slots are bound to, the frame last.
    pub slots: Vec<Bind>,
    /// Bytes of its frame, and those that are live at once.
    frame: (u64, u64),
    /// What is in use until it has ended.
    keeps: Vec<Item>,
}

impl Entry {
    /// What is in use until it has ended, beside what its slots are bound to.
    pub fn keeps(&self) -> &[Item] {
        &self.keeps
    }

    /// What its slots are bound to, but fixed places.
    pub fn items(&self) -> impl Iterator<Item = Item> {
        self.slots.iter().filter_map(|slot| match slot {
            Bind::Item(item, _) => Some(*item),
            Bind::Fixed(_) => None,
        })
    }
}

/// Frames lie apart where the arena grows by less than one part of so many. (A hundredth of a step's time is what there was to gain.)
const ALTERNATE: u64 = 32;

/// They do not where more than one part of so many would be wasted by placing them so.
const WASTE: u64 = 200;

/// Where frames of calls that follow each other lie. (Where they lie apart, units that are done with one call begin the next while others are still at the first.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Frames {
    /// As the arena is smallest.
    #[default]
    Anywhere,
    /// Apart where that takes little memory, and as far as there is room.
    AsRoomAllows,
    /// Apart, whatever it takes.
    Apart,
}

/// The calls and items of a phase.
#[derive(Default)]
pub struct Timeline {
    items: Vec<ItemLife>,
    calls: Vec<Entry>,
    frames: Frames,
    /// Bytes of the device's arena that are enough, persistent ones included; 0 when it is to be as small as can be.
    enough: u64,
}

/// A finished phase.
pub struct Placed {
    /// The calls.
    pub calls: Vec<plan::Call>,
    /// Bytes above the persistent ones.
    pub bytes: u64,
    /// Maximum live bytes above the persistent ones.
    pub live: u64,
    /// For each call the bytes that are live above the persistent ones.
    pub curve: Vec<u64>,
    offsets: Vec<u64>,
}

impl Placed {
    /// Where something was placed, from the start of the arena.
    pub fn offset(&self, bind: Bind) -> u64 {
        match bind {
            Bind::Fixed(offset) => offset,
            Bind::Item(item, offset) => self.offsets[item.0] + offset,
        }
    }
}

/// Ranges with those that touch as one.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touch = next.0 <= last.1;
        last.1 = if touch { last.1.max(next.1) } else { last.1 };
        touch
    });
    ranges
}

/// The first place for so many bytes below `limit` that is in none of these ranges.
fn free(ranges: &BTreeSet<(u64, u64)>, bytes: u64, limit: u64) -> Option<u64> {
    let mut offset = 0;
    for &(from, to) in ranges {
        if from >= offset + bytes {
            break;
        }
        offset = offset.max(to);
    }
    (offset + bytes <= limit).then_some(offset)
}

impl Timeline {
    /// A new item; it is alive from the first to the last call that binds it.
    pub fn item(&mut self, bytes: u64) -> Item {
        self.item_in(plan::Space::Device, bytes)
    }

    /// The same in one of the memories.
    pub fn item_in(&mut self, space: plan::Space, bytes: u64) -> Item {
        self.items.push(ItemLife { bytes: align(bytes), permanent: false, space });
        Item(self.items.len() - 1)
    }

    /// An item that is in use is not given up before the last call so far has ended.
    pub fn keep(&mut self, item: Item) {
        if let Some(call) = self.calls.last_mut() {
            call.keeps.push(item);
        }
    }

    /// Says where frames that follow each other are to lie.
    pub fn lay_frames(&mut self, frames: Frames) {
        self.frames = frames;
    }

    /// Says how many bytes of the device's arena are enough, persistent ones included.
    pub fn suffice(&mut self, bytes: u64) {
        self.enough = bytes;
    }

    /// An item that is alive from before the first call to after the last.
    pub fn permanent(&mut self, bytes: u64) -> Item {
        let item = self.item(bytes);
        self.items[item.0].permanent = true;
        item
    }

    /// How many calls there are.
    pub fn len(&self) -> u32 {
        self.calls.len() as u32
    }

    /// Appends a call. `slots` are all slots but the frame, which is the last.
    pub fn call(&mut self, program: &super::Compiled, layer: u32, micro_batch: u32, mut slots: Vec<Bind>) {
        debug_assert_eq!(slots.len() + 1, program.slots, "every slot but the frame is bound");
        let frame = self.item(program.frame_bytes);
        slots.push(Bind::Item(frame, 0));
        let frame = (align(program.frame_bytes), align(program.frame_live));
        self.calls.push(Entry { program: program.id, layer, micro_batch, slots, frame, keeps: vec![] });
    }

    /// The frames of the calls from this one on.
    pub fn frames(&self, from: u32) -> Vec<Item> {
        let frame = |call: &Entry| match call.slots.last() {
            Some(Bind::Item(frame, _)) => Some(*frame),
            _ => None,
        };
        self.calls[from as usize..].iter().filter_map(frame).collect()
    }

    /// Takes the calls from this one on away, to be put back in another order.
    pub fn take(&mut self, from: u32) -> Vec<Entry> {
        self.calls.split_off(from as usize)
    }

    /// Puts a call back.
    pub fn put(&mut self, call: Entry) {
        self.calls.push(call);
    }

    /// For each item the first and the last call that binds it or keeps it; none when none does.
    fn lives(&self) -> Vec<Option<(u32, u32)>> {
        let mut lives: Vec<Option<(u32, u32)>> =
            self.items.iter().map(|i| i.permanent.then_some((0, u32::MAX - 1))).collect();
        for (time, call) in (0..).zip(&self.calls) {
            for item in call.items().chain(call.keeps.iter().copied()) {
                let (_, end) = lives[item.0].get_or_insert((time, time));
                *end = (*end).max(time);
            }
        }
        lives
    }

    /// The same with frames until the end of the next call that has one.
    fn longer_lives(&self, lives: &[Option<(u32, u32)>]) -> Vec<Option<(u32, u32)>> {
        let mut lives = lives.to_vec();
        let mut before: Option<Item> = None;
        for (time, call) in (0..).zip(&self.calls) {
            let (Some(Bind::Item(frame, _)), true) = (call.slots.last(), call.frame.0 > 0) else { continue };
            if let Some((_, end)) = before.replace(*frame).and_then(|before| lives[before.0].as_mut()) {
                *end = (*end).max(time);
            }
        }
        lives
    }

    /// The same for frames beside which no more is then alive than so many bytes.
    fn longer_lives_within(&self, lives: &[Option<(u32, u32)>], most: u64) -> Vec<Option<(u32, u32)>> {
        let mut alive = self.alive(&self.intervals(lives, plan::Space::Device));
        let mut within = lives.to_vec();
        for ((item, life), longer) in self.items.iter().zip(&mut within).zip(self.longer_lives(lives)) {
            let (Some((_, end)), Some((_, to))) = (life, longer) else { continue };
            if to == *end {
                continue;
            }
            let more = &mut alive[*end as usize + 1..=to as usize];
            if more.iter().all(|bytes| bytes + item.bytes <= most) {
                more.iter_mut().for_each(|bytes| *bytes += item.bytes);
                *end = to;
            }
        }
        within
    }

    /// What the items take of a memory.
    fn intervals(&self, lives: &[Option<(u32, u32)>], space: plan::Space) -> Vec<Interval> {
        let interval = |(item, life): (&ItemLife, &Option<(u32, u32)>)| {
            let (start, end) = life.unwrap_or((0, 0));
            Interval { start, end, bytes: if life.is_some() && item.space == space { item.bytes } else { 0 } }
        };
        self.items.iter().zip(lives).map(interval).collect()
    }

    /// Places all items above the persistent bytes of the device, and those of the host above its own.
    pub fn place(self, (persistent, kept_by_host): (u64, u64)) -> Placed {
        let lives = self.lives();
        let (intervals, packing) = self.on_device(&lives, persistent);
        let swaps = self.items.iter().any(|item| item.space == plan::Space::Host);
        // (Nobody counts the host's bytes while it is looked for what fits.)
        let enough = if self.enough == 0 { 0 } else { u64::MAX };
        let of_host = swaps.then(|| pack_within(&self.intervals(&lives, plan::Space::Host), enough).offsets);
        let place = |(n, item): (usize, &ItemLife)| match (&of_host, item.space) {
            (Some(host), plan::Space::Host) => kept_by_host + host[n],
            _ => persistent + packing.offsets[n],
        };
        let offsets: Vec<u64> = self.items.iter().enumerate().map(place).collect();
        let curve = self.live(&intervals);
        let live = curve.iter().copied().max().unwrap_or(0);
        let mut placed = Placed { calls: vec![], bytes: packing.bytes, live, curve, offsets };
        for Entry { program, layer, micro_batch, slots, .. } in self.calls {
            let slots = slots.into_iter().map(|s| placed.offset(s)).collect();
            placed.calls.push(plan::Call { program, layer, micro_batch, slots, waits: vec![] });
        }
        placed
    }

    /// What the items take of the device, and where they lie above its persistent bytes. Frames of calls that follow each other lie apart: all of them, where the arena
    /// hardly grows for it, and else as many as the bytes have room for that are taken anyway.
    fn on_device(&self, lives: &[Option<(u32, u32)>], persistent: u64) -> (Vec<Interval>, Packing) {
        let intervals = self.intervals(lives, plan::Space::Device);
        // (Something is enough: what does not fit is not to be placed as well as it can be.)
        let enough = if self.enough == 0 { 0 } else { self.enough.saturating_sub(persistent).max(1) };
        let pack = |intervals: &[Interval]| pack_within(intervals, enough);
        if self.frames == Frames::Apart {
            let longer = self.intervals(&self.longer_lives(lives), plan::Space::Device);
            let apart = pack(&longer);
            return (longer, apart);
        }
        let packing = pack(&intervals);
        // What does not fit has no room for more either.
        let is_over = enough > 0 && packing.bytes > enough;
        if self.frames == Frames::Anywhere || is_over {
            return (intervals, packing);
        }
        let arena = persistent + packing.bytes;
        let most = packing.bytes + arena / ALTERNATE;
        let most = if enough > 0 { most.min(enough) } else { most };
        let longer = self.intervals(&self.longer_lives(lives), plan::Space::Device);
        let apart = (max_live(&longer) <= most).then(|| pack_briefly(&longer, enough));
        if let Some(apart) = apart.filter(|apart| apart.bytes <= most && apart.bytes - apart.live <= arena / WASTE) {
            return (longer, apart);
        }
        let some = self.intervals(&self.longer_lives_within(lives, packing.live), plan::Space::Device);
        let apart = pack_briefly(&some, enough);
        let (intervals, mut packing) = if apart.bytes <= packing.bytes { (some, apart) } else { (intervals, packing) };
        self.move_apart(&intervals, &mut packing);
        (intervals, packing)
    }

    /// Moves frames to where those of the calls before are not, nor what the next call begins to use, as far as there is room in what is taken anyway.
    /// A frame that lives for its call only is in the way of nothing but what lives then.
    fn move_apart(&self, intervals: &[Interval], packing: &mut Packing) {
        let mut starting: Vec<Vec<usize>> = vec![vec![]; self.calls.len() + 1];
        let mut ending = starting.clone();
        // What is alive all the time, such as the data of each micro-batch, is many items that stand in a row.
        let is_always = |i: &Interval| i.start == 0 && i.end as usize >= self.calls.len();
        let mut always: Vec<(u64, u64)> = vec![];
        for (n, i) in intervals.iter().enumerate().filter(|(_, i)| i.bytes > 0) {
            if is_always(i) {
                always.push((packing.offsets[n], packing.offsets[n] + i.bytes));
                continue;
            }
            starting[(i.start as usize).min(self.calls.len())].push(n);
            ending[(i.end as usize).min(self.calls.len())].push(n);
        }
        let range = |packing: &Packing, n: usize| (packing.offsets[n], packing.offsets[n] + intervals[n].bytes);
        let mut alive = BTreeSet::from_iter(joined(always));
        let is_frame = |time: usize, n: usize| {
            let frame = self.calls.get(time).and_then(|call| call.slots.last());
            frame == Some(&Bind::Item(Item(n), 0)) && intervals[n].start == intervals[n].end
        };
        let mut before = None;
        for (time, call) in self.calls.iter().enumerate() {
            alive.extend(starting[time].iter().map(|&n| range(packing, n)));
            if let Some(&Bind::Item(Item(frame), _)) = call.slots.last()
                && intervals[frame].bytes > 0
            {
                let was = range(packing, frame);
                if is_frame(time, frame) {
                    alive.remove(&was);
                    let next = starting[time + 1].iter().filter(|&&n| !is_frame(time + 1, n));
                    let of_next = next.map(|&n| range(packing, n));
                    let room = |others: BTreeSet<(u64, u64)>| free(&others, intervals[frame].bytes, packing.bytes);
                    let from_both = room(alive.iter().copied().chain(before).chain(of_next).collect());
                    let to = from_both.or_else(|| room(alive.iter().copied().chain(before).collect()));
                    packing.offsets[frame] = to.unwrap_or(was.0);
                    alive.insert(range(packing, frame));
                }
                before = Some(range(packing, frame));
            }
            ending[time].iter().for_each(|&n| {
                alive.remove(&range(packing, n));
            });
        }
    }

    /// For each call the bytes of live items, frames counted at what is live within them.
    fn live(&self, intervals: &[Interval]) -> Vec<u64> {
        let at = |(now, call): (u64, &Entry)| now - (call.frame.0 - call.frame.1);
        self.alive(intervals).into_iter().zip(&self.calls).map(at).collect()
    }

    /// For each call the bytes that are taken.
    fn alive(&self, intervals: &[Interval]) -> Vec<u64> {
        let mut change = vec![0i64; self.calls.len() + 2];
        let last = self.calls.len();
        for i in intervals {
            change[(i.start as usize).min(last)] += i.bytes as i64;
            change[(i.end as usize + 1).min(last + 1)] -= i.bytes as i64;
        }
        let bytes = change.into_iter().scan(0, |now, change| {
            *now += change;
            Some(*now as u64)
        });
        bytes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Compiled;
    use super::*;
    use crate::emit::ALIGN;

    /// From where to where something lies, in units.
    type Place = (u64, u64);

    /// Calls with frames of so many units, and items of so many units that the calls of a range bind, all placed; and where frames and items then lie.
    fn placed(frames: &[u64], items: &[(std::ops::Range<usize>, u64)]) -> (Placed, Vec<Place>, Vec<Place>) {
        let mut timeline = Timeline::default();
        timeline.lay_frames(Frames::AsRoomAllows);
        let made: Vec<Item> = items.iter().map(|(_, units)| timeline.item(units * ALIGN)).collect();
        for (time, units) in frames.iter().enumerate() {
            let bound = items.iter().zip(&made).filter(|((calls, _), _)| calls.contains(&time));
            let slots: Vec<Bind> = bound.map(|(_, item)| Bind::Item(*item, 0)).collect();
            let bytes = units * ALIGN;
            let program = Compiled {
                id: 0,
                slots: slots.len() + 1,
                wants: vec![],
                bytes: vec![],
                frame_bytes: bytes,
                frame_live: bytes,
            };
            timeline.call(&program, 0, 0, slots);
        }
        let placed = timeline.place((0, 0));
        let range = |from: u64, units: u64| (from / ALIGN, from / ALIGN + units);
        let of_frame = |(call, units): (&plan::Call, &u64)| range(*call.slots.last().expect("a frame"), *units);
        let of_frames = placed.calls.iter().zip(frames).map(of_frame).collect();
        let of_items =
            made.iter().zip(items).map(|(item, (_, units))| range(placed.offset(Bind::Item(*item, 0)), *units));
        let of_items = of_items.collect();
        (placed, of_frames, of_items)
    }

    fn meet(a: Place, b: Place) -> bool {
        a.0 < b.1 && b.0 < a.1
    }

    /// The fourth call takes all there is. The frames before and after it lie apart from each other all the same, which takes that what lies beside both goes out of their
    /// way; that of the second call is not kept until the fourth is done.
    #[test]
    fn frames_lie_apart_where_there_is_room() {
        let (placed, frames, items) = placed(&[6, 10, 0, 4, 4], &[(0..2, 4), (3..4, 16)]);
        assert_eq!((placed.bytes, placed.live), (20 * ALIGN, 20 * ALIGN), "{frames:?} {items:?}");
        assert!(!meet(frames[0], frames[1]) && !meet(frames[3], frames[4]), "{frames:?} {items:?}");
        assert!(!meet(frames[0], items[0]) && !meet(frames[1], items[0]) && !meet(frames[3], items[1]));
        assert_eq!(placed.curve, [10, 20, 0, 20, 8].map(|units| units * ALIGN));
    }
}
