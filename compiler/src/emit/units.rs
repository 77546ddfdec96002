//! Units: which nodes run together as one kernel, and in which order.
//!
//! Elementwise nodes join a region whose iteration space is theirs; a reduction over the innermost axes makes them the region's *row*, and
//! then values without these axes (one for each row) may join as well. Joining never makes a cycle among units.
//!
//! A gather that only regions read is no node of its own: each region looks up where it reads (*in passing*). One that others read is
//! a member of a region that stores what it looks up. A cast to a wider type that only regions read is done in passing as well: what is narrow
//! takes fewer bytes in memory.

use super::arrivals::Arrivals;
use super::{Exchanges, Interface, Joins, attention};
use forebay_ir::{AxisId, BinaryOp, DType, Graph, InputRole, Op, UnaryOp, ValueId};
use rustc_hash::FxHashSet;
use std::collections::{BTreeSet, BinaryHeap};

/// Nodes in one region; more would not fit the first-level cache as tiles.
pub(super) const MAX_MEMBERS: usize = 48;
/// A reduction to a single row is split up by its own kernel when it is longer than this.
const MAX_SINGLE_ROW: u64 = 1 << 16;
/// Rows longer than this are reduced by their own kernel.
const MAX_ROW: u64 = 1 << 20;

/// All units of a program.
pub struct Units {
    /// The units in the order of their first node.
    pub list: Vec<Unit>,
    /// For each node its unit; views and generators have none.
    pub of: Vec<Option<usize>>,
    /// For each node: do regions compute it anew wherever they need it (masks and the like)?
    pub generator: Vec<bool>,
    /// For each node: is it a gather, the division of an index, or a cast to a wider type, that whoever reads it does in passing?
    pub in_passing: Vec<bool>,
    /// `add` nodes that a kernel does by accumulating, and that kernel's node.
    pub absorbed: Vec<(ValueId, ValueId)>,
    /// Outputs in the home of an input that something reads after they are made: they are copied there at the end.
    pub read_after_write: Vec<ValueId>,
    /// Units that must come before.
    deps: Vec<BTreeSet<usize>>,
}

/// One kernel.
pub struct Unit {
    /// What it does.
    pub kind: UnitKind,
    last: u32,
}

/// What a unit does.
pub enum UnitKind {
    /// Elementwise and row work.
    Region(Cluster),
    /// One node with a kernel of its own.
    Kernel {
        /// The node.
        value: ValueId,
        /// The node `accumulator + value` that it computes in place.
        accumulate: Option<ValueId>,
    },
    /// Nodes of one attention, forward or backward: the kernel makes all results at once.
    Attention(Vec<ValueId>),
}

/// The nodes of a region.
pub struct Cluster {
    /// Axes of the iteration space, sorted.
    pub space: Vec<AxisId>,
    /// Reduced axes, sorted; empty when nothing is reduced.
    pub row: Vec<AxisId>,
    /// In topological order.
    pub members: Vec<ValueId>,
}

/// Is the op another way to look at its operand's data?
pub fn is_view(op: &Op) -> bool {
    matches!(op, Op::Rename { .. } | Op::Split { .. } | Op::Merge { .. } | Op::Take { .. } | Op::Slice { .. })
}

fn sorted(axes: &[AxisId]) -> Vec<AxisId> {
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    axes
}

impl Units {
    /// Forms the units of a graph.
    pub fn new(graph: &Graph, interface: &Interface) -> Units {
        let generator = generators(graph);
        let absorbed = accumulations(graph);
        let n = graph.nodes.len();
        let in_passing = match interface.joins {
            Joins::All => in_passing(graph, &generator),
            Joins::Off => vec![false; n],
        };
        let mut builder = Builder {
            graph,
            units: Units {
                list: vec![],
                of: vec![None; n],
                generator,
                in_passing,
                absorbed,
                read_after_write: vec![],
                deps: vec![],
            },
            stored: vec![],
            readers: vec![vec![]; n],
            arrivals: match interface.exchanges {
                Exchanges::InTurn => vec![Arrivals::default(); n],
                Exchanges::BesideWork => {
                    Arrivals::of(graph, |v| is_view(&graph.node(v).op) || space_of(graph, v).is_some())
                }
            },
            of_units: vec![],
            joins: interface.joins,
        };
        builder.stored = stored_generators(graph, &builder.units.generator);
        for value in graph.values() {
            builder.node(value);
        }
        builder.in_place_order(interface);
        builder.units
    }

