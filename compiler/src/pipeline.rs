//! The pipeline: model text → plan.

use crate::autodiff::{Differentiated, Keep, Options, differentiate};
use crate::emit::Joins;
use crate::memory::fit::{Fits, Fitted, Form, Forms, fit};
use crate::memory::place::{self, Place};
use crate::memory::{Aim, Misfit, Price, Recompute, StageMemory, recompute};
use crate::optimizer::{self, Optimizer};
use crate::overlap::exchange;
use crate::overlap::pieces::{self, Pieces};
use crate::overlap::{self, Clock, Lanes, Pass};
use crate::rewrite::{self, Differentiation, Numerics, Report};
use crate::ring;
use crate::schedule::{
    ForwardKind, Gradients, Layout, Scheduler, Segments, Stage, Turns, Types, borders, orders, stages, waits,
};
use crate::shard::{Dense, ShardedModel, Strategy, StrategyError, shard_model};
use crate::shares::Shares;
use forebay_dsl::model::{CheckOptions, CheckedModel, Const, Limits};
use forebay_ir::{DType, Graph};
use forebay_plan as plan;
use std::fmt;

/// What the user decides about a compilation.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// `--set name=value`, and `batch` and `seq` when they are given. `batch` is that of a whole step.
    pub overrides: Vec<(String, Const)>,
    /// The compute type.
    pub compute: DType,
    /// Micro-batches of a step; they divide the batch.
    pub micro_batches: u32,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The type in which gradients are kept.
    pub gradients: Gradients,
    /// Fusion and equivalent rewrites.
    pub rewrite: rewrite::Options,
    /// Which nodes may be one kernel.
    pub joins: Joins,
    /// How ranks share the work; `micro_batches` are those of each data-parallel rank.
    pub strategy: Strategy,
    /// The device whose times the orders of programs go by.
    pub clock: Clock,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            overrides: vec![],
            compute: DType::F32,
            micro_batches: 1,
            optimizer: Optimizer::default(),
            gradients: Gradients::default(),
            rewrite: rewrite::Options::default(),
            joins: Joins::default(),
            strategy: Strategy::default(),
            clock: Clock::default(),
        }
    }
}

