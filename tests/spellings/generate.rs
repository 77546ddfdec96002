//! The standard blocks, and random equal spellings of them.

use super::writer::{Rng, Spelling, file};
use super::{attention, dense, experts, rope};
use std::collections::BTreeSet;

/// The loss of models that make some `z` of their block's result.
pub const SQUARES: &str =
    "loss main = sum(wide(z) * wide(z) over batch, seq, out) per sum(valid(labels) over batch, seq)";
/// The same of scores, where order within pairs and relative positions matter.
pub const SCORES: &str =
    "loss main = sum(z * z * (1.0 + index(u)) over batch, h, seq, u) per sum(valid(labels) over batch, seq)";
/// The loss of models that make the loss of each token.
pub const NLL: &str = "loss main = sum(nll over batch, seq) per sum(valid(labels) over batch, seq)";

/// A block of the standard library.
pub struct Block {
    /// What it is.
    pub name: &'static str,
    /// A model that uses the block, spelled at random.
    pub generate: fn(&mut Rng) -> Spelling,
    /// The fused ops of the model's forward graph, and how many of each.
    pub expect: &'static [(&'static str, usize)],
    /// The model with the block of the library: its constants, its statements up to the loss, and the loss.
    reference: [&'static str; 3],
    /// The parameters that are called otherwise there: the name there, and the name in the spellings.
    pub renamed: &'static [(&'static str, &'static str)],
}

impl Block {
    /// The model with the block of the library.
    pub fn reference(&self) -> String {
        let [constants, statements, loss] = self.reference;
        file(constants, &[statements.to_string(), loss.to_string()], "")
    }
}

const ATTENTION: &[(&str, &str)] = &[
    ("attention.wq", "wq"),
    ("attention.wk", "wk"),
    ("attention.wv", "wv"),
    ("attention.wo", "wo"),
    ("attention.sink", "sink"),
];

