//! PyTorch's caching allocator: what it reserves of a device beyond the tensors that are in use.
//!
//! Fitted to peaks of nanotron and SimuMax. Full-size arrays that tensor-parallel products gather, or sum up, on a stream of their own seem to stay as if they were kept where the
//! host is ahead of the device, and not where the device waits for it. Two causes would look like that: memory that another stream has used is free when the host, as it allocates,
//! sees that the stream is done with it (`Tensor.record_stream`); and what products gathered may be kept by choice (`tp_recompute_allgather=false`), which rows do not say.

use crate::framework::Framework;

/// The part of the memory that programs may use up to which the allocator takes what it likes: 70 of 83 GB. Of nanotron's runs that would like more than there is most stay at 57 to 73 GB, three at 80 to 83.
const ROOM: f64 = 0.843;

/// The part of what was gathered that does not come back, since other tensors lie in the same blocks: with it most of nanotron's runs that ran and that did not are told apart.
const STAYS: f64 = 0.05;

/// Bytes that are reserved for what a step keeps: the least, and with all that was gathered.
///
/// A framework that makes more passes over memory than our fused plan, and of which nothing better is known, keeps the results of a third of these: each step of an
/// elementwise formula reads one or two and keeps one.
pub fn reserved(framework: &Framework, kept: f64, gathered: f64, loss: f64) -> [f64; 2] {
    let unfused = if framework.keeps_inputs { 0.0 } else { (framework.vector_passes - 1.0).max(0.0) / 3.0 };
    let least = kept * (1.0 + unfused + framework.slack) + loss;
    [least, least + gathered]
}

/// What is reserved of a device at most, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reserved {
    /// What is kept.
    pub least: f64,
    /// With all that was gathered.
    pub roomy: f64,
    /// What a program may use of the device.
    pub device_bytes: f64,
}

impl Reserved {
    /// What there would be with all the room, where the device waits for the host during a part of the step.
    fn wanted(self, host_bound: f64) -> f64 {
        self.least + (self.roomy - self.least) * (1.0 - host_bound).clamp(0.0, 1.0)
    }

    /// What there is: before there is too little memory the allocator waits for the device and gives back what is free (`CUDACachingAllocator`).
    pub fn peak(self, host_bound: f64) -> f64 {
        let wanted = self.wanted(host_bound);
        let stays = self.least + STAYS * (wanted - self.least);
        wanted.min(stays.max(ROOM * self.device_bytes))
    }

    /// What there would be with all the room, where that is more than programs may use. (Runs that would like no more than the last sixth of it are within 21 % of predictions.)
    pub fn short(self, host_bound: f64) -> Option<f64> {
        Some(self.wanted(host_bound)).filter(|wanted| *wanted > self.device_bytes)
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

    /// What was gathered is counted where the device does not wait for the host, and only while there is room; what is kept always is.
    #[test]
    fn late_memory_is_given_back() {
        let framework = Framework { keeps_inputs: true, slack: 0.4, ..Framework::default() };
        let [least, roomy] = reserved(&framework, 10e9, 30e9, 1e9);
        assert_eq!([least, roomy], [15e9, 45e9]);
        let of = |least: f64, roomy: f64| Reserved { least, roomy, device_bytes: 100e9 };
        // (Above the room for it a twentieth of 40 GB.)
        let peaks = [(15e9, 45e9), (60e9, 100e9), (90e9, 130e9)].map(|(least, roomy)| of(least, roomy).peak(0.0));
        assert_eq!(peaks, [45e9, 84.3e9, 92e9]);
        assert_eq!([0.5, 1.0].map(|host| of(15e9, 45e9).peak(host)), [15e9 + 30e9 / 2.0, 15e9]);
        assert_eq!([0.0, 0.5].map(|host| of(60e9, 110e9).short(host)), [Some(110e9), None]);
    }

    /// Results of a third of the passes are kept where nothing better is known.
    #[test]
    fn passes_keep_results() {
        let framework = Framework { vector_passes: 4.0, ..Framework::default() };
        assert_eq!(reserved(&framework, 1e9, 0.0, 0.0), [2e9, 2e9]);
        let most = [[1.0, 5.0], [2.0, 3.0]].into_iter().fold(Most::default(), |mut most, both| {
            most.meet(both, both[0]);
            most
        });
        assert_eq!((most.least, most.roomy, most.scratch), (2.0, 5.0, 1.0));
    }
}
