//! `forebay validate`

use crate::cluster;
use crate::failure::Failure;
use crate::files::{LARGE, are_apart, read_text, replace_file};
use crate::output::{Table, counted, print, print_json, visible};
use crate::progress::Spinner;
use crate::say::say;
use forebay_cost::Cluster;
use forebay_sim::framework::{Framework, fitted_numbers};
use forebay_sim::validate::anchor::{self, Anchor};
use forebay_sim::validate::cases::Case;
use forebay_sim::validate::fit::{self, Fit, LeftOut};
use forebay_sim::validate::pairs::{self, Gains, Pair};
use forebay_sim::validate::runs::Runs;
use forebay_sim::validate::summary::{Errors, Summary};
use forebay_sim::validate::{Compared, Row, Skipped, predict_as, prepare, price, runs};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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
  forebay validate our-runs.csv --fit -o our-clusters
  forebay validate our-runs.csv --anchor our-run-7
  forebay validate our-runs.csv --pairs our-changes.csv

Columns: layers, hidden, heads, vocab, seq_len, device, n_devices, gbs and step_time_s (or tokens_per_s_per_device, or tflops_per_device) are needed;
dense layers need ffn_hidden, and mixtures experts, topk and moe_ffn_hidden (that of dense layers where it is blank). id, system, source, model, dense_layers,
shared_experts, kv_heads, head_dim, devices_per_node, tp, pp, vpp, ep, etp, cp, dp, zero, mbs, precision, recompute, notes_config, extra, peak_mem_gb and grade are
used where they are there (zero: 0 to 3; where it is blank, what notes_config says, as in `ZeRO-1`, or what its system does unasked). Names of columns may be in upper or lower case, and fields are separated by commas. A blank (`-`, `n/a`, and in numbers `NaN`, `None`, `null`, `?`) is unknown; OOM in a column of what was
measured says that a run did not fit into memory. peak_mem_gb are GB, of nanotron the GiB that it calls so. Of the worst runs it is said what to suspect
first: memory that an allocator runs short of, waiting for the host, the pipeline's bubble, or else the work that takes most.

What a system does differently from our own plan is known of those that source, notes_config or extra name: Megatron-LM, Megatron-Bridge, NeMo,
Megatron-DeepSpeed, MindSpeed, MindSpore, nanotron, torchtitan, HAI-LLM, llm-foundry, MaxText, SimuMax, torch.compile, and Forebay for our own plan, with all its passes. Others are predicted as
PyTorch without fusion.")]
pub struct Args {
    /// The table of runs
    #[arg(value_name = "RUNS.csv")]
    runs: PathBuf,
    /// A folder with cluster files; a run's device is one of their names [default: those that are built in]. Its frameworks.toml, where it has one, says what is different of systems' profiles
    #[arg(long, value_name = "DIR")]
    cluster_dir: Option<PathBuf>,
    /// Only runs of this grade
    #[arg(long, value_name = "GRADE")]
    grade: Option<String>,
    /// Only runs whose name begins so
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// How many runs are shown, those that are furthest off first [default: all of a table of 40, 10 of a larger one]
    #[arg(long, value_name = "N")]
    worst: Option<usize>,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// A run whose measured time tells how efficient the software on its device is; the others on that device are predicted with it
    #[arg(long, value_name = "ID", conflicts_with = "fit")]
    anchor: Option<String>,
    /// A table of pairs of runs, with and without a technique (columns technique, before, after): what it gains, measured and predicted
    #[arg(long, value_name = "PAIRS.csv")]
    pairs: Option<PathBuf>,
    /// Fit the calibrated numbers of clusters and frameworks to these runs before they are predicted, and show what that changes
    #[arg(long)]
    fit: bool,
    /// Steps of the fit, with --fit (it ends when none helps); 0 fits nothing and only tells how systems fare that a device is not fitted to
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=50), requires = "fit")]
    rounds: u16,
    /// Write cluster files and profiles with the fitted numbers into this folder, with --fit; --cluster-dir reads them
    #[arg(short, long, value_name = "DIR", requires = "fit")]
    output: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Columns that are listed.
const COLUMNS: usize = 20;

