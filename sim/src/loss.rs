//! What the loss moves through memory for each logit.

use crate::price::HEAD;
use forebay_plan::{Kernel, Program};

/// Traffic of the kernels that go through all logits of a micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Loss {
    /// Logits of a rank and micro-batch, of one head: 0 where no product makes any.
    logits: u64,
    /// Bytes of traffic for each, forward and backward.
    bytes: f64,
}

impl Loss {
    /// That of a plan's programs. Logits are the largest results of products in the head's forward pass; there are several where several tokens are predicted.
    pub fn of(programs: &[Program]) -> Loss {
        let pass =
            |way: &str| programs.iter().find(|p| p.name.strip_prefix(HEAD).is_some_and(|rest| rest.starts_with(way)));
        let Some(forward) = pass(".forward") else { return Loss::default() };
        let results: Vec<u64> = forward.instructions.iter().filter_map(|i| result_of(&i.kernel)).collect();
        let logits = results.iter().copied().max().unwrap_or(0);
        let heads = results.iter().filter(|n| **n == logits).count();
        // Backward programs that differ in what becomes of weights' gradients have the same loss: the first of them counts.
        let traffic: f64 = [Some(forward), pass(".backward")].into_iter().flatten().map(|p| traffic(p, logits)).sum();
        let all = logits as f64 * heads as f64;
        Loss { logits, bytes: if all > 0.0 { traffic / all } else { 0.0 } }
    }

    /// The part of a kernel's traffic, as a multiple, that a loss of so many bytes a logit takes; none for a kernel that does not go through all logits.
    pub fn passes(&self, kernel: &Kernel, bytes: f64) -> Option<f64> {
        let through = self.logits > 0 && elements_of(kernel) == Some(self.logits);
        (through && self.bytes > 0.0).then(|| bytes / self.bytes)
    }
}

/// Bytes that kernels move which go through all logits of a head.
fn traffic(program: &Program, logits: u64) -> f64 {
    let through = |kernel: &&Kernel| elements_of(kernel) == Some(logits);
    let kernels = program.instructions.iter().map(|i| &i.kernel).filter(through);
    kernels.map(|kernel| kernel.traffic(&program.buffers).bytes() as f64).sum()
}

/// Elements of a region.
fn elements_of(kernel: &Kernel) -> Option<u64> {
    match kernel {
        Kernel::Region(region) => Some(region.dims.iter().product()),
        _ => None,
    }
}

/// Elements of a product's result.
fn result_of(kernel: &Kernel) -> Option<u64> {
    match kernel {
        Kernel::Matmul(k) => Some(k.batch.iter().map(|d| d.0).product::<u64>() * k.m.0 * k.n.0),
        _ => None,
    }
}
