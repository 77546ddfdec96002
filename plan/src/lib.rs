//! The executable plan: what the compiler makes and the runtime runs. Plain data, versioned; see `docs/plan-format.md`.
//!
//! * [`schema`]: programs, roles, calls. * [`kernel`]: what instructions do. * [`operands`]: what kernels touch and cost.
//! * [`mod@file`]: reading and writing. * [`mod@print`]: text for people. * [`mod@verify`]: is a plan safe to run?

pub mod file;
mod float;
pub mod kernel;
mod mesh;
pub mod operands;
pub mod print;
pub mod schema;
mod tensor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod verify;

pub use file::{FORMAT, MAX_FILE_BYTES, ReadError};
pub use kernel::*;
pub use operands::{Extent, Integers, Operand, RaggedRows, Traffic, Usage};
pub use schema::*;
pub use verify::{Violation, verify};
