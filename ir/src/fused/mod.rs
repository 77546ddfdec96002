//! Fused ops: what several primitive ops are together, under one name. Rewriting makes them; no model is written in them.
//!
//! ```text
//! %q = mul %x, %x                                     %y = rms_norm %x, %gain {d} (eps 1e-6)
//! %s = sum %q over {d}                        <==
//! %m = mul %s, 0.0039 …  %y = mul %n, %gain
//! ```
//!
//! A fused op *is* its body, a few primitive ops over its operands ([`expand`]): type, meaning and kernels derive from it, so a backend without a
//! kernel of its own for an op runs the body as a region. What a fused op adds to its body is its gradient row, a fused backward that is better than
//! the derivative of the body step by step ([`gradient`]), and that it is costed as one piece: operands read once, the result written once.
//!
//! One row each in [`FusedKind::row`]; bodies and gradients by family in the files of this folder.

mod activation;
mod attention;
mod body;
mod gradient;
mod norm;
mod optimizer;
mod rotary;
mod routing;
mod softmax;

pub use attention::AttentionParts;
pub use gradient::{gradient, gradient_of_body};

use crate::cost::{self, Cost};
use crate::graph::{Graph, InputRole, ValueId};
use crate::infer::TypeError;
use crate::types::{AxisId, Type};
use body::Body;

/// A fused op with its attributes, which [`FusedRow`] names.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused {
    /// Which.
    pub kind: FusedKind,
    /// The axes it works over.
    pub axes: Vec<AxisId>,
    /// Numbers; flags are 0 or 1.
    pub numbers: Vec<f64>,
}

/// The fused ops. `d…` are the fused backward ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is described in its row")]
pub enum FusedKind {
    Rms,
    RmsDx,
    RmsNorm,
    RmsNormDx,
    AddRmsNorm,
    Sigmoid,
    Silu,
    SiluDx,
    Swiglu,
    SwigluDa,
    ClampedSwiglu,
    ClampedSwigluDa,
    ClampedSwigluDb,
    Softmax,
    SoftmaxDx,
    SinkSoftmax,
    LogSumExp,
    CrossEntropy,
    CrossEntropyDx,
    Rope,
    Attention,
    AttentionLse,
    AttentionGrad,
    RouterShare,
    RouterShareDx,
    Permute,
    PermuteDx,
    Unpermute,
    UnpermuteDrows,
    UnpermuteDshare,
    RouterChoice,
    AdamwFirst,
    AdamwSecond,
    Adamw,
}

/// How many axes a fused op names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisCount {
    /// Exactly so many.
    Exactly(usize),
    /// So many or more.
    AtLeast(usize),
}

/// What is common to all uses of a fused op.
pub struct FusedRow {
    /// The name in textual IR.
    pub name: &'static str,
    /// What it computes, from its operands.
    pub meaning: &'static str,
    /// How many axes it names.
    pub axes: AxisCount,
    /// The names of its numbers.
    pub numbers: &'static [&'static str],
    /// How many operands it takes; `None` when that follows from the attributes.
    pub operands: Option<usize>,
    body: fn(&mut Body, &Fused, &[ValueId]) -> Result<ValueId, TypeError>,
}

type BodyFn = fn(&mut Body, &Fused, &[ValueId]) -> Result<ValueId, TypeError>;

const fn row(
    name: &'static str,
    operands: usize,
    axes: AxisCount,
    numbers: &'static [&'static str],
    body: BodyFn,
    meaning: &'static str,
) -> FusedRow {
    FusedRow { name, meaning, axes, numbers, operands: Some(operands), body }
}

impl FusedKind {
    /// All of them.
    pub const ALL: [FusedKind; 34] = [
        FusedKind::Rms,
        FusedKind::RmsDx,
        FusedKind::RmsNorm,
        FusedKind::RmsNormDx,
        FusedKind::AddRmsNorm,
        FusedKind::Sigmoid,
        FusedKind::Silu,
        FusedKind::SiluDx,
        FusedKind::Swiglu,
        FusedKind::SwigluDa,
        FusedKind::ClampedSwiglu,
        FusedKind::ClampedSwigluDa,
        FusedKind::ClampedSwigluDb,
        FusedKind::Softmax,
        FusedKind::SoftmaxDx,
        FusedKind::SinkSoftmax,
        FusedKind::LogSumExp,
        FusedKind::CrossEntropy,
        FusedKind::CrossEntropyDx,
        FusedKind::Rope,
        FusedKind::Attention,
        FusedKind::AttentionLse,
        FusedKind::AttentionGrad,
        FusedKind::RouterShare,
        FusedKind::RouterShareDx,
        FusedKind::Permute,
        FusedKind::PermuteDx,
        FusedKind::Unpermute,
        FusedKind::UnpermuteDrows,
        FusedKind::UnpermuteDshare,
        FusedKind::RouterChoice,
        FusedKind::AdamwFirst,
        FusedKind::AdamwSecond,
        FusedKind::Adamw,
    ];

