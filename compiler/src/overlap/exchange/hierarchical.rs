//! Tokens once to each node, and rows to experts within it.
//!
//! ```text
//! %rows = group %chosen {r}                              %all    = all_gather %x over nodes            // and %chosen, %share
//! %xe   = gather %x at %rows / k                         %here   = experts of this node among %chosen  // -1: of another node
//! %xd   = dispatch %xe over nodes × ranks                %rows   = group %here {r}
//! %yd   = experts %xd                             ──►    %xe     = gather %all at %rows / k
//! %ye   = combine %yd over nodes × ranks                 %xd     = dispatch %xe over ranks
//! %y    = sum over k (gather %ye at %place · %share)     %yd     = experts %xd
//!                                                        %ye     = combine %yd over ranks
//!                                                        %part   = sum over k (gather %ye at %place · %share)
//!                                                        %y      = reduce_scatter %part over nodes
//! ```
//!
//! Collectives between nodes are among ranks that have the same place in their nodes, so that each token crosses the links between two nodes once. Rows of other
//! nodes' experts are not made: their elements are in no group, and add nothing to a token's sum (`Extent::Ragged`, `even`).
//!
//! Where most tokens have experts on few of the nodes, only those that have one are sent (`unique.rs`), instead of an all-gather; what is sent is then ragged, and
//! what follows is the same. The targets may also be single ranks: then there is no exchange within them, and rows are grouped by the rank's own experts.
//!
//! Requires: a sharded graph of primitive ops; ranks of experts that are numbered by node first; between a row and its token's result nothing but what is linear in it.
//! Keeps: every value, up to the order of one sum: a token's results are added up on each node, and then the nodes' sums in the order of their numbers. Costs: memory for the tokens of
//! all nodes, and for as many rows as they could have on this one.

use super::Dispatch;
use super::unique::{Choice, Unique};
use crate::overlap::moved::Moved;
use crate::overlap::pieces::{Region, choices_of, mixture};
use crate::shard::is_linear;
use forebay_ir::{AxisId, BinaryOp, Comm, CommKind, DType, Extent, Graph, InputRole, Op, Type, ValueId};
use rustc_hash::FxHashMap;

/// A mixture whose rows are to travel so.
pub(super) struct Hierarchy<'a> {
    old: &'a Graph,
    region: Region,
    /// The axis of a token's choices.
    choices: AxisId,
    /// The values of the region that rows have come to: at their experts, between dispatch and combine.
    of_owners: Vec<bool>,
    /// The values of the region that are computed here.
    needed: Vec<bool>,
    /// Own experts and the rows that come to them.
    owned: (AxisId, AxisId),
    group: ValueId,
    starts: ValueId,
    ragged: AxisId,
    /// Mesh dimensions between nodes, and within.
    outer: Vec<u32>,
    inner: Vec<u32>,
    /// Are tokens sent to those nodes only that have one of their experts?
    only_where_needed: bool,
    unique: Option<Unique>,
    new: Graph,
    /// Where values are that stay as they are, and results.
    moved: Moved,
    /// Values of the region, and what it reads, for the tokens of all nodes.
    of_all: FxHashMap<ValueId, ValueId>,
    axes: FxHashMap<AxisId, AxisId>,
    chosen: Option<ValueId>,
}

