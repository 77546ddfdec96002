//! Finding patterns in an e-graph.

use super::normal::{Forms, Product, Sum};
use super::pattern::{Number, Pattern};
use super::term::{Egraph, Term};
use egg::Id;
use forebay_ir::{AxisId, Op, ReduceKind};

/// What the variables of a rule stand for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Match {
    pub classes: Vec<Option<Id>>,
    pub numbers: Vec<Option<f64>>,
    pub axes: Vec<Option<Vec<AxisId>>>,
    pub product_rest: Option<Product>,
    pub sum_rest: Option<Sum>,
}

impl Match {
    pub fn class(&self, variable: usize) -> Id {
        self.classes[variable].expect("the left side binds every variable of the right side")
    }

    pub fn number(&self, variable: usize) -> f64 {
        self.numbers[variable].expect("the left side binds every number of the right side")
    }

    pub fn axes(&self, variable: usize) -> &[AxisId] {
        self.axes[variable].as_deref().expect("the left side binds every axis of the right side")
    }

    fn with_number(&self, number: Number, value: f64) -> Option<Match> {
        match number {
            Number::Is(x) => close(x, value).then(|| self.clone()),
            Number::Named(name, negative) => {
                let value = if negative { -value } else { value };
                match self.numbers[name] {
                    Some(known) => close(known, value).then(|| self.clone()),
                    None => {
                        let mut next = self.clone();
                        next.numbers[name] = Some(value);
                        Some(next)
                    }
                }
            }
        }
    }

    fn with_class(&self, variable: usize, class: Id) -> Option<Match> {
        match self.classes[variable] {
            Some(known) => (known == class).then(|| self.clone()),
            None => {
                let mut next = self.clone();
                next.classes[variable] = Some(class);
                Some(next)
            }
        }
    }

    fn with_axes(&self, variable: usize, axes: &[AxisId]) -> Option<Match> {
        match &self.axes[variable] {
            Some(known) => (known == axes).then(|| self.clone()),
            None => {
                let mut next = self.clone();
                next.axes[variable] = Some(axes.to_vec());
                Some(next)
            }
        }
    }
}

/// Equal but for rounding.
fn close(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}

/// Looks for patterns.
pub(super) struct Matcher<'e> {
    pub egraph: &'e Egraph,
    pub forms: &'e Forms<'e>,
}

