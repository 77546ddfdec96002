//! Checkpoints: folders that training can go on from, and that samples can be drawn from.
//!
//! ```text
//! RUN/run.json                       made when the run starts: its seed
//! RUN/latest                         "step-000150"
//! RUN/step-000150/index.json         step, seed, data, plan, and every tensor with its hash
//! RUN/step-000150/plan.json          the compiled plan: neither training on nor sampling needs the model file
//! RUN/step-000150/model.safetensors  parameters (at master precision) and states, one tensor under each instance name
//! RUN/step-000150/optimizer.safetensors   first and second moments, `m.NAME` and `v.NAME`
//! ```
//!
//! A checkpoint is written to a folder of its own, forced to disk, and only then renamed; so there is always a whole one, whatever happens. The
//! last two are kept.

mod index;
mod load;
mod save;
mod tensors;

pub use index::{DataInfo, Index, SavedTensor};
pub use load::{Astray, Checkpoint, Contents};
pub use save::{KEPT, Saver};

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// The file that names the last checkpoint of a run.
const LATEST: &str = "latest";

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The disk is full, or the like.
    #[error("cannot save the checkpoint: writing `{path}` failed: {error}{}", survivor(.previous))]
    Write {
        /// What was being written.
        path: PathBuf,
        /// Why it failed.
        error: io::Error,
        /// The checkpoint before, which is whole.
        previous: Option<PathBuf>,
    },
    /// What would be saved is no number.
    #[error("`{tensor}` has a {value} after step {step}, and is not saved")]
    NotFinite {
        /// A parameter, or what the optimizer keeps.
        tensor: String,
        /// NaN or an infinity.
        value: f64,
        /// After so many steps.
        step: u64,
    },
    /// A file cannot be read.
    #[error("cannot read the checkpoint: `{path}`: {error}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is something else.
    #[error("`{0}` is not a checkpoint: it has neither an `index.json` nor a folder like `step-000150`")]
    NotACheckpoint(PathBuf),
    /// The run ended before its first checkpoint.
    #[error("the run in `{0}` has no checkpoint yet")]
    NotStarted(PathBuf),
    /// The last one is not whole, and there is none before it.
    #[error("{0}, and no other checkpoint of the run is")]
    Lost(Astray),
    /// It is there but not what was written.
    #[error("the checkpoint file `{path}` is damaged: {why}")]
    Damaged {
        /// Which.
        path: PathBuf,
        /// In what way.
        why: String,
    },
    /// Another version wrote it.
    #[error("the checkpoint `{path}` has version {found}; this program reads version {} only", index::VERSION)]
    Version {
        /// Which.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// It is of another model.
    #[error("the checkpoint `{path}` does not fit the model:\n{}{}", list(.differences), hint(.differences))]
    Mismatch {
        /// Which.
        path: PathBuf,
        /// In what ways.
        differences: Vec<String>,
    },
    /// A new run must not overwrite another.
    #[error(
        "`{path}` holds a run already (saved at step {step}): continue it with --resume, or save to another folder"
    )]
    Occupied {
        /// The folder.
        path: PathBuf,
        /// Its last checkpoint.
        step: u64,
    },
    /// Two runs at once in one folder would overwrite each other.
    #[error("another run is being saved in `{0}`: wait for its end, or save to another folder")]
    Busy(PathBuf),
    /// The ranks that it was loaded into have given up.
    #[error(transparent)]
    Exec(#[from] crate::exec::ExecError),
    /// The plan in the checkpoint cannot be read.
    #[error("the checkpoint's plan `{path}`: {error}")]
    Plan {
        /// Which.
        path: PathBuf,
        /// Why.
        error: forebay_plan::ReadError,
    },
}

fn survivor(previous: &Option<PathBuf>) -> String {
    previous
        .as_ref()
        .map_or(String::new(), |path| format!("; the previous checkpoint `{}` is untouched", path.display()))
}

fn list(differences: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut lines: Vec<String> = differences.iter().take(SHOWN).map(|d| format!("  {d}")).collect();
    if differences.len() > SHOWN {
        lines.push(format!("  … and {} more", differences.len() - SHOWN));
    }
    lines.join("\n")
}

/// Moments alone differ when they have another type: that is a choice of the strategy, not of the model.
fn hint(differences: &[String]) -> &'static str {
    let is_moment = |d: &String| d.starts_with("`m.") || d.starts_with("`v.");
    if differences.iter().all(is_moment) {
        "\n  = help: moments have the type they were begun with: `moments=` in the strategy must be as it was"
    } else {
        ""
    }
}

/// The checkpoint folders of a run, by step.
pub(crate) fn steps(run: &Path) -> Vec<(u64, PathBuf)> {
    let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
    let mut found: Vec<(u64, PathBuf)> = entries
        .filter_map(|e| Some((step_of(e.file_name().to_str()?)?, e.path())))
        .filter(|(_, p)| p.is_dir())
        .collect();
    found.sort();
    found
}

pub(crate) fn folder_name(step: u64) -> String {
    format!("step-{step:06}")
}

fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    if digits.len() < 6 || !digits.bytes().all(|b| b.is_ascii_digit()) { None } else { digits.parse().ok() }
}

/// Is it the name of something that runs keep in their folders: a checkpoint, or a file about the run?
pub fn is_of_run(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    matches!(name, save::RUN_FILE | LATEST) || name.starts_with(save::UNFINISHED) || step_of(name).is_some()
}

#[cfg(test)]
mod tests;
