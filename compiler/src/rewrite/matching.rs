//! Finding patterns in an e-graph, and building what they stand for.

use super::normal::{Forms, Product, Sum};
use super::pattern::{Number, Pattern};
use super::term::{Egraph, Key, Term, constant_key};
use egg::Id;
use forebay_ir::{AxisId, BinaryOp, DType, Fused, Op, ReduceKind, Type, UnaryOp};

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

/// Adds terms to an e-graph.
pub(super) struct Maker<'e> {
    pub egraph: &'e mut Egraph,
    /// Only finds terms that are there already.
    known: bool,
}

impl<'e> Maker<'e> {
    pub fn new(egraph: &'e mut Egraph) -> Maker<'e> {
        Maker { egraph, known: false }
    }

    /// One that makes nothing, and only finds terms that are there already.
    pub fn finder(&mut self) -> Maker<'_> {
        Maker { egraph: &mut *self.egraph, known: true }
    }

    /// Is the class what a pattern stands for under a match, term by term?
    pub fn is_spelled(&mut self, class: Id, pattern: &Pattern, m: &Match, dtype: DType) -> bool {
        let built = self.finder().build(pattern, m, dtype);
        built.is_some_and(|built| self.egraph.find(built) == self.egraph.find(class))
    }

    pub fn ty(&self, class: Id) -> &Type {
        &self.egraph[class].data.ty
    }

    pub fn op(&mut self, op: Op, args: &[Id]) -> Id {
        let key = Key { op, input: None, ty: None, orders: None };
        self.add(key, args)
    }

    pub fn add(&mut self, key: Key, args: &[Id]) -> Id {
        let mut args = args.to_vec();
        if self.egraph.analysis.commutes(&key.op) {
            args.sort_unstable_by_key(|&a| self.egraph.find(a));
        }
        let head = self.egraph.analysis.head(key);
        if self.egraph.are_explanations_enabled() {
            // The numbers of the operands' own terms are what a proof goes through.
            return self.egraph.add_uncanonical(Term { head, args });
        }
        self.egraph.add(Term { head, args })
    }

    /// The same, unless the type rule refuses.
    pub fn try_op(&mut self, op: Op, args: &[Id]) -> Option<Id> {
        if self.known {
            return self.find(Key { op, input: None, ty: None, orders: None }, args);
        }
        let types: Vec<Type> = args.iter().map(|&a| self.ty(a).clone()).collect();
        self.egraph.analysis.accepts(&op, &types).then(|| self.op(op, args))
    }

    /// The term's class, if it is there.
    pub fn find(&mut self, key: Key, args: &[Id]) -> Option<Id> {
        let mut args: Vec<Id> = args.iter().map(|&a| self.egraph.find(a)).collect();
        if self.egraph.analysis.commutes(&key.op) {
            args.sort_unstable();
        }
        let head = self.egraph.analysis.head(key);
        self.egraph.lookup(Term { head, args })
    }

    pub fn constant(&mut self, value: f64, dtype: DType) -> Option<Id> {
        let key = constant_key(value, dtype);
        if self.known { self.find(key, &[]) } else { Some(self.add(key, &[])) }
    }

    /// A product, factors in order; nothing for one that is a number, or of several types.
    pub fn product(&mut self, product: &Product, dtype: DType) -> Option<Id> {
        let product = &self.with_one_number(product);
        let mut all: Option<Id> = None;
        for &(class, exponent) in &product.factors {
            let factor = self.power(class, exponent)?;
            all = Some(match all {
                Some(all) => self.try_op(Op::Binary(BinaryOp::Mul), &[all, factor])?,
                None => factor,
            });
        }
        let all = all?;
        match product.coefficient {
            1.0 => Some(all),
            -1.0 => self.try_op(Op::Unary(UnaryOp::Neg), &[all]),
            coefficient => {
                let number = self.constant(coefficient, dtype)?;
                self.try_op(Op::Binary(BinaryOp::Mul), &[all, number])
            }
        }
    }