impl<'a> Hierarchy<'a> {
    /// The mixture of a grouping, when its rows are exchanged between nodes and nothing speaks against it.
    pub fn of(old: &'a Graph, group: ValueId, outer: &[u32], dispatch: Dispatch) -> Option<Hierarchy<'a>> {
        let region = mixture(old, group, 1)?;
        let Op::Group { ragged } = old.node(group).op else { return None };
        let starts = old.offsets_of(ragged)?;
        let (dims, owned) = exchanged_over(old, ragged)?;
        let inner = dims.strip_prefix(outer).filter(|_| !outer.is_empty())?.to_vec();
        if old.leaves_out(ragged) || inner.is_empty() != (dispatch == Dispatch::RankDedup) {
            return None;
        }
        let none = vec![false; old.nodes.len()];
        let mut hierarchy = Hierarchy {
            old,
            region,
            choices: choices_of(old, old.node(group).operands[0])?,
            of_owners: none.clone(),
            needed: none,
            owned,
            group,
            starts,
            ragged,
            outer: outer.to_vec(),
            inner,
            only_where_needed: dispatch != Dispatch::Hierarchical,
            unique: None,
            new: old.like(old.name.clone()),
            moved: Moved::of(old),
            of_all: FxHashMap::default(),
            axes: FxHashMap::default(),
            chosen: None,
        };
        hierarchy.find_owners(&dims)?;
        hierarchy.find_needed();
        (hierarchy.numbers_look_up() && hierarchy.sums_are_linear()).then_some(hierarchy)
    }

    /// Marks what is between dispatch and combine. Nothing when anything else is exchanged on the way to it or back.
    fn find_owners(&mut self, dims: &[u32]) -> Option<()> {
        let mut counts = 0;
        for value in self.old.values().filter(|v| self.region.repeated[v.index()]) {
            let node = self.old.node(value);
            let from_owners = node.operands.iter().any(|o| self.of_owners[o.index()]);
            let Op::Comm(comm) = &node.op else {
                self.of_owners[value.index()] = from_owners;
                continue;
            };
            match comm.kind {
                CommKind::Dispatch { .. } => self.of_owners[value.index()] = true,
                CommKind::Combine { .. } => {}
                CommKind::AllToAll { .. } if !from_owners && comm.group == dims => counts += 1,
                // What ranks of one expert tell each other.
                _ if from_owners && comm.group.iter().all(|d| !dims.contains(d)) => {
                    self.of_owners[value.index()] = true;
                }
                _ => return None,
            }
        }
        (counts == 1).then_some(())
    }

    /// Marks what results need. Where targets are ranks, rows stand by own experts once they are grouped: they are not exchanged, and their counts are of no use.
    fn find_needed(&mut self) {
        let old = self.old;
        let mut open: Vec<ValueId> = self.region.results.iter().copied().chain([self.group, self.starts]).collect();
        while let Some(value) = open.pop() {
            if !self.region.repeated[value.index()] || std::mem::replace(&mut self.needed[value.index()], true) {
                continue;
            }
            let operands = &old.node(value).operands;
            match self.stands_for(value) {
                Some(other) => open.push(other),
                None => open.extend(operands),
            }
            let ragged = old.ragged_axis(&old.ty(value).axes);
            open.extend(ragged.and_then(|axis| old.offsets_of(axis)));
        }
    }

    /// What a value is without an exchange of rows, where there is none.
    fn stands_for(&self, value: ValueId) -> Option<ValueId> {
        if !self.inner.is_empty() {
            return None;
        }
        match &self.old.node(value).op {
            Op::Comm(comm) => match comm.kind {
                CommKind::Dispatch { .. } | CommKind::Combine { .. } => Some(self.old.node(value).operands[0]),
                _ => None,
            },
            _ if self.old.offsets_of(self.owned.1) == Some(value) => Some(self.starts),
            _ => None,
        }
    }

    /// Are numbers of rows and of their elements, which are others here, only what something is looked up by? Elements' may be divided before, by how many a token has.
    fn numbers_look_up(&self) -> bool {
        let old = self.old;
        let mut numbers = vec![false; old.nodes.len()];
        numbers[self.group.index()] = true;
        for value in old.values() {
            let node = old.node(value);
            let of_numbers = |i: usize| node.operands.get(i).is_some_and(|o| numbers[o.index()]);
            let any = (0..node.operands.len()).any(of_numbers);
            match &node.op {
                _ if !any => {}
                Op::Invert => numbers[value.index()] = true,
                Op::Binary(BinaryOp::Div) if !of_numbers(1) && old.ty(node.operands[1]).axes.is_empty() => {
                    numbers[value.index()] = true;
                }
                Op::Gather { axis } if !of_numbers(0) => {
                    let known = *axis == self.ragged || self.region.shorter.contains(axis);
                    if !known {
                        return false;
                    }
                }
                _ => return false,
            }
        }
        true
    }

    /// Is a token's result the sum of what its rows give, each for itself? Then it is that of nodes' sums, and a row that is not there gives nothing.
    fn sums_are_linear(&self) -> bool {
        let old = self.old;
        // Values that are by token again, and depend on rows.
        let mut back = vec![false; old.nodes.len()];
        for value in old.values().filter(|v| self.region.repeated[v.index()]) {
            let node = old.node(value);
            if let (Op::Gather { axis }, true) = (&node.op, node.ty.dtype.is_float())
                && *axis == self.ragged
            {
                back[value.index()] = true;
                continue;
            }
            let dependent: Vec<usize> = (0..node.operands.len()).filter(|&i| back[node.operands[i].index()]).collect();
            let contracts = matches!(node.op, Op::Contract { .. }) && dependent.len() == 1;
            let adds = matches!(node.op, Op::Binary(BinaryOp::Add | BinaryOp::Sub)) && dependent.len() == 2;
            let linear = dependent.len() == 1 && is_linear(old, value, dependent[0]);
            match dependent.is_empty() {
                true => {}
                false if adds || contracts || linear => back[value.index()] = true,
                false => return false,
            }
        }
        self.region.results.iter().all(|v| back[v.index()])
    }

    /// The new graph; nothing when the region reads what cannot be had for the tokens of all nodes.
    pub fn run(mut self) -> Option<Graph> {
        self.name_axes();
        for value in self.old.values() {
            if !self.region.repeated[value.index()] {
                self.moved.keep(self.old, value, &mut self.new);
                continue;
            }
            if !self.needed[value.index()] {
                continue;
            }
            let all = match self.stands_for(value) {
                Some(other) => self.of_all[&other],
                None => self.repeat(value)?,
            };
            self.of_all.insert(value, all);
            if self.region.results.contains(&value) {
                let result = self.result(value, all)?;
                self.moved.set(value, result);
            }
        }
        Some(self.finish())
    }

    /// Sums of all nodes, of what each has for a token.
    fn result(&mut self, value: ValueId, all: ValueId) -> Option<ValueId> {
        let node = self.old.node(value);
        if self.only_where_needed {
            self.find_unique()?;
            let unique = self.unique.as_ref().filter(|unique| unique.has_tokens(&node.ty))?;
            return Some(unique.give_back(&mut self.new, all));
        }
        let tokens = self.region.tokens;
        let kind = CommKind::ReduceScatter { from: self.axes[&tokens], into: tokens };
        Some(self.collective(kind, all, &format!("{}.reduce_scatter", node.name)))
    }

    /// Which tokens travel, known once.
    fn find_unique(&mut self) -> Option<()> {
        if self.unique.is_some() {
            return Some(());
        }
        let mine = self.own_choice()?;
        let chosen = self.old.node(self.group).operands[0];
        let experts = self.axes[&self.old.ragged_parent(self.ragged).expect("ragged axes have parents")];
        let choice = Choice {
            name: &self.old.node(chosen).name,
            chosen: self.moved.at(chosen),
            mine,
            choices: self.choices,
            experts: self.new.size(experts),
            room: self.new.size(self.axes[&self.ragged]),
            outer: &self.outer,
        };
        self.unique = Some(Unique::new(&mut self.new, &choice));
        Some(())
    }

    /// The axes that are another size here: tokens of all nodes, and experts, their rows and who sends them of this one.
    fn name_axes(&mut self) {
        let nodes = self.ranks(&self.outer);
        let old = self.old;
        for &axis in &self.region.shorter {
            let axis_of = old.axis(axis);
            let extent = Extent::Fixed(old.size(axis) * nodes);
            let all = self.new.add_axis(&format!("{}_all", axis_of.name), extent, axis_of.label.clone());
            self.axes.insert(axis, all);
        }
        let experts = old.ragged_parent(self.ragged).expect("ragged axes have parents");
        let own = old.size(experts) / nodes;
        let name = |axis: AxisId| format!("{}_node", old.axis(axis).name);
        let bordered = old.ty(self.starts).axes[0];
        // Rows on their way within a node have as much room as those that have arrived. Less than there are elements: those of other nodes are left out.
        let bound = (old.size(self.ragged) * nodes).min(old.size(self.owned.1));
        let even = old.even_size(self.ragged).min(bound - 1);
        if self.inner.is_empty() {
            let parent = self.owned.0;
            let starts = old.offsets_of(self.owned.1).map(|v| old.ty(v).axes[0]).expect("rows in use have offsets");
            let rows = self.new.add_axis(&name(self.ragged), Extent::Ragged { parent, bound, even }, None);
            self.axes.extend([(experts, parent), (bordered, starts), (self.ragged, rows), (self.owned.1, rows)]);
            return;
        }
        let parent = self.new.add_axis(&name(experts), Extent::Fixed(own), old.axis(experts).label.clone());
        let starts = self.new.add_axis(&name(bordered), Extent::Fixed(own + 1), None);
        let rows = self.new.add_axis(&name(self.ragged), Extent::Ragged { parent, bound, even }, None);
        self.axes.extend([(experts, parent), (bordered, starts), (self.ragged, rows)]);
        let sources = old.nodes.iter().zip(&self.region.repeated).find_map(|(node, repeated)| match &node.op {
            Op::Comm(comm) if *repeated => match comm.kind {
                CommKind::AllToAll { join, .. } => Some(join.1),
                _ => None,
            },
            _ => None,
        });
        if let Some(sources) = sources {
            let extent = Extent::Fixed(self.ranks(&self.inner));
            let inner = self.new.add_axis(&name(sources), extent, None);
            self.axes.insert(sources, inner);
        }
    }

    fn ranks(&self, dims: &[u32]) -> u64 {
        dims.iter().map(|&d| u64::from(self.old.mesh[d as usize].size)).product()
    }

    /// A value of the region for the tokens of all nodes and the experts of this one.
    fn repeat(&mut self, value: ValueId) -> Option<ValueId> {
        let node = self.old.node(value);
        let operands = match value == self.group || value == self.starts {
            true => vec![self.own_choice()?],
            false => node.operands.iter().map(|&o| self.for_all(o)).collect::<Option<Vec<_>>>()?,
        };
        let mut op = node.op.map_axes(|a| self.axis(a));
        let within = matches!(node.op, Op::Comm(_)) && !self.of_owners[value.index()];
        if within && self.inner.is_empty() {
            return None;
        }
        if let Op::Comm(comm) = &mut op
            && (!self.of_owners[value.index()] || matches!(comm.kind, CommKind::Dispatch { .. }))
        {
            comm.group = self.inner.clone();
        }
        let ty = self.ty(&node.ty);
        Some(self.new.push(op, operands, ty, &node.name))
    }

    /// What the region reads, for the tokens of all nodes.
    fn for_all(&mut self, value: ValueId) -> Option<ValueId> {
        if let Some(&known) = self.of_all.get(&value) {
            return Some(known);
        }
        let node = self.old.node(value);
        let changes = node.ty.axes.iter().any(|a| self.axes.contains_key(a));
        if !changes {
            return Some(self.moved.at(value));
        }
        let tokens = self.region.tokens;
        let gathered = if node.ty.axes.first() == Some(&tokens) && !self.is_param(value) {
            let (from, into) = (tokens, self.axes[&tokens]);
            if self.only_where_needed && node.ty.dtype.is_float() && !node.ty.has(self.choices) {
                self.find_unique()?;
                let unique = self.unique.as_ref().filter(|unique| unique.has_tokens(&node.ty))?;
                let all = unique.send(&mut self.new, self.moved.at(value));
                self.of_all.insert(value, all);
                return Some(all);
            }
            let (kind, what) = match node.ty.dtype.is_float() {
                true => (CommKind::AllGather { from, into }, "all_gather"),
                false => (CommKind::Unshard { from, into }, "unshard"),
            };
            self.collective(kind, self.moved.at(value), &format!("{}.{what}", node.name))
        } else if let Op::Merge { .. } | Op::Reorder | Op::Cast(_) = node.op {
            // Tokens that have been merged into one axis, or moved inwards: what they are made of is gathered.
            let operands = node.operands.iter().map(|&o| self.for_all(o)).collect::<Option<Vec<_>>>()?;
            let op = node.op.map_axes(|a| self.axis(a));
            let ty = self.ty(&node.ty);
            self.new.push(op, operands, ty, &format!("{}.all", node.name))
        } else {
            return None;
        };
        self.of_all.insert(value, gathered);
        Some(gathered)
    }

    fn is_param(&self, value: ValueId) -> bool {
        self.old.inputs.iter().any(|i| i.value == value && i.role == InputRole::Param)
    }

    /// What all nodes' tokens have chosen, in numbers of this node's experts: -1 for others.
    ///
    /// ```text
    /// own  = chosen - node · experts of a node          here = 0 <= own < experts of a node
    /// mine = where(here, own, -1)
    /// ```
    fn own_choice(&mut self) -> Option<ValueId> {
        if let Some(known) = self.chosen {
            return Some(known);
        }
        let chosen = self.old.node(self.group).operands[0];
        let name = self.old.node(chosen).name.clone();
        let all = self.for_all(chosen)?;
        let coordinate = Comm { group: self.outer.clone(), kind: CommKind::Coordinate };
        let experts = self.axes[&self.old.ragged_parent(self.ragged).expect("ragged axes have parents")];
        let own = self.new.size(experts) as f64;
        let graph = &mut self.new;
        let integer = |graph: &mut Graph, n: f64| graph.constant(n, DType::I32);
        let add = |graph: &mut Graph, op: Op, operands: &[ValueId], what: &str| {
            graph.add(op, operands, &format!("{name}.{what}")).unwrap_or_else(|e| panic!("`{name}.{what}`: {e}"))
        };
        let node = add(graph, Op::Comm(Box::new(coordinate)), &[], "node");
        let (size, zero, none) = (integer(graph, own), integer(graph, 0.0), integer(graph, -1.0));
        let first = add(graph, Op::Binary(BinaryOp::Mul), &[node, size], "first");
        let number = add(graph, Op::Binary(BinaryOp::Sub), &[all, first], "own");
        let from = add(graph, Op::Binary(BinaryOp::Ge), &[number, zero], "from");
        let to = add(graph, Op::Binary(BinaryOp::Lt), &[number, size], "to");
        let here = add(graph, Op::Binary(BinaryOp::And), &[from, to], "here");
        let mine = add(graph, Op::Select, &[here, number, none], "mine");
        self.chosen = Some(mine);
        Some(mine)
    }

    fn collective(&mut self, kind: CommKind, operand: ValueId, name: &str) -> ValueId {
        let comm = Comm { group: self.outer.clone(), kind };
        self.new.add(Op::Comm(Box::new(comm)), &[operand], name).unwrap_or_else(|e| panic!("`{name}`: {e}"))
    }

    fn axis(&self, axis: AxisId) -> AxisId {
        self.axes.get(&axis).copied().unwrap_or(axis)
    }

    fn ty(&self, ty: &Type) -> Type {
        Type::new(ty.dtype, ty.axes.iter().map(|&a| self.axis(a)).collect::<Vec<_>>())
    }

    fn finish(self) -> Graph {
        let Hierarchy { old, region, mut new, moved, of_all, axes, .. } = self;
        moved.interface(old, &mut new);
        for &(axis, starts) in &old.offsets {
            let found = match region.repeated[starts.index()] {
                true => (axes.get(&axis).copied().unwrap_or(axis), of_all[&starts]),
                false => (axis, moved.at(starts)),
            };
            if new.offsets_of(found.0).is_none() {
                new.offsets.push(found);
            }
        }
        new.prune();
        new
    }
}

/// The mesh dimensions over which the rows of an axis are dispatched, outermost first, and what they are then.
fn exchanged_over(graph: &Graph, ragged: AxisId) -> Option<(Vec<u32>, (AxisId, AxisId))> {
    graph.nodes.iter().find_map(|node| match &node.op {
        Op::Comm(comm) => match comm.kind {
            CommKind::Dispatch { from, into } if from.1 == ragged => Some((comm.group.clone(), into)),
            _ => None,
        },
        _ => None,
    })
}
