//! A program as a whole: is everything written before it is read, and are conflicting accesses ordered? One walk over the instructions in their given
//! order, with a vector clock for each instruction and, for each slot, a map from memory to its last writer and its readers since.
//!
//! The walk also gives the [`Summary`] that the calls are checked with.

use super::ALIGN;
use super::clock::Clock;
use super::footprint::distinct;
use super::intervals::{Intervals, merge};
use super::place::{Place, quoted};
use super::rules::{Findings, Rule};
use crate::operands::Operand;
use crate::schema::*;
use std::collections::HashMap;

/// More separate ranges than this in one slot count as the range around them.
const MAX_RANGES: usize = 64;

/// What a caller must know of a program. Ranges are in units of [`ALIGN`] bytes from the start of the slot.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How many instructions each unit runs.
    pub counts: Clock,
    /// For each unit what is known after its last instruction.
    pub ends: [Known; StreamKind::COUNT],
    /// For each event what is known when it is recorded.
    pub events: Vec<Known>,
    /// For each slot.
    pub slots: Vec<SlotSummary>,
}

/// What an instruction knows: instructions of this program that have ended, and the units (as bits) that have begun it, so that what
/// they knew then is known too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// For each unit how many of its instructions have ended.
    pub clock: Clock,
    /// The units that have begun the program, as bits.
    pub begun: u8,
}

/// How a program uses a slot.
#[derive(Clone, Debug, Default)]
pub struct SlotSummary {
    /// What must be there before the program.
    pub needs: Vec<(u64, u64)>,
    /// What it writes.
    pub writes: Vec<(u64, u64)>,
    /// For each unit the number of its last instruction (from 1) that reads the slot.
    pub last_reads: Clock,
    /// For each unit the number of its last instruction (from 1) that writes the slot.
    pub last_writes: Clock,
    /// The sets [`Known::begun`] of the instructions that read the slot: bit n stands for set n.
    pub readers: u128,
    /// The sets of the instructions that write the slot.
    pub writers: u128,
}

/// What memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// What was there before the program.
    Initial,
    /// A buffer: the first of those that are the same.
    Buffer(u32),
}

/// What is known of a piece of memory.
#[derive(Clone, Copy, Debug)]
struct Piece {
    holds: Holds,
    /// How many elements were written since the buffer began; counts repeated writes again.
    written: u64,
    /// The last write: unit and number (from 1); 0 for none.
    writer: (usize, u64),
    /// For each unit the last read since.
    readers: Clock,
}

/// Pieces that may be touched for each operand, on average, before the check gives up.
const EFFORT: u64 = 64;

struct Walk<'a> {
    program: &'a Program,
    findings: &'a mut Findings,
    /// For each buffer the first one that is the same.
    same: Vec<u32>,
    /// For each first buffer: was it ever written?
    begun: Vec<bool>,
    memory: Vec<Intervals<Piece>>,
    needs: Vec<Vec<(u64, u64)>>,
    slots: Vec<SlotSummary>,
    /// For each unit.
    now: [Known; StreamKind::COUNT],
    counts: Clock,
    events: Vec<Known>,
    /// Operands so far, and the pieces that were touched for them.
    operands: u64,
    touched: u64,
}

/// Checks a program of which every instruction is well-formed.
pub(super) fn check(program: &Program, findings: &mut Findings) -> Summary {
    let mut walk = Walk::new(program, findings);
    for at in 0..program.instructions.len() {
        if walk.findings.is_full() || walk.exhausted() {
            break;
        }
        walk.instruction(at);
    }
    walk.slots_written();
    walk.summary()
}

