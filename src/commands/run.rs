//! `forebay run`

use crate::args::{MachineArgs, SessionArgs};
use crate::backend::BackendArgs;
use crate::failure::Failure;
use crate::model::read_plan;
use crate::session::{self, Program};
use std::path::PathBuf;

/// Train with a plan that was compiled earlier
///
/// Does what `forebay train` does, without the model file: sizes, types, optimizer and schedule are those of the plan.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay compile model.moe -o model.plan --steps 1000
  forebay run model.plan --data corpus.txt --save runs/a
  forebay run model.plan --data corpus.txt --hosts hosts --host-index 0     one process of several, where the file hosts says
  forebay run model.plan --data corpus.txt --backend npu-emulated --cluster h100 --profile      on emulated devices, with their time")]
pub struct Args {
    /// The plan
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// Stop after so many steps [default: what the plan was compiled for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    backend: BackendArgs,
}

pub fn run(args: Args) -> Result<(), Failure> {
    session::run(
        Program::Compiled(&|| read_plan(&args.plan), &[("the plan", args.plan.clone())]),
        &args.session,
        (&args.machine, &args.backend),
        args.steps,
    )
}
