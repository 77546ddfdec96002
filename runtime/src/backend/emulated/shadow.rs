//! What is known of every byte of a memory: who wrote it last, who has read it since, and which value it belongs to.
//!
//! Order is judged by vector clocks and not by the device's clock: a read that happens to come after its write is a fault when no stream and no event puts it there.
//! Where a run decides how many rows there are, order is that of all the rows that there may be, and life that of those that came: what no row has come to is nothing.
//! Life is judged as the plan means it. A *value* is what a call wrote through one slot, or what the host put there. A scratch slot is given back when its call ends
//! and is not read by another; within the call a place belongs to the buffer that was written last. Other values live until something else takes a part of their place: calls that
//! are listed later must not read the rest.

use crate::backend::Access;
use forebay_plan::verify::order::{Clock, Intervals};
use forebay_plan::{Access as SlotAccess, StreamKind};
use std::collections::HashMap;

/// An instruction of a call that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    /// Its unit, and which of the unit's operations it is, from 1.
    pub unit: usize,
    pub number: u64,
    /// None for copies that the host asked for.
    pub of: Option<Origin>,
}

/// Which instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Origin {
    pub call: u32,
    pub instruction: u32,
    pub program: u32,
    pub layer: u32,
}

/// Through what an operation touches memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Through {
    /// Bytes of the memory, first and one past the last.
    pub bytes: (u64, u64),
    /// Those of the whole slot.
    pub slot: (u64, u64),
    pub by: Owner,
    pub buffer: u32,
    pub access: SlotAccess,
}

/// Whose a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// The host has put it there.
    Host,
    /// A call has written it through a slot.
    Slot { binding: u32, call: u32, program: u32, slot: u32 },
}

impl Owner {
    /// Does the host list it first? Calls are bound as they are listed.
    fn comes_before(self, other: Owner) -> bool {
        match (self, other) {
            (Owner::Slot { binding, .. }, Owner::Slot { binding: other, .. }) => binding < other,
            (Owner::Host, _) | (_, Owner::Host) => true,
        }
    }
}

/// What an access runs into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// An operation that has begun before and is not ordered before it, and what that one does.
    Race { other: Op, others: Access },
    /// Nothing was written there.
    Unwritten { bytes: (u64, u64) },
    /// It belongs to something else: to this owner, or to another buffer of the same call.
    Lost { bytes: (u64, u64), owner: Owner, buffer: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Value {
    slot: (u64, u64),
    owner: Owner,
    scratch: bool,
    /// Who has taken a part of its place.
    ended_by: Option<Owner>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    writer: Option<Op>,
    /// For each unit the last that has read it since.
    readers: [Option<Op>; StreamKind::COUNT],
    value: u32,
    buffer: u32,
}

impl Piece {
    fn new(writer: Option<Op>, value: u32, buffer: u32) -> Piece {
        Piece { writer, readers: [None; StreamKind::COUNT], value, buffer }
    }
}

/// No buffer, or no value.
const NONE: u32 = u32::MAX;

/// What is known of a memory.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    pieces: Intervals<Piece>,
    values: Vec<Value>,
    known: HashMap<Owner, u32>,
}

impl Shadow {
    /// Forgets everything but that these (offset, bytes) are values.
    pub fn declare(&mut self, values: &[(u64, u64)]) {
        *self = Shadow::default();
        for &(offset, bytes) in values {
            let value = self.host_value((offset, offset + bytes));
            self.pieces.set(offset, offset + bytes, Piece::new(None, value, NONE));
        }
    }

    fn host_value(&mut self, slot: (u64, u64)) -> u32 {
        self.values.push(Value { slot, owner: Owner::Host, scratch: false, ended_by: None });
        self.values.len() as u32 - 1
    }

    /// Does whatever has written this come before an operation that knows of `clock`?
    pub fn reads(&mut self, clock: &Clock, through: &Through) -> Result<(), Trouble> {
        let mut race = None;
        self.pieces.scan(through.bytes.0, through.bytes.1, |_, _, piece| {
            if let Some(other) = piece.and_then(|p| p.writer).filter(|w| !ordered(clock, w)) {
                race.get_or_insert(Trouble::Race { other, others: Access::Writes });
            }
        });
        race.map_or(Ok(()), Err)
    }

    /// Is there what an operation takes this for?
    pub fn holds(&mut self, through: &Through) -> Result<(), Trouble> {
        let (values, (from, to)) = (&self.values, through.bytes);
        let mut life = None;
        self.pieces.scan(from, to, |from, to, piece| {
            let bytes = (from, to);
            match piece.filter(|piece| piece.value != NONE) {
                None => {
                    life.get_or_insert(Trouble::Unwritten { bytes });
                }
                Some(piece) => {
                    if let Some((owner, buffer)) = lost(&values[piece.value as usize], piece.buffer, through) {
                        life.get_or_insert(Trouble::Lost { bytes, owner, buffer });
                    }
                }
            }
        });
        life.map_or(Ok(()), Err)
    }

