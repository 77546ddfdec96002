//! The network of a measured run's site.

use super::runs::Run;
use crate::says::{named_release, says};
use forebay_cost::cluster::{Count, NonNegative, Positive};
use forebay_cost::{Cluster, Release};
use regex_lite::Regex;
use std::sync::LazyLock;

/// The cluster with the network of the run's site, where the row says what it is: devices of a node, `inter-node 800 Gb/s per node`, or collectives that were
/// measured on all its devices.
///
/// Devices of a node are those of the tier that is called `node`, which may have parts (boards); a rack of several nodes that one fabric joins is no smaller for it.
/// What is between nodes is the tier around that one, or the first around so many devices.
///
/// # Errors
/// Nodes that are no part of the tier around them, or of which what they consist of is no part: a sentence.
pub fn site(run: &Run, cluster: &Cluster) -> Result<Cluster, String> {
    let mut cluster = cluster.clone();
    if let Some(release) = released(&run.source) {
        cluster = cluster.of_release(release);
    }
    let stated = run.number("devices_per_node");
    if cluster.tiers.len() < 2 {
        return Ok(cluster);
    }
    let nodes = cluster.tiers.iter().position(|tier| tier.name == "node");
    if let (Some(devices), Some(tier)) = (stated, nodes) {
        // A job may have less of a node than one of its parts.
        for part in &mut cluster.tiers[..tier] {
            part.devices =
                part.devices.map(|whole| if u64::from(whole.0) > devices { Count(devices as u32) } else { whole });
        }
        fits(&cluster, tier, devices)?;
        cluster.tiers[tier].devices = Some(Count(devices as u32));
    }
    // Between slices of a torus there is the network of the data center; a job that says nothing of them is one.
    cluster = cluster.with_slice(slice(&run.text).map_or(run.degree("n_devices"), u64::from));
    // (Racks are of several nodes.)
    let of_file = nodes.map(|tier| cluster.domain(tier)).filter(|devices| *devices != u64::MAX);
    let node = stated.unwrap_or_else(|| of_file.unwrap_or_else(|| cluster.node().min(8))) as f64;
    let around = || (1..cluster.tiers.len()).find(|tier| cluster.domain(tier - 1) as f64 >= node);
    let Some(outside) = nodes.map(|tier| tier + 1).or_else(around).filter(|tier| *tier < cluster.tiers.len()) else {
        return Ok(cluster);
    };
    if let Some(gigabits) = network_of_a_node(&run.text, node) {
        // Adapters are those of the cluster file, which has one for each device; a site may have fewer.
        // Not a whole number: rounded, a little more bandwidth than one adapter's would be half lost to sharing.
        let adapters = gigabits / 8.0 / cluster.tiers[outside].gbps.0;
        // (Nearly one for each device is one for each.)
        if adapters.round() < node && nodes.is_some() {
            cluster.tiers[outside].adapters = Some(Positive(adapters));
        }
        cluster.tiers[outside].gbps = Positive(gigabits / 8.0 / node);
    }
    if let Some([gathers, scatters]) = measured_collectives(&run.text)
        && run.degree("n_devices") as f64 > node
    {
        let step = measured_step_us((gathers * scatters).sqrt(), cluster.tiers[0].gbps.0, run.degree("n_devices"));
        // Of the steps round a node one goes to the next node; what that does not explain, all of them take.
        let (to_others, within) = shared_out(step, node);
        for (at, tier) in cluster.tiers.iter_mut().enumerate() {
            tier.latency_us = NonNegative(tier.latency_us.0.max(if at < outside { within } else { to_others }));
        }
    }
    Ok(cluster)
}

/// The release that a row is priced by, where the device's kernels gain with releases.
pub fn heard_of_release(run: &Run, cluster: &Cluster) -> Option<String> {
    let gains = cluster.calibrated.yearly_gain.0 > 0.0;
    released(&run.source).filter(|_| gains).map(|release| format!("kernels of {release}"))
}

