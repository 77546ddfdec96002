//! Predictions against measured runs.
//!
//! A run's row becomes a model file, a strategy and a framework profile; the model is compiled to the plan that `forebay run` would execute, and simulated.

pub mod layout;
pub mod runs;
pub mod shape;
pub mod summary;

use crate::framework::{Framework, find, known};
use crate::report::{Options, Report, simulate};
use crate::steps::Fidelity;
use forebay_compiler::optimizer::Optimizer;
use forebay_compiler::pipeline::{CompileOptions, Models, compile};
use forebay_compiler::shard::Strategy;
use forebay_cost::Cluster;
use forebay_ir::DType;
use forebay_plan::Plan;
use runs::Run;
use serde::Serialize;
use shape::Shape;

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
    /// GB of a device at most.
    pub measured_mem_gb: Option<f64>,
    /// The same, predicted.
    pub predicted_mem_gb: f64,
    /// The profile that it was predicted with.
    pub framework: String,
    /// `dense` or `moe`.
    pub kind: &'static str,
    /// Devices.
    pub devices: u64,
    /// Model, devices and batch: runs of one sweep are compared with each other.
    pub sweep: String,
    /// What was taken for blanks.
    pub assumed: Vec<String>,
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
}

/// Predicts runs on `threads` threads; the result does not depend on how many.
pub fn predict(runs: &[Run], clusters: &[Cluster], threads: usize) -> (Vec<Row>, Vec<Skipped>) {
    let frameworks = known();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let take = || {
        let mut done = vec![];
        loop {
            let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(run) = runs.get(number) else { return done };
            done.push((number, one(run, clusters, &frameworks)));
        }
    };
    let mut all: Vec<(usize, Result<Row, String>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(take)).collect();
        workers.into_iter().flat_map(|w| w.join().expect("predictions do not panic")).collect()
    });
    all.sort_by_key(|(number, _)| *number);
    let (mut rows, mut skipped) = (vec![], vec![]);
    for (number, result) in all {
        match result {
            Ok(row) => rows.push(row),
            Err(why) => skipped.push(Skipped { id: runs[number].id.clone(), why }),
        }
    }
    (rows, skipped)
}

fn one(run: &Run, clusters: &[Cluster], frameworks: &[Framework]) -> Result<Row, String> {
    let measured_s = run.step_time.ok_or("nothing is measured")?;
    let cluster = clusters
        .iter()
        .find(|c| c.is_called(&run.device))
        .ok_or_else(|| format!("no cluster file is called `{}`", run.device))?;
    let cluster = layout::site(run, cluster);
    let framework = layout::stated(run, find(frameworks, &run.text));
    let shape = Shape::of(run, run.degree("tp") * run.degree("cp"))?;
    let strategy = layout::strategy(run, &shape, &framework)?;
    let options = Options {
        recompute: layout::recompute(run),
        precision: layout::precision(run),
        imbalance: layout::imbalance(run),
        fidelity: Fidelity::Calls,
        without: false,
        framework,
    };
    let report = steady(&shape, &strategy, &cluster, &options)?;
    let predicted_mem_gb = report.memory_bytes.iter().map(|m| m.peak).fold(0.0, f64::max) / 1e9;
    let blank = |name: &str| run.number(name).is_none().then(|| format!("{name} = 1"));
    Ok(Row {
        id: run.id.clone(),
        system: run.system.clone(),
        measured_s,
        predicted_s: report.step_time_s,
        error: report.step_time_s / measured_s - 1.0,
        measured_mem_gb: run.memory_gb,
        predicted_mem_gb,
        framework: options.framework.name.clone(),
        kind: if shape.experts() > 0 { "moe" } else { "dense" },
        devices: run.degree("n_devices"),
        sweep: format!("{}/{}/{}/{}", run.system, run.model, run.degree("n_devices"), run.degree("gbs")),
        assumed: ["mbs", "vpp"].into_iter().filter_map(blank).collect(),
        report,
    })
}

