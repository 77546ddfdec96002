//! A checked model as text: a header that says how graphs become layers, then the graphs. [`print()`] and [`parse()`] are inverse to each other.
//!
//! ```text
//! model TinyMoE {
//!   batch 8
//!   seq 128
//!   constant layers = 4
//!   input tokens
//!   param layers.0.moe.up [e = 8 of experts, d = 128 of d, f = 256 of f] normal(0.02)
//!   state layers.0.moe.bias [e = 8 of experts] constant(0)
//!   stat layers.0.moe.load [e = 8 of experts]
//!   loss ce 1 step main
//!   counts
//!   segment layers update
//!   layer layers.0 = 1 params 3 4 states 0 stats 0 carries 0.0 0.1 update_states 0 update_stats 0 update_outputs 0
//! }
//!
//! graph @counts { … }
//! graph @layers { … }
//! graph @layers.update { … }
//! ```
//!
//! The graphs follow in the order of the header: that of `counts`, if there is one, then of each segment its forward graph and, after the word
//! `update`, its update graph. A layer names its segment by number, tensors by their number in the header, carries as layer`.`output.

mod forms;
mod parse;
mod print;

pub use forms::{File, Forms, parse_file, print_forms};
pub use parse::{Module, parse};
pub use print::print;
