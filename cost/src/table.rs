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
    /// What it is to others that run at the same time.
    pub class: Class,
    /// Of what a device's links in the first tier carry, the part that goes through it meanwhile; 0 of work.
    pub load: f64,
}

/// Work takes longer while communication is in flight, in the simulator as on emulated devices: these share cores and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Copies between the memories of device and host: they take neither cores nor links between devices.
    #[default]
    Copy,
    /// Kernels of one device.
    Work,
    /// Collectives and messages.
    Communication,
}

/// What the instructions of a plan take on a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// For each program and instruction.
    pub programs: Vec<Vec<Price>>,
    /// Seconds of the host for a launch.
    pub launch: f64,
    /// Do the vector units work beside the cubes? If not, one does the work of both streams, in the order in which it was launched.
    pub vector_beside_cube: bool,
    /// Seconds that work takes longer for each second of communication beside it that loads the device's links, less for what loads them in part ([`Price::load`]).
    pub slowdown: f64,
}

/// Seconds by which work gets longer because of communication ([`Class`]): `slowdown` for each second of the time that both share. Each is a begin and an end, seconds.
pub fn contention(slowdown: f64, operation: (f64, f64), other: (f64, f64)) -> f64 {
    slowdown * (operation.1.min(other.1) - operation.0.max(other.0)).max(0.0)
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
