//! Cluster files: TOML, every number with its unit in its name.
//!
//! What a vendor states stands in `[device]` and `[[tier]]`, each table with the source of its numbers. What was fitted to measurements stands in
//! `[calibrated]`, so that the two are never mixed up.

use crate::measured::Measured;
use crate::release::Release;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};
use std::fmt;
use std::ops::Range;

/// A cluster: many of one device, and the network between them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// What people call it.
    pub name: String,
    /// Other names of the device, as measured runs give them.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The datasheet.
    pub device: Device,
    /// The device's link to the host's memory, where that is known.
    #[serde(default)]
    pub host: Option<HostLink>,
    /// Fitted to measurements.
    pub calibrated: Calibrated,
    /// The network, from the nearest devices outwards.
    #[serde(rename = "tier")]
    pub tiers: Vec<Tier>,
    /// What was timed, on a machine whose devices are ranks that share it.
    #[serde(default)]
    pub measured: Option<Measured>,
}

/// What the vendor says of one device.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The product.
    pub name: String,
    /// Cores that each do a tile of a product: streaming multiprocessors, AI cores.
    pub cores: Count,
    /// Dense matrix-product peaks, TFLOP/s.
    pub cube: Peaks,
    /// Peak of the vector units in f32, TFLOP/s.
    pub vector_tflops: Positive,
    /// Have the vector units cores and queues of their own, so that they work beside the cubes? Where the same cores do both, they take turns.
    #[serde(default)]
    pub vector_beside_cube: bool,
    /// Device memory, GB (10⁹ bytes): all that its driver tells of, which is more than a product's name says where the name means GiB.
    pub memory_gb: Positive,
    /// What is taken of it before a program allocates anything, GB: contexts, the code of libraries, buffers of collectives.
    #[serde(default)]
    pub context_gb: NonNegative,
    /// Its bandwidth, GB/s.
    pub memory_gbps: Positive,
    /// Last-level cache, MB.
    pub cache_mb: Positive,
    /// What products take longer whose matrices have rows that wide loads cannot read, where that is known.
    #[serde(default)]
    pub unaligned: Option<Unaligned>,
    /// Where these numbers are from.
    pub source: String,
}

impl Device {
    /// How many times as long a product takes that has rows at multiples of so many bytes.
    pub fn unaligned(&self, alignment: u64) -> f64 {
        match &self.unaligned {
            Some(times) if alignment < 4 => times.by_2.0,
            Some(times) if alignment < 16 => times.by_4.0,
            _ => 1.0,
        }
    }

    /// Bytes that a program may allocate: the memory without what contexts take.
    pub fn usable_bytes(&self) -> f64 {
        (self.memory_gb.0 - self.context_gb.0) * 1e9
    }
}

/// How many times as long a product takes by where rows of its matrices begin: at multiples of 16 bytes, or only of fewer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unaligned {
    /// At multiples of 8 or 4 bytes.
    pub by_4: Positive,
    /// At multiples of 2 bytes, or of 1.
    pub by_2: Positive,
    /// Where these numbers are from.
    pub source: String,
}

/// Dense matrix-product peaks, TFLOP/s.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peaks {
    /// bf16 and fp16.
    pub bf16: Positive,
    /// f32 inputs (TF32 where the device has it).
    pub f32: Positive,
    /// fp8, where the device has it.
    #[serde(default)]
    pub fp8: Option<Positive>,
}

/// Numbers that no datasheet has: at most eight for a family of devices.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibrated {
    /// The part of the peak that a large product sustains: power limits and issue slots.
    pub product_efficiency: Share,
    /// Depth (elements of K) that filling and draining a tile's pipeline costs.
    pub product_depth: NonNegative,
    /// The part of the peak that the device's newest attention kernel sustains forwards, long sequences, heads of 128.
    pub attention_efficiency: Share,
    /// The part of the memory bandwidth that streaming kernels sustain.
    pub memory_efficiency: Share,
    /// Start and end of a kernel on the device, µs.
    pub kernel_us: NonNegative,
    /// The part of the bandwidth that collectives sustain on the first tier.
    pub link_efficiency: Share,
    /// The part of the bandwidth that collectives sustain on the other tiers.
    pub network_efficiency: Share,
    /// How much longer work takes per second of communication that runs beside it.
    pub overlap_slowdown: NonNegative,
    /// How much faster kernels of the device become in a year of software releases (0.1: by a tenth), as they do of devices that are new; none where nothing is said.
    #[serde(default)]
    pub yearly_gain: NonNegative,
    /// The release, by its year and month, whose kernels have these efficiencies: `"26.02"`. Needed where there is a gain.
    #[serde(default)]
    pub release: Option<Release>,
    /// Estimates, which were not fitted to runs of the device.
    #[serde(default)]
    pub estimated: bool,
}

