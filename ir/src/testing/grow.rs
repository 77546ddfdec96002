//! One more node: a kind of op, operands that may suit it, and attributes that fit the operands.

use super::MAX_INPUT;
use super::build::Builder;
use crate::graph::{InputRole, ValueId};
use crate::op::{BinaryOp, Direction, LinearAttention, LinearReads, Op, ReduceKind, UnaryOp};
use crate::types::{AxisId, DType, Extent, Type};

const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::BF16, DType::I32, DType::Bool];

const ROLES: [InputRole; 9] = [
    InputRole::Data,
    InputRole::Carry,
    InputRole::Param,
    InputRole::State,
    InputRole::Stat,
    InputRole::Count,
    InputRole::Saved,
    InputRole::Grad,
    InputRole::Accumulator,
];

type Step = fn(&mut Builder<'_>) -> Option<ValueId>;

/// Each way to go on. Those that need rare operands stand here more than once.
const STEPS: [Step; 35] = [
    input,
    constant,
    iota,
    random,
    unary,
    unary,
    binary,
    binary,
    binary,
    index,
    select,
    cast,
    detach,
    broadcast,
    reorder,
    contract,
    contract,
    reduce,
    scan,
    linear_attention,
    rename,
    split,
    merge,
    take,
    slice,
    pad,
    stack,
    concat,
    gather,
    gather,
    scatter_add,
    top_k,
    group,
    group,
    invert,
];

impl Builder<'_> {
    /// A few axes and inputs to start from.
    pub(super) fn declare(&mut self) {
        for name in ["a", "b", "c"] {
            let size = 1 + self.below(4) as u64;
            let label = self.flip().then(|| format!("size of {name}"));
            self.graph.add_axis(name, Extent::Fixed(size), label);
        }
        let [a, b, c] = [1, 2, 3].map(AxisId);
        self.graph.add_input("x", Type::new(DType::F32, [a, b]), InputRole::Carry);
        self.graph.add_input("w", Type::new(DType::F32, [b, c]), InputRole::Param);
        let tokens = self.graph.add_input("tokens", Type::new(DType::I32, [a]), InputRole::Data);
        self.set_range(tokens, (0, MAX_INPUT));
    }

    /// Adds nothing when the choice does not fit what is there.
    pub(super) fn grow(&mut self) {
        let step = STEPS[self.below(STEPS.len())];
        step(self);
    }
}

fn input(b: &mut Builder<'_>) -> Option<ValueId> {
    let (role, dtype) = (b.one_of(&ROLES)?, b.one_of(&DTYPES)?);
    let all = b.all_fixed_axes();
    let mut axes = if b.below(4) == 0 { vec![] } else { b.some_of(&all)? };
    axes.truncate(3);
    let value = b.graph.add_input("in", Type::new(dtype, axes), role);
    if dtype == DType::I32 {
        b.set_range(value, (0, MAX_INPUT));
    }
    Some(value)
}

fn constant(b: &mut Builder<'_>) -> Option<ValueId> {
    let dtype = b.one_of(&DTYPES)?;
    let number = b.one_of(&match dtype {
        DType::F64 | DType::F32 | DType::BF16 => vec![0.5, -0.0, 1.0, 0.1, -3.0, 1e-5, f64::INFINITY, f64::NAN],
        DType::I32 => vec![0.0, 1.0, 2.0, -1.0, 7.0],
        DType::Bool => vec![0.0, 1.0],
    })?;
    let value = b.graph.constant(number, dtype);
    if dtype == DType::I32 {
        b.set_range(value, (number as i64, number as i64));
    }
    Some(value)
}

fn iota(b: &mut Builder<'_>) -> Option<ValueId> {
    let all = b.all_fixed_axes();
    let axis = b.one_of(&all)?;
    b.add(Op::Iota(axis), &[], "i")
}

fn random(b: &mut Builder<'_>) -> Option<ValueId> {
    let all = b.all_fixed_axes();
    let axes = b.some_of(&all)?;
    let batch = b.flip().then(|| axes[0]);
    let site = b.below(1000) as u32;
    b.add_ordered(Op::Random { site, batch }, &[b.key], &axes, "rnd")
}

fn unary(b: &mut Builder<'_>) -> Option<ValueId> {
    let op = b.one_of(&UnaryOp::ALL)?;
    let x = b.value(|b, v| match op {
        UnaryOp::Not => b.dtype(v) == DType::Bool,
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign => b.is_number(v),
        _ => b.dtype(v).is_float(),
    })?;
    b.add(Op::Unary(op), &[x], op.name())
}

