//! The gradient rows of fused ops: fused backward ops, and where a row has none, the derivative of the body.

use super::attention::AttentionParts;
use super::body::Body;
use super::{Fused, FusedKind, expand};
use crate::gradient;
use crate::graph::{Graph, ValueId};
use crate::infer::TypeError;
use crate::op::{BinaryOp, Op, UnaryOp};
use crate::types::{AxisId, Extent};

type Gradient = Result<Option<ValueId>, TypeError>;

/// What the cotangent `g` of `y`, a fused op, contributes to the cotangent of its operand number `operand`: a value that has all axes of the operand,
/// and maybe more, along which it is to be summed.
pub fn gradient(graph: &mut Graph, y: ValueId, op: &Fused, operand: usize, g: ValueId, name: &str) -> Gradient {
    let x = graph.node(y).operands.clone();
    let mut rule = Rule { body: Body::new(graph, name), op, x: &x, y, g };
    let found = match (op.kind, operand) {
        (FusedKind::Rms, _) => Some(rule.same(FusedKind::RmsDx, &[x[0], g])?),
        (FusedKind::RmsNorm, 0) => Some(rule.same(FusedKind::RmsNormDx, &[x[0], x[1], g])?),
        (FusedKind::RmsNorm, _) => Some(rule.gain(x[0])?),
        (FusedKind::AddRmsNorm, 2) => {
            let sum = rule.body.add(x[0], x[1])?;
            Some(rule.gain(sum)?)
        }
        (FusedKind::AddRmsNorm, _) => {
            let sum = rule.body.add(x[0], x[1])?;
            Some(rule.same(FusedKind::RmsNormDx, &[sum, x[2], g])?)
        }
        (FusedKind::Sigmoid, _) => Some(rule.sigmoid()?),
        (FusedKind::Silu, _) => Some(rule.same(FusedKind::SiluDx, &[x[0], g])?),
        (FusedKind::Swiglu, 0) => Some(rule.same(FusedKind::SwigluDa, &[x[0], x[1], g])?),
        (FusedKind::Swiglu, _) => {
            let gated = rule.same(FusedKind::Silu, &[x[0]])?;
            Some(rule.body.mul(g, gated)?)
        }
        (FusedKind::ClampedSwiglu, 0) => Some(rule.same(FusedKind::ClampedSwigluDa, &[x[0], x[1], g])?),
        (FusedKind::ClampedSwiglu, _) => Some(rule.same(FusedKind::ClampedSwigluDb, &[x[0], x[1], g])?),
        (FusedKind::Softmax, _) | (FusedKind::SinkSoftmax, 0) => {
            let dx = rule.same(FusedKind::SoftmaxDx, &[y, g])?;
            let dtype = rule.body.dtype(x[0]);
            Some(rule.body.cast(dx, dtype)?)
        }
        (FusedKind::LogSumExp, _) => Some(rule.log_sum_exp()?),
        (FusedKind::CrossEntropy, 0) => {
            let total = rule.same(FusedKind::LogSumExp, &[x[0]])?;
            Some(rule.same(FusedKind::CrossEntropyDx, &[x[0], x[1], total, g])?)
        }
        (FusedKind::Rope, 0) => {
            let back = Fused::new(op.kind, op.axes.clone(), [op.numbers[0], 1.0 - op.numbers[1]]);
            Some(rule.fused(back, &[g, x[1], x[2]])?)
        }
        (FusedKind::Attention, operand) => rule.attention(operand)?,
        (FusedKind::RouterShare, 0) => Some(rule.same(FusedKind::RouterShareDx, &[x[0], x[1], g])?),
        (FusedKind::PermuteDx, 0) => rule.summed_rows()?,
        (FusedKind::Unpermute, 0) => rule.unpermuted_rows()?,
        (FusedKind::Unpermute, 1) => {
            let (own, rows) = (rule.body.graph.ty(x[1]).axes.clone(), rule.body.graph.ty(g).axes.clone());
            let over: Vec<AxisId> = rows.into_iter().filter(|a| !own.contains(a)).collect();
            let axes = [&op.axes[..1], &over].concat();
            match over.len() {
                1 => Some(rule.fused(Fused::new(FusedKind::UnpermuteDshare, axes, []), &[x[0], x[2], g])?),
                _ => None,
            }
        }
        _ => None,
    };
    match found {
        Some(found) => Ok(Some(found)),
        None => gradient_of_body(graph, op, &x, operand, g, name),
    }
}

