//! Which registers hold results.

use super::trace::Id;
use iced_x86::Register;
use iced_x86::Register::{K2, K3, K4, K5, K6, ZMM0};

/// Registers for results: ZMM0 on.
pub(super) const NUMBERS: usize = 30;
/// Registers for conditions.
const TRUTHS: [Register; 5] = [K2, K3, K4, K5, K6];

/// Results in registers: groups of as many as there are vectors side by side.
pub(super) struct Registers {
    /// Vectors side by side.
    pub unroll: usize,
    numbers: Vec<usize>,
    truths: Vec<usize>,
    /// The group of each result, while it is needed.
    pub of: Vec<Option<usize>>,
    /// Groups of numbers that were taken at most.
    pub most: usize,
}

impl Registers {
    pub fn new(unroll: usize, results: usize) -> Registers {
        let numbers = (0..NUMBERS / unroll).rev().collect();
        let truths = (0..TRUTHS.len() / unroll).rev().collect();
        Registers { unroll, numbers, truths, of: vec![None; results], most: 0 }
    }

    /// A group for a result; nothing where all are taken.
    pub fn take(&mut self, id: Id, truth: bool) -> Option<usize> {
        let group = if truth { self.truths.pop() } else { self.numbers.pop() }?;
        if !truth {
            self.most = self.most.max(group + 1);
        }
        self.of[id] = Some(group);
        Some(group)
    }

    pub fn give_back(&mut self, id: Id, truth: bool) {
        if let Some(group) = self.of[id].take() {
            if truth { self.truths.push(group) } else { self.numbers.push(group) }
        }
    }

    pub fn number(&self, group: usize, vector: usize) -> Register {
        ZMM0 + (group * self.unroll + vector) as u32
    }

    pub fn truth(&self, group: usize, vector: usize) -> Register {
        TRUTHS[group * self.unroll + vector]
    }
}
