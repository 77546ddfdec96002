//! Files of graphs with what may vary in them, in comments that hold for the graphs below:
//!
//! ```text
//! // sizes t 1..5, e 2..4, k 1..e, tokens = b * t, r = tokens * k, %inverse = 1 / d, %odd = d / 2
//! // values 0.1..3
//! ```
//!
//! `t 1..5` is a size between 1 and 5, both included, `d 1|2|4` one of these; `r = …` a size (or a bound, of a ragged axis) that follows from others, `%c = …` a constant or
//! the start of a slice that does. What a graph does not have is passed over. `values` is the range of float inputs.

use forebay_ir::reference::sample::{self, Sampler};
use forebay_ir::reference::{Tensor, scalar};
use forebay_ir::text::{parse, print, render};
use forebay_ir::{AxisId, DType, Extent, Graph, Node, Op, ValueId, verify};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::path::Path;

/// A graph of a file.
pub struct Case {
    pub graph: Graph,
    text: String,
    sizes: Vec<String>,
    pub values: Range<f64>,
}

/// Which sizes axes have.
#[derive(Clone, Copy, Debug)]
pub enum Sizes {
    AsWritten,
    Smallest,
    Random(i32),
}

/// The graphs of a file.
pub fn cases(path: &Path) -> Vec<Case> {
    let source = std::fs::read_to_string(path).expect("readable");
    let (mut cases, mut sizes, mut values, mut text): (Vec<Case>, Vec<String>, _, String) =
        (vec![], vec![], -2.0..2.0, String::new());
    for (number, line) in source.lines().enumerate() {
        if let Some(list) = line.strip_prefix("// sizes ") {
            sizes = list.split(',').map(|s| s.trim().to_string()).collect();
        } else if let Some(range) = line.strip_prefix("// values ") {
            let (from, to) = range.split_once("..").expect("`from..to`");
            values = from.trim().parse().expect("a number")..to.trim().parse().expect("a number");
        }
        // Errors name the line in the file.
        if text.is_empty() && line.starts_with("graph") {
            text = "\n".repeat(number);
        }
        if !text.is_empty() {
            text.push_str(line);
            text.push('\n');
        }
        if line == "}" {
            let graph = parse(&text).unwrap_or_else(|e| panic!("{}", render(&e, &text, &path.display().to_string())));
            cases.push(Case { graph, text: std::mem::take(&mut text), sizes: sizes.clone(), values: values.clone() });
        }
    }
    assert!(text.is_empty(), "{}: the last graph has no end", path.display());
    cases
}

impl Case {
    /// The same in another float type, where types still fit.
    pub fn in_dtype(&self, dtype: DType) -> Option<Case> {
        let text = self.text.replace("f32", dtype.name());
        let graph = parse(&text).ok()?;
        Some(Case { graph, text, sizes: self.sizes.clone(), values: self.values.clone() })
    }

    /// The graph in other sizes.
    pub fn sized(&self, sizes: Sizes) -> Graph {
        let mut graph = self.graph.clone();
        let mut random = match sizes {
            Sizes::AsWritten => {
                round_constants(&mut graph);
                return graph;
            }
            Sizes::Smallest => None,
            Sizes::Random(seed) => Some(Sampler::new(seed)),
        };
        for entry in &self.sizes {
            if let Some((name, formula)) = entry.split_once('=') {
                let value = sum(&graph, formula);
                match name.trim().strip_prefix('%') {
                    Some(node) => set_number(&mut graph, node, value),
                    None => set_size(&mut graph, name.trim(), value),
                }
                continue;
            }
            let (name, range) = entry.split_once(' ').expect("`axis from..to`");
            if graph.axis_named(name).is_none() {
                continue;
            }
            let choices: Vec<f64> = match range.split_once("..") {
                Some((from, to)) => (sum(&graph, from) as u64..=sum(&graph, to) as u64).map(|n| n as f64).collect(),
                None => range.split('|').map(|n| sum(&graph, n)).collect(),
            };
            let choice = random.as_mut().map_or(0, |r| r.below(choices.len() as u64));
            set_size(&mut graph, name, choices[choice as usize]);
        }
        // In f64 a constant is not rounded to its type by itself.
        round_constants(&mut graph);
        verify::verify(&graph).unwrap_or_else(|v| panic!("{}", verify::render(&graph, &v)));
        graph
    }

