//! Attention over gathered keys as a ring: each rank keeps its queries, and parts of keys and values travel (arXiv 2310.01889).
//!
//! ```text
//! %all = all_gather %k {u_part -> u} on cp               %o0, %l0 = attention %q, %k, …            // the rank's own part
//! %o = attention %q, %all, … {t, u, d}           ==>     %k1 = rotate %k by 1 on cp                // travels while the first part is attended to
//!                                                        %o1, %l1 = attention %q, %k1, …
//!                                                        %o, %l = merged (%o0, %l0), (%o1, %l1)    // and so on, once round
//! ```
//!
//! Results are merged by their log-sum-exp: `l = log(e^l0 + e^l1)`, `o = o0·e^(l0 - l) + o1·e^(l1 - l)`. Backward, each part is differentiated with the log-sum-exp
//! of all keys, which makes its probabilities those of the whole; gradients of keys and values travel along with them, one part being added
//! at each rank, and reach the owner after one round. What queries see follows from positions, so that parts a query does not see
//! cost nothing (see [`crate::shard`] for how parts are balanced).
//!
//! Requires: graphs after the last rewriting, keys and values gathered over a group that contains the ring. Gradients of gathered keys that are
//! used for anything else than their sum over the ranks stay as they are.
//! Keeps: values up to the order of sums. In a ring of n ranks memory holds the keys of two ranks instead of n, and the same bytes travel: forward
//! n - 1 parts instead of an all-gather, backward n - 1 parts, and n of gradients in the wide type instead of a reduce-scatter.

use crate::autodiff::Differentiated;
use forebay_ir::fused::AttentionParts;
use forebay_ir::{AxisId, BinaryOp, Comm, CommKind, DType, Fused, FusedKind, Graph, Op, TypeError, UnaryOp, ValueId};
use rustc_hash::FxHashMap;

/// Lets keys travel in all graphs of a segment, round a ring of these mesh dimensions. No dimensions are no ring.
pub fn travel_all(segment: &mut Differentiated, ring: &[u32]) {
    let Differentiated { forward, backward, backward_input, backward_weight } = segment;
    [forward, backward, backward_input, backward_weight].into_iter().for_each(|graph| travel(graph, ring));
}

/// The names of the gathered keys and values that would travel.
pub fn travelling(graph: &Graph, ring: &[u32]) -> Vec<String> {
    let rings = if ring.is_empty() { vec![] } else { found(graph, ring) };
    let all = rings.iter().flat_map(|ring| ring.parts.pairs.iter().map(|(_, k)| *k).chain(ring.parts.v));
    all.map(|v| graph.node(v).name.clone()).collect()
}

/// The same in one graph.
pub fn travel(graph: &mut Graph, ring: &[u32]) {
    let rings = match ring {
        [] => vec![],
        _ => found(graph, ring),
    };
    if rings.is_empty() {
        return;
    }
    let old = graph.clone();
    let mut new = old.like(old.name.clone());
    let mut moved: Vec<Option<ValueId>> = vec![None; old.nodes.len()];
    for value in old.values() {
        if let Some(ring) = rings.iter().find(|ring| ring.first == value) {
            let at = |v: ValueId| moved[v.index()].expect("operands stand before what reads them");
            let made = Travel::new(ring, &mut new, &at).run(&old).unwrap_or_else(|e| panic!("a ring: {e}"));
            made.into_iter().for_each(|(v, by)| moved[v.index()] = Some(by));
        }
        // What a ring has made, or what only a ring has read.
        let node = old.node(value);
        if moved[value.index()].is_some() {
            continue;
        }
        if let Some(operands) = node.operands.iter().map(|o| moved[o.index()]).collect() {
            moved[value.index()] = Some(new.push(node.op.clone(), operands, node.ty.clone(), &node.name));
        }
    }
    let at = |v: ValueId| moved[v.index()].expect("a ring makes all that is read outside of it");
    new.inputs = old.inputs.iter().map(|i| forebay_ir::Input { value: at(i.value), role: i.role }).collect();
    for output in &old.outputs {
        new.add_output(output.name.clone(), at(output.value), output.role);
    }
    new.offsets = old.offsets.iter().map(|&(a, v)| (a, at(v))).collect();
    new.prune();
    *graph = new;
}

