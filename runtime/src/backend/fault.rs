//! What devices find wrong with what they are given.

use crate::kernels::KernelError;
use forebay_plan::{Space, StreamKind};
use std::fmt;

/// An instruction, where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The device.
    pub rank: u32,
    /// Its stream.
    pub stream: StreamKind,
    /// The call of the phase, its layer, program and instruction; none for a copy that the host asked for.
    pub call: Option<u32>,
    /// The call's layer.
    pub layer: u32,
    /// The name of the program, or of what is copied.
    pub program: String,
    /// The kind of kernel: `matmul`, `copy`.
    pub kernel: String,
    /// The name of what it computes.
    pub instruction: String,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "rank {}, {} stream, ", self.rank, stream_name(self.stream))?;
        match self.call {
            Some(call) => write!(f, "call {call} ({}), `{}` {}", self.program, self.kernel, self.instruction),
            None => write!(f, "`{}` {}", self.kernel, self.instruction),
        }
    }
}

/// What an instruction does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Reads,
    /// Changes it.
    Writes,
}

impl Access {
    fn words(self) -> &'static str {
        match self {
            Access::Reads => "reads",
            Access::Writes => "writes",
        }
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// No stream and no event orders it behind an instruction that comes before it, of which one writes what the other touches.
    BeforeEvent {
        /// The buffer.
        buffer: String,
        /// What it does with it.
        access: Access,
        /// The instruction that comes before.
        other: Box<Spot>,
        /// What that one does with it.
        others: Access,
    },
    /// It reads what nothing has written.
    Unwritten {
        /// The buffer.
        buffer: String,
        /// Bytes of the memory.
        bytes: (u64, u64),
    },
    /// It reads memory that belongs to something else by now.
    AfterFree {
        /// The buffer.
        buffer: String,
        /// Bytes of the memory.
        bytes: (u64, u64),
        /// Who has them.
        owner: String,
    },
    /// The memory was given back.
    Freed {
        /// What is used.
        what: String,
    },
    /// The stream's unit does not reach the memory.
    Space {
        /// The buffer.
        buffer: String,
        /// Where it is.
        space: Space,
    },
    /// It reaches beyond the memory.
    Outside {
        /// What does: a slot, a buffer.
        what: String,
        /// One past the last byte.
        end: u64,
        /// Bytes that there are.
        bytes: u64,
    },
    /// There is not enough memory.
    Memory {
        /// Which.
        space: Space,
        /// Bytes that are wanted.
        wanted: u64,
        /// Bytes that are in use already.
        used: u64,
        /// Bytes that there are; none where the machine that emulates has no more.
        capacity: Option<u64>,
    },
    /// It waits for ever.
    Stuck {
        /// For what.
        missing: String,
    },
    /// It is to be launched with the instruction before it, which is not what its stream got last.
    Captured,
    /// Members of a collective, or both sides of a message, do not agree on what is exchanged.
    Mismatch,
    /// The data do not fit.
    Data(KernelError),
}

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where; nowhere when memory cannot be had.
    pub at: Option<Box<Spot>>,
    /// The device.
    pub rank: u32,
    /// What.
    pub wrong: Wrong,
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.at {
            Some(at) => write!(f, "{at}: ")?,
            None => write!(f, "rank {}: ", self.rank)?,
        }
        match &self.wrong {
            Wrong::BeforeEvent { buffer, access, other, others } => {
                let early = match (access, others) {
                    (Access::Reads, _) => "use before event",
                    (Access::Writes, _) => "overwrite before event",
                };
                write!(
                    f,
                    "it {} `{buffer}`, which {} {} ({other}); no event orders it behind that [{early}]",
                    access.words(),
                    spoken(other),
                    others.words(),
                )
            }
            Wrong::Unwritten { buffer, bytes: (from, to) } => {
                write!(f, "it reads `{buffer}` (bytes {from}..{to}), which nothing has written [use before write]")
            }
            Wrong::AfterFree { buffer, bytes: (from, to), owner } => {
                write!(f, "it reads `{buffer}`, but bytes {from}..{to} belong to {owner} [use after free]")
            }
            Wrong::Freed { what } => write!(f, "it uses {what}, which was given back [use after free]"),
            Wrong::Space { buffer, space } => {
                let space = space_name(*space);
                write!(f, "`{buffer}` is in {space} memory, which this unit does not reach [wrong space]")
            }
            Wrong::Outside { what, end, bytes } => {
                write!(f, "{what} reaches to byte {end} of a memory of {bytes} [out of bounds]")
            }
            Wrong::Memory { space, wanted, used, capacity } => {
                let space = space_name(*space);
                write!(f, "{wanted} bytes of {space} memory are wanted, {used} are in use")?;
                match capacity {
                    Some(capacity) => write!(f, ", and there are {capacity} [out of memory]"),
                    None => write!(f, ", and this machine has no more [out of memory]"),
                }
            }
            Wrong::Stuck { missing } => write!(f, "it waits for ever: {missing} [deadlock]"),
            Wrong::Captured => {
                write!(
                    f,
                    "it is part of a captured region, and comes neither behind the instruction before it nor without events [capture]"
                )
            }
            Wrong::Mismatch => write!(f, "the ranks do not agree on what is exchanged [mismatch]"),
            Wrong::Data(error) => error.fmt(f),
        }
    }
}

fn spoken(spot: &Spot) -> String {
    format!("`{}` {}", spot.kernel, spot.instruction)
}

fn space_name(space: Space) -> &'static str {
    match space {
        Space::Device => "device",
        Space::Host => "host",
    }
}

/// What people call a stream.
pub(crate) fn stream_name(kind: StreamKind) -> &'static str {
    match kind {
        StreamKind::Cube => "cube",
        StreamKind::Vector => "vector",
        StreamKind::IntraNode => "intra-node",
        StreamKind::InterNode => "inter-node",
        StreamKind::CopyIn => "copy-in",
        StreamKind::CopyOut => "copy-out",
        StreamKind::Host => "host",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_who_and_where() {
        let spot = |rank, stream, instruction: &str| Spot {
            rank,
            stream,
            call: Some(12),
            layer: 0,
            program: "layers.forward".into(),
            kernel: "matmul".into(),
            instruction: instruction.into(),
        };
        let wrong = Wrong::BeforeEvent {
            buffer: "x".into(),
            access: Access::Reads,
            other: Box::new(spot(3, StreamKind::IntraNode, "gathered")),
            others: Access::Writes,
        };
        let fault = Fault { at: Some(Box::new(spot(3, StreamKind::Cube, "y"))), rank: 3, wrong };
        assert_eq!(
            fault.to_string(),
            "rank 3, cube stream, call 12 (layers.forward), `matmul` y: it reads `x`, which `matmul` gathered writes \
             (rank 3, intra-node stream, call 12 (layers.forward), `matmul` gathered); no event orders it behind that [use before event]"
        );
        let wrong = Wrong::Memory { space: Space::Device, wanted: 100, used: 30, capacity: Some(64) };
        let fault = Fault { at: None, rank: 1, wrong };
        let want = "rank 1: 100 bytes of device memory are wanted, 30 are in use, and there are 64 [out of memory]";
        assert_eq!(fault.to_string(), want);
    }
}
