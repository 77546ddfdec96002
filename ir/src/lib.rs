//! The Forebay graph IR: tensors with named axes, one table of primitive ops, a textual form that parses back.
//!
//! * [`types`]: axes and types. * [`op`]: the op table. * [`infer`]: type rules. * [`graph`]: the graph itself.
//!
//! This crate knows nothing of models, devices, plans, files or threads.

pub mod collective;
pub mod contraction;
pub mod cost;
pub mod fused;
pub mod gradient;
pub mod graph;
pub mod infer;
pub mod op;
pub mod random;
pub mod reference;
mod remap;
#[doc(hidden)]
pub mod testing;
pub mod text;
pub mod types;
pub mod verify;

pub use collective::{Comm, CommKind, MeshDim};
pub use contraction::Contraction;
pub use fused::{Fused, FusedKind};
pub use graph::{Graph, Input, InputRole, Node, Output, OutputRole, ValueId};
pub use infer::TypeError;
pub use op::{BinaryOp, Direction, LinearAttention, LinearReads, Op, ReduceKind, UnaryOp, Unit};
pub use types::{Axis, AxisId, DType, Extent, Type};
