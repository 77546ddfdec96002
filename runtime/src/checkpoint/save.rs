//! Writing checkpoints so that there is always a whole one.

use super::index::{DataInfo, FORMAT, Index, SavedTensor, VERSION};
use super::tensors::{self, Part};
use super::{CheckpointError, LATEST, folder_name, steps};
use crate::exec::{Executor, is_saved};
use crate::hash::{self, Hasher};
use forebay_plan::{Tensor, TensorKind};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// What is being written has this before its name,
pub(super) const UNFINISHED: &str = ".saving-";
/// and a checkpoint that was moved aside for it this behind that.
const REPLACED: &str = ".replaced";
/// How many checkpoints of a run are kept.
pub const KEPT: usize = 2;

/// Writes the checkpoints of a run.
#[derive(Debug)]
pub struct Saver {
    run: PathBuf,
    previous: Option<PathBuf>,
    /// Held while this run may write here; the system gives it back when the process ends, however it does.
    _lock: Option<File>,
}

/// What [`RUN_FILE`] has in it.
#[derive(Serialize, Deserialize)]
struct RunFile {
    format: String,
    version: u64,
    seed: u64,
}

pub(super) const RUN_FILE: &str = "run.json";
const RUN_FORMAT: &str = "forebay-run";

impl Saver {
    /// A new run's folder, which is made and marked with the run's seed.
    ///
    /// # Errors
    /// When it has checkpoints already, another run is saved there, or it cannot be written.
    pub fn create(run: &Path, seed: u64) -> Result<Saver, CheckpointError> {
        let failed = |error| CheckpointError::Write { path: run.to_path_buf(), error, previous: None };
        fs::create_dir_all(run).map_err(failed)?;
        let mut saver = Saver { run: run.to_path_buf(), previous: None, _lock: lock(run)? };
        if let Some((step, _)) = steps(run).last() {
            return Err(CheckpointError::Occupied { path: run.to_path_buf(), step: *step });
        }
        let file = RunFile { format: RUN_FORMAT.into(), version: VERSION, seed };
        let bytes = serde_json::to_vec(&file).expect("plain data can be written");
        saver.replace(RUN_FILE, &bytes)?;
        saver.clear_unfinished();
        saver.previous = None;
        Ok(saver)
    }

    /// The folder of a run that goes on.
    ///
    /// # Errors
    /// When another run is saved there, or it cannot be written.
    pub fn resume(run: &Path, from: Option<&Path>) -> Result<Saver, CheckpointError> {
        let saver = Saver { run: run.to_path_buf(), previous: from.map(Path::to_path_buf), _lock: lock(run)? };
        saver.clear_unfinished();
        Ok(saver)
    }

    /// The seed of a run that was started here, whether it has checkpoints or not.
    pub fn seed_of(run: &Path) -> Option<u64> {
        let bytes = fs::read(run.join(RUN_FILE)).ok()?;
        let file: RunFile = serde_json::from_slice(&bytes).ok()?;
        (file.format == RUN_FORMAT).then_some(file.seed)
    }

    /// The run's folder.
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// Saves what the executor holds after `step` steps, in the first process of a run; the others give it their parts ([`Executor::give_tensors`]). Returns the checkpoint's folder. Older ones than the last [`KEPT`] go.
    ///
    /// # Errors
    /// When something cannot be written. The previous checkpoint is then untouched.
    pub fn save(
        &mut self,
        executor: &Executor,
        step: u64,
        data: &DataInfo,
        recent_losses: &[f64],
    ) -> Result<PathBuf, CheckpointError> {
        let name = folder_name(step);
        let (unfinished, finished) = (self.run.join(format!("{UNFINISHED}{name}")), self.run.join(&name));
        let result = self.write_folder(&unfinished, executor, step, data, recent_losses);
        if let Err(error) = result {
            // Nothing to do when that fails as well: the next save or resume clears it.
            let _ = fs::remove_dir_all(&unfinished);
            return Err(error);
        }
        self.put_in_place(&unfinished, &finished).map_err(|error| self.failed(&finished, error))?;
        self.replace(LATEST, format!("{name}\n").as_bytes())?;
        self.previous = Some(finished.clone());
        self.forget_old(step);
        Ok(finished)
    }

    fn write_folder(
        &self,
        folder: &Path,
        executor: &Executor,
        step: u64,
        data: &DataInfo,
        recent_losses: &[f64],
    ) -> Result<(), CheckpointError> {
        let plan = executor.plan();
        let _ = fs::remove_dir_all(folder);
        fs::create_dir(folder).map_err(|error| self.failed(folder, error))?;
        let tensors = executor.tensors();
        let of_file = |file| tensors.iter().copied().filter(move |t| is_saved(t.kind) && file_of(t.kind) == file);
        let mut saved = vec![];
        let mut not_finite = None;
        for file in [MODEL_FILE, OPTIMIZER_FILE] {
            let tensors: Vec<&Tensor> = of_file(file).collect();
            let parts: Vec<Part> =
                tensors.iter().map(|t| Part { name: key(t), dtype: t.dtype, dims: &t.dims }).collect();
            // One tensor at a time: it may have to be put together.
            let mut hashes = vec![0; tensors.len()];
            let mut odd = None;
            let mut bytes = |i: usize| {
                let bytes = executor.gathered(tensors[i]).map_err(io::Error::other)?;
                hashes[i] = Hasher::of(&bytes);
                if let Some(value) = tensors::not_finite(&bytes, tensors[i].dtype) {
                    odd.get_or_insert((i, value));
                }
                Ok(bytes)
            };
            self.write_file(&folder.join(file), |out| tensors::write(out, &parts, &mut bytes))?;
            // All are gathered first: other processes give their parts.
            not_finite = not_finite.or(odd.map(|(i, value)| (tensors[i].name.clone(), value)));
            saved.extend(tensors.iter().zip(hashes).map(|(t, hash)| SavedTensor {
                name: t.name.clone(),
                kind: t.kind,
                dtype: t.dtype,
                dims: t.dims.clone(),
                hash: hash::hex(hash),
            }));
        }
        executor.gathered_all().map_err(|error| self.failed(folder, io::Error::other(error)))?;
        if let Some((tensor, value)) = not_finite {
            return Err(CheckpointError::NotFinite { tensor, value, step });
        }
        self.write_file(&folder.join(PLAN_FILE), |out| plan.write_to(out))?;
        let index = Index {
            format: FORMAT.into(),
            version: VERSION,
            model: plan.model.clone(),
            step,
            seed: executor.seed(),
            data: data.clone(),
            plan: plan.checksum(),
            settings: plan.settings.clone(),
            recent_losses: recent_losses.to_vec(),
            tensors: saved,
            checksum: String::new(),
        };
        self.write_file(&folder.join(INDEX_FILE), |out| out.write_all(&index.to_bytes()))?;
        sync_folder(folder).map_err(|error| self.failed(folder, error))
    }