/// Why rows are left out, a line each: the first few.
fn reasons(skipped: &[Skipped]) -> String {
    const SHOWN: usize = 5;
    let shown = &skipped[..skipped.len().min(SHOWN)];
    let lines: String = shown.iter().map(|row| format!("\n  {}", told(row))).collect();
    let more = match skipped.len() - shown.len() {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    format!("{lines}{more}{}", helps(shown).trim_end())
}

/// Which row is left out and why; one without a name is called by its line, which the reason begins with.
fn told(Skipped { id, why, .. }: &Skipped) -> String {
    if id.is_empty() || why.starts_with(&format!("{id}:")) { why.clone() } else { format!("{id}: {why}") }
}

/// What helps with rows that are left out, each once.
fn helps(skipped: &[Skipped]) -> String {
    let helps: BTreeSet<&str> = skipped.iter().filter_map(|row| row.help.as_deref()).collect();
    helps.iter().map(|help| format!("\n  = help: {help}\n")).collect()
}

pub fn validate(args: Args) -> Result<(), Failure> {
    validated(args).map_err(|failure| match failure {
        Failure::Input(text) => Failure::Input(visible(&text)),
        other => other,
    })
}

fn validated(args: Args) -> Result<(), Failure> {
    let name = args.runs.display().to_string();
    let read: Vec<(&str, PathBuf)> = args.cluster_dir.iter().map(|folder| ("--cluster-dir", folder.clone())).collect();
    are_apart(&read, &[("-o", args.output.as_deref())])?;
    args.output.as_deref().map_or(Ok(()), may_be_written)?;
    let text = read_text(&args.runs, LARGE)?;
    let clusters = cluster::folder(args.cluster_dir.as_deref())?;
    let frameworks = cluster::profiles(args.cluster_dir.as_deref())?;
    let pairs = args.pairs.as_deref().map(read_pairs).transpose()?;
    let Runs { mut runs, mut bad, unknown } =
        runs::read(&text).map_err(|error| Failure::Input(format!("`{name}`: {error}")))?;
    runs.retain(|run| args.grade.as_ref().is_none_or(|g| run.grade == *g));
    runs.retain(|run| args.only.as_ref().is_none_or(|o| run.id.starts_with(o)));
    bad.retain(|(id, _)| args.only.as_ref().is_none_or(|o| id.starts_with(o)));
    if let (true, Some((_, why))) = (runs.is_empty(), bad.first()) {
        return Err(Failure::Input(format!("`{name}` has no run that can be used: {why}")));
    }
    if runs.is_empty() {
        return Err(Failure::Input(format!("`{name}` has no runs (of this grade and name)")));
    }
    if !unknown.is_empty() {
        let more = unknown.len().saturating_sub(COLUMNS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let columns = visible(&unknown[..unknown.len().min(COLUMNS)].join(", ")) + &more;
        say!("warning: `{name}` has columns that are not used: {columns} (--help lists those that are)");
    }
    let threads = args.threads.into();
    let spinner = Spinner::new(args.json, "reading");
    let (mut fit, mut anchor) = (None, None);
    let mut compared = if args.fit {
        let (compared, result) = fitted(&args, &runs, (&clusters, &frameworks), &spinner)?;
        fit = Some(result);
        compared
    } else if let Some(id) = &args.anchor {
        let (compared, result) = anchored(id, &runs, (&clusters, &frameworks), (threads, &spinner))?;
        anchor = Some(result);
        compared
    } else {
        let mut all = Compared::default();
        in_parts(&runs, threads, (&spinner, "predicted"), |part| {
            all.extend(predict_as(part, &clusters, &frameworks, threads));
        });
        all
    };
    drop(spinner);
    compared.skipped.extend(bad.into_iter().map(|(id, why)| Skipped::new(&id, &why.0)));
    let nothing = compared.rows.is_empty() && compared.out_of_memory.is_empty();
    if nothing && !compared.skipped.is_empty() {
        return Err(Failure::Input(format!("`{name}` has no run that can be predicted{}", reasons(&compared.skipped))));
    }
    let summary = Summary::new(compared);
    let pairs = pairs.map(|pairs| pairs::gains(&pairs, &summary.rows));
    if args.json {
        print_json(&Output { summary, fit, anchor, pairs, unknown_columns: unknown })
    } else {
        let fit = fit.as_ref().map_or(String::new(), changes);
        let anchor = anchor.as_ref().map_or(String::new(), anchor_line);
        let pairs = pairs.as_ref().map_or(String::new(), gains);
        print(&visible(&format!("{}{fit}{anchor}{pairs}", table(&summary, args.worst))))
    }
}

/// The table of pairs of a file.
fn read_pairs(path: &Path) -> Result<Vec<Pair>, Failure> {
    let name = path.display();
    let text = read_text(path, LARGE)?;
    pairs::read(&text).map_err(|error| Failure::Input(format!("`{name}`: {error}")))
}

/// What techniques gain.
fn gains(all: &Gains) -> String {
    let mut table = Table::new(&["technique", "without, with", "measured", "predicted", "sign", "size"]).left(2);
    let word = |right: bool| if right { "right" } else { "wrong" }.to_string();
    for gain in &all.gains {
        let runs = format!("{}, {}", gain.before, gain.after);
        let (measured, predicted) = (percent(gain.measured), percent(gain.predicted));
        table.row(vec![gain.technique.clone(), runs, measured, predicted, word(gain.sign), word(gain.size)]);
    }
    let right = |of: fn(&pairs::Gain) -> bool| all.gains.iter().filter(|g| of(g)).count();
    let (signs, sizes) = (right(|g| g.sign), right(|g| g.size));
    let missing: String =
        all.missing.iter().map(|(what, run)| format!("  {what}: `{run}` has no prediction\n")).collect();
    if all.gains.is_empty() {
        let why = if all.missing.is_empty() {
            "the table of pairs has no rows"
        } else {
            "no pair has predictions of both its runs"
        };
        return format!("\n{why}\n{missing}");
    }
    format!(
        "\n{}\n{}: the sign of {signs} is right, the size of {sizes} within a third\n{missing}",
        table.render(),
        counted(all.gains.len() as u64, "pair")
    )
}

/// What `--json` prints.
#[derive(serde::Serialize)]
struct Output {
    #[serde(flatten)]
    summary: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    fit: Option<Fit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    anchor: Option<Anchor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pairs: Option<Gains>,
    unknown_columns: Vec<String>,
}

/// Begins what a fit writes of profiles, behind what their file had before.
const FITTED: &str = "# Numbers of a fit to measured runs.";

/// Profiles that somebody wrote stay: fits write over those of fits alone.
fn may_be_written(folder: &Path) -> Result<(), Failure> {
    match cluster::profiles_text(Some(folder))? {
        Some(there) if !there.contains(FITTED) => Err(Failure::Input(format!(
            "`{}` is there, and is not of a fit\n  = help: -o takes another folder; --cluster-dir reads this one",
            folder.join(cluster::PROFILES).display()
        ))),
        _ => Ok(()),
    }
}

/// Goes through runs part by part, and says how far that is.
fn in_parts(runs: &[runs::Run], threads: usize, (spinner, what): (&Spinner, &str), mut of: impl FnMut(&[runs::Run])) {
    let mut done = 0;
    for part in runs.chunks(PART * threads) {
        spinner.says(&format!("{done} of {} {what}", counted(runs.len() as u64, "run")));
        of(part);
        done += part.len();
    }
}

/// Runs of a part, for each thread: many enough that threads which wait for the last one do not matter.
const PART: usize = 16;

/// Compiles the plans of runs.
fn prepared(
    runs: &[runs::Run],
    (clusters, frameworks): (&[Cluster], &[Framework]),
    (threads, spinner): (usize, &Spinner),
) -> (Vec<Case>, Vec<Skipped>) {
    let (mut cases, mut skipped) = (vec![], vec![]);
    in_parts(runs, threads, (spinner, "compiled"), |part| {
        let (of_part, not) = prepare(part, clusters, frameworks, threads);
        cases.extend(of_part);
        skipped.extend(not);
    });
    (cases, skipped)
}

/// Predicts all runs but one with what that one says of its device.
fn anchored(
    id: &str,
    runs: &[runs::Run],
    (clusters, frameworks): (&[Cluster], &[Framework]),
    (threads, spinner): (usize, &Spinner),
) -> Result<(Compared, Anchor), Failure> {
    let (mut cases, skipped) = prepared(runs, (clusters, frameworks), (threads, spinner));
    let (clusters, found) = anchor::anchor(&cases, id, clusters, frameworks).map_err(|why| {
        Failure::Input(format!("{why}\n  = help: --anchor takes the `id` of a run of the table (and of the grade and name that are asked for)"))
    })?;
    cases.retain(|case| case.run.id != id);
    let mut compared = price(&cases, &clusters, frameworks, threads);
    compared.skipped.extend(skipped);
    Ok((compared, found))
}

fn anchor_line(anchor: &Anchor) -> String {
    let Anchor { id, cluster, factor, left } = anchor;
    format!(
        "after {id}, efficiencies of {cluster} are multiplied by {factor:.3}; its own error is {} then\n",
        percent(*left)
    )
}

/// Fits, writes what was fitted where that is asked for, and predicts with it.
fn fitted(
    args: &Args,
    runs: &[runs::Run],
    (read, known): (&[Cluster], &[Framework]),
    spinner: &Spinner,
) -> Result<(Compared, Fit), Failure> {
    let threads = args.threads.into();
    let (cases, skipped) = prepared(runs, (read, known), (threads, spinner));
    spinner.says("fitting");
    let (clusters, frameworks, result) = fit::fit(&cases, read, known, args.rounds.into(), threads);
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::Input(format!("cannot make `{}`: {error}", folder.display())))?;
        let files = cluster::files(args.cluster_dir.as_deref())?;
        // Those that have not changed too, or runs on their devices would have none in the folder.
        let used = |at: &usize| cases.iter().any(|case| case.cluster == *at);
        for at in (0..files.len()).filter(used) {
            let (name, text) = &files[at];
            replace_file(&folder.join(name), fit::rewritten(text, &read[at], &clusters[at]).as_bytes())?;
        }
        let own = cluster::profiles_text(args.cluster_dir.as_deref())?.unwrap_or_default();
        let own = own.split(FITTED).next().unwrap_or_default();
        let numbers = format!("{own}{FITTED}\n{}", fitted_numbers(&frameworks));
        replace_file(&folder.join(cluster::PROFILES), numbers.as_bytes())?;
        spinner.tells(&format!(
            "written to {}; `forebay validate RUNS.csv --cluster-dir {0}` predicts with it",
            folder.display()
        ));
    }
    let mut compared = price(&cases, &clusters, &frameworks, threads);
    compared.skipped.extend(skipped);
    Ok((compared, result))
}

