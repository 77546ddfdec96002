//! What the loss moves through memory for each logit.

use crate::price::HEAD;
use forebay_plan::{Kernel, Program};

/// Traffic of the kernels that go through all logits of a micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Loss {
    /// Logits of a rank and micro-batch: 0 where no kernel goes through them.
    logits: u64,
    /// Bytes of traffic for each, forward and backward.
    bytes: f64,
}

impl Loss {
    /// That of a plan's programs.
    pub fn of(programs: &[Program]) -> Loss {
        let of_head = |program: &&Program| program.name.starts_with(HEAD);
        let logits = programs.iter().filter(of_head).flat_map(elements).max().unwrap_or(0);
        let mut loss = Loss { logits, bytes: 0.0 };
        // Backward programs that differ in what becomes of weights' gradients have the same loss.
        for pass in [".forward", ".backward"] {
            let mut programs = programs.iter().filter(of_head).filter(|p| p.name[HEAD.len()..].starts_with(pass));
            loss.bytes += programs.next().map_or(0.0, |program| loss.traffic(program));
        }
        loss
    }

    /// The part of a kernel's traffic, as a multiple, that a loss of so many bytes a logit takes; none for a kernel that does not go through all logits.
    pub fn passes(&self, kernel: &Kernel, bytes: f64) -> Option<f64> {
        let through = self.logits > 0 && elements_of(kernel) == Some(self.logits);
        (through && self.bytes > 0.0).then(|| bytes / self.bytes)
    }

    fn traffic(&self, program: &Program) -> f64 {
        let through = |kernel: &&Kernel| elements_of(kernel) == Some(self.logits);
        let kernels = program.instructions.iter().map(|i| &i.kernel).filter(through);
        kernels.map(|kernel| kernel.traffic(&program.buffers).bytes() as f64).sum::<f64>() / self.logits.max(1) as f64
    }
}

/// Elements of a region.
fn elements_of(kernel: &Kernel) -> Option<u64> {
    match kernel {
        Kernel::Region(region) => Some(region.dims.iter().product()),
        _ => None,
    }
}

fn elements(program: &Program) -> impl Iterator<Item = u64> + '_ {
    program.instructions.iter().filter_map(|i| elements_of(&i.kernel))
}
