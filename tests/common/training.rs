//! Plans of examples at reduced size under a strategy, and what training by them comes to.

use super::{Example, Numbers, options};
use forebay_compiler::memory::{Aim, Price};
use forebay_compiler::pipeline::{CompileError, CompileOptions, Compiled, compile, compile_training, compile_within};
use forebay_compiler::shard::Strategy;
use forebay_dsl::model::Const;
use forebay_ir::DType;
use forebay_plan::{Plan, TensorKind};
use forebay_runtime::checkpoint::{Checkpoint, Contents, DataInfo, Saver};
use forebay_runtime::data::Batch;
use forebay_runtime::exec::{ExecOptions, Executor, element};
use forebay_runtime::init;
use std::collections::BTreeMap;

/// Rows of a step, all of them micro-batches of their own.
pub const ROWS: u32 = 4;
const SEQ: i64 = 16;

impl Run {
    /// All numbers, so that runs can be compared bit by bit.
    pub fn bits(&self) -> Vec<u64> {
        let all = self.losses.iter().chain(&self.norms).chain(self.params.values().flatten());
        all.chain([&self.evaluation]).map(|x| x.to_bits()).collect()
    }
}

/// What a run came to.
#[derive(Debug, PartialEq)]
pub struct Run {
    /// The loss of each step.
    pub losses: Vec<f64>,
    /// The gradient norm of each step.
    pub norms: Vec<f64>,
    /// Parameters and state after the last step.
    pub params: BTreeMap<String, Vec<f64>>,
    /// The loss of other rows.
    pub evaluation: f64,
}

