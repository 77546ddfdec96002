//! `forebay train`

use crate::args::{MachineArgs, ModelArgs, OptimizerArgs, ProgramArgs, SessionArgs};
use crate::backend::BackendArgs;
use crate::failure::Failure;
use crate::memory::{self, Budget, budget};
use crate::model::ModelFile;
use crate::notes;
use crate::on_cluster::precision_of;
use crate::progress::Spinner;
use crate::session::{self, Program};
use crate::strategy::StrategyArg;
use forebay_compiler::memory::Price;
use forebay_sim::ValuePricer;
use std::path::{Path, PathBuf};

/// Compile a model and train it on this machine
///
/// Trains on the bytes of a file or folder, evaluates on text that was held back, and leaves a checkpoint.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay train model.moe --data docs
  forebay train model.moe --data corpus.txt --steps 1000 --lr 1e-3 --batch 16 --save runs/a
  forebay train model.moe --data corpus.txt --set layers=2 d=64 --dtype bf16
  forebay train model.moe --data corpus.txt --profile --trace trace.json      where the time of a step goes
  forebay train model.moe --data corpus.txt --strategy dp=2,tp=2,ep=4,zero=1     on four ranks of this machine
  forebay train model.moe --data corpus.txt --strategy dp=2,tp=2 --hosts local:2     the same in two processes; a file: on several hosts
  forebay train model.moe --data corpus.txt --strategy dp=2,ep=2 --backend npu-emulated --trace trace.json      on devices that are emulated
  forebay train --data corpus.txt --resume runs/a       go on after an interruption, with the plan of the checkpoint

With the model file and --resume, its options must be those of the run's start, or the losses differ from an uninterrupted run's.

Ctrl-C stops after the current step and saves; a second one stops at once.")]
pub struct Args {
    /// The model file, or bench-tiny or bench-small; not needed with --resume, which then goes on with the plan in the checkpoint
    #[arg(value_name = "MODEL", required_unless_present = "resume")]
    model: Option<PathBuf>,
    /// Steps in all [default: 150]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    #[command(flatten)]
    session: SessionArgs,
    /// Memory of a device, a size such as 58GiB or 800MB, or `device` for that of an emulated one or of the cluster: what does not fit is made again in the backward pass, or swapped where --cluster says how fast
    #[arg(long, value_name = "SIZE", value_parser = budget, help_heading = "Model")]
    memory_budget: Option<Budget>,
    #[command(flatten)]
    settings: ModelArgs,
    #[command(flatten)]
    programs: ProgramArgs,
    #[command(flatten)]
    optimizer: OptimizerArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    backend: BackendArgs,
}

pub fn train(args: Args) -> Result<(), Failure> {
    let Some(path) = &args.model else {
        let compiles = args.programs.is_given() || args.memory_budget.is_some();
        if args.settings.is_given() || args.optimizer.is_given() || compiles {
            return Err(Failure::Usage(
                "without a model file the plan in the checkpoint is used, which cannot be changed any more: leave out the options \
                 of model, rewriting, memory and optimizer, or give the model file"
                    .into(),
            ));
        }
        return session::run(Program::OfCheckpoint, &args.session, (&args.machine, &args.backend), args.steps);
    };
    let reads = reads(path, &args);
    let mut options = args.settings.options()?;
    args.programs.set(&mut options);
    options.optimizer = args.optimizer.optimizer(args.steps);
    args.backend.use_devices(&mut options.strategy, args.settings.strategy.as_ref())?;
    // A plan is for the devices that run it: emulated ones have times, a size, and a link to the host; of this machine a cluster file says so where there is a budget.
    let (cluster, backend) = match args.memory_budget {
        None if !args.backend.is_emulated() => (None, args.backend),
        _ => args.backend.priced()?,
    };
    let ranks = options.strategy.ranks();
    let device = cluster.as_ref().map(|cluster| backend.device_bytes(cluster, ranks)).transpose()?.map(|b| b as f64);
    let budget = args.memory_budget.map(|b| b.bytes(device)).transpose()?;
    if let Some(cluster) = &cluster {
        options.clock = forebay_sim::clock(cluster, precision_of(options.compute));
    }
    let on_cluster = cluster.as_ref().map(|cluster| ValuePricer::new(cluster, precision_of(options.compute), 1.0));
    let price: &dyn Price = on_cluster.as_ref().map_or(&options.rewrite.profile, |price| price);
    let compile = || {
        let file = ModelFile::read(path)?.with(&args.settings)?;
        let spinner = Spinner::new(args.session.json, "compiling");
        let plan = memory::compile(&file, &options, budget, price, &spinner)?.plan;
        drop(spinner);
        notes::print(notes::few_rows(&plan));
        Ok(plan)
    };
    session::run(Program::Compiled(&compile, &reads), &args.session, (&args.machine, &backend), args.steps)
}

/// What the plan is made from, and in which files it is.
fn reads(model: &Path, args: &Args) -> Vec<(&'static str, PathBuf)> {
    let strategy = args.settings.strategy.iter().flat_map(StrategyArg::files);
    [("the model", model.to_path_buf())].into_iter().chain(args.backend.reads()).chain(strategy).collect()
}
