//! What a rule asks of a match beyond its form.

use super::matching::Match;
use super::pattern::Names;
use super::term::Egraph;
use egg::Id;
use forebay_ir::{AxisId, DType, FusedKind, InputRole, Op};
use std::fmt;

/// A condition on the variables of a rule, by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Condition {
    /// The number is one over the size of the axes.
    InverseSize(&'static str, &'static str),
    /// The class has none of the axes.
    Lacks(&'static str, &'static str),
    /// The class has some of the axes, and no others.
    Only(&'static str, &'static str),
    /// The class is known not to be negative.
    NonNegative(&'static str),
    /// Both classes have the same axes.
    SameAxes(&'static str, &'static str),
    /// The class has the type of the whole.
    SameType(&'static str),
    /// The number is at least so much.
    AtLeast(&'static str, f64),
    /// The number is at most so much.
    AtMost(&'static str, f64),
    /// The first number is not above the second.
    Ordered(&'static str, &'static str),
    /// Ties do not matter: nothing is differentiated, or one of both is a number other than 0. Zero is where values meet that begin as zeros.
    NoTies(&'static str, &'static str),
    /// The same of a number.
    NoTie(&'static str),
    /// The class holds the positions of the largest entries along the axis; binds their axis.
    Searches(&'static str, &'static str, &'static str),
    /// The first class is the second, of bf16, in f32; binds the second.
    Widens(&'static str, &'static str),
    /// The class holds the row of each element of a group.
    Inverts(&'static str),
    /// The class is a scalar.
    Scalar(&'static str),
    /// The class is a state of the training, which one step hands to the next.
    State(&'static str),
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::InverseSize(c, a) => write!(f, "#{c} = 1 / |{a}|"),
            Condition::Lacks(x, a) => write!(f, "{x} lacks {a}"),
            Condition::Only(x, a) => write!(f, "{x} has only {a}"),
            Condition::NonNegative(x) => write!(f, "{x} >= 0"),
            Condition::SameAxes(x, y) => write!(f, "{x} and {y} have the same axes"),
            Condition::SameType(x) => write!(f, "{x} has the result's type"),
            Condition::AtLeast(c, least) => write!(f, "#{c} >= {least}"),
            Condition::AtMost(c, most) => write!(f, "#{c} <= {most}"),
            Condition::Ordered(a, b) => write!(f, "#{a} <= #{b}"),
            Condition::NoTies(x, y) => write!(f, "before differentiation: {x} or {y} is a number, not 0"),
            Condition::NoTie(c) => write!(f, "before differentiation: #{c} is not 0"),
            Condition::Searches(c, e, k) => write!(f, "{c} is a top_k {{{e} -> {k}}}"),
            Condition::Widens(w, x) => write!(f, "{w} is {x}, of bf16, in f32"),
            Condition::Inverts(i) => write!(f, "{i} is an inverted group"),
            Condition::Scalar(x) => write!(f, "{x} is a scalar"),
            Condition::State(x) => write!(f, "{x} is a state"),
        }
    }
}

impl Condition {
    /// Does it hold? It may bind what the left side does not.
    pub fn holds(&self, egraph: &Egraph, names: &Names, root: Id, m: &mut Match) -> bool {
        let find =
            |list: &[String], name: &str| list.iter().position(|n| n == name).expect("conditions name variables");
        let class = |name: &str, m: &Match| m.class(find(&names.classes, name));
        let axes_of = |id: Id| &egraph[id].data.ty.axes;
        let set = |name: &str, m: &Match| m.axes(find(&names.axes, name)).to_vec();
        match self {
            Condition::InverseSize(c, a) => {
                let (c, size) = (m.number(find(&names.numbers, c)), egraph.analysis.size(&set(a, m)));
                // A constant has been rounded to the type of what it is multiplied with.
                let rounding = if egraph[root].data.ty.dtype == DType::F64 { 1e-12 } else { 1.2e-7 };
                (c * size - 1.0).abs() <= rounding
            }
            Condition::Lacks(x, a) => !set(a, m).iter().any(|axis| axes_of(class(x, m)).contains(axis)),
            Condition::Only(x, a) => {
                let (have, set) = (axes_of(class(x, m)), set(a, m));
                !have.is_empty() && have.iter().all(|axis| set.contains(axis))
            }
            Condition::NonNegative(x) => egraph[class(x, m)].data.nonnegative,
            Condition::SameAxes(x, y) => axes_of(class(x, m)) == axes_of(class(y, m)),
            Condition::SameType(x) => egraph[class(x, m)].data.ty == egraph[root].data.ty,
            Condition::AtLeast(c, least) => m.number(find(&names.numbers, c)) >= *least,
            Condition::AtMost(c, most) => m.number(find(&names.numbers, c)) <= *most,
            Condition::Ordered(a, b) => m.number(find(&names.numbers, a)) <= m.number(find(&names.numbers, b)),
            Condition::NoTies(x, y) => {
                let number = |x: &str| egraph[class(x, m)].data.constant.is_some_and(|c| c != 0.0);
                !egraph.analysis.before_gradients || number(x) || number(y)
            }
            Condition::NoTie(c) => !egraph.analysis.before_gradients || m.number(find(&names.numbers, c)) != 0.0,
            Condition::Searches(c, e, k) => {
                let (axis, chosen) = (set(e, m), class(c, m));
                let found = egraph[chosen].nodes.iter().find_map(|t| match egraph.analysis.op(t) {
                    Op::TopK { axis: own, into } if axis == [*own] => Some(*into),
                    Op::Fused(op) if op.kind == FusedKind::RouterChoice && op.axes[..1] == axis => Some(op.axes[1]),
                    _ => None,
                });
                let Some(into) = found else { return false };
                bind(m, find(&names.axes, k), into)
            }
            Condition::Widens(w, x) => {
                let wide = class(w, m);
                if egraph[wide].data.ty.dtype != DType::F32 {
                    return false;
                }
                let narrow = egraph[wide].nodes.iter().find_map(|t| {
                    let is_cast = matches!(egraph.analysis.op(t), Op::Cast(_));
                    let is_narrow = |id: &Id| egraph[*id].data.ty.dtype == DType::BF16;
                    is_cast.then(|| egraph.find(t.args[0])).filter(is_narrow)
                });
                m.classes[find(&names.classes, x)] = narrow;
                narrow.is_some()
            }
            Condition::Inverts(i) => has_op(egraph, class(i, m), |op| matches!(op, Op::Invert)),
            Condition::Scalar(x) => axes_of(class(x, m)).is_empty(),
            Condition::State(x) => {
                egraph[class(x, m)].nodes.iter().any(|t| egraph.analysis.role(t) == Some(InputRole::State))
            }
        }
    }
}

fn bind(m: &mut Match, variable: usize, axis: AxisId) -> bool {
    match &m.axes[variable] {
        Some(known) => *known == [axis],
        None => {
            m.axes[variable] = Some(vec![axis]);
            true
        }
    }
}

/// Is one of the class's terms such an op?
pub(super) fn has_op(egraph: &Egraph, class: Id, is: impl Fn(&Op) -> bool) -> bool {
    egraph[class].nodes.iter().any(|t| is(egraph.analysis.op(t)))
}
