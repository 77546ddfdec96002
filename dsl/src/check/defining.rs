//! Defining by name: `y[i, j] = expr`, where an axis absent on the left is summed.
//!
//! The right side becomes a tree of operators over evaluated leaves. Then every product sums, as it is emitted, the absent axes
//! that more than one of its factors have, by contracting pairs of factors from left to right:
//!
//! ```text
//! y[f] = x * w / n + b      x[d] w[d, f]      contract x, w over {d}; div by n; add b
//! ```
//!
//! An axis that is also in another factor of an outer product is left to that product. Orders of axes follow the left side,
//! so that a permutation rarely needs an op of its own.

use super::Checker;
use super::axes::Ax;
use super::expressions::bare_name;
use super::value::{Checked, Reported, Tensor, Value};
use crate::ast::{self, Expr, ExprKind, Ident, Index, Span};
use crate::diagnostics::quote;
use forebay_ir::{DType, Op};

/// An expression whose parts are evaluated but not its operators.
enum Tree {
    Leaf(Value, Span),
    Unary(ast::UnaryOp, Box<Tree>, Span),
    Binary(ast::BinaryOp, Box<Tree>, Box<Tree>, Span, Vec<Ax>),
    /// Parentheses: a product inside is a factor of its own.
    Paren(Box<Tree>),
}

impl Tree {
    fn axes(&self) -> &[Ax] {
        match self {
            Tree::Leaf(Value::Tensor(tensor), _) => &tensor.axes,
            Tree::Leaf(..) => &[],
            Tree::Unary(_, a, _) | Tree::Paren(a) => a.axes(),
            Tree::Binary(.., axes) => axes,
        }
    }

    fn span(&self) -> Span {
        match self {
            Tree::Leaf(_, span) | Tree::Unary(_, _, span) | Tree::Binary(_, _, _, span, _) => *span,
            Tree::Paren(a) => a.span(),
        }
    }

    fn constant(&self) -> bool {
        matches!(self, Tree::Leaf(Value::Const(_), _))
    }
}

/// A place of the left side.
enum Place<'a> {
    Axis(Ax),
    Merge(&'a Ident, Vec<Ax>, Span),
}

impl<'a> Checker<'a> {
    /// `(expr)[i, j]` and the right side of `y[i, j] = expr`.
    pub(super) fn define(&mut self, expr: &'a Expr, axes: &'a [Index], span: Span) -> Checked<Tensor> {
        let tree = self.tree(expr)?;
        self.define_tree(tree, axes, span)
    }

    /// A value that was computed already, under the axes of the left side.
    pub(super) fn define_value(&mut self, value: Value, axes: &'a [Index], span: Span) -> Checked<Tensor> {
        let value = self.plain(value, span)?;
        self.define_tree(Tree::Leaf(value, span), axes, span)
    }

    fn define_tree(&mut self, tree: Tree, axes: &'a [Index], span: Span) -> Checked<Tensor> {
        let places = self.places(&tree, axes)?;
        let keep: Vec<Ax> = places
            .iter()
            .flat_map(|place| match place {
                Place::Axis(axis) => std::slice::from_ref(axis),
                Place::Merge(_, parts, _) => parts,
            })
            .copied()
            .collect();
        self.grouped_order(&keep, span)?;
        let value = self.emit_tree(tree, &keep, Some(&keep))?;
        let mut tensor = self.tensor(value, span)?;
        tensor = self.in_order(tensor, &keep, span)?;
        for place in places {
            if let Place::Merge(name, parts, at) = place {
                tensor = self.merge(tensor, name, &parts, at)?;
            }
        }
        Ok(tensor)
    }

    /// The same value with its axes in this order.
    pub(super) fn in_order(&mut self, tensor: Tensor, axes: &[Ax], span: Span) -> Checked<Tensor> {
        if tensor.axes == axes {
            return Ok(tensor);
        }
        self.emit_in(Op::Reorder, &[&tensor], axes, span)
    }

    /// A ragged axis stands directly after its parent.
    fn grouped_order(&mut self, axes: &[Ax], span: Span) -> Checked<()> {
        let Some((parent, ragged)) = self.ragged(axes) else { return Ok(()) };
        if axes.windows(2).any(|pair| pair == [parent, ragged]) {
            return Ok(());
        }
        let (ragged, parent) = (self.axis_name(ragged).to_string(), self.axis_name(parent).to_string());
        let message = format!("the ragged axis {} must stand directly after {}", quote(&ragged), quote(&parent));
        let diagnostic = self.error("E0215", span, message);
        Err(self.report(diagnostic))
    }

