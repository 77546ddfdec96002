//! PyTorch's caching allocator: what it reserves of a device beyond the tensors that are in use.
//!
//! Memory that another stream has used is free when an event on that stream has passed (`Tensor.record_stream`), which the host looks for as it allocates: one that is far ahead
//! of the device finds nothing and asks the device for more.

use crate::framework::Framework;

/// What an allocator sees of the device and the host.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// Bytes that the device has.
    pub device_bytes: f64,
    /// The part of a step in which the device waits for the host.
    pub host_bound: f64,
}

/// How a caching allocator reserves memory for tensors.
#[derive(Clone, Copy, Debug)]
pub struct Allocator {
    /// What it reserves for what our plan keeps, as a multiple of it.
    times: f64,
    /// The part of what was gathered that is not free in time.
    late: f64,
    /// Bytes that it can have of the device.
    room: f64,
}

/// The part of a device's memory that is left to the allocator beside contexts, libraries' code and the buffers of collectives: 70 of 80 GB. Of nanotron's runs those that
/// would like more stay at 56 to 75 GB.
const ROOM: f64 = 0.875;

/// What was gathered is late by the part of a step in which the device does not wait for the host, to this power: chosen by nanotron's runs.
const LATE: i32 = 2;

impl Allocator {
    /// That of a framework. One that makes more passes over memory than our fused plan, and of which nothing better is known, keeps the results of a third of these: each step of an
    /// elementwise formula reads one or two and keeps one.
    pub fn of(framework: &Framework, around: Surroundings) -> Allocator {
        let unfused = if framework.keeps_inputs { 0.0 } else { (framework.vector_passes - 1.0).max(0.0) / 3.0 };
        let late = (1.0 - around.host_bound).clamp(0.0, 1.0).powi(LATE);
        Allocator { times: 1.0 + unfused + framework.slack, late, room: ROOM * around.device_bytes }
    }

    /// Bytes that are reserved for what a step keeps: the least, and where there is room.
    pub fn reserved(self, kept: f64, gathered: f64, loss: f64) -> [f64; 2] {
        let least = kept * self.times + loss;
        [least, least + gathered * self.late]
    }

    /// What is reserved at most: before there is too little memory it waits for the device, and what was late is free (`CUDACachingAllocator`).
    pub fn peak(self, least: f64, roomy: f64) -> f64 {
        roomy.min(least.max(self.room))
    }
}

/// The most that is reserved during any call, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Most {
    /// At the least.
    pub least: f64,
    /// Where there is room.
    pub roomy: f64,
    /// What the call alone uses that needs most where there is room.
    pub scratch: f64,
}

impl Most {
    /// Another call, and what it alone uses.
    pub fn meet(&mut self, [least, roomy]: [f64; 2], scratch: f64) {
        self.least = self.least.max(least);
        if roomy > self.roomy {
            (self.roomy, self.scratch) = (roomy, scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocator(framework: &Framework, host_bound: f64) -> Allocator {
        Allocator::of(framework, Surroundings { device_bytes: 80e9, host_bound })
    }

    /// What was gathered stays where the host is ahead, and is given back before memory ends; what is kept is not.
    #[test]
    fn late_memory_is_given_back() {
        let framework = Framework { keeps_inputs: true, slack: 0.4, ..Framework::default() };
        let ahead = allocator(&framework, 0.0);
        let [least, roomy] = ahead.reserved(10e9, 30e9, 1e9);
        assert_eq!([least, roomy], [15e9, 45e9]);
        assert_eq!((ahead.peak(least, roomy), ahead.peak(60e9, 90e9), ahead.peak(75e9, 105e9)), (45e9, 70e9, 75e9));
        let [_, behind] = allocator(&framework, 0.5).reserved(10e9, 30e9, 1e9);
        assert_eq!(behind, 15e9 + 30e9 / 4.0);
        assert_eq!(allocator(&framework, 1.0).reserved(10e9, 30e9, 1e9), [15e9, 15e9]);
    }

    /// Results of a third of the passes are kept where nothing better is known.
    #[test]
    fn passes_keep_results() {
        let framework = Framework { vector_passes: 4.0, ..Framework::default() };
        assert_eq!(allocator(&framework, 0.0).reserved(1e9, 0.0, 0.0), [2e9, 2e9]);
        let most = [[1.0, 5.0], [2.0, 3.0]].into_iter().fold(Most::default(), |mut most, both| {
            most.meet(both, both[0]);
            most
        });
        assert_eq!((most.least, most.roomy, most.scratch), (2.0, 5.0, 1.0));
    }
}
