//! The time of one value of a graph on a cluster, in seconds: what the compiler weighs against bytes when it chooses what to keep.
//!
//! The same formulas as for instructions ([`crate::price`]), before there are instructions: a node that runs alone. What fusion saves is not in it, so that
//! elementwise work looks dearer than it is; the step itself is predicted from the plan.

use crate::report::{Options, program_times, step_time};
use crate::routes::Routes;
use crate::shared::settled;
use forebay_compiler::memory::Price;
use forebay_cost::{
    Attended, AttentionKernel, Cluster, Collective, Copies, Domains, Generation, Group, Precision, Product, Remembered,
};
use forebay_ir::cost::cost;
use forebay_ir::{AxisId, Comm, CommKind, DType, FusedKind, Graph, LinearAttention, Op, Unit, ValueId};
use forebay_plan::Plan;

/// Prices values on a cluster.
#[derive(Clone, Copy, Debug)]
pub struct ValuePricer<'a> {
    cluster: &'a Cluster,
    precision: Precision,
    imbalance: f64,
}

impl<'a> ValuePricer<'a> {
    /// For a cluster, the type of products' inputs, and the rows of the busiest expert rank as a multiple of the mean.
    pub fn new(cluster: &'a Cluster, precision: Precision, imbalance: f64) -> ValuePricer<'a> {
        ValuePricer { cluster, precision, imbalance }
    }

    /// The part of a value's rows that a run brings: a dispatch has room for its bound, and brings the rows of an even routing.
    fn share(&self, graph: &Graph, value: ValueId) -> f64 {
        let node = graph.node(value);
        let types = node.operands.iter().map(|&o| graph.ty(o)).chain([&node.ty]);
        let ragged = types.filter_map(|ty| graph.ragged_axis(&ty.axes));
        ragged.map(|axis| self.share_of(graph, axis)).fold(1.0, f64::min)
    }

    /// The part of a ragged axis's bound that a run brings.
    fn share_of(&self, graph: &Graph, axis: AxisId) -> f64 {
        (graph.even_size(axis) as f64 * self.imbalance / graph.size(axis).max(1) as f64).min(1.0)
    }

    fn contraction(&self, graph: &Graph, value: ValueId, over: &[AxisId], share: f64) -> f64 {
        let node = graph.node(value);
        let (a, b) = (graph.ty(node.operands[0]), graph.ty(node.operands[1]));
        let size = |axes: &mut dyn Iterator<Item = AxisId>| axes.map(|x| graph.size(x) as f64).product::<f64>();
        let ragged = graph.ragged_axis(&a.axes).or_else(|| graph.ragged_axis(&b.axes));
        let mut batch: Vec<AxisId> = node.ty.axes.iter().copied().filter(|&x| a.has(x) && b.has(x)).collect();
        let (mut m, mut n, mut k) = (
            size(&mut node.ty.axes.iter().copied().filter(|&x| a.has(x) && !b.has(x))),
            size(&mut node.ty.axes.iter().copied().filter(|&x| b.has(x) && !a.has(x))),
            size(&mut over.iter().copied()),
        );
        // The bound of a ragged axis is that of all groups together.
        let groups_of = ragged.and_then(|r| graph.ragged_parent(r));
        let of_group = groups_of.map_or(1.0, |g| share / graph.size(g) as f64);
        if let (Some(ragged), Some(parent)) = (ragged, groups_of) {
            let grouped = batch.contains(&parent);
            let scale = if grouped { of_group } else { share };
            match (a.has(ragged), b.has(ragged)) {
                _ if over.contains(&ragged) => k *= scale,
                (true, false) => m *= scale,
                (false, true) => n *= scale,
                _ => {}
            }
            batch.retain(|&x| x != ragged);
        }
        let groups = size(&mut batch.into_iter());
        let element = node.ty.dtype.bytes() as f64;
        let precision = precision_of(graph.ty(node.operands[0]).dtype, self.precision);
        let bytes = element * groups * (m * k + k * n + m * n);
        self.cluster.product(&Product { groups, m, n, k, bytes, precision, alignment: Product::ALIGNED })
    }

    fn attention(&self, graph: &Graph, value: ValueId, way: AttentionKernel) -> f64 {
        let node = graph.node(value);
        let cost = cost(graph, value);
        let query = graph.dims(&graph.ty(node.operands[0]).axes);
        let Op::Fused(fused) = &node.op else { return 0.0 };
        let [queries, keys, head] = [0, 1, 2].map(|i| graph.size(fused.axes[i]) as f64);
        let problems = query.iter().map(|d| d.1 as f64).product::<f64>() / queries / head;
        let (flops, bytes) = (cost.flops, cost.read + cost.written);
        let precision = precision_of(graph.ty(node.operands[0]).dtype, Precision::Bf16);
        let attended = Attended { problems, queries, keys, head, widest: head, flops, bytes, precision };
        self.cluster.attention(&attended, way, Generation::Newest)
    }

    fn linear_attention(&self, graph: &Graph, value: ValueId, op: &LinearAttention) -> f64 {
        let node = graph.node(value);
        let [q, k, v, g] = [0, 1, 2, 3].map(|i| graph.ty(node.operands[i]));
        let size = |axes: &mut dyn Iterator<Item = AxisId>| axes.map(|a| graph.size(a) as f64).product::<f64>();
        let of_values = |a: &AxisId| ![q, k, g].iter().any(|t| t.has(*a));
        let positions = graph.size(op.axis) as f64;
        let cost = cost(graph, value);
        let remembered = Remembered {
            problems: size(&mut node.ty.axes.iter().copied().filter(|a| !of_values(a))) / positions,
            positions,
            key: size(&mut op.over.iter().copied()),
            value: size(&mut v.axes.iter().copied().filter(of_values)),
            bytes: cost.read + cost.written,
            precision: precision_of(q.dtype, Precision::Bf16),
        };
        self.cluster.linear_attention(&remembered)
    }

    fn collective(&self, graph: &Graph, value: ValueId, comm: &Comm, share: f64) -> f64 {
        let stride = |d: u32| graph.mesh[d as usize + 1..].iter().map(|m| u64::from(m.size)).product::<u64>();
        let dims: Vec<(u64, u64)> =
            comm.group.iter().map(|&d| (u64::from(graph.mesh[d as usize].size), stride(d))).collect();
        let extents: Vec<u64> = graph.mesh.iter().rev().map(|d| u64::from(d.size)).collect();
        let group = Group::new(&Domains::new(self.cluster, &extents), &dims);
        // What has no operand sends nothing.
        let own = share * graph.node(value).operands.first().map_or(0.0, |&o| graph.bytes(o) as f64);
        let whole = share * graph.bytes(value) as f64;
        match comm.kind {
            CommKind::Coordinate | CommKind::Vary | CommKind::Shard { .. } => 0.0,
            CommKind::AllReduce(_) => self.cluster.collective(Collective::AllReduce, &group, whole),
            CommKind::AllGather { .. } | CommKind::Unshard { .. } => {
                self.cluster.collective(Collective::AllGather, &group, whole)
            }
            CommKind::ReduceScatter { .. } => self.cluster.collective(Collective::ReduceScatter, &group, own),
            CommKind::Rotate { .. } => self.cluster.collective(Collective::Shift, &group, own),
            CommKind::AllToAll { .. } => self.cluster.collective(Collective::AllToAll, &group, whole),
            CommKind::Dispatch { .. } => self.cluster.rows(&group, whole, Copies::ALL),
            CommKind::Combine { .. } => self.cluster.rows(&group, own, Copies::ALL),
        }
    }
}

impl Price for ValuePricer<'_> {
    fn message(&self, (stages, ranks): (u32, u64), bytes: f64) -> f64 {
        let domains = Domains::new(self.cluster, &[ranks, u64::from(stages)]);
        Routes::new(self.cluster, domains, ranks).slowest(stages, bytes)
    }

