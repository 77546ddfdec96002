//! `forebay compile`

use crate::args::{ModelArgs, OptimizerArgs, ProgramArgs};
use crate::cluster;
use crate::failure::Failure;
use crate::files::{can_write_all, is_stdout, write_out};
use crate::memory::{self, Budget, budget};
use crate::model::ModelFile;
use crate::notes;
use crate::on_cluster::{plan_prices, precision_of};
use crate::output::print;
use crate::progress::Spinner;
use crate::say::say;
use crate::search::told_ways;
use crate::strategy::{StrategyArg, uses};
use clap::ValueEnum;
use forebay_compiler::autodiff::{Differentiated, Options, differentiate};
use forebay_compiler::memory::Price;
use forebay_compiler::module::{File, Forms, print_forms};
use forebay_compiler::overlap::Priced;
use forebay_compiler::overlap::exchange::{self, Dispatch};
use forebay_compiler::pipeline::{
    CompileOptions, differentiated_segments, fused_gradients, fused_segments, optimizer_graphs, with_exchanges,
};
use forebay_compiler::rewrite::rewrite;
use forebay_compiler::ring::travel_all;
use forebay_compiler::shard::ShardedModel;
use forebay_dsl::model::CheckedModel;
use forebay_ir::Graph;
use forebay_ir::text::print_module;
use forebay_sim::ValuePricer;
use std::path::PathBuf;

/// Compile a model to a plan, or print a stage of the compilation
///
/// A stage before the plan is printed as textual IR, which this command reads again: files that end with `.ir`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay compile model.moe -o model.plan --steps 1000 --batch 16
  forebay compile model.moe --emit graph -o model.ir
  forebay compile model.ir -o model.plan
  forebay compile model.moe --strategy dp=2,tp=2,ep=4,zero=1 --devices 4 -o model.plan
  forebay compile model.moe --memory-budget 24GB --cluster h100 -o model.plan    what does not fit is swapped or made again
  forebay compile model.moe --dtype bf16 --cluster h100 -o model.plan            the plan that `simulate` prices
  forebay compile model.moe --strategy tp=2 --emit sharded       the graphs of a rank, with their collectives")]
pub struct Args {
    /// The model file, or bench-tiny or bench-small, or textual IR (`.ir`)
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Where the plan goes, or the stage with --emit graph, grad, fused or sharded; `-` for stdout
    #[arg(short, long, value_name = "PLAN", required_unless_present = "emit")]
    output: Option<PathBuf>,
    /// Print a stage
    #[arg(long, value_enum, value_name = "STAGE")]
    emit: Option<Stage>,
    /// Steps that the learning rate is planned for [default: 150]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// How many devices there are; the strategy must use them all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    devices: Option<u64>,
    /// Memory of a device, a size such as 58GiB or 800MB, or `device` for all that programs may use of it (memory_gb less context_gb): what does not fit is made again in the backward pass, or swapped to the host
    #[arg(long, value_name = "SIZE", value_parser = budget)]
    memory_budget: Option<Budget>,
    /// The cluster that the plan is for, a file or the name of one that is built in: its times decide what does not stay in memory, and what is left to the compiler (`auto`) or depends on the device; without it nothing is swapped [default: times of one device]
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    #[command(flatten)]
    settings: ModelArgs,
    #[command(flatten)]
    programs: ProgramArgs,
    #[command(flatten)]
    optimizer: OptimizerArgs,
}

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// The model as graphs.
    Graph,
    /// The graphs with their gradients: forward, backward, and backward in two parts.
    Grad,
    /// The same after fusion and equivalent rewrites: forward, backward and the optimizer's step.
    Fused,
    /// The forward graphs of a rank, with their collectives: in the pieces and with the exchanges that it runs.
    Sharded,
    /// The plan.
    Plan,
}

pub fn compile(args: Args) -> Result<(), Failure> {
    if args.emit == Some(Stage::Plan) && args.output.as_deref().is_some_and(is_stdout) {
        return Err(Failure::Usage(
            "--emit plan prints the plan for people on stdout: leave --emit or `-o -` out".into(),
        ));
    }
    can_write_all(&reads(&args), &[("--output", args.output.as_deref())])?;
    let mut options = args.settings.options()?;
    options.optimizer = args.optimizer.optimizer(args.steps);
    args.programs.set(&mut options);
    args.devices.map_or(Ok(()), |devices| uses(&options.strategy, devices))?;
    let cluster = args.cluster.as_deref().map(cluster::read).transpose()?;
    let device = cluster.as_ref().map(|cluster| cluster.usable_bytes(options.strategy.ranks()));
    let budget = args.memory_budget.map(|b| b.bytes(device)).transpose()?;
    if let Some(cluster) = &cluster {
        options.clock = forebay_sim::clock(cluster, precision_of(options.compute));
    }
    let on_cluster = cluster.as_ref().map(|cluster| ValuePricer::new(cluster, precision_of(options.compute), 1.0));
    let profile = options.rewrite.profile.clone();
    let price: &dyn Price = match (&on_cluster, &cluster) {
        (Some(price), Some(cluster)) => plan_prices(price, cluster, budget, &profile),
        _ => &profile,
    };
    let file = ModelFile::read(&args.model)?.with(&args.settings)?;
    if matches!(args.emit, Some(Stage::Grad | Stage::Fused | Stage::Sharded)) {
        settle_dispatch(&file, &mut options, price)?;
    }
    let text = match args.emit {
        Some(Stage::Graph) => Some(graphs(&file, &options)?),
        Some(Stage::Grad) => Some(gradients(&file, &options)?),
        Some(Stage::Fused) => Some(fused(&file, &options)?),
        Some(Stage::Sharded) => Some(sharded(&file, &options)?),
        Some(Stage::Plan) | None => None,
    };
    if let Some(text) = text {
        return args.output.as_deref().map_or_else(|| print(&text), |path| write_out(path, text.as_bytes()));
    }
    let spinner = Spinner::new(false, "compiling");
    let plan = memory::compile(&file, &options, budget, price, &spinner)?.plan;
    drop(spinner);
    notes::print(notes::few_rows(&plan));
    args.output.as_deref().map_or(Ok(()), |path| write_out(path, &plan.to_bytes()))?;
    if args.emit == Some(Stage::Plan) { print(&forebay_plan::print::text(&plan)) } else { Ok(()) }
}

