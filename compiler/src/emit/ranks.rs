//! Collectives, and what depends on where a rank is.
//!
//! A part of a value that every rank has is looked up: `shard` splits the axis by ranks and takes the rank's own, in passing where a region reads it.

use super::places::Place;
use super::{Emitter, dtype};
use forebay_ir::{AxisId, Comm, CommKind, Extent, Graph, Op, ReduceKind, ValueId};
use forebay_plan::{self as plan, Kernel};

/// The graph without the collectives that send nothing: a value for different work is the value, and a part is looked up.
///
/// ```text
/// %b = vary %a on tp                        %a
/// %c = shard %a {d -> d_tp} on tp     ==>   %s = split %a {d -> rank, d_tp},  %c = gather %s at %rank {rank}
/// ```
pub(super) fn looked_up(graph: &Graph) -> Graph {
    let is_silent = |n: &forebay_ir::Node| matches!(&n.op, Op::Comm(c) if !c.sends() && c.kind != CommKind::Coordinate);
    if !graph.nodes.iter().any(is_silent) {
        return graph.clone();
    }
    let mut new = graph.like(graph.name.clone());
    let mut moved: Vec<ValueId> = Vec::with_capacity(graph.nodes.len());
    let mut coordinates: Vec<(Vec<u32>, ValueId)> = vec![];
    for value in graph.values() {
        let node = graph.node(value);
        let operands: Vec<ValueId> = node.operands.iter().map(|o| moved[o.index()]).collect();
        let made = match &node.op {
            Op::Comm(comm) if comm.kind == CommKind::Vary => operands[0],
            Op::Comm(comm) => match comm.kind {
                CommKind::Shard { from, into } => {
                    let rank = own_number(&mut new, &mut coordinates, comm);
                    let ranks = new.add_axis("rank", Extent::Fixed(comm.ranks(graph)), None);
                    let op = Op::Split { from, into: vec![ranks, into] };
                    let split = new.add(op, &operands, &format!("{}.parts", node.name)).expect("a part for each rank");
                    new.add(Op::Gather { axis: ranks }, &[split, rank], &node.name).expect("one of the parts")
                }
                _ => new.push(node.op.clone(), operands, node.ty.clone(), &node.name),
            },
            _ => new.push(node.op.clone(), operands, node.ty.clone(), &node.name),
        };
        if let Op::Comm(comm) = &node.op
            && comm.kind == CommKind::Coordinate
        {
            coordinates.push((comm.group.clone(), made));
        }
        moved.push(made);
    }
    let at = |v: ValueId| moved[v.index()];
    new.inputs = graph.inputs.iter().map(|i| forebay_ir::Input { value: at(i.value), role: i.role }).collect();
    for output in &graph.outputs {
        new.add_output(output.name.clone(), at(output.value), output.role);
    }
    new.offsets = graph.offsets.iter().map(|&(a, v)| (a, at(v))).collect();
    new.prune();
    new
}

fn own_number(graph: &mut Graph, known: &mut Vec<(Vec<u32>, ValueId)>, comm: &Comm) -> ValueId {
    if let Some((_, value)) = known.iter().find(|(group, _)| *group == comm.group) {
        return *value;
    }
    let op = Op::Comm(Box::new(Comm { group: comm.group.clone(), kind: CommKind::Coordinate }));
    let value = graph.add(op, &[], "rank").expect("a scalar");
    known.push((comm.group.clone(), value));
    value
}

/// One dimension of what an exchange moves: size, stride in the operand, stride in the result.
type Dim = (u64, u64, u64);

/// The dimensions without those of one element, neighbours joined where both sides lie so.
fn joined(dims: Vec<Dim>) -> Vec<Dim> {
    let mut joined: Vec<Dim> = vec![];
    for dim in dims.into_iter().filter(|d| d.0 != 1) {
        match joined.last_mut() {
            Some(outer) if outer.1 == dim.0 * dim.1 && outer.2 == dim.0 * dim.2 => {
                *outer = (outer.0 * dim.0, dim.1, dim.2);
            }
            _ => joined.push(dim),
        }
    }
    joined
}