    fn programs(&self, plan: &Plan) -> Result<Vec<f64>, String> {
        let options = Options { precision: self.precision, imbalance: self.imbalance, ..Options::default() };
        program_times(plan, self.cluster, &options)
    }

    fn step(&self, plan: &Plan) -> Result<f64, String> {
        let options = Options { precision: self.precision, imbalance: self.imbalance, ..Options::default() };
        // Ranks of a machine that was measured share it.
        step_time(plan, &settled(plan, self.cluster, &options)?, &options)
    }

    fn seconds(&self, graph: &Graph, value: ValueId) -> f64 {
        let node = graph.node(value);
        let share = self.share(graph, value);
        match &node.op {
            Op::Input | Op::Const(_) | Op::Iota(_) => 0.0,
            Op::Contract { over } if node.operands.len() == 2 => self.contraction(graph, value, over, share),
            Op::LinearAttention(op) => self.linear_attention(graph, value, op),
            Op::Comm(comm) => self.collective(graph, value, comm, share),
            Op::Fused(fused) if matches!(fused.kind, FusedKind::Attention | FusedKind::AttentionLse) => {
                self.attention(graph, value, AttentionKernel::Forward)
            }
            Op::Fused(fused) if fused.kind == FusedKind::AttentionGrad => {
                self.attention(graph, value, AttentionKernel::Backward)
            }
            op if op.row().unit == Unit::None => 0.0,
            _ => {
                let cost = cost(graph, value);
                self.cluster.vector(cost.flops * share, (cost.read + cost.written) * share)
            }
        }
    }

    fn copy_seconds(&self, graph: &Graph, value: ValueId) -> Option<f64> {
        let ragged = graph.ragged_axis(&graph.ty(value).axes);
        let share = ragged.map_or(1.0, |axis| self.share_of(graph, axis));
        self.cluster.host_copy(share * graph.bytes(value) as f64)
    }

    fn vector_beside_cube(&self) -> Option<bool> {
        Some(self.cluster.device.vector_beside_cube)
    }

    fn node(&self, extents: &[u64]) -> Option<u32> {
        // Of devices of two dies the package is no node.
        let tier = self.cluster.tiers.iter().position(|tier| tier.name == "node").unwrap_or(0);
        let used = Domains::new(self.cluster, extents).used(tier);
        u32::try_from(used.min(self.cluster.domain(tier))).ok()
    }
}

/// What work on a type is priced as, where narrow types are priced as `narrow`.
fn precision_of(dtype: DType, narrow: Precision) -> Precision {
    if matches!(dtype, DType::F32 | DType::F64) { Precision::F32 } else { narrow }
}
