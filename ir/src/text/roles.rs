//! The words for what inputs and outputs stand for.

use crate::graph::{InputRole, OutputRole};

impl InputRole {
    /// All of them.
    pub const ALL: [InputRole; 10] = [
        InputRole::Data,
        InputRole::Carry,
        InputRole::Param,
        InputRole::State,
        InputRole::Stat,
        InputRole::Count,
        InputRole::Saved,
        InputRole::Grad,
        InputRole::Accumulator,
        InputRole::Runtime,
    ];

    /// The name in textual IR.
    pub fn name(self) -> &'static str {
        match self {
            InputRole::Data => "data",
            InputRole::Carry => "carry",
            InputRole::Param => "param",
            InputRole::State => "state",
            InputRole::Stat => "stat",
            InputRole::Count => "count",
            InputRole::Saved => "saved",
            InputRole::Grad => "grad",
            InputRole::Accumulator => "accumulator",
            InputRole::Runtime => "runtime",
        }
    }

    /// The role of a name in textual IR.
    pub fn from_name(name: &str) -> Option<InputRole> {
        InputRole::ALL.into_iter().find(|r| r.name() == name)
    }
}

impl OutputRole {
    /// All of them.
    pub const ALL: [OutputRole; 9] = [
        OutputRole::Carry,
        OutputRole::Loss,
        OutputRole::Metric,
        OutputRole::Stat,
        OutputRole::Count,
        OutputRole::State,
        OutputRole::Saved,
        OutputRole::Grad,
        OutputRole::Output,
    ];

    /// The name in textual IR.
    pub fn name(self) -> &'static str {
        match self {
            OutputRole::Carry => "carry",
            OutputRole::Loss => "loss",
            OutputRole::Metric => "metric",
            OutputRole::Stat => "stat",
            OutputRole::Count => "count",
            OutputRole::State => "state",
            OutputRole::Saved => "saved",
            OutputRole::Grad => "grad",
            OutputRole::Output => "output",
        }
    }

    /// The role of a name in textual IR.
    pub fn from_name(name: &str) -> Option<OutputRole> {
        OutputRole::ALL.into_iter().find(|r| r.name() == name)
    }
}