fn binary(b: &mut Builder<'_>) -> Option<ValueId> {
    let op = b.one_of(&BinaryOp::ALL)?;
    let x = b.value(|b, v| op.is_comparison() || op.is_logical() != b.is_number(v))?;
    let y = b.value(|b, v| b.dtype(v) == b.dtype(x))?;
    b.add(Op::Binary(op), &[x, y], op.name())
}

/// An integer value as an index into some axis: its remainder.
fn index(b: &mut Builder<'_>) -> Option<ValueId> {
    let x = b.value(|b, v| b.dtype(v) == DType::I32)?;
    let all = b.all_fixed_axes();
    let n = b.one_of(&all).map(|a| b.graph.size(a))?;
    let divisor = b.graph.constant(n as f64, DType::I32);
    b.set_range(divisor, (n as i64, n as i64));
    b.add(Op::Binary(BinaryOp::Rem), &[x, divisor], "index")
}

fn select(b: &mut Builder<'_>) -> Option<ValueId> {
    let condition = b.value(|b, v| b.dtype(v) == DType::Bool)?;
    let x = b.value(|_, _| true)?;
    let y = b.value(|b, v| b.dtype(v) == b.dtype(x))?;
    b.add(Op::Select, &[condition, x, y], "select")
}

fn cast(b: &mut Builder<'_>) -> Option<ValueId> {
    let (dtype, x) = (b.one_of(&DTYPES)?, b.value(|_, _| true)?);
    b.add(Op::Cast(dtype), &[x], "cast")
}

fn detach(b: &mut Builder<'_>) -> Option<ValueId> {
    let x = b.value(|_, _| true)?;
    b.add(Op::Detach, &[x], "detach")
}

fn broadcast(b: &mut Builder<'_>) -> Option<ValueId> {
    let x = b.value(|_, _| true)?;
    let has = &b.graph.ty(x).axes;
    let lacks = |a: &AxisId| !has.contains(a) && b.graph.ragged_parent(*a).is_none_or(|p| has.contains(&p));
    let new: Vec<AxisId> = (0..b.graph.axes.len() as u32).map(AxisId).filter(lacks).collect();
    let mut new = b.some_of(&new)?;
    new.truncate(2);
    b.add(Op::Broadcast(new), &[x], "broadcast")
}

fn reorder(b: &mut Builder<'_>) -> Option<ValueId> {
    let x = b.value(|b, v| b.graph.ty(v).axes.len() > 1)?;
    b.add(Op::Reorder, &[x], "reorder")
}

fn contract(b: &mut Builder<'_>) -> Option<ValueId> {
    let x = b.value(|b, v| b.dtype(v).is_float() && !b.graph.ty(v).axes.is_empty())?;
    let common = |b: &Builder<'_>, v: ValueId| {
        let axes = b.graph.ty(x).axes.iter().copied();
        let mut common: Vec<AxisId> = axes.filter(|a| b.graph.ty(v).has(*a)).collect();
        common.sort_unstable();
        common
    };
    let y = b.value(|b, v| b.dtype(v) == b.dtype(x) && !common(b, v).is_empty())?;
    let over = common(b, y);
    let over = b.some_of(&over)?;
    b.add(Op::Contract { over }, &[x, y], "contract")
}

fn reduce(b: &mut Builder<'_>) -> Option<ValueId> {
    let kind = b.one_of(&[ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min])?;
    let x = b.value(|b, v| b.is_number(v) && !b.graph.ty(v).axes.is_empty())?;
    let mut axes = b.graph.ty(x).axes.clone();
    axes.sort_unstable();
    let over = b.some_of(&axes)?;
    b.add(Op::Reduce { kind, over }, &[x], "reduce")
}

fn scan(b: &mut Builder<'_>) -> Option<ValueId> {
    let direction = b.one_of(&[Direction::Forward, Direction::Backward])?;
    let (x, axis) = b.value_and_axis(|b, v| b.is_number(v))?;
    b.add(Op::Scan { axis, direction }, &[x], "scan")
}

