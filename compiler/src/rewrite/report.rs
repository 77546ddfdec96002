//! What a rewriting did, for people and for machines.

use super::extract::Choice;
use super::table;
use super::term::Egraph;
use super::{Numerics, Options, fused_ops};
use forebay_ir::Graph;
use std::collections::BTreeMap;

/// A rule, for listing.
#[derive(Clone, Debug)]
pub struct RuleInfo {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub meaning: &'static str,
    /// What it may change.
    pub numerics: Numerics,
    /// The form that is looked for.
    pub left: &'static str,
    /// The equal form.
    pub right: &'static str,
    /// What must hold.
    pub conditions: Vec<String>,
}

/// All rules, in the order of the table.
pub fn rules() -> Vec<RuleInfo> {
    let info = |rule: &super::table::Rule| RuleInfo {
        name: rule.name,
        meaning: rule.meaning,
        numerics: rule.numerics,
        left: rule.left,
        right: rule.right,
        conditions: rule.conditions.iter().map(ToString::to_string).collect(),
    };
    table::all().map(info).collect()
}

/// Is it the name of a rule, or of a family of rules?
pub fn is_rule_or_family(name: &str) -> bool {
    table::all().any(|r| r.name == name || r.family() == name.trim_end_matches('.'))
}

/// How often a rule found something new.
pub type RuleUse = BTreeMap<&'static str, usize>;

/// What happened to one graph.
#[derive(Clone, Debug)]
pub struct Report {
    /// The graph's name.
    pub graph: String,
    /// Ops before and after.
    pub ops: [usize; 2],
    /// Estimated seconds on the profile's device before and after, each op by itself.
    pub seconds: [f64; 2],
    /// Bytes that the ops read and write by themselves, before and after.
    pub bytes: [f64; 2],
    /// Fused ops in the result.
    pub fused: BTreeMap<&'static str, usize>,
    /// Equalities found, by rule.
    pub uses: RuleUse,
    /// Rounds of rules.
    pub iterations: usize,
    /// Terms and classes of the e-graph at the end.
    pub size: [usize; 2],
    /// Why no further round began.
    pub stop: &'static str,
    /// Was the choice proven to be the cheapest?
    pub exact: bool,
    /// By how much a cheaper choice could beat it at most, as a share of its cost.
    pub gap: f64,
}

impl Report {
    pub(super) fn new(graph: &Graph, options: &Options) -> Report {
        let (seconds, bytes) = totals(graph, options);
        let ops = count(graph);
        Report {
            graph: graph.name.clone(),
            ops: [ops, ops],
            seconds: [seconds, seconds],
            bytes: [bytes, bytes],
            fused: fused_ops(graph),
            uses: RuleUse::new(),
            iterations: 0,
            size: [0, 0],
            stop: "rewriting is off",
            exact: true,
            gap: 0.0,
        }
    }

    pub(super) fn count(&mut self, rule: &'static str) {
        *self.uses.entry(rule).or_insert(0) += 1;
    }

    pub(super) fn finish(&mut self, graph: &Graph, options: &Options, egraph: &Egraph, choice: &Choice) {
        let (seconds, bytes) = totals(graph, options);
        (self.ops[1], self.seconds[1], self.bytes[1]) = (count(graph), seconds, bytes);
        self.fused = fused_ops(graph);
        self.size = [egraph.total_number_of_nodes(), egraph.number_of_classes()];
        self.exact = choice.exact;
        self.gap = if choice.cost > 0.0 { (choice.cost - choice.bound) / choice.cost } else { 0.0 };
    }
}

/// Ops that are not inputs, constants or views.
fn count(graph: &Graph) -> usize {
    graph.nodes.iter().filter(|n| n.op.row().unit != forebay_ir::Unit::None && !n.operands.is_empty()).count()
}

fn totals(graph: &Graph, options: &Options) -> (f64, f64) {
    let mut total = (0.0, 0.0);
    for value in graph.values() {
        let cost = forebay_ir::cost::cost(graph, value);
        total.0 += options.profile.seconds(graph, value);
        total.1 += cost.read + cost.written;
    }
    total
}
