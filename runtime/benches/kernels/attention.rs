//! Causal attention; only what is visible counts as work.

use super::memory::{Memory, view};
use super::{WORKERS, bench};
use divan::Bencher;
use forebay_plan::{Attention, AttentionBackward, AttentionInputs, DType, Kernel, ScorePair, View};

/// [batch, sequence, heads, size] in memory; the groups of queries that share a key and a value lie side by side.
fn inputs(memory: &mut Memory, dtype: DType, [b, h, group, n, d]: [u64; 5]) -> (AttentionInputs, [View; 3], View) {
    let mut array = |heads: u64| {
        let buffer = memory.add(dtype, (b * n * heads * d) as usize);
        let own = if heads == h { [d * group, d] } else { [d, 0] };
        view(buffer, &[n * heads * d, own[0], own[1], heads * d, 1])
    };
    let (q, k, v) = (array(h), array(h / group), array(h / group));
    let results = [(); 3].map(|()| array(h));
    let lse = view(memory.add(DType::F32, (b * h * n) as usize), &[h * n, group * n, n, 1]);
    let inputs = AttentionInputs {
        dtype,
        batch: vec![b, h / group, group],
        queries: n,
        keys: n,
        pairs: vec![ScorePair { size: d, q, k }],
        v,
        value_size: d,
        scale: 1.0 / (d as f64).sqrt() / 16.0,
        causal: true,
        window: 0,
        documents: None,
        positions: None,
        sink: None,
    };
    (inputs, results, lse)
}

fn forward(bencher: Bencher, workers: usize, dtype: DType, sizes: [u64; 5]) {
    let mut memory = Memory::default();
    let (inputs, [out, ..], lse) = inputs(&mut memory, dtype, sizes);
    let kernel = Kernel::Attention(Attention { inputs, out, lse });
    let (flops, bytes) = (kernel.flops() as usize, kernel.traffic(&memory.buffers).bytes() as usize);
    bench(memory, bencher, &kernel, workers, flops, bytes);
}

fn backward(bencher: Bencher, workers: usize, dtype: DType, sizes: [u64; 5]) {
    let mut memory = Memory::default();
    let (inputs, [out, d_out, d_q], lse) = inputs(&mut memory, dtype, sizes);
    let elements = |memory: &Memory, view: &View| memory.buffers[view.buffer as usize].elements as usize;
    let keys = elements(&memory, &inputs.v);
    let mut gradient = || View { buffer: memory.add(dtype, keys), ..inputs.v.clone() };
    let (d_k, d_v) = (gradient(), gradient());
    let (d_q, d_k, d_v) = (vec![Some(d_q)], vec![Some(d_k)], Some(d_v));
    let kernel = AttentionBackward { inputs, out, lse, d_out, d_q, d_k, d_v, d_sink: None };
    let kernel = Kernel::AttentionBackward(kernel);
    let (flops, bytes) = (kernel.flops() as usize, kernel.traffic(&memory.buffers).bytes() as usize);
    bench(memory, bencher, &kernel, workers, flops, bytes);
}

const SMALL: [u64; 5] = [8, 8, 1, 256, 32];
const LARGE: [u64; 5] = [4, 16, 1, 512, 64];
/// That of bench-small.
const TWELVE_HEADS: [u64; 5] = [4, 12, 1, 512, 64];

#[divan::bench(args = WORKERS)]
fn forward_8x8x256x32(bencher: Bencher, workers: usize) {
    forward(bencher, workers, DType::F32, SMALL);
}

#[divan::bench(args = WORKERS)]
fn backward_8x8x256x32(bencher: Bencher, workers: usize) {
    backward(bencher, workers, DType::F32, SMALL);
}

#[divan::bench(args = WORKERS)]
fn forward_4x16x512x64(bencher: Bencher, workers: usize) {
    forward(bencher, workers, DType::F32, LARGE);
}

#[divan::bench(args = WORKERS)]
fn backward_4x16x512x64(bencher: Bencher, workers: usize) {
    backward(bencher, workers, DType::F32, LARGE);
}

#[divan::bench(args = WORKERS)]
fn forward_4x12x512x64(bencher: Bencher, workers: usize) {
    forward(bencher, workers, DType::F32, TWELVE_HEADS);
}

#[divan::bench(args = WORKERS)]
fn backward_4x12x512x64(bencher: Bencher, workers: usize) {
    backward(bencher, workers, DType::F32, TWELVE_HEADS);
}

#[divan::bench(args = WORKERS)]
fn forward_bf16_4x12x512x64(bencher: Bencher, workers: usize) {
    forward(bencher, workers, DType::Bf16, TWELVE_HEADS);
}

#[divan::bench(args = WORKERS)]
fn backward_bf16_4x12x512x64(bencher: Bencher, workers: usize) {
    backward(bencher, workers, DType::Bf16, TWELVE_HEADS);
}

#[divan::bench(args = WORKERS)]
fn forward_bf16_4x16x512x64(bencher: Bencher, workers: usize) {
    forward(bencher, workers, DType::Bf16, LARGE);
}

#[divan::bench(args = WORKERS)]
fn backward_bf16_4x16x512x64(bencher: Bencher, workers: usize) {
    backward(bencher, workers, DType::Bf16, LARGE);
}

#[divan::bench(args = WORKERS)]
fn backward_grouped_4x16_4x512x64(bencher: Bencher, workers: usize) {
    backward(bencher, workers, DType::F32, [4, 16, 4, 512, 64]);
}
