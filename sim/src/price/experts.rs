//! What activations of experts take where they are not one kernel, in half precision: biases that are added expert by expert, and limits of what a gate and its value may be.

use super::Pricer;
use forebay_plan::{Arg, Kernel, Reduce, Region, Step, StepOp};

/// Kernels of each expert for each of its biases. Those of a gate and of what it gates are part of their products; the one behind the last product is added expert by expert, in two
/// kernels (bias times share, sum) whose gradients are two products, two sums, a copy and an addition (Megatron-Core, `TEGroupedMLP._apply_bias`): eight for three biases.
const BIAS_KERNELS: f64 = 8.0 / 3.0;
/// Bytes that these kernels move for each element of the rows whose gradient is summed, where these are in half precision. Shares are in f32, and so is bias times share: it is written (4),
/// added (10), put together (8) and rounded (6); backwards come two roundings (12), and for either factor a product and a sum (24): 64 for three biases, as if experts were as wide
/// as the model (the bias behind the last product is as wide as the model).
const BIAS_TRAFFIC: f64 = 64.0 / 3.0;

/// Kernels and bytes for each element of what is limited, in half precision: cut (4 bytes read and written) and put beside what else the activation reads (4), a kernel for both of a gate
/// and its value (Megatron-Core, `weighted_bias_quick_geglu_impl`).
const LIMIT: Part = Part { kernels: 1.5, bytes: 8.0 };
/// The same of its gradient, in the mean of a gate, which has one limit, and of its value, which has two. PyTorch compares with each (3), joins what two comparisons say (3), chooses (5), and
/// puts the gradients beside each other (4).
const LIMIT_GRADIENT: Part = Part { kernels: 3.5, bytes: 15.0 };

/// Kernels of a part of an activation, and the bytes that they move for each of its elements.
struct Part {
    kernels: f64,
    bytes: f64,
}

/// What kernels take beside the instruction that they are counted with.
#[derive(Clone, Copy, Default)]
pub(super) struct Apart {
    /// Starts by the host, as multiples of one instruction's.
    pub starts: f64,
    /// Seconds of the device.
    pub seconds: f64,
}

impl Pricer<'_> {
    /// What experts' activations take beside a kernel, where the framework has no kernel that does all.
    pub(super) fn apart(&self, kernel: &Kernel) -> Apart {
        match kernel {
            // Biases are counted where their gradients are summed.
            Kernel::Reduce(Reduce { ragged: Some(ragged), dims, .. })
                if ragged.per_group && self.framework.expert_us > 0.0 =>
            {
                let elements = dims[1..].iter().product::<u64>() as f64 * self.ragged(kernel);
                let apart = self.kernels(dims[0] as f64 * BIAS_KERNELS, elements * BIAS_TRAFFIC);
                // One start is the instruction's.
                Apart { starts: (apart.starts - 1.0).max(0.0), ..apart }
            }
            Kernel::Region(region) if region.ragged.is_some() => self.limited(region, kernel),
            Kernel::Matmul(k) if k.groups.is_some() => {
                k.epilogue.as_deref().map_or(Apart::default(), |region| self.limited(region, kernel))
            }
            _ => Apart::default(),
        }
    }

    /// What limits take in a region over the rows of experts.
    fn limited(&self, region: &Region, kernel: &Kernel) -> Apart {
        if !self.framework.limits_apart {
            return Apart::default();
        }
        let chosen = region.steps.iter().filter(|step| step.op == StepOp::Select).count();
        // A gradient is made of the same limits, and passes where none of them was reached.
        let (limits, each) = match (limits(region), chosen) {
            (0, _) => return Apart::default(),
            (limits, 0) => (limits as f64, LIMIT),
            (_, chosen) => (chosen as f64, LIMIT_GRADIENT),
        };
        let elements = region.dims.iter().product::<u64>() as f64 * self.ragged(kernel);
        self.kernels(limits * each.kernels, limits * elements * each.bytes)
    }

    /// So many kernels one after the other, which move so many bytes.
    fn kernels(&self, kernels: f64, bytes: f64) -> Apart {
        let seconds = kernels * self.cluster.kernel_start() + bytes / self.cluster.memory_rate();
        Apart { starts: self.one_by_one(kernels), seconds }
    }

    /// Starts of so many kernels of the framework, as multiples of one instruction's.
    pub(super) fn one_by_one(&self, kernels: f64) -> f64 {
        kernels * self.framework.expert_us / self.framework.dispatch_us.max(1e-3)
    }
}

/// Upper limits of values in a region: not those of exponents, as a sigmoid has one.
fn limits(region: &Region) -> usize {
    let is_exponent = |at: usize| {
        let takes = |step: &&Step| step.args.iter().any(|arg| matches!(arg, Arg::Step(s) if *s as usize == at));
        region.steps.iter().filter(takes).any(|step| step.op == StepOp::Exp)
    };
    let is_limit = |(at, step): &(usize, &Step)| {
        let by_constant = step.args.iter().any(|arg| matches!(arg, Arg::Const(_)));
        step.op == StepOp::Min && by_constant && !is_exponent(*at)
    };
    region.steps.iter().enumerate().filter(is_limit).count()
}
