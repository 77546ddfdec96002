//! `forebay memory`

use crate::failure::Failure;
use crate::files::{can_write_all, is_stdout, write_out};
use crate::memory;
use crate::memory::report::{Point, Report, Stage, text};
use crate::memory::svg::svg;
use crate::model::ModelFile;
use crate::notes;
use crate::on_cluster::{OnCluster, SetUp, plan_prices};
use crate::output::{print, print_json, size};
use crate::progress::Spinner;
use forebay_compiler::memory::{Aim, Recompute};
use forebay_compiler::pipeline::{CompileOptions, Compiled};
use forebay_compiler::shard::Strategy;
use forebay_cost::Cluster;
use forebay_sim::report::step_time;
use forebay_sim::{Framework, Options, ValuePricer, shared};
use std::path::PathBuf;

/// Show what each pipeline stage keeps in memory, what making it again would cost, and time against memory
///
/// With a budget, what does not fit is chosen to be made again in the backward pass, or swapped to the host, at the least added time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay memory model.moe --cluster h100
  forebay memory model.moe --cluster h100 --strategy pp=4,ep=8,zero=1,mbs=1 --devices 64 --batch 512 --stage 0
  forebay memory model.moe --cluster atlas-800t-a2 --strategy s.toml --memory-budget 58GiB --svg memory.svg
  forebay memory model.moe --cluster h100 --memory-budget device --points 0 --json

Every point of the front is a plan that was compiled, placed and simulated: its bytes are those of the plan's arena.")]
pub struct Args {
    #[command(flatten)]
    on: OnCluster,
    /// The stage whose tensors are printed [default: the fullest]
    #[arg(long, value_name = "N")]
    stage: Option<u32>,
    /// Budgets between the most memory and the least that are tried for the front; 0 for no front
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=64))]
    points: u32,
    /// Draw the curves into a file; `-` prints them in place of the report
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn memory(args: Args) -> Result<(), Failure> {
    can_write_all(&args.on.reads(), &[("--svg", args.svg.as_deref())])?;
    let SetUp { cluster, file, options, budget, precision } = args.on.set_up()?;
    let framework = Framework::default().on(&cluster);
    let simulation = Options { precision, framework, without: false, ..Options::default() };
    let stages = options.strategy.pp;
    if args.stage.is_some_and(|n| n >= stages) {
        let there_are =
            if stages == 1 { "there is stage 0 alone".into() } else { format!("there are stages 0 to {}", stages - 1) };
        return Err(Failure::Usage(format!("--stage: {there_are}")));
    }
    let spinner = Spinner::new(args.json, "compiling with everything kept");
    let mut study = Study { file: &file, options, cluster: &cluster, simulation, spinner };
    let report = study.report(budget, args.points)?;
    drop(study);
    if let Some(path) = &args.svg {
        write_out(path, svg(&report).as_bytes())?;
        if is_stdout(path) {
            return Ok(());
        }
    }
    if args.json { print_json(&report) } else { print(&text(&report, args.stage)) }
}

/// A model under a strategy on a cluster.
struct Study<'a> {
    file: &'a ModelFile,
    options: CompileOptions,
    cluster: &'a Cluster,
    simulation: Options,
    spinner: Spinner,
}