    /// Twice a multiple of something is another multiple of it: one multiplication, and the same bits wherever products are normal numbers. Not where terms are only looked for.
    fn with_one_number(&self, product: &Product) -> Product {
        let multiple = match product.factors[..] {
            [(class, 1.0)] if !self.known && is_power_of_two(product.coefficient) => self.multiple(class),
            _ => None,
        };
        let folded = multiple
            .map(|(other, number)| Product { coefficient: product.coefficient * number, factors: vec![(other, 1.0)] });
        // What is one times something is merged with it by its form.
        folded
            .filter(|p| p.coefficient.abs() != 1.0 && (p.coefficient as f32).is_normal())
            .unwrap_or_else(|| product.clone())
    }

    /// What the class is a multiple of, and the number.
    fn multiple(&self, class: Id) -> Option<(Id, f64)> {
        let ty = self.ty(class);
        self.egraph[class].nodes.iter().find_map(|term| {
            let &[a, b] = &term.args[..] else { return None };
            let number = |x: Id| self.egraph[x].data.constant.filter(|n| n.is_finite() && *n != 0.0);
            let (other, number) = number(b).map(|n| (a, n)).or_else(|| number(a).map(|n| (b, n)))?;
            let whole = *self.egraph.analysis.op(term) == Op::Binary(BinaryOp::Mul) && self.ty(other) == ty;
            (whole && self.egraph.find(other) != self.egraph.find(class)).then_some((other, number))
        })
    }

    /// A power; small whole ones as products.
    pub fn power(&mut self, class: Id, exponent: f64) -> Option<Id> {
        let dtype = self.ty(class).dtype;
        match exponent {
            1.0 => Some(class),
            2.0 => self.try_op(Op::Binary(BinaryOp::Mul), &[class, class]),
            3.0 | 4.0 => {
                let square = self.power(class, 2.0)?;
                let other = if exponent == 3.0 { class } else { square };
                self.try_op(Op::Binary(BinaryOp::Mul), &[square, other])
            }
            0.5 => self.try_op(Op::Unary(UnaryOp::Sqrt), &[class]),
            -0.5 => self.try_op(Op::Unary(UnaryOp::Rsqrt), &[class]),
            -1.0 => {
                let one = self.constant(1.0, dtype)?;
                self.try_op(Op::Binary(BinaryOp::Div), &[one, class])
            }
            exponent => {
                let exponent = self.constant(exponent, dtype)?;
                self.try_op(Op::Binary(BinaryOp::Pow), &[class, exponent])
            }
        }
    }

    /// A sum, terms in order; nothing for one that is a number, or of several types.
    pub fn sum(&mut self, sum: &Sum, dtype: DType) -> Option<Id> {
        let mut all: Option<Id> = None;
        for &(class, coefficient) in &sum.terms {
            let term = match coefficient {
                1.0 => class,
                -1.0 if all.is_none() => self.try_op(Op::Unary(UnaryOp::Neg), &[class])?,
                -1.0 => {
                    all = Some(self.try_op(Op::Binary(BinaryOp::Sub), &[all?, class])?);
                    continue;
                }
                coefficient => {
                    let number = self.constant(coefficient, dtype)?;
                    self.try_op(Op::Binary(BinaryOp::Mul), &[class, number])?
                }
            };
            all = Some(match all {
                Some(all) => self.try_op(Op::Binary(BinaryOp::Add), &[all, term])?,
                None => term,
            });
        }
        let all = all?;
        if sum.constant == 0.0 {
            return Some(all);
        }
        let number = self.constant(sum.constant, dtype)?;
        self.try_op(Op::Binary(BinaryOp::Add), &[all, number])
    }

