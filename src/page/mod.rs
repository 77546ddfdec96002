//! A simulated step as one page of HTML: no network, no script or style from elsewhere, readable without scripts, in light and in dark.
//!
//! The report stands in the page as JSON (`<script id="report">`), the same that `--json` prints. Charts are SVG; scripts add zooming and tooltips.

mod bars;
mod chart;
mod memory;
mod pipeline;
mod streams;
mod tables;
mod text;

pub use tables::phase_cells;

use crate::memory::Room;
use crate::output::{counted, json, short, size};
use forebay_cost::Cluster;
use forebay_plan::Plan;
use forebay_sim::Options;
use forebay_sim::replay::Straggler;
use forebay_sim::report::Report;
use forebay_sim::timeline::Timeline;
use text::{escaped, grouped_by_thousands, percent, script, seconds};

/// What a page is about.
pub struct Page<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The devices.
    pub cluster: &'a Cluster,
    /// What a device may use.
    pub room: Room,
    /// The strategy, as the user would write it.
    pub strategy: String,
    /// The sums.
    pub report: &'a Report,
    /// What a reader of the numbers should know.
    pub notes: &'a [String],
    /// What happens when.
    pub timeline: &'a Timeline,
    /// By which a step is simulated.
    pub options: &'a Options,
}

/// The page.
pub fn html(page: &Page) -> String {
    let Page { plan, cluster, report, notes, timeline, .. } = *page;
    let title = format!("{} on {} × {}", plan.model, report.devices, cluster.device.name);
    let sections = [
        section("Pipeline", pipeline::INTRODUCTION, &pipeline::chart(timeline)),
        section("Streams of one rank", streams::INTRODUCTION, &streams::chart(plan, timeline)),
        section("Memory over time", memory::INTRODUCTION, &memory::chart(plan, timeline, page.room.bytes())),
        section("Where the time goes", bars::INTRODUCTION, &bars::chart(report)),
        section("Communication", tables::COMMUNICATION, &tables::communication(report)),
        if report.phases.is_empty() {
            String::new()
        } else {
            section("Phases", tables::PHASES, &tables::phases(report))
        },
        section("Memory by kind", tables::MEMORY, &tables::memory(report)),
    ];
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n<header>\n<h1>{title}</h1>\n<p>{}</p>\n{}</header>\n{}{}\
         <footer><p>Written by forebay {}. Times are predictions for {}, of one rank for each stage; the numbers are those of <code>--json</code>.</p></footer>\n\
         </main>\n<div id=\"tip\" role=\"status\" hidden></div>\n<script type=\"application/json\" id=\"report\">{}</script>\n<script>\n{}</script>\n</body>\n</html>\n",
        include_str!("page.css"),
        escaped(&format!("{} · {}", subtitle(page), manner(page))),
        notes.iter().map(|note| format!("<p>Note: {}</p>\n", escaped(note))).collect::<String>(),
        cards(page),
        sections.concat(),
        env!("CARGO_PKG_VERSION"),
        escaped(&cluster.name),
        script(&json(&Told::new(page))),
        include_str!("page.js"),
        title = escaped(&title),
    )
}

/// The strategy, and how large a step is.
pub fn subtitle(page: &Page) -> String {
    let settings = &page.plan.settings;
    format!(
        "{} · {} rows of {} tokens a step, {} · {} parameters, {} at work for a token",
        if page.strategy.is_empty() { "one rank" } else { &page.strategy },
        grouped_by_thousands(settings.batch),
        grouped_by_thousands(settings.seq),
        counted(settings.micro_batches.into(), "micro-batch"),
        short(settings.params as f64),
        short(settings.active_params as f64),
    )
}

/// In which types, by what, and with which routing a step runs.
pub fn manner(page: &Page) -> String {
    let Page { plan, cluster, options, .. } = *page;
    let routing = match options.imbalance {
        _ if plan.settings.active_params == plan.settings.params => String::new(),
        room if options.framework.fills_up() => {
            format!(" · experts compute {room:.2} times the mean of their rows, used or not")
        }
        1.0 => " · tokens fall on experts evenly".into(),
        busiest => format!(" · the busiest rank has {busiest:.2} times the mean of its experts' rows"),
    };
    let Options { framework, precision, .. } = options;
    format!(
        "activations in {}, products of {} · run as {} · cluster {}{routing}",
        plan.settings.compute,
        format!("{precision:?}").to_lowercase(),
        if framework.is_ours() { "our own plan" } else { &framework.name },
        cluster.name,
    )
}

