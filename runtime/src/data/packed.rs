//! Rows packed with documents of varying length.
//!
//! A document is a file; where there is only one file, a paragraph of it (up to and including the blank lines after it). Documents longer than a row
//! are cut into *pieces* of a row each. Every tenth piece is held back. A row of training is filled with pieces drawn at random until
//! nothing that is drawn fits any more; what is left then takes the beginning of one more piece.

use super::{Batch, Corpus, HELD_BACK, HELD_BACK_EVERY};
use crate::hash;
use std::ops::Range;

/// How often a piece is drawn for the rest of a row before one is cut to fit.
const DRAWS: usize = 16;
/// Shorter ones teach nothing: their only token has no label.
const LEAST: usize = 2;

#[derive(Debug)]
pub struct Packed {
    training: Vec<Range<usize>>,
    validation: Vec<Range<usize>>,
    /// The rows of the held-back part: which pieces each holds.
    rows: Vec<Range<usize>>,
}

impl Packed {
    /// Cuts a corpus; nothing when there are not two pieces.
    pub fn new(corpus: &Corpus, seq: usize) -> Option<Packed> {
        let documents = match corpus.files() {
            [file] => paragraphs(corpus.bytes(), file.clone()),
            files => files.to_vec(),
        };
        let pieces: Vec<Range<usize>> =
            documents.into_iter().flat_map(|d| cut(d, seq)).filter(|p| p.len() >= LEAST).collect();
        let held_back = |i: usize| {
            if pieces.len() < HELD_BACK_EVERY { i + 1 == pieces.len() } else { i % HELD_BACK_EVERY == HELD_BACK }
        };
        let of = |held: bool| (0..pieces.len()).filter(|i| held_back(*i) == held).map(|i| pieces[i].clone()).collect();
        let (training, validation): (Vec<_>, Vec<_>) = (of(false), of(true));
        if training.is_empty() {
            return None;
        }
        let rows = rows(&validation, seq);
        Some(Packed { training, validation, rows })
    }

    pub fn training_parts(&self) -> impl Iterator<Item = Range<usize>> {
        self.training.iter().cloned()
    }

    pub fn fill_training(&self, bytes: &[u8], batch: &mut Batch, key: u64) {
        for row in 0..batch.rows() {
            self.fill_row(bytes, batch, row, hash::at(key, row as u64));
        }
    }

    fn fill_row(&self, bytes: &[u8], batch: &mut Batch, row: usize, key: u64) {
        let mut draws = 0;
        let mut draw = || {
            draws += 1;
            self.training[hash::below(hash::at(key, draws), self.training.len() as u64) as usize].clone()
        };
        let (mut column, mut number) = (0, 0);
        while column < batch.seq() {
            let room = batch.seq() - column;
            let mut piece = draw();
            for _ in 1..DRAWS {
                if piece.len() <= room {
                    break;
                }
                piece = draw();
            }
            let text = &bytes[piece.start..piece.start + piece.len().min(room)];
            batch.put_document(row, column, number, text);
            column += text.len();
            number += 1;
        }
    }

    pub fn validation_rows(&self) -> usize {
        self.rows.len()
    }

    /// Rows of pieces in order; what a row has left over is a document without labels.
    pub fn fill_validation(&self, bytes: &[u8], batch: &mut Batch, number: usize, batches: usize) {
        let wanted = batch.rows() * batches;
        for row in 0..batch.rows() {
            let index = number * batch.rows() + row;
            let pick =
                if wanted >= self.rows.len() { index % self.rows.len() } else { index * self.rows.len() / wanted };
            let (mut column, mut count) = (0, 0);
            for piece in &self.validation[self.rows[pick].clone()] {
                batch.put_document(row, column, count, &bytes[piece.clone()]);
                column += piece.len();
                count += 1;
            }
            pad(batch, row, column, count);
        }
    }
}

/// Fills the rest of a row with a document of zeros that has no labels.
fn pad(batch: &mut Batch, row: usize, column: usize, number: i32) {
    let seq = batch.seq();
    for (i, at) in (row * seq + column..(row + 1) * seq).enumerate() {
        batch.tokens[at] = 0;
        batch.labels[at] = -1;
        batch.positions[at] = i as i32;
        batch.documents[at] = number;
    }
}