/// An attention whose keys travel.
struct Ring {
    op: Fused,
    parts: AttentionParts,
    /// Its results, as (which, value): [`Part`]s of a forward pass, or numbers of operands that gradients are of.
    results: Vec<(usize, ValueId)>,
    /// The result that stands first; the others need no operand that it does not.
    first: ValueId,
    group: Vec<u32>,
    /// The part of the keys' axis that a rank has.
    part: AxisId,
    /// For each pair its keys, then the values: as they are before they are gathered.
    local: Vec<ValueId>,
    /// For gradients of these, the sums over the ranks that replace them.
    sums: FxHashMap<usize, ValueId>,
}

/// [`Ring::results`] of a forward pass.
const OUT: usize = 0;
const LSE: usize = 1;

fn found(graph: &Graph, ring: &[u32]) -> Vec<Ring> {
    let users = graph.users();
    let fused = |v: ValueId| match &graph.node(v).op {
        Op::Fused(fused) => Some(&**fused),
        _ => None,
    };
    let mut rings: Vec<Ring> = vec![];
    for value in graph.values() {
        let Some(op) = fused(value) else { continue };
        let is_gradient = op.kind == FusedKind::AttentionGrad;
        if !matches!(op.kind, FusedKind::Attention | FusedKind::AttentionGrad) {
            continue;
        }
        let parts = AttentionParts::new(op, &graph.node(value).operands);
        let number = if is_gradient { op.numbers[6] as usize } else { OUT };
        let of_same = |ring: &&mut Ring| is_gradient && ring.parts == parts && alike(&ring.op, op);
        if let Some(known) = rings.iter_mut().find(of_same) {
            known.results.push((number, value));
            continue;
        }
        let Some((group, part, local)) = gathered(graph, op, &parts, ring) else { continue };
        let mut results = vec![(number, value)];
        if !is_gradient {
            let is_lse = |v: &ValueId| {
                fused(*v).filter(|f| f.kind == FusedKind::AttentionLse && alike(f, op)).is_some_and(|f| {
                    let own = AttentionParts::new(f, &graph.node(*v).operands);
                    AttentionParts { v: parts.v, ..own } == parts
                })
            };
            results.extend(graph.values().find(is_lse).map(|v| (LSE, v)));
        }
        let op = op.clone();
        rings.push(Ring { op, parts, results, first: value, group, part, local, sums: FxHashMap::default() });
    }
    rings.retain_mut(|ring| closes(graph, &users, ring));
    rings
}

/// Have two ops the same axes and attributes, but for the operand that a gradient is of?
fn alike(a: &Fused, b: &Fused) -> bool {
    a.axes == b.axes && a.numbers[..6] == b.numbers[..6]
}

/// The group over which all keys and values are gathered, the part of their axis, and what is gathered.
fn gathered(
    graph: &Graph,
    op: &Fused,
    parts: &AttentionParts,
    ring: &[u32],
) -> Option<(Vec<u32>, AxisId, Vec<ValueId>)> {
    let u = op.axes[1];
    let travelling = parts.pairs.iter().map(|&(_, k)| k).chain(parts.v);
    let of = |v: ValueId| match &graph.node(v).op {
        Op::Comm(comm) => match comm.kind {
            CommKind::AllGather { from, into } | CommKind::Unshard { from, into } if into == u => {
                Some((comm.group.clone(), from, graph.node(v).operands[0]))
            }
            _ => None,
        },
        _ => None,
    };
    let all: Vec<(Vec<u32>, AxisId, ValueId)> = travelling.map(of).collect::<Option<_>>()?;
    let (group, part, _) = all.first()?.clone();
    let one = all.iter().all(|(g, p, _)| *g == group && *p == part) && group.starts_with(ring);
    one.then(|| (group, part, all.into_iter().map(|(_, _, v)| v).collect()))
}

