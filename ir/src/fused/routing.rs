//! Routing: shares of experts, and rows on their way to the experts and back.

use super::Fused;
use super::body::Body;
use crate::graph::ValueId;
use crate::infer::TypeError;
use crate::op::{BinaryOp, Op};

type Result<T = ValueId> = std::result::Result<T, TypeError>;

/// What the scores are: `softmax` over all experts, a `sigmoid` of each, or a softmax over the `chosen` alone.
const SIGMOID: f64 = 1.0;
const CHOSEN: f64 = 2.0;

/// The scores of the chosen experts, from their logits alone where the others do not matter.
fn own_scores(body: &mut Body, op: &Fused, logits: ValueId, chosen: ValueId) -> Result {
    let (e, k) = (op.axes[0], op.axes[1]);
    let logits = body.wide(logits)?;
    let over = |axis| Fused::new(super::FusedKind::Softmax, [axis], []);
    if op.numbers[0] == SIGMOID || op.numbers[0] == CHOSEN {
        let own = body.op(Op::Gather { axis: e }, &[logits, chosen])?;
        return match op.numbers[0] == SIGMOID {
            true => super::activation::sigmoid(body, &over(k), &[own]),
            false => super::softmax::softmax(body, &over(k), &[own]),
        };
    }
    let score = super::softmax::softmax(body, &over(e), &[logits])?;
    body.op(Op::Gather { axis: e }, &[score, chosen])
}

/// The sum of the chosen scores, and eps.
fn total(body: &mut Body, op: &Fused, own: ValueId) -> Result {
    let sum = body.sum(own, &op.axes[1..])?;
    if op.numbers[2] == 0.0 { Ok(sum) } else { body.with(BinaryOp::Add, sum, op.numbers[2]) }
}

fn normalises(op: &Fused) -> bool {
    op.numbers[1] != 0.0 && op.numbers[0] != CHOSEN
}

pub(super) fn router_share(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let mut own = own_scores(body, op, x[0], x[1])?;
    if normalises(op) {
        let total = total(body, op, own)?;
        own = body.div(own, total)?;
    }
    body.scaled(own, op.numbers[3])
}

/// Through the scale, the normalisation `(g - sum(g * share)) / total`, the scores, and the look-up.
pub(super) fn router_share_dx(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let (logits, chosen) = (x[0], x[1]);
    let own = own_scores(body, op, logits, chosen)?;
    let mut g = body.scaled(x[2], op.numbers[3])?;
    if normalises(op) {
        let total = total(body, op, own)?;
        let share = body.div(own, total)?;
        let product = body.mul(g, share)?;
        let mean = body.sum(product, &op.axes[1..])?;
        let less = body.sub(g, mean)?;
        g = body.div(less, total)?;
    }
    let scatter =
        |body: &mut Body, g| body.op(Op::ScatterAdd { axis: op.axes[0], over: vec![op.axes[1]] }, &[g, chosen]);
    let dx = if op.numbers[0] == SIGMOID {
        let rest = body.from(1.0, own)?;
        let slope = body.mul(own, rest)?;
        let g = body.mul(g, slope)?;
        scatter(body, g)?
    } else if op.numbers[0] == CHOSEN {
        let over = Fused::new(super::FusedKind::SoftmaxDx, [op.axes[1]], []);
        let g = super::softmax::softmax_dx(body, &over, &[own, g])?;
        scatter(body, g)?
    } else {
        let over = Fused::new(super::FusedKind::Softmax, [op.axes[0]], []);
        let logits = body.wide(logits)?;
        let score = super::softmax::softmax(body, &over, &[logits])?;
        let g = scatter(body, g)?;
        super::softmax::softmax_dx(body, &over, &[score, g])?
    };
    let dtype = body.dtype(logits);
    body.cast(dx, dtype)
}

/// The scores, what is added to them, and the search: over all experts, or over those of the groups whose best experts together score highest
/// (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).
pub(super) fn router_choice(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let (e, k) = (op.axes[0], op.axes[1]);
    let mut score = match op.numbers[0] {
        SIGMOID => super::activation::sigmoid(body, &Fused::new(super::FusedKind::Sigmoid, [], []), &x[..1])?,
        CHOSEN => x[0],
        _ => super::softmax::softmax(body, &Fused::new(super::FusedKind::Softmax, [e], []), &x[..1])?,
    };
    if let Some(&bias) = x.get(1) {
        score = body.add(score, bias)?;
    }
    if let [.., groups, members, leaders, winners] = op.axes[2..] {
        score = of_best_groups(body, score, e, [groups, members, leaders, winners])?;
    }
    body.op(Op::TopK { axis: e, into: k }, &[score])
}