    /// The kind of a name in textual IR.
    pub fn from_name(name: &str) -> Option<FusedKind> {
        FusedKind::ALL.into_iter().find(|k| k.row().name == name)
    }

    /// The op's row.
    pub fn row(self) -> FusedRow {
        use AxisCount::{AtLeast, Exactly};
        use FusedKind as K;
        let attention =
            |name, meaning, numbers, body| FusedRow { name, meaning, axes: AtLeast(3), numbers, operands: None, body };
        let over = AtLeast(1);
        match self {
            K::Rms => row("rms", 1, over, &["eps"], norm::rms, "x / sqrt(mean(x * x over axes) + eps)"),
            K::RmsDx => row("rms_dx", 2, over, &["eps"], norm::rms_dx, "the gradient of rms(x), from x and dy"),
            K::RmsNorm => row("rms_norm", 2, over, &["eps"], norm::rms_norm, "rms(x) * gain"),
            K::RmsNormDx => {
                row("rms_norm_dx", 3, over, &["eps"], norm::rms_norm_dx, "the gradient in x, from x, gain and dy")
            }
            K::AddRmsNorm => row("add_rms_norm", 3, over, &["eps"], norm::add_rms_norm, "rms(x + y) * gain"),
            K::Sigmoid => row("sigmoid", 1, Exactly(0), &[], activation::sigmoid, "1 / (1 + exp(-x))"),
            K::Silu => row("silu", 1, Exactly(0), &[], activation::silu, "x * sigmoid(x)"),
            K::SiluDx => row("silu_dx", 2, Exactly(0), &[], activation::silu_dx, "the gradient, from x and dy"),
            K::Swiglu => row("swiglu", 2, Exactly(0), &[], activation::swiglu, "silu(a) * b"),
            K::SwigluDa => {
                row("swiglu_da", 3, Exactly(0), &[], activation::swiglu_da, "the gradient in a, from a, b and dy")
            }
            K::ClampedSwiglu => row(
                "clamped_swiglu",
                2,
                Exactly(0),
                &["limit", "steepness", "shift"],
                activation::clamped_swiglu,
                "min(a, limit) * sigmoid(steepness * min(a, limit)) * (clamp(b, limit) + shift)",
            ),
            K::ClampedSwigluDa => row(
                "clamped_swiglu_da",
                3,
                Exactly(0),
                &["limit", "steepness", "shift"],
                activation::clamped_swiglu_da,
                "the gradient in a, from a, b and dy",
            ),
            K::ClampedSwigluDb => row(
                "clamped_swiglu_db",
                3,
                Exactly(0),
                &["limit", "steepness", "shift"],
                activation::clamped_swiglu_db,
                "the gradient in b, from a, b and dy",
            ),
            K::Softmax => row("softmax", 1, over, &[], softmax::softmax, "exp(x) / sum(exp(x) over axes)"),
            K::SoftmaxDx => row("softmax_dx", 2, over, &[], softmax::softmax_dx, "the gradient, from p and dp"),
            K::SinkSoftmax => {
                row("sink_softmax", 2, over, &[], softmax::sink_softmax, "exp(x) / (sum(exp(x) over axes) + exp(sink))")
            }
            K::LogSumExp => row("log_sum_exp", 1, over, &[], softmax::log_sum_exp, "log(sum(exp(x) over axes))"),
            K::CrossEntropy => row(
                "cross_entropy",
                2,
                Exactly(1),
                &[],
                softmax::cross_entropy,
                "log(sum(exp(x) over axis)) - x[label]",
            ),
            K::CrossEntropyDx => row(
                "cross_entropy_dx",
                4,
                Exactly(1),
                &[],
                softmax::cross_entropy_dx,
                "(softmax(x) - one_hot(label)) * dy, from x, label, log_sum_exp(x) and dy",
            ),
            K::Rope => row(
                "rope",
                3,
                Exactly(3),
                &["interleaved", "back"],
                rotary::rope,
                "pairs of axis 1 turned by an angle, from x, its cos and its sin; split into axes 2 (of two) and 3",
            ),
            K::Attention => attention(
                "attention",
                "softmax(scale * q k + mask) v, over queries t, keys u and a head axis for each pair of q and k",
                attention::NUMBERS,
                attention::attention,
            ),
            K::AttentionLse => attention(
                "attention_lse",
                "log(sum(exp(scale * q k + mask))) of each query",
                attention::NUMBERS,
                attention::log_sum_exp,
            ),
            K::AttentionGrad => attention(
                "attention_grad",
                "the gradient of attention in one operand: q, k of each pair, v, sink; from all operands, out, lse and dy",
                attention::GRAD_NUMBERS,
                attention::gradient_part,
            ),
            K::RouterShare => row(
                "router_share",
                2,
                Exactly(2),
                &["score", "normalize", "eps", "scale"],
                routing::router_share,
                "the shares of the chosen experts: scores (softmax 0, sigmoid 1, softmax of the chosen 2) of the logits, looked up, normalised and scaled",
            ),
            K::RouterShareDx => row(
                "router_share_dx",
                3,
                Exactly(2),
                &["score", "normalize", "eps", "scale"],
                routing::router_share_dx,
                "the gradient in the logits, from logits, chosen and dy",
            ),
            K::Permute => row(
                "permute",
                2,
                AtLeast(1),
                &["copies"],
                routing::permute,
                "the rows of the tokens in x that the groups consist of: x at rows / copies",
            ),
            K::PermuteDx => row(
                "permute_dx",
                2,
                AtLeast(2),
                &[],
                routing::permute_dx,
                "for each token the sum of its rows, from dy and the row of each of its copies",
            ),
            K::Unpermute => row(
                "unpermute",
                3,
                Exactly(2),
                &[],
                routing::unpermute,
                "for each token the sum of its rows, weighted by its shares: rows, share, row of each copy",
            ),
            K::UnpermuteDrows => row(
                "unpermute_drows",
                3,
                AtLeast(3),
                &["copies"],
                routing::unpermute_drows,
                "for each row dy of its token times its share, from dy, share and the groups",
            ),
            K::UnpermuteDshare => row(
                "unpermute_dshare",
                3,
                Exactly(2),
                &[],
                routing::unpermute_dshare,
                "for each share its row times dy, from rows, the row of each copy, and dy",
            ),
            K::RouterChoice => FusedRow {
                name: "router_choice",
                meaning: "the experts with the largest scores (softmax 0, sigmoid 1, the logits themselves 2), to which a second operand is added; \
                          of the best groups alone when axes 3 to 6 are groups, members, leaders and winners",
                axes: AtLeast(2),
                numbers: &["score"],
                operands: None,
                body: routing::router_choice,
            },
            K::AdamwFirst => row(
                "adamw_first",
                3,
                Exactly(0),
                &["decay", "gain"],
                optimizer::first_moment,
                "decay * moment + gain * scale * gradient",
            ),
            K::AdamwSecond => row(
                "adamw_second",
                3,
                Exactly(0),
                &["decay", "gain"],
                optimizer::second_moment,
                "decay * moment + gain * (scale * gradient) ^ 2",
            ),
            K::Adamw => row(
                "adamw",
                6,
                Exactly(0),
                &["eps"],
                optimizer::adamw,
                "keep * x - rate * first / (root * sqrt(second) + eps), from x, first, second, keep, rate and root",
            ),
        }
    }
}

