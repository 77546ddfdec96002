//! What pays for several values together.

use super::super::Numerics::{Exact, Reassociates};
use super::super::merge;
use super::super::pairs;
use super::super::widen;
use super::{Rule, When, joint};

/// The rows.
pub(super) static RULES: &[Rule] = &[
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
    joint(
        "joint.wide-expression",
        Reassociates,
        "f(.., g(x)) of bf16, elementwise, which bends; nothing outside reads g(x)",
        "cast(f(.., g(cast(x)))), in f32",
        (When::BeforeGradients, widen::widen),
        "An expression is rounded once, not after each op; what joins two values of its size other than by a product is no part of it.",
    ),
];
