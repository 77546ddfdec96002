//! The checked model: what `check` makes of a syntax tree once the constants are known.
//!
//! A model is a sequence of *layers*. Each names a *segment*, a graph that all layers of the same shape share, and binds it
//! to its own parameters, states and inputs. The statements before the first top-level `repeat`, between two, and after the last are
//! segments of their own with a single layer each.

use forebay_ir::{DType, Graph};
use indexmap::IndexMap;
use std::collections::BTreeSet;

/// What the caller decides about a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// `--set name=value`, in order; the last one wins.
    pub overrides: Vec<(String, Const)>,
    /// The compute type.
    pub narrow: DType,
    /// The type of `wide` floats: f32, or f64 when the compute type is f64.
    pub wide: DType,
    /// The constant `training`.
    pub training: bool,
    /// Micro-batches in a step: losses without `per` are means over them.
    pub micro_batches: u32,
    /// Bounds on the work a hostile file can ask for.
    pub limits: Limits,
}

/// Bounds on the work a hostile file can ask for; passing one is a diagnostic.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Nodes of one segment's graph.
    pub nodes: usize,
    /// Layers of the model.
    pub layers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { nodes: 200_000, layers: 100_000 }
    }
}

/// A constant's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Const {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// A string.
    Str(String),
}

/// A model whose constants, shapes and types are all known.
#[derive(Clone, Debug)]
pub struct CheckedModel {
    /// The model's name.
    pub name: String,
    /// The model's constants with their values, in order.
    pub constants: IndexMap<String, Const>,
    /// Rows of one micro-batch.
    pub batch: u64,
    /// Tokens of a row.
    pub seq: u64,
    /// The declared inputs, in order.
    pub inputs: Vec<String>,
    /// All parameters, in the order of their layers.
    pub params: Vec<Tensor>,
    /// All states, in the order of their layers.
    pub states: Vec<Tensor>,
    /// All statistics, in the order of their layers.
    pub stats: Vec<Tensor>,
    /// Distinct segments in the order of their first layer.
    pub segments: Vec<Segment>,
    /// The layers in the order of execution.
    pub layers: Vec<Layer>,
    /// Losses in the order of their first appearance.
    pub losses: Vec<Loss>,
    /// The counts of `per` losses that depend on inputs: a graph from `Data` inputs to `Count` outputs named by loss (wide scalars, the count of
    /// one micro-batch). `None` when there are none.
    pub counts: Option<Graph>,
}

impl CheckedModel {
    /// The layers that update states, in an order in which all updates see the values from before: each layer comes before those that write what it
    /// reads.
    ///
    /// # Errors
    /// When there is none: states that layers read from each other.
    pub fn update_order(&self) -> Result<Vec<usize>, Vec<usize>> {
        let updates = |l: &usize| self.segments[self.layers[*l].segment].update.is_some();
        let layers: Vec<usize> = (0..self.layers.len()).filter(updates).collect();
        let mut writer = vec![None; self.states.len()];
        for &l in &layers {
            self.layers[l].update_outputs.iter().for_each(|&state| writer[state] = Some(l));
        }
        // For each layer how many others read what it writes, and whose states it reads.
        let mut readers = vec![0_usize; self.layers.len()];
        let mut reads: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.layers.len()];
        for &l in &layers {
            let others = self.layers[l].update_states.iter().filter_map(|&state| writer[state]).filter(|&w| w != l);
            reads[l] = others.collect();
            reads[l].iter().for_each(|&w| readers[w] += 1);
        }
        let mut ready: BTreeSet<usize> = layers.iter().copied().filter(|&l| readers[l] == 0).collect();
        let mut order = Vec::with_capacity(layers.len());
        while let Some(l) = ready.pop_first() {
            order.push(l);
            for &w in &reads[l] {
                readers[w] -= 1;
                if readers[w] == 0 {
                    ready.insert(w);
                }
            }
        }
        if order.len() == layers.len() {
            return Ok(order);
        }
        let stuck = |l: &usize| readers[*l] > 0;
        Err((0..self.states.len()).filter(|&state| writer[state].as_ref().is_some_and(stuck)).collect())
    }
}

/// A tensor that lives longer than a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// `layers.3.attention.wq`
    pub name: String,
    /// Axis name (as in the graph it was first used in), label of its size, and size, outermost first.
    pub axes: Vec<(String, Option<String>, u64)>,
    /// The first value.
    pub init: Init,
}

impl Tensor {
    /// Number of elements.
    pub fn numel(&self) -> u64 {
        self.axes.iter().map(|(_, _, n)| n).product()
    }
}

/// How a tensor is initialised. Random ones are drawn from (seed, tensor name, element).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All elements equal.
    Constant(f64),
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Normal, cut at two standard deviations.
    TruncatedNormal(f64),
    /// Uniform in `[lo, hi)`.
    Uniform(f64, f64),
}

/// A graph that all layers of one shape share.
#[derive(Clone, Debug)]
pub struct Segment {
    /// `prologue`, `layers`, `layers_2`, …, `epilogue`.
    pub name: String,
    /// Inputs: `Data` (by input name), `Carry` (by variable name), `Param`, `State` (by path within the layer), `Count` (by loss name: the
    /// step's total, a wide scalar), `Runtime` (`rng`: i32 `[seed, step, instance, batch offset]`, only when something is random).
    /// Outputs: `Carry`, `Loss` (weighted, divided by its count or by the number of micro-batches: the total loss is the plain sum), `Metric` (the same
    /// without the weight), `Stat`, `Output`.
    pub forward: Graph,
    /// Inputs: `State`, `Stat`; outputs: `State`. Runs once per step and layer.
    pub update: Option<Graph>,
}

/// One layer: a segment bound to its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Which segment.
    pub segment: usize,
    /// The path prefix of its tensors: `layers.3`, empty for the prologue and the like.
    pub name: String,
    /// For each `Param` input of the segment's forward graph, in order: which of the model's parameters.
    pub params: Vec<usize>,
    /// For each `State` input of the forward graph, in order: which state.
    pub states: Vec<usize>,
    /// For each `Stat` output of the forward graph, in order: which statistic.
    pub stats: Vec<usize>,
    /// For each `Carry` input of the forward graph, in order: whose output it is.
    pub carries: Vec<Source>,
    /// For each `State` input of the update graph, in order: which state.
    pub update_states: Vec<usize>,
    /// For each `Stat` input of the update graph, in order: which statistic.
    pub update_stats: Vec<usize>,
    /// For each `State` output of the update graph, in order: which state.
    pub update_outputs: Vec<usize>,
}

/// An output of an earlier layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Which layer.
    pub layer: usize,
    /// Which of its forward graph's `Carry` outputs, counted among the `Carry` outputs.
    pub output: usize,
}

/// A loss, summed over all layers that add to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The name.
    pub name: String,
    /// The factor in the total.
    pub weight: f64,
    /// What statistics inside it mean.
    pub scope: Scope,
    /// Is this the main loss (the first with `per`)?
    pub main: bool,
}

/// Over what the statistics inside a loss are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Divided by a count over the whole step.
    Step,
    /// Each micro-batch of each rank by itself.
    Micro,
    /// Each sequence by itself.
    Sequence,
    /// The expert-parallel group.
    Group,
    /// All data-parallel ranks.
    Global,
}
