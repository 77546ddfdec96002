//! The rules, one row each.

use super::conditions::Condition::{
    self, AtLeast, AtMost, InverseSize, Inverts, Lacks, NoTie, NoTies, Only, Ordered, SameAxes, SameType, Scalar,
    Searches, State, Widens,
};
use super::native;
use super::normal::Forms;
use super::term::Egraph;
use super::{Change, Numerics, Options, merge, pairs};
use egg::Id;
use forebay_ir::Graph;

/// How a rule finds what it applies to.
pub(super) enum Find {
    /// Wherever the left pattern matches and the conditions hold, the right pattern is equal.
    Pattern,
    /// By a function, for what patterns cannot say: sets of axes, masks, views. `left` and `right` then describe it.
    Function(fn(&Egraph, &Forms, Id) -> Vec<Change>),
    /// In the graph of the cheapest terms, because it only pays for several values together.
    Joint(When, Join),
}

/// Changes a graph where that pays; returns the names of the values that it changed.
pub(super) type Join = fn(&mut Graph, &Options) -> Vec<String>;

/// When joint choices are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Before differentiation and after it.
    Always,
    /// After it only: the backward pass wants a sum, and not its parts.
    AfterGradients,
}

/// A rule: two forms that are equal.
pub(super) struct Rule {
    /// `family.rule`.
    pub name: &'static str,
    /// What it says, in a sentence.
    pub meaning: &'static str,
    /// What it may change.
    pub numerics: Numerics,
    /// The form that is looked for.
    pub left: &'static str,
    /// The equal form.
    pub right: &'static str,
    /// What must hold.
    pub conditions: &'static [Condition],
    /// How it is found.
    pub find: Find,
}

impl Rule {
    /// What stands before the dot of its name.
    pub fn family(&self) -> &'static str {
        self.name.split('.').next().unwrap_or(self.name)
    }
}

const fn pattern(
    name: &'static str,
    numerics: Numerics,
    left: &'static str,
    right: &'static str,
    conditions: &'static [Condition],
    meaning: &'static str,
) -> Rule {
    Rule { name, meaning, numerics, left, right, conditions, find: Find::Pattern }
}

const fn function(
    name: &'static str,
    numerics: Numerics,
    left: &'static str,
    right: &'static str,
    find: fn(&Egraph, &Forms, Id) -> Vec<Change>,
    meaning: &'static str,
) -> Rule {
    Rule { name, meaning, numerics, left, right, conditions: &[], find: Find::Function(find) }
}

const fn joint(
    name: &'static str,
    numerics: Numerics,
    left: &'static str,
    right: &'static str,
    (when, join): (When, Join),
    meaning: &'static str,
) -> Rule {
    Rule { name, meaning, numerics, left, right, conditions: &[], find: Find::Joint(when, join) }
}

use Numerics::{Approximate, Exact, Reassociates};