/// One value is queries, keys and values, and says how much is forgotten.
fn linear_attention(b: &mut Builder<'_>) -> Option<ValueId> {
    let v = b.value(|b, v| {
        b.dtype(v).is_float() && b.fixed_axes(v).len() > 1 && b.graph.ragged_axis(&b.graph.ty(v).axes).is_none()
    })?;
    let axes = b.graph.ty(v).axes.clone();
    let axis = b.one_of(&axes)?;
    let others: Vec<AxisId> = axes.iter().copied().filter(|&a| a != axis).collect();
    let own = b.one_of(&others)?;
    let key = b.axis(b.graph.size(own), &axes, "key");
    let k = b.add(Op::Rename { from: own, to: key }, &[v], "k")?;
    let q = if b.flip() { b.add(Op::Unary(UnaryOp::Cos), &[k], "q")? } else { k };
    let mut over = others;
    over.sort_unstable();
    let sum = b.add(Op::Reduce { kind: ReduceKind::Sum, over }, &[v], "sum")?;
    let size = b.add(Op::Unary(UnaryOp::Abs), &[sum], "size")?;
    let decay = b.add(Op::Unary(UnaryOp::Neg), &[size], "decay")?;
    let dtype = b.dtype(v);
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let g = b.add(Op::Cast(wide), &[decay], "g")?;
    let direction = b.one_of(&[Direction::Forward, Direction::Backward])?;
    let reads = b.one_of(&LinearReads::ALL)?;
    let result = b.one_of(&[dtype, wide])?;
    let op = LinearAttention { axis, over: vec![key], direction, reads, result };
    b.add(Op::LinearAttention(Box::new(op)), &[q, k, v, g], "linear")
}

fn rename(b: &mut Builder<'_>) -> Option<ValueId> {
    let (x, from) = b.value_and_axis(|_, _| true)?;
    let has = b.graph.ty(x).axes.clone();
    let to = b.axis(b.graph.size(from), &has, "renamed");
    b.add(Op::Rename { from, to }, &[x], "rename")
}

fn split(b: &mut Builder<'_>) -> Option<ValueId> {
    let (x, from) = b.value_and_axis(|_, _| true)?;
    let n = b.graph.size(from);
    let divisors: Vec<u64> = (1..=n).filter(|d| n.is_multiple_of(*d)).collect();
    let major = b.one_of(&divisors)?;
    let mut has = b.graph.ty(x).axes.clone();
    has.push(b.axis(major, &has, "major"));
    has.push(b.axis(n / major, &has, "minor"));
    b.add(Op::Split { from, into: has[has.len() - 2..].to_vec() }, &[x], "split")
}

fn merge(b: &mut Builder<'_>) -> Option<ValueId> {
    let x = b.value(|b, v| b.fixed_axes(v).len() > 1)?;
    let has = b.graph.ty(x).axes.clone();
    let at = b.below(has.len());
    let count = 1 + b.below(has.len() - at);
    let from = has[at..at + count].to_vec();
    let n: u64 = from.iter().map(|a| b.graph.size(*a)).product();
    let into = b.axis(n, &has, "merged");
    b.add(Op::Merge { from, into }, &[x], "merge")
}

fn take(b: &mut Builder<'_>) -> Option<ValueId> {
    let (x, axis) = b.value_and_axis(|_, _| true)?;
    let index = b.below(b.graph.size(axis) as usize) as u64;
    b.add(Op::Take { axis, index }, &[x], "take")
}

fn slice(b: &mut Builder<'_>) -> Option<ValueId> {
    let (x, from) = b.value_and_axis(|_, _| true)?;
    let n = b.graph.size(from);
    let start = b.below(n as usize) as u64;
    let length = 1 + b.below((n - start) as usize) as u64;
    let has = b.graph.ty(x).axes.clone();
    let into = b.axis(length, &has, "part");
    b.add(Op::Slice { from, into, start }, &[x], "slice")
}

fn pad(b: &mut Builder<'_>) -> Option<ValueId> {
    let (x, from) = b.value_and_axis(|b, v| b.is_number(v))?;
    let (start, after) = (b.below(3) as u64, b.below(3) as u64);
    let has = b.graph.ty(x).axes.clone();
    let into = b.axis(start + b.graph.size(from) + after, &has, "padded");
    b.add(Op::Pad { from, into, start }, &[x], "pad")
}

fn stack(b: &mut Builder<'_>) -> Option<ValueId> {
    let first = b.value(|_, _| true)?;
    let mut operands = vec![first];
    for _ in 0..b.below(3) {
        operands.push(b.value(|b, v| b.graph.ty(v) == b.graph.ty(first))?);
    }
    let has = b.graph.ty(first).axes.clone();
    let axis = b.axis(operands.len() as u64, &has, "stacked");
    b.add(Op::Stack(axis), &operands, "stack")
}

fn concat(b: &mut Builder<'_>) -> Option<ValueId> {
    let (x, axis) = b.value_and_axis(|_, _| true)?;
    let same_beside = |b: &Builder<'_>, v: ValueId| {
        let (s, t) = (b.graph.ty(x), b.graph.ty(v));
        let at = s.position(axis).unwrap_or(0);
        let agrees = |i: usize| if i == at { !b.graph.is_ragged(t.axes[i]) } else { s.axes[i] == t.axes[i] };
        s.dtype == t.dtype && s.axes.len() == t.axes.len() && (0..s.axes.len()).all(agrees)
    };
    let y = b.value(same_beside)?;
    let from = vec![axis, b.graph.ty(y).axes[b.graph.ty(x).position(axis)?]];
    let n = from.iter().map(|a| b.graph.size(*a)).sum();
    let has = b.graph.ty(x).axes.clone();
    let into = b.axis(n, &has, "joined");
    b.add(Op::Concat { from, into }, &[x, y], "concat")
}

