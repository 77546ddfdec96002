//! Roles, phases and calls by themselves: indices, places, names.

use super::globals::ranks;
use super::place::{Place, quoted};
use super::rules::{Findings, Rule};
use super::tensors::{Span, bytes_of};
use super::{ALIGN, MAX_RANK};
use crate::schema::*;
use std::collections::HashSet;

/// More kinds of ranks than this are not compared with each other.
const MAX_ROLES: usize = 4096;

const PHASES: [&str; 3] = ["train", "eval", "generate"];
const INPUTS: [&str; 4] = ["tokens", "labels", "positions", "documents"];

pub(super) fn check(plan: &Plan, findings: &mut Findings) {
    coordinates(plan, findings);
    for role in &plan.roles {
        let runs = typed_runs(role);
        arena(role, findings);
        let mut names = HashSet::new();
        for phase in &role.phases {
            let cx = Cx { plan, role, phase, runs: &runs };
            cx.header(&mut names, findings);
            cx.feeds(findings);
            cx.host_places(findings);
            cx.host_names(findings);
            cx.calls(findings);
        }
    }
}

fn coordinates(plan: &Plan, findings: &mut Findings) {
    if plan.mesh.len() > MAX_RANK {
        return;
    }
    if plan.roles.len() > MAX_ROLES {
        let message = format!("{} roles; the most is {MAX_ROLES}", plan.roles.len());
        return findings.push(Rule::RoleRanks, Place::Plan, message);
    }
    let mut total = Some(0u64);
    for role in &plan.roles {
        let fits = role.coordinates.len() == plan.mesh.len()
            && role.coordinates.iter().zip(&plan.mesh).all(|((lo, hi), dim)| lo < hi && *hi <= dim.size);
        if !findings
            .ensure(fits, Rule::RoleRanks, Place::Role(role), || "its coordinates are not ranges of the mesh".into())
        {
            return;
        }
        let count = role.coordinates.iter().try_fold(1u64, |n, (lo, hi)| n.checked_mul((hi - lo).into()));
        total = total.and_then(|n| n.checked_add(count?));
    }
    for (i, role) in plan.roles.iter().enumerate() {
        let shared = plan.roles[..i]
            .iter()
            .find(|other| other.coordinates.iter().zip(&role.coordinates).all(|(a, b)| a.0 < b.1 && b.0 < a.1));
        if let Some(other) = shared {
            findings.push(
                Rule::RoleRanks,
                Place::Role(role),
                format!("some of its ranks have the role {} too", quoted(&other.name)),
            );
            return;
        }
    }
    findings.ensure(total.is_some() && total == ranks(&plan.mesh), Rule::RoleRanks, Place::Plan, || {
        "some ranks have no role".into()
    });
}

fn arena(role: &Role, findings: &mut Findings) {
    let place = Place::Role(role);
    for space in Space::ALL {
        let (kept, bytes) = (role.persistent(space), role.bytes(space));
        findings
            .ensure(kept <= bytes, Rule::Arena, place, || format!("{kept} persistent bytes in an arena of {bytes}"));
        findings.ensure(bytes <= u64::MAX / 4, Rule::Arena, place, || {
            format!("{bytes} bytes are more than any memory has")
        });
    }
    for phase in &role.phases {
        let MemoryUse { weights, gradients, optimizer, other, activations, live_peak, placed } = phase.memory;
        let place = Place::Phase(role, phase);
        findings.ensure(live_peak <= placed, Rule::Arena, place, || format!("{live_peak} bytes are live in {placed}"));
        let parts = [weights, gradients, optimizer, other, activations].map(u128::from).iter().sum::<u128>();
        findings.ensure(parts == u128::from(placed), Rule::Arena, place, || {
            format!("{placed} bytes are placed, the parts add up to {parts}")
        });
        findings.ensure(placed <= role.device_bytes, Rule::Arena, place, || {
            format!("{placed} bytes are placed in an arena of {}", role.device_bytes)
        });
    }
}

struct Cx<'a> {
    plan: &'a Plan,
    role: &'a Role,
    phase: &'a Phase,
    runs: &'a [Run<'a>],
}

