//! Which kernels a system starts from recorded graphs (CUDA graphs and their like): a graph is one launch of the host, however many kernels it has.

use crate::price::HEAD;
use forebay_plan::{DType, Kernel, Program};
use serde::{Deserialize, Serialize};

/// What is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Graphs {
    /// Nothing: each kernel is started by the host.
    #[default]
    Nothing,
    /// What chooses experts and sorts tokens by them (Transformer Engine's scopes `moe_router` and `moe_preprocess`).
    Routers,
    /// All of a layer but what has rows of experts, whose number no graph may depend on (these scopes and `attn`).
    Attention,
    /// Whole steps.
    Whole,
}

/// What starting a recorded kernel takes of the host, in launches: an assumption (graphs are started by the layer, and what they read is copied to where they read it).
pub(crate) const RECORDED: f64 = 0.1;

/// What routers write is less than such a part of a layer's input: scores of experts are narrow, what attention computes is not.
const NARROW: u64 = 8;

impl Graphs {
    /// Launches that a kernel costs of those that it costs alone. (Of whole steps the host is faster for all that it does: [`crate::framework::Framework::launch_s`].)
    pub(crate) fn launches(self, program: &Program, kernel: &Kernel) -> f64 {
        let is_part = match self {
            Graphs::Nothing | Graphs::Whole => false,
            Graphs::Routers => is_fixed(program, kernel) && is_narrow(program, kernel),
            Graphs::Attention => is_fixed(program, kernel),
        };
        if is_part { RECORDED } else { 1.0 }
    }
}

/// Is it a kernel of a layer whose arrays have the same sizes in every step?
fn is_fixed(program: &Program, kernel: &Kernel) -> bool {
    let is_pass = program.name.contains(".forward") || program.name.contains(".backward");
    let of_layer = is_pass && !program.name.starts_with(HEAD);
    let of_experts = match kernel {
        Kernel::AllToAllV(_) | Kernel::Send(_) | Kernel::Recv(_) => true,
        Kernel::Matmul(product) => product.groups.is_some(),
        // Numbers of rows, which others wait for.
        Kernel::Exchange(exchange) => exchange.dtype == DType::I32,
        other => other.ragged_rows().is_some(),
    };
    of_layer && !of_experts
}

/// Does it write less of a token than scores of experts take?
fn is_narrow(program: &Program, kernel: &Kernel) -> bool {
    let is_input = |name: &str| name.starts_with("in.") || name.starts_with("grad_in.");
    let inputs = program.slots.iter().filter(|slot| is_input(&slot.name)).map(|slot| slot.bytes).max();
    let is_attention =
        matches!(kernel, Kernel::Attention(_) | Kernel::AttentionBackward(_) | Kernel::LinearAttention(_));
    !is_attention && inputs.is_some_and(|input| kernel.traffic(&program.buffers).written < input / NARROW)
}
