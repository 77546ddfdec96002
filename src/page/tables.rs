//! Tables.

use super::text::{escaped, seconds};
use crate::output::{percent, size};
use forebay_sim::report::Report;

pub const COMMUNICATION: &str = "Exposed is what computation waits for. Tiers of the network share out each kind's exposed time as they share all of it.";
pub const PHASES: &str = "A stage fills until it first goes backward, and drains once it has gone forward for the last time: less work is there to hide communication behind. Means of stages.";
pub const MEMORY: &str = "Bytes of one rank. The peak is the arena that is allocated. Buffers are inputs, statistics and what the call at the peak alone uses; activations include frames that stay until the next call has ended; fragmentation is what the placement takes beyond what is in use.";

fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    // Words go on in the next line, so that the page is no wider than a window; numbers stay in one.
    let is_text = |n: usize| rows.iter().any(|r| r.get(n).is_some_and(|c| c.split_whitespace().count() > 2));
    let class = |n: usize| if n > 0 && is_text(n) { " class=\"text\"" } else { "" };
    let head: String =
        heading.iter().enumerate().map(|(n, h)| format!("<th scope=\"col\"{}>{}</th>", class(n), escaped(h))).collect();
    let row = |cells: &Vec<String>| {
        let rest: String =
            cells.iter().enumerate().skip(1).map(|(n, c)| format!("<td{}>{}</td>", class(n), escaped(c))).collect();
        format!("<tr><th scope=\"row\">{}</th>{rest}</tr>\n", escaped(&cells[0]))
    };
    let body: String = rows.iter().map(row).collect();
    format!("<div class=\"frame\"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n")
}

/// Communication by kind and by tier.
pub fn communication(report: &Report) -> String {
    let name = |degree| match degree {
        "ep" => "experts (ep)",
        "tp" => "tensors (tp)",
        "cp" => "context (cp)",
        "pp" => "pipeline (pp)",
        _ => "data (dp)",
    };
    let kinds = report.communication().map(|of| {
        let [exposed, total] = [of.exposed_s, of.total_s].map(seconds);
        let [exposed_bytes, bytes] = [of.exposed_bytes, of.total_bytes].map(size);
        vec![name(of.name).to_string(), exposed, total, exposed_bytes, bytes]
    });
    let links = report.comm_by_link.iter().map(|link| {
        let [exposed, total] = [link.exposed_s, link.total_s].map(seconds);
        vec![format!("over {}", link.link), exposed, total, String::new(), String::new()]
    });
    let heading = ["", "exposed", "in all", "bytes exposed", "bytes in all"];
    table(&heading, &kinds.into_iter().chain(links).collect::<Vec<_>>())
}

/// The phases of a pipelined step: what columns are called, and a row for each. Without experts over ranks there is nothing to say of them.
pub fn phase_cells(report: &Report) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let names = ["phase, mean of stages", "takes", "bubble", "ep exposed", "ep in all", "exposed"];
    let columns = if report.total_comm_s.ep > 0.0 { names.len() } else { 3 };
    let row = |p: &forebay_sim::phases::Phase| {
        let times = [p.seconds, p.bubble_s, p.exposed_ep_s, p.total_ep_s].map(seconds);
        let share = p.exposed_share().map_or_else(String::new, percent);
        [&[p.phase.to_string()][..], &times, &[share]].concat()[..columns].to_vec()
    };
    (names[..columns].to_vec(), report.phases.iter().map(row).collect())
}

/// The phases of a pipelined step.
pub fn phases(report: &Report) -> String {
    let (names, rows) = phase_cells(report);
    table(&names, &rows)
}

/// Memory by stage and kind.
pub fn memory(report: &Report) -> String {
    let heading =
        ["stage", "weights", "gradients", "optimizer", "activations", "buffers", "fragmentation", "peak", "when", "in"];
    let row = |m: &forebay_sim::memory::StageMemory| {
        let bytes = [m.weights, m.gradients, m.optimizer, m.activations, m.buffers, m.fragmentation, m.peak];
        let located = m.located.as_ref();
        [
            vec![m.stage.to_string()],
            bytes.map(size).to_vec(),
            vec![
                located.map_or(String::new(), |p| seconds(p.peak_time_s)),
                located.map_or(String::new(), |p| p.peak_call.clone()),
            ],
        ]
        .concat()
    };
    table(&heading, &report.memory_bytes.iter().map(row).collect::<Vec<_>>())
}
