//! Collectives: ops through which the ranks of a mesh exchange values. Only the sharding pass makes them.
//!
//! A graph with a mesh is the program of every rank: the same ops on each, over its part of the data. For each mesh dimension a value is in one of
//! four states, which the ops below move between; the state of a cotangent follows from that of its value.
//!
//! ```text
//! state        what the ranks hold                       cotangent
//! replicated   the same value                            replicated
//! varied       the same value, used for different work   partial: what each rank's work contributes
//! sharded      parts of an axis                          sharded
//! partial      terms of a sum                            varied: the same for every term
//!
//! replicated ── vary ──▶ varied      partial ── all_reduce ──▶ replicated      sharded ── all_gather ──▶ varied
//! replicated ── shard ─▶ sharded     partial ── reduce_scatter ▶ sharded       sharded ── unshard ─────▶ replicated
//! ```
//!
//! Read the table backwards for gradients: `vary` and `all_reduce` are each other's, `all_gather` and `reduce_scatter`, `shard` and `unshard`,
//! `dispatch` and `combine`; `all_to_all` is undone by the opposite one, `rotate` by the rotation by as many places the other way. These are the
//! conjugate operators of Megatron-LM (arXiv 1909.08053, section 3; 2205.05198, section 4.2), with names.

use crate::graph::{Graph, ValueId};
use crate::infer::TypeError;
use crate::op::ReduceKind;
use crate::types::{AxisId, DType, Extent, Type};

/// A dimension of the mesh of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MeshDim {
    /// The name: `tp`.
    pub name: String,
    /// Ranks along it.
    pub size: u32,
}

/// A collective over a group of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Comm {
    /// Mesh dimensions, outermost first. A rank's group are the ranks that agree with it in all others, numbered row-major over these.
    pub group: Vec<u32>,
    /// What they do.
    pub kind: CommKind,
}

/// What a group of n ranks does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CommKind {
    /// The rank's number in the group: i32.
    Coordinate,
    /// The value itself, from here on used for different work on each rank.
    Vary,
    /// The sum, maximum or minimum of all ranks' values, in the order of their numbers, on each of them.
    AllReduce(ReduceKind),
    /// All ranks' parts of an axis, one after another, used for different work on each.
    AllGather {
        /// The part; 1/n of `into`.
        from: AxisId,
        /// The whole.
        into: AxisId,
    },
    /// The rank's part of the sum of all ranks' values.
    ReduceScatter {
        /// The whole.
        from: AxisId,
        /// The part.
        into: AxisId,
    },
    /// The rank's part of a replicated value. Nothing is sent.
    Shard {
        /// The whole.
        from: AxisId,
        /// The part.
        into: AxisId,
    },
    /// All ranks' parts of an axis, one after another: replicated.
    Unshard {
        /// The part.
        from: AxisId,
        /// The whole.
        into: AxisId,
    },
    /// The value of the rank that stands so many places before this one, round.
    Rotate {
        /// How many places; less than n.
        by: u64,
    },
    /// Part d of one axis goes to rank d; what comes is joined along another.
    AllToAll {
        /// The axis that is cut: the whole and its part.
        split: (AxisId, AxisId),
        /// The axis that is joined: the part and the whole.
        join: (AxisId, AxisId),
    },
    /// `(x, counts)`: rows of all groups go to the ranks that own the groups: rank d of n owns groups d·E/n to (d+1)·E/n. They arrive ordered by
    /// (group, source rank, row). `counts: i32[source, own group]` says how many come from where.
    Dispatch {
        /// Groups and their rows on this rank.
        from: (AxisId, AxisId),
        /// Own groups and their rows.
        into: (AxisId, AxisId),
    },
    /// `(y, counts)`: the way back of [`CommKind::Dispatch`].
    Combine {
        /// Own groups and their rows.
        from: (AxisId, AxisId),
        /// Groups and their rows on this rank.
        into: (AxisId, AxisId),
    },
}

impl Comm {
    /// All names in textual IR.
    pub const NAMES: [&'static str; 13] = [
        "coordinate",
        "vary",
        "all_reduce",
        "all_reduce_max",
        "all_reduce_min",
        "all_gather",
        "reduce_scatter",
        "shard",
        "unshard",
        "rotate",
        "all_to_all",
        "dispatch",
        "combine",
    ];