/// The scores of the best groups; -inf for the others.
fn of_best_groups(
    body: &mut Body,
    score: ValueId,
    e: crate::types::AxisId,
    [groups, members, leaders, winners]: [crate::types::AxisId; 4],
) -> Result {
    let member = body.op(Op::Split { from: e, into: vec![groups, members] }, &[score])?;
    let best = body.op(Op::TopK { axis: members, into: leaders }, &[member])?;
    let best = body.op(Op::Gather { axis: members }, &[member, best])?;
    let strength = body.sum(best, &[leaders])?;
    let winner = body.op(Op::TopK { axis: groups, into: winners }, &[strength])?;
    let number = body.op(Op::Iota(groups), &[])?;
    let same = body.binary(BinaryOp::Eq, winner, number)?;
    let (zero, least) = (body.constant(0.0, score), body.constant(f64::NEG_INFINITY, score));
    let one = body.constant(1.0, score);
    let wins = body.select(same, one, zero)?;
    let wins = body.sum(wins, &[winners])?;
    let open = body.binary(BinaryOp::Gt, wins, zero)?;
    let kept = body.select(open, member, least)?;
    body.op(Op::Merge { from: vec![groups, members], into: e }, &[kept])
}

/// The tokens as one axis: the first of `axes`, merged from the others.
fn merged(body: &mut Body, x: ValueId, axes: &[crate::types::AxisId]) -> Result {
    match axes {
        [_] => Ok(x),
        [into, from @ ..] => body.op(Op::Merge { from: from.to_vec(), into: *into }, &[x]),
        [] => Err(TypeError("rows are of at least one axis".into())),
    }
}

/// The token that each row is a copy of.
fn owner(body: &mut Body, rows: ValueId, copies: f64) -> Result {
    if copies == 1.0 { Ok(rows) } else { body.with(BinaryOp::Div, rows, copies) }
}

/// Axes: all tokens, and the axes they are merged from.
pub(super) fn permute(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let tokens = merged(body, x[0], &op.axes)?;
    let owner = owner(body, x[1], op.numbers[0])?;
    body.op(Op::Gather { axis: op.axes[0] }, &[tokens, owner])
}

/// Axes: the rows, then the copies that are summed.
pub(super) fn permute_dx(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let rows = body.op(Op::Gather { axis: op.axes[0] }, &[x[0], x[1]])?;
    body.sum(rows, &op.axes[1..])
}

/// Axes: the rows, the copies.
pub(super) fn unpermute(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let rows = body.op(Op::Gather { axis: op.axes[0] }, &[x[0], x[2]])?;
    let weighted = body.mul(x[1], rows)?;
    body.sum(weighted, &op.axes[1..])
}

/// Axes: all copies, all tokens, the copies of a token, and the axes that the tokens are merged from.
pub(super) fn unpermute_drows(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let [slots, tokens, copies, ref from @ ..] = op.axes[..] else { unreachable!("checked: at least three axes") };
    let (g, share, rows) = (x[0], x[1], x[2]);
    let all: Vec<_> = match from {
        [] => vec![slots, tokens, copies],
        from => [&[slots], from, &[copies]].concat(),
    };
    let share = merged(body, share, &all)?;
    let share = body.op(Op::Gather { axis: slots }, &[share, rows])?;
    let g = merged(body, g, &[&[tokens], from].concat())?;
    let owner = owner(body, rows, op.numbers[0])?;
    let g = body.op(Op::Gather { axis: tokens }, &[g, owner])?;
    body.mul(g, share)
}

/// Axes: the rows, and what is summed.
pub(super) fn unpermute_dshare(body: &mut Body, op: &Fused, x: &[ValueId]) -> Result {
    let rows = body.op(Op::Gather { axis: op.axes[0] }, &[x[0], x[1]])?;
    let product = body.mul(rows, x[2])?;
    body.sum(product, &op.axes[1..])
}