/// The way between a device and the host's memory.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostLink {
    /// Each way, GB/s; both ways at once.
    pub gbps: Positive,
    /// The part of it that large copies sustain.
    pub efficiency: Share,
    /// Where these numbers are from.
    pub source: String,
}

/// A tier of the network: devices that reach each other at one speed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// `node`, `supernode`, `rail`, …
    pub name: String,
    /// How many devices one domain of this tier has; absent for the last.
    #[serde(default)]
    pub devices: Option<Count>,
    /// Per device and direction, GB/s.
    pub gbps: Positive,
    /// What joins the domains inside of it.
    #[serde(default)]
    pub links: Links,
    /// How many adapters a domain of the tier inside of it has, where devices share them; absent: each device has its own. (A whole number in a file; what a site's bandwidth comes to need not be one.)
    #[serde(default)]
    pub adapters: Option<Positive>,
    /// Do the device's own links lead here, as to the innermost tier, and not adapters for a network? What collectives reach of it is `link_efficiency` then.
    #[serde(default)]
    pub scale_up: bool,
    /// Of one step of a collective, µs.
    pub latency_us: NonNegative,
    /// Where these numbers are from.
    pub source: String,
}

/// What joins devices of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Links {
    /// A switch: whoever a device talks to, it has all of its bandwidth.
    #[default]
    Switch,
    /// A link from each to each other one, which have equal parts of the bandwidth (full meshes of HCCS or xGMI): n − 1 of them for n devices.
    Mesh,
    /// Rings along several axes: the tier inside of this one is one axis, with the two links of a device that it has along it, and this one has the links of all axes.
    Torus,
}

/// A number above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Positive(pub f64);

/// A number of at least 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NonNegative(pub f64);

/// Above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

/// A whole number of at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count(pub u32);

/// The largest number that a cluster file may hold: beyond it a unit is wrong.
const LARGEST: f64 = 1e9;
/// The smallest that is above 0.
const SMALLEST: f64 = 1e-6;
/// The most that kernels become faster in a year.
const MOST_GAIN: f64 = 1.0;
/// The most seconds that work may take longer per second of communication beside it.
const SLOWEST: f64 = 10.0;

/// A number, whole or not.
struct Number;

impl Visitor<'_> for Number {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_f64<E>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }

    fn visit_i64<E>(self, value: i64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_u64<E>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_i128<E>(self, value: i128) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_u128<E>(self, value: u128) -> Result<f64, E> {
        Ok(value as f64)
    }
}

macro_rules! checked {
    ($name:ident, $what:literal, $test:expr) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = deserializer.deserialize_any(Number)?;
                let test: fn(f64) -> bool = $test;
                if value.is_finite() && value <= LARGEST && test(value) {
                    Ok($name(value))
                } else {
                    Err(D::Error::custom(format!("this must be {}, not {value}", $what)))
                }
            }
        }
    };
}

checked!(Positive, "a number above 0 (10⁻⁶ to 10⁹)", |v| v >= SMALLEST);
checked!(NonNegative, "a number of at least 0 (and at most 10⁹)", |v| v >= 0.0);
checked!(Share, "above 0 (10⁻⁶) and at most 1", |v| (SMALLEST..=1.0).contains(&v));

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = deserializer.deserialize_any(Number)?;
        match value.fract() == 0.0 && (1.0..=16_777_216.0).contains(&value) {
            true => Ok(Count(value as u32)),
            false => Err(D::Error::custom(format!("this must be a whole number from 1 to 16,777,216, not {value}"))),
        }
    }
}