impl<'a> Walk<'a> {
    fn new(program: &'a Program, findings: &'a mut Findings) -> Walk<'a> {
        let mut memory = vec![Intervals::default(); program.slots.len()];
        for (slot, pieces) in program.slots.iter().zip(&mut memory) {
            if slot.access == Access::Update {
                let initial =
                    Piece { holds: Holds::Initial, written: u64::MAX, writer: (0, 0), readers: Clock::default() };
                pieces.set(0, slot.bytes.div_ceil(ALIGN), initial);
            }
        }
        Walk {
            program,
            findings,
            same: same_buffers(program),
            begun: vec![false; program.buffers.len()],
            memory,
            needs: vec![vec![]; program.slots.len()],
            slots: vec![SlotSummary::default(); program.slots.len()],
            now: [Known::default(); StreamKind::COUNT],
            counts: Clock::default(),
            events: vec![Known::default(); program.events as usize],
            operands: 1 << 14,
            touched: 0,
        }
    }

    /// Has it looked at more pieces than a program that a compiler writes can have?
    fn exhausted(&mut self) -> bool {
        let exhausted = self.touched > self.operands * EFFORT;
        if exhausted {
            self.findings.push(Rule::Fragmented, Place::Program(self.program), "its buffers overlap in too many ways");
        }
        exhausted
    }

    fn instruction(&mut self, at: usize) {
        let instruction = &self.program.instructions[at];
        let unit = self.program.streams[instruction.stream as usize].number();
        let mut known = self.now[unit];
        known.begun |= 1 << unit;
        for &event in &instruction.waits {
            let event = &self.events[event as usize];
            known.clock.join(&event.clock);
            known.begun |= event.begun;
        }
        let time = (unit, self.counts.0[unit] + 1);
        // It is in order with itself: a kernel may read and write one place.
        known.clock.0[unit] = time.1;
        let operands = instruction.kernel.operands();
        self.operands += operands.len() as u64;
        for operand in operands.iter().filter(|o| o.usage.reads()) {
            self.read(at, operand, &known, time);
        }
        for operand in operands.iter().filter(|o| o.usage.writes()) {
            self.write(at, operand, &known, time);
        }
        self.counts.0[unit] = time.1;
        self.now[unit] = known;
        if let Some(event) = instruction.records {
            self.events[event as usize] = known;
        }
    }

    fn read(&mut self, at: usize, operand: &Operand, known: &Known, (unit, number): (usize, u64)) {
        let buffer = &self.program.buffers[operand.buffer as usize];
        let slot = buffer.slot as usize;
        let (start, end) = range(buffer);
        self.slots[slot].last_reads.0[unit] = number;
        self.slots[slot].readers |= 1 << known.begun;
        match self.program.slots[slot].access {
            // Nothing writes it: no order to keep.
            Access::Read => return self.need(slot, start, end),
            Access::Update | Access::Write | Access::Scratch => {}
        }
        let same = self.same[operand.buffer as usize];
        let begun = self.begun[same as usize] || self.program.slots[slot].access == Access::Update;
        let (mut problem, mut needs) = (None, vec![]);
        self.memory[slot].scan(start, end, |from, to, piece| {
            let found = match piece {
                None => Some(Problem::Undefined),
                Some(piece) => match piece.holds {
                    Holds::Initial => {
                        needs.push((from, to));
                        None
                    }
                    Holds::Buffer(other) if other != same && begun => Some(Problem::Overwritten(other)),
                    Holds::Buffer(other) if other != same => Some(Problem::Undefined),
                    Holds::Buffer(_) if piece.written < operand.positions() && piece.written < least_read(operand) => {
                        Some(Problem::Partly(piece.written))
                    }
                    Holds::Buffer(_) => None,
                }
                .or((!precedes(piece.writer, known)).then_some(Problem::WriteRace(piece.writer))),
            };
            problem = problem.take().or(found);
        });
        needs.into_iter().for_each(|(from, to)| self.need(slot, from, to));
        self.memory[slot].change(start, end, |piece| piece.readers.0[unit] = number);
        self.touched += self.memory[slot].take_touched();
        self.report(at, operand, problem);
    }

    fn write(&mut self, at: usize, operand: &Operand, known: &Known, (unit, number): (usize, u64)) {
        let buffer = &self.program.buffers[operand.buffer as usize];
        let slot = buffer.slot as usize;
        let (start, end) = range(buffer);
        let same = self.same[operand.buffer as usize];
        self.begun[same as usize] = true;
        self.slots[slot].last_writes.0[unit] = number;
        self.slots[slot].writers |= 1 << known.begun;
        self.slots[slot].writes.push((start, end));
        let (mut problem, mut before) = (None, Some(u64::MAX));
        self.memory[slot].scan(start, end, |_, _, piece| {
            let Some(piece) = piece else { return before = None };
            let late = piece.readers.0.iter().enumerate().find(|(unit, n)| !precedes((*unit, **n), known));
            let found = (!precedes(piece.writer, known)).then_some(Problem::WriteRace(piece.writer));
            problem = problem.take().or(found).or(late.map(|(unit, n)| Problem::ReadRace((unit, *n))));
            let kept = piece.holds == Holds::Buffer(same) || piece.holds == Holds::Initial;
            before = before.filter(|_| kept).map(|least: u64| least.min(piece.written));
        });
        let written = before.unwrap_or(0).saturating_add(operand.elements());
        let readers = Clock::default();
        let piece = Piece { holds: Holds::Buffer(same), written, writer: (unit, number), readers };
        self.memory[slot].set(start, end, piece);
        self.touched += self.memory[slot].take_touched();
        self.report(at, operand, problem);
    }

    fn need(&mut self, slot: usize, start: u64, end: u64) {
        self.needs[slot].push((start, end));
    }

    fn report(&mut self, at: usize, operand: &Operand, problem: Option<Problem>) {
        let Some(problem) = problem else { return };
        let name = quoted(&self.program.buffers[operand.buffer as usize].name);
        let what = format!("{} (buffer {} {name})", operand.what, operand.buffer);
        let by = |time: (usize, u64)| {
            let number = self.find(time);
            format!("instruction {number} {}", quoted(&self.program.instructions[number].name))
        };
        let (rule, message) = match problem {
            Problem::Undefined => (Rule::Defined, format!("{what}: it is read, but nothing wrote it")),
            Problem::Partly(n) => {
                (Rule::Defined, format!("{what}: {} elements are read, but {n} were written", operand.positions()))
            }
            Problem::Overwritten(other) => {
                let other = quoted(&self.program.buffers[other as usize].name);
                (Rule::Overwritten, format!("{what}: it is read, but buffer {other} was written over it"))
            }
            Problem::WriteRace(time) => {
                (Rule::Ordered, format!("{what}: it does not wait for {}, which writes there", by(time)))
            }
            Problem::ReadRace(time) => {
                (Rule::Ordered, format!("{what}: it does not wait for {}, which reads there", by(time)))
            }
        };
        self.findings.push(rule, Place::Instruction(self.program, at), message);
    }

    /// The instruction with this number on its unit.
    fn find(&self, (on, number): (usize, u64)) -> usize {
        let here = |i: &Instruction| self.program.streams[i.stream as usize].number() == on;
        let found = self.program.instructions.iter().enumerate().filter(|(_, i)| here(i)).nth(number as usize - 1);
        found.map_or(0, |(at, _)| at)
    }

    fn slots_written(&mut self) {
        for (i, buffer) in self.program.buffers.iter().enumerate() {
            let slot = buffer.slot as usize;
            if self.program.slots[slot].access != Access::Write || self.findings.is_full() || self.exhausted() {
                continue;
            }
            let (start, end) = range(buffer);
            let (same, mut least) = (self.same[i], u64::MAX);
            self.memory[slot].scan(start, end, |_, _, piece| {
                least = least.min(piece.filter(|p| p.holds == Holds::Buffer(same)).map_or(0, |p| p.written));
            });
            self.touched += self.memory[slot].take_touched();
            self.findings.ensure(least >= buffer.elements, Rule::SlotWritten, Place::Buffer(self.program, i), || {
                format!(
                    "its slot is to be written, but of its {} elements {least} are there at the end",
                    buffer.elements
                )
            });
        }
        for (i, slot) in self.program.slots.iter().enumerate() {
            let idle = slot.access == Access::Update && self.slots[i].writes.is_empty();
            self.findings.ensure(!idle, Rule::SlotWritten, Place::Slot(self.program, i), || {
                "it is to be updated, but nothing writes it".into()
            });
        }
    }

    fn summary(self) -> Summary {
        let mut slots = self.slots;
        for (summary, needs) in slots.iter_mut().zip(self.needs) {
            summary.needs = few(merge(needs));
            summary.writes = few(merge(std::mem::take(&mut summary.writes)));
        }
        Summary { counts: self.counts, ends: self.now, events: self.events, slots }
    }
}