/// Simulates a step of many micro-batches by those that fill the pipeline.
///
/// Once a pipeline is full, every round of `pp` micro-batches takes as long as the one before: a step of m micro-batches takes T(n) + (m − n) · (T(n) − T(n − pp)) / pp. With
/// n = 3 · pp · vpp (and at least 4) little of the warm-up is in the difference: steps that are replayed whole come to the same within 1 % (a test). Memory does not depend on m beyond n.
fn steady(shape: &Shape, strategy: &Strategy, cluster: &Cluster, options: &Options) -> Result<Report, String> {
    let micro = strategy.micro.unwrap_or(1);
    let round = strategy.pp;
    let full = strategy.pp.saturating_mul(strategy.vpp).min(1 << 24).saturating_mul(3).max(4).next_multiple_of(round);
    let of = |micro: u32| {
        let strategy = Strategy { micro: Some(micro), ..strategy.clone() };
        simulate(&plan(shape, &strategy)?, cluster, options)
    };
    if micro <= full + round {
        return of(micro);
    }
    // The same place within a round.
    let full = full + micro % round;
    let (less, mut report) = (of(full - round)?, of(full)?);
    let (rounds, short) = (f64::from(micro - full) / f64::from(round), report.step_time_s);
    report.step_time_s += rounds * (short - less.step_time_s);
    let longer = report.step_time_s / short;
    let share = f64::from(micro) / f64::from(full) / longer;
    report.tokens_per_s_per_device *= share;
    report.mfu *= share;
    report.hfu *= share;
    report.bubble_fraction /= longer;
    report.by_kind.iter_mut().for_each(|(_, seconds)| *seconds *= f64::from(micro) / f64::from(full));
    Ok(report)
}

/// The plan of a run: what `forebay run` would execute.
fn plan(shape: &Shape, strategy: &Strategy) -> Result<Plan, String> {
    let options = CompileOptions {
        compute: DType::BF16,
        micro_batches: strategy.micro.unwrap_or(1),
        optimizer: Optimizer::default(),
        strategy: strategy.clone(),
        ..CompileOptions::default()
    };
    let check = options.check_options(true, strategy.mbs.map(u64::from), options.micro_batches);
    let accepted = forebay_dsl::load(&shape.text(), &check).map_err(|diagnostics| {
        diagnostics
            .first()
            .map_or("its model cannot be written down".to_string(), |d| format!("its model: {}", d.message))
    })?;
    let train = accepted.model;
    let models = Models { eval: train.clone(), generate: train.clone(), train };
    compile(&models, &options).map_err(|error| format!("{strategy}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "\
id,model,layers,hidden,ffn_hidden,moe_ffn_hidden,experts,topk,heads,kv_heads,head_dim,vocab,seq_len,device,devices_per_node,n_devices,tp,pp,vpp,ep,dp,mbs,gbs,precision,recompute,step_time_s
a,Mixture,8,512,2048,1024,8,2,8,8,64,32000,512,H100,8,8,1,4,2,2,2,1,96,BF16,none,1
";

    /// The rounds that are added are those that would have been replayed.
    #[test]
    fn rounds_of_a_full_pipeline_are_alike() {
        let (read, _) = runs::read(RUN).expect("a table");
        let run = &read[0];
        let cluster = known_cluster("h100");
        let framework = layout::stated(run, find(&known(), &run.text));
        let shape = Shape::of(run, 1).expect("a shape");
        for (vpp, micro) in [(1, 48), (1, 51), (2, 48)] {
            let mut strategy = layout::strategy(run, &shape, &framework).expect("a strategy");
            (strategy.vpp, strategy.micro) = (vpp, Some(micro));
            let options = Options { framework: framework.clone(), ..Options::default() };
            let whole = simulate(&plan(&shape, &strategy).expect("a plan"), &cluster, &options).expect("a report");
            let added = steady(&shape, &strategy, &cluster, &options).expect("a report");
            let error = added.step_time_s / whole.step_time_s - 1.0;
            assert!(error.abs() < 1e-2, "{strategy}: {} whole, {} added up", whole.step_time_s, added.step_time_s);
        }
    }

    fn known_cluster(name: &str) -> Cluster {
        let (_, text) = forebay_cost::known::FILES.iter().find(|(n, _)| *n == name).expect("a cluster");
        Cluster::parse(text).expect("it is right")
    }
}
