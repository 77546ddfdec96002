//! Runs made ready for prediction: their plans are compiled once, and priced as often as somebody asks.

use super::runs::Run;
use super::shape::{Shape, is_packed};
use super::{Comparison, OutOfMemory, Row};
use super::{layout, notes, recompute, site};
use crate::clock;
use crate::documents::{Within, stay_within};
use crate::framework::Framework;
use crate::lower::Recompute;
use crate::matches::{About, position};
use crate::memory::StageMemory;
use crate::report::{Options, Report, simulate_once, step_time, where_crowded};
use crate::shared::settled;
use crate::steps::Fidelity;
use forebay_compiler::optimizer::Optimizer;
use forebay_compiler::pipeline::{CompileOptions, compile_in_line, compile_training};
use forebay_compiler::schedule::Gradients;
use forebay_compiler::shard::{Strategy, shard_model};
use forebay_cost::{Cluster, Precision};
use forebay_dsl::diagnostics::closest;
use forebay_ir::DType;
use forebay_plan::{Plan, Role};
use std::sync::Arc;

/// A run with its plans.
#[derive(Clone, Debug)]
pub struct Case {
    /// The run.
    pub run: Run,
    /// Seconds of a step; none where it ran out of memory.
    pub measured_s: Option<f64>,
    /// Which of the clusters it ran on.
    pub cluster: usize,
    /// Which of the frameworks ran it; our own plan as it stands when none.
    pub framework: Option<usize>,
    shape: Shape,
    /// What the row's blanks may be: one filling where it has none.
    fillings: Vec<Filling>,
}

/// A run with its blanks filled.
#[derive(Clone, Debug)]
struct Filling {
    /// What was taken: `vpp = 2`.
    assumed: Vec<String>,
    strategy: Strategy,
    recompute: Recompute,
    /// Shared by those that differ only in what is computed again.
    plans: Arc<Plans>,
}

/// A step as plans that are short enough to replay.
#[derive(Clone, Debug)]
struct Plans {
    /// Floating-point operations that the model needs for the whole step, attention counted causally.
    flops: f64,
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
    /// What its row lacks, or what does not fit together: its line, and a sentence.
    pub fn new(run: &Run, clusters: &[Cluster], frameworks: &[Framework]) -> Result<Case, String> {
        Case::made(&notes::with_degrees(run), clusters, frameworks).map_err(|why| format!("line {}: {why}", run.line))
    }

    fn made(run: &Run, clusters: &[Cluster], frameworks: &[Framework]) -> Result<Case, String> {
        if run.step_time.is_none() && run.tflops.is_none() && !run.out_of_memory {
            return Err("nothing is measured\n  = help: `step_time_s`, `tokens_per_s_per_device` or `tflops_per_device` says how fast it was; of `mfu` alone nobody knows whose FLOPs and which peak".into());
        }
        notes::trains_all(run)?;
        if run.device.is_empty() {
            return Err("`device` is not given".into());
        }
        // (Others have values that are taken where they are blank.)
        for column in ["n_devices", "gbs"] {
            run.number(column).ok_or_else(|| format!("`{column}` is not given"))?;
        }
        let cluster =
            clusters.iter().position(|c| c.is_called(&run.device)).ok_or_else(|| no_cluster(&run.device, clusters))?;
        let precision = notes::precision(run)?;
        let framework = position(frameworks, &about(run, &clusters[cluster], precision));
        let profile = notes::stated(run, framework.map_or_else(Framework::default, |f| frameworks[f].clone()));
        recompute::recompute(run)?;
        site::site(run, &clusters[cluster])?;
        let shape = Shape::of(run, run.degree("tp"))?;
        let how = How::of(run, &profile, &clusters[cluster])?;
        let fillings = fillings(run, &shape, &profile, &how)?;
        let devices = run.degree("n_devices") as f64;
        let step_of = |tflops: f64| Some(fillings.first()?.plans.flops / (tflops * 1e12 * devices));
        let measured_s = run.step_time.or_else(|| run.tflops.and_then(step_of)).filter(|_| !run.out_of_memory);
        Ok(Case { run: run.clone(), measured_s, cluster, framework, shape, fillings })
    }

