//! Linear attention, in chunks: products within a chunk, and states that go from chunk to chunk.
//!
//! Kernels do a chunk's products at once (arXiv 2312.06635, section 4; 2406.06484, section 3): for C positions with keys of k and values of v elements `2 C² (k + v)` FLOPs
//! for scores and what they weigh, and `4 C k v` for reading the state and adding to it. Products are so small that a core of a device waits for them one by one: on an
//! H200 and a GB200 (2.5 times its peak, 1.7 times its bandwidth) the same kernels take the same core-seconds. So the time has three parts: what cores take
//! whatever their peak, the products at the peak, and where there are too few problems for all cores the chunks of one problem one after the other.
//!
//! [`CORE_RATE`], [`CHUNK_SECONDS`] and [`OF_STATES`] are of the Triton kernels of flash-linear-attention 0.5.1 as FlashQLA's authors measured them (github.com/QwenLM/FlashQLA:
//! `benchmark/benchmark_results_H200.txt` of commit 6e5d2ea, `benchmark/benchmark_results_GB200.txt` of 5f6aa53): the gated delta rule of one sequence, whose forward pass is two of our
//! ops and whose backward pass six, with heads of 128, 4 to 64 of 2,048 to 32,768 positions. Of these 31 times all are within 15 %, 6 % off in the median (a test below). Devices without
//! such measurements take the same numbers.

use crate::cluster::Cluster;
use crate::device::{Precision, Product};

/// A linear attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remembered {
    /// Independent problems: rows × heads.
    pub problems: f64,
    /// Positions of each.
    pub positions: f64,
    /// Elements of a key.
    pub key: f64,
    /// Elements of a value.
    pub value: f64,
    /// Bytes of queries, keys, values, decays and results.
    pub bytes: f64,
    /// Type of the inputs.
    pub precision: Precision,
}

/// Positions of a chunk.
const CHUNK: f64 = 64.0;

/// FLOP/s of a core that waits for small products.
const CORE_RATE: f64 = 1.05e12;

/// And at least this part of its peak, where devices have few cores that are large (TPUs): an assumption.
const LEAST_OF_PEAK: f64 = 0.06;

/// Seconds of a chunk whose state the next one waits for, by the elements of a state of 128 × 128.
const CHUNK_SECONDS: f64 = 0.65e-6;
const STATE: f64 = 128.0 * 128.0;

/// The part of the work that states go through, and that waits for them.
const OF_STATES: f64 = 0.3;

/// Kernels of an op: one for states and one for the products within chunks.
const KERNELS: f64 = 2.0;

impl Remembered {
    /// FLOPs in chunks, which are more than those of the recurrence.
    pub fn flops(&self) -> f64 {
        let (k, v) = (self.key, self.value);
        self.problems * self.positions * (2.0 * CHUNK.min(self.positions) * (k + v) + 4.0 * k * v)
    }
}

impl Cluster {
    /// Kernels that a linear attention is.
    pub fn linear_kernels(&self) -> f64 {
        if self.measured.is_some() { 1.0 } else { KERNELS }
    }

