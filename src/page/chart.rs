//! Charts over time: rows of cells. Cells of one class are one path, so that tens of thousands of them are a small file; their labels and tooltips stand
//! beside them as JSON, which the page's script reads to show them and to zoom.
//!
//! Across, a chart has [`UNITS`] units, whatever its time; a transformation makes pixels of them.

use super::text::{escaped, script, seconds};
use crate::output::json;
use std::collections::HashMap;
use std::fmt::Write;

/// Units from left to right.
pub const UNITS: f64 = 100_000.0;
/// Pixels of a chart, of the names at its left, of a row, and of the axis below.
pub const WIDTH: f64 = 1120.0;
pub const LEFT: f64 = 96.0;
pub const AXIS: f64 = 26.0;
const ROW: f64 = 30.0;
const GAP: f64 = 6.0;
/// A label of so many pixels a letter is shown where it fits.
const LETTER: f64 = 7.0;
/// Labels that a page has before its script runs.
const MAX_LABELS: usize = 1500;

/// Rows of cells.
pub struct Chart {
    id: &'static str,
    title: String,
    description: String,
    /// From when to when, seconds.
    range: (f64, f64),
    classes: Vec<Class>,
    rows: Vec<Row>,
    strings: Vec<String>,
    numbers: HashMap<String, usize>,
}

struct Row {
    name: String,
    cells: Vec<Cell>,
}

struct Cell {
    /// In units.
    begin: u32,
    end: u32,
    class: usize,
    label: usize,
    tip: usize,
}

/// Cells that look alike.
pub struct Class {
    /// In the style sheet.
    pub name: &'static str,
    /// In the legend.
    pub meaning: String,
    /// Pixels that are free above and below its cells: colours are not all that tells classes apart.
    pub inset: (f64, f64),
}

impl Class {
    /// Cells as high as their row.
    pub fn full(name: &'static str, meaning: &str) -> Class {
        Class { name, meaning: meaning.into(), inset: (0.0, 0.0) }
    }

    /// The middle of its cells, below the top of their row.
    fn middle(&self) -> f64 {
        (self.inset.0 + ROW - self.inset.1) / 2.0
    }
}

/// What a cell shows.
pub struct Shown<'a> {
    /// Index of its class.
    pub class: usize,
    /// In the cell, where there is room.
    pub label: &'a str,
    /// What it says when it is pointed at.
    pub tip: String,
}

