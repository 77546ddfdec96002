//! Samples of what a model has learnt.
//!
//! The text stands at the left of the model's window; what is right of it cannot change it in a causal model. The logits at its last token give the
//! next one, and when the window is full the oldest token leaves. Sampling is by temperature among the k likeliest, in f64, with random
//! values that are a function of the seed and the position: the same seed writes the same text.

use crate::data::Batch;
use crate::exec::{ExecError, Executor, PhaseId, element};
use crate::hash;
use forebay_plan::OutputTensor;

/// How to choose among the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this: below 1 likelier, above 1 wilder. 0 takes the likeliest.
    pub temperature: f64,
    /// Only so many of the likeliest are considered; all when 0.
    pub top_k: usize,
    /// The seed.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 0.8, top_k: 40, seed: 0 }
    }
}

/// Why nothing can be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The plan cannot be run.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The model has no `output logits`.
    #[error("the model has no output `logits` of [row, seq, vocab]; its outputs: {0}")]
    NoLogits(String),
    /// A byte of the prompt is not in the vocabulary.
    #[error("the prompt has the byte {byte}, but the model's vocabulary has {vocab} tokens only")]
    Prompt {
        /// Which.
        byte: u8,
        /// Tokens.
        vocab: usize,
    },
    /// All logits are NaN.
    #[error("the model gives no probabilities: its logits are not numbers")]
    NotNumbers,
}

/// Writes text, a byte at a time.
#[derive(Debug)]
pub struct Generator<'a, 'p> {
    executor: &'a mut Executor<'p>,
    phase: PhaseId,
    /// With the rank that has it.
    logits: (usize, &'p OutputTensor),
    batch: Batch,
    text: Vec<u8>,
    sampling: Sampling,
    /// (logit, token), kept between bytes.
    candidates: Vec<(f64, usize)>,
}

impl<'a, 'p> Generator<'a, 'p> {
    /// Begins after a prompt; after a line's end when it is empty.
    ///
    /// # Errors
    /// When the plan cannot generate, or the prompt is not in the model's vocabulary.
    pub fn new(
        executor: &'a mut Executor<'p>,
        prompt: &[u8],
        sampling: Sampling,
    ) -> Result<Generator<'a, 'p>, GenerateError> {
        let id = executor.phase_named("generate")?;
        let phase = executor.phase(id);
        let logits = executor.output_named(id, "logits").filter(|(_, o)| o.dims.len() == 3 && o.dims[1] == phase.seq);
        let logits = logits.ok_or_else(|| {
            GenerateError::NoLogits(
                phase.outputs.iter().map(|o| format!("{}{:?}", o.name, o.dims)).collect::<Vec<_>>().join(", "),
            )
        })?;
        let vocab = (executor.plan().settings.vocab.min(logits.1.dims[2])) as usize;
        let text = if prompt.is_empty() { b"\n".to_vec() } else { prompt.to_vec() };
        if let Some(byte) = text.iter().copied().find(|b| usize::from(*b) >= vocab) {
            return Err(GenerateError::Prompt { byte, vocab });
        }
        let batch = Batch::new(phase.rows, phase.seq);
        Ok(Generator { executor, phase: id, logits, batch, text, sampling, candidates: vec![] })
    }

