//! Model files: from text to checked models and plans, with diagnostics.

use crate::args::ModelArgs;
use crate::failure::{Failure, colors};
use crate::files::{LARGE, read_text};
use crate::say::say;
use crate::search;
use crate::strategy::{self, StrategyArg};
use forebay_compiler::memory::{Aim, Price};
use forebay_compiler::module::{self, File, Forms};
use forebay_compiler::pipeline::{self, CompileError, CompileOptions, Compiled, Models};
use forebay_compiler::settle::settle;
use forebay_compiler::shard::{Strategy, StrategyError, divisors, listed};
use forebay_dsl::diagnostics::{self, Diagnostic};
use forebay_dsl::model::{CheckOptions, CheckedModel};
use forebay_dsl::std_library;
use forebay_plan::{Plan, ReadError};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// A file that was read.
pub struct ModelFile {
    name: String,
    text: String,
    /// The file of the strategy that it is compiled with.
    strategy: Option<PathBuf>,
}

/// Models that the program has in it, so that `forebay bench` and what is predicted of it need no file.
const BUILT_IN: [(&str, &str); 2] = [
    ("bench-tiny", include_str!("../examples/models/bench-tiny.moe")),
    ("bench-small", include_str!("../examples/models/bench-small.moe")),
];

impl ModelFile {
    /// Reads a file, or takes the built-in model of this name where there is no such file.
    pub fn read(path: &Path) -> Result<ModelFile, Failure> {
        match BUILT_IN.iter().find(|(name, _)| path == Path::new(name)) {
            // (A run of that name may be kept in a folder of that name.)
            Some((name, _)) if !path.is_file() => Ok(ModelFile::built_in(name)),
            _ => ModelFile::read_file(path),
        }
    }

    /// A built-in model.
    ///
    /// # Panics
    /// When there is none of this name.
    pub fn built_in(name: &str) -> ModelFile {
        let (name, text) = BUILT_IN.iter().find(|(n, _)| *n == name).expect("the name of a built-in model");
        ModelFile { name: format!("{name}.moe"), text: text.to_string(), strategy: None }
    }

    /// Reads a file.
    pub fn read_file(path: &Path) -> Result<ModelFile, Failure> {
        let name = path.display().to_string();
        let text = read_text(path, LARGE)?;
        if text.trim_start().starts_with("{\"format\":\"forebay-plan\"") {
            return Err(Failure::Input(format!(
                "`{name}` is a plan, not a model: `forebay plan show {name}` prints it, `forebay run {name}` trains with it"
            )));
        }
        Ok(ModelFile { name, text, strategy: None })
    }

    /// Is it textual IR?
    pub fn is_ir(&self) -> bool {
        self.name.ends_with(".ir")
    }