    /// The run's step on one of the clusters, by one of the frameworks: the same that it was made with, with other numbers perhaps.
    ///
    /// # Errors
    /// As [`simulate`](crate::simulate).
    pub fn price(&self, clusters: &[Cluster], frameworks: &[Framework]) -> Result<Report, String> {
        Ok(self.fastest_that_fits(clusters, frameworks)?.1)
    }

    /// The step time alone, as [`Case::price`] has it.
    ///
    /// # Errors
    /// As [`simulate`](crate::simulate).
    pub fn step_time(&self, clusters: &[Cluster], frameworks: &[Framework]) -> Result<f64, String> {
        let [only] = &self.fillings[..] else {
            return Ok(self.price(clusters, frameworks)?.step_time_s);
        };
        let cluster = site::site(&self.run, &clusters[self.cluster])?;
        only.plans.step_time(&only.strategy, &cluster, &self.options(only, frameworks, &cluster)?)
    }

    /// What the row's framework does in its run.
    fn profile(&self, frameworks: &[Framework]) -> Framework {
        notes::stated(&self.run, self.table_profile(frameworks))
    }

    /// What its notes changed: of its system, its strategy, its model and its network.
    fn heard(&self, frameworks: &[Framework]) -> Vec<String> {
        let mut heard = notes::heard(&self.run, &self.table_profile(frameworks));
        heard.extend(self.shape.heard(&self.run));
        heard.extend(site::heard(&self.run));
        heard
    }

    /// Parts of its notes, between commas and semicolons, that change nothing: by themselves, or where they are left out.
    fn unread(&self, clusters: &[Cluster], frameworks: &[Framework], precision: Precision) -> Vec<String> {
        let cluster = &clusters[self.cluster];
        let profile = self.table_profile(frameworks);
        let heard = |run: &Run| {
            let of_model = Shape::of(run, 1).map_or(vec![], |shape| shape.heard(run));
            let of_site = site::heard(run).into_iter().chain(site::heard_of_release(run, cluster));
            let means = position(frameworks, &about(run, cluster, precision));
            let options = (recompute::is_option(&run.text), is_packed(&run.text), layout::interleaving(&run.text));
            (means, options, notes::heard(run, &profile), of_model, of_site.collect::<Vec<_>>())
        };
        let (silent, whole) = (heard(&self.run.silent()), heard(&self.run));
        let is_read =
            |words: &str| heard(&self.run.saying(words)) != silent || heard(&self.run.without(words)) != whole;
        let parts = parts_of_notes(&self.run.notes).into_iter();
        parts.filter(|words| words.contains(char::is_alphabetic) && !is_read(words)).map(str::to_string).collect()
    }

    /// What it does where nothing is said.
    fn table_profile(&self, frameworks: &[Framework]) -> Framework {
        self.framework.map_or_else(Framework::default, |f| frameworks[f].clone())
    }

    fn options(&self, filling: &Filling, frameworks: &[Framework], cluster: &Cluster) -> Result<Options, String> {
        let mut framework = self.profile(frameworks);
        // (A single micro-batch has none to be paired with.)
        if filling.strategy.micro == Some(1) {
            framework.hidden_ep = self.table_profile(frameworks).hidden_ep;
        }
        Ok(Options {
            recompute: filling.recompute.clone(),
            precision: notes::precision(&self.run)?,
            imbalance: notes::imbalance(&self.run, &framework),
            fidelity: Fidelity::Calls,
            without: false,
            crowded: vec![],
            straggler: None,
            framework: framework.on(cluster),
        })
    }

