//! What each instruction of a plan takes: the one thing that a simulator of steps and an emulated device have in common.
//!
//! A table is numbers alone, by index of program and instruction; whoever makes it knows the plan, and whoever reads it needs to know no cluster.

/// What an instruction takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// Seconds on its stream, with nothing beside it.
    pub seconds: f64,
    /// Seconds that a message is on its way once it was sent.
    pub transfer: f64,
    /// For how many launches' time the host is busy with it.
    pub launches: f64,
    /// Must the host know that it has ended before it goes on?
    pub host_waits: bool,
    /// Is it communication, which slows down work beside it?
    pub communicates: bool,
}

/// What the instructions of a plan take on a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// For each program and instruction.
    pub programs: Vec<Vec<Price>>,
    /// Seconds of the host for a launch.
    pub launch: f64,
    /// Seconds that work takes longer for each second of communication beside it.
    pub slowdown: f64,
}

/// Seconds by which work gets longer because of communication beside it: `slowdown` for each second of the time that both share. Each is a begin and an end,
/// seconds.
pub fn contention(slowdown: f64, work: (f64, f64), communication: (f64, f64)) -> f64 {
    slowdown * (work.1.min(communication.1) - work.0.max(communication.0)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::contention;

    #[test]
    fn only_shared_time_is_slowed_down() {
        assert_eq!(contention(0.25, (0.0, 4.0), (1.0, 3.0)), 0.5);
        assert_eq!(contention(0.25, (1.0, 3.0), (0.0, 4.0)), 0.5);
        assert_eq!(contention(0.25, (0.0, 2.0), (1.0, 9.0)), 0.25);
        assert_eq!(contention(0.25, (0.0, 1.0), (1.0, 2.0)), 0.0);
        assert_eq!(contention(0.25, (5.0, 6.0), (1.0, 2.0)), 0.0);
    }
}
