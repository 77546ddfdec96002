//! The time of a kernel on one device, in seconds.
//!
//! Everything is the longer of arithmetic and traffic, plus the start of a kernel. Arithmetic runs at a part of the peak that depends on the shape: products are
//! cut into tiles, tiles run in waves over the cores, and a wave that is not full costs as much as one that is.

use crate::cluster::Cluster;

/// Element type of a product's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32.
    F32,
    /// bf16 or fp16.
    Bf16,
    /// fp8 with one scale for a tensor or a row.
    Fp8,
    /// fp8 with a scale for each block of 32.
    Mxfp8,
}

/// `groups` products of (m × k) · (k × n).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Independent products.
    pub groups: f64,
    /// Rows of each.
    pub m: f64,
    /// Columns of each.
    pub n: f64,
    /// Summed length.
    pub k: f64,
    /// Bytes of memory that must be read and written in all.
    pub bytes: f64,
    /// Type of the inputs.
    pub precision: Precision,
    /// Bytes that rows of its matrices begin at multiples of, all of them.
    pub alignment: u64,
}

impl Product {
    /// What rows begin at multiples of where nothing is in the way of the widest loads.
    pub const ALIGNED: u64 = 16;
}

/// Which attention kernels software of a time used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    /// Products, softmax and masks as kernels of their own, scores in memory (before 2022).
    Unfused,
    /// FlashAttention (arXiv 2205.14135).
    Flash1,
    /// FlashAttention-2 (arXiv 2307.08691).
    Flash2,
    /// The device's newest: FlashAttention-3 (arXiv 2407.08608), cuDNN, vendor kernels.
    Newest,
}

/// Forward or backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionKernel {
    /// Scores, softmax and values.
    Forward,
    /// Their gradients.
    Backward,
}

/// An attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attended {
    /// Independent problems: rows × heads.
    pub problems: f64,
    /// Queries of each.
    pub queries: f64,
    /// Keys of each.
    pub keys: f64,
    /// Elements of a head: the mean of those that scores are made of and those of values.
    pub head: f64,
    /// The wider of the two.
    pub widest: f64,
    /// FLOPs, of visible keys only.
    pub flops: f64,
    /// Bytes of queries, keys, values and results.
    pub bytes: f64,
    /// Type of the inputs.
    pub precision: Precision,
}

impl Attended {
    /// What its products multiply at the rate of: bf16 where others are in fp8.
    fn inputs(&self) -> Precision {
        if self.precision == Precision::F32 { Precision::F32 } else { Precision::Bf16 }
    }

    /// The part of all keys that a query sees in the mean.
    fn seen(&self, kernel: AttentionKernel) -> f64 {
        let products = match kernel {
            AttentionKernel::Forward => 2.0,
            AttentionKernel::Backward => 5.0,
        };
        let all = 2.0 * products * self.problems * self.queries * self.keys * self.head;
        (self.flops / all).clamp(0.0, 1.0)
    }

    /// How many keys a causal window has, where there is one.
    fn window(&self, kernel: AttentionKernel) -> Option<f64> {
        let seen = self.seen(kernel);
        (LEAST_SEEN..0.5).contains(&seen).then(|| (self.keys * window_of(seen)).max(1.0))
    }

    /// The work of the longest block of rows, by the mean: 1 without masks, nearly 2 with causal ones, whose last rows see all keys and whose first none; with a window
    /// that is shorter than the row, what it is by the keys that are seen in the mean.
    fn longest(&self, kernel: AttentionKernel) -> f64 {
        let of_rows = match self.seen(kernel) {
            // Nothing is seen, or there is nothing to see.
            seen if seen.is_nan() || seen < LEAST_SEEN => 1.0,
            seen if seen < 0.5 => window_of(seen) / seen,
            seen => 1.0 / seen,
        };
        // A block has the mean of its rows.
        let blocks = (self.queries / BLOCK).ceil();
        1.0 + (of_rows - 1.0) * (blocks - 1.0).max(0.0) / (blocks + 1.0)
    }
}

