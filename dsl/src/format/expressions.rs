//! Expressions and what stands in their brackets.

use super::comments::{Breaks, Printer};
use super::doc::{Doc, docs};
use super::place::Place;
use crate::ast::{Arg, AxisDecl, BinaryOp, Call, Expr, ExprKind, Index, OverAxis, UnaryOp};

/// Operators of one level are set below each other when their chain is broken.
fn level(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::Or => 1,
        BinaryOp::And => 2,
        BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => 3,
        BinaryOp::Add | BinaryOp::Sub => 4,
        BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem => 5,
        BinaryOp::Pow => 6,
    }
}

fn spelling(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Add => "+ ",
        BinaryOp::Sub => "- ",
        BinaryOp::Mul => "* ",
        BinaryOp::Div => "/ ",
        BinaryOp::Rem => "% ",
        BinaryOp::Pow => "^ ",
        BinaryOp::Eq => "== ",
        BinaryOp::Ne => "!= ",
        BinaryOp::Lt => "< ",
        BinaryOp::Le => "<= ",
        BinaryOp::Gt => "> ",
        BinaryOp::Ge => ">= ",
        BinaryOp::And => "and ",
        BinaryOp::Or => "or ",
    }
}

/// In `x + f(…)` with a short `x`, a long call is broken inside its parentheses instead of before the operator.
fn is_short(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Name(_) | ExprKind::Int(_) | ExprKind::Float(_) => expr.span.end - expr.span.start <= MAX_SHORT,
        ExprKind::Unary(_, value) => is_short(value),
        _ => false,
    }
}

const MAX_SHORT: u32 = 16;

impl<'a> Printer<'a> {
    pub fn expr(&mut self, expr: &'a Expr) -> Doc<'a> {
        match &expr.kind {
            ExprKind::Int(_)
            | ExprKind::Float(_)
            | ExprKind::Str(_)
            | ExprKind::Bool(_)
            | ExprKind::None
            | ExprKind::Name(_)
            | ExprKind::Rest
            | ExprKind::Error => self.token(expr.span),
            ExprKind::Unary(op, value) => {
                let comments = self.flush(value.first_token());
                let op = match op {
                    UnaryOp::Neg => "-",
                    UnaryOp::Not => "not ",
                };
                docs![comments, Doc::Text(op), self.expr(value)]
            }
            ExprKind::Binary(op, left, right) => self.chain(*op, left, right),
            ExprKind::At { value, rows } => {
                let value = self.expr(value);
                let rows = self.clause("at ", rows.first_token(), |p| p.expr(rows));
                Doc::group(docs![value, Doc::indent(rows)])
            }
            ExprKind::Read(value, indices) | ExprKind::Shape(value, indices) => {
                docs![self.expr(value), self.indices(indices, expr.span.end - 1)]
            }
            ExprKind::Paren(value) => {
                let before = self.flush(expr.span.start);
                let open = self.flush(value.first_token());
                let value = self.expr(value);
                let close = self.flush(expr.span.end - 1);
                if open.is_nil() && close.is_nil() {
                    return docs![before, Doc::Text("("), value, Doc::Text(")")];
                }
                let inner = Doc::indent(docs![open, Doc::HardLine, value, close]);
                docs![before, Doc::Text("("), inner, Doc::HardLine, Doc::Text(")")]
            }
            ExprKind::Call(call) => self.call(call, expr.span.end - 1),
        }
    }

    /// `a + b - c`: one chain of operators of one level. The left operands are the deep ones, so they are walked in a loop.
    fn chain(&mut self, op: BinaryOp, left: &'a Expr, right: &'a Expr) -> Doc<'a> {
        let mut first = left;
        let mut operands = vec![(op, right)];
        while let ExprKind::Binary(inner, left, right) = &first.kind {
            if level(*inner) != level(op) || op == BinaryOp::Pow {
                break;
            }
            operands.push((*inner, right));
            first = left;
        }
        let first_doc = self.expr(first);
        if let ([(op, last)], true) = (&operands[..], is_short(first)) {
            let comments = self.flush(last.first_token());
            if comments.is_nil() && matches!(last.kind, ExprKind::Call(_)) {
                return docs![first_doc, Doc::Text(" "), Doc::Text(spelling(*op)), self.expr(last)];
            }
            let rest = docs![comments, Doc::Line, Doc::Text(spelling(*op)), self.expr(last)];
            return Doc::group(docs![first_doc, Doc::indent(rest)]);
        }
        let rest = operands
            .into_iter()
            .rev()
            .map(|(op, operand)| self.clause(spelling(op), operand.first_token(), |p| p.expr(operand)));
        let rest = Doc::Concat(rest.collect());
        Doc::group(docs![first_doc, Doc::indent(rest)])
    }

