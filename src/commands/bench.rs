//! `forebay bench`

use crate::args::{MachineArgs, ModelArgs, ProgramArgs};
use crate::bench::curves::{Curves, LR, Question, draw, text};
use crate::bench::measure::{Measurement, measure};
use crate::bench::torch::Torch;
use crate::bench::versus::{Contest, Versus, accepts, compete, spec};
use crate::bench::{optimizer, report};
use crate::failure::Failure;
use crate::model::ModelFile;
use crate::output::{print, print_json};
use forebay_compiler::optimizer::Optimizer;
use forebay_compiler::pipeline::CompileOptions;
use forebay_ir::DType;
use forebay_runtime::exec::Laps;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Time training steps, alone or beside PyTorch
///
/// Trains on tokens drawn at random, the same batch in every step; needs no data and leaves no file. With --peers, PyTorch trains the same model from the
/// same weights on the same batch: first both must come to the same losses, then they take turns.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay bench                                        the model bench-tiny, which is built in; so is bench-small
  forebay bench model.moe --dtype bf16 --steps 20 --json
  forebay bench --set layers=2 d=64 --threads 1
  forebay bench --peers --python VENV/bin/python       an interpreter that has torch
  forebay bench --peers --curves 100 --set layers=2    how rounding moves the losses, ours and PyTorch's

A step is forward, backward, clipping and AdamW. GFLOP/s count matrix products only. A machine that does other work at the same time slows PyTorch's
barriers more than ours: believe ratios of an idle one.")]
pub struct Args {
    /// The model file, or bench-tiny or bench-small
    #[arg(value_name = "MODEL", default_value = "bench-tiny")]
    model: PathBuf,
    /// Steps to time, after three that are not; with --peers in each turn
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Print an object
    #[arg(long)]
    json: bool,
    /// Run PyTorch beside: eager and compiled, its allocator as it is and tuned, in f32 or with autocast to bf16 as --dtype says
    #[arg(long)]
    peers: bool,
    /// An interpreter that has torch
    #[arg(long, value_name = "PROGRAM", default_value = "python3", requires = "peers")]
    python: PathBuf,
    /// Turns of each variant of PyTorch and us
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..), requires = "peers")]
    rounds: u64,
    /// Instead of turns: how far the losses of so many steps are from those in f64, in f32 and bf16, ours and PyTorch's
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..), requires = "peers", conflicts_with = "rounds")]
    curves: Option<u64>,
    #[command(flatten)]
    settings: ModelArgs,
    #[command(flatten)]
    programs: ProgramArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Serialize)]
struct Output {
    bench: Measurement,
    #[serde(skip_serializing_if = "Option::is_none")]
    peers: Option<Versus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    curves: Option<Curves>,
}

/// `started` is when the process was.
pub fn bench(args: Args, started: Instant) -> Result<(), Failure> {
    let file = ModelFile::read(&args.model)?.with(&args.settings)?;
    let mut options = args.settings.options()?;
    args.programs.set(&mut options);
    options.optimizer = optimizer();
    let mut laps = Laps::since(started);
    let plan = file.compile(&options)?;
    laps.lap("compile");
    // Whether there is a peer is known before steps are timed; what it takes to find out is no part of our start.
    let torch = args.peers.then(|| accepts(&plan).and_then(|()| Torch::find(&args.python))).transpose()?;
    laps.skip();
    let machine = args.machine.options()?;
    let bench = measure(&plan, &machine, args.steps, laps)?;
    if !args.json {
        print(&report::measurement(&bench))?;
    }
    let (mut peers, mut curves) = (None, None);
    if let Some(torch) = torch {
        let spec = spec(&file.training(&options)?, &plan, bench.threads)?;
        if let Some(steps) = args.curves {
            let optimizer = Optimizer { lr: LR, ..optimizer() };
            let plan =
                |compute| file.compile(&CompileOptions { compute, optimizer: optimizer.clone(), ..options.clone() });
            let drawn = draw(&Question { plan: &plan, options: &machine, spec, steps }, &torch)?;
            if !args.json {
                print(&text(&drawn))?;
            }
            curves = Some(drawn);
        } else {
            let exact = file.compile(&CompileOptions { compute: DType::F32, ..options })?;
            let (steps, rounds) = (args.steps, args.rounds);
            let versus =
                compete(&Contest { plan: &plan, exact: &exact, options: &machine, spec, steps, rounds }, &torch)?;
            if !args.json {
                print(&report::versus(&bench, &versus))?;
            }
            peers = Some(versus);
        }
    }
    if args.json { print_json(&Output { bench, peers, curves }) } else { Ok(()) }
}