/// A causal window, as a part of all keys, of which so much is seen in the mean: the mean of a window w is w − w² / 2.
fn window_of(seen: f64) -> f64 {
    1.0 - (1.0 - 2.0 * seen).sqrt()
}

/// Less is as good as nothing.
const LEAST_SEEN: f64 = 1e-6;

/// How much faster attention is whose products are in fp8: an assumption. Twice as fast are its products, and its exponentials as before.
const FP8_ATTENTION: f64 = 1.25;

/// Rows of queries that a core of a device works on at once.
const BLOCK: f64 = 128.0;

/// Tiles that libraries choose from: rows, columns, and the part of a large tile's rate that they reach (less reuse of operands).
const TILES: [(f64, f64, f64); 5] =
    [(256.0, 128.0, 1.0), (128.0, 256.0, 1.0), (128.0, 128.0, 0.92), (128.0, 64.0, 0.75), (64.0, 64.0, 0.55)];
/// Parts that the summed dimension may be cut into, so that more cores have work.
const SPLITS: [f64; 4] = [1.0, 2.0, 4.0, 8.0];

/// How a system's products differ: how inputs in fp8 are made of bf16, and what its kernel loses in a tile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// Bytes of traffic for each element of the left input.
    pub bytes: f64,
    /// The part of the rate of products with one scale for a tensor that is left.
    pub rate: f64,
    /// Elements of K that filling and draining a tile costs, whatever the type; none: those of the device.
    pub depth: Option<f64>,
}

/// bf16 is read once and fp8 written, with scales of earlier steps or of blocks that one kernel sees; weights are kept.
impl Default for Scaling {
    fn default() -> Scaling {
        Scaling { bytes: 3.0, rate: 1.0, depth: None }
    }
}

impl Cluster {
    /// Peak of products, FLOP/s.
    pub fn peak(&self, precision: Precision) -> f64 {
        let cube = &self.device.cube;
        let tflops = match precision {
            Precision::F32 => cube.f32.0,
            Precision::Bf16 => cube.bf16.0,
            Precision::Fp8 | Precision::Mxfp8 => cube.fp8.map_or(cube.bf16.0, |p| p.0),
        };
        tflops * 1e12
    }

    /// Bandwidth that streaming kernels get, bytes/s.
    pub fn memory_rate(&self) -> f64 {
        self.device.memory_gbps.0 * 1e9 * self.calibrated.memory_efficiency.0
    }

    /// Seconds to copy bytes to the host's memory, or from there; none where the cluster file does not say how fast that is.
    pub fn host_copy(&self, bytes: f64) -> Option<f64> {
        let host = self.host.as_ref()?;
        Some(self.kernel_start() + bytes / (host.gbps.0 * 1e9 * host.efficiency.0))
    }

    /// Start and end of a kernel on the device, seconds.
    pub fn kernel_start(&self) -> f64 {
        self.calibrated.kernel_us.0 * 1e-6
    }

    /// Seconds of products.
    pub fn product(&self, product: &Product) -> f64 {
        self.product_scaled(product, Scaling::default())
    }

