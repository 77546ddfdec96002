//! What a run shows while it goes on: a progress bar for people, lines of JSON for programs.

use crate::failure::Failure;
use crate::files::{LARGE, read_text, replace_file};
use crate::output::{json, seconds, short};
use crate::say::say;
use forebay_runtime::exec::{PeakMemory, human_bytes};
use forebay_runtime::train::{Evaluation, Observer, StepReport, Summary};
use indicatif::{ProgressBar, ProgressStyle};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Lines of progress that a run of any length prints where there is no terminal.
const LINES: u64 = 20;

/// A step as JSON.
#[derive(Serialize)]
struct StepLine {
    step: u64,
    loss: f64,
    tokens_per_s: f64,
    grad_norm: f64,
    lr: f64,
    /// By the clock of emulated devices, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    device_s: Option<f64>,
}

/// An evaluation during a run as JSON.
#[derive(Serialize)]
struct EvalLine {
    eval: EvalFields,
}

#[derive(Serialize)]
struct EvalFields {
    step: u64,
    val_loss: f64,
    val_bits_per_byte: f64,
}

/// The end of a run as JSON.
#[derive(Serialize)]
struct SummaryLine {
    summary: SummaryFields,
}

#[derive(Serialize)]
struct SummaryFields {
    train_loss: Option<f64>,
    val_loss: Option<f64>,
    val_bits_per_byte: Option<f64>,
    order0_bits_per_byte: f64,
    tokens_per_s: Option<f64>,
    /// Of all ranks, on devices and hosts.
    peak_bytes: u64,
    /// Of the rank that takes most, on its device.
    device_bytes: u64,
    /// Of all ranks, in the host's memory.
    host_bytes: u64,
    params: u64,
    active_params: u64,
}

/// Says at a terminal what a command that takes long is at; gone when it is dropped.
pub struct Spinner {
    bar: Option<ProgressBar>,
}

impl Spinner {
    /// Shown after a moment, where people look and nothing else is asked for.
    pub fn new(json: bool, what: &str) -> Spinner {
        let bar = (!json && io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("a valid template"));
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        let spinner = Spinner { bar };
        spinner.says(what);
        spinner
    }