fn changes(fit: &Fit) -> String {
    let mut numbers = Table::new(&["fitted", "number", "before", "after"]).left(2);
    for change in &fit.changes {
        let shown = |x: f64| format!("{x:.3}");
        numbers.row(vec![change.of.clone(), change.key.into(), shown(change.before), shown(change.after)]);
    }
    let few: String = fit
        .few
        .iter()
        .map(|few| {
            let (runs, numbers) = (counted(few.runs as u64, "run"), counted(few.numbers as u64, "number"));
            format!("warning: {numbers} of {} are fitted to {runs}: they say little of other runs\n", few.of)
        })
        .collect();
    let mut left_out = Table::new(&["device's numbers", "as they are", "fitted to all", "to the others"]).left(1);
    for (system, LeftOut { kept, all, others }) in &fit.left_out {
        left_out.row(vec![system.clone(), percent(*kept), percent(*all), percent(*others)]);
    }
    let left_out = if fit.left_out.is_empty() { String::new() } else { format!("{}\n", left_out.render()) };
    let mut medians = format!("median error {} before the fit, {} after\n", percent(fit.before), percent(fit.after));
    if let Some(LeftOut { kept, all, others }) = fit.left_out_medians() {
        medians += &format!(
            "leaving one system of a device out: median of its systems' medians {}, {} with it ({:.2} times), {} as numbers are ({:.2} times)\n",
            percent(others),
            percent(all),
            others / all.max(f64::MIN_POSITIVE),
            percent(kept),
            others / kept.max(f64::MIN_POSITIVE)
        );
    }
    format!("\n{}\n{left_out}{few}{medians}", numbers.render())
}

