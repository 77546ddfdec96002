//! How fast this machine is at most: a probe of a few tenths of a second.
//!
//! * Arithmetic: independent multiply-adds in registers, at the CPU level that the kernels use, on all workers.
//! * Memory: `a[i] = b[i] + s·c[i]` over arrays that no cache holds (STREAM's triad: McCalpin, "Memory bandwidth and machine balance in current
//!   high performance computers", 1995), 12 bytes an element; lines that a cache fetches before they are written do not count.
//!
//! The best of several short runs. It is a probe, not a specification: what else the machine does lowers it, and kernels whose operands are
//! still in a cache may go beyond its bandwidth.

use crate::kernels::Cpu;
use crate::kernels::cpu::Vectors;
#[cfg(target_arch = "x86_64")]
use crate::kernels::{amx, cpu::Bf16};
use crate::pool::Pool;
use forebay_plan::DType;
use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time for each of the two probes; the first touch of the memory comes on top.
const BUDGET: Duration = Duration::from_millis(150);
/// Independent chains: more than latency (4 cycles) times units (2), and as many as AVX2 has registers for.
const CHAINS: usize = 12;
/// Rounds of one run of the arithmetic: about 10 ms.
const ROUNDS: u32 = 4_000_000;
/// Rounds of tiles, of which each takes as long as many of vectors.
#[cfg(target_arch = "x86_64")]
const TILE_ROUNDS: u32 = ROUNDS / 8;
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
    /// Measures it, for sums of the compute type: in f64 half as many elements fit into a register; bf16 is computed in f32, or by the instructions that the CPU has for it.
    pub fn probe(pool: &Pool, cpu: Cpu, compute: DType) -> Roofline {
        let flops = match compute {
            DType::F64 => 0.5 * flops(pool, cpu),
            DType::Bf16 => flops_of_bf16(pool, cpu),
            _ => flops(pool, cpu),
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

/// What products of f32 attain.
fn flops(pool: &Pool, cpu: Cpu) -> f64 {
    let lanes = match cpu.vectors() {
        Vectors::Avx512 => 16,
        Vectors::Avx2 => 8,
        Vectors::Portable => 4,
    };
    rate(pool, CHAINS * lanes * ROUNDS as usize, &|| _ = black_box(multiply_add(cpu)))
}

/// What products of bf16 attain.
fn flops_of_bf16(pool: &Pool, cpu: Cpu) -> f64 {
    match cpu.bf16() {
        // SAFETY: the machine has the instructions.
        #[cfg(target_arch = "x86_64")]
        Bf16::Tiles if cpu.has(Bf16::Tiles) => {
            rate(pool, amx::MULTIPLY_ADDS * TILE_ROUNDS as usize, &|| unsafe { amx::probe(TILE_ROUNDS) })
        }
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Bf16::Pairs if cpu.has(Bf16::Pairs) => {
            rate(pool, CHAINS * 32 * ROUNDS as usize, &|| _ = black_box(unsafe { multiply_add_pairs() }))
        }
        _ => flops(pool, cpu),
    }
}

/// FLOP/s of all workers, of which each does so many multiply-adds.
fn rate(pool: &Pool, multiply_adds: usize, run: &(dyn Fn() + Sync)) -> f64 {
    best((pool.workers() * multiply_adds * 2) as f64, &|| pool.run(pool.workers(), &|_, _| run()))
}

/// The sum of the chains' first lanes; all lanes are equal.
fn multiply_add(cpu: Cpu) -> f32 {
    match cpu.vectors() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a `Cpu` is never above what the machine has.
        Vectors::Avx512 => unsafe { multiply_add_avx512() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Vectors::Avx2 => unsafe { multiply_add_avx2() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has SSE2.
        Vectors::Portable => unsafe { multiply_add_sse2() },
        #[cfg(not(target_arch = "x86_64"))]
        _ => multiply_add_portable(),
    }
}

/// Chains of multiply-adds with a CPU level's vectors.
#[cfg(target_arch = "x86_64")]
macro_rules! chains {
    ($(#[$meta:meta])* fn $name:ident, $features:literal, $splat:ident, $first:ident, |$c:ident, $x:ident, $y:ident| $next:expr) => {
        $(#[$meta])*
        #[target_feature(enable = $features)]
        fn $name() -> f32 {
            use std::arch::x86_64::*;
            let ($x, $y) = ($splat(black_box(0.5)), $splat(black_box(0.25)));
            let mut chains = [$x; CHAINS];
            for _ in 0..ROUNDS {
                for chain in &mut chains {
                    let $c = *chain;
                    *chain = $next;
                }
            }
            chains.map(|c| $first(c)).iter().sum()
        }
    };
}
#[cfg(target_arch = "x86_64")]
chains!(fn multiply_add_avx512, "avx512f", _mm512_set1_ps, _mm512_cvtss_f32, |c, x, y| _mm512_fmadd_ps(c, x, y));
#[cfg(target_arch = "x86_64")]
chains!(
    /// Of pairs of bf16: 0.5 and 0.25 are pairs of such numbers, the first of them 0.
    fn multiply_add_pairs, "avx512f,avx512bf16", _mm512_set1_ps, _mm512_cvtss_f32, |c, x, y| {
        // SAFETY: both types are any 64 bytes.
        let pairs = |x: __m512| unsafe { std::mem::transmute::<__m512, __m512bh>(x) };
        _mm512_dpbf16_ps(c, pairs(x), pairs(y))
    }
);
#[cfg(target_arch = "x86_64")]
chains!(fn multiply_add_avx2, "avx2,fma", _mm256_set1_ps, _mm256_cvtss_f32, |c, x, y| _mm256_fmadd_ps(c, x, y));
#[cfg(target_arch = "x86_64")]
chains!(
    /// Multiplied and added separately, as the kernels do at this level.
    fn multiply_add_sse2, "sse2", _mm_set1_ps, _mm_cvtss_f32, |c, x, y| _mm_add_ps(_mm_mul_ps(c, x), y)
);

/// Four lanes a chain, for the compiler to make vectors of.
#[cfg(not(target_arch = "x86_64"))]
fn multiply_add_portable() -> f32 {
    let (x, y) = (black_box([0.5f32; 4]), black_box([0.25f32; 4]));
    let mut chains = [x; CHAINS];
    for _ in 0..ROUNDS {
        for chain in &mut chains {
            for lane in 0..4 {
                chain[lane] = chain[lane] * x[lane] + y[lane];
            }
        }
    }
    chains.iter().map(|c| c[0]).sum()
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
        let rates = levels.map(|cpu| flops_of_bf16(&pool, cpu));
        // Between a slow and an impossible machine.
        assert!(rates.iter().all(|r| (5e8..1e14).contains(r)), "{rates:?}");
        let Roofline { flops, bytes } = Roofline::probe(&pool, levels[0], DType::F64);
        assert!((1e8..1e14).contains(&flops) && (1e8..1e13).contains(&bytes), "{flops} {bytes}");
    }

    #[test]
    fn every_level_computes_the_same() {
        // c → c/2 + 1/4 comes to 1/2 and stays there.
        for name in ["portable", "avx2", "avx512"] {
            let cpu = Cpu::named(name).expect("a level");
            assert_eq!(multiply_add(cpu), 0.5 * CHAINS as f32, "{name}");
        }
    }
}