    /// Says something else.
    pub fn says(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_string());
        }
    }

    /// Says something that stays: at a terminal above, elsewhere as a line of its own.
    pub fn tells(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.println(what),
            None => say!("{what}"),
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows a run.
pub struct Progress {
    json: bool,
    log: Option<(File, PathBuf)>,
    bar: Option<ProgressBar>,
    steps: u64,
    first: u64,
    /// Seconds for a step, smoothed.
    pace: Option<f64>,
}

impl Progress {
    /// For a run that goes from `done` steps to `steps`. A log that exists is gone on with: lines of steps after `done` are dropped.
    pub fn new(json: bool, log: Option<&Path>, done: u64, steps: u64) -> io::Result<Progress> {
        let log = log.map(|path| open_log(path, done).map(|file| (file, path.to_path_buf()))).transpose()?;
        let bar = (!json && io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(steps);
            let style = ProgressStyle::with_template("{bar:24.cyan/dim} {pos}/{len}  {msg}").expect("a valid template");
            bar.set_style(style.progress_chars("━╸─"));
            bar.set_position(done);
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Ok(Progress { json, log, bar, steps, first: done + 1, pace: None })
    }

    /// Something to know, above the bar.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None if self.json => {}
            None => say!("{text}"),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// The end of a run, for programs.
    pub fn summary(&mut self, summary: &Summary, params: u64, active_params: u64) -> io::Result<()> {
        self.line(&SummaryLine {
            summary: SummaryFields {
                train_loss: summary.train_loss,
                val_loss: summary.evaluation.map(|e| e.loss),
                val_bits_per_byte: summary.evaluation.map(|e| e.bits_per_byte()),
                order0_bits_per_byte: summary.order0_bits,
                tokens_per_s: summary.tokens_per_s,
                peak_bytes: summary.memory.bytes(),
                device_bytes: summary.memory.largest_device_bytes,
                host_bytes: summary.memory.host_bytes,
                params,
                active_params,
            },
        })
    }

    fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        if !self.json && self.log.is_none() {
            return Ok(());
        }
        let line = json(value) + "\n";
        if let Some((log, path)) = &mut self.log {
            let failed = |error| io::Error::other(format!("cannot write the log `{}`: {error}", path.display()));
            log.write_all(line.as_bytes()).map_err(failed)?;
        }
        if self.json {
            let mut out = io::stdout().lock();
            out.write_all(line.as_bytes())
                .and_then(|()| out.flush())
                .map_err(|error| io::Error::new(error.kind(), format!("cannot write to stdout: {error}")))?;
        }
        Ok(())
    }

    fn show(&mut self, report: &StepReport) {
        let pace = self.pace.map_or(report.seconds, |p| 0.9 * p + 0.1 * report.seconds);
        // The first step touches memory for the first time and says nothing about the next.
        self.pace = (report.step > self.first).then_some(pace);
        let left = self.steps.saturating_sub(report.step) as f64 * pace;
        let speed = short(report.tokens_per_s * report.seconds / pace);
        let devices = report.device_seconds.map_or(String::new(), |s| format!("{} on devices  ", seconds(s)));
        let text = format!("loss {:.4}  {devices}{speed} tokens/s  {} left", report.loss, clock(left));
        match &self.bar {
            Some(bar) => {
                bar.set_position(report.step);
                bar.set_message(text);
            }
            None if self.json => {}
            None => {
                let every = self.steps.div_ceil(LINES).max(1);
                if report.step.is_multiple_of(every) || report.step == self.first || report.step == self.steps {
                    say!("step {}/{}  {text}", report.step, self.steps);
                }
            }
        }
    }
}

impl Observer for Progress {
    fn step(&mut self, report: &StepReport) -> io::Result<()> {
        let StepReport { step, loss, tokens_per_s, grad_norm, lr, device_seconds: device_s, .. } = *report;
        self.line(&StepLine { step, loss, tokens_per_s, grad_norm, lr, device_s })?;
        self.show(report);
        Ok(())
    }

    fn evaluated(&mut self, step: u64, evaluation: &Evaluation) -> io::Result<()> {
        // The last one is in the summary.
        if step < self.steps {
            let val_bits_per_byte = evaluation.bits_per_byte();
            self.line(&EvalLine { eval: EvalFields { step, val_loss: evaluation.loss, val_bits_per_byte } })?;
            self.note(&format!(
                "step {step}: validation loss {:.4} ({val_bits_per_byte:.3} bits/byte)",
                evaluation.loss
            ));
        }
        Ok(())
    }
}

/// A line of a log, as far as it says which step it is of: a step's has its number, an evaluation's has it inside.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Step {
        step: u64,
    },
    Evaluation {
        eval: OfStep,
    },
    Summary {
        #[serde(rename = "summary")]
        _of_run: IgnoredAny,
    },
}

#[derive(Deserialize)]
struct OfStep {
    step: u64,
}

/// What lines begin with.
const BEGINNINGS: [&str; 3] = ["{\"step\":", "{\"eval\":", "{\"summary\":"];

/// Opens a log to add lines to; those of steps that will be done again are dropped.
fn open_log(path: &Path, done: u64) -> io::Result<File> {
    if done > 0 && path.exists() {
        let other = |failure: Failure| io::Error::other(failure.text().to_string());
        let text = read_text(path, LARGE).map_err(other)?;
        replace_file(path, up_to(&text, done).map_err(io::Error::other)?.as_bytes()).map_err(other)?;
        return OpenOptions::new().append(true).open(path);
    }
    File::create(path)
}

/// The lines of a log up to a step. A text that is no log is refused, since nothing of it would be left.
fn up_to(log: &str, done: u64) -> Result<String, String> {
    let mut kept = String::new();
    for (line, number) in log.split_inclusive('\n').zip(1..) {
        match serde_json::from_str(line) {
            Ok(Line::Step { step } | Line::Evaluation { eval: OfStep { step } }) if step <= done => kept += line,
            Ok(Line::Step { .. } | Line::Evaluation { .. } | Line::Summary { .. }) => {}
            // Where a run was killed, its last line may end anywhere.
            Err(_)
                if !line.ends_with('\n') && BEGINNINGS.iter().any(|b| b.starts_with(line) || line.starts_with(b)) => {}
            Err(_) => return Err(format!("line {number} of it is not of a log, and would be lost: name another file")),
        }
    }
    // One that was cut off just before its end is whole.
    Ok(if kept.is_empty() || kept.ends_with('\n') { kept } else { kept + "\n" })
}

/// Seconds as people write them: `1:05`, `2:03:00`.
fn clock(seconds: f64) -> String {
    let s = seconds.round() as u64;
    match s / 3600 {
        0 => format!("{}:{:02}", s / 60, s % 60),
        hours => format!("{hours}:{:02}:{:02}", s / 60 % 60, s % 60),
    }
}