/// A strategy that parses.
pub fn strategy(text: &str) -> Strategy {
    Strategy::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The plan of an example at reduced size, verified.
///
/// # Errors
/// When the strategy does not fit the model.
pub fn plan(example: &Example, text: &str, compute: DType, set: &[(&str, i64)]) -> Result<Plan, String> {
    plan_with(example, &strategy(text), reduced_options(example, text, compute, set))
}

/// The plan of a model under a strategy, verified; the other options as given.
///
/// # Errors
/// As [`plan`].
pub fn plan_with(example: &Example, strategy: &Strategy, options: CompileOptions) -> Result<Plan, String> {
    let options = with_strategy(strategy, options);
    let plan = compile(&example.models(&options), &options).map_err(|e| e.to_string())?;
    forebay_plan::verify(&plan).unwrap_or_else(|v| panic!("{} {strategy}: {}", example.name, v[0]));
    Ok(plan)
}

/// The same options for a strategy and its micro-batches.
pub fn with_strategy(strategy: &Strategy, options: CompileOptions) -> CompileOptions {
    CompileOptions { micro_batches: strategy.micro.unwrap_or(1), strategy: strategy.clone(), ..options }
}

/// The same for as much memory, by these prices of what is made again.
///
/// # Errors
/// When it does not fit.
pub fn plan_within(example: &Example, text: &str, aim: Aim, price: &dyn Price) -> Result<Compiled, CompileError> {
    sized_within(example, (text, &[]), aim, price)
}

/// The same with other sizes.
///
/// # Errors
/// When it does not fit.
pub fn sized_within(
    example: &Example,
    (text, set): (&str, &[(&str, i64)]),
    aim: Aim,
    price: &dyn Price,
) -> Result<Compiled, CompileError> {
    compiled_within(example, reduced_options(example, text, DType::F32, set), aim, price)
}

/// The plan of a model for as much memory, verified.
///
/// # Errors
/// When it does not fit.
pub fn compiled_within(
    example: &Example,
    options: CompileOptions,
    aim: Aim,
    price: &dyn Price,
) -> Result<Compiled, CompileError> {
    let compiled = compile_within(&example.models(&options), &options, aim, price)?;
    forebay_plan::verify(&compiled.plan).unwrap_or_else(|v| panic!("{} {}: {}", example.name, options.strategy, v[0]));
    Ok(compiled)
}

/// Options for an example at reduced size, of so many rows and micro-batches, under a strategy.
pub fn reduced_options(example: &Example, text: &str, compute: DType, set: &[(&str, i64)]) -> CompileOptions {
    let mut overrides = example.reduced_to(ROWS.into(), SEQ);
    overrides.extend(set.iter().map(|(name, n)| (name.to_string(), Const::Int(*n))));
    with_strategy(&strategy(text), options(compute, overrides))
}

/// Random tokens of a step.
pub fn batch(plan: &Plan, step: u64) -> Batch {
    let settings = &plan.settings;
    let mut batch = Batch::new(settings.batch, settings.seq);
    let mut numbers = Numbers::new(step);
    let vocab = settings.vocab as f64;
    batch.tokens.iter_mut().chain(&mut batch.labels).for_each(|t| *t = (numbers.uniform() * vocab) as i32);
    // Some positions have no label, and documents end within rows.
    batch.labels.iter_mut().step_by(7).for_each(|l| *l = -1);
    let seq = settings.seq as usize;
    for (row, (positions, documents)) in
        batch.positions.chunks_mut(seq).zip(batch.documents.chunks_mut(seq)).enumerate()
    {
        for t in 0..seq {
            let start = if t >= 5 + row { 5 + row } else { 0 };
            (positions[t], documents[t]) = ((t - start) as i32, i32::from(start > 0));
        }
    }
    batch
}

/// Trains from the first values on, and evaluates.
pub fn train(name: &str, plan: &Plan, steps: u64) -> Run {
    train_with(name, plan, steps, &ExecOptions::default())
}

/// The same with options.
pub fn train_with(name: &str, plan: &Plan, steps: u64, options: &ExecOptions) -> Run {
    let mut executor = Executor::new(plan, options).unwrap_or_else(|e| panic!("{name}: {e}"));
    train_in(name, &mut executor, steps)
}

/// The same in an executor that was just made.
pub fn train_in(name: &str, executor: &mut Executor, steps: u64) -> Run {
    let plan = executor.plan();
    init::initialise(executor).unwrap();
    init::refresh_copies(executor).unwrap();
    let phase = executor.phase_named("train").unwrap();
    let (mut losses, mut norms) = (vec![], vec![]);
    for step in 1..=steps {
        executor.start(phase, &batch(plan, step), step).unwrap_or_else(|e| panic!("{name}: {e}"));
        losses.push(executor.report_named(phase, "loss"));
        norms.push(executor.report_named(phase, "grad_norm"));
        executor.commit(phase, step).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let saved = executor.tensors().into_iter().filter(|t| matches!(t.kind, TensorKind::Param | TensorKind::State));
    let params = saved
        .map(|t| {
            let bytes = executor.whole(t).unwrap();
            let n: u64 = t.dims.iter().product();
            (t.name.clone(), (0..n as usize).map(|i| element(t.dtype, &bytes, i)).collect())
        })
        .collect();
    let eval = executor.phase_named("eval").unwrap();
    executor.start(eval, &batch(plan, 77), steps).unwrap_or_else(|e| panic!("{name}: {e}"));
    executor.commit(eval, steps).unwrap();
    Run { losses, norms, params, evaluation: executor.report_named(eval, "loss") }
}

fn near(what: &str, have: f64, want: f64, tolerance: f64) {
    assert!((have - want).abs() <= tolerance * want.abs().max(1e-3), "{what}: {have}, alone {want}");
}

/// Panics where a run of ranks is not that of one alone: losses, gradient norms, and each tensor by its relative L2 norm.
pub fn compare(what: &str, together: &Run, alone: &Run, tolerance: f64) {
    for (step, (have, want)) in together.losses.iter().zip(&alone.losses).enumerate() {
        near(&format!("{what}: the loss of step {}", step + 1), *have, *want, tolerance);
    }
    for (step, (have, want)) in together.norms.iter().zip(&alone.norms).enumerate() {
        near(&format!("{what}: the gradient norm of step {}", step + 1), *have, *want, tolerance);
    }
    near(&format!("{what}: the evaluation"), together.evaluation, alone.evaluation, tolerance);
    assert_eq!(together.params.len(), alone.params.len(), "{what}: as many parameters");
    for (name, want) in &alone.params {
        let have = &together.params[name];
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let apart = norm(&mut have.iter().zip(want).map(|(a, b)| a - b));
        let size = norm(&mut want.iter().copied()).max(1e-3);
        assert!(apart <= tolerance * size, "{what}: `{name}` is {apart:e} away from one rank's, of {size:e}");
    }
}

/// The names and bytes of a checkpoint's files of tensors.
pub type SavedFiles = Vec<(String, Vec<u8>)>;

/// Trains two steps, from a checkpoint if there is one, and saves them in a folder.
pub fn saved(plan: &Plan, from: Option<&Checkpoint>, run: &std::path::Path) -> (Checkpoint, SavedFiles) {
    let mut executor = Executor::new(plan, &ExecOptions { seed: 5, ..ExecOptions::default() }).unwrap();
    init::initialise(&mut executor).unwrap();
    from.into_iter().for_each(|checkpoint| checkpoint.load(&mut executor, Contents::All).unwrap());
    let first = from.map_or(0, |c| c.index().step);
    let phase = executor.phase_named("train").unwrap();
    for step in first + 1..=first + 2 {
        executor.start(phase, &batch(plan, step), step).unwrap();
        executor.commit(phase, step).unwrap();
    }
    let data = DataInfo { fingerprint: "0".repeat(16), bytes: 1 };
    let folder = Saver::create(run, 5).unwrap().save(&executor, first + 2, &data, &[]).unwrap();
    let files = ["model.safetensors", "optimizer.safetensors"];
    let files = files.map(|file| (file.to_string(), std::fs::read(folder.join(file)).unwrap()));
    (Checkpoint::open(&folder).unwrap(), files.to_vec())
}

/// A plan of bench-small in bf16 under a strategy of two micro-batches, long enough for copies to take their time.
pub fn of_bench_small(text: &str) -> Plan {
    let (strategy, overrides) = (strategy(text), vec![("batch".into(), Const::Int(8))]);
    let options = CompileOptions { strategy, micro_batches: 2, ..options(DType::BF16, overrides) };
    let model = Example::named("bench-small").check(&options, true, Some(4));
    compile_training(&model, &options, &[2]).unwrap_or_else(|e| panic!("{e}")).remove(0)
}
