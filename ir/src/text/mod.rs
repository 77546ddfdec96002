//! The textual form of graphs: [`print()`] and [`parse()`] are inverse to each other.
//!
//! ```text
//! graph @moe.forward {
//!   axis t = 6, d = 4, e = 3 "experts", e_1 = 4, k = 2, r = ragged(e, 12)
//!   offsets r = %starts
//!   carry %x : f32[t, d]
//!   param %router : f32[d, e]
//!
//!   %score = contract %x, %router over {d} : f32[t, e]   // comments are not kept
//!   %chosen = top_k %score {e -> k} : i32[t, k]
//!   %rows = group %chosen {r} : i32[e, r]
//!   %starts = offsets %chosen {e -> e_1} : i32[e_1]
//!   return stat starts = %starts
//! }
//! ```
//!
//! A statement is one line, of one of these forms:
//! * `axis a = 8, b = 4 "label", r = ragged(a, 64)`: axes; 64 bounds the rows of all elements of `a` together. The label is in quotes.
//! * `offsets r = %starts`: the value with the group starts of a ragged axis, which may be defined further below.
//! * `param %w : f32[a, b]`: an input, after the word for what it stands for ([`crate::InputRole`]).
//! * `%y = op operands attributes : type`: a node. The type must be the one that the type rule gives; where the order of the axes is free,
//!   this is where it is chosen. The attributes of each op are those of [`crate::Op`], and stand as follows:
//!
//! ```text
//! const 0.5              iota a                          random %key {site 3, offset batch}
//! exp %x                 add %x, %y                      select %condition, %x, %y
//! cast %x                detach %x                       broadcast %x along {a, b}
//! reorder %x             contract %x, %y over {a}        sum %x over {a, b}        (also reduce_max, reduce_min)
//! scan %x {a forward}    rename %x {a -> b}              split %x {a -> b, c}      merge %x {a, b -> c}
//! take %x {a: 0}         slice %x {a -> b: 2}            pad %x {a -> b: 2}
//! stack %x, %y {a}       concat %x, %y {a, b -> c}       top_k %x {a -> b}
//! gather %x at %i {a}    scatter_add %x at %i {a} over {b}
//! group %c {r}           offsets %c {a -> b}             invert %rows
//! ```
//! * `return loss ce = %l`: an output, with what it stands for ([`crate::OutputRole`]) and its name.
//!
//! Names are letters, digits, `_`, `.`, `'` and `#`, not starting with a digit; any other name stands in quotes, with `\"`, `\\` and
//! `\u{…}` as escapes. Numbers are printed with the fewest digits that read back as the same number; all NaNs are one.

mod attributes;
mod error;
mod lex;
mod names;
mod parse;
mod print;
mod roles;
mod scope;

pub use error::{ParseError, render};
pub use parse::{parse, parse_module};
pub use print::{print, print_module, print_with_notes};

use crate::graph::ValueId;
use crate::types::AxisId;

/// A part of a graph that a message can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The graph as a whole.
    Graph,
    /// The declaration of an axis.
    Axis(AxisId),
    /// An entry of [`crate::Graph::offsets`], by position.
    Offsets(usize),
    /// A node.
    Node(ValueId),
    /// An entry of [`crate::Graph::outputs`], by position.
    Output(usize),
}
