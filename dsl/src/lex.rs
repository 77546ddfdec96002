//! Text to tokens. Comments go to a list of their own; line ends are tokens, because they end statements.
//!
//! The lexer never stops: what it cannot read becomes a token of kind [`TokenKind::Unknown`] and a diagnostic.

use crate::ast::Span;
use crate::diagnostics::{Diagnostic, SourceId, quote};
use logos::Logos;

/// Sources longer than this are refused. A model is a few hundred lines; the limit keeps memory bounded.
pub const MAX_SOURCE: usize = 8 << 20;
/// Lexing and parsing stop after this many diagnostics.
pub const MAX_DIAGNOSTICS: usize = 1000;

/// What a token is.
#[derive(Logos, Clone, Copy, Debug, PartialEq, Eq)]
#[logos(skip r"[ \t\r\x0c\u{feff}]+")]
#[allow(missing_docs)] // each is what it spells
pub enum TokenKind {
    #[token("\n")]
    Newline,
    #[regex(r"//[^\n]*", allow_greedy = true)]
    Comment,
    #[token(";")]
    Semicolon,
    #[token("(")]
    OpenParen,
    #[token(")")]
    CloseParen,
    #[token("[")]
    OpenBracket,
    #[token("]")]
    CloseBracket,
    #[token("{")]
    OpenBrace,
    #[token("}")]
    CloseBrace,
    #[token(",")]
    Comma,
    #[token(":")]
    Colon,
    #[token("..")]
    DotDot,
    #[token("@")]
    At,
    #[token("+")]
    Plus,
    #[token("-")]
    Minus,
    #[token("*")]
    Star,
    #[token("/")]
    Slash,
    #[token("%")]
    Percent,
    #[token("^")]
    Caret,
    #[token("=")]
    Assign,
    #[token("==")]
    Equal,
    #[token("!=")]
    NotEqual,
    #[token("<")]
    Less,
    #[token("<=")]
    LessEqual,
    #[token(">")]
    Greater,
    #[token(">=")]
    GreaterEqual,
    #[token("model")]
    Model,
    #[token("block")]
    Block,
    #[token("input")]
    Input,
    #[token("const")]
    Const,
    #[token("param")]
    Param,
    #[token("state")]
    State,
    #[token("stat")]
    Stat,
    #[token("update")]
    Update,
    #[token("loss")]
    Loss,
    #[token("output")]
    Output,
    #[token("repeat")]
    Repeat,
    #[token("if")]
    If,
    #[token("else")]
    Else,
    #[token("return")]
    Return,
    #[token("and")]
    And,
    #[token("or")]
    Or,
    #[token("not")]
    Not,
    #[token("none")]
    None,
    #[token("true")]
    True,
    #[token("false")]
    False,
    #[regex(r"[A-Za-z_][A-Za-z0-9_]*")]
    Ident,
    #[regex(r"[0-9](_?[0-9])*")]
    Int,
    #[regex(r"[0-9](_?[0-9])*\.[0-9](_?[0-9])*([eE][+-]?[0-9]+)?")]
    #[regex(r"[0-9](_?[0-9])*[eE][+-]?[0-9]+")]
    Float,
    /// Starts like a number, but is neither number nor name: `12abc`, `1__0`, `1e`, `.5`.
    #[regex(r"\.?[0-9][A-Za-z0-9_]*", priority = 1)]
    BadNumber,
    #[regex(r#""[^"\n]*""#)]
    Str,
    /// A string without its closing quote; runs to the end of the line.
    #[regex(r#""[^"\n]*"#, priority = 1)]
    OpenStr,
    /// Characters that are not part of the language.
    #[regex(r"'[^'\n]*'")]
    Unknown,
    /// The end of the source; its span is empty.
    End,
}

impl TokenKind {
    /// The keywords that start a statement or an item. They are reserved, so that they tell where a statement starts
    /// even after a mistake.
    pub fn starts_statement(self) -> bool {
        use TokenKind::*;
        matches!(
            self,
            Model | Block | Input | Const | Param | State | Stat | Update | Loss | Output | Repeat | If | Return
        )
    }

    /// Words that cannot be names.
    pub fn is_reserved_word(self) -> bool {
        use TokenKind::*;
        self.starts_statement() || matches!(self, Else | And | Or | Not | None | True | False)
    }

    /// Tokens after which an operand is complete.
    pub(crate) fn ends_operand(self) -> bool {
        use TokenKind::*;
        matches!(
            self,
            Ident | Int | Float | BadNumber | Str | OpenStr | True | False | None | CloseParen | CloseBracket
        )
    }

    /// Operators that stand between two operands.
    pub(crate) fn is_binary_operator(self) -> bool {
        use TokenKind::*;
        matches!(
            self,
            Plus | Minus
                | Star
                | Slash
                | Percent
                | Caret
                | Equal
                | NotEqual
                | Less
                | LessEqual
                | Greater
                | GreaterEqual
                | And
                | Or
        )
    }
}

