//! What stands in brackets: arguments, indices, axes.

use super::words::takes_several_axes;
use super::{Failed, Parse, Parser};
use crate::ast::{Arg, AxisDecl, Expr, ExprKind, Ident, Index, OverAxis, Span};
use crate::diagnostics::Diagnostic;
use crate::lex::TokenKind;

/// What a list of indices does: the forms that are allowed differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// `T[i, (a, b), s: 1..n]`: by position.
    Read,
    /// `y[i, m: (a, b)] = …` and `(e)[i, j]`: by name.
    Define,
}

impl Parser<'_> {
    /// A bracketed list, from the opening bracket on. An item that fails is replaced by `broken`, and the list goes on after
    /// the next comma. A comma after the last item is allowed.
    pub(super) fn list<T>(
        &mut self,
        close: TokenKind,
        mut item: impl FnMut(&mut Self) -> Parse<T>,
        broken: impl Fn(Span) -> Option<T>,
    ) -> Parse<Vec<T>> {
        let open_index = self.pos;
        self.bump();
        let mut items = Vec::new();
        while !self.at(close) && !self.full() {
            let start = self.span();
            match item(self) {
                Ok(value) => items.push(value),
                Err(Failed) => {
                    self.skip_item(open_index)?;
                    items.extend(broken(self.span_from(start)));
                }
            }
            if self.eat(TokenKind::Comma) {
                continue;
            }
            if self.at(close) || self.at_statement_end() {
                break;
            }
            self.unclosed(close, open_index, "`,` or ");
            self.skip_item(open_index)?;
            self.eat(TokenKind::Comma);
        }
        self.close(close, open_index, "")?;
        Ok(items)
    }

    /// Complains about the second `..` of a list.
    pub(super) fn one_rest(&mut self, rests: impl Iterator<Item = Span>) {
        let rests: Vec<Span> = rests.take(2).collect();
        if let [first, second] = rests[..] {
            let diagnostic = Diagnostic::error("E0110", self.id, second, "two `..` in one list")
                .label("which axes each stands for is not clear")
                .secondary(first, "the first one");
            self.report_again(diagnostic);
        }
    }

    /// `[d, e: experts]` of a declaration.
    pub(super) fn axis_decls(&mut self) -> Parse<Vec<AxisDecl>> {
        self.list(TokenKind::CloseBracket, Self::axis_decl, |_| None)
    }

    /// `d` or `e: experts`.
    pub(super) fn axis_decl(&mut self) -> Parse<AxisDecl> {
        if self.at(TokenKind::Int) || self.at(TokenKind::DotDot) {
            let found = self.found();
            let diagnostic = self.error("E0101", format!("expected the name of an axis, found {found}"));
            return Err(self.report(diagnostic.help("an axis has a name, and a size after a colon: `e: 8`")));
        }
        let name = self.name_of("an axis")?;
        let size = if self.eat(TokenKind::Colon) { Some(self.expr()?) } else { None };
        Ok(AxisDecl { name, size })
    }

    /// The arguments of a call of `callee`, from `(` on.
    pub(super) fn args(&mut self, callee: &str) -> Parse<Vec<Arg>> {
        let several = takes_several_axes(callee);
        self.list(TokenKind::CloseParen, |p| p.arg(several), |span| Some(plain_arg(span)))
    }

    fn arg(&mut self, several: bool) -> Parse<Arg> {
        let start = self.span();
        let mut arg = plain_arg(start);
        if self.at(TokenKind::Ident) && self.nth(1) == TokenKind::Assign {
            arg.name = Some(self.name_of("an argument")?);
            self.bump();
        }
        if self.at(TokenKind::DotDot) {
            let span = self.bump().span;
            arg.value = Expr { kind: ExprKind::Rest, span };
        } else {
            arg.value = self.expr()?;
            if arg.name.is_none() && matches!(arg.value.kind, ExprKind::Name(_)) && self.eat(TokenKind::Colon) {
                arg.size = Some(self.expr()?);
            }
        }
        if self.eat_word("over") {
            arg.over = self.over(several)?;
        }
        if self.eat_word("into") {
            arg.into = Some(self.axis_decl()?);
        }
        if self.eat_word("as") {
            arg.renamed = Some(self.name_of("an axis")?);
        }
        arg.span = self.span_from(start);
        Ok(arg)
    }

    /// The axes after `over`. Only reductions take several; elsewhere the comma is the argument list's.
    fn over(&mut self, several: bool) -> Parse<Vec<OverAxis>> {
        let mut axes = vec![self.over_axis()?];
        while several && self.at(TokenKind::Comma) && self.comma_continues_over() {
            self.bump();
            axes.push(self.over_axis()?);
        }
        self.one_rest(axes.iter().filter_map(|axis| match axis {
            OverAxis::Rest(span) => Some(*span),
            OverAxis::Name(_) => None,
        }));
        Ok(axes)
    }

    fn comma_continues_over(&self) -> bool {
        match self.nth(1) {
            TokenKind::DotDot => true,
            TokenKind::Ident => match self.nth(2) {
                TokenKind::Comma | TokenKind::CloseParen => true,
                TokenKind::Ident => matches!(self.nth_text(2), "as" | "into" | "at"),
                _ => false,
            },
            _ => false,
        }
    }

    fn over_axis(&mut self) -> Parse<OverAxis> {
        if self.at(TokenKind::DotDot) {
            return Ok(OverAxis::Rest(self.bump().span));
        }
        if self.at(TokenKind::OpenParen) || self.at(TokenKind::OpenBracket) {
            let diagnostic = self.error("E0116", "the axes after `over` are written without brackets");
            return Err(self.report(diagnostic.help("write `over a, b`")));
        }
        Ok(OverAxis::Name(self.ident("the name of an axis after `over`")?))
    }

    /// The indices of a reading or a definition, from `[` on.
    pub(super) fn indices(&mut self, place: Place) -> Parse<Vec<Index>> {
        let broken = |span| Some(Index::Expr(Expr { kind: ExprKind::Error, span }));
        let indices = self.list(TokenKind::CloseBracket, |p| p.index(place), broken)?;
        self.one_rest(indices.iter().filter_map(|index| match index {
            Index::Rest(span) => Some(*span),
            _ => None,
        }));
        Ok(indices)
    }

    fn index(&mut self, place: Place) -> Parse<Index> {
        let start = self.span();
        let index = self.index_form()?;
        let message = match (place, &index) {
            (Place::Define, Index::Split { .. } | Index::SplitRest(_)) => "an axis is split when it is read, not here",
            (Place::Define, Index::Slice { .. }) => "a slice is read, it cannot be defined",
            (Place::Define, Index::Expr(Expr { kind: ExprKind::Name(_) | ExprKind::Error, .. })) => return Ok(index),
            (Place::Define, Index::Expr(_)) => "a definition lists the names of its axes",
            (Place::Read, Index::Merge { .. } | Index::MergeRest { .. }) => {
                "axes are merged where they are defined, not where they are read"
            }
            _ => return Ok(index),
        };
        let help = match (place, &index) {
            (Place::Read, _) => "put parentheses around it to make it a definition: `(x)[.., m: (a, b)]`",
            (_, Index::Split { .. } | Index::SplitRest(_)) => {
                "merge axes with `m: (a, b)`, or split on the right: `x[(a, b)]`"
            }
            (_, Index::Slice { .. }) => "read the slice on the right: `y = x[s: 1..n]`",
            _ => "read a single element on the right: `y = x[0]`",
        };
        let diagnostic = Diagnostic::error("E0114", self.id, self.span_from(start), message);
        self.report_again(diagnostic.help(help));
        Ok(Index::Expr(Expr { kind: ExprKind::Error, span: self.span_from(start) }))
    }

    fn index_form(&mut self) -> Parse<Index> {
        if self.at(TokenKind::DotDot) {
            return Ok(Index::Rest(self.bump().span));
        }
        if self.at(TokenKind::OpenParen) {
            if self.at_parenthesised_rest(0) {
                return Ok(Index::SplitRest(self.parenthesised_rest()));
            }
            // `(i)` is an expression in parentheses; a split has a comma or a size.
            if self.nth(1) == TokenKind::Ident && matches!(self.nth(2), TokenKind::Comma | TokenKind::Colon) {
                let start = self.span();
                let parts = self.list(TokenKind::CloseParen, Self::axis_decl, |_| None)?;
                let span = self.span_from(start);
                if let [AxisDecl { size: None, .. }] = parts[..] {
                    let diagnostic = Diagnostic::error("E0114", self.id, span, "a split into one axis");
                    self.report_again(diagnostic.help("without parentheses, the axis gets a new name"));
                }
                return Ok(Index::Split { parts, span });
            }
        }
        if self.at(TokenKind::Ident) && self.nth(1) == TokenKind::Colon {
            return self.named_index();
        }
        let value = self.expr()?;
        if self.at(TokenKind::DotDot) {
            let diagnostic = self.error("E0114", "a slice needs a name for its axis");
            return Err(self.report(diagnostic.help("write `s: 1..n`")));
        }
        Ok(Index::Expr(value))
    }

    /// `m: (h, dh)`, `n: (..)`, `s: 1..seq`.
    fn named_index(&mut self) -> Parse<Index> {
        let name = self.name_of("an axis")?;
        self.bump();
        if self.at_parenthesised_rest(0) {
            let parens = self.parenthesised_rest();
            return Ok(Index::MergeRest { span: name.span.to(parens), name });
        }
        if self.at_merge() {
            let parts = self.list(TokenKind::CloseParen, |p| p.name_of("an axis"), |_| None)?;
            return Ok(Index::Merge { span: self.span_from(name.span), name, parts });
        }
        let from = self.expr()?;
        if !self.at(TokenKind::DotDot) {
            let found = self.found();
            let diagnostic = self.error("E0114", format!("expected `..`, found {found}"));
            return Err(self.report(diagnostic.help(slice_help(&name))));
        }
        self.bump();
        let to = self.expr()?;
        Ok(Index::Slice { name, from, to })
    }

    fn at_parenthesised_rest(&self, n: usize) -> bool {
        self.nth(n) == TokenKind::OpenParen
            && self.nth(n + 1) == TokenKind::DotDot
            && self.nth(n + 2) == TokenKind::CloseParen
    }

    /// Takes `(..)`.
    fn parenthesised_rest(&mut self) -> Span {
        let start = self.bump().span;
        self.bump();
        self.bump();
        self.span_from(start)
    }

    /// `(a, …` or `(a)` that is not the start of an expression such as `(a)..n` or `(a) + 1..n`.
    fn at_merge(&self) -> bool {
        self.at(TokenKind::OpenParen)
            && self.nth(1) == TokenKind::Ident
            && match self.nth(2) {
                TokenKind::Comma => true,
                TokenKind::CloseParen => matches!(self.nth(3), TokenKind::Comma | TokenKind::CloseBracket),
                _ => false,
            }
    }
}

fn slice_help(name: &Ident) -> String {
    let name = &name.name;
    format!(
        "a slice is written `{name}: from..to`; sizes are only given to the axes of parameters, inputs and new axes"
    )
}

/// An argument without any clause; the caller sets the value.
fn plain_arg(span: Span) -> Arg {
    let value = Expr { kind: ExprKind::Error, span };
    Arg { name: None, value, size: None, over: Vec::new(), into: None, renamed: None, span }
}
