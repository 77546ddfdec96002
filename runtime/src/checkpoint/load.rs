//! Reading checkpoints: nothing is believed before it is checked.

use super::index::{Index, SavedTensor};
use super::save::{INDEX_FILE, MODEL_FILE, OPTIMIZER_FILE, PLAN_FILE, Saver, file_of, key};
use super::tensors::Reader;
use super::{CheckpointError, LATEST, step_of, steps};
use crate::exec::{Executor, is_saved};
use crate::hash::{self, Hasher};
use crate::init;
use forebay_plan::{DType, MAX_FILE_BYTES, Plan, Tensor, TensorKind};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A checkpoint on disk.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    index: Index,
    astray: Option<Astray>,
}

/// What the pointer of a run says, where that is no whole checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Astray {
    /// The folder that it names lacks what is written last.
    #[error("`{0}`, which `latest` names, is not complete")]
    Incomplete(PathBuf),
    /// Nothing has the name that it says.
    #[error("`{0}`, which `latest` names, is not there")]
    Missing(PathBuf),
    /// It is something else.
    #[error("`{0}` does not name a checkpoint")]
    NoName(PathBuf),
}

/// What to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Everything: to train on.
    All,
    /// Parameters and states: to evaluate and to generate.
    Model,
}

impl Checkpoint {
    /// Opens a checkpoint, or the last one of a run.
    ///
    /// # Errors
    /// When there is none, or its index is damaged.
    pub fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
        let (folder, astray) = find(path)?;
        let file = folder.join(INDEX_FILE);
        let bytes = fs::read(&file).map_err(|error| CheckpointError::Read { path: file.clone(), error })?;
        let index = Index::from_bytes(&bytes, &file)?;
        Ok(Checkpoint { folder, index, astray })
    }

    /// Is this the folder of a checkpoint, as far as can be seen, and not that of a run?
    pub fn is_one(folder: &Path) -> bool {
        folder.join(INDEX_FILE).is_file()
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of its run: where the next checkpoints belong.
    pub fn run(&self) -> &Path {
        self.folder.parent().unwrap_or(Path::new("."))
    }

    /// Why it is not the one that the run says is its last.
    pub fn astray(&self) -> Option<&Astray> {
        self.astray.as_ref()
    }

    /// What it holds.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The plan that it was made with.
    ///
    /// # Errors
    /// When it is damaged, or not the one the index names.
    pub fn plan(&self) -> Result<Plan, CheckpointError> {
        let path = self.folder.join(PLAN_FILE);
        let file = File::open(&path).map_err(|error| CheckpointError::Read { path: path.clone(), error })?;
        let plan = Plan::read_from(file, MAX_FILE_BYTES)
            .map_err(|error| CheckpointError::Plan { path: path.clone(), error })?;
        if plan.checksum() != self.index.plan {
            return Err(CheckpointError::Damaged { path, why: "it is not the plan that the index names".into() });
        }
        Ok(plan)
    }

    /// Fills an executor's tensors. Its plan may be another one, if the tensors have the same names, types and sizes.
    ///
    /// # Errors
    /// When the tensors differ, or a file is damaged; the executor's tensors are then unspecified.
    pub fn load(&self, executor: &mut Executor, contents: Contents) -> Result<(), CheckpointError> {
        let wanted = |kind| match contents {
            Contents::All => is_saved(kind),
            Contents::Model => kind == TensorKind::Param || kind == TensorKind::State,
        };
        let tensors: Vec<&Tensor> = executor.tensors().into_iter().filter(|t| wanted(t.kind)).collect();
        let saved: HashMap<(&str, TensorKind), &SavedTensor> =
            self.index.tensors.iter().filter(|t| wanted(t.kind)).map(|t| ((t.name.as_str(), t.kind), t)).collect();
        let differences = differences(&tensors, &saved);
        if !differences.is_empty() {
            return Err(CheckpointError::Mismatch { path: self.folder.clone(), differences });
        }
        for file in [MODEL_FILE, OPTIMIZER_FILE] {
            let mut of_file = tensors.iter().filter(|t| file_of(t.kind) == file).peekable();
            if of_file.peek().is_none() {
                continue;
            }
            let path = self.folder.join(file);
            let mut reader = Reader::open(&path)?;
            let mut bytes = vec![];
            for tensor in of_file {
                bytes.resize(tensor.bytes() as usize, 0);
                reader.read(&key(tensor), tensor.dtype, &tensor.dims, &mut bytes)?;
                if hash::hex(Hasher::of(&bytes)) != saved[&(tensor.name.as_str(), tensor.kind)].hash {
                    let why = format!("the bytes of `{}` are not those that were saved", key(tensor));
                    return Err(CheckpointError::Damaged { path, why });
                }
                executor.set_whole(tensor, &bytes)?;
            }
        }
        init::refresh_copies(executor)?;
        Ok(())
    }
}

