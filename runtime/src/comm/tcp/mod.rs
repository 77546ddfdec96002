//! Ranks in several processes, on one machine or on several, which talk over TCP.
//!
//! ```text
//! join     the processes find each other, and see that they are about to do the same       (join.rs)
//! wire     a connection of two processes: a thread that sends, one that receives           (wire.rs, frame.rs)
//! office   who is where; delivers messages to inboxes of this process and to wires         (office.rs, limits.rs)
//! link     one rank's end: collectives made of messages                                    (link.rs)
//! ```
//!
//! **Equal bits.** A collective sends pieces packed and combines them in the order of their sources, as the plan format says; so the result is that of ranks
//! which share memory.
//!
//! **Nothing hangs.** Sending queues a message and never waits, and whoever receives always takes what comes, so sockets never fill up for good. A process
//! that is gone closes its connections; one that stands still, or a machine that has lost its power, is noticed since every connection carries something
//! every half second ([`wire::BEAT`], [`wire::SILENCE`]). Who gives up tells everybody why.
//!
//! Connections are neither authenticated nor encrypted: they belong into a network whose users trust each other.

mod frame;
mod join;
mod limits;
mod link;
mod network;
mod office;
mod wire;

pub use join::{Fact, JoinError, Joining};
pub use network::{Lookout, Network};
