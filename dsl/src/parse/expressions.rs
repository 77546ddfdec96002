//! Expressions: precedence climbing. Binding, from weak to strong: `at`; `or`; `and`; `not`; comparisons; `+ -`; `* / %`;
//! unary `-`; `^` (to the right); calls and brackets.

use super::lists::Place;
use super::{MAX_DEPTH, MAX_HEIGHT, Parse, Parser};
use crate::ast::{BinaryOp, Call, Expr, ExprKind, Span, UnaryOp};
use crate::diagnostics::{Diagnostic, quote};
use crate::lex::TokenKind;

/// How strongly an operator binds.
type Level = u8;
const WEAKEST: Level = 1;
const NOT: Level = 3;
const COMPARE: Level = 4;
const NEGATE: Level = 7;
const POWER: Level = 8;

fn binary_operator(kind: TokenKind) -> Option<(BinaryOp, Level)> {
    Some(match kind {
        TokenKind::Or => (BinaryOp::Or, WEAKEST),
        TokenKind::And => (BinaryOp::And, 2),
        TokenKind::Equal => (BinaryOp::Eq, COMPARE),
        TokenKind::NotEqual => (BinaryOp::Ne, COMPARE),
        TokenKind::Less => (BinaryOp::Lt, COMPARE),
        TokenKind::LessEqual => (BinaryOp::Le, COMPARE),
        TokenKind::Greater => (BinaryOp::Gt, COMPARE),
        TokenKind::GreaterEqual => (BinaryOp::Ge, COMPARE),
        TokenKind::Plus => (BinaryOp::Add, 5),
        TokenKind::Minus => (BinaryOp::Sub, 5),
        TokenKind::Star => (BinaryOp::Mul, 6),
        TokenKind::Slash => (BinaryOp::Div, 6),
        TokenKind::Percent => (BinaryOp::Rem, 6),
        TokenKind::Caret => (BinaryOp::Pow, POWER),
        _ => return None,
    })
}

