//! How fast this machine is at most: a probe of a few tenths of a second.
//!
//! * Arithmetic: independent multiply-adds in registers, at the CPU level that the kernels use, on all workers.
//! * Memory: `a[i] = b[i] + s·c[i]` over arrays that no cache holds (STREAM's triad: McCalpin, "Memory bandwidth and machine balance in current
//!   high performance computers", 1995), 12 bytes an element; lines that a cache fetches before they are written do not count.
//!
//! The best of several short runs. It is a probe, not a specification: what else the machine does lowers it, and kernels whose operands are
//! still in a cache may go beyond its bandwidth.

use crate::kernels::Cpu;
use crate::kernels::peak::Peak;
use crate::pool::Pool;
use forebay_plan::DType;
use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time for each of the two probes; the first touch of the memory comes on top.
const BUDGET: Duration = Duration::from_millis(150);
/// Elements of each of the three arrays: 24 MiB, together twice a large third-level cache.
const TRIAD: usize = 6 << 20;

/// What a machine attains at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// FLOP/s of all workers, a multiply-add counted as two.
    pub flops: f64,
    /// Bytes/s between memory and all workers.
    pub bytes: f64,
}

impl Roofline {
    /// Measures it, for sums of the compute type: in f64 half as many elements fit into a register; products of bf16 are made in f32, or by the instructions that
    /// the CPU has for them, and those of f32 in vectors, or of six products of bf16 in tiles (which attention in f32 does
    /// not use).
    pub fn probe(pool: &Pool, cpu: Cpu, compute: DType) -> Roofline {
        let flops = match compute {
            DType::F64 => 0.5 * flops(pool, Peak::of_vectors(cpu)),
            DType::Bf16 => flops(pool, Peak::of_bf16(cpu)),
            _ => flops(pool, Peak::of_f32(cpu)),
        };
        Roofline { flops, bytes: bytes(pool) }
    }
}

/// Runs until the budget is spent, at least three times; the best rate of `amount` a run.
fn best(amount: f64, run: &dyn Fn()) -> f64 {
    let begun = Instant::now();
    let mut best = Duration::MAX;
    let mut runs = 0;
    while runs < 3 || begun.elapsed() < BUDGET {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed());
        runs += 1;
    }
    amount / best.as_secs_f64()
}

/// FLOP/s of all workers.
fn flops(pool: &Pool, peak: Peak) -> f64 {
    best((pool.workers() * peak.multiply_adds() * 2) as f64, &|| pool.run(pool.workers(), &|_, _| peak.run()))
}

fn bytes(pool: &Pool) -> f64 {
    let (mut a, b, c) = (vec![0.5f32; TRIAD], vec![0.5f32; TRIAD], vec![0.25f32; TRIAD]);
    let part = TRIAD.div_ceil(pool.workers());
    // One part for each worker: nobody waits for a lock.
    let parts: Vec<_> =
        a.chunks_mut(part).zip(b.chunks(part)).zip(c.chunks(part)).map(|((a, b), c)| Mutex::new((a, b, c))).collect();
    let scale = black_box(3.0f32);
    let triad = |task: usize| {
        let mut part = parts[task].lock().expect("no task panics");
        let (a, b, c) = &mut *part;
        a.iter_mut().zip(b.iter().zip(c.iter())).for_each(|(a, (b, c))| *a = b + scale * c);
    };
    let rate = best(12.0 * TRIAD as f64, &|| pool.run(parts.len(), &|task, _| triad(task)));
    drop(parts);
    black_box(a);
    rate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_computes_and_remembers() {
        let pool = Pool::new(2).expect("the system has threads");
        let levels = ["portable", "avx2", "avx512", "avx512bf16", "amx"].map(|name| Cpu::named(name).expect("a level"));
        let rates = levels.map(|cpu| [Peak::of_bf16(cpu), Peak::of_f32(cpu)].map(|peak| flops(&pool, peak)));
        // Between a slow and an impossible machine.
        assert!(rates.iter().flatten().all(|r| (5e8..1e14).contains(r)), "{rates:?}");
        let Roofline { flops, bytes } = Roofline::probe(&pool, levels[0], DType::F64);
        assert!((1e8..1e14).contains(&flops) && (1e8..1e13).contains(&bytes), "{flops} {bytes}");
    }
}
