//! What is kept for the backward pass, and what is not.

mod recompute;

pub use recompute::{Recompute, recompute};