    /// The filling of blanks that is fastest of those that fit into memory, and its report; of several none of which fits, the one that needs least.
    ///
    /// # Errors
    /// As [`simulate`](crate::simulate).
    fn fastest_that_fits(&self, clusters: &[Cluster], frameworks: &[Framework]) -> Result<(&Filling, Report), String> {
        let cluster = site::site(&self.run, &clusters[self.cluster])?;
        let capacity = cluster.device.usable_bytes();
        let mut best: Option<(&Filling, Report, f64)> = None;
        for filling in &self.fillings {
            let options = self.options(filling, frameworks, &cluster)?;
            let report = filling.plans.simulate(&filling.strategy, &cluster, &options)?;
            let peak = report.peak_bytes();
            let better =
                best.as_ref().is_none_or(|(_, other, of_other)| match (peak <= capacity, *of_other <= capacity) {
                    (true, true) => report.step_time_s < other.step_time_s,
                    (false, false) => peak < *of_other,
                    (fits, _) => fits,
                });
            if better {
                best = Some((filling, report, peak));
            }
        }
        best.map(|(filling, report, _)| (filling, report)).ok_or_else(|| "its blanks cannot be filled".into())
    }

    /// The run against its prediction.
    ///
    /// # Errors
    /// As [`Case::price`].
    pub fn compare(&self, clusters: &[Cluster], frameworks: &[Framework]) -> Result<Comparison, String> {
        let run = &self.run;
        let (filling, report) = self.fastest_that_fits(clusters, frameworks)?;
        let framework = self.profile(frameworks);
        let gb = framework.gb();
        let is_allocated = framework.tells_allocated && framework.caching_allocator;
        let told = |stage: &StageMemory| if is_allocated { stage.allocated } else { stage.peak };
        let stages = if framework.tells_first_stage { 1 } else { usize::MAX };
        let needed_mem_gb = report.peak_bytes() / gb;
        let device_mem_gb = clusters[self.cluster].device.usable_bytes() / gb;
        let Some(measured_s) = self.measured_s else {
            let (id, system) = (run.id.clone(), run.system.clone());
            return Ok(Comparison::OutOfMemory(OutOfMemory { id, system, needed_mem_gb, device_mem_gb }));
        };
        let mut assumed = filling.assumed.clone();
        let device = &clusters[self.cluster].device;
        let mut heard = self.heard(frameworks);
        heard.extend(site::heard_of_release(run, &clusters[self.cluster]));
        let is_fp8 = matches!(notes::precision(run)?, Precision::Fp8 | Precision::Mxfp8);
        let limited = framework.node_limit > 0 && framework.deduplicates && notes::node_limit(&run.text).is_none();
        let rows = notes::assumed_imbalance(run, &framework);
        assumed.extend(rows.map(|rows| format!("rows of the busiest rank = {rows} of the mean")));
        assumed.extend(limited.then(|| format!("experts of a token on {} nodes", framework.node_limit)));
        assumed.extend(site::assumed_release(run, &clusters[self.cluster]));
        assumed.extend((is_fp8 && device.cube.fp8.is_none()).then(|| "fp8 at the rate of bf16".to_string()));
        assumed.extend(notes::assumed_attention(run, &framework));
        assumed.extend(layout::cut_etp(run, &self.shape));
        Ok(Comparison::Row(Box::new(Row {
            id: run.id.clone(),
            system: run.system.clone(),
            measured_s,
            predicted_s: report.step_time_s,
            error: report.step_time_s / measured_s - 1.0,
            device_mem_gb,
            measured_mem_gb: run.memory_gb,
            predicted_mem_gb: report.memory_bytes.iter().take(stages).map(told).fold(0.0, f64::max) / gb,
            needed_mem_gb,
            framework: self.framework.map_or("plan", |f| frameworks[f].name.as_str()).to_string(),
            kind: if self.shape.experts() > 0 { "moe" } else { "dense" },
            devices: run.degree("n_devices"),
            sweep: sweep(run),
            strategy: filling.strategy.to_string(),
            assumed,
            heard,
            unread: self.unread(clusters, frameworks, notes::precision(run)?),
            suspected: match suspected(&report) {
                what if needed_mem_gb <= device_mem_gb => what.to_string(),
                what if what.starts_with("memory") => "memory: more than there is".into(),
                what => format!("memory: more than there is; {what}"),
            },
            report,
        })))
    }
}