impl Fused {
    /// A fused op.
    pub fn new(kind: FusedKind, axes: impl Into<Vec<AxisId>>, numbers: impl Into<Vec<f64>>) -> Fused {
        Fused { kind, axes: axes.into(), numbers: numbers.into() }
    }

    /// Do the attributes and the number of operands fit the row?
    fn check(&self, graph: &Graph, operands: usize) -> Result<(), TypeError> {
        let row = self.kind.row();
        let fits = match row.axes {
            AxisCount::Exactly(n) => self.axes.len() == n,
            AxisCount::AtLeast(n) => self.axes.len() >= n,
        };
        let fail = |what: String| Err(TypeError(format!("`{}` {what}", row.name)));
        if !fits {
            return fail(format!("does not work over {} axes", self.axes.len()));
        }
        if let Some(axis) = self.axes.iter().find(|a| a.0 as usize >= graph.axes.len()) {
            return fail(format!("names axis number {}, which does not exist", axis.0));
        }
        if self.numbers.len() != row.numbers.len() {
            return fail(format!("takes {} numbers, not {}", row.numbers.len(), self.numbers.len()));
        }
        for (name, &number) in row.numbers.iter().zip(&self.numbers) {
            let whole = |from: f64| number.fract() == 0.0 && (from..=f64::from(i32::MAX)).contains(&number);
            let fits = match *name {
                "causal" | "documents" | "sink" | "normalize" | "interleaved" | "back" => {
                    number == 0.0 || number == 1.0
                }
                "window" | "operand" => whole(0.0),
                "copies" => whole(1.0),
                "score" => whole(0.0) && number <= 2.0,
                "eps" => number.is_finite() && number >= 0.0,
                _ => number.is_finite(),
            };
            if !fits {
                return fail(format!("does not take {number} as `{name}`"));
            }
        }
        let wanted = match row.operands {
            Some(n) => n,
            None if self.kind == FusedKind::RouterChoice => match (self.axes.len(), operands) {
                (2 | 6, 1 | 2) => operands,
                (2 | 6, _) => 2,
                (n, _) => return fail(format!("does not work over {n} axes")),
            },
            None => attention::operands(self)?,
        };
        if operands != wanted {
            return fail(format!("takes {wanted} operands, not {operands}"));
        }
        Ok(())
    }
}

