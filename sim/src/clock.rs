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
pub fn clock(cluster: &Cluster, precision: Precision) -> Clock {
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
