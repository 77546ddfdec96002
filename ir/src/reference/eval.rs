//! One node at a time.

mod linear;

use super::space::{Layout, Space};
use super::{Mode, Tensor, scalar, sizes};
use crate::fused::{self, Fused};
use crate::graph::{Graph, InputRole, Node, ValueId};
use crate::op::{Direction, Op, ReduceKind};
use crate::random;
use crate::types::{AxisId, DType};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

pub(super) struct Machine<'g> {
    graph: &'g Graph,
    given: &'g FxHashMap<ValueId, Tensor>,
    mode: Mode,
    values: Vec<Option<Tensor>>,
}

impl<'g> Machine<'g> {
    pub fn new(graph: &'g Graph, given: &'g FxHashMap<ValueId, Tensor>, mode: Mode) -> Machine<'g> {
        Machine { graph, given, mode, values: vec![None; graph.nodes.len()] }
    }

    pub fn finish(self) -> Vec<Tensor> {
        self.values.into_iter().map(|v| v.expect("all values are computed")).collect()
    }

    /// Is the value taken as it is given, whatever would make it?
    pub fn is_given(&self, value: ValueId) -> bool {
        self.given.contains_key(&value)
    }

    /// A value that is known.
    pub fn value(&self, value: ValueId) -> &Tensor {
        self.values[value.index()].as_ref().expect("computed before")
    }

    /// Sets a value that was computed elsewhere.
    pub fn give(&mut self, value: ValueId, mut tensor: Tensor) {
        let dtype = self.graph.ty(value).dtype;
        tensor.data.iter_mut().for_each(|x| *x = self.rounded(*x, dtype));
        self.values[value.index()] = Some(tensor);
    }

    pub fn compute(&mut self, value: ValueId) {
        if self.values[value.index()].is_some() {
            return;
        }
        let node = self.graph.node(value);
        let dims = sizes(self.graph, &node.ty.axes);
        let tensor = match self.given.get(&value) {
            Some(tensor) => {
                assert_eq!(tensor.dims, dims, "`{}` is given with the wrong sizes", node.name);
                tensor.clone()
            }
            None => {
                node.operands.iter().for_each(|&o| self.compute(o));
                let mut data = self.apply(value, node);
                data.iter_mut().for_each(|x| *x = self.rounded(*x, node.ty.dtype));
                Tensor::new(dims, data)
            }
        };
        self.values[value.index()] = Some(tensor);
    }

    fn rounded(&self, x: f64, dtype: DType) -> f64 {
        match self.mode {
            Mode::F64 if dtype.is_float() => x,
            Mode::F64 | Mode::Typed => scalar::round(x, dtype),
        }
    }

    fn data(&self, value: ValueId) -> &[f64] {
        &self.values[value.index()].as_ref().expect("operands are computed first").data
    }

    fn layout(&self, value: ValueId) -> Layout {
        Layout::new(self.graph, &self.graph.ty(value).axes)
    }

    /// The owner of each row of a ragged axis.
    fn owners(&mut self, ragged: AxisId) -> Vec<usize> {
        let name = &self.graph.axis(ragged).name;
        let offsets = self.graph.offsets_of(ragged).unwrap_or_else(|| panic!("`{name}` has no offsets"));
        self.compute(offsets);
        let starts = self.data(offsets);
        let rows = |e: usize| starts[e] as usize..starts[e + 1] as usize;
        (0..starts.len() - 1).flat_map(|e| rows(e).map(move |_| e)).collect()
    }

    fn space(&mut self, axes: &[AxisId]) -> Space {
        let graph = self.graph;
        Space::new(graph, axes, &mut |ragged| self.owners(ragged))
    }

    /// By its body, in a graph of its own.
    fn fused(&mut self, node: &Node, fused: &Fused) -> Vec<f64> {
        let graph = self.graph;
        let (mut body, result) =
            fused::scratch(graph, fused, &node.operands).expect("the verifier has expanded it before");
        let mut given: FxHashMap<ValueId, Tensor> = FxHashMap::default();
        for (number, &operand) in node.operands.iter().enumerate() {
            let tensor = self.values[operand.index()].clone().expect("operands are computed first");
            given.insert(ValueId(number as u32), tensor);
        }
        let ragged = body.values().flat_map(|v| body.ty(v).axes.clone()).filter(|&a| graph.is_ragged(a));
        for axis in ragged.collect::<BTreeSet<AxisId>>() {
            let starts = graph.offsets_of(axis).expect("a ragged axis in use has offsets");
            self.compute(starts);
            let input = body.add_input("starts", graph.ty(starts).clone(), InputRole::Data);
            body.offsets.push((axis, input));
            given.insert(input, self.values[starts.index()].clone().expect("just computed"));
        }
        let axes = node.ty.axes.clone();
        let result = match body.ty(result).axes == axes {
            true => result,
            false => body.add_ordered(Op::Reorder, &[result], &axes, "result").expect("the same axes"),
        };
        super::evaluate(&body, &given, self.mode).swap_remove(result.index()).data
    }

    fn zeros(&self, node: &Node) -> Vec<f64> {
        vec![0.0; self.graph.numel(&node.ty) as usize]
    }

    fn apply(&mut self, value: ValueId, node: &Node) -> Vec<f64> {
        let graph = self.graph;
        let x = node.operands.first().copied();
        let operand = || x.expect("the op has an operand");
        match &node.op {
            Op::Input => panic!("input `{}` is not given", node.name),
            Op::Const(c) => vec![if node.ty.dtype == DType::I32 { c.trunc() } else { *c }],
            Op::Iota(axis) => (0..graph.size(*axis)).map(|i| i as f64).collect(),
            Op::Random { site, batch } => self.random(node, *site, *batch),
            Op::Unary(op) => self.elementwise(node, &|x| scalar::unary(*op, x[0])),
            Op::Binary(op) => {
                let dtype = graph.ty(operand()).dtype;
                self.elementwise(node, &|x| scalar::binary(*op, x[0], x[1], dtype))
            }
            Op::Select => self.elementwise(node, &|x| if x[0] != 0.0 { x[1] } else { x[2] }),
            Op::Cast(to) => {
                let from = graph.ty(operand()).dtype;
                let exact = self.mode == Mode::F64 && to.is_float();
                self.elementwise(node, &|x| if exact { x[0] } else { scalar::cast(x[0], from, *to) })
            }
            Op::Broadcast(_) | Op::Reorder => self.elementwise(node, &|x| x[0]),
            Op::Fused(fused) => self.fused(node, fused),
            Op::Detach | Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } => self.data(operand()).to_vec(),
            Op::Contract { .. } => self.contract(node),
            Op::Reduce { kind, .. } => self.reduce(node, *kind),
            Op::Scan { axis, direction } => self.scan(node, *axis, *direction),
            Op::LinearAttention(op) => linear::linear_attention(self, node, op),
            Op::Take { axis, index } => {
                let from = self.layout(operand()).from(*axis, *index).without(*axis);
                self.copied(node, from)
            }
            Op::Slice { from, into, start } => {
                let layout = self.layout(operand()).from(*from, *start).renamed(*from, *into);
                self.copied(node, layout)
            }
            Op::Pad { from, into, start } => {
                let target = Layout::new(graph, &node.ty.axes).from(*into, *start).renamed(*into, *from);
                self.placed(node, &[target])
            }
            Op::Stack(axis) => {
                let whole = Layout::new(graph, &node.ty.axes);
                let at = |i| whole.clone().from(*axis, i).without(*axis);
                self.placed(node, &(0..graph.size(*axis)).map(at).collect::<Vec<_>>())
            }
            Op::Concat { from, into } => {
                let whole = Layout::new(graph, &node.ty.axes);
                let mut start = 0;
                let at = |part: &AxisId| {
                    let layout = whole.clone().from(*into, start).renamed(*into, *part);
                    start += graph.size(*part);
                    layout
                };
                self.placed(node, &from.iter().map(at).collect::<Vec<_>>())
            }
            Op::Gather { axis } => self.gather(node, *axis),
            Op::ScatterAdd { axis, .. } => self.scatter_add(node, *axis),
            Op::TopK { axis, into } => self.top_k(node, *axis, *into),
            Op::Group { ragged } => self.group(node, *ragged),
            Op::Offsets { parent, .. } => self.count_starts(value, node, *parent),
            Op::Invert => self.invert(node),
            Op::Comm(comm) => panic!("`{}` needs all ranks: `evaluate_ranks`", comm.name()),
        }
    }

    fn random(&mut self, node: &Node, site: u32, batch: Option<AxisId>) -> Vec<f64> {
        let [seed, step, instance, offset] = self.data(node.operands[0]) else { panic!("a random key has four parts") };
        let key = [*seed as i32, *step as i32, *instance as i32];
        let n = self.graph.numel(&node.ty);
        let row = batch.map_or(0, |axis| n / self.graph.size(axis).max(1));
        let first = *offset as u64 * row;
        (0..n).map(|i| random::uniform(key, site, first + i) as f64).collect()
    }

    fn elementwise(&mut self, node: &Node, f: &dyn Fn(&[f64]) -> f64) -> Vec<f64> {
        let mut result = self.zeros(node);
        let space = self.space(&node.ty.axes);
        let own = Layout::new(self.graph, &node.ty.axes);
        let layouts: Vec<Layout> = node.operands.iter().map(|&o| self.layout(o)).collect();
        let all: Vec<&Layout> = [&own].into_iter().chain(&layouts).collect();
        let operands: Vec<&[f64]> = node.operands.iter().map(|&o| self.data(o)).collect();
        let mut arguments = vec![0.0; operands.len()];
        space.walk(&all, &mut |at| {
            (0..operands.len()).for_each(|i| arguments[i] = operands[i][at[i + 1]]);
            result[at[0]] = f(&arguments);
        });
        result
    }

    /// The result's elements, read from the operand through `from`.
    fn copied(&mut self, node: &Node, from: Layout) -> Vec<f64> {
        let mut result = self.zeros(node);
        let space = self.space(&node.ty.axes);
        let own = Layout::new(self.graph, &node.ty.axes);
        let x = self.data(node.operands[0]);
        space.walk(&[&own, &from], &mut |at| result[at[0]] = x[at[1]]);
        result
    }

    /// Zeros, with the elements of operand i written through layout i.
    fn placed(&mut self, node: &Node, into: &[Layout]) -> Vec<f64> {
        let mut result = self.zeros(node);
        for (&operand, target) in node.operands.iter().zip(into) {
            let space = self.space(&self.graph.ty(operand).axes);
            let own = self.layout(operand);
            let x = self.data(operand);
            space.walk(&[&own, target], &mut |at| result[at[1]] = x[at[0]]);
        }
        result
    }

    fn contract(&mut self, node: &Node) -> Vec<f64> {
        let mut result = self.zeros(node);
        let [a, b] = node.operands[..] else { unreachable!("two operands") };
        let mut axes = node.ty.axes.clone();
        let Op::Contract { over } = &node.op else { unreachable!("a contraction") };
        axes.extend(over);
        let space = self.space(&axes);
        let layouts = [Layout::new(self.graph, &node.ty.axes), self.layout(a), self.layout(b)];
        let (a, b) = (self.data(a), self.data(b));
        space.walk(&layouts.each_ref(), &mut |at| result[at[0]] += a[at[1]] * b[at[2]]);
        result
    }

    fn reduce(&mut self, node: &Node, kind: ReduceKind) -> Vec<f64> {
        let x = node.operands[0];
        let int = node.ty.dtype == DType::I32;
        let first = match kind {
            ReduceKind::Sum => 0.0,
            ReduceKind::Max if int => i32::MIN as f64,
            ReduceKind::Min if int => i32::MAX as f64,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        };
        let mut result = self.zeros(node);
        let own = Layout::new(self.graph, &node.ty.axes);
        self.space(&node.ty.axes).walk(&[&own], &mut |at| result[at[0]] = first);
        let space = self.space(&self.graph.ty(x).axes);
        let layout = self.layout(x);
        let x = self.data(x);
        space.walk(&[&own, &layout], &mut |at| {
            let (sum, x) = (&mut result[at[0]], x[at[1]]);
            *sum = match kind {
                ReduceKind::Sum => *sum + x,
                ReduceKind::Max => {
                    if x > *sum || x.is_nan() {
                        x
                    } else {
                        *sum
                    }
                }
                ReduceKind::Min => {
                    if x < *sum || x.is_nan() {
                        x
                    } else {
                        *sum
                    }
                }
            };
        });
        result
    }

    fn scan(&mut self, node: &Node, axis: AxisId, direction: Direction) -> Vec<f64> {
        let mut result = self.zeros(node);
        let others: Vec<AxisId> = node.ty.axes.iter().copied().filter(|&a| a != axis).collect();
        let space = self.space(&others);
        let layout = Layout::new(self.graph, &node.ty.axes);
        let (n, stride) = (self.graph.size(axis) as usize, layout.stride(axis));
        let x = self.data(node.operands[0]);
        space.walk(&[&layout], &mut |at| {
            let mut sum = 0.0;
            for step in 0..n {
                let i = if direction == Direction::Forward { step } else { n - 1 - step };
                sum += x[at[0] + i * stride];
                result[at[0] + i * stride] = sum;
            }
        });
        result
    }

    fn gather(&mut self, node: &Node, axis: AxisId) -> Vec<f64> {
        let mut result = self.zeros(node);
        let (x, index) = (node.operands[0], node.operands[1]);
        let space = self.space(&node.ty.axes);
        let stride = self.layout(x).stride(axis);
        let layouts = [Layout::new(self.graph, &node.ty.axes), self.layout(x).without(axis), self.layout(index)];
        let (n, leaves_out) = (self.graph.size(axis) as usize, self.graph.leaves_out(axis));
        let (x, index) = (self.data(x), self.data(index));
        space.walk(&layouts.each_ref(), &mut |at| {
            let index = index[at[2]];
            if !(leaves_out && index < 0.0) {
                result[at[0]] = x[at[1] + in_range(index, n, node) * stride];
            }
        });
        result
    }

    fn scatter_add(&mut self, node: &Node, axis: AxisId) -> Vec<f64> {
        let mut result = self.zeros(node);
        let (v, index) = (node.operands[0], node.operands[1]);
        let space = self.space(&self.graph.ty(v).axes);
        let own = Layout::new(self.graph, &node.ty.axes);
        let stride = own.stride(axis);
        let layouts = [own.without(axis), self.layout(v), self.layout(index)];
        let (n, leaves_out) = (self.graph.size(axis) as usize, self.graph.leaves_out(axis));
        let (v, index) = (self.data(v), self.data(index));
        space.walk(&layouts.each_ref(), &mut |at| {
            let index = index[at[2]];
            if !(leaves_out && index < 0.0) {
                result[at[0] + in_range(index, n, node) * stride] += v[at[1]];
            }
        });
        result
    }

    fn top_k(&mut self, node: &Node, axis: AxisId, into: AxisId) -> Vec<f64> {
        let mut result = self.zeros(node);
        let others: Vec<AxisId> = node.ty.axes.iter().copied().filter(|&a| a != into).collect();
        let space = self.space(&others);
        let (own, layout) = (Layout::new(self.graph, &node.ty.axes), self.layout(node.operands[0]));
        let (n, k) = (self.graph.size(axis) as usize, self.graph.size(into) as usize);
        let x = self.data(node.operands[0]);
        space.walk(&[&own, &layout], &mut |at| {
            let key = |i: usize| {
                let x = x[at[1] + i * layout.stride(axis)];
                // -inf is a number, and larger than NaN.
                (!x.is_nan(), if x.is_nan() { 0.0 } else { x })
            };
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|&a, &b| key(b).partial_cmp(&key(a)).expect("NaN was replaced"));
            (0..k).for_each(|rank| result[at[0] + rank * own.stride(into)] = order[rank] as f64);
        });
        result
    }

    fn group(&mut self, node: &Node, ragged: AxisId) -> Vec<f64> {
        let parents = self.graph.size(node.ty.axes[0]) as usize;
        let leaves_out = self.graph.leaves_out(ragged);
        let mut result = self.zeros(node);
        let chosen = self.data(node.operands[0]);
        let mut order: Vec<usize> = (0..chosen.len()).collect();
        if leaves_out {
            result.fill(-1.0);
            order.retain(|&i| chosen[i] >= 0.0);
        }
        order.sort_by_key(|&i| in_range(chosen[i], parents, node));
        assert!(order.len() <= result.len(), "`{}`: {} rows, with room for {}", node.name, order.len(), result.len());
        order.iter().enumerate().for_each(|(row, &i)| result[row] = i as f64);
        result
    }

    fn count_starts(&mut self, value: ValueId, node: &Node, parent: AxisId) -> Vec<f64> {
        let parents = self.graph.size(parent) as usize;
        let leaves_out = self.graph.offsets.iter().any(|&(axis, v)| v == value && self.graph.leaves_out(axis));
        let mut starts = vec![0.0; parents + 1];
        for &chosen in self.data(node.operands[0]) {
            if leaves_out && chosen < 0.0 {
                continue;
            }
            let group = in_range(chosen, parents, node);
            starts[group + 1..].iter_mut().for_each(|s| *s += 1.0);
        }
        starts
    }

    fn invert(&mut self, node: &Node) -> Vec<f64> {
        let mut result = self.zeros(node);
        let rows = node.operands[0];
        let ragged = self.graph.ragged_axis(&self.graph.ty(rows).axes);
        let total = ragged.map_or(result.len(), |r| self.owners(r).len());
        let n = result.len();
        if ragged.is_some_and(|r| self.graph.leaves_out(r)) {
            result.fill(-1.0);
        }
        let rows = self.data(rows);
        rows[..total].iter().enumerate().for_each(|(row, &element)| result[in_range(element, n, node)] = row as f64);
        result
    }
}

fn in_range(index: f64, n: usize, node: &Node) -> usize {
    assert!(index >= 0.0 && (index as usize) < n, "`{}`: index {index} is not in 0..{n}", node.name);
    index as usize
}
