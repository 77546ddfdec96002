//! What work costs on a cluster, in seconds.
//!
//! [`cluster`] is what a cluster file says: a device, its datasheet, the tiers of the network, and a few calibrated numbers. [`device`] turns that into the
//! time of a kernel, [`network`] into the time of a collective; [`table`] is what came of it for each instruction of a plan. Nothing here knows plans, models or files; `docs/cost-model.md` explains every term.

pub mod cluster;
pub mod device;
pub mod known;
pub mod linear;
pub mod measured;
pub mod network;
pub mod release;
pub mod table;

pub use cluster::{Cluster, ClusterError, HostLink};
pub use device::{Attended, AttentionKernel, Generation, Precision, Product, Scaling};
pub use linear::Remembered;
pub use network::{Collective, Copies, Domains, Group};
pub use release::Release;
pub use table::{Class, Price, Table, contention};