fn gather(b: &mut Builder<'_>) -> Option<ValueId> {
    let index = b.value(|b, v| b.is_index(v, u64::MAX))?;
    let fitting = |b: &Builder<'_>, v: ValueId| {
        let axes = b.graph.ty(v).axes.iter().copied();
        axes.filter(|a| b.is_index(index, elements(b, *a)) && !b.graph.ty(index).has(*a)).collect::<Vec<_>>()
    };
    let x = b.value(|b, v| !fitting(b, v).is_empty())?;
    let axes = fitting(b, x);
    let axis = b.one_of(&axes)?;
    b.add(Op::Gather { axis }, &[x, index], "gather")
}

/// How many elements of an axis are certain to be there.
fn elements(b: &Builder<'_>, axis: AxisId) -> u64 {
    match b.graph.axis(axis).extent {
        Extent::Fixed(n) => n,
        Extent::Ragged { .. } => b.rows.get(&axis).copied().unwrap_or(0),
    }
}

fn scatter_add(b: &mut Builder<'_>) -> Option<ValueId> {
    let index = b.value(|b, v| b.is_index(v, u64::MAX) && !b.graph.ty(v).axes.is_empty())?;
    let x = b.value(|b, v| b.is_number(v) && b.graph.ty(index).axes.iter().all(|a| b.graph.ty(v).has(*a)))?;
    let mut axes = b.graph.ty(index).axes.clone();
    axes.sort_unstable();
    let over = b.some_of(&axes)?;
    let all = (0..b.graph.axes.len() as u32).map(AxisId);
    let fitting: Vec<AxisId> = all.filter(|a| b.is_index(index, elements(b, *a)) && !b.graph.ty(x).has(*a)).collect();
    let axis = match b.one_of(&fitting) {
        Some(axis) => axis,
        None => b.graph.add_axis("scattered", Extent::Fixed(b.range(index)?.1 as u64 + 1), None),
    };
    b.add(Op::ScatterAdd { axis, over }, &[x, index], "scatter")
}

fn top_k(b: &mut Builder<'_>) -> Option<ValueId> {
    let (x, axis) = b.value_and_axis(|b, v| b.is_number(v))?;
    let k = 1 + b.below(b.graph.size(axis) as usize) as u64;
    let has = b.graph.ty(x).axes.clone();
    let into = b.axis(k, &has, "k");
    b.add(Op::TopK { axis, into }, &[x], "top")
}

/// Groups and, beside them, their starts.
fn group(b: &mut Builder<'_>) -> Option<ValueId> {
    let chosen = b.value(|b, v| b.is_index(v, 16) && b.graph.ragged_axis(&b.graph.ty(v).axes).is_none())?;
    let (_, high) = b.range(chosen)?;
    let parents: Vec<AxisId> =
        b.all_fixed_axes().into_iter().filter(|a| b.is_index(chosen, b.graph.size(*a))).collect();
    let parent = match b.one_of(&parents) {
        Some(parent) => parent,
        None => b.graph.add_axis("groups", Extent::Fixed(high as u64 + 1), None),
    };
    let axes = b.graph.ty(chosen).axes.clone();
    let n = b.graph.numel(b.graph.ty(chosen));
    let bound = n + b.below(3) as u64;
    let ragged = b.graph.add_axis("rows", Extent::Ragged { parent, bound, even: bound }, None);
    let into = b.axis(b.graph.size(parent) + 1, &[], "starts");
    let before = b.flip();
    let starts = |b: &mut Builder<'_>| b.add(Op::Offsets { parent, into }, &[chosen], "starts");
    // Either may come first.
    let (rows, starts) = if before {
        let starts = starts(b)?;
        (b.add(Op::Group { ragged }, &[chosen], "rows"), Some(starts))
    } else {
        let rows = b.add(Op::Group { ragged }, &[chosen], "rows")?;
        (Some(rows), starts(b))
    };
    let (rows, starts) = (rows?, starts?);
    b.graph.offsets.push((ragged, starts));
    b.groups.push((rows, axes));
    b.rows.insert(ragged, n);
    Some(rows)
}

fn invert(b: &mut Builder<'_>) -> Option<ValueId> {
    let groups = b.groups.clone();
    let (rows, axes) = b.one_of(&groups)?;
    b.add_ordered(Op::Invert, &[rows], &axes, "inverse")
}