/// The release that it is priced by where nothing is said of one, and kernels gain with releases: that of the device's file.
pub fn assumed_release(run: &Run, cluster: &Cluster) -> Option<String> {
    let release = cluster.calibrated.release.filter(|_| cluster.calibrated.yearly_gain.0 > 0.0)?;
    released(&run.source).is_none().then(|| format!("kernels of {release}"))
}

/// When a run's software was released: as its source says (numbers like that among remarks are of other things), or before the round of MLPerf Training in which its result was published (mlcommons.org).
fn released(source: &str) -> Option<Release> {
    let text = source.to_lowercase();
    let round = |(name, released): &(&str, &str)| says(&text, name).then(|| Release::parse(released)).flatten();
    named_release(&text).or_else(|| ROUNDS.iter().find_map(round))
}

/// Rounds of MLPerf Training, and the months in which what took part was to be available.
const ROUNDS: [(&str, &str); 5] = [
    ("mlperf training v3.1", "23.10"),
    ("mlperf training v4.0", "24.05"),
    ("mlperf training v4.1", "24.10"),
    ("mlperf training v5.0", "25.05"),
    ("mlperf training v5.1", "25.10"),
];

/// What a row says of the network between its nodes.
pub fn heard(run: &Run) -> Option<String> {
    let devices = run.number("devices_per_node").unwrap_or(8) as f64;
    network_of_a_node(&run.text, devices).map(|rate| format!("{rate} Gb/s between nodes of {devices}"))
}

/// Can a tier's domains have so many devices, whole domains of the tier below, and fill those of the tier around them?
///
/// # Errors
/// They cannot: a sentence.
fn fits(cluster: &Cluster, tier: usize, devices: u64) -> Result<(), String> {
    let stated = format!("`devices_per_node` is {devices}");
    let outer = cluster.domain(tier + 1);
    if outer != u64::MAX && !outer.is_multiple_of(devices) {
        let around = &cluster.tiers[tier + 1].name;
        return Err(format!("{stated}, which does not divide the {outer} devices of a {around}"));
    }
    if let Some(inner) = tier.checked_sub(1)
        && !devices.is_multiple_of(cluster.domain(inner))
    {
        let (part, of) = (&cluster.tiers[inner].name, cluster.domain(inner));
        return Err(format!("{stated}, which is no multiple of the {of} devices of a {part}"));
    }
    Ok(())
}

/// Chips of a slice of a torus: "a slice of 256".
fn slice(text: &str) -> Option<u32> {
    let (_, after) = text.split_once("slice of ")?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|chips| *chips > 0)
}

/// MB of the arrays with which sites measure their collectives: sources do not say; fitted, with the time of tensor-parallel collectives on the same site.
const MEASURED_MB: f64 = 880.0;
/// The part of the first tier's bandwidth at which the bytes of such a measurement go, beside latencies: between nodes the best rates that runs on 16 and 32 devices have.
/// (One node alone has 0.54; with that, rates on 16 devices that only bytes limit were 90 µs a step, and steps inside of nodes were slow that are not.)
const MEASURED_RING: f64 = 0.51;
/// µs that a step of a ring takes to another node at most: what a site's collectives show that takes more is in the steps inside of nodes too. Fitted.
const MEASURED_HOP_US: f64 = 450.0;

/// The mean latency of a step of a ring, µs, by the GB/s of collectives through all devices of a job.
///
/// On 8 to 512 devices of one site, in either state of its network, 1/rate is `sqrt((1/ring)² + (latency · devices / array)²)` with one latency: the bytes of a step go while the
/// latency of others passes, and the longer of the two counts.
fn measured_step_us(rate: f64, link: f64, devices: u64) -> f64 {
    let of_bytes = 1.0 / (link * MEASURED_RING);
    let of_latency = (rate.powi(-2) - of_bytes.powi(2)).max(0.0).sqrt();
    MEASURED_MB * 1e3 * of_latency / devices as f64
}