/// All rules.
pub(super) static RULES: &[Rule] = &[
    // Algebra. Sums and products need no rules: they have normal forms.
    function(
        "algebra.dot",
        Reassociates,
        "contract(a, b; A), both with all axes",
        "sum(a * b; A)",
        native::algebra::dot,
        "A contraction that keeps axes of both operands only is the sum of a product.",
    ),
    function(
        "algebra.contraction",
        Reassociates,
        "sum(a * b; A), both with A, and each with axes that the other lacks",
        "contract(a, b; A)",
        native::algebra::contraction,
        "A sum of products is a matrix product, and needs no memory for the products.",
    ),
    function(
        "algebra.sum-factor",
        Reassociates,
        "sum(c * x; A), c without A",
        "c * sum(x; A)",
        native::algebra::factor_of_sum,
        "What does not change along the summed axes can be multiplied with the sum.",
    ),
    function(
        "algebra.contract-factor",
        Reassociates,
        "contract(c * x, y; A), c a number",
        "c * contract(x, y; A)",
        native::algebra::factor_of_contract,
        "A number can be multiplied with the product.",
    ),
    function(
        "algebra.sum-rename",
        Exact,
        "sum(rename(x; a -> b); b)",
        "sum(x; a)",
        native::renames::reduce,
        "The name of a summed axis does not matter.",
    ),
    function(
        "algebra.move-rename",
        Exact,
        "f(rename(x; a -> b), rename(y; a -> b))",
        "rename(f(x, y); a -> b)",
        native::renames::elementwise,
        "Elementwise ops do not mind names of axes.",
    ),
    function(
        "algebra.undo-rename",
        Exact,
        "rename(rename(x; a -> b); b -> a)",
        "x",
        native::renames::undo,
        "A name given back.",
    ),
    pattern(
        "algebra.log-gather",
        Exact,
        "log(gather(x, i; A))",
        "gather(log(x), i; A)",
        &[],
        "A look-up and an elementwise function change places.",
    ),
    pattern(
        "algebra.gather-difference",
        Exact,
        "gather(x - y, i; A)",
        "gather(x, i; A) - y",
        &[Lacks("y", "A")],
        "What does not change along the axis needs no looking up.",
    ),
    pattern(
        "algebra.gather-negative",
        Exact,
        "gather(-x, i; A)",
        "-gather(x, i; A)",
        &[],
        "A look-up and a sign change places.",
    ),
    pattern(
        "algebra.gather-exp",
        Exact,
        "gather(exp(x), i; A)",
        "exp(gather(x, i; A))",
        &[],
        "A look-up and an exponential change places.",
    ),
    pattern(
        "algebra.gather-sigmoid",
        Exact,
        "sigmoid(gather(x, i; A))",
        "gather(sigmoid(x), i; A)",
        &[],
        "A look-up and a sigmoid change places.",
    ),
    pattern(
        "algebra.min-by-lt",
        Approximate,
        "select(lt(x, y), x, y)",
        "min(x, y)",
        &[NoTies("x", "y")],
        "The smaller of two, by a comparison.",
    ),
    pattern(
        "algebra.max-by-lt",
        Approximate,
        "select(lt(x, y), y, x)",
        "max(x, y)",
        &[NoTies("x", "y")],
        "The larger of two, by a comparison.",
    ),
    pattern(
        "algebra.min-by-le",
        Approximate,
        "select(le(x, y), x, y)",
        "min(x, y)",
        &[NoTies("x", "y")],
        "The smaller of two, by a comparison.",
    ),
    pattern(
        "algebra.max-by-le",
        Approximate,
        "select(le(x, y), y, x)",
        "max(x, y)",
        &[NoTies("x", "y")],
        "The larger of two, by a comparison.",
    ),
    pattern(
        "algebra.max-by-gt",
        Approximate,
        "select(gt(x, y), x, y)",
        "max(x, y)",
        &[NoTies("x", "y")],
        "The larger of two, by a comparison.",
    ),
    pattern(
        "algebra.min-by-gt",
        Approximate,
        "select(gt(x, y), y, x)",
        "min(x, y)",
        &[NoTies("x", "y")],
        "The smaller of two, by a comparison.",
    ),
    pattern(
        "algebra.max-by-ge",
        Approximate,
        "select(ge(x, y), x, y)",
        "max(x, y)",
        &[NoTies("x", "y")],
        "The larger of two, by a comparison.",
    ),
    pattern(
        "algebra.min-by-ge",
        Approximate,
        "select(ge(x, y), y, x)",
        "min(x, y)",
        &[NoTies("x", "y")],
        "The smaller of two, by a comparison.",
    ),
    pattern(
        "algebra.clamp-by-gt",
        Approximate,
        "select(gt(x, #a), #a, max(x, #b))",
        "min(max(x, #b), #a)",
        &[Ordered("b", "a"), NoTie("a"), NoTie("b")],
        "A value between two bounds, by a comparison.",
    ),
    pattern(
        "algebra.clamp-by-ge",
        Approximate,
        "select(ge(x, #a), #a, max(x, #b))",
        "min(max(x, #b), #a)",
        &[Ordered("b", "a"), NoTie("a"), NoTie("b")],
        "A value between two bounds, by a comparison.",
    ),
    pattern(
        "algebra.clamp-by-lt",
        Approximate,
        "select(lt(x, #b), #b, min(x, #a))",
        "max(min(x, #a), #b)",
        &[Ordered("b", "a"), NoTie("a"), NoTie("b")],
        "A value between two bounds, by a comparison.",
    ),
    pattern(
        "algebra.clamp-by-le",
        Approximate,
        "select(le(x, #b), #b, min(x, #a))",
        "max(min(x, #a), #b)",
        &[Ordered("b", "a"), NoTie("a"), NoTie("b")],
        "A value between two bounds, by a comparison.",
    ),
    pattern(
        "algebra.gather-less",
        Exact,
        "gather(y - x, i; A)",
        "y - gather(x, i; A)",
        &[Lacks("y", "A")],
        "What does not change along the axis needs no looking up.",
    ),
    function(
        "contract.absorb",
        Reassociates,
        "contract(a, contract(b, w; C); N), w a weight",
        "contract(contract(a, w; N), b; C)",
        native::contractions::absorb,
        "A weight can meet either side first (absorption in multi-head latent attention, arXiv 2405.04434).",
    ),
    function(
        "contract.slice",
        Exact,
        "slice(contract(x, w)) of an axis of w",
        "contract(x, slice(w))",
        native::contractions::slice_of_contract,
        "A part of a projection is a projection by a part of the weight.",
    ),
    function(
        "contract.pad",
        Approximate,
        "contract(a, pad(b)), the padded axis not summed",
        "pad(contract(a, b))",
        native::contractions::contract_of_pad,
        "Zeros that are not summed stay zeros, where nothing is infinite: values need no padding to the size of keys.",
    ),
    function(
        "move.slice-concat",
        Exact,
        "slice(concat(.., x, ..)) of x",
        "x",
        native::contractions::slice_of_concat,
        "A part of what was joined.",
    ),
    function(
        "move.slice-pad",
        Exact,
        "slice(pad(x)) of x",
        "x",
        native::contractions::slice_of_pad,
        "What is inside of zeros.",
    ),
    function(
        "move.cast-gather",
        Exact,
        "cast(gather(x, i))",
        "gather(cast(x), i)",
        native::contractions::cast_of_gather,
        "A conversion before or after a look-up.",
    ),
    function(
        "algebra.sum-sum",
        Reassociates,
        "sum(sum(x; A); B)",
        "sum(x; A, B)",
        native::contractions::sum_of_sum,
        "Reductions one after another are one.",
    ),
    function(
        "algebra.select-product",
        Exact,
        "select(m, x, 0), of integers",
        "x * cast(m)",
        native::masks_as_numbers::select_as_product,
        "Masked assignment as a multiplication; of floats it would change NaN, infinities and -0.",
    ),
    // Norms.
    pattern(
        "norm.rms",
        Reassociates,
        "x * (#c * sum(x ^ 2; A) + #e) ^ -0.5 * ..rest",
        "rms(x; A; #e) * ..rest",
        &[InverseSize("c", "A")],
        "A value over its root mean square.",
    ),
    pattern(
        "norm.rms-cast",
        Exact,
        "cast(rms(w; A; #e))",
        "rms(x; A; #e)",
        &[Widens("w", "x"), SameType("x")],
        "An RMS norm takes its statistics in wide floats by itself.",
    ),
    pattern(
        "norm.rms-norm",
        Reassociates,
        "rms(x; A; #e) * g * ..rest",
        "rms_norm(x, g; A; #e) * ..rest",
        &[Only("g", "A")],
        "An RMS norm and its gain.",
    ),
    // Activations.
    pattern(
        "activation.sigmoid-cut",
        Approximate,
        "(1 + exp(min(-x, #c))) ^ -1 * ..rest",
        "sigmoid(x) * ..rest",
        &[AtLeast("c", 60.0)],
        "A sigmoid whose exponent is cut where it is next to nothing.",
    ),
    pattern("activation.sigmoid", Approximate, "(1 + exp(-x)) ^ -1 * ..rest", "sigmoid(x) * ..rest", &[], "A sigmoid."),
    pattern(
        "activation.sigmoid-inverse",
        Approximate,
        "(1 + exp(x) ^ -1) ^ -1 * ..rest",
        "sigmoid(x) * ..rest",
        &[],
        "A sigmoid by the inverse of an exponential.",
    ),
    pattern(
        "activation.sigmoid-ratio",
        Approximate,
        "exp(x) * (1 + exp(x)) ^ -1 * ..rest",
        "sigmoid(x) * ..rest",
        &[],
        "A sigmoid as a share.",
    ),
    pattern(
        "activation.sigmoid-tanh",
        Approximate,
        "0.5 + 0.5 * tanh(0.5 * x)",
        "sigmoid(x)",
        &[],
        "A sigmoid is a stretched hyperbolic tangent.",
    ),
    pattern(
        "activation.sigmoid-low",
        Approximate,
        "sigmoid(max(x, #c))",
        "sigmoid(x)",
        &[AtMost("c", -60.0)],
        "A sigmoid whose argument is cut where the result is next to nothing.",
    ),
    pattern(
        "activation.silu",
        Reassociates,
        "x * sigmoid(x) * ..rest",
        "silu(x) * ..rest",
        &[],
        "SiLU (arXiv 1702.03118).",
    ),
    pattern(
        "activation.silu-rest",
        Approximate,
        "x - x * (1 + exp(x)) ^ -1",
        "silu(x)",
        &[],
        "SiLU as what is left of x.",
    ),
    pattern(
        "activation.silu-tanh",
        Approximate,
        "h + h * tanh(h)",
        "silu(2 * h)",
        &[],
        "SiLU by a hyperbolic tangent.",
    ),
    pattern(
        "activation.swiglu",
        Reassociates,
        "x * sigmoid(x) * y",
        "swiglu(x, y)",
        &[SameAxes("x", "y")],
        "SwiGLU (arXiv 2002.05202).",
    ),
    pattern(
        "activation.silu-gate",
        Reassociates,
        "silu(x) * y",
        "swiglu(x, y)",
        &[SameAxes("x", "y")],
        "The same from a SiLU.",
    ),
    pattern(
        "activation.clamped-swiglu",
        Reassociates,
        "min(a, #l) * sigmoid(#s * min(a, #l)) * (#h + min(max(b, -#l), #l))",
        "clamped_swiglu(a, b; ; #l, #s, #h)",
        &[SameAxes("a", "b")],
        "The clamped SwiGLU of gpt-oss (arXiv 2508.10925).",
    ),
    pattern(
        "activation.clamped-swiglu-upper",
        Reassociates,
        "min(a, #l) * sigmoid(#s * min(a, #l)) * (#h + max(min(b, #l), -#l))",
        "clamped_swiglu(a, b; ; #l, #s, #h)",
        &[SameAxes("a", "b"), AtLeast("l", 0.0)],
        "The same with the bounds in the other order.",
    ),
    // Softmax and losses.
    pattern(
        "softmax.softmax",
        Approximate,
        "exp(x) * sum(exp(x); A) ^ -1 * ..rest",
        "softmax(x; A) * ..rest",
        &[],
        "Exponentials over their sum.",
    ),
    pattern(
        "softmax.by-log",
        Approximate,
        "exp(x - log_sum_exp(x; A))",
        "softmax(x; A)",
        &[],
        "Exponentials less the logarithm of their sum.",
    ),
    pattern(
        "softmax.sink",
        Approximate,
        "exp(x) * (sum(exp(x); A) + exp(s)) ^ -1 * ..rest",
        "sink_softmax(x, s; A) * ..rest",
        &[Lacks("s", "A")],
        "Exponentials over their sum and one more (arXiv 2309.17453).",
    ),
    function(
        "softmax.shift",
        Approximate,
        "softmax(x + m; A), m without A",
        "softmax(x; A)",
        native::softmax::shift,
        "What all entries of a row have in common cancels.",
    ),
    function(
        "softmax.sink-shift",
        Approximate,
        "sink_softmax(x + m, s + m; A), m without A",
        "sink_softmax(x, s; A)",
        native::softmax::sink_shift,
        "The same for a softmax with a sink.",
    ),
    pattern(
        "softmax.log-sum-exp",
        Approximate,
        "log(sum(exp(x); A))",
        "log_sum_exp(x; A)",
        &[],
        "The logarithm of a sum of exponentials.",
    ),
    function(
        "softmax.log-sum-exp-shift",
        Approximate,
        "log_sum_exp(x + m; A), m without A",
        "log_sum_exp(x; A) + m",
        native::softmax::log_sum_exp_shift,
        "What all entries have in common can be added afterwards.",
    ),
    pattern(
        "softmax.log-softmax",
        Approximate,
        "log(softmax(x; A))",
        "x - log_sum_exp(x; A)",
        &[],
        "The logarithm of a softmax.",
    ),
    pattern(
        "loss.cross-entropy",
        Reassociates,
        "log_sum_exp(x; A) - gather(x, l; A) + ..rest",
        "cross_entropy(x, l; A) + ..rest",
        &[],
        "The negative logarithm of a label's share.",
    ),
    // Attention and positions.
    function(
        "attention.rope",
        Reassociates,
        "merge(stack(e * cos - o * sin, o * cos + e * sin)), e and o taken from split(x)",
        "rope(x, cos, sin)",
        native::rope::rope,
        "Pairs turned by an angle (arXiv 2104.09864).",
    ),
    function(
        "attention.doubled-angle",
        Exact,
        "cos(join(a, b))",
        "join(cos(a), cos(b))",
        native::rope::angles,
        "Angles that are doubled before or after the function.",
    ),
    function(
        "attention.late-division",
        Reassociates,
        "contract(exp(s), v; u) / z, z without u",
        "contract(exp(s) / z, v; u)",
        native::attention::late_division,
        "A softmax that is normalised after it has met the values.",
    ),
    function(
        "attention.attention",
        Approximate,
        "contract(softmax(mask(scale * Σ contract(q, k)); u), v; u)",
        "attention(q, k, v)",
        native::attention::attention,
        "Scores, mask, softmax and values as one op (arXiv 2205.14135).",
    ),
    // Routing.
    function(
        "router.choice",
        Exact,
        "top_k(score(x) + b; E -> K), of the best groups alone",
        "router_choice(x, b; E, K)",
        native::routing::choice,
        "Scores, their bias and the search for the best, among all experts or in the best groups (arXiv 2412.19437).",
    ),
    function(
        "router.best-logits",
        Approximate,
        "top_k(score(x); E -> K)",
        "router_choice(x; E, K; 2)",
        native::routing::best_logits,
        "The best scores are those of the best logits: a softmax and a sigmoid keep the order, but for logits whose scores round to one number.",
    ),
    pattern(
        "router.softmax-normalised",
        Approximate,
        "#s * gather(softmax(x; E), c; E) * sum(gather(softmax(x; E), c; E); K) ^ -1",
        "router_share(x, c; E, K; 2, 1, 0, #s)",
        &[Searches("c", "E", "K")],
        "Shares of the best of a softmax that add up to one are a softmax over the best.",
    ),
    pattern(
        "router.softmax-of-chosen",
        Reassociates,
        "#s * softmax(gather(x, c; E); K)",
        "router_share(x, c; E, K; 2, 1, 0, #s)",
        &[Searches("c", "E", "K")],
        "A softmax over the chosen logits.",
    ),
    pattern(
        "router.softmax",
        Reassociates,
        "#s * gather(softmax(x; E), c; E)",
        "router_share(x, c; E, K; 0, 0, 0, #s)",
        &[Searches("c", "E", "K")],
        "Shares of the best of a softmax.",
    ),
    pattern(
        "router.sigmoid-normalised",
        Reassociates,
        "#s * gather(sigmoid(x), c; E) * (#e + sum(gather(sigmoid(x), c; E); K)) ^ -1",
        "router_share(x, c; E, K; 1, 1, #e, #s)",
        &[Searches("c", "E", "K")],
        "Shares of the best of sigmoids that add up to one (arXiv 2412.19437).",
    ),
    pattern(
        "router.sigmoid-normalised-plain",
        Reassociates,
        "#s * gather(sigmoid(x), c; E) * sum(gather(sigmoid(x), c; E); K) ^ -1",
        "router_share(x, c; E, K; 1, 1, 0, #s)",
        &[Searches("c", "E", "K")],
        "The same without a guard against zero.",
    ),
    pattern(
        "router.sigmoid",
        Reassociates,
        "#s * gather(sigmoid(x), c; E)",
        "router_share(x, c; E, K; 1, 0, 0, #s)",
        &[Searches("c", "E", "K")],
        "Shares of the best of sigmoids.",
    ),
    function(
        "router.share-after",
        Reassociates,
        "contract(p * h, w; f), p of rows, without f",
        "p * contract(h, w; f)",
        native::routing::share_after,
        "The share of a row can be multiplied with it before or after the down projection.",
    ),
    function(
        "router.gather-product",
        Exact,
        "gather(a * b, i; r), rows of experts",
        "gather(a, i; r) * gather(b, i; r)",
        native::routing::gather_product,
        "Rows and their shares find back separately.",
    ),
    function(
        "router.there-and-back",
        Exact,
        "gather(permute(x, rows), invert(rows))",
        "x",
        native::routing::there_and_back,
        "What was sent to the experts as it is, and comes back.",
    ),
    function(
        "router.permute",
        Exact,
        "gather(merge(x; T -> t), rows / k; t), rows of a group",
        "permute(x, rows; t, T; k)",
        native::routing::permute,
        "Rows of tokens on their way to the experts.",
    ),
    function(
        "router.permute-dx",
        Exact,
        "sum(gather(y, place; r); k), place the inverse of a group",
        "permute_dx(y, place; r, k)",
        native::routing::permute_dx,
        "The rows of each token summed.",
    ),
    function(
        "router.combine",
        Reassociates,
        "contract(w, gather(y, i; R); K), i the inverse of a group",
        "unpermute(y, w, i; R, K)",
        native::routing::combine,
        "Rows of experts on their way back, weighted by a contraction.",
    ),
    pattern(
        "router.unpermute",
        Reassociates,
        "sum(w * gather(y, i; R); K)",
        "unpermute(y, w, i; R, K)",
        &[Inverts("i"), Lacks("w", "R")],
        "Rows of experts on their way back, weighted.",
    ),
    // Optimizer.
    pattern(
        "optimizer.adamw",
        Reassociates,
        "k * x - r * m * (#e + q * v ^ 0.5) ^ -1",
        "adamw(x, m, v, k, r, q; ; #e)",
        &[State("x"), Scalar("k"), Scalar("r"), Scalar("q"), SameType("m"), SameType("v")],
        "A step of AdamW from its moments (arXiv 1711.05101).",
    ),
    pattern(
        "optimizer.adam",
        Reassociates,
        "x - r * m * (#e + q * v ^ 0.5) ^ -1",
        "adamw(x, m, v, 1, r, q; ; #e)",
        &[State("x"), Scalar("r"), Scalar("q"), SameType("m"), SameType("v")],
        "The same without decay.",
    ),
    pattern(
        "optimizer.first-moment",
        Reassociates,
        "#b * m + #c * g * s",
        "adamw_first(m, g, s; ; #b, #c)",
        &[State("m"), Scalar("s"), SameType("g")],
        "The moving average of the clipped gradient.",
    ),
    pattern(
        "optimizer.second-moment",
        Reassociates,
        "#b * v + #c * g ^ 2 * s ^ 2",
        "adamw_second(v, g, s; ; #b, #c)",
        &[State("v"), Scalar("s"), SameType("g")],
        "The moving average of its square.",
    ),
    // Joint choices.
    joint(
        "joint.add-rms-norm",
        Reassociates,
        "x + y; rms_norm(x + y, g; A; #e)",
        "add_rms_norm(x, y, g; A; #e), beside x + y",
        (When::AfterGradients, pairs::join_adds),
        "The norm of a sum that is needed by itself: one kernel writes both.",
    ),
    joint(
        "joint.cross-entropy",
        Reassociates,
        "log_sum_exp(x; A); log_sum_exp(x; A) - gather(x, l; A)",
        "cross_entropy(x, l; A), beside log_sum_exp(x; A)",
        (When::Always, pairs::join_losses),
        "A loss whose log-sum-exp is needed by itself: one kernel writes both.",
    ),
    joint(
        "joint.projections",
        Exact,
        "contract(x, v; A); contract(x, w; A); .., weights v, w",
        "slices of contract(x, concat(v, w, ..); A)",
        (When::AfterGradients, merge::merge_projections),
        "Projections of one value as one, where reading it once pays for joining the weights.",
    ),
];
