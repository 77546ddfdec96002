//! Fusion and equivalent rewrites by equality saturation (egg, arXiv 2004.03082).
//!
//! ```text
//! %q = mul %x, %x
//! %s = sum %q over {d}
//! …                            ==>      %y = rms_norm %x, %gain {d} (eps 1e-6)
//! %y = mul %n, %gain
//! ```
//!
//! A graph becomes an e-graph ([`term`]); rules ([`table`]) add equal forms until there are no more or a limit is met; a cost for the device picks
//! the cheapest ([`extract`]), which becomes a graph again ([`build`]). Sums and products have normal forms ([`normal`]) instead of rules for their
//! laws; patterns ([`pattern`]) match those forms, so a rule finds its left side however it is spelled.
//!
//! Requires: a verified graph. Keeps: inputs, outputs and their types, names of values that stay; values as far as the numerics class says: with
//! [`Numerics::Exact`] bit for bit. Costs: iterations times terms times rules; limits count iterations and terms, never seconds.

mod alternatives;
mod build;
mod conditions;
mod exact;
mod explain;
mod extract;
mod making;
mod matching;
mod merge;
mod native;
mod normal;
mod pairs;
mod pattern;
mod profile;
mod report;
mod table;
mod term;
mod widen;

pub use alternatives::{Alternative, alternatives};
pub use explain::{Step, Story, explain};
pub use profile::Profile;
pub use report::{Report, RuleInfo, RuleUse, is_rule_or_family, rules};

use crate::shares::Shares;
use crate::simplify::simplify;
use conditions::Condition;
use egg::Id;
use forebay_ir::{Contraction, FusedKind, Graph, Op, Type};
use making::Maker;
use matching::{Match, Matcher};
use normal::Forms;
use pattern::{Names, Pattern};
use std::collections::BTreeMap;
use std::rc::Rc;
use table::{Find, Rule, When};
use term::{Egraph, Facts};

/// What a rule may change in the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Numerics {
    /// Nothing: equal bits.
    Exact,
    /// The order and place of roundings.
    Reassociates,
    /// More: values beyond a range, or a function in place of another that is equal in the reals.
    #[default]
    Approximate,
}

impl Numerics {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Numerics::Exact => "exact",
            Numerics::Reassociates => "reassociates",
            Numerics::Approximate => "approximate",
        }
    }
}

/// Is a graph differentiated?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Differentiation {
    /// No: it only runs forward.
    #[default]
    None,
    /// It will be differentiated.
    ToCome,
    /// It is a part of what was differentiated.
    Done,
}

/// Which rules are used.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Selection {
    /// All.
    #[default]
    All,
    /// None: the graph stays as it is.
    Off,
    /// None that makes a fused op.
    NoFusion,
    /// Those with these names, of rules or of families.
    Only(Vec<String>),
    /// All but those.
    Without(Vec<String>),
}

/// What the user decides about rewriting.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most that rules may change.
    pub numerics: Numerics,
    /// Which rules.
    pub selection: Selection,
    /// For whom it should be fast.
    pub profile: Profile,
    /// Rounds of rules.
    pub iterations: usize,
    /// Terms that rules may add, beside four for each of the source's.
    pub nodes: usize,
    /// Branches of the exact extraction.
    pub branches: usize,
    /// Before differentiation equal values are not enough: what moves gradients at ties, or sums them in another type, stays out.
    pub differentiation: Differentiation,
    /// Where shares of experts are multiplied in, and stay.
    pub shares: Shares,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            numerics: Numerics::default(),
            selection: Selection::default(),
            profile: Profile::cpu(),
            iterations: 16,
            nodes: 2_000,
            branches: 2_000,
            differentiation: Differentiation::None,
            shares: Shares::After,
        }
    }
}

impl Options {
    /// Is the rule among those to be used?
    fn uses(&self, rule: &Rule) -> bool {
        let names_it = |n: &String| rule.name == n || rule.family() == n.trim_end_matches('.');
        let named = |names: &[String]| names.iter().any(names_it);
        let fuses = makes_fused(rule);
        // What fuses is proven one by one when everything has to be exact.
        let allowed = rule.numerics <= self.numerics || fuses && self.numerics == Numerics::Exact;
        let moves_shares = rule.name == table::SHARE_AFTER && self.shares == Shares::Before;
        allowed
            && !moves_shares
            && match &self.selection {
                Selection::All => true,
                Selection::Off => false,
                Selection::NoFusion => !fuses,
                Selection::Only(names) => named(names),
                Selection::Without(names) => !named(names),
            }
    }
}

