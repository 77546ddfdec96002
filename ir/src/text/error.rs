//! Errors of the parser, as data and as text.

use super::names;
use std::fmt;

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The line, from 1 on.
    pub line: usize,
    /// The column in characters, from 1 on.
    pub column: usize,
    /// How many characters it is about; 0 at the end of a line.
    pub width: usize,
    /// A sentence.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for ParseError {}

/// At most so many characters of a source line are shown.
const SHOWN: usize = 120;

/// Errors with the lines they are in, the part underlined. `path` is what the text is called.
pub fn render(errors: &[ParseError], source: &str, path: &str) -> String {
    let mut out = String::new();
    for error in errors {
        let number = error.line.to_string();
        let gutter = " ".repeat(number.len());
        let (line, marks) = excerpt(error, source.lines().nth(error.line.saturating_sub(1)).unwrap_or(""));
        out.push_str(&format!("error: {}\n", error.message));
        out.push_str(&format!("{gutter}--> {path}:{}:{}\n", error.line, error.column));
        out.push_str(&format!("{gutter} |\n{number} | {line}\n{gutter} | {marks}\n\n"));
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// The part of the line around the error, and the carets under it.
fn excerpt(error: &ParseError, line: &str) -> (String, String) {
    let column = error.column.saturating_sub(1);
    // A third of the room before the error shows what it belongs to.
    let from = if line.chars().nth(SHOWN).is_some() { column.saturating_sub(SHOWN / 3) } else { 0 };
    let visible = |c: char| if names::is_invisible(c) { ' ' } else { c };
    let mut shown: String = line.chars().skip(from).take(SHOWN).map(visible).collect();
    let length = shown.chars().count();
    let carets = error.width.min(length.saturating_sub(column - from)).max(1);
    let mut marks = " ".repeat(column - from) + &"^".repeat(carets);
    if from > 0 {
        shown.insert(0, '…');
        marks.insert(0, ' ');
    }
    if line.chars().nth(from + SHOWN).is_some() {
        shown.push('…');
    }
    shown.truncate(shown.trim_end().len());
    (shown, marks)
}
