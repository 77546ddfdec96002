//! The calls of a phase over a rank's memory: is everything there when it is read, and are conflicting calls ordered? One walk over the calls in their
//! given order, with what `flow` knows of each program.
//!
//! A piece of memory belongs to a *value*: a tensor, a feed, or what a call wrote through a slot, each with its extent. Writing over a part of a value from
//! outside of it ends its life; reading it afterwards is an error, wherever one reads.

mod host;

use super::ALIGN;
use super::clock::Clock;
use super::flow::{SlotSummary, Summary};
use super::intervals::{Intervals, merge};
use super::place::{Place, quoted};
use super::rules::{Findings, Rule};
use super::tensors::{Home, Span};
use crate::schema::*;
use std::collections::HashSet;

/// Pieces that may be touched for each range that a call uses, on average, before the check gives up.
const EFFORT: u64 = 64;

/// Checks the phases of all roles. Everything that they refer to is well-formed.
pub(super) fn check(plan: &Plan, homes: &[Vec<Home>], summaries: &[Summary], findings: &mut Findings) {
    for (role, homes) in plan.roles.iter().zip(homes) {
        // The upper half of a parameter in halves is its copy.
        let halved = role.tensors.iter().filter(|t| t.form == Form::LowerHalf).map(|t| t.name.as_str());
        let halved: HashSet<&str> = halved.collect();
        let is_upper = |t: &Tensor| t.kind == TensorKind::ComputeCopy && halved.contains(t.name.as_str());
        let holds = |t: &Tensor| t.kind.is_saved() || is_upper(t);
        let saved = Space::ALL.map(|space| {
            let there = homes.iter().filter(|h| h.space == space && holds(&role.tensors[h.tensor as usize]));
            merge(there.map(|h| (h.span.start, h.span.end)).collect())
        });
        let shared = Shared { plan, homes, summaries };
        for phase in &role.phases {
            let mut walk = Walk::new(shared, role, phase);
            walk.commit(&saved, findings);
            walk.run(findings);
        }
    }
}

/// What the phases of a role share.
#[derive(Clone, Copy)]
struct Shared<'a> {
    plan: &'a Plan,
    /// Where the role's tensors live.
    homes: &'a [Home],
    summaries: &'a [Summary],
}

/// A value in memory.
struct Value {
    what: What,
    extent: Span,
    /// The call that wrote over a part of it.
    ended_by: Option<u32>,
}

#[derive(Clone, Copy)]
enum What {
    Tensor(u32),
    Padding,
    Feed(u32),
    Scalar,
    Slot { call: u32, slot: u32 },
}

/// What is known of a piece of memory.
#[derive(Clone, Copy)]
struct Piece {
    /// Whose it is; `None` after scratch.
    value: Option<u32>,
    /// For each unit the last instruction of the last call that wrote it.
    writes: Clock,
    /// For each unit the last instruction that read it since.
    reads: Clock,
}

struct Walk<'a> {
    plan: &'a Plan,
    role: &'a Role,
    phase: &'a Phase,
    homes: &'a [Home],
    summaries: &'a [Summary],
    values: Vec<Value>,
    device: Intervals<Piece>,
    host: Intervals<Piece>,
    /// With one unit everything is in order.
    many_units: bool,
    /// For each unit how many instructions it ran in the calls so far, and what is known after the last.
    counts: Clock,
    ends: [Clock; StreamKind::COUNT],
    /// Events that some later call waits for, (call, event) in order, and what is known once they are recorded.
    events: Vec<((u32, u32), Clock)>,
    /// Ranges that calls use so far, and the pieces that were touched for them.
    effort: u64,
    touched: u64,
}

/// A slot of a call.
#[derive(Clone, Copy)]
struct Bound<'a> {
    number: u32,
    slot: &'a Slot,
    /// Where it is.
    extent: Span,
    /// What the program does with it.
    used: &'a SlotSummary,
}

/// A call that is being checked.
struct Current {
    at: usize,
    /// For each unit what its first instruction of the call knows.
    begin: [Clock; StreamKind::COUNT],
}

