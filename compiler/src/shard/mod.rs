//! Sharding: from the graph of the whole model to the graph that every rank runs.
//!
//! ```text
//! %q = contract %x, %wq over {d}        %x.whole = all_gather %x {seq_tp -> seq} on tp
//! …                               ==>   %q = contract %x.whole, %wq over {d}            // wq: heads are cut
//! %y = contract %o, %wo over {…}        %y.sum = contract %o, %wo over {…}              // each rank has a term of the sum
//! %z = add %x, %y                       %y = reduce_scatter %y.sum {seq -> seq_tp} on tp
//!                                       %z = add %x, %y
//! ```
//!
//! Before differentiation, so that the backward graph follows from the gradients of collectives; and before rewriting, so that only primitive ops need
//! rules here. Requires: a verified graph of primitive ops. Keeps: every value, up to the order of the sums that ranks share. Data-parallel ranks do not
//! appear in the graph: each runs it on rows of its own, and meets the others in gradients, counts and the rows of experts.
//!
//! * [`strategy`], [`order`]: what the user asks for. * [`mesh`]: the ranks. * [`axes`]: which axes of parameters they share. * [`layout`]: how a value lies.
//! * [`partition`]: op by op. * [`rules`]: which layouts an op takes. * [`convert`]: from one layout to another. * [`hoist`]: gradients that wait for the end of the step.
//! * [`model`]: all segments of a model.

mod axes;
mod balance;
mod convert;
mod divisors;
mod hoist;
mod layout;
mod merged;
mod mesh;
mod model;
mod nearest;
mod order;
mod partition;
mod rules;
mod strategy;

pub(crate) use axes::weights;
pub use balance::unbalanced;
pub use divisors::{divisors, listed};
pub use layout::Layout;
pub use mesh::{Dense, Mesh, Sparse};
pub use model::{ParamShard, ShardedModel, shard_model};
pub use order::{Cut, Given, Order, searched};
pub(crate) use partition::is_linear;
pub use partition::{Note, Sharded, shard};
pub use strategy::{CpAlgo, EtpGather, MasterWeights, Moments, OptimizerMemory, Strategy, StrategyError};