    /// The name in textual IR.
    pub fn name(&self) -> &'static str {
        match self.kind {
            CommKind::Coordinate => "coordinate",
            CommKind::Vary => "vary",
            CommKind::AllReduce(ReduceKind::Sum) => "all_reduce",
            CommKind::AllReduce(ReduceKind::Max) => "all_reduce_max",
            CommKind::AllReduce(ReduceKind::Min) => "all_reduce_min",
            CommKind::AllGather { .. } => "all_gather",
            CommKind::ReduceScatter { .. } => "reduce_scatter",
            CommKind::Shard { .. } => "shard",
            CommKind::Unshard { .. } => "unshard",
            CommKind::Rotate { .. } => "rotate",
            CommKind::AllToAll { .. } => "all_to_all",
            CommKind::Dispatch { .. } => "dispatch",
            CommKind::Combine { .. } => "combine",
        }
    }

    /// Number of operands.
    pub fn arity(&self) -> usize {
        match self.kind {
            CommKind::Coordinate => 0,
            CommKind::Dispatch { .. } | CommKind::Combine { .. } => 2,
            _ => 1,
        }
    }

    /// Does anything go from rank to rank?
    pub fn sends(&self) -> bool {
        !matches!(self.kind, CommKind::Coordinate | CommKind::Vary | CommKind::Shard { .. })
    }

    /// Ranks in a group.
    pub fn ranks(&self, graph: &Graph) -> u64 {
        self.group.iter().map(|&d| graph.mesh.get(d as usize).map_or(1, |d| u64::from(d.size))).product()
    }

    /// The axes that it speaks of.
    pub fn axes(&self) -> Vec<AxisId> {
        match self.kind {
            CommKind::Coordinate | CommKind::Vary | CommKind::AllReduce(_) | CommKind::Rotate { .. } => vec![],
            CommKind::AllGather { from, into }
            | CommKind::ReduceScatter { from, into }
            | CommKind::Shard { from, into }
            | CommKind::Unshard { from, into } => vec![from, into],
            CommKind::AllToAll { split: (a, b), join: (c, d) } => vec![a, b, c, d],
            CommKind::Dispatch { from: (a, b), into: (c, d) } | CommKind::Combine { from: (a, b), into: (c, d) } => {
                vec![a, b, c, d]
            }
        }
    }

    /// The collective that undoes it for cotangents; `None` where nothing flows.
    pub fn gradient(&self, graph: &Graph) -> Option<Comm> {
        let kind = match self.kind {
            CommKind::Coordinate => return None,
            CommKind::Vary => CommKind::AllReduce(ReduceKind::Sum),
            CommKind::AllReduce(_) => CommKind::Vary,
            CommKind::AllGather { from, into } => CommKind::ReduceScatter { from: into, into: from },
            CommKind::ReduceScatter { from, into } => CommKind::AllGather { from: into, into: from },
            CommKind::Shard { from, into } => CommKind::Unshard { from: into, into: from },
            CommKind::Unshard { from, into } => CommKind::Shard { from: into, into: from },
            CommKind::Rotate { by } => CommKind::Rotate { by: self.ranks(graph) - by },
            CommKind::AllToAll { split, join } => {
                CommKind::AllToAll { split: (join.1, join.0), join: (split.1, split.0) }
            }
            CommKind::Dispatch { from, into } => CommKind::Combine { from: into, into: from },
            CommKind::Combine { from, into } => CommKind::Dispatch { from: into, into: from },
        };
        Some(Comm { group: self.group.clone(), kind })
    }
}

fn ensure(condition: bool, message: impl FnOnce() -> String) -> Result<(), TypeError> {
    if condition { Ok(()) } else { Err(TypeError(message())) }
}

