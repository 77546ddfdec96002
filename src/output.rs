//! Writing to stdout, and numbers and tables for people.

use crate::failure::Failure;
use serde::Serialize;
use std::io::{self, Write};

/// Writes text to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// Writes bytes to stdout.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(stdout_failed)
}

/// Writes a value to stdout as one line of JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&(json(value) + "\n"))
}

/// Text of files for people: control characters, which a terminal would obey, are written out. Lines stay lines.
pub fn visible(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// A value as one line of JSON.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data can be written")
}

/// A reader that went away is no mistake.
pub fn stdout_failed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::Input(format!("cannot write to stdout: {error}")),
    }
}

/// A count with thousands separators: `46,702,792,704`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// So many of something: `1 step`, `2,000 steps`, `2 micro-batches`.
pub fn counted(n: u64, what: &str) -> String {
    let ending = match n {
        1 => "",
        _ if what.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {what}{ending}", grouped(n))
}

/// Bytes in few digits, with a space before the unit: `0 B`, `1.50 MB`.
pub fn size(bytes: f64) -> String {
    let text = short(bytes);
    if text.contains(' ') { text + "B" } else { text + " B" }
}

/// A large number in few digits: `12.9 G`.
pub fn short(value: f64) -> String {
    const UNITS: [&str; 7] = ["", " k", " M", " G", " T", " P", " E"];
    let mut value = value;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        v if v >= 99.95 || v == v.trunc() && unit == 0 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{}", UNITS[unit])
}

/// Seconds with three digits behind the point.
pub fn seconds(s: f64) -> String {
    match s {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s if s > 0.0 => format!("{:.1} µs", s * 1e6),
        _ => "0".into(),
    }
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Rows of text in columns: the first (or as many as [`Table::left`] says) to the left, the others to the right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    left: usize,
}

impl Table {
    /// With a heading.
    pub fn new(heading: &[&str]) -> Table {
        let mut table = Table { rows: vec![], left: 1 };
        table.row(heading.iter().map(|h| h.to_string()).collect());
        table.rule();
        table
    }

    /// With so many columns to the left.
    pub fn left(self, columns: usize) -> Table {
        Table { left: columns, ..self }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Adds a line across.
    pub fn rule(&mut self) {
        self.rows.push(vec![]);
    }

    /// The text.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let line = if row.is_empty() {
                "─".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1))
            } else {
                let cells = row.iter().enumerate().map(|(c, text)| {
                    let pad = " ".repeat(widths[c] - text.chars().count());
                    let gap = if c == 0 { "" } else { "  " };
                    if c < self.left { format!("{gap}{text}{pad}") } else { format!("{gap}{pad}{text}") }
                });
                cells.collect()
            };
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(46_702_792_704), "46,702,792,704");
        assert_eq!(short(0.0), "0");
        assert_eq!(short(12.0), "12");
        assert_eq!(short(999.6), "1.00 k");
        assert_eq!(short(12_879_925_248.0), "12.9 G");
        assert_eq!(short(7.5e16), "75.0 P");
        assert_eq!((size(0.0), size(64.0), size(1.5e6)), ("0 B".into(), "64 B".into(), "1.50 MB".into()));
        assert_eq!((counted(1, "step"), counted(1000, "step")), ("1 step".into(), "1,000 steps".into()));
    }

    #[test]
    fn terminals_obey_no_file() {
        assert_eq!(visible("a\u{1b}[31m\u{9b}é\n"), "a\\u{1b}[31m\\u{9b}é\n");
    }

    #[test]
    fn tables() {
        let mut table = Table::new(&["block", "n"]);
        table.row(vec!["a".into(), "1,000".into()]);
        assert_eq!(table.render(), "block      n\n────────────\na      1,000\n");
    }
}