/// What is wrong with a cluster file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterError {
    /// A sentence.
    pub message: String,
    /// Where: bytes of the text.
    pub span: Option<Range<usize>>,
    /// What would work, where that is known.
    pub help: Option<String>,
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.help.as_ref().map_or(Ok(()), |help| write!(f, "\n  = help: {help}"))
    }
}

impl std::error::Error for ClusterError {}

impl Cluster {
    /// Reads a cluster file.
    ///
    /// # Errors
    /// Text that is no TOML, unknown or missing keys, numbers out of range, tiers that do not nest.
    pub fn parse(text: &str) -> Result<Cluster, ClusterError> {
        let cluster: Cluster = toml::from_str(text).map_err(|error| ClusterError {
            message: error.message().lines().next().unwrap_or("this is not a cluster file").to_string(),
            span: error.span(),
            help: Some("examples/clusters has files to start from".to_string()),
        })?;
        cluster.check(text)?;
        Ok(cluster)
    }

    /// Names are there, no number is beyond what it can be, and tiers nest.
    fn check(&self, text: &str) -> Result<(), ClusterError> {
        let at = |key: &str, value: &str, message: String, help: &str| {
            let is_it =
                |line: &str| line.split_once('=').is_some_and(|(k, v)| k.trim() == key && v.trim().starts_with(value));
            let mut start = 0;
            let line = text.split('\n').find(|line| {
                let found = is_it(line);
                start += if found { 0 } else { line.len() + 1 };
                found
            });
            ClusterError { message, span: line.map(|line| start..start + line.len()), help: Some(help.to_string()) }
        };
        if self.calibrated.yearly_gain.0 > MOST_GAIN {
            let message = format!("`yearly_gain` is at most {MOST_GAIN}, not {}", self.calibrated.yearly_gain.0);
            return Err(at("yearly_gain", "", message, "0.1 is a tenth faster each year"));
        }
        if self.calibrated.yearly_gain.0 > 0.0 && self.calibrated.release.is_none() {
            let message = "`yearly_gain` needs the `release` whose kernels have these efficiencies".to_string();
            return Err(at("yearly_gain", "", message, "release = \"26.02\" beside it: year and month"));
        }
        if let Some(part) = self.measured.as_ref().and_then(Measured::missing) {
            let start = text.find("[measured]").unwrap_or(0);
            return Err(ClusterError {
                message: format!("[measured] has no samples of `{part}`"),
                span: Some(start..(start + "[measured]".len()).min(text.len())),
                help: Some("`forebay calibrate --cpu` writes all of them".into()),
            });
        }
        if let Some((key, name)) =
            [("name", &self.name), ("name", &self.device.name)].into_iter().find(|(_, name)| name.trim().is_empty())
        {
            return Err(at(
                key,
                &format!("\"{name}\""),
                "this name is empty".into(),
                "names are what messages and tables call the cluster and its device",
            ));
        }
        let slowdown = self.calibrated.overlap_slowdown.0;
        if slowdown > SLOWEST {
            return Err(at(
                "overlap_slowdown",
                "",
                format!("`overlap_slowdown` is at most {SLOWEST}, not {slowdown}"),
                "it is seconds that work takes longer per second of communication beside it: 0.25 is a quarter, 25 is no percentage",
            ));
        }
        let Device { memory_gb, context_gb, .. } = &self.device;
        if context_gb.0 >= memory_gb.0 {
            return Err(at(
                "context_gb",
                "",
                format!("`context_gb` leaves nothing of the device's {} GB", memory_gb.0),
                "it is what contexts, the code of libraries and buffers of collectives take of `memory_gb`: 1 to 2 GB",
            ));
        }
        if let Some(Unaligned { by_4, by_2, .. }) = &self.device.unaligned
            && (by_4.0 < 1.0 || by_2.0 < by_4.0)
        {
            return Err(at(
                "by_4",
                "",
                format!("`by_4` = {} and `by_2` = {} are no times as long", by_4.0, by_2.0),
                "they are how many times as long a product takes whose rows begin at multiples of 4 or 8 bytes, and of 2: 1 or more, the second no less than the first",
            ));
        }
        self.check_tiers(text)
    }

