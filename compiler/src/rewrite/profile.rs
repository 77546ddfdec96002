//! What an op costs on a device, roughly: enough to choose between equal forms. The simulator's device model can take this place.

use forebay_ir::cost::cost;
use forebay_ir::{Graph, Op, Unit, ValueId};
use forebay_plan::Kernel;

/// A device, for choosing between equal forms.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// Seconds until a kernel begins.
    pub launch: f64,
    /// Bytes per second between memory and a kernel.
    pub bandwidth: f64,
    /// FLOP/s of matrix products.
    pub cube: f64,
    /// Elements per second of one elementwise operation.
    pub vector: f64,
}

impl Profile {
    /// Two cores with AVX-512, in the orders of magnitude that `docs/performance.md` measures.
    pub fn cpu() -> Profile {
        Profile { name: "cpu", launch: 1e-6, bandwidth: 1.5e10, cube: 1.5e11, vector: 1e10 }
    }

    /// An NPU of the Ascend 910B's kind (datasheet: 1.6 TB/s, 354 TFLOP/s in bf16), whose vector unit is some thirty times slower than its cubes.
    pub fn npu() -> Profile {
        Profile { name: "npu", launch: 5e-6, bandwidth: 1.6e12, cube: 3.5e14, vector: 1e13 }
    }

    /// Seconds that a node takes when it runs alone.
    pub fn seconds(&self, graph: &Graph, value: ValueId) -> f64 {
        let node = graph.node(value);
        let unit = node.op.row().unit;
        let free = unit == Unit::None || matches!(node.op, Op::Const(_) | Op::Iota(_) | Op::Input);
        if free {
            return 0.0;
        }
        let cost = cost(graph, value);
        let busy = match unit {
            Unit::Cube => cost.flops / self.cube,
            Unit::Vector | Unit::Copy | Unit::Link | Unit::None => cost.instructions / self.vector,
        };
        self.launch + busy.max((cost.read + cost.written) / self.bandwidth)
    }

    /// Seconds of a kernel that moves so many bytes.
    pub fn kernel(&self, kernel: &Kernel, bytes: f64) -> f64 {
        let flops = if kernel.is_product() { self.cube } else { self.vector };
        self.launch + (kernel.flops() / flops).max(bytes / self.bandwidth)
    }
}