    /// The unit, if any, that makes a value's data; looks through views.
    pub fn producer(&self, graph: &Graph, value: ValueId) -> Option<usize> {
        match self.of[value.index()] {
            Some(unit) => Some(unit),
            None if is_view(&graph.node(value).op) => self.producer(graph, graph.node(value).operands[0]),
            None => None,
        }
    }

    /// Is it a cast to a wider type that whoever reads it does?
    pub fn is_cast_in_passing(&self, graph: &Graph, value: ValueId) -> bool {
        self.in_passing[value.index()] && widens(graph, value)
    }

    /// What is read of memory for a value: what it is cast from, where that is done in passing.
    pub fn read_in_passing(&self, graph: &Graph, value: ValueId) -> ValueId {
        if self.is_cast_in_passing(graph, value) {
            return self.read_in_passing(graph, graph.node(value).operands[0]);
        }
        value
    }

    /// The units in an order in which each comes after those it depends on; close to the order of the graph.
    pub fn order(&self) -> Vec<usize> {
        let mut waiting: Vec<usize> = self.deps.iter().map(|d| d.len()).collect();
        let mut users = vec![vec![]; self.list.len()];
        for (unit, deps) in self.deps.iter().enumerate() {
            deps.iter().for_each(|&d| users[d].push(unit));
        }
        // What an attention waits for is as early as that: the parts of a ring come one after another, and what travels ahead needs memory.
        let is_attention = |unit: &Unit| matches!(unit.kind, UnitKind::Attention(_));
        let mut first: Vec<u32> = self.list.iter().map(|u| if is_attention(u) { u.last } else { u32::MAX }).collect();
        let mut left: Vec<usize> = users.iter().map(Vec::len).collect();
        let mut done: Vec<usize> = (0..self.list.len()).filter(|&u| left[u] == 0).collect();
        while let Some(unit) = done.pop() {
            for &d in &self.deps[unit] {
                first[d] = first[d].min(first[unit]);
                left[d] -= 1;
                if left[d] == 0 {
                    done.push(d);
                }
            }
        }
        let key = |u: usize| std::cmp::Reverse((first[u].min(self.list[u].last), self.list[u].last, u));
        let mut ready: BinaryHeap<_> = (0..self.list.len()).filter(|&u| waiting[u] == 0).map(key).collect();
        let mut order = Vec::with_capacity(self.list.len());
        while let Some(std::cmp::Reverse((.., unit))) = ready.pop() {
            order.push(unit);
            for &user in &users[unit] {
                waiting[user] -= 1;
                if waiting[user] == 0 {
                    ready.push(key(user));
                }
            }
        }
        assert_eq!(order.len(), self.list.len(), "units must not depend on each other in a circle");
        let merged_away = |u: &usize| matches!(&self.list[*u].kind, UnitKind::Region(c) if c.members.is_empty());
        order.retain(|u| !merged_away(u));
        order
    }
}

struct Builder<'a> {
    graph: &'a Graph,
    units: Units,
    /// For each generator: is it stored as well, for kernels that read it from memory?
    stored: Vec<bool>,
    /// For each value whose data is read: the units that read it.
    readers: Vec<Vec<usize>>,
    /// For each value the exchanges that it waits for.
    arrivals: Vec<Arrivals>,
    /// For each unit those of its nodes.
    of_units: Vec<Arrivals>,
    joins: Joins,
}

