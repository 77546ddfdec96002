//! `forebay calibrate`

use crate::calibrate::{Calibration, calibrate as measure};
use crate::failure::Failure;
use crate::files::{can_write, is_stdout, replace_file};
use crate::output::{Table, print, print_json};
use crate::say::say;
use std::path::PathBuf;

/// Measure this machine, so that `simulate` predicts what `train` takes on it
///
/// Small models train for some steps, with one rank and with one for each core, and every kernel is timed. The rates at their shapes, the bandwidth between ranks and the
/// cost of taking turns become a cluster file. Takes up to two minutes; what else the machine does meanwhile is
/// measured with it, and said where it is much.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  forebay calibrate --cpu -o this.toml
  forebay simulate bench-small --cluster this.toml --dtype f32 --strategy dp=2,zero=1      what `forebay bench bench-small` would take
  forebay calibrate --cpu --ranks 4 --json -o this.toml

Without -o, or with -o -, the file is printed.")]
pub struct Args {
    /// Measure the processor: there is nothing else to measure yet
    #[arg(long, required = true)]
    cpu: bool,
    /// Write the cluster file here
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Up to how many ranks share the machine
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: u32,
    /// Print what was found as JSON; needs -o
    #[arg(long, requires = "output")]
    json: bool,
}

pub fn calibrate(args: Args) -> Result<(), Failure> {
    // `--cpu` is required: it says what will be at work for a while.
    debug_assert!(args.cpu, "clap asks for it");
    let file = args.output.as_deref().filter(|path| !is_stdout(path));
    if args.json && file.is_none() {
        let why = "`-o -` prints the cluster file, and `--json` what was found: only one can be";
        return Err(Failure::Usage(why.into()));
    }
    file.map_or(Ok(()), can_write)?;
    let (calibration, text) = measure(args.ranks)?;
    if let Some(what) = calibration.disturbance() {
        say!("warning: {what}; measure again when the machine is idle");
    }
    let Some(path) = file else { return print(&text) };
    replace_file(path, text.as_bytes())?;
    if args.json { print_json(&calibration) } else { print(&table(&calibration, &path.display().to_string())) }
}

fn table(found: &Calibration, path: &str) -> String {
    let mut table = Table::new(&[&format!("{}, {} cores", found.cpu, found.cores), "measured"]);
    let mut row = |what: &str, value: String| table.row(vec![what.into(), value]);
    row("multiply-adds in f32", format!("{:.1} GFLOP/s", found.peak_gflops));
    row("multiply-adds in bf16", format!("{:.1} GFLOP/s", found.peak_bf16_gflops));
    row("memory", format!("{:.1} GB/s", found.memory_gbps));
    row("between kernels", format!("{:.2} µs", found.kernel_us));
    row("between ranks", format!("{:.1} GB/s each", found.link_gbps));
    row("rendezvous", format!("{:.1} µs", found.latency_us));
    row("shapes of kernels", found.samples.to_string());
    if found.sharing.iter().any(|(ranks, _)| *ranks > found.cores) {
        row("work of cores in it", format!("{:.0} %", 100.0 * found.communication_work));
    }
    for (ranks, factor) in &found.sharing {
        let what = if *ranks > found.cores { "take turns" } else { "wait for each other" };
        if *ranks > 1 {
            row(&format!("{ranks} ranks {what}"), format!("× {factor:.2}"));
        }
    }
    format!(
        "{}\n{path} in {:.0} s: `forebay simulate MODEL --cluster {path} --dtype f32`\n",
        table.render(),
        found.seconds
    )
}