impl Matcher<'_> {
    /// False only where a class is not what the pattern says whatever its variables stand for: most classes, told without taking anything apart.
    pub fn may_match(&self, pattern: &Pattern, class: Id) -> bool {
        let class = self.egraph.find(class);
        match pattern {
            Pattern::Class(_) => true,
            Pattern::Number(_) => self.egraph[class].data.constant.is_some(),
            Pattern::Product { factors, .. } => self.forms.products(class).iter().any(|p| self.may_have(factors, p)),
            Pattern::Total { terms, .. } => self.forms.sums(class).iter().any(|s| self.may_add(terms, s)),
            _ => self.egraph[class].nodes.iter().any(|term| match (pattern, self.egraph.analysis.op(term)) {
                (Pattern::Unary(op, x), Op::Unary(own)) => op == own && self.may_match(x, term.args[0]),
                (Pattern::Cast(x), Op::Cast(_)) | (Pattern::Detach(x), Op::Detach) => self.may_match(x, term.args[0]),
                (Pattern::Sum(x, _), Op::Reduce { kind: ReduceKind::Sum, .. })
                | (Pattern::Max(x, _), Op::Reduce { kind: ReduceKind::Max, .. }) => self.may_match(x, term.args[0]),
                (Pattern::Binary(op, _), Op::Binary(own)) => op == own,
                (Pattern::Fused { kind, .. }, Op::Fused(own)) => *kind == own.kind,
                (Pattern::Select(_), Op::Select) | (Pattern::Gather(..), Op::Gather { .. }) => true,
                _ => false,
            }),
        }
    }

    /// May a product have these factors? Those that are no variables are factors of their own; what a variable takes may leave another exponent.
    fn may_have(&self, wanted: &[(Pattern, f64)], product: &Product) -> bool {
        let is_variable = |pattern: &Pattern| matches!(pattern, Pattern::Class(_));
        let leaves = wanted.iter().any(|(pattern, _)| is_variable(pattern));
        let own = |pattern: &Pattern, exponent: f64| {
            product.factors.iter().any(|&(class, e)| (leaves || e == exponent) && self.may_match(pattern, class))
        };
        wanted.iter().all(|(pattern, exponent)| is_variable(pattern) || own(pattern, *exponent))
    }

    /// May a sum have these terms?
    fn may_add(&self, wanted: &[(Option<Number>, Pattern)], sum: &Sum) -> bool {
        let is = |number: Option<Number>, value: f64| match number.unwrap_or(Number::Is(1.0)) {
            Number::Is(x) => close(x, value),
            Number::Named(..) => true,
        };
        let own = |number: Option<Number>, pattern: &Pattern| {
            sum.terms.iter().any(|&(class, k)| is(number, k) && self.may_match(pattern, class))
        };
        wanted.iter().all(|(number, pattern)| matches!(pattern, Pattern::Class(_)) || own(*number, pattern))
    }

    /// All ways in which a class is what the pattern says, given what is bound already.
    pub fn matches(&self, pattern: &Pattern, class: Id, so_far: &Match) -> Vec<Match> {
        let class = self.egraph.find(class);
        match pattern {
            Pattern::Class(variable) => so_far.with_class(*variable, class).into_iter().collect(),
            Pattern::Number(number) => {
                let constant = self.egraph[class].data.constant;
                constant.and_then(|c| so_far.with_number(*number, c)).into_iter().collect()
            }
            Pattern::Product { coefficient, factors, rest } => {
                let mut found = vec![];
                for product in self.forms.products(class) {
                    self.factors(factors, all_of(factors), product.clone(), so_far.clone(), &mut |left, m| {
                        found.extend(take_rest(*coefficient, *rest, left, m));
                    });
                }
                found
            }
            Pattern::Total { constant, terms, rest } => {
                let mut found = vec![];
                for sum in self.forms.sums(class) {
                    self.terms(terms, all_of(terms), sum.clone(), so_far.clone(), &mut |left, m| {
                        if rest.is_none() && !left.terms.is_empty() {
                            return;
                        }
                        let mut m = match (constant, rest) {
                            (Some(constant), _) => match m.with_number(*constant, left.constant) {
                                Some(m) if left.constant != 0.0 => m,
                                _ => return,
                            },
                            (None, None) if left.constant != 0.0 => return,
                            (None, _) => m,
                        };
                        if rest.is_some() {
                            let constant = if constant.is_some() { 0.0 } else { left.constant };
                            m.sum_rest = Some(Sum { constant, ..left });
                        }
                        found.push(m);
                    });
                }
                found
            }
            _ => {
                let mut found = vec![];
                for term in &self.egraph[class].nodes {
                    self.term(pattern, term, so_far, &mut found);
                }
                found
            }
        }
    }

    fn term(&self, pattern: &Pattern, term: &Term, so_far: &Match, found: &mut Vec<Match>) {
        let all = |patterns: &[&Pattern], args: &[Id], start: Match| {
            let mut states = vec![start];
            for (pattern, arg) in patterns.iter().zip(args) {
                states = states.iter().flat_map(|m| self.matches(pattern, *arg, m)).collect();
            }
            states
        };
        match (pattern, self.egraph.analysis.op(term)) {
            (Pattern::Unary(op, x), Op::Unary(own)) if op == own => found.extend(self.matches(x, term.args[0], so_far)),
            (Pattern::Cast(x), Op::Cast(_)) | (Pattern::Detach(x), Op::Detach) => {
                found.extend(self.matches(x, term.args[0], so_far));
            }
            (Pattern::Binary(op, x), Op::Binary(own)) if op == own => {
                let patterns: Vec<&Pattern> = x.iter().collect();
                found.extend(all(&patterns, &term.args, so_far.clone()));
                if self.egraph.analysis.commutes(&Op::Binary(*op)) && term.args[0] != term.args[1] {
                    found.extend(all(&patterns, &[term.args[1], term.args[0]], so_far.clone()));
                }
            }
            (Pattern::Select(x), Op::Select) => {
                let patterns: Vec<&Pattern> = x.iter().collect();
                found.extend(all(&patterns, &term.args, so_far.clone()));
            }
            (Pattern::Sum(x, axes), Op::Reduce { kind: ReduceKind::Sum, over })
            | (Pattern::Max(x, axes), Op::Reduce { kind: ReduceKind::Max, over }) => {
                if let Some(m) = so_far.with_axes(*axes, over) {
                    found.extend(self.matches(x, term.args[0], &m));
                }
            }
            (Pattern::Gather(x, axis), Op::Gather { axis: own }) => {
                if let Some(m) = so_far.with_axes(*axis, &[*own]) {
                    let patterns: Vec<&Pattern> = x.iter().collect();
                    found.extend(all(&patterns, &term.args, m));
                }
            }
            (Pattern::Fused { kind, operands, axes, numbers }, Op::Fused(own)) if *kind == own.kind => {
                let Some(mut m) = bind_axes(so_far, axes, &own.axes) else { return };
                for (number, value) in numbers.iter().zip(&own.numbers) {
                    match m.with_number(*number, *value) {
                        Some(next) => m = next,
                        None => return,
                    }
                }
                let patterns: Vec<&Pattern> = operands.iter().collect();
                found.extend(all(&patterns, &term.args, m));
            }
            _ => {}
        }
    }

    /// Takes factors out of a product, those first that say the most; `open` are those that are still wanted.
    fn factors(
        &self,
        wanted: &[(Pattern, f64)],
        open: u32,
        left: Product,
        m: Match,
        found: &mut dyn FnMut(Product, Match),
    ) {
        let free = |p: &Pattern| matches!(p, Pattern::Class(v) if m.classes[*v].is_none());
        let Some(at) = each_of(open).min_by_key(|&i| (free(&wanted[i].0), i)) else {
            return found(left, m);
        };
        let (pattern, exponent) = &wanted[at];
        let others = open & !(1 << at);
        if let Pattern::Class(variable) = pattern {
            if let Some(class) = m.classes[*variable] {
                let mut tried: Vec<Product> = vec![];
                for form in self.forms.products(class).iter().chain([&Product::atom(class)]) {
                    if let Some(rest) = left.without(form, *exponent)
                        && !tried.contains(&rest)
                    {
                        tried.push(rest.clone());
                        self.factors(wanted, others, rest, m.clone(), found);
                    }
                }
                return;
            }
            if let Some((class, rest)) = self.root(&left, *exponent)
                && let Some(m) = m.with_class(*variable, class)
            {
                self.factors(wanted, others, rest, m, found);
            }
        }
        for (i, &(class, own)) in left.factors.iter().enumerate() {
            if own == *exponent {
                let mut rest = left.clone();
                rest.factors.remove(i);
                for m in self.matches(pattern, class, &m) {
                    self.factors(wanted, others, rest.clone(), m, found);
                }
            }
        }
    }

    /// The class of which a product of several factors is a power as a whole.
    fn root(&self, product: &Product, exponent: f64) -> Option<(Id, Product)> {
        let several = product.factors.len() > 1 || product.coefficient != 1.0;
        let root = match exponent {
            // A coefficient is taken by the pattern's own.
            1.0 if product.factors.len() > 1 => Product { coefficient: 1.0, factors: product.factors.clone() },
            2.0 if several && product.coefficient > 0.0 => Product {
                coefficient: product.coefficient.sqrt(),
                factors: product.factors.iter().map(|&(c, e)| (c, e / exponent)).collect(),
            },
            _ => return None,
        };
        let coefficient = if exponent == 1.0 { product.coefficient } else { 1.0 };
        let first = &self.egraph[product.factors.first()?.0].data.ty;
        let mut axes: Vec<AxisId> =
            product.factors.iter().flat_map(|f| self.egraph[f.0].data.ty.axes.iter().copied()).collect();
        axes.sort_unstable();
        axes.dedup();
        let class = self.forms.class_of(first.dtype, &axes, &root)?;
        Some((class, Product { coefficient, factors: vec![] }))
    }

    /// Takes terms out of a sum, as [`Matcher::factors`] takes factors.
    fn terms(
        &self,
        wanted: &[(Option<Number>, Pattern)],
        open: u32,
        left: Sum,
        m: Match,
        found: &mut dyn FnMut(Sum, Match),
    ) {
        let free = |p: &Pattern| matches!(p, Pattern::Class(v) if m.classes[*v].is_none());
        let Some(at) = each_of(open).min_by_key(|&i| (free(&wanted[i].1), i)) else {
            return found(left, m);
        };
        let (coefficient, pattern) = &wanted[at];
        let others = open & !(1 << at);
        if let (Pattern::Class(variable), Number::Is(k)) = (pattern, coefficient.unwrap_or(Number::Is(1.0)))
            && let Some(class) = m.classes[*variable]
        {
            for form in self.forms.sums(class) {
                if let Some(rest) = left.without(form, k) {
                    self.terms(wanted, others, rest, m.clone(), found);
                }
            }
            return;
        }
        for (i, &(class, own)) in left.terms.iter().enumerate() {
            let Some(m) = m.with_number(coefficient.unwrap_or(Number::Is(1.0)), own) else { continue };
            let mut rest = left.clone();
            rest.terms.remove(i);
            for m in self.matches(pattern, class, &m) {
                self.terms(wanted, others, rest.clone(), m, found);
            }
        }
    }
}