    /// Names tell tiers apart. Tiers nest: each has a whole number of domains of the one before it, and the last has no end.
    fn check_tiers(&self, text: &str) -> Result<(), ClusterError> {
        let wrong = |n: usize, message: String, help: &str| {
            let start = text.match_indices("[[tier]]").nth(n).map_or(0, |(at, _)| at);
            let span = Some(start..(start + "[[tier]]".len()).min(text.len()));
            Err(ClusterError { message, span, help: Some(help.to_string()) })
        };
        let Some(last) = self.tiers.len().checked_sub(1) else {
            return wrong(
                0,
                "a cluster has at least one [[tier]]".into(),
                "add a [[tier]] with name, gbps and latency_us",
            );
        };
        let mut inner = 1;
        for (n, tier) in self.tiers.iter().enumerate() {
            if tier.name.trim().is_empty() || self.tiers[..n].iter().any(|other| other.name == tier.name) {
                let message = match tier.name.trim() {
                    "" => "a tier has no name".to_string(),
                    name => format!("two tiers are called `{name}`"),
                };
                return wrong(n, message, "a tier has a name of its own: node, rail, …");
            }
            match tier.devices {
                None if n < last => {
                    return wrong(
                        n,
                        format!("tier `{}` must say how many devices it has: only the last has no end", tier.name),
                        "add `devices = …`",
                    );
                }
                Some(Count(devices)) if devices < inner || devices % inner != 0 => {
                    return wrong(
                        n,
                        format!(
                            "tier `{}` has {devices} devices, which is not a multiple of the {inner} of the tier inside of it",
                            tier.name
                        ),
                        "tiers are listed from the nearest devices outwards",
                    );
                }
                _ if tier.links == Links::Torus && (n == 0 || tier.gbps.0 < self.tiers[n - 1].gbps.0) => {
                    return wrong(
                        n,
                        format!("tier `{}` is a torus without the links of one of its axes", tier.name),
                        "the tier inside of it is one axis, and its `gbps` are those of all axes",
                    );
                }
                None if tier.links == Links::Mesh => {
                    return wrong(
                        n,
                        format!("tier `{}` is a mesh, and does not say how many devices it joins", tier.name),
                        "add `devices = …`, and a tier outside of it where there are more",
                    );
                }
                _ => {}
            }
            if let Some(Positive(adapters)) = tier.adapters.filter(|adapters| adapters.0.fract() != 0.0) {
                return wrong(
                    n,
                    format!("tier `{}` has {adapters} adapters", tier.name),
                    "say how many, a whole number",
                );
            }
            if let Some(Positive(adapters)) = tier.adapters.filter(|adapters| n == 0 || adapters.0 >= f64::from(inner))
            {
                let devices = if n == 0 { 1 } else { inner };
                return wrong(
                    n,
                    format!(
                        "tier `{}` has {adapters} adapters for {devices} devices, which need not share them",
                        tier.name
                    ),
                    "leave `adapters` out where each device has its own",
                );
            }
            inner = tier.devices.map_or(inner, |devices| devices.0);
        }
        Ok(())
    }

    /// Devices of one domain of a tier; everything for the last.
    pub fn domain(&self, tier: usize) -> u64 {
        self.tiers.get(tier).and_then(|t| t.devices).map_or(u64::MAX, |n| u64::from(n.0))
    }

    /// Devices of a domain of the first tier: of a node, mostly.
    pub fn node(&self) -> u64 {
        self.domain(0)
    }

    /// Is this what a measured run calls the device? Upper and lower case are the same; what stands between words does not count, nor does a remark in brackets without a number, unless it is
    /// of another board.
    pub fn is_called(&self, device: &str) -> bool {
        let is_name = |called: &str| self.names().any(|name| plain(name) == plain(called));
        is_name(device) || without_remark(device).is_some_and(is_name)
    }

