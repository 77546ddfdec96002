//! Tokens to syntax tree: a hand-written recursive-descent parser that always returns a tree and all errors it found.
//!
//! A rule that cannot go on reports a diagnostic and returns `Failed`; whoever opened a bracket, or the statement, skips
//! to its end and goes on from there (module `recovery`). Two limits keep the tree shallow whatever the input: at most
//! [`MAX_DEPTH`] rules inside each other, and at most [`MAX_HEIGHT`] levels in one expression, where `a + b + c + …`
//! counts one level per operator. A tree that was returned can be walked, cloned and dropped recursively.
//!
//! Codes: `E0001`–`E0005` unreadable text; `E0101` something else expected; `E0102`, `E0103` brackets; `E0104` nested too
//! deeply; `E0105` not a statement; `E0106` `=` for `==`; `E0107` axes missing; `E0108` reserved names; `E0109` models;
//! `E0110` two `..`; `E0111` after `return`; `E0112` headers; `E0113` comparisons; `E0114` indices in the wrong place;
//! `E0115` operators; `E0116` `over` lists; `E0117` clauses; `E0199` too many errors.

mod brackets;
mod expressions;
mod items;
mod lists;
mod recovery;
mod statements;
mod words;

pub use words::{BUILTINS, CONTEXTUAL, is_builtin};

use crate::ast::{Expr, File, Ident, Item, Model, Span};
use crate::diagnostics::{Diagnostic, SourceId, has_errors, quote};
use crate::lex::{Comment, MAX_DIAGNOSTICS, Token, TokenKind, lex};

/// Brackets, prefix operators and `^` inside each other.
pub const MAX_DEPTH: u32 = 128;
/// Levels of the tree of one expression.
pub const MAX_HEIGHT: u32 = 256;
/// `repeat` and `if` bodies inside each other.
pub const MAX_BODIES: u32 = 32;

/// What came of a source.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The tree; statements that could not be read are [`crate::ast::StatementKind::Error`].
    pub file: File,
    /// In source order.
    pub comments: Vec<Comment>,
    /// All mistakes, in source order; empty when the tree is complete.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads a file of models and blocks; any number of either, as in a library.
pub fn parse(source: &str, id: SourceId) -> Parsed {
    let lexed = lex(source, id);
    let comments = lexed.comments;
    let mut parser = Parser::new(source, id, lexed.tokens, lexed.diagnostics);
    let file = parser.file();
    Parsed { file, comments, diagnostics: parser.finish() }
}

/// Reads a file that must hold exactly one model.
pub fn parse_program(source: &str, id: SourceId) -> Parsed {
    let mut parsed = parse(source, id);
    let mut models = parsed.file.items.iter().filter_map(|item| match item {
        Item::Model(model) => Some(model),
        Item::Block(_) => None,
    });
    let first = models.next();
    let mut more: Vec<Diagnostic> = models.map(|model| second_model(first, model, id)).collect();
    // A model that could not be read was reported already.
    if first.is_none() && !has_errors(&parsed.diagnostics) {
        more.push(no_model(&parsed.file, id));
    }
    parsed.diagnostics.extend(more);
    parsed
}

/// Reads one expression: the value of `--set name=value`.
pub fn parse_const_expr(text: &str, id: SourceId) -> Result<Expr, Vec<Diagnostic>> {
    let lexed = lex(text, id);
    let mut parser = Parser::new(text, id, lexed.tokens, lexed.diagnostics);
    parser.skip_newlines();
    let result = parser.expr();
    if result.is_ok() {
        parser.skip_newlines();
        if !parser.at(TokenKind::End) {
            parser.expected("the end of the value");
        }
    }
    let diagnostics = parser.finish();
    match result {
        Ok(expr) if diagnostics.is_empty() => Ok(expr),
        _ => Err(diagnostics),
    }
}

fn second_model(first: Option<&Model>, model: &Model, id: SourceId) -> Diagnostic {
    let diagnostic = Diagnostic::error("E0109", id, model.name.span, "a file holds one model")
        .label("a second model")
        .help("move it to a file of its own, or make it a `block`");
    match first {
        Some(first) => diagnostic.secondary(first.name.span, "the first one"),
        None => diagnostic,
    }
}

