//! What linear attention touches and costs.

use super::{Operand, Usage, product};
use crate::kernel::{LinearAttention, View};
use crate::schema::DType;

impl LinearAttention {
    /// What states are kept in, and the type of the decays.
    pub fn wide(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// Elements of a key.
    pub fn key_size(&self) -> u64 {
        self.keys.iter().product()
    }

    /// Elements of a value.
    pub fn value_size(&self) -> u64 {
        self.values.iter().product()
    }

    /// Of the recurrence, whatever computes it: each position reads the state once and adds to it once, a product of key and value each.
    pub(super) fn flops(&self) -> f64 {
        4.0 * product(&self.batch) * self.positions as f64 * product(&self.keys) * product(&self.values)
    }

    fn operand(&self, view: &View, what: &'static str, usage: Usage, inner: &[u64]) -> Operand {
        let dims: Vec<u64> = self.batch.iter().copied().chain([self.positions]).chain(inner.iter().copied()).collect();
        Operand::view(view, what, usage, Some(self.dtype), &dims)
    }

    pub(super) fn operands(&self) -> Vec<Operand> {
        let decays = self.operand(&self.g, "the decays", Usage::Read, &[]);
        let out = self.operand(&self.out, "the result", Usage::Write, &self.values);
        vec![
            self.operand(&self.q, "the queries", Usage::Read, &self.keys),
            self.operand(&self.k, "the keys", Usage::Read, &self.keys),
            self.operand(&self.v, "the values", Usage::Read, &self.values),
            Operand { dtype: Some(self.wide()), ..decays },
            Operand { dtype: Some(self.result), ..out },
        ]
    }
}