impl<'a> Walk<'a> {
    fn new(shared: Shared<'a>, role: &'a Role, phase: &'a Phase) -> Walk<'a> {
        let Shared { plan, homes, summaries } = shared;
        let mut used = Clock::default();
        phase.calls.iter().for_each(|c| used.join(&summaries[c.program as usize].counts));
        let waits = phase.calls.iter().flat_map(|c| &c.waits);
        let mut events: Vec<_> = waits.map(|w| ((w.call, w.event), Clock::default())).collect();
        events.sort_unstable_by_key(|(event, _)| *event);
        events.dedup_by_key(|(event, _)| *event);
        let mut walk = Walk {
            plan,
            role,
            phase,
            homes,
            summaries,
            values: vec![],
            device: Intervals::default(),
            host: Intervals::default(),
            many_units: used.0.iter().filter(|n| **n > 0).count() > 1,
            counts: Clock::default(),
            ends: [Clock::default(); StreamKind::COUNT],
            events,
            effort: 1 << 14,
            touched: 0,
        };
        walk.host_writes();
        walk
    }

    fn value(&mut self, what: What, extent: Span) -> u32 {
        self.values.push(Value { what, extent, ended_by: None });
        self.values.len() as u32 - 1
    }

    fn program(&self, at: usize) -> (&'a Program, &'a Summary) {
        let program = self.phase.calls[at].program as usize;
        (&self.plan.programs[program], &self.summaries[program])
    }

    fn place(&self, at: usize) -> Place<'a> {
        Place::Call(self.plan, self.role, self.phase, at)
    }

    fn run(&mut self, findings: &mut Findings) {
        for at in 0..self.phase.calls.len() {
            if at == self.phase.commit as usize {
                self.reports(true, findings);
            }
            if findings.is_full() || self.exhausted(findings) {
                return;
            }
            self.call(at, findings);
        }
        if self.phase.commit as usize >= self.phase.calls.len() {
            self.reports(true, findings);
        }
        self.reports(false, findings);
        self.outputs(findings);
        self.tensors_kept(findings);
    }

    /// Has it looked at more pieces than a phase that a compiler writes can have?
    fn exhausted(&mut self, findings: &mut Findings) -> bool {
        self.touched += self.device.take_touched() + self.host.take_touched();
        let exhausted = self.touched > self.effort.saturating_mul(EFFORT);
        findings.ensure(!exhausted, Rule::Fragmented, Place::Phase(self.role, self.phase), || {
            "its slots overlap in too many ways".into()
        });
        exhausted
    }

    fn call(&mut self, at: usize, findings: &mut Findings) {
        let (_, summary) = self.program(at);
        let current = Current { at, begin: self.begin_clocks(at, summary) };
        for bound in self.slots(at) {
            self.effort += 1 + bound.used.needs.len() as u64 + bound.used.writes.len() as u64;
            for needed in bound.needs() {
                self.read(&current, bound, needed, findings);
            }
        }
        for bound in self.slots(at) {
            match bound.slot.access {
                Access::Read => {}
                Access::Write => self.write(&current, bound, findings),
                Access::Update => self.update(&current, bound, findings),
                Access::Scratch => self.scratch(&current, bound, findings),
            }
        }
        // Last, so that a call does not come to wait for itself.
        if self.many_units {
            self.slots(at).for_each(|bound| self.note_reads(bound));
        }
        self.end_clocks(at, &current, summary);
    }

    fn slots(&self, at: usize) -> impl Iterator<Item = Bound<'a>> + use<'a> {
        let (program, summary) = self.program(at);
        let slots = program.slots.iter().zip(&summary.slots).zip(&self.phase.calls[at].slots);
        (0..).zip(slots).map(|(number, ((slot, used), offset))| Bound {
            number,
            slot,
            extent: Span::new(*offset, slot.bytes),
            used,
        })
    }

    /// For each unit what is known when the call's first instruction on it begins: what its last one knew, and what the call waits for.
    fn begin_clocks(&self, at: usize, summary: &Summary) -> [Clock; StreamKind::COUNT] {
        let mut begin = self.ends;
        for wait in &self.phase.calls[at].waits {
            let event = self.events.binary_search_by_key(&(wait.call, wait.event), |(event, _)| *event);
            let known = event.map_or(Clock::default(), |at| self.events[at].1);
            for (unit, clock) in begin.iter_mut().enumerate() {
                if summary.counts.0[unit] > 0 {
                    clock.join(&known);
                }
            }
        }
        begin
    }

