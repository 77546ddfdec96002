//! Adding what patterns stand for to an e-graph.

use super::matching::Match;
use super::normal::{Product, Sum};
use super::pattern::{Number, Pattern};
use super::term::{Egraph, Key, Term, constant_key};
use crate::simplify::inverts;
use egg::Id;
use forebay_ir::{AxisId, BinaryOp, DType, Fused, Op, ReduceKind, Type, UnaryOp};

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
        let own = product.coefficient;
        let multiple = match product.factors[..] {
            // Powers of two move the exponent alone. (1 and -1 are no multiplications.)
            [(class, 1.0)] if !self.known && own.abs() != 1.0 && inverts(own, self.ty(class).dtype) => {
                self.multiple(class)
            }
            _ => None,
        };
        let folded = multiple.map(|(other, number)| Product { coefficient: own * number, factors: vec![(other, 1.0)] });
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
    use crate::rewrite::{Options, build};
    use forebay_ir::text::parse_module;

    /// Twice `number · x`, made for a rule: the number of the multiple of x that it is, or nothing where it is made as written. As written it is there, and found.
    fn twice_a_multiple(number: &str) -> Option<f64> {
        let source = format!(
            "graph @g {{
  axis d = 4
  carry %x : f32[d]
  %c = const {number} : f32
  %two = const 2 : f32
  %u = mul %c, %x : f32[d]
  %y = mul %u, %two : f32[d]
  return output y = %y
}}
"
        );
        let graph = parse_module(&source).expect("a graph").remove(0);
        let (mut egraph, classes) = build::to_egraph(&graph, &Options::default());
        egraph.rebuild();
        let [x, _, _, u, y] = classes[..] else { panic!("five values") };
        let mut maker = Maker::new(&mut egraph);
        let mut names = Names::default();
        let pattern = parse("2 * u", &mut names);
        let m = Match { classes: vec![Some(u)], ..Match::default() };
        assert!(maker.is_spelled(y, &pattern, &m, DType::F32));
        let made = maker.build(&pattern, &m, DType::F32).expect("a product");
        if made == y {
            return None;
        }
        let [term] = &maker.egraph[made].nodes[..] else { panic!("one product") };
        let number = term.args.iter().find(|&&arg| arg != x).expect("a number");
        assert!(term.args.contains(&x), "of x");
        maker.egraph[*number].data.constant
    }

    /// One multiplication, but where its number would be none, or no normal one.
    #[test]
    fn a_multiple_of_a_multiple_is_one() {
        assert_eq!(twice_a_multiple("0.25"), Some(0.5));
        assert_eq!(twice_a_multiple("-3"), Some(-6.0));
        assert_eq!(twice_a_multiple("0.5"), None);
        assert_eq!(twice_a_multiple("2e38"), None);
    }
}
