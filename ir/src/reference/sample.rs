//! Random inputs for a graph, for tests that run it.

use super::{Tensor, scalar::round, sizes};
use crate::graph::{Graph, ValueId};
use crate::op::Op;
use crate::random;
use crate::types::DType;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Numbers that depend on a seed and on how many were drawn before.
#[derive(Clone, Debug)]
pub struct Sampler {
    seed: i32,
    drawn: u64,
}

impl Sampler {
    /// A sampler with a seed.
    pub fn new(seed: i32) -> Sampler {
        Sampler { seed, drawn: 0 }
    }

    /// Uniform in a range.
    pub fn uniform(&mut self, range: &Range<f64>) -> f64 {
        self.drawn += 1;
        range.start + (range.end - range.start) * random::uniform([self.seed, 0, 0], 0, self.drawn) as f64
    }

    /// A whole number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.uniform(&(0.0..bound as f64)) as u64).min(bound.saturating_sub(1))
    }

    /// A value for one input: floats in a range, bools, ints that may be used as the graph uses them.
    pub fn input(&mut self, graph: &Graph, value: ValueId, range: &Range<f64>) -> Tensor {
        let ty = graph.ty(value);
        let n = graph.numel(ty) as usize;
        let data: Vec<f64> = match ty.dtype {
            DType::F64 | DType::F32 | DType::BF16 => (0..n).map(|_| round(self.uniform(range), ty.dtype)).collect(),
            DType::Bool => (0..n).map(|_| self.below(2) as f64).collect(),
            DType::I32 => match graph.offsets.iter().find(|(_, v)| *v == value) {
                Some((ragged, _)) => self.starts(n, graph.size(*ragged)),
                None => {
                    let bound = index_bound(graph, value).unwrap_or(4);
                    (0..n).map(|_| self.below(bound) as f64).collect()
                }
            },
        };
        Tensor::new(sizes(graph, &ty.axes), data)
    }

    /// Group starts that use all of the bound, since nothing says how much of it there is.
    fn starts(&mut self, n: usize, bound: u64) -> Vec<f64> {
        let mut starts: Vec<f64> = (0..n).map(|_| self.below(bound + 1) as f64).collect();
        starts.sort_by(f64::total_cmp);
        (starts[0], starts[n - 1]) = (0.0, bound as f64);
        starts
    }
}

/// Values for all inputs of a graph.
pub fn inputs(graph: &Graph, seed: i32, range: &Range<f64>) -> FxHashMap<ValueId, Tensor> {
    let mut sampler = Sampler::new(seed);
    graph.inputs.iter().map(|i| (i.value, sampler.input(graph, i.value, range))).collect()
}

/// How many values an int may have, by what it is an index of.
fn index_bound(graph: &Graph, value: ValueId) -> Option<u64> {
    let mut bound: Option<u64> = None;
    for user in graph.values() {
        let node = graph.node(user);
        let Some(operand) = node.operands.iter().position(|&o| o == value) else { continue };
        let limit = match &node.op {
            Op::Gather { axis } if operand == 1 => Some(graph.size(*axis)),
            Op::ScatterAdd { axis, .. } if operand == 1 => Some(graph.size(*axis)),
            Op::Group { ragged } => graph.ragged_parent(*ragged).map(|p| graph.size(p)),
            Op::Offsets { parent, .. } => Some(graph.size(*parent)),
            Op::Rename { .. }
            | Op::Split { .. }
            | Op::Merge { .. }
            | Op::Take { .. }
            | Op::Slice { .. }
            | Op::Reorder
            | Op::Broadcast(_)
            | Op::Binary(_)
            | Op::Select
            | Op::Stack(_)
            | Op::Concat { .. } => index_bound(graph, user),
            _ => None,
        };
        bound = [bound, limit].into_iter().flatten().min();
    }
    bound
}