/// What profiles go by.
fn about<'a>(run: &'a Run, cluster: &'a Cluster, precision: Precision) -> About<'a> {
    let mixture = run.number("experts").unwrap_or(0) > 0;
    About { text: &run.text, cluster: Some(cluster), precision: Some(precision), mixture }
}

/// What stands between commas and semicolons, but for those within brackets (`cuda_graph_scope=["attn", "moe_router"]`) and numbers (`4,096`).
fn parts_of_notes(notes: &str) -> Vec<&str> {
    let (mut depth, mut before) = (0u32, ' ');
    let ends = notes.char_indices().filter(|(at, c)| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let in_number = before.is_ascii_digit() && notes[at + c.len_utf8()..].starts_with(|c: char| c.is_ascii_digit());
        before = *c;
        depth == 0 && (*c == ';' || *c == ',' && !in_number)
    });
    let ends: Vec<usize> = ends.map(|(at, _)| at).chain([notes.len()]).collect();
    let begins = std::iter::once(0).chain(ends.iter().map(|end| end + 1));
    begins.zip(&ends).map(|(begin, end)| notes[begin..*end].trim()).collect()
}

/// Runs with the same are of one sweep: of one architecture, whatever it is called, on as many devices with the same batch. (Names of models may be their parameters, of which a pipeline or padding
/// makes more.)
fn sweep(run: &Run) -> String {
    let sizes: Vec<String> = run.architecture().iter().map(|n| n.map_or_else(String::new, |n| n.to_string())).collect();
    format!("{}/{}/{}/{}", run.system, sizes.join(","), run.degree("n_devices"), run.degree("gbs"))
}

/// What a prediction that fits depends on most that is least certain: memory that an allocator runs short of (most such runs end there, or take several times as long), a host that
/// the device waits for, a pipeline's bubble, or else the kind of work that takes most of the time.
fn suspected(report: &Report) -> &'static str {
    if report.short_of_memory().is_some() {
        "memory: the allocator runs short"
    } else if report.host_bound_fraction > UNCERTAIN {
        "waiting for the host"
    } else if report.bubble_fraction > UNCERTAIN {
        "the pipeline's bubble"
    } else {
        report.by_kind.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |kind| kind.0.name())
    }
}

/// The part of a step from which waiting is suspected before work.
const UNCERTAIN: f64 = 0.4;

/// That there is no such device, and which there are.
fn no_cluster(device: &str, clusters: &[Cluster]) -> String {
    let names: Vec<&str> = clusters.iter().map(|cluster| cluster.device.name.as_str()).collect();
    // What is the same chip is meant before what is only written alike.
    let chip = |name: &str| name.split([' ', '-', '_', '(', '[', '{']).next().unwrap_or_default().to_lowercase();
    let written = || clusters.iter().flat_map(Cluster::names);
    let same_chip = || written().filter(|name| chip(name) == chip(device));
    let begun = clusters.iter().find(|cluster| chip(device) != device.to_lowercase() && cluster.is_begun_by(device));
    let begun = begun.and_then(|cluster| cluster.names().next());
    let meant = begun.or_else(|| closest(device, same_chip())).or_else(|| same_chip().next());
    let meant = meant.or_else(|| closest(device, written()));
    let meant = meant.map_or(String::new(), |name| format!("did you mean `{name}`? "));
    format!(
        "no cluster file is called `{device}`\n  = help: {meant}there are {}; --cluster-dir names a folder of others",
        names.join(", ")
    )
}

