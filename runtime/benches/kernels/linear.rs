//! Linear attention: what counts as work is reading the state and adding to it, once for each position.

use super::memory::{Memory, view};
use super::{WORKERS, bench};
use divan::Bencher;
use forebay_plan::{DType, Kernel, LinearAttention, LinearReads, View};

/// [positions, heads, size] in memory.
fn linear(bencher: Bencher, workers: usize, dtype: DType, reads: LinearReads, [heads, n, key, value]: [u64; 4]) {
    let mut memory = Memory::default();
    let mut array = |size: u64| view(memory.add(dtype, (n * heads * size) as usize), &[size, heads * size, 1]);
    let [q, k, v, out] = [key, key, value, value].map(&mut array);
    // Small queries, so that results of systems do not grow: 1/128 and a little more.
    let small = |view: &View, memory: &mut Memory| {
        let tail = if dtype == DType::F32 { 0 } else { 0x3c00 };
        let word = |i: usize| 0x3c00_0000 | tail | (i % 64) as u32;
        View { buffer: memory.filled(dtype, (n * heads * key) as usize, word), ..view.clone() }
    };
    let q = small(&q, &mut memory);
    // All are -0.1.
    let g = memory.filled(DType::F32, (n * heads) as usize, |_| (-0.1f32).to_bits());
    let kernel = Kernel::LinearAttention(LinearAttention {
        dtype,
        result: dtype,
        reads,
        backward: false,
        batch: vec![heads],
        positions: n,
        keys: vec![key],
        values: vec![value],
        q,
        k,
        v,
        g: view(g, &[1, heads]),
        out,
    });
    let (flops, bytes) = (kernel.flops() as usize, kernel.traffic(&memory.buffers).bytes() as usize);
    bench(memory, bencher, &kernel, workers, flops, bytes);
}

const HEADS: [u64; 4] = [8, 2048, 128, 128];
const WIDE: [u64; 4] = [4, 2048, 256, 256];

#[divan::bench(args = WORKERS)]
fn inclusive_8x2048x128x128(bencher: Bencher, workers: usize) {
    linear(bencher, workers, DType::F32, LinearReads::Inclusive, HEADS);
}

#[divan::bench(args = WORKERS)]
fn inclusive_bf16_8x2048x128x128(bencher: Bencher, workers: usize) {
    linear(bencher, workers, DType::Bf16, LinearReads::Inclusive, HEADS);
}

#[divan::bench(args = WORKERS)]
fn solve_8x2048x128x128(bencher: Bencher, workers: usize) {
    linear(bencher, workers, DType::F32, LinearReads::Solve, HEADS);
}

#[divan::bench(args = WORKERS)]
fn solve_bf16_8x2048x128x128(bencher: Bencher, workers: usize) {
    linear(bencher, workers, DType::Bf16, LinearReads::Solve, HEADS);
}

#[divan::bench(args = WORKERS)]
fn inclusive_4x2048x256x256(bencher: Bencher, workers: usize) {
    linear(bencher, workers, DType::F32, LinearReads::Inclusive, WIDE);
}
