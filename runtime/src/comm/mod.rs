//! What a rank needs from the others.
//!
//! A [`Transport`] is one rank's end. Kernels that talk to other ranks name groups by mesh dimensions and peers by rank number; what is moved is
//! described by [`Pieces`] and [`Rows`] of this rank's own memory, so that a transport may copy out of another rank's memory ([`shared`]: ranks that are
//! threads of one process) as well as send bytes ([`tcp`]: ranks in several processes). Results have the same bits.
//!
//! ```text
//! exchange, rows   all members of a group, in the same order on each
//! send             never waits             recv   waits for the next message of (sender, channel)
//! ```
//!
//! Nobody waits for ever: when any rank gives up ([`Transport::fail`]) every wait ends, and a wait that takes longer than the stall limit names those who
//! are missing.

mod crew;
#[cfg(test)]
pub(crate) mod fleet;
pub(crate) mod groups;
mod inbox;
mod pieces;
mod processes;
mod rows;
pub mod shared;
pub mod tcp;
#[cfg(test)]
mod tests;
mod together;
mod watch;

pub(crate) use crew::Crew;
pub use pieces::Pieces;
pub use processes::{Processes, Say};
pub use rows::Rows;
pub(crate) use together::{agree_on_pieces, agree_on_rows, exchange_together, rows_together};

use crate::kernels::KernelError;
use crate::pool::Pool;
use forebay_plan::{MeshDim, ReduceOp};
use std::fmt;
use std::time::Duration;

/// Why a rank got nothing from the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommError {
    /// Another rank or process has given up, for a reason of its own.
    Failed {
        /// Which.
        who: Who,
        /// The reason.
        why: String,
    },
    /// Another process cannot be reached any more.
    Lost {
        /// Which, and which ranks are there.
        process: u32,
        /// The first, and one past the last.
        ranks: (u32, u32),
        /// How that was noticed.
        why: String,
    },
    /// The others did not come.
    Stalled {
        /// How long it waited.
        limit: Duration,
        /// The ranks that did not wait themselves; those that it waited for when all did.
        missing: Vec<u32>,
    },
    /// The data do not fit.
    Data(KernelError),
}

impl fmt::Display for CommError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            CommError::Failed { who, why } => write!(f, "{who}: {why}"),
            CommError::Lost { process, ranks: (first, end), why } => match end - first {
                1 => write!(f, "process {process}, which has rank {first}, is gone: {why}"),
                _ => write!(f, "process {process}, which has ranks {first} to {}, is gone: {why}", end - 1),
            },
            CommError::Stalled { limit, missing } => {
                let missing: Vec<String> = missing.iter().map(|rank| format!("rank {rank}")).collect();
                write!(f, "it waited {limit:?} for {}", missing.join(", "))
            }
            CommError::Data(error) => error.fmt(f),
        }
    }
}

/// Who takes part in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A rank.
    Rank(u32),
    /// A process that ranks are threads of, in what it does beside their work.
    Process(u32),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Who::Rank(rank) => write!(f, "rank {rank}"),
            Who::Process(process) => write!(f, "process {process}"),
        }
    }
}

impl std::error::Error for CommError {}

impl From<KernelError> for CommError {
    fn from(error: KernelError) -> CommError {
        CommError::Data(error)
    }
}

/// What a rank takes in an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// A piece from each member.
    Each,
    /// The pieces of all members, combined.
    Combined(ReduceOp),
    /// The piece of the member so many places before this one, round; at least 1 and fewer than there are.
    Shifted(usize),
}

/// One rank's connection to the others.
///
/// # Safety of the callers
/// The unsafe methods take pointers into this rank's memory: views as the plan's verifier has checked them, of the types that they say, which nobody else
/// touches before the method returns, other than through this transport.
pub trait Transport: fmt::Debug + Send {
    /// Gives members of the group a piece and takes what `take` says: see [`forebay_plan::Exchange`].
    ///
    /// # Errors
    /// When a member does not come, or is seen to have pieces of another size: as many rows as there are is what each knows for itself.
    ///
    /// # Safety
    /// `x` and `out` lie in this rank's memory and do not overlap.
    unsafe fn exchange(
        &mut self,
        group: &[u32],
        x: &Pieces,
        out: &Pieces,
        take: Take,
        pool: &Pool,
    ) -> Result<(), CommError>;

    /// Moves rows to the owners of experts, or back: see [`forebay_plan::AllToAllV`].
    ///
    /// # Errors
    /// When a member does not come, or counts and offsets do not fit.
    ///
    /// # Safety
    /// The arrays lie in this rank's memory, have the sizes that [`Rows`] says, and the result overlaps no other; all members pass the same sizes but `bound`
    /// and `tokens`.
    unsafe fn rows(&mut self, group: &[u32], rows: &Rows, pool: &Pool) -> Result<(), CommError>;

    /// Sends bytes to a rank.
    ///
    /// # Errors
    /// When it has given up.
    fn send(&mut self, to: u32, channel: u32, bytes: &[u8]) -> Result<(), CommError>;

    /// Waits for the next message of a rank and channel, which has as many bytes.
    ///
    /// # Errors
    /// When it does not come.
    fn recv(&mut self, from: u32, channel: u32, bytes: &mut [u8]) -> Result<(), CommError>;

    /// This rank has given up: ends all waits, and tells those who wait why.
    fn fail(&self, why: &str);
}

/// All-reduces of so many elements are shared out: each member combines a part, which the others then copy.
const SHARED_OUT: usize = 4096;

/// Which elements a member combines when they are shared out.
fn share(elements: usize, member: usize, members: usize) -> (usize, usize) {
    (elements * member / members, elements * (member + 1) / members)
}

/// How many ranks a mesh has. (The verifier has checked that the product is representable.)
pub fn ranks(mesh: &[MeshDim]) -> u64 {
    mesh.iter().map(|dim| u64::from(dim.size)).product()
}

/// The coordinates of a rank: ranks are numbered row-major over the mesh.
pub fn coordinates(mesh: &[MeshDim], rank: u32) -> Vec<u32> {
    let mut rest = rank;
    let mut coordinates: Vec<u32> = mesh
        .iter()
        .rev()
        .map(|dim| {
            let here = rest % dim.size;
            rest /= dim.size;
            here
        })
        .collect();
    coordinates.reverse();
    coordinates
}

/// The rank at coordinates, of which that along `dim` is replaced by another.
pub fn rank_at(mesh: &[MeshDim], coordinates: &[u32], dim: u32, at: u32) -> u32 {
    let place = (0..).zip(mesh.iter().zip(coordinates));
    place.fold(0, |rank, (d, (size, here))| rank * size.size + if d == dim { at } else { *here })
}

/// The rank at coordinates.
fn rank_of(mesh: &[MeshDim], coordinates: &[u32]) -> u32 {
    mesh.iter().zip(coordinates).fold(0, |rank, (dim, at)| rank * dim.size + at)
}