    /// Seconds of a linear attention.
    pub fn linear_attention(&self, of: &Remembered) -> f64 {
        let chunks = (of.positions / CHUNK).ceil();
        if let Some(measured) = &self.measured {
            // A machine that was measured runs our kernel, whose products are those of chunks.
            let one = |m: f64, n: f64, k: f64| Product {
                groups: of.problems * chunks,
                m,
                n,
                k,
                bytes: 0.0,
                precision: of.precision,
                alignment: Product::ALIGNED,
            };
            let rows = CHUNK.min(of.positions);
            let products = [
                one(rows, rows, of.key),
                one(rows, of.value, rows),
                one(rows, of.value, of.key),
                one(of.key, of.value, rows),
            ];
            let seconds: f64 = products.iter().map(|p| measured.product(p)).sum();
            return seconds.max(of.bytes / self.memory_rate()) + self.kernel_start();
        }
        let cores = f64::from(self.device.cores.0);
        let of_core = (LEAST_OF_PEAK * self.peak(of.precision) / cores).max(CORE_RATE);
        let work = of.flops() / (of_core * cores);
        let serial = chunks * CHUNK_SECONDS * of.key * of.value / STATE;
        let by_cores = work * (1.0 - OF_STATES) + (work * OF_STATES).max(serial);
        let products = of.flops() / self.peak(of.precision);
        (by_cores + products).max(of.bytes / self.memory_rate()) + KERNELS * self.kernel_start()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clusters() -> [Cluster; 2] {
        [include_str!("../../examples/clusters/h200.toml"), include_str!("../../examples/clusters/gb200-nvl72.toml")]
            .map(|text| Cluster::parse(text).expect("a cluster file"))
    }

    fn of(heads: f64, positions: f64, size: f64) -> Remembered {
        let bytes = heads * positions * size * 8.0;
        Remembered { problems: heads, positions, key: size, value: size, bytes, precision: Precision::Bf16 }
    }

    /// Ops of a pass, heads, positions, milliseconds.
    const H200: [(f64, f64, f64, f64); 19] = [
        (2.0, 64.0, 32768.0, 3.331),
        (2.0, 64.0, 8192.0, 0.814),
        (2.0, 64.0, 2048.0, 0.220),
        (2.0, 32.0, 32768.0, 1.885),
        (2.0, 32.0, 8192.0, 0.466),
        (2.0, 32.0, 2048.0, 0.131),
        (2.0, 16.0, 32768.0, 1.241),
        (2.0, 16.0, 8192.0, 0.316),
        (2.0, 16.0, 2048.0, 0.098),
        (2.0, 8.0, 32768.0, 0.902),
        (2.0, 8.0, 8192.0, 0.234),
        (2.0, 8.0, 2048.0, 0.081),
        (6.0, 32.0, 8192.0, 1.444),
        (6.0, 32.0, 32768.0, 5.697),
        (6.0, 16.0, 8192.0, 0.957),
        (6.0, 16.0, 32768.0, 3.701),
        (6.0, 8.0, 8192.0, 0.722),
        (6.0, 8.0, 32768.0, 2.743),
        (6.0, 4.0, 32768.0, 2.311),
    ];
    const GB200: [(f64, f64, f64, f64); 12] = [
        (2.0, 64.0, 32768.0, 2.943),
        (2.0, 64.0, 8192.0, 0.755),
        (2.0, 32.0, 32768.0, 1.747),
        (2.0, 32.0, 8192.0, 0.459),
        (2.0, 16.0, 8192.0, 0.333),
        (2.0, 8.0, 32768.0, 1.016),
        (2.0, 8.0, 8192.0, 0.264),
        (6.0, 32.0, 8192.0, 1.446),
        (6.0, 32.0, 32768.0, 5.714),
        (6.0, 16.0, 32768.0, 3.934),
        (6.0, 8.0, 32768.0, 3.068),
        (6.0, 4.0, 32768.0, 2.640),
    ];

    #[test]
    fn kernels_take_what_was_measured() {
        let [h200, gb200] = clusters();
        let mut errors = vec![];
        for (cluster, rows) in [(&h200, &H200[..]), (&gb200, &GB200[..])] {
            for &(ops, heads, positions, measured) in rows {
                let error = 1e3 * ops * cluster.linear_attention(&of(heads, positions, 128.0)) / measured - 1.0;
                assert!(error.abs() < 0.15, "{ops} ops, {heads} heads, {positions} positions: {error:+.3}");
                errors.push(error.abs());
            }
        }
        errors.sort_by(f64::total_cmp);
        assert!(errors[errors.len() / 2] < 0.07, "{errors:?}");
    }

    /// Linear in positions and heads where there are enough for all cores; without end in no direction.
    #[test]
    fn time_grows_with_work() {
        let [cluster, _] = clusters();
        let seconds = |heads, positions, size| {
            cluster.linear_attention(&of(heads, positions, size)) - KERNELS * cluster.kernel_start()
        };
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
        near(seconds(256.0, 8192.0, 128.0), 2.0 * seconds(128.0, 8192.0, 128.0));
        near(seconds(128.0, 8192.0, 128.0), 2.0 * seconds(128.0, 4096.0, 128.0));
        // Chunks of few heads wait for each other: half the heads take more than half the time.
        assert!(seconds(4.0, 8192.0, 128.0) > 0.6 * seconds(8.0, 8192.0, 128.0));
        assert!(seconds(64.0, 8192.0, 256.0) > 2.0 * seconds(64.0, 8192.0, 128.0));
        // A row that is shorter than a chunk has no more scores than that.
        assert!(of(1.0, 16.0, 128.0).flops() < of(1.0, 64.0, 128.0).flops() / 4.0);
    }

    /// No device waits for its cores alone: large shapes reach a part of the peak everywhere.
    #[test]
    fn every_device_reaches_a_part_of_its_peak() {
        for (name, text) in crate::known::FILES {
            let cluster = Cluster::parse(text).expect("a cluster file");
            let large = of(512.0, 8192.0, 128.0);
            let part = large.flops() / cluster.linear_attention(&large) / cluster.peak(Precision::Bf16);
            assert!((0.04..0.6).contains(&part), "{name}: {part:.3} of the peak");
        }
    }

    /// Bytes are a floor.
    #[test]
    fn memory_is_a_floor() {
        let [cluster, _] = clusters();
        let shape = Remembered { bytes: 1e12, ..of(1.0, 64.0, 64.0) };
        assert!(cluster.linear_attention(&shape) > 1e12 / cluster.memory_rate());
    }
}