fn no_model(file: &File, id: SourceId) -> Diagnostic {
    let diagnostic = Diagnostic::error("E0109", id, Span::default(), "this file has no model");
    if file.items.is_empty() {
        return diagnostic.help("a program starts with `model Name(d = 128) {`");
    }
    diagnostic.help("it only has blocks; add `model Name(d = 128) { … }`")
}

/// A rule could not go on; a diagnostic was given.
#[derive(Clone, Copy, Debug)]
struct Failed;

type Parse<T> = Result<T, Failed>;

struct Parser<'s> {
    source: &'s str,
    id: SourceId,
    tokens: Vec<Token>,
    /// For brackets, the index of the partner.
    partner: Vec<u32>,
    suspicious_brace: Option<u32>,
    pos: usize,
    /// Expression rules entered and not left.
    depth: u32,
    /// Bodies entered and not left.
    bodies: u32,
    /// Height of the tallest operand read so far for the node being built.
    tallest: u32,
    diagnostics: Vec<Diagnostic>,
    /// Where the last diagnostic was; two at one token would be a cascade.
    last_report: Option<usize>,
    /// The missing `}` is reported once.
    brace_reported: bool,
}

impl<'s> Parser<'s> {
    fn new(source: &'s str, id: SourceId, tokens: Vec<Token>, diagnostics: Vec<Diagnostic>) -> Self {
        let matched = brackets::match_brackets(source, tokens);
        Parser {
            source,
            id,
            tokens: matched.tokens,
            partner: matched.partner,
            suspicious_brace: matched.suspicious_brace,
            pos: 0,
            depth: 0,
            bodies: 0,
            tallest: 0,
            diagnostics,
            last_report: None,
            brace_reported: false,
        }
    }

    /// The diagnostics in source order. The lexer's come first in the list; at equal places they win.
    fn finish(self) -> Vec<Diagnostic> {
        let mut diagnostics = self.diagnostics;
        diagnostics.sort_by_key(|d| d.span.start);
        if diagnostics.len() >= MAX_DIAGNOSTICS {
            let at = diagnostics[diagnostics.len() - 1].span;
            diagnostics.push(Diagnostic::error("E0199", self.id, at, "too many errors; reading stopped here"));
        }
        diagnostics
    }

    // Looking.

    fn kind(&self) -> TokenKind {
        self.tokens[self.pos].kind
    }

    /// The kind of the token `n` further on.
    fn nth(&self, n: usize) -> TokenKind {
        self.tokens.get(self.pos + n).map_or(TokenKind::End, |t| t.kind)
    }

    fn span(&self) -> Span {
        self.tokens[self.pos].span
    }

    /// The end of the last token that is not a line end.
    fn last_end(&self) -> u32 {
        let before = self.tokens[..self.pos].iter().rev();
        before.map(|t| (t.kind, t.span.end)).find(|&(kind, _)| kind != TokenKind::Newline).map_or(0, |(_, end)| end)
    }

    /// From `start` to the end of the last token.
    fn span_from(&self, start: Span) -> Span {
        Span { start: start.start, end: self.last_end().max(start.start) }
    }