    fn write_file(
        &self,
        path: &Path,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), CheckpointError> {
        let result = File::create(path).and_then(|file| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            write(&mut out)?;
            out.flush()?;
            out.get_ref().sync_all()
        });
        result.map_err(|error| self.failed(path, error))
    }

    /// Renames the finished folder. An existing folder of the same step, left by a run that was given up by resuming before it, is moved aside first; it comes
    /// back when the new one cannot take its place, now or ([`Saver::clear_unfinished`]) after the process was killed in between.
    fn put_in_place(&self, unfinished: &Path, finished: &Path) -> io::Result<()> {
        let mut replaced = unfinished.as_os_str().to_os_string();
        replaced.push(REPLACED);
        let replaced = PathBuf::from(replaced);
        let occupied = finished.exists();
        if occupied {
            let _ = fs::remove_dir_all(&replaced);
            fs::rename(finished, &replaced)?;
        }
        if let Err(error) = fs::rename(unfinished, finished) {
            if occupied {
                let _ = fs::rename(&replaced, finished);
            }
            return Err(error);
        }
        sync_folder(&self.run)?;
        if occupied {
            let _ = fs::remove_dir_all(&replaced);
        }
        Ok(())
    }

    /// Replaces a small file at once.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let path = self.run.join(name);
        let unfinished = self.run.join(format!("{UNFINISHED}{name}"));
        self.write_file(&unfinished, |out| out.write_all(bytes))?;
        let result = fs::rename(&unfinished, &path).and_then(|()| sync_folder(&self.run));
        result.map_err(|error| self.failed(&path, error))
    }

    /// Removes the checkpoints before the last [`KEPT`] up to this step. What cannot be removed stays.
    fn forget_old(&self, step: u64) {
        let mut old: Vec<_> = steps(&self.run).into_iter().filter(|(s, _)| *s <= step).collect();
        old.truncate(old.len().saturating_sub(KEPT));
        old.iter().for_each(|(_, path)| drop(fs::remove_dir_all(path)));
    }

    /// Removes what a killed run was writing. A checkpoint that it had moved aside comes back if nothing has taken its place.
    fn clear_unfinished(&self) {
        for entry in fs::read_dir(&self.run).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix(UNFINISHED)) else { continue };
            let place = name.strip_suffix(REPLACED).map(|name| self.run.join(name));
            let is_back = place.is_some_and(|place| !place.exists() && fs::rename(entry.path(), place).is_ok());
            if !is_back {
                let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
            }
        }
    }

    fn failed(&self, path: &Path, error: io::Error) -> CheckpointError {
        CheckpointError::Write { path: path.to_path_buf(), error, previous: self.previous.clone() }
    }
}

pub(super) const MODEL_FILE: &str = "model.safetensors";
pub(super) const OPTIMIZER_FILE: &str = "optimizer.safetensors";
pub(super) const PLAN_FILE: &str = "plan.json";
pub(super) const INDEX_FILE: &str = "index.json";

/// Which file a saved tensor is in.
pub(super) fn file_of(kind: TensorKind) -> &'static str {
    match kind {
        TensorKind::FirstMoment | TensorKind::SecondMoment => OPTIMIZER_FILE,
        TensorKind::Param | TensorKind::State | TensorKind::ComputeCopy | TensorKind::Gradient => MODEL_FILE,
    }
}

/// Its name there.
pub(super) fn key(tensor: &Tensor) -> String {
    match tensor.kind {
        TensorKind::FirstMoment => format!("m.{}", tensor.name),
        TensorKind::SecondMoment => format!("v.{}", tensor.name),
        TensorKind::Param | TensorKind::State | TensorKind::ComputeCopy | TensorKind::Gradient => tensor.name.clone(),
    }
}

/// Takes a run's folder for this process, where the system has locks of folders.
fn lock(run: &Path) -> Result<Option<File>, CheckpointError> {
    let Ok(folder) = File::open(run) else { return Ok(None) };
    match folder.try_lock() {
        Err(TryLockError::WouldBlock) => Err(CheckpointError::Busy(run.to_path_buf())),
        Err(TryLockError::Error(_)) => Ok(None),
        Ok(()) => Ok(Some(folder)),
    }
}

/// Forces a folder's entries to disk.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
