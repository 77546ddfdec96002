//! Why a result looks as it does: the chain of rules from the source to each fused op.

use super::report::Report;
use super::table::RULES;
use super::term::{Egraph, Term};
use super::{Options, Recorded, finish, saturate};
use crate::rewrite::{build, extract};
use egg::Id;
use forebay_ir::{Graph, Op, ValueId};
use rustc_hash::FxHashSet;
use std::rc::Rc;

/// A fused op of the result, and how it came about.
#[derive(Clone, Debug)]
pub struct Story {
    /// The name of the value, which is that of the source's.
    pub value: String,
    /// The op, as textual IR.
    pub op: String,
    /// The ops of the source that it does the work of.
    pub source: Vec<String>,
    /// The rules that lead to it, in order.
    pub steps: Vec<Step>,
}

/// One rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The rule's name.
    pub rule: String,
    /// How often it is used in a row.
    pub times: usize,
    /// What it says: `left = right`; empty for laws that are no rules of the table.
    pub equation: String,
}

/// Rewrites a graph and says how each fused op came about.
pub fn explain(graph: &Graph, options: &Options) -> (Graph, Report, Vec<Story>) {
    let options = Options { explain: true, ..options.clone() };
    let mut report = Report::new(graph, &options);
    let (mut egraph, classes) = build::to_egraph(graph, &options);
    let sources = classes.clone();
    let recorded = saturate(&mut egraph, &options, &mut report);
    let choice = extract::extract(&egraph, graph, &classes, &options);
    let (new, origins) = build::to_graph_with_origins(graph, &mut egraph, &classes, &choice);
    let mut stories = vec![];
    for (value, class, term) in origins {
        let node = new.node(value);
        if !matches!(node.op, Op::Fused(_)) {
            continue;
        }
        let source = graph.values().find(|v| egraph.find(sources[v.index()]) == class);
        let Some(source) = source else { continue };
        let steps = chain(&mut egraph, sources[source.index()], &term, &recorded);
        let text = forebay_ir::text::print(&new);
        let line = text.lines().find(|l| l.trim_start().starts_with(&format!("%{} =", node.name)));
        let op = line.map_or_else(|| node.op.row().name.to_string(), |l| l.trim().to_string());
        stories.push(Story { value: node.name.clone(), op, source: covered(graph, source, &new), steps });
    }
    let new = finish(new, &mut report, &options, &egraph, &choice);
    (new, report, stories)
}

/// The ops behind a value that the result no longer has.
fn covered(graph: &Graph, value: ValueId, new: &Graph) -> Vec<String> {
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
    all.into_iter().map(|v| graph.node(v).op.row().name.to_string()).collect()
}

/// The rules on the way from a term of the source to a fused term.
fn chain(egraph: &mut Egraph, source: Id, term: &Term, recorded: &Recorded) -> Vec<Step> {
    let canonical = |egraph: &Egraph, t: &Term| Term {
        head: t.head,
        args: t.args.iter().map(|&a| egraph.find(a)).collect(),
    };
    let wanted = canonical(egraph, term);
    let found = recorded.iter().copied().find(|&id| {
        let node = egraph.id_to_node(id).clone();
        node.head == wanted.head && canonical(egraph, &node) == wanted
    });
    let Some(fused) = found else { return vec![] };
    let explanation = egraph.explain_id_equivalence(source, fused);
    let mut walk = Walk { seen: FxHashSet::default(), steps: vec![] };
    walk.trees(&explanation.explanation_trees);
    walk.steps
}

struct Walk {
    seen: FxHashSet<*const egg::TreeTerm<Term>>,
    steps: Vec<Step>,
}

impl Walk {
    fn trees(&mut self, trees: &[Rc<egg::TreeTerm<Term>>]) {
        for tree in trees {
            if !self.seen.insert(Rc::as_ptr(tree)) {
                continue;
            }
            for proof in &tree.child_proofs {
                self.trees(proof);
            }
            for rule in [tree.forward_rule, tree.backward_rule].into_iter().flatten() {
                self.step(rule.as_str());
            }
        }
    }

    fn step(&mut self, rule: &str) {
        if let Some(last) = self.steps.last_mut().filter(|s| s.rule == rule) {
            last.times += 1;
            return;
        }
        let row = RULES.iter().find(|r| r.name == rule);
        let equation = row.map_or_else(String::new, |r| format!("{} = {}", r.left, r.right));
        self.steps.push(Step { rule: rule.to_string(), times: 1, equation });
    }
}
