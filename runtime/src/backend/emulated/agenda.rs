//! When something may happen next, and at which device.

use crate::hash;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A time at which a device is looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Wake {
    time: f64,
    /// Which of those at the same time comes first: the lowest.
    tie: u64,
    device: u32,
}

impl Eq for Wake {}

impl Ord for Wake {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Wake) -> Ordering {
        let key = |w: &Wake| (w.tie, w.device);
        other.time.total_cmp(&self.time).then_with(|| key(other).cmp(&key(self)))
    }
}

impl PartialOrd for Wake {
    fn partial_cmp(&self, other: &Wake) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Times at which devices are looked at.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    wakes: BinaryHeap<Wake>,
}

impl Agenda {
    /// Looks at a device then.
    pub fn add(&mut self, time: f64, device: u32, chance: &mut Chance) {
        let tie = chance.below(u64::MAX).unwrap_or(0);
        self.wakes.push(Wake { time, tie, device });
    }

    /// The next time, and the device.
    pub fn next(&mut self) -> Option<(f64, u32)> {
        self.wakes.pop().map(|w| (w.time, w.device))
    }
}

/// Where an order is drawn: durations, and what comes first of what could be at once. Nothing is drawn without a seed.
#[derive(Debug, Default)]
pub(super) struct Chance {
    key: Option<u64>,
    drawn: u64,
}

impl Chance {
    pub fn new(seed: Option<u64>) -> Chance {
        Chance { key: seed.map(|seed| hash::key(seed, "device order")), drawn: 0 }
    }

    pub fn is_used(&self) -> bool {
        self.key.is_some()
    }

    /// A random number below `n`.
    pub fn below(&mut self, n: u64) -> Option<u64> {
        self.drawn += 1;
        self.key.map(|key| hash::below(hash::at(key, self.drawn), n))
    }

    /// How long something takes that by the table takes so many seconds: a hundredth to a hundredfold of it, and of the least.
    pub fn duration(&mut self, seconds: f64) -> f64 {
        const LEAST: f64 = 1e-6;
        self.drawn += 1;
        let Some(key) = self.key else { return seconds };
        let exponent = 4.0 * hash::unit(hash::at(key, self.drawn)) - 2.0;
        seconds.max(LEAST) * 10f64.powf(exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on() {
        let (mut agenda, mut chance) = (Agenda::default(), Chance::default());
        for (time, device) in [(2.0, 0), (1.0, 3), (1.0, 1), (0.5, 2)] {
            agenda.add(time, device, &mut chance);
        }
        let order: Vec<(f64, u32)> = std::iter::from_fn(|| agenda.next()).collect();
        assert_eq!(order, [(0.5, 2), (1.0, 1), (1.0, 3), (2.0, 0)]);
    }

    #[test]
    fn durations_are_drawn_from_seeds() {
        assert_eq!(Chance::default().duration(3.0), 3.0);
        let draw = |seed| -> Vec<f64> {
            let mut chance = Chance::new(Some(seed));
            (0..100).map(|_| chance.duration(1.0)).collect()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(1).iter().all(|d| (0.01..=100.0).contains(d)));
        assert!(draw(1).iter().any(|d| *d < 0.1) && draw(1).iter().any(|d| *d > 10.0));
    }
}