enum Problem {
    Undefined,
    Partly(u64),
    Overwritten(u32),
    WriteRace((usize, u64)),
    ReadRace((usize, u64)),
}

/// Did this instruction end before one that knows this?
fn precedes((unit, number): (usize, u64), known: &Known) -> bool {
    known.clock.0[unit] >= number
}

/// The memory of a buffer, rounded up: places are multiples of [`ALIGN`], so rounding adds no overlap.
fn range(buffer: &Buffer) -> (u64, u64) {
    let bytes = buffer.elements * buffer.dtype.bytes();
    (buffer.offset / ALIGN, (buffer.offset + bytes).div_ceil(ALIGN))
}

/// How many different elements are read at least.
fn least_read(operand: &Operand) -> u64 {
    let moving: Vec<(u64, u64)> = operand.dims.iter().copied().filter(|(_, stride)| *stride > 0).collect();
    if distinct(&moving) { operand.positions() } else { 1 }
}

/// In scratch slots memory is used again for other values, so every buffer is itself alone; elsewhere place, type and size make a buffer.
fn same_buffers(program: &Program) -> Vec<u32> {
    let mut first = HashMap::with_capacity(program.buffers.len());
    let one = |(b, i): (&Buffer, u32)| match program.slots[b.slot as usize].access {
        Access::Scratch => i,
        Access::Read | Access::Write | Access::Update => {
            *first.entry((b.slot, b.offset, b.dtype, b.elements)).or_insert(i)
        }
    };
    program.buffers.iter().zip(0..).map(one).collect()
}

fn few(ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    match (ranges.first(), ranges.last()) {
        (Some(first), Some(last)) if ranges.len() > MAX_RANGES => vec![(first.0, last.1)],
        _ => ranges,
    }
}
