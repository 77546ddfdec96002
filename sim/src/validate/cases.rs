//! Runs made ready for prediction: their plans are compiled once, and priced as often as somebody asks.

use super::Row;
use super::layout;
use super::runs::Run;
use super::shape::Shape;
use crate::framework::{Framework, position};
use crate::report::{Options, Report, simulate};
use crate::steps::Fidelity;
use forebay_compiler::optimizer::Optimizer;
use forebay_compiler::pipeline::{CompileOptions, compile_training};
use forebay_compiler::shard::Strategy;
use forebay_cost::Cluster;
use forebay_ir::DType;
use forebay_plan::Plan;

/// A run with its plans.
#[derive(Clone, Debug)]
pub struct Case {
    /// The run.
    pub run: Run,
    /// Seconds of a step.
    pub measured_s: f64,
    /// Which of the clusters it ran on.
    pub cluster: usize,
    /// Which of the frameworks ran it; our own plan as it stands when none.
    pub framework: Option<usize>,
    shape: Shape,
    strategy: Strategy,
    plans: Plans,
}

/// A step as plans that are short enough to replay.
#[derive(Clone, Debug)]
struct Plans {
    /// With these micro-batches.
    micro: u32,
    plan: Plan,
    /// With a round of micro-batches less, where the step has more than are replayed.
    shorter: Option<Plan>,
}

impl Case {
    /// Compiles what is needed of a run.
    ///
    /// # Errors
    /// What its row lacks, or what does not fit together: a sentence.
    pub fn new(run: &Run, clusters: &[Cluster], frameworks: &[Framework]) -> Result<Case, String> {
        let measured_s = run.step_time.ok_or("nothing is measured")?;
        let cluster = clusters
            .iter()
            .position(|c| c.is_called(&run.device))
            .ok_or_else(|| format!("no cluster file is called `{}`", run.device))?;
        let framework = position(frameworks, &run.text);
        let profile = layout::stated(run, framework.map_or_else(Framework::default, |f| frameworks[f].clone()));
        layout::recompute(run)?;
        layout::precision(run)?;
        layout::site(run, &clusters[cluster])?;
        let shape = Shape::of(run, run.degree("tp") * run.degree("cp"))?;
        let strategy = layout::strategy(run, &shape, &profile)?;
        let plans = plans(&shape, &strategy)?;
        Ok(Case { run: run.clone(), measured_s, cluster, framework, shape, strategy, plans })
    }

    /// The run's step on one of the clusters, by one of the frameworks: the same that it was made with, with other numbers perhaps.
    ///
    /// # Errors
    /// As [`simulate`].
    pub fn price(&self, clusters: &[Cluster], frameworks: &[Framework]) -> Result<Report, String> {
        let framework = self.framework.map_or_else(Framework::default, |f| frameworks[f].clone());
        let options = Options {
            recompute: layout::recompute(&self.run)?,
            precision: layout::precision(&self.run)?,
            imbalance: layout::imbalance(&self.run),
            fidelity: Fidelity::Calls,
            without: false,
            framework: layout::stated(&self.run, framework),
        };
        let cluster = layout::site(&self.run, &clusters[self.cluster])?;
        self.plans.simulate(&self.strategy, &cluster, &options)
    }

    /// The run and its prediction.
    ///
    /// # Errors
    /// As [`Case::price`].
    pub fn row(&self, clusters: &[Cluster], frameworks: &[Framework]) -> Result<Row, String> {
        let run = &self.run;
        let report = self.price(clusters, frameworks)?;
        let predicted_mem_gb = report.memory_bytes.iter().map(|m| m.peak).fold(0.0, f64::max) / 1e9;
        Ok(Row {
            id: run.id.clone(),
            system: run.system.clone(),
            measured_s: self.measured_s,
            predicted_s: report.step_time_s,
            error: report.step_time_s / self.measured_s - 1.0,
            measured_mem_gb: run.memory_gb,
            predicted_mem_gb,
            framework: self.framework.map_or("plan", |f| frameworks[f].name.as_str()).to_string(),
            kind: if self.shape.experts() > 0 { "moe" } else { "dense" },
            devices: run.degree("n_devices"),
            sweep: format!("{}/{}/{}/{}", run.system, run.model, run.degree("n_devices"), run.degree("gbs")),
            assumed: layout::assumed(run, &self.shape),
            report,
        })
    }
}