impl Builder<'_> {
    fn node(&mut self, value: ValueId) {
        let node = self.graph.node(value);
        let is_generated = self.units.generator[value.index()] && !self.stored[value.index()];
        let in_passing = self.units.in_passing[value.index()];
        if matches!(node.op, Op::Input) || is_view(&node.op) || is_generated || in_passing {
            return;
        }
        if let Some((_, kernel)) = self.units.absorbed.iter().find(|(add, _)| *add == value) {
            // The kernel already stands; the sum is its result.
            let unit = self.units.of[kernel.index()].expect("the operand of a sum comes before it");
            self.units.of[value.index()] = Some(unit);
            return;
        }
        if attention::is_attention(&node.op) {
            return self.attention(value);
        }
        let Some((space, row)) = space_of(self.graph, value) else { return self.kernel(value) };
        let candidates = match self.joins {
            Joins::All => self.candidates(value),
            Joins::Off => vec![],
        };
        let first = candidates.iter().copied().find(|&u| self.can_join(value, u, &space, &row));
        let unit = first.unwrap_or_else(|| {
            let cluster = Cluster { space: space.clone(), row: vec![], members: vec![] };
            self.new_unit(UnitKind::Region(cluster), value)
        });
        self.join(value, unit, row);
        // The node may have brought together what was apart.
        for other in candidates {
            if other != unit && self.can_merge(unit, other) {
                self.merge(unit, other);
            }
        }
    }

    /// Regions worth joining: those that make an operand, then those that read one; the latest first.
    fn candidates(&self, value: ValueId) -> Vec<usize> {
        let reads = |&o: &ValueId| self.units.read_in_passing(self.graph, o);
        let operands: Vec<ValueId> = self.graph.node(value).operands.iter().map(reads).collect();
        let mut makers: Vec<usize> = operands.iter().filter_map(|&o| self.units.of[o.index()]).collect();
        makers.sort_unstable_by(|a, b| b.cmp(a));
        let mut sharers: Vec<usize> = operands
            .iter()
            .filter(|o| !self.graph.ty(**o).axes.is_empty())
            .flat_map(|o| self.readers[o.index()].clone())
            .collect();
        sharers.sort_unstable_by(|a, b| b.cmp(a));
        let mut seen = FxHashSet::default();
        makers.into_iter().chain(sharers).filter(|u| seen.insert(*u)).collect()
    }

    fn can_join(&self, value: ValueId, unit: usize, space: &[AxisId], row: &[AxisId]) -> bool {
        let UnitKind::Region(cluster) = &self.units.list[unit].kind else { return false };
        if cluster.members.len() >= MAX_MEMBERS {
            return false;
        }
        let is_reduce = !row.is_empty();
        let rows_only: Vec<AxisId> = cluster.space.iter().copied().filter(|a| !cluster.row.contains(a)).collect();
        let fits = if is_reduce {
            cluster.space == space && (cluster.row.is_empty() || cluster.row == row)
        } else {
            cluster.space == space || (!cluster.row.is_empty() && rows_only == space)
        };
        fits && self.arrivals[value.index()].fit(&self.of_units[unit])
            && !self.sees(value, unit)
            && !self.would_cycle(value, unit)
    }

    /// Does a node see in memory what a unit makes? Then the unit must have stored it before: a view shows, and an index chooses among, data in memory.
    fn sees(&self, value: ValueId, unit: usize) -> bool {
        let in_memory =
            |&(read, through): &(ValueId, Through)| through == Through::Lookup || is_view(&self.graph.node(read).op);
        let mut reads = self.memory_reads(value).into_iter().filter(in_memory);
        reads.any(|(read, _)| self.units.producer(self.graph, read) == Some(unit))
    }

    /// What a node reads, and what is read for it in passing.
    fn memory_reads(&self, value: ValueId) -> Vec<(ValueId, Through)> {
        let mut found = vec![];
        let mut stack = vec![(value, Through::Nothing)];
        while let Some((reader, through)) = stack.pop() {
            let looks_up = matches!(self.graph.node(reader).op, Op::Gather { .. }) || through == Through::Lookup;
            let through = if looks_up { Through::Lookup } else { Through::Nothing };
            for read in self.graph.reads(reader) {
                let list = if self.units.in_passing[read.index()] { &mut stack } else { &mut found };
                list.push((read, through));
            }
        }
        found
    }

    /// May two regions become one?
    fn can_merge(&self, a: usize, b: usize) -> bool {
        let (UnitKind::Region(x), UnitKind::Region(y)) = (&self.units.list[a].kind, &self.units.list[b].kind) else {
            return false;
        };
        let rows_of =
            |c: &Cluster| -> Vec<AxisId> { c.space.iter().copied().filter(|axis| !c.row.contains(axis)).collect() };
        let within = |rows: &Cluster, other: &Cluster| other.row.is_empty() && rows_of(rows) == other.space;
        let fits = if x.space == y.space {
            x.row.is_empty() || y.row.is_empty() || x.row == y.row
        } else {
            within(x, y) || within(y, x)
        };
        let sees = |reader: &Cluster, unit: usize| reader.members.iter().any(|&m| self.sees(m, unit));
        fits && x.members.len() + y.members.len() <= MAX_MEMBERS
            && self.of_units[a].fit(&self.of_units[b])
            && !sees(x, b)
            && !sees(y, a)
            && !self.reaches_through_others(a, b)
            && !self.reaches_through_others(b, a)
    }

    /// Makes the second region part of the first; nothing is left of it but its place in the list.
    fn merge(&mut self, unit: usize, other: usize) {
        let last = self.units.list[other].last;
        let UnitKind::Region(from) = &mut self.units.list[other].kind else { unreachable!("regions merge") };
        let from = std::mem::replace(from, Cluster { space: vec![], row: vec![], members: vec![] });
        for &member in &from.members {
            self.units.of[member.index()] = Some(unit);
        }
        self.units.list[unit].last = self.units.list[unit].last.max(last);
        let UnitKind::Region(into) = &mut self.units.list[unit].kind else { unreachable!("regions merge") };
        if into.space.len() < from.space.len() {
            into.space = from.space;
        }
        if into.row.is_empty() {
            into.row = from.row;
        }
        into.members.extend(from.members);
        into.members.sort_unstable();
        let arrivals = std::mem::take(&mut self.of_units[other]);
        self.of_units[unit].join(&arrivals);
        let deps = std::mem::take(&mut self.units.deps[other]);
        self.units.deps[unit].extend(deps);
        for deps in &mut self.units.deps {
            if deps.remove(&other) {
                deps.insert(unit);
            }
        }
        self.units.deps[unit].remove(&unit);
        for readers in &mut self.readers {
            readers.iter_mut().filter(|r| **r == other).for_each(|r| *r = unit);
        }
    }

    /// Does a unit depend on another by way of a third?
    fn reaches_through_others(&self, unit: usize, on: usize) -> bool {
        self.reach(self.units.deps[unit].iter().copied().filter(|&d| d != on).collect(), on)
    }

    /// Does an operand from outside the unit depend on the unit?
    fn would_cycle(&self, value: ValueId, unit: usize) -> bool {
        let reads = self.memory_reads(value).into_iter();
        let outside = reads.flat_map(|(o, _)| self.makers(o)).filter(|&u| u != unit).collect();
        self.reach(outside, unit)
    }

    /// Does one unit depend on another?
    fn depends(&self, unit: usize, on: usize) -> bool {
        self.reach(vec![unit], on)
    }

    /// Is a unit among others or what they depend on?
    fn reach(&self, from: Vec<usize>, on: usize) -> bool {
        let mut stack = from;
        let mut seen: FxHashSet<usize> = stack.iter().copied().collect();
        while let Some(u) = stack.pop() {
            if u == on {
                return true;
            }
            stack.extend(self.units.deps[u].iter().copied().filter(|d| seen.insert(*d)));
        }
        false
    }

    /// The units that make what a value's data consists of.
    fn makers(&self, value: ValueId) -> Vec<usize> {
        let mut reads = vec![value];
        reads.extend(self.graph.ragged_axis(&self.graph.ty(value).axes).and_then(|a| self.graph.offsets_of(a)));
        reads.iter().filter_map(|&v| self.units.producer(self.graph, v)).collect()
    }

    fn new_unit(&mut self, kind: UnitKind, value: ValueId) -> usize {
        self.units.list.push(Unit { kind, last: value.0 });
        self.units.deps.push(BTreeSet::new());
        self.of_units.push(Arrivals::default());
        self.units.list.len() - 1
    }

    fn join(&mut self, value: ValueId, unit: usize, row: Vec<AxisId>) {
        self.units.of[value.index()] = Some(unit);
        self.of_units[unit].join(&self.arrivals[value.index()]);
        let record = &mut self.units.list[unit];
        record.last = value.0;
        if let UnitKind::Region(cluster) = &mut record.kind {
            cluster.members.push(value);
            if !row.is_empty() {
                cluster.row = row;
            }
        }
        self.depend(value, unit);
    }

    /// Results of one attention belong to one kernel, unless one of them needs another first.
    fn attention(&mut self, value: ValueId) {
        let sibling = (0..self.units.list.len()).rev().find(|&u| match &self.units.list[u].kind {
            UnitKind::Attention(members) => attention::is_sibling(self.graph, members[0], value),
            _ => false,
        });
        let unit = match sibling.filter(|&u| !self.would_cycle(value, u)) {
            Some(unit) => unit,
            None => self.new_unit(UnitKind::Attention(vec![]), value),
        };
        if let UnitKind::Attention(members) = &mut self.units.list[unit].kind {
            members.push(value);
        }
        self.units.list[unit].last = value.0;
        self.units.of[value.index()] = Some(unit);
        self.depend(value, unit);
    }

    fn depend(&mut self, value: ValueId, unit: usize) {
        for (read, _) in self.memory_reads(value) {
            let makers = self.makers(read);
            self.units.deps[unit].extend(makers.into_iter().filter(|&m| m != unit));
            self.readers[read.index()].push(unit);
            let source = source(self.graph, read);
            if source != read {
                self.readers[source.index()].push(unit);
            }
        }
    }

    fn kernel(&mut self, value: ValueId) {
        let accumulate = self.units.absorbed.iter().find(|(_, k)| *k == value).map(|(add, _)| *add);
        let unit = self.new_unit(UnitKind::Kernel { value, accumulate }, value);
        self.units.of[value.index()] = Some(unit);
        self.depend(value, unit);
    }

    /// May a unit write an output over an input? Only what it reads of the input at the place that it writes may be read by itself; and what is written
    /// in parts is written early.
    fn writes_where_it_reads(&self, writer: usize, input: ValueId, output: ValueId) -> bool {
        match &self.units.list[writer].kind {
            UnitKind::Kernel { accumulate: Some(sum), .. } => *sum == output,
            UnitKind::Kernel { value, .. } => match self.graph.node(*value).op {
                Op::Stack(_) | Op::Concat { .. } | Op::Pad { .. } => self.readers[input.index()].is_empty(),
                _ => !self.readers[input.index()].contains(&writer),
            },
            UnitKind::Attention(_) => self.readers[input.index()].iter().all(|&r| r != writer),
            UnitKind::Region(cluster) => {
                let reads = cluster.members.iter().flat_map(|&m| self.memory_reads(m));
                let same = self.graph.ty(input).axes == self.graph.ty(output).axes;
                let in_place = |(o, through)| o == input && same && through == Through::Nothing;
                reads.filter(|&(o, _)| source(self.graph, o) == input).all(in_place)
            }
        }
    }

    /// An output in the home of an input: every other reader of the input comes before its writer.
    fn in_place_order(&mut self, interface: &Interface) {
        for (output, home) in self.graph.outputs.iter().zip(&interface.outputs) {
            let shared = self
                .graph
                .inputs
                .iter()
                .zip(&interface.inputs)
                .find(|(_, h)| h.as_ref() == Some(home))
                .map(|(i, _)| i.value);
            let (Some(input), Some(writer)) = (shared, self.units.of[output.value.index()]) else { continue };
            let readers: Vec<usize> = self.readers[input.index()].iter().copied().filter(|&r| r != writer).collect();
            let fits = self.writes_where_it_reads(writer, input, output.value);
            if !fits || readers.iter().any(|&r| self.depends(r, writer)) {
                self.units.read_after_write.push(output.value);
            } else {
                self.units.deps[writer].extend(readers);
            }
        }
    }
}

