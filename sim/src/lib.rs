//! What a training step of a plan costs on a cluster.
//!
//! ```text
//! plan ──► price ──► steps ──────────┐
//!          (kernels, collectives)    ├──► replay ──► report
//! plan, framework ──► lower ─────────┘    (streams, events, messages, host)
//!                     (calls)
//! ```
//!
//! Instructions are timed once for each program ([`price`], [`steps`]); the [`replay`] runs over the calls of one rank for each role, so that the number of
//! devices does not matter. A [`framework`] says what systems other than ours do differently, in switches. Nothing here measures anything: the
//! same input gives the same numbers. `docs/cost-model.md` explains every term.

pub mod aligned;
mod allocator;
mod beside;
mod clock;
pub mod closed;
pub mod documents;
pub mod framework;
mod gradients;
mod kept;
pub mod kind;
mod launches;
pub mod links;
pub mod live;
pub mod log;
mod loss;
pub mod lower;
pub mod matches;
pub mod memory;
pub mod passes;
pub mod phases;
pub mod price;
pub mod recorded;
pub mod replay;
pub mod report;
pub mod routes;
mod says;
mod sent;
pub mod shared;
mod spans;
pub mod steps;
mod sums;
pub mod table;
pub mod threads;
pub mod timeline;
pub mod validate;
pub mod value;

pub use allocator::REGAIN_S;
pub use clock::clock;
pub use framework::Framework;
pub use kind::Kind;
pub use report::{Options, Report, simulate};
pub use table::table;
pub use timeline::{Timeline, timeline};
pub use value::ValuePricer;