/// Can the ring give all that is read of the attention? A log-sum-exp that stands first must be read by nothing before the result, gradients of keys
/// by their sum alone.
fn closes(graph: &Graph, users: &[Vec<ValueId>], ring: &mut Ring) -> bool {
    if ring.op.kind == FusedKind::Attention {
        return ring.results.iter().all(|(_, v)| *v >= ring.first || users[v.index()].iter().all(|u| *u > ring.first));
    }
    for &(number, value) in &ring.results {
        let of_keys = number < 2 * ring.parts.pairs.len() && number % 2 == 1 || number == 2 * ring.parts.pairs.len();
        if !of_keys {
            continue;
        }
        let [sum] = users[value.index()][..] else { return false };
        let wanted = CommKind::ReduceScatter { from: ring.op.axes[1], into: ring.part };
        let is_sum = matches!(&graph.node(sum).op, Op::Comm(c) if c.kind == wanted && c.group == ring.group);
        if !is_sum || graph.outputs.iter().any(|o| o.value == value) {
            return false;
        }
        ring.sums.insert(number, sum);
    }
    true
}

/// A ring in the making.
struct Travel<'a> {
    ring: &'a Ring,
    graph: &'a mut Graph,
    /// Operands in the new graph: queries, then what travels, marks of queries and of all keys.
    queries: Vec<ValueId>,
    local: Vec<ValueId>,
    documents: Option<(ValueId, ValueId)>,
    positions: Option<(ValueId, ValueId)>,
    sink: Option<ValueId>,
    back: Option<[ValueId; 3]>,
    ranks: u64,
}

type Result<T> = std::result::Result<T, TypeError>;