/// What blanks may be: rows of a micro-batch, chunks of a stage, and what is computed again, as runs of that kind mostly have them. What does not fit the model is
/// left out.
fn fillings(run: &Run, shape: &Shape, profile: &Framework, how: &How) -> Result<Vec<Filling>, String> {
    let mut fillings: Vec<Filling> = vec![];
    let mut first_error = None;
    // (What ran out of memory may have done so for want of it.)
    let unstated = notes::said_zero(run, profile).is_none() && !notes::has_replicas(run) && !run.out_of_memory;
    let unshared = profile.zero == 0 && run.data_parallel() > 1 && unstated;
    for filled in layout::filled(run, shape, profile) {
        let mut made = made(&filled, shape, profile, how);
        // Where nobody says what ranks share, they share what does not fit otherwise.
        let overflows = |plans: &Plans| plans.state(profile) > how.usable_bytes;
        if unshared && made.as_ref().is_ok_and(|(plans, _)| overflows(plans)) {
            let sharing = |zero| self::made(&filled, shape, &Framework { zero, ..profile.clone() }, how).ok();
            let shared = profile.stages_of_sharing().filter_map(sharing).find(|(plans, _)| !overflows(plans));
            made = shared.map_or(made, Ok);
        }
        let (plans, strategy) = match made {
            Ok((plans, strategy)) => (Arc::new(plans), strategy),
            Err(error) => {
                first_error.get_or_insert(error);
                continue;
            }
        };
        for (recompute, what) in recompute::recomputes(run)? {
            let mut assumed = layout::assumed(run, &filled, shape, &strategy);
            let cut = run.number("etp").is_none() && shape.experts() > 0 && strategy.tp > 1;
            assumed.extend(cut.then(|| format!("etp = {}", strategy.etp)));
            let shares = strategy.dp > 1 && notes::said_zero(run, profile).is_none();
            assumed.extend(shares.then(|| format!("zero = {}", strategy.zero)));
            assumed.extend(what);
            fillings.push(Filling { assumed, strategy: strategy.clone(), recompute, plans: plans.clone() });
        }
    }
    match first_error {
        Some(error) if fillings.is_empty() => Err(error),
        _ => Ok(fillings),
    }
}

/// The plans of a run whose blanks are filled, and its strategy. Where experts cannot be cut as the framework would have cut them, they were not.
fn made(filled: &Run, shape: &Shape, profile: &Framework, how: &How) -> Result<(Plans, Strategy), String> {
    let make = |run: &Run| {
        let strategy = layout::strategy(run, shape, profile)?;
        Ok((plans(shape, &strategy, how)?, strategy))
    };
    let whole = || if filled.number("etp").is_none() { make(&filled.with("etp", 1)).ok() } else { None };
    make(filled).or_else(|error: String| whole().ok_or(error))
}

/// The plans of a step of many micro-batches: of those that fill the pipeline, and of a round less.
fn plans(shape: &Shape, strategy: &Strategy, how: &How) -> Result<Plans, String> {
    let micro = strategy.micro.unwrap_or(1);
    let round = strategy.pp;
    let full = strategy.pp.saturating_mul(strategy.vpp).min(1 << 24).saturating_mul(3).max(4).next_multiple_of(round);
    if micro <= full + round {
        let plan = compiled(shape, strategy, &[micro], how)?.pop().ok_or("there is no plan")?;
        return Ok(Plans { flops: plan.settings.flops_per_step, micro, plan, shorter: None });
    }
    // The same place within a round.
    let full = full + micro % round;
    // (What cannot be is told of the step as it is, not of its shorter ones.)
    let mut both = compiled(shape, strategy, &[full - round, full], how)
        .map_err(|error| compiled(shape, strategy, &[micro], how).err().unwrap_or(error))?;
    let plan = both.pop().ok_or("there is no plan")?;
    let flops = plan.settings.flops_per_step * f64::from(micro) / f64::from(full);
    Ok(Plans { flops, micro: full, plan, shorter: both.pop() })
}

/// How plans of a run are made, its strategy apart.
struct How {
    options: CompileOptions,
    /// Of a device.
    usable_bytes: f64,
    /// Over streams?
    streams: bool,
}

