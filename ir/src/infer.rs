//! The type rule of each op: from operand types to the result type.

use crate::graph::{Graph, ValueId};
use crate::op::{Arity, BinaryOp, LinearAttention, Op, UnaryOp};
use crate::types::{AxisId, DType, Extent, Type};
use std::fmt;

/// Why operands do not fit an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeError(pub String);

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TypeError {}

type Result<T> = std::result::Result<T, TypeError>;

fn fail<T>(message: impl Into<String>) -> Result<T> {
    Err(TypeError(message.into()))
}

fn ensure(condition: bool, message: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(TypeError(message())) }
}

/// The type of `op` applied to `operands`, axes in the op's default order.
///
/// # Errors
/// When the operands do not fit; and for ops whose axes do not follow from operands and attributes ([`infer_ordered`] takes them).
pub fn infer(graph: &Graph, op: &Op, operands: &[ValueId]) -> Result<Type> {
    let ctx = Ctx { graph, op, types: operands.iter().map(|&o| graph.ty(o)).collect() };
    ctx.check_arity()?;
    let ty = match op {
        Op::Fused(fused) => crate::fused::infer(graph, fused, operands)?,
        Op::Comm(comm) => crate::collective::infer(graph, comm, operands)?,
        _ => ctx.infer()?,
    };
    one_ragged_axis(graph, &ty.axes)?;
    Ok(ty)
}

/// Rows of two groupings at once would be a table that is ragged both ways; nothing needs it, and no kernel could walk over it.
pub(crate) fn one_ragged_axis(graph: &Graph, axes: &[AxisId]) -> Result<()> {
    let mut ragged = axes.iter().copied().filter(|&a| graph.is_ragged(a));
    match (ragged.next(), ragged.next()) {
        (Some(a), Some(b)) => {
            let (a, b) = (&graph.axis(a).name, &graph.axis(b).name);
            fail(format!("two ragged axes at once: `{a}` and `{b}`"))
        }
        _ => Ok(()),
    }
}

/// The type of `op` applied to `operands` with the result's axes given.
///
/// # Errors
/// As [`infer`], and when `axes` are not a permutation of what the type rule gives, or not even reordered although the order is fixed.
pub fn infer_ordered(graph: &Graph, op: &Op, operands: &[ValueId], axes: &[AxisId]) -> Result<Type> {
    let ctx = Ctx { graph, op, types: operands.iter().map(|&o| graph.ty(o)).collect() };
    ctx.check_arity()?;
    ctx.check_axes(axes)?;
    one_ragged_axis(graph, axes)?;
    let ty = match op {
        Op::Random { batch, .. } => {
            ensure(batch.is_none_or(|b| axes.first() == Some(&b)), || "the batch axis must stand first".into())?;
            ensure(ctx.types[0].dtype == DType::I32, || "the random key is i32".into())?;
            // Random values are wide; the dtype is that of the node, which the caller may widen to f64.
            Type::new(DType::F32, axes)
        }
        Op::Invert => ctx.invert(axes)?,
        Op::Fused(fused) => crate::fused::infer(graph, fused, operands)?,
        Op::Comm(comm) => crate::collective::infer(graph, comm, operands)?,
        _ => ctx.infer()?,
    };
    let mut want = ty.axes.clone();
    let mut have = axes.to_vec();
    want.sort_unstable();
    have.sort_unstable();
    ensure(want == have, || format!("the result has the axes [{}], not [{}]", ctx.names(&ty.axes), ctx.names(axes)))?;
    ensure(op.row().free_order || ty.axes == axes, || {
        format!("the result's order is fixed: [{}], not [{}]", ctx.names(&ty.axes), ctx.names(axes))
    })?;
    Ok(Type::new(ty.dtype, axes))
}

/// The most elements of a key or value that linear attention remembers.
const MAX_KEY: u64 = 1 << 16;

struct Ctx<'a> {
    graph: &'a Graph,
    op: &'a Op,
    types: Vec<&'a Type>,
}

