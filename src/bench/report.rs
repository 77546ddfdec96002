//! Measurements for people.

use super::agreement;
use super::measure::Measurement;
use super::versus::Versus;
use crate::output::{Table, short};
use crate::profile::{parts, percent};
use forebay_runtime::exec::human_bytes;

/// Our own.
pub fn measurement(m: &Measurement) -> String {
    let rss = m.peak_rss_bytes.map_or("unknown".into(), human_bytes);
    let of = if m.ranks == 1 { String::new() } else { format!(" for the largest of {} ranks", m.ranks) };
    let lines = [
        format!(
            "{}: {} parameters, {} × {} tokens, {}, {} threads, {}\n",
            m.model,
            short(m.params as f64),
            m.batch,
            m.seq,
            m.dtype,
            m.threads,
            m.cpu
        ),
        format!("step        {:.1} ms, the median of {}; {:.1} ms at best", m.median_ms, m.steps, m.best_ms),
        format!("speed       {} tokens/s", short(m.tokens_per_s)),
        format!("arithmetic  {:.1} GFLOP/s in matrix products ({:.2} GFLOP a step)", m.gflop_per_s, m.gflop_per_step),
        format!(
            "roofline    {} of what {:.0} GFLOP/s and {:.1} GB/s allow, which a probe came to",
            percent(m.roofline_share),
            m.probe_gflop_per_s,
            m.probe_gbyte_per_s
        ),
        format!("dispatch    {:.2} % of a step lies between kernels", 100.0 * m.dispatch_share),
        format!(
            "first step  {:.2} s after the start of the process ({}), {:.2} s without a step's time",
            m.first_step_s,
            parts(&m.first_step_parts),
            m.start_up_s
        ),
        format!("memory      {} planned{of}, {rss} at the process's peak", human_bytes(m.planned_bytes)),
    ];
    lines.join("\n") + "\n"
}

/// Beside PyTorch.
pub fn versus(m: &Measurement, v: &Versus) -> String {
    let mut out = format!(
        "\nbeside PyTorch {}, from the same weights, on the same batch, with the same losses (to {:.1e}):\n  Forebay  {}\n  PyTorch  {}\n\n",
        v.torch,
        v.same_losses.largest,
        agreement::list(&v.same_losses.forebay),
        agreement::list(&v.same_losses.torch)
    );
    let mut table =
        Table::new(&["PyTorch", "median ms", "best ms", "Forebay ms", "ratio", "of rounds", "memory", "first step s"]);
    for o in &v.variants {
        table.row(vec![
            o.variant.into(),
            format!("{:.1}", o.median_ms),
            format!("{:.1}", o.best_ms),
            format!("{:.1}", o.forebay_median_ms),
            format!("{:.2}", o.ratio),
            o.rounds.iter().map(|r| format!("{r:.2}")).collect::<Vec<_>>().join(" "),
            o.peak_rss_bytes.map_or(String::new(), human_bytes),
            format!("{:.1}", o.first_step_s),
        ]);
    }
    out.push_str(&table.render());
    let fastest = v.fastest();
    out.push_str(&format!("\nagainst PyTorch's fastest, {}: {:.2} times its speed", fastest.variant, fastest.ratio));
    if let (Some(ours), Some(theirs)) = (m.peak_rss_bytes, fastest.peak_rss_bytes) {
        out.push_str(&format!(", {:.2} of its peak memory", ours as f64 / theirs as f64));
    }
    out.push_str(&format!(", {:.3} of its time to the end of step 1\n", m.first_step_s / fastest.first_step_s));
    out
}