    /// What a pattern stands for under a match; `None` when a type rule refuses it.
    pub fn build(&mut self, pattern: &Pattern, m: &Match, dtype: DType) -> Option<Id> {
        match pattern {
            Pattern::Class(variable) => Some(m.class(*variable)),
            Pattern::Number(number) => self.constant(value(*number, m), dtype),
            Pattern::Unary(op, x) => {
                let x = self.build(x, m, dtype)?;
                self.try_op(Op::Unary(*op), &[x])
            }
            Pattern::Binary(op, x) => {
                let x = [self.build(&x[0], m, dtype)?, self.build(&x[1], m, dtype)?];
                self.try_op(Op::Binary(*op), &x)
            }
            Pattern::Select(x) => {
                let x = [self.build(&x[0], m, dtype)?, self.build(&x[1], m, dtype)?, self.build(&x[2], m, dtype)?];
                self.try_op(Op::Select, &x)
            }
            Pattern::Sum(x, axes) => {
                let x = self.build(x, m, dtype)?;
                self.try_op(Op::Reduce { kind: ReduceKind::Sum, over: m.axes(*axes).to_vec() }, &[x])
            }
            Pattern::Max(x, axes) => {
                let x = self.build(x, m, dtype)?;
                self.try_op(Op::Reduce { kind: ReduceKind::Max, over: m.axes(*axes).to_vec() }, &[x])
            }
            Pattern::Gather(x, axis) => {
                let x = [self.build(&x[0], m, dtype)?, self.build(&x[1], m, dtype)?];
                self.try_op(Op::Gather { axis: m.axes(*axis)[0] }, &x)
            }
            Pattern::Cast(x) => {
                let x = self.build(x, m, dtype)?;
                self.try_op(Op::Cast(dtype), &[x])
            }
            Pattern::Detach(x) => {
                let x = self.build(x, m, dtype)?;
                self.try_op(Op::Detach, &[x])
            }
            Pattern::Fused { kind, operands, axes, numbers } => {
                let operands: Vec<Id> = operands.iter().map(|x| self.build(x, m, dtype)).collect::<Option<_>>()?;
                let axes: Vec<AxisId> = axes.iter().flat_map(|&a| m.axes(a).to_vec()).collect();
                let numbers: Vec<f64> = numbers.iter().map(|&n| shortest(value(n, m))).collect();
                self.try_op(Op::Fused(Box::new(Fused { kind: *kind, axes, numbers })), &operands)
            }
            Pattern::Product { coefficient, factors, rest } => {
                let mut product = Product { coefficient: coefficient.map_or(1.0, |c| value(c, m)), factors: vec![] };
                for (factor, exponent) in factors {
                    product.factors.push((self.build(factor, m, dtype)?, *exponent));
                }
                if rest.is_some() {
                    let rest = m.product_rest.as_ref().expect("the left side binds the rest");
                    product.coefficient *= rest.coefficient;
                    product.factors.extend(rest.factors.iter().copied());
                }
                self.product(&product, dtype)
            }
            Pattern::Total { constant, terms, rest } => {
                let mut sum = Sum { constant: constant.map_or(0.0, |c| value(c, m)), terms: vec![] };
                for (coefficient, term) in terms {
                    sum.terms.push((self.build(term, m, dtype)?, coefficient.map_or(1.0, |c| value(c, m))));
                }
                if rest.is_some() {
                    let rest = m.sum_rest.as_ref().expect("the left side binds the rest");
                    sum.constant += rest.constant;
                    sum.terms.extend(rest.terms.iter().copied());
                }
                self.sum(&sum, dtype)
            }
        }
    }
}

/// Multiplying by it moves the exponent alone. (1 and -1 are no multiplications.)
fn is_power_of_two(x: f64) -> bool {
    x.abs() != 1.0 && x.is_normal() && x.to_bits() << 12 == 0
}

fn value(number: Number, m: &Match) -> f64 {
    match number {
        Number::Is(x) => x,
        Number::Named(name, negative) => {
            let x = m.number(name);
            if negative { -x } else { x }
        }
    }
}

/// The number as people write it: 1e-6 for what rounding to f32 made 9.999999974752427e-7 of. As a constant of a body it is rounded again.
fn shortest(x: f64) -> f64 {
    let narrow = x as f32;
    if f64::from(narrow) == x { narrow.to_string().parse().expect("numbers are written as numbers") } else { x }
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

    #[test]
    fn powers_of_two() {
        assert!([2.0, 0.5, -4.0, 1024.0].into_iter().all(is_power_of_two));
        let others = [1.0, -1.0, 3.0, 0.0, f64::INFINITY, f64::NAN, 1024.0f64.next_up(), 8.0f64.next_down()];
        assert!(!others.into_iter().any(is_power_of_two));
    }
}
