//! The formulas of kernels against an H100 that was measured (`cost/measure/kernels.py` made the table; `kernels_h100.csv`).
//!
//! The kernels ran for some 15 ms each, so that the power limit hardly slowed them down. What training sustains is lower, and in the cluster file: the two efficiencies
//! are replaced by those of such bursts, so that what is compared is how time depends on shape.

use forebay_cost::cluster::Share;
use forebay_cost::known::clusters;
use forebay_cost::{Attended, AttentionKernel, Cluster, Generation, Precision, Product};
use std::collections::HashMap;

/// Parts of the peak that large products and attention reach in bursts.
const BURST: (f64, f64) = (0.81, 0.69);

struct Kernel {
    kind: String,
    variant: String,
    numbers: HashMap<&'static str, f64>,
}

impl Kernel {
    fn get(&self, key: &str) -> f64 {
        *self.numbers.get(key).unwrap_or_else(|| panic!("{} {} has no {key}", self.kind, self.variant))
    }
}

fn kernels(kind: &str) -> Vec<Kernel> {
    const NUMBERS: [&str; 11] =
        ["groups", "m", "n", "k", "batch", "heads", "kv_heads", "seq", "head", "bytes", "seconds"];
    let read = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let numbers = NUMBERS.iter().zip(&cells[2..]).filter(|(_, cell)| !cell.is_empty());
        let numbers = numbers.map(|(key, cell)| (*key, cell.parse().expect("a number"))).collect();
        Kernel { kind: cells[0].to_owned(), variant: cells[1].to_owned(), numbers }
    };
    let all = include_str!("kernels_h100.csv").lines().skip(2).map(read);
    all.filter(|kernel| kernel.kind == kind).collect()
}

fn h100() -> Cluster {
    clusters().into_iter().find(|cluster| cluster.is_called("H100")).expect("a cluster")
}

fn in_bursts() -> Cluster {
    let mut cluster = h100();
    (cluster.calibrated.product_efficiency, cluster.calibrated.attention_efficiency) = (Share(BURST.0), Share(BURST.1));
    cluster
}

fn product(kernel: &Kernel) -> Product {
    let [groups, m, n, k] = ["groups", "m", "n", "k"].map(|key| kernel.get(key));
    Product {
        groups,
        m,
        n,
        k,
        bytes: 2.0 * groups * (m * k + k * n + m * n),
        precision: Precision::Bf16,
        alignment: Product::ALIGNED,
    }
}

/// Bias, median and 90th percentile of |predicted / measured − 1|.
fn errors(pairs: impl Iterator<Item = (f64, f64)>) -> (f64, f64, f64) {
    let mut signed: Vec<f64> = pairs.map(|(predicted, measured)| predicted / measured - 1.0).collect();
    let mut sizes: Vec<f64> = signed.iter().map(|e| e.abs()).collect();
    signed.sort_by(f64::total_cmp);
    sizes.sort_by(f64::total_cmp);
    let at = |sorted: &[f64], part: f64| sorted[(part * (sorted.len() - 1) as f64).round() as usize];
    (at(&signed, 0.5), at(&sizes, 0.5), at(&sizes, 0.9))
}

/// Products of all shapes, one for each of many experts too. (Weight gradients of experts are predicted too fast, all others a little too slow.)
#[test]
fn products_take_as_long_as_predicted() {
    let cluster = in_bursts();
    for (variant, count, median_below, most_below) in [
        ("nt", 75, 0.08, 0.2),
        ("nn", 5, 0.06, 0.1),
        ("tn", 5, 0.08, 0.1),
        ("grouped", 21, 0.04, 0.12),
        ("grouped_tn", 21, 0.15, 0.25),
    ] {
        let of = kernels("product").into_iter().filter(|kernel| kernel.variant == variant).collect::<Vec<_>>();
        assert_eq!(of.len(), count, "{variant}");
        let (bias, median, most) = errors(of.iter().map(|k| (cluster.product(&product(k)), k.get("seconds"))));
        println!("{variant}: bias {bias:.3}, median {median:.3}, 90 % below {most:.3}");
        assert!(median < median_below && most < most_below, "{variant}: {bias} {median} {most}");
    }
}

/// The rate that training can count on is below that of bursts: the power limit.
#[test]
fn the_file_has_what_is_sustained() {
    let (cluster, of) = (h100(), kernels("sustained"));
    let [row] = &of[..] else { panic!("{} rows", of.len()) };
    let error = cluster.product(&product(row)) / row.get("seconds") - 1.0;
    println!("sustained: {error:.3}");
    assert!(error.abs() < 0.05, "{error}");
    assert!(in_bursts().product(&product(row)) < 0.95 * row.get("seconds"));
}

