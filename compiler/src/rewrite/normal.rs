//! Normal forms of sums and products, so that no rule needs commutativity or associativity.
//!
//! ```text
//! x / sqrt(m) * g      x * rsqrt(m) * g      g * (x * m ^ -0.5)        all are the product  {x: 1, m: -0.5, g: 1}
//! 0.5 * (1 + tanh(y))  0.5 + tanh(y) / 2                               both are the sum     {1: 0.5, tanh(y): 0.5}
//! ```
//!
//! Forms are flat and sorted by e-class, and computed anew from the terms of each class in every iteration. Two classes of one form are equal in the
//! reals, so merging them is of the numerics class *reassociates*.

use super::term::{Egraph, Term};
use egg::Id;
use forebay_ir::{AxisId, BinaryOp, DType, Op, UnaryOp};
use rustc_hash::{FxHashMap, FxHashSet};

/// `coefficient * Π class ^ exponent`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Product {
    pub coefficient: f64,
    /// Sorted by class, exponents not 0.
    pub factors: Vec<(Id, f64)>,
}

/// `constant + Σ coefficient * class`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sum {
    pub constant: f64,
    /// Sorted by class, coefficients not 0.
    pub terms: Vec<(Id, f64)>,
}

impl Product {
    fn number(coefficient: f64) -> Product {
        Product { coefficient, factors: vec![] }
    }

    pub fn atom(class: Id) -> Product {
        Product { coefficient: 1.0, factors: vec![(class, 1.0)] }
    }

    pub fn times(&self, other: &Product) -> Product {
        Product { coefficient: self.coefficient * other.coefficient, factors: merged(&self.factors, &other.factors) }
    }

    /// To a power that is a whole number, or when nothing can be negative.
    fn powered(&self, exponent: f64) -> Product {
        let factors = self.factors.iter().map(|&(c, e)| (c, e * exponent)).collect();
        Product { coefficient: self.coefficient.powf(exponent), factors }
    }

    /// What is left when `other` to the power `exponent` is taken out: only what is there can be.
    pub fn without(&self, other: &Product, exponent: f64) -> Option<Product> {
        let mut rest = self.clone();
        for &(class, e) in &other.factors {
            let at = rest.factors.iter().position(|f| f.0 == class)?;
            let wanted = e * exponent;
            let left = rest.factors[at].1 - wanted;
            if rest.factors[at].1.signum() != wanted.signum() || left != 0.0 && left.signum() != wanted.signum() {
                return None;
            }
            rest.factors[at].1 = left;
            if left == 0.0 {
                rest.factors.remove(at);
            }
        }
        rest.coefficient /= other.coefficient.powf(exponent);
        // Nothing can be divided by a factor of 0.
        rest.coefficient.is_finite().then_some(rest)
    }

    fn is_trivial(&self) -> bool {
        self.coefficient == 1.0 && matches!(self.factors[..], [(_, 1.0)])
    }
}

impl Sum {
    fn atom(class: Id) -> Sum {
        Sum { constant: 0.0, terms: vec![(class, 1.0)] }
    }

    fn plus(&self, other: &Sum) -> Sum {
        Sum { constant: self.constant + other.constant, terms: merged(&self.terms, &other.terms) }
    }

    fn scaled(&self, by: f64) -> Sum {
        Sum { constant: self.constant * by, terms: self.terms.iter().map(|&(c, k)| (c, k * by)).collect() }
    }

    /// What is left when `other` times `by` is taken out: only what is there, in the same measure, can be.
    pub fn without(&self, other: &Sum, by: f64) -> Option<Sum> {
        let mut rest = self.clone();
        for &(class, k) in &other.terms {
            let at = rest.terms.iter().position(|t| t.0 == class && t.1 == k * by)?;
            rest.terms.remove(at);
        }
        rest.constant -= other.constant * by;
        Some(rest)
    }

    fn is_trivial(&self) -> bool {
        self.constant == 0.0 && matches!(self.terms[..], [(_, 1.0)])
    }
}