    fn end_clocks(&mut self, at: usize, current: &Current, summary: &Summary) {
        if !self.many_units {
            return;
        }
        let counts = self.counts;
        let known = |k: &super::flow::Known| {
            let mut clock = current.knows(k.begun);
            clock.join(&k.clock.after(&counts));
            clock
        };
        let mine = self.events.partition_point(|((call, _), _)| (*call as usize) < at);
        for ((_, event), clock) in self.events[mine..].iter_mut().take_while(|((call, _), _)| *call as usize == at) {
            *clock = known(&summary.events[*event as usize]);
        }
        for unit in (0..StreamKind::COUNT).filter(|&u| summary.counts.0[u] > 0) {
            self.ends[unit] = known(&summary.ends[unit]);
            self.counts.0[unit] += summary.counts.0[unit];
        }
    }

    fn memory(&mut self, space: Space) -> &mut Intervals<Piece> {
        match space {
            Space::Device => &mut self.device,
            Space::Host => &mut self.host,
        }
    }

    fn read(&mut self, current: &Current, bound: Bound, needed: Span, findings: &mut Findings) {
        let Bound { number, slot, extent, used } = bound;
        let pieces = self.pieces(slot.space, needed);
        let what = || format!("slot {number} {}", quoted(&slot.name));
        let fine = self.whole(&pieces, extent, needed, self.place(current.at), &what, findings);
        if fine && self.many_units {
            for piece in pieces.iter().filter_map(|(_, _, p)| p.as_ref()) {
                self.ordered(current, &piece.writes, used.readers, slot, "reads", findings);
            }
        }
    }

    fn note_reads(&mut self, bound: Bound) {
        let (_, reads) = self.last_uses(bound.used);
        for needed in bound.needs() {
            self.memory(bound.slot.space).change(needed.start, needed.end, |piece| piece.reads.join(&reads));
        }
    }

    /// The pieces of a range, copied out so that their values can be looked at.
    fn pieces(&mut self, space: Space, span: Span) -> Vec<(u64, u64, Option<Piece>)> {
        let mut pieces = vec![];
        self.memory(space).scan(span.start, span.end, |from, to, piece| pieces.push((from, to, piece.copied())));
        pieces
    }

    /// Is a range that is read there, and as whole as it was written?
    fn whole(
        &self,
        pieces: &[(u64, u64, Option<Piece>)],
        extent: Span,
        needed: Span,
        place: Place,
        what: &dyn Fn() -> String,
        findings: &mut Findings,
    ) -> bool {
        for (from, to, piece) in pieces {
            let Some(value) = piece.and_then(|p| p.value) else {
                findings.push(
                    Rule::CallDefined,
                    place,
                    format!("{} is read at bytes {}..{}, but nothing is there", what(), from * ALIGN, to * ALIGN),
                );
                return false;
            };
            let value = &self.values[value as usize];
            if let Some(by) = value.ended_by {
                let (owner, by) = (self.words(value.what), self.name(by as usize));
                findings.push(
                    Rule::CallOverwritten,
                    place,
                    format!("{} is read, but {owner} was partly overwritten by {by}", what()),
                );
                return false;
            }
            if !nested(extent, value.extent) {
                let owner = self.words(value.what);
                let at = needed.start * ALIGN;
                findings.push(
                    Rule::CallWhole,
                    place,
                    format!("{} at byte {at} is read across the border of {owner}", what()),
                );
                return false;
            }
        }
        true
    }

    fn write(&mut self, current: &Current, bound: Bound, findings: &mut Findings) {
        let Bound { number, slot, extent, used } = bound;
        let value = self.value(What::Slot { call: current.at as u32, slot: number }, extent);
        let (writes, reads) = self.last_uses(used);
        for span in bound.writes() {
            self.overwrite(current, slot, extent, span, used.writers, findings);
            self.memory(slot.space).set(span.start, span.end, Piece { value: Some(value), writes, reads });
        }
    }

    /// Changes memory in place: whose it is stays as it was.
    fn update(&mut self, current: &Current, bound: Bound, findings: &mut Findings) {
        let Bound { number, slot, extent, used } = bound;
        let value = self.value(What::Slot { call: current.at as u32, slot: number }, extent);
        let (writes, reads) = self.last_uses(used);
        for span in bound.writes() {
            self.conflicts(current, slot, span, used.writers, findings);
            let memory = self.memory(slot.space);
            memory.change(span.start, span.end, |piece| {
                *piece = Piece { value: piece.value.or(Some(value)), writes, reads };
            });
            memory.fill(span.start, span.end, &Piece { value: Some(value), writes, reads });
        }
    }

    fn scratch(&mut self, current: &Current, bound: Bound, findings: &mut Findings) {
        let Bound { slot, extent, used, .. } = bound;
        self.not_persistent(current.at, slot, extent, findings);
        self.overwrite(current, slot, extent, extent, used.writers | used.readers, findings);
        let (writes, reads) = self.last_uses(used);
        self.memory(slot.space).set(extent.start, extent.end, Piece { value: None, writes, reads });
    }

