//! `forebay fmt`: a source in canonical layout, with its comments.
//!
//! The tree is printed as a `Doc` and set within [`WIDTH`] columns, four spaces a level. Comments are not part of
//! the tree: the printer carries the list of them and puts each where the next piece of the tree is about to be printed
//! that stood after it, so none is lost and none changes its order. Lists in headers and declarations keep the line breaks
//! between their items, because those group them by meaning; everything else is laid out anew.
//!
//! Promises: formatting twice is formatting once, and the tree is the same but for places in the text.

mod comments;
mod doc;
mod expressions;
mod place;
mod statements;

use crate::diagnostics::{Diagnostic, SourceId};
use crate::parse::parse;

/// Lines are broken to fit this many columns where that is possible.
pub const WIDTH: usize = 110;

/// Formats a source, or says what is wrong with it.
pub fn format(source: &str) -> Result<String, Vec<Diagnostic>> {
    let parsed = parse(source, SourceId(0));
    if !parsed.diagnostics.is_empty() {
        return Err(parsed.diagnostics);
    }
    let mut printer = comments::Printer::new(source, &parsed.comments);
    let doc = printer.file(&parsed.file);
    Ok(doc::layout(&doc, WIDTH))
}