    /// All that it is called.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.aliases.iter().chain([&self.name, &self.device.name]).map(String::as_str)
    }

    /// Does a device's name begin one of its names? (`H100-96G`, of which there are several.)
    pub fn is_begun_by(&self, device: &str) -> bool {
        !plain(device).is_empty() && self.names().any(|name| plain(name).starts_with(&plain(device)))
    }
}

/// A device's name without a remark in brackets: `Ascend 910B (Atlas A2)`. None where it may tell devices apart: a number (`A100 (40 GB)`, `H100 (500 W)`), or another board (`H100 (PCIe)`).
fn without_remark(name: &str) -> Option<&str> {
    let (device, remark) = name.split_once('(')?;
    let remark = remark.to_lowercase();
    let mut words = remark.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let tells_apart = |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) || BOARDS.contains(&word);
    (!words.any(tells_apart)).then(|| device.trim())
}

/// Boards on which a chip is another device.
const BOARDS: [&str; 4] = ["pcie", "pci", "nvl", "mig"];

/// What a device's name may have beside what tells it from others: who makes it, and what it is built into.
const BESIDE: [&str; 20] = [
    "nvidia", "amd", "instinct", "google", "cloud", "huawei", "tesla", "dgx", "hgx", "sxm", "sxm2", "sxm3", "sxm4",
    "sxm5", "sxm6", "oam", "hbm2e", "hbm3", "hbm3e", "nvlink",
];

/// A device's name as names are compared: `NVIDIA A100-SXM4-80GB` is an `A100-80G`, `TPU v5p-128` (cores of a slice) a `TPU v5p`.
fn plain(name: &str) -> String {
    let name = name.to_lowercase();
    let words = name.split(|c: char| !c.is_alphanumeric() && c != '.');
    let words = words.filter(|word| !word.is_empty() && !BESIDE.contains(word));
    let is_slice = |word: &str| word.bytes().all(|b| b.is_ascii_digit());
    let is_tpu = name.contains("tpu") || words.clone().next().is_some_and(|word| TPU.contains(&word));
    let all: String = words.filter(|word| !is_tpu || !is_slice(word)).collect();
    all.strip_suffix("gb")
        .filter(|rest| rest.ends_with(|c: char| c.is_ascii_digit()))
        .map_or(all.clone(), |rest| format!("{rest}g"))
}

