//! Programs, instruction by instruction.

use crate::kernel::{BufferId, Kernel};
use crate::operands::Usage;
use crate::schema::*;

const ALIGN: u64 = 64;

/// A program in the making. Its last slot, made at the end, is the frame.
#[derive(Clone, Debug)]
pub struct ProgramBuilder {
    program: Program,
    /// Buffers of the frame, placed at the end.
    frame: Vec<BufferId>,
}

const FRAME: u32 = u32::MAX;

impl ProgramBuilder {
    /// An empty program.
    pub fn new(name: &str, streams: usize) -> ProgramBuilder {
        let kinds = [StreamKind::Cube, StreamKind::Vector, StreamKind::CopyIn];
        let program = Program {
            name: name.into(),
            slots: vec![],
            buffers: vec![],
            streams: kinds[..streams].to_vec(),
            events: 0,
            instructions: vec![],
        };
        ProgramBuilder { program, frame: vec![] }
    }

    /// How many streams there are.
    pub fn streams(&self) -> usize {
        self.program.streams.len()
    }

    /// A new slot.
    pub fn slot(&mut self, name: &str, access: Access) -> u32 {
        self.program.slots.push(Slot { name: name.into(), access, space: Space::Device, bytes: 0 });
        self.program.slots.len() as u32 - 1
    }

    /// A new buffer, behind the others of its slot.
    pub fn buffer(&mut self, name: &str, dtype: DType, elements: u64, slot: u32) -> BufferId {
        let bytes = &mut self.program.slots[slot as usize].bytes;
        let offset = *bytes;
        *bytes += (elements * dtype.bytes()).next_multiple_of(ALIGN);
        self.add(name, dtype, elements, slot, offset)
    }

    /// A new slot with one buffer.
    pub fn operand(&mut self, name: &str, access: Access, dtype: DType, elements: u64) -> BufferId {
        let slot = self.slot(name, access);
        self.buffer(name, dtype, elements, slot)
    }

    /// A new buffer in the frame.
    pub fn temporary(&mut self, name: &str, dtype: DType, elements: u64) -> BufferId {
        let id = self.add(name, dtype, elements, FRAME, 0);
        self.frame.push(id);
        id
    }

    fn add(&mut self, name: &str, dtype: DType, elements: u64, slot: u32, offset: u64) -> BufferId {
        self.program.buffers.push(Buffer { name: name.into(), dtype, elements, slot, offset });
        self.program.buffers.len() as u32 - 1
    }

    /// A buffer.
    pub fn get(&self, id: BufferId) -> &Buffer {
        &self.program.buffers[id as usize]
    }

    /// Adds an instruction.
    pub fn push(&mut self, name: &str, stream: usize, kernel: Kernel) {
        let instruction = Instruction {
            name: name.into(),
            stream: stream as u32,
            waits: vec![],
            records: None,
            captured: false,
            kernel,
        };
        self.program.instructions.push(instruction);
    }

    /// Places the frame, and makes streams wait for each other where they must.
    pub fn finish(mut self) -> Program {
        self.place_frame();
        self.synchronise();
        self.program
    }

    /// First fit by life time: memory is used again.
    fn place_frame(&mut self) {
        let slot = self.slot("frame", Access::Scratch);
        let mut life = vec![None; self.program.buffers.len()];
        for (time, instruction) in self.program.instructions.iter().enumerate() {
            for operand in instruction.kernel.operands() {
                let (_, end) = life[operand.buffer as usize].get_or_insert((time, time));
                *end = time;
            }
        }
        // (start, end, first byte, last byte)
        let mut placed: Vec<(usize, usize, u64, u64)> = vec![];
        for &id in &self.frame {
            let buffer = &mut self.program.buffers[id as usize];
            let bytes = (buffer.elements * buffer.dtype.bytes()).next_multiple_of(ALIGN);
            let (start, end) = life[id as usize].unwrap_or((0, 0));
            let mut others: Vec<_> = placed.iter().filter(|p| p.0 <= end && start <= p.1).collect();
            others.sort_by_key(|p| p.2);
            let offset = others.iter().fold(0, |at, p| if p.2 >= at + bytes { at } else { at.max(p.3) });
            // The fold skips holes behind the first that is too small: simple, and still reuses most memory.
            placed.push((start, end, offset, offset + bytes));
            (buffer.slot, buffer.offset) = (slot, offset);
        }
        self.program.slots[slot as usize].bytes = placed.iter().map(|p| p.3).max().unwrap_or(0);
    }

    /// Every instruction waits for the last one on each other stream that it must come after; the last instruction of all waits for all streams.
    fn synchronise(&mut self) {
        let n = self.program.instructions.len();
        let touched: Vec<Vec<(u32, u64, u64, bool)>> = (0..n).map(|i| self.touched(i)).collect();
        for i in 0..n {
            for stream in 0..self.program.streams.len() as u32 {
                let others = (0..i).rev().filter(|&j| self.program.instructions[j].stream == stream);
                let last = i + 1 == n;
                let before = others.into_iter().find(|&j| last || conflict(&touched[i], &touched[j]));
                if let Some(j) = before.filter(|_| self.program.instructions[i].stream != stream) {
                    let event = self.event(j);
                    self.program.instructions[i].waits.push(event);
                }
            }
        }
        if n > 0 {
            self.event(n - 1);
        }
    }

    fn event(&mut self, instruction: usize) -> u32 {
        let events = &mut self.program.events;
        *self.program.instructions[instruction].records.get_or_insert_with(|| {
            *events += 1;
            *events - 1
        })
    }

    /// (slot, first byte, end, written) of each operand.
    fn touched(&self, i: usize) -> Vec<(u32, u64, u64, bool)> {
        let one = |operand: crate::Operand| {
            let Buffer { slot, offset, elements, dtype, .. } = *self.get(operand.buffer);
            (slot, offset, offset + elements * dtype.bytes(), operand.usage != Usage::Read)
        };
        self.program.instructions[i].kernel.operands().into_iter().map(one).collect()
    }
}

fn conflict(a: &[(u32, u64, u64, bool)], b: &[(u32, u64, u64, bool)]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.0 == y.0 && x.1 < y.2 && y.1 < x.2 && (x.3 || y.3)))
}
