//! Which positions of a row a rank has when keys travel round a ring: two chunks, one from the front and one from the back.
//!
//! ```text
//! chunks of a row     0 1 2 3 4 5 6 7          a causal query of chunk c sees the keys of chunks 0..=c
//! rank 0              0             7          so that every rank has as much to do in every step of the ring
//! rank 1                1         6            (arXiv 2311.09431, and Megatron-LM's context parallelism)
//! rank 2                  2     5
//! rank 3                    3 4
//! slots               0 7 1 6 2 5 3 4          position(slot): the order in which the ranks' parts stand one after another
//! ```
//!
//! An axis of positions is in the order of slots wherever it is cut by the ring, and in the order of the row wherever it is whole. An axis of *keys*, which
//! attention renames positions to and sums over, is in the order of slots always, as long as nothing asks for its order: gathering keys moves
//! nothing then but keys.

use super::axes::is_positions;
use super::mesh::Mesh;
use super::partition::Partitioner;
use forebay_ir::{AxisId, BinaryOp, DType, Graph, Op, Type, ValueId};

/// How positions lie when they are cut by a ring of ranks.
#[derive(Clone, Debug, Default)]
pub(super) struct Balance {
    /// The dimensions of the ring, outermost first; none when parts follow on each other.
    pub ring: Vec<u32>,
    /// Axes of keys.
    pub keys: Vec<AxisId>,
}

impl Balance {
    /// Is an axis that is cut by these dimensions in the order of slots?
    pub fn in_slots(&self, dims: &[u32]) -> bool {
        !self.ring.is_empty() && dims.starts_with(&self.ring)
    }

    /// The ring's dimensions, if all rows can be cut in two chunks a rank.
    pub fn new(whole: &Graph, ring: Vec<u32>, ranks: u64) -> Balance {
        let is_row = |a: &AxisId| is_positions(whole, *a);
        let rows = (0..whole.axes.len() as u32).map(AxisId).filter(is_row);
        let even = rows.map(|a| whole.size(a)).all(|n| n.is_multiple_of(2 * ranks));
        if ring.is_empty() || !even {
            return Balance::default();
        }
        Balance { ring, keys: keys(whole) }
    }
}

/// An axis of positions of a graph that does not divide into two chunks for each rank of a ring, with its size: its parts follow on each other.
pub fn unbalanced(whole: &Graph, mesh: &Mesh) -> Option<(String, u64)> {
    let ring = mesh.ring();
    let chunks = 2 * mesh.ranks(&ring);
    let odd = |a: &AxisId| is_positions(whole, *a) && !whole.size(*a).is_multiple_of(chunks);
    let axis = (0..whole.axes.len() as u32).map(AxisId).find(odd).filter(|_| !ring.is_empty());
    axis.map(|a| (whole.axis(a).name.clone(), whole.size(a)))
}

/// What positions are renamed to, where nothing depends on the order of the elements.
fn keys(whole: &Graph) -> Vec<AxisId> {
    let is_row = |a: AxisId| is_positions(whole, a);
    let mut keys: Vec<AxisId> = vec![];
    for value in whole.values() {
        if let Op::Rename { from, to } = whole.node(value).op
            && (is_row(from) || keys.contains(&from))
            && !is_row(to)
            && !keys.contains(&to)
        {
            keys.push(to);
        }
    }
    for value in whole.values() {
        let node = whole.node(value);
        let ordered: Vec<AxisId> = match &node.op {
            Op::Scan { axis, .. } | Op::Take { axis, .. } | Op::Stack(axis) => vec![*axis],
            Op::LinearAttention(op) => vec![op.axis],
            Op::Gather { axis } | Op::ScatterAdd { axis, .. } => vec![*axis],
            Op::TopK { axis, into } => vec![*axis, *into],
            Op::Slice { from, into, .. } | Op::Pad { from, into, .. } => vec![*from, *into],
            Op::Concat { from, into } => [&from[..], &[*into]].concat(),
            Op::Split { from, into } => [&into[..], &[*from]].concat(),
            Op::Merge { from, into } => [&from[..], &[*into]].concat(),
            // A new name that is not one of keys would be in another order.
            Op::Rename { from, to } if !keys.contains(to) => vec![*from],
            Op::Rename { from, to } if !is_row(*from) && !keys.contains(from) => vec![*to],
            Op::Random { .. } | Op::Const(_) | Op::Input => node.ty.axes.clone(),
            Op::Broadcast(axes) => axes.clone(),
            _ => vec![],
        };
        keys.retain(|axis| !ordered.contains(axis));
    }
    keys
}

/// A graph of whole numbers in the making.
struct Numbers<'g>(&'g mut Graph);