/// The type of a collective's result, axes in default order.
pub(crate) fn infer(graph: &Graph, comm: &Comm, operands: &[ValueId]) -> Result<Type, TypeError> {
    let distinct = comm.group.iter().enumerate().all(|(i, d)| !comm.group[..i].contains(d));
    let known = comm.group.iter().all(|&d| (d as usize) < graph.mesh.len());
    ensure(distinct && known && !comm.group.is_empty(), || "a group is one or more distinct mesh dimensions".into())?;
    let rule = Rule { graph, n: comm.ranks(graph), ty: operands.first().map(|&o| graph.ty(o)) };
    let numbers = rule.ty.is_none_or(|ty| ty.dtype != DType::Bool);
    match comm.kind {
        CommKind::Coordinate => Ok(Type::new(DType::I32, [])),
        CommKind::Vary => Ok(rule.operand().clone()),
        CommKind::Rotate { by } => {
            ensure((1..rule.n).contains(&by), || format!("`rotate` by {by} of {} ranks", rule.n))?;
            let ty = rule.operand().clone();
            ensure(graph.ragged_axis(&ty.axes).is_none(), || "`rotate` takes no ragged axis".into())?;
            Ok(ty)
        }
        CommKind::AllReduce(_) => {
            ensure(numbers, || format!("`{}` does not take bool", comm.name()))?;
            Ok(rule.operand().clone())
        }
        CommKind::AllGather { from, into } | CommKind::Unshard { from, into } => {
            rule.parts(into, from)?;
            rule.replaced(&[(from, into)])
        }
        CommKind::ReduceScatter { from, into } => {
            ensure(numbers, || format!("`{}` does not take bool", comm.name()))?;
            rule.parts(from, into)?;
            rule.replaced(&[(from, into)])
        }
        CommKind::Shard { from, into } => {
            rule.parts(from, into)?;
            rule.replaced(&[(from, into)])
        }
        CommKind::AllToAll { split, join } => {
            rule.parts(split.0, split.1)?;
            rule.parts(join.1, join.0)?;
            rule.replaced(&[split, join])
        }
        CommKind::Dispatch { from, into } => {
            rule.rows(from, into, graph.ty(operands[1]), into.0)?;
            rule.replaced(&[(from.0, into.0), (from.1, into.1)])
        }
        CommKind::Combine { from, into } => {
            rule.rows(into, from, graph.ty(operands[1]), from.0)?;
            rule.replaced(&[(from.0, into.0), (from.1, into.1)])
        }
    }
}

struct Rule<'g> {
    graph: &'g Graph,
    /// Ranks of a group.
    n: u64,
    ty: Option<&'g Type>,
}

impl Rule<'_> {
    fn operand(&self) -> &Type {
        self.ty.expect("the number of operands was checked")
    }

    fn name(&self, axis: AxisId) -> &str {
        &self.graph.axis(axis).name
    }

    /// Is `whole` n times as long as `part`?
    fn parts(&self, whole: AxisId, part: AxisId) -> Result<(), TypeError> {
        let fixed = [whole, part].iter().all(|&a| !self.graph.is_ragged(a));
        ensure(fixed, || format!("`{}` is ragged", self.name(whole)))?;
        let fits = self.graph.size(part).checked_mul(self.n) == Some(self.graph.size(whole));
        ensure(fits, || format!("`{}` is not {} times `{}`", self.name(whole), self.n, self.name(part)))
    }

    /// All groups with their rows against own groups with theirs.
    fn rows(
        &self,
        all: (AxisId, AxisId),
        own: (AxisId, AxisId),
        counts: &Type,
        group: AxisId,
    ) -> Result<(), TypeError> {
        self.parts(all.0, own.0)?;
        for (parent, ragged) in [all, own] {
            let belongs = self.graph.ragged_parent(ragged) == Some(parent);
            ensure(belongs, || format!("`{}` does not have the rows `{}`", self.name(parent), self.name(ragged)))?;
        }
        let fits = counts.dtype == DType::I32
            && matches!(counts.axes[..], [source, own] if own == group && self.graph.axis(source).extent == Extent::Fixed(self.n));
        ensure(fits, || format!("counts are i32[{} sources, {}]", self.n, self.name(group)))
    }

    /// The operand's type with axes replaced.
    fn replaced(&self, by: &[(AxisId, AxisId)]) -> Result<Type, TypeError> {
        let mut ty = self.operand().clone();
        for &(from, into) in by {
            let at =
                ty.position(from).ok_or_else(|| TypeError(format!("the operand has no axis `{}`", self.name(from))))?;
            ensure(!ty.has(into), || format!("the operand already has an axis `{}`", self.name(into)))?;
            ty.axes[at] = into;
        }
        for (i, &axis) in ty.axes.iter().enumerate() {
            let parent = self.graph.ragged_parent(axis);
            ensure(parent.is_none_or(|p| i > 0 && ty.axes[i - 1] == p), || {
                format!("ragged axis `{}` must stand directly after its parent", self.name(axis))
            })?;
        }
        Ok(ty)
    }
}
