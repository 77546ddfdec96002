//! Which profile a run means: the first of whose `matches` one is so.
//!
//! Parts that ` & ` joins must all be so, and one that begins with `!` must not. `from 26.02` is any release from that one on, `on GB200` a device by any of its names, `in MXFP8` a type of
//! products, `of mixtures` a model with experts; anything else are words of the run's source or notes, which count by themselves and not where they are denied.

use crate::framework::Framework;
use crate::says::{named_release, says};
use forebay_cost::{Cluster, Precision, Release};

/// What is known of a run.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// Its source and notes.
    pub text: &'a str,
    /// What it ran on.
    pub cluster: Option<&'a Cluster>,
    /// What products' inputs are.
    pub precision: Option<Precision>,
    /// Has its model experts?
    pub mixture: bool,
}

impl<'a> About<'a> {
    /// A run of which nothing but a text is known.
    pub fn of(text: &'a str) -> About<'a> {
        About { text, cluster: None, precision: None, mixture: false }
    }

    /// Is a part so?
    fn is(&self, part: &str) -> bool {
        if let Some(not) = part.strip_prefix('!') {
            return !self.is(not);
        }
        if let Some(release) = from(part) {
            let named = named_release(self.text);
            return Release::parse(release).zip(named).is_some_and(|(least, named)| named >= least);
        }
        if let Some(device) = part.strip_prefix("on ") {
            return self.cluster.is_some_and(|cluster| cluster.is_called(device));
        }
        match part {
            "in fp8" => self.precision == Some(Precision::Fp8),
            "in mxfp8" => self.precision == Some(Precision::Mxfp8),
            "in bf16" => self.precision == Some(Precision::Bf16),
            "of mixtures" => self.mixture,
            words => says(self.text, words),
        }
    }
}

/// The release of `from 26.02`; of other words (`from scratch`) none.
fn from(part: &str) -> Option<&str> {
    part.strip_prefix("from ").filter(|release| release.starts_with(|c: char| c.is_ascii_digit()))
}

/// Which profile is meant.
pub fn position(known: &[Framework], about: &About) -> Option<usize> {
    let text = about.text.to_lowercase();
    let about = About { text: &text, ..*about };
    let meant = |parts: &String| parts.to_lowercase().split(" & ").all(|part| about.is(part));
    known.iter().position(|profile| profile.matches.iter().any(meant))
}

/// A part that begins as a release does and is none.
pub(crate) fn unknown_release(parts: &str) -> Option<&str> {
    let is_none = |part: &&str| from(part.trim_start_matches('!')).is_some_and(|text| Release::parse(text).is_none());
    parts.split(" & ").find(is_none)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{known, parse};
    use forebay_cost::known::clusters;

    fn name(text: &str, device: &str, precision: Precision, mixture: bool) -> String {
        let (known, clusters) = (known(), clusters());
        let cluster = clusters.iter().find(|cluster| cluster.is_called(device));
        let about = About { text, cluster, precision: Some(precision), mixture };
        position(&known, &about).map_or("none".into(), |found| known[found].name.clone())
    }

    /// What recipes record and pair goes by release, device, type and whether there are experts, whatever parts were looked up; and what rows say where recipes do nothing unasked.
    #[test]
    fn recipes_go_by_release_device_and_type() {
        use Precision::{Bf16, Fp8, Mxfp8};
        let parts = "hybridep; cuda_graph_impl=\"transformer_engine\"";
        for (release, notes, device, precision, want) in [
            ("26.06", "", "GB200", Mxfp8, "megatron-paired-graphs"),
            ("26.08", parts, "NVIDIA GB300 NVL72", Mxfp8, "megatron-paired-graphs"),
            ("26.06", "hybridep", "B200", Mxfp8, "megatron-paired-graphs"),
            ("26.06", "", "B200", Mxfp8, "megatron-core"),
            ("26.06", "hybridep", "H100", Fp8, "megatron-h100"),
            ("26.06", "hybridep", "NVIDIA DGX H100", Fp8, "megatron-h100"),
            ("26.08", "hybridep", "H100", Fp8, "megatron-core"),
            ("26.02", "hybridep", "H100", Fp8, "megatron-core"),
            ("25.11", "cuda_graph_impl=\"full_iteration\"", "GB200", Bf16, "megatron-whole-graphs"),
            ("26.06", parts, "B200", Bf16, "megatron-graphs"),
            ("26.04", "hybridep", "GB200", Bf16, "megatron-graphs"),
            ("26.04", "real routing", "GB200", Mxfp8, "megatron-graphs"),
            ("25.11", "", "GB200", Mxfp8, "megatron-core"),
            ("26.04", "hybridep; settings as on GB200", "B200", Mxfp8, "megatron-core"),
        ] {
            let text = format!("Megatron-Bridge performance summary, {release} NeMo Container; {notes}");
            assert_eq!(name(&text, device, precision, true), want, "{release} {notes} {device}");
        }
        let of_pytorch = |mixture: bool| name("a trainer, native PyTorch, FSDP2", "H100", Bf16, mixture);
        assert_eq!((of_pytorch(true), of_pytorch(false)), ("pytorch-mixtures".into(), "eager".into()));
        let dense = "Megatron-Bridge performance summary, 26.06 NeMo Container";
        assert_eq!(name(dense, "GB200", Mxfp8, false), "megatron-core");
        assert_eq!(name("NVIDIA dgxc-benchmarking 25.05", "GB200", Bf16, true), "nemo-mixtures");
        for (text, mixture) in [("NVIDIA dgxc-benchmarking 25.05", false), ("NVIDIA dgxc-benchmarking 25.12", true)] {
            assert_eq!(name(text, "GB200", Bf16, mixture), "megatron-core", "{text}");
        }
        // A device is none of a run's words.
        for (text, want) in [("PyTorch DDP", "eager"), ("Forebay", "plan"), ("Megatron-LM", "megatron-lm")] {
            assert_eq!(name(text, "Ascend 910B", Bf16, false), want, "{text}");
        }
    }

    #[test]
    fn releases_of_matches_are_releases() {
        let with = |part: &str| parse(&format!("[[framework]]\nname = \"a\"\nmatches = [\"x & {part}\"]"));
        assert!(with("from 26.02").is_ok() && with("!from 26.02").is_ok() && with("from scratch").is_ok());
        for part in ["from 26.13", "!from 26.6"] {
            let error = with(part).expect_err(part);
            assert!(error.contains(part) && error.contains("no release"), "{error}");
        }
    }
}