/// All blocks.
pub fn blocks() -> Vec<Block> {
    vec![
        Block {
            name: "rms_norm",
            generate: dense::rms_norm,
            expect: &[("rms_norm", 1)],
            reference: [dense::CONSTANTS, dense::RMS_NORM, SQUARES],
            renamed: &[("rms_norm.gain", "gain")],
        },
        Block {
            name: "add_rms_norm",
            generate: dense::add_rms_norm,
            expect: &[("add_rms_norm", 1)],
            reference: [dense::CONSTANTS, dense::ADD_RMS_NORM, SQUARES],
            renamed: &[("rms_norm.gain", "gain")],
        },
        Block {
            name: "silu",
            generate: dense::silu,
            expect: &[("silu", 1)],
            reference: [dense::CONSTANTS, dense::SILU, SQUARES],
            renamed: &[],
        },
        Block {
            name: "swiglu",
            generate: dense::swiglu,
            expect: &[("swiglu", 1)],
            reference: [dense::CONSTANTS, dense::SWIGLU, SQUARES],
            renamed: &[("swiglu.gate", "gate"), ("swiglu.up", "up"), ("swiglu.down", "down")],
        },
        Block {
            name: "clamped_swiglu",
            generate: dense::clamped_swiglu,
            expect: &[("clamped_swiglu", 1)],
            reference: [dense::CONSTANTS, dense::CLAMPED_SWIGLU, SQUARES],
            renamed: &[],
        },
        Block {
            name: "rope_half",
            generate: rope::half,
            expect: &[("rope", 2)],
            reference: [rope::CONSTANTS, rope::HALF, SCORES],
            renamed: &[],
        },
        Block {
            name: "rope_interleaved",
            generate: rope::interleaved,
            expect: &[("rope", 2)],
            reference: [rope::CONSTANTS, rope::INTERLEAVED, SCORES],
            renamed: &[],
        },
        attention_block("attention_causal", attention::causal, attention::EQUAL, attention::CAUSAL),
        attention_block("attention_windowed", attention::windowed, attention::EQUAL, attention::WINDOWED),
        attention_block("attention_grouped", attention::grouped, attention::GROUPED, attention::CAUSAL),
        attention_block("attention_sinks", attention::sinks, attention::GROUPED, attention::SINKS),
        attention_block("attention_packed", attention::packed, attention::EQUAL, attention::PACKED),
        attention_block("attention_all", attention::all, attention::GROUPED, attention::ALL),
        attention_block("attention_value_size", attention::value_size, attention::TWO_SIZES, attention::VALUE_SIZE),
        Block {
            name: "cross_entropy",
            generate: dense::cross_entropy,
            expect: &[("cross_entropy", 1)],
            reference: [dense::CONSTANTS, dense::CROSS_ENTROPY, NLL],
            renamed: &[],
        },
        Block {
            name: "softmax_router",
            generate: experts::softmax_router,
            expect: &[("router_share", 1)],
            reference: [experts::CONSTANTS, experts::SOFTMAX_ROUTER, SQUARES],
            renamed: &[("softmax_router.router", "router")],
        },
        Block {
            name: "sigmoid_router",
            generate: experts::sigmoid_router,
            expect: &[("router_share", 1)],
            reference: [experts::CONSTANTS, experts::SIGMOID_ROUTER, SQUARES],
            renamed: &[("sigmoid_router.router", "router")],
        },
        Block {
            name: "swiglu_experts",
            generate: experts::swiglu_experts,
            expect: &[("router_share", 1), ("permute", 1), ("swiglu", 1), ("unpermute", 1)],
            reference: [experts::CONSTANTS, experts::SWIGLU_EXPERTS, SQUARES],
            renamed: &[("swiglu_experts.gate", "gate"), ("swiglu_experts.up", "up"), ("swiglu_experts.down", "down")],
        },
        Block {
            name: "clamped_swiglu_experts",
            generate: experts::clamped_experts,
            expect: &[("router_share", 1), ("permute", 1), ("clamped_swiglu", 1), ("unpermute", 1)],
            reference: [experts::CONSTANTS, experts::CLAMPED_EXPERTS, SQUARES],
            renamed: &[
                ("clamped_swiglu_experts.gate", "gate"),
                ("clamped_swiglu_experts.up", "up"),
                ("clamped_swiglu_experts.down", "down"),
                ("clamped_swiglu_experts.gate_bias", "gate_bias"),
                ("clamped_swiglu_experts.up_bias", "up_bias"),
                ("clamped_swiglu_experts.down_bias", "down_bias"),
            ],
        },
    ]
}

/// Equal spellings that are further from the library's: keys repeated for the heads of a group, the sink as a column of
/// the scores, the label picked by a one-hot mask. A fusion may leave them alone; what they compute is the same.
pub fn distant() -> Vec<Block> {
    let repeated = attention::repeated_keys;
    vec![
        attention_block("attention_repeated_keys", repeated, attention::GROUPED, attention::CAUSAL),
        attention_block("attention_sink_column", attention::sink_column, attention::GROUPED, attention::SINKS),
        Block {
            name: "cross_entropy_one_hot",
            generate: dense::cross_entropy_one_hot,
            expect: &[("cross_entropy", 1)],
            reference: [dense::CONSTANTS, dense::CROSS_ENTROPY, NLL],
            renamed: &[],
        },
    ]
}

fn attention_block(
    name: &'static str,
    generate: fn(&mut Rng) -> Spelling,
    constants: &'static str,
    statements: &'static str,
) -> Block {
    Block {
        name,
        generate,
        expect: &[("attention", 1)],
        reference: [constants, statements, SQUARES],
        renamed: ATTENTION,
    }
}

/// `n` spellings of a block, no two alike.
pub fn spellings(block: &Block, n: usize, seed: u64) -> Vec<Spelling> {
    let mut rng = Rng::new(seed);
    let mut seen = BTreeSet::new();
    let mut all = vec![];
    for _ in 0..100 * n {
        let spelling = (block.generate)(&mut rng);
        if seen.insert(spelling.source.clone()) {
            all.push(spelling);
        }
        if all.len() == n {
            break;
        }
    }
    assert_eq!(all.len(), n, "{}: as many spellings", block.name);
    all
}
