//! Lines of tables, as editors count them.

use super::runs::RunsError;

/// The lines of `text`, from 1, in which records begin, one after the other. The reader's own count is one too few behind a CR LF, whose LF it leaves to the next record.
pub(super) struct Lines<'a> {
    bytes: &'a [u8],
    /// Up to where lines were counted, and how many there are.
    counted: (usize, u64),
}

impl<'a> Lines<'a> {
    pub(super) fn new(text: &'a str) -> Lines<'a> {
        Lines { bytes: text.as_bytes(), counted: (0, 1) }
    }

    /// The line of a record that is not before the last one.
    pub(super) fn of(&mut self, position: Option<&csv::Position>) -> u64 {
        let bytes = self.bytes;
        let at = position.map_or(0, |p| p.byte() as usize).min(bytes.len());
        let start =
            bytes[at..].iter().position(|b| !matches!(b, b'\r' | b'\n')).map_or(bytes.len(), |skipped| at + skipped);
        let ends = |i: &usize| bytes[*i] == b'\n' || bytes[*i] == b'\r' && bytes.get(i + 1) != Some(&b'\n');
        let (from, lines) = self.counted;
        self.counted = (start.max(from), lines + (from..start).filter(ends).count() as u64);
        self.counted.1
    }
}

/// The line in which a record begins.
pub(super) fn line(text: &str, position: Option<&csv::Position>) -> u64 {
    Lines::new(text).of(position)
}

/// The line of a quote that begins a field and is never closed: the reader takes all that follows for that field.
pub(super) fn open_quote(text: &str) -> Option<u64> {
    let (mut opened, mut begins) = (None, true);
    let mut bytes = text.bytes().enumerate().skip(if text.starts_with('\u{feff}') { 3 } else { 0 }).peekable();
    while let Some((at, byte)) = bytes.next() {
        if byte == b'"' && opened.is_some() {
            // Two quotes are one of the field's.
            if bytes.next_if(|(_, next)| *next == b'"').is_none() {
                opened = None;
            }
        } else if byte == b'"' && begins {
            opened = Some(at);
        }
        begins = opened.is_none() && matches!(byte, b',' | b'\r' | b'\n');
    }
    opened.map(|at| line(text, Some(&*csv::Position::new().set_byte(at as u64))))
}

/// Refuses a table with a quote that is not closed.
pub(super) fn closed(text: &str) -> Result<(), RunsError> {
    open_quote(text).map_or(Ok(()), |line| {
        Err(RunsError(format!(
            "a quote of line {line} is not closed\n  = help: a field that begins with a double quote ends with one, and a quote within it is written twice"
        )))
    })
}

/// Why a record cannot be read.
pub(super) fn unreadable(text: &str, error: &csv::Error) -> RunsError {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = line(text, pos.as_ref());
            RunsError(format!(
                "line {line} has {len} {}, but the first line names {expected_len} columns\n  = help: a blank field has its comma too, and a field with \
                 commas in it stands in double quotes, both of them",
                if *len == 1 { "field" } else { "fields" }
            ))
        }
        _ => RunsError(format!("a row cannot be read: {error}")),
    }
}