impl Parser<'_> {
    /// An expression, with `x at rows`.
    pub(super) fn expr(&mut self) -> Parse<Expr> {
        let outer = std::mem::take(&mut self.tallest);
        let value = self.binary(WEAKEST);
        let result = match value {
            Ok(value) if self.eat_clause("at") => self.at_rows(value),
            other => other,
        };
        self.tallest = self.tallest.max(outer);
        result
    }

    fn at_rows(&mut self, value: Expr) -> Parse<Expr> {
        let rows = self.binary(WEAKEST)?;
        if self.at_word("at") {
            let diagnostic = self.error("E0115", "`at` twice in one expression");
            return Err(self.report(diagnostic.help("put the first in parentheses: `(x at a) at b`")));
        }
        let span = value.span.to(rows.span);
        self.node(ExprKind::At { value: Box::new(value), rows: Box::new(rows) }, span)
    }

    /// Operators that bind at least as strongly as `min`. Every recursion of the expression rules goes through here.
    fn binary(&mut self, min: Level) -> Parse<Expr> {
        if self.depth >= MAX_DEPTH {
            return Err(self.too_deep());
        }
        self.depth += 1;
        let outer = std::mem::take(&mut self.tallest);
        let result = self.climb(min);
        self.tallest = self.tallest.max(outer);
        self.depth -= 1;
        result
    }

    fn climb(&mut self, min: Level) -> Parse<Expr> {
        let mut left = self.operand(min)?;
        let mut compared: Option<Span> = None;
        while let Some((op, level)) = binary_operator(self.kind()).filter(|&(_, level)| level >= min) {
            if level == COMPARE {
                self.one_comparison(compared);
                compared = Some(self.span());
            }
            self.bump();
            // `^` groups to the right, the others to the left.
            let right = self.binary(if level == POWER { POWER } else { level + 1 })?;
            let span = left.span.to(right.span);
            left = self.node(ExprKind::Binary(op, Box::new(left), Box::new(right)), span)?;
        }
        Ok(left)
    }

    fn one_comparison(&mut self, previous: Option<Span>) {
        if let Some(previous) = previous {
            let diagnostic = self
                .error("E0113", "comparisons cannot be chained")
                .label("the second comparison")
                .secondary(previous, "the first")
                .help("write `a < b and b < c`");
            self.report(diagnostic);
        }
    }

    fn operand(&mut self, min: Level) -> Parse<Expr> {
        let start = self.span();
        let (op, level) = match self.kind() {
            TokenKind::Minus => (UnaryOp::Neg, NEGATE),
            TokenKind::Not => (UnaryOp::Not, NOT),
            _ => return self.postfix(),
        };
        if op == UnaryOp::Not && min > NOT {
            let diagnostic = self.error("E0115", "`not` binds less strongly than the operator before it");
            self.report(diagnostic.help("put it in parentheses: `(not …)`"));
        }
        self.bump();
        let value = self.binary(level)?;
        let span = start.to(value.span);
        self.node(ExprKind::Unary(op, Box::new(value)), span)
    }

    /// A primary with brackets after it.
    fn postfix(&mut self) -> Parse<Expr> {
        let mut value = self.primary()?;
        loop {
            match self.kind() {
                TokenKind::OpenBracket => value = self.bracketed(value)?,
                TokenKind::OpenParen => {
                    let diagnostic = self.error("E0101", "only a block or a function can be called");
                    return Err(self.report(diagnostic.help("`*` multiplies: `a * (b)`")));
                }
                _ => return Ok(value),
            }
        }
    }

    fn bracketed(&mut self, value: Expr) -> Parse<Expr> {
        let place = match value.kind {
            ExprKind::Paren(_) => Place::Define,
            ExprKind::Name(_) | ExprKind::Call(_) | ExprKind::Read(..) | ExprKind::Shape(..) | ExprKind::Error => {
                Place::Read
            }
            _ => {
                let what = quote(self.slice(value.span));
                let diagnostic = self.error("E0101", format!("{what} is not a tensor, it has no axes to read"));
                return Err(self.report(diagnostic));
            }
        };
        let indices = self.indices(place)?;
        let span = self.span_from(value.span);
        let kind = match place {
            Place::Define => ExprKind::Shape(Box::new(value), indices),
            Place::Read => ExprKind::Read(Box::new(value), indices),
        };
        self.node(kind, span)
    }

    fn primary(&mut self) -> Parse<Expr> {
        let span = self.span();
        let kind = match self.kind() {
            TokenKind::Ident => return self.name_or_call(),
            TokenKind::OpenParen => return self.parenthesised(),
            TokenKind::Int => self.int(),
            TokenKind::Float => self.float(),
            TokenKind::Str => ExprKind::Str(self.text()[1..self.text().len() - 1].to_string()),
            TokenKind::True => ExprKind::Bool(true),
            TokenKind::False => ExprKind::Bool(false),
            TokenKind::None => ExprKind::None,
            // Reported by the lexer.
            TokenKind::BadNumber | TokenKind::OpenStr => ExprKind::Error,
            _ => return Err(self.no_value()),
        };
        self.bump();
        self.tallest = self.tallest.max(1);
        Ok(Expr { kind, span })
    }

    fn no_value(&mut self) -> super::Failed {
        match self.kind() {
            TokenKind::If => {
                let diagnostic = self.error("E0101", "`if` is a statement, not part of an expression");
                let failed = self.report(diagnostic.help("`where(c, a, b)` chooses element by element"));
                self.skip_if_expression();
                failed
            }
            TokenKind::DotDot => {
                let diagnostic = self.error("E0101", "expected a value, found `..`");
                self.report(diagnostic.help("`..` stands in brackets and after `over`"))
            }
            _ => self.expected("a value"),
        }
    }

    /// Moves past `if c { a } else { b }`, which is not made of statements here.
    fn skip_if_expression(&mut self) {
        while !self.at_separator() {
            if !self.jump() {
                self.bump();
            }
        }
    }

    fn int(&mut self) -> ExprKind {
        match self.text().replace('_', "").parse() {
            Ok(value) => ExprKind::Int(value),
            Err(_) => {
                let diagnostic = self.error("E0005", "this integer is too large");
                self.report(diagnostic.help(format!("the largest is {}", i64::MAX)));
                ExprKind::Error
            }
        }
    }

    fn float(&mut self) -> ExprKind {
        match self.text().replace('_', "").parse::<f64>() {
            Ok(value) if value.is_finite() => ExprKind::Float(value),
            _ => {
                let diagnostic = self.error("E0005", "this number is too large");
                self.report(diagnostic.help("`inf` is infinity"));
                ExprKind::Error
            }
        }
    }

    fn parenthesised(&mut self) -> Parse<Expr> {
        let index = self.pos;
        let open = self.bump();
        let value = match self.expr() {
            Ok(value) => value,
            Err(failed) => {
                let start = self.span();
                self.skip_parenthesised(index).map_err(|_| failed)?;
                Expr { kind: ExprKind::Error, span: self.span_from(start) }
            }
        };
        if self.at(TokenKind::Comma) {
            let diagnostic = self.error("E0101", "parentheses hold one value");
            self.report(diagnostic.secondary(open.span, "`(` opened here"));
            self.skip_parenthesised(index)?;
        }
        if self.at(TokenKind::Assign) {
            let diagnostic = self.assign_in_expression();
            self.report(diagnostic);
            self.skip_parenthesised(index)?;
        }
        if self.close(TokenKind::CloseParen, index, "").is_err() {
            self.skip_parenthesised(index)?;
            self.bump();
        }
        let span = self.span_from(open.span);
        self.node(ExprKind::Paren(Box::new(value)), span)
    }

    /// A name, or a call: `f(…)`, `f@label(…)`.
    fn name_or_call(&mut self) -> Parse<Expr> {
        let name = self.ident("a value")?;
        let label = if self.eat(TokenKind::At) { Some(self.name_of("an instance")?) } else { None };
        if !self.at(TokenKind::OpenParen) {
            if label.is_some() {
                return Err(self.expected("`(` and the arguments of the call"));
            }
            self.tallest = self.tallest.max(1);
            return Ok(Expr { span: name.span, kind: ExprKind::Name(name.name) });
        }
        let args = self.args(&name.name)?;
        let span = self.span_from(name.span);
        self.node(ExprKind::Call(Call { name, label, args }), span)
    }

    /// Puts a node on top of the operands read so far, unless the tree gets too tall.
    fn node(&mut self, kind: ExprKind, span: Span) -> Parse<Expr> {
        if self.tallest >= MAX_HEIGHT {
            return Err(self.too_deep());
        }
        self.tallest += 1;
        Ok(Expr { kind, span })
    }

    fn too_deep(&mut self) -> super::Failed {
        let diagnostic = Diagnostic::error("E0104", self.id, self.span(), "this expression is nested too deeply")
            .label(format!("more than {MAX_DEPTH} levels of brackets or {MAX_HEIGHT} operators in a row"))
            .help("give its parts names on lines of their own");
        self.report(diagnostic)
    }
}