/// Does the right side begin with a fused op?
fn makes_fused(rule: &Rule) -> bool {
    let word: String = rule.right.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    FusedKind::from_name(&word).is_some()
}

/// An equality that a rule has found.
struct Change {
    class: Id,
    build: Box<Build>,
    /// Makes the left side as it is written, for proofs: so that what its parts became is a part of the proof.
    left: Option<Box<Build>>,
}

/// Makes the equal form; `None` when a type rule refuses it.
type Build = dyn FnOnce(&mut Maker) -> Option<Id>;

impl Change {
    fn new(class: Id, build: impl FnOnce(&mut Maker) -> Option<Id> + 'static) -> Change {
        Change { class, build: Box::new(build), left: None }
    }

    /// The same with the left side as it is written.
    fn from(self, left: impl FnOnce(&mut Maker) -> Option<Id> + 'static) -> Change {
        Change { left: Some(Box::new(left)), ..self }
    }
}

/// A rule that is ready to be used.
struct Ready {
    rule: &'static Rule,
    names: Names,
    sides: Option<Rc<(Pattern, Pattern)>>,
}

impl Ready {
    fn new(rule: &'static Rule) -> Ready {
        let mut names = Names::default();
        let sides = match rule.find {
            Find::Pattern => {
                Some(Rc::new((pattern::parse(rule.left, &mut names), pattern::parse(rule.right, &mut names))))
            }
            Find::Function(_) | Find::Joint(..) => None,
        };
        // Conditions may bind axes of the right side.
        Ready { rule, names, sides }
    }

    /// Nothing is bound yet.
    fn start(&self) -> Match {
        Match {
            classes: vec![None; self.names.classes.len()],
            numbers: vec![None; self.names.numbers.len()],
            axes: vec![None; self.names.axes.len()],
            ..Match::default()
        }
    }

    /// What the rule finds; as `spelled`, only where the class is the left side term by term and not just in the same normal form.
    fn find(&self, matcher: &Matcher, class: Id, spelled: bool) -> Vec<Change> {
        let Some(sides) = &self.sides else {
            let Find::Function(find) = self.rule.find else { return vec![] };
            return find(matcher.egraph, matcher.forms, class);
        };
        if !matcher.may_match(&sides.0, class) {
            return vec![];
        }
        let dtype = matcher.egraph[class].data.ty.dtype;
        let mut found: Vec<Match> = vec![];
        for mut m in matcher.matches(&sides.0, class, &self.start()) {
            let holds = |c: &Condition, m: &mut Match| c.holds(matcher.egraph, &self.names, class, m);
            if self.rule.conditions.iter().all(|c| holds(c, &mut m)) && !found.contains(&m) {
                found.push(m);
            }
        }
        let change = |m: Match| {
            let (own, of) = (sides.clone(), m.clone());
            let change = Change::new(class, move |maker| {
                let holds = !spelled || maker.is_spelled(class, &own.0, &of, dtype);
                holds.then(|| maker.build(&own.1, &of, dtype)).flatten()
            });
            let sides = sides.clone();
            change.from(move |maker| maker.build(&sides.0, &m, dtype))
        };
        found.into_iter().map(change).collect()
    }
}

/// Larger graphs stay as they are: the memory of extraction grows with the square.
const MOST_OPS: usize = 10_000;

/// Rewrites a graph.
pub fn rewrite(graph: &Graph, options: &Options) -> (Graph, Report) {
    let mut report = Report::new(graph, options);
    if options.selection == Selection::Off || graph.outputs.is_empty() {
        return (graph.clone(), report);
    }
    if graph.nodes.len() > MOST_OPS {
        report.stop = "too many ops";
        return (graph.clone(), report);
    }
    let (mut egraph, classes) = build::to_egraph(graph, options);
    saturate(&mut egraph, options, &mut report);
    let choice = extract::extract(&egraph, graph, &classes, options);
    let mut new = build::to_graph(graph, &mut egraph, &classes, &choice);
    finish(&mut new, &mut report, options, &egraph, &choice);
    (new, report)
}

