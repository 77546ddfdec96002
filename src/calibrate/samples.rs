//! From the times of kernels to the samples of a cluster file.

use super::lower_quartile;
use super::probe::Ran;
use crate::bench::median;
use forebay_cost::{AttentionKernel, Cluster, Precision, known};
use forebay_plan::{Exchange, ExchangeKind, Kernel};
use forebay_sim::Framework;
use forebay_sim::price::{Pricer, Shape};
use std::collections::BTreeMap;

/// Collectives of at most so many bytes are all latency; those of at least so many say what the bandwidth is.
const SMALL: f64 = 1024.0;
const LARGE: f64 = 256.0 * 1024.0;

/// A row of the file: its table, its keys without the rate.
type Row = (&'static str, String);

/// Work of a shape (FLOPs or bytes), and the seconds that it took.
#[derive(Default)]
struct Timed {
    work: f64,
    seconds: f64,
}

/// What was timed.
#[derive(Default)]
pub struct Samples {
    rows: BTreeMap<Row, Timed>,
    /// Seconds between kernels, of rendezvous, and bytes a second of collectives.
    between: Vec<f64>,
    latency: Vec<f64>,
    link: Vec<f64>,
    /// Of ranks with a core each, the work of the slowest in each step, and of the slowest in all of them.
    uneven: [f64; 2],
}

impl Samples {
    /// Adds a run, on so many threads a rank.
    pub fn add(&mut self, ran: &Ran, threads: u32) {
        // Shapes do not depend on the cluster.
        let cluster = Cluster::parse(known::FILES[0].1).expect("a file of the program is right");
        let framework = Framework::on_machine();
        let pricer = Pricer::new(&ran.plan, &cluster, &framework, Precision::Bf16, 1.0);
        self.between.push(ran.between);
        let (of_each, of_all) = ran.uneven();
        if ran.ranks() > 1 {
            self.uneven[0] += of_each;
            self.uneven[1] += of_all;
        }
        for (&(program, index), of_ranks) in &ran.times {
            let program = &ran.plan.programs[program];
            let instruction = &program.instructions[index];
            if let Some(shape) = pricer.shape(program, instruction) {
                let all: Vec<f64> = of_ranks.iter().flatten().copied().collect();
                self.kernel(shape, threads, all.iter().sum::<f64>() / all.len().max(1) as f64);
            } else if let Kernel::Exchange(k) = &instruction.kernel {
                // The rank that comes last does not wait for the others.
                let seconds = of_ranks.iter().map(|times| lower_quartile(times.clone())).fold(f64::INFINITY, f64::min);
                self.exchange(k, seconds);
            }
        }
    }

    fn kernel(&mut self, shape: Shape, threads: u32, seconds: f64) {
        if seconds <= 0.0 || seconds.is_nan() {
            return;
        }
        let (row, work) = match shape {
            Shape::Product(p) => {
                let dtype = type_name(p.precision);
                let [groups, m, n, k] = [p.groups, p.m, p.n, p.k].map(round);
                let keys = format!("type = \"{dtype}\"\ngroups = {groups}\nm = {m}\nn = {n}\nk = {k}");
                (("product", keys), 2.0 * p.groups * p.m * p.n * p.k)
            }
            Shape::Attention(a, way) => {
                let backward = way == AttentionKernel::Backward;
                let dtype = type_name(a.precision);
                let keys = format!(
                    "type = \"{dtype}\"\nbackward = {backward}\nqueries = {}\nhead = {}",
                    round(a.queries),
                    round(a.head)
                );
                (("attention", keys), a.flops)
            }
            // Not sampled: cluster files have no such table, and it is priced by its products.
            Shape::Linear(_) => return,
            Shape::Streamed { flops, bytes } => {
                if bytes <= 0.0 {
                    return;
                }
                // (A cluster file holds no larger numbers, and nothing that large is in a cache.)
                let keys = format!("bytes = {}\nintensity = {:.3}", round(bytes.min(1e9)), flops / bytes);
                (("vector", keys), bytes)
            }
        };
        if work > 0.0 {
            let of_row = self.rows.entry((row.0, format!("threads = {threads}\n{}", row.1))).or_default();
            of_row.work += work;
            of_row.seconds += seconds;
        }
    }

    fn exchange(&mut self, k: &Exchange, seconds: f64) {
        let n = k.ranks as f64;
        let piece = (k.piece() * k.dtype.bytes()) as f64;
        // As the cost of collectives has it: what passes each rank.
        let passing = match k.kind() {
            ExchangeKind::AllReduce => 2.0 * piece * (n - 1.0) / n,
            ExchangeKind::AllGather | ExchangeKind::ReduceScatter | ExchangeKind::AllToAll => piece * (n - 1.0),
            ExchangeKind::Shift => piece,
        };
        if !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        if passing <= SMALL {
            self.latency.push(seconds);
        } else if passing >= LARGE {
            self.link.push(passing / seconds);
        }
    }

    /// How many shapes.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Tables and keys with their rates (of each second): all work of that shape in all of its time.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, &str, f64)> {
        self.rows.iter().map(|((table, keys), of_row)| (*table, keys.as_str(), of_row.work / of_row.seconds))
    }

    /// Between two kernels, µs.
    pub fn between_us(&self) -> f64 {
        1e6 * lower_quartile(self.between.clone())
    }

    /// A rendezvous, µs.
    pub fn latency_us(&self) -> f64 {
        if self.latency.is_empty() { 5.0 } else { 1e6 * lower_quartile(self.latency.clone()) }
    }

    /// How much longer steps take because ranks with a core each wait for whichever is held up.
    pub fn unevenness(&self) -> f64 {
        let [of_each, of_all] = self.uneven;
        if of_all > 0.0 { (of_each / of_all).max(1.0) } else { 1.0 }
    }

    /// Bandwidth of collectives, GB/s, where there were any.
    pub fn link_gbps(&self) -> Option<f64> {
        (!self.link.is_empty()).then(|| median(&self.link) / 1e9)
    }
}

/// The word of a cluster file for a type.
fn type_name(precision: Precision) -> &'static str {
    if precision == Precision::F32 { "f32" } else { "bf16" }
}

/// Sizes of ragged groups are means, and need no more digits.
fn round(size: f64) -> f64 {
    (size * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the work at a third of the rate takes three quarters of the time.
    #[test]
    fn what_kernels_of_a_shape_take_is_added() {
        let mut samples = Samples::default();
        for seconds in [1.0, 3.0] {
            samples.kernel(Shape::Streamed { flops: 0.0, bytes: 100.0 }, 2, seconds);
        }
        assert_eq!(samples.rows().map(|(.., rate)| rate).collect::<Vec<_>>(), [50.0]);
    }
}
