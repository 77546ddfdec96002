//! What the parser wants to know about the whole token list before it starts: which bracket closes which, and which line
//! ends matter.
//!
//! A line end is dropped where a line continues: inside `( )` and `[ ]`, after an operator, `=` or a comma, and before an
//! operator. An opening bracket that is never closed must not swallow the rest of the file, so a `(` or `[` is given up
//! (keeps no partner, and line ends after it count) at a brace, at a keyword that starts a statement, and at a line that
//! can only be the next statement: a name right after a complete operand, indented no deeper than the bracket's own line.
//! A `{` is given up at the next `model` or `block`. None of these occur inside brackets of a correct file.
//!
//! One pass over the tokens; each bracket is pushed and popped once.

use super::words;
use crate::lex::{Token, TokenKind};

/// For a bracket without a partner.
pub(super) const UNMATCHED: u32 = u32::MAX;

/// Tokens without the line ends that do not matter.
pub(super) struct Matched {
    pub tokens: Vec<Token>,
    /// For each token that is a bracket, the index of its partner or [`UNMATCHED`].
    pub partner: Vec<u32>,
    /// A `{` whose `}` stands further left than its own line: probably the one that is not closed.
    pub suspicious_brace: Option<u32>,
}

struct Open {
    kind: TokenKind,
    token: u32,
    /// Column at which the bracket's line starts.
    indent: u32,
}

pub(super) fn match_brackets(source: &str, lexed: Vec<Token>) -> Matched {
    let mut stack: Vec<Open> = Vec::new();
    let mut partner = vec![UNMATCHED; lexed.len()];
    let mut suspicious_brace = None;
    let mut indent = 0;
    let mut line_start = true;
    // First the partners; whether a line end counts depends on brackets that close later.
    for (i, token) in lexed.iter().enumerate() {
        if line_start && token.kind != TokenKind::Newline {
            indent = column(source, token);
            let previous = lexed[..i].iter().rev().find(|t| t.kind != TokenKind::Newline);
            give_up(&mut stack, source, token, previous, indent);
        }
        match token.kind {
            TokenKind::OpenParen | TokenKind::OpenBracket => {
                stack.push(Open { kind: token.kind, token: i as u32, indent });
            }
            TokenKind::OpenBrace => {
                pop_round(&mut stack);
                stack.push(Open { kind: token.kind, token: i as u32, indent });
            }
            TokenKind::CloseParen | TokenKind::CloseBracket | TokenKind::CloseBrace => {
                if let Some(open) = close(&mut stack, token.kind) {
                    partner[i] = open.token;
                    partner[open.token as usize] = i as u32;
                    if token.kind == TokenKind::CloseBrace && line_start && indent < open.indent {
                        suspicious_brace.get_or_insert(open.token);
                    }
                }
            }
            _ => {}
        }
        line_start = token.kind == TokenKind::Newline;
    }
    drop_line_ends(lexed, partner, suspicious_brace)
}

fn column(source: &str, token: &Token) -> u32 {
    let before = &source[..token.span.start as usize];
    // Only white space precedes the first token of a line, so looking back is bounded by the line's indentation.
    before.bytes().rev().take_while(|&b| b != b'\n').count() as u32
}

/// Gives up brackets that cannot go on at the first token of a line.
fn give_up(stack: &mut Vec<Open>, source: &str, token: &Token, previous: Option<&Token>, indent: u32) {
    if matches!(token.kind, TokenKind::Model | TokenKind::Block) {
        stack.clear();
    } else if token.kind.starts_statement() {
        pop_round(stack);
    } else if token.kind == TokenKind::Ident && previous.is_some_and(|token| token.kind.ends_operand()) {
        // `a over` and `b` may stand on different lines.
        let is_operator =
            |token: &Token| words::CONTEXTUAL.contains(&&source[token.span.start as usize..token.span.end as usize]);
        let outermost = stack.iter().rposition(|open| open.kind == TokenKind::OpenBrace).map_or(0, |i| i + 1);
        if !is_operator(token)
            && !previous.is_some_and(is_operator)
            && stack.get(outermost).is_some_and(|open| indent <= open.indent)
        {
            stack.truncate(outermost);
        }
    }
}

/// Gives up the `(` and `[` on top.
fn pop_round(stack: &mut Vec<Open>) {
    while stack.last().is_some_and(|open| open.kind != TokenKind::OpenBrace) {
        stack.pop();
    }
}

/// The bracket that `kind` closes. Others above it are given up; without one, nothing is.
fn close(stack: &mut Vec<Open>, kind: TokenKind) -> Option<Open> {
    let opening = match kind {
        TokenKind::CloseParen => TokenKind::OpenParen,
        TokenKind::CloseBracket => TokenKind::OpenBracket,
        _ => {
            pop_round(stack);
            return stack.pop();
        }
    };
    // A `{` in between means that this one is stray. Looking down the stack stops there, and what was looked at is
    // popped, unless the closing bracket is stray: then at most the two innermost kinds are worth the search.
    let found = stack.iter().rev().take(MAX_SEARCH).position(|open| open.kind != kind_across(opening))?;
    let at = stack.len() - 1 - found;
    if stack[at].kind != opening {
        return None;
    }
    stack.truncate(at + 1);
    stack.pop()
}

/// How far down the stack of open brackets a partner is looked for, so that `((((…]]]]…` stays linear.
const MAX_SEARCH: usize = 16;

/// The kind of bracket that may be given up while looking for `opening`.
fn kind_across(opening: TokenKind) -> TokenKind {
    if opening == TokenKind::OpenParen { TokenKind::OpenBracket } else { TokenKind::OpenParen }
}

/// Second pass: keeps the line ends that end statements, merged, and renumbers the partners.
fn drop_line_ends(lexed: Vec<Token>, partner: Vec<u32>, suspicious: Option<u32>) -> Matched {
    let mut kept: Vec<u32> = Vec::with_capacity(lexed.len());
    let mut depth = 0u32;
    for (i, token) in lexed.iter().enumerate() {
        let matched = partner[i] != UNMATCHED;
        match token.kind {
            TokenKind::OpenParen | TokenKind::OpenBracket if matched => depth += 1,
            TokenKind::CloseParen | TokenKind::CloseBracket if matched => depth -= 1,
            _ => {}
        }
        let kind_before = |n: usize| kept.iter().rev().nth(n).map_or(TokenKind::Newline, |&k| lexed[k as usize].kind);
        let previous = kind_before(0);
        if token.kind == TokenKind::Newline {
            let continues = match previous {
                TokenKind::Newline | TokenKind::Comma | TokenKind::Assign => true,
                // A `-` that follows no operand is a sign.
                TokenKind::Minus => kind_before(1).ends_operand(),
                _ => previous.is_binary_operator(),
            };
            if depth > 0 || continues {
                continue;
            }
        } else if previous == TokenKind::Newline && token.kind.is_binary_operator() && kind_before(1).ends_operand() {
            kept.pop();
        }
        kept.push(i as u32);
    }
    let mut renumbered = vec![UNMATCHED; lexed.len()];
    for (new, &old) in kept.iter().enumerate() {
        renumbered[old as usize] = new as u32;
    }
    let renumber = |old: u32| if old == UNMATCHED { UNMATCHED } else { renumbered[old as usize] };
    Matched {
        tokens: kept.iter().map(|&i| lexed[i as usize]).collect(),
        partner: kept.iter().map(|&i| renumber(partner[i as usize])).collect(),
        suspicious_brace: suspicious.map(renumber),
    }
}