/// Clean-up and joint choices: the names of the values that these changed, with the rule.
fn finish(
    new: &mut Graph,
    report: &mut Report,
    options: &Options,
    egraph: &Egraph,
    choice: &extract::Choice,
) -> Vec<(String, &'static str)> {
    simplify(new);
    let mut joined = vec![];
    for rule in table::all().filter(|r| options.uses(r)) {
        let Find::Joint(when, join) = rule.find else { continue };
        // What a joint op is made of cannot be proven term by term.
        let late = options.differentiation == Differentiation::ToCome && when == When::AfterGradients;
        let early = options.differentiation == Differentiation::Done && when == When::BeforeGradients;
        if rule.numerics > options.numerics || late || early {
            continue;
        }
        let names = join(new, options);
        names.iter().for_each(|_| report.count(rule.name));
        joined.extend(names.into_iter().map(|name| (name, rule.name)));
    }
    new.prune();
    report.finish(new, options, egraph, choice);
    joined
}

fn saturate(egraph: &mut Egraph, options: &Options, report: &mut Report) {
    let is_joint = |r: &&Rule| matches!(r.find, Find::Joint(..));
    let ready: Vec<Ready> = table::all().filter(|r| options.uses(r) && !is_joint(r)).map(Ready::new).collect();
    let loose = options.numerics >= Numerics::Reassociates;
    let limit = options.nodes + 5 * egraph.total_number_of_nodes();
    report.stop = "iteration limit";
    for iteration in 0..options.iterations {
        report.iterations = iteration + 1;
        let terms = egraph.total_number_of_nodes();
        let forms = Forms::new(egraph);
        let mut changes: Vec<(&'static str, bool, Change)> = vec![];
        if loose {
            for (a, b, why) in forms.equal_classes() {
                changes.push((why, false, Change::new(a, move |_| Some(b))));
            }
        }
        let matcher = Matcher { egraph, forms: &forms };
        for class in forms.classes() {
            for ready in &ready {
                // A fused op is proven by its body, the rest by its left side.
                let (proof, spelled) = (!loose && makes_fused(ready.rule), !loose && !makes_fused(ready.rule));
                let found = ready.find(&matcher, class, spelled);
                changes.extend(found.into_iter().map(|c| (ready.rule.name, proof, c)));
            }
        }
        let mut changed = false;
        for (name, proof, change) in changes {
            if egraph.total_number_of_nodes() > limit {
                break;
            }
            let Some(equal) = (change.build)(&mut Maker::new(egraph)) else { continue };
            if !same_type(&egraph[change.class].data, &egraph[equal].data) {
                continue;
            }
            if proof && !exact::is_proven(egraph, change.class, equal) {
                continue;
            }
            if egraph.find(change.class) != egraph.find(equal) {
                let from = match change.left {
                    Some(left) if egraph.are_explanations_enabled() => spelled(egraph, change.class, left),
                    _ => change.class,
                };
                egraph.union_trusted(from, equal, name);
                report.count(name);
                changed = true;
            }
        }
        egraph.rebuild();
        build::sort_operands(egraph);
        if egraph.total_number_of_nodes() > limit {
            report.stop = "term limit";
            break;
        }
        if !changed && egraph.total_number_of_nodes() == terms {
            report.stop = "saturated";
            break;
        }
    }
}

/// The left side of a change as the rule writes it, which is the class in its normal form.
fn spelled(egraph: &mut Egraph, class: Id, left: Box<Build>) -> Id {
    let Some(left) = left(&mut Maker::new(egraph)) else { return class };
    if !same_type(&egraph[class].data, &egraph[left].data) {
        return class;
    }
    if egraph.find(class) != egraph.find(left) {
        egraph.union_trusted(class, left, "normal form");
    }
    left
}

fn same_type(a: &Facts, b: &Facts) -> bool {
    let numbers = |f: &Facts| f.constant.map(f64::to_bits);
    let agree = numbers(a).is_none() || numbers(b).is_none() || a.constant == b.constant;
    let ty: (&Type, &Type) = (&a.ty, &b.ty);
    ty.0 == ty.1 && agree
}

/// How often each fused op, and each kind of contraction, is in a graph, by name.
pub fn fused_ops(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for value in graph.values() {
        let name = match &graph.node(value).op {
            Op::Fused(fused) => Some(fused.kind.row().name),
            _ => Contraction::of(graph, value).map(Contraction::name),
        };
        if let Some(name) = name {
            *counts.entry(name).or_insert(0) += 1;
        }
    }
    counts
}