    fn slice(&self, span: Span) -> &'s str {
        &self.source[span.start as usize..span.end as usize]
    }

    fn text(&self) -> &'s str {
        self.slice(self.span())
    }

    fn nth_text(&self, n: usize) -> &'s str {
        self.tokens.get(self.pos + n).map_or("", |t| self.slice(t.span))
    }

    fn at(&self, kind: TokenKind) -> bool {
        self.kind() == kind
    }

    fn at_word(&self, word: &str) -> bool {
        self.at(TokenKind::Ident) && self.text() == word
    }

    // Taking.

    /// Takes a token. The last one, `End`, stays.
    fn bump(&mut self) -> Token {
        let token = self.tokens[self.pos];
        if token.kind != TokenKind::End {
            self.pos += 1;
        }
        token
    }

    fn eat(&mut self, kind: TokenKind) -> bool {
        let found = self.at(kind);
        if found {
            self.bump();
        }
        found
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.at_word(word);
        if found {
            self.bump();
        }
        found
    }

    /// Takes `word` where it introduces a clause after an operand, also at the start of the next line. There, `weight = …`,
    /// `weight[e] = …` and `weight, b = …` are the next statement.
    fn eat_clause(&mut self, word: &str) -> bool {
        let next_line = self.at(TokenKind::Newline)
            && self.nth(1) == TokenKind::Ident
            && self.nth_text(1) == word
            && !matches!(self.nth(2), TokenKind::Assign | TokenKind::OpenBracket | TokenKind::Comma);
        if next_line {
            self.bump();
        }
        self.eat_word(word)
    }

    fn skip_newlines(&mut self) {
        while self.at(TokenKind::Newline) {
            self.bump();
        }
    }

    fn expect(&mut self, kind: TokenKind, what: &str) -> Parse<Token> {
        if self.at(kind) { Ok(self.bump()) } else { Err(self.expected(what)) }
    }

    /// A word that stands for something, `what`.
    fn ident(&mut self, what: &str) -> Parse<Ident> {
        if self.at(TokenKind::Ident) {
            let span = self.bump().span;
            return Ok(Ident { name: self.slice(span).to_string(), span });
        }
        Err(self.expected(what))
    }

    /// The name of something, `whose`.
    fn name_of(&mut self, whose: &str) -> Parse<Ident> {
        if self.kind().is_reserved_word() {
            let word = self.text();
            let diagnostic = self.error("E0108", format!("`{word}` is a word of the language, it cannot name {whose}"));
            return Err(self.report(diagnostic.label("pick another name")));
        }
        self.ident(&format!("the name of {whose}"))
    }

    /// A name for something that is looked up by it, so not a built-in one.
    fn defined(&mut self, whose: &str) -> Parse<Ident> {
        let name = self.name_of(whose)?;
        if is_builtin(&name.name) {
            let message = format!("`{}` is built in, it cannot be redefined", name.name);
            let diagnostic = Diagnostic::error("E0108", self.id, name.span, message);
            self.report_again(diagnostic.label("pick another name"));
        }
        Ok(name)
    }

    // Reporting.

    /// An error at the current token.
    fn error(&self, code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, self.id, self.span(), message)
    }

    /// "expected …, found …".
    fn expected(&mut self, what: &str) -> Failed {
        let diagnostic = self.expected_here(what);
        self.report(diagnostic)
    }

    fn expected_here(&self, what: &str) -> Diagnostic {
        let found = self.found();
        let mut diagnostic = self.error("E0101", format!("expected {what}, found {found}"));
        if matches!(self.kind(), TokenKind::Newline | TokenKind::End) {
            // The line end may be far down, below comments; the place to look at is after the last token.
            let end = self.last_end();
            diagnostic.span = Span { start: end, end };
        }
        diagnostic.label(format!("expected {what}"))
    }

    /// The current token in words.
    fn found(&self) -> String {
        match self.kind() {
            TokenKind::Newline => "the end of the line".into(),
            TokenKind::End => "the end of the file".into(),
            _ => quote(self.text()),
        }
    }

    fn report(&mut self, diagnostic: Diagnostic) -> Failed {
        // Unreadable tokens were reported by the lexer; what follows from them would only repeat it.
        let known = matches!(self.kind(), TokenKind::Unknown | TokenKind::BadNumber | TokenKind::OpenStr)
            && diagnostic.span == self.span();
        if !known && self.last_report != Some(self.pos) && self.diagnostics.len() < MAX_DIAGNOSTICS {
            self.diagnostics.push(diagnostic);
        }
        self.last_report = Some(self.pos);
        Failed
    }

    /// For mistakes found after their tokens were read, which are never cascades.
    fn report_again(&mut self, diagnostic: Diagnostic) {
        if !self.full() {
            self.diagnostics.push(diagnostic);
        }
    }

    /// True when reading should stop because nobody wants more errors.
    fn full(&self) -> bool {
        self.diagnostics.len() >= MAX_DIAGNOSTICS
    }
}
