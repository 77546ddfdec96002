//! Shares of experts, multiplied in before the down projection.
//!
//! ```text
//! %ye = contract %h, %down over {f}                    %s  = gather (merge %share) at %rows        // a number for each row
//! %y  = gather %ye at %place                   ──►     %hs = mul %h, %s
//! %w  = mul %share, %y                                 %ye = contract %hs, %down over {f}
//! %z  = sum %w over {k}                                %w  = gather %ye at %place
//!                                                      %z  = sum %w over {k}
//! ```
//!
//! A token's result is Σ_k p_k · W h_k, and the gradient of p_k is ⟨g, W h_k⟩ = ⟨Wᵀ g, h_k⟩. Behind the down projection it needs the result of each expert by itself: k rows of the
//! model's width for each token, to be saved or made again. Before it, it needs what the gradient of h needs anyway, over the inner width at the ranks of experts: no result of an expert
//! is read by the backward pass, and what comes back to a token is added up as it is.
//!
//! Requires: a graph of primitive ops, before it is sharded and differentiated. Keeps: every value up to rounding; a share is rounded with the inner value instead of the result. Costs: a number for each
//! row goes to the ranks of experts, and its gradient back; the multiplication is over the inner width instead of the model's.
//! Left as it is: results that something else reads without their shares, what is not linear between the projection and the shares, shares that follow from the results, types that differ.

use crate::shard::is_linear;
use forebay_ir::{AxisId, BinaryOp, Extent, Graph, Input, Op, ReduceKind, Type, ValueId};
use std::fmt;

/// Where the shares of experts are multiplied in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shares {
    /// Behind the down projection, with the rows that have come back.
    #[default]
    After,
    /// Before it, at the ranks of experts.
    Before,
    /// Wherever a step takes less time in the memory there is ([`crate::memory::place`]). What asks before that is known takes them to be behind.
    Auto,
}

impl Shares {
    /// What strategies may say.
    pub const ALL: [Shares; 3] = [Shares::After, Shares::Before, Shares::Auto];
    /// Both places.
    pub const PLACES: [Shares; 2] = [Shares::After, Shares::Before];

