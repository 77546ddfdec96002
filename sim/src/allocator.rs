//! PyTorch's caching allocator: what it reserves of a device beyond the tensors that are in use.
//!
//! Fitted to peaks of nanotron and SimuMax. Full-size arrays that tensor-parallel products gather, or sum up, on a stream of their own are free when the host, as it allocates, sees that
//! the stream is done with them (`Tensor.record_stream`): what the host has launched and the device has not done yet holds memory. The further the host is ahead
//! ([`Lead`]), the more such arrays there are: in nanotron's runs that have room some fifty at most, whatever their layers, stages, ranks and micro-batches. CUDA takes about a thousand launches
//! before the host waits.

use crate::framework::Framework;

/// The part of the memory that programs may use up to which the allocator takes what it likes: 70 of 83 GB. Of nanotron's runs that would like more than there is most stay at 57 to 73 GB, three at 80 to 83.
const ROOM: f64 = 0.843;

/// The part of what was gathered, as far as it is launched and the host ahead, that does not come back, since other tensors lie in the same blocks: with it most of nanotron's runs that ran and that did not are told apart.
const STAYS: f64 = 0.2;

/// The part of the memory that programs may use above which a device is crowded, where segments keep their sizes: of nanotron's runs that are predicted to need so much, and no more than
/// there is, 41 ran out of memory, ten took 1.6 to 10 times as long as they would without [`REGAIN_S`], and three did not.
const CROWDED: f64 = 0.91;

/// Seconds that an allocator takes to give back what is free of a device that is full, and to get it again in other pieces: 0.5 to 1.5 for each micro-batch of 12 of nanotron's 13 runs that
/// are slow for it. All on H100; that other devices take as long is an assumption.
pub const REGAIN_S: f64 = 1.1;

/// Full-size arrays that are launched and not done where the host is as far ahead as it gets: read off nanotron's peaks, which have 35 to 60.
const LAUNCHED: f64 = 48.0;

/// How many times the part of the step that a device waits for its host is missing from the host's lead within a micro-batch: none is left where that is a quarter of the step.
const BEHIND: f64 = 4.0;

/// How far the host of a stage may be ahead of its device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lead {
    /// It waits for no other stage.
    Alone,
    /// It waits for each message that it receives, and so is ahead within a micro-batch only. But as many forward passes go out as there are stages behind it (micro-batches, if these are
    /// fewer) before it waits for the first gradient, and while what they send waits for the next stage, it goes on. So many; that is of plain 1F1B.
    Between(u32),
}

impl Lead {
    /// That of a stage of so many, with so many micro-batches.
    pub fn of(stage: u32, stages: u32, micro_batches: u32) -> Lead {
        let behind = stages.saturating_sub(1).saturating_sub(stage);
        if stages > 1 { Lead::Between(behind.min(micro_batches)) } else { Lead::Alone }
    }

    /// The part of what it could have launched at most, where the device waits for it during a part of the step.
    fn part(self, host_bound: f64) -> f64 {
        let ahead = (1.0 - host_bound).clamp(0.0, 1.0);
        match self {
            Lead::Alone => ahead,
            Lead::Between(sent) => {
                // (The first of them is taken at once.)
                let held_up = f64::from(sent.saturating_sub(1)) / f64::from(sent.max(1));
                (1.0 - BEHIND * host_bound).clamp(0.0, 1.0).max(held_up * ahead)
            }
        }
    }
}

/// Bytes of what was gathered that are launched and not done at most: the lesser of what all layers between their forward and backward passes gathered, and of [`LAUNCHED`] arrays of `each`
/// bytes.
pub fn launched(gathered: f64, each: f64) -> f64 {
    gathered.min(LAUNCHED * each)
}

/// Bytes that are reserved for what a step keeps: the least, and with all that was gathered; and those that are allocated.
///
/// A framework that makes more passes over memory than our fused plan, and of which nothing better is known, keeps the results of a third of these: each step of an
/// elementwise formula reads one or two and keeps one.
pub fn reserved(framework: &Framework, kept: f64, gathered: f64, loss: f64) -> [f64; 3] {
    let unfused = if framework.keeps_inputs { 0.0 } else { (framework.vector_passes - 1.0).max(0.0) / 3.0 };
    let allocated = kept * (1.0 + unfused) + loss;
    let least = allocated + kept * framework.slack;
    [least, least + gathered, allocated]
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
    /// How far the host may be ahead.
    pub lead: Lead,
    /// Does a full device make it give back and get again what is free? Where its segments keep their sizes, but for one stage on one tensor-parallel rank, whose micro-batches ask for the
    /// same again and again.
    pub splits: bool,
}

impl Reserved {
    /// What there would be with all the room, where the device waits for the host during a part of the step.
    fn wanted(self, host_bound: f64) -> f64 {
        self.least + (self.roomy - self.least) * self.lead.part(host_bound)
    }

