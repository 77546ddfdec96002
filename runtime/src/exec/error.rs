//! Why a plan cannot be run, or stopped.

use super::MOST_RANKS;
use super::feeds::Unknown;
use crate::backend::Fault;
use crate::comm::{CommError, Who};
use crate::kernels::{KernelError, PrepareError};
use forebay_plan::{MemoryUse, Violation};
use serde::{Deserialize, Serialize};
use std::{fmt, io};

/// Where in a plan something happened.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// What kind of kernel, or the operation of a region: `matmul`, `div`.
    pub op: String,
    /// The graph's name of what it computes.
    pub instruction: String,
    /// The layer of the call; empty when layers have no name.
    pub layer: String,
    /// The program.
    pub program: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "`{}` {}", self.op, self.instruction)?;
        if !self.layer.is_empty() {
            write!(f, " in {}", self.layer)?;
        }
        write!(f, " (program {})", self.program)
    }
}

/// Why a plan cannot be run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The plan's verifier says no.
    #[error("the plan is invalid:\n{}", list(.0))]
    Invalid(Vec<Violation>),
    /// It is for too many ranks.
    #[error("the plan is for {} ranks, more than can be run\n  = help: {MOST_RANKS} ranks can be, in all processes together", .0)]
    Ranks(u64),
    /// It has no phase of this name.
    #[error("the plan cannot `{phase}`; it can: {}", .known.join(", "))]
    Phase {
        /// What was asked for.
        phase: String,
        /// What there is.
        known: Vec<String>,
    },
    /// There is not enough memory.
    #[error("{}", memory(*needed, *available, by_kind, *ranks))]
    Memory {
        /// Bytes.
        needed: u64,
        /// Bytes, where the system says.
        available: Option<u64>,
        /// Where they go.
        by_kind: MemoryUse,
        /// How many ranks need it together.
        ranks: usize,
    },
    /// The system has fewer threads than were asked for.
    #[error(
        "the system does not start {0} threads: {1}\n  = help: `--threads` says how many; limits are those of `ulimit -u` and of the container"
    )]
    Threads(usize, #[source] io::Error),
    /// A kernel has no meaning.
    #[error("{place} cannot be run: {error}")]
    Prepare {
        /// Which instruction.
        place: Box<Place>,
        /// Why.
        error: PrepareError,
    },
    /// A kernel stopped.
    #[error("at step {step}, {place} stopped: {error}")]
    Kernel {
        /// The step.
        step: u64,
        /// Which instruction.
        place: Box<Place>,
        /// Why.
        error: KernelError,
    },
    /// An instruction got nothing from other ranks.
    #[error("at step {step}, {place} stopped: {error}")]
    Comm {
        /// The step.
        step: u64,
        /// Which instruction.
        place: Box<Place>,
        /// Why.
        error: CommError,
    },
    /// A device has found something wrong.
    #[error("{}{fault}{}", at_step(*step), where_bytes_go(.memory.as_deref()))]
    Device {
        /// The step; 0 outside of steps.
        step: u64,
        /// What, and where.
        fault: Box<Fault>,
        /// Where the rank's memory goes, when that is what is missing.
        memory: Option<Box<MemoryUse>>,
    },
    /// There are not as many devices as ranks.
    #[error("the plan is for {ranks} ranks, but there are {devices} devices")]
    Devices {
        /// Devices.
        devices: u32,
        /// Ranks.
        ranks: usize,
    },
    /// A rank or process gave up, and so all did.
    #[error("{who}: {error}{}", waiters(.waiting))]
    GaveUp {
        /// Which gave up first.
        who: Who,
        /// Why.
        error: Box<ExecError>,
        /// Ranks that waited for it, and where.
        waiting: Vec<(u32, Place)>,
    },
    /// What a rank of another process has said.
    #[error("{0}")]
    Elsewhere(String),
    /// The processes have lost each other, or another one has given up.
    #[error(transparent)]
    Processes(#[from] CommError),
    /// A mistake of ours.
    #[error("it panicked: {0}")]
    Panic(String),
    /// A rank gave up earlier, and the others were left in the middle of a step.
    #[error("a rank has given up before")]
    Broken,
    /// The data are not what the phase takes.
    #[error("the plan reads `{0}`, which the data do not have")]
    Input(String),
}

impl From<Unknown> for ExecError {
    fn from(Unknown(input): Unknown) -> ExecError {
        ExecError::Input(input)
    }
}

fn list(violations: &[Violation]) -> String {
    violations.iter().map(|v| format!("  {v}")).collect::<Vec<_>>().join("\n")
}

fn waiters(waiting: &[(u32, Place)]) -> String {
    waiting.iter().map(|(rank, place)| format!("\n  rank {rank} waited in {place}")).collect()
}

fn at_step(step: u64) -> String {
    if step == 0 { String::new() } else { format!("at step {step}, ") }
}

fn where_bytes_go(memory: Option<&MemoryUse>) -> String {
    memory.map_or(String::new(), |by_kind| format!(" ({}){LESS_MEMORY}", kinds(by_kind)))
}

/// What can be done about it.
const LESS_MEMORY: &str = "\n  = help: with `--memory-budget` a plan makes values again or swaps them until it fits; `forebay memory` says what the least is";

fn memory(needed: u64, available: Option<u64>, by_kind: &MemoryUse, ranks: usize) -> String {
    let available = available.map_or(String::new(), |bytes| format!(", and {} are available", human_bytes(bytes)));
    let ranks = if ranks == 1 { String::new() } else { format!(" for its {ranks} ranks") };
    format!("this plan needs {} of memory{ranks}{available} ({}){LESS_MEMORY}", human_bytes(needed), kinds(by_kind))
}

/// Where bytes go.
fn kinds(by_kind: &MemoryUse) -> String {
    let MemoryUse { weights, gradients, optimizer, other, activations, .. } = *by_kind;
    let kinds = [
        ("weights", weights),
        ("gradients", gradients),
        ("optimizer", optimizer),
        ("activations", activations),
        ("other", other),
    ];
    let kinds: Vec<String> = kinds.iter().map(|(name, bytes)| format!("{name} {}", human_bytes(*bytes))).collect();
    kinds.join(", ")
}

/// Bytes for people: `1.5 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(150 << 20), "150 MiB");
        let by_kind = MemoryUse { weights: 1 << 30, activations: 3 << 30, ..MemoryUse::default() };
        let error = ExecError::Memory { needed: 4 << 30, available: Some(1 << 30), by_kind, ranks: 1 };
        let want = "this plan needs 4.0 GiB of memory, and 1.0 GiB are available \
            (weights 1.0 GiB, gradients 0 B, optimizer 0 B, activations 3.0 GiB, other 0 B)";
        assert_eq!(error.to_string(), format!("{want}{LESS_MEMORY}"));
    }
}