/// Text that ends with a blank line or more, or with the file.
fn paragraphs(bytes: &[u8], file: Range<usize>) -> Vec<Range<usize>> {
    let mut paragraphs = vec![];
    let mut start = file.start;
    for at in file.clone().skip(2) {
        if bytes[at - 2..at] == *b"\n\n" && bytes[at] != b'\n' {
            paragraphs.push(start..at);
            start = at;
        }
    }
    paragraphs.push(start..file.end);
    paragraphs
}

fn cut(document: Range<usize>, seq: usize) -> impl Iterator<Item = Range<usize>> {
    let end = document.end;
    document.step_by(seq).map(move |start| start..end.min(start + seq))
}

/// Puts pieces into rows in order.
fn rows(pieces: &[Range<usize>], seq: usize) -> Vec<Range<usize>> {
    let mut rows = vec![];
    let (mut first, mut used) = (0, 0);
    for (i, piece) in pieces.iter().enumerate() {
        if used + piece.len() > seq {
            rows.push(first..i);
            (first, used) = (i, 0);
        }
        used += piece.len();
    }
    rows.push(first..pieces.len());
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn corpus(text: &str) -> Corpus {
        Corpus::from_bytes("x", text.as_bytes().to_vec())
    }

    /// Each document of a row is contiguous text; positions restart; the last token of each has no label.
    fn check(batch: &Batch) {
        for row in 0..batch.rows() {
            let at = |i: usize| row * batch.seq() + i;
            for i in 0..batch.seq() {
                let last = i + 1 == batch.seq() || batch.documents[at(i + 1)] != batch.documents[at(i)];
                if last {
                    assert_eq!(batch.labels[at(i)], -1);
                } else {
                    assert_eq!(batch.positions[at(i + 1)], batch.positions[at(i)] + 1);
                    assert!(batch.labels[at(i)] == batch.tokens[at(i + 1)] || batch.labels[at(i)] == -1);
                }
                if i == 0 || batch.documents[at(i - 1)] != batch.documents[at(i)] {
                    assert_eq!(batch.positions[at(i)], 0);
                }
            }
        }
    }

    #[test]
    fn paragraphs_of_a_file() {
        let text = "ab\n\ncd\ne\n\n\nf";
        let cut = paragraphs(text.as_bytes(), 0..text.len());
        let texts: Vec<&str> = cut.iter().map(|r| &text[r.clone()]).collect();
        assert_eq!(texts, ["ab\n\n", "cd\ne\n\n\n", "f"]);
        assert_eq!(paragraphs(b"", 0..0).len(), 1, "one empty paragraph");
    }

    proptest! {
        #[test]
        fn rows_are_documents(lengths in proptest::collection::vec(1usize..40, 2..60), seq in 2usize..50, key: u64) {
            let text: String = lengths.iter().enumerate().map(|(i, n)| {
                let letter = char::from(b'a' + (i % 26) as u8);
                std::iter::repeat_n(letter, *n).chain("\n\n".chars()).collect::<String>()
            }).collect();
            let corpus = corpus(&text);
            let packed = Packed::new(&corpus, seq).expect("there are two pieces");
            let mut batch = Batch::new(3, seq as u64);
            packed.fill_training(corpus.bytes(), &mut batch, key);
            check(&batch);
            for number in 0..2 {
                packed.fill_validation(corpus.bytes(), &mut batch, number, 2);
                check(&batch);
            }
            prop_assert!(packed.validation.iter().all(|v| !packed.training.contains(v)));
            prop_assert_eq!(packed.rows.iter().map(|r| r.len()).sum::<usize>(), packed.validation.len());
        }
    }

    #[test]
    fn one_piece_is_not_enough() {
        assert!(Packed::new(&corpus("abc"), 10).is_none());
        assert!(Packed::new(&corpus("abc\n\ndef"), 10).is_some());
    }
}