impl Ctx<'_> {
    fn names(&self, axes: &[AxisId]) -> String {
        axes.iter().map(|&a| self.graph.axis(a).name.as_str()).collect::<Vec<_>>().join(", ")
    }

    fn name(&self, axis: AxisId) -> &str {
        &self.graph.axis(axis).name
    }

    fn check_arity(&self) -> Result<()> {
        let row = self.op.row();
        let n = self.types.len();
        let fits = match row.arity {
            Arity::Exactly(k) => n == k,
            Arity::Variadic => n >= 1,
        };
        ensure(fits, || format!("`{}` does not take {n} operands", row.name))
    }

    /// No axis twice, and each ragged axis directly after its parent.
    fn check_axes(&self, axes: &[AxisId]) -> Result<()> {
        for (i, &axis) in axes.iter().enumerate() {
            ensure((axis.0 as usize) < self.graph.axes.len(), || format!("axis number {} does not exist", axis.0))?;
            ensure(!axes[..i].contains(&axis), || format!("axis `{}` twice", self.name(axis)))?;
            if let Some(parent) = self.graph.ragged_parent(axis) {
                ensure(i > 0 && axes[i - 1] == parent, || {
                    format!("ragged axis `{}` must stand directly after `{}`", self.name(axis), self.name(parent))
                })?;
            }
        }
        Ok(())
    }

    fn has(&self, operand: usize, axis: AxisId) -> Result<usize> {
        self.types[operand].position(axis).ok_or_else(|| {
            TypeError(format!(
                "operand {} [{}] has no axis `{}`",
                operand,
                self.names(&self.types[operand].axes),
                self.name(axis)
            ))
        })
    }

    fn fixed(&self, axis: AxisId) -> Result<u64> {
        match self.graph.axis(axis).extent {
            Extent::Fixed(n) => Ok(n),
            Extent::Ragged { .. } => fail(format!("axis `{}` is ragged", self.name(axis))),
        }
    }

    fn lacks(&self, operand: usize, axis: AxisId) -> Result<()> {
        ensure(!self.types[operand].has(axis), || {
            format!("operand {operand} already has an axis `{}`", self.name(axis))
        })
    }

    fn dtype(&self, operand: usize, want: &[DType]) -> Result<DType> {
        let dtype = self.types[operand].dtype;
        ensure(want.contains(&dtype), || format!("`{}` does not take {dtype}", self.op.row().name))?;
        Ok(dtype)
    }

    /// The axes of all operands: those of the first, then what each next one adds; ragged axes pulled behind their parents.
    fn union(&self) -> Result<Vec<AxisId>> {
        let mut axes: Vec<AxisId> = Vec::new();
        for ty in &self.types {
            for &axis in &ty.axes {
                if axes.contains(&axis) {
                    continue;
                }
                match self.graph.ragged_parent(axis).and_then(|p| axes.iter().position(|&a| a == p)) {
                    Some(at) => axes.insert(at + 1, axis),
                    None => axes.push(axis),
                }
            }
        }
        self.check_axes(&axes)?;
        Ok(axes)
    }

    fn infer(&self) -> Result<Type> {
        const FLOAT: &[DType] = &[DType::F64, DType::F32, DType::BF16];
        const NUMBER: &[DType] = &[DType::F64, DType::F32, DType::BF16, DType::I32];
        let first = || self.types[0];
        match self.op {
            Op::Input => fail("an input's type is declared, not inferred"),
            Op::Const(_) => fail("a constant's type is declared, not inferred"),
            Op::Random { .. } | Op::Invert => fail("the result's axes must be given"),
            Op::Fused(_) | Op::Comm(_) => unreachable!("taken care of by the callers"),
            Op::Iota(axis) => {
                self.fixed(*axis)?;
                Ok(Type::new(DType::I32, [*axis]))
            }
            Op::Unary(op) => {
                let dtype = match op {
                    UnaryOp::Not => self.dtype(0, &[DType::Bool])?,
                    UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign => self.dtype(0, NUMBER)?,
                    _ => self.dtype(0, FLOAT)?,
                };
                Ok(Type::new(dtype, first().axes.clone()))
            }
            Op::Binary(op) => self.binary(*op, NUMBER),
            Op::Select => {
                self.dtype(0, &[DType::Bool])?;
                ensure(self.types[1].dtype == self.types[2].dtype, || self.mixed(1, 2))?;
                Ok(Type::new(self.types[1].dtype, self.union()?))
            }
            Op::Cast(dtype) => Ok(Type::new(*dtype, first().axes.clone())),
            Op::Detach | Op::Reorder => Ok(first().clone()),
            Op::Broadcast(new) => {
                let mut axes = first().axes.clone();
                for &axis in new {
                    self.lacks(0, axis)?;
                    match self.graph.ragged_parent(axis).and_then(|p| axes.iter().position(|&a| a == p)) {
                        Some(at) => axes.insert(at + 1, axis),
                        None => axes.push(axis),
                    }
                }
                self.check_axes(&axes)?;
                Ok(Type::new(first().dtype, axes))
            }
            Op::Contract { over } => self.contract(over, FLOAT),
            Op::Reduce { over, .. } => {
                self.dtype(0, NUMBER)?;
                self.sorted(over)?;
                over.iter().try_for_each(|&a| self.has(0, a).map(drop))?;
                self.reducible(over)?;
                Ok(Type::new(first().dtype, self.without(0, over)))
            }
            Op::Scan { axis, .. } => {
                self.dtype(0, NUMBER)?;
                self.has(0, *axis)?;
                self.fixed(*axis)?;
                let owned = first().axes.iter().find(|a| self.graph.ragged_parent(**a) == Some(*axis));
                ensure(owned.is_none(), || format!("a scan along `{}`, which owns rows", self.name(*axis)))?;
                Ok(first().clone())
            }
            Op::LinearAttention(op) => self.linear_attention(op, FLOAT),
            Op::Rename { from, to } => {
                let same = self.graph.axis(*from).extent == self.graph.axis(*to).extent;
                ensure(same, || format!("`{}` and `{}` differ in size", self.name(*from), self.name(*to)))?;
                self.replace(*from, &[*to])
            }
            Op::Split { from, into } => {
                let sizes = into.iter().map(|&a| self.fixed(a)).collect::<Result<Vec<_>>>()?;
                let (n, product) = (self.fixed(*from)?, sizes.iter().product::<u64>());
                ensure(product == n, || format!("`{}` has {n} elements, its parts {product}", self.name(*from)))?;
                self.replace(*from, into)
            }
            Op::Merge { from, into } => self.merge(from, *into),
            Op::Take { axis, index } => {
                let n = self.fixed(*axis)?;
                ensure(*index < n, || format!("`{}` has {n} elements, no number {index}", self.name(*axis)))?;
                self.replace(*axis, &[])
            }
            Op::Slice { from, into, start } => {
                self.window(*into, *from, *start)?;
                self.replace(*from, &[*into])
            }
            Op::Pad { from, into, start } => {
                self.dtype(0, NUMBER)?;
                self.window(*from, *into, *start)?;
                self.replace(*from, &[*into])
            }
            Op::Stack(axis) => self.stack(*axis),
            Op::Concat { from, into } => self.concat(from, *into),
            Op::Gather { axis } => self.gather(*axis),
            Op::ScatterAdd { axis, over } => self.scatter_add(*axis, over, NUMBER),
            Op::TopK { axis, into } => {
                self.dtype(0, NUMBER)?;
                let (n, k) = (self.fixed(*axis)?, self.fixed(*into)?);
                ensure(k <= n, || format!("the {k} largest of {n} elements of `{}`", self.name(*axis)))?;
                Ok(Type::new(DType::I32, self.replace(*axis, &[*into])?.axes))
            }
            Op::Group { ragged } => {
                self.dtype(0, &[DType::I32])?;
                let Extent::Ragged { parent, bound, .. } = self.graph.axis(*ragged).extent else {
                    return fail(format!("`{}` is not ragged", self.name(*ragged)));
                };
                let n = self.graph.numel(first());
                let fits = n <= bound || self.graph.leaves_out(*ragged);
                ensure(fits, || format!("{n} elements in a ragged axis of at most {bound}"))?;
                Ok(Type::new(DType::I32, [parent, *ragged]))
            }
            Op::Offsets { parent, into } => {
                self.dtype(0, &[DType::I32])?;
                ensure(self.fixed(*into)? == self.fixed(*parent)? + 1, || {
                    format!("`{}` must be one longer than `{}`", self.name(*into), self.name(*parent))
                })?;
                Ok(Type::new(DType::I32, [*into]))
            }
        }
    }

    fn linear_attention(&self, op: &LinearAttention, float: &[DType]) -> Result<Type> {
        let LinearAttention { axis, ref over, result, .. } = *op;
        let [q, k, v, g] = self.types[..] else { unreachable!("four operands") };
        let dtype = self.dtype(0, float)?;
        ensure(k.dtype == dtype, || self.mixed(0, 1))?;
        ensure(v.dtype == dtype, || self.mixed(0, 2))?;
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        ensure(g.dtype == wide, || format!("decays of {dtype} are {wide}, not {}", g.dtype))?;
        ensure(result == dtype || result == wide, || format!("linear attention of {dtype} gives no {result}"))?;
        self.sorted(over)?;
        ensure(!over.contains(&axis), || format!("`{}` is summed, and the axis of the positions", self.name(axis)))?;
        for operand in 0..4 {
            self.has(operand, axis)?;
            for &summed in over {
                if operand < 2 {
                    self.has(operand, summed)?;
                } else {
                    self.lacks(operand, summed)?;
                }
            }
        }
        let own: Vec<AxisId> = v.axes.iter().copied().filter(|&a| [q, k, g].iter().all(|t| !t.has(a))).collect();
        ensure(!own.is_empty(), || "the values have no axis of their own".into())?;
        // Keys and values change places in gradients.
        for (what, axes) in [("key", over), ("value", &own)] {
            let sizes = axes.iter().map(|&a| self.fixed(a)).collect::<Result<Vec<_>>>()?;
            let size = sizes.into_iter().fold(1u64, u64::saturating_mul);
            ensure(size <= MAX_KEY, || format!("a {what} of {size} elements, the most is {MAX_KEY}"))?;
        }
        let mut axes = self.union()?;
        for &axis in &axes {
            self.fixed(axis)?;
        }
        axes.retain(|a| !over.contains(a));
        // As the values have them: what others add stands before.
        let (of_values, added): (Vec<AxisId>, Vec<AxisId>) = axes.into_iter().partition(|a| v.has(*a));
        let in_order = v.axes.iter().copied().filter(|a| of_values.contains(a));
        Ok(Type::new(result, added.into_iter().chain(in_order).collect::<Vec<_>>()))
    }

    fn mixed(&self, a: usize, b: usize) -> String {
        format!("`{}` of {} and {}", self.op.row().name, self.types[a].dtype, self.types[b].dtype)
    }

    fn binary(&self, op: BinaryOp, number: &[DType]) -> Result<Type> {
        ensure(self.types[0].dtype == self.types[1].dtype, || self.mixed(0, 1))?;
        let operand = self.types[0].dtype;
        let dtype = if op.is_logical() {
            self.dtype(0, &[DType::Bool])?
        } else if op.is_comparison() {
            DType::Bool
        } else {
            self.dtype(0, number)?
        };
        ensure(op != BinaryOp::Pow || operand.is_float(), || "`pow` takes floats".into())?;
        Ok(Type::new(dtype, self.union()?))
    }

    fn sorted(&self, over: &[AxisId]) -> Result<()> {
        ensure(!over.is_empty(), || "no axis to sum over".into())?;
        ensure(over.windows(2).all(|w| w[0] < w[1]), || "the summed axes must be a sorted set".into())
    }

    /// A ragged axis may go alone (a sum per group) or with its parent, never the parent alone.
    fn reducible(&self, over: &[AxisId]) -> Result<()> {
        for ty in &self.types {
            for &ragged in ty.axes.iter().filter(|a| self.graph.is_ragged(**a)) {
                let parent = self.graph.ragged_parent(ragged).expect("ragged axes have parents");
                ensure(over.contains(&ragged) || !over.contains(&parent), || {
                    format!("`{}` is summed but the ragged `{}` is not", self.name(parent), self.name(ragged))
                })?;
            }
        }
        Ok(())
    }

    fn without(&self, operand: usize, over: &[AxisId]) -> Vec<AxisId> {
        self.types[operand].axes.iter().copied().filter(|a| !over.contains(a)).collect()
    }

    fn contract(&self, over: &[AxisId], float: &[DType]) -> Result<Type> {
        ensure(self.types[0].dtype == self.types[1].dtype, || self.mixed(0, 1))?;
        let dtype = self.dtype(0, float)?;
        self.sorted(over)?;
        for &axis in over {
            self.has(0, axis)?;
            self.has(1, axis)?;
        }
        self.reducible(over)?;
        let mut axes = self.union()?;
        one_ragged_axis(self.graph, &axes)?;
        axes.retain(|a| !over.contains(a));
        self.check_axes(&axes)?;
        Ok(Type::new(dtype, axes))
    }

    /// The first operand's type with one axis replaced.
    fn replace(&self, axis: AxisId, by: &[AxisId]) -> Result<Type> {
        let at = self.has(0, axis)?;
        by.iter().try_for_each(|&a| self.lacks(0, a))?;
        let mut axes = self.types[0].axes.clone();
        axes.splice(at..=at, by.iter().copied());
        self.check_axes(&axes)?;
        Ok(Type::new(self.types[0].dtype, axes))
    }

    fn merge(&self, from: &[AxisId], into: AxisId) -> Result<Type> {
        ensure(!from.is_empty(), || "no axes to merge".into())?;
        let at = self.has(0, from[0])?;
        let axes = &self.types[0].axes;
        ensure(axes[at..].starts_with(from), || {
            format!("[{}] do not stand side by side in [{}]", self.names(from), self.names(axes))
        })?;
        let product = from.iter().map(|&a| self.fixed(a)).product::<Result<u64>>()?;
        let n = self.fixed(into)?;
        ensure(product == n, || format!("`{}` has {n} elements, its parts {product}", self.name(into)))?;
        self.lacks(0, into)?;
        let mut axes = axes.clone();
        axes.splice(at..at + from.len(), [into]);
        Ok(Type::new(self.types[0].dtype, axes))
    }

    /// Does `part`, placed at `start`, lie within `whole`?
    fn window(&self, part: AxisId, whole: AxisId, start: u64) -> Result<()> {
        let (n, m) = (self.fixed(part)?, self.fixed(whole)?);
        ensure(start.checked_add(n).is_some_and(|end| end <= m), || {
            format!("{n} elements from number {start} on do not fit into the {m} of `{}`", self.name(whole))
        })
    }

    fn stack(&self, axis: AxisId) -> Result<Type> {
        ensure(self.fixed(axis)? == self.types.len() as u64, || {
            format!("`{}` must be as long as there are operands", self.name(axis))
        })?;
        self.lacks(0, axis)?;
        ensure(self.types.iter().all(|t| *t == self.types[0]), || "operands of different types".into())?;
        let mut axes = vec![axis];
        axes.extend(&self.types[0].axes);
        self.check_axes(&axes)?;
        Ok(Type::new(self.types[0].dtype, axes))
    }

    fn concat(&self, from: &[AxisId], into: AxisId) -> Result<Type> {
        ensure(from.len() == self.types.len(), || "one axis for each operand".into())?;
        let at = self.has(0, from[0])?;
        let total = from.iter().map(|&a| self.fixed(a)).sum::<Result<u64>>()?;
        let n = self.fixed(into)?;
        ensure(total == n, || format!("`{}` has {n} elements, its parts {total}", self.name(into)))?;
        let mut axes = self.types[0].axes.clone();
        axes[at] = into;
        self.check_axes(&axes)?;
        for (ty, &axis) in self.types.iter().zip(from) {
            let mut renamed = ty.axes.clone();
            renamed.iter_mut().filter(|a| **a == axis).for_each(|a| *a = into);
            ensure(renamed == axes && ty.dtype == self.types[0].dtype, || {
                "operands differ beside the joined axis".into()
            })?;
        }
        Ok(Type::new(self.types[0].dtype, axes))
    }

    fn gather(&self, axis: AxisId) -> Result<Type> {
        ensure(self.types[1].dtype == DType::I32, || "the index is i32".into())?;
        let (x, index) = (self.types[0], self.types[1]);
        let at = self.has(0, axis)?;
        ensure(!index.has(axis), || format!("the index has the axis `{}` it looks up", self.name(axis)))?;
        let parent = self.graph.ragged_parent(axis);
        if let Some(parent) = parent {
            ensure(!index.has(parent), || {
                format!("the index has the axis `{}` that goes with its rows", self.name(parent))
            })?;
        }
        let mut axes: Vec<AxisId> = Vec::new();
        for (i, &a) in x.axes.iter().enumerate() {
            if i == at {
                axes.extend(index.axes.iter().filter(|b| !x.has(**b)));
            } else if Some(a) != parent {
                axes.push(a);
            }
        }
        self.check_axes(&axes)?;
        Ok(Type::new(x.dtype, axes))
    }

    fn scatter_add(&self, axis: AxisId, over: &[AxisId], number: &[DType]) -> Result<Type> {
        self.dtype(0, number)?;
        ensure(self.types[1].dtype == DType::I32, || "the index is i32".into())?;
        self.sorted(over)?;
        self.lacks(0, axis)?;
        for &a in &self.types[1].axes {
            self.has(0, a)?;
        }
        over.iter().try_for_each(|&a| self.has(0, a).map(drop))?;
        let mut axes: Vec<AxisId> = self.graph.ragged_parent(axis).into_iter().chain([axis]).collect();
        axes.extend(self.without(0, over));
        self.check_axes(&axes)?;
        Ok(Type::new(self.types[0].dtype, axes))
    }

    fn invert(&self, axes: &[AxisId]) -> Result<Type> {
        ensure(self.types[0].dtype == DType::I32, || "rows are i32".into())?;
        let n = self.graph.numel(self.types[0]);
        let m = axes.iter().map(|&a| self.fixed(a)).product::<Result<u64>>()?;
        let leaves_out = self.graph.ragged_axis(&self.types[0].axes).is_some_and(|r| self.graph.leaves_out(r));
        ensure(m <= n || leaves_out, || format!("{n} rows are inverted into {m} elements"))?;
        Ok(Type::new(DType::I32, axes))
    }
}
