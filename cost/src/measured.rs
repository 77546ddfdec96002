//! A machine that was measured: its ranks share cores, and its kernels have the rates that were timed at the shapes nearest to theirs.
//!
//! Datasheets and eight fitted numbers do not describe a CPU: caches, packing and small shapes matter more than peaks. So a cluster file may carry
//! *samples* (`forebay calibrate --cpu` writes them). What a unit of work takes at another shape is the mean of what it takes at the eight nearest samples (so that the time of several kernels is that of all of them: a mean of rates
//! would be too fast), weighted by distance in the logarithms of the sizes (D. Shepard, "A two-dimensional interpolation function for irregularly-spaced data", 1968):
//!
//! ```text
//! weight = 1 / (distance² + 0.02)²          distance² = Σ (log₂ size − log₂ size of the sample)²
//! ```

use crate::cluster::{Cluster, Count, NonNegative, Positive};
use crate::device::{Attended, AttentionKernel, Precision, Product};
use serde::Deserialize;

/// What was measured.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Cores, which all ranks share.
    pub cores: Count,
    /// Matrix products.
    pub product: Vec<ProductSample>,
    /// Attention.
    pub attention: Vec<AttentionSample>,
    /// Everything else.
    pub vector: Vec<VectorSample>,
    /// The part of communication between ranks that is work of cores; the rest of it they wait, and work for other ranks where there are more than cores. All where nothing is said.
    #[serde(default = "all_of_it")]
    pub communication_work: NonNegative,
    /// What waiting for each other costs, or taking turns where there are more ranks than cores.
    #[serde(default)]
    pub sharing: Vec<Sharing>,
    /// Threads of a rank, and how much longer everything takes than with a core for each.
    #[serde(skip)]
    setting: Setting,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Setting {
    threads: f64,
    slowdown: f64,
}

impl Default for Setting {
    fn default() -> Setting {
        Setting { threads: 1.0, slowdown: 1.0 }
    }
}

/// Element type of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleType {
    /// f32.
    F32,
    /// bf16.
    Bf16,
}

impl SampleType {
    fn of(precision: Precision) -> SampleType {
        if precision == Precision::F32 { SampleType::F32 } else { SampleType::Bf16 }
    }
}

/// A timed matrix product.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductSample {
    /// Threads that did it; all cores were at work.
    pub threads: Count,
    /// Type of the inputs.
    #[serde(rename = "type")]
    pub dtype: SampleType,
    /// How many products of that size: of experts, and of a batch; where it is known.
    #[serde(default)]
    pub groups: Option<Positive>,
    /// Rows (of a group).
    pub m: Positive,
    /// Columns.
    pub n: Positive,
    /// Summed length.
    pub k: Positive,
    /// GFLOP/s.
    pub gflops: Positive,
}

/// A timed attention.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionSample {
    /// Threads that did it.
    pub threads: Count,
    /// Type of the inputs, where it is known.
    #[serde(rename = "type", default)]
    pub dtype: Option<SampleType>,
    /// Gradients?
    pub backward: bool,
    /// Queries of each problem.
    pub queries: Positive,
    /// Elements of a head.
    pub head: Positive,
    /// GFLOP/s of visible keys.
    pub gflops: Positive,
}

/// A timed kernel that is neither.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorSample {
    /// Threads that did it.
    pub threads: Count,
    /// Bytes read and written.
    pub bytes: Positive,
    /// Floating-point operations for each byte.
    pub intensity: NonNegative,
    /// GB/s.
    pub gbps: Positive,
}

/// How much longer a step of so many ranks takes than their kernels do.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sharing {
    /// How many ranks.
    pub ranks: Count,
    /// Its time, as a multiple of what it is where nothing holds a rank up; with more ranks than cores of what its work takes on all of them.
    pub factor: Positive,
}

fn all_of_it() -> NonNegative {
    NonNegative(1.0)
}

/// So many samples say what rate a shape has.
const NEIGHBOURS: usize = 8;

/// A sample's shape (logarithms), threads and rate (each second).
struct Point<const SIZES: usize> {
    at: [f64; SIZES],
    threads: f64,
    rate: f64,
}

/// Sizes below one count as one.
fn log(size: f64) -> f64 {
    size.max(1.0).log2()
}

