//! Linear attention.

use super::{Emitter, dtype};
use forebay_ir::{AxisId, Direction, LinearAttention, LinearReads, ValueId};
use forebay_plan::{self as plan, Kernel};

impl Emitter<'_> {
    pub(super) fn linear_attention(&mut self, value: ValueId, op: &LinearAttention) {
        let graph = self.graph;
        let node = graph.node(value);
        let [q, k, v, g] = node.operands[..] else { unreachable!("four operands") };
        let of_values = |a: &AxisId| ![q, k, g].iter().any(|&x| graph.ty(x).has(*a));
        let (values, rest): (Vec<AxisId>, Vec<AxisId>) = node.ty.axes.iter().copied().partition(of_values);
        let batch: Vec<AxisId> = rest.into_iter().filter(|&a| a != op.axis).collect();
        let keys: Vec<AxisId> = graph.ty(k).axes.iter().copied().filter(|a| op.over.contains(a)).collect();
        let with = |inner: &[AxisId]| [&batch[..], &[op.axis], inner].concat();
        let (by_key, by_value, by_position) = (with(&keys), with(&values), with(&[]));
        let [q, k, v, g] = [q, k, v, g].map(|x| self.place(x));
        let out = self.places.dest(value);
        let kernel = plan::LinearAttention {
            dtype: dtype(graph.ty(node.operands[0]).dtype),
            result: dtype(op.result),
            reads: match op.reads {
                LinearReads::Inclusive => plan::LinearReads::Inclusive,
                LinearReads::Exclusive => plan::LinearReads::Exclusive,
                LinearReads::Solve => plan::LinearReads::Solve,
            },
            backward: op.direction == Direction::Backward,
            positions: graph.size(op.axis),
            keys: self.sizes(&keys),
            values: self.sizes(&values),
            q: self.view(&q, &by_key),
            k: self.view(&k, &by_key),
            v: self.view(&v, &by_value),
            g: self.view(&g, &by_position),
            out: self.view(&out, &by_value),
            batch: self.sizes(&batch),
        };
        self.push(&self.name(value), Kernel::LinearAttention(kernel));
    }
}