    /// The call's last writes and reads of a slot; whoever writes there next comes after both.
    fn last_uses(&self, used: &SlotSummary) -> (Clock, Clock) {
        (used.last_writes.after(&self.counts), used.last_reads.after(&self.counts))
    }

    fn not_persistent(&self, at: usize, slot: &Slot, extent: Span, findings: &mut Findings) {
        let kept = extent.start == extent.end || extent.start >= self.role.persistent(slot.space).div_ceil(ALIGN);
        findings.ensure(kept, Rule::TensorKept, self.place(at), || {
            format!("scratch slot {} lies in the persistent region", quoted(&slot.name))
        });
    }

    /// Ends the life of every value that `span` covers a part of and `extent` does not cover.
    fn overwrite(
        &mut self,
        current: &Current,
        slot: &Slot,
        extent: Span,
        span: Span,
        writers: u128,
        findings: &mut Findings,
    ) {
        self.conflicts(current, slot, span, writers, findings);
        for (_, _, piece) in self.pieces(slot.space, span) {
            if let Some(value) = piece.and_then(|p| p.value) {
                let value = &mut self.values[value as usize];
                if !contains(extent, value.extent) {
                    value.ended_by = Some(current.at as u32);
                }
            }
        }
    }

    /// Is everything that used this memory before in order with the writers?
    fn conflicts(&mut self, current: &Current, slot: &Slot, span: Span, writers: u128, findings: &mut Findings) {
        if !self.many_units {
            return;
        }
        for (_, _, piece) in self.pieces(slot.space, span) {
            let Some(piece) = piece else { continue };
            let fine = self.ordered(current, &piece.writes, writers, slot, "writes", findings)
                && self.ordered(current, &piece.reads, writers, slot, "writes", findings);
            if !fine {
                return;
            }
        }
    }

    /// Do all instructions with these sets of begun units know of `before`?
    fn ordered(
        &self,
        current: &Current,
        before: &Clock,
        sets: u128,
        slot: &Slot,
        does: &str,
        findings: &mut Findings,
    ) -> bool {
        let mut sets = sets;
        while sets != 0 {
            let set = sets.trailing_zeros() as u8;
            sets &= sets - 1;
            if !current.knows(set).covers(before) {
                let message = format!(
                    "it {does} slot {} without waiting for all that used this memory before",
                    quoted(&slot.name)
                );
                findings.push(Rule::CallOrdered, self.place(current.at), message);
                return false;
            }
        }
        true
    }

    fn words(&self, what: What) -> String {
        match what {
            What::Tensor(i) => Place::Tensor(self.role, &self.role.tensors[i as usize]).to_string(),
            What::Feed(i) => format!("feed {i} {}", quoted(&self.phase.feeds[i as usize].input)),
            What::Padding => "the space between tensors".into(),
            What::Scalar => "a scalar".into(),
            What::Slot { call, slot } => {
                let (program, _) = self.program(call as usize);
                format!("slot {slot} {} of {}", quoted(&program.slots[slot as usize].name), self.name(call as usize))
            }
        }
    }

    fn name(&self, call: usize) -> String {
        format!("call {call} ({})", quoted(&self.program(call).0.name))
    }
}

impl Current {
    /// What an instruction knows that was begun after these units began the call.
    fn knows(&self, units: u8) -> Clock {
        let mut clock = Clock::default();
        for unit in (0..StreamKind::COUNT).filter(|u| units >> u & 1 == 1) {
            clock.join(&self.begin[unit]);
        }
        clock
    }
}

impl<'a> Bound<'a> {
    /// What must be there.
    fn needs(self) -> impl Iterator<Item = Span> + use<'a> {
        self.ranges(&self.used.needs)
    }

    /// What is written; of scratch this is not all that changes.
    fn writes(self) -> impl Iterator<Item = Span> + use<'a> {
        self.ranges(&self.used.writes)
    }

    fn ranges(self, ranges: &'a [(u64, u64)]) -> impl Iterator<Item = Span> + use<'a> {
        ranges.iter().map(move |(from, to)| Span { start: self.extent.start + from, end: self.extent.start + to })
    }
}

fn contains(outer: Span, inner: Span) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

fn nested(a: Span, b: Span) -> bool {
    contains(a, b) || contains(b, a)
}