/// Adds up what belongs to the same class.
fn merged(a: &[(Id, f64)], b: &[(Id, f64)]) -> Vec<(Id, f64)> {
    let mut all: Vec<(Id, f64)> = a.to_vec();
    for &(class, number) in b {
        match all.iter_mut().find(|x| x.0 == class) {
            Some(x) => x.1 += number,
            None => all.push((class, number)),
        }
    }
    all.retain(|x| x.1 != 0.0);
    all.sort_unstable_by_key(|x| x.0);
    all
}

/// More forms than this of one class are not looked at.
const MAX_FORMS: usize = 16;
/// Longer forms than this stay nested.
const MAX_LENGTH: usize = 24;

/// The normal forms of all classes of an e-graph at rest.
pub(super) struct Forms<'e> {
    egraph: &'e Egraph,
    products: FxHashMap<Id, Vec<Product>>,
    sums: FxHashMap<Id, Vec<Sum>>,
    busy: FxHashSet<Id>,
    by_product: FxHashMap<FormKey, Id>,
}

type FormKey = (DType, Vec<AxisId>, u64, Vec<(Id, u64)>);

impl<'e> Forms<'e> {
    pub fn new(egraph: &'e Egraph) -> Forms<'e> {
        let mut forms = Forms {
            egraph,
            products: FxHashMap::default(),
            sums: FxHashMap::default(),
            busy: FxHashSet::default(),
            by_product: FxHashMap::default(),
        };
        for class in forms.classes() {
            if egraph[class].data.ty.dtype.is_float() {
                forms.product(class);
                forms.sum(class);
            }
        }
        for class in forms.classes() {
            for product in forms.products.get(&class).cloned().unwrap_or_default() {
                let key = forms.product_key(class, &product);
                forms.by_product.entry(key).or_insert(class);
            }
        }
        forms
    }

    /// All classes, in order.
    pub fn classes(&self) -> Vec<Id> {
        let mut classes: Vec<Id> = self.egraph.classes().map(|c| c.id).collect();
        classes.sort_unstable();
        classes
    }

    /// The forms of a class as a product; the class itself at least.
    pub fn products(&self, class: Id) -> &[Product] {
        self.products.get(&class).map_or(&[], Vec::as_slice)
    }

    /// The forms of a class as a sum; the class itself at least.
    pub fn sums(&self, class: Id) -> &[Sum] {
        self.sums.get(&class).map_or(&[], Vec::as_slice)
    }

    /// The class of this dtype and these axes that has the product as a form.
    pub fn class_of(&self, dtype: DType, axes: &[AxisId], product: &Product) -> Option<Id> {
        if product.is_trivial() {
            return Some(product.factors[0].0).filter(|&c| self.egraph[c].data.ty.axes == axes);
        }
        self.by_product.get(&key(dtype, axes, product.coefficient, &product.factors)).copied()
    }

    /// Pairs of classes that have a form in common.
    pub fn equal_classes(&self) -> Vec<(Id, Id, &'static str)> {
        let mut pairs = vec![];
        let (mut products, mut sums) = (FxHashMap::default(), FxHashMap::default());
        for class in self.classes() {
            let ty = &self.egraph[class].data.ty;
            for product in self.products(class) {
                if product.is_trivial() {
                    let own = product.factors[0].0;
                    if own != class && self.egraph[own].data.ty == *ty {
                        pairs.push((own, class, "equal products"));
                    }
                    continue;
                }
                let other = *products.entry(self.product_key(class, product)).or_insert(class);
                if other != class {
                    pairs.push((other, class, "equal products"));
                }
            }
            for sum in self.sums(class) {
                if sum.is_trivial() {
                    let own = sum.terms[0].0;
                    if own != class && self.egraph[own].data.ty == *ty {
                        pairs.push((own, class, "equal sums"));
                    }
                    continue;
                }
                let key = key(ty.dtype, &ty.axes, sum.constant, &sum.terms);
                let other = *sums.entry(key).or_insert(class);
                if other != class {
                    pairs.push((other, class, "equal sums"));
                }
            }
        }
        pairs
    }

    fn product_key(&self, class: Id, product: &Product) -> FormKey {
        let ty = &self.egraph[class].data.ty;
        key(ty.dtype, &ty.axes, product.coefficient, &product.factors)
    }

    /// The forms of a class, which its users are flattened with: the class itself first when a fused op is among its terms, else the flattest first.
    fn product(&mut self, class: Id) -> Vec<Product> {
        let class = self.egraph.find(class);
        if let Some(found) = self.products.get(&class) {
            return found.clone();
        }
        if let Some(number) = self.egraph[class].data.constant {
            self.products.insert(class, vec![Product::number(number)]);
            return vec![Product::number(number)];
        }
        if !self.busy.insert(class) {
            return vec![Product::atom(class)];
        }
        let mut found: Vec<Product> = vec![];
        for term in self.egraph[class].nodes.clone() {
            for product in self.products_of(&term) {
                let usable = product.factors.len() <= MAX_LENGTH
                    && product.coefficient.is_finite()
                    && product.coefficient != 0.0;
                if usable && !found.contains(&product) {
                    found.push(product);
                }
            }
        }
        self.busy.remove(&class);
        found.sort_by(|a, b| self.order(&a.factors, &b.factors));
        found.truncate(MAX_FORMS);
        self.with_atom(class, &mut found, Product::atom(class));
        self.products.insert(class, found.clone());
        found
    }

    /// The flattest form first; of equal length the one with more fused ops in it, which rules look for.
    fn order(&self, a: &[(Id, f64)], b: &[(Id, f64)]) -> std::cmp::Ordering {
        let key = |x: &[(Id, f64)]| x.iter().map(|&(c, n)| (c, n.to_bits())).collect::<Vec<_>>();
        let fused = |x: &[(Id, f64)]| x.iter().filter(|f| self.is_fused(f.0)).count();
        b.len().cmp(&a.len()).then_with(|| fused(b).cmp(&fused(a))).then_with(|| key(a).cmp(&key(b)))
    }

    fn is_fused(&self, class: Id) -> bool {
        self.egraph[class].nodes.iter().any(|t| matches!(self.egraph.analysis.op(t), Op::Fused(_)))
    }

    /// Puts the class itself among its forms.
    fn with_atom<F: PartialEq>(&self, class: Id, found: &mut Vec<F>, atom: F) {
        if !found.contains(&atom) {
            let at = if self.is_fused(class) { 0 } else { found.len() };
            found.insert(at, atom);
        }
    }

    /// The forms of a class that its users' forms are made of: the first, the class itself, the flattest and the shortest.
    fn product_parts(&mut self, class: Id) -> Vec<Product> {
        let class = self.egraph.find(class);
        let forms = self.product(class);
        let atom = self.egraph[class].data.constant.is_none().then(|| Product::atom(class));
        parts(&forms, atom)
    }

    fn products_of(&mut self, term: &Term) -> Vec<Product> {
        let op = self.egraph.analysis.op(term).clone();
        let arg = |i: usize| term.args[i];
        let pairs = |a: Vec<Product>, b: Vec<Product>| {
            a.iter().flat_map(|a| b.iter().map(|b| a.times(b)).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        match op {
            Op::Binary(BinaryOp::Mul) => {
                let (a, b) = (self.product_parts(arg(0)), self.product_parts(arg(1)));
                pairs(a, b)
            }
            Op::Binary(BinaryOp::Div) => {
                let (above, below) = (self.product_parts(arg(0)), self.power(arg(1), -1.0));
                pairs(above, vec![below])
            }
            Op::Unary(UnaryOp::Neg) => pairs(self.product_parts(arg(0)), vec![Product::number(-1.0)]),
            Op::Unary(UnaryOp::Sqrt) => vec![self.power(arg(0), 0.5)],
            Op::Unary(UnaryOp::Rsqrt) => vec![self.power(arg(0), -0.5)],
            Op::Binary(BinaryOp::Pow) => match self.egraph[arg(1)].data.constant {
                Some(exponent) if exponent.is_finite() && exponent != 0.0 => vec![self.power(arg(0), exponent)],
                _ => vec![],
            },
            _ => vec![],
        }
    }

    fn power(&mut self, base: Id, exponent: f64) -> Product {
        let base = self.egraph.find(base);
        let product = self.product(base).swap_remove(0);
        let whole = exponent.fract() == 0.0;
        let known = |c: Id| self.egraph[c].data.nonnegative;
        let safe = product.coefficient > 0.0 && product.factors.iter().all(|f| known(f.0));
        if whole || safe {
            let power = product.powered(exponent);
            if power.coefficient.is_finite() {
                return power;
            }
        }
        Product { coefficient: 1.0, factors: vec![(base, exponent)] }
    }

    fn sum(&mut self, class: Id) -> Vec<Sum> {
        let class = self.egraph.find(class);
        if let Some(found) = self.sums.get(&class) {
            return found.clone();
        }
        if let Some(constant) = self.egraph[class].data.constant {
            let sum = Sum { constant, terms: vec![] };
            self.sums.insert(class, vec![sum.clone()]);
            return vec![sum];
        }
        if !self.busy.insert(class) {
            return vec![Sum::atom(class)];
        }
        let mut found: Vec<Sum> = vec![];
        for term in self.egraph[class].nodes.clone() {
            for sum in self.sums_of(&term) {
                let usable = sum.terms.len() <= MAX_LENGTH && sum.constant.is_finite();
                if usable && !found.contains(&sum) {
                    found.push(sum);
                }
            }
        }
        self.busy.remove(&class);
        found.sort_by(|a, b| self.order(&a.terms, &b.terms));
        found.truncate(MAX_FORMS);
        self.with_atom(class, &mut found, Sum::atom(class));
        self.sums.insert(class, found.clone());
        found
    }

    /// The same for sums.
    fn sum_parts(&mut self, class: Id) -> Vec<Sum> {
        let class = self.egraph.find(class);
        let forms = self.sum(class);
        let atom = self.egraph[class].data.constant.is_none().then(|| Sum::atom(class));
        parts(&forms, atom)
    }

    fn sums_of(&mut self, term: &Term) -> Vec<Sum> {
        let op = self.egraph.analysis.op(term).clone();
        let number = |i: usize| self.egraph[term.args[i]].data.constant.filter(|k| k.is_finite() && *k != 0.0);
        let (sign, scale) = match op {
            Op::Binary(BinaryOp::Add) => (1.0, None),
            Op::Binary(BinaryOp::Sub) => (-1.0, None),
            Op::Unary(UnaryOp::Neg) => (0.0, Some((term.args[0], -1.0))),
            Op::Binary(BinaryOp::Mul) => match (number(0), number(1)) {
                (Some(k), None) => (0.0, Some((term.args[1], k))),
                (None, Some(k)) => (0.0, Some((term.args[0], k))),
                _ => return vec![],
            },
            Op::Binary(BinaryOp::Div) => match number(1) {
                Some(k) => (0.0, Some((term.args[0], 1.0 / k))),
                _ => return vec![],
            },
            _ => return vec![],
        };
        if let Some((class, k)) = scale {
            return self.sum_parts(class).iter().map(|s| s.scaled(k)).collect();
        }
        let (a, b) = (self.sum_parts(term.args[0]), self.sum_parts(term.args[1]));
        a.iter().flat_map(|a| b.iter().map(|b| a.plus(&b.scaled(sign))).collect::<Vec<_>>()).collect()
    }
}

/// Of the forms of a class those that its users' forms are made of: the first, the class itself if it is no constant, and then the flattest and the shortest of the others.
fn parts<F: Clone + PartialEq>(forms: &[F], atom: Option<F>) -> Vec<F> {
    let mut parts = vec![forms[0].clone()];
    if let Some(atom) = atom {
        let mut others = forms.iter().filter(|f| **f != atom);
        let (flattest, shortest) = (others.next().cloned(), others.next_back().cloned());
        for part in [Some(atom), flattest, shortest].into_iter().flatten() {
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
    }
    parts
}

fn key(dtype: DType, axes: &[AxisId], number: f64, parts: &[(Id, f64)]) -> FormKey {
    (dtype, axes.to_vec(), rounded(number), parts.iter().map(|&(c, x)| (c, rounded(x))).collect())
}

/// Numbers that differ in the last places only are one: `1 / 3 * 3` and 1.
fn rounded(x: f64) -> u64 {
    if x == 0.0 {
        return 0;
    }
    (x.to_bits() + (1 << 11)) >> 12
}
