//! `forebay plan`

use crate::failure::Failure;
use crate::model::read_plan;
use crate::output::print;
use std::path::PathBuf;

/// Look at compiled plans
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Print a plan: memory, phases, programs and their instructions
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
            let plan = read_plan(&path)?;
            let ranks: u64 = plan.mesh.iter().map(|d| u64::from(d.size)).product();
            let text = forebay_plan::print::rank(&plan, rank);
            print(&text.ok_or_else(|| {
                Failure::Input(format!("`{}` has no rank {rank}: its {ranks} ranks count from 0", path.display()))
            })?)
        }
        Command::Show { plan, summary, rank: None } => {
            let plan = read_plan(&plan)?;
            print(&if summary { forebay_plan::print::summary(&plan) } else { forebay_plan::print::text(&plan) })
        }
        // Reading verifies.
        Command::Verify { plan: path } => {
            let plan = read_plan(&path)?;
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
