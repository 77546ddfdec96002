//! Events between the calls of a phase.

use super::program::{Ordered, event_of};
use forebay_plan::verify::ALIGN;
use forebay_plan::verify::order::{Clock, Intervals, Known, SlotSummary, Summary, summarise};
use forebay_plan::{Access, CallEvent, Phase, Plan, Program, Slot, Space, StreamKind};

/// Adds waits to all calls, and the events that they are for to programs.
pub(super) fn order(plan: &mut Plan, ordered: &[Ordered]) {
    let summaries: Vec<Summary> =
        plan.programs.iter().map(|p| summarise(p).unwrap_or_else(|v| panic!("program {}: {}", p.name, v[0]))).collect();
    for phase in plan.roles.iter_mut().flat_map(|role| &mut role.phases) {
        let mut walk = Walk {
            ordered,
            summaries: &summaries,
            device: Intervals::default(),
            host: Intervals::default(),
            counts: Clock::default(),
            ends: [Clock::default(); StreamKind::COUNT],
            calls: Vec::with_capacity(phase.calls.len()),
            starts: Default::default(),
        };
        for at in 0..phase.calls.len() {
            let waits = walk.call(&plan.programs, phase, at);
            phase.calls[at].waits = waits
                .into_iter()
                .map(|(call, instruction)| {
                    let program = &mut plan.programs[phase.calls[call as usize].program as usize];
                    CallEvent { call, event: event_of(program, instruction) }
                })
                .collect();
        }
    }
}

/// Those of several waits that no others imply: for each what it stands for, and what is known then.
pub(super) fn minimal<T: Copy>(mut waits: Vec<(T, Clock)>) -> Vec<T> {
    let mut at = 0;
    while at < waits.len() {
        let mut others = Clock::default();
        waits.iter().enumerate().filter(|(i, _)| *i != at).for_each(|(_, (_, clock))| others.join(clock));
        if others.covers(&waits[at].1) {
            waits.remove(at);
        } else {
            at += 1;
        }
    }
    waits.into_iter().map(|(wait, _)| wait).collect()
}

/// What is known of a piece of memory: for each unit the last instructions that wrote it, and that read it since.
#[derive(Clone, Copy)]
struct Piece {
    writes: Clock,
    reads: Clock,
}

/// What is known of a call.
struct Done {
    program: usize,
    /// Instructions of each unit before it.
    base: Clock,
    /// For each unit what its first instruction of the call knows.
    begin: [Clock; StreamKind::COUNT],
}

/// A phase, call by call.
struct Walk<'a> {
    ordered: &'a [Ordered],
    summaries: &'a [Summary],
    device: Intervals<Piece>,
    host: Intervals<Piece>,
    counts: Clock,
    ends: [Clock; StreamKind::COUNT],
    calls: Vec<Done>,
    /// For each unit the calls that use it, with the instructions before them.
    starts: [Vec<(u64, u32)>; StreamKind::COUNT],
}

