//! Where the time of a step goes, and what would be saved.

use super::chart::put;
use super::text::{escaped, percent, seconds};
use forebay_sim::Kind;
use forebay_sim::report::{CONTENTION, Report};

const WIDTH: f64 = 1120.0;
const NAMES: f64 = 250.0;
const NUMBERS: f64 = 190.0;
const ROW: f64 = 26.0;

pub const INTRODUCTION: &str = "What the main stream does with the time of a step (mean of the stages; communication counts where computation waits for it). Below, the five \
things that cost most: how much shorter the step would be if one of them took no time at all.";

/// The class of a kind of work.
pub fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Products => "k-products",
        Kind::ExpertProducts => "k-experts",
        Kind::Attention => "k-attention",
        Kind::Vector => "k-vector",
        Kind::Optimizer => "k-optimizer",
        Kind::Ep => "k-ep",
        Kind::Tp => "k-tp",
        Kind::Cp => "k-cp",
        Kind::Pp => "k-pp",
        Kind::Dp => "k-dp",
        Kind::Swap => "k-swap",
    }
}

fn class_of(what: &str) -> &'static str {
    let kind = Kind::ALL.into_iter().find(|k| k.name() == what);
    kind.map_or_else(
        || match what {
            CONTENTION => "contention",
            what if what.contains("bubble") => "bubble",
            _ => "host",
        },
        class,
    )
}

/// Both charts.
pub fn chart(report: &Report) -> String {
    let parts: Vec<(&str, f64)> =
        report.time_s.iter().filter(|p| p.seconds > 0.0).map(|p| (p.what, p.seconds)).collect();
    let costs: Vec<(&str, f64)> = report.costs.iter().map(|c| (c.what, c.gives_back.max(0.0))).collect();
    bars("breakdown", "Where the time of a step goes", &parts, report.step_time_s)
        + &bars("gains", "What would be saved without it", &costs, report.step_time_s)
}

/// A bar for each; all are parts of a step.
fn bars(id: &str, title: &str, parts: &[(&str, f64)], step: f64) -> String {
    let height = ROW * parts.len() as f64 + 30.0;
    let description: Vec<String> =
        parts.iter().map(|(what, s)| format!("{what}: {}, {}", seconds(*s), percent(s / step))).collect();
    let mut out = format!(
        "<div class=\"frame\"><svg class=\"chart\" id=\"{id}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\" viewBox=\"0 0 {WIDTH} {height}\">\
         <title id=\"{id}-title\">{title}</title><desc id=\"{id}-desc\">{}</desc>\n<text class=\"heading\" x=\"0\" y=\"16\">{title}</text>\n",
        escaped(&description.join("; "))
    );
    let most = parts.iter().map(|p| p.1).fold(f64::MIN_POSITIVE, f64::max);
    for (number, (what, s)) in parts.iter().enumerate() {
        let top = 28.0 + ROW * number as f64;
        let width = (s / most * (WIDTH - NAMES - NUMBERS)).max(1.0);
        let text = top + 14.5;
        put(
            &mut out,
            format_args!(
                "<text class=\"name\" x=\"{}\" y=\"{text}\">{}</text><rect class=\"{}\" x=\"{NAMES}\" y=\"{top}\" width=\"{width:.1}\" height=\"20\" rx=\"3\"/>\
                 <text class=\"number\" x=\"{:.1}\" y=\"{text}\">{} · {}</text>\n",
                NAMES - 10.0,
                escaped(what),
                class_of(what),
                NAMES + width + 8.0,
                seconds(*s),
                percent(s / step)
            ),
        );
    }
    out + "</svg></div>\n"
}