impl How {
    /// Of our own runs as `simulate` has it: in their type, on the device's clock. Of other systems in bf16, with gradients that are wide, as systems have them however many micro-batches there are.
    fn of(run: &Run, profile: &Framework, cluster: &Cluster) -> Result<How, String> {
        let precision = notes::precision(run)?;
        let compute = if precision == Precision::F32 { DType::F32 } else { DType::BF16 };
        let options = if profile.is_ours() {
            CompileOptions { compute, clock: clock(cluster, precision), ..CompileOptions::default() }
        } else {
            CompileOptions { compute: DType::BF16, gradients: Gradients::Wide, ..CompileOptions::default() }
        };
        Ok(How { options, usable_bytes: cluster.usable_bytes(run.degree("n_devices")), streams: profile.streams })
    }
}

/// The plan of a run: the training step that `forebay run` would execute, with so many micro-batches; spread over streams for systems that use them.
fn compiled(shape: &Shape, strategy: &Strategy, micros: &[u32], how: &How) -> Result<Vec<Plan>, String> {
    let options = CompileOptions {
        micro_batches: strategy.micro.unwrap_or(1),
        optimizer: Optimizer::default(),
        strategy: strategy.clone(),
        ..how.options.clone()
    };
    let check = options.check_options(true, strategy.mbs.map(u64::from), options.micro_batches);
    let accepted = forebay_dsl::load(&shape.text(), &check).map_err(|diagnostics| {
        diagnostics
            .first()
            .map_or("its model cannot be written down".to_string(), |d| format!("its model: {}", d.message))
    })?;
    let model = &accepted.model;
    let compiled = if how.streams {
        compile_training(model, &options, micros)
    } else {
        shard_model(model, strategy).and_then(|sharded| compile_in_line(model, &sharded, &options, micros))
    };
    let mut plans = compiled.map_err(|error| format!("{strategy}: {error}"))?;
    if let Some(tokens) = shape.documents() {
        for plan in &mut plans {
            // (Whoever tells of TFLOP/s counts whole rows.)
            let of_rows = plan.settings.flops_per_step;
            stay_within(plan, tokens, Within::All);
            plan.settings.flops_per_step = of_rows;
        }
    }
    Ok(plans)
}

impl Plans {
    /// Bytes of parameters, their copies, gradients and moments that a framework has on a device, of the role that has most of them.
    fn state(&self, framework: &Framework) -> f64 {
        let of_role = |role: &Role| {
            let memory = role.phases.iter().find(|phase| phase.name == "train").map(|phase| phase.memory);
            let (gradients, optimizer) = memory.map_or((0, 0), |memory| (memory.gradients, memory.optimizer));
            let away = if framework.host_optimizer_gbps > 0.0 { optimizer as f64 } else { 0.0 };
            role.persistent_bytes as f64 - gradients as f64 * (1.0 - framework.gradient_bytes / 4.0) - away
        };
        self.plan.roles.iter().map(of_role).fold(0.0, f64::max)
    }

    /// The time of [`Plans::simulate`].
    fn step_time(&self, strategy: &Strategy, cluster: &Cluster, options: &Options) -> Result<f64, String> {
        // (Only memory says whether the device is crowded.)
        if options.framework.fixed_segments {
            return Ok(self.simulate(strategy, cluster, options)?.step_time_s);
        }
        let cluster = &settled(&self.plan, cluster, options)?;
        let time = step_time(&self.plan, cluster, options)?;
        let Some(shorter) = &self.shorter else { return Ok(time) };
        Ok(time + self.rounds(strategy) * (time - step_time(shorter, cluster, options)?))
    }

    /// Rounds of micro-batches beyond those of the plan.
    fn rounds(&self, strategy: &Strategy) -> f64 {
        f64::from(strategy.micro.unwrap_or(1) - self.micro) / f64::from(strategy.pp)
    }