/// A share in percent; what rounds to nothing has no sign.
fn percent(x: f64) -> String {
    format!("{:.1} %", (1000.0 * x).round() / 10.0 + 0.0)
}

fn table(summary: &Summary, worst: Option<usize>) -> String {
    let (Some(median), Some(below)) = (summary.median_abs_error, summary.p90_abs_error) else {
        return no_times(summary);
    };
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
    out += &runs_against_predictions(summary, worst);
    out += &format!(
        "{}: median error {}, 90 % below {}; {} skipped\n",
        counted(summary.rows.len() as u64, "run"),
        percent(median),
        percent(below),
        summary.skipped.len()
    );
    out += &units(summary);
    if let Some(fits) = &summary.fits {
        let share = |(all, right): (usize, usize)| format!("{right} of {all}");
        out += &format!(
            "  memory: {} that ran are predicted to fit, {} that ran out of it are predicted not to; balanced accuracy {}{}\n",
            share(fits.ran),
            share(fits.out_of_memory),
            percent(fits.balanced_accuracy),
            fits.near.map_or(String::new(), |near| format!(", {} near the limit", percent(near)))
        );
    }
    out += &too_large(summary);
    out += &profiles(summary);
    out += &of_runs("taken for blanks", summary.rows.iter().flat_map(|row| &row.assumed));
    out += &of_runs("read from notes", summary.rows.iter().flat_map(|row| &row.heard));
    out += &unread(summary);
    out + &skipped(summary)
}

