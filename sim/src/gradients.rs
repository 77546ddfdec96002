//! What frameworks do with gradients at the end of a step beside what the plan does: zeros, a norm and a division of each rank's own sums, a pass that clips.

use crate::framework::Framework;
use forebay_compiler::optimizer::CHUNK;
use forebay_plan::{Call, Plan, Role, TensorKind};
use rustc_hash::FxHashMap;

/// Programs that sum the squares of a class of gradients.
const SQUARES: &str = "optimizer.squares.";

/// Bytes of traffic for each element of a rank's own gradients, whoever else has them, once in a step.
pub(crate) fn own_traffic(framework: &Framework, data_ranks: u64) -> f64 {
    framework.gradient_traffic + if data_ranks > 1 { framework.divide_traffic } else { 0.0 }
}

/// Traffic of the programs that sum squares, with what frameworks do beside, as multiples of the plan's.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gradients(FxHashMap<String, f64>);

impl Gradients {
    /// Of a plan. Where several roles have a program, it is the last one's.
    pub fn new(plan: &Plan, framework: &Framework) -> Gradients {
        let among = ["tp", "etp", "pp"];
        let data_ranks = plan.mesh.iter().filter(|d| !among.contains(&d.name.as_str())).map(|d| u64::from(d.size));
        let own = own_traffic(framework, data_ranks.product());
        if own + framework.clip_traffic <= 0.0 {
            return Gradients::default();
        }
        let mut all = Gradients::default();
        for role in &plan.roles {
            let params = role.tensors.iter().filter(|t| t.kind == TensorKind::Param);
            let held: f64 = params.map(|t| t.local_elements() as f64).sum();
            let programs = squares(plan, role);
            let updated: f64 = programs.iter().map(|(_, elements)| elements).sum();
            let beside = own * held / updated.max(1.0) + framework.clip_traffic;
            all.0.extend(programs.iter().map(|(name, _)| (name.to_string(), 1.0 + beside / read(name))));
        }
        all
    }

    /// Of a program.
    pub fn passes(&self, program: &str) -> f64 {
        self.0.get(program).copied().unwrap_or(1.0)
    }
}

/// The programs of a role that sum squares, with the elements that they go through.
fn squares<'a>(plan: &'a Plan, role: &Role) -> Vec<(&'a str, f64)> {
    let calls = role.phases.iter().filter(|p| p.name == "train").flat_map(|p| &p.calls);
    let of_call = |call: &Call| {
        let name = plan.programs[call.program as usize].name.as_str();
        let chunks: f64 = name.strip_prefix(SQUARES)?.split('.').next()?.parse().ok()?;
        Some((name, chunks * CHUNK as f64))
    };
    calls.filter_map(of_call).collect()
}

/// Bytes that such a program reads of an element: behind the chunks of its name is the type of gradients that are no sums.
fn read(program: &str) -> f64 {
    let f32s = program.strip_prefix(SQUARES).is_none_or(|rest| !rest.contains('.'));
    if f32s { 4.0 } else { 2.0 }
}
