//! What a replay did when: for traces and pictures.

use crate::kind::Kind;
use forebay_plan::StreamKind;

/// The stream number of the cube's stream.
pub const MAIN: usize = 0;
/// The stream number of calls that run beside the others ([`crate::lower::Lane`]).
pub const BESIDE: usize = StreamKind::COUNT;

/// A step that ran; times in seconds from the start of the training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slice {
    /// Index into the role's [`crate::lower::RoleOps::ops`].
    pub op: u32,
    /// Index into the steps of its program; none when the program ran as a whole.
    pub step: Option<u32>,
    /// Number of the stream's kind, or [`BESIDE`].
    pub stream: usize,
    /// When it began.
    pub begin: f64,
    /// When it ended.
    pub end: f64,
}

/// Why the main stream did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Another stage had not come so far.
    Stage,
    /// Communication was under way.
    Communication(Kind),
    /// The host had not started the next kernel.
    Host,
    /// Work took longer because of communication beside it.
    Contention,
}

/// A time in which the main stream did nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Idle {
    /// Why.
    pub why: Why,
    /// When it began.
    pub begin: f64,
    /// When it ended.
    pub end: f64,
}

/// A message's way: sender, receiver (coordinates along the dimension in which roles differ) and channel.
pub type Way = (u32, u32, u32);

/// All that one role did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// Steps, in the order of the calls.
    pub slices: Vec<Slice>,
    /// When the main stream did nothing, and why.
    pub idle: Vec<Idle>,
    /// Messages sent, in order: the way and the slice.
    pub sent: Vec<(Way, u32)>,
    /// Messages received, in order.
    pub received: Vec<(Way, u32)>,
    /// Slices of the collectives in which all roles meet, in order.
    pub met: Vec<u32>,
}