/// The value whose data a view shows.
pub fn source(graph: &Graph, mut value: ValueId) -> ValueId {
    while is_view(&graph.node(value).op) {
        value = graph.node(value).operands[0];
    }
    value
}

/// How a node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Through {
    /// Where it writes, or as a whole.
    Nothing,
    /// By index: the array that is looked up, or the index.
    Lookup,
}

/// The iteration space of a node that a region can do, and what it reduces of it.
fn space_of(graph: &Graph, value: ValueId) -> Option<(Vec<AxisId>, Vec<AxisId>)> {
    let node = graph.node(value);
    match &node.op {
        Op::Reduce { over, .. } => {
            let row = row_of(graph, node.operands[0], over)?;
            Some((sorted(&graph.ty(node.operands[0]).axes), row))
        }
        op if op.is_elementwise() || matches!(op, Op::Gather { .. }) => Some((sorted(&node.ty.axes), vec![])),
        _ => None,
    }
}

/// The axes of a reduction that a region can do: the innermost ones, not ragged, of bearable length.
fn row_of(graph: &Graph, operand: ValueId, over: &[AxisId]) -> Option<Vec<AxisId>> {
    let axes = &graph.ty(operand).axes;
    let innermost = sorted(&axes[axes.len() - over.len()..]) == over;
    let length: u64 = over.iter().map(|&a| graph.size(a)).product();
    let rows = graph.numel(graph.ty(operand)) / length.max(1);
    let fits = innermost && graph.ragged_axis(over).is_none() && length <= MAX_ROW && length > 0;
    (fits && !(rows <= 1 && length > MAX_SINGLE_ROW)).then(|| over.to_vec())
}

