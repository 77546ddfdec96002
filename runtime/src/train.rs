//! The training loop.
//!
//! ```text
//! step:  fill the batch · forward and backward · look at loss and gradient norm · update          (stops before the update when one is not finite)
//! run:   steps, with evaluations and checkpoints in between · last checkpoint · last evaluation · summary
//! ```
//!
//! A step is a function of the tensors, the seed and its number, so a run that was stopped and resumed goes through the same losses, bit for bit. From
//! the third step on, a step allocates nothing.

use crate::checkpoint::{Checkpoint, CheckpointError, DataInfo, Saver};
use crate::data::{Batch, Dataset};
use crate::exec::{Cause, DeviceStep, ExecError, Executor, PeakMemory, PhaseId, Profile, Roofline};
use crate::hash;
use forebay_plan::{Report, Role};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The summary's training loss is the mean over this many last steps.
pub const RECENT: usize = 10;
/// Steps at the start that say nothing about speed: they touch memory for the first time.
const WARM_UP: u64 = 2;

/// What a run does besides steps.
#[derive(Debug, Default)]
pub struct TrainOptions<'a> {
    /// The step to stop after, counted from the beginning of the run.
    pub steps: u64,
    /// Evaluate after every so many steps (and at the end); only at the end when `None`.
    pub eval_every: Option<u64>,
    /// Save after every so many steps (and at the end); only at the end when `None`.
    pub save_every: Option<u64>,
    /// When this becomes true, the run saves after the current step and stops.
    pub stop: Option<&'a AtomicBool>,
}

/// Watches a run. An error stops it.
pub trait Observer {
    /// After a step.
    ///
    /// # Errors
    /// When it cannot be reported.
    fn step(&mut self, _report: &StepReport) -> io::Result<()> {
        Ok(())
    }

    /// After an evaluation.
    ///
    /// # Errors
    /// When it cannot be reported.
    fn evaluated(&mut self, _step: u64, _evaluation: &Evaluation) -> io::Result<()> {
        Ok(())
    }

    /// After a checkpoint.
    ///
    /// # Errors
    /// When it cannot be reported.
    fn saved(&mut self, _step: u64, _folder: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Counted from 1.
    pub step: u64,
    /// The main loss, nats per token.
    pub loss: f64,
    /// The norm of the gradient of the sum of all losses, before clipping.
    pub grad_norm: f64,
    /// The learning rate.
    pub lr: f64,
    /// How long it took.
    pub seconds: f64,
    /// Tokens of the batch in that time.
    pub tokens_per_s: f64,
    /// How long it took by the clock of the devices, where devices ran it, seconds.
    pub device_seconds: Option<f64>,
}

/// What an evaluation came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The main loss on held-back text, nats per token.
    pub loss: f64,
    /// Tokens it was measured on.
    pub tokens: u64,
}

impl Evaluation {
    /// The loss in bits; a token is a byte.
    pub fn bits_per_byte(&self) -> f64 {
        self.loss / std::f64::consts::LN_2
    }
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Steps done since the beginning of the run.
    pub steps: u64,
    /// Mean loss of the last [`RECENT`] steps, nats per token; `None` when there were none.
    pub train_loss: Option<f64>,
    /// The last evaluation; `None` when the run was stopped.
    pub evaluation: Option<Evaluation>,
    /// [`Dataset::order0_bits`]
    pub order0_bits: f64,
    /// Tokens per second, without evaluations, checkpoints and, when there are others, the first steps; `None` without steps.
    pub tokens_per_s: Option<f64>,
    /// What the plan takes at most.
    pub memory: PeakMemory,
    /// Of so many ranks together.
    pub ranks: usize,
    /// The last checkpoint.
    pub checkpoint: Option<PathBuf>,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The plan cannot be run.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// A checkpoint cannot be saved.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The loss is no number any more.
    #[error("{what} is {value} at step {step}: {cause}")]
    NotFinite {
        /// `loss`, `grad_norm`
        what: String,
        /// NaN or an infinity.
        value: f64,
        /// The step; its update has not been made.
        step: u64,
        /// Where it comes from.
        cause: Box<Cause>,
    },
    /// The observer failed.
    #[error("{0}")]
    Observer(#[from] io::Error),
}

/// A run in progress.
#[derive(Debug)]
pub struct Trainer<'a, 'p> {
    executor: &'a mut Executor<'p>,
    dataset: &'a Dataset,
    data: DataInfo,
    train: PhaseId,
    eval: PhaseId,
    batch: Batch,
    eval_batch: Batch,
    step: u64,
    recent: VecDeque<f64>,
    /// Of the steps after the warm-up.
    timed: (u64, f64),
    steps_here: u64,
    checkpoint: Option<(u64, PathBuf)>,
}

impl<'a, 'p> Trainer<'a, 'p> {
    /// A run that begins with the executor's tensors as they are: at step 1, or where the checkpoint that they were loaded from left off.
    ///
    /// # Errors
    /// When the plan cannot train.
    pub fn new(
        executor: &'a mut Executor<'p>,
        dataset: &'a Dataset,
        resumed: Option<&Checkpoint>,
    ) -> Result<Trainer<'a, 'p>, ExecError> {
        let (train, eval) = (executor.phase_named("train")?, executor.phase_named("eval")?);
        let batch = |id| {
            let phase = executor.phase(id);
            Batch::new(phase.rows, phase.seq)
        };
        let (batch, eval_batch) = (batch(train), batch(eval));
        let corpus = dataset.corpus();
        let data = DataInfo { fingerprint: hash::hex(corpus.fingerprint()), bytes: corpus.bytes().len() as u64 };
        let mut recent = VecDeque::with_capacity(RECENT);
        recent.extend(resumed.iter().flat_map(|c| &c.index().recent_losses).take(RECENT));
        Ok(Trainer {
            executor,
            dataset,
            data,
            train,
            eval,
            batch,
            eval_batch,
            step: resumed.map_or(0, |c| c.index().step),
            recent,
            timed: (0, 0.0),
            steps_here: 0,
            checkpoint: resumed.map(|c| (c.index().step, c.folder().to_path_buf())),
        })
    }