impl Measured {
    /// A part of a file that says nothing about a kind of work cannot price it.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        let empty = [
            (self.product.is_empty(), "product"),
            (self.attention.is_empty(), "attention"),
            (self.vector.is_empty(), "vector"),
        ];
        empty.into_iter().find(|(empty, _)| *empty).map(|(_, name)| name)
    }

    /// The rate at a shape: of the nearest samples, weighted by their distance (Shepard's method, of a few neighbours: many small shapes far away would
    /// outweigh the only large one). What is larger than all samples in a size, or smaller, is taken to be as large as the largest of them, or the smallest. Of samples with other numbers of threads
    /// the nearest are taken, each thread doing as much as there. `work` says how what is to be done grows with each size: what is larger in no size takes no longer than a neighbour, and what is smaller
    /// in none no less, however much faster the one or the other works (between a slow small sample and a fast large one more rows would take less time).
    fn rate<const SIZES: usize>(&self, points: &[Point<SIZES>], at: [f64; SIZES], work: [f64; SIZES]) -> f64 {
        let threads = self.setting.threads;
        let away = |p: &Point<SIZES>| (p.threads / threads).log2().abs();
        let nearest = points.iter().map(away).fold(f64::INFINITY, f64::min);
        let usable = || points.iter().filter(|p| away(p) <= nearest);
        let at: [f64; SIZES] = std::array::from_fn(|size| {
            let sizes = || usable().map(|p| p.at[size]);
            at[size].clamp(sizes().fold(f64::INFINITY, f64::min), sizes().fold(f64::NEG_INFINITY, f64::max))
        });
        let distance = |p: &Point<SIZES>| p.at.iter().zip(at).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        let mut samples: Vec<(f64, &Point<SIZES>)> = usable().map(|p| (distance(p), p)).collect();
        samples.sort_by(|a, b| a.0.total_cmp(&b.0));
        samples.truncate(NEIGHBOURS);
        let done = |at: &[f64; SIZES]| at.iter().zip(work).map(|(size, power)| size * power).sum::<f64>().exp2();
        let (mut sum, mut weights, mut least, mut most) = (0.0, 0.0, 0.0f64, f64::INFINITY);
        for (distance, point) in samples {
            let rate = point.rate * threads / point.threads;
            let weight = (distance + 0.02).powi(-2);
            sum += weight / rate;
            weights += weight;
            let seconds = done(&point.at) / rate;
            if point.at.iter().zip(&at).all(|(there, here)| there <= here) {
                least = least.max(seconds);
            }
            if point.at.iter().zip(&at).all(|(there, here)| there >= here) {
                most = most.min(seconds);
            }
        }
        let seconds = done(&at) * sum / weights;
        // Where samples contradict each other, neither says anything.
        let seconds = if least <= most { seconds.clamp(least, most) } else { seconds };
        done(&at) / seconds / self.setting.slowdown
    }

    /// Seconds of products.
    pub(crate) fn product(&self, product: &Product) -> f64 {
        let Product { groups, m, n, k, precision, .. } = *product;
        let flops = 2.0 * groups * m * n * k;
        if flops <= 0.0 {
            return 0.0;
        }
        let wanted = SampleType::of(precision);
        // Where the type was not measured, the other is all there is to go by.
        let any = !self.product.iter().any(|s| s.dtype == wanted);
        let points: Vec<Point<_>> = self
            .product
            .iter()
            .filter(|s| any || s.dtype == wanted)
            .map(|s| Point {
                at: [log(s.m.0), log(s.n.0), log(s.k.0), log(s.groups.map_or(groups, |known| known.0))],
                threads: f64::from(s.threads.0),
                rate: s.gflops.0 * 1e9,
            })
            .collect();
        flops / self.rate(&points, [log(m), log(n), log(k), log(groups)], [1.0; 4])
    }

    /// Seconds of an attention.
    pub(crate) fn attention(&self, attended: &Attended, kernel: AttentionKernel) -> f64 {
        let backward = kernel == AttentionKernel::Backward;
        let in_direction = |s: &AttentionSample| s.backward == backward;
        let of_type = |s: &AttentionSample| in_direction(s) && s.dtype == Some(SampleType::of(attended.precision));
        // The same direction and type, or what there is.
        let [typed, directed] = [self.attention.iter().any(of_type), self.attention.iter().any(in_direction)];
        let points: Vec<Point<_>> = self
            .attention
            .iter()
            .filter(|s| if typed { of_type(s) } else { !directed || in_direction(s) })
            .map(|s| Point {
                at: [log(s.queries.0), log(s.head.0)],
                threads: f64::from(s.threads.0),
                rate: s.gflops.0 * 1e9,
            })
            .collect();
        attended.flops / self.rate(&points, [log(attended.queries), log(attended.head)], [1.0; 2])
    }

    /// Seconds of any other kernel.
    pub(crate) fn vector(&self, flops: f64, bytes: f64) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        // An operation a byte more or less matters once there are several.
        let intensity = |per_byte: f64| 2.0 * (1.0 + per_byte).log2();
        let point = |s: &VectorSample| Point {
            at: [log(s.bytes.0), intensity(s.intensity.0)],
            threads: f64::from(s.threads.0),
            rate: s.gbps.0 * 1e9,
        };
        let points: Vec<Point<_>> = self.vector.iter().map(point).collect();
        bytes / self.rate(&points, [log(bytes), intensity(flops / bytes)], [1.0, 0.0])
    }

    /// What waiting for each other costs, or taking turns: the factor of the nearest number of ranks that has a core for each as well, or has not.
    pub fn turns(&self, ranks: u64) -> f64 {
        let away = |s: &&Sharing| (f64::from(s.ranks.0) / ranks as f64).log2().abs();
        let shares = |ranks: u64| ranks > u64::from(self.cores.0);
        // (Of two that are as near the later, which files list by ranks: two of four ranks wait as four do.)
        let alike = self.sharing.iter().rev().filter(|s| shares(s.ranks.0.into()) == shares(ranks));
        let nearest = alike.min_by(|a, b| away(a).total_cmp(&away(b)));
        nearest.map_or(1.0, |s| s.factor.0)
    }
}