/// A bit for each factor or term of a pattern, of which there are a few.
fn all_of<T>(wanted: &[T]) -> u32 {
    assert!(wanted.len() < 32, "a rule has a few factors or terms");
    (1 << wanted.len()) - 1
}

/// The numbers of the bits that are set, in order.
fn each_of(open: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |i| open >> i & 1 == 1)
}

fn bind_axes(m: &Match, variables: &[usize], axes: &[AxisId]) -> Option<Match> {
    match variables {
        [] => axes.is_empty().then(|| m.clone()),
        [one] => m.with_axes(*one, axes),
        several if several.len() == axes.len() => {
            let mut m = m.clone();
            for (variable, axis) in several.iter().zip(axes) {
                m = m.with_axes(*variable, &[*axis])?;
            }
            Some(m)
        }
        _ => None,
    }
}

fn take_rest(coefficient: Option<Number>, rest: Option<usize>, left: Product, m: Match) -> Option<Match> {
    let mut m = m;
    let mut left = left;
    if let Some(coefficient) = coefficient {
        m = m.with_number(coefficient, left.coefficient)?;
        left.coefficient = 1.0;
    }
    match rest {
        Some(_) => {
            m.product_rest = Some(left);
            Some(m)
        }
        None => (left.factors.is_empty() && left.coefficient == 1.0).then_some(m),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rewrite::pattern::{Names, parse};
    use crate::rewrite::{Options, Ready, Report, build, saturate, table};
    use forebay_ir::text::parse_module;
    use std::path::Path;

    /// What is passed over has no match: all rules on the graphs on which each is tested, as they are written and with all that is equal to them.
    #[test]
    fn what_may_not_match_does_not() {
        let ready: Vec<Ready> = table::all().map(Ready::new).collect();
        let (mut passed, mut matched) = (0, 0);
        let mut check = |egraph: &Egraph| {
            let forms = Forms::new(egraph);
            let matcher = Matcher { egraph, forms: &forms };
            for class in forms.classes() {
                for rule in &ready {
                    let Some(sides) = &rule.sides else { continue };
                    let found = matcher.matches(&sides.0, class, &rule.start()).len();
                    if matcher.may_match(&sides.0, class) {
                        matched += found.min(1);
                    } else {
                        assert_eq!(found, 0, "{} of class {class}", rule.rule.name);
                        passed += 1;
                    }
                }
            }
        };
        for folder in ["tests/rules", "tests/rules_together"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
            for file in std::fs::read_dir(folder).expect("a folder") {
                let path = file.expect("a file").path();
                if path.extension().is_none_or(|e| e != "ir") {
                    continue;
                }
                for graph in parse_module(&std::fs::read_to_string(&path).expect("text")).expect("graphs") {
                    let options = Options::default();
                    let (mut egraph, _) = build::to_egraph(&graph, &options);
                    egraph.rebuild();
                    check(&egraph);
                    saturate(&mut egraph, &options, &mut Report::new(&graph, &options));
                    check(&egraph);
                }
            }
        }
        assert!(passed > 20 * matched && matched > 500, "{passed} passed over, {matched} matched");
    }

    /// A variable may take a part of a power, and leave another exponent for what is no variable. (No rule has such a side.)
    #[test]
    fn variables_leave_other_exponents() {
        let source = "graph @g {
  axis d = 4
  carry %x : f32[d]
  %c = exp %x : f32[d]
  %t = tanh %c : f32[d]
  %s = mul %c, %c : f32[d]
  %y = mul %s, %t : f32[d]
  return output y = %y
}
";
        let graph = parse_module(source).expect("a graph").remove(0);
        let (mut egraph, classes) = build::to_egraph(&graph, &Options::default());
        egraph.rebuild();
        let forms = Forms::new(&egraph);
        let matcher = Matcher { egraph: &egraph, forms: &forms };
        let found = |left: &str| {
            let mut names = Names::default();
            let pattern = parse(left, &mut names);
            let class = classes[graph.outputs[0].value.index()];
            let start = Match { classes: vec![None; names.classes.len()], ..Match::default() };
            (matcher.may_match(&pattern, class), matcher.matches(&pattern, class, &start).len())
        };
        assert_eq!(found("x * tanh(x) * exp(y)"), (true, 1));
        assert_eq!(found("x * tanh(x) * log(y)"), (false, 0));
    }
}