impl Study<'_> {
    fn seconds(&self, compiled: &Compiled) -> Result<f64, Failure> {
        // Ranks of a machine that was measured share it.
        let settled = shared::settled(&compiled.plan, self.cluster, &self.simulation);
        settled.and_then(|cluster| step_time(&compiled.plan, &cluster, &self.simulation)).map_err(Failure::Input)
    }

    fn report(&mut self, limit: Option<u64>, points: u32) -> Result<Report, Failure> {
        let price = ValuePricer::new(self.cluster, self.simulation.precision, self.simulation.imbalance);
        let profile = self.options.rewrite.profile.clone();
        let usual = plan_prices(&price, self.cluster, None, &profile);
        let whole = memory::compile(self.file, &self.options, None, usual, &self.spinner)?;
        // What was left to be found is found once, but for what follows from the memory there is.
        let shares = self.options.strategy.shares;
        self.options.strategy = Strategy { shares, ..whole.strategy.clone() };
        let unrestricted = self.seconds(&whole)?;
        let compile = |_| memory::compile(self.file, &self.options, limit, &price, &self.spinner);
        let within = limit.map(compile).transpose()?;
        let compiled = within.as_ref().unwrap_or(&whole);
        notes::print(notes::few_rows(&compiled.plan));
        notes::print(without_effect(&self.options.strategy, compiled));
        let front = if points == 0 { vec![] } else { self.front(&whole, unrestricted, points, &price)? };
        Ok(Report {
            model: compiled.plan.model.clone(),
            device: self.cluster.device.name.clone(),
            devices: self.options.strategy.ranks(),
            budget_bytes: limit,
            step_time_s: self.seconds(compiled)?,
            unrestricted_step_time_s: unrestricted,
            baseline: point(&whole, None, unrestricted),
            activation_bytes: point(compiled, limit, unrestricted).activation_bytes,
            stages: compiled
                .stages
                .iter()
                .zip(&compiled.plan.roles)
                .map(|(memory, role)| Stage::new(memory, role))
                .collect(),
            front,
        })
    }

    /// Plans from the most memory to the least.
    fn front(
        &self,
        whole: &Compiled,
        unrestricted: f64,
        points: u32,
        price: &ValuePricer,
    ) -> Result<Vec<Point>, Failure> {
        let compile = |aim| match self.file.compile_within(&self.options, aim, price)? {
            Ok(compiled) => Ok(compiled),
            Err(error) => Err(self.file.misfit(&self.options, &error)),
        };
        self.spinner.says("looking for the least memory");
        let least = compile(Aim::Least)?;
        let (low, high) = (peak(&least), peak(whole));
        let mut front = vec![point(whole, None, unrestricted)];
        // The last is within the least memory there is: what takes the fewest bytes need not be the fastest that does.
        let parts = u64::from(points) + 1;
        for i in 1..=parts {
            let budget = high - (high - low) * i / parts;
            self.spinner.says(&format!("point {i} of {parts}: within {}", size(budget as f64)));
            let compiled = compile(Aim::Within(budget))?;
            front.push(point(&compiled, Some(budget), self.seconds(&compiled)?));
        }
        front.push(point(&least, None, self.seconds(&least)?));
        Ok(undominated(front))
    }
}

/// What the strategy names to be made again without any effect.
fn without_effect(strategy: &Strategy, compiled: &Compiled) -> Option<String> {
    let Recompute::Named(names) = &strategy.recompute else { return None };
    let has_effect = compiled.stages.iter().flat_map(|stage| &stage.tensors).any(|t| t.named && !t.kept);
    (!has_effect).then(|| {
        format!("recompute={} changes nothing: none of it is saved in any case, or it takes fewer bytes than what it is made from", names.join("/"))
    })
}

/// The points that no other takes fewer bytes than in no more time. Choices are made by estimates, so that one for fewer bytes can turn out to be faster.
fn undominated(points: Vec<Point>) -> Vec<Point> {
    let beats = |a: &Point, b: &Point| {
        let no_worse = a.peak_bytes <= b.peak_bytes && a.step_time_s <= b.step_time_s;
        no_worse && (a.peak_bytes, a.step_time_s) != (b.peak_bytes, b.step_time_s)
    };
    let mut front: Vec<Point> = vec![];
    for point in &points {
        let same = |p: &Point| (p.peak_bytes, p.step_time_s) == (point.peak_bytes, point.step_time_s);
        if !points.iter().any(|other| beats(other, point)) && !front.iter().any(same) {
            front.push(point.clone());
        }
    }
    front
}

fn peak(compiled: &Compiled) -> u64 {
    compiled.stages.iter().map(|s| s.peak).max().unwrap_or(0)
}

fn point(compiled: &Compiled, budget_bytes: Option<u64>, step_time_s: f64) -> Point {
    let activations = compiled.stages.iter().map(|s| s.peak - s.persistent).max().unwrap_or(0);
    Point { budget_bytes, peak_bytes: peak(compiled), activation_bytes: activations, step_time_s }
}
