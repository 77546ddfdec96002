//! What notes say of kernels: which attention they are, in how many parts the loss is, and what of a step is recorded as graphs.

use super::Run;
use crate::framework::{AttentionName, Framework};
use crate::recorded::Graphs;
use crate::says::{number_of, said, said_any, says, spaced};

/// What a row says that is recorded: nothing, whole steps, or the scopes that it names of Transformer Engine's graphs, beside the word for them.
pub(super) fn graphs(text: &str) -> Option<Graphs> {
    if let Some(whole) = said_any(text, &["full_iteration", "full iteration"]) {
        return Some(if whole { Graphs::Whole } else { Graphs::Nothing });
    }
    // NeMo's options: whole steps, and its own and Megatron-Core's by the layer.
    if says(text, "full cuda graph") {
        return Some(Graphs::Whole);
    }
    if let Some(layers) = said_any(text, &["layer cuda graph", "mcore cuda graph"]) {
        return Some(if layers { Graphs::Attention } else { Graphs::Nothing });
    }
    if !said(text, "cuda_graph_impl").or_else(|| said(text, "cuda graph"))? {
        return Some(Graphs::Nothing);
    }
    let scopes: String = text.split(';').filter(|part| spaced(part).contains("cuda graph")).collect();
    let scopes = FLASH.iter().fold(spaced(&scopes), |scopes, name| scopes.replace(&spaced(name), ""));
    match () {
        () if says(&scopes, "attn") => Some(Graphs::Attention),
        () if says(&scopes, "moe_router") => Some(Graphs::Routers),
        () => None,
    }
}

/// In how many parts a row says that logits are made, which none of its words denies: torchtitan's number, where none is given. (A loss that has the head's product in its kernel has as many, or more.)
pub(super) fn loss_chunks(text: &str) -> Option<f64> {
    let said: Vec<bool> = CHUNKED.iter().filter_map(|words| said(text, words)).collect();
    let stated = number_of(text, "num_chunks").filter(|n| n.fract() == 0.0 && (1.0..=MOST_CHUNKS).contains(n));
    (!said.is_empty()).then(|| if said.contains(&false) { 1.0 } else { stated.unwrap_or(LOSS_CHUNKS) })
}

/// What losses are called that make logits in parts: torchtitan's and torchtune's, Liger's, Apple's, Megatron-Core's.
const CHUNKED: [&str; 13] = [
    "chunkedceloss",
    "cewithchunkedoutputloss",
    "chunked ce",
    "chunked ce loss",
    "chunked cross entropy",
    "chunked crossentropy",
    "chunked loss",
    "linear cross entropy",
    "fused linear cross entropy",
    "linearcrossentropy",
    "cut cross entropy",
    "cross entropy fusion impl linear",
    "cross entropy fusion impl=linear",
];

/// Parts where no number is given: torchtitan's `ChunkedCELoss` and torchtune's `CEWithChunkedOutputLoss` have eight.
const LOSS_CHUNKS: f64 = 8.0;

/// More are no parts of a micro-batch.
const MOST_CHUNKS: f64 = 4096.0;

/// The attention that a row names, else its system's: scores in memory, one of FlashAttention's releases, or the device's newest. A name without a release says no more than that scores are not in memory.
pub(super) fn attention(text: &str, framework: &Framework) -> AttentionName {
    let any = |words: &[&str]| words.iter().any(|words| says(text, words));
    let named = said_any(text, &FLASH);
    if named == Some(false)
        || any(&[
            "unfused attention",
            "attention backend unfused",
            "attention_backend=unfused",
            "naive attention",
            "eager attention",
        ])
        || says(&FUSED_PRODUCTS.iter().fold(spaced(text), |text, fused| text.replace(fused, "")), "dot product")
    {
        return AttentionName::Unfused;
    }
    // PyTorch chooses cuDNN's by itself on some devices, in some releases.
    if any(&CUDNN) {
        return AttentionName::Newest;
    }
    match FLASH.iter().find_map(|words| release(text, words)).or(any(&["fa2"]).then_some(2)) {
        Some(1) => return AttentionName::Flash1,
        Some(2) => return AttentionName::Flash2,
        Some(_) => return AttentionName::Newest,
        None => {}
    }
    match (framework.attention, named) {
        (AttentionName::Unfused, Some(true)) => AttentionName::Flash2,
        _ if framework.flash_is_stated && named.is_none() => AttentionName::Unfused,
        (of_system, _) => of_system,
    }
}

/// That scores are taken to be in memory, of a system that has both attentions and a run that names neither.
pub fn assumed_attention(run: &Run, framework: &Framework) -> Option<String> {
    let text = run.text.to_lowercase();
    let silent = said_any(&text, &FLASH).is_none() && attention(&text, framework) == AttentionName::Unfused;
    (framework.flash_is_stated && silent && !says(&text, "unfused")).then(|| "attention = unfused".to_string())
}

/// What names cuDNN's attention, and not a release of the library; and FlashAttention's newest.
const CUDNN: [&str; 13] = [
    "cudnn attention",
    "cudnn sdpa",
    "cudnn flash",
    "cudnn fused attention",
    "cudnn_flash_te",
    "sdpa with the cudnn backend",
    "sdpa prefers cudnn",
    "sdpa cudnn",
    "attention with cudnn",
    "attention_backend=cudnn",
    "attention backend cudnn",
    "attn_backend=cudnn",
    "fa3",
];

/// Names of fused attention that say what it computes: PyTorch's, and that of the option for fp8.
const FUSED_PRODUCTS: [&str; 2] = ["scaled dot product attention", "fp8 dot product attention"];

/// Names of FlashAttention, whatever its release.
const FLASH: [&str; 6] =
    ["flash attention", "flashattention", "flash attn", "fused attention", "fusion attention", "fusion attn"];

/// The release behind a name: `flash attention 2`, `FlashAttention-3`, `flash_attn v2.5`.
fn release(text: &str, words: &str) -> Option<u32> {
    let text = &text.replace(['-', '_'], " ");
    let behind = text.match_indices(words).map(|(at, _)| text[at + words.len()..].trim_start_matches([' ', 'v']));
    let digit = |text: &str| text.chars().next().and_then(|c| c.to_digit(10));
    // (More digits than one are a year, or another number.)
    let alone = |text: &&str| !text[1..].starts_with(|c: char| c.is_ascii_digit());
    behind.filter(|text| digit(text).is_some_and(|n| (1..=4).contains(&n))).filter(alone).filter_map(digit).next()
}