/// The end of a run, for people.
pub fn summary_text(summary: &Summary, steps_shape: &str, params: u64, active_params: u64) -> String {
    let ln2 = std::f64::consts::LN_2;
    let mut out = format!(
        "\n{steps_shape}, {} parameters ({} active for a token)\n\n",
        short(params as f64),
        short(active_params as f64)
    );
    let mut table = crate::output::Table::new(&["", "nats/token", "bits/byte", ""]);
    let mut row = |name: &str, nats: f64, note: &str| {
        table.row(vec![name.into(), format!("{nats:.4}"), format!("{:.4}", nats / ln2), note.into()]);
    };
    if let Some(loss) = summary.train_loss {
        row("training loss", loss, "");
    }
    if let Some(evaluation) = &summary.evaluation {
        row(
            "validation loss",
            evaluation.loss,
            &format!("{:.0} % of order 0", 100.0 * evaluation.bits_per_byte() / summary.order0_bits),
        );
    }
    row("order-0 entropy", summary.order0_bits * ln2, "");
    out.push_str(&table.render());
    out.push('\n');
    if let Some(speed) = summary.tokens_per_s {
        out.push_str(&format!("speed       {} tokens/s\n", short(speed)));
    }
    out.push_str(&memory_line(&summary.memory, summary.ranks));
    if let Some(folder) = &summary.checkpoint {
        out.push_str(&format!("checkpoint  {}\n", folder.display()));
    }
    out
}

/// Where memory went at the peak.
fn memory_line(memory: &PeakMemory, ranks: usize) -> String {
    let m = &memory.by_kind;
    let kinds = [
        ("weights", m.weights),
        ("gradients", m.gradients),
        ("optimizer", m.optimizer),
        ("activations", m.activations),
        ("other", m.other),
    ];
    let kinds: Vec<String> = kinds.iter().map(|(name, bytes)| format!("{name} {}", human_bytes(*bytes))).collect();
    let largest = human_bytes(memory.largest_device_bytes);
    let whose = if ranks > 1 { format!(" of {ranks} ranks together, {largest} of one at most") } else { String::new() };
    let host = match memory.host_bytes {
        0 => String::new(),
        bytes => format!("; on the host besides {}", human_bytes(bytes)),
    };
    format!("memory      {} at the peak{whose}: {}{host}\n", human_bytes(memory.device_bytes), kinds.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn times() {
        assert_eq!(clock(0.4), "0:00");
        assert_eq!(clock(65.0), "1:05");
        assert_eq!(clock(7380.0), "2:03:00");
    }

    #[test]
    fn logs_are_gone_on_with() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("log");
        let kept = "{\"step\":1,\"loss\":2}\n{\"eval\":{\"step\":1,\"val_loss\":3.0}}\n{\"step\":2}\n{\"eval\":{\"step\":2,\"val_loss\":2.5}}\n";
        let lost = "{\"step\":3}\n{\"eval\":{\"step\":3,\"val_loss\":2.0}}\n{\"summary\":{}}\n{\"st";
        fs::write(&path, format!("{kept}{lost}")).expect("a file");
        writeln!(open_log(&path, 2).expect("a log"), "new").expect("a line");
        assert_eq!(fs::read_to_string(&path).expect("a file"), format!("{kept}new\n"));
        open_log(&path, 0).expect("a log");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "");
    }

    #[test]
    fn what_is_no_log_is_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("log");
        let step = "{\"step\":1}\n";
        for (text, line) in [
            ("a diary", 1),
            ("a diary\n", 1),
            (&format!("{step}\n"), 2),
            (&format!("{step}{{\"st\n{step}"), 2),
            (&format!("{step}{{\"loss\":2}}\n"), 2),
        ] {
            fs::write(&path, text).expect("a file");
            let error = open_log(&path, 1).expect_err(text).to_string();
            assert!(error.starts_with(&format!("line {line} of it is not of a log")), "{text}: {error}");
            assert_eq!(fs::read_to_string(&path).expect("a file"), text);
        }
        for end in ["", "{", "{\"eval\":{\"st", "{\"summary\":{\"train_loss\":1"] {
            fs::write(&path, format!("{step}{end}")).expect("a file");
            open_log(&path, 1).expect("a log");
            assert_eq!(fs::read_to_string(&path).expect("a file"), step);
        }
        fs::write(&path, step.trim_end()).expect("a file");
        open_log(&path, 1).expect("a log");
        assert_eq!(fs::read_to_string(&path).expect("a file"), step);
    }
}
