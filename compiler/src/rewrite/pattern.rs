//! Patterns of rules, and the text they are written in.
//!
//! ```text
//! x * (#c * sum(x ^ 2; A) + #e) ^ -0.5 * ..rest
//! ```
//!
//! | written | matches |
//! |---|---|
//! | `x` | any class; the same class each time |
//! | `#c`, `2` | a scalar constant; as a factor or a term, the coefficient of a normal form |
//! | `a * b ^ -1`, `a + #c * b` | a normal form of the class ([`super::normal`]), in any order; the whole of it, unless `..rest` takes what is left |
//! | `exp(x)`, `min(x, y)`, `select(m, x, y)` | that op |
//! | `sum(x; A)`, `gather(x, i; A)` | that op; `A` is the set of axes |
//! | `rms(x; A; #e)` | a fused op: operands; axes; numbers |

use forebay_ir::{BinaryOp, FusedKind, UnaryOp};

/// A pattern; variables are numbered by the rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Pattern {
    Class(usize),
    Number(Number),
    Unary(UnaryOp, Box<Pattern>),
    Binary(BinaryOp, Box<[Pattern; 2]>),
    Select(Box<[Pattern; 3]>),
    Sum(Box<Pattern>, usize),
    Max(Box<Pattern>, usize),
    Gather(Box<[Pattern; 2]>, usize),
    Cast(Box<Pattern>),
    Detach(Box<Pattern>),
    Fused { kind: FusedKind, operands: Vec<Pattern>, axes: Vec<usize>, numbers: Vec<Number> },
    Product { coefficient: Option<Number>, factors: Vec<(Pattern, f64)>, rest: Option<usize> },
    Total { constant: Option<Number>, terms: Vec<(Option<Number>, Pattern)>, rest: Option<usize> },
}

/// A number, or the name of one; with a sign.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Is(f64),
    Named(usize, bool),
}

/// The names of a rule's variables, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub classes: Vec<String>,
    pub numbers: Vec<String>,
    pub axes: Vec<String>,
    pub rests: Vec<String>,
}

fn number_of(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|n| n == name).unwrap_or_else(|| {
        names.push(name.to_string());
        names.len() - 1
    })
}

/// Parses a pattern.
///
/// # Panics
/// On a mistake: patterns are part of the program, and a test parses all of them.
pub(super) fn parse(text: &str, names: &mut Names) -> Pattern {
    let mut parser = Parser { text, at: 0, names };
    let pattern = parser.sum();
    parser.space();
    assert!(parser.at == text.len(), "`{text}`: what is `{}`?", &text[parser.at..]);
    pattern
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    names: &'a mut Names,
}