impl<'a> Travel<'a> {
    fn new(ring: &'a Ring, graph: &'a mut Graph, at: &dyn Fn(ValueId) -> ValueId) -> Travel<'a> {
        let pair = |of: Option<(ValueId, ValueId)>| of.map(|(q, k)| (at(q), at(k)));
        let ranks = Comm { group: ring.group.clone(), kind: CommKind::Vary }.ranks(graph);
        Travel {
            queries: ring.parts.pairs.iter().map(|&(q, _)| at(q)).collect(),
            local: ring.local.iter().map(|&v| at(v)).collect(),
            documents: pair(ring.parts.documents),
            // A part may have no key of a query's document. With positions, whether or not a mask compares them, what sees nothing is 0.
            positions: pair(ring.parts.positions.or(ring.parts.documents)),
            sink: ring.parts.sink.map(at),
            back: ring.parts.back.map(|back| back.map(at)),
            ring,
            graph,
            ranks,
        }
    }

    /// What replaces which values of the old graph.
    fn run(mut self, old: &Graph) -> Result<Vec<(ValueId, ValueId)>> {
        match self.ring.op.kind {
            FusedKind::Attention => self.forward(old),
            _ => self.backward(old),
        }
    }

    fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId, name: &str) -> Result<ValueId> {
        self.graph.add(Op::Binary(op), &[a, b], name)
    }

    fn comm(&mut self, kind: CommKind, operands: &[ValueId], name: &str) -> Result<ValueId> {
        let comm = Comm { group: self.ring.group.clone(), kind };
        self.graph.add(Op::Comm(Box::new(comm)), operands, name)
    }

    fn next(&mut self, value: ValueId) -> Result<ValueId> {
        let name = format!("{}.next", self.graph.node(value).name);
        self.comm(CommKind::Rotate { by: 1 }, &[value], &name)
    }

    /// The type in which results of parts are put together.
    fn wide(&self, dtype: DType) -> DType {
        if dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    fn cast(&mut self, value: ValueId, dtype: DType, name: &str) -> Result<ValueId> {
        match self.graph.ty(value).dtype == dtype {
            true => Ok(value),
            false => self.graph.add(Op::Cast(dtype), &[value], name),
        }
    }

    /// For each step the numbers, along the axis of all keys, of the keys that have arrived: those of the rank so many places before this one.
    fn arrived(&mut self) -> Result<Vec<ValueId>> {
        let rank = self.comm(CommKind::Coordinate, &[], "rank")?;
        let n = self.graph.constant(self.ranks as f64, DType::I32);
        let size = self.graph.constant(self.graph.size(self.ring.part) as f64, DType::I32);
        let here = self.graph.add(Op::Iota(self.ring.part), &[], "here")?;
        let step = |travel: &mut Self, step: u64| {
            let places = travel.graph.constant((travel.ranks - step) as f64, DType::I32);
            let shifted = travel.binary(BinaryOp::Add, rank, places, "shifted")?;
            let source = travel.binary(BinaryOp::Rem, shifted, n, "source")?;
            let first = travel.binary(BinaryOp::Mul, source, size, "first")?;
            travel.binary(BinaryOp::Add, here, first, "arrived")
        };
        (0..self.ranks).map(|s| step(self, s)).collect()
    }

    /// Marks of queries, and of the keys that have arrived.
    fn marks(&mut self, of: Option<(ValueId, ValueId)>, arrived: ValueId) -> Result<Vec<ValueId>> {
        let Some((query, key)) = of else { return Ok(vec![]) };
        let axis = self.ring.op.axes[1];
        let name = format!("{}.arrived", self.graph.node(key).name);
        Ok(vec![query, self.graph.add(Op::Gather { axis }, &[key, arrived], &name)?])
    }

    /// The operands of a step, given what has arrived, and whether the sink counts: it is one score of all.
    fn operands(&mut self, travelling: &[ValueId], arrived: ValueId, has_sink: bool) -> Result<Vec<ValueId>> {
        let mut operands: Vec<ValueId> = self.queries.iter().zip(travelling).flat_map(|(&q, &k)| [q, k]).collect();
        operands.extend(travelling.last());
        let documents = self.marks(self.documents, arrived)?;
        let positions = self.marks(self.positions, arrived)?;
        operands.extend(documents);
        operands.extend(self.sink.filter(|_| has_sink));
        operands.extend(positions);
        operands.extend(self.back.into_iter().flatten());
        Ok(operands)
    }

    /// The op of a step.
    fn op(&self, kind: FusedKind, has_sink: bool, number: Option<usize>) -> Op {
        let mut axes = self.ring.op.axes.clone();
        axes[1] = self.ring.part;
        let mut numbers = self.ring.op.numbers[..6].to_vec();
        numbers[4] = f64::from(u8::from(has_sink && self.sink.is_some()));
        numbers[5] = f64::from(u8::from(self.positions.is_some()));
        numbers.extend(number.map(|n| n as f64));
        Op::Fused(Box::new(Fused { kind, axes, numbers }))
    }

    fn forward(&mut self, old: &Graph) -> Result<Vec<(ValueId, ValueId)>> {
        let out = self.ring.first;
        let (name, ty) = (old.node(out).name.clone(), old.ty(out).clone());
        let wide = self.wide(ty.dtype);
        let arrived = self.arrived()?;
        let mut travelling = self.local.clone();
        let mut merged: Option<(ValueId, ValueId)> = None;
        for (step, &arrived) in arrived.iter().enumerate() {
            let has_sink = step == 0;
            let operands = self.operands(&travelling, arrived, has_sink)?;
            // What is attended to next travels meanwhile.
            if step + 1 < self.ranks as usize {
                travelling = travelling.iter().map(|&v| self.next(v)).collect::<Result<_>>()?;
            }
            let op = self.op(FusedKind::Attention, has_sink, None);
            let part = self.graph.add_ordered(op, &operands, &ty.axes, &format!("{name}.{step}"))?;
            let part = self.cast(part, wide, &format!("{name}.{step}.wide"))?;
            let values = 2 * self.queries.len();
            let without: Vec<ValueId> =
                operands.iter().enumerate().filter(|(i, _)| *i != values).map(|(_, &o)| o).collect();
            let op = self.op(FusedKind::AttentionLse, has_sink, None);
            let lse = self.graph.add(op, &without, &format!("{name}.{step}.lse"))?;
            merged = Some(match merged {
                None => (part, lse),
                Some(before) => self.merge(before, (part, lse), &name)?,
            });
        }
        let (whole, lse) = merged.expect("a ring has ranks");
        let whole = self.cast(whole, ty.dtype, &name)?;
        let mut made = vec![(out, whole)];
        if let Some(&(_, old_lse)) = self.ring.results.iter().find(|(which, _)| *which == LSE) {
            let wanted = old.ty(old_lse).clone();
            let reordered = self.graph.ty(lse).axes != wanted.axes;
            let name = &old.node(old_lse).name;
            let lse = if reordered { self.graph.add_ordered(Op::Reorder, &[lse], &wanted.axes, name)? } else { lse };
            made.push((old_lse, lse));
        }
        Ok(made)
    }

    /// Two results over different keys as one. A query that sees none of them has a log-sum-exp of -∞ and the result 0.
    fn merge(
        &mut self,
        (a, la): (ValueId, ValueId),
        (b, lb): (ValueId, ValueId),
        name: &str,
    ) -> Result<(ValueId, ValueId)> {
        let axes = self.graph.ty(a).axes.clone();
        let dtype = self.graph.ty(la).dtype;
        let least = self.graph.constant(-1e30, dtype);
        let most = self.binary(BinaryOp::Max, la, lb, "most")?;
        let most = self.binary(BinaryOp::Max, most, least, "most")?;
        let share = |travel: &mut Self, l: ValueId| {
            let less = travel.binary(BinaryOp::Sub, l, most, "less")?;
            travel.graph.add(Op::Unary(UnaryOp::Exp), &[less], "share")
        };
        let (wa, wb) = (share(self, la)?, share(self, lb)?);
        let sum = self.binary(BinaryOp::Add, wa, wb, "shares")?;
        let log = self.graph.add(Op::Unary(UnaryOp::Log), &[sum], "log")?;
        let lse = self.binary(BinaryOp::Add, most, log, &format!("{name}.lse"))?;
        // One of the shares is 1, unless both are of queries that see nothing.
        let one = self.graph.constant(1.0, dtype);
        let sum = self.binary(BinaryOp::Max, sum, one, "shares")?;
        let weighted = |travel: &mut Self, x: ValueId, w: ValueId| {
            let w = travel.binary(BinaryOp::Div, w, sum, "weight")?;
            travel.graph.add_ordered(Op::Binary(BinaryOp::Mul), &[x, w], &axes, "weighted")
        };
        let (a, b) = (weighted(self, a, wa)?, weighted(self, b, wb)?);
        Ok((self.graph.add_ordered(Op::Binary(BinaryOp::Add), &[a, b], &axes, name)?, lse))
    }

    fn backward(&mut self, old: &Graph) -> Result<Vec<(ValueId, ValueId)>> {
        let arrived = self.arrived()?;
        let mut travelling = self.local.clone();
        let mut sums: FxHashMap<usize, ValueId> = FxHashMap::default();
        let sink = 2 * self.queries.len() + 1;
        for (step, &arrived) in arrived.iter().enumerate() {
            let has_sink = step == 0;
            let operands = self.operands(&travelling, arrived, has_sink)?;
            if step + 1 < self.ranks as usize {
                travelling = travelling.iter().map(|&v| self.next(v)).collect::<Result<_>>()?;
            }
            for &(number, value) in &self.ring.results {
                if number == sink && !has_sink {
                    continue;
                }
                let name = &old.node(value).name;
                let op = self.op(FusedKind::AttentionGrad, has_sink, Some(number));
                let u = |a: &AxisId| if *a == self.ring.op.axes[1] { self.ring.part } else { *a };
                let axes: Vec<AxisId> = old.ty(value).axes.iter().map(u).collect();
                let part = self.graph.add_ordered(op, &operands, &axes, &format!("{name}.{step}"))?;
                let part = self.cast(part, self.wide(old.ty(value).dtype), &format!("{name}.{step}.wide"))?;
                let sum = match sums.get(&number) {
                    None => part,
                    Some(&before) => {
                        let arrived = match self.ring.sums.contains_key(&number) {
                            true => self.next(before)?,
                            false => before,
                        };
                        self.graph.add_ordered(Op::Binary(BinaryOp::Add), &[arrived, part], &axes, name)?
                    }
                };
                sums.insert(number, sum);
            }
        }
        let mut made = vec![];
        for &(number, value) in &self.ring.results {
            let (mut sum, mut replaced) = (sums[&number], value);
            if let Some(&whole) = self.ring.sums.get(&number) {
                // Once more, and each part is at home.
                (sum, replaced) = (self.next(sum)?, whole);
            }
            let ty = old.ty(replaced).clone();
            let name = &old.node(replaced).name;
            let mut sum = self.cast(sum, ty.dtype, name)?;
            if self.graph.ty(sum).axes != ty.axes {
                sum = self.graph.add_ordered(Op::Reorder, &[sum], &ty.axes, name)?;
            }
            made.push((replaced, sum));
        }
        Ok(made)
    }
}
