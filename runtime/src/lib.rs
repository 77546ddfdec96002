//! The Forebay runtime: executes plans on this machine. It knows plans, not models and not the IR.
//!
//! * [`exec`]: a plan with its memory, run call by call. * [`kernels`]: what instructions do. * [`pool`]: threads.
//! * [`init`]: first values of tensors. * [`data`]: files to batches. * [`mod@train`]: the loop. * [`checkpoint`]: saved state. * [`generate`]: samples.
//! * [`backend`]: what a machine with devices offers, and one that is emulated. * [`comm`]: what ranks need from each other. * [`hash`]: hashes and counter-based random values.

pub mod backend;
pub mod checkpoint;
pub mod comm;
pub mod data;
pub mod exec;
pub mod generate;
pub mod hash;
pub mod init;
pub mod kernels;
pub mod pool;
#[cfg(test)]
mod testing;
pub mod train;