    /// Seconds of products whose inputs come to fp8 in some way, where they are in fp8.
    pub fn product_scaled(&self, product: &Product, scaling: Scaling) -> f64 {
        let Product { groups, m, n, k, bytes, precision, alignment } = *product;
        if groups * m * n * k <= 0.0 {
            return 0.0;
        }
        if let Some(measured) = &self.measured {
            return measured.product(product) + self.kernel_start();
        }
        let cores = f64::from(self.device.cores.0);
        let calibrated = &self.calibrated;
        let (cast, part) = match precision {
            Precision::Fp8 | Precision::Mxfp8 => (scaling.bytes * groups * m * k / self.memory_rate(), scaling.rate),
            Precision::F32 | Precision::Bf16 => (0.0, 1.0),
        };
        let rate = self.peak(precision) * calibrated.product_efficiency.0 * part / cores;
        let depth = scaling.depth.unwrap_or(calibrated.product_depth.0);
        let mut best = f64::INFINITY;
        for (rows, columns, reuse) in TILES {
            let tiles = groups * (m / rows).ceil() * (n / columns).ceil();
            for parts in SPLITS {
                let waves = (tiles * parts / cores).ceil();
                let of_tile = 2.0 * rows * columns * (k / parts + depth) / (rate * reuse);
                // Parts are added up in memory: written and read once more, in f32.
                let sum = if parts > 1.0 { 8.0 * parts * groups * m * n / self.memory_rate() } else { 0.0 };
                best = best.min(waves * of_tile + sum);
            }
        }
        (best * self.device.unaligned(alignment)).max(bytes / self.memory_rate()) + cast + self.kernel_start()
    }

    /// Seconds of work on the vector units: the longer of traffic and arithmetic.
    pub fn vector(&self, flops: f64, bytes: f64) -> f64 {
        if let Some(measured) = &self.measured {
            return measured.vector(flops, bytes) + self.kernel_start();
        }
        (bytes / self.memory_rate()).max(flops / (self.device.vector_tflops.0 * 1e12)) + self.kernel_start()
    }

    /// Seconds of an attention.
    pub fn attention(&self, attended: &Attended, kernel: AttentionKernel, generation: Generation) -> f64 {
        if let Some(measured) = &self.measured {
            return measured.attention(attended, kernel) + self.kernel_start();
        }
        if generation == Generation::Unfused {
            return self.unfused_attention(attended, kernel);
        }
        let Attended { problems, queries, keys, head, widest, flops, bytes, .. } = *attended;
        // Tiles have one width: of latent attention (192 elements for scores, 128 for values) a part is padding.
        let padding = head / widest.max(head);
        // Older kernels, as parts of the newest. Devices with fp8 products have asynchronous ones, which the older kernels do not use: there FlashAttention-2
        // reaches about half of FlashAttention-3 (arXiv 2407.08608, figure 5) and 0.54 of cuDNN's (measured on an H100), and stays as far ahead of FlashAttention as it was (arXiv 2307.08691, figure 4).
        let asynchronous = self.device.cube.fp8.is_some();
        let generation = match (generation, asynchronous) {
            (Generation::Flash1, false) => 0.65,
            (Generation::Flash1, true) => 0.35,
            (Generation::Flash2, true) => 0.54,
            (Generation::Flash2, false) | (Generation::Newest | Generation::Unfused, _) => 1.0,
        };
        // Blocks of queries go through all keys, backwards blocks of keys through all queries; with a window through what one of their rows sees.
        let (direction, others, half) = match kernel {
            AttentionKernel::Forward => (1.0, keys, 430.0),
            AttentionKernel::Backward => (0.9, queries, 1000.0),
        };
        // (Kernels were measured with causal masks, so that of a row a block goes through half in the mean: a window of half of it is as good as none.)
        // What blocks go through is as much more than what is seen as it is more without a window.
        let (inner, whole_blocks) = match attended.window(kernel) {
            Some(window) => (others.min(2.0 * (window + BLOCK)), (1.0 + BLOCK / window) / (1.0 + BLOCK / keys)),
            None => (others, 1.0),
        };
        // Narrow heads leave more softmax for each product; short rows have fewer blocks to hide it behind.
        let narrow = head / (head + 40.0) * (168.0 / 128.0);
        let short = inner / (inner + half);
        // Blocks of 128 rows are shared out over the cores: in the end cores wait for what is left, half of the longest block in the mean, and never less than all of one.
        let each = problems * (queries / BLOCK).ceil() / f64::from(self.device.cores.0);
        let longest = attended.longest(kernel);
        let full = each / longest.max(each + longest / 2.0);
        let in_fp8 = match attended.precision {
            Precision::Fp8 | Precision::Mxfp8 if self.device.cube.fp8.is_some() => FP8_ATTENTION,
            _ => 1.0,
        };
        let rate =
            self.peak(attended.inputs()) * self.calibrated.attention_efficiency.0 * in_fp8 * generation * direction;
        (flops * whole_blocks / (rate * narrow.min(1.1) * padding * short * full)).max(bytes / self.memory_rate())
            + self.kernel_start()
    }

