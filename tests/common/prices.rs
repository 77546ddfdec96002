//! Prices that no machine has, so that choices are made which no sensible price would lead to.

use forebay_compiler::memory::Price;
use forebay_ir::{Graph, ValueId};
use forebay_plan::Plan;

/// Prices drawn by a value's name and a seed.
pub struct Random(pub u64);

impl Price for Random {
    fn seconds(&self, graph: &Graph, value: ValueId) -> f64 {
        let name = graph.node(value).name.bytes();
        let hash = name.fold(self.0 ^ 0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        ((hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f64 * 1e-9
    }

    fn message(&self, _: (u32, u64), _: f64) -> f64 {
        0.0
    }

    fn programs(&self, plan: &Plan) -> Result<Vec<f64>, String> {
        Ok(vec![0.0; plan.programs.len()])
    }
}

/// The same, and a link to the host.
pub struct Linked {
    /// What is made again costs this.
    pub price: Random,
    /// Bytes per second.
    pub rate: f64,
}

impl Price for Linked {
    fn seconds(&self, graph: &Graph, value: ValueId) -> f64 {
        self.price.seconds(graph, value)
    }

    fn message(&self, stages: (u32, u64), bytes: f64) -> f64 {
        self.price.message(stages, bytes)
    }

    fn programs(&self, plan: &Plan) -> Result<Vec<f64>, String> {
        self.price.programs(plan)
    }

    fn copy_seconds(&self, graph: &Graph, value: ValueId) -> Option<f64> {
        Some(graph.bytes(value) as f64 / self.rate)
    }
}