/// What stands in notes and changes no prediction: what most runs have first, in how many each.
fn unread(summary: &Summary) -> String {
    let counts = counts_of(summary.rows.iter().flat_map(|row| &row.unread));
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let shown = counts.iter().take(MOST_UNREAD).map(|(words, n)| {
        let words: String = words.chars().take(WIDTH_OF_WORDS).collect();
        format!("`{words}` ({})", counted(*n as u64, "run"))
    });
    let shown: Vec<String> = shown.collect();
    match counts.len().saturating_sub(MOST_UNREAD) {
        _ if shown.is_empty() => String::new(),
        0 => format!("  words that change nothing: {}\n", shown.join(", ")),
        more => {
            format!("  words that change nothing: {}, and {more} others (--json has them by run)\n", shown.join(", "))
        }
    }
}

/// So many of them are shown, and of each so many characters.
const MOST_UNREAD: usize = 8;
const WIDTH_OF_WORDS: usize = 60;

/// How often each stands there.
fn counts_of<'a>(all: impl Iterator<Item = &'a String>) -> BTreeMap<&'a str, usize> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    all.for_each(|one| *counts.entry(one).or_default() += 1);
    counts
}

/// What holds for some runs, and for how many each.
fn of_runs<'a>(what: &str, all: impl Iterator<Item = &'a String>) -> String {
    let counts = counts_of(all);
    if counts.is_empty() {
        return String::new();
    }
    let each: Vec<String> = counts.iter().map(|(one, n)| format!("{one} ({})", counted(*n as u64, "run"))).collect();
    format!("  {what}: {}\n", each.join(", "))
}

/// The runs that are furthest off, or all of them in the order of their table.
fn runs_against_predictions(summary: &Summary, worst: Option<usize>) -> String {
    let mut rows: Vec<&Row> = summary.rows.iter().collect();
    let shown = worst.unwrap_or(if rows.len() <= ALL { ALL } else { WORST });
    let is_whole = worst.is_none() && shown >= rows.len();
    if !is_whole {
        rows.sort_by(|a, b| b.error.abs().total_cmp(&a.error.abs()));
    }
    rows.truncate(shown);
    if rows.is_empty() {
        return String::new();
    }
    let title = if is_whole { "run" } else { "worst" };
    let mut heads = vec![title, "measured", "predicted", "error"];
    let with_memory = rows.iter().any(|row| row.measured_mem_gb.is_some());
    if with_memory {
        heads.extend(["memory", "its prediction"]);
    }
    heads.push("suspected");
    let mut table = Table::new(&heads).left(1);
    for row in rows {
        let mut cells = vec![
            row.id.clone(),
            format!("{:.4} s", row.measured_s),
            format!("{:.4} s", row.predicted_s),
            percent(row.error),
        ];
        if with_memory {
            let measured = row.measured_mem_gb;
            cells.push(measured.map_or(String::new(), |gb| format!("{gb:.2} GB")));
            cells.push(measured.map_or(String::new(), |_| format!("{:.2} GB", row.predicted_mem_gb)));
        }
        cells.push(row.suspected.clone());
        table.row(cells);
    }
    format!("{}\n", table.render())
}

/// Runs of a table that is shown whole.
const ALL: usize = 40;
/// Runs that are shown of a larger one.
const WORST: usize = 10;

/// That runs which ran are predicted to need more memory than there is, where no run tells how good such predictions are.
fn too_large(summary: &Summary) -> String {
    let more = summary.rows.iter().filter(|row| row.needed_mem_gb > row.device_mem_gb).count();
    if more == 0 || summary.fits.is_some() {
        return String::new();
    }
    format!(
        "  memory: {} predicted to need more than there is on a device: perhaps what is computed again, or what ranks share (ZeRO), is not as their rows say\n",
        if more == 1 { "1 run is".into() } else { format!("{more} runs are") }
    )
}