    /// What there is: before there is too little memory the allocator waits for the device and gives back what is free (`CUDACachingAllocator`).
    pub fn peak(self, host_bound: f64) -> f64 {
        let wanted = self.wanted(host_bound);
        let stays = self.least + STAYS * (wanted - self.least);
        wanted.min(stays.max(ROOM * self.device_bytes))
    }

    /// What there would be with all the room, where that is more than programs may use, or the device is crowded.
    pub fn short(self, host_bound: f64) -> Option<f64> {
        Some(self.wanted(host_bound)).filter(|wanted| self.is_crowded(host_bound) || *wanted > self.device_bytes)
    }

    /// Does the allocator stop the device for each micro-batch to get memory back?
    pub fn is_crowded(self, host_bound: f64) -> bool {
        self.splits && self.peak(host_bound) > CROWDED * self.device_bytes
    }
}

/// The most that is reserved during any call, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Most {
    /// At the least.
    pub least: f64,
    /// Where there is room.
    pub roomy: f64,
    /// Of what is allocated.
    pub allocated: f64,
    /// What the call alone uses that needs most where there is room.
    pub scratch: f64,
}

impl Most {
    /// Another call, and what it alone uses.
    pub fn meet(&mut self, [least, roomy, allocated]: [f64; 3], scratch: f64) {
        self.least = self.least.max(least);
        self.allocated = self.allocated.max(allocated);
        if roomy > self.roomy {
            (self.roomy, self.scratch) = (roomy, scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(least: f64, roomy: f64, lead: Lead) -> Reserved {
        Reserved { least, roomy, device_bytes: 100e9, lead, splits: true }
    }

    /// What was gathered is counted by the host's lead, and only while there is room; what is kept always is.
    #[test]
    fn late_memory_is_given_back() {
        let framework = Framework { keeps_inputs: true, slack: 0.4, ..Framework::default() };
        assert_eq!(reserved(&framework, 10e9, 30e9, 1e9), [15e9, 45e9, 11e9]);
        // (Above the room for it a fifth of 40 GB.)
        let peaks =
            [(15e9, 45e9), (60e9, 100e9), (90e9, 130e9)].map(|(least, roomy)| of(least, roomy, Lead::Alone).peak(0.0));
        assert_eq!(peaks, [45e9, 84.3e9, 98e9]);
        assert_eq!([0.5, 1.0].map(|host| of(15e9, 45e9, Lead::Alone).peak(host)), [15e9 + 30e9 / 2.0, 15e9]);
        assert_eq!([0.0, 0.5].map(|host| of(60e9, 110e9, Lead::Alone).short(host)), [Some(110e9), None]);
        assert_eq!([90e9, 92e9].map(|least| of(least, least, Lead::Alone).short(0.0)), [None, Some(92e9)]);
        assert_eq!(Reserved { splits: false, ..of(92e9, 92e9, Lead::Alone) }.short(0.0), None);
        let crowded = |least: f64| of(least, least, Lead::Alone).is_crowded(0.0);
        assert_eq!([90e9, 92e9, 150e9].map(crowded), [false, true, true]);
    }

    /// A host that is slower than its device is not ahead of it, unless what went out before the first gradient holds the device up.
    #[test]
    fn hosts_lead_by_what_they_send() {
        let peak = |stage: u32, stages: u32, host_bound: f64| {
            of(0.0, 60e9, Lead::of(stage, stages, 64)).peak(host_bound) / 60e9
        };
        assert_eq!([0.0, 0.125, 0.25, 0.5].map(|host| peak(0, 2, host)), [1.0, 0.5, 0.0, 0.0]);
        assert_eq!([0, 1, 2, 4].map(|stage| peak(stage, 5, 0.5)), [0.75 * 0.5, 2.0 / 3.0 * 0.5, 0.25, 0.0]);
        assert_eq!([0.0, 0.5].map(|host| peak(0, 1, host)), [1.0, 0.5]);
        assert_eq!([1, 2, 8, 64].map(|micro| Lead::of(0, 9, micro)), [1, 2, 8, 8].map(Lead::Between));
    }

    /// However much is between its forward and backward pass, no more is launched.
    #[test]
    fn launches_have_an_end() {
        assert_eq!([launched(10e9, 1e9), launched(96e9, 1e9), launched(0.0, 0.0)], [10e9, 48e9, 0.0]);
    }

    /// Results of a third of the passes are kept where nothing better is known.
    #[test]
    fn passes_keep_results() {
        let framework = Framework { vector_passes: 4.0, ..Framework::default() };
        assert_eq!(reserved(&framework, 1e9, 0.0, 0.0), [2e9; 3]);
        let most = [[1.0, 5.0, 1.0], [2.0, 3.0, 0.5]].into_iter().fold(Most::default(), |mut most, both| {
            most.meet(both, both[0]);
            most
        });
        assert_eq!((most.least, most.roomy, most.allocated, most.scratch), (2.0, 5.0, 1.0, 1.0));
    }
}
