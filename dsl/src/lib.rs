//! The Forebay model language: text to checked model. `docs/language.md` is its reference.
//!
//! `lex` → `parse` → [`ast`] → `check` → checked model, whose segments are [`forebay_ir::Graph`]s; `format` prints an [`ast`] with its comments.
//! This crate knows nothing of devices, reads no file and no environment.

pub mod ast;
pub mod check;
pub mod diagnostics;
pub mod format;
pub mod lex;
pub mod model;
pub mod parse;
pub mod std_library;

pub use check::{Accepted, check, load};
