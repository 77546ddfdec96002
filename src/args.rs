//! Options that several commands share.

use crate::failure::Failure;
use crate::hosts::HostArgs;
use crate::strategy::{StrategyArg, strategy_arg};
use clap::{Args, ValueEnum};
use forebay_compiler::emit::Joins;
use forebay_compiler::optimizer::{DecayScope, LrSchedule, Optimizer};
use forebay_compiler::pipeline::CompileOptions;
use forebay_compiler::rewrite::{self, Numerics, Profile, Selection};
use forebay_compiler::shard::Strategy;
use forebay_dsl::model::Const;
use forebay_ir::DType;
use forebay_runtime::exec::ExecOptions;
use forebay_runtime::kernels::{Cpu, Jit};
use std::ffi::OsString;
use std::path::PathBuf;

/// `--set a=1 b=2` → `--set a=1 --set b=2`, so that a model file may follow.
pub fn spread_settings(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut out: Vec<OsString> = vec![];
    // 0 outside, 1 after `--set`, 2 after its first value.
    let mut state = 0;
    for arg in args {
        if state == 2 && arg.to_str().is_some_and(is_setting) {
            out.push("--set".into());
        } else {
            state = match state {
                1 => 2,
                _ if arg == "--set" => 1,
                _ => 0,
            };
        }
        out.push(arg);
    }
    out
}

fn is_setting(text: &str) -> bool {
    text.split_once('=').is_some_and(|(name, _)| is_name(name))
}

fn is_name(text: &str) -> bool {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(is_start) && text.chars().all(|c| is_start(c) || c.is_ascii_digit())
}

/// A constant's name and value.
fn setting(text: &str) -> Result<(String, Const), String> {
    let (name, value) = text.split_once('=').ok_or("it is written name=value")?;
    if !is_name(name) {
        return Err(format!("`{name}` is not the name of a constant"));
    }
    Ok((name.to_string(), constant(value)))
}

fn constant(text: &str) -> Const {
    let number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    match text {
        "true" => Const::Bool(true),
        "false" => Const::Bool(false),
        _ => match (text.parse(), text.parse::<f64>()) {
            (Ok(n), _) => Const::Int(n),
            (_, Ok(x)) if number && x.is_finite() => Const::Float(x),
            _ => Const::Str(text.trim_matches('"').to_string()),
        },
    }
}

/// The compute type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// Brain floats, with 32-bit master weights and sums, of gradients as well.
    Bf16,
    /// 64-bit floats throughout.
    F64,
}

/// What a model is compiled for.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Set a constant of the model; several may follow: --set layers=2 d=64
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, Const)>,
    /// Rows of a step [default: the model's]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: Option<u32>,
    /// Tokens of a row [default: the model's]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub seq: Option<u32>,
    /// Do a step in so many parts, which takes less memory; must divide the batch [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub micro_batches: Option<u32>,
    /// The compute type [default: f32]
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// How ranks share the work: dp=2,tp=2,ep=4,… or a `.toml` file with the same keys [default: one rank]
    #[arg(long, value_name = "STRATEGY", value_parser = strategy_arg)]
    pub strategy: Option<StrategyArg>,
}

/// How graphs are rewritten before they become programs.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Rewriting")]
pub struct RewriteArgs {
    /// Which rules are used: all, off, no-fusion, only=NAME,… or without=NAME,… (`forebay rules` lists them; what stands before the dot names a family) [default: all]
    #[arg(long, value_name = "RULES", value_parser = selection)]
    pub rewrite: Option<Selection>,
    /// The most that rules may change in the values [default: approximate]
    #[arg(long, value_enum)]
    pub numerics: Option<NumericsArg>,
    /// The device that forms are chosen for [default: cpu]
    #[arg(long, value_enum)]
    pub device: Option<Device>,
}

/// How graphs become programs.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Rewriting")]
pub struct ProgramArgs {
    #[command(flatten)]
    rewriting: RewriteArgs,
    /// What is joined into one kernel; values are the same bits either way, ranks and micro-batches being the same [default: all]
    #[arg(long, value_enum)]
    joins: Option<JoinsArg>,
}

/// What is joined into one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum JoinsArg {
    /// Elementwise work and reductions over the same axes, and elementwise work with the product before it.
    All,
    /// Nothing but attention, masks, and sums that are added to memory, which takes more time and memory: for finding out how much, and which kernel a mistake is in.
    Off,
}

/// What rewriting may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NumericsArg {
    /// Nothing: equal bits.
    Exact,
    /// The order and place of roundings.
    Reassociates,
    /// More: a function in place of one that is equal in the reals.
    Approximate,
}

/// A device whose costs are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// Two cores with AVX-512.
    Cpu,
    /// An NPU of the Ascend 910B's kind.
    Npu,
}

