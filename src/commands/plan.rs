//! `forebay plan`

use crate::failure::Failure;
use crate::model::{parse_plan, read_plan};
use crate::output::{counted, print};
use forebay_runtime::exec::human_bytes;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Look at compiled plans
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Print a plan: memory, phases, programs and their instructions; also one that cannot be verified
    Show {
        /// The plan
        #[arg(value_name = "PLAN")]
        plan: PathBuf,
        /// Sizes only
        #[arg(long)]
        summary: bool,
        /// What one rank does
        #[arg(long, value_name = "R", conflicts_with = "summary")]
        rank: Option<u32>,
    },
    /// Check that a plan is safe to run
    Verify {
        /// The plan
        #[arg(value_name = "PLAN")]
        plan: PathBuf,
    },
}

pub fn plan(command: Command) -> Result<(), Failure> {
    match command {
        Command::Show { plan: path, rank: Some(rank), .. } => {
            let plan = parse_plan(&path)?;
            let ranks = plan.mesh.iter().fold(1u64, |n, d| n.saturating_mul(u64::from(d.size)));
            let text = forebay_plan::print::rank(&plan, rank);
            print(&text.ok_or_else(|| {
                Failure::Input(format!(
                    "`{}` has no rank {rank}: it has {}, from 0",
                    path.display(),
                    counted(ranks, "rank")
                ))
            })?)
        }
        Command::Show { plan, summary, rank: None } => {
            let plan = parse_plan(&plan)?;
            print(&if summary { forebay_plan::print::summary(&plan) } else { forebay_plan::print::text(&plan) })
        }
        // Reading verifies.
        Command::Verify { plan: path } => {
            let waiting = waiting(&path);
            let plan = read_plan(&path);
            waiting.finish_and_clear();
            let plan = plan?;
            let instructions: usize = plan.programs.iter().map(|p| p.instructions.len()).sum();
            let calls: usize = plan.roles.iter().flat_map(|r| &r.phases).map(|p| p.calls.len()).sum();
            print(&format!(
                "{}: {} programs with {instructions} instructions, {calls} calls: safe to run\n",
                path.display(),
                plan.programs.len()
            ))
        }
    }
}

/// Shows how long a plan has been read and checked for, on a terminal: one for thousands of ranks takes seconds.
fn waiting(path: &Path) -> ProgressBar {
    let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}  {elapsed}").expect("a valid template"));
    bar.set_message(format!("checking {} ({})", path.display(), human_bytes(bytes)));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
