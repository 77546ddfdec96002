//! Lines of tables, as editors count them.

use super::runs::RunsError;

/// The line of `text`, from 1, in which a record begins. The reader's own count is one too few behind a CR LF, whose LF it leaves to the next record.
pub(super) fn line(text: &str, position: Option<&csv::Position>) -> u64 {
    let at = position.map_or(0, |p| p.byte() as usize).min(text.len());
    let bytes = text.as_bytes();
    let start =
        bytes[at..].iter().position(|b| !matches!(b, b'\r' | b'\n')).map_or(bytes.len(), |skipped| at + skipped);
    let ends = |i: &usize| bytes[*i] == b'\n' || bytes[*i] == b'\r' && bytes.get(i + 1) != Some(&b'\n');
    1 + (0..start).filter(ends).count() as u64
}

/// Why a record cannot be read.
pub(super) fn unreadable(text: &str, error: &csv::Error) -> RunsError {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = line(text, pos.as_ref());
            RunsError(format!(
                "line {line} has {len} {}, but the first line names {expected_len} columns\n  = help: a blank field has its comma too, and a field with \
                 commas in it stands in double quotes",
                if *len == 1 { "field" } else { "fields" }
            ))
        }
        _ => RunsError(format!("a row cannot be read: {error}")),
    }
}