/// `off`, `only=norm,router.permute`.
fn selection(text: &str) -> Result<Selection, String> {
    let names = |list: &str| -> Result<Vec<String>, String> {
        let names: Vec<String> = list.split(',').map(|n| n.trim().to_string()).collect();
        match names.iter().find(|n| !rewrite::is_rule_or_family(n)) {
            None => Ok(names),
            Some(name) => {
                Err(format!("there is no rule and no family of the name `{name}`: `forebay rules` lists them"))
            }
        }
    };
    match text.split_once('=') {
        Some(("only", list)) => names(list).map(Selection::Only),
        Some(("without", list)) => names(list).map(Selection::Without),
        _ => match text {
            "all" => Ok(Selection::All),
            "off" => Ok(Selection::Off),
            "no-fusion" => Ok(Selection::NoFusion),
            _ => Err("it is all, off, no-fusion, only=NAME,… or without=NAME,…".into()),
        },
    }
}

impl RewriteArgs {
    /// For the compiler.
    pub fn options(&self) -> rewrite::Options {
        let numerics = match self.numerics {
            None | Some(NumericsArg::Approximate) => Numerics::Approximate,
            Some(NumericsArg::Reassociates) => Numerics::Reassociates,
            Some(NumericsArg::Exact) => Numerics::Exact,
        };
        let profile = match self.device {
            None | Some(Device::Cpu) => Profile::cpu(),
            Some(Device::Npu) => Profile::npu(),
        };
        let selection = self.rewrite.clone().unwrap_or_default();
        rewrite::Options { numerics, profile, selection, ..rewrite::Options::default() }
    }
}

/// How the learning rate changes after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Schedule {
    /// Half a cosine down to --min-lr.
    Cosine,
    /// Straight down to --min-lr.
    Linear,
    /// Not at all.
    Constant,
}

/// What weight decay applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Decay {
    /// Parameters with two axes or more: no gains, no biases.
    Matrices,
    /// All parameters.
    All,
}

/// The optimizer, which is compiled into the plan.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Optimizer (AdamW)")]
pub struct OptimizerArgs {
    /// Peak learning rate [default: 0.003]
    #[arg(long, allow_negative_numbers = true, value_parser = not_negative)]
    pub lr: Option<f64>,
    /// Steps over which the learning rate grows to its peak [default: 20, but at most a fifth of the steps]
    #[arg(long, value_name = "STEPS")]
    pub warmup: Option<u64>,
    /// What the learning rate does then [default: cosine]
    #[arg(long, value_enum)]
    pub lr_schedule: Option<Schedule>,
    /// Where the learning rate ends, as a part of its peak [default: 0.1]
    #[arg(long, value_name = "PART", allow_negative_numbers = true, value_parser = unit)]
    pub min_lr: Option<f64>,
    /// Weight decay, decoupled from the gradient [default: 0.1]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = not_negative)]
    pub weight_decay: Option<f64>,
    /// What decays [default: matrices]
    #[arg(long, value_enum)]
    pub decay: Option<Decay>,
    /// Scale gradients down to this global norm; 0 for never [default: 1]
    #[arg(long, value_name = "NORM", allow_negative_numbers = true, value_parser = not_negative)]
    pub clip: Option<f64>,
    /// Decay of the first moment [default: 0.9]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = below_one)]
    pub beta1: Option<f64>,
    /// Decay of the second moment [default: 0.95]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = below_one)]
    pub beta2: Option<f64>,
    /// Added to the root of the second moment [default: 1e-8]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = above_zero)]
    pub epsilon: Option<f64>,
}

/// A finite number that passes a test, or what it must be.
fn number(text: &str, passes: impl Fn(f64) -> bool, must_be: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Err(_) => Err("it is not a number".into()),
        Ok(value) if value.is_nan() => Err("it is not a number".into()),
        Ok(value) if value.is_infinite() => Err("it must be finite".into()),
        Ok(value) if passes(value) => Ok(value),
        Ok(_) => Err(format!("it must be {must_be}")),
    }
}

/// For options that take 0 and all above it.
pub fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |value| value >= 0.0, "0 or more")
}

/// Above 0 in f32 too.
fn above_zero(text: &str) -> Result<f64, String> {
    number(text, |value| value as f32 >= f32::MIN_POSITIVE, "above 0")
}

fn unit(text: &str) -> Result<f64, String> {
    number(text, |value| (0.0..=1.0).contains(&value), "from 0 to 1")
}

fn below_one(text: &str) -> Result<f64, String> {
    number(text, |value| (0.0..1.0).contains(&value), "from 0 to below 1")
}

