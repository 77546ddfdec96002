//! Reading one line from left to right.

use super::names;
use std::ops::Range;

/// What is wrong with a part of a line, in byte positions.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) range: Range<usize>,
    /// None when it follows from an error that was reported already.
    pub(super) message: Option<String>,
}

pub(super) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(super) fn new(range: Range<usize>, message: impl Into<String>) -> Fault {
        Fault { range, message: Some(message.into()) }
    }

    pub(super) fn silent() -> Fault {
        Fault { range: 0..0, message: None }
    }
}

/// A name and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) range: Range<usize>,
}

/// A place in a line.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    line: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(line: &'a str) -> Cursor<'a> {
        Cursor { line, at: 0 }
    }

    pub(super) fn line(&self) -> &'a str {
        self.line
    }

    /// Where the next token starts.
    pub(super) fn start(&mut self) -> usize {
        let rest = &self.line[self.at..];
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r']).len();
        self.at
    }

    /// Where the last token ended.
    pub(super) fn end(&self) -> usize {
        self.at
    }

    fn rest(&mut self) -> &'a str {
        let start = self.start();
        &self.line[start..]
    }

    /// Is there nothing but a comment left?
    pub(super) fn is_done(&mut self) -> bool {
        let rest = self.rest();
        rest.is_empty() || rest.starts_with("//")
    }

    /// Does this come next?
    pub(super) fn sees(&mut self, token: &str) -> bool {
        self.rest().starts_with(token)
    }

    /// Takes a token of punctuation if it comes next.
    pub(super) fn eat(&mut self, token: &str) -> bool {
        let found = self.sees(token);
        if found {
            self.at += token.len();
        }
        found
    }

    /// Takes a word if it comes next and does not go on.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == word;
        if found {
            self.at += word.len();
        }
        found
    }

    /// The plain name that comes next, or nothing.
    pub(super) fn peek_word(&mut self) -> &'a str {
        let rest = self.rest();
        if rest.starts_with(names::starts_plain) { run(rest, names::goes_on_plain) } else { "" }
    }

    pub(super) fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.unexpected(&format!("`{token}`"))) }
    }

    pub(super) fn expect_end(&mut self) -> Result<()> {
        if self.is_done() { Ok(()) } else { Err(self.unexpected("the end of the line")) }
    }

    /// A fault at the next token.
    pub(super) fn unexpected(&mut self, wanted: &str) -> Fault {
        let start = self.start();
        if self.is_done() {
            return Fault::new(start..start, format!("expected {wanted}, found the end of the line"));
        }
        let rest = &self.line[start..];
        let word = run(rest, names::goes_on_plain);
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let token = &rest[..word.len().max(first)];
        Fault::new(start..start + token.len(), format!("expected {wanted}, found `{}`", shown(token)))
    }

    /// A name, bare or in quotes.
    pub(super) fn name(&mut self, wanted: &str) -> Result<Name> {
        let start = self.start();
        if self.sees("\"") {
            return self.quoted();
        }
        let word = self.peek_word();
        if word.is_empty() {
            return Err(self.unexpected(wanted));
        }
        self.at += word.len();
        Ok(Name { text: word.to_string(), range: start..self.at })
    }

    /// A name after a sign (`%` or `@`) that touches it.
    pub(super) fn signed_name(&mut self, sign: &str, wanted: &str) -> Result<Name> {
        let start = self.start();
        if !self.eat(sign) {
            return Err(self.unexpected(wanted));
        }
        let end_of_sign = self.at;
        if self.start() != end_of_sign {
            return Err(Fault::new(start..end_of_sign, format!("expected {wanted}, found `{sign}` without a name")));
        }
        let name = self.name(wanted)?;
        Ok(Name { range: start..self.at, ..name })
    }

    pub(super) fn quoted(&mut self) -> Result<Name> {
        let start = self.start();
        self.expect("\"")?;
        let mut text = String::new();
        let mut chars = self.line[self.at..].char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(Name { text, range: start..self.at });
                }
                '\\' => {
                    let escape = &self.line[self.at + i..];
                    let Some((c, len)) = unescape(escape) else {
                        let end = self.at + i + 1;
                        return Err(Fault::new(end - 1..end, r#"expected `\"`, `\\` or `\u{…}`"#));
                    };
                    text.push(c);
                    self.at += i + len;
                    chars = self.line[self.at..].char_indices();
                }
                c => text.push(c),
            }
        }
        Err(Fault::new(start..self.line.len(), "the quote is not closed in this line"))
    }

    /// A whole number.
    pub(super) fn number(&mut self, wanted: &str) -> Result<u64> {
        let start = self.start();
        let digits = run(self.rest(), |c| c.is_ascii_digit());
        if digits.is_empty() {
            return Err(self.unexpected(wanted));
        }
        self.at += digits.len();
        digits.parse().map_err(|_| Fault::new(start..self.at, "the number does not fit into 64 bits"))
    }

    /// A float as [`names::float`] writes it, or in any other usual decimal form.
    pub(super) fn float(&mut self) -> Result<f64> {
        let start = self.start();
        let text = run(self.rest(), |c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        let (Ok(value), false) = (text.parse::<f64>(), text == "-nan") else {
            return Err(self.unexpected("a number"));
        };
        self.at += text.len();
        if value.is_infinite() && text.contains(|c: char| c.is_ascii_digit()) {
            return Err(Fault::new(
                start..self.at,
                "the number is too large for 64 bits; write `inf` if that is meant",
            ));
        }
        // All NaNs are one: the text has no room for sign and payload.
        Ok(if value.is_nan() { f64::NAN } else { value })
    }

    /// Goes on before the next such character outside of braces, parentheses and quotes, or to the end.
    pub(super) fn skip_to(&mut self, stop: char) {
        let mut depth = 0_usize;
        while !self.is_done() {
            if self.sees("\"") && self.quoted().is_ok() {
                continue;
            }
            let Some(c) = self.rest().chars().next() else { return };
            match c {
                '{' | '(' => depth += 1,
                '}' | ')' => depth = depth.saturating_sub(1),
                c if c == stop && depth == 0 => return,
                _ => {}
            }
            self.at += c.len_utf8();
        }
    }
}

/// The longest start of such characters.
fn run(text: &str, holds: impl Fn(char) -> bool) -> &str {
    &text[..text.find(|c| !holds(c)).unwrap_or(text.len())]
}

/// The character of an escape at the start of the text, and the escape's length.
fn unescape(text: &str) -> Option<(char, usize)> {
    if text.starts_with("\\\"") || text.starts_with("\\\\") {
        return text[1..].chars().next().map(|c| (c, 2));
    }
    let digits = run(text.strip_prefix("\\u{")?, |c| c.is_ascii_hexdigit());
    let end = "\\u{".len() + digits.len();
    let closed = (1..=6).contains(&digits.len()) && text[end..].starts_with('}');
    let c = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
    closed.then_some((c, end + 1))
}

/// Source text as it may stand in a message: short and visible.
pub(super) fn shown(text: &str) -> String {
    let visible = |c: char| if names::is_invisible(c) { '\u{fffd}' } else { c };
    let mut short: String = text.chars().take(40).map(visible).collect();
    if short.len() < text.len() && text.chars().nth(40).is_some() {
        short.push('…');
    }
    short
}