/// The index of a gather that is another index divided by a number: that index and the number.
pub fn divided_index(graph: &Graph, gather: ValueId) -> Option<(ValueId, u64)> {
    let index = graph.node(gather).operands[1];
    let Op::Binary(BinaryOp::Div) = graph.node(index).op else { return None };
    let [rows, by] = graph.node(index).operands[..] else { return None };
    let Op::Const(by) = graph.node(by).op else { return None };
    (by >= 1.0 && by.fract() == 0.0 && graph.ty(rows) == graph.ty(index)).then_some((rows, by as u64))
}

/// The ragged axis along which each row of a gather looks into a table of its own group.
pub fn table_of_group(graph: &Graph, gather: ValueId) -> Option<AxisId> {
    let table = graph.ty(graph.node(gather).operands[0]);
    let ragged = graph.ragged_axis(&graph.ty(gather).axes)?;
    (!table.has(ragged) && graph.ragged_parent(ragged).is_some_and(|parent| table.has(parent))).then_some(ragged)
}

/// Gathers that only regions read, divisions of an index that only gathers read, and casts to wider types that only regions read.
fn in_passing(graph: &Graph, generator: &[bool]) -> Vec<bool> {
    let users = graph.users();
    let inner = |v: ValueId| !graph.outputs.iter().any(|o| o.value == v) && !users[v.index()].is_empty();
    let divided = |v: ValueId| {
        let looks_up = |&u: &ValueId| {
            matches!(graph.node(u).op, Op::Gather { .. })
                && graph.node(u).operands[0] != v
                && table_of_group(graph, u).is_none()
                && divided_index(graph, u).is_some_and(|(rows, _)| !generator[rows.index()])
        };
        matches!(graph.node(v).op, Op::Binary(BinaryOp::Div)) && inner(v) && users[v.index()].iter().all(looks_up)
    };
    let divisions: Vec<bool> = graph.values().map(divided).collect();
    let computes = |u: ValueId| space_of(graph, u).is_some() && !matches!(graph.node(u).op, Op::Gather { .. });
    let looked_up = |v: ValueId| {
        let in_region = |&u: &ValueId| {
            let node = graph.node(u);
            // A value of the groups would have to be looked up for each row.
            let ragged = graph.ragged_axis(&node.ty.axes);
            let spreads = ragged
                .is_some_and(|r| !graph.ty(v).has(r) && graph.ragged_parent(r).is_some_and(|p| graph.ty(v).has(p)));
            computes(u) && !spreads && !divisions[u.index()] && !generator[u.index()]
        };
        matches!(graph.node(v).op, Op::Gather { .. }) && inner(v) && users[v.index()].iter().all(in_region)
    };
    let widened = |v: ValueId| {
        widens(graph, v) && !generator[v.index()] && inner(v) && users[v.index()].iter().all(|&u| computes(u))
    };
    graph.values().map(|v| divisions[v.index()] || looked_up(v) || widened(v)).collect()
}