impl ModelArgs {
    /// For the compiler.
    pub fn options(&self) -> Result<CompileOptions, Failure> {
        let mut overrides = self.set.clone();
        for (name, value) in [("batch", self.batch), ("seq", self.seq)] {
            overrides.extend(value.map(|n| (name.to_string(), Const::Int(n.into()))));
        }
        let compute = match self.dtype.unwrap_or(Dtype::F32) {
            Dtype::F32 => DType::F32,
            Dtype::Bf16 => DType::BF16,
            Dtype::F64 => DType::F64,
        };
        Ok(CompileOptions {
            overrides,
            compute,
            micro_batches: self.micro_batches.unwrap_or(1),
            strategy: self.strategy.as_ref().map_or_else(|| Ok(Strategy::default()), StrategyArg::strategy)?,
            ..CompileOptions::default()
        })
    }

    /// Was anything asked for?
    pub fn is_given(&self) -> bool {
        let ModelArgs { set, batch, seq, micro_batches, dtype, strategy } = self;
        !set.is_empty()
            || batch.is_some()
            || seq.is_some()
            || micro_batches.is_some()
            || dtype.is_some()
            || strategy.is_some()
    }
}

impl ProgramArgs {
    /// For the compiler.
    pub fn set(&self, options: &mut CompileOptions) {
        options.rewrite = self.rewriting.options();
        options.joins = match self.joins {
            None | Some(JoinsArg::All) => Joins::All,
            Some(JoinsArg::Off) => Joins::Off,
        };
    }

    /// Was anything asked for?
    pub fn is_given(&self) -> bool {
        let ProgramArgs { rewriting: RewriteArgs { rewrite, numerics, device }, joins } = self;
        rewrite.is_some() || numerics.is_some() || device.is_some() || joins.is_some()
    }
}

impl OptimizerArgs {
    /// For the compiler.
    pub fn optimizer(&self, steps: Option<u64>) -> Optimizer {
        let default = Optimizer::default();
        let steps = steps.unwrap_or(default.steps);
        Optimizer {
            lr: self.lr.unwrap_or(default.lr),
            schedule: self.lr_schedule.map_or(default.schedule, |s| match s {
                Schedule::Cosine => LrSchedule::Cosine,
                Schedule::Linear => LrSchedule::Linear,
                Schedule::Constant => LrSchedule::Constant,
            }),
            warmup: self.warmup.unwrap_or(default.warmup.min(steps / 5)),
            steps,
            min_lr: self.min_lr.unwrap_or(default.min_lr),
            beta1: self.beta1.unwrap_or(default.beta1),
            beta2: self.beta2.unwrap_or(default.beta2),
            epsilon: self.epsilon.unwrap_or(default.epsilon),
            weight_decay: self.weight_decay.unwrap_or(default.weight_decay),
            decay: self.decay.map_or(default.decay, |d| match d {
                Decay::Matrices => DecayScope::Matrices,
                Decay::All => DecayScope::All,
            }),
            clip: self.clip.map_or(default.clip, |c| Some(c).filter(|c| *c > 0.0)),
        }
    }

    /// Was anything asked for?
    pub fn is_given(&self) -> bool {
        let OptimizerArgs { lr, warmup, lr_schedule, min_lr, weight_decay, decay, clip, beta1, beta2, epsilon } = self;
        let floats = [lr, min_lr, weight_decay, clip, beta1, beta2, epsilon];
        floats.iter().any(|x| x.is_some()) || warmup.is_some() || lr_schedule.is_some() || decay.is_some()
    }
}

const CPU_LEVELS: &str = "there are `amx`, `avx512bf16`, `avx512`, `avx2` and `portable`";

/// The machine.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Machine")]
pub struct MachineArgs {
    /// Threads that compute; the results do not depend on it [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Run instructions in another order that the plan's streams and events permit, drawn from this seed: values must stay the same bits
    #[arg(long, value_name = "SEED")]
    pub shuffle: Option<u64>,
    /// CPU instructions to use at most: amx, avx512bf16, avx512, avx2 or portable [default: FOREBAY_CPU, or what is fastest here]
    #[arg(long, value_name = "LEVEL")]
    pub cpu: Option<String>,
}

impl MachineArgs {
    /// For the executor.
    pub fn options(&self) -> Result<ExecOptions, Failure> {
        let cpu = match (&self.cpu, std::env::var_os("FOREBAY_CPU").filter(|value| !value.is_empty())) {
            (Some(name), _) => Cpu::named(name).ok_or_else(|| Failure::Usage(format!("--cpu {name}: {CPU_LEVELS}")))?,
            (None, Some(value)) => value.to_str().and_then(Cpu::named).ok_or_else(|| {
                Failure::Input(format!("the environment has FOREBAY_CPU={}: {CPU_LEVELS}", value.to_string_lossy()))
            })?,
            (None, None) => Cpu::detect(),
        };
        if let Some(value) = std::env::var_os("FOREBAY_JIT").filter(|value| !value.is_empty()) {
            value.to_str().and_then(Jit::named).ok_or_else(|| {
                let value = value.to_string_lossy();
                Failure::Input(format!("the environment has FOREBAY_JIT={value}: there are `off`, `auto` and `on`"))
            })?;
        }
        let threads = self.threads.map_or(0, usize::from);
        Ok(ExecOptions { threads, cpu, shuffle: self.shuffle, ..ExecOptions::default() })
    }
}