/// Appends the body of a fused op, and returns its result. The axes of the result stand in the body's order.
///
/// # Errors
/// When the operands' types do not fit.
pub fn expand(graph: &mut Graph, fused: &Fused, operands: &[ValueId], name: &str) -> Result<ValueId, TypeError> {
    fused.check(graph, operands.len())?;
    let mut body = Body::new(graph, name);
    (fused.kind.row().body)(&mut body, fused, operands)
}

/// The type of a fused op's result, in the order of its body.
pub(crate) fn infer(graph: &Graph, fused: &Fused, operands: &[ValueId]) -> Result<Type, TypeError> {
    let (scratch, result) = scratch(graph, fused, operands)?;
    Ok(scratch.ty(result).clone())
}

/// A graph of the body alone, whose first inputs are the operands in order.
pub(crate) fn scratch(graph: &Graph, fused: &Fused, operands: &[ValueId]) -> Result<(Graph, ValueId), TypeError> {
    let mut scratch = graph.like("body");
    let inputs: Vec<ValueId> = operands
        .iter()
        .enumerate()
        .map(|(i, &o)| scratch.add_input(&format!("operand.{i}"), graph.ty(o).clone(), InputRole::Data))
        .collect();
    let result = expand(&mut scratch, fused, &inputs, "body")?;
    debug_assert_eq!(scratch.axes.len(), graph.axes.len(), "a body declares no axis: the verifier relies on it");
    Ok((scratch, result))
}

/// The cost of a fused op: the operations of its body, but each operand read once and the result written once. Of attention only the products
/// that its mask lets through.
pub(crate) fn cost(graph: &Graph, value: ValueId, fused: &Fused, operands: &[ValueId]) -> Cost {
    let mut distinct = operands.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let written = graph.bytes(value) as f64;
    let read = match fused.kind {
        // Only the chosen logits are looked up, unless all of them are in the scores' sum.
        FusedKind::RouterShare if fused.numbers[0] != 0.0 => graph.bytes(operands[1]) as f64 + written,
        // The sum is made by the same kernel, which has it at hand.
        FusedKind::AddRmsNorm => graph.bytes(operands[2]) as f64,
        _ => distinct.into_iter().map(|v| graph.bytes(v) as f64).sum(),
    };
    let Ok((mut body, result)) = scratch(graph, fused, operands) else {
        return Cost { read, written, ..Cost::default() };
    };
    let work = match fused.kind {
        FusedKind::Attention | FusedKind::AttentionLse | FusedKind::AttentionGrad => {
            body.add_output("result", result, crate::graph::OutputRole::Output);
            let flops = cost::model_flops(&body);
            Cost { flops, instructions: flops, ..Cost::default() }
        }
        _ => body.values().fold(Cost::default(), |mut sum, v| {
            sum += cost::cost(&body, v);
            sum
        }),
    };
    Cost { read, written, ..work }
}

/// Replaces every fused op that `keeps` does not want to keep by its body.
pub fn expand_all(graph: &Graph, keeps: &dyn Fn(ValueId) -> bool) -> Graph {
    let mut new = graph.like(graph.name.clone());
    let mut moved: Vec<ValueId> = Vec::with_capacity(graph.nodes.len());
    for value in graph.values() {
        let node = graph.node(value);
        let operands: Vec<ValueId> = node.operands.iter().map(|o| moved[o.index()]).collect();
        let value = match &node.op {
            crate::op::Op::Fused(fused) if !keeps(value) => {
                let first = new.nodes.len();
                let value =
                    expand(&mut new, fused, &operands, &node.name).expect("the verifier has expanded it before");
                body::in_order(&mut new, value, first, &node.ty.axes, &node.name)
            }
            op => new.push(op.clone(), operands, node.ty.clone(), &node.name),
        };
        moved.push(value);
    }
    new.interface_of(graph, &moved);
    new
}