struct Rule<'a, 'g> {
    body: Body<'g>,
    op: &'a Fused,
    x: &'a [ValueId],
    y: ValueId,
    g: ValueId,
}

impl Rule<'_, '_> {
    fn fused(&mut self, op: Fused, operands: &[ValueId]) -> Result<ValueId, TypeError> {
        self.body.op(Op::Fused(Box::new(op)), operands)
    }

    /// Another op with the same attributes.
    fn same(&mut self, kind: FusedKind, operands: &[ValueId]) -> Result<ValueId, TypeError> {
        let (axes, numbers) = (self.op.axes.clone(), self.op.numbers.clone());
        let axes = if kind == FusedKind::Silu { vec![] } else { axes };
        self.fused(Fused { kind, axes, numbers }, operands)
    }

    /// The gain's: the cotangent times the normalised value, to be summed.
    fn gain(&mut self, x: ValueId) -> Result<ValueId, TypeError> {
        let normal = self.same(FusedKind::Rms, &[x])?;
        self.body.mul(self.g, normal)
    }

    /// `g * y * (1 - y)`.
    fn sigmoid(&mut self) -> Result<ValueId, TypeError> {
        let rest = self.body.from(1.0, self.y)?;
        let slope = self.body.mul(self.y, rest)?;
        self.body.mul(self.g, slope)
    }

    /// `g * exp(x - y)`.
    fn log_sum_exp(&mut self) -> Result<ValueId, TypeError> {
        let v = self.body.wide(self.x[0])?;
        let less = self.body.sub(v, self.y)?;
        let p = self.body.unary(UnaryOp::Exp, less)?;
        let dx = self.body.mul(self.g, p)?;
        let dtype = self.body.dtype(self.x[0]);
        self.body.cast(dx, dtype)
    }

    /// All of an attention's gradients come from the same operands, so that one kernel makes them.
    fn attention(&mut self, operand: usize) -> Gradient {
        let parts = AttentionParts::new(self.op, self.x);
        let pairs = 2 * parts.pairs.len();
        let number = match operand {
            n if n <= pairs => n,
            n if parts.sink == Some(self.x[n]) => pairs + 1,
            _ => return Ok(None),
        };
        let forward: Vec<ValueId> = self.x.iter().enumerate().filter(|(i, _)| *i != pairs).map(|(_, x)| *x).collect();
        let lse = self.same(FusedKind::AttentionLse, &forward)?;
        let numbers = [&self.op.numbers[..], &[number as f64]].concat();
        let operands = [self.x, &[self.y, lse, self.g]].concat();
        self.fused(Fused { kind: FusedKind::AttentionGrad, axes: self.op.axes.clone(), numbers }, &operands).map(Some)
    }

    /// The rows that a place is the inverse of, and the axes of tokens: when the copies of a token stand together, and tokens in the cotangent as in the place.
    fn tokens_of(&self, place: ValueId, copies: AxisId) -> Option<(ValueId, Vec<AxisId>)> {
        let graph = &*self.body.graph;
        let (Op::Invert, &[rows]) = (&graph.node(place).op, &graph.node(place).operands[..]) else { return None };
        let (last, tokens) = graph.ty(place).axes.split_last()?;
        let fits = *last == copies && !tokens.is_empty() && graph.ty(self.g).axes.starts_with(tokens);
        fits.then(|| (rows, tokens.to_vec()))
    }

    /// The tokens as one axis, and what it is merged from where they are several.
    fn merged_tokens(&mut self, tokens: &[AxisId]) -> (AxisId, Vec<AxisId>) {
        match tokens {
            [one] => (*one, vec![]),
            several => {
                let graph = &mut *self.body.graph;
                let n: u64 = several.iter().map(|&a| graph.size(a)).product();
                (graph.add_axis("tokens", Extent::Fixed(n), None), several.to_vec())
            }
        }
    }