impl Parser<'_> {
    fn space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.space();
        let found = self.text[self.at..].starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) {
        assert!(self.eat(token), "`{}`: `{token}` is missing at `{}`", self.text, &self.text[self.at..]);
    }

    fn word(&mut self) -> String {
        self.space();
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        self.at += end;
        rest[..end].to_string()
    }

    fn literal(&mut self) -> Option<f64> {
        self.space();
        let rest = &self.text[self.at..];
        let signed = rest.strip_prefix('-').unwrap_or(rest);
        let length = signed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(signed.len());
        let length = rest.len() - signed.len() + length;
        let number = rest[..length].parse().ok()?;
        self.at += length;
        Some(number)
    }

    fn sum(&mut self) -> Pattern {
        let mut parts = vec![(self.eat("-"), self.product())];
        let mut rest = None;
        loop {
            let negative = if self.eat("+") {
                false
            } else if self.eat("- ") {
                true
            } else {
                break;
            };
            if self.eat("..") {
                let name = self.word();
                rest = Some(number_of(&mut self.names.rests, &name));
            } else {
                parts.push((negative, self.product()));
            }
        }
        if let ([(false, _)], None) = (&parts[..], rest) {
            return parts.swap_remove(0).1;
        }
        if let ([(true, part)], None) = (&parts[..], rest) {
            return match part.clone() {
                Pattern::Number(number) => Pattern::Number(signed(number, true)),
                Pattern::Product { coefficient, factors, rest } => Pattern::Product {
                    coefficient: Some(signed(coefficient.unwrap_or(Number::Is(1.0)), true)),
                    factors,
                    rest,
                },
                other => {
                    Pattern::Product { coefficient: Some(Number::Is(-1.0)), factors: vec![(other, 1.0)], rest: None }
                }
            };
        }
        let (mut constant, mut terms) = (None, vec![]);
        for (negative, part) in parts {
            match part {
                Pattern::Number(number) => constant = Some(signed(number, negative)),
                Pattern::Product { coefficient, factors, rest: None } if coefficient.is_some() || negative => {
                    let coefficient = signed(coefficient.unwrap_or(Number::Is(1.0)), negative);
                    terms.push((Some(coefficient), simplest(None, factors)));
                }
                other => terms.push((negative.then_some(Number::Is(-1.0)), other)),
            }
        }
        Pattern::Total { constant, terms, rest }
    }

    fn product(&mut self) -> Pattern {
        let (mut coefficient, mut factors, mut rest) = (None, vec![], None);
        loop {
            if self.eat("..") {
                let name = self.word();
                rest = Some(number_of(&mut self.names.rests, &name));
            } else {
                let atom = self.atom();
                let exponent = if self.eat("^") { self.literal().expect("an exponent is a number") } else { 1.0 };
                match atom {
                    Pattern::Number(number) if exponent == 1.0 => {
                        assert!(coefficient.is_none(), "`{}`: two numbers in a product", self.text);
                        coefficient = Some(number);
                    }
                    Pattern::Class(_) if factors.iter().any(|(p, _)| *p == atom) => {
                        let same = factors.iter_mut().find(|(p, _)| *p == atom).expect("just seen");
                        same.1 += exponent;
                    }
                    atom => factors.push((atom, exponent)),
                }
            }
            if !self.eat("*") {
                break;
            }
        }
        if factors.is_empty() && rest.is_none() {
            return Pattern::Number(coefficient.expect("a product has something in it"));
        }
        if rest.is_some() {
            return Pattern::Product { coefficient, factors, rest };
        }
        simplest(coefficient, factors)
    }

    fn number(&mut self) -> Number {
        let negative = self.eat("-");
        if self.eat("#") {
            let name = self.word();
            return Number::Named(number_of(&mut self.names.numbers, &name), negative);
        }
        signed(Number::Is(self.literal().expect("a number")), negative)
    }

    fn atom(&mut self) -> Pattern {
        self.space();
        let next = self.text[self.at..].chars().next().expect("patterns do not end in the middle");
        if next == '(' {
            self.expect("(");
            let inside = self.sum();
            self.expect(")");
            return inside;
        }
        if next == '#' || next.is_ascii_digit() {
            return Pattern::Number(self.number());
        }
        let word = self.word();
        assert!(!word.is_empty(), "`{}`: nothing at `{}`", self.text, &self.text[self.at..]);
        if !self.eat("(") {
            return Pattern::Class(number_of(&mut self.names.classes, &word));
        }
        let (mut operands, mut axes, mut numbers) = (vec![self.sum()], vec![], vec![]);
        while self.eat(",") {
            operands.push(self.sum());
        }
        if self.eat(";") {
            loop {
                let name = self.word();
                if !name.is_empty() {
                    axes.push(number_of(&mut self.names.axes, &name));
                }
                if !self.eat(",") {
                    break;
                }
            }
        }
        if self.eat(";") {
            numbers.push(self.number());
            while self.eat(",") {
                numbers.push(self.number());
            }
        }
        self.expect(")");
        op(&word, operands, axes, numbers).unwrap_or_else(|| panic!("`{}`: there is no op `{word}`", self.text))
    }
}

fn signed(number: Number, negative: bool) -> Number {
    match number {
        Number::Is(x) => Number::Is(if negative { -x } else { x }),
        Number::Named(name, sign) => Number::Named(name, sign != negative),
    }
}

/// A product of one thing is that thing.
fn simplest(coefficient: Option<Number>, mut factors: Vec<(Pattern, f64)>) -> Pattern {
    if coefficient.is_none() && factors.len() == 1 && factors[0].1 == 1.0 {
        return factors.swap_remove(0).0;
    }
    Pattern::Product { coefficient, factors, rest: None }
}

fn op(word: &str, operands: Vec<Pattern>, axes: Vec<usize>, numbers: Vec<Number>) -> Option<Pattern> {
    if let Some(kind) = FusedKind::from_name(word) {
        return Some(Pattern::Fused { kind, operands, axes, numbers });
    }
    let n = operands.len();
    let mut operands = operands.into_iter();
    let mut next = || operands.next().expect("counted");
    Some(match (word, n, &axes[..]) {
        ("sum", 1, [a]) => Pattern::Sum(Box::new(next()), *a),
        ("max", 1, [a]) => Pattern::Max(Box::new(next()), *a),
        ("gather", 2, [a]) => Pattern::Gather(Box::new([next(), next()]), *a),
        ("cast", 1, []) => Pattern::Cast(Box::new(next())),
        ("detach", 1, []) => Pattern::Detach(Box::new(next())),
        ("select", 3, []) => Pattern::Select(Box::new([next(), next(), next()])),
        (_, 1, []) => {
            let op = UnaryOp::ALL.into_iter().find(|o| o.name() == word)?;
            Pattern::Unary(op, Box::new(next()))
        }
        (_, 2, []) => {
            let op = BinaryOp::ALL.into_iter().find(|o| o.name() == word)?;
            Pattern::Binary(op, Box::new([next(), next()]))
        }
        _ => return None,
    })
}
