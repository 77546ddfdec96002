//! What the compiler weighs time by.

use crate::rewrite::Profile;
use forebay_ir::{Graph, ValueId};
use forebay_plan as plan;

/// What it costs to make a value; several plans may ask at once.
pub trait Price: Sync {
    /// Seconds, when its operands are in memory.
    fn seconds(&self, graph: &Graph, value: ValueId) -> f64;

    /// Seconds until so many bytes are on the next stage of a pipeline of so many stages and ranks of each, where it takes longest.
    fn message(&self, stages: (u32, u64), bytes: f64) -> f64;

    /// Seconds of each program of a plan, while programs like it run before and after it.
    ///
    /// # Errors
    /// When the plan cannot be timed.
    fn programs(&self, plan: &plan::Plan) -> Result<Vec<f64>, String>;

    /// Seconds of a training step; here [`one_after_another`].
    ///
    /// # Errors
    /// When the plan cannot be timed.
    fn step(&self, plan: &plan::Plan) -> Result<f64, String> {
        one_after_another(self, plan)
    }

    /// Seconds to copy a value to the host's memory, or from there: of a ragged one the rows that come. None where nothing is known of that, and nothing is swapped.
    fn copy_seconds(&self, _graph: &Graph, _value: ValueId) -> Option<f64> {
        None
    }

    /// Does the vector unit work beside the matrix unit? None where the device is not known.
    fn vector_beside_cube(&self) -> Option<bool> {
        None
    }

    /// Is the device known, so that prices of programs and steps say what runs beside what?
    fn knows_device(&self) -> bool {
        self.vector_beside_cube().is_some()
    }

    /// Ranks of a node, where it is known how they are connected: as many as whole parts of a mesh fill, of which the sizes are given, the innermost first.
    fn node(&self, _extents: &[u64]) -> Option<u32> {
        None
    }
}

impl Price for Profile {
    fn seconds(&self, graph: &Graph, value: ValueId) -> f64 {
        Profile::seconds(self, graph, value)
    }

    /// Read and written once: ranks of one machine.
    fn message(&self, _: (u32, u64), bytes: f64) -> f64 {
        self.launch + 2.0 * bytes / self.bandwidth
    }

    /// The sum over their kernels, each as long as its FLOPs or its bytes take.
    fn programs(&self, plan: &plan::Plan) -> Result<Vec<f64>, String> {
        let of_program = |program: &plan::Program| {
            let kernels = program.instructions.iter().map(|i| &i.kernel);
            kernels.map(|kernel| self.kernel(kernel, kernel.traffic(&program.buffers).bytes() as f64)).sum()
        };
        Ok(plan.programs.iter().map(of_program).collect())
    }
}

/// Seconds of a plan's training step when its programs run one after another, on the stage that takes longest.
///
/// # Errors
/// When the plan cannot be timed.
pub fn one_after_another(price: &(impl Price + ?Sized), plan: &plan::Plan) -> Result<f64, String> {
    let programs = price.programs(plan)?;
    let stages = plan.roles.iter().map(|role| {
        let calls = role.phases.iter().filter(|phase| phase.name == "train").flat_map(|phase| &phase.calls);
        calls.map(|call| programs[call.program as usize]).sum::<f64>()
    });
    Ok(stages.fold(0.0, f64::max))
}