/// The latencies of steps to other nodes and inside of them, µs, whose mean round a ring is given.
fn shared_out(step: f64, node: f64) -> (f64, f64) {
    let outside = (node * step).min(MEASURED_HOP_US);
    (outside, (node * step - outside) / (node - 1.0).max(1.0))
}

/// GB/s of all-gathers and reduce-scatters through all devices, where a run's site has measured them.
fn measured_collectives(text: &str) -> Option<[f64; 2]> {
    let (_, rest) = text.split_once("measured AllReduce/AllGather/ReduceScatter GB/s ")?;
    let rates: Vec<f64> =
        rest.split(|c: char| !c.is_ascii_digit() && c != '.').take(3).filter_map(|n| n.parse().ok()).collect();
    (rates.len() == 3 && rates.iter().all(|r| *r > 0.0)).then(|| [rates[1], rates[2]])
}

/// A rate as people write it: `800 Gb/s per node`, `4x100Gb RoCE`, `400 Gbps InfiniBand per GPU`, `1.6 Tbit/s node-node`, `8x50GB/s`.
static RATE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?:(\d+)\s?[x×*]\s?)?(\d[\d,]*(?:\.\d+)?)\s?([GgTt])(b|bit|bits|B|Byte)(/s|ps)?\b(?:(?:\s(?:[HNX]DR|InfiniBand|IB|RoCE|Ethernet|EFA|network|interconnect|bandwidth))*\s(?:per|a|each)\s(node|server|host|machine|GPU|gpu|NPU|npu|device|chip|card|accelerator)\b)?";
    Regex::new(pattern).expect("the pattern is right")
});

/// Gb/s that all of a node's devices send to other nodes together, where a row says it of a network between nodes: with `per node`, for each device, or for so many adapters.
fn network_of_a_node(text: &str, devices: f64) -> Option<f64> {
    RATE.captures_iter(text).find_map(|found| {
        let (begin, end) = (found.get(0)?.start(), found.get(0)?.end());
        let before = &text[..begin];
        let separators = [',', ';', '(', ')'];
        let clause = [before.rsplit(separators).next()?, &found[0], text[end..].split(separators).next()?]
            .concat()
            .to_lowercase();
        let has = |words: &[&str]| {
            let mut all = clause.split(|c: char| !c.is_alphanumeric() && c != '-');
            all.any(|word| words.contains(&word))
        };
        // Digits before it are of a number that is not understood (`1e9 Gb/s`).
        let goes_on =
            before.ends_with(|c: char| c.is_alphanumeric() || ['.', '+'].contains(&c)) || before.ends_with("e-");
        if goes_on || INSIDE.iter().any(|words| clause.contains(words)) {
            return None;
        }
        let number: f64 = found[2].replace(',', "").parse().ok()?;
        let (in_bytes, is_rate) = (found[4].starts_with('B'), found.get(5).is_some());
        let unit = thousands(&found[3]) * if in_bytes { 8.0 } else { 1.0 };
        let adapters = found.get(1).and_then(|count| count.as_str().parse::<f64>().ok());
        let count = match (found.get(6).map(|whose| whose.as_str()), adapters) {
            // (Other things have bytes a second of a node as well.)
            (Some(_), _) if in_bytes && !has(&BETWEEN_NODES) => return None,
            (Some("node" | "server" | "host" | "machine"), adapters) => adapters.unwrap_or(1.0),
            (Some(_), adapters) => adapters.unwrap_or(1.0) * devices,
            (None, Some(adapters)) if has(&BETWEEN_NODES) => adapters,
            (None, None) if has(&NODE_TO_NODE) => 1.0,
            _ => return None,
        };
        // (`80 GB` is memory, `100Gb` a link.)
        let counts = is_rate || adapters.is_some() && !in_bytes;
        counts.then_some(count * number * unit).filter(|rate| (1e-3..=1e6).contains(rate))
    })
}

/// What is not between nodes.
const INSIDE: [&str; 12] = [
    "nvlink",
    "nvswitch",
    "hccs",
    "hbm",
    "memory",
    "intra",
    "c2c",
    "pcie",
    "measured",
    "storage",
    "checkpoint",
    "reads",
];

