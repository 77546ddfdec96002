//! The plan: plain, serialisable data, the only thing that compiler and runtime share. `docs/plan-format.md` describes it in words.
//!
//! Two levels. A [`Program`] is what one segment does in one phase (forward, backward, update …): instructions on streams over
//! buffers that are relative to *slots*. A [`Role`] is what one kind of rank does: for each phase a list of [`Call`]s that bind a program's
//! slots to places in the rank's memory. So the size of a plan grows with distinct segments, and only the list of calls with layers.

pub use crate::mesh::{Affine, MeshDim};
pub use crate::tensor::{Cut, FlatRange, Form, Held, Init, Tensor, TensorKind};

use crate::kernel::Kernel;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version this crate writes, and the only one it reads.
pub const VERSION: u32 = 12;

/// A compiled model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Always `forebay-plan`.
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The model's name.
    pub model: String,
    /// What the plan was compiled for.
    pub settings: Settings,
    /// The mesh dimensions, outermost first; empty for one rank. Ranks are numbered row-major over them.
    pub mesh: Vec<MeshDim>,
    /// The programs.
    pub programs: Vec<Program>,
    /// What each kind of rank does.
    pub roles: Vec<Role>,
}

/// What a plan was compiled for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The compute type: `f32`, `f64` or `bf16`.
    pub compute: DType,
    /// Rows of one step, over all micro-batches.
    pub batch: u64,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Tokens of a row.
    pub seq: u64,
    /// Token ids are below this.
    pub vocab: u64,
    /// Are rows packed with documents (the model reads `documents` or `positions`)?
    pub packed: bool,
    /// Steps that the learning-rate schedule was made for.
    pub steps: u64,
    /// Parameters, elements.
    pub params: u64,
    /// Parameters that take part in one token, elements.
    pub active_params: u64,
    /// Matrix-product FLOPs of one step, forward and backward (3 × forward, causal attention at half).
    #[serde(with = "crate::float")]
    pub flops_per_step: f64,
}

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// Brain float: the upper half of an f32.
    Bf16,
    /// 32-bit signed integer.
    I32,
    /// 16 bits, for the lower halves of parameters alone.
    I16,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::Bf16 | DType::I16 => 2,
            DType::Bool => 1,
        }
    }

    /// Its name in plans: `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::I32 => "i32",
            DType::I16 => "i16",
            DType::Bool => "bool",
        }
    }

    /// Is it a type of numbers to reckon with?
    pub fn is_number(self) -> bool {
        !matches!(self, DType::I16 | DType::Bool)
    }

    /// Is it a float type?
    pub fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::Bf16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A memory of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Space {
    /// The device's own memory: one arena.
    #[default]
    Device,
    /// The host's memory.
    Host,
}

impl Space {
    /// Both memories, by number.
    pub const ALL: [Space; 2] = [Space::Device, Space::Host];

    /// Its number, below 2.
    pub fn number(self) -> usize {
        usize::from(self == Space::Host)
    }

    pub(crate) fn is_device(&self) -> bool {
        *self == Space::Device
    }
}

/// What one segment does in one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// `layers.forward`
    pub name: String,
    /// The formal places that calls bind.
    pub slots: Vec<Slot>,
    /// The buffers, each in a slot.
    pub buffers: Vec<Buffer>,
    /// The streams, at most one of each kind; instructions of one stream run in order, those of earlier calls on the same kind included.
    pub streams: Vec<StreamKind>,
    /// How many events there are; an event is recorded by exactly one instruction.
    pub events: u32,
    /// The instructions; the order between streams has no meaning, but a legal order of all of them is given.
    pub instructions: Vec<Instruction>,
}

/// A formal place in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// `frame` for what lives within a call, else the name of the value: `x`, `saved`, `param.attention.wq`.
    pub name: String,
    /// How the program uses it.
    pub access: Access,
    /// Which memory.
    pub space: Space,
    /// Size in bytes.
    pub bytes: u64,
}

/// How a program uses a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Only reads; the contents must be there before the call.
    Read,
    /// Writes everything before it reads it; the contents are there after the call.
    Write,
    /// Reads and changes the contents.
    Update,
    /// Undefined before and after the call.
    Scratch,
}

/// A contiguous array of elements within a slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// The value's name in the graph.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Number of elements (ragged axes at their bound).
    pub elements: u64,
    /// Which slot.
    pub slot: u32,
    /// Bytes from the start of the slot; a multiple of 64.
    pub offset: u64,
}

impl Buffer {
    /// Size in bytes. Saturates, for plans that are not verified.
    pub fn bytes(&self) -> u64 {
        self.elements.saturating_mul(self.dtype.bytes())
    }
}

/// The units of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamKind {
    /// Matrix unit (and, with one stream, everything).
    Cube,
    /// Vector unit.
    Vector,
    /// Links within a node.
    IntraNode,
    /// Links between nodes.
    InterNode,
    /// Host to device.
    CopyIn,
    /// Device to host.
    CopyOut,
    /// The host.
    Host,
}

impl StreamKind {
    /// How many kinds there are.
    pub const COUNT: usize = 7;

    /// The name it has in plans.
    pub fn name(self) -> &'static str {
        match self {
            StreamKind::Cube => "cube",
            StreamKind::Vector => "vector",
            StreamKind::IntraNode => "intra_node",
            StreamKind::InterNode => "inter_node",
            StreamKind::CopyIn => "copy_in",
            StreamKind::CopyOut => "copy_out",
            StreamKind::Host => "host",
        }
    }

    /// Its number, below [`StreamKind::COUNT`].
    pub fn number(self) -> usize {
        match self {
            StreamKind::Cube => 0,
            StreamKind::Vector => 1,
            StreamKind::IntraNode => 2,
            StreamKind::InterNode => 3,
            StreamKind::CopyIn => 4,
            StreamKind::CopyOut => 5,
            StreamKind::Host => 6,
        }
    }
}