    /// Products, scale and mask, softmax, dropout as kernels of their own: all scores (masked ones too) go through memory in the type of the inputs.
    fn unfused_attention(&self, attended: &Attended, kernel: AttentionKernel) -> f64 {
        let Attended { problems, queries, keys, head, .. } = *attended;
        let scores = problems * queries * keys;
        let element = if attended.inputs() == Precision::F32 { 4.0 } else { 2.0 };
        let (products, passes) = match kernel {
            AttentionKernel::Forward => (2.0, 5.0),
            AttentionKernel::Backward => (4.0, 6.0),
        };
        let one = Product {
            groups: problems,
            m: queries,
            n: keys,
            k: head,
            bytes: element * (scores + problems * (queries + keys) * head),
            precision: attended.inputs(),
            alignment: Product::ALIGNED,
        };
        products * self.product(&one) + passes * element * scores / self.memory_rate() + 3.0 * self.kernel_start()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        Cluster::parse(include_str!("../../examples/clusters/h100.toml")).expect("a cluster file")
    }

    fn product(m: f64, n: f64, k: f64) -> Product {
        Product {
            groups: 1.0,
            m,
            n,
            k,
            bytes: 2.0 * (m * k + k * n + m * n),
            precision: Precision::Bf16,
            alignment: Product::ALIGNED,
        }
    }

    /// Attention multiplies at the rate of its inputs' type; fp8 gains what it is assumed to, and nothing where scores are kernels' own.
    #[test]
    fn attention_in_f32_is_slower() {
        let cluster = cluster();
        let time_on = |cluster: &Cluster, precision, generation| {
            let (problems, queries, keys, head) = (64.0, 4096.0, 4096.0, 128.0);
            let flops = 2.0 * problems * queries * keys * 2.0 * head;
            let attended = Attended { problems, queries, keys, head, widest: head, flops, bytes: 1e8, precision };
            cluster.attention(&attended, AttentionKernel::Forward, generation)
        };
        let time = |precision, generation| time_on(&cluster, precision, generation);
        let slower = time(Precision::F32, Generation::Newest) / time(Precision::Bf16, Generation::Newest);
        let peaks = cluster.peak(Precision::Bf16) / cluster.peak(Precision::F32);
        assert!(peaks > 1.5 && (slower / peaks - 1.0).abs() < 0.01, "{slower} is not {peaks}");
        assert!(time(Precision::F32, Generation::Unfused) > 1.5 * time(Precision::Bf16, Generation::Unfused));
        let faster = time(Precision::Bf16, Generation::Newest) / time(Precision::Mxfp8, Generation::Newest);
        assert!((faster / FP8_ATTENTION - 1.0).abs() < 0.01, "{faster}");
        assert_eq!(time(Precision::Fp8, Generation::Unfused), time(Precision::Bf16, Generation::Unfused));
        let a100 = Cluster::parse(include_str!("../../examples/clusters/a100-80g.toml")).expect("a cluster file");
        let without = |precision| time_on(&a100, precision, Generation::Newest);
        assert_eq!(without(Precision::Fp8), without(Precision::Bf16), "there is none");
    }

    #[test]
    fn a_started_wave_costs_a_whole_one() {
        let cluster = cluster();
        // 132 cores: 132 tiles of 128 × 256 are one wave, 133 are two.
        let one = cluster.product(&product(128.0 * 12.0, 256.0 * 11.0, 65536.0));
        let more = cluster.product(&product(128.0 * 12.0, 256.0 * 11.0 + 1.0, 65536.0));
        assert!(more > one * 1.05, "{one} {more}");
    }

