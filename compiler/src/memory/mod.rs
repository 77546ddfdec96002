//! What is kept for the backward pass, and what is not.
//!
//! * [`recompute`]: what the user names is made again. * [`mod@choose`]: the least time within a number of bytes. * `search`: choices of a pipeline stage
//!   until its arena fits; `part`: what values cost; `moves`: those that differ in one tensor; `few`: the best of few. * [`mod@fit`]: the forms of what is chosen. * `aim`, `price`: how much memory there is, and what time costs. * [`table`]: what is saved, for people. * `splice`: backward graphs that make values again.
//! * `early`: what is made again before the gradient comes. * [`place`]: where shares of experts are multiplied in, by the memory there is.
//! * `swap`: what the user names is in the host's memory between its uses. * [`halves`]: parameters beside their copies.
//! * `windows`: seconds that can hide copies.

mod aim;
pub mod choose;
mod early;
mod few;
pub mod fit;
pub mod halves;
mod known;
mod moves;
mod part;
pub mod place;
mod price;
mod recompute;
mod search;
mod splice;
mod swap;
pub mod table;
mod windows;

pub use aim::{Aim, Misfit, enough};
pub use price::{Price, one_after_another};
pub use recompute::{Recompute, keep, recompute};
pub use swap::{Swap, keep_starts, saved_names};
pub use table::{SavedTensor, StageMemory};
