//! How many bytes of a rank's memory are in use while each call runs, from what the calls write and read.
//!
//! A value lives from the call that writes it to the last call that reads it; what is scratch lives for one call. What the host writes before the first
//! call lives from the start. Tensors that outlive the step are in use all the time.

use forebay_plan::{Access, Phase, Plan, Role, Space};
use std::collections::BTreeMap;

/// A value in memory.
#[derive(Clone, Copy, Debug)]
struct Value {
    bytes: u64,
    first: usize,
    last: usize,
}

/// Bytes in use during a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// All of them, tensors that outlive the step included.
    pub bytes: u64,
    /// Those that the call alone uses.
    pub scratch: u64,
    /// Bytes that are held after the call for later ones, those that outlive the step left out.
    pub after: u64,
}

/// Bytes in use during each call of a phase; O(calls × slots × log values).
pub fn live(plan: &Plan, role: &Role, phase: &Phase) -> Vec<Use> {
    let mut scratch = vec![0; phase.calls.len()];
    let mut lives = Lives {
        values: BTreeMap::new(),
        change: vec![0; phase.calls.len() + 1],
        after: vec![0; phase.calls.len() + 1],
    };
    for (number, call) in phase.calls.iter().enumerate() {
        let Some(program) = plan.programs.get(call.program as usize) else { continue };
        // What a call reads must be there before what it writes takes its place.
        let mut slots: Vec<_> = program.slots.iter().zip(&call.slots).collect();
        slots.sort_by_key(|(slot, _)| matches!(slot.access, Access::Write | Access::Scratch));
        for (slot, &offset) in slots {
            if slot.space != Space::Device || offset < role.persistent_bytes || slot.bytes == 0 {
                continue;
            }
            match slot.access {
                Access::Read | Access::Update => lives.read(offset, slot.bytes, number),
                Access::Write => lives.write(offset, slot.bytes, number),
                Access::Scratch => {
                    lives.count(slot.bytes, number, number);
                    scratch[number] += slot.bytes;
                }
            }
        }
    }
    let (changes, afters) = lives.finish();
    let (mut now, mut held) = (role.persistent_bytes as i64, 0i64);
    let during = |((change, after), scratch): ((&i64, &i64), u64)| {
        now += change;
        held += after;
        Use { bytes: now.max(0) as u64, scratch, after: held.max(0) as u64 }
    };
    changes.iter().zip(&afters).zip(scratch).map(during).collect()
}

struct Lives {
    /// By offset; they do not overlap.
    values: BTreeMap<u64, Value>,
    /// Bytes more than in the call before.
    change: Vec<i64>,
    /// Bytes more that are held after a call than after the one before.
    after: Vec<i64>,
}

impl Lives {
    fn count(&mut self, bytes: u64, first: usize, last: usize) {
        self.change[first] += bytes as i64;
        self.change[last + 1] -= bytes as i64;
        self.after[first] += bytes as i64;
        self.after[last] -= bytes as i64;
    }

    /// Offsets of values that share memory with a range.
    fn meeting(&self, offset: u64, bytes: u64) -> Vec<u64> {
        let end = offset.saturating_add(bytes);
        let before = self.values.range(..offset).next_back().filter(|(at, v)| *at + v.bytes > offset);
        before.into_iter().chain(self.values.range(offset..end)).map(|(at, _)| *at).collect()
    }

    fn read(&mut self, offset: u64, bytes: u64, call: usize) {
        let met = self.meeting(offset, bytes);
        if met.is_empty() {
            // The host wrote it.
            self.values.insert(offset, Value { bytes, first: 0, last: call });
        }
        for at in met {
            self.values.entry(at).and_modify(|v| v.last = call);
        }
    }

    fn write(&mut self, offset: u64, bytes: u64, call: usize) {
        for at in self.meeting(offset, bytes) {
            if let Some(old) = self.values.remove(&at) {
                // A value that is replaced has ended before; parts of it that others wrote beside this one have not.
                self.count(old.bytes, old.first, old.last.min(call.saturating_sub(1)).max(old.first));
            }
        }
        self.values.insert(offset, Value { bytes, first: call, last: call });
    }

    fn finish(mut self) -> (Vec<i64>, Vec<i64>) {
        for Value { bytes, first, last } in std::mem::take(&mut self.values).into_values() {
            self.count(bytes, first, last);
        }
        (self.change, self.after)
    }
}