    #[test]
    fn large_products_reach_the_sustained_rate_and_small_ones_do_not() {
        let cluster = cluster();
        let share = |m: f64, n: f64, k: f64| {
            2.0 * m * n * k / cluster.product(&product(m, n, k)) / cluster.peak(Precision::Bf16)
        };
        let sustained = cluster.calibrated.product_efficiency.0;
        assert!((0.9..=1.0).contains(&(share(16384.0, 16384.0, 16384.0) / sustained)));
        assert!(share(4096.0, 4096.0, 4096.0) < share(16384.0, 16384.0, 16384.0));
        assert!(share(64.0, 4096.0, 4096.0) < 0.3);
    }

    /// A kernel that loses more in each tile takes longer where products are bound by arithmetic, and not where they are by memory.
    #[test]
    fn depth_is_of_arithmetic() {
        let cluster = cluster();
        let time = |m: f64, depth: Option<f64>| {
            cluster.product_scaled(&product(m, 8192.0, 8192.0), Scaling { depth, ..Scaling::default() })
        };
        assert!(time(8192.0, Some(8192.0)) > 1.8 * time(8192.0, None));
        assert_eq!(time(1.0, Some(300.0)), time(1.0, None));
    }

    /// Scaling is traffic, a slower kernel takes longer, and neither is there in bf16.
    #[test]
    fn scaling_is_of_fp8_alone() {
        let cluster = cluster();
        let time = |precision, bytes, rate| {
            let product = Product { precision, ..product(8192.0, 8192.0, 8192.0) };
            cluster.product_scaled(&product, Scaling { bytes, rate, depth: None })
        };
        let more = time(Precision::Fp8, 6.0, 1.0) - time(Precision::Fp8, 3.0, 1.0);
        assert!((more * cluster.memory_rate() / (3.0 * 8192.0 * 8192.0) - 1.0).abs() < 1e-6, "{more}");
        assert!(time(Precision::Fp8, 3.0, 0.5) > 1.5 * time(Precision::Fp8, 3.0, 1.0));
        assert_eq!(time(Precision::Bf16, 6.0, 0.5), time(Precision::Bf16, 3.0, 1.0));
    }

    /// Few queries of many keys are long rows for the forward pass, whose blocks of queries go through keys, and short ones for the backward pass.
    #[test]
    fn rows_are_as_long_as_what_blocks_go_through() {
        let cluster = cluster();
        let rate = |queries: f64, keys: f64, kernel: AttentionKernel| {
            let products = if kernel == AttentionKernel::Forward { 2.0 } else { 5.0 };
            let flops = 2.0 * products * 64.0 * queries * keys * 128.0;
            let precision = Precision::Bf16;
            let of =
                Attended { problems: 64.0, queries, keys, head: 128.0, widest: 128.0, flops, bytes: 1e6, precision };
            flops / cluster.attention(&of, kernel, Generation::Newest)
        };
        let [forward, backward] = [AttentionKernel::Forward, AttentionKernel::Backward]
            .map(|kernel| rate(2048.0, 32768.0, kernel) / rate(2048.0, 2048.0, kernel));
        assert!(forward > 1.1 && (0.98..1.1).contains(&backward), "{forward} {backward}");
        // And the other way round: blocks of keys go through all queries, however few keys there are.
        let backward =
            rate(32768.0, 2048.0, AttentionKernel::Backward) / rate(2048.0, 2048.0, AttentionKernel::Backward);
        assert!(backward > 1.3, "{backward}");
    }

