//! `--tokens-per-expert`: how tokens fall on experts, as an exponent or a file of numbers, with the place of every mistake.

use crate::failure::{Failure, colors};
use crate::files::{LARGE, read_text};
use forebay_dsl::ast::Span;
use forebay_dsl::diagnostics::{Diagnostic, Source, SourceId, render};
use forebay_plan::{Kernel, Plan};
use std::ops::Range;
use std::path::Path;

/// Tokens of an expert, at most: what is more is no number of tokens, and sums stay exact.
const MOST_TOKENS: f64 = 1e15;

/// The rows of the busiest of `ep` ranks, as a multiple of the mean.
pub fn imbalance(load: &str, plan: &Plan, ep: u32) -> Result<f64, Failure> {
    let experts = plan.programs.iter().flat_map(|p| &p.instructions).find_map(|i| match &i.kernel {
        Kernel::Matmul(k) => k.groups.as_ref().map(|g| g.count as usize * ep as usize),
        _ => None,
    });
    let Some(experts) = experts else {
        return Err(Failure::Input(
            "--tokens-per-expert: no experts of the model are chosen by tokens\n  = help: leave it out: a model without experts has no load of them, and experts that \
             choose their tokens have an even one"
                .into(),
        ));
    };
    let loads: Vec<f64> = match load.strip_prefix("zipf=") {
        Some(exponent) => match exponent.parse::<f64>() {
            Ok(s) if (0.0..=8.0).contains(&s) => (1..=experts).map(|rank| (rank as f64).powf(-s)).collect(),
            _ => {
                return Err(Failure::Usage(format!(
                    "--tokens-per-expert zipf={exponent}: the exponent is from 0 to 8"
                )));
            }
        },
        None => {
            let text = read_text(Path::new(load), LARGE)?;
            // A mark of the byte order is no part of the text.
            Loads { name: load, text: text.strip_prefix('\u{feff}').unwrap_or(&text) }.of(experts)?
        }
    };
    let chosen = plan.programs.iter().flat_map(|p| &p.instructions).filter_map(|i| match &i.kernel {
        Kernel::TopK(k) => Some(k.k as f64),
        _ => None,
    });
    let loads = at_most_once(&loads, chosen.fold(1.0, f64::max));
    let total: f64 = loads.iter().sum();
    // Experts stand in the order of their loads only in `zipf`: then they are dealt out, the next one to the next rank.
    let ranks = ep as usize;
    let of_rank = |r: usize| -> f64 {
        if load.starts_with("zipf=") {
            loads.iter().skip(r).step_by(ranks).sum()
        } else {
            loads[r * experts / ranks..(r + 1) * experts / ranks].iter().sum()
        }
    };
    let most = (0..ranks).map(of_rank).fold(0.0, f64::max);
    Ok((most * ranks as f64 / total).max(1.0))
}

/// Rows that a token brings to each expert, by their loads: `chosen` in all, and one to each at most, since a token chooses different experts. What loads have beyond that goes to the others, by theirs; where
/// too few have any, evenly to the rest.
fn at_most_once(loads: &[f64], chosen: f64) -> Vec<f64> {
    let mut rows = vec![0.0; loads.len()];
    let mut left = chosen.min(loads.len() as f64);
    let mut open: Vec<usize> = (0..loads.len()).filter(|e| loads[*e] > 0.0).collect();
    while !open.is_empty() {
        let scale = left / open.iter().map(|e| loads[*e]).sum::<f64>();
        let (full, rest): (Vec<usize>, Vec<usize>) = open.iter().partition(|e| loads[**e] * scale >= 1.0);
        if full.is_empty() {
            rest.iter().for_each(|e| rows[*e] = loads[*e] * scale);
            return rows;
        }
        full.iter().for_each(|e| rows[*e] = 1.0);
        left -= full.len() as f64;
        open = rest;
    }
    let idle = loads.iter().filter(|load| **load <= 0.0).count();
    let even = if idle > 0 { left.max(0.0) / idle as f64 } else { 0.0 };
    rows.iter_mut().zip(loads).filter(|(_, load)| **load <= 0.0).for_each(|(rows, _)| *rows = even);
    rows
}

/// A file of loads in which mistakes are shown.
struct Loads<'a> {
    name: &'a str,
    text: &'a str,
}

impl Loads<'_> {
    /// The numbers of a layer with so many experts.
    fn of(&self, experts: usize) -> Result<Vec<f64>, Failure> {
        let words = self.words();
        let loads = words.iter().map(|word| self.number(word)).collect::<Result<Vec<f64>, Failure>>()?;
        if loads.len() != experts {
            // The first that is too many, or the last there is.
            let at = words.get(experts).or(words.last()).cloned().unwrap_or(0..0);
            let n = loads.len();
            let numbers = if n == 1 { "number" } else { "numbers" };
            return Err(self.wrong(at, format!("`{}` has {n} {numbers}, but a layer has {experts} experts", self.name)));
        }
        if loads.iter().sum::<f64>() <= 0.0 {
            return Err(self.wrong(0..0, format!("`{}` holds no tokens", self.name)));
        }
        Ok(loads)
    }

    /// Where its words are; blanks and commas lie between them.
    fn words(&self) -> Vec<Range<usize>> {
        let between = |c: char| c.is_whitespace() || c == ',';
        let start = |word: &str| word.as_ptr() as usize - self.text.as_ptr() as usize;
        let words = self.text.split(between).filter(|word| !word.is_empty());
        words.map(|word| start(word)..start(word) + word.len()).collect()
    }

    fn number(&self, at: &Range<usize>) -> Result<f64, Failure> {
        let word = &self.text[at.clone()];
        match word.parse::<f64>() {
            Ok(v) if (0.0..=MOST_TOKENS).contains(&v) => Ok(v),
            Ok(v) if v > MOST_TOKENS => Err(self.wrong(
                at.clone(),
                format!("{v:e} tokens of an expert are too many; at most {MOST_TOKENS:e} are taken"),
            )),
            _ => {
                let shown: String = word.chars().take(40).collect();
                Err(self.wrong(at.clone(), format!("this is a number of tokens for each expert, not `{shown}`")))
            }
        }
    }

    fn wrong(&self, at: Range<usize>, message: String) -> Failure {
        let span = Span { start: at.start as u32, end: at.end as u32 };
        let mut diagnostic = Diagnostic::error("L0001", SourceId(0), span, message);
        diagnostic.help = Some(
            "the file has a number for each expert of a layer, with blanks, commas or line ends between: 900 10 10 10"
                .into(),
        );
        Failure::Rendered(render(&[diagnostic], &[Source::new(self.name, self.text)], colors()))
    }
}

#[cfg(test)]
mod tests {
    use super::at_most_once;

    /// Two experts of a token: one to each at most, the rest by loads, and evenly to experts without any where too few have some.
    #[test]
    fn a_token_chooses_an_expert_once() {
        assert_eq!(at_most_once(&[1.0, 1.0, 1.0, 1.0], 2.0), [0.5; 4]);
        assert_eq!(at_most_once(&[8.0, 1.0, 1.0, 2.0], 2.0), [1.0, 0.25, 0.25, 0.5]);
        assert_eq!(at_most_once(&[1.0, 0.0, 0.0, 0.0, 0.0], 2.0), [1.0, 0.25, 0.25, 0.25, 0.25]);
        assert_eq!(at_most_once(&[2.0, 1.0, 1.0], 1.0), [0.5, 0.25, 0.25]);
        assert_eq!(at_most_once(&[5.0, 1.0], 8.0), [1.0, 1.0]);
    }
}
