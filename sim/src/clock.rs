//! Times of instructions on a cluster, for the passes of the compiler that put them into an order: those of the prediction ([`crate::price`]), so that what
//! hides more by the one hides more by the other.

use crate::framework::Framework;
use crate::price::Pricer;
use crate::value::ValuePricer;
use forebay_compiler::memory::Price;
use forebay_compiler::overlap::{Clock, Lanes, Times};
use forebay_cost::{Cluster, Precision};
use forebay_ir::{Graph, ValueId};
use forebay_plan::Program;

/// A cluster, and what the inputs of products are in. Routing is even.
#[derive(Debug)]
struct OnCluster {
    cluster: Cluster,
    framework: Framework,
    precision: Precision,
}

/// The clock of a cluster, for products with inputs of some type.
///
/// Ranks of a machine that was measured share its cores, so that nothing runs beside anything else and no order hides more than another: its plans are those that are made
/// without a cluster, so that what is predicted is what `train` and `run` execute, to the byte.
pub fn clock(cluster: &Cluster, precision: Precision) -> Clock {
    if cluster.measured.is_some() {
        return Clock::default();
    }
    Clock::new(OnCluster { cluster: cluster.clone(), framework: Framework::default(), precision })
}

impl Times for OnCluster {
    fn instructions(&self, program: &Program, lanes: &Lanes) -> Vec<f64> {
        let on = (&self.cluster, &self.framework, self.precision);
        let pricer = Pricer::of_program((&lanes.mesh, program), on);
        program.instructions.iter().map(|instruction| pricer.instruction(program, instruction).seconds).collect()
    }

    fn value(&self, graph: &Graph, value: ValueId, _: &Lanes) -> f64 {
        let seconds = ValuePricer::new(&self.cluster, self.precision, 1.0).seconds(graph, value);
        (seconds - self.start()).max(0.0)
    }

    fn start(&self) -> f64 {
        self.cluster.kernel_start()
    }

    fn memory_rate(&self) -> f64 {
        self.cluster.memory_rate()
    }

    fn slowdown(&self) -> f64 {
        self.cluster.calibrated.overlap_slowdown.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_compiler::pipeline::{CompileOptions, Models, compile};
    use forebay_compiler::shard::Strategy;
    use forebay_ir::DType;
    use forebay_plan::{Instruction, Kernel};

    const MODEL: &str = include_str!("../../examples/models/tiny-moe.moe");

    /// Seconds of the products of experts in programs of a kind, each priced by itself.
    fn products(dispatch: &str, kind: &str) -> f64 {
        let strategy = Strategy::parse(&format!("dp=8,ep=8,mbs=4,dispatch={dispatch}")).expect("a strategy");
        let options = CompileOptions { compute: DType::BF16, strategy, ..CompileOptions::default() };
        let check = options.check_options(true, Some(4), options.micro_batches);
        let train = forebay_dsl::load(MODEL, &check).expect("the model is right").model;
        let models = Models { eval: train.clone(), generate: train.clone(), train };
        let plan = compile(&models, &options).expect("a plan");
        let (_, text) = forebay_cost::known::FILES.iter().find(|(name, _)| *name == "h100").expect("a cluster");
        let cluster = Cluster::parse(text).expect("it is right");
        let framework = Framework::default();
        let programs = plan.programs.iter().filter(|program| program.name.contains(kind));
        let of_program = |program: &Program| {
            let pricer = Pricer::of_program((&plan.mesh, program), (&cluster, &framework, Precision::Bf16));
            let grouped = |i: &&Instruction| matches!(&i.kernel, Kernel::Matmul(k) if k.groups.is_some());
            program.instructions.iter().filter(grouped).map(|i| pricer.instruction(program, i).seconds).sum::<f64>()
        };
        programs.map(of_program).fold(0.0, f64::max)
    }

    /// A backward program has products of experts and nothing that says how their rows came: each product says how many an even choice brings.
    #[test]
    fn programs_by_themselves_have_the_rows_of_an_even_choice() {
        for kind in ["forward", "backward"] {
            // Room for no more than those: 4 × 128 tokens with 2 experts each.
            let room = products("flat,max_tokens_per_rank=1024", kind);
            for way in ["flat", "rank-dedup"] {
                let seconds = products(way, kind);
                assert!(room > 0.0 && (seconds / room - 1.0).abs() < 0.1, "{kind}, {way}: {seconds} s, not {room} s");
            }
        }
    }
}