impl<'a> Cx<'a> {
    fn place(&self) -> Place<'a> {
        Place::Phase(self.role, self.phase)
    }

    fn header(&self, names: &mut HashSet<&'a str>, findings: &mut Findings) {
        let Phase { name, rows, seq, .. } = self.phase;
        let (settings, place) = (&self.plan.settings, self.place());
        findings.ensure(PHASES.contains(&name.as_str()), Rule::PhaseName, place, || {
            format!("phases are called {}", PHASES.join(", "))
        });
        findings.ensure(names.insert(name), Rule::PhaseName, place, || "there are two of this name".into());
        findings.ensure(*rows >= 1 && *seq >= 1, Rule::PhaseName, place, || format!("{rows} rows of {seq} tokens"));
        let whole = name != "train" || (*rows == settings.batch && *seq == settings.seq);
        findings.ensure(whole, Rule::PhaseName, place, || {
            format!("{rows} rows of {seq} tokens; the settings say {} of {}", settings.batch, settings.seq)
        });
    }

    fn feeds(&self, findings: &mut Findings) {
        for (i, feed) in self.phase.feeds.iter().enumerate() {
            let place = format!("{}, feed {i} {}", self.place(), quoted(&feed.input));
            let known = INPUTS.contains(&feed.input.as_str());
            findings.ensure(known, Rule::FeedRows, &place, || format!("inputs are called {}", INPUTS.join(", ")));
            let first = feed.first_row.bounds(&self.role.coordinates);
            let inside =
                first.is_some_and(|(lo, hi)| lo >= 0 && hi + i128::from(feed.rows) <= i128::from(self.phase.rows));
            findings.ensure(inside && feed.rows >= 1, Rule::FeedRows, &place, || {
                format!("on some rank its {} rows are not rows of the phase, which has {}", feed.rows, self.phase.rows)
            });
        }
    }

    fn host_places(&self, findings: &mut Findings) {
        let Phase { feeds, scalars, reports, outputs, seq, .. } = self.phase;
        let feeds = feeds.iter().map(|f| ("a feed", f.offset, feed_bytes(f, *seq)));
        let scalars = scalars.iter().map(|s| ("a scalar", s.offset, Some(4)));
        let mut written: Vec<(u64, u64, &str)> = vec![];
        for (what, offset, bytes) in feeds.chain(scalars) {
            let Some(span) = self.span(what, offset, bytes, ALIGN, findings) else { continue };
            let outside = offset >= self.role.persistent_bytes;
            findings.ensure(outside, Rule::HostPlace, self.place(), || {
                format!("{what} at byte {offset} lies in the persistent region")
            });
            written.push((span.start, span.end, what));
        }
        written.sort_unstable();
        for pair in written.windows(2) {
            findings.ensure(pair[0].1 <= pair[1].0, Rule::HostPlace, self.place(), || {
                format!("{} and {} at byte {} overlap", pair[0].2, pair[1].2, pair[1].0 * ALIGN)
            });
        }
        for report in reports {
            self.span("a report", report.offset, Some(report.dtype.bytes()), report.dtype.bytes(), findings);
        }
        for output in outputs {
            self.span("an output", output.offset, bytes_of(output.dims.iter().copied(), output.dtype), ALIGN, findings);
        }
    }

    fn span(&self, what: &str, offset: u64, bytes: Option<u64>, align: u64, findings: &mut Findings) -> Option<Span> {
        let aligned = findings.ensure(offset.is_multiple_of(align), Rule::HostPlace, self.place(), || {
            format!("{what} is at byte {offset}, which is not a multiple of {align}")
        });
        let end = bytes.and_then(|bytes| offset.checked_add(bytes));
        let inside = end.is_some_and(|end| end <= self.role.device_bytes && end <= u64::MAX / 2);
        findings.ensure(inside, Rule::HostPlace, self.place(), || {
            format!("{what} at byte {offset} does not lie in the device arena of {} bytes", self.role.device_bytes)
        });
        (aligned && inside).then(|| Span::new(offset, bytes.unwrap_or(0)))
    }

    fn host_names(&self, findings: &mut Findings) {
        let mut names = HashSet::new();
        for report in &self.phase.reports {
            findings.ensure(names.insert(&report.name), Rule::HostNames, self.place(), || {
                format!("two reports are called {}", quoted(&report.name))
            });
            findings.ensure(report.dtype.is_float(), Rule::HostNames, self.place(), || {
                format!("the report {} is of type {}", quoted(&report.name), report.dtype)
            });
        }
        let mut names = HashSet::new();
        for output in &self.phase.outputs {
            findings.ensure(names.insert(&output.name), Rule::HostNames, self.place(), || {
                format!("two outputs are called {}", quoted(&output.name))
            });
        }
    }

    fn calls(&self, findings: &mut Findings) {
        findings.ensure(self.phase.commit as usize <= self.phase.calls.len(), Rule::Commit, self.place(), || {
            format!("the commit is call {} of {}", self.phase.commit, self.phase.calls.len())
        });
        for at in 0..self.phase.calls.len() {
            if findings.is_full() {
                return;
            }
            let place = Place::Call(self.plan, self.role, self.phase, at);
            if let Some(program) = self.call_indices(at, place, findings)
                && findings.none_since(|findings| self.binding(at, program, place, findings))
            {
                self.slots_apart(at, program, place, findings);
                self.types_fit(at, program, place, findings);
            }
        }
    }

    fn call_indices(&self, at: usize, place: Place, findings: &mut Findings) -> Option<&'a Program> {
        let call = &self.phase.calls[at];
        let program = self.plan.programs.get(call.program as usize);
        findings.ensure(program.is_some(), Rule::CallIndex, place, || format!("there is no program {}", call.program));
        findings.ensure((call.layer as usize) < self.role.layers.len(), Rule::CallIndex, place, || {
            format!("there is no layer {}", call.layer)
        });
        findings.ensure(call.micro_batch < self.plan.settings.micro_batches, Rule::CallIndex, place, || {
            format!("there is no micro-batch {}", call.micro_batch)
        });
        for wait in &call.waits {
            let earlier = Some(wait.call as usize).filter(|c| *c < at).map(|c| self.phase.calls[c].program);
            let known = earlier.and_then(|p| self.plan.programs.get(p as usize)).is_some_and(|p| wait.event < p.events);
            findings.ensure(known, Rule::CallWait, place, || {
                format!("it waits for event {} of call {}, which is no event of an earlier call", wait.event, wait.call)
            });
        }
        program
    }

    fn binding(&self, at: usize, program: &Program, place: Place, findings: &mut Findings) {
        let offsets = &self.phase.calls[at].slots;
        if offsets.len() != program.slots.len() {
            let message = format!("{} places for {} slots", offsets.len(), program.slots.len());
            return findings.push(Rule::Binding, place, message);
        }
        for (slot, &offset) in program.slots.iter().zip(offsets) {
            findings.ensure(offset.is_multiple_of(ALIGN), Rule::Binding, place, || {
                format!("slot {} is at byte {offset}, which is not a multiple of {ALIGN}", quoted(&slot.name))
            });
            let size = self.role.bytes(slot.space);
            let inside = offset.checked_add(slot.bytes).is_some_and(|end| end <= size);
            findings.ensure(inside, Rule::Binding, place, || {
                format!("slot {} is {} bytes from byte {offset} on; there are {size}", quoted(&slot.name), slot.bytes)
            });
        }
    }

    /// Buffers over tensors have their type.
    fn types_fit(&self, at: usize, program: &Program, place: Place, findings: &mut Findings) {
        let offsets = &self.phase.calls[at].slots;
        for buffer in &program.buffers {
            let Some(slot) = program.slots.get(buffer.slot as usize).filter(|s| s.space == Space::Device) else {
                continue;
            };
            let start = offsets[buffer.slot as usize].saturating_add(buffer.offset);
            let end = start.saturating_add(buffer.elements.saturating_mul(buffer.dtype.bytes()));
            let first = self.runs.partition_point(|run| run.end <= start);
            // The next run has another type.
            let over = self.runs[first..].iter().take(2).filter(|run| run.start < end);
            if let Some(run) = over.into_iter().find(|run| run.dtype != buffer.dtype) {
                let (buffer_name, slot, tensor) = (quoted(&buffer.name), quoted(&slot.name), quoted(run.tensor));
                let message = format!(
                    "buffer {buffer_name} of slot {slot} is {}, the tensors from {tensor} on are {}",
                    buffer.dtype, run.dtype
                );
                findings.push(Rule::TensorType, place, message);
            }
        }
    }

    /// Slots of one call do not overlap, unless both are read.
    fn slots_apart(&self, at: usize, program: &Program, place: Place, findings: &mut Findings) {
        let offsets = &self.phase.calls[at].slots;
        let mut order: Vec<usize> = (0..offsets.len()).filter(|&i| program.slots[i].bytes > 0).collect();
        order.sort_unstable_by_key(|&i| (program.slots[i].space == Space::Host, offsets[i]));
        // The slots so far that reach furthest, of all and of those that are written.
        let (mut any, mut written): (Option<usize>, Option<usize>) = (None, None);
        let end = |i: usize| offsets[i] + program.slots[i].bytes;
        for i in order {
            let slot = &program.slots[i];
            let other = if slot.access == Access::Read { written } else { any };
            if let Some(other) = other.filter(|&o| program.slots[o].space == slot.space && end(o) > offsets[i]) {
                let (a, b) = (quoted(&program.slots[other].name), quoted(&slot.name));
                findings.push(Rule::CallOverlap, place, format!("slots {a} and {b} overlap at byte {}", offsets[i]));
            }
            let further = |best: Option<usize>| {
                best.filter(|&b| program.slots[b].space == slot.space && end(b) >= end(i)).or(Some(i))
            };
            any = further(any);
            if slot.access != Access::Read {
                written = further(written);
            }
        }
    }
}

/// Neighbouring tensors of one type.
struct Run<'a> {
    start: u64,
    end: u64,
    dtype: DType,
    /// The first of them.
    tensor: &'a str,
}

/// The tensors on the device as runs of one type, in the order of memory (those of the host's memory are copied as bytes): however many there are, a buffer is compared with two.
fn typed_runs(role: &Role) -> Vec<Run<'_>> {
    let mut tensors: Vec<&Tensor> = role.tensors.iter().filter(|t| t.space == Space::Device).collect();
    tensors.sort_by_key(|t| t.offset);
    let mut runs: Vec<Run> = vec![];
    for tensor in tensors {
        let bytes = tensor.place_bytes();
        let end = tensor.offset.saturating_add(bytes);
        match runs.last_mut() {
            Some(last) if last.dtype == tensor.place_dtype() => last.end = last.end.max(end),
            _ if bytes == 0 => {}
            _ => runs.push(Run { start: tensor.offset, end, dtype: tensor.place_dtype(), tensor: &tensor.name }),
        }
    }
    runs
}

/// Bytes of a feed: i32 tokens.
pub(super) fn feed_bytes(feed: &Feed, seq: u64) -> Option<u64> {
    feed.rows.checked_mul(seq)?.checked_mul(4)
}
