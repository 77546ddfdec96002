//! The `forebay` command.

// It panics where nobody reads stderr: `say!` does not.
#![deny(clippy::print_stderr)]

mod args;
mod backend;
mod bench;
mod calibrate;
mod cluster;
mod commands;
mod device_profile;
mod failure;
mod files;
mod hosts;
mod load;
mod memory;
mod model;
mod notes;
mod on_cluster;
mod output;
mod page;
mod profile;
mod progress;
mod say;
mod search;
mod session;
mod straggler;
mod strategy;
mod trace;
mod written;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::time::Instant;

/// A dataflow-graph compiler for Mixture-of-Experts training: from a model file to a falling loss.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  forebay train examples/models/tiny-moe.moe --data docs     train on the text files of a folder
  forebay check examples/models/mixtral-8x7b.moe             what a model is made of
  forebay generate forebay-runs/TinyMoE --prompt \"The \"      what it has learnt

Environment:
  FOREBAY_CPU=amx|avx512bf16|avx512|avx2|portable
                                     the CPU instructions to use at most, where --cpu does not say
  FOREBAY_JIT=off|auto|on            compile regions to machine code never, where it is faster, or always
  NO_COLOR=1                          no colours in messages

`forebay COMMAND --help` says more. Exit status: 0 done, 1 the input is wrong, 2 the command line is wrong, 130 interrupted."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Train(Box<commands::train::Args>),
    Run(commands::run::Args),
    Generate(commands::generate::Args),
    Bench(commands::bench::Args),
    Check(commands::check::Args),
    Fmt(commands::fmt::Args),
    Compile(commands::compile::Args),
    Rules(commands::rules::Args),
    Schedule(commands::schedule::Args),
    Explain(commands::explain::Args),
    Simulate(commands::simulate::Args),
    Memory(commands::memory::Args),
    Validate(commands::validate::Args),
    Calibrate(commands::calibrate::Args),
    #[command(subcommand)]
    Plan(commands::plan::Command),
}

fn main() -> ExitCode {
    let started = Instant::now();
    failure::install_panic_hook();
    let cli = Cli::parse_from(args::spread_settings(std::env::args_os()));
    let result = std::panic::catch_unwind(|| match cli.command {
        Command::Train(args) => commands::train::train(*args),
        Command::Run(args) => commands::run::run(args),
        Command::Generate(args) => commands::generate::generate(args),
        Command::Bench(args) => commands::bench::bench(args, started),
        Command::Check(args) => commands::check::check(args),
        Command::Fmt(args) => commands::fmt::fmt(args),
        Command::Compile(args) => commands::compile::compile(args),
        Command::Rules(args) => commands::rules::rules(args),
        Command::Schedule(args) => commands::schedule::schedule(args),
        Command::Explain(args) => commands::explain::explain(args),
        Command::Simulate(args) => commands::simulate::simulate(args),
        Command::Memory(args) => commands::memory::memory(args),
        Command::Validate(args) => commands::validate::validate(args),
        Command::Calibrate(args) => commands::calibrate::calibrate(args),
        Command::Plan(command) => commands::plan::plan(command),
    });
    match result {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => failure.report(),
        // The hook has said what happened.
        Err(_) => ExitCode::from(101),
    }
}
