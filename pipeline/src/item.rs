//! What a stage does, one item after the other.

use std::fmt;
use std::str::FromStr;

/// A part of the work on a layer group and a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// The forward.
    F,
    /// The backward for the input: the gradient that the group before waits for.
    I,
    /// The backward for the weights: nobody else waits for it.
    W,
    /// The whole backward, I and W together.
    B,
}

impl Op {
    /// Its letter.
    pub fn letter(self) -> char {
        match self {
            Op::F => 'F',
            Op::I => 'I',
            Op::W => 'W',
            Op::B => 'B',
        }
    }
}

/// An op on a layer group and a micro-batch: `F3:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Work {
    /// What is done.
    pub op: Op,
    /// The layer group, in the order of the model.
    pub group: u32,
    /// The micro-batch.
    pub micro: u32,
}

/// One item of a stage's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// Work alone.
    One(Work),
    /// Two works at once, which begin and end together: `F0:4&B7:0`.
    Pair(Work, Work),
}

impl Item {
    /// Its one or two works.
    pub fn works(&self) -> impl Iterator<Item = Work> + use<> {
        let (first, second) = match *self {
            Item::One(work) => (work, None),
            Item::Pair(first, second) => (first, Some(second)),
        };
        std::iter::once(first).chain(second)
    }
}

impl fmt::Display for Work {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}:{}", self.op.letter(), self.group, self.micro)
    }
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::One(work) => work.fmt(out),
            Item::Pair(first, second) => write!(out, "{first}&{second}"),
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Work, String> {
        let wrong = || {
            format!("`{text}` is no work: it is written like F0:3, with F, I, W or B, a layer group and a micro-batch")
        };
        let op = match text.chars().next() {
            Some('F') => Op::F,
            Some('I') => Op::I,
            Some('W') => Op::W,
            Some('B') => Op::B,
            _ => return Err(wrong()),
        };
        let (group, micro) = text[1..].split_once(':').ok_or_else(wrong)?;
        let number = |digits: &str| match digits.bytes().all(|b| b.is_ascii_digit()) {
            true => digits.parse().map_err(|_| wrong()),
            false => Err(wrong()),
        };
        Ok(Work { op, group: number(group)?, micro: number(micro)? })
    }
}

impl FromStr for Item {
    type Err = String;

    fn from_str(text: &str) -> Result<Item, String> {
        match text.split_once('&') {
            Some((first, second)) => Ok(Item::Pair(first.parse()?, second.parse()?)),
            None => Ok(Item::One(text.parse()?)),
        }
    }
}