    /// Simulates a step of all micro-batches of a strategy.
    ///
    /// Once a pipeline is full, every round of `pp` micro-batches takes as long as the one before: a step of m micro-batches takes T(n) + (m − n) · (T(n) − T(n − pp)) / pp. With
    /// n = 3 · pp · vpp (and at least 4) little of the warm-up is in the difference: steps that are replayed whole come to the same within 1 % (a test). What is live does not depend on m beyond n.
    fn simulate(&self, strategy: &Strategy, cluster: &Cluster, options: &Options) -> Result<Report, String> {
        let cluster = &settled(&self.plan, cluster, options)?;
        where_crowded(options, |options| {
            let report = simulate_once(&self.plan, cluster, options)?;
            let Some(shorter) = &self.shorter else { return Ok(report) };
            let shorter = simulate_once(shorter, cluster, options)?;
            Ok(report.extended(&shorter, self.rounds(strategy)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{find, known};
    use crate::simulate;
    use crate::validate::runs;

    const RUN: &str = "\
id,model,layers,hidden,ffn_hidden,moe_ffn_hidden,experts,topk,heads,kv_heads,head_dim,vocab,seq_len,device,devices_per_node,n_devices,tp,pp,vpp,ep,dp,mbs,gbs,precision,recompute,step_time_s
a,Mixture,8,512,2048,1024,8,2,8,8,64,32000,512,H100,8,8,1,4,2,2,2,1,96,BF16,none,1
";

    #[test]
    fn notes_are_cut_outside_of_brackets() {
        let notes = "graphs=[\"attn\", \"router\"]; a (b, c), d)e; ,4,096 é,1, 2;";
        let parts = ["graphs=[\"attn\", \"router\"]", "a (b, c)", "d)e", "", "4,096 é", "1", "2", ""];
        assert_eq!(parts_of_notes(notes), parts);
        assert_eq!(parts_of_notes(""), [""]);
    }

    /// What a model is called does not matter, and where its layers are does not.
    /// What begins a device's name is meant, then what is the same chip, then what is written alike.
    #[test]
    fn devices_that_are_not_known_are_asked_back() {
        let clusters = forebay_cost::known::clusters();
        let meant = |device: &str| {
            let told = no_cluster(device, &clusters);
            let (_, rest) = told.split_once("did you mean `").unwrap_or_default();
            rest.split('`').next().unwrap_or_default().to_string()
        };
        let devices = ["H100-96G", "H100 (64 GB)", "GH200-69G", "MI350", "a system"];
        assert_eq!(devices.map(meant), ["H100-96G-500W", "H100", "GH200-96G", "MI350X", ""]);
    }

    #[test]
    fn sweeps_are_of_one_architecture() {
        let row = |name: &str, rest: &str| RUN.replace("Mixture", name).replace("H100,8,8,1,4", rest);
        let of = |text: String| sweep(&runs::read(&text).expect("a table").runs.remove(0));
        let same = of(row("Mixture 3.57G", "H100,8,8,1,4"));
        assert_eq!(of(row("Mixture 3.98G", "H100,8,8,4,1")), same);
        assert_ne!(of(row("Mixture 3.57G", "H100,8,16,1,4")), same, "of other devices");
        assert_ne!(of(row("Mixture 3.57G", "H100,8,8,1,4").replace(",512,2048,", ",1024,2048,")), same);
    }

    /// The rounds that are added are those that would have been replayed.
    #[test]
    fn rounds_of_a_full_pipeline_are_alike() {
        let run = &runs::read(RUN).expect("a table").runs[0];
        let cluster = known_cluster("h100");
        let framework = notes::stated(run, find(&known(), &run.text));
        let shape = Shape::of(run, 1).expect("a shape");
        let how = How::of(run, &framework, &cluster).expect("options");
        for (vpp, micro) in [(1, 48), (1, 51), (2, 48)] {
            let mut strategy = layout::strategy(run, &shape, &framework).expect("a strategy");
            (strategy.vpp, strategy.micro) = (vpp, Some(micro));
            let options = Options { framework: framework.clone(), ..Options::default() };
            let plan = compiled(&shape, &strategy, &[micro], &how).expect("a plan").remove(0);
            let whole = simulate(&plan, &cluster, &options).expect("a report");
            let plans = plans(&shape, &strategy, &how).expect("plans");
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

    /// A fit goes by the times that are told, stops of an allocator among them.
    #[test]
    fn times_alone_are_those_of_reports() {
        let run = &runs::read(include_str!("../../tests/published_crowded.csv")).expect("a table").runs[0];
        let (clusters, frameworks) = (forebay_cost::known::clusters(), known());
        let case = Case::new(run, &clusters, &frameworks).expect("a case");
        let report = case.price(&clusters, &frameworks).expect("a report");
        assert_eq!(report.crowded_stages(), [0]);
        assert_eq!(case.step_time(&clusters, &frameworks), Ok(report.step_time_s));
    }

    /// Stops make a step longer in which the host is waited for; how far it is ahead is that of a step without them.
    #[test]
    fn stops_do_not_change_the_memory_that_causes_them() {
        let run = &runs::read(include_str!("../../tests/published_crowded.csv")).expect("a table").runs[2];
        let clusters = forebay_cost::known::clusters();
        let priced = |fixed_segments: bool| {
            let frameworks =
                known().into_iter().map(|f| Framework { fixed_segments: f.fixed_segments && fixed_segments, ..f });
            let frameworks: Vec<Framework> = frameworks.collect();
            Case::new(run, &clusters, &frameworks).expect("a case").price(&clusters, &frameworks).expect("a report")
        };
        let (with, without) = (priced(true), priced(false));
        assert!(with.host_bound_fraction != without.host_bound_fraction);
        let peaks = |report: &Report| report.memory_bytes.iter().map(|stage| stage.peak).collect::<Vec<f64>>();
        assert_eq!(peaks(&with), peaks(&without));
    }

    /// What cannot be is told of the step that a row has, not of the shorter ones that are replayed.
    #[test]
    fn steps_without_whole_rounds_are_told_as_they_are() {
        let header = "layers,hidden,ffn_hidden,heads,vocab,seq_len,device,n_devices,pp,vpp,dp,mbs,gbs,step_time_s";
        let row = "8,256,512,4,512,64,H100,2,2,2,1,1,31,1";
        let runs = runs::read(&format!("{header}\n{row}\n")).expect("a table").runs;
        let why = Case::new(&runs[0], &forebay_cost::known::clusters(), &known()).expect_err("no whole rounds");
        assert!(why.contains("31 micro-batches"), "{why}");
    }

    /// Experts of a width that tensor-parallel ranks cannot share are taken to be whole, and what was taken is said.
    #[test]
    fn experts_that_cannot_be_cut_are_whole() {
        let taken = |width: &str| {
            let table = RUN.replace("H100,8,8,1,4,2,2,2", "H100,8,8,4,1,1,2,2").replace("1024", width);
            let read = runs::read(&table.replace("a,Mixture", "a,Megatron-Bridge mixture")).expect("a table").runs;
            let framework = find(&known(), "Megatron-Bridge");
            let how = How::of(&read[0], &framework, &known_cluster("h100")).expect("options");
            let shape = Shape::of(&read[0], 1).expect("a shape");
            let filled = fillings(&read[0], &shape, &framework, &how).expect("it fits");
            (filled[0].strategy.etp, filled[0].assumed.clone())
        };
        assert_eq!(taken("1024"), (4, ["cp = 1", "sp = 1", "etp = 4", "zero = 1"].map(String::from).to_vec()));
        assert_eq!(taken("1022"), (1, ["cp = 1", "sp = 1", "etp = 1", "zero = 1"].map(String::from).to_vec()));
    }

    fn known_cluster(name: &str) -> Cluster {
        let (_, text) = forebay_cost::known::FILES.iter().find(|(n, _)| *n == name).expect("a cluster");
        Cluster::parse(text).expect("it is right")
    }
}
