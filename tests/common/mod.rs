//! What the tests of whole models share: the example models at reduced size, and a training step by the oracle.
#![allow(dead_code, reason = "each test uses its part")]

pub mod oracle;
pub mod prices;
pub mod training;

use forebay_compiler::pipeline::{CompileOptions, Models};
use forebay_compiler::shard::Strategy;
use forebay_dsl::model::{CheckedModel, Const};
use forebay_ir::DType;
use std::path::{Path, PathBuf};

/// A model file of the examples.
pub struct Example {
    /// File stem.
    pub name: String,
    /// The text.
    pub text: String,
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// Are whole covering sets asked for, or the part of them that a change is held to?
pub fn all_cases() -> bool {
    std::env::var_os("FOREBAY_TEST_ALL").is_some()
}

/// The models that a strategy meets, by their places, with what it makes of them: the first that takes it, from a place of its own on, or all that do where whole covering
/// sets are asked for.
///
/// # Panics
/// Where none takes it: nothing would be tested.
pub fn meets<T>(
    models: &[Example],
    (nth, strategy): (usize, &str),
    take: impl Fn(&Example) -> Option<T>,
) -> Vec<(usize, T)> {
    let turns = (0..models.len()).map(|turn| (nth + turn) % models.len());
    let taken = turns.filter_map(|i| take(&models[i]).map(|made| (i, made)));
    let met: Vec<(usize, T)> = taken.take(if all_cases() { usize::MAX } else { 1 }).collect();
    assert!(!met.is_empty(), "no model takes {strategy}");
    met
}

/// All example models, by name.
pub fn examples() -> Vec<Example> {
    let folder = root().join("examples/models");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "moe"));
    paths.sort();
    assert!(paths.len() >= 14, "all shipped models are there: {paths:?}");
    paths
        .into_iter()
        .map(|path| Example {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            text: std::fs::read_to_string(&path).unwrap(),
        })
        .collect()
}

impl Example {
    /// One of the examples.
    pub fn named(name: &str) -> Example {
        examples().into_iter().find(|e| e.name == name).unwrap_or_else(|| panic!("there is no model {name}"))
    }

    /// The settings of the line `// reduced: --set …` at the head of the file.
    pub fn reduced(&self) -> Vec<(String, Const)> {
        let line = self.text.lines().find_map(|l| l.strip_prefix("// reduced: --set "));
        let line = line.unwrap_or_else(|| panic!("{}.moe says how to reduce it", self.name));
        line.split_whitespace().map(setting).collect()
    }

    /// The reduced settings with a batch and sequence length.
    pub fn reduced_to(&self, batch: i64, seq: i64) -> Vec<(String, Const)> {
        let mut all = self.reduced();
        all.retain(|(name, _)| name != "batch" && name != "seq");
        all.extend([("batch".into(), Const::Int(batch)), ("seq".into(), Const::Int(seq))]);
        all
    }

    /// The checked model.
    pub fn check(&self, options: &CompileOptions, training: bool, rows: Option<u64>) -> CheckedModel {
        let options = options.check_options(training, rows, options.micro_batches * options.strategy.dp);
        match forebay_dsl::load(&self.text, &options) {
            Ok(accepted) => accepted.model,
            Err(mistakes) => {
                let sources = forebay_dsl::std_library::sources(&self.name, &self.text);
                panic!("{}", forebay_dsl::diagnostics::render(&mistakes, &sources, false))
            }
        }
    }

    /// The three checked models of a plan.
    pub fn models(&self, options: &CompileOptions) -> Models {
        let rows = |training| {
            let model = self.check(options, training, None);
            model.batch / u64::from(options.micro_batches * options.strategy.dp)
        };
        let per_micro_batch = Some(rows(true));
        let one = CompileOptions { micro_batches: 1, strategy: Strategy::default(), ..options.clone() };
        Models {
            train: self.check(options, true, per_micro_batch),
            eval: self.check(options, false, per_micro_batch),
            generate: self.check(&one, false, Some(1)),
        }
    }
}

/// `name=value` of a `--set`.
fn setting(text: &str) -> (String, Const) {
    let (name, value) = text.split_once('=').expect("name=value");
    let value = match value.parse::<i64>() {
        Ok(int) => Const::Int(int),
        Err(_) => match value {
            "true" => Const::Bool(true),
            "false" => Const::Bool(false),
            _ => value.parse().map(Const::Float).unwrap_or_else(|_| Const::Str(value.trim_matches('"').into())),
        },
    };
    (name.to_string(), value)
}

/// Options for an example at reduced size.
pub fn options(compute: DType, overrides: Vec<(String, Const)>) -> CompileOptions {
    CompileOptions { overrides, compute, ..CompileOptions::default() }
}

/// A small deterministic generator for test data.
pub struct Numbers(u64);

impl Numbers {
    /// From a seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Roughly normal: mean 0, deviation 1.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}
