//! V-Half and V-Min: a pattern of six slots, repeated for each micro-batch, on the V placement; its repeat and the offsets between stages decide how
//! long activations live, so how many there are (Qi et al., arXiv 2405.15362). Orders are those of the authors' program.
//!
//! ```text
//! slots of stage r       F0     F1          I1                I0                 every 6 slots again; W where slots are free
//! V-Min                  r      2p−r−1      2p+d+r            4p+d−r−1           d = 2 when 3 divides p, else 0
//! V-Half                 2r     3p−r−2      3p+d+2r−1         6p+d−r−2           d = 3 when 2 divides p, else 0
//! ```
//!
//! The repeated pattern has holes in the fill and the drain. Twice, every item there moves to the earliest free slot that its needs and the pattern's
//! own peak allow: once with the Ws in their places, once with the Ws placed again behind the moves. Peaks: 2⌊(p + 4)/3⌋ and 2⌊(p + 2)/2⌋ chunks.

use super::Stage;
use crate::{Item, Layout, Op, ScheduleError};

/// Slots after which the pattern repeats.
const PERIOD: u32 = 6;
/// What a slot holds: F of chunk 0, F of chunk 1, I of chunk 1, I of chunk 0; W comes fifth.
const W: usize = 4;
/// Where the time that moves take stays reasonable.
const MOST_STAGES: u32 = 128;

/// The slots of the first micro-batch, by stage.
pub type Pattern = Vec<[u32; 4]>;

pub fn half(p: u32) -> Pattern {
    let d = if p.is_multiple_of(2) { 3 } else { 0 };
    (0..p.min(MOST_STAGES)).map(|r| [2 * r, 3 * p - r - 2, 3 * p + d + 2 * r - 1, 6 * p + d - r - 2]).collect()
}

pub fn min(p: u32) -> Pattern {
    let d = if p.is_multiple_of(3) { 2 } else { 0 };
    (0..p.min(MOST_STAGES)).map(|r| [r, 2 * p - r - 1, 2 * p + d + r, 4 * p + d - r - 1]).collect()
}

pub fn orders(layout: Layout, pattern: &Pattern) -> Result<Vec<Vec<Item>>, ScheduleError> {
    let size = layout.size;
    if size.stages > MOST_STAGES {
        return Err(ScheduleError::new(
            format!("v-half and v-min are made for {MOST_STAGES} stages at most, not {}", size.stages),
            "use zb-v, which is made at any size",
        ));
    }
    let repeated = |first: u32| (0..size.micros).map(|k| first + PERIOD * k).collect();
    let mut grid = Grid { slots: pattern.iter().map(|row| row.map(repeated).to_vec()).collect() };
    grid.place_weights();
    grid.fill_holes(Holes::WithWeights);
    grid.squeeze();
    grid.slots.iter_mut().for_each(|stage| stage.truncate(W));
    grid.fill_holes(Holes::WithoutWeights);
    grid.place_weights();
    grid.squeeze();
    grid.slots.iter_mut().for_each(|stage| stage.truncate(W));
    Ok((0..).zip(&grid.slots).map(|(number, slots)| order(Stage::new(layout, number), slots)).collect())
}

/// The stage's items by time, a W wherever there is room, those of chunk 1 first.
fn order(mut stage: Stage, slots: &[Vec<u32>]) -> Vec<Item> {
    let mut pending = [0, 0];
    for held in slots_in_order(slots) {
        match held {
            Some(0) => stage.work(Op::F, 0),
            Some(1) => stage.work(Op::F, 1),
            Some(kind) => {
                let chunk = 3 - kind;
                stage.work(Op::I, chunk);
                pending[chunk] += 1;
            }
            None => weight(&mut stage, &mut pending),
        }
    }
    while pending != [0, 0] {
        weight(&mut stage, &mut pending);
    }
    stage.finish()
}

fn weight(stage: &mut Stage, pending: &mut [u32; 2]) {
    if let Some(chunk) = [1, 0].into_iter().find(|c| pending[*c] > 0) {
        pending[chunk] -= 1;
        stage.work(Op::W, chunk);
    }
}

/// What each slot of a stage holds, up to its last.
fn slots_in_order(slots: &[Vec<u32>]) -> Vec<Option<usize>> {
    let last = slots.iter().filter_map(|times| times.last()).max().copied().unwrap_or(0);
    let mut held = vec![None; last as usize + 1];
    for (kind, times) in slots.iter().enumerate() {
        times.iter().for_each(|t| held[*t as usize] = Some(kind));
    }
    held
}

/// Which items move.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holes {
    /// In the fill and in the drain; Ws have slots of their own.
    WithWeights,
    /// In the drain; Ws go into free slots by themselves.
    WithoutWeights,
}

/// For each stage and kind of item, the slot of each micro-batch.
struct Grid {
    slots: Vec<Vec<Vec<u32>>>,
}

impl Grid {
    /// Gives each W the first free slot after its I.
    fn place_weights(&mut self) {
        for stage in &mut self.slots {
            let held = slots_in_order(stage);
            let (mut pending, mut times) = (0, vec![]);
            for (time, held) in (0..).zip(&held) {
                match held {
                    Some(2 | 3) => pending += 1,
                    None if pending > 0 => {
                        pending -= 1;
                        times.push(time);
                    }
                    _ => {}
                }
            }
            times.extend((held.len() as u32..).take(pending));
            stage.push(times);
        }
    }