/// A token and its text's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Where.
    pub span: Span,
}

/// A `//` comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comment {
    /// From `//` to the end of the line, without trailing white space.
    pub span: Span,
    /// True when nothing but white space precedes it on its line.
    pub own_line: bool,
}

/// A source as tokens. The last one is [`TokenKind::End`].
#[derive(Clone, Debug)]
pub struct Lexed {
    /// All tokens but comments.
    pub tokens: Vec<Token>,
    /// In source order.
    pub comments: Vec<Comment>,
    /// What could not be read.
    pub diagnostics: Vec<Diagnostic>,
}

/// Splits a source into tokens, in linear time.
pub fn lex(source: &str, id: SourceId) -> Lexed {
    let mut lexed = Lexed { tokens: Vec::new(), comments: Vec::new(), diagnostics: Vec::new() };
    if source.len() > MAX_SOURCE {
        lexed.diagnostics.push(too_long(source, id));
        lexed.tokens.push(Token { kind: TokenKind::End, span: Span::default() });
        return lexed;
    }
    let mut own_line = true;
    for (result, range) in TokenKind::lexer(source).spanned() {
        let kind = result.unwrap_or(TokenKind::Unknown);
        let mut span = Span { start: range.start as u32, end: range.end as u32 };
        match kind {
            TokenKind::Comment => {
                span.end = span.start + source[range].trim_end().len() as u32;
                lexed.comments.push(Comment { span, own_line });
                continue;
            }
            TokenKind::Unknown | TokenKind::Ident => {
                if let Some(last) = lexed.tokens.last_mut().filter(|last| one_mistake(source, last, kind, span)) {
                    *last = Token { kind: TokenKind::Unknown, span: last.span.to(span) };
                    continue;
                }
            }
            _ => {}
        }
        own_line = kind == TokenKind::Newline;
        lexed.tokens.push(Token { kind, span });
    }
    let end = source.len() as u32;
    lexed.tokens.push(Token { kind: TokenKind::End, span: Span { start: end, end } });
    let Lexed { tokens, diagnostics, .. } = &mut lexed;
    diagnostics.extend(tokens.iter().filter_map(|t| complaint(source, id, *t)).take(MAX_DIAGNOSTICS));
    lexed
}

/// Whether two neighbours are one mistake: a stretch of unreadable characters, or a word with a foreign letter in it.
fn one_mistake(source: &str, last: &Token, kind: TokenKind, span: Span) -> bool {
    let is_letter = |at: u32| source[at as usize..].chars().next().is_some_and(char::is_alphanumeric);
    let ends_with_letter = |end: u32| source[..end as usize].chars().next_back().is_some_and(char::is_alphanumeric);
    last.span.end == span.start
        && match (last.kind, kind) {
            (TokenKind::Unknown, TokenKind::Unknown) => true,
            (TokenKind::Ident, TokenKind::Unknown) => is_letter(span.start),
            (TokenKind::Unknown, TokenKind::Ident) => ends_with_letter(last.span.end),
            _ => false,
        }
}

fn too_long(source: &str, id: SourceId) -> Diagnostic {
    let message = format!("this file is too long: {} bytes, the limit is {MAX_SOURCE}", source.len());
    Diagnostic::error("E0001", id, Span::default(), message)
}

/// What is wrong with a token by itself.
fn complaint(source: &str, id: SourceId, token: Token) -> Option<Diagnostic> {
    let text = &source[token.span.start as usize..token.span.end as usize];
    let error = |code, message: String| Diagnostic::error(code, id, token.span, message);
    match token.kind {
        TokenKind::Unknown => {
            Some(unknown(text, error("E0002", format!("{} is not part of the language", quote(text)))))
        }
        TokenKind::OpenStr => {
            let diagnostic = error("E0003", "this string is not closed".into());
            Some(diagnostic.label("no `\"` before the end of the line").help("a string is written on one line"))
        }
        TokenKind::BadNumber => {
            let diagnostic = error("E0004", format!("{} is neither a number nor a name", quote(text)));
            Some(diagnostic.help("a name starts with a letter; numbers look like `12`, `1_000`, `0.5` or `1e-6`"))
        }
        _ => None,
    }
}

fn unknown(text: &str, diagnostic: Diagnostic) -> Diagnostic {
    let help = match text {
        "." => "a number has digits on both sides of its point; a range and the remaining axes are written `..`",
        "#" => "comments start with `//`",
        "!" => "`not` negates a condition, `!=` compares",
        "&" | "&&" => "write `and`",
        "|" | "||" => "write `or`",
        _ if text.starts_with('\'') => "strings are written in double quotes",
        _ if text.chars().all(|c| c.is_alphanumeric() || c == '_') => "names have the letters a to z, digits and `_`",
        _ => return diagnostic,
    };
    diagnostic.help(help)
}
