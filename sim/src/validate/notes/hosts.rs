//! Optimizers that run on hosts, in the words of a row.

use crate::says::said_any;
use regex_lite::Regex;
use std::sync::LazyLock;

/// GB/s at which AdamW goes through the state that hosts of a node have, where a row says that it runs there.
pub fn host_optimizer(text: &str) -> Option<f64> {
    if said_any(text, &ADAMW_THERE) == Some(true) {
        return Some(ALL_CORES_GBPS);
    }
    let nowhere = || AWAY.captures_iter(text).any(|found| found.get(1).is_some());
    (said_any(text, &OFFLOADED) == Some(true) && !nowhere()).then_some(OFFLOADED_GBPS)
}

/// What systems call it that the optimizer is offloaded. (Megatron-Core's `cpu-offloading` is of activations.)
const OFFLOADED: [&str; 6] = [
    "offload_optimizer",
    "optimizer offload",
    "optimizer offloading",
    "cpu optimizer",
    "optimizer cpu offload",
    "zero-offload",
];

/// The same with what its device is or its part (`"offload_optimizer": {"device": "none"}`, `optimizer_offload_fraction=0.0`): nowhere.
static AWAY: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r#"(?:offload[-_ ]optimizer|optimizer[-_ ](?:cpu[-_ ])?offload)(?:[-_ .](?:device|fraction))?["':={\s]*(?:device["':=\s]*)?(none|null|false|off|0(?:\.0*)?\b)?"#;
    Regex::new(pattern).expect("the pattern is right")
});

/// What makes published pairs of runs of DeepSpeed 0.14 differ as they do, 7 billion parameters of a node with eight A800 by 18 to 22 s a step.
const OFFLOADED_GBPS: f64 = 9.0;

/// It is AdamW itself that is said to run there.
const ADAMW_THERE: [&str; 3] = ["adamw on cpu", "adam on cpu", "adamw on the cpu"];

/// What is left of published steps with it once the devices' part is predicted: 1.7 and 1.1 s for 8 billion parameters on hosts of eight H200 and B200 (130 and 210 GB/s), 3.2 s for 51 billion on
/// one of eight H100 (440). A host has 400 to 600 GB/s of memory: these have all of their cores at it, those above did not.
const ALL_CORES_GBPS: f64 = 150.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optimizers_on_hosts_are_read() {
        for (text, want) in [
            ("zero-3; offload_optimizer: cpu", Some(OFFLOADED_GBPS)),
            ("zero-3 + cpu-offload (adamw on cpu)", Some(ALL_CORES_GBPS)),
            ("--cpu-offload on, fused adamw on cpu", Some(ALL_CORES_GBPS)),
            ("offload_optimizer: {device: none}", None),
            ("no adamw on cpu", None),
            ("cpu-offloading of activations", None),
            ("", None),
        ] {
            assert_eq!(host_optimizer(text), want, "{text}");
        }
    }
}