    /// What it trains on.
    pub fn data(&self) -> &DataInfo {
        &self.data
    }

    /// Steps done since the beginning of the run.
    pub fn steps_done(&self) -> u64 {
        self.step
    }

    /// From here on measures where the time of training steps goes, and keeps what happened in the first `traced_steps` of them.
    pub fn start_profile(&mut self, traced_steps: u64) {
        self.executor.start_profile(self.train, traced_steps);
    }

    /// Where the time of training steps went so far, when it is measured.
    pub fn profile(&self) -> Option<&Profile> {
        self.executor.profile()
    }

    /// The same of every rank, with its role.
    pub fn profiles(&self) -> impl Iterator<Item = (&Role, &Profile)> {
        self.executor.profiles()
    }

    /// Do devices run it, with a clock of their own?
    pub fn is_on_devices(&self) -> bool {
        self.executor.is_on_devices()
    }

    /// How long the last step took by the clock of the devices, seconds.
    pub fn device_seconds(&self) -> Option<f64> {
        self.executor.device_seconds()
    }

    /// See [`Executor::device_steps`].
    pub fn device_steps(&self) -> &[DeviceStep] {
        self.executor.device_steps()
    }

    /// See [`Executor::roofline`].
    pub fn roofline(&self) -> Roofline {
        self.executor.roofline()
    }

    /// Trains until `options.steps`, saves, evaluates and sums up. Of several processes the first has the saver, and all are done with each other afterwards.
    ///
    /// # Errors
    /// When the loss or what would be saved is no number, or a checkpoint cannot be saved: the last one is untouched then. When the observer fails: the run ends after that
    /// step, and is saved.
    pub fn run(
        &mut self,
        options: &TrainOptions,
        mut saver: Option<&mut Saver>,
        observer: &mut dyn Observer,
    ) -> Result<Summary, TrainError> {
        let due = |every: Option<u64>, step: u64| every.is_some_and(|n| n > 0 && step.is_multiple_of(n));
        let asked = || options.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        // An observer that fails ends the run, but not without a checkpoint.
        let mut unseen = None;
        // All processes stop after the same step, whichever was asked to.
        let mut stopped = self.executor.any(asked())?;
        while self.step < options.steps && !stopped {
            let report = self.step()?;
            unseen = unseen.or(observer.step(&report).err());
            stopped = self.executor.any(asked() || unseen.is_some())?;
            if self.step == options.steps || stopped {
                break;
            }
            if due(options.eval_every, self.step) {
                let evaluation = self.evaluate()?;
                // The next step is the last then.
                unseen = observer.evaluated(self.step, &evaluation).err();
            }
            if due(options.save_every, self.step) {
                self.save(saver.as_deref_mut(), observer)?;
            }
        }
        self.save(saver, observer)?;
        let mut evaluation = None;
        if !self.executor.any(stopped || asked())? {
            let last = self.evaluate()?;
            unseen = unseen.or(observer.evaluated(self.step, &last).err());
            evaluation = Some(last);
        }
        self.executor.part()?;
        unseen.map_or_else(|| Ok(self.summary(evaluation)), |error| Err(error.into()))
    }