/// Which profiles of frameworks systems were predicted with.
fn profiles(summary: &Summary) -> String {
    let mut systems: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in &summary.rows {
        systems.entry(&row.framework).or_default().insert(&row.system);
    }
    let each = systems.iter().map(|(profile, systems)| {
        let shown: Vec<&str> = systems.iter().take(SYSTEMS).copied().collect();
        let more = if systems.len() > SYSTEMS { ", …" } else { "" };
        format!("{profile} ({}{more})", shown.join(", "))
    });
    let each: Vec<String> = each.collect();
    let hint = if systems.contains_key(EAGER) {
        "; `eager` is for systems that `source` and `notes_config` do not name (--help lists names)"
    } else {
        ""
    };
    format!("  predicted as: {}{hint}\n", each.join(", "))
}

/// Systems that are listed with a profile.
const SYSTEMS: usize = 6;

/// The profile of systems that are not known.
const EAGER: &str = "eager";

/// How far a measurement is from its prediction where it is probably in another unit.
const OTHER_UNIT: f64 = 100.0;

/// FLOPs of a model, as a multiple of the peak in half precision, that no device makes, in whatever type.
const FASTEST: f64 = 2.0;

/// Fewer devices than these are a factor by which predictions may be off for another reason.
const FEW: u64 = 8;

/// That measurements look as if they were in another unit.
fn units(summary: &Summary) -> String {
    let far = |measured: f64, predicted: f64| !(1.0 / OTHER_UNIT..=OTHER_UNIT).contains(&(measured / predicted));
    let times = summary.rows.iter().filter(|row| far(row.measured_s, row.predicted_s)).count();
    let is_far = |row: &&Row| row.measured_mem_gb.is_some_and(|measured| far(measured, row.predicted_mem_gb));
    let memory = summary.rows.iter().filter(is_far).count();
    let told = |runs: usize, what: &str, columns: &str| match runs {
        0 => String::new(),
        _ => {
            let runs = counted(runs as u64, "run");
            format!(
                "  {what} of {runs}: more than {OTHER_UNIT} times off; are the units those of the columns, {columns}?\n"
            )
        }
    };
    // Of all devices what should be of one.
    let of_all = |row: &&Row| {
        let times = row.predicted_s / row.measured_s;
        row.devices >= FEW
            && !far(row.measured_s, row.predicted_s)
            && (0.7..1.4).contains(&(times / row.devices as f64))
    };
    let whole_jobs = summary.rows.iter().filter(of_all).count();
    // (Products in fp8 are twice as fast as those whose peak the share is of.)
    let beyond = |row: &&Row| {
        let times = row.predicted_s / row.measured_s;
        !far(row.measured_s, row.predicted_s) && !of_all(row) && row.report.mfu * times > FASTEST
    };
    let beyond = match summary.rows.iter().filter(beyond).count() {
        0 => String::new(),
        runs => format!(
            "  time of {}: more FLOPs a second than the device has; is what was measured of one device, and in the unit of its column?\n",
            counted(runs as u64, "run")
        ),
    };
    let whole = match whole_jobs {
        0 => String::new(),
        _ => format!(
            "  time of {}: as many times off as there are devices; are the tokens of tokens_per_s_per_device those of one device?\n",
            counted(whole_jobs as u64, "run")
        ),
    };
    whole
        + &beyond
        + &told(times, "time", "seconds in step_time_s, tokens a second and device in tokens_per_s_per_device")
        + &told(memory, "memory", "GB in peak_mem_gb (nanotron: GiB)")
}

/// What there is to say when there is no time to compare with: every run that was predicted ran out of memory, or it is the one that the others would be predicted with.
fn no_times(summary: &Summary) -> String {
    let out_of_memory = &summary.out_of_memory;
    if out_of_memory.is_empty() {
        return "there is no other run to predict\n".into();
    }
    let right = out_of_memory.iter().filter(|r| r.needed_mem_gb > r.device_mem_gb).count();
    format!(
        "no run has a measured time: {} ran out of memory, {right} of them as predicted; {} skipped\n{}",
        out_of_memory.len(),
        summary.skipped.len(),
        skipped(summary)
    )
}

/// The runs without a prediction, and why.
fn skipped(summary: &Summary) -> String {
    let lines: String = summary.skipped.iter().map(|row| format!("  {}\n", told(row))).collect();
    lines + &helps(&summary.skipped)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_sign() {
        assert_eq!([-1e-7, -0.0, 0.0, -0.0123].map(percent), ["0.0 %", "0.0 %", "0.0 %", "-1.2 %"]);
    }
}
