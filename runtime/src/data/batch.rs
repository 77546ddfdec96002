//! The inputs of one run of a phase.

/// Rows of tokens with what belongs to them; each input is `rows × seq`, contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    rows: usize,
    seq: usize,
    /// The text.
    pub tokens: Vec<i32>,
    /// The next token; -1 where there is none.
    pub labels: Vec<i32>,
    /// Position within the document.
    pub positions: Vec<i32>,
    /// Which document of its row a token is in.
    pub documents: Vec<i32>,
}

impl Batch {
    /// A batch of zeros.
    pub fn new(rows: u64, seq: u64) -> Batch {
        let (rows, seq) = (rows as usize, seq as usize);
        let zeros = || vec![0; rows * seq];
        Batch { rows, seq, tokens: zeros(), labels: zeros(), positions: zeros(), documents: zeros() }
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Tokens of a row.
    pub fn seq(&self) -> usize {
        self.seq
    }

    /// An input by the name that models give it.
    pub fn input(&self, name: &str) -> Option<&[i32]> {
        match name {
            "tokens" => Some(&self.tokens),
            "labels" => Some(&self.labels),
            "positions" => Some(&self.positions),
            "documents" => Some(&self.documents),
            _ => None,
        }
    }

    /// How many tokens have a label.
    pub fn labelled(&self) -> usize {
        self.labels.iter().filter(|l| **l >= 0).count()
    }

    /// Makes a row of `text`, which has one byte more than a row, as one document.
    pub(super) fn set_window(&mut self, row: usize, text: &[u8]) {
        assert_eq!(text.len(), self.seq + 1, "a row's text and the label of its last token");
        let first = row * self.seq;
        for (i, pair) in text.windows(2).enumerate() {
            self.tokens[first + i] = i32::from(pair[0]);
            self.labels[first + i] = i32::from(pair[1]);
            self.positions[first + i] = i as i32;
            self.documents[first + i] = 0;
        }
    }

    /// Puts a document into a row, from column `column` on. Its last token has no label.
    pub(super) fn put_document(&mut self, row: usize, column: usize, number: i32, text: &[u8]) {
        assert!(column + text.len() <= self.seq, "a document fits into its row");
        let first = row * self.seq + column;
        for (i, byte) in text.iter().enumerate() {
            self.tokens[first + i] = i32::from(*byte);
            self.labels[first + i] = text.get(i + 1).map_or(-1, |b| i32::from(*b));
            self.positions[first + i] = i as i32;
            self.documents[first + i] = number;
        }
    }
}
