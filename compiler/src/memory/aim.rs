//! How much memory there is, and what is said where that is too little.

use std::fmt;

/// How much memory a device's arena may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// As much as there is to keep.
    Fastest,
    /// At most so many bytes.
    Within(u64),
    /// The same, in the first way that is found: what one asks who wants to know whether there is one.
    InSomeWay(u64),
    /// As little as can be.
    Least,
}

impl Aim {
    /// Bytes that are allowed, if not all are.
    pub fn budget(self) -> Option<u64> {
        match self {
            Aim::Within(bytes) | Aim::InSomeWay(bytes) => Some(bytes),
            Aim::Fastest | Aim::Least => None,
        }
    }
}

/// A stage that does not fit, whatever is made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The stage.
    pub stage: u32,
    /// Bytes that were allowed.
    pub budget: u64,
    /// The least that it takes in any form that was tried; of a stage whose persistent bytes are too many these alone.
    pub least: u64,
    /// Bytes of that which outlive a step: parameters, gradients, optimizer state.
    pub persistent: u64,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Misfit { stage, budget, least, persistent } = self;
        if least == persistent {
            return write!(
                f,
                "stage {stage} has {} of parameters, gradients and optimizer state alone, {} more than the {} allowed",
                enough(*least),
                enough(least - budget),
                Size(*budget)
            );
        }
        write!(
            f,
            "stage {stage} needs {} ({least} bytes) in the smallest form that was found, {} more than the {} allowed; {} of them are parameters, \
             gradients and optimizer state",
            enough(*least),
            enough(least - budget),
            Size(*budget),
            Size(*persistent)
        )
    }
}

/// Bytes for people, to three digits: `1.53 GiB`; few of them as they are.
struct Size(u64);

impl Size {
    /// The number, its digits behind the point, and the unit.
    fn parts(&self) -> (f64, usize, &'static str) {
        let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        let power = (1..=units.len()).rev().find(|p| self.0 >> (10 * p) > 0);
        let Some(power) = power else { return (self.0 as f64, 0, "B") };
        let value = self.0 as f64 / (1u64 << (10 * power)) as f64;
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        (value, digits, units[power - 1])
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, digits, unit) = self.parts();
        write!(f, "{value:.digits$} {unit}")
    }
}

/// Bytes for people, to three digits, rounded up: whoever gives so many gives enough.
pub fn enough(bytes: u64) -> String {
    let (value, digits, unit) = Size(bytes).parts();
    let parts = 10f64.powi(digits as i32);
    format!("{:.digits$} {unit}", (value * parts).ceil() / parts)
}
