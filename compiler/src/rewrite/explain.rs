//! Why a result looks as it does: the chain of rules from the source to each fused op.

use super::extract::Choice;
use super::report::Report;
use super::table;
use super::term::{Egraph, Term};
use super::{MOST_OPS, Options, Selection, build, extract, finish, saturate};
use egg::{Id, TreeTerm};
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
    /// What it says: `left = right`, or a law in words.
    pub equation: String,
}

/// Rewrites a graph and says how each fused op came about: by egg's proofs that it is equal to the source (Proof-producing congruence closure,
/// Nieuwenhuis & Oliveras 2005), and by the joint choices after that.
pub fn explain(graph: &Graph, options: &Options) -> (Graph, Report, Vec<Story>) {
    let mut report = Report::new(graph, options);
    if options.selection == Selection::Off || graph.outputs.is_empty() || graph.nodes.len() > MOST_OPS {
        return (graph.clone(), report, vec![]);
    }
    let (mut egraph, classes) = build::to_egraph_with_proofs(graph, options);
    saturate(&mut egraph, options, &mut report);
    let choice = extract::extract(&egraph, graph, &classes, options);
    let (mut new, origins) = build::to_graph_with_origins(graph, &mut egraph, &classes, &choice);
    let mut stories = vec![];
    for (value, class) in origins {
        let node = new.node(value);
        let source = graph.values().find(|v| egraph.find(classes[v.index()]) == class);
        let (Op::Fused(_), Some(source)) = (&node.op, source) else { continue };
        let survives = |v: ValueId| choice.needs(egraph.find(classes[v.index()]));
        let covered = covered(graph, source, &survives);
        let names = covered.iter().map(|v| graph.node(*v).op.row().name.to_string()).collect();
        let steps = Proof { egraph: &mut egraph, classes: &classes, choice: &choice }.steps(classes[source.index()]);
        stories.push(Story { value: node.name.clone(), op: String::new(), source: names, steps });
    }
    for (name, rule) in finish(&mut new, &mut report, options, &egraph, &choice) {
        let step = Step::new(rule, 1);
        match stories.iter_mut().find(|s| s.value == name) {
            Some(story) => story.steps.push(step),
            None => stories.push(Story { value: name, op: String::new(), source: vec![], steps: vec![step] }),
        }
    }
    let text = forebay_ir::text::print(&new);
    let line = |name: &str| text.lines().map(str::trim).find(|l| l.starts_with(&format!("%{name} =")));
    stories.retain_mut(|story| match line(&story.value) {
        Some(line) => {
            story.op = line.to_string();
            true
        }
        None => false,
    });
    (new, report, stories)
}

/// The values behind a value that the result no longer has: what the fused op does the work of.
fn covered(graph: &Graph, value: ValueId, survives: &dyn Fn(ValueId) -> bool) -> Vec<ValueId> {
    let mut seen = FxHashSet::default();
    let mut stack = vec![value];
    while let Some(v) = stack.pop() {
        let node = graph.node(v);
        if (v == value || !survives(v)) && !node.operands.is_empty() && seen.insert(v) {
            stack.extend(&node.operands);
        }
    }
    let mut all: Vec<ValueId> = seen.into_iter().collect();
    all.sort_unstable();
    all
}

impl Step {
    fn new(rule: &str, times: usize) -> Step {
        let equation = match table::all().find(|r| r.name == rule) {
            Some(row) => format!("{} = {}", row.left, row.right),
            None => law(rule).to_string(),
        };
        Step { rule: rule.to_string(), times, equation }
    }
}

/// What a step says that is no rule of the table.
fn law(name: &str) -> &'static str {
    match name {
        "normal form" => "sums and products in another order, powers and coefficients collected",
        "commutes" => "operands in another order",
        _ => "",
    }
}

/// Proofs of what was chosen.
struct Proof<'a> {
    egraph: &'a mut Egraph,
    /// The number of each source value's own term.
    classes: &'a [Id],
    choice: &'a Choice,
}

impl Proof<'_> {
    /// The rules that lead from a source term to the chosen one, in order.
    fn steps(&mut self, source: Id) -> Vec<Step> {
        let class = self.egraph.find(source);
        let term = self.choice.term(class).clone();
        let chosen = self.of_operands(&term);
        let proof = self.egraph.explain_id_equivalence(source, chosen);
        let (mut steps, mut seen) = (vec![], FxHashSet::default());
        walk(&proof.explanation_trees, &mut steps, &mut seen);
        steps
    }

    /// The number of a chosen term over operands as the source has them, or as they were chosen where it has none.
    fn of_operands(&mut self, term: &Term) -> Id {
        let args = term.args.iter().map(|&arg| {
            let class = self.egraph.find(arg);
            let own = self.classes.iter().copied().find(|&c| self.egraph.find(c) == class);
            own.unwrap_or_else(|| {
                let term = self.choice.term(class).clone();
                self.of_operands(&term)
            })
        });
        let args = args.collect();
        self.egraph.add_uncanonical(Term { head: term.head, args })
    }
}

/// The rules of a proof, each once, in the order in which they are needed: what happens within operands before what happens to the whole.
fn walk(proof: &[Rc<TreeTerm<Term>>], steps: &mut Vec<Step>, seen: &mut FxHashSet<*const TreeTerm<Term>>) {
    for term in proof {
        if !seen.insert(Rc::as_ptr(term)) {
            continue;
        }
        for rule in [term.backward_rule, term.forward_rule].into_iter().flatten() {
            match steps.iter_mut().find(|s| s.rule == rule.as_str()) {
                Some(step) => step.times += 1,
                None => steps.push(Step::new(rule.as_str(), 1)),
            }
        }
        term.child_proofs.iter().for_each(|proof| walk(proof, steps, seen));
    }
}
