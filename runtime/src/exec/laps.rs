//! How long one thing after the other took.

use std::time::{Duration, Instant};

/// Names and times, in order.
#[derive(Clone, Debug)]
pub struct Laps {
    last: Instant,
    laps: Vec<(&'static str, Duration)>,
}

impl Laps {
    /// The first one begins at `start`.
    pub fn since(start: Instant) -> Laps {
        Laps { last: start, laps: vec![] }
    }

    /// What was done since the last one has this name.
    pub fn lap(&mut self, name: &'static str) {
        let now = Instant::now();
        self.laps.push((name, now - self.last));
        self.last = now;
    }

    /// What was done since the last one was measured in parts.
    pub fn lap_of(&mut self, parts: &Laps) {
        self.laps.extend(&parts.laps);
        self.last = parts.last;
    }

    /// What was done since the last one is left out.
    pub fn skip(&mut self) {
        self.last = Instant::now();
    }

    /// Names and times.
    pub fn get(&self) -> &[(&'static str, Duration)] {
        &self.laps
    }

    /// All together.
    pub fn total(&self) -> Duration {
        self.laps.iter().map(|(_, time)| *time).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_follow_each_other() {
        let start = Instant::now();
        let mut laps = Laps::since(start);
        laps.lap("a");
        let mut parts = Laps::since(Instant::now());
        parts.lap("b");
        laps.lap_of(&parts);
        std::thread::sleep(Duration::from_millis(20));
        laps.skip();
        laps.lap("c");
        assert_eq!(laps.get().iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(laps.total() + Duration::from_millis(20) <= start.elapsed());
    }
}
