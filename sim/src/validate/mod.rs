//! Predictions against measured runs.
//!
//! A run's row becomes a model file, a strategy and a framework profile; the model is compiled to the plan that `forebay run` would execute, and simulated.

pub mod anchor;
pub mod cases;
mod family;
pub mod fit;
pub mod layout;
mod lines;
mod newton;
pub mod notes;
pub mod pairs;
pub mod recompute;
pub mod runs;
pub mod shape;
pub mod site;
pub mod summary;

use crate::framework::{Framework, known};
use crate::report::Report;
use crate::threads::each;
use cases::Case;
use forebay_cost::Cluster;
use runs::Run;
use serde::Serialize;

/// A run and its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The run.
    pub id: String,
    /// Its system.
    pub system: String,
    /// Seconds of a step.
    pub measured_s: f64,
    /// The same, predicted.
    pub predicted_s: f64,
    /// predicted / measured − 1.
    pub error: f64,
    /// GB of a device at most; GiB, here and below, where the system calls them GB (nanotron).
    pub measured_mem_gb: Option<f64>,
    /// The same, predicted: of the fullest stage, or of the first where the system tells of that (nanotron).
    pub predicted_mem_gb: f64,
    /// GB that the fullest stage needs.
    pub needed_mem_gb: f64,
    /// GB that programs may use of a device.
    pub device_mem_gb: f64,
    /// The profile that it was predicted with.
    pub framework: String,
    /// `dense` or `moe`.
    pub kind: &'static str,
    /// Devices.
    pub devices: u64,
    /// Architecture, devices and batch: runs of one sweep are compared with each other.
    pub sweep: String,
    /// The strategy, as `--strategy` takes it.
    pub strategy: String,
    /// What was taken for blanks.
    pub assumed: Vec<String>,
    /// What its notes changed in its system's profile and in the strategy.
    pub heard: Vec<String>,
    /// Parts of its notes that change nothing by themselves: what is not known, and what is so unasked.
    pub unread: Vec<String>,
    /// Where to look first if the prediction is wrong.
    pub suspected: String,
    /// Where the time goes.
    pub report: Report,
}

/// A run without a prediction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// The run.
    pub id: String,
    /// Why: a sentence.
    pub why: String,
    /// What helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl Skipped {
    /// By a message, which may have its help behind it.
    pub fn new(id: &str, message: &str) -> Skipped {
        let (why, help) = message.split_once("\n  = help: ").map_or((message, None), |(why, help)| (why, Some(help)));
        Skipped { id: id.to_string(), why: why.to_string(), help: help.map(str::to_string) }
    }
}

/// A run that did not fit into memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutOfMemory {
    /// The run.
    pub id: String,
    /// Its system.
    pub system: String,
    /// GB of a device at most, predicted; GiB, here and below, where the system calls them GB (nanotron).
    pub needed_mem_gb: f64,
    /// GB that programs may use of a device.
    pub device_mem_gb: f64,
}

/// A run against its prediction.
#[derive(Clone, Debug, PartialEq)]
pub enum Comparison {
    /// It has a time.
    Row(Box<Row>),
    /// It did not fit.
    OutOfMemory(OutOfMemory),
}

/// All runs against their predictions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// Those with a time.
    pub rows: Vec<Row>,
    /// Those that did not fit.
    pub out_of_memory: Vec<OutOfMemory>,
    /// Those without a prediction.
    pub skipped: Vec<Skipped>,
}

impl Compared {
    /// Puts others behind these.
    pub fn extend(&mut self, others: Compared) {
        let Compared { rows, out_of_memory, skipped } = others;
        self.rows.extend(rows);
        self.out_of_memory.extend(out_of_memory);
        self.skipped.extend(skipped);
    }

    fn of<'a>(ids: impl Iterator<Item = &'a str>, results: Vec<Result<Comparison, String>>) -> Compared {
        let (compared, skipped) = divided(ids, results);
        let mut all = Compared { skipped, ..Compared::default() };
        for comparison in compared {
            match comparison {
                Comparison::Row(row) => all.rows.push(*row),
                Comparison::OutOfMemory(run) => all.out_of_memory.push(run),
            }
        }
        all
    }
}

/// Predicts runs on `threads` threads; the result does not depend on how many.
pub fn predict(runs: &[Run], clusters: &[Cluster], threads: usize) -> Compared {
    predict_as(runs, clusters, &known(), threads)
}

/// The same, with certain profiles of frameworks.
pub fn predict_as(runs: &[Run], clusters: &[Cluster], frameworks: &[Framework], threads: usize) -> Compared {
    let predicted = each(runs, threads, |run| Case::new(run, clusters, frameworks)?.compare(clusters, frameworks));
    Compared::of(runs.iter().map(|run| run.id.as_str()), predicted)
}

/// Compiles the plans of runs, to be priced as often as needed.
pub fn prepare(
    runs: &[Run],
    clusters: &[Cluster],
    frameworks: &[Framework],
    threads: usize,
) -> (Vec<Case>, Vec<Skipped>) {
    let cases = each(runs, threads, |run| Case::new(run, clusters, frameworks));
    divided(runs.iter().map(|run| run.id.as_str()), cases)
}

/// Prices runs that were made ready.
pub fn price(cases: &[Case], clusters: &[Cluster], frameworks: &[Framework], threads: usize) -> Compared {
    let compared = each(cases, threads, |case| case.compare(clusters, frameworks));
    Compared::of(cases.iter().map(|case| case.run.id.as_str()), compared)
}

/// What came out, and of which runs nothing did.
fn divided<'a, T>(ids: impl Iterator<Item = &'a str>, results: Vec<Result<T, String>>) -> (Vec<T>, Vec<Skipped>) {
    let (mut good, mut skipped) = (vec![], vec![]);
    for (id, result) in ids.zip(results) {
        match result {
            Ok(value) => good.push(value),
            Err(why) => skipped.push(Skipped::new(id, &why)),
        }
    }
    (good, skipped)
}
