//! `forebay validate`

use crate::cluster;
use crate::failure::Failure;
use crate::output::{Table, print, print_json};
use forebay_sim::validate::summary::{Errors, Summary};
use forebay_sim::validate::{Row, Skipped, predict, runs};
use std::path::PathBuf;

/// Compare predictions with measured runs
///
/// Each row of the table is a run: the model's sizes, the layout, the device, and what was measured. Its model is built, compiled and simulated.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay validate runs.csv
  forebay validate runs.csv --grade A --json > result.json
  forebay validate runs.csv --only simumax --worst 20
  forebay validate our-runs.csv --cluster-dir our-clusters

Columns: layers, hidden, heads, vocab, seq_len, device, n_devices, gbs and step_time_s (or tokens_per_s_per_device) are needed; id, system, source, model,
dense_layers, ffn_hidden, moe_ffn_hidden, experts, topk, shared_experts, kv_heads, head_dim, devices_per_node, tp, pp, vpp, ep, etp, cp, dp, mbs, precision,
recompute, notes_config, extra, peak_mem_gb and grade are used where they are there. A blank is unknown.")]
pub struct Args {
    /// The table of runs
    #[arg(value_name = "RUNS.csv")]
    runs: PathBuf,
    /// A folder with cluster files; a run's device is one of their names [default: those that are built in]
    #[arg(long, value_name = "DIR")]
    cluster_dir: Option<PathBuf>,
    /// Only runs of this grade
    #[arg(long, value_name = "GRADE")]
    grade: Option<String>,
    /// Only runs whose name begins so
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// How many of the worst rows are shown
    #[arg(long, value_name = "N", default_value_t = 10)]
    worst: usize,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn validate(args: Args) -> Result<(), Failure> {
    let name = args.runs.display().to_string();
    let text = std::fs::read(&args.runs).map_err(|error| Failure::Input(format!("cannot read `{name}`: {error}")))?;
    let text = String::from_utf8(text).map_err(|_| Failure::Input(format!("`{name}` is not text in UTF-8")))?;
    let clusters = cluster::folder(args.cluster_dir.as_deref())?;
    let (mut runs, mut bad) = runs::read(&text).map_err(|error| Failure::Input(format!("`{name}`: {error}")))?;
    runs.retain(|run| args.grade.as_ref().is_none_or(|g| run.grade == *g));
    runs.retain(|run| args.only.as_ref().is_none_or(|o| run.id.starts_with(o)));
    bad.retain(|(id, _)| args.only.as_ref().is_none_or(|o| id.starts_with(o)));
    if let (true, Some((_, why))) = (runs.is_empty(), bad.first()) {
        return Err(Failure::Input(format!("`{name}` has no run that can be used: {why}")));
    }
    if runs.is_empty() {
        return Err(Failure::Input(format!("`{name}` has no runs (of this grade and name)")));
    }
    let (rows, mut skipped) = predict(&runs, &clusters, args.threads.into());
    skipped.extend(bad.into_iter().map(|(id, why)| Skipped { id, why: why.0 }));
    let summary = Summary::new(rows, skipped);
    if args.json { print_json(&summary) } else { print(&table(&summary, args.worst)) }
}

fn percent(x: f64) -> String {
    format!("{:.1} %", 100.0 * x)
}

fn table(summary: &Summary, worst: usize) -> String {
    let mut out = String::new();
    let groups = [("system", &summary.by_system), ("model", &summary.by_kind), ("size", &summary.by_size)];
    for (title, group) in groups {
        let mut table = Table::new(&[
            title,
            "runs",
            "median error",
            "90 % below",
            "bias",
            "rank in sweeps",
            "memory: median",
            "90 %",
        ]);
        for (name, errors) in group {
            table.row(line(name, errors));
        }
        out += &format!("{}\n", table.render());
    }
    let mut rows: Vec<&Row> = summary.rows.iter().collect();
    rows.sort_by(|a, b| b.error.abs().total_cmp(&a.error.abs()));
    let mut table = Table::new(&["worst", "measured", "predicted", "error", "most of it"]).left(1);
    for row in rows.iter().take(worst) {
        let most = row.report.by_kind.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |k| k.0.name());
        table.row(vec![
            row.id.clone(),
            format!("{:.4} s", row.measured_s),
            format!("{:.4} s", row.predicted_s),
            percent(row.error),
            most.to_string(),
        ]);
    }
    out += &format!("{}\n", table.render());
    out += &format!(
        "{} runs: median error {}, 90 % below {}; {} skipped\n",
        summary.rows.len(),
        percent(summary.median_abs_error),
        percent(summary.p90_abs_error),
        summary.skipped.len()
    );
    for skipped in &summary.skipped {
        out += &format!("  {}: {}\n", skipped.id, skipped.why);
    }
    out
}

fn line(name: &str, errors: &Errors) -> Vec<String> {
    let some = |x: Option<String>| x.unwrap_or_else(|| "-".into());
    vec![
        name.to_string(),
        errors.rows.to_string(),
        percent(errors.median_abs_error),
        percent(errors.p90_abs_error),
        percent(errors.bias),
        some(errors.rank.map(|r| format!("{r:.2}"))),
        some(errors.memory.map(|m| percent(m.0))),
        some(errors.memory.map(|m| percent(m.1))),
    ]
}
