//! Going on after a mistake. All skipping moves forward over tokens once, or jumps over a matched pair of brackets.

use super::brackets::UNMATCHED;
use super::{Failed, Parse, Parser};
use crate::ast::Span;
use crate::diagnostics::Diagnostic;
use crate::lex::{Token, TokenKind};

/// How far a line end is looked for to decide whether the opening bracket is worth showing.
const MAX_LOOK: usize = 1000;

impl Parser<'_> {
    /// Moves past the matched bracket at the current token; false if there is none.
    pub(super) fn jump(&mut self) -> bool {
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

    /// Takes the bracket that closes the one at `open`. At the end of a statement it says that it is missing and goes on as
    /// if it were there.
    pub(super) fn close(&mut self, kind: TokenKind, open: usize, separator: &str) -> Parse<()> {
        if self.eat(kind) {
            return Ok(());
        }
        let failed = self.unclosed(kind, open, separator);
        if self.at_statement_end() { Ok(()) } else { Err(failed) }
    }

    /// Complains about what stands where `separator` or a closing bracket should.
    pub(super) fn unclosed(&mut self, kind: TokenKind, open: usize, separator: &str) -> Failed {
        let (opening, closing) = if kind == TokenKind::CloseParen { ("`(`", "`)`") } else { ("`[`", "`]`") };
        let what = format!("{separator}{closing}");
        let open_span = self.tokens[open].span;
        if self.partner[open] != UNMATCHED {
            let between = &self.source.as_bytes()[open_span.end as usize..self.span().start as usize];
            let other_line = between.iter().take(MAX_LOOK).any(|&b| b == b'\n');
            let diagnostic = self.expected_here(&what);
            return self.report(if other_line {
                diagnostic.secondary(open_span, "in these brackets")
            } else {
                diagnostic
            });
        }
        let mut diagnostic = self.expected_here(&what);
        diagnostic.code = "E0102";
        diagnostic.message = format!("this {opening} is not closed");
        self.report(diagnostic.secondary(open_span, format!("{opening} opened here")))
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