    /// Its name in strategies.
    pub fn name(self) -> &'static str {
        match self {
            Shares::After => "after",
            Shares::Before => "before",
            Shares::Auto => "auto",
        }
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Multiplies shares in before the down projection, wherever that can be; how many mixtures were changed.
pub fn weigh_before(graph: &mut Graph) -> usize {
    let mut done = 0;
    while let Some(site) = find(graph) {
        *graph = Change::new(graph, &site).run();
        done += 1;
    }
    done
}

/// Rows of experts that come back and are multiplied with their shares.
struct Site {
    /// The numbers of elements in the order of rows.
    rows: ValueId,
    /// Their axes, as they are numbered.
    elements: Vec<AxisId>,
    /// The down projection, and which of its operands has rows.
    projection: (ValueId, usize),
    /// What is between the projection and the rows that come back: what a row is added to by itself, with the number of that operand.
    added: Vec<(ValueId, usize)>,
    /// The rows by token.
    back: ValueId,
    share: ValueId,
    /// The shares times the rows.
    product: ValueId,
}

fn find(graph: &Graph) -> Option<Site> {
    let users = graph.users();
    graph.values().find_map(|back| site(graph, &users, back))
}

/// The only reader of a value that is no output.
fn only_reader(graph: &Graph, users: &[Vec<ValueId>], value: ValueId) -> Option<ValueId> {
    let is_output = graph.outputs.iter().any(|o| o.value == value);
    match users[value.index()][..] {
        [reader] if !is_output => Some(reader),
        _ => None,
    }
}

fn site(graph: &Graph, users: &[Vec<ValueId>], back: ValueId) -> Option<Site> {
    let node = graph.node(back);
    let Op::Gather { axis: ragged } = node.op else { return None };
    let &[ye, place] = &node.operands[..] else { return None };
    let (Op::Invert, &[rows]) = (&graph.node(place).op, &graph.node(place).operands[..]) else { return None };
    let Op::Group { ragged: grouped } = graph.node(rows).op else { return None };
    let elements = graph.ty(graph.node(rows).operands[0]).axes.clone();
    if grouped != ragged || graph.ty(place).axes != elements {
        return None;
    }
    let product = only_reader(graph, users, back)?;
    let share = factor(graph, product, back, &elements)?;
    let (projection, added) = projection(graph, users, (ye, back), ragged)?;
    let inner = graph.node(projection.0).operands[projection.1];
    let dtypes = [inner, projection.0, ye].map(|v| graph.ty(v).dtype);
    let same = dtypes.iter().all(|dtype| *dtype == graph.ty(share).dtype);
    (same && !follows(graph, share, projection.0)).then_some(Site {
        rows,
        elements,
        projection,
        added,
        back,
        share,
        product,
    })
}

/// What rows that have come back are multiplied with: a number for each, of all choices of a token.
fn factor(graph: &Graph, product: ValueId, back: ValueId, elements: &[AxisId]) -> Option<ValueId> {
    let node = graph.node(product);
    let choices = *elements.last()?;
    let multiplies = match &node.op {
        Op::Binary(BinaryOp::Mul) => true,
        Op::Contract { over } => over[..] == [choices],
        _ => false,
    };
    let share = *node.operands.iter().find(|o| **o != back)?;
    let axes = &graph.ty(share).axes;
    let of_elements = axes.contains(&choices) && axes.iter().all(|a| elements.contains(a));
    (multiplies && of_elements).then_some(share)
}

/// The product with parameters that rows come from, when what lies between is linear and nothing else reads it.
#[allow(clippy::type_complexity, reason = "a value with the number of an operand, twice")]
fn projection(
    graph: &Graph,
    users: &[Vec<ValueId>],
    (ye, back): (ValueId, ValueId),
    ragged: AxisId,
) -> Option<((ValueId, usize), Vec<(ValueId, usize)>)> {
    let (mut value, mut reader, mut added) = (ye, back, vec![]);
    let has_rows = |v: ValueId| graph.ty(v).has(ragged);
    loop {
        if only_reader(graph, users, value)? != reader {
            return None;
        }
        let node = graph.node(value);
        let of_rows: Vec<usize> = (0..node.operands.len()).filter(|&i| has_rows(node.operands[i])).collect();
        let &[own] = &of_rows[..] else { return None };
        match &node.op {
            Op::Contract { over } if !over.contains(&ragged) => return Some(((value, own), added)),
            // A row's sum with what all rows of its expert have in common.
            Op::Binary(BinaryOp::Add | BinaryOp::Sub) => added.push((value, 1 - own)),
            Op::Gather { .. } | Op::ScatterAdd { .. } => return None,
            _ if is_linear(graph, value, own) => {}
            _ => return None,
        }
        (value, reader) = (node.operands[own], value);
    }
}

/// Does a value follow from another?
fn follows(graph: &Graph, value: ValueId, from: ValueId) -> bool {
    let mut of = vec![false; graph.nodes.len()];
    of[from.index()] = true;
    for value in graph.values().skip(from.index() + 1) {
        of[value.index()] = graph.node(value).operands.iter().any(|o| of[o.index()]);
    }
    of[value.index()]
}

/// A graph in which one mixture is changed.
struct Change<'a> {
    old: &'a Graph,
    site: &'a Site,
    new: Graph,
    at: Vec<Option<ValueId>>,
}

