//! Model files: from text to checked models and plans, with diagnostics.

use crate::args::ModelArgs;
use crate::failure::{Failure, colors};
use forebay_compiler::module::{self, File, Forms};
use forebay_compiler::pipeline::{self, CompileOptions, Models};
use forebay_dsl::diagnostics::{self, Diagnostic};
use forebay_dsl::model::{CheckOptions, CheckedModel};
use forebay_dsl::std_library;
use forebay_plan::Plan;
use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// A file that was read.
pub struct ModelFile {
    name: String,
    text: String,
}

/// Models that the program has in it, so that `forebay bench` needs no file.
const BUILT_IN: [(&str, &str); 2] = [
    ("bench-tiny", include_str!("../examples/models/bench-tiny.moe")),
    ("bench-small", include_str!("../examples/models/bench-small.moe")),
];

impl ModelFile {
    /// The built-in model of this name, where there is no such file.
    pub fn read_or_built_in(path: &Path) -> Result<ModelFile, Failure> {
        match BUILT_IN.iter().find(|(name, _)| path == Path::new(name)) {
            Some((name, text)) if !path.exists() => {
                Ok(ModelFile { name: format!("{name}.moe"), text: text.to_string() })
            }
            _ => ModelFile::read(path),
        }
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<ModelFile, Failure> {
        let name = path.display().to_string();
        let bytes = fs::read(path).map_err(|error| Failure::Input(format!("cannot read `{name}`: {error}")))?;
        match String::from_utf8(bytes) {
            Ok(text) if text.trim_start().starts_with("{\"format\":\"forebay-plan\"") => Err(Failure::Input(format!(
                "`{name}` is a plan, not a model: `forebay plan show {name}` prints it, `forebay run {name}` trains with it"
            ))),
            Ok(text) => Ok(ModelFile { name, text }),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                Err(Failure::Input(format!("`{name}` is not text: byte {at} is not UTF-8")))
            }
        }
    }

    /// Is it textual IR?
    pub fn is_ir(&self) -> bool {
        self.name.ends_with(".ir")
    }

    /// Textual IR has its sizes in it.
    pub fn accepts(&self, settings: &ModelArgs) -> Result<(), Failure> {
        if !self.is_ir() || !settings.is_given() {
            return Ok(());
        }
        Err(Failure::Input(format!(
            "`{}` is textual IR, in which sizes, micro-batches and the compute type are fixed: --set, --batch, --seq, --micro-batches and --dtype go \
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
                        eprintln!("{}\n", text.trim_end());
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

    /// The model as it trains, with the rows of a micro-batch.
    pub fn training(&self, options: &CompileOptions) -> Result<CheckedModel, Failure> {
        if self.is_ir() {
            return Ok(self.forms(options)?.models.train);
        }
        let mut warned = HashSet::new();
        let rows = self.rows(options, &mut warned)?;
        self.check(&options.check_options(true, rows, options.micro_batches), &mut warned)
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
        let rows = self.rows(options, &mut warned)?;
        let mut check = |training, rows, micro_batches| {
            self.check(&options.check_options(training, rows, micro_batches), &mut warned)
        };
        let models = Models {
            train: check(true, rows, options.micro_batches)?,
            eval: check(false, rows, options.micro_batches)?,
            generate: check(false, Some(1), 1)?,
        };
        Ok(Forms { models, compute: options.compute, micro_batches: options.micro_batches })
    }

    /// Rows of a micro-batch, when there are several.
    fn rows(&self, options: &CompileOptions, warned: &mut HashSet<String>) -> Result<Option<u64>, Failure> {
        let n = u64::from(options.micro_batches);
        if n == 1 {
            return Ok(None);
        }
        let batch = self.check(&options.check_options(true, None, 1), warned)?.batch;
        if batch.is_multiple_of(n) {
            return Ok(Some(batch / n));
        }
        let divisors: Vec<String> = (1..=batch).filter(|d| batch.is_multiple_of(*d)).map(|d| d.to_string()).collect();
        let fit = divisors.join(", ");
        Err(Failure::Input(format!(
            "a batch of {batch} rows cannot be done in {n} parts: --micro-batches must be one of {fit}"
        )))
    }

    /// Compiles the model, and verifies the plan.
    pub fn compile(&self, options: &CompileOptions) -> Result<Plan, Failure> {
        let Forms { models, compute, micro_batches } = self.forms(options)?;
        let options = CompileOptions { compute, micro_batches, ..options.clone() };
        let plan = pipeline::compile(&models, &options);
        match forebay_plan::verify(&plan) {
            Ok(()) => Ok(plan),
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
}

/// Reads a plan that was compiled earlier.
pub fn read_plan(path: &Path) -> Result<Plan, Failure> {
    let name = path.display();
    let file =
        fs::File::open(path).map_err(|error| Failure::Input(format!("cannot read the plan `{name}`: {error}")))?;
    Plan::read_from(file, forebay_plan::MAX_FILE_BYTES).map_err(|error| Failure::Input(format!("`{name}`: {error}")))
}

/// Replaces a file at once: it is either the old one or the new one, whatever happens.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().map_or_else(Default::default, |n| n.to_string_lossy().into_owned());
    let unfinished = folder.join(format!(".{name}.{}", std::process::id()));
    let result = fs::write(&unfinished, bytes).and_then(|()| {
        if let Ok(kept) = fs::metadata(path) {
            fs::set_permissions(&unfinished, kept.permissions())?;
        }
        fs::rename(&unfinished, path)
    });
    result.map_err(|error| {
        let _ = fs::remove_file(&unfinished);
        Failure::Input(format!("cannot write `{}`: {error}", path.display()))
    })
}