/// TPUs by their generation alone.
const TPU: [&str; 5] = ["v4", "v5e", "v5p", "v6e", "v7x"];

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SMALL: &str = r#"
name = "small"
[device]
name = "D"
cores = 4
vector_tflops = 1
memory_gb = 16
memory_gbps = 100
cache_mb = 1
source = "a test"
cube = { bf16 = 10, f32 = 5 }
[calibrated]
product_efficiency = 1.0
product_depth = 0
attention_efficiency = 0.5
memory_efficiency = 1.0
kernel_us = 0
link_efficiency = 1.0
network_efficiency = 1.0
overlap_slowdown = 0
[[tier]]
name = "node"
devices = 4
gbps = 100
latency_us = 0
source = "a test"
[[tier]]
name = "net"
gbps = 10
latency_us = 0
source = "a test"
"#;

    fn error(from: &str, to: &str) -> (String, String) {
        let text = SMALL.replacen(from, to, 1);
        let error = Cluster::parse(&text).expect_err("it is wrong");
        (error.message, error.span.map_or(String::new(), |s| text[s].to_string()))
    }

    #[test]
    fn a_file_is_read() {
        let cluster = Cluster::parse(SMALL).expect("it is right");
        assert_eq!((cluster.node(), cluster.domain(1)), (4, u64::MAX));
        assert!(cluster.is_called("d") && !cluster.is_called("e"));
        assert_eq!(cluster.device.usable_bytes(), 16e9);
        let text = SMALL.replacen("memory_gb = 16", "memory_gb = 16\ncontext_gb = 1.5", 1);
        assert_eq!(Cluster::parse(&text).expect("it is right").device.usable_bytes(), 14.5e9);
    }

    #[test]
    fn mistakes_are_named_where_they_are() {
        assert_eq!(
            error("cores = 4", "cores = 0"),
            ("this must be a whole number from 1 to 16,777,216, not 0".into(), "0".into())
        );
        assert_eq!(
            error("memory_gb = 16", "memory_gb = -16"),
            ("this must be a number above 0 (10⁻⁶ to 10⁹), not -16".into(), "-16".into())
        );
        assert_eq!(error("cores = 4", "cores = 4.5").0, "this must be a whole number from 1 to 16,777,216, not 4.5");
        assert!(error("cores = 4", "cores = \"4\"").0.ends_with("expected a number"));
        assert!(error("cores = 4", "cores = 99999999999999999999").0.contains("16,777,216"));
        assert_eq!(error("memory_gbps = 100", "memory_gbps = 1e-300").1, "1e-300");
        assert_eq!(error("name = \"small\"", "name = \"\""), ("this name is empty".into(), "name = \"\"".into()));
        assert_eq!(
            error("name = \"net\"", "name = \"node\""),
            ("two tiers are called `node`".into(), "[[tier]]".into())
        );
        assert_eq!(
            error("overlap_slowdown = 0", "overlap_slowdown = 25"),
            ("`overlap_slowdown` is at most 10, not 25".into(), "overlap_slowdown = 25".into())
        );
        assert_eq!(
            error("memory_gb = 16", "memory_gb = 16\ncontext_gb = 16"),
            ("`context_gb` leaves nothing of the device's 16 GB".into(), "context_gb = 16".into())
        );
        let gain = |more: &str| error("overlap_slowdown = 0", &format!("overlap_slowdown = 0\n{more}"));
        assert_eq!(
            gain("yearly_gain = 8\nrelease = \"26.02\""),
            ("`yearly_gain` is at most 1, not 8".into(), "yearly_gain = 8".into())
        );
        assert_eq!(
            gain("yearly_gain = 0.1"),
            (
                "`yearly_gain` needs the `release` whose kernels have these efficiencies".into(),
                "yearly_gain = 0.1".into()
            )
        );
        for wrong in ["26", "2026.02", "26.13", "26.2", "+6.+2", "26.02.x", "26.02."] {
            let found = gain(&format!("yearly_gain = 0.1\nrelease = {wrong:?}"));
            let want = format!("this must be a year and a month like \"26.02\", not {wrong:?}");
            assert_eq!(found, (want, format!("{wrong:?}")));
        }
        let unaligned =
            |by_4, by_2| format!("[device.unaligned]\nby_4 = {by_4}\nby_2 = {by_2}\nsource = \"s\"\n[calibrated]");
        for (by_4, by_2) in [("0.5", "2"), ("3", "2")] {
            let found = error("[calibrated]", &unaligned(by_4, by_2));
            assert_eq!(found.0, format!("`by_4` = {by_4} and `by_2` = {by_2} are no times as long"));
            assert_eq!(found.1, format!("by_4 = {by_4}"));
        }
        assert_eq!(error("memory_gbps = 100", "memory_gbps = nan").1, "nan");
        assert_eq!(error("memory_gbps = 100", "memory_gbps = 1e15").1, "1e15");
        assert_eq!(error("link_efficiency = 1.0", "link_efficiency = 95").1, "95");
        assert_eq!(error("link_efficiency = 1.0", "link_efficiency = 5e-324").1, "5e-324");
        assert!(error("cores = 4", "coers = 4").0.contains("unknown field `coers`"));
        assert!(error("\ngbps = 100\n", "\n").0.contains("missing field"));
        assert_eq!(
            error("devices = 4\n", ""),
            ("tier `node` must say how many devices it has: only the last has no end".into(), "[[tier]]".into())
        );
        assert_eq!(
            error("name = \"net\"", "name = \"net\"\nlinks = \"torus\"").0,
            "tier `net` is a torus without the links of one of its axes"
        );
        assert_eq!(
            error("name = \"net\"", "name = \"net\"\nlinks = \"mesh\""),
            ("tier `net` is a mesh, and does not say how many devices it joins".into(), "[[tier]]".into())
        );
        assert_eq!(error("devices = 4", "devices = 4\nlinks = \"ring\"").1, "\"ring\"");
        assert!(Cluster::parse("").is_err() && Cluster::parse("\u{0}[[[").is_err());
    }
}
