//! A run from the command line: data, plan, first values or a checkpoint, the loop, the summary.

use crate::args::{MachineArgs, SessionArgs};
use crate::backend::{BackendArgs, Devices};
use crate::device_profile;
use crate::failure::Failure;
use crate::files::write_out;
use crate::hosts::{self, Place};
use crate::output::{counted, grouped, print, seconds};
use crate::progress::{Progress, summary_text};
use crate::say::say;
use crate::{profile, trace, written};
use forebay_plan::{Plan, Settings};
use forebay_runtime::checkpoint::{Checkpoint, CheckpointError, Contents, Saver};
use forebay_runtime::comm::tcp::Fact;
use forebay_runtime::data::{Corpus, Dataset};
use forebay_runtime::exec::{ExecOptions, Executor, Laps, Proof, Roofline};
use forebay_runtime::hash::Hasher;
use forebay_runtime::init;
use forebay_runtime::train::{TrainError, TrainOptions, Trainer, Unobserved};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Steps between checkpoints when nothing else is said.
const SAVE_EVERY: u64 = 100;
const DEFAULT_SEED: u64 = 1;
const RUNS: &str = "forebay-runs";

/// Where the plan comes from.
pub enum Program<'a> {
    /// From the model or a plan file; and what is read for it, for messages, and from which files.
    Compiled(&'a dyn Fn() -> Result<Plan, Failure>, &'a [(&'static str, PathBuf)]),
    /// From the checkpoint.
    OfCheckpoint,
}

/// Does a run.
pub fn run(
    program: Program,
    args: &SessionArgs,
    (machine, backend): (&MachineArgs, &BackendArgs),
    steps: Option<u64>,
) -> Result<(), Failure> {
    backend.check()?;
    if backend.is_emulated() && args.hosts.is_given() {
        return Err(Failure::Usage("--hosts is for --backend cpu: emulated devices are in one process".into()));
    }
    let of_plan = if let Program::Compiled(_, reads) = &program { *reads } else { &[] };
    written::check(args, of_plan.iter().cloned().chain(backend.reads()))?;
    args.hosts.end_with_parent();
    let mut laps = Laps::since(Instant::now());
    let start = Start::new(args, &program)?;
    let corpus = Corpus::load(&args.data)?;
    laps.lap("read data");
    let plan = match (program, &start.checkpoint) {
        (Program::Compiled(compile, _), _) => compile()?,
        (Program::OfCheckpoint, Some(checkpoint)) => checkpoint.plan()?,
        (Program::OfCheckpoint, None) => {
            let run = args.resume.as_deref().unwrap_or(Path::new("")).display();
            return Err(Failure::Input(format!(
                "the run in `{run}` has no checkpoint yet: give the model file to start over"
            )));
        }
    };
    laps.lap("compile");
    let dataset = Dataset::new(corpus, &plan.settings)?;
    laps.lap("cut data");
    let options = ExecOptions { seed: start.seed, ..machine.options()? };
    let steps = steps.unwrap_or(plan.settings.steps);
    let mut session = Session { args, start, plan: &plan, dataset, steps, laps, simulated: None };
    if let Some(Devices { backend, device, simulated }) = backend.devices(&plan, &options)? {
        session.simulated = Some((simulated, device)).filter(|_| options.shuffle.is_none());
        return session.go(&mut Executor::on_devices(&plan, &options, backend, Proof::Verifier)?);
    }
    match args.hosts.place(&plan)? {
        None => session.go(&mut Executor::new(&plan, &options)?),
        Some(place) => session.join(place, options),
    }
}

/// A run that is ready to begin.
struct Session<'a> {
    args: &'a SessionArgs,
    start: Start,
    plan: &'a Plan,
    dataset: Dataset,
    /// The step to stop after.
    steps: u64,
    laps: Laps,
    /// On emulated devices, how long a step takes by the simulator, seconds, and what people call a device.
    simulated: Option<(f64, String)>,
}

impl Session<'_> {
    /// Goes on as one process of several.
    fn join(&mut self, place: Place, options: ExecOptions) -> Result<(), Failure> {
        let options = ExecOptions { threads: place.threads(options.threads), ..options };
        let facts = self.facts(&place, &options);
        let (network, mut crowd) = place.join(self.plan, &facts, options.stall)?;
        self.laps.lap("join");
        let run = || {
            hosts::end_after_failure(network.lookout());
            let mut executor = Executor::joined(self.plan, &options, network)?;
            let result = self.go(&mut executor);
            if let Err(failure) = &result {
                executor.fail(failure.text());
            }
            result
        };
        run().map_err(|failure| crowd.explain(failure))
    }

    /// What all processes of a run must agree on.
    fn facts(&self, place: &Place, options: &ExecOptions) -> Vec<Fact> {
        let resumed = self.start.checkpoint.as_ref().map_or(0, |c| Hasher::of(&c.index().to_bytes()));
        vec![
            ("plan", Hasher::of(self.plan.checksum().as_bytes())),
            ("--hosts", place.layout()),
            ("--seed", self.start.seed),
            ("--steps", self.steps),
            ("--data", self.dataset.corpus().fingerprint()),
            ("--eval-every", self.args.eval_every.unwrap_or(0)),
            ("--save-every", self.args.save_every.unwrap_or(0)),
            ("--resume", resumed),
            ("--shuffle", options.shuffle.map_or(0, |seed| seed.wrapping_add(1))),
        ]
    }

    /// Trains from the first values or a checkpoint on.
    fn go(&mut self, executor: &mut Executor) -> Result<(), Failure> {
        self.laps.lap_of(executor.made_in());
        match &self.start.checkpoint {
            Some(checkpoint) => checkpoint.load(executor, Contents::All)?,
            None => init::initialise(executor)?,
        }
        self.laps.lap("initialise");
        let stop = stop_on_signals()?;
        let options = TrainOptions {
            steps: self.steps,
            eval_every: self.args.eval_every,
            save_every: Some(self.args.save_every.unwrap_or(SAVE_EVERY)),
            stop: Some(&stop),
        };
        if executor.is_first() { self.lead(executor, &options) } else { self.follow(executor, &options) }
    }

    /// As the process that shows and saves what becomes of it.
    fn lead(&self, executor: &mut Executor, options: &TrainOptions) -> Result<(), Failure> {
        let Session { args, start, plan, dataset, steps, laps, simulated } = self;
        let steps = *steps;
        let mut trainer = Trainer::new(executor, dataset, start.checkpoint.as_ref())?;
        let mut saver = start.saver(args, plan)?;
        let open = |path: &Path| Progress::new(args.json, Some(path), trainer.steps_done(), steps);
        let mut progress = match &args.log {
            Some(path) => open(path)
                .map_err(|error| Failure::Input(format!("cannot write the log `{}`: {error}", path.display())))?,
            None => Progress::new(args.json, None, trainer.steps_done(), steps)?,
        };
        introduce(&progress, dataset, plan, saver.run());
        start.warn(plan, &trainer.data().fingerprint);
        if trainer.steps_done() >= steps {
            progress.note(&format!(
                "the run is at step {} already: nothing is trained, --steps says how far to go",
                trainer.steps_done()
            ));
        }
        let emulated = trainer.is_on_devices();
        let roofline = (args.profile.is_some() && !emulated).then(|| trainer.roofline());
        if args.profile.is_some() || args.trace.is_some() {
            trainer.start_profile(if args.trace.is_some() || emulated { trace::profile::STEPS } else { 0 });
        }
        let result = trainer.run(options, Some(&mut saver), &mut progress);
        progress.finish();
        let measured = match emulated {
            true => report_devices(&trainer, args, plan),
            false => report_profile(&trainer, args, plan, laps, roofline),
        };
        let summary = result.map_err(|error| failed(error, saver.run()))?;
        measured?;
        if summary.evaluation.is_none() {
            say!(
                "stopped after step {}; the same command with `--resume {}` goes on",
                summary.steps,
                saver.run().display()
            );
            return Err(Failure::Interrupted);
        }
        let Settings { batch, seq, params, active_params, .. } = plan.settings;
        progress.summary(&summary, params, active_params).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Input(error.to_string()),
        })?;
        if args.json || written::is_printed(args) {
            return Ok(());
        }
        let shape = format!("{}: {} of {batch} × {seq} tokens", plan.model, counted(summary.steps, "step"));
        let mut text = summary_text(&summary, &shape, params, active_params);
        if let (Some(took), Some((simulated, device))) = (trainer.device_seconds(), simulated) {
            text += &device_line(took, *simulated, device);
        }
        print(&format!("{text}            forebay generate {} --prompt \"…\"\n", saver.run().display()))
    }

    /// As another process: quietly.
    fn follow(&self, executor: &mut Executor, options: &TrainOptions) -> Result<(), Failure> {
        let mut trainer = Trainer::new(executor, &self.dataset, self.start.checkpoint.as_ref())?;
        let summary = trainer.run(options, None, &mut Unobserved)?;
        if summary.evaluation.is_none() { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// How long a step took by the clock of the devices.
fn device_line(took: f64, simulated: f64, device: &str) -> String {
    let apart = 100.0 * (took / simulated - 1.0);
    format!("devices     {} a step on {device}; simulated {} ({apart:+.2} %)\n", seconds(took), seconds(simulated))
}

/// What the devices did, as far as that was asked for.
fn report_devices(trainer: &Trainer, args: &SessionArgs, plan: &Plan) -> Result<(), Failure> {
    let steps = trainer.device_steps();
    match &args.profile {
        Some(Some(path)) => write_out(path, device_profile::text(steps, plan).as_bytes())?,
        Some(None) => crate::say::text(&device_profile::text(steps, plan)),
        None => {}
    }
    match &args.trace {
        Some(path) => write_out(path, trace::device::json(steps, plan, trace::simulated::MAX_EVENTS).as_bytes()),
        None => Ok(()),
    }
}

/// Where the time went, as far as that was asked for.
fn report_profile(
    trainer: &Trainer,
    args: &SessionArgs,
    plan: &Plan,
    laps: &Laps,
    roofline: Option<Roofline>,
) -> Result<(), Failure> {
    let Some(measured) = trainer.profile() else { return Ok(()) };
    if let (Some(file), Some(roofline)) = (&args.profile, roofline) {
        let text = profile::start_up(laps) + &profile::text(measured, plan, &roofline);
        match file {
            Some(path) => write_out(path, text.as_bytes())?,
            None => crate::say::text(&text),
        }
    }
    match &args.trace {
        Some(path) => write_out(path, trace::profile::json(trainer.profiles(), plan).as_bytes()),
        None => Ok(()),
    }
}

/// Where a run begins.
struct Start {
    checkpoint: Option<Checkpoint>,
    seed: u64,
}

impl Start {
    fn new(args: &SessionArgs, program: &Program) -> Result<Start, Failure> {
        let checkpoint = match args.resume.as_deref().map(Checkpoint::open) {
            None => None,
            Some(Ok(checkpoint)) => {
                if let Some(why) = checkpoint.astray() {
                    say!("warning: {why}; going on from step {}", checkpoint.index().step);
                }
                Some(checkpoint)
            }
            // It was stopped before its first checkpoint: it starts over, with its seed, where there is a model to start with.
            Some(Err(CheckpointError::NotStarted(run))) => {
                if let Program::Compiled(..) = program {
                    say!("note: the run in `{}` has no checkpoint yet: it starts over", run.display());
                }
                None
            }
            Some(Err(error)) => return Err(error.into()),
        };
        let begun = args.resume.as_deref().and_then(Saver::seed_of);
        let known = checkpoint.as_ref().map(|c| c.index().seed).or(begun);
        match (known, args.seed) {
            (Some(known), Some(given)) if known != given => Err(Failure::Input(format!(
                "the run was started with --seed {known}, which cannot be changed to {given} when it is resumed: leave --seed out"
            ))),
            (known, given) => Ok(Start { checkpoint, seed: known.or(given).unwrap_or(DEFAULT_SEED) }),
        }
    }

    /// Where checkpoints go: into the folder that was named, into the run that is resumed, or into a new one.
    fn saver(&self, args: &SessionArgs, plan: &Plan) -> Result<Saver, Failure> {
        let same =
            |a: &Path, b: &Path| fs::canonicalize(a).ok().is_some_and(|a| fs::canonicalize(b).is_ok_and(|b| a == b));
        let resumed = self.checkpoint.as_ref().map(|c| (c, c.run()));
        Ok(match (resumed, &args.save, &args.resume) {
            (Some((checkpoint, run)), save, _) if save.as_deref().is_none_or(|save| same(save, run)) => {
                Saver::resume(run, Some(checkpoint.folder()))?
            }
            (_, Some(save), _) => Saver::create(save, self.seed)?,
            (_, None, Some(run)) => Saver::create(run, self.seed)?,
            (_, None, None) => Saver::create(&free_folder(&plan.model), self.seed)?,
        })
    }

    /// What makes the run another one than it was.
    fn warn(&self, plan: &Plan, data: &str) {
        let Some(checkpoint) = &self.checkpoint else { return };
        let index = checkpoint.index();
        if index.plan != plan.checksum() {
            let changed = changed_settings(&index.settings, &plan.settings);
            let what = if changed.is_empty() {
                "options of the model or the optimizer differ".to_string()
            } else {
                changed.join(", ")
            };
            say!(
                "note: the plan is not the one the checkpoint was made with ({what}): the losses will not be those of an uninterrupted run"
            );
        }
        if index.data.fingerprint != data {
            say!(
                "note: the data are not those the checkpoint was trained on: the losses will not be those of an uninterrupted run"
            );
        }
    }
}

/// `steps 50, was 150`
fn changed_settings(was: &Settings, now: &Settings) -> Vec<String> {
    let fields = |settings: &Settings| match serde_json::to_value(settings) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (was, now) = (fields(was), fields(now));
    let changed = now.iter().filter(|(name, value)| was.get(*name) != Some(value));
    changed
        .map(|(name, value)| format!("{name} {value}, was {}", was.get(name).unwrap_or(&serde_json::Value::Null)))
        .collect()
}

/// `forebay-runs/TinyMoE`, or with a number when there is a run already.
fn free_folder(model: &str) -> PathBuf {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
    let name: String = model.chars().take(100).map(safe).collect();
    let folder = |n: u32| Path::new(RUNS).join(if n == 1 { name.clone() } else { format!("{name}-{n}") });
    (1..).map(folder).find(|f| !f.exists()).expect("some number is free")
}

fn introduce(progress: &Progress, dataset: &Dataset, plan: &Plan, run: &Path) {
    let corpus = dataset.corpus();
    let files = match corpus.files().len() {
        1 => String::new(),
        n => format!(" in {n} files"),
    };
    progress.note(&format!(
        "{}: {} parameters, {} active for a token",
        plan.model,
        grouped(plan.settings.params),
        grouped(plan.settings.active_params)
    ));
    let path = corpus.path().display();
    progress.note(&format!("data {path}: {} bytes{files}, a tenth held back", grouped(corpus.bytes().len() as u64)));
    if let Some(first) = corpus.skipped().first() {
        let more = corpus.skipped().len() - 1;
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        progress.note(&format!("note: skipped `{}`{more}: not UTF-8 text", first.display()));
    }
    progress.note(&format!("checkpoints go to {}", run.display()));
}

/// A flag that the first Ctrl-C raises; the second one ends the process.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn failed(error: TrainError, run: &Path) -> Failure {
    let kept = |told: &dyn Fn(std::path::Display) -> String| match Checkpoint::open(run) {
        Ok(checkpoint) => told(checkpoint.folder().display()),
        Err(_) => "there is no checkpoint yet".to_string(),
    };
    let made = match error {
        TrainError::Observer(error) => {
            let saved = kept(&|folder| format!("the run is saved as `{folder}`; `--resume {}` goes on", run.display()));
            return Failure::Input(format!("{error}\n  = note: {saved}"));
        }
        TrainError::NotFinite { .. } => "the update of this step was not made; ",
        TrainError::Checkpoint(CheckpointError::NotFinite { .. }) => "",
        error => return error.into(),
    };
    let before = kept(&|folder| format!("the last checkpoint `{folder}` is from before"));
    Failure::Input(format!(
        "{error}\n  = note: {made}{before}\n  = help: try a smaller --lr, a longer --warmup, a smaller --clip (0 is no clipping) or a larger --epsilon"
    ))
}