impl CompileOptions {
    /// The type of `wide` floats, parameters and moments.
    pub fn wide(&self) -> DType {
        if self.compute == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// The rules that leave values where the strategy puts them.
    pub fn rewriting(&self) -> rewrite::Options {
        rewrite::Options { shares: self.strategy.shares, ..self.rewrite.clone() }
    }

    /// How a phase's model is checked. `rows` are those of a micro-batch.
    pub fn check_options(&self, training: bool, rows: Option<u64>, micro_batches: u32) -> CheckOptions {
        let mut overrides = self.overrides.clone();
        overrides.extend(rows.map(|rows| ("batch".to_string(), Const::Int(rows as i64))));
        CheckOptions {
            overrides,
            narrow: self.compute,
            wide: self.wide(),
            training,
            micro_batches,
            limits: Limits::default(),
        }
    }
}

/// The three forms of a model that a plan is made of.
#[derive(Clone, Debug)]
pub struct Models {
    /// With `training`, rows of a micro-batch.
    pub train: CheckedModel,
    /// Without, the same rows.
    pub eval: CheckedModel,
    /// Without, one row.
    pub generate: CheckedModel,
}

/// A plan, and what its stages keep in memory.
#[derive(Debug)]
pub struct Compiled {
    /// The plan.
    pub plan: plan::Plan,
    /// For each stage.
    pub stages: Vec<StageMemory>,
    /// The strategy that it is for.
    pub strategy: Strategy,
    /// Where shares of experts could be multiplied in, if that was to be found.
    pub places: Vec<Place>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// The strategy does not fit the model.
    Strategy(StrategyError),
    /// A stage does not fit into memory.
    Memory(Misfit),
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompileError::Strategy(error) => error.fmt(f),
            CompileError::Memory(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CompileError {}

impl From<StrategyError> for CompileError {
    fn from(error: StrategyError) -> CompileError {
        CompileError::Strategy(error)
    }
}

/// Compiles checked models to a plan for all ranks of the strategy.
///
/// # Errors
/// When the strategy does not fit the model.
pub fn compile(models: &Models, options: &CompileOptions) -> Result<plan::Plan, StrategyError> {
    match compile_within(models, options, Aim::Fastest, &options.rewrite.profile) {
        Ok(compiled) => Ok(compiled.plan),
        Err(CompileError::Strategy(error)) => Err(error),
        Err(CompileError::Memory(error)) => unreachable!("nothing was asked of the memory: {error}"),
    }
}

/// The same with an arena of at most so many bytes on each device: what is not kept for the backward pass is made again, at the least cost by these prices.
///
/// # Errors
/// When the strategy does not fit the model, or a stage does not fit into memory.
pub fn compile_within(
    models: &Models,
    options: &CompileOptions,
    aim: Aim,
    price: &dyn Price,
) -> Result<Compiled, CompileError> {
    if options.strategy.shares == Shares::Auto {
        return place::choose(aim, price, &mut |shares| {
            let strategy = Strategy { shares, ..options.strategy.clone() };
            compile_within(models, &CompileOptions { strategy, ..options.clone() }, aim, price)
        });
    }
    let (strategy, optimizer) = (&options.strategy, &options.optimizer);
    let types = options.types(options.micro_batches);
    strategy.check_master_weights(options.compute)?;
    let train = with_exchanges(&models.train, options)?;
    let eval = shard_model(&models.eval, strategy)?;
    let generates = models.generate.segments.iter().any(|s| has_output(&s.forward));
    let generate = generates.then(|| shard_model(&models.generate, strategy)).transpose()?;
    let rewriting = options.rewriting();
    let of_floats = (types.wide, types.narrow);
    let mut scheduler =
        Scheduler::new(of_floats, &rewriting, lanes(&train, options), strategy.overlap.clone(), options.joins);
    let micro = options.micro_batches;
    let orders = orders(strategy, micro)?;
    let stages = stages(&models.train, strategy)?;
    let segments = Segments::new(&train, &rewriting, (strategy.keep, &strategy.recompute, &strategy.swap))?;
    let mut forms = Forms::default();
    let mut parts = vec![];
    let crossed = borders(&stages, &orders);
    let early = strategy.pp > 1 && strategy.overlap.has(Pass::Early);
    let waits = if early { waits(strategy, micro)? } else { vec![vec![]; stages.len()] };
    let layouts: Vec<Layout> =
        stages.iter().map(|stage| Layout::new(&train, stage, optimizer, strategy, types)).collect();
    if let Some(misfit) = aim.budget().and_then(|budget| too_large(&layouts, budget)) {
        return Err(CompileError::Memory(misfit));
    }
    let mut misfit = None;
    for (n, (stage, layout)) in stages.into_iter().zip(layouts).enumerate() {
        let turns = Turns { order: &orders[n], crossed: &crossed[n], waits: &waits[n], micro_batches: micro };
        let mut schedule = |s: &Segments| scheduler.train((&train, s), &stage, &layout, &turns, optimizer);
        // Where one stage does not fit, it is the one that is missing most which is told.
        let aim = match (aim, &misfit) {
            (Aim::Within(budget), Some(_)) => Aim::InSomeWay(budget),
            _ => aim,
        };
        let fits = match fit((stage.number, layout.bytes), (aim, price), (&segments, &mut forms), &mut schedule) {
            Ok(fits) => fits,
            Err(other) if misfit.is_none() && matches!(aim, Aim::InSomeWay(_)) => {
                return Err(CompileError::Memory(other));
            }
            Err(other) => {
                misfit = misfit.filter(|known: &Misfit| known.least >= other.least).or(Some(other));
                continue;
            }
        };
        if misfit.is_some() {
            continue;
        }
        let mut others = vec![scheduler.forward(&eval, &stage, &layout, ForwardKind::Eval, micro)];
        others.extend(generate.as_ref().map(|g| scheduler.forward(g, &stage, &layout, ForwardKind::Generate, 1)));
        parts.push(StagePart { stage, layout, fits, others });
    }
    if let Some(misfit) = misfit {
        return Err(CompileError::Memory(misfit));
    }
    let programs = scheduler.into_programs();
    let compiled = |parts: Vec<StagePart>, programs: Vec<plan::Program>, form: Form| {
        let (roles, memory) = parts.into_iter().map(|part| part.role(&train, form)).unzip();
        let plan = assemble(&models.train, options, &train, programs, roles);
        Compiled { plan, stages: memory, strategy: strategy.clone(), places: vec![] }
    };
    let mut forms = Form::ALL.to_vec();
    forms.retain(|&form| parts.iter().any(|part| part.fits.has(form)));
    if !price.knows_device() {
        return Ok(compiled(parts, programs, forms[forms.len() - 1]));
    }
    // Stages are not alike: where one is busy, what is made again is better off in its layer, beside that one's exchanges.
    let mut plans = forms.iter().map(|&form| compiled(parts.clone(), programs.clone(), form));
    let mut best = plans.next().expect("there is the usual one");
    let mut others = plans.peekable();
    if others.peek().is_none() {
        return Ok(best);
    }
    // (What has no price, such as copies to a host that the cluster file does not have, is left as it is.)
    let Ok(mut least) = price.step(&best.plan) else { return Ok(best) };
    for other in others {
        if let Some(step) = price.step(&other.plan).ok().filter(|step| *step < least) {
            (best, least) = (other, step);
        }
    }
    Ok(best)
}

/// The stage with most persistent bytes, if these alone are more than are allowed.
fn too_large(layouts: &[Layout], budget: u64) -> Option<Misfit> {
    let (stage, largest) = (0..).zip(layouts).max_by_key(|(stage, layout)| (layout.bytes, u32::MAX - stage))?;
    let persistent = largest.bytes;
    (persistent > budget).then_some(Misfit { stage, budget, least: persistent, persistent })
}

/// A stage, with the forms of its training phase.
#[derive(Clone)]
struct StagePart {
    stage: Stage,
    layout: Layout,
    fits: Fits,
    /// The phases without a backward pass.
    others: Vec<plan::Phase>,
}

impl StagePart {
    /// What its ranks do, in a form.
    fn role(self, sharded: &ShardedModel, form: Form) -> (plan::Role, StageMemory) {
        let Fitted { phase, memory } = self.fits.in_form(form);
        let phases = std::iter::once(phase).chain(self.others).collect();
        (role(sharded, &self.stage, self.layout, phases), memory)
    }
}

/// Compiles the training phase alone, once for each number of micro-batches; segments are lowered once for all of them. For predictions, which run nothing.
///
/// # Errors
/// When the strategy does not fit the model.
pub fn compile_training(
    model: &CheckedModel,
    options: &CompileOptions,
    micros: &[u32],
) -> Result<Vec<plan::Plan>, StrategyError> {
    let train = with_exchanges(model, options)?;
    let mut plans = compile_in_line(model, &train, options, micros)?;
    plans.iter_mut().for_each(|plan| over_streams(plan, &train, options));
    Ok(plans)
}

/// The same of a model that was sharded already, by the strategy of the options, with all instructions on one stream: for systems that run them one after another.
///
/// # Errors
/// As [`compile_training`].
pub fn compile_in_line(
    model: &CheckedModel,
    train: &ShardedModel,
    options: &CompileOptions,
    micros: &[u32],
) -> Result<Vec<plan::Plan>, StrategyError> {
    let (strategy, optimizer) = (&options.strategy, &options.optimizer);
    strategy.check_master_weights(options.compute)?;
    let stages = stages(model, strategy)?;
    let rewriting = options.rewriting();
    let of_floats = (options.wide(), options.compute);
    let mut scheduler =
        Scheduler::new(of_floats, &rewriting, lanes(train, options), strategy.overlap.clone(), options.joins);
    let segments = Segments::new(train, &rewriting, (strategy.keep, &strategy.recompute, &strategy.swap))?;
    let mut of_micros = vec![];
    for &micro in micros {
        let orders = orders(strategy, micro)?;
        let mut roles = vec![];
        let crossed = borders(&stages, &orders);
        for (stage, (order, crossed)) in stages.iter().zip(orders.iter().zip(&crossed)) {
            let layout = Layout::new(train, stage, optimizer, strategy, options.types(micro));
            let turns = Turns { order, crossed, waits: &[], micro_batches: micro };
            let (phase, _) = scheduler.train((train, &segments), stage, &layout, &turns, optimizer);
            roles.push(role(train, stage, layout, vec![phase]));
        }
        of_micros.push((micro, roles));
    }
    let programs = scheduler.into_programs();
    let plans = of_micros.into_iter().map(|(micro, roles)| {
        let options = CompileOptions { micro_batches: micro, ..options.clone() };
        in_line(model, &options, train, programs.clone(), roles)
    });
    Ok(plans.collect())
}

/// A plan of programs and roles, spread over streams.
fn assemble(
    model: &CheckedModel,
    options: &CompileOptions,
    train: &ShardedModel,
    programs: Vec<plan::Program>,
    roles: Vec<plan::Role>,
) -> plan::Plan {
    let mut plan = in_line(model, options, train, programs, roles);
    over_streams(&mut plan, train, options);
    plan
}

/// Spreads a plan over streams, and marks what they are given at once.
fn over_streams(plan: &mut plan::Plan, train: &ShardedModel, options: &CompileOptions) {
    overlap::spread(plan, &lanes(train, options));
    if options.strategy.overlap.has(Pass::Capture) {
        overlap::capture(plan);
    }
}

/// The same on one stream.
fn in_line(
    model: &CheckedModel,
    options: &CompileOptions,
    train: &ShardedModel,
    programs: Vec<plan::Program>,
    roles: Vec<plan::Role>,
) -> plan::Plan {
    let mut plan = plan::Plan {
        format: plan::FORMAT.into(),
        version: plan::VERSION,
        model: model.name.clone(),
        settings: settings(model, options),
        mesh: train.mesh.dims.iter().map(|d| plan::MeshDim { name: d.name.clone(), size: d.size }).collect(),
        programs,
        roles,
    };
    drop_unused(&mut plan);
    for role in &mut plan.roles {
        role.host_bytes = host_bytes(&plan.programs, role);
    }
    plan
}

/// A model sharded by the strategy of the options, cut into its `pieces`, with the exchange that its `dispatch` names.
///
/// # Errors
/// When the strategy does not fit the model.
pub fn with_exchanges(model: &CheckedModel, options: &CompileOptions) -> Result<ShardedModel, StrategyError> {
    let Strategy { pieces, dispatch, .. } = options.strategy;
    let mut sharded = shard_model(model, &options.strategy)?;
    let lanes = lanes(&sharded, options);
    let segments = sharded.model.segments.iter_mut();
    let cut: usize = segments.map(|s| pieces::cut(&mut s.forward, pieces, &lanes)).sum();
    if cut == 0 && !matches!(pieces, Pieces::Auto | Pieces::Number(1)) {
        return Err(pieces::nothing_to_cut(pieces));
    }
    exchange::decomposed(sharded, dispatch)
}

/// Which unit does what.
fn lanes(sharded: &ShardedModel, options: &CompileOptions) -> Lanes {
    Lanes::new(&sharded.mesh, &options.strategy.overlap, options.clock.clone())
}

/// Bytes of the host's memory that a role keeps there, and that its calls use.
fn host_bytes(programs: &[plan::Program], role: &plan::Role) -> u64 {
    let calls = role.phases.iter().flat_map(|p| &p.calls);
    let slots = calls.flat_map(|call| programs[call.program as usize].slots.iter().zip(&call.slots));
    let of_host = slots.filter(|(slot, _)| slot.space == plan::Space::Host);
    of_host.map(|(slot, offset)| offset + slot.bytes).max().unwrap_or(0).max(role.host_persistent_bytes)
}

/// Drops programs that no call runs: those of choices that did not fit.
fn drop_unused(plan: &mut plan::Plan) {
    let calls = || plan.roles.iter().flat_map(|r| &r.phases).flat_map(|p| &p.calls);
    let mut used = vec![false; plan.programs.len()];
    calls().for_each(|call| used[call.program as usize] = true);
    let mut left = 0;
    let mut number = |used: &bool| {
        left += u32::from(*used);
        left.saturating_sub(1)
    };
    let numbers: Vec<u32> = used.iter().map(&mut number).collect();
    for call in plan.roles.iter_mut().flat_map(|r| &mut r.phases).flat_map(|p| &mut p.calls) {
        call.program = numbers[call.program as usize];
    }
    let mut used = used.into_iter();
    plan.programs.retain(|_| used.next().expect("one for each"));
}

/// What the ranks of a stage do.
fn role(sharded: &ShardedModel, stage: &Stage, layout: Layout, phases: Vec<plan::Phase>) -> plan::Role {
    let mut layers: Vec<String> = sharded.model.layers.iter().map(|l| layer_name(&sharded.model, l)).collect();
    layers.push("step".into());
    let own = |d: usize| match sharded.mesh.kinds[d].0 {
        Dense::Pp => (stage.number, stage.number + 1),
        _ => (0, sharded.mesh.dims[d].size),
    };
    plan::Role {
        name: if stage.of == 1 { "rank".into() } else { format!("stage{}", stage.number) },
        coordinates: (0..sharded.mesh.dims.len()).map(own).collect(),
        device_bytes: phases.iter().map(|p| p.memory.placed).max().unwrap_or(0),
        host_bytes: 0,
        persistent_bytes: layout.bytes,
        host_persistent_bytes: layout.host_bytes,
        tensors: layout.tensors,
        layers,
        phases,
    }
}

/// Relabels as `ring` the gathers whose parts fused attention takes one after another instead of at once.
pub fn name_rings(sharded: &mut ShardedModel, rewriting: &rewrite::Options) {
    let ring = sharded.mesh.ring();
    if ring.is_empty() {
        return;
    }
    for (segment, notes) in sharded.model.segments.iter().zip(&mut sharded.notes) {
        let travelling = ring::travelling(&rewrite::rewrite(&segment.forward, rewriting).0, &ring);
        let is_one = |note: &crate::shard::Note| {
            let name = format!("{}.unshard", note.value);
            note.group.starts_with(&ring) && travelling.iter().any(|t| *t == name || t.starts_with(&format!("{name}_")))
        };
        notes.iter_mut().filter(|n| is_one(n)).for_each(|n| n.collective = "ring");
    }
}

fn has_output(graph: &Graph) -> bool {
    graph.outputs.iter().any(|o| o.role == forebay_ir::OutputRole::Output)
}

fn layer_name(model: &CheckedModel, layer: &forebay_dsl::model::Layer) -> String {
    if layer.name.is_empty() { model.segments[layer.segment].name.clone() } else { layer.name.clone() }
}

fn settings(model: &CheckedModel, options: &CompileOptions) -> plan::Settings {
    let int = |name: &str| match model.constants.get(name) {
        Some(Const::Int(n)) => Some(*n as u64),
        _ => None,
    };
    let summary = crate::summary::Summary::new(model);
    plan::Settings {
        compute: crate::emit::dtype(options.compute),
        batch: model.batch * u64::from(options.micro_batches) * u64::from(options.strategy.dp),
        micro_batches: options.micro_batches,
        seq: model.seq,
        vocab: int("vocab").unwrap_or(256),
        packed: model.inputs.iter().any(|i| i == "documents" || i == "positions"),
        steps: options.optimizer.steps,
        params: summary.params,
        active_params: summary.active_params,
        flops_per_step: 3.0 * summary.forward_flops * f64::from(options.micro_batches) * f64::from(options.strategy.dp),
    }
}

/// The graphs of each segment after differentiation, for `--emit grad` and tests: all carries that can have gradients have them.
pub fn differentiated_segments(model: &CheckedModel, keep: Keep) -> Vec<Differentiated> {
    let of = |g: &Graph| differentiate(g, &Options::all_floats(g).keeping(keep));
    model.segments.iter().map(|s| of(&s.forward)).collect()
}

/// Differentiates a forward graph that is rewritten first: what is fused is differentiated as a whole, by its gradient row. Where everything has to
/// be exact, fused gradients would not be: then the graph is differentiated as it is.
pub fn differentiated_after_fusion(
    forward: &Graph,
    options: &Options,
    rewriting: &rewrite::Options,
) -> (Differentiated, Vec<Report>) {
    if rewriting.numerics == Numerics::Exact {
        return (differentiate(forward, options), vec![]);
    }
    let before = rewrite::Options { differentiation: Differentiation::ToCome, ..rewriting.clone() };
    let (fused, report) = rewrite::rewrite(forward, &before);
    (differentiate(&fused, options), vec![report])
}

/// The same, with the graphs rewritten again, and what is not saved computed again.
pub fn fused_gradients(
    forward: &Graph,
    options: &Options,
    rewriting: &rewrite::Options,
    again: &Recompute,
) -> (Differentiated, Vec<Report>) {
    let (mut all, mut reports) = differentiated_after_fusion(forward, options, rewriting);
    let after = rewrite::Options { differentiation: Differentiation::Done, ..rewriting.clone() };
    for graph in [&mut all.forward, &mut all.backward, &mut all.backward_input, &mut all.backward_weight] {
        let (fused, report) = rewrite::rewrite(graph, &after);
        *graph = fused;
        reports.push(report);
    }
    recompute(&mut all, again, options.keep);
    (all, reports)
}

/// The optimizer's step over each group of parameters, before rewriting.
///
/// # Errors
/// When the strategy does not fit the model.
pub fn optimizer_graphs(model: &CheckedModel, options: &CompileOptions) -> Result<Vec<Graph>, StrategyError> {
    let types = options.types(options.micro_batches);
    let sharded = shard_model(model, &options.strategy)?;
    let mut graphs = vec![];
    for stage in stages(model, &options.strategy)? {
        let layout = Layout::new(&sharded, &stage, &options.optimizer, &options.strategy, types);
        let adamw = |g: &crate::schedule::Group| {
            let Types { wide, narrow, .. } = types;
            let types = optimizer::Types { wide, narrow, gradients: g.gradient, moments: layout.moments };
            optimizer::adamw(&options.optimizer, g.shard(), g.decays, types)
        };
        graphs.extend(layout.groups.iter().map(adamw));
    }
    Ok(graphs)
}

/// The graphs of each segment after rewriting, and what was done to them.
pub fn fused_segments(
    model: &CheckedModel,
    (keep, again): (Keep, &Recompute),
    rewriting: &rewrite::Options,
) -> Vec<(Differentiated, Vec<Report>)> {
    let of = |g: &Graph| fused_gradients(g, &Options::all_floats(g).keeping(keep), rewriting, again);
    model.segments.iter().map(|s| of(&s.forward)).collect()
}