impl<'a> Change<'a> {
    fn new(old: &'a Graph, site: &'a Site) -> Change<'a> {
        Change { old, site, new: old.like(old.name.clone()), at: vec![None; old.nodes.len()] }
    }

    fn run(mut self) -> Graph {
        let old = self.old;
        // The shares by row, once their operands are there.
        let mut by_row = None;
        for value in old.values() {
            if value == self.site.projection.0 {
                self.take(self.site.share);
                self.take(self.site.rows);
                by_row = Some(self.shares_by_row());
            }
            match by_row {
                Some(share) => self.changed(value, share),
                None => _ = self.take(value),
            }
        }
        let Change { old, mut new, at, .. } = self;
        let at = |v: ValueId| at[v.index()].expect("all values were taken");
        new.inputs = old.inputs.iter().map(|i| Input { value: at(i.value), role: i.role }).collect();
        old.outputs.iter().for_each(|o| new.add_output(o.name.clone(), at(o.value), o.role));
        new.offsets = old.offsets.iter().map(|&(axis, starts)| (axis, at(starts))).collect();
        new.prune();
        new
    }

    /// A value that stays as it is, behind what it is made of.
    fn take(&mut self, value: ValueId) -> ValueId {
        if let Some(known) = self.at[value.index()] {
            return known;
        }
        let node = self.old.node(value);
        let operands = node.operands.iter().map(|&o| self.take(o)).collect();
        self.push(value, node.op.clone(), operands)
    }

    /// A value behind the projection, or beside it.
    fn changed(&mut self, value: ValueId, share: ValueId) {
        let (site, node) = (self.site, self.old.node(value));
        let weighed = match site.added.iter().find(|(sum, _)| *sum == value) {
            _ if value == site.projection.0 => Some(site.projection.1),
            Some((_, other)) => Some(*other),
            None => None,
        };
        if let Some(operand) = weighed {
            let mut operands: Vec<ValueId> = node.operands.iter().map(|&o| self.take(o)).collect();
            operands[operand] = self.times(operands[operand], share);
            self.push(value, node.op.clone(), operands);
        } else if value == site.product {
            let back = self.take(site.back);
            let op = match &node.op {
                Op::Contract { over } => Op::Reduce { kind: ReduceKind::Sum, over: over.clone() },
                _ if node.ty == *self.new.ty(back) => {
                    self.at[value.index()] = Some(back);
                    return;
                }
                _ => Op::Reorder,
            };
            self.push(value, op, vec![back]);
        } else {
            self.take(value);
        }
    }

    fn push(&mut self, value: ValueId, op: Op, operands: Vec<ValueId>) -> ValueId {
        let node = self.old.node(value);
        let new = self.new.push(op, operands, node.ty.clone(), &node.name);
        self.at[value.index()] = Some(new);
        new
    }

    fn add(&mut self, op: Op, operands: &[ValueId], axes: Option<&[AxisId]>, name: &str) -> ValueId {
        let added = match axes {
            Some(axes) => self.new.add_ordered(op, operands, axes, name),
            None => self.new.add(op, operands, name),
        };
        added.unwrap_or_else(|e| panic!("`{name}`: {e}"))
    }

    /// A value of rows, or of experts, with each row's share.
    fn times(&mut self, value: ValueId, share: ValueId) -> ValueId {
        let ty: &Type = self.new.ty(value);
        let lacking = self.new.ty(share).axes.iter().filter(|a| !ty.has(**a));
        let mut axes = ty.axes.clone();
        // Rows stand directly behind their experts.
        for &axis in &lacking.copied().collect::<Vec<_>>() {
            let parent = self.new.ragged_parent(axis);
            let behind = axes.iter().position(|a| Some(*a) == parent).map_or(0, |at| at + 1);
            axes.insert(behind, axis);
        }
        let name = format!("{}.weighed", self.new.node(value).name);
        self.add(Op::Binary(BinaryOp::Mul), &[value, share], Some(&axes), &name)
    }

    /// The shares in the order of rows.
    fn shares_by_row(&mut self) -> ValueId {
        let elements = &self.site.elements;
        let mut share = self.take(self.site.share);
        let name = self.old.node(self.site.share).name.clone();
        let axes = self.new.ty(share).axes.clone();
        let lacking: Vec<AxisId> = elements.iter().copied().filter(|a| !axes.contains(a)).collect();
        if !lacking.is_empty() {
            share = self.add(Op::Broadcast(lacking), &[share], Some(elements), &format!("{name}.each"));
        } else if axes != *elements {
            share = self.add(Op::Reorder, &[share], Some(elements), &format!("{name}.each"));
        }
        let mut axis = elements[0];
        if elements.len() > 1 {
            let size = elements.iter().map(|&a| self.new.size(a)).product();
            axis = self.new.add_axis("choice", Extent::Fixed(size), None);
            let op = Op::Merge { from: elements.clone(), into: axis };
            share = self.add(op, &[share], None, &format!("{name}.choices"));
        }
        let rows = self.take(self.site.rows);
        self.add(Op::Gather { axis }, &[share, rows], None, &format!("{name}.rows"))
    }
}
