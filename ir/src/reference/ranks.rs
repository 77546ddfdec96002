//! Collectives, with the values of all ranks at hand.

use super::Tensor;
use super::eval::Machine;
use crate::collective::{Comm, CommKind};
use crate::graph::{Graph, ValueId};
use crate::op::{Op, ReduceKind};
use crate::types::AxisId;

/// Computes a value on every rank; `machines` are the ranks in row-major order over the mesh.
pub(super) fn compute(graph: &Graph, machines: &mut [Machine], value: ValueId) {
    let node = graph.node(value);
    let Op::Comm(comm) = &node.op else {
        return machines.iter_mut().for_each(|m| m.compute(value));
    };
    if machines[0].is_given(value) {
        return machines.iter_mut().for_each(|m| m.compute(value));
    }
    let operands: Vec<Vec<Tensor>> =
        machines.iter().map(|m| node.operands.iter().map(|&o| m.value(o).clone()).collect()).collect();
    // Rows move between groups: where they start, on each rank.
    let starts: Vec<[Vec<f64>; 2]> = machines.iter_mut().map(|m| row_starts(graph, m, &comm.kind)).collect();
    for (rank, machine) in machines.iter_mut().enumerate() {
        let group = group_of(graph, &comm.group, rank);
        let own = group.iter().position(|&r| r == rank).expect("a rank is in its group");
        let cx = Cx { graph, value, comm, group: &group, own, operands: &operands, starts: &starts };
        let tensor = cx.apply();
        machine.give(value, tensor);
    }
}

/// The ranks of a rank's group, by their numbers in it.
fn group_of(graph: &Graph, dims: &[u32], rank: usize) -> Vec<usize> {
    let mut strides = vec![1; graph.mesh.len()];
    for d in (1..graph.mesh.len()).rev() {
        strides[d - 1] = strides[d] * graph.mesh[d].size as usize;
    }
    let coordinate = |d: u32| rank / strides[d as usize] % graph.mesh[d as usize].size as usize;
    let base: usize = rank - dims.iter().map(|&d| coordinate(d) * strides[d as usize]).sum::<usize>();
    dims.iter().fold(vec![base], |ranks, &d| {
        let along = |r: usize| (0..graph.mesh[d as usize].size as usize).map(move |c| (r, c));
        ranks.into_iter().flat_map(along).map(|(r, c)| r + c * strides[d as usize]).collect()
    })
}

fn row_starts(graph: &Graph, machine: &mut Machine, kind: &CommKind) -> [Vec<f64>; 2] {
    let (CommKind::Dispatch { from, into } | CommKind::Combine { from, into }) = kind else { return [vec![], vec![]] };
    [from, into].map(|rows| {
        let starts = graph.offsets_of(rows.1).expect("a ragged axis in use has offsets");
        machine.compute(starts);
        machine.value(starts).data.clone()
    })
}

struct Cx<'a> {
    graph: &'a Graph,
    value: ValueId,
    comm: &'a Comm,
    group: &'a [usize],
    /// The rank's number in the group.
    own: usize,
    /// By rank.
    operands: &'a [Vec<Tensor>],
    /// By rank: where groups start before and after.
    starts: &'a [[Vec<f64>; 2]],
}