/// Is it a cast of an array to a wider type? What is looked up is cast by a member of a region, which brings together those that read it.
fn widens(graph: &Graph, value: ValueId) -> bool {
    let node = graph.node(value);
    let bytes = |v: ValueId| graph.ty(v).dtype.bytes();
    let is_wider = |&from: &ValueId| bytes(from) < bytes(value) && !matches!(graph.node(from).op, Op::Gather { .. });
    matches!(node.op, Op::Cast(_)) && !node.ty.axes.is_empty() && node.operands.iter().all(is_wider)
}

/// Nodes that depend on constants and positions only and cost next to nothing: computed wherever they are needed.
fn generators(graph: &Graph) -> Vec<bool> {
    let mut generator = vec![false; graph.nodes.len()];
    for value in graph.values() {
        let node = graph.node(value);
        let cheap = match &node.op {
            Op::Const(_) | Op::Iota(_) => true,
            Op::Unary(op) => matches!(op, UnaryOp::Neg | UnaryOp::Not | UnaryOp::Abs | UnaryOp::Sign),
            Op::Binary(op) => !matches!(op, BinaryOp::Pow | BinaryOp::Div | BinaryOp::Rem),
            Op::Select | Op::Cast(_) | Op::Broadcast(_) | Op::Reorder => true,
            _ => false,
        };
        generator[value.index()] = cheap
            && !graph.outputs.iter().any(|o| o.value == value)
            && node.operands.iter().all(|o| generator[o.index()])
            && (node.ty.axes.is_empty() && matches!(node.op, Op::Const(_))
                || matches!(node.ty.dtype, DType::I32 | DType::Bool));
    }
    generator
}

