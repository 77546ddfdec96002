//! `index.json`: what a checkpoint holds.

use super::CheckpointError;
use crate::hash::{self, Hasher};
use forebay_plan::{DType, Settings, TensorKind};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What [`Index::format`] is.
pub const FORMAT: &str = "forebay-checkpoint";
/// The version that is written, and the only one that is read.
pub const VERSION: u64 = 1;

/// What a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Always `forebay-checkpoint`.
    pub format: String,
    /// The version of this format.
    pub version: u64,
    /// The model's name.
    pub model: String,
    /// Steps that were done.
    pub step: u64,
    /// The run's seed: with the step, where in the data and the random numbers it is.
    pub seed: u64,
    /// What it was trained on.
    pub data: DataInfo,
    /// The checksum of the plan.
    pub plan: String,
    /// What the plan was compiled for.
    pub settings: Settings,
    /// The last losses, oldest first: what the summary's training loss is the mean of.
    pub recent_losses: Vec<f64>,
    /// The tensors.
    pub tensors: Vec<SavedTensor>,
    /// A hash of all of the above.
    pub checksum: String,
}

/// What a run was trained on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataInfo {
    /// [`crate::data::Corpus::fingerprint`].
    pub fingerprint: String,
    /// How many bytes.
    pub bytes: u64,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTensor {
    /// The instance name.
    pub name: String,
    /// What it is for.
    pub kind: TensorKind,
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub dims: Vec<u64>,
    /// [`Hasher::of`] its bytes.
    pub hash: String,
}

/// What every version has.
#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    format: String,
    #[serde(default)]
    version: u64,
}

impl Index {
    /// The file, with its checksum.
    pub fn to_bytes(&self) -> Vec<u8> {
        let sealed = Index { checksum: self.hash(), ..self.clone() };
        let mut bytes = serde_json::to_vec_pretty(&sealed).expect("plain data can be written");
        bytes.push(b'\n');
        bytes
    }

    fn hash(&self) -> String {
        let plain = Index { checksum: String::new(), ..self.clone() };
        hash::hex(Hasher::of(&serde_json::to_vec(&plain).expect("plain data can be written")))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it is not what [`Index::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Index, CheckpointError> {
        let damaged = |why: String| CheckpointError::Damaged { path: path.to_path_buf(), why };
        let header: Header = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if header.format != FORMAT {
            return Err(damaged(format!("its format is not `{FORMAT}`; it belongs to something else")));
        }
        if header.version != VERSION {
            return Err(CheckpointError::Version { path: path.to_path_buf(), found: header.version });
        }
        let index: Index = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if index.checksum != index.hash() {
            return Err(damaged("its checksum does not belong to its contents".into()));
        }
        Ok(index)
    }
}