    /// Each row has the cotangent of its token's sum.
    fn summed_rows(&mut self) -> Gradient {
        let &[_, copies] = &self.op.axes[..] else { return Ok(None) };
        let Some((rows, tokens)) = self.tokens_of(self.x[1], copies) else { return Ok(None) };
        let k = self.body.graph.size(copies);
        let (all, from) = self.merged_tokens(&tokens);
        let axes = [&[all][..], &from].concat();
        self.fused(Fused::new(FusedKind::Permute, axes, [k as f64]), &[self.g, rows]).map(Some)
    }

    /// Each row's cotangent is looked up through the groups, of which the operand holds the inverse.
    fn unpermuted_rows(&mut self) -> Gradient {
        let (share, place) = (self.x[1], self.x[2]);
        let copies = self.op.axes[1];
        let Some((rows, tokens)) = self.tokens_of(place, copies) else { return Ok(None) };
        let graph = &mut *self.body.graph;
        if graph.ty(share).axes != graph.ty(place).axes {
            return Ok(None);
        }
        let (n, k) = (graph.ty(place).axes.iter().map(|&a| graph.size(a)).product(), graph.size(copies));
        let slots = graph.add_axis("slots", Extent::Fixed(n), None);
        let (all, from) = self.merged_tokens(&tokens);
        let axes = [&[slots, all, copies][..], &from].concat();
        self.fused(Fused::new(FusedKind::UnpermuteDrows, axes, [k as f64]), &[self.g, share, rows]).map(Some)
    }
}

/// The derivative of the body, step by step. The body is computed again.
///
/// # Errors
/// Never on a graph that the type rules accept.
pub fn gradient_of_body(
    graph: &mut Graph,
    op: &Fused,
    operands: &[ValueId],
    operand: usize,
    g: ValueId,
    name: &str,
) -> Gradient {
    let first = graph.nodes.len();
    // The operand under a name of its own: the same value may stand in several places.
    let ty = graph.ty(operands[operand]).clone();
    if !ty.dtype.is_float() {
        return Ok(None);
    }
    let own = graph.push(Op::Reorder, vec![operands[operand]], ty.clone(), &format!("{name}.operand"));
    let mut given = operands.to_vec();
    given[operand] = own;
    let result = expand(graph, op, &given, name)?;
    let g = match graph.ty(g).axes == graph.ty(result).axes {
        true => g,
        false => {
            let axes = graph.ty(result).axes.clone();
            graph.add_ordered(Op::Reorder, &[g], &axes, name)?
        }
    };
    let mut cotangents: Vec<Option<ValueId>> = vec![None; graph.nodes.len()];
    let mut active = vec![false; graph.nodes.len()];
    active[own.index()] = true;
    let body: Vec<ValueId> = (first as u32..=result.0).map(ValueId).collect();
    for &value in &body[1..] {
        let node = graph.node(value);
        active[value.index()] = node.ty.dtype.is_float()
            && node.operands.iter().any(|o| active[o.index()])
            && !is_shift(graph, value, &body);
    }
    if !active[result.index()] {
        return Ok(None);
    }
    cotangents[result.index()] = Some(g);
    for &value in body[1..].iter().rev().filter(|v| active[v.index()]) {
        let Some(cotangent) = cotangents[value.index()] else { continue };
        for (i, operand) in graph.node(value).operands.clone().into_iter().enumerate() {
            if !active[operand.index()] {
                continue;
            }
            if let Some(part) = gradient::gradient(graph, value, i, cotangent)? {
                cotangents[operand.index()] = Some(match cotangents[operand.index()] {
                    Some(sum) => {
                        let axes = graph.ty(operand).axes.clone();
                        graph.add_ordered(Op::Binary(BinaryOp::Add), &[sum, part], &axes, name)?
                    }
                    None => part,
                });
            }
        }
    }
    Ok(cotangents[own.index()])
}

/// A maximum that is subtracted before `exp` changes nothing, and has no gradient.
fn is_shift(graph: &Graph, value: ValueId, body: &[ValueId]) -> bool {
    let is_max = |v: ValueId| match graph.node(v).op {
        Op::Reduce { kind: crate::op::ReduceKind::Max, .. } => true,
        Op::Binary(BinaryOp::Max) => graph
            .node(v)
            .operands
            .iter()
            .any(|&o| matches!(graph.node(o).op, Op::Reduce { kind: crate::op::ReduceKind::Max, .. })),
        _ => false,
    };
    is_max(value) && body.contains(&value)
}
