//! Why a result looks as it does: the chain of rules from the source to each fused op.

use super::report::Report;
use super::table::RULES;
use super::{Options, Selection, build, extract, finish, saturate};
use egg::Id;
use forebay_ir::{Graph, Op, ValueId};
use rustc_hash::FxHashSet;

/// A fused op of the result, and how it came about.
#[derive(Clone, Debug)]
pub struct Story {
    /// The name of the value, which is that of the source's.
    pub value: String,
    /// The op, as textual IR.
    pub op: String,
    /// The ops of the source that it does the work of.
    pub source: Vec<String>,
    /// The rules that were used on the way to it, in order.
    pub steps: Vec<Step>,
}

/// One rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The rule's name.
    pub rule: String,
    /// How often it is used.
    pub times: usize,
    /// What it says: `left = right`; empty for laws that are no rules of the table.
    pub equation: String,
}

/// Rewrites a graph and says how each fused op came about.
pub fn explain(graph: &Graph, options: &Options) -> (Graph, Report, Vec<Story>) {
    let mut report = Report::new(graph, options);
    if options.selection == Selection::Off || graph.outputs.is_empty() {
        return (graph.clone(), report, vec![]);
    }
    let (mut egraph, classes) = build::to_egraph(graph, options);
    let found = saturate(&mut egraph, options, &mut report);
    let choice = extract::extract(&egraph, graph, &classes, options);
    let (new, origins) = build::to_graph_with_origins(graph, &mut egraph, &classes, &choice);
    let text = forebay_ir::text::print(&new);
    let mut stories = vec![];
    for (value, class) in origins {
        let node = new.node(value);
        let source = graph.values().find(|v| egraph.find(classes[v.index()]) == class);
        let (Op::Fused(_), Some(source)) = (&node.op, source) else { continue };
        let line = text.lines().find(|l| l.trim_start().starts_with(&format!("%{} =", node.name)));
        let op = line.map_or_else(|| node.op.row().name.to_string(), |l| l.trim().to_string());
        let covered = covered(graph, source, &new);
        let own: FxHashSet<Id> = covered.iter().map(|v| egraph.find(classes[v.index()])).collect();
        let names = covered.iter().map(|v| graph.node(*v).op.row().name.to_string()).collect();
        let steps = steps(found.iter().filter(|f| own.contains(&egraph.find(f.class))).map(|f| f.rule));
        stories.push(Story { value: node.name.clone(), op, source: names, steps });
    }
    let new = finish(new, &mut report, options, &egraph, &choice);
    (new, report, stories)
}

/// The values behind a value that the result no longer has: what the fused op does the work of.
fn covered(graph: &Graph, value: ValueId, new: &Graph) -> Vec<ValueId> {
    let kept: FxHashSet<&str> = new.nodes.iter().map(|n| n.name.as_str()).collect();
    let mut seen = FxHashSet::default();
    let mut stack = vec![value];
    while let Some(v) = stack.pop() {
        let node = graph.node(v);
        let own = v == value || !kept.contains(node.name.as_str());
        if own && !node.operands.is_empty() && seen.insert(v) {
            stack.extend(&node.operands);
        }
    }
    let mut all: Vec<ValueId> = seen.into_iter().collect();
    all.sort_unstable();
    all
}

/// The rules in the order in which they were used, each once.
fn steps(rules: impl Iterator<Item = &'static str>) -> Vec<Step> {
    let mut steps: Vec<Step> = vec![];
    for rule in rules {
        match steps.iter_mut().find(|s| s.rule == rule) {
            Some(step) => step.times += 1,
            None => {
                let row = RULES.iter().find(|r| r.name == rule);
                let equation = row.map_or_else(String::new, |r| format!("{} = {}", r.left, r.right));
                steps.push(Step { rule: rule.to_string(), times: 1, equation });
            }
        }
    }
    steps
}
