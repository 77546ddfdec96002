//! What attention touches and costs.

use super::{Operand, Usage, product};
use crate::kernel::{Attention, AttentionBackward, AttentionInputs, View};
use crate::schema::DType;

/// What the lse is called.
pub(crate) const LSE: &str = "the lse";

impl AttentionInputs {
    /// What sums are kept in, and the type of the lse.
    pub fn wide(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// How many keys all queries of one problem see together, documents aside. Where positions are known at run time only: the mean over the ranks
    /// that share a row, since of all pairs half are visible to a causal query.
    pub fn visible(&self) -> f64 {
        let (queries, keys) = (self.queries as f64, self.keys as f64);
        if self.positions.is_some() {
            let seen = if self.causal { keys / 2.0 } else { keys };
            return queries * if self.window > 0 { seen.min(self.window as f64) } else { seen };
        }
        // Σ min(t + 1, keys) over the first n queries.
        let triangle = |n: f64| {
            let rising = n.min(keys);
            rising * (rising + 1.0) / 2.0 + (n - rising) * keys
        };
        let all = if self.causal { triangle(queries) } else { queries * keys };
        let passed = if self.window > 0 { triangle((queries - self.window as f64).max(0.0)) } else { 0.0 };
        all - passed
    }

    /// Floating-point operations of products over so many elements for each visible key and query.
    fn flops(&self, elements: f64) -> f64 {
        2.0 * product(&self.batch) * self.visible() * elements
    }

    fn score_size(&self) -> f64 {
        self.pairs.iter().map(|p| p.size as f64).sum()
    }

    fn dims(&self, inner: &[u64]) -> Vec<u64> {
        self.batch.iter().chain(inner).copied().collect()
    }

    fn operand(&self, view: &View, what: &'static str, usage: Usage, inner: &[u64]) -> Operand {
        Operand::view(view, what, usage, Some(self.dtype), &self.dims(inner))
    }

    fn reads(&self) -> Vec<Operand> {
        let mut reads = vec![];
        for pair in &self.pairs {
            reads.push(self.operand(&pair.q, "the queries", Usage::Read, &[self.queries, pair.size]));
            reads.push(self.operand(&pair.k, "the keys", Usage::Read, &[self.keys, pair.size]));
        }
        reads.push(self.operand(&self.v, "the values", Usage::Read, &[self.keys, self.value_size]));
        let of = |view, what, n| Operand::view(view, what, Usage::Read, Some(DType::I32), &self.dims(&[n]));
        if let Some(documents) = &self.documents {
            reads.push(of(&documents.queries, "the documents of queries", self.queries));
            reads.push(of(&documents.keys, "the documents of keys", self.keys));
        }
        if let Some(positions) = &self.positions {
            reads.push(of(&positions.queries, "the positions of queries", self.queries));
            reads.push(of(&positions.keys, "the positions of keys", self.keys));
        }
        reads.extend(self.sink.iter().map(|sink| self.operand(sink, "the sink", Usage::Read, &[])));
        reads
    }

    fn out(&self, view: &View, what: &'static str, usage: Usage) -> Operand {
        self.operand(view, what, usage, &[self.queries, self.value_size])
    }

    fn lse(&self, view: &View, usage: Usage) -> Operand {
        Operand::view(view, LSE, usage, Some(self.wide()), &self.dims(&[self.queries]))
    }
}

impl Attention {
    /// Two products: scores, and values.
    pub(super) fn flops(&self) -> f64 {
        self.inputs.flops(self.inputs.score_size() + self.inputs.value_size as f64)
    }

    pub(super) fn operands(&self) -> Vec<Operand> {
        let mut operands = self.inputs.reads();
        operands.push(self.inputs.out(&self.out, "the result", Usage::Write));
        operands.push(self.inputs.lse(&self.lse, Usage::Write));
        operands
    }
}

impl AttentionBackward {
    /// Scores, gradient of p, and a product for each gradient.
    pub(super) fn flops(&self) -> f64 {
        let i = &self.inputs;
        let wanted = |views: &[Option<View>]| -> f64 {
            i.pairs.iter().zip(views).filter(|(_, v)| v.is_some()).map(|(p, _)| p.size as f64).sum()
        };
        let values = if self.d_v.is_some() { 2.0 } else { 1.0 };
        i.flops(i.score_size() + values * i.value_size as f64 + wanted(&self.d_q) + wanted(&self.d_k))
    }

    pub(super) fn operands(&self) -> Vec<Operand> {
        let i = &self.inputs;
        let mut operands = i.reads();
        operands.push(i.out(&self.out, "the result", Usage::Read));
        operands.push(i.lse(&self.lse, Usage::Read));
        operands.push(i.out(&self.d_out, "the gradient of the result", Usage::Read));
        for (pair, view) in i.pairs.iter().zip(&self.d_q) {
            let write = |view| i.operand(view, "the gradient of queries", Usage::Write, &[i.queries, pair.size]);
            operands.extend(view.as_ref().map(write));
        }
        for (pair, view) in i.pairs.iter().zip(&self.d_k) {
            let write = |view| i.operand(view, "the gradient of keys", Usage::Write, &[i.keys, pair.size]);
            operands.extend(view.as_ref().map(write));
        }
        let values = |view| i.operand(view, "the gradient of values", Usage::Write, &[i.keys, i.value_size]);
        operands.extend(self.d_v.as_ref().map(values));
        operands.extend(self.d_sink.iter().map(|view| i.operand(view, "the gradient of the sink", Usage::Write, &[])));
        operands
    }
}