/// The folder of a checkpoint, or of the last one of a run; and why that is not the one that the run's pointer names.
fn find(path: &Path) -> Result<(PathBuf, Option<Astray>), CheckpointError> {
    fs::metadata(path).map_err(|error| CheckpointError::Read { path: path.to_path_buf(), error })?;
    if Checkpoint::is_one(path) {
        // So that its parent is the run, also for `.`.
        return Ok((fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()), None));
    }
    // What is above the step that the pointer names is a future that was given up.
    let (last, astray) = match named(path) {
        Ok(Some((_, folder))) if Checkpoint::is_one(&folder) => return Ok((folder, None)),
        Ok(Some((step, folder))) if folder.exists() => (step, Some(Astray::Incomplete(folder))),
        Ok(Some((step, folder))) => (step, Some(Astray::Missing(folder))),
        // Killed before it was written.
        Ok(None) => (u64::MAX, None),
        Err(astray) => (u64::MAX, Some(astray)),
    };
    let is_whole = |folder: &PathBuf| Checkpoint::is_one(folder);
    let whole = steps(path).into_iter().filter(|(step, _)| *step <= last).map(|(_, folder)| folder).rfind(is_whole);
    match (whole, astray) {
        (Some(folder), astray) => Ok((folder, astray)),
        // (What is missing may have been moved aside for another when the run was killed.)
        (None, Some(lost @ Astray::Incomplete(_))) => Err(CheckpointError::Lost(lost)),
        (None, _) if Saver::seed_of(path).is_some() => Err(CheckpointError::NotStarted(path.to_path_buf())),
        (None, _) => Err(CheckpointError::NotACheckpoint(path.to_path_buf())),
    }
}

/// The step and the folder that a run's pointer names, if it is there.
fn named(run: &Path) -> Result<Option<(u64, PathBuf)>, Astray> {
    let pointer = run.join(LATEST);
    let name = match fs::read_to_string(&pointer) {
        Ok(name) => name,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => return Err(Astray::NoName(pointer)),
    };
    match step_of(name.trim()) {
        Some(step) => Ok(Some((step, run.join(name.trim())))),
        None => Err(Astray::NoName(pointer)),
    }
}

/// Differences of parameters and states, or else, when those agree, of moments.
fn differences(tensors: &[&Tensor], saved: &HashMap<(&str, TensorKind), &SavedTensor>) -> Vec<String> {
    let is_moment = |kind| file_of(kind) == OPTIMIZER_FILE;
    for moments in [false, true] {
        let mut differences = vec![];
        let mut known = HashSet::new();
        for tensor in tensors.iter().filter(|t| is_moment(t.kind) == moments) {
            known.insert((tensor.name.as_str(), tensor.kind));
            differences.extend(difference(tensor, saved.get(&(tensor.name.as_str(), tensor.kind)).copied()));
        }
        let extra = saved.iter().filter(|(key, t)| is_moment(t.kind) == moments && !known.contains(*key));
        let mut extra: Vec<&SavedTensor> = extra.map(|(_, t)| *t).collect();
        extra.sort_by_key(|t| (&t.name, t.kind));
        differences.extend(extra.iter().map(|t| format!("`{}` is not in the model", t.name)));
        if !differences.is_empty() {
            return differences;
        }
    }
    vec![]
}

fn difference(tensor: &Tensor, saved: Option<&SavedTensor>) -> Option<String> {
    let name = key(tensor);
    let Some(saved) = saved else { return Some(format!("`{name}` is not in the checkpoint")) };
    if saved.dtype == tensor.dtype && saved.dims == tensor.dims {
        return None;
    }
    let show = |dtype: DType, dims: &[u64]| format!("{}{dims:?}", format!("{dtype:?}").to_lowercase());
    let (there, here) = (show(saved.dtype, &saved.dims), show(tensor.dtype, &tensor.dims));
    Some(format!("`{name}` is {there} in the checkpoint, {here} in the model"))
}