impl Cluster {
    /// Bytes that each of so many ranks may use: all that programs may use of a device, or its share of a measured machine.
    pub fn usable_bytes(&self, ranks: u64) -> f64 {
        self.shared_by(ranks, 1.0).device.usable_bytes()
    }

    /// A measured machine as each of so many ranks finds it: its share of cores, peaks and memory, and everything slower by a factor. Other clusters are as they
    /// are.
    pub fn shared_by(&self, ranks: u64, slowdown: f64) -> Cluster {
        let mut cluster = self.clone();
        let Some(measured) = &mut cluster.measured else { return cluster };
        let ranks = ranks.max(1) as f64;
        let threads = (f64::from(measured.cores.0) / ranks).floor().max(1.0);
        measured.setting = Setting { threads, slowdown };
        let device = &mut cluster.device;
        for part in [&mut device.memory_gb, &mut device.memory_gbps, &mut device.vector_tflops] {
            part.0 /= ranks;
        }
        device.context_gb.0 /= ranks;
        device.cube.bf16.0 /= ranks;
        device.cube.f32.0 /= ranks;
        cluster.calibrated.kernel_us.0 *= slowdown;
        for tier in &mut cluster.tiers {
            tier.gbps.0 /= slowdown;
            tier.latency_us.0 *= slowdown;
        }
        cluster
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: &str = r#"
[measured]
cores = 2
[[measured.product]]
threads = 1
type = "f32"
m = 64
n = 256
k = 256
gflops = 20
[[measured.product]]
threads = 1
type = "f32"
m = 4096
n = 256
k = 256
gflops = 80
[[measured.attention]]
threads = 1
backward = false
queries = 256
head = 32
gflops = 10
[[measured.vector]]
threads = 2
bytes = 1e6
intensity = 0.1
gbps = 20
[[measured.sharing]]
ranks = 4
factor = 1.25
"#;

    fn cluster() -> Cluster {
        Cluster::parse(&format!("{}{SAMPLES}", crate::cluster::tests::SMALL)).expect("it is right")
    }

    fn seconds(cluster: &Cluster, m: f64) -> f64 {
        let product = Product {
            groups: 1.0,
            m,
            n: 256.0,
            k: 256.0,
            bytes: 0.0,
            precision: Precision::F32,
            alignment: Product::ALIGNED,
        };
        cluster.product(&product)
    }

    #[test]
    fn rates_are_those_of_samples_and_between_them() {
        let cluster = cluster().shared_by(2, 1.0);
        let rate = |m: f64| 2.0 * m * 256.0 * 256.0 / seconds(&cluster, m) / 1e9;
        assert!((rate(64.0) / 20.0 - 1.0).abs() < 0.01, "{}", rate(64.0));
        assert!((rate(4096.0) / 80.0 - 1.0).abs() < 0.01);
        // Half way in logarithms: half of the work at each rate.
        assert!((rate(512.0) / 32.0 - 1.0).abs() < 1e-9, "{}", rate(512.0));
        assert!((cluster.vector(1e5, 1e6) - 1e6 / 10e9).abs() < 1e-12, "one of the two threads");
    }

    /// Experts' products have samples of their own, and attention has them by type; files that do not know go by what they know.
    #[test]
    fn groups_and_types_choose_samples() {
        let product = |groups, gflops| {
            format!(
                "[[measured.product]]\nthreads = 1\ntype = \"f32\"\n{groups}m = 64\nn = 64\nk = 64\ngflops = {gflops}\n"
            )
        };
        let attention = |dtype, gflops| {
            format!(
                "[[measured.attention]]\nthreads = 1\n{dtype}backward = false\nqueries = 256\nhead = 32\ngflops = {gflops}\n"
            )
        };
        let file = |products: &[String]| {
            let attended = [attention("type = \"f32\"\n", 10), attention("type = \"bf16\"\n", 30)].concat();
            let rest = "[[measured.vector]]\nthreads = 1\nbytes = 1e6\nintensity = 0.1\ngbps = 20\n";
            let small = crate::cluster::tests::SMALL;
            let text = format!("{small}\n[measured]\ncores = 1\n{}{attended}{rest}", products.concat());
            Cluster::parse(&text).expect("it is right").shared_by(1, 1.0)
        };
        let rate = |cluster: &Cluster, groups: f64| {
            let product = Product {
                groups,
                m: 64.0,
                n: 64.0,
                k: 64.0,
                bytes: 0.0,
                precision: Precision::F32,
                alignment: Product::ALIGNED,
            };
            2e-9 * groups * 64f64.powi(3) / cluster.product(&product)
        };
        let known = file(&[product("groups = 1\n", 100), product("groups = 8\n", 50)]);
        assert!((rate(&known, 1.0) / 100.0 - 1.0).abs() < 0.01 && (rate(&known, 8.0) / 50.0 - 1.0).abs() < 0.01);
        let other = "m = 4096";
        let unknown = file(&[product("", 100), product("", 10).replace("m = 64", other)]);
        assert!((rate(&unknown, 8.0) / 100.0 - 1.0).abs() < 0.01, "{}", rate(&unknown, 8.0));
        let attended = |precision| Attended {
            problems: 1.0,
            queries: 256.0,
            keys: 256.0,
            head: 32.0,
            widest: 32.0,
            flops: 1e9,
            bytes: 1.0,
            precision,
        };
        let measured = known.measured.as_ref().expect("it is");
        let seconds = |precision| measured.attention(&attended(precision), AttentionKernel::Forward);
        assert!((seconds(Precision::F32) - 0.1).abs() < 1e-9 && (seconds(Precision::Bf16) - 1.0 / 30.0).abs() < 1e-9);
        let backward = measured.attention(&attended(Precision::Bf16), AttentionKernel::Backward);
        assert!((backward - 0.5 * (0.1 + 1.0 / 30.0)).abs() < 1e-9, "there is no such direction: {backward}");
    }

    /// A kernel that is larger than all samples has the rate of the largest, however many small ones were slow.
    #[test]
    fn beyond_the_largest_sample_its_rate_counts() {
        let sample = |bytes: f64, gbps: f64| {
            format!("[[measured.vector]]\nthreads = 2\nbytes = {bytes}\nintensity = 0.1\ngbps = {gbps}\n")
        };
        let small: String = (0..200).map(|i| sample(1e4 + f64::from(i), 2.0)).collect();
        let large: String = (0..NEIGHBOURS as u32).map(|i| sample(5e8 + f64::from(i), 100.0)).collect();
        let (before, _) = SAMPLES.split_once("[[measured.vector]]").expect("it has some");
        let text = format!("{}{before}{small}{large}", crate::cluster::tests::SMALL);
        let cluster = Cluster::parse(&text).expect("it is right").shared_by(1, 1.0);
        let rate = |bytes: f64| 1e-9 * bytes / (cluster.vector(0.1 * bytes, bytes) - cluster.kernel_start());
        for (bytes, expected) in [(1e4, 2.0), (1e2, 2.0), (5e8, 100.0), (1e8, 100.0), (1e12, 100.0)] {
            assert!((rate(bytes) / expected - 1.0).abs() < 1e-6, "{bytes} bytes at {} GB/s", rate(bytes));
        }
        // Products are far away in one size, and as large as the largest in the others.
        let seconds = |n: f64| {
            let alignment = Product::ALIGNED;
            let product =
                Product { groups: 1.0, m: 4096.0, n, k: 256.0, bytes: 0.0, precision: Precision::F32, alignment };
            cluster.product(&product) - cluster.kernel_start()
        };
        assert!((seconds(65536.0) / (256.0 * seconds(256.0)) - 1.0).abs() < 1e-9);
    }

    /// Between a small sample that is slow and a large one that is fast nothing takes longer than the large one, nor less than the small one.
    #[test]
    fn sizes_in_between_take_times_in_between() {
        let sample = |m: u32, gflops: f64| {
            format!("[[measured.product]]\nthreads = 2\ntype = \"f32\"\nm = {m}\nn = 256\nk = 256\ngflops = {gflops}\n")
        };
        let (before, rest) = SAMPLES.split_once("[[measured.product]]").expect("it has some");
        let (_, others) = rest.split_once("[[measured.attention]]").expect("it has some");
        let products = [sample(256, 20.0), sample(2048, 100.0)].concat();
        let text = format!("{}{before}{products}[[measured.attention]]{others}", crate::cluster::tests::SMALL);
        let cluster = Cluster::parse(&text).expect("it is right").shared_by(1, 1.0);
        let seconds = |m: u32| {
            let (m, alignment) = (f64::from(m), Product::ALIGNED);
            let (precision, bytes) = (Precision::F32, 0.0);
            cluster.product(&Product { groups: 1.0, m, n: 256.0, k: 256.0, bytes, precision, alignment })
        };
        let (small, large) = (seconds(256), seconds(2048));
        assert!((large / small - 1.6).abs() < 0.01, "{small} {large}");
        for rows in (256..2048).step_by(32) {
            let between = small * (1.0 - 1e-9)..=large * (1.0 + 1e-9);
            assert!(between.contains(&seconds(rows)), "{rows} rows take {}", seconds(rows));
        }
    }

    #[test]
    fn ranks_that_take_turns_are_slower_and_have_less() {
        let (one, four) = (cluster().shared_by(2, 1.0), cluster().shared_by(4, 2.5));
        assert!((seconds(&four, 64.0) / seconds(&one, 64.0) - 2.5).abs() < 1e-9);
        assert_eq!(four.device.memory_gb.0, 4.0);
        let mut taken = cluster();
        taken.device.context_gb.0 = 2.0;
        assert_eq!([1, 4].map(|ranks| taken.usable_bytes(ranks)), [14e9, 3.5e9]);
        taken.measured = None;
        assert_eq!(taken.usable_bytes(4), 14e9, "each has a device of its own");
        let mut measured = cluster().measured.expect("it is");
        assert_eq!([1, 2, 3, 8].map(|ranks| measured.turns(ranks)), [1.0, 1.0, 1.25, 1.25]);
        let of = |ranks, factor| Sharing { ranks: Count(ranks), factor: Positive(factor) };
        measured.sharing = vec![of(1, 1.0), of(2, 1.125), of(4, 1.5)];
        assert_eq!(
            [1, 2, 4, 8].map(|ranks| measured.turns(ranks)),
            [1.0, 1.125, 1.5, 1.5],
            "ranks with a core each wait"
        );
    }

    #[test]
    fn a_part_that_says_nothing_is_refused() {
        let (before, rest) = SAMPLES.split_once("[[measured.attention]]").expect("it has some");
        let (_, after) = rest.split_once("[[measured.vector]]").expect("it has some");
        let before = before.replace("cores = 2", "cores = 2\nattention = []");
        let text = format!("{}{before}[[measured.vector]]{after}", crate::cluster::tests::SMALL);
        let error = Cluster::parse(&text).expect_err("it has no attention");
        assert!(error.message.contains("`attention`"), "{}", error.message);
    }
}