fn thousands(prefix: &str) -> f64 {
    if prefix.eq_ignore_ascii_case("t") { 1e3 } else { 1.0 }
}

/// Words of networks between nodes.
const BETWEEN_NODES: [&str; 11] =
    ["inter-node", "internode", "node-node", "infiniband", "ib", "roce", "ethernet", "efa", "network", "nic", "rdma"];
/// Of these what a rate without anything else is a whole node's.
const NODE_TO_NODE: [&str; 3] = ["inter-node", "internode", "node-node"];

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 GB/s less on more devices is one latency, whatever their number; small ones are those of steps between nodes alone.
    #[test]
    fn a_sites_collectives_are_a_latency() {
        let rate = |latency_us: f64, devices: f64| {
            let (bytes, latency) = (1.0 / (450.0 * MEASURED_RING), latency_us * devices / (MEASURED_MB * 1e3));
            1.0 / f64::hypot(bytes, latency)
        };
        for (latency, devices) in [(240.0, 16), (240.0, 512), (40.0, 128)] {
            let got = measured_step_us(rate(latency, devices as f64), 450.0, devices);
            assert!((got / latency - 1.0).abs() < 1e-9, "{got} is not {latency}");
        }
        assert_eq!(measured_step_us(260.0, 450.0, 8), 0.0);
        // What two nodes of a good network gather with is all bytes but for steps as short as those that 64 and more devices show, 50 µs.
        let two_nodes = measured_step_us(222.0, 450.0, 16);
        assert!((45.0..75.0).contains(&two_nodes), "{two_nodes}");
        assert_eq!(shared_out(40.0, 8.0), (320.0, 0.0));
        let (outside, inside) = shared_out(240.0, 8.0);
        assert!(outside == MEASURED_HOP_US && (outside + 7.0 * inside - 8.0 * 240.0).abs() < 1e-9);
    }

    /// A run has the kernels of its release, where its source names one and the device's gain.
    #[test]
    fn runs_have_kernels_of_their_release() {
        let clusters = forebay_cost::known::clusters();
        let efficiency = |device: &str, source: &str, notes: &str| {
            let columns = "source,notes_config,layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s";
            let table = format!("{columns}\n{source},{notes},1,1,1,1,1,{device},1,1,1\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            let file = clusters.iter().find(|cluster| cluster.is_called(device)).expect("a cluster");
            let of_run = site(&run, file).expect("a site").calibrated.product_efficiency.0;
            (of_run / file.calibrated.product_efficiency.0, heard_of_release(&run, file))
        };
        let (later, heard) = efficiency("GB200", "a summary of 26.08", "");
        assert!((later / 1.1f64.powf(0.5) - 1.0).abs() < 1e-9 && heard == Some("kernels of 26.08".into()), "{later}");
        assert_eq!(efficiency("GB200", "a summary", "26.08"), (1.0, None));
        assert_eq!(efficiency("H100", "a summary of 26.08", ""), (1.0, None));
        let assumed = |device: &str, source: &str| {
            let columns = "source,layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s";
            let table = format!("{columns}\n{source},1,1,1,1,1,{device},1,1,1\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            assumed_release(&run, clusters.iter().find(|cluster| cluster.is_called(device)).expect("a cluster"))
        };
        assert_eq!(assumed("GB200", "a summary"), Some("kernels of 26.02".into()));
        assert_eq!([assumed("GB200", "a summary of 26.08"), assumed("H100", "a summary")], [None, None]);
    }

    #[test]
    fn releases_are_read() {
        let of = |text: &str| released(text).map(|of| (of.year, of.month));
        assert_eq!(
            of("Megatron-Bridge performance summary, 26.04.01 NeMo Container; from HEAD (26.08)"),
            Some((26, 4))
        );
        assert_eq!([of("MLPerf Training v5.0; NVIDIA"), of("MLPerf Training v6")], [Some((25, 5)), None]);
        assert_eq!([of("SimuMax v1.2"), of("MFU 31.12 %"), of("unlike MLPerf Training v5.0")], [None; 3]);
    }

    #[test]
    fn rates_between_nodes_are_read() {
        let of = |text: &str| network_of_a_node(text, 8.0);
        let eighty = [
            "80 Gb/s per node",
            "(80 Gb/s per node)",
            "network=80 Gb/s per node",
            "RoCE,80 Gb/s per node",
            "10 Gb/s per GPU",
            "10 GB/s IB per node",
            "0.08 Tb/s per node",
            "80 Gbps node-node interconnect",
            "inter-node 80 Gbit/s",
            "inter-node 4x20 Gb/s per node",
            "4x20Gb RoCE",
            "2 x 40 Gb/s InfiniBand",
            "NVLink 900 GB/s per GPU, IB 10 Gb/s per GPU",
            "80 Gb/s InfiniBand per node",
        ];
        for text in eighty {
            assert_eq!(of(text), Some(80.0), "{text}");
        }
        assert_eq!(of("inter-node 1,600 Gb/s per node"), Some(1600.0));
        let none = [
            "1e9 Gb/s per node",
            "1e-200 Gb/s per node",
            "0 Gb/s per node",
            "some Gb/s per node",
            "NVLink 900 GB/s per GPU",
            "HBM2e 2.4 TB/s",
            "8 x 80 GB",
            "A100 80GB per node",
            "measured AllReduce/AllGather/ReduceScatter GB/s 20/20/20",
            "100 Gb/s",
            "checkpoint storage writes 2 GB/s per node",
            "data loader reads 1 GB/s per node",
            "900 GB/s NVLink per GPU",
            "3.35 TB/s HBM per GPU",
            "8x80GB H100 per node",
            "distributed optimizer 8x80GB",
            "400 Gb/s IB with 8 GPUs per node",
        ];
        for text in none {
            assert_eq!(of(text), None, "{text}");
        }
    }

    /// Nodes of two boards: what is stated of the network is of the tier around nodes, and a node has whole boards.
    #[test]
    fn a_node_may_have_parts() {
        let clusters = forebay_cost::known::clusters();
        let mut boards = clusters.iter().find(|c| c.is_called("A100-80G")).expect("it is known").clone();
        let mut board = boards.tiers[0].clone();
        (board.name, board.devices) = ("board".into(), Some(Count(4)));
        boards.tiers.insert(0, board);
        let of = |devices: u32, notes: &str| {
            let columns =
                "layers,hidden,heads,vocab,seq_len,device,devices_per_node,n_devices,gbs,step_time_s,notes_config";
            let table = format!("{columns}\n1,1,1,1,1,A100,{devices},64,1,1,{notes}\n");
            site(&super::super::runs::read(&table).expect("a table").runs.remove(0), &boards)
        };
        let got = of(16, "inter-node 800 Gb/s per node").expect("a site");
        assert_eq!((got.domain(0), got.domain(1)), (4, 16));
        let rates: Vec<f64> = got.tiers.iter().map(|tier| tier.gbps.0).collect();
        assert_eq!(rates, [300.0, 300.0, 100.0 / 16.0]);
        assert_eq!(got.tiers[2].adapters, Some(Positive(4.0)));
        let slow = of(8, "measured AllReduce/AllGather/ReduceScatter GB/s 20/20/20").expect("a site");
        let latencies: Vec<f64> = slow.tiers.iter().map(|tier| tier.latency_us.0).collect();
        assert!(latencies[0] == latencies[1] && latencies[0] > 2.0, "{latencies:?}");
        assert_eq!(latencies[2], MEASURED_HOP_US);
        // What is further away than the site shows stays so.
        let mut far = boards.clone();
        (far.tiers[2].devices, far.tiers[2].latency_us) = (Some(Count(64)), NonNegative(1.0));
        far.tiers.push(forebay_cost::cluster::Tier {
            devices: None,
            latency_us: NonNegative(2000.0),
            ..far.tiers[2].clone()
        });
        let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,notes_config";
        let network = "inter-node 800 Gb/s per node; measured AllReduce/AllGather/ReduceScatter GB/s 20/20/20";
        let table = format!("{columns}\n1,1,1,1,1,A100,64,1,1,{network}\n");
        let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
        let got = site(&run, &far).expect("a site");
        assert_eq!([got.tiers[2].latency_us.0, got.tiers[3].latency_us.0], [MEASURED_HOP_US, 2000.0]);
        // A row that says nothing of its nodes has those of the file.
        assert_eq!(got.tiers[2].gbps.0, 100.0 / 8.0);
        far.tiers[1].devices = Some(Count(16));
        assert_eq!(site(&run, &far).expect("a site").tiers[2].gbps.0, 100.0 / 16.0);
        // Without a network around nodes there is none to be told of.
        far.tiers.truncate(2);
        assert_eq!(site(&run, &far).expect("a site"), far);
        let [one, two] = [1, 2].map(|devices| of(devices, "").expect("a part of a board"));
        assert_eq!([one.domain(0), one.domain(1), two.domain(0), two.domain(1)], [1, 1, 2, 2]);
        let whole = of(4, "inter-node 800 Gb/s per node").expect("a board");
        assert_eq!([whole.tiers[1].gbps.0, whole.tiers[2].gbps.0], [300.0, 100.0 / 4.0]);
        let why = of(6, "").expect_err("one and a half boards");
        assert!(why.contains("no multiple of the 4 devices of a board"), "{why}");
    }

    /// More bandwidth is never slower, however few or many adapters it comes to.
    #[test]
    fn a_faster_network_is_never_slower() {
        let clusters = forebay_cost::known::clusters();
        let a100 = clusters.iter().find(|c| c.is_called("A100-80G")).expect("it is known");
        let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,notes_config";
        let seconds = |gigabits: u32, tp: u64| {
            let notes = format!("inter-node {gigabits} Gb/s per node");
            let table = format!("{columns}\n1,1,1,1,1,A100,16,1,1,{notes}\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            let cluster = site(&run, a100).expect("a site");
            let group =
                forebay_cost::Group::new(&forebay_cost::Domains::new(&cluster, &[16 / tp, tp]), &[(16 / tp, tp)]);
            cluster.collective(forebay_cost::Collective::AllReduce, &group, 1e9)
        };
        for tp in [1, 2, 4, 8] {
            let all: Vec<f64> = (1..170).map(|n| seconds(10 * n, tp)).collect();
            let slower = all.windows(2).position(|pair| pair[1] > pair[0] * (1.0 + 1e-12));
            assert_eq!(slower, None, "tp={tp}: {all:?}");
            assert!(all[0] > 10.0 * all[168], "{} {}", all[0], all[168]);
        }
    }

    /// A torus is as large as a row says its slices are, where that is whole axes.
    #[test]
    fn slices_are_read() {
        assert_eq!(slice("FSDP within a slice of 64, data parallel over 2 slices"), Some(64));
        assert_eq!((slice("a slice of 0"), slice("a slice of bread"), slice("FSDP")), (None, None, None));
        let torus = |device: &str, notes: &str| {
            let columns = "layers,hidden,heads,vocab,seq_len,device,n_devices,gbs,step_time_s,notes_config";
            let table = format!("{columns}\n1,1,1,1,1,{device},64,1,1,{notes}\n");
            let run = super::super::runs::read(&table).expect("a table").runs.remove(0);
            let clusters = forebay_cost::known::clusters();
            let cluster = clusters.iter().find(|c| c.is_called(device)).expect("it is known");
            site(&run, cluster).expect("a site").domain(1)
        };
        assert_eq!((torus("TPU v5p", "in a slice of 128"), torus("TPU v5p", "")), (128, 64));
        assert_eq!(torus("TPU v5p", "in a slice of 24"), 8960);
        assert_eq!(torus("H100", "in a slice of 128"), u64::MAX);
    }
}