/// The plans of a step of many micro-batches: of those that fill the pipeline, and of a round less.
fn plans(shape: &Shape, strategy: &Strategy) -> Result<Plans, String> {
    let micro = strategy.micro.unwrap_or(1);
    let round = strategy.pp;
    let full = strategy.pp.saturating_mul(strategy.vpp).min(1 << 24).saturating_mul(3).max(4).next_multiple_of(round);
    if micro <= full + round {
        let plan = compiled(shape, strategy, &[micro])?.pop().ok_or("there is no plan")?;
        return Ok(Plans { micro, plan, shorter: None });
    }
    // The same place within a round.
    let full = full + micro % round;
    let mut both = compiled(shape, strategy, &[full - round, full])?;
    let plan = both.pop().ok_or("there is no plan")?;
    Ok(Plans { micro: full, plan, shorter: both.pop() })
}

/// The plan of a run: the training step that `forebay run` would execute, with so many micro-batches.
fn compiled(shape: &Shape, strategy: &Strategy, micros: &[u32]) -> Result<Vec<Plan>, String> {
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
    compile_training(&accepted.model, &options, micros).map_err(|error| format!("{strategy}: {error}"))
}

impl Plans {
    /// Simulates a step of all micro-batches of a strategy.
    ///
    /// Once a pipeline is full, every round of `pp` micro-batches takes as long as the one before: a step of m micro-batches takes T(n) + (m − n) · (T(n) − T(n − pp)) / pp. With
    /// n = 3 · pp · vpp (and at least 4) little of the warm-up is in the difference: steps that are replayed whole come to the same within 1 % (a test). Memory does not depend on m beyond n.
    fn simulate(&self, strategy: &Strategy, cluster: &Cluster, options: &Options) -> Result<Report, String> {
        let report = simulate(&self.plan, cluster, options)?;
        let Some(shorter) = &self.shorter else { return Ok(report) };
        let shorter = simulate(shorter, cluster, options)?;
        let rounds = f64::from(strategy.micro.unwrap_or(1) - self.micro) / f64::from(strategy.pp);
        Ok(report.extended(&shorter, rounds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{find, known};
    use crate::validate::runs;

    const RUN: &str = "\
id,model,layers,hidden,ffn_hidden,moe_ffn_hidden,experts,topk,heads,kv_heads,head_dim,vocab,seq_len,device,devices_per_node,n_devices,tp,pp,vpp,ep,dp,mbs,gbs,precision,recompute,step_time_s
a,Mixture,8,512,2048,1024,8,2,8,8,64,32000,512,H100,8,8,1,4,2,2,2,1,96,BF16,none,1
";

    /// The rounds that are added are those that would have been replayed.
    #[test]
    fn rounds_of_a_full_pipeline_are_alike() {
        let run = &runs::read(RUN).expect("a table").runs[0];
        let cluster = known_cluster("h100");
        let framework = layout::stated(run, find(&known(), &run.text));
        let shape = Shape::of(run, 1).expect("a shape");
        for (vpp, micro) in [(1, 48), (1, 51), (2, 48)] {
            let mut strategy = layout::strategy(run, &shape, &framework).expect("a strategy");
            (strategy.vpp, strategy.micro) = (vpp, Some(micro));
            let options = Options { framework: framework.clone(), ..Options::default() };
            let plan = compiled(&shape, &strategy, &[micro]).expect("a plan").remove(0);
            let whole = simulate(&plan, &cluster, &options).expect("a report");
            let plans = plans(&shape, &strategy).expect("plans");
            assert!(plans.shorter.is_some(), "it is not replayed whole");
            let added = plans.simulate(&strategy, &cluster, &options).expect("a report");
            let error = added.step_time_s / whole.step_time_s - 1.0;
            assert!(error.abs() < 1e-2, "{strategy}: {} whole, {} added up", whole.step_time_s, added.step_time_s);
            // All that is reported is that of the whole step, and its parts are the step.
            for report in [&whole, &added] {
                let parts: f64 = report.time_s.iter().map(|p| p.seconds).sum();
                assert!((parts / report.step_time_s - 1.0).abs() < 1e-9, "{parts} of {}", report.step_time_s);
            }
            assert!((added.mfu / whole.mfu - 1.0).abs() < 1e-2 && (added.hfu / whole.hfu - 1.0).abs() < 1e-2);
            for (a, b) in added.by_kind.iter().zip(&whole.by_kind) {
                assert!((a.1 - b.1).abs() <= 1e-2 * b.1, "{a:?} is not {b:?}");
            }
        }
    }

    fn known_cluster(name: &str) -> Cluster {
        let (_, text) = forebay_cost::known::FILES.iter().find(|(n, _)| *n == name).expect("a cluster");
        Cluster::parse(text).expect("it is right")
    }
}