fn section(heading: &str, introduction: &str, body: &str) -> String {
    format!("<section>\n<h2>{heading}</h2>\n<p>{introduction}</p>\n{body}</section>\n")
}

/// What was simulated.
#[derive(serde::Serialize)]
pub struct Simulated<'a> {
    model: &'a str,
    cluster: &'a str,
    device: &'a str,
    /// As it was settled: with what was searched for.
    strategy: &'a str,
    /// Rows of a step.
    batch: u64,
    /// Tokens of a row.
    seq: u64,
    micro_batches: u32,
    /// Of activations.
    dtype: String,
    /// Of what products multiply.
    precision: String,
    /// The profile of what runs the plan.
    framework: &'a str,
    /// Rows of the busiest rank of experts, as a multiple of the mean.
    imbalance: f64,
    /// The slow device, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    straggler: Option<Straggler>,
}

/// What `--json` prints, and what stands in the page.
#[derive(serde::Serialize)]
pub struct Told<'a> {
    /// Of what the numbers are.
    pub simulated: Simulated<'a>,
    /// The numbers.
    #[serde(flatten)]
    pub report: &'a Report,
    /// Bytes that a device may use, where a budget says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// Does each stage fit into the budget, or else into a device?
    pub fits: bool,
    /// Would the framework's allocator reserve more than programs may use, or is a stage crowded?
    pub short_of_memory: bool,
    /// What a reader of them should know.
    pub notes: &'a [String],
}

impl<'a> Told<'a> {
    /// Of what a page is about.
    pub fn new(page: &'a Page) -> Told<'a> {
        let Page { plan, cluster, room, report, notes, options, .. } = *page;
        let settings = &plan.settings;
        let simulated = Simulated {
            model: &plan.model,
            cluster: &cluster.name,
            device: &cluster.device.name,
            strategy: &page.strategy,
            batch: settings.batch,
            seq: settings.seq,
            micro_batches: settings.micro_batches,
            dtype: settings.compute.to_string(),
            precision: format!("{:?}", options.precision).to_lowercase(),
            framework: &options.framework.name,
            imbalance: options.imbalance,
            straggler: options.straggler,
        };
        let fits = report.peak_bytes() <= room.bytes();
        let short_of_memory = report.short_of_memory().is_some();
        Told { simulated, report, budget_bytes: room.budget, fits, short_of_memory, notes }
    }
}

/// The numbers that people look at first. `data-key` says which of the report's they are, `data-value` what exactly.
fn cards(page: &Page) -> String {
    let report = page.report;
    let card = |key: &str, name: &str, value: f64, shown: String, note: &str| {
        format!(
            "<div class=\"card\" data-key=\"{key}\" data-value=\"{value}\"><dt>{name}</dt><dd>{}</dd><small>{}</small></div>\n",
            escaped(&shown),
            escaped(note)
        )
    };
    let peak = report.peak_bytes();
    let cards = [
        card("step_time_s", "Step", report.step_time_s, seconds(report.step_time_s), "from first kernel to last"),
        card(
            "tokens_per_s_per_device",
            "Tokens/s",
            report.tokens_per_s_per_device,
            grouped_by_thousands(report.tokens_per_s_per_device.round() as u64),
            "of each device",
        ),
        card("mfu", "MFU", report.mfu, percent(report.mfu), "of bf16 peak, causal attention at half"),
        card("hfu", "HFU", report.hfu, percent(report.hfu), "all that is computed"),
        card(
            "bubble_fraction",
            "Bubble",
            report.bubble_fraction,
            percent(report.bubble_fraction),
            "waiting for other stages",
        ),
        card(
            "host_bound_fraction",
            "Host-bound",
            report.host_bound_fraction,
            percent(report.host_bound_fraction),
            "waiting for the host",
        ),
        card("peak", "Peak memory", peak, size(peak), &page.room.judged(peak)),
    ];
    format!("<dl class=\"cards\">\n{}</dl>\n", cards.concat())
}
