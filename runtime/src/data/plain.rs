//! Windows of text.
//!
//! The corpus is cut into equal blocks of a hundredth of its length (at least one sequence, at most 64 KiB); every tenth is held back. A
//! window lies within one run of training blocks, or within one held-back block, so no held-back byte is ever trained on.

use super::{Batch, HELD_BACK, HELD_BACK_EVERY};
use crate::hash;
use std::ops::Range;

/// The longest block: long enough for any sequence of today, short enough that held-back blocks come from everywhere.
const MAX_BLOCK: usize = 64 << 10;

#[derive(Debug)]
pub struct Plain {
    seq: usize,
    training: Windows,
    validation: Windows,
}

/// The places where windows can begin, in parts that follow each other.
#[derive(Debug, Default)]
struct Windows {
    parts: Vec<Range<usize>>,
    /// For each part how many windows begin before it.
    before: Vec<usize>,
    count: usize,
}

impl Windows {
    fn add(&mut self, part: Range<usize>, seq: usize) {
        let windows = part.len().saturating_sub(seq);
        if windows > 0 {
            self.parts.push(part);
            self.before.push(self.count);
            self.count += windows;
        }
    }

    /// Where the `n`-th window begins.
    fn start(&self, n: usize) -> usize {
        let part = self.before.partition_point(|b| *b <= n) - 1;
        self.parts[part].start + (n - self.before[part])
    }

    fn text<'a>(&self, bytes: &'a [u8], n: usize, seq: usize) -> &'a [u8] {
        let start = self.start(n);
        &bytes[start..start + seq + 1]
    }
}

impl Plain {
    /// Cuts a corpus of so many bytes, at least two sequences with their last labels.
    pub fn new(bytes: usize, seq: usize) -> Plain {
        assert!(bytes >= 2 * (seq + 1), "there is a block to train on and one to hold back");
        let block = (bytes / 100).clamp(seq + 1, MAX_BLOCK.max(seq + 1));
        // The last block has what is left over as well.
        let blocks = bytes / block;
        let is_held_back =
            |b: usize| if blocks < HELD_BACK_EVERY { b + 1 == blocks } else { b % HELD_BACK_EVERY == HELD_BACK };
        let end = |b: usize| if b + 1 == blocks { bytes } else { (b + 1) * block };
        let (mut training, mut validation) = (Windows::default(), Windows::default());
        let mut run = 0;
        for b in (0..blocks).filter(|b| is_held_back(*b)) {
            training.add(run..b * block, seq);
            validation.add(b * block..end(b), seq);
            run = end(b);
        }
        training.add(run..bytes, seq);
        Plain { seq, training, validation }
    }

    pub fn training_parts(&self) -> impl Iterator<Item = Range<usize>> {
        self.training.parts.iter().cloned()
    }

    pub fn fill_training(&self, bytes: &[u8], batch: &mut Batch, key: u64) {
        for row in 0..batch.rows() {
            let n = hash::below(hash::at(key, row as u64), self.training.count as u64) as usize;
            batch.set_window(row, self.training.text(bytes, n, self.seq));
        }
    }

    /// Rows that hold all of the held-back part once.
    pub fn validation_rows(&self) -> usize {
        self.validation.parts.iter().map(|p| p.len() / self.seq).sum()
    }

    pub fn fill_validation(&self, bytes: &[u8], batch: &mut Batch, number: usize, batches: usize) {
        let rows = (batch.rows() * batches) as u128;
        for row in 0..batch.rows() {
            let index = (number * batch.rows() + row) as u128;
            let n = (2 * index + 1) * self.validation.count as u128 / (2 * rows);
            batch.set_window(row, self.validation.text(bytes, n as usize, self.seq));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_are_disjoint_and_windows_stay_inside(seq in 1usize..300, extra in 0usize..100_000) {
            let bytes = 2 * (seq + 1) + extra;
            let plain = Plain::new(bytes, seq);
            prop_assert!(plain.training.count > 0 && plain.validation.count > 0);
            let mut owner = vec![0u8; bytes];
            for (who, windows) in [(1, &plain.training), (2, &plain.validation)] {
                for part in &windows.parts {
                    owner[part.clone()].iter_mut().for_each(|o| { assert_eq!(*o, 0); *o = who });
                }
                for n in [0, windows.count / 2, windows.count - 1] {
                    let start = windows.start(n);
                    prop_assert!(owner[start..start + seq + 1].iter().all(|o| *o == who));
                }
            }
            if bytes > 100 * (seq + 1) {
                let held_back = owner.iter().filter(|o| **o == 2).count() as f64 / bytes as f64;
                prop_assert!((0.09..0.11).contains(&held_back), "{held_back}");
            }
        }
    }

    #[test]
    fn batches_depend_on_the_key_alone() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| hash::mix(u64::from(i)) as u8).collect();
        let plain = Plain::new(bytes.len(), 16);
        let fill = |key| {
            let mut batch = Batch::new(4, 16);
            plain.fill_training(&bytes, &mut batch, key);
            batch
        };
        assert_eq!(fill(1), fill(1));
        assert_ne!(fill(1), fill(2));
        let batch = fill(3);
        assert_eq!(batch.tokens[1..16], batch.labels[..15]);
        assert_eq!(batch.positions[..4], [0, 1, 2, 3]);
        assert_eq!(batch.labelled(), 64);
    }

    #[test]
    fn validation_covers_the_held_back_part_evenly() {
        let bytes: Vec<u8> = (0..50_000u32).map(|i| (i / 250) as u8).collect();
        let plain = Plain::new(bytes.len(), 20);
        let mut seen = vec![];
        let mut batch = Batch::new(4, 20);
        for number in 0..8 {
            plain.fill_validation(&bytes, &mut batch, number, 8);
            seen.extend(batch.tokens.chunks(20).map(|row| row[0]));
        }
        assert!(seen.is_sorted());
        // Ten held-back blocks of 500 bytes; each is seen.
        let blocks: std::collections::BTreeSet<i32> = seen.iter().map(|t| t / 20).collect();
        assert_eq!(blocks.len(), 10);
    }
}