/// One kernel on one stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instruction {
    /// The graph's name of what it computes, for messages.
    pub name: String,
    /// Index into the program's streams.
    pub stream: u32,
    /// Events (of this program) that must have been recorded before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<u32>,
    /// The event that its end records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<u32>,
    /// Is it launched with the instruction before it on its stream, as one captured region? It waits for nothing then, and nobody for that one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub captured: bool,
    /// What it does.
    pub kernel: Kernel,
}

/// What one kind of rank does: a template over mesh coordinates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    /// `rank`
    pub name: String,
    /// Which ranks: for each mesh dimension the half-open range of coordinates.
    pub coordinates: Vec<(u32, u32)>,
    /// Bytes of the device arena.
    pub device_bytes: u64,
    /// Bytes of the host arena.
    pub host_bytes: u64,
    /// Bytes at the start of the device arena that hold those of [`Role::tensors`] that are there: kept between phases and steps.
    pub persistent_bytes: u64,
    /// The same of the host arena.
    pub host_persistent_bytes: u64,
    /// Tensors that outlive a step, or the parts of them that these ranks hold.
    pub tensors: Vec<Tensor>,
    /// Names of layers, for messages.
    pub layers: Vec<String>,
    /// What it can do: `train`, `eval`, `generate`.
    pub phases: Vec<Phase>,
}

impl Role {
    /// Bytes of an arena.
    pub fn bytes(&self, space: Space) -> u64 {
        match space {
            Space::Device => self.device_bytes,
            Space::Host => self.host_bytes,
        }
    }

    /// Bytes at its start that are kept between phases and steps.
    pub fn persistent(&self, space: Space) -> u64 {
        match space {
            Space::Device => self.persistent_bytes,
            Space::Host => self.host_persistent_bytes,
        }
    }
}

/// A unit of work that the host starts: one training step, the evaluation of one batch, one forward pass of generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// `train`, `eval` or `generate`.
    pub name: String,
    /// Rows of tokens that one run of the phase takes, over all micro-batches.
    pub rows: u64,
    /// Tokens of a row.
    pub seq: u64,
    /// Data that the host writes before the first call.
    pub feeds: Vec<Feed>,
    /// Scalars that the host writes before the first call.
    pub scalars: Vec<ScalarFeed>,
    /// The calls in an order in which they may run one by one.
    pub calls: Vec<Call>,
    /// The first call that changes a tensor that is saved in a checkpoint: before it the host may look at the reports and give up.
    pub commit: u32,
    /// Scalars that the host reads after the last call (those with `before_commit` already before the commit).
    pub reports: Vec<Report>,
    /// Tensors that the host reads after the last call.
    pub outputs: Vec<OutputTensor>,
    /// Where the memory goes.
    pub memory: MemoryUse,
}

/// Data that the host writes into the arena.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feed {
    /// `tokens`, `labels`, `positions` or `documents`: i32, rows × seq, contiguous.
    pub input: String,
    /// The first row of the step's rows that this place takes.
    pub first_row: Affine,
    /// How many rows.
    pub rows: u64,
    /// Bytes from the start of the device arena.
    pub offset: u64,
}

/// A scalar that the host writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalarFeed {
    /// Which.
    pub scalar: Scalar,
    /// Bytes from the start of the device arena; i32.
    pub offset: u64,
}

/// Scalars that the host knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scalar {
    /// The step, counted from 1.
    Step,
    /// The run's seed (its low 32 bits, as i32).
    Seed,
}

/// One run of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Which program.
    #[serde(rename = "p")]
    pub program: u32,
    /// Which layer, an index into [`Role::layers`].
    #[serde(rename = "l")]
    pub layer: u32,
    /// Which micro-batch.
    #[serde(rename = "m")]
    pub micro_batch: u32,
    /// For each slot the bytes from the start of its space.
    #[serde(rename = "s")]
    pub slots: Vec<u64>,
    /// Events of earlier calls that must have been recorded before it starts, beyond the order of each stream.
    #[serde(rename = "w", default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<CallEvent>,
}

/// An event of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallEvent {
    /// Index of the call in its phase.
    pub call: u32,
    /// The event of its program.
    pub event: u32,
}

/// A scalar that the host reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// `loss` (the main loss), `loss.<name>`, `total_loss`, `grad_norm`, `lr`; evaluation and training use the same names.
    pub name: String,
    /// Float type.
    pub dtype: DType,
    /// Bytes from the start of the device arena.
    pub offset: u64,
    /// Is it known before [`Phase::commit`]?
    pub before_commit: bool,
}

/// A tensor that the host reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputTensor {
    /// The model's name for it: `logits`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub dims: Vec<u64>,
    /// Bytes from the start of the device arena.
    pub offset: u64,
}

/// Where the bytes of a phase go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryUse {
    /// Parameters and their copies in the compute type.
    pub weights: u64,
    /// Gradients.
    pub gradients: u64,
    /// Moments and other optimizer state.
    pub optimizer: u64,
    /// State, statistics, inputs, scalars.
    pub other: u64,
    /// Everything that lives within the phase: activations, saved tensors, frames.
    pub activations: u64,
    /// Maximum over time of the bytes that are live, persistent ones included: the least that any placement needs.
    pub live_peak: u64,
    /// What the placement takes.
    pub placed: u64,
}
