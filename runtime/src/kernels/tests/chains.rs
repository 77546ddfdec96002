//! Sums of products as instructions for bf16 make them, one element on its own.

use crate::kernels::cpu::Bf16;

/// Products of bf16 that are summed in one chain, where pairs are.
const CHAIN: usize = 512;
/// Products of f32 that are summed in one chain, in tiles.
const BLOCK_OF_THIRDS: usize = 128;
/// Products that an instruction for tiles sums.
const STEP: usize = 32;

/// A sum of products of bf16, as `VDPBF16PS` or `TDPBF16PS` make it.
pub fn sum_of_bf16(bf16: Bf16, terms: &[(f64, f64)]) -> f64 {
    let terms: Vec<(f32, f32)> = terms.iter().map(|&(x, y)| (x as f32, y as f32)).collect();
    let sum = match bf16 {
        Bf16::Tiles => terms.chunks(STEP).fold(0.0, |sum, step| sum + instruction(step)),
        // The product of the high halves, then that of the low ones; what lacks a partner is with zeros.
        _ => terms.chunks(CHAIN).fold(0.0f32, |blocks, block| {
            let pair = |sum: f32, pair: &[(f32, f32)]| pair.iter().rev().fold(sum, |sum, &(x, y)| x.mul_add(y, sum));
            blocks + block.chunks(2).fold(0.0, pair)
        }),
    };
    f64::from(sum)
}

/// What `TDPBF16PS` adds: a chain of the first values of pairs, and one of the second.
fn instruction(step: &[(f32, f32)]) -> f32 {
    let chain = |half: usize| step.iter().skip(half).step_by(2).fold(0.0f32, |sum, &(x, y)| x.mul_add(y, sum));
    chain(0) + chain(1)
}

/// A sum of products of f32 in tiles: six instructions for each step, of parts of A's and B's numbers.
pub fn sum_of_thirds(terms: &[(f64, f64)]) -> f64 {
    let parts: Vec<[[f32; 3]; 2]> = terms.iter().map(|&(x, y)| [thirds(x), thirds(y)]).collect();
    let block = |block: &[[[f32; 3]; 2]]| {
        let mut sum = 0.0f32;
        for step in block.chunks(STEP) {
            for [first, second] in [[2, 0], [1, 0], [1, 1], [0, 1], [0, 2], [0, 0]] {
                let terms: Vec<(f32, f32)> = step.iter().map(|[x, y]| (x[first], y[second])).collect();
                sum += instruction(&terms);
            }
        }
        sum
    };
    f64::from(parts.chunks(BLOCK_OF_THIRDS).fold(0.0, |sum, part| sum + block(part)))
}

/// Three numbers of eight bits that come to a number of 24, each the nearest to what is left, halves away from zero.
fn thirds(x: f64) -> [f32; 3] {
    let nearest = |x: f64| {
        let unit = if x == 0.0 { 1.0 } else { (x.abs().log2().floor() - 7.0).exp2() };
        (x / unit).round() * unit
    };
    let first = nearest(x);
    let second = nearest(x - first);
    let parts = [first, second, x - first - second].map(|part| part as f32);
    assert_eq!(f64::from(x as f32), parts.iter().map(|&part| f64::from(part)).sum::<f64>());
    parts
}
