//! Messages on stderr.

use std::io::Write;

/// Prints a line on stderr, as `eprintln!` does; but that nobody reads it any more is no reason to stop.
macro_rules! say {
    ($($part:tt)*) => {
        $crate::say::text(&format!("{}\n", format_args!($($part)*)))
    };
}
pub(crate) use say;

/// Writes a text to stderr.
pub fn text(text: &str) {
    // Where could it be said?
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
