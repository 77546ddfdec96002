//! The diagram that papers draw: stages as rows, work as coloured cells with the number of their micro-batch, time to the right.
//!
//! Colours say what is done: F blue, I green, W orange, B green and orange, pairs blue over green and orange. The shade says which chunk of the stage it
//! is. Text and lines are dark or light as the page that shows the file asks for.

use crate::{Item, Layout, Op, Placement, Schedule, Ticks, Timeline, Work};
use std::fmt::Write;

/// Height of a row, and of what lies above and below all rows.
const ROW: f64 = 30.0;
const ABOVE: f64 = 56.0;
const BELOW: f64 = 40.0;
/// Width of the stages' names, and of the margin to the right.
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
/// Width that a cell of median length gets, and limits of the whole.
const CELL: f64 = 22.0;
const WIDTH: (f64, f64) = (680.0, 12_000.0);
/// Pixels that a digit takes.
const DIGIT: f64 = 6.6;

/// The drawing as a file of its own. `unit` says how many ticks are one unit of the numbers on the axis.
pub fn svg(schedule: &Schedule, timeline: &Timeline, title: &str, unit: Ticks) -> String {
    let scale = Scale::new(timeline);
    let layout = schedule.layout();
    let boxes = meanings(schedule);
    let explained = 12.0 + boxes.iter().map(|(_, label)| wide(label)).sum::<f64>();
    let (width, height) =
        ((LEFT + scale.width + RIGHT).max(explained), ABOVE + ROW * schedule.orders().len() as f64 + BELOW);
    let mut out = String::new();
    let w = &mut out;
    head(w, (width, height), title, layout.size.chunks);
    legend(w, &boxes);
    for (stage, (order, spans)) in schedule.orders().iter().zip(&timeline.spans).enumerate() {
        let top = ABOVE + ROW * stage as f64;
        put(
            w,
            format_args!(
                r#"<text class="t" x="{:.1}" y="{:.1}" text-anchor="end">stage {stage}</text>"#,
                LEFT - 8.0,
                top + 19.0
            ),
        );
        put(
            w,
            format_args!(
                r#"<rect class="idle" x="{LEFT:.1}" y="{:.1}" width="{:.1}" height="{:.1}"/>"#,
                top + 2.0,
                scale.width,
                ROW - 4.0
            ),
        );
        for (item, span) in order.iter().zip(spans) {
            let x = scale.x(span.start);
            cell(w, layout, item, (x, top + 2.0, scale.x(span.end) - x));
        }
    }
    axis(w, &scale, ABOVE + ROW * schedule.orders().len() as f64, unit);
    out + "</svg>\n"
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("strings can be written");
}

/// Ticks to pixels.
struct Scale {
    width: f64,
    makespan: Ticks,
}

impl Scale {
    /// So that a cell of median length has room for its number.
    fn new(timeline: &Timeline) -> Scale {
        let mut lengths: Vec<Ticks> = timeline.spans.iter().flatten().map(|s| s.end - s.start).collect();
        lengths.sort_unstable();
        let median = lengths.get(lengths.len() / 2).copied().unwrap_or(1).max(1);
        let makespan = timeline.makespan.max(1);
        let width = (makespan as f64 / median as f64 * CELL).clamp(WIDTH.0, WIDTH.1);
        Scale { width, makespan }
    }

    fn x(&self, ticks: Ticks) -> f64 {
        LEFT + ticks as f64 / self.makespan as f64 * self.width
    }
}

/// Forward, backward for inputs, and for weights, of the first chunk: red, green, blue.
const COLOURS: [(Op, [u8; 3]); 3] =
    [(Op::F, [0x8c, 0xc0, 0xff]), (Op::I, [0x76, 0xd0, 0x9a]), (Op::W, [0xff, 0xb8, 0x70])];
/// How near the last chunk's colours are to white.
const PALEST: f64 = 0.6;

/// A class for each op and chunk, the paler the later the chunk.
fn colours(out: &mut String, chunks: u32) {
    for (op, colour) in COLOURS {
        for chunk in 0..chunks {
            let pale = PALEST * f64::from(chunk) / f64::from((chunks - 1).max(1));
            let [red, green, blue] = colour.map(|c| (f64::from(c) + pale * f64::from(u8::MAX - c)).round() as u8);
            put(out, format_args!(".{}{chunk} {{ fill: #{red:02x}{green:02x}{blue:02x}; }}", op.letter()));
        }
    }
}

