//! The oracle: what a graph means, computed slowly and plainly. Passes and kernels are judged by it.
//!
//! Two modes. [`Mode::F64`] computes every float op in f64 whatever its dtype says, which is what gradients are compared in.
//! [`Mode::Typed`] rounds each result to its dtype; sums (`sum`, `contract`, `scan`, `linear_attention`, `scatter_add`) are accumulated in f64 and rounded once,
//! a bound that a kernel approaches and never reaches. Elementwise semantics are in [`scalar`], random numbers in [`crate::random`].
//!
//! Further rules:
//! * ragged data: the parent takes no room, the groups' rows stand back to back, what comes after the last group is not looked at, and zero in results;
//! * `reduce_max` and `reduce_min` of nothing (an empty group) are the infinities, for i32 the extremes; NaN wins;
//! * `top_k` counts NaN as smallest, ties go to the lowest position;
//! * an index out of range is an error of the caller: it panics here;
//! * `scatter_add` adds in the order of v's elements.

mod eval;
mod ranks;
pub mod sample;
pub mod scalar;
mod space;

use crate::graph::{Graph, ValueId};
use crate::types::AxisId;
use rustc_hash::FxHashMap;

/// What floats are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All floats are f64; casts between them do nothing.
    F64,
    /// Each result is rounded to its dtype.
    Typed,
}

/// A tensor: physical sizes, outermost first, and elements, row-major. Ints and bools are exact in f64.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Sizes.
    pub dims: Vec<u64>,
    /// Elements.
    pub data: Vec<f64>,
}

impl Tensor {
    /// A tensor from its parts.
    ///
    /// # Panics
    /// When the sizes do not fit the number of elements.
    pub fn new(dims: impl Into<Vec<u64>>, data: impl Into<Vec<f64>>) -> Tensor {
        let tensor = Tensor { dims: dims.into(), data: data.into() };
        assert_eq!(tensor.dims.iter().product::<u64>(), tensor.data.len() as u64, "sizes and elements agree");
        tensor
    }

    /// A tensor without axes.
    pub fn scalar(value: f64) -> Tensor {
        Tensor { dims: vec![], data: vec![value] }
    }

    /// Equal sizes, and equal elements bit for bit; NaN equals NaN.
    pub fn same_bits(&self, other: &Tensor) -> bool {
        let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        self.dims == other.dims && self.data.iter().zip(&other.data).all(same)
    }
}

/// The values of all nodes, in order. Every input must be given; a value that is given is taken as it is, whatever would make it, so that
/// choices (`top_k`) can be held fixed.
///
/// # Panics
/// When an input is missing or of the wrong size, or an index is out of range.
pub fn evaluate(graph: &Graph, given: &FxHashMap<ValueId, Tensor>, mode: Mode) -> Vec<Tensor> {
    let mut machine = eval::Machine::new(graph, given, mode);
    for value in graph.values() {
        machine.compute(value);
    }
    machine.finish()
}

/// The same on every rank of the graph's mesh, with what each is given: ranks in row-major order over the mesh.
///
/// # Panics
/// As [`evaluate`], and when there are not as many ranks.
pub fn evaluate_ranks(graph: &Graph, given: &[FxHashMap<ValueId, Tensor>], mode: Mode) -> Vec<Vec<Tensor>> {
    let ranks: u64 = graph.mesh.iter().map(|d| u64::from(d.size)).product();
    assert_eq!(ranks, given.len() as u64, "one set of inputs for each rank");
    let mut machines: Vec<eval::Machine> = given.iter().map(|g| eval::Machine::new(graph, g, mode)).collect();
    for value in graph.values() {
        ranks::compute(graph, &mut machines, value);
    }
    machines.into_iter().map(eval::Machine::finish).collect()
}

/// The physical sizes of axes.
fn sizes(graph: &Graph, axes: &[AxisId]) -> Vec<u64> {
    graph.dims(axes).into_iter().map(|(_, n)| n).collect()
}
