//! Families of models: what of a network is not in the columns of a table of runs.

use serde::Deserialize;
use std::sync::LazyLock;

/// How the networks of a family differ from the usual one (RMS norm, RoPE, SwiGLU, no biases).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Family {
    /// Parts of the names of its models, in lower case and with spaces for hyphens.
    names: Vec<String>,
    /// GELU, layer norm and learned positions; where there are no experts.
    pub gelu: bool,
    /// Norms of queries and keys.
    pub qk_norm: bool,
    /// Biases of queries, keys and values.
    pub qkv_bias: bool,
    /// Biases of all projections of attention.
    pub biases: bool,
    /// Learned logits beside the keys.
    pub sinks: bool,
    /// A sigmoid of the input over what attention gives.
    pub gate: bool,
    /// How many positions attention sees, its own among them; all where it is 0.
    pub window: u64,
    /// Gated DeltaNet in place of attention.
    pub linear: Option<Linear>,
    /// Of so many layers the last sees all positions, with attention; none where it is 0.
    pub full_every: u64,
    /// Of so many layers the last has experts; 0 where nothing is known.
    pub experts_every: u64,
    /// Groups of experts.
    pub expert_groups: u64,
    /// In how many of them the experts of a token are at most; 0 where they may be anywhere.
    pub groups_of_token: u64,
    /// Experts of clamped SwiGLU, with biases of theirs and of the router; where none are shared.
    pub clamped_experts: bool,
}

/// Heads of a linear attention, which a table's columns of heads do not count.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// Heads of queries and keys.
    pub key_heads: u64,
    /// Heads of values.
    pub value_heads: u64,
    /// Elements of each.
    pub head: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    family: Vec<Family>,
}

/// The families that the program knows, in the order in which they are looked for.
static KNOWN: LazyLock<Vec<Family>> = LazyLock::new(|| {
    let table: Table = toml::from_str(include_str!("../../families.toml")).expect("the table is part of the program");
    table.family
});

impl Family {
    /// The family of a model, by its name.
    pub fn of(model: &str) -> Family {
        let name = model.to_lowercase().replace(['-', '_'], " ");
        let is_meant = |family: &Family| family.names.iter().any(|part| name.contains(part));
        KNOWN.iter().find(|family| is_meant(family)).cloned().unwrap_or_default()
    }

    /// On how many nodes the experts of a token are at most, of those that so many expert-parallel ranks are on; none where all may be anywhere. A node has some of the groups, or a part of one.
    pub fn nodes_of_token(&self, ep: u64, devices_per_node: u64) -> Option<u32> {
        let nodes = ep.div_ceil(devices_per_node.max(1));
        let nodes_of_group = nodes.div_ceil(self.expert_groups.max(1)).max(1);
        let most = self.groups_of_token.saturating_mul(nodes_of_group);
        (self.groups_of_token > 0).then_some(most.min(u64::from(u32::MAX)) as u32)
    }

    /// Arguments of a layer's attention beside its sizes; `windowed` says whether it is one with a window.
    pub fn attention(&self, windowed: bool) -> String {
        let flags = [
            (self.qk_norm, "qk_norm"),
            (self.qkv_bias || self.biases, "qkv_bias"),
            (self.biases, "out_bias"),
            (self.sinks, "sinks"),
            (self.gate, "gate"),
        ];
        let mut text: String = flags.iter().filter(|(on, _)| *on).map(|(_, name)| format!(", {name} = true")).collect();
        if windowed {
            text += &format!(", window = {}", self.window);
        }
        text
    }

    /// Are layers of two kinds: with attention to all positions, and with a window or linear attention?
    pub fn alternates(&self) -> bool {
        (self.window > 0 || self.linear.is_some()) && self.full_every > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_family_that_a_name_belongs_to_counts() {
        assert!(Family::of("GPT OSS 120B").sinks && !Family::of("GPT OSS 120B").gelu);
        assert!(Family::of("GPT 18.4B").gelu && !Family::of("GPT 18.4B").biases);
        assert!(Family::of("Qwen3_30B_a3B").qk_norm && !Family::of("Qwen3_30B_a3B").qkv_bias);
        assert!(Family::of("Qwen2-57B-A14B").qkv_bias);
        assert_eq!(Family::of("gpt_oss_20b"), Family::of("GPT-OSS-120B"));
        assert!(Family::of("ChatGLM3 6B").qkv_bias);
        assert_eq!(Family::of("Llama-3-70B"), Family::default());
        let of = |model: &str, ep, devices| Family::of(model).nodes_of_token(ep, devices);
        assert_eq!(
            [of("DeepSeek-V3", 64, 8), of("deepseek_v3", 32, 8), of("DeepSeek-R1", 64, 4)],
            [Some(4), Some(4), Some(8)]
        );
        assert_eq!(
            [of("DeepSeek-V2", 8, 8), of("DeepSeek-V2-Lite", 8, 8), of("Kimi-K2", 64, 8)],
            [Some(3), None, None]
        );
        assert!(KNOWN.iter().all(|family| !family.names.is_empty()));
    }
}
