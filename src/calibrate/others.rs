//! What other programs took of the processor while it was measured: their work is in what was timed.

use std::fs::read_to_string;

/// Ticks of the clock that the system counts time in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ticks {
    /// In which the cores that we may use worked, for anyone.
    busy: u64,
    /// In which they did anything, or nothing.
    all: u64,
    /// In which we worked.
    ours: u64,
}

impl Ticks {
    /// Those until now; none where the system does not say (`/proc`).
    pub fn now() -> Option<Ticks> {
        let status = read_to_string("/proc/self/status").ok()?;
        let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).and_then(listed)?;
        let ours = of_process(&read_to_string("/proc/self/stat").ok()?)?;
        let (busy, all) = of_cores(&read_to_string("/proc/stat").ok()?, &cores)?;
        Some(Ticks { busy, all, ours })
    }

    /// The part of the cores' time since some ticks that others had.
    pub fn others_since(self, begun: Ticks) -> f64 {
        let [busy, all, ours] =
            [(self.busy, begun.busy), (self.all, begun.all), (self.ours, begun.ours)].map(|(n, o)| n.saturating_sub(o));
        busy.saturating_sub(ours) as f64 / all.max(1) as f64
    }
}

/// `0-3,8` as numbers.
fn listed(text: &str) -> Option<Vec<u64>> {
    let mut cores = vec![];
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse().ok()?..=last.parse::<u64>().ok()?);
    }
    Some(cores)
}

/// Ticks of user and system time: behind the name, which may hold anything but a last bracket, the 12th and 13th numbers.
fn of_process(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Busy ticks of some cores, and all of theirs: the 4th and 5th number of a core's line are those in which it was idle; what guests take is in the first two.
fn of_cores(stat: &str, cores: &[u64]) -> Option<(u64, u64)> {
    let (mut busy, mut all) = (0, 0);
    for line in stat.lines() {
        let mut fields = line.split_whitespace();
        let core = fields.next().and_then(|name| name.strip_prefix("cpu")?.parse::<u64>().ok());
        if core.is_none_or(|core| !cores.contains(&core)) {
            continue;
        }
        let ticks: Vec<u64> = fields.take(8).map_while(|n| n.parse().ok()).collect();
        let idle: u64 = ticks.get(3..5)?.iter().sum();
        let sum: u64 = ticks.iter().sum();
        (busy, all) = (busy + sum - idle, all + sum);
    }
    (all > 0).then_some((busy, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_counted() {
        assert_eq!(listed("\t0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(listed("x"), None);
        assert_eq!(of_process("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 20 0 0"), Some(120));
        let stat = "cpu  9 9 9 9 9\ncpu0 10 0 5 80 5 0 0 0 3 0\ncpu1 50 0 0 50 0 0 0 0 0 0\ncpu2 1 1 1 1 1 1 1 1 1 1\nintr 1\n";
        assert_eq!(of_cores(stat, &[0, 1]), Some((65, 200)));
        assert_eq!(of_cores(stat, &[9]), None);
    }

    #[test]
    fn what_we_did_not_do_others_did() {
        let begun = Ticks { busy: 100, all: 1000, ours: 40 };
        assert_eq!(Ticks { busy: 190, all: 1100, ours: 100 }.others_since(begun), 0.3);
        // Clocks of processes and cores are not read at once.
        assert_eq!(Ticks { busy: 100, all: 1000, ours: 41 }.others_since(begun), 0.0);
        if let Some(ticks) = Ticks::now() {
            assert!((0.0..=1.0).contains(&Ticks::now().expect("it was there").others_since(ticks)));
        }
    }
}
