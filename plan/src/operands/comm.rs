//! What kernels that talk to other ranks touch on their own rank.

use super::{Operand, Usage, group_starts, integers};
use crate::kernel::{AllToAllV, BufferId, Exchange};

impl Exchange {
    pub(super) fn operands(&self) -> Vec<Operand> {
        let pieces = |buffer: BufferId, what, usage, offset, step, strides: &[u64]| {
            let piece = self.dims.iter().copied().zip(strides.iter().copied());
            let dims = std::iter::once((self.ranks, step)).chain(piece).collect();
            Operand { buffer, what, usage, dtype: Some(self.dtype), offset, dims, visits: None }
        };
        let given = pieces(self.x, "what is given", Usage::Read, self.x_offset, self.x_step, &self.x_strides);
        let got = pieces(self.out, "the result", Usage::Write, self.out_offset, self.out_step, &self.out_strides);
        let starts = self.ragged.iter().map(|r| group_starts(r.offsets, r.groups));
        std::iter::once(given).chain(starts).chain([got]).collect()
    }

    /// Combining the pieces of the other ranks.
    pub(super) fn flops(&self) -> f64 {
        let others = self.ranks.saturating_sub(1) as f64;
        if self.reduce.is_some() { others * self.dims.iter().map(|d| *d as f64).product::<f64>() } else { 0.0 }
    }
}

impl AllToAllV {
    pub(super) fn operands(&self) -> Vec<Operand> {
        let (given, got) = self.room();
        vec![
            Operand::contiguous(self.x, "the rows", Usage::Read, self.dtype, &[given, self.row]),
            group_starts(self.offsets, self.experts),
            integers(self.counts, "the counts", Usage::Read, &[self.ranks, self.own()]),
            Operand::contiguous(self.out, "the result", Usage::Write, self.dtype, &[got, self.row]),
        ]
    }
}