fn head(out: &mut String, (width, height): (f64, f64), title: &str, chunks: u32) {
    let title = escape(title);
    put(
        out,
        format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-label="{title}">"#
        ),
    );
    out.push_str(
        "<style>
text { font: 11px ui-sans-serif, system-ui, sans-serif; }
.t { fill: #24292f; } .n { fill: #10161d; text-anchor: middle; font-size: 10.5px; }
.paper { fill: #ffffff; } .idle { fill: #eef0f3; } .line { stroke: #6e7781; stroke-width: 1; }
.cell { stroke: #ffffff; stroke-width: 0.6; }
",
    );
    colours(out, chunks);
    out.push_str(
        "@media (prefers-color-scheme: dark) {
.t { fill: #e6edf3; } .paper { fill: #0d1117; } .idle { fill: #20262e; } .line { stroke: #8b949e; } .cell { stroke: #0d1117; }
}
</style>
",
    );
    put(out, format_args!(r#"<rect class="paper" width="{width:.0}" height="{height:.0}"/>"#));
    put(out, format_args!(r#"<text class="t" x="12" y="20" font-weight="600">{title}</text>"#));
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// For each op that the schedule has, and for what tells chunks and pairs apart: the classes of its box, and what they mean.
fn meanings(schedule: &Schedule) -> Vec<(Vec<String>, &'static str)> {
    let has = |op: Op| schedule.orders().iter().flatten().flat_map(Item::works).any(|w| w.op == op);
    let of = |classes: &[&str]| classes.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut boxes = vec![(of(&["F0"]), "F: forward")];
    if has(Op::I) {
        boxes.push((of(&["I0"]), "I: backward, input"));
        boxes.push((of(&["W0"]), "W: backward, weights"));
    }
    if has(Op::B) {
        boxes.push((of(&["I0", "W0"]), "B: both"));
    }
    let last = format!("F{}", schedule.layout().size.chunks - 1);
    if schedule.layout().size.chunks > 1 {
        boxes.push((vec![last], "paler: later chunks of the stage"));
    }
    if schedule.has_pairs() {
        boxes.push((vec![], "in two rows: a pair, at the same time"));
    }
    boxes
}

/// Pixels that the box and the text of a meaning take.
fn wide(label: &str) -> f64 {
    40.0 + 6.2 * label.len() as f64
}

fn legend(out: &mut String, boxes: &[(Vec<String>, &str)]) {
    let mut x = 12.0;
    for (classes, label) in boxes {
        let part = 14.0 / classes.len().max(1) as f64;
        for (at, class) in classes.iter().enumerate() {
            put(
                out,
                format_args!(
                    r#"<rect class="cell {class}" x="{:.1}" y="32" width="{part:.1}" height="14"/>"#,
                    x + part * at as f64
                ),
            );
        }
        put(out, format_args!(r#"<text class="t" x="{:.1}" y="43">{label}</text>"#, x + 19.0));
        x += wide(label);
    }
}

/// An item; the works of a pair lie over each other.
fn cell(out: &mut String, layout: Layout, item: &Item, (x, y, width): (f64, f64, f64)) {
    let works: Vec<Work> = item.works().collect();
    let height = (ROW - 4.0) / works.len() as f64;
    for (at, work) in works.iter().enumerate() {
        let y = y + height * at as f64;
        let shade = place(layout, work);
        let parts: &[Op] = if work.op == Op::B { &[Op::I, Op::W] } else { std::slice::from_ref(&work.op) };
        let part = width / parts.len() as f64;
        put(out, format_args!("<g><title>{work}</title>"));
        for (at, op) in parts.iter().enumerate() {
            put(
                out,
                format_args!(
                    r#"<rect class="cell {}{shade}" x="{:.2}" y="{y:.1}" width="{part:.2}" height="{height:.1}"/>"#,
                    op.letter(),
                    x + part * at as f64
                ),
            );
        }
        let number = work.micro.to_string();
        if number.len() as f64 * DIGIT + 2.0 <= width {
            put(
                out,
                format_args!(
                    r#"<text class="n" x="{:.2}" y="{:.1}">{number}</text>"#,
                    x + width / 2.0,
                    y + height / 2.0 + 3.8
                ),
            );
        }
        put(out, format_args!("</g>"));
    }
}

/// Which of its stage's chunks a work is about: the first a micro-batch passes is 0.
fn place(layout: Layout, work: &Work) -> u32 {
    match layout.placement {
        Placement::Blocked => work.group % layout.size.chunks,
        Placement::Interleaved | Placement::Wave => work.group / layout.size.stages,
        Placement::TwoWay => u32::from(work.micro >= layout.size.micros / 2),
    }
}

/// Time below the rows.
fn axis(out: &mut String, scale: &Scale, top: f64, unit: Ticks) {
    let y = top + 6.0;
    put(
        out,
        format_args!(r#"<line class="line" x1="{LEFT:.1}" y1="{y:.1}" x2="{:.1}" y2="{y:.1}"/>"#, LEFT + scale.width),
    );
    let step = step(scale.makespan as f64 / unit as f64, (scale.width / 70.0).max(1.0));
    let units = scale.makespan as f64 / unit as f64;
    for at in 0..=(units / step).floor() as u32 {
        let time = f64::from(at) * step;
        let x = LEFT + time / units * scale.width;
        put(out, format_args!(r#"<line class="line" x1="{x:.1}" y1="{y:.1}" x2="{x:.1}" y2="{:.1}"/>"#, y + 4.0));
        put(
            out,
            format_args!(
                r#"<text class="t" x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                y + 17.0,
                shown(time)
            ),
        );
    }
    put(
        out,
        format_args!(r#"<text class="t" x="{:.1}" y="{:.1}" text-anchor="end">time</text>"#, LEFT - 8.0, y + 17.0),
    );
}

/// 1, 2 or 5 times a power of ten, so that about `most` of them fit.
fn step(whole: f64, most: f64) -> f64 {
    let rough = whole / most;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|f| f * power >= rough).unwrap_or(10.0);
    factor * power
}

fn shown(time: f64) -> String {
    let text = format!("{time:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}
