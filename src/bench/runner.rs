//! Training steps without data or checkpoints: every step sees the same batch.

use crate::failure::Failure;
use forebay_plan::{DType, Plan, Tensor, TensorKind};
use forebay_runtime::data::Batch;
use forebay_runtime::exec::{ExecOptions, Executor, Laps, PhaseId};
use forebay_runtime::{hash, init};
use std::time::Instant;

/// A plan that trains on one batch.
pub struct Runner<'p> {
    executor: Executor<'p>,
    phase: PhaseId,
    batch: Batch,
    step: u64,
}

impl<'p> Runner<'p> {
    /// First values of the seed, and tokens drawn from the whole vocabulary.
    pub fn new(plan: &'p Plan, options: &ExecOptions) -> Result<Runner<'p>, Failure> {
        Runner::timed(plan, options, &mut Laps::since(Instant::now()))
    }

    /// The same, and how long its parts took.
    pub fn timed(plan: &'p Plan, options: &ExecOptions, laps: &mut Laps) -> Result<Runner<'p>, Failure> {
        let mut executor = Executor::new(plan, options)?;
        laps.lap_of(executor.made_in());
        init::initialise(&mut executor)?;
        laps.lap("initialise");
        let phase = executor.phase_named("train")?;
        let (rows, seq) = (executor.phase(phase).rows, executor.phase(phase).seq);
        let mut runner = Runner { executor, phase, batch: Batch::new(rows, seq), step: 0 };
        let key = hash::key(options.seed, "bench");
        let token = |i| hash::below(hash::at(key, i), plan.settings.vocab) as i32;
        runner.set_text(&(0..rows * (seq + 1)).map(token).collect::<Vec<i32>>());
        Ok(runner)
    }

    /// Replaces the batch by `text[rows, seq + 1]`: the labels are the tokens one further.
    pub fn set_text(&mut self, text: &[i32]) {
        let seq = self.batch.seq();
        assert_eq!(text.len(), self.batch.rows() * (seq + 1), "a row's tokens and the label of its last");
        let Batch { tokens, labels, positions, .. } = &mut self.batch;
        for (row, text) in text.chunks(seq + 1).enumerate() {
            let here = row * seq..(row + 1) * seq;
            tokens[here.clone()].copy_from_slice(&text[..seq]);
            labels[here.clone()].copy_from_slice(&text[1..]);
            positions[here].iter_mut().zip(0..).for_each(|(place, i)| *place = i);
        }
    }

    /// Replaces the parameters, each by the f32 that `values` gives for it.
    pub fn set_parameters(
        &mut self,
        mut values: impl FnMut(&Tensor) -> Result<Vec<f32>, Failure>,
    ) -> Result<(), Failure> {
        for tensor in self.executor.plan().roles[0].tensors.iter().filter(|t| t.kind == TensorKind::Param) {
            let values = values(tensor)?;
            let bytes = self.executor.tensor_mut(tensor);
            match tensor.dtype {
                DType::F64 => write(bytes, values.iter().map(|value| f64::from(*value).to_ne_bytes())),
                _ => write(bytes, values.iter().map(|value| value.to_ne_bytes())),
            }
        }
        Ok(init::refresh_copies(&mut self.executor)?)
    }

    /// Does a step: the loss before its update, nats per token.
    pub fn step(&mut self) -> Result<f64, Failure> {
        self.step += 1;
        self.executor.start(self.phase, &self.batch, self.step)?;
        self.executor.commit(self.phase, self.step)?;
        let report = self.executor.phase(self.phase).reports.iter().find(|r| r.name == "loss");
        let loss = report.map_or(f64::NAN, |r| self.executor.report(r));
        if !loss.is_finite() {
            return Err(Failure::Input(format!("the loss is {loss} at step {}: such steps say nothing", self.step)));
        }
        Ok(loss)
    }

    /// Seconds of each of so many steps.
    pub fn time(&mut self, steps: u64) -> Result<Vec<f64>, Failure> {
        let mut step = || {
            let start = Instant::now();
            self.step().map(|_| start.elapsed().as_secs_f64())
        };
        (0..steps).map(|_| step()).collect()
    }

    /// From here on, steps are profiled.
    pub fn start_profile(&mut self) {
        self.executor.start_profile(self.phase, 0);
    }

    /// From here on, steps are profiled, and every instruction of the first so many is kept.
    pub fn trace(&mut self, steps: u64) {
        self.executor.start_profile(self.phase, steps);
    }

    /// What runs the steps.
    pub fn executor(&self) -> &Executor<'p> {
        &self.executor
    }
}

fn write<const N: usize>(bytes: &mut [u8], values: impl Iterator<Item = [u8; N]>) {
    bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(place, value)| *place = value);
}
