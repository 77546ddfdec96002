//! One program: its indices, then each instruction, then the whole.

use super::flow::{self, Summary};
use super::place::{Place, quoted};
use super::rules::{Findings, Rule};
use super::{ALIGN, kernels};
use crate::print::json_name;
use crate::schema::*;
use std::collections::HashSet;

/// Checks a program; gives its summary when nothing is wrong with it.
pub(super) fn check(program: &Program, findings: &mut Findings) -> Option<Summary> {
    let form = findings.none_since(|findings| {
        buffers(program, findings);
        streams(program, findings);
        events(program, findings);
        captured(program, findings);
    });
    let kernels = form && findings.none_since(|findings| instructions(program, findings));
    if !kernels {
        return None;
    }
    let mut summary = None;
    let flows = findings.none_since(|findings| summary = Some(flow::check(program, findings)));
    summary.filter(|_| flows)
}

fn buffers(program: &Program, findings: &mut Findings) {
    for (i, buffer) in program.buffers.iter().enumerate() {
        let place = Place::Buffer(program, i);
        let Some(slot) = program.slots.get(buffer.slot as usize) else {
            findings.push(Rule::BufferPlace, place, format!("there is no slot {}", buffer.slot));
            continue;
        };
        findings.ensure(buffer.offset.is_multiple_of(ALIGN), Rule::BufferPlace, place, || {
            format!("the place {} is not a multiple of {ALIGN}", buffer.offset)
        });
        let bytes = buffer.elements.checked_mul(buffer.dtype.bytes());
        let end = bytes.and_then(|bytes| buffer.offset.checked_add(bytes));
        findings.ensure(end.is_some_and(|end| end <= slot.bytes), Rule::BufferPlace, place, || {
            let slot_name = quoted(&slot.name);
            let Buffer { elements, dtype, offset, .. } = buffer;
            format!(
                "{elements} elements of {dtype} from byte {offset} on do not fit into the {} bytes of slot {slot_name}",
                slot.bytes
            )
        });
    }
    for (i, slot) in program.slots.iter().enumerate() {
        // Offsets of slots are added to this: leave room for rounding.
        findings.ensure(slot.bytes <= u64::MAX / 4, Rule::BufferPlace, Place::Slot(program, i), || {
            format!("{} bytes are more than any memory has", slot.bytes)
        });
    }
}

fn streams(program: &Program, findings: &mut Findings) {
    let mut kinds = HashSet::new();
    for kind in &program.streams {
        findings.ensure(kinds.insert(*kind), Rule::Streams, Place::Program(program), || {
            format!("two streams of kind {}", json_name(kind))
        });
    }
    for (i, instruction) in program.instructions.iter().enumerate() {
        let exists = (instruction.stream as usize) < program.streams.len();
        findings.ensure(exists, Rule::Streams, Place::Instruction(program, i), || {
            format!("there is no stream {}", instruction.stream)
        });
    }
}

fn events(program: &Program, findings: &mut Findings) {
    if program.events as usize > program.instructions.len() {
        let message = format!("{} events for {} instructions", program.events, program.instructions.len());
        return findings.push(Rule::EventRecorded, Place::Program(program), message);
    }
    let mut recorded = vec![false; program.events as usize];
    for (i, instruction) in program.instructions.iter().enumerate() {
        let place = Place::Instruction(program, i);
        for &event in &instruction.waits {
            let known = recorded.get(event as usize).is_some_and(|r| *r);
            findings.ensure(known, Rule::EventWait, place, || {
                format!("it waits for event {event}, which no earlier instruction records")
            });
        }
        let Some(event) = instruction.records else { continue };
        match recorded.get_mut(event as usize) {
            None => findings.push(Rule::EventRecorded, place, format!("there is no event {event}")),
            Some(true) => findings.push(Rule::EventRecorded, place, format!("event {event} is recorded before")),
            Some(event) => *event = true,
        }
    }
    for event in recorded.iter().enumerate().filter(|(_, r)| !**r).map(|(e, _)| e) {
        findings.push(Rule::EventRecorded, Place::Program(program), format!("no instruction records event {event}"));
    }
}

/// Captured regions are runs of one stream without events in between.
fn captured(program: &Program, findings: &mut Findings) {
    // For each stream: may the next instruction be launched with the last one?
    let mut open = vec![false; program.streams.len()];
    for (i, instruction) in program.instructions.iter().enumerate() {
        let stream = instruction.stream as usize;
        let Some(open) = open.get_mut(stream) else { continue };
        if instruction.captured {
            let mut expect = |holds, why: &str| {
                findings.ensure(holds, Rule::Captured, Place::Instruction(program, i), || why.into());
            };
            expect(*open, "no instruction of its stream comes before it that records no event");
            expect(instruction.waits.is_empty(), "it waits for events of its own");
            expect(program.streams[stream] != StreamKind::Host, "the host starts nothing for itself");
        }
        *open = instruction.records.is_none();
    }
}

fn instructions(program: &Program, findings: &mut Findings) {
    for i in 0..program.instructions.len() {
        if findings.is_full() {
            return;
        }
        kernels::check(program, i, findings);
    }
}
