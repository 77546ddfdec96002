//! `forebay generate`

use crate::args::{MachineArgs, not_negative};
use crate::failure::Failure;
use crate::output::{print_json, stdout_failed};
use crate::say::say;
use forebay_runtime::checkpoint::{Checkpoint, Contents};
use forebay_runtime::exec::{ExecOptions, Executor, Purpose};
use forebay_runtime::generate::{Generator, Sampling};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;

/// Write text with a trained model
///
/// Prints the prompt and what the model makes of it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay generate forebay-runs/TinyMoE --prompt \"The \"
  forebay generate runs/a/step-000100 --prompt \"fn main\" --bytes 500 --temperature 0.5 --seed 7")]
pub struct Args {
    /// A checkpoint, or the folder of a run: its last checkpoint
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    /// What the text begins with
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    prompt: String,
    /// How many bytes to write
    #[arg(long, value_name = "N", default_value_t = 200)]
    bytes: usize,
    /// Below 1 likelier, above 1 wilder; 0 always takes the likeliest
    #[arg(long, value_name = "X", default_value_t = 0.8, allow_negative_numbers = true, value_parser = not_negative)]
    temperature: f64,
    /// Consider only so many of the likeliest bytes; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,
    /// The same seed writes the same text
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print an object with `prompt` and `text`
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Serialize)]
struct Sample<'a> {
    prompt: &'a str,
    text: &'a str,
}

pub fn generate(args: Args) -> Result<(), Failure> {
    let checkpoint = Checkpoint::open(&args.checkpoint)?;
    if let Some(why) = checkpoint.astray() {
        say!("warning: {why}; taking that of step {}", checkpoint.index().step);
    }
    let plan = checkpoint.plan()?;
    let options = ExecOptions { purpose: Purpose::Generate, ..args.machine.options()? };
    let mut executor = Executor::new(&plan, &options)?;
    checkpoint.load(&mut executor, Contents::Model)?;
    let sampling = Sampling { temperature: args.temperature, top_k: args.top_k, seed: args.seed };
    let mut generator = Generator::new(&mut executor, args.prompt.as_bytes(), sampling)?;
    if args.json {
        let text = (0..args.bytes).map(|_| generator.next_byte()).collect::<Result<Vec<u8>, _>>()?;
        return print_json(&Sample { prompt: &args.prompt, text: &String::from_utf8_lossy(&text) });
    }
    // Byte by byte as they come, whole or not: a terminal shows characters when they are complete.
    let mut out = io::stdout().lock();
    out.write_all(args.prompt.as_bytes()).map_err(stdout_failed)?;
    for _ in 0..args.bytes {
        out.write_all(&[generator.next_byte()?]).and_then(|()| out.flush()).map_err(stdout_failed)?;
    }
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(stdout_failed)
}