    fn merge(&mut self, tensor: Tensor, name: &Ident, parts: &[Ax], span: Span) -> Checked<Tensor> {
        let Some(size) = self.numel(parts).filter(|_| self.ragged(parts).is_none()) else {
            let diagnostic = self.error("E0212", span, "these axes cannot be merged");
            return Err(self.report(diagnostic));
        };
        let into = self.found_axis(name, size)?;
        if tensor.has(into) {
            let message = format!("the result would have the axis {} twice", quote(&name.name));
            let diagnostic = self.error("E0208", name.span, message);
            return Err(self.report(diagnostic));
        }
        let op = Op::Merge { from: self.axis_ids(parts), into: self.axis_id(into) };
        self.emit(op, &[&tensor], span)
    }

    /// The axes of the left side, in order, with `..` filled in.
    fn places(&mut self, tree: &Tree, axes: &'a [Index]) -> Checked<Vec<Place<'a>>> {
        let have = tree.axes().to_vec();
        let mut places: Vec<Option<Place<'a>>> = Vec::new();
        let mut named: Vec<Ax> = Vec::new();
        for index in axes {
            let place = match index {
                Index::Rest(_) | Index::MergeRest { .. } => None,
                Index::Expr(expr) => {
                    let Some(name) = bare_name(expr) else { return Err(Reported) };
                    let axis = self.left_axis(&name, &have, &mut named)?;
                    Some(Place::Axis(axis))
                }
                Index::Merge { name, parts, span } => {
                    let parts =
                        parts.iter().map(|p| self.left_axis(p, &have, &mut named)).collect::<Checked<Vec<Ax>>>()?;
                    Some(Place::Merge(name, parts, *span))
                }
                Index::Split { .. } | Index::SplitRest(_) | Index::Slice { .. } => return Err(Reported),
            };
            places.push(place);
        }
        let allowed = &self.frame().rest;
        let rest: Vec<Ax> = have.iter().copied().filter(|a| allowed.contains(a) && !named.contains(a)).collect();
        let mut filled = Vec::new();
        for (place, index) in places.into_iter().zip(axes) {
            match (place, index) {
                (Some(place), _) => filled.push(place),
                (None, Index::MergeRest { name, span }) => {
                    if rest.is_empty() {
                        let diagnostic =
                            self.error("E0212", *span, "`..` stands for no axes here: there is nothing to merge");
                        return Err(self.report(diagnostic));
                    }
                    filled.push(Place::Merge(name, rest.clone(), *span));
                }
                (None, _) => filled.extend(rest.iter().map(|&a| Place::Axis(a))),
            }
        }
        Ok(filled)
    }

    /// An axis named on the left, which the right side must have.
    fn left_axis(&mut self, name: &Ident, have: &[Ax], named: &mut Vec<Ax>) -> Checked<Ax> {
        let axis = self.need_axis(name)?;
        let quoted = quote(&name.name);
        if named.contains(&axis) {
            let diagnostic = self.error("E0208", name.span, format!("axis {quoted} twice"));
            return Err(self.report(diagnostic));
        }
        if !have.contains(&axis) {
            let mut diagnostic = self
                .error("E0206", name.span, format!("the right side has no axis {quoted}"))
                .label(format!("its axes are {}", self.list(have)));
            diagnostic.help = self.hidden_help(have, axis, &name.name);
            return Err(self.report(diagnostic));
        }
        named.push(axis);
        Ok(axis)
    }

    /// Evaluates the leaves of an expression.
    fn tree(&mut self, expr: &'a Expr) -> Checked<Tree> {
        self.deeper(expr.span, |cx| cx.tree_here(expr))
    }

    fn tree_here(&mut self, expr: &'a Expr) -> Checked<Tree> {
        let span = expr.span;
        match &expr.kind {
            ExprKind::Paren(inner) => Ok(match self.tree(inner)? {
                leaf @ Tree::Leaf(..) => leaf,
                tree => Tree::Paren(Box::new(tree)),
            }),
            ExprKind::Unary(op, a) => match self.tree(a)? {
                Tree::Leaf(value @ Value::Const(_), _) => Ok(Tree::Leaf(self.unary(*op, value, None, span)?, span)),
                a => Ok(Tree::Unary(*op, Box::new(a), span)),
            },
            ExprKind::Binary(op, a, b) => {
                let a = self.tree(a);
                let left = match &a {
                    Ok(Tree::Leaf(value, _)) => Ok(value.clone()),
                    _ => Err(Reported),
                };
                if let Some(decided) = self.short_circuit(*op, &left) {
                    return Ok(Tree::Leaf(decided, span));
                }
                let (b, a) = (self.tree(b), a?);
                let b = b?;
                if let (Tree::Leaf(x @ Value::Const(_), _), Tree::Leaf(y @ Value::Const(_), _)) = (&a, &b) {
                    return Ok(Tree::Leaf(self.binary(*op, x.clone(), y.clone(), None, span)?, span));
                }
                let axes = union(a.axes(), b.axes());
                Ok(Tree::Binary(*op, Box::new(a), Box::new(b), span, axes))
            }
            _ => {
                let value = self.eval(expr)?;
                Ok(Tree::Leaf(self.plain(value, span)?, span))
            }
        }
    }

    /// Emits the operators. The result has the axes in `keep` only.
    fn emit_tree(&mut self, tree: Tree, keep: &[Ax], order: Option<&[Ax]>) -> Checked<Value> {
        match tree {
            Tree::Leaf(value, span) => {
                if let Value::Tensor(tensor) = &value
                    && let Some(&axis) = tensor.axes.iter().find(|a| !keep.contains(a))
                {
                    return Err(self.not_summed(axis, span));
                }
                Ok(value)
            }
            Tree::Paren(inner) => self.emit_tree(*inner, keep, order),
            Tree::Unary(op, a, span) => {
                let a = self.emit_tree(*a, keep, order)?;
                self.unary(op, a, order, span)
            }
            Tree::Binary(op, a, b, span, axes) => {
                let sums = axes.iter().any(|a| !keep.contains(a));
                if sums && matches!(op, ast::BinaryOp::Mul | ast::BinaryOp::Div) {
                    return self.product(Tree::Binary(op, a, b, span, axes), keep, order, span);
                }
                let a = self.emit_tree(*a, keep, order);
                let b = self.emit_tree(*b, keep, order);
                self.binary(op, a?, b?, order, span)
            }
        }
    }

    /// An axis is absent on the left, and no product sums it.
    fn not_summed(&mut self, axis: Ax, span: Span) -> Reported {
        let name = self.axis_name(axis).to_string();
        let text = short(self.text(span));
        let message = format!("axis {} is absent on the left, but only {} has it", quote(&name), quote(text));
        let help = format!("write the sum: `sum({text} over {name})`, or keep the axis on the left");
        let diagnostic = self.error("E0205", span, message).label("only products are summed by themselves").help(help);
        self.report(diagnostic)
    }

    /// A product some of whose axes are summed.
    fn product(&mut self, tree: Tree, keep: &[Ax], order: Option<&[Ax]>, span: Span) -> Checked<Value> {
        let (mut factors, mut divisors) = (Vec::new(), Vec::new());
        flatten(tree, &mut factors, &mut divisors);
        self.check_divisors(&factors, &divisors, keep)?;
        let (constants, factors): (Vec<Tree>, Vec<Tree>) = factors.into_iter().partition(Tree::constant);
        // What other factors have as well is this product's to sum, not a factor's own.
        let kept_in: Vec<Vec<Ax>> = (0..factors.len())
            .map(|i| {
                let others = factors.iter().enumerate().filter(|(j, _)| *j != i);
                others.fold(keep.to_vec(), |all, (_, factor)| union(&all, factor.axes()))
            })
            .collect();
        let mut values: Vec<(Value, Span)> = Vec::new();
        for (factor, kept) in factors.into_iter().zip(&kept_in) {
            let at = factor.span();
            values.push((self.emit_tree(factor, kept, None)?, at));
        }
        let mut value = self.contract_all(values, keep, order, span)?;
        for constant in constants {
            let constant = self.emit_tree(constant, keep, None)?;
            value = self.binary(ast::BinaryOp::Mul, value, constant, order, span)?;
        }
        for divisor in divisors {
            let divisor = self.emit_tree(divisor, keep, None)?;
            value = self.binary(ast::BinaryOp::Div, value, divisor, order, span)?;
        }
        Ok(value)
    }

    fn check_divisors(&mut self, factors: &[Tree], divisors: &[Tree], keep: &[Ax]) -> Checked<()> {
        for divisor in divisors {
            let summed = |a: &&Ax| !keep.contains(a) && factors.iter().any(|f| f.axes().contains(a));
            if let Some(&axis) = divisor.axes().iter().find(summed) {
                let name = self.axis_name(axis).to_string();
                let diagnostic = self
                    .error(
                        "E0216",
                        divisor.span(),
                        format!("the divisor has the axis {}, which is summed", quote(&name)),
                    )
                    .help(format!(
                        "write the sum, `sum(… over {name})`, or put the quotient in parentheses, `a * (b / c)`"
                    ));
                return Err(self.report(diagnostic));
            }
        }
        Ok(())
    }

    /// Multiplies factors from left to right. An absent axis is summed as soon as no later factor has it.
    fn contract_all(
        &mut self,
        values: Vec<(Value, Span)>,
        keep: &[Ax],
        order: Option<&[Ax]>,
        span: Span,
    ) -> Checked<Value> {
        let plain: Vec<Value> = values.iter().map(|(v, _)| v.clone()).collect();
        let dtype = self.common_dtype(&plain, super::operators::Want::Number, span)?;
        // Contractions are a matter of floats.
        let dtype = if dtype == DType::I32 { self.options.wide } else { dtype };
        let mut factors = Vec::new();
        for (value, at) in &values {
            factors.push((self.convert(value, dtype, *at)?, *at));
        }
        self.every_sum_has_two(&factors, keep)?;
        let mut rest = factors.into_iter();
        let Some((mut product, _)) = rest.next() else { return Err(Reported) };
        while let Some((factor, _)) = rest.next() {
            let later = |axis: Ax| rest.as_slice().iter().any(|(f, _)| f.has(axis));
            let over: Vec<Ax> =
                product.axes.iter().copied().filter(|&a| factor.has(a) && !keep.contains(&a) && !later(a)).collect();
            self.same_groups(&[&product, &factor], span)?;
            product = if over.is_empty() {
                self.emit_toward(Op::Binary(forebay_ir::BinaryOp::Mul), &[&product, &factor], order, span)?
            } else {
                self.whole_groups(&[&product, &factor], &over, span)?;
                let over = self.axis_set(&over);
                self.emit_toward(Op::Contract { over }, &[&product, &factor], order, span)?
            };
        }
        Ok(Value::Tensor(product))
    }

    fn every_sum_has_two(&mut self, factors: &[(Tensor, Span)], keep: &[Ax]) -> Checked<()> {
        for (factor, span) in factors {
            for &axis in factor.axes.iter().filter(|a| !keep.contains(a)) {
                if factors.iter().filter(|(f, _)| f.has(axis)).count() == 1 {
                    return Err(self.not_summed(axis, *span));
                }
            }
        }
        Ok(())
    }

    /// The parent of a ragged axis is not summed without it.
    pub(super) fn whole_groups(&mut self, tensors: &[&Tensor], over: &[Ax], span: Span) -> Checked<()> {
        for tensor in tensors {
            if let Some((parent, ragged)) = self.ragged(&tensor.axes)
                && over.contains(&parent)
                && !over.contains(&ragged)
            {
                let (parent, ragged) = (self.axis_name(parent).to_string(), self.axis_name(ragged).to_string());
                let message = format!("{} is summed, but its ragged axis {} is not", quote(&parent), quote(&ragged));
                let diagnostic = self.error("E0215", span, message);
                return Err(self.report(diagnostic));
            }
        }
        Ok(())
    }
}

/// Splits a product into factors and divisors, in order.
fn flatten(tree: Tree, factors: &mut Vec<Tree>, divisors: &mut Vec<Tree>) {
    match tree {
        Tree::Binary(ast::BinaryOp::Mul, a, b, ..) => {
            flatten(*a, factors, divisors);
            flatten(*b, factors, divisors);
        }
        Tree::Binary(ast::BinaryOp::Div, a, b, ..) => {
            flatten(*a, factors, divisors);
            divisors.push(*b);
        }
        other => factors.push(other),
    }
}

/// The axes of `a`, then those that `b` adds.
fn union(a: &[Ax], b: &[Ax]) -> Vec<Ax> {
    let mut all = a.to_vec();
    all.extend(b.iter().filter(|x| !a.contains(x)));
    all
}

/// A piece of source for a suggestion.
fn short(text: &str) -> &str {
    if text.len() > 40 || text.contains('\n') { "…" } else { text }
}
