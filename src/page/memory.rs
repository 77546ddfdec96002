//! The memory of each stage over time.

use super::chart::{AXIS, LEFT, UNITS, WIDTH, axis, legend, names, open, put};
use super::text::{escaped, script, seconds};
use crate::output::{json, short};
use forebay_plan::{Plan, Role};
use forebay_sim::live::Use;
use forebay_sim::timeline::{RoleTimeline, Timeline};

const ROW: f64 = 76.0;
const GAP: f64 = 14.0;
/// Points of a curve at most: more lie between two pixels.
const POINTS: usize = 2000;

pub const INTRODUCTION: &str = "Bytes in use while each call runs: weights and optimizer, gradients, what is saved for backward passes. The paler part is what \
one call alone uses. A circle marks the peak. The arena is larger than that by \
frames of calls that stay until the next call has ended, so that it can begin beside them, and by what placing wastes: its bytes are in the table. Each stage has the same scale; a dashed line is the budget, or without one what programs may use of a device, where it is near.";

/// The chart.
///
/// `capacity`: bytes that a device may use.
pub fn chart(plan: &Plan, timeline: &Timeline, capacity: f64) -> String {
    let most = timeline.roles.iter().filter_map(|r| r.peak()).map(|(_, used, _)| used.bytes).max().unwrap_or(0) as f64;
    // What may be used is in the picture where it is not far above the curves.
    let scale = if capacity < 2.0 * most { most.max(capacity) } else { most }.max(1.0) * 1.05;
    let plot = (ROW + GAP) * timeline.roles.len() as f64;
    let peak = |role: &RoleTimeline, of_plan: &Role| {
        let (time, used, call) = role.peak()?;
        let call = of_plan.phases.iter().find(|p| p.name == "train")?.calls.get(call)?;
        let program = &plan.programs[call.program as usize].name;
        let (bytes, time) = (short(used.bytes as f64), seconds(time));
        Some(format!("{bytes}B at {time}, in {program}, micro-batch {}", call.micro_batch))
    };
    let peaks: Vec<Option<String>> =
        timeline.roles.iter().zip(&plan.roles).map(|(role, of_plan)| peak(role, of_plan)).collect();
    let described =
        |(p, r): (&Option<String>, &RoleTimeline)| p.as_ref().map(|p| format!("Stage {}: peak {p}.", r.ops.coordinate));
    let description: Vec<String> = peaks.iter().zip(&timeline.roles).filter_map(described).collect();
    let mut out = legend([("held", "in use between calls"), ("scratch", "used by one call alone")].into_iter());
    open(&mut out, "memory", "Memory over time", &description.join(" "), plot + AXIS);
    let rows: Vec<String> = timeline.roles.iter().map(|r| format!("stage {}", r.ops.coordinate)).collect();
    names(&mut out, rows.iter().map(String::as_str), ROW + GAP);
    let pixels = (WIDTH - LEFT) / UNITS;
    put(
        &mut out,
        format_args!(
            "<svg class=\"plot\" x=\"{LEFT}\" width=\"{}\" height=\"{plot}\"><g class=\"zoom\" transform=\"scale({pixels:.6} 1)\">\n",
            WIDTH - LEFT
        ),
    );
    let mut marks = String::new();
    let mut data = vec![];
    for ((number, role), peak) in timeline.roles.iter().enumerate().zip(&peaks) {
        let bottom = (ROW + GAP) * (number + 1) as f64 - 2.0;
        let y = |bytes: f64| bottom - bytes / scale * ROW;
        let x = |time: f64| (time / timeline.end * UNITS).round();
        let curve = curve(role, timeline.end);
        put(
            &mut out,
            format_args!(
                "<rect class=\"idle\" x=\"0\" y=\"{:.1}\" width=\"{UNITS}\" height=\"{ROW}\"/>\n",
                bottom - ROW
            ),
        );
        if capacity <= scale {
            put(&mut out, format_args!("<path class=\"capacity\" d=\"M0 {:.1}H{UNITS}\"/>\n", y(capacity)));
        }
        let area = |of: &dyn Fn(&Use) -> u64| {
            let mut path = format!("M0 {bottom:.1}");
            for (time, used) in &curve {
                put(&mut path, format_args!("H{}V{:.1}", x(*time), y(of(used) as f64)));
            }
            path + &format!("H{UNITS}V{bottom:.1}z")
        };
        put(&mut out, format_args!("<path class=\"scratch\" d=\"{}\"/>\n", area(&|u| u.bytes)));
        put(&mut out, format_args!("<path class=\"held\" d=\"{}\"/>\n", area(&|u| u.bytes - u.scratch.min(u.bytes))));
        if let (Some((time, used, _)), Some(peak)) = (role.peak(), peak) {
            let at = time / timeline.end;
            let (anchor, shift) = if at > 0.6 { ("end", -9.0) } else { ("start", 9.0) };
            let (px, py) = (at * (WIDTH - LEFT), y(used.bytes as f64));
            put(
                &mut marks,
                format_args!(
                    "<g class=\"peak\" data-x=\"{}\"><circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"4\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">peak {}</text></g>\n",
                    x(time),
                    px + shift,
                    py - 4.0,
                    escaped(peak)
                ),
            );
        }
        let points = curve.iter().map(|(time, used)| [x(*time) as u64, used.bytes, used.scratch]);
        data.push(points.collect::<Vec<_>>());
    }
    out += "</g><g class=\"marks\">";
    out += &marks;
    out += "</g></svg>\n";
    out += &axis((0.0, timeline.end), plot);
    out += "</svg></div>\n";
    let data = serde_json::json!({ "range": [0.0, timeline.end], "row": ROW + GAP, "curves": data });
    out + &format!("<script type=\"application/json\" data-for=\"memory\">{}</script>\n", script(&json(&data)))
}

/// The curve with at most [`POINTS`] points: of those close together the highest.
fn curve(role: &RoleTimeline, end: f64) -> Vec<(f64, Use)> {
    let mut points: Vec<(f64, Use)> = vec![];
    let place = |time: f64| (time / end * POINTS as f64) as usize;
    for (time, used, _) in role.memory() {
        match points.last_mut().filter(|(t, _)| place(*t) == place(time)) {
            Some(last) => {
                if used.bytes > last.1.bytes {
                    last.1 = used;
                }
            }
            None => points.push((time, used)),
        }
    }
    points
}