    /// A word or operator on this line or the next, and what follows it; `at` is where that starts. Comments go before the
    /// word: it may start a line, while what follows may have to stand on the same one.
    pub fn clause(&mut self, word: &'static str, at: u32, rest: impl FnOnce(&mut Self) -> Doc<'a>) -> Doc<'a> {
        let comments = self.flush(at);
        docs![comments, Doc::Line, Doc::Text(word), rest(self)]
    }

    /// ` = value`; after a comment the value stands on the next line.
    pub fn equals(&mut self, value: &'a Expr) -> Doc<'a> {
        let comments = self.flush(value.first_token());
        if comments.is_nil() {
            return docs![Doc::Text(" = "), self.expr(value)];
        }
        docs![Doc::Text(" ="), Doc::indent(docs![comments, Doc::HardLine, self.expr(value)])]
    }

    fn call(&mut self, call: &'a Call, end: u32) -> Doc<'a> {
        let name = self.ident(&call.name);
        let label = match &call.label {
            Some(label) => docs![Doc::Text("@"), self.ident(label)],
            None => Doc::Nil,
        };
        docs![name, label, self.list(("(", ")"), end, Breaks::Reflow, &call.args, Self::arg)]
    }

    fn arg(&mut self, arg: &'a Arg) -> Doc<'a> {
        let mut docs = match &arg.name {
            Some(name) => vec![self.ident(name), self.equals(&arg.value)],
            None => vec![self.expr(&arg.value)],
        };
        if let Some(size) = &arg.size {
            docs.push(Doc::Text(": "));
            docs.push(self.expr(size));
        }
        let mut clauses = Vec::new();
        if let Some(OverAxis::Rest(span) | OverAxis::Name(crate::ast::Ident { span, .. })) = arg.over.first() {
            clauses.push(self.clause("over ", span.start, |p| p.over(&arg.over)));
        }
        if let Some(into) = &arg.into {
            clauses.push(self.clause("into ", into.name.span.start, |p| p.axis_decl(into)));
        }
        if let Some(renamed) = &arg.renamed {
            clauses.push(self.clause("as ", renamed.span.start, |p| p.ident(renamed)));
        }
        if clauses.is_empty() {
            return Doc::Concat(docs);
        }
        docs.push(Doc::indent(Doc::Concat(clauses)));
        Doc::group(Doc::Concat(docs))
    }

    fn over(&mut self, axes: &'a [OverAxis]) -> Doc<'a> {
        let mut docs = Vec::new();
        for (i, axis) in axes.iter().enumerate() {
            if i > 0 {
                docs.push(Doc::Text(", "));
            }
            docs.push(match axis {
                OverAxis::Rest(span) => self.token(*span),
                OverAxis::Name(name) => self.ident(name),
            });
        }
        Doc::Concat(docs)
    }

    /// `[…]`; `end` is where the closing bracket stands.
    pub fn indices(&mut self, indices: &'a [Index], end: u32) -> Doc<'a> {
        self.list(("[", "]"), end, Breaks::Reflow, indices, Self::index)
    }

    fn index(&mut self, index: &'a Index) -> Doc<'a> {
        match index {
            Index::Rest(span) => self.token(*span),
            Index::Split { parts, span } => self.list(("(", ")"), span.end - 1, Breaks::Reflow, parts, Self::axis_decl),
            Index::SplitRest(span) => docs![self.flush(span.end), Doc::Text("(..)")],
            Index::Merge { name, parts, span } => {
                let name = self.ident(name);
                let print = |p: &mut Self, part: &'a crate::ast::Ident| p.ident(part);
                let parts = self.list(("(", ")"), span.end - 1, Breaks::Reflow, parts, print);
                docs![name, Doc::Text(": "), parts]
            }
            Index::MergeRest { name, span } => {
                docs![self.ident(name), Doc::Text(": "), self.flush(span.end), Doc::Text("(..)")]
            }
            Index::Slice { name, from, to } => {
                docs![self.ident(name), Doc::Text(": "), self.expr(from), Doc::Text(".."), self.expr(to)]
            }
            Index::Expr(expr) => self.expr(expr),
        }
    }

    pub fn axis_decl(&mut self, axis: &'a AxisDecl) -> Doc<'a> {
        let name = self.ident(&axis.name);
        match &axis.size {
            Some(size) => docs![name, Doc::Text(": "), self.expr(size)],
            None => name,
        }
    }
}
