//! Events within a program.

use super::calls::minimal;
use forebay_plan::verify::ALIGN;
use forebay_plan::verify::order::{Clock, Intervals, Known};
use forebay_plan::{Access, Buffer, Program, StreamKind};

/// What is known of a program whose order is kept by events.
pub(super) struct Ordered {
    /// For each unit its instructions, in order.
    pub of_unit: [Vec<u32>; StreamKind::COUNT],
    /// For each instruction what is known when it ends.
    pub known: Vec<Known>,
}

/// What is known of a piece of memory.
#[derive(Clone, Copy)]
struct Piece {
    /// The last write: unit and number (from 1); 0 for none.
    writer: (usize, u64),
    /// For each unit the last read since.
    readers: Clock,
}

/// Adds waits and events to a program whose instructions are on their streams.
pub(super) fn order(program: &mut Program) -> Ordered {
    let mut memory: Vec<Intervals<Piece>> = vec![Intervals::default(); program.slots.len()];
    let mut ordered = Ordered { of_unit: Default::default(), known: vec![] };
    let mut now = [Known::default(); StreamKind::COUNT];
    for at in 0..program.instructions.len() {
        let unit = program.streams[program.instructions[at].stream as usize].number();
        let need = needs(program, at, &mut memory);
        let mut known = now[unit];
        let missing: Vec<(u32, Clock)> = (0..StreamKind::COUNT)
            .filter(|&u| need.0[u] > known.clock.0[u] && u != unit)
            .map(|u| ordered.of_unit[u][need.0[u] as usize - 1])
            .map(|by| (by, ordered.known[by as usize].clock))
            .collect();
        for by in minimal(missing) {
            let event = event_of(program, by);
            program.instructions[at].waits.push(event);
            known.clock.join(&ordered.known[by as usize].clock);
            known.begun |= ordered.known[by as usize].begun;
        }
        ordered.of_unit[unit].push(at as u32);
        let number = ordered.of_unit[unit].len() as u64;
        known.begun |= 1 << unit;
        known.clock.0[unit] = number;
        now[unit] = known;
        ordered.known.push(known);
        note(program, at, (unit, number), &mut memory);
    }
    ordered
}

/// The event that the end of an instruction records.
pub(super) fn event_of(program: &mut Program, instruction: u32) -> u32 {
    let events = &mut program.events;
    *program.instructions[instruction as usize].records.get_or_insert_with(|| {
        *events += 1;
        *events - 1
    })
}

/// The memory of a buffer.
fn range(buffer: &Buffer) -> (u64, u64) {
    (buffer.offset / ALIGN, (buffer.offset + buffer.bytes()).div_ceil(ALIGN))
}

/// What must have ended before an instruction starts: for each unit a number of its instructions.
fn needs(program: &Program, at: usize, memory: &mut [Intervals<Piece>]) -> Clock {
    let mut need = Clock::default();
    for operand in program.instructions[at].kernel.operands() {
        let buffer = &program.buffers[operand.buffer as usize];
        let (start, end) = range(buffer);
        memory[buffer.slot as usize].scan(start, end, |_, _, piece| {
            let Some(Piece { writer: (unit, number), readers }) = piece else { return };
            need.0[*unit] = need.0[*unit].max(*number);
            if operand.usage.writes() {
                need.join(readers);
            }
        });
    }
    need
}

/// Notes what an instruction reads and writes.
fn note(program: &Program, at: usize, (unit, number): (usize, u64), memory: &mut [Intervals<Piece>]) {
    let operands = program.instructions[at].kernel.operands();
    for operand in operands.iter().filter(|o| o.usage.reads()) {
        let buffer = &program.buffers[operand.buffer as usize];
        if program.slots[buffer.slot as usize].access == Access::Read {
            continue;
        }
        let (start, end) = range(buffer);
        let pieces = &mut memory[buffer.slot as usize];
        pieces.fill(start, end, &Piece { writer: (unit, 0), readers: Clock::default() });
        pieces.change(start, end, |piece| piece.readers.0[unit] = number);
    }
    for operand in operands.iter().filter(|o| o.usage.writes()) {
        let buffer = &program.buffers[operand.buffer as usize];
        let (start, end) = range(buffer);
        let piece = Piece { writer: (unit, number), readers: Clock::default() };
        memory[buffer.slot as usize].set(start, end, piece);
    }
}