    /// May an operation that knows of `clock` write this?
    pub fn writes(&mut self, clock: &Clock, through: &Through) -> Result<(), Trouble> {
        let mut race = None;
        self.pieces.scan(through.bytes.0, through.bytes.1, |_, _, piece| {
            let Some(piece) = piece else { return };
            let readers = piece.readers.iter().flatten().map(|other| (*other, Access::Reads));
            let all = piece.writer.map(|other| (other, Access::Writes)).into_iter().chain(readers);
            for (other, others) in all.filter(|(other, _)| !ordered(clock, other)) {
                race.get_or_insert(Trouble::Race { other, others });
            }
        });
        race.map_or(Ok(()), Err)
    }

    /// Notes that an operation reads.
    pub fn note_read(&mut self, op: Op, through: &Through) {
        self.pieces.change(through.bytes.0, through.bytes.1, |piece| piece.readers[op.unit] = Some(op));
    }

    /// Notes that an operation writes.
    pub fn note_write(&mut self, op: Op, through: &Through) {
        let (from, to) = through.bytes;
        let value = self.value(through);
        let piece = Piece::new(Some(op), value, through.buffer);
        if through.access == SlotAccess::Update {
            self.pieces.fill(from, to, &piece);
            self.pieces.change(from, to, |there| {
                let value = there.value;
                *there = piece;
                there.value = value;
            });
            return;
        }
        self.take(through, value);
        self.pieces.set(from, to, piece);
    }

    /// Notes that an operation has room there, and may write it. What others had there is gone, but for what is changed where it is; what its own call has written through the same buffer stays.
    pub fn note_room(&mut self, op: Op, through: &Through) {
        let (from, to) = through.bytes;
        let value = self.value(through);
        let updates = through.access == SlotAccess::Update;
        if !updates {
            self.take(through, value);
        }
        self.pieces.fill(from, to, &Piece::new(Some(op), NONE, NONE));
        self.pieces.change(from, to, |there| {
            let stays = updates || (there.value == value && there.buffer == through.buffer);
            *there = Piece::new(Some(op), if stays { there.value } else { NONE }, through.buffer);
        });
    }

    /// Ends other values of which a part is written over.
    fn take(&mut self, through: &Through, value: u32) {
        let values = &mut self.values;
        let mut taken = vec![];
        let others = |piece: &Piece| Some(piece.value).filter(|other| *other != value && *other != NONE);
        self.pieces.scan(through.bytes.0, through.bytes.1, |_, _, there| taken.extend(there.and_then(others)));
        for old in taken {
            let old = &mut values[old as usize];
            if !nested(old.slot, through.slot) {
                // Devices may come to a later call first; the first that is listed is what ends it.
                if old.ended_by.is_none_or(|by| by != Owner::Host && through.by.comes_before(by)) {
                    old.ended_by = Some(through.by);
                }
            }
        }
    }

    /// The value that is written through a slot.
    fn value(&mut self, through: &Through) -> u32 {
        if through.by == Owner::Host {
            return self.host_value(through.slot);
        }
        let scratch = through.access == SlotAccess::Scratch;
        let values = &mut self.values;
        *self.known.entry(through.by).or_insert_with(|| {
            values.push(Value { slot: through.slot, owner: through.by, scratch, ended_by: None });
            values.len() as u32 - 1
        })
    }
}

/// Does one who knows of `clock` come after an operation?
fn ordered(clock: &Clock, other: &Op) -> bool {
    clock.0[other.unit] >= other.number
}

fn nested(inner: (u64, u64), outer: (u64, u64)) -> bool {
    outer.0 <= inner.0 && inner.1 <= outer.1
}