    /// Writes the next byte.
    ///
    /// # Errors
    /// When the model gives no probabilities.
    pub fn next_byte(&mut self) -> Result<u8, GenerateError> {
        let seq = self.batch.seq();
        let window = &self.text[self.text.len().saturating_sub(seq)..];
        let last = window.len() - 1;
        fill(&mut self.batch, window);
        self.executor.start(self.phase, &self.batch, 1)?;
        self.executor.commit(self.phase, 1)?;
        let (_, output) = self.logits;
        let width = output.dims[2] as usize;
        // Data are bytes: what lies above was never trained on.
        let tokens = width.min(256);
        let bytes = self.executor.output(self.logits);
        self.candidates.clear();
        let logit = |token| element(output.dtype, &bytes, last * width + token);
        self.candidates.extend((0..tokens).map(|t| (logit(t), t)).filter(|(l, _)| !l.is_nan()));
        let random = hash::unit(hash::at(hash::key(self.sampling.seed, "generate"), self.text.len() as u64));
        let token = choose(&mut self.candidates, &self.sampling, random).ok_or(GenerateError::NotNumbers)?;
        self.text.push(token as u8);
        Ok(token as u8)
    }
}

/// Puts a text at the left of every row; the rest is another document without labels.
fn fill(batch: &mut Batch, text: &[u8]) {
    let seq = batch.seq();
    for i in 0..batch.tokens.len() {
        let column = i % seq;
        let inside = column < text.len();
        batch.tokens[i] = if inside { i32::from(text[column]) } else { 0 };
        batch.labels[i] = text.get(column + 1).map_or(-1, |b| i32::from(*b));
        batch.positions[i] = if inside { column } else { column - text.len() } as i32;
        batch.documents[i] = i32::from(!inside);
    }
}

/// Chooses among (logit, token): the likeliest, or by a uniform value among the likeliest.
fn choose(candidates: &mut Vec<(f64, usize)>, sampling: &Sampling, random: f64) -> Option<usize> {
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if sampling.top_k > 0 {
        candidates.truncate(sampling.top_k);
    }
    let best = candidates.first()?;
    if sampling.temperature <= 0.0 || best.0.is_infinite() {
        return Some(best.1);
    }
    let weight = |logit: f64| ((logit - best.0) / sampling.temperature).exp();
    let total: f64 = candidates.iter().map(|(l, _)| weight(*l)).sum();
    let mut left = random * total;
    for (logit, token) in candidates.iter() {
        left -= weight(*logit);
        if left <= 0.0 {
            return Some(*token);
        }
    }
    Some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(logits: &[f64], temperature: f64, top_k: usize, random: f64) -> Option<usize> {
        let mut candidates: Vec<(f64, usize)> = logits.iter().copied().zip(0..).collect();
        choose(&mut candidates, &Sampling { temperature, top_k, seed: 0 }, random)
    }

    #[test]
    fn sampling() {
        let logits = [0.0, 2.0, 2.0, f64::NEG_INFINITY];
        assert_eq!(pick(&logits, 0.0, 0, 0.99), Some(1));
        assert_eq!(pick(&logits, 1.0, 1, 0.99), Some(1));
        assert_eq!(pick(&logits, 1.0, 2, 0.99), Some(2));
        assert_eq!(pick(&logits, 1.0, 0, 0.999), Some(0));
        assert_eq!(pick(&logits, 0.01, 0, 0.999), Some(2));
        assert_eq!(pick(&[], 1.0, 0, 0.5), None);
        // Frequencies follow the probabilities.
        let draws = (0..10_000).map(|i| pick(&[0.0, 3f64.ln()], 1.0, 0, hash::unit(hash::at(1, i))));
        let ones = draws.filter(|d| *d == Some(1)).count();
        assert!((7300..7700).contains(&ones), "{ones}");
    }

    #[test]
    fn windows() {
        let mut batch = Batch::new(1, 4);
        fill(&mut batch, b"ab");
        assert_eq!(batch.tokens, [97, 98, 0, 0]);
        assert_eq!(batch.labels, [98, -1, -1, -1]);
        assert_eq!(batch.positions, [0, 1, 0, 1]);
        assert_eq!(batch.documents, [0, 0, 1, 1]);
    }

    #[test]
    fn the_alphabet() {
        let plan = crate::testing::tiny_plan(1);
        let mut executor = Executor::new(&plan, &crate::exec::ExecOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let mut generator = Generator::new(&mut executor, b"ab", greedy).expect("it can generate");
        // Longer than the window of 8.
        let text: Vec<u8> = (0..20).map(|_| generator.next_byte().expect("a byte")).collect();
        assert_eq!(text, b"cdefghijklmnopqrstuv");
        let wild = Sampling { temperature: 3.0, ..Sampling::default() };
        let mut sample = || {
            let mut generator = Generator::new(&mut executor, b"m", wild).expect("it can generate");
            (0..20).map(|_| generator.next_byte().expect("a byte")).collect::<Vec<u8>>()
        };
        let first = sample();
        assert_eq!(first, sample());
        assert_ne!(first, b"nopqrstuvwxyz{|}~\x7f\x80\x81");
    }
}