impl Cx<'_> {
    fn apply(&self) -> Tensor {
        let graph = self.graph;
        let node = graph.node(self.value);
        let dims: Vec<u64> = graph.dims(&node.ty.axes).into_iter().map(|(_, n)| n).collect();
        let mine = || &self.operands[self.group[self.own]][0];
        match self.comm.kind {
            CommKind::Coordinate => Tensor::scalar(self.own as f64),
            CommKind::Vary => mine().clone(),
            CommKind::AllReduce(kind) => Tensor::new(dims, self.reduced(kind)),
            CommKind::AllGather { into, .. } | CommKind::Unshard { into, .. } => {
                let parts = self.group.iter().map(|&r| self.operands[r][0].data.clone()).collect();
                Tensor::new(dims, self.joined(parts, into))
            }
            CommKind::ReduceScatter { from, .. } => {
                Tensor::new(dims, self.part(&self.reduced(ReduceKind::Sum), from, self.own))
            }
            CommKind::Rotate { by } => {
                let n = self.group.len();
                self.operands[self.group[(self.own + n - by as usize) % n]][0].clone()
            }
            CommKind::Shard { from, .. } => Tensor::new(dims, self.part(&mine().data, from, self.own)),
            CommKind::AllToAll { split, join } => {
                let parts =
                    self.group.iter().map(|&r| self.part(&self.operands[r][0].data, split.0, self.own)).collect();
                Tensor::new(dims, self.joined(parts, join.1))
            }
            CommKind::Dispatch { from, .. } => self.rows(&dims, from.1, true),
            CommKind::Combine { from, .. } => self.rows(&dims, from.1, false),
        }
    }

    fn reduced(&self, kind: ReduceKind) -> Vec<f64> {
        let mut sum = self.operands[self.group[0]][0].data.clone();
        for &rank in &self.group[1..] {
            for (s, x) in sum.iter_mut().zip(&self.operands[rank][0].data) {
                *s = match kind {
                    ReduceKind::Sum => *s + x,
                    ReduceKind::Max if x.is_nan() || *x > *s => *x,
                    ReduceKind::Min if x.is_nan() || *x < *s => *x,
                    ReduceKind::Max | ReduceKind::Min => *s,
                };
            }
        }
        sum
    }

    /// How many elements stand in one step of an axis of the operand, or of the result.
    fn inner(&self, value: ValueId, axis: AxisId) -> usize {
        let axes = self.graph.dims(&self.graph.ty(value).axes);
        let at = axes.iter().position(|(a, _)| *a == axis).expect("checked by the type rule");
        axes[at + 1..].iter().map(|(_, n)| *n as usize).product()
    }

    /// Part `number` of n along an axis of the operand.
    fn part(&self, data: &[f64], axis: AxisId, number: usize) -> Vec<f64> {
        let whole = self.graph.size(axis) as usize * self.inner(self.graph.node(self.value).operands[0], axis);
        let part = whole / self.group.len();
        data.chunks(whole.max(1)).flat_map(|c| &c[number * part..(number + 1) * part]).copied().collect()
    }

    /// Parts one after another along an axis of the result.
    fn joined(&self, parts: Vec<Vec<f64>>, axis: AxisId) -> Vec<f64> {
        let whole = self.graph.size(axis) as usize * self.inner(self.value, axis);
        let part = (whole / parts.len()).max(1);
        let outer = parts[0].len() / part;
        (0..outer).flat_map(|o| parts.iter().flat_map(move |p| &p[o * part..(o + 1) * part])).copied().collect()
    }

    /// Rows on their way to the owners of their groups, or back.
    fn rows(&self, dims: &[u64], from: AxisId, there: bool) -> Tensor {
        let mut result = vec![0.0; dims.iter().product::<u64>() as usize];
        let x = self.graph.node(self.value).operands[0];
        let row = self.inner(x, from);
        let axes = self.graph.dims(&self.graph.ty(x).axes);
        let outer: usize = axes.iter().take_while(|(a, _)| *a != from).map(|(_, n)| *n as usize).product();
        assert_eq!(outer, 1, "rows stand outermost");
        let n = self.group.len();
        // For (owner, group, source): where the rows lie with the source, and where with the owner.
        for owner in 0..n {
            let counts = &self.operands[self.group[owner]][1];
            let own_groups = counts.dims[1] as usize;
            let (with_sources, with_owner) = if there { (0, 1) } else { (1, 0) };
            for group in 0..own_groups {
                let mut at = self.starts[self.group[owner]][with_owner][group] as usize;
                for source in 0..n {
                    let rows = counts.data[source * own_groups + group] as usize;
                    let with_source =
                        self.starts[self.group[source]][with_sources][owner * own_groups + group] as usize;
                    let (from, to) =
                        if there { ((source, with_source), (owner, at)) } else { ((owner, at), (source, with_source)) };
                    if to.0 == self.own {
                        let data = &self.operands[self.group[from.0]][0].data;
                        result[to.1 * row..(to.1 + rows) * row]
                            .copy_from_slice(&data[from.1 * row..(from.1 + rows) * row]);
                    }
                    at += rows;
                }
            }
        }
        Tensor::new(dims, result)
    }
}
