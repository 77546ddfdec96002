//! Timing training steps, alone and beside PyTorch.
//!
//! * [`runner`]: our steps on a batch that stays the same. * [`measure`]: what they come to. * [`torch`]: the peer's process.
//! * [`agreement`]: the peer's weights and batch in our run, and the same losses. * [`versus`]: both alternately. * [`report`]: the tables.
//! * [`curves`]: losses over many steps in several types, ours and the peer's.

pub mod agreement;
pub mod curves;
pub mod measure;
pub mod report;
pub mod runner;
pub mod torch;
pub mod versus;

use forebay_compiler::optimizer::{DecayScope, LrSchedule, Optimizer};

/// The optimizer of every benchmark: AdamW as PyTorch has it, a constant learning rate, all parameters decay. With a learning rate of 1e-3 bench-small
/// has learnt its one batch by heart in five steps, and on such a way down differences in rounding grow tenfold with each. The decay is
/// so strong that losses would show it missing.
pub fn optimizer() -> Optimizer {
    Optimizer {
        lr: 1e-4,
        schedule: LrSchedule::Constant,
        warmup: 0,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 1.0,
        decay: DecayScope::All,
        clip: Some(1.0),
        ..Optimizer::default()
    }
}

/// The middle one, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if n == 0 { f64::NAN } else { 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]) }
}

/// The smallest.
pub fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(best(&[2.0, 1.0]), 1.0);
    }
}