/// A run: what it reads, and what it leaves.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct SessionArgs {
    /// Text to train on: a file, or a folder with text files. A token is a byte; a tenth is held back for validation
    #[arg(long, value_name = "PATH")]
    pub data: PathBuf,
    /// The seed of parameters, batches and random operations [default: 1]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Where checkpoints go [default: forebay-runs/MODEL]
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Steps between checkpoints; the last step is always saved [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub save_every: Option<u64>,
    /// Go on where a run or checkpoint left off; the losses are those of a run that was never interrupted
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// Evaluate on held-back text after every so many steps [default: at the end only]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub eval_every: Option<u64>,
    /// Print a line of JSON for each step, and one with the summary at the end
    #[arg(long)]
    pub json: bool,
    /// At the end, print where the time of training steps went, by kind of kernel and by instruction: on stderr, or into a file; `-` prints it in place of the summary
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub profile: Option<Option<PathBuf>>,
    /// Write what happened when in the first steps, for chrome://tracing or ui.perfetto.dev; `-` prints it in place of the summary
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write the same lines of JSON to a file as well
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    #[command(flatten)]
    pub hosts: HostArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_settings_may_follow() {
        let spread = |args: &[&str]| -> Vec<String> {
            let spread = spread_settings(args.iter().map(OsString::from));
            spread.into_iter().map(|a| a.into_string().expect("UTF-8")).collect()
        };
        assert_eq!(
            spread(&["x", "--set", "a=1", "b=2", "m.moe", "c=3"]),
            ["x", "--set", "a=1", "--set", "b=2", "m.moe", "c=3"]
        );
        assert_eq!(spread(&["--set", "a=1", "--seq", "b=2"]), ["--set", "a=1", "--seq", "b=2"]);
        assert_eq!(spread(&["--set", "a=1", "--set", "b=2", "c=3"]), ["--set", "a=1", "--set", "b=2", "--set", "c=3"]);
    }

    #[test]
    fn constants() {
        let of = |text| setting(text).expect("a setting");
        assert_eq!(of("d=64"), ("d".into(), Const::Int(64)));
        assert_eq!(of("rate=-1e-3"), ("rate".into(), Const::Float(-0.001)));
        assert_eq!(of("tied=true"), ("tied".into(), Const::Bool(true)));
        assert_eq!(of("scaling=yarn"), ("scaling".into(), Const::Str("yarn".into())));
        assert_eq!(of("scaling=\"inf\""), ("scaling".into(), Const::Str("inf".into())));
        assert_eq!(of("x=nan"), ("x".into(), Const::Str("nan".into())));
        assert!(setting("d").is_err() && setting("3=4").is_err() && setting("=4").is_err());
    }

    #[test]
    fn numbers_that_are_refused_are_told_why() {
        let why = |parsed: Result<f64, String>| parsed.expect_err("it is refused");
        for parse in [not_negative, above_zero, unit, below_one] {
            assert_eq!(why(parse("nan")), "it is not a number");
            assert_eq!(why(parse("few")), "it is not a number");
            for infinite in ["inf", "-inf", "1e999"] {
                assert_eq!(why(parse(infinite)), "it must be finite");
            }
            assert_eq!(parse("0.5"), Ok(0.5));
        }
        assert_eq!(why(not_negative("-1")), "it must be 0 or more");
        assert_eq!(
            (why(above_zero("0")), why(above_zero("-1"))),
            ("it must be above 0".into(), "it must be above 0".into())
        );
        assert_eq!(
            (why(unit("-1")), why(unit("2"))),
            ("it must be from 0 to 1".into(), "it must be from 0 to 1".into())
        );
        assert_eq!(why(below_one("1")), "it must be from 0 to below 1");
    }

    #[test]
    fn short_runs_warm_up_shortly() {
        let args = OptimizerArgs::default();
        assert_eq!(args.optimizer(None).warmup, 20);
        assert_eq!(args.optimizer(Some(50)).warmup, 10);
        assert_eq!(args.optimizer(Some(3)).warmup, 0);
        assert_eq!(OptimizerArgs { clip: Some(0.0), ..args }.optimizer(None).clip, None);
    }
}