    /// The file, to be compiled with these settings. Textual IR has its sizes in it.
    pub fn with(self, settings: &ModelArgs) -> Result<ModelFile, Failure> {
        if !self.is_ir() || !settings.is_given() {
            let strategy = settings.strategy.as_ref().and_then(StrategyArg::file);
            return Ok(ModelFile { strategy: strategy.map(Path::to_path_buf), ..self });
        }
        Err(Failure::Input(format!(
            "`{}` is textual IR, in which sizes, micro-batches, the compute type and the strategy are fixed: --set, --batch, --seq, --micro-batches, --dtype and --strategy go \
             with the model that it is made from",
            self.name
        )))
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Diagnostics with the lines they are about.
    pub fn render(&self, diagnostics: &[Diagnostic]) -> String {
        diagnostics::render(diagnostics, &std_library::sources(&self.name, &self.text), colors())
    }

    fn check(&self, options: &CheckOptions, warned: &mut HashSet<String>) -> Result<CheckedModel, Failure> {
        match forebay_dsl::load(&self.text, options) {
            Ok(accepted) => {
                for warning in &accepted.warnings {
                    let text = self.render(std::slice::from_ref(warning));
                    // The three forms of a model mostly have the same warnings.
                    if warned.insert(text.clone()) {
                        say!("{}\n", text.trim_end());
                    }
                }
                Ok(accepted.model)
            }
            Err(diagnostics) => Err(Failure::Rendered(self.render(&diagnostics))),
        }
    }

    /// The textual IR that the file holds.
    pub fn ir(&self) -> Result<File, Failure> {
        module::parse_file(&self.text)
            .map_err(|errors| Failure::Rendered(forebay_ir::text::render(&errors, &self.text, &self.name)))
    }

    /// The model as it trains, with the rows of a micro-batch on one data-parallel rank.
    pub fn training(&self, options: &CompileOptions) -> Result<CheckedModel, Failure> {
        Ok(self.training_in_parts(options)?.0)
    }

    /// The same, and how many micro-batches that rank has in a step.
    pub fn training_in_parts(&self, options: &CompileOptions) -> Result<(CheckedModel, u32), Failure> {
        if self.is_ir() {
            let forms = self.forms(options)?;
            return Ok((forms.models.train, forms.micro_batches));
        }
        let mut warned = HashSet::new();
        let parts = self.parts(options, &mut warned)?;
        let model = self.check(&options.check_options(true, parts.rows, parts.all()), &mut warned)?;
        Ok((model, parts.micro_batches))
    }

    /// The forms of the model that a plan is made of.
    pub fn forms(&self, options: &CompileOptions) -> Result<Forms, Failure> {
        if self.is_ir() {
            return match self.ir()? {
                File::Model(forms) => Ok(*forms),
                File::Graphs(_) => Err(Failure::Input(format!(
                    "`{}` holds graphs alone: a plan also takes the `model` header that says how they become layers",
                    self.name
                ))),
            };
        }
        let mut warned = HashSet::new();
        let parts = self.parts(options, &mut warned)?;
        let mut check = |training, rows, micro_batches| {
            self.check(&options.check_options(training, rows, micro_batches), &mut warned)
        };
        let models = Models {
            train: check(true, parts.rows, parts.all())?,
            eval: check(false, parts.rows, parts.all())?,
            generate: check(false, Some(1), 1)?,
        };
        Ok(Forms { models, compute: options.compute, micro_batches: parts.micro_batches })
    }

    /// How a step's rows are divided: batch = data-parallel ranks × micro-batches × rows of a micro-batch.
    fn parts(&self, options: &CompileOptions, warned: &mut HashSet<String>) -> Result<Parts, Failure> {
        let ranks = options.strategy.dp;
        let (micro, rows) = (options.strategy.micro, options.strategy.mbs);
        let chosen = options.overrides.iter().any(|(name, _)| name == "batch");
        if let (Some(micro_batches), Some(rows), false) = (micro, rows, chosen) {
            return Ok(Parts { ranks, micro_batches, rows: Some(rows.into()) });
        }
        let micro = micro.or((options.micro_batches > 1).then_some(options.micro_batches));
        if (ranks, micro, rows) == (1, None, None) {
            return Ok(Parts { ranks, micro_batches: 1, rows: None });
        }
        let batch = self.check(&options.check_options(true, None, 1), warned)?.batch;
        if let (Some(micro), 2..) = (options.strategy.micro, options.micro_batches)
            && micro != options.micro_batches
        {
            let given = options.micro_batches;
            return Err(Failure::Input(format!(
                "--micro-batches {given} and micro={micro} of the strategy say different things\n  = help: leave one of them out"
            )));
        }
        let of_rank = batch / u64::from(ranks);
        let micro_batches = match (micro, rows) {
            (Some(micro), _) => micro,
            (None, Some(rows)) => u32::try_from(of_rank / u64::from(rows)).unwrap_or(u32::MAX).max(1),
            (None, None) => 1,
        };
        let n = u64::from(micro_batches);
        let of_part = rows.map_or(of_rank / n, u64::from);
        if of_part > 0 && of_part * n * u64::from(ranks) == batch {
            return Ok(Parts { ranks, micro_batches, rows: Some(of_part) });
        }
        let message = indivisible(batch, options, (n, of_rank, micro.is_some()));
        Err(Failure::Input(format!("{message}{}", self.places(&message))))
    }

    /// Compiles the model, and verifies the plan.
    pub fn compile(&self, options: &CompileOptions) -> Result<Plan, Failure> {
        match self.compile_within(options, Aim::Fastest, &options.rewrite.profile)? {
            Ok(compiled) => Ok(compiled.plan),
            Err(error) => Err(self.misfit(options, &error)),
        }
    }

    /// Compiles the model for as much memory, by these prices of what is made again, and verifies the plan.
    pub fn compile_within(
        &self,
        options: &CompileOptions,
        aim: Aim,
        price: &dyn Price,
    ) -> Result<Result<Compiled, CompileError>, Failure> {
        let Forms { models, compute, micro_batches } = self.forms(options)?;
        let mut options = CompileOptions { compute, micro_batches, ..options.clone() };
        match settled(&models.train, &options, price) {
            Ok(strategy) => options.strategy = strategy,
            Err(error) => return Ok(Err(error.into())),
        }
        let compiled = match pipeline::compile_within(&models, &options, aim, price) {
            Ok(compiled) => compiled,
            Err(error) => return Ok(Err(error)),
        };
        match forebay_plan::verify(&compiled.plan) {
            Ok(()) => Ok(Ok(compiled)),
            Err(violations) => {
                let shown: Vec<String> = violations.iter().take(5).map(|v| format!("  {v}")).collect();
                Err(Failure::Input(format!(
                    "the compiler made an invalid plan of `{}`, which is a mistake of ours and not of the model:\n{}",
                    self.name,
                    shown.join("\n")
                )))
            }
        }
    }

    /// The lines of the strategy's file that a message is about.
    fn places(&self, message: &str) -> String {
        self.strategy.as_deref().map_or(String::new(), |file| strategy::places(file, message))
    }

    /// Why the model has no plan under a strategy.
    pub fn misfit(&self, options: &CompileOptions, error: &impl std::fmt::Display) -> Failure {
        let places = self.places(&error.to_string());
        Failure::Input(format!("`{}` with --strategy {}: {error}{places}", self.name, options.strategy))
    }
}

/// Why a batch cannot be divided into `n` micro-batches of a rank's `of_rank` rows, and what could be; `n` may follow from `mbs`.
fn indivisible(batch: u64, options: &CompileOptions, (n, of_rank, is_given): (u64, u64, bool)) -> String {
    let (ranks, micro) = (u64::from(options.strategy.dp), options.strategy.micro);
    match options.strategy.mbs.map(u64::from) {
        Some(rows) if !is_given => {
            let all = rows * ranks;
            if batch.is_multiple_of(ranks) {
                format!(
                    "the {of_rank} rows of a batch of {batch} that each of dp = {ranks} ranks has cannot be done in micro-batches of mbs = {rows}\n  \
                     = help: use mbs = {}, or a --batch that is a multiple of {all}",
                    listed(&divisors(of_rank))
                )
            } else {
                format!(
                    "a batch of {batch} rows cannot be shared by dp = {ranks} ranks in micro-batches of mbs = {rows}\n  = help: use a --batch that is a \
                     multiple of {all}"
                )
            }
        }
        None if ranks == 1 => {
            let key = if micro.is_some() { "micro" } else { "--micro-batches" };
            let fit = listed(&divisors(batch));
            format!("a batch of {batch} rows cannot be done in {n} parts: {key} must be one of {fit}")
        }
        mbs => {
            let rows = mbs.map_or("a whole number".to_string(), |rows| format!("mbs = {rows}"));
            let all = ranks * n * mbs.unwrap_or(1);
            format!(
                "a batch of {batch} rows is not dp = {ranks} × micro = {n} × {rows}\n  = help: use a --batch that is a multiple of {all}"
            )
        }
    }
}

/// The strategy, with what it leaves to be found; what was found is said.
fn settled(model: &CheckedModel, options: &CompileOptions, price: &dyn Price) -> Result<Strategy, StrategyError> {
    let bar = search::Bar::new(&search::time, false);
    let settled = settle(model, options, price, &mut |progress| bar.show(progress));
    bar.finish();
    let settled = settled?;
    if let Some(ways) = &settled.ways {
        say!("{}", search::told_ways("dispatch", ways));
    }
    if let Some(cuts) = &settled.cuts {
        say!("{}", search::told_ways("pieces", cuts));
    }
    if let Some(found) = &settled.found {
        say!("{}", search::told(&settled, found));
    }
    Ok(settled.strategy)
}

/// How a step's rows are divided.
struct Parts {
    /// Data-parallel ranks.
    ranks: u32,
    /// Micro-batches of each.
    micro_batches: u32,
    /// Rows of a micro-batch; the model's batch when `None`.
    rows: Option<u64>,
}

impl Parts {
    /// Micro-batches of all ranks: what losses without a count are means over.
    fn all(&self) -> u32 {
        self.ranks.saturating_mul(self.micro_batches)
    }
}

/// Reads a plan that was compiled earlier, and verifies it.
pub fn read_plan(path: &Path) -> Result<Plan, Failure> {
    plan_of(path, Plan::read_from)
}

/// Reads a plan to look at: it may be one that cannot run.
pub fn parse_plan(path: &Path) -> Result<Plan, Failure> {
    plan_of(path, Plan::parse_from)
}

fn plan_of(path: &Path, read: fn(std::fs::File, u64) -> Result<Plan, ReadError>) -> Result<Plan, Failure> {
    let name = path.display();
    let file =
        std::fs::File::open(path).map_err(|error| Failure::Input(format!("cannot read the plan `{name}`: {error}")))?;
    read(file, forebay_plan::MAX_FILE_BYTES).map_err(|error| Failure::Input(format!("`{name}`: {error}")))
}