/// Rows that begin at multiples of 16, 8, 4 and 2 bytes: the three products of a vocabulary together, and each product within half. (Libraries have kernels of their own
/// for each direction.)
#[test]
fn unaligned_rows_take_what_the_file_says() {
    let cluster = in_bursts();
    let odd = kernels("odd");
    for (width, alignment) in
        [(50256, 16), (50260, 8), (50258, 4), (50257, 2), (2056, 16), (2052, 8), (2050, 4), (2049, 2)]
    {
        let of = odd.iter().filter(|k| [k.get("m"), k.get("n"), k.get("k")].contains(&f64::from(width)));
        let times: Vec<(f64, f64)> =
            of.map(|k| (cluster.product(&Product { alignment, ..product(k) }), k.get("seconds"))).collect();
        let all = times.iter().fold((0.0, 0.0), |sum, time| (sum.0 + time.0, sum.1 + time.1));
        println!("{width}: {:.3}", all.0 / all.1 - 1.0);
        assert!(times.iter().all(|time| (time.0 / time.1 - 1.0).abs() < 0.5), "{width}: {times:?}");
        if width > 50_000 {
            assert_eq!(times.len(), 3, "{width}");
            assert!((all.0 / all.1 - 1.0).abs() < 0.06, "{width}: {all:?}");
        }
    }
}

/// Attention of few and many heads, short and long rows, narrow heads, with both generations of kernels. What was fitted is what the formula has: the rate, what
/// older kernels reach of it, and the lengths at which a direction has half of it.
#[test]
fn attention_takes_as_long_as_predicted() {
    let cluster = in_bursts();
    for (variant, kernel, generation, most) in [
        ("flash2 forward", AttentionKernel::Forward, Generation::Flash2, 0.24),
        ("flash2 backward", AttentionKernel::Backward, Generation::Flash2, 0.24),
        ("cudnn forward", AttentionKernel::Forward, Generation::Newest, 0.24),
        ("cudnn backward", AttentionKernel::Backward, Generation::Newest, 0.24),
    ] {
        let attended = |of: &Kernel| {
            let [batch, heads, kv, seq, head] = ["batch", "heads", "kv_heads", "seq", "head"].map(|key| of.get(key));
            let products = if kernel == AttentionKernel::Forward { 2.0 } else { 5.0 };
            Attended {
                problems: batch * heads,
                queries: seq,
                keys: seq,
                head,
                widest: head,
                flops: products * batch * heads * seq * (seq + 1.0) * head,
                bytes: 2.0 * products * batch * seq * head * (heads + kv),
                precision: Precision::Bf16,
            }
        };
        let of: Vec<Kernel> = kernels("attention").into_iter().filter(|k| k.variant == variant).collect();
        assert_eq!(of.len(), 16, "{variant}");
        let pairs = of.iter().map(|k| (cluster.attention(&attended(k), kernel, generation), k.get("seconds")));
        let (bias, median, most_of) = errors(pairs);
        println!("{variant}: bias {bias:.3}, median {median:.3}, 90 % below {most_of:.3}");
        assert!(median < 0.07 && most_of < most, "{variant}: {bias} {median} {most_of}");
    }
}

/// Streams have the bandwidth of the file, small ones take a kernel's start, of which the file has half more than the smallest kernels take.
#[test]
fn streams_take_as_long_as_predicted() {
    let cluster = h100();
    let of = kernels("stream");
    let (small, large): (Vec<&Kernel>, Vec<&Kernel>) = of.iter().partition(|k| k.get("bytes") < 4e6);
    assert_eq!((small.len(), large.len()), (4, 13));
    for (name, kernels, most_below) in [("small", small, 0.6), ("large", large, 0.1)] {
        let pairs = kernels.iter().map(|k| (cluster.vector(0.0, k.get("bytes")), k.get("seconds")));
        let (bias, median, most) = errors(pairs);
        println!("{name}: bias {bias:.3}, median {median:.3}, 90 % below {most:.3}");
        assert!(most < most_below, "{name}: {bias} {median} {most}");
    }
}

/// The loss of PyTorch on a copy of the logits in f32 takes the 49 bytes a logit of profiles.
#[test]
fn a_loss_takes_its_bytes() {
    let (cluster, of) = (h100(), kernels("loss"));
    assert_eq!(of.len(), 6);
    for both in of.chunks(2) {
        let logits = both[0].get("m") * both[0].get("n");
        let error = cluster.vector(0.0, 49.0 * logits) / both.iter().map(|k| k.get("seconds")).sum::<f64>() - 1.0;
        assert!(error.abs() < 0.03, "{logits} logits: {error}");
    }
}

/// A device tells of its memory what the file says, and a context, libraries and three communicators take what the file takes off.
#[test]
fn memory_is_what_the_file_says() {
    let cluster = h100();
    let of = kernels("memory");
    let bytes =
        |variant: &str| -> Vec<f64> { of.iter().filter(|k| k.variant == variant).map(|k| k.get("bytes")).collect() };
    assert!((bytes("total")[0] / (cluster.device.memory_gb.0 * 1e9) - 1.0).abs() < 1e-3);
    let taken = bytes("libraries")[0] + bytes("communicator").iter().sum::<f64>();
    assert!(bytes("context")[0] < bytes("libraries")[0] && bytes("communicator").len() == 3);
    assert!((taken / (cluster.device.context_gb.0 * 1e9) - 1.0).abs() < 0.1, "{taken}");
}