impl Chart {
    /// An empty chart of a time (seconds); classes are names in the style sheet, and what they mean.
    pub fn new(id: &'static str, title: &str, description: &str, range: (f64, f64), classes: Vec<Class>) -> Chart {
        let (title, description) = (title.to_string(), description.to_string());
        Chart { id, title, description, range, classes, rows: vec![], strings: vec![], numbers: HashMap::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, name: &str) {
        self.rows.push(Row { name: name.into(), cells: vec![] });
    }

    /// Adds a cell to the last row; what lies outside of the chart is left out.
    pub fn cell(&mut self, (begin, end): (f64, f64), shown: Shown) {
        let (from, to) = self.range;
        if end <= from || begin >= to || end <= begin {
            return;
        }
        let units = |time: f64| ((time - from) / (to - from) * UNITS).clamp(0.0, UNITS).round() as u32;
        let (label, tip) = (self.string(shown.label), self.string(&shown.tip));
        let cell = Cell { begin: units(begin), end: units(end).max(units(begin) + 1), class: shown.class, label, tip };
        if let Some(row) = self.rows.last_mut() {
            row.cells.push(cell);
        }
    }

    /// A string's number; equal ones have one.
    fn string(&mut self, text: &str) -> usize {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.strings.len();
        self.numbers.insert(text.into(), number);
        self.strings.push(text.into());
        number
    }

    /// The chart, its legend and its data.
    pub fn render(&self) -> String {
        let plot = (ROW + GAP) * self.rows.len() as f64;
        let height = plot + AXIS;
        let mut out = legend(self.classes.iter().map(|c| (c.name, c.meaning.as_str())));
        let mut body = String::new();
        let mut labels = String::new();
        let mut left = MAX_LABELS;
        let pixels = (WIDTH - LEFT) / UNITS;
        for (number, row) in self.rows.iter().enumerate() {
            let top = (ROW + GAP) * number as f64 + GAP / 2.0;
            put(&mut body, format_args!(r#"<rect class="idle" x="0" y="{top}" width="{UNITS}" height="{ROW}"/>"#));
            for (number, Class { name, inset, .. }) in self.classes.iter().enumerate() {
                let cells = || row.cells.iter().filter(|c| c.class == number);
                let (top, height) = (top + inset.0, ROW - inset.0 - inset.1);
                if cells().next().is_some() {
                    put(&mut body, format_args!(r#"<path class="{name}" d=""#));
                    cells().for_each(|c| {
                        put(&mut body, format_args!("M{} {top}H{}v{height}H{}z", c.begin, c.end, c.begin))
                    });
                    body += "\"/>\n";
                }
            }
            for cell in &row.cells {
                let text = &self.strings[cell.label];
                let width = f64::from(cell.end - cell.begin) * pixels;
                if left > 0 && !text.is_empty() && width > LETTER * text.chars().count() as f64 {
                    left -= 1;
                    let y = top + self.classes[cell.class].middle() + 4.0;
                    let x = f64::from(cell.begin + cell.end) / 2.0 * pixels;
                    put(&mut labels, format_args!(r#"<text x="{x:.1}" y="{y:.1}">{}</text>"#, escaped(text)));
                }
            }
        }
        open(&mut out, self.id, &self.title, &self.description, height);
        names(&mut out, self.rows.iter().map(|r| r.name.as_str()), ROW + GAP);
        put(
            &mut out,
            format_args!(
                "<svg class=\"plot\" x=\"{LEFT}\" width=\"{}\" height=\"{plot}\"><g class=\"zoom\" transform=\"scale({pixels:.6} 1)\">\n{body}</g>\
                 <g class=\"labels\">{labels}</g></svg>\n",
                WIDTH - LEFT
            ),
        );
        out += &axis(self.range, plot);
        out += "</svg></div>\n";
        out + &self.data()
    }

    /// Cells as numbers, for the script.
    fn data(&self) -> String {
        let row = |row: &Row| {
            row.cells
                .iter()
                .flat_map(|c| [c.begin as usize, c.end as usize, c.class, c.label, c.tip])
                .collect::<Vec<usize>>()
        };
        let baselines: Vec<f64> = self.classes.iter().map(|c| GAP / 2.0 + c.middle() + 4.0).collect();
        let data = serde_json::json!({
            "baselines": baselines,
            "range": [self.range.0, self.range.1], "row": ROW + GAP, "strings": self.strings,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        });
        format!("<script type=\"application/json\" data-for=\"{}\">{}</script>\n", self.id, script(&json(&data)))
    }
}

/// Writes into a string.
pub fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("strings can be written");
}

/// What classes mean.
pub fn legend<'a>(classes: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let entry = |(class, meaning): (&str, &str)| {
        format!(
            "<li><svg width=\"14\" height=\"14\" aria-hidden=\"true\"><rect class=\"{class}\" width=\"14\" height=\"14\" rx=\"3\"/></svg>{}</li>",
            escaped(meaning)
        )
    };
    format!("<ul class=\"legend\">{}</ul>\n", classes.map(entry).collect::<String>())
}

/// Begins a chart that can be zoomed.
pub fn open(out: &mut String, id: &str, title: &str, description: &str, height: f64) {
    put(
        out,
        format_args!(
            "<div class=\"frame\" data-chart=\"{id}\"><svg class=\"chart\" id=\"{id}\" role=\"img\" tabindex=\"0\" aria-labelledby=\"{id}-title {id}-desc\" viewBox=\"0 0 {WIDTH} {height}\">\
             <title id=\"{id}-title\">{}</title><desc id=\"{id}-desc\">{}</desc>\n",
            escaped(title),
            escaped(description)
        ),
    );
}

/// The names of rows, left of a chart.
pub fn names<'a>(out: &mut String, names: impl Iterator<Item = &'a str>, row: f64) {
    for (number, name) in names.enumerate() {
        let y = row * (number as f64 + 0.5) + 4.5;
        put(out, format_args!("<text class=\"name\" x=\"{}\" y=\"{y:.1}\">{}</text>\n", LEFT - 10.0, escaped(name)));
    }
}

/// Round times below a chart; the script draws them anew when it zooms.
pub fn axis((begin, end): (f64, f64), top: f64) -> String {
    let mut out = format!("<g class=\"axis\" data-top=\"{top}\">");
    let about = (end - begin) / 8.0;
    let power = 10f64.powf(about.log10().floor());
    let tick = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|t| *t >= about).unwrap_or(about);
    let first = (begin / tick).ceil() as i64;
    for n in first.. {
        let time = n as f64 * tick;
        // A tick that is no number ends the axis.
        if time > end || time.is_nan() || n - first > 20 {
            break;
        }
        let x = LEFT + (time - begin) / (end - begin) * (WIDTH - LEFT);
        let y = top + 18.0;
        put(
            &mut out,
            format_args!("<path d=\"M{x:.1} {top}v5\"/><text x=\"{x:.1}\" y=\"{y}\">{}</text>", short_time(time)),
        );
    }
    out + "</g>\n"
}

/// A time without digits that say nothing.
fn short_time(time: f64) -> String {
    let text = seconds(time);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}
