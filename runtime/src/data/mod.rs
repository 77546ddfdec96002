//! Training data: the bytes of a file, or of the files of a folder. A token is a byte.
//!
//! ```text
//! path ──Corpus──▶ bytes, documents ──Dataset──▶ training part │ held-back part
//!                                                    │ seed, step      │ number
//!                                                    ▼                 ▼
//!                                                  Batch             Batch
//! ```
//!
//! A batch is a function of (seed, step) or of its number, so a resumed run goes on exactly where it was, and filling one allocates nothing.
//!
//! * *Plain* models ([`plain`]) see windows of `seq` tokens and the tokens one further as labels, at random places of the training part.
//! * *Packed* models ([`packed`]) see rows filled with documents: a file of the folder each, or a paragraph where there is one file only.

mod batch;
mod corpus;
mod packed;
mod plain;

pub use batch::Batch;
pub use corpus::Corpus;

use crate::hash;
use forebay_plan::Settings;
use packed::Packed;
use plain::Plain;
use std::path::PathBuf;

/// Batches that one evaluation looks at, at most.
pub const EVAL_BATCHES: usize = 16;
/// A corpus is cut into parts of which every tenth is held back.
const HELD_BACK_EVERY: usize = 10;
/// Of ten parts the sixth, so that neither end of a corpus is special.
const HELD_BACK: usize = 5;

/// Why there are no data.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or folder cannot be read.
    #[error("cannot read the data `{path}`: {error}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is neither a file nor a folder.
    #[error("the data `{0}` are neither a file nor a folder")]
    Special(PathBuf),
    /// There is nothing in it.
    #[error("the data `{path}` are empty: {why}")]
    Empty {
        /// Which.
        path: PathBuf,
        /// In what way.
        why: String,
    },
    /// There is not enough.
    #[error(
        "the data `{path}` are too short: {bytes} bytes, but a sequence of {seq} tokens to train on and one to hold back \
         for validation take {needed} (use more text, or a smaller --seq)"
    )]
    Short {
        /// Which.
        path: PathBuf,
        /// What there is.
        bytes: u64,
        /// Tokens of a sequence.
        seq: u64,
        /// What it takes.
        needed: u64,
    },
    /// A byte is no token of the model.
    #[error(
        "the data `{path}` have the byte {byte}, but the model's vocabulary has {vocab} tokens only (bytes are tokens: use a vocabulary of 256)"
    )]
    Vocabulary {
        /// Which.
        path: PathBuf,
        /// The largest byte.
        byte: u8,
        /// Tokens.
        vocab: u64,
    },
}

/// A corpus cut for a model: what to train on, and what to hold back.
#[derive(Debug)]
pub struct Dataset {
    corpus: Corpus,
    order0_bits: f64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Plain(Plain),
    Packed(Packed),
}

impl Dataset {
    /// Cuts a corpus for the model that a plan was compiled from.
    ///
    /// # Errors
    /// When there is too little, or bytes are not in the model's vocabulary.
    pub fn new(corpus: Corpus, settings: &Settings) -> Result<Dataset, DataError> {
        check_vocabulary(&corpus, settings.vocab)?;
        let (bytes, seq) = (corpus.bytes().len() as u64, settings.seq);
        let needed = 2 * (seq + 1);
        let short = |path| DataError::Short { path, bytes, seq, needed };
        if bytes < needed {
            return Err(short(corpus.path().to_path_buf()));
        }
        let kind = if settings.packed {
            let packed = Packed::new(&corpus, seq as usize);
            Kind::Packed(packed.ok_or_else(|| short(corpus.path().to_path_buf()))?)
        } else {
            Kind::Plain(Plain::new(corpus.bytes().len(), seq as usize))
        };
        let mut counts = [0; 256];
        match &kind {
            Kind::Plain(plain) => plain.training_parts().for_each(|part| count(&mut counts, &corpus.bytes()[part])),
            Kind::Packed(packed) => packed.training_parts().for_each(|part| count(&mut counts, &corpus.bytes()[part])),
        }
        Ok(Dataset { corpus, order0_bits: entropy_bits(&counts), kind })
    }

