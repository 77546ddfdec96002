//! Choices that can be made again with simpler ones: a case is a list of numbers, and 0 is the simplest choice of each.

use crate::common::Numbers;

/// The choices of a case.
pub struct Draw {
    numbers: Numbers,
    /// What was chosen so far, or is to be.
    taken: Vec<u32>,
    at: usize,
    /// Nothing beyond `taken` is chosen but the simplest.
    replays: bool,
}

impl Draw {
    /// Choices of a seed.
    pub fn new(seed: u64) -> Draw {
        Draw { numbers: Numbers::new(seed), taken: vec![], at: 0, replays: false }
    }

    /// These choices.
    pub fn again(taken: Vec<u32>) -> Draw {
        Draw { numbers: Numbers::new(0), taken, at: 0, replays: true }
    }

    /// What was chosen.
    pub fn taken(self) -> Vec<u32> {
        self.taken
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        if self.at == self.taken.len() {
            let chosen = if self.replays { 0 } else { (self.numbers.uniform() * n as f64) as u32 };
            self.taken.push(chosen);
        }
        self.at += 1;
        self.taken[self.at - 1] as usize % n
    }

    /// One of these, the simplest first.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }
}

/// Simpler and simpler choices for which `fails` still holds: each is made the simplest, or halved.
pub fn simplest(mut taken: Vec<u32>, mut fails: impl FnMut(&[u32]) -> bool) -> Vec<u32> {
    let mut at = 0;
    while at < taken.len() {
        for simpler in [0, taken[at] / 2] {
            if simpler < taken[at] {
                let mut tried = taken.clone();
                tried[at] = simpler;
                if fails(&tried) {
                    taken = tried;
                }
            }
        }
        at += 1;
    }
    taken
}
