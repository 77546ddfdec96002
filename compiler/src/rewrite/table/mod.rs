//! The rules, one row each.
//!
//! * [`algebra`]: laws of primitive ops. * [`fused`]: what is a fused op. * [`mod@joint`]: several values at once.

mod algebra;
mod fused;
mod joint;

use super::conditions::Condition;
use super::normal::Forms;
use super::term::Egraph;
use super::{Change, Numerics, Options};
use egg::Id;
use forebay_ir::Graph;

/// The rule that takes shares of experts out of a product.
pub(super) const SHARE_AFTER: &str = "router.share-after";

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
    /// Before it only, and where there is none: what a value is must be the same forwards and backwards.
    BeforeGradients,
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

/// All rules.
pub(super) fn all() -> impl Iterator<Item = &'static Rule> {
    [algebra::RULES, fused::RULES, joint::RULES].into_iter().flatten()
}
