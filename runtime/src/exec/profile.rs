//! Where a run's time goes: seconds, FLOPs and bytes of each instruction.

use forebay_plan::Plan;
use std::time::Duration;

/// What the instructions of a plan took so far.
#[derive(Clone, Debug)]
pub struct Profile {
    /// For each program and instruction the number of times it ran and how long it took.
    spent: Vec<Vec<(u64, Duration)>>,
}

/// An instruction of a program, over all the calls of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRow {
    /// The program.
    pub program: String,
    /// The instruction: the value that it makes.
    pub instruction: String,
    /// What it does: `matmul`, `region`, …
    pub kernel: &'static str,
    /// How often it ran.
    pub runs: u64,
    /// All of its runs together.
    pub seconds: f64,
    /// All of its runs together, ragged dimensions at their planned bound.
    pub flops: f64,
    /// Bytes read and written, each operand once; all of its runs together.
    pub bytes: f64,
}

impl Profile {
    /// Nothing yet.
    pub(super) fn new(plan: &Plan) -> Profile {
        let spent = plan.programs.iter().map(|p| vec![(0, Duration::ZERO); p.instructions.len()]).collect();
        Profile { spent }
    }

    pub(super) fn add(&mut self, program: usize, instruction: usize, time: Duration) {
        let (runs, spent) = &mut self.spent[program][instruction];
        *runs += 1;
        *spent += time;
    }

    /// The instructions that ran, those that took longest first.
    pub(super) fn rows(&self, plan: &Plan) -> Vec<ProfileRow> {
        let mut rows = vec![];
        for (program, spent) in plan.programs.iter().zip(&self.spent) {
            for (instruction, &(runs, time)) in program.instructions.iter().zip(spent).filter(|(_, s)| s.0 > 0) {
                rows.push(ProfileRow {
                    program: program.name.clone(),
                    instruction: instruction.name.clone(),
                    kernel: instruction.kernel.name(),
                    runs,
                    seconds: time.as_secs_f64(),
                    flops: instruction.kernel.flops() * runs as f64,
                    bytes: instruction.kernel.traffic(&program.buffers).bytes() as f64 * runs as f64,
                });
            }
        }
        rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        rows
    }
}
