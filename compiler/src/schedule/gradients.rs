//! The type in which gradients are kept from the backward pass to the optimizer.
//!
//! Programs compute a parameter's gradient in the compute type. Where several are added up (of micro-batches, of layers that share the parameter, of ranks), the sum is in the type of the
//! masters. A gradient that one call of a step writes, and nothing is added to, is no sum: widened, it would be the same number in twice the bytes. It is kept as it was computed, and
//! the optimizer widens what it reads, so that losses, norms and parameters are the same bits. The product that makes it writes its result where that is kept, half as many bytes and
//! without a pass behind it; the norm and the update read half.
//!
//! What is summed over ranks stays wide, so that the ranks' terms are added in the type of the masters. In a model with both kinds of parameters each kind is a group of its own
//! (one shared embedding must not widen all matrices), so its norm adds the same squares in another order than that of wide gradients does.

use super::Types;
use crate::pipeline::CompileOptions;
use forebay_dsl::model::CheckedModel;

/// Which gradients are kept in the type in which they are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gradients {
    /// Those that are no sums.
    #[default]
    Single,
    /// None: all are in the type of the masters, as training systems have them that add micro-batches up (`main_grad`).
    Wide,
}

impl CompileOptions {
    /// The types of what a plan of so many micro-batches keeps.
    pub fn types(&self, micro_batches: u32) -> Types {
        let (wide, narrow) = (self.wide(), self.compute);
        let single = match self.gradients {
            Gradients::Single if micro_batches == 1 => narrow,
            _ => wide,
        };
        Types { wide, narrow, single }
    }
}

/// For each parameter: does a micro-batch's backward pass write its gradient once at most? Not where layers share it, or one layer has it by two names.
pub(super) fn written_once(model: &CheckedModel) -> Vec<bool> {
    let mut uses = vec![0; model.params.len()];
    model.layers.iter().flat_map(|layer| &layer.params).for_each(|&param| uses[param] += 1);
    uses.into_iter().map(|n| n < 2).collect()
}