/// What is read, and from which files.
fn reads(args: &Args) -> Vec<(&'static str, PathBuf)> {
    let cluster = cluster::file(args.cluster.as_deref()).map(|file| ("the cluster", file));
    let strategy = args.settings.strategy.iter().flat_map(StrategyArg::files);
    [("the model", args.model.clone())].into_iter().chain(cluster).chain(strategy).collect()
}

fn graphs(file: &ModelFile, options: &CompileOptions) -> Result<String, Failure> {
    if file.is_ir() {
        return Ok(match file.ir()? {
            File::Model(forms) => print_forms(&forms),
            File::Graphs(graphs) => print_module(&graphs),
        });
    }
    Ok(print_forms(&file.forms(options)?))
}

fn sharded(file: &ModelFile, options: &CompileOptions) -> Result<String, Failure> {
    let sharded = on_a_rank(&file.training(options)?, options)?;
    Ok(print_module(&sharded.model.segments.into_iter().map(|s| s.forward).collect::<Vec<_>>()))
}

/// Finds the way of experts' rows that the strategy leaves open, as a plan would.
fn settle_dispatch(file: &ModelFile, options: &mut CompileOptions, price: &dyn Price) -> Result<(), Failure> {
    let is_model = !file.is_ir() || matches!(file.ir()?, File::Model(_));
    if options.strategy.dispatch != Dispatch::Auto || !is_model {
        return Ok(());
    }
    let Forms { models, compute, micro_batches } = file.forms(options)?;
    let known = CompileOptions { compute, micro_batches, ..options.clone() };
    let priced = Priced { model: &models.train, options: &known, price };
    let (strategy, ways) = exchange::settle(&priced).map_err(|error| Failure::Input(error.to_string()))?;
    if let Some(ways) = &ways {
        say!("{}", told_ways("dispatch", ways));
    }
    options.strategy = strategy;
    Ok(())
}

/// A model with the graphs that each rank of the strategy runs.
fn on_a_rank(model: &CheckedModel, options: &CompileOptions) -> Result<ShardedModel, Failure> {
    with_exchanges(model, options).map_err(|error| Failure::Input(error.to_string()))
}

fn fused(file: &ModelFile, options: &CompileOptions) -> Result<String, Failure> {
    let rewriting = options.rewriting();
    let of_model = |model: &CheckedModel| -> Result<(Vec<_>, Vec<Graph>), Failure> {
        let step = optimizer_graphs(model, options).map_err(|error| Failure::Input(error.to_string()))?;
        let step = step.into_iter().map(|g| rewrite(&g, &rewriting).0);
        let sharded = on_a_rank(model, options)?;
        let mut segments =
            fused_segments(&sharded.model, (options.strategy.keep, &options.strategy.recompute), &rewriting);
        segments.iter_mut().for_each(|(segment, _)| travel_all(segment, &sharded.mesh.ring()));
        Ok((segments, step.collect()))
    };
    let (segments, step): (Vec<_>, Vec<Graph>) = match file.is_ir().then(|| file.ir()).transpose()? {
        Some(File::Graphs(graphs)) => {
            let fused =
                |g: &Graph| fused_gradients(g, &Options::all_floats(g), &rewriting, &options.strategy.recompute);
            (graphs.iter().map(fused).collect(), vec![])
        }
        Some(File::Model(forms)) => of_model(&forms.models.train)?,
        None => of_model(&file.training(options)?)?,
    };
    let parts = |(d, _): (Differentiated, _)| [d.forward, d.backward];
    Ok(print_module(&segments.into_iter().flat_map(parts).chain(step).collect::<Vec<_>>()))
}

fn gradients(file: &ModelFile, options: &CompileOptions) -> Result<String, Failure> {
    let of_model = |model: &CheckedModel| -> Result<Vec<Differentiated>, Failure> {
        Ok(differentiated_segments(&on_a_rank(model, options)?.model, options.strategy.keep))
    };
    let segments = match file.is_ir().then(|| file.ir()).transpose()? {
        Some(File::Graphs(graphs)) => graphs.iter().map(|g| differentiate(g, &Options::all_floats(g))).collect(),
        Some(File::Model(forms)) => of_model(&forms.models.train)?,
        None => of_model(&file.training(options)?)?,
    };
    let parts = |d: Differentiated| [d.forward, d.backward, d.backward_input, d.backward_weight];
    Ok(print_module(&segments.into_iter().flat_map(parts).collect::<Vec<_>>()))
}