    /// All items as (slot, stage, kind, micro-batch), in order of time.
    fn items(&self) -> Vec<(u32, usize, usize, usize)> {
        let kinds = |(s, stage): (usize, &Vec<Vec<u32>>)| {
            let times = |(kind, times): (usize, &Vec<u32>)| {
                times.iter().enumerate().map(|(micro, t)| (*t, s, kind, micro)).collect::<Vec<_>>()
            };
            stage.iter().enumerate().flat_map(times).collect::<Vec<_>>()
        };
        let mut items: Vec<_> = self.slots.iter().enumerate().flat_map(kinds).collect();
        items.sort_unstable();
        items
    }

    /// The first slot in which the needs of an item are met, given `of`, the slot behind an item's.
    fn after_needs(&self, (s, kind, micro): (usize, usize, usize)) -> u32 {
        let of = |s: usize, kind: usize| self.slots[s][kind][micro] + 1;
        // F0 and I1 go down the stages, F1 and I0 up.
        let neighbour = match kind {
            0 | 2 => s.checked_sub(1),
            1 | 3 => Some(s + 1).filter(|s| *s < self.slots.len()),
            _ => None,
        };
        let mut ready = neighbour.map_or(0, |s| of(s, kind));
        if (1..W).contains(&kind) {
            ready = ready.max(of(s, kind - 1));
        }
        if micro > 0 {
            ready = ready.max(self.slots[s][kind][micro - 1] + 1);
        }
        ready
    }

    /// Each item as early as the order of its stage allows, all of them one slot long.
    fn squeeze(&mut self) {
        let mut free = vec![0; self.slots.len()];
        for (_, s, kind, micro) in self.items() {
            let start = self.after_needs((s, kind, micro)).max(free[s]);
            self.slots[s][kind][micro] = start;
            free[s] = start + 1;
        }
    }

    /// Moves items to earlier free slots where their needs and the peak allow.
    fn fill_holes(&mut self, holes: Holes) {
        let mut rooms: Vec<Room> = self.slots.iter().map(|stage| Room::new(stage, holes)).collect();
        let peak = rooms.iter().map(Room::peak).max().unwrap_or(0);
        let last = self.slots[0][0].len() - 1;
        let (mut steady, mut drain) = (false, false);
        for (time, s, kind, micro) in self.items() {
            steady |= kind == 3 && s == 0;
            let stays = match (steady, drain) {
                (false, _) => holes == Holes::WithoutWeights,
                (true, drain) => !drain,
            };
            drain |= steady && kind == 0 && micro == last;
            if stays {
                continue;
            }
            let ready = match kind {
                W => self.after_input(s, micro),
                _ => self.after_needs((s, kind, micro)),
            };
            if let Some(slot) = (ready..time).find(|slot| rooms[s].moves(time, *slot, peak)) {
                self.slots[s][kind][micro] = slot;
            }
        }
    }

    /// The slot behind the I that the n-th W of a stage belongs to: Is of both chunks count together.
    fn after_input(&self, s: usize, nth: usize) -> u32 {
        let (one, zero) = (&self.slots[s][2], &self.slots[s][3]);
        // The first slot up to which more than n have been.
        let until = |slot: u32| one.partition_point(|t| *t <= slot) + zero.partition_point(|t| *t <= slot);
        let (mut low, mut high) = (0, one.last().max(zero.last()).copied().unwrap_or(0));
        while low < high {
            let middle = low + (high - low) / 2;
            if until(middle) > nth { high = middle } else { low = middle + 1 }
        }
        let own = low + 1;
        nth.checked_sub(1).map_or(own, |before| own.max(self.slots[s][W][before] + 1))
    }
}

/// What the slots of a stage hold, and how many activations it has.
struct Room {
    held: Vec<Option<usize>>,
    holes: Holes,
    /// Before each slot: activations, and Ws that are still to do.
    before: Vec<(i64, i64)>,
}

impl Room {
    fn new(slots: &[Vec<u32>], holes: Holes) -> Room {
        let held = slots_in_order(slots);
        let mut room = Room { before: vec![(0, 0); held.len() + 1], held, holes };
        for slot in 0..room.held.len() {
            room.before[slot + 1] = room.after(room.held[slot], room.before[slot]);
        }
        room
    }

    fn peak(&self) -> i64 {
        self.before.iter().map(|(held, _)| *held).max().unwrap_or(0)
    }

    /// Activations and pending Ws behind a slot.
    fn after(&self, held: Option<usize>, (count, pending): (i64, i64)) -> (i64, i64) {
        match held {
            Some(0 | 1) => (count + 1, pending),
            Some(W) => (count - 1, pending),
            Some(_) => (count, pending + 1),
            None if self.holes == Holes::WithoutWeights && pending > 0 => (count - 1, pending - 1),
            None => (count, pending),
        }
    }

    /// Moves what slot `from` holds to a free slot before it, if no more than `peak` activations are then held.
    fn moves(&mut self, from: u32, to: u32, peak: i64) -> bool {
        let (from, to) = (from as usize, to as usize);
        if self.held[to].is_some() {
            return false;
        }
        self.held.swap(from, to);
        let mut states = vec![];
        let mut state = self.before[to];
        for slot in to..self.held.len() {
            state = self.after(self.held[slot], state);
            if state.0 > peak {
                self.held.swap(from, to);
                return false;
            }
            // From here on nothing changes.
            if slot > from && state == self.before[slot + 1] {
                break;
            }
            states.push(state);
        }
        self.before[to + 1..to + 1 + states.len()].copy_from_slice(&states);
        true
    }
}