/// Whose a place is, when it is not what the reader takes it for.
fn lost(value: &Value, buffer: u32, through: &Through) -> Option<(Owner, u32)> {
    // The host reads whatever is there.
    if through.by == Owner::Host {
        return None;
    }
    if value.scratch || through.access == SlotAccess::Scratch {
        let mine = value.owner == through.by && buffer == through.buffer;
        return (!mine).then_some((value.owner, buffer));
    }
    let whole = nested(value.slot, through.slot) || nested(through.slot, value.slot);
    match value.ended_by {
        Some(by) if by.comes_before(through.by) => Some((by, NONE)),
        // A call before the one that has taken a part may still be at the rest, when others of its instructions are done: units need not wait for each other there.
        _ => (!whole).then_some((value.owner, NONE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: (u64, u64) = (0, 100);

    fn owner(call: u32) -> Owner {
        Owner::Slot { binding: call, call, program: 0, slot: 0 }
    }

    fn through(call: u32, bytes: (u64, u64), access: SlotAccess) -> Through {
        Through { bytes, slot: SLOT, by: owner(call), buffer: 0, access }
    }

    /// May it read this, by order and by life?
    fn reads(shadow: &mut Shadow, clock: &Clock, through: &Through) -> Result<(), Trouble> {
        shadow.reads(clock, through).and_then(|()| shadow.holds(through))
    }

    fn op(unit: usize, number: u64) -> Op {
        Op { unit, number, of: None }
    }

    fn knows(unit: usize, number: u64) -> Clock {
        let mut clock = Clock::default();
        clock.0[unit] = number;
        clock
    }

    #[test]
    fn order_is_what_streams_and_events_say() {
        let mut shadow = Shadow::default();
        let (write, read) = (through(1, (0, 50), SlotAccess::Write), through(2, (10, 20), SlotAccess::Read));
        shadow.note_write(op(0, 3), &write);
        assert_eq!(reads(&mut shadow, &knows(0, 3), &read), Ok(()));
        let race = Trouble::Race { other: op(0, 3), others: Access::Writes };
        assert_eq!(reads(&mut shadow, &knows(0, 2), &read), Err(race));
        shadow.note_read(op(1, 7), &read);
        // Whoever writes there next comes after both.
        let over = Through { bytes: (15, 30), ..through(3, SLOT, SlotAccess::Write) };
        let race = Trouble::Race { other: op(1, 7), others: Access::Reads };
        assert_eq!(shadow.writes(&knows(0, 3), &over), Err(race));
        let mut both = knows(0, 3);
        both.join(&knows(1, 7));
        assert_eq!(shadow.writes(&both, &over), Ok(()));
    }

    #[test]
    fn values_have_a_life() {
        let mut shadow = Shadow::default();
        let clock = knows(0, 9);
        shadow.declare(&[(0, 40)]);
        let unwritten = Err(Trouble::Unwritten { bytes: (40, 50) });
        let read = |call, slot| Through { bytes: (30, 50), slot, ..through(call, SLOT, SlotAccess::Read) };
        assert_eq!(reads(&mut shadow, &clock, &read(1, (0, 100))), unwritten);
        // Scratch is its own call's.
        shadow.note_write(op(0, 1), &through(1, SLOT, SlotAccess::Scratch));
        assert!(matches!(reads(&mut shadow, &clock, &read(2, SLOT)), Err(Trouble::Lost { .. })));
        let own = through(1, (30, 50), SlotAccess::Scratch);
        assert_eq!(reads(&mut shadow, &clock, &own), Ok(()));
        // Within the call, a place is the buffer's that was written last.
        assert!(matches!(reads(&mut shadow, &clock, &Through { buffer: 1, ..own }), Err(Trouble::Lost { .. })));
        // A value is there until a part of it is taken.
        shadow.note_write(op(0, 2), &through(3, SLOT, SlotAccess::Write));
        assert_eq!(reads(&mut shadow, &clock, &read(4, SLOT)), Ok(()));
        assert!(matches!(reads(&mut shadow, &clock, &read(4, (20, 120))), Err(Trouble::Lost { .. })));
        let part = Through { bytes: (0, 10), slot: (0, 10), ..through(5, SLOT, SlotAccess::Write) };
        shadow.note_write(op(0, 3), &part);
        let lost = Err(Trouble::Lost { bytes: (30, 50), owner: owner(5), buffer: NONE });
        assert_eq!(reads(&mut shadow, &clock, &read(6, SLOT)), lost);
        // For those that are listed before, the rest is there.
        assert_eq!(reads(&mut shadow, &clock, &read(4, SLOT)), Ok(()));
    }

    #[test]
    fn rows_that_have_not_come_are_nothing() {
        let mut shadow = Shadow::default();
        let clock = knows(0, 9);
        let of = |call, to| through(call, (0, to), SlotAccess::Write);
        let read = |call, to| through(call, (0, to), SlotAccess::Read);
        // Room for all of the slot, of which 60 bytes come; order is that of all of it.
        shadow.note_room(op(0, 1), &of(1, 100));
        shadow.note_write(op(0, 1), &of(1, 60));
        assert_eq!(reads(&mut shadow, &clock, &read(2, 60)), Ok(()));
        assert_eq!(shadow.holds(&read(2, 61)), Err(Trouble::Unwritten { bytes: (60, 61) }));
        assert!(matches!(shadow.reads(&knows(0, 0), &read(2, 100)), Err(Trouble::Race { .. })));
        // What the call before left behind is not the next one's, and what a call has written stays where it has room once more.
        shadow.note_write(op(0, 2), &of(3, 100));
        shadow.note_room(op(0, 3), &of(4, 100));
        shadow.note_write(op(0, 3), &of(4, 20));
        assert_eq!(shadow.holds(&read(5, 30)), Err(Trouble::Unwritten { bytes: (20, 30) }));
        shadow.note_room(op(0, 4), &of(4, 100));
        assert_eq!(shadow.holds(&read(5, 20)), Ok(()));
        // What is changed where it is stays, and so does the rest of what it is a part of.
        shadow.note_room(op(0, 5), &through(6, SLOT, SlotAccess::Update));
        assert_eq!(shadow.holds(&read(7, 20)), Ok(()));
        let part = Through { slot: (10, 15), ..through(8, (10, 15), SlotAccess::Update) };
        shadow.note_room(op(0, 6), &part);
        assert_eq!(shadow.holds(&read(9, 20)), Ok(()));
    }
}
