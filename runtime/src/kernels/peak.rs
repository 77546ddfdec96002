//! The most multiply-adds that a core does: independent ones in registers, by the instructions that products use.

#[cfg(target_arch = "x86_64")]
use super::cpu::Bf16;
use super::cpu::{Cpu, Vectors};
#[cfg(target_arch = "x86_64")]
use super::matmul::amx;
use std::hint::black_box;

/// Independent chains: more than latency (4 cycles) times units (2), and as many as AVX2 has registers for.
const CHAINS: usize = 12;
/// Rounds of one run: about 10 ms.
const ROUNDS: u32 = 4_000_000;
/// Rounds of tiles, of which each takes as long as many of vectors.
#[cfg(target_arch = "x86_64")]
const TILE_ROUNDS: u32 = ROUNDS / 8;

/// Work in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peak(Kind);

/// What the work is made of.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// In vectors of f32.
    Vectors(Cpu),
    /// In pairs of bf16; only where the machine has them.
    #[cfg(target_arch = "x86_64")]
    Pairs,
    /// In tiles of bf16, of which so many make one; the same.
    #[cfg(target_arch = "x86_64")]
    Tiles(usize),
}

impl Peak {
    /// What elementwise work of f32 is made of.
    pub fn of_vectors(cpu: Cpu) -> Peak {
        Peak(Kind::Vectors(cpu))
    }

    /// What products of f32 are made of, where they are large.
    pub fn of_f32(cpu: Cpu) -> Peak {
        Peak(match cpu.bf16() {
            #[cfg(target_arch = "x86_64")]
            own @ Bf16::Tiles if cpu.has(own) => Kind::Tiles(amx::split::PRODUCTS),
            _ => Kind::Vectors(cpu),
        })
    }

    /// What products of bf16 are made of.
    pub fn of_bf16(cpu: Cpu) -> Peak {
        Peak(match cpu.bf16() {
            #[cfg(target_arch = "x86_64")]
            own @ Bf16::Tiles if cpu.has(own) => Kind::Tiles(1),
            #[cfg(target_arch = "x86_64")]
            own @ Bf16::Pairs if cpu.has(own) => Kind::Pairs,
            _ => Kind::Vectors(cpu),
        })
    }

    /// How many [`Peak::run`] does.
    pub fn multiply_adds(self) -> usize {
        let of_lanes = |lanes: usize| CHAINS * lanes * ROUNDS as usize;
        match self.0 {
            Kind::Vectors(cpu) => of_lanes(match cpu.vectors() {
                Vectors::Avx512 => 16,
                Vectors::Avx2 => 8,
                Vectors::Portable => 4,
            }),
            #[cfg(target_arch = "x86_64")]
            Kind::Pairs => of_lanes(32),
            #[cfg(target_arch = "x86_64")]
            Kind::Tiles(each) => amx::MULTIPLY_ADDS * TILE_ROUNDS as usize / each,
        }
    }

    /// Does them.
    pub fn run(self) {
        match self.0 {
            Kind::Vectors(cpu) => _ = black_box(multiply_add(cpu)),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the instruction, or there would be no such value.
            Kind::Pairs => _ = black_box(unsafe { multiply_add_pairs() }),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Tiles(_) => unsafe { amx::probe(TILE_ROUNDS) },
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_computes_the_same() {
        // c → c/2 + 1/4 comes to 1/2 and stays there.
        for name in ["portable", "avx2", "avx512"] {
            let cpu = Cpu::named(name).expect("a level");
            assert_eq!(multiply_add(cpu), 0.5 * CHAINS as f32, "{name}");
        }
    }
}
