//! What the streams of one rank do in the middle of the step.

use super::bars::class;
use super::chart::{Chart, Class, Shown};
use super::text::seconds;
use crate::trace::simulated::stream_name;
use forebay_plan::Plan;
use forebay_sim::Kind;
use forebay_sim::log::{Slice, Why};
use forebay_sim::timeline::{RoleTimeline, Timeline};

/// Instructions that are shown at most.
const MAX_CELLS: usize = 4000;
/// Passes that are shown.
const PASSES: usize = 4;

pub const INTRODUCTION: &str =
    "The kernels of the stage that works most, in the middle of the step, and below them why its main stream waits.";

/// The chart.
pub fn chart(plan: &Plan, timeline: &Timeline) -> String {
    let work = |role: &RoleTimeline| role.passes.iter().map(|p| role.span(p)).map(|(a, b)| b - a).sum::<f64>();
    let Some((number, role)) = timeline.roles.iter().enumerate().max_by(|a, b| work(a.1).total_cmp(&work(b.1))) else {
        return String::new();
    };
    let range = middle(role).unwrap_or((0.0, timeline.end));
    let slices: Vec<&Slice> = role.log.slices.iter().filter(|s| s.end > range.0 && s.begin < range.1).collect();
    let kinds: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|k| slices.iter().any(|s| timeline.moments(role, s).iter().any(|m| m.kind == *k)))
        .collect();
    let mut classes: Vec<Class> = kinds.iter().map(|k| Class::full(class(*k), k.name())).collect();
    let whys = [(Why::Stage, "bubble"), (Why::Host, "host"), (Why::Contention, "contention")];
    let names = ["waits for another stage", "waits for the host", "slower for what is beside it"];
    let waits = classes.len();
    classes.extend(whys.iter().zip(names).map(|((_, class), name)| Class::full(class, name)));
    classes.push(Class::full("exposed", "waits for communication"));
    let of_plan = &plan.roles[number];
    let description =
        format!("The streams of {} from {} to {} of the step.", of_plan.name, seconds(range.0), seconds(range.1));
    let mut chart = Chart::new("streams", "Streams of one rank", &description, range, classes);
    let mut room = MAX_CELLS;
    let mut streams: Vec<usize> = slices.iter().map(|s| s.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    for stream in streams {
        chart.row(stream_name(&timeline.tiers, stream).trim_end_matches(" stream"));
        for slice in slices.iter().filter(|s| s.stream == stream) {
            let (program, _) = timeline.program(plan, role, slice.op);
            let moments = timeline.moments(role, slice);
            room = room.saturating_sub(moments.len());
            // Beyond the bound a run of instructions is one cell.
            if room == 0 {
                let kind = timeline.kind(role, slice);
                let class = kinds.iter().position(|k| *k == kind).unwrap_or(0);
                let tip = format!("{}: {}", program.name, kind.name());
                chart.cell((slice.begin, slice.end), Shown { class, label: "", tip });
                continue;
            }
            for moment in moments {
                let class = kinds.iter().position(|k| *k == moment.kind).unwrap_or(0);
                let name = &program.instructions[moment.instruction].name;
                let tip = format!("{name}, {}, {}", program.name, moment.kind.name());
                chart.cell((moment.begin, moment.end), Shown { class, label: name, tip });
            }
        }
    }
    chart.row("waits");
    for idle in role.log.idle.iter().filter(|i| i.end > range.0 && i.begin < range.1) {
        let (class, tip) = match idle.why {
            Why::Communication(kind) => (waits + whys.len(), format!("waits: {}", kind.name())),
            why => {
                let at = whys.iter().position(|(w, _)| *w == why).unwrap_or(0);
                (waits + at, names[at].to_string())
            }
        };
        chart.cell((idle.begin, idle.end), Shown { class, label: "", tip });
    }
    format!("<p>{description}</p>\n{}", chart.render())
}

/// Some passes in the middle of the step: where the pipeline is full, if it ever is.
fn middle(role: &RoleTimeline) -> Option<(f64, f64)> {
    let from = role.passes.len().saturating_sub(PASSES) / 2;
    let first = role.passes.get(from)?;
    let last = role.passes.get((from + PASSES - 1).min(role.passes.len() - 1))?;
    let (begin, end) = (role.span(first).0, role.span(last).1);
    (end > begin).then_some((begin, end))
}
