//! Ops under another numbering of axes.

use crate::collective::{Comm, CommKind};
use crate::op::{LinearAttention, Op};
use crate::types::AxisId;

impl Op {
    /// The op with its axes mapped. Sets of axes stay sorted.
    pub fn map_axes(&self, mut map: impl FnMut(AxisId) -> AxisId) -> Op {
        let set = |over: &[AxisId], map: &mut dyn FnMut(AxisId) -> AxisId| {
            let mut over: Vec<AxisId> = over.iter().map(|&a| map(a)).collect();
            over.sort_unstable();
            over
        };
        match self {
            Op::Input
            | Op::Const(_)
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Select
            | Op::Cast(_)
            | Op::Detach
            | Op::Reorder
            | Op::Invert => self.clone(),
            Op::Iota(axis) => Op::Iota(map(*axis)),
            Op::Random { site, batch } => Op::Random { site: *site, batch: batch.map(map) },
            Op::Broadcast(axes) => Op::Broadcast(axes.iter().map(|&a| map(a)).collect()),
            Op::Contract { over } => Op::Contract { over: set(over, &mut map) },
            Op::Reduce { kind, over } => Op::Reduce { kind: *kind, over: set(over, &mut map) },
            Op::Scan { axis, direction } => Op::Scan { axis: map(*axis), direction: *direction },
            Op::LinearAttention(op) => {
                let (axis, over) = (map(op.axis), set(&op.over, &mut map));
                Op::LinearAttention(Box::new(LinearAttention { axis, over, ..**op }))
            }
            Op::Rename { from, to } => Op::Rename { from: map(*from), to: map(*to) },
            Op::Split { from, into } => Op::Split { from: map(*from), into: into.iter().map(|&a| map(a)).collect() },
            Op::Merge { from, into } => Op::Merge { from: from.iter().map(|&a| map(a)).collect(), into: map(*into) },
            Op::Take { axis, index } => Op::Take { axis: map(*axis), index: *index },
            Op::Slice { from, into, start } => Op::Slice { from: map(*from), into: map(*into), start: *start },
            Op::Pad { from, into, start } => Op::Pad { from: map(*from), into: map(*into), start: *start },
            Op::Stack(axis) => Op::Stack(map(*axis)),
            Op::Concat { from, into } => Op::Concat { from: from.iter().map(|&a| map(a)).collect(), into: map(*into) },
            Op::Gather { axis } => Op::Gather { axis: map(*axis) },
            Op::ScatterAdd { axis, over } => Op::ScatterAdd { axis: map(*axis), over: set(over, &mut map) },
            Op::TopK { axis, into } => Op::TopK { axis: map(*axis), into: map(*into) },
            Op::Group { ragged } => Op::Group { ragged: map(*ragged) },
            Op::Offsets { parent, into } => Op::Offsets { parent: map(*parent), into: map(*into) },
            Op::Fused(fused) => {
                let mut fused = fused.clone();
                fused.axes.iter_mut().for_each(|a| *a = map(*a));
                Op::Fused(fused)
            }
            Op::Comm(comm) => Op::Comm(Box::new(Comm { group: comm.group.clone(), kind: map_comm(&comm.kind, map) })),
        }
    }
}

fn map_comm(kind: &CommKind, mut map: impl FnMut(AxisId) -> AxisId) -> CommKind {
    let mut pair = |(a, b): (AxisId, AxisId)| (map(a), map(b));
    match *kind {
        CommKind::Coordinate | CommKind::Vary | CommKind::AllReduce(_) | CommKind::Rotate { .. } => kind.clone(),
        CommKind::AllGather { from, into } => {
            let (from, into) = pair((from, into));
            CommKind::AllGather { from, into }
        }
        CommKind::ReduceScatter { from, into } => {
            let (from, into) = pair((from, into));
            CommKind::ReduceScatter { from, into }
        }
        CommKind::Shard { from, into } => {
            let (from, into) = pair((from, into));
            CommKind::Shard { from, into }
        }
        CommKind::Unshard { from, into } => {
            let (from, into) = pair((from, into));
            CommKind::Unshard { from, into }
        }
        CommKind::AllToAll { split, join } => CommKind::AllToAll { split: pair(split), join: pair(join) },
        CommKind::Dispatch { from, into } => CommKind::Dispatch { from: pair(from), into: pair(into) },
        CommKind::Combine { from, into } => CommKind::Combine { from: pair(from), into: pair(into) },
    }
}