    /// The longest block of rows, by hand: the mean of all without masks; of n blocks with a causal mask 2n / (n + 1) of it; with a window of a part w of long rows 1 / (1 − w / 2).
    #[test]
    fn the_longest_block_is_that_of_the_mask() {
        let longest = |queries: f64, seen: f64, kernel: AttentionKernel, products: f64| {
            let flops = 2.0 * products * 8.0 * queries * queries * 64.0 * seen;
            let of = Attended {
                problems: 8.0,
                queries,
                keys: queries,
                head: 64.0,
                widest: 64.0,
                flops,
                bytes: 1.0,
                precision: Precision::Bf16,
            };
            of.longest(kernel)
        };
        let forward = |queries: f64, seen: f64| longest(queries, seen, AttentionKernel::Forward, 2.0);
        let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-3, "{got} is not {want}");
        near(forward(4096.0, 1.0), 1.0);
        near(forward(128.0, 0.5), 1.0);
        near(forward(256.0, 0.5), 4.0 / 3.0);
        near(forward(1_048_576.0, 0.5), 2.0);
        near(longest(1_048_576.0, 0.5, AttentionKernel::Backward, 5.0), 2.0);
        for window in [0.01f64, 0.25, 0.5, 0.99] {
            near(forward(1_048_576.0, window - window * window / 2.0), 1.0 / (1.0 - window / 2.0));
        }
        assert_eq!([forward(4096.0, 0.0), forward(0.0, 0.5)], [1.0, 1.0], "nothing to see");
    }

    /// Blocks of 128 rows go through two blocks of keys where a window of 128 is; the wider it is the nearer is what they go through to what is seen, until it is as wide as the row.
    #[test]
    fn windows_are_whole_blocks() {
        let cluster = cluster();
        let keys = 4096.0;
        let time = |seen: f64, kernel: AttentionKernel, products: f64| {
            let flops = 2.0 * products * 1024.0 * keys * keys * 64.0 * seen;
            let attended = Attended {
                problems: 1024.0,
                queries: keys,
                keys,
                head: 64.0,
                widest: 64.0,
                flops,
                bytes: 1.0,
                precision: Precision::Bf16,
            };
            cluster.attention(&attended, kernel, Generation::Newest) - cluster.kernel_start()
        };
        for (kernel, products, half) in
            [(AttentionKernel::Forward, 2.0, 430.0), (AttentionKernel::Backward, 5.0, 1000.0)]
        {
            let part = |window: f64| {
                let w = window / keys;
                time(w - w * w / 2.0, kernel, products) / time(0.5, kernel, products)
            };
            // By hand: 256 keys for a block of queries by the mean of 2,112 of all, at the rate of a causal row of 512 by that of one of 4,096.
            let want =
                (128.0 - 2.0) / 2048.0 * 2.0 / (1.0 + 128.0 / keys) * (512.0 + half) / 512.0 * keys / (keys + half);
            assert!((part(128.0) / want - 1.0).abs() < 0.03, "{} is not {want}", part(128.0));
            assert!((part(4095.0) - 1.0).abs() < 0.01, "{}", part(4095.0));
            let parts = [1.0, 128.0, 512.0, 2048.0, 4095.0].map(part);
            assert!(parts.windows(2).all(|pair| pair[0] < pair[1]), "{parts:?}");
        }
    }

    /// 192 elements for scores and 128 for values are tiles of 192.
    #[test]
    fn narrow_values_of_a_wide_head_are_padded() {
        let cluster = cluster();
        let time = |widest: f64| {
            let attended = Attended {
                problems: 128.0,
                queries: 4096.0,
                keys: 4096.0,
                head: 160.0,
                widest,
                flops: 1e13,
                bytes: 1.0,
                precision: Precision::Bf16,
            };
            cluster.attention(&attended, AttentionKernel::Backward, Generation::Newest) - cluster.kernel_start()
        };
        assert!((time(192.0) / time(160.0) - 1.2).abs() < 1e-9);
    }

    #[test]
    fn more_bandwidth_is_never_slower() {
        let slow = cluster();
        let mut fast = slow.clone();
        fast.device.memory_gbps.0 *= 2.0;
        for m in [1.0, 100.0, 5000.0] {
            assert!(fast.product(&product(m, 512.0, 4096.0)) <= slow.product(&product(m, 512.0, 4096.0)));
            assert!(fast.vector(m, m * 1e6) <= slow.vector(m, m * 1e6));
        }
    }
}
