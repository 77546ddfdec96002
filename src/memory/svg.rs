//! The curves of `forebay memory` as a picture: live and saved bytes of each stage over a step, and time against memory.

use super::report::{Point, Report, Stage, seconds as in_three_digits};
use crate::output::size;
use std::fmt::Write;

const WIDTH: f64 = 720.0;
const PANEL: f64 = 96.0;
const LEFT: f64 = 84.0;
const GAP: f64 = 30.0;
const LIVE: &str = "#9db8d9";
const SAVED: &str = "#35618f";

/// The picture.
pub fn svg(report: &Report) -> String {
    let panels = report.stages.len() as f64;
    let height =
        2.0 * GAP + panels * (PANEL + GAP) + if report.front.is_empty() { 0.0 } else { 2.0 * PANEL + 2.0 * GAP };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let live = report.stages.iter().map(|s| s.live_peak_bytes).max().unwrap_or(1).max(1);
    let most = report.budget_bytes.filter(|budget| *budget < 2 * live).map_or(live, |budget| live.max(budget));
    let mut top = GAP;
    for stage in &report.stages {
        panel(&mut out, stage, most, top);
        if let Some(budget) = report.budget_bytes.filter(|budget| *budget <= most) {
            let y = top + PANEL * (1.0 - budget as f64 / most as f64);
            let _ = writeln!(
                out,
                "<path d=\"M{LEFT:.1} {y:.1}H{:.1}\" stroke=\"#b33\" stroke-dasharray=\"4 3\"/>",
                WIDTH - 12.0
            );
        }
        top += PANEL + GAP;
    }
    let drawn = report.budget_bytes.filter(|budget| *budget <= most);
    let budget = drawn.map_or(String::new(), |b| format!("; dashed: the budget, {}", size(b as f64)));
    let axis = format!("across: the calls of a step, one after another{budget}");
    text(&mut out, (WIDTH - 12.0, top - GAP + 16.0), "end", &axis);
    if !report.front.is_empty() {
        top += GAP;
        front(&mut out, &report.points().cloned().collect::<Vec<Point>>(), top);
    }
    out + "</svg>\n"
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

/// One stage: live bytes, and saved bytes in front of them.
fn panel(out: &mut String, stage: &Stage, most: u64, top: f64) {
    let words = format!(
        "stage {}: peak {}, of which {} outlive the step; dark: saved for the backward pass",
        stage.stage,
        size(stage.peak_bytes as f64),
        size(stage.persistent_bytes as f64)
    );
    text(out, (LEFT, top - 6.0), "start", &words);
    text(out, (LEFT - 6.0, top + 10.0), "end", &size(most as f64));
    text(out, (LEFT - 6.0, top + PANEL), "end", "0");
    for (curve, color) in [(&stage.live_bytes, LIVE), (&stage.saved_bytes, SAVED)] {
        let step = (WIDTH - LEFT - 12.0) / curve.len().max(1) as f64;
        let mut path = format!("M{LEFT:.1} {:.1}", top + PANEL);
        for (i, bytes) in curve.iter().enumerate() {
            let y = top + PANEL * (1.0 - *bytes as f64 / most as f64);
            let _ = write!(path, "L{:.1} {y:.1}L{:.1} {y:.1}", LEFT + i as f64 * step, LEFT + (i + 1) as f64 * step);
        }
        let _ = writeln!(
            out,
            "<path d=\"{path}L{:.1} {:.1}Z\" fill=\"{color}\"/>",
            LEFT + curve.len() as f64 * step,
            top + PANEL
        );
    }
}

/// Seconds of a step against bytes of the fullest stage.
fn front(out: &mut String, points: &[Point], top: f64) {
    let height = 2.0 * PANEL;
    text(out, (LEFT, top - 6.0), "start", "seconds of a step against bytes of the fullest stage");
    let range = |of: &dyn Fn(&Point) -> f64| {
        let all = || points.iter().map(of);
        let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
        (low, (high - low).max(1e-3 * high).max(f64::MIN_POSITIVE))
    };
    let (bytes, seconds) = (|p: &Point| p.peak_bytes as f64, |p: &Point| p.step_time_s);
    let ((x0, dx), (y0, dy)) = (range(&bytes), range(&seconds));
    let at = |p: &Point| {
        let x = LEFT + 24.0 + (WIDTH - LEFT - 96.0) * (bytes(p) - x0) / dx;
        (x, top + 16.0 + (height - 32.0) * (1.0 - (seconds(p) - y0) / dy))
    };
    let line: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", at(p).0, at(p).1)).collect();
    let _ = writeln!(out, "<polyline points=\"{}\" fill=\"none\" stroke=\"{SAVED}\"/>", line.join(" "));
    for p in points {
        let (x, y) = at(p);
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{SAVED}\"/>");
        text(out, (x + 5.0, y - 5.0), "start", &format!("{}, {}", size(bytes(p)), in_three_digits(seconds(p))));
    }
}