impl Numbers<'_> {
    fn constant(&mut self, n: u64) -> ValueId {
        self.0.push(Op::Const(n as f64), vec![], Type::new(DType::I32, []), "c")
    }

    fn op(&mut self, op: Op, operands: &[ValueId], name: &str) -> ValueId {
        self.0.add(op, operands, name).expect("whole numbers")
    }

    fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId, name: &str) -> ValueId {
        self.op(Op::Binary(op), &[a, b], name)
    }

    fn with(&mut self, op: BinaryOp, a: ValueId, b: u64, name: &str) -> ValueId {
        let b = self.constant(b);
        self.binary(op, a, b, name)
    }

    fn from(&mut self, a: u64, b: ValueId, name: &str) -> ValueId {
        let a = self.constant(a);
        self.binary(BinaryOp::Sub, a, b, name)
    }

    /// `r·c + j` in the first half of a part, and `(2R - 1 - r)·c + j - c` in the second: part r of R has elements j of 2c.
    fn position(&mut self, part: ValueId, within: ValueId, ranks: u64, chunk: u64) -> ValueId {
        let first = self.with(BinaryOp::Mul, part, chunk, "first");
        let front = self.binary(BinaryOp::Add, within, first, "front");
        let mirrored = self.from((2 * ranks - 2) * chunk, first, "mirrored");
        let back = self.binary(BinaryOp::Add, within, mirrored, "back");
        let is_front = self.with(BinaryOp::Lt, within, chunk, "is_front");
        self.op(Op::Select, &[is_front, front, back], "position")
    }

    /// The other way round: chunk m of 2R is the first half of part m, or the second of part 2R - 1 - m.
    fn slot(&mut self, position: ValueId, ranks: u64, chunk: u64) -> ValueId {
        let number = self.with(BinaryOp::Div, position, chunk, "chunk");
        let within = self.with(BinaryOp::Rem, position, chunk, "within");
        let front = self.with(BinaryOp::Mul, number, 2 * chunk, "front");
        let mirrored = self.from((4 * ranks - 1) * chunk, front, "mirrored");
        let is_front = self.with(BinaryOp::Lt, number, ranks, "is_front");
        let first = self.op(Op::Select, &[is_front, front, mirrored], "first");
        self.binary(BinaryOp::Add, first, within, "slot")
    }
}

impl Partitioner<'_> {
    /// Is it an axis of keys, in the order of slots also as a whole?
    pub(super) fn is_keys(&self, axis: AxisId) -> bool {
        self.balance.keys.contains(&axis)
    }

    /// (ranks of the ring, positions of a chunk) of a row of so many positions.
    fn chunks(&self, positions: u64) -> (u64, u64) {
        let ranks = self.mesh.ranks(&self.balance.ring);
        (ranks, positions / (2 * ranks))
    }

    /// The positions that a rank has along a local axis, the part of `whole` that these dimensions cut.
    pub(super) fn own_positions(&mut self, whole: AxisId, axis: AxisId, dims: &[u32]) -> ValueId {
        let in_slots = self.balance.in_slots(dims);
        let (n, part) = (self.whole.size(whole), self.local.size(axis));
        let rest = &dims[if in_slots { self.balance.ring.len() } else { 0 }..];
        let rank = (!rest.is_empty()).then(|| self.coordinate(rest));
        let ring = in_slots.then(|| self.coordinate(&self.balance.ring.clone()));
        let (ranks, chunk) = if in_slots { self.chunks(n) } else { (1, n) };
        let mut numbers = Numbers(&mut self.local);
        let mut at = numbers.op(Op::Iota(axis), &[], "here");
        if let Some(rank) = rank {
            let first = numbers.with(BinaryOp::Mul, rank, part, "first");
            at = numbers.binary(BinaryOp::Add, at, first, "position");
        }
        match ring {
            Some(ring) => numbers.position(ring, at, ranks, chunk),
            None => at,
        }
    }

    /// The positions along an axis of slots.
    pub(super) fn positions_of_slots(&mut self, axis: AxisId) -> ValueId {
        let (ranks, chunk) = self.chunks(self.local.size(axis));
        let mut numbers = Numbers(&mut self.local);
        let slot = numbers.op(Op::Iota(axis), &[], "slot");
        let part = numbers.with(BinaryOp::Div, slot, 2 * chunk, "part");
        let within = numbers.with(BinaryOp::Rem, slot, 2 * chunk, "within");
        numbers.position(part, within, ranks, chunk)
    }

    /// The slots of positions of a row of so many.
    pub(super) fn slots(&mut self, positions: ValueId, row: u64) -> ValueId {
        let (ranks, chunk) = self.chunks(row);
        Numbers(&mut self.local).slot(positions, ranks, chunk)
    }

    /// A value with an axis looked up by numbers along another.
    pub(super) fn reordered(&mut self, value: ValueId, axis: AxisId, numbers: ValueId, what: &str) -> ValueId {
        let mut axes = self.local.ty(value).axes.clone();
        let to = self.local.ty(numbers).axes[0];
        axes.iter_mut().filter(|a| **a == axis).for_each(|a| *a = to);
        let name = format!("{}.{what}", self.local.node(value).name);
        self.local.add_ordered(Op::Gather { axis }, &[value, numbers], &axes, &name).expect("one number for each")
    }
}
