//! What frameworks do with gradients at the end of a step beside what the plan does: zeros, a norm and a division of each rank's own sums, a pass that clips.

use crate::framework::Framework;
use forebay_compiler::optimizer::CHUNK;
use forebay_plan::{Call, FlatRange, Plan, Role, TensorKind};
use rustc_hash::FxHashMap;

/// Programs that sum the squares of a class of gradients.
const SQUARES: &str = "optimizer.squares.";

/// Bytes of traffic for each element of a rank's own gradients, whoever else has them, once in a step.
pub(crate) fn own_traffic(framework: &Framework, data_ranks: u64) -> f64 {
    let divides = if data_ranks > 1 { framework.divide_passes } else { 0.0 };
    (framework.gradient_passes + divides) * framework.gradient_bytes
}

/// Bytes of traffic for each element that a rank updates, once in a step: gradients that are not in f32 are copied to it first.
pub(crate) fn clip_traffic(framework: &Framework) -> f64 {
    let copied = framework.clip_traffic > 0.0 && framework.gradient_bytes < 4.0;
    framework.clip_traffic + if copied { framework.gradient_bytes + 4.0 } else { 0.0 }
}

/// Traffic of the programs that sum squares, with what frameworks do beside, as multiples of the plan's.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gradients(FxHashMap<String, f64>);

impl Gradients {
    /// Of a plan. Where several roles have a program, it is the last one's: stages differ in what part of their parameters ranks share by little more than embedding and head.
    pub fn new(plan: &Plan, framework: &Framework) -> Gradients {
        // (A dimension that is cut has names such as `tp.ep`.)
        let shares_samples = |name: &str| !matches!(name.split('.').next(), Some("tp" | "pp"));
        let data_ranks = plan.mesh.iter().filter(|d| shares_samples(&d.name)).map(|d| u64::from(d.size)).product();
        let (own, clip) = (own_traffic(framework, data_ranks), clip_traffic(framework));
        let mut all = Gradients::default();
        if own + clip <= 0.0 {
            return all;
        }
        for role in &plan.roles {
            // Ranks that share gradients layer by layer (ZeRO-2 and 3) have no more of them than they update.
            let programs = squares(plan, role);
            let gradients = role.tensors.iter().filter(|t| t.kind == TensorKind::Gradient);
            let ranks = |range: &FlatRange| -> f64 {
                range.index.terms.iter().map(|(dim, _)| f64::from(plan.mesh[*dim as usize].size)).product()
            };
            let held: f64 = gradients.map(|t| t.local_elements() as f64 / t.range.as_ref().map_or(1.0, ranks)).sum();
            let updated: f64 = programs.iter().map(|p| p.elements).sum();
            let beside = own * held / updated.max(1.0) + clip;
            all.0.extend(programs.iter().map(|p| (p.name.to_string(), 1.0 + beside / p.each)));
        }
        all
    }

    /// Of a program.
    pub fn passes(&self, program: &str) -> f64 {
        self.0.get(program).copied().unwrap_or(1.0)
    }
}

/// A program that sums squares.
struct Squares<'a> {
    name: &'a str,
    /// Elements that it goes through.
    elements: f64,
    /// Bytes of each: behind the chunks of its name is the type of gradients that are no sums.
    each: f64,
}

/// Those of a role.
fn squares<'a>(plan: &'a Plan, role: &Role) -> Vec<Squares<'a>> {
    let calls = role.phases.iter().filter(|p| p.name == "train").flat_map(|p| &p.calls);
    let of_call = |call: &Call| {
        let name = plan.programs[call.program as usize].name.as_str();
        let (chunks, narrow) = match name.strip_prefix(SQUARES)?.split_once('.') {
            Some((chunks, _)) => (chunks, true),
            None => (name.strip_prefix(SQUARES)?, false),
        };
        let elements = chunks.parse::<f64>().ok()? * CHUNK as f64;
        Some(Squares { name, elements, each: if narrow { 2.0 } else { 4.0 } })
    };
    calls.filter_map(of_call).collect()
}