impl Emitter<'_> {
    pub(super) fn comm(&mut self, value: ValueId, comm: &Comm) {
        match comm.kind {
            CommKind::Coordinate => self.coordinate(value, comm),
            CommKind::AllReduce(_) | CommKind::Rotate { .. } => self.exchange(value, comm, &[], [None, None]),
            CommKind::AllGather { from, into } | CommKind::Unshard { from, into } => {
                self.exchange(value, comm, &[(from, from, into)], [None, Some((from, into))]);
            }
            CommKind::ReduceScatter { from, into } => {
                let (pieces, step) = ([(into, from, into)], [Some((into, from)), None]);
                self.exchange(value, comm, &pieces, step);
            }
            CommKind::AllToAll { split, join } => {
                let pieces = [(split.1, split.0, split.1), (join.0, join.0, join.1)];
                self.exchange(value, comm, &pieces, [Some((split.1, split.0)), Some(join)]);
            }
            CommKind::Dispatch { from, into } => self.rows(value, comm, from, into, plan::Direction::Dispatch),
            CommKind::Combine { from, into } => self.rows(value, comm, into, from, plan::Direction::Combine),
            CommKind::Vary | CommKind::Shard { .. } => unreachable!("looked up instead"),
        }
    }

    fn coordinate(&mut self, value: ValueId, comm: &Comm) {
        let mut factor = 1;
        let mut terms = vec![];
        for &dim in comm.group.iter().rev() {
            terms.push((dim, factor));
            factor *= i64::from(self.graph.mesh[dim as usize].size);
        }
        terms.sort_unstable();
        let out = self.places.dest(value).buffer;
        let kernel = plan::Coordinate { out, value: plan::Affine { base: 0, terms } };
        self.push(&self.name(value), Kernel::Coordinate(kernel));
    }

    /// `pieces`: the axes of a piece whose names differ, as (size, in the operand, in the result); `steps`: the axis that the piece for the next rank
    /// is further along, in the operand and in the result, as (its part, the whole).
    fn exchange(
        &mut self,
        value: ValueId,
        comm: &Comm,
        pieces: &[(AxisId, AxisId, AxisId)],
        steps: [Option<(AxisId, AxisId)>; 2],
    ) {
        let operand = self.graph.node(value).operands[0];
        let ty = self.graph.ty(operand).clone();
        let (x, out) = (self.place(operand), self.places.dest(value));
        let extents = self.graph.dims(&ty.axes);
        let dims = extents.iter().map(|&(axis, size)| match pieces.iter().find(|(_, from, _)| *from == axis) {
            Some((part, from, into)) => (self.graph.size(*part), x.stride(*from), out.stride(*into)),
            None => (size, x.stride(axis), out.stride(axis)),
        });
        let dims: Vec<Dim> = dims.collect();
        // Rows of groups stay a dimension of their own, of which as many are moved as there are.
        let mut ragged = self.ragged_limit(&extents.iter().map(|(axis, _)| *axis).collect::<Vec<_>>());
        let dims = match &mut ragged {
            Some(limit) => {
                let (outer, rest) = dims.split_at(limit.dim as usize);
                let outer = joined(outer.to_vec());
                limit.dim = outer.len() as u32;
                [outer, vec![rest[0]], joined(rest[1..].to_vec())].concat()
            }
            None => joined(dims),
        };
        let step = |place: &Place, step: Option<(AxisId, AxisId)>| {
            step.map_or(0, |(part, whole)| self.graph.size(part) * place.stride(whole))
        };
        let kernel = plan::Exchange {
            dtype: dtype(ty.dtype),
            group: comm.group.clone(),
            ranks: comm.ranks(self.graph),
            x: x.buffer,
            out: out.buffer,
            dims: dims.iter().map(|d| d.0).collect(),
            x_offset: x.offset,
            out_offset: out.offset,
            x_strides: dims.iter().map(|d| d.1).collect(),
            x_step: step(&x, steps[0]),
            out_strides: dims.iter().map(|d| d.2).collect(),
            out_step: step(&out, steps[1]),
            reduce: combined(&comm.kind),
            shift: if let CommKind::Rotate { by } = comm.kind { by } else { 0 },
            ragged,
        };
        self.push(&self.name(value), Kernel::Exchange(kernel));
    }

    fn rows(
        &mut self,
        value: ValueId,
        comm: &Comm,
        all: (AxisId, AxisId),
        own: (AxisId, AxisId),
        direction: plan::Direction,
    ) {
        let [operand, counts] = self.graph.node(value).operands[..] else { unreachable!("rows and counts") };
        let ty = self.graph.ty(operand).clone();
        let (x, counts) = (self.packed(operand), self.packed(counts));
        let out = self.result(value);
        let (offsets, experts) = self.group_starts(all.1);
        let (tokens, bound) = (self.graph.size(all.1), self.graph.size(own.1));
        let rows = match direction {
            plan::Direction::Dispatch => tokens,
            plan::Direction::Combine => bound,
        };
        let kernel = plan::AllToAllV {
            dtype: dtype(ty.dtype),
            group: comm.group.clone(),
            ranks: comm.ranks(self.graph),
            x,
            out,
            row: self.graph.numel(&ty) / rows.max(1),
            experts,
            offsets,
            counts,
            direction,
            bound,
            tokens,
            even: self.graph.even_size(all.1),
        };
        self.push(&self.name(value), Kernel::AllToAllV(kernel));
    }
}

/// How the pieces of all ranks are combined, if they are.
fn combined(kind: &CommKind) -> Option<plan::ReduceOp> {
    match kind {
        CommKind::AllReduce(ReduceKind::Sum) | CommKind::ReduceScatter { .. } => Some(plan::ReduceOp::Sum),
        CommKind::AllReduce(ReduceKind::Max) => Some(plan::ReduceOp::Max),
        CommKind::AllReduce(ReduceKind::Min) => Some(plan::ReduceOp::Min),
        _ => None,
    }
}