    /// The corpus.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// The entropy of the distribution of single bytes in the training part, in bits: what a model reaches that knows how frequent each byte is and
    /// nothing else.
    pub fn order0_bits(&self) -> f64 {
        self.order0_bits
    }

    /// Fills the batch of a training step (counted from 1).
    pub fn fill_training(&self, batch: &mut Batch, seed: u64, step: u64) {
        let key = hash::at(hash::key(seed, "data"), step);
        match &self.kind {
            Kind::Plain(plain) => plain.fill_training(self.corpus.bytes(), batch, key),
            Kind::Packed(packed) => packed.fill_training(self.corpus.bytes(), batch, key),
        }
    }

    /// How many batches of so many rows one evaluation takes.
    pub fn validation_batches(&self, rows: usize) -> usize {
        let rows_there = match &self.kind {
            Kind::Plain(plain) => plain.validation_rows(),
            Kind::Packed(packed) => packed.validation_rows(),
        };
        rows_there.div_ceil(rows).clamp(1, EVAL_BATCHES)
    }

    /// Fills a batch of the evaluation. The rows of all batches are spread evenly over the held-back part.
    pub fn fill_validation(&self, batch: &mut Batch, number: usize) {
        let batches = self.validation_batches(batch.rows());
        match &self.kind {
            Kind::Plain(plain) => plain.fill_validation(self.corpus.bytes(), batch, number, batches),
            Kind::Packed(packed) => packed.fill_validation(self.corpus.bytes(), batch, number, batches),
        }
    }
}

fn check_vocabulary(corpus: &Corpus, vocab: u64) -> Result<(), DataError> {
    let byte = corpus.bytes().iter().copied().max().unwrap_or(0);
    if u64::from(byte) < vocab {
        return Ok(());
    }
    Err(DataError::Vocabulary { path: corpus.path().to_path_buf(), byte, vocab })
}

fn count(counts: &mut [u64; 256], bytes: &[u8]) {
    bytes.iter().for_each(|b| counts[usize::from(*b)] += 1);
}

/// Σ -p log₂ p
fn entropy_bits(counts: &[u64; 256]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    let terms = counts.iter().filter(|c| **c > 0).map(|c| *c as f64 / total);
    terms.map(|p| -p * p.log2()).sum::<f64>().max(0.0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use forebay_plan::DType;

    pub fn settings(seq: u64, packed: bool) -> Settings {
        Settings {
            compute: DType::F32,
            batch: 4,
            micro_batches: 1,
            seq,
            vocab: 256,
            packed,
            steps: 10,
            params: 0,
            active_params: 0,
            flops_per_step: 0.0,
        }
    }

    #[test]
    fn entropy() {
        let mut counts = [0; 256];
        count(&mut counts, b"aaaa");
        assert_eq!(entropy_bits(&counts), 0.0);
        count(&mut counts, b"bbbb");
        assert_eq!(entropy_bits(&counts), 1.0);
        let uniform = [3; 256];
        assert!((entropy_bits(&uniform) - 8.0).abs() < 1e-12);
    }

    #[test]
    fn too_little_is_refused_with_what_it_takes() {
        let corpus = Corpus::from_bytes("notes.txt", vec![b'a'; 65]);
        let error = Dataset::new(corpus, &settings(32, false)).expect_err("65 bytes are too few");
        let want = "the data `notes.txt` are too short: 65 bytes, but a sequence of 32 tokens to train on and one to hold back \
            for validation take 66 (use more text, or a smaller --seq)";
        assert_eq!(error.to_string(), want);
        assert!(Dataset::new(Corpus::from_bytes("x", vec![b'a'; 66]), &settings(32, false)).is_ok());
        assert!(Dataset::new(Corpus::from_bytes("x", vec![b'a'; 66]), &settings(32, true)).is_ok());
    }

    #[test]
    fn bytes_outside_of_the_vocabulary_are_refused() {
        let small = Settings { vocab: 128, ..settings(4, false) };
        assert!(Dataset::new(Corpus::from_bytes("x", vec![127; 100]), &small).is_ok());
        let error = Dataset::new(Corpus::from_bytes("x", vec![128; 100]), &small).expect_err("128 is no token");
        assert!(
            error.to_string().contains("have the byte 128, but the model's vocabulary has 128 tokens only"),
            "{error}"
        );
    }
}
