//! What attention takes, with a softmax and without.

use super::{Priced, Pricer, precision_of};
use crate::kind::Kind;
use forebay_cost::{Attended, AttentionKernel, Precision, Remembered};
use forebay_plan::{AttentionInputs, Kernel, LinearAttention, Program};

impl Pricer<'_> {
    /// The shape of an attention.
    pub(super) fn attended(&self, program: &Program, inputs: &AttentionInputs, kernel: &Kernel) -> Attended {
        let scores: u64 = inputs.pairs.iter().map(|p| p.size).sum();
        let narrow = match self.precision {
            Precision::Fp8 | Precision::Mxfp8 if self.framework.attention_fp8 => self.precision,
            _ => Precision::Bf16,
        };
        Attended {
            problems: inputs.batch.iter().map(|d| *d as f64).product(),
            queries: inputs.queries as f64,
            keys: inputs.keys as f64,
            head: (scores + inputs.value_size) as f64 / 2.0,
            widest: scores.max(inputs.value_size) as f64,
            flops: kernel.flops(),
            bytes: kernel.traffic(&program.buffers).bytes() as f64,
            precision: precision_of(inputs.dtype, narrow),
        }
    }

    pub(super) fn attention(
        &self,
        program: &Program,
        inputs: &AttentionInputs,
        kernel: &Kernel,
        way: AttentionKernel,
    ) -> Priced {
        let attended = self.attended(program, inputs, kernel);
        let seconds = self.cluster.attention(&attended, way, self.framework.attention.into()) * self.last_of_context();
        Priced::work(Kind::Attention, seconds, attended.flops)
    }

    /// The shape of a linear attention.
    pub(super) fn remembered(&self, program: &Program, k: &LinearAttention, kernel: &Kernel) -> Remembered {
        Remembered {
            problems: k.batch.iter().map(|d| *d as f64).product(),
            positions: k.positions as f64,
            key: k.key_size() as f64,
            value: k.value_size() as f64,
            bytes: kernel.traffic(&program.buffers).bytes() as f64,
            precision: precision_of(k.dtype, Precision::Bf16),
        }
    }

    /// What the last of n context-parallel ranks attends to as a multiple of the mean, where ranks have neighbouring positions: in n − 1/2 of the n blocks of keys, of n/2 in the mean.
    fn last_of_context(&self) -> f64 {
        let ranks: f64 =
            self.mesh.iter().filter(|dim| dim.name.starts_with("cp")).map(|dim| f64::from(dim.size)).product();
        if self.framework.uneven_context { 2.0 - 1.0 / ranks } else { 1.0 }
    }

    pub(super) fn linear_attention(&self, program: &Program, k: &LinearAttention, kernel: &Kernel) -> Priced {
        let remembered = self.remembered(program, k, kernel);
        let seconds = self.cluster.linear_attention(&remembered);
        Priced { launches: self.cluster.linear_kernels(), ..Priced::work(Kind::Attention, seconds, kernel.flops()) }
    }
}
