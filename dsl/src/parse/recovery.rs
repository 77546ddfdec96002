//! Going on after a mistake. All skipping moves forward over tokens once, or jumps over a matched pair of brackets.

use super::brackets::UNMATCHED;
use super::{Failed, Parse, Parser};
use crate::ast::Span;
use crate::diagnostics::Diagnostic;
use crate::lex::{Token, TokenKind};

impl Parser<'_> {
    /// Moves past the matched bracket at the current token; false if there is none.
    fn jump(&mut self) -> bool {
        let partner = self.partner[self.pos];
        let forward = partner != UNMATCHED && partner as usize > self.pos;
        if forward {
            self.pos = partner as usize + 1;
        }
        forward
    }

    /// Moves to the next `,` of the list that `open` opens, or to its closing bracket. Fails if that is missing.
    pub(super) fn skip_item(&mut self, open: usize) -> Parse<()> {
        if self.partner[open] == UNMATCHED {
            return Err(Failed);
        }
        let close = self.partner[open] as usize;
        while self.pos < close && !self.at(TokenKind::Comma) {
            if !self.jump() {
                self.bump();
            }
        }
        Ok(())
    }

    /// Moves to the end of the statement. Bodies on the way are read, for the mistakes in them.
    pub(super) fn skip_statement(&mut self) {
        loop {
            match self.kind() {
                TokenKind::Newline | TokenKind::Semicolon | TokenKind::CloseBrace | TokenKind::End => return,
                TokenKind::Model | TokenKind::Block => return,
                TokenKind::OpenBrace => {
                    let _ = self.body();
                }
                _ if self.jump() => {}
                _ => {
                    self.bump();
                }
            }
        }
    }

    /// Moves to the `)` of the `(` at `open`. Fails if that is missing.
    pub(super) fn skip_parenthesised(&mut self, open: usize) -> Parse<()> {
        if self.partner[open] == UNMATCHED {
            return Err(Failed);
        }
        self.pos = self.partner[open] as usize;
        Ok(())
    }

    /// Moves past the `}` that closes the `{` at `open`, or to the next item.
    pub(super) fn skip_body(&mut self, open: usize) {
        if self.partner[open] != UNMATCHED {
            self.pos = self.partner[open] as usize + 1;
            return;
        }
        self.skip_to_item();
    }

    /// Moves to the next `model` or `block`.
    pub(super) fn skip_to_item(&mut self) {
        while !matches!(self.kind(), TokenKind::Model | TokenKind::Block | TokenKind::End) {
            if !self.jump() {
                self.bump();
            }
        }
    }

    /// Takes the bracket that closes `open`. When it is missing but nothing else is wrong (the line ends, or the token at
    /// `open` has no partner at all), says so and goes on as if it were there.
    pub(super) fn close(&mut self, kind: TokenKind, open: Token, separator: &str) -> Parse<()> {
        if self.eat(kind) {
            return Ok(());
        }
        let closing = if kind == TokenKind::CloseParen { "`)`" } else { "`]`" };
        if !self.at_statement_end() {
            return Err(self.expected(&format!("{separator}{closing}")));
        }
        let end = self.last_end();
        let opening = if kind == TokenKind::CloseParen { "`(`" } else { "`[`" };
        let diagnostic =
            Diagnostic::error("E0102", self.id, Span { start: end, end }, format!("this {opening} is not closed"));
        self.report(
            diagnostic.label(format!("expected {closing}")).secondary(open.span, format!("{opening} opened here")),
        );
        Ok(())
    }

    /// At something that can only follow a complete statement.
    pub(super) fn at_statement_end(&self) -> bool {
        let kind = self.kind();
        kind.starts_statement()
            || matches!(
                kind,
                TokenKind::Newline
                    | TokenKind::Semicolon
                    | TokenKind::OpenBrace
                    | TokenKind::CloseBrace
                    | TokenKind::End
            )
    }

    /// The `}` of the body that `open` starts is missing. Of several such, the one that the indentation betrays is named.
    pub(super) fn missing_brace(&mut self, open: Token) {
        if std::mem::replace(&mut self.brace_reported, true) {
            return;
        }
        let open = self.suspicious_brace.map_or(open, |i| self.tokens[i as usize]);
        let end = self.last_end();
        let diagnostic = Diagnostic::error("E0102", self.id, open.span, "this `{` is not closed")
            .label("opened here")
            .secondary(Span { start: end, end }, "expected `}` before this point");
        self.report(diagnostic);
    }
}