    /// Values for the inputs; strange ones among them when asked for.
    pub fn inputs(&self, graph: &Graph, seed: i32, strange: bool) -> FxHashMap<ValueId, Tensor> {
        let mut given = sample::inputs(graph, seed, &self.values);
        if !strange {
            return given;
        }
        let all = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 3e38, -3e38, 1e-38, -1e-38, 90.0, -90.0];
        let mut random = Sampler::new(seed + 1000);
        for input in &graph.inputs {
            let dtype = graph.ty(input.value).dtype;
            if dtype.is_float() {
                let tensor = given.get_mut(&input.value).expect("all inputs are given");
                for x in &mut tensor.data {
                    if random.below(4) == 0 {
                        *x = scalar::round(all[random.below(all.len() as u64) as usize], dtype);
                    }
                }
            }
        }
        given
    }
}

/// Gives constants the values that their types have.
pub fn round_constants(graph: &mut Graph) {
    for node in &mut graph.nodes {
        if let Op::Const(value) = &mut node.op {
            *value = scalar::round(*value, node.ty.dtype);
        }
    }
}

fn set_size(graph: &mut Graph, name: &str, value: f64) {
    let Some(AxisId(axis)) = graph.axis_named(name) else { return };
    assert!(value.fract() == 0.0, "{name} = {value}");
    match &mut std::sync::Arc::make_mut(&mut graph.axes)[axis as usize].extent {
        Extent::Fixed(n) => *n = value as u64,
        Extent::Ragged { bound, even, .. } => (*bound, *even) = (value as u64, value as u64),
    }
}

fn set_number(graph: &mut Graph, name: &str, value: f64) {
    let Some(node) = graph.nodes.iter_mut().find(|n| n.name == name) else { return };
    match &mut node.op {
        Op::Const(c) => *c = value,
        Op::Slice { start, .. } => *start = value as u64,
        // Another graph has another op of this name.
        _ => {}
    }
}

/// `a * b / 2 + 1`.
fn sum(graph: &Graph, text: &str) -> f64 {
    text.split('+').map(|part| product(graph, part)).sum()
}

fn product(graph: &Graph, text: &str) -> f64 {
    let number = |word: &str| -> f64 {
        let word = word.trim();
        match graph.axis_named(word) {
            Some(axis) => graph.size(axis) as f64,
            // An axis that the graph lacks is of no use to it.
            None => word.parse().unwrap_or(1.0),
        }
    };
    let factors = text.split('*').map(|factor| {
        let mut parts = factor.split('/');
        let first = number(parts.next().expect("split gives one part at least"));
        parts.fold(first, |x, divisor| x / number(divisor))
    });
    factors.product()
}

/// The same graph with its nodes in another legal order.
pub fn shuffled(graph: &Graph, seed: i32) -> Graph {
    let mut random = Sampler::new(seed);
    let mut new = graph.like(graph.name.clone());
    let mut moved: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    while moved.len() < graph.nodes.len() {
        // Inputs stand in the order of their declaration.
        let next = graph.inputs.iter().map(|i| i.value).find(|v| !moved.contains_key(v));
        let is_ready = |v: &ValueId| match graph.node(*v).op {
            Op::Input => Some(*v) == next,
            _ => graph.reads(*v).iter().all(|o| moved.contains_key(o)),
        };
        let ready: Vec<ValueId> = graph.values().filter(|v| !moved.contains_key(v) && is_ready(v)).collect();
        let value = ready[random.below(ready.len() as u64) as usize];
        let node = graph.node(value);
        let operands = node.operands.iter().map(|o| moved[o]).collect();
        new.nodes.push(Node { operands, ..node.clone() });
        moved.insert(value, ValueId(new.nodes.len() as u32 - 1));
    }
    new.inputs = graph.inputs.clone();
    new.inputs.iter_mut().for_each(|i| i.value = moved[&i.value]);
    new.outputs = graph.outputs.clone();
    new.outputs.iter_mut().for_each(|o| o.value = moved[&o.value]);
    new.offsets = graph.offsets.iter().map(|(axis, v)| (*axis, moved[v])).collect();
    verify::verify(&new).unwrap_or_else(|v| panic!("{}\n{}", verify::render(&new, &v), print(&new)));
    new
}