/// Generators that a kernel other than a region reads, or a view shows: they have a buffer as well.
fn stored_generators(graph: &Graph, generator: &[bool]) -> Vec<bool> {
    let mut stored = vec![false; generator.len()];
    for node in graph.nodes.iter().filter(|n| !n.op.is_elementwise()) {
        node.operands.iter().for_each(|o| stored[o.index()] |= generator[o.index()]);
    }
    stored
}

/// `add(accumulator, kernel)` where the kernel can add to memory: (the add, the kernel's node).
fn accumulations(graph: &Graph) -> Vec<(ValueId, ValueId)> {
    let users = graph.users();
    let is_accumulator = |v: ValueId| graph.inputs.iter().any(|i| i.value == v && i.role == InputRole::Accumulator);
    let accumulates = |v: ValueId| {
        let kernel = match &graph.node(v).op {
            Op::Contract { .. } => true,
            // Tables of groups are made elsewhere and copied.
            Op::ScatterAdd { over, .. } => graph.ragged_axis(over).is_none(),
            Op::Reduce { over, .. } => {
                let axes = &graph.ty(graph.node(v).operands[0]).axes;
                sorted(&axes[axes.len() - over.len()..]) != *over
            }
            _ => false,
        };
        kernel && users[v.index()].len() == 1 && !graph.outputs.iter().any(|o| o.value == v)
    };
    let mut found = vec![];
    for value in graph.values().filter(|&v| graph.node(v).op == Op::Binary(BinaryOp::Add)) {
        let [a, b] = graph.node(value).operands[..] else { continue };
        let output = graph.outputs.iter().any(|o| o.value == value);
        let pair = [(a, b), (b, a)].into_iter().find(|&(acc, v)| is_accumulator(acc) && accumulates(v));
        if let Some((acc, kernel)) = pair.filter(|(acc, v)| output && graph.ty(*acc) == graph.ty(*v))
            && users[acc.index()].len() == 1
        {
            found.push((value, kernel));
        }
    }
    found
}