impl Walk<'_> {
    /// What a call waits for: earlier calls, and instructions of theirs.
    fn call(&mut self, programs: &[Program], phase: &Phase, at: usize) -> Vec<(u32, u32)> {
        let call = &phase.calls[at];
        let number = call.program as usize;
        let (program, summary) = (&programs[number], &self.summaries[number]);
        let slots: Vec<(&Slot, &SlotSummary, u64)> = program
            .slots
            .iter()
            .zip(&summary.slots)
            .zip(&call.slots)
            .map(|((slot, used), offset)| (slot, used, *offset))
            .collect();
        let mut need = Clock::default();
        for (slot, used, offset) in &slots {
            self.slot_needs(slot, used, *offset, &mut need);
        }
        let waits = self.waits(&need);
        let mut begin = self.ends;
        for (call, instruction) in &waits {
            let clock = self.clock_of(*call, *instruction);
            begin.iter_mut().zip(&summary.counts.0).filter(|(_, n)| **n > 0).for_each(|(b, _)| b.join(&clock));
        }
        for (slot, used, offset) in &slots {
            self.note(slot, used, *offset);
        }
        let done = Done { program: number, base: self.counts, begin };
        for unit in (0..StreamKind::COUNT).filter(|&u| summary.counts.0[u] > 0) {
            self.ends[unit] = done.knows(&summary.ends[unit]);
            self.starts[unit].push((self.counts.0[unit], at as u32));
            self.counts.0[unit] += summary.counts.0[unit];
        }
        self.calls.push(done);
        waits
    }

    /// What must have ended before the call, because of one of its slots, and is not known to.
    fn slot_needs(&mut self, slot: &Slot, used: &SlotSummary, offset: u64, need: &mut Clock) {
        for span in spans(&used.needs, offset) {
            let before = self.before(slot.space, span, false);
            self.unknown(&before, used.readers, need);
        }
        let (written, sets) = match slot.access {
            Access::Read => return,
            Access::Write | Access::Update => (spans(&used.writes, offset).collect(), used.writers),
            Access::Scratch => (vec![whole(slot, offset)], used.writers | used.readers),
        };
        for span in written {
            let before = self.before(slot.space, span, true);
            self.unknown(&before, sets, need);
        }
    }

    /// The last instructions that wrote a piece of memory, and those that read it since.
    fn before(&mut self, space: Space, (start, end): (u64, u64), with_reads: bool) -> Clock {
        let mut before = Clock::default();
        self.memory(space).scan(start, end, |_, _, piece| {
            if let Some(piece) = piece {
                before.join(&piece.writes);
                if with_reads {
                    before.join(&piece.reads);
                }
            }
        });
        before
    }

    /// Adds those of `before` that some of these sets of begun units do not know of.
    fn unknown(&self, before: &Clock, mut sets: u128, need: &mut Clock) {
        while sets != 0 {
            let set = sets.trailing_zeros();
            sets &= sets - 1;
            let mut known = Clock::default();
            (0..StreamKind::COUNT).filter(|u| set >> u & 1 == 1).for_each(|u| known.join(&self.ends[u]));
            for unit in 0..StreamKind::COUNT {
                if before.0[unit] > known.0[unit] {
                    need.0[unit] = need.0[unit].max(before.0[unit]);
                }
            }
        }
    }

    /// The fewest events after which these instructions have ended.
    fn waits(&self, need: &Clock) -> Vec<(u32, u32)> {
        let wait = |unit: usize| {
            let calls = &self.starts[unit];
            let (base, call) = calls[calls.partition_point(|(base, _)| *base < need.0[unit]) - 1];
            let of_unit = &self.ordered[self.calls[call as usize].program].of_unit[unit];
            let instruction = of_unit[(need.0[unit] - base) as usize - 1];
            ((call, instruction), self.clock_of(call, instruction))
        };
        minimal((0..StreamKind::COUNT).filter(|&u| need.0[u] > 0).map(wait).collect())
    }

    /// What is known when an instruction of an earlier call has ended.
    fn clock_of(&self, call: u32, instruction: u32) -> Clock {
        let done = &self.calls[call as usize];
        done.knows(&self.ordered[done.program].known[instruction as usize])
    }

    fn note(&mut self, slot: &Slot, used: &SlotSummary, offset: u64) {
        let (writes, reads) = (used.last_writes.after(&self.counts), used.last_reads.after(&self.counts));
        let memory = self.memory(slot.space);
        let written = Piece { writes, reads };
        match slot.access {
            Access::Read => {
                for (start, end) in spans(&used.needs, offset) {
                    memory.fill(start, end, &Piece { writes: Clock::default(), reads: Clock::default() });
                    memory.change(start, end, |piece| piece.reads.join(&reads));
                }
            }
            Access::Write | Access::Update => {
                spans(&used.writes, offset).for_each(|(start, end)| memory.set(start, end, written));
                for (start, end) in spans(&used.needs, offset) {
                    memory.fill(start, end, &Piece { writes: Clock::default(), reads: Clock::default() });
                    memory.change(start, end, |piece| piece.reads.join(&reads));
                }
            }
            Access::Scratch => {
                let (start, end) = whole(slot, offset);
                memory.set(start, end, written);
            }
        }
    }

    fn memory(&mut self, space: Space) -> &mut Intervals<Piece> {
        match space {
            Space::Device => &mut self.device,
            Space::Host => &mut self.host,
        }
    }
}

impl Done {
    /// What an instruction of the call knows, counted from the start of the phase.
    fn knows(&self, known: &Known) -> Clock {
        let mut clock = known.clock.after(&self.base);
        (0..StreamKind::COUNT).filter(|u| known.begun >> u & 1 == 1).for_each(|u| clock.join(&self.begin[u]));
        clock
    }
}

/// Ranges of a slot in the arena, in units of [`ALIGN`].
fn spans(ranges: &[(u64, u64)], offset: u64) -> impl Iterator<Item = (u64, u64)> {
    let from = offset / ALIGN;
    ranges.iter().map(move |(start, end)| (from + start, from + end))
}

/// All of a slot.
fn whole(slot: &Slot, offset: u64) -> (u64, u64) {
    (offset / ALIGN, (offset + slot.bytes).div_ceil(ALIGN))
}