    /// Does one step.
    ///
    /// # Errors
    /// When loss or gradient norm are no numbers; the step's update has not been made then.
    pub fn step(&mut self) -> Result<StepReport, TrainError> {
        let start = Instant::now();
        let step = self.step + 1;
        self.dataset.fill_training(&mut self.batch, self.executor.seed(), step);
        self.executor.start(self.train, &self.batch, step)?;
        let phase = self.executor.phase(self.train);
        self.check(|r| r.before_commit && r.name != "lr", self.train, step)?;
        self.executor.commit(self.train, step)?;
        let report = |name| self.executor.report_named(self.train, name);
        let (loss, grad_norm, lr) = (report("loss"), report("grad_norm"), report("lr"));
        self.step = step;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(loss);
        let seconds = start.elapsed().as_secs_f64();
        let tokens = phase.rows * phase.seq;
        self.steps_here += 1;
        // The first steps count until there are others.
        let (tokens_so_far, seconds_so_far) = if self.steps_here == WARM_UP + 1 { (0, 0.0) } else { self.timed };
        self.timed = (tokens_so_far + tokens, seconds_so_far + seconds);
        let device_seconds = self.device_seconds();
        Ok(StepReport { step, loss, grad_norm, lr, seconds, tokens_per_s: tokens as f64 / seconds, device_seconds })
    }

    /// Measures the main loss on held-back text. The same text every time.
    ///
    /// # Errors
    /// When the loss is no number.
    pub fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let batches = self.dataset.validation_batches(self.eval_batch.rows());
        let (mut sum, mut tokens) = (0.0, 0);
        let step = self.step.max(1);
        for number in 0..batches {
            self.dataset.fill_validation(&mut self.eval_batch, number);
            self.executor.start(self.eval, &self.eval_batch, step)?;
            self.executor.commit(self.eval, step)?;
            self.check(|r| r.name == "loss", self.eval, step)?;
            let labelled = self.eval_batch.labelled() as u64;
            sum += self.executor.report_named(self.eval, "loss") * labelled as f64;
            tokens += labelled;
        }
        Ok(Evaluation { loss: sum / tokens as f64, tokens })
    }

    /// Are these reports numbers?
    fn check(&mut self, which: impl Fn(&Report) -> bool, id: PhaseId, step: u64) -> Result<(), TrainError> {
        let mut reports = self.executor.reports(id).filter(|r| which(r.report));
        let Some((bad, value)) =
            reports.find_map(|r| Some((r.report, self.executor.value(&r))).filter(|(_, value)| !value.is_finite()))
        else {
            return Ok(());
        };
        drop(reports);
        let batch = if id == self.train { &self.batch } else { &self.eval_batch };
        let cause = Box::new(self.executor.diagnose(id, batch, step)?);
        Err(TrainError::NotFinite { what: bad.name.clone(), value, step, cause })
    }

    fn save(&mut self, saver: Option<&mut Saver>, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let is_due = |saver: &&mut Saver| {
            let here = self.checkpoint.as_ref().filter(|(_, folder)| folder.parent() == Some(saver.run()));
            here.is_none_or(|(step, _)| *step != self.step)
        };
        let saver = saver.filter(is_due);
        // The process that saves says so.
        if !self.executor.any(saver.is_some())? {
            return Ok(());
        }
        let Some(saver) = saver else { return Ok(self.executor.give_tensors()?) };
        let folder = saver.save(self.executor, self.step, &self.data, self.recent.make_contiguous())?;
        observer.saved(self.step, &folder)?;
        self.checkpoint = Some((self.step, folder));
        Ok(())
    }

    fn summary(&self, evaluation: Option<Evaluation>) -> Summary {
        let (tokens, seconds) = self.timed;
        let mean = self.recent.iter().sum::<f64>() / self.recent.len() as f64;
        Summary {
            steps: self.step,
            train_loss: (!self.recent.is_empty()).then_some(mean),
            evaluation,
            order0_bits: self.dataset.order0_bits(),
            tokens_per_s: (tokens > 0).then(|| tokens as f64 / seconds),
            memory: self.executor.peak_memory(),
            ranks: self.executor.ranks(),
            checkpoint: self.checkpoint.as_ref().map(|(_, folder)| folder.clone()),
        }
    }
}
