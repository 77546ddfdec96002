//! Matrix products: dense, in all orientations, and of experts.

use super::memory::Memory;
use super::{WORKERS, bench, ints};
use divan::Bencher;
use forebay_plan::{BatchDim, DType, Groups, Kernel, MatDim, Matmul, RaggedDim};

/// (batch, m, k, n) with A and B as they are or transposed in memory.
fn dense(bencher: Bencher, workers: usize, dtype: DType, [b, m, k, n]: [usize; 4], turned: [bool; 2]) {
    let mut memory = Memory::default();
    let (a, bb, c) = (memory.add(dtype, b * m * k), memory.add(dtype, b * k * n), memory.add(dtype, b * m * n));
    let (m64, k64, n64) = (m as u64, k as u64, n as u64);
    let (sa, sb) = (if turned[0] { (1, m64) } else { (k64, 1) }, if turned[1] { (1, k64) } else { (n64, 1) });
    let kernel = Kernel::Matmul(Matmul {
        dtype,
        a,
        b: bb,
        c,
        offsets: [0; 3],
        batch: vec![BatchDim(b as u64, m64 * k64, k64 * n64, m64 * n64)],
        m: MatDim(m64, sa.0, n64),
        n: MatDim(n64, sb.1, 1),
        k: MatDim(k64, sa.1, sb.0),
        k_outer: vec![],
        groups: None,
        accumulate: false,
        epilogue: None,
    });
    let bytes = b * (m * k + k * n + m * n) * dtype.bytes() as usize;
    bench(memory, bencher, &kernel, workers, 2 * b * m * k * n, bytes);
}

#[divan::bench(args = WORKERS)]
fn nn_2048x256x256(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 2048, 256, 256], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn nn_2048x256x512(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 2048, 256, 512], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn nn_2048x256x1024(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 2048, 256, 1024], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn nn_2048x256x512_bf16(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::Bf16, [1, 2048, 256, 512], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn nn_2048x256x512_f64(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F64, [1, 2048, 256, 512], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn nt_2048x512x256(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 2048, 512, 256], [false, true]);
}

#[divan::bench(args = WORKERS)]
fn nt_512x512x256(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 512, 512, 256], [false, true]);
}

#[divan::bench(args = WORKERS)]
fn tn_256x2048x512(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 256, 2048, 512], [true, false]);
}

#[divan::bench(args = WORKERS)]
fn tn_256x2048x512_bf16(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::Bf16, [1, 256, 2048, 512], [true, false]);
}

#[divan::bench(args = WORKERS)]
fn nt_2048x512x256_bf16(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::Bf16, [1, 2048, 512, 256], [false, true]);
}

#[divan::bench(args = WORKERS)]
fn nn_2048x768x1024_bf16(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::Bf16, [1, 2048, 768, 1024], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn nn_2048x768x768_bf16(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::Bf16, [1, 2048, 768, 768], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn nt_2048x1024x768_bf16(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::Bf16, [1, 2048, 1024, 768], [false, true]);
}

#[divan::bench(args = WORKERS)]
fn tn_768x2048x1024_bf16(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::Bf16, [1, 768, 2048, 1024], [true, false]);
}

#[divan::bench(args = WORKERS)]
fn nn_2048x768x8192_bf16(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::Bf16, [1, 2048, 768, 8192], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn attention_scores_64x256x32x256(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [64, 256, 32, 256], [false, true]);
}

#[divan::bench(args = WORKERS)]
fn attention_values_64x256x256x32(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [64, 256, 256, 32], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn attention_dkeys_64x256x256x32(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [64, 256, 256, 32], [true, false]);
}

#[divan::bench(args = WORKERS)]
fn one_row_1x256x1024(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 1, 256, 1024], [false, false]);
}

/// Rows of B are 32 KiB apart.
#[divan::bench(args = WORKERS)]
fn nn_2048x768x8192(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 2048, 768, 8192], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn tn_768x2048x8192(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 768, 2048, 8192], [true, false]);
}

#[divan::bench(args = WORKERS)]
fn few_rows_4x256x1024(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 4, 256, 1024], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn few_rows_16x256x1024(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 16, 256, 1024], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn few_rows_64x256x1024(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::F32, [1, 64, 256, 1024], [false, false]);
}

#[divan::bench(args = WORKERS)]
fn few_rows_64x256x1024_bf16(bencher: Bencher, workers: usize) {
    dense(bencher, workers, DType::Bf16, [1, 64, 256, 1024], [false, false]);
}

/// Experts of uneven sizes, where their rows begin.
const LARGE: [i32; 9] = [0, 700, 1100, 1650, 2150, 2600, 3190, 3700, 4096];
/// The same of 1 to 64 rows.
const SMALL: [i32; 9] = [0, 1, 3, 7, 15, 31, 55, 87, 151];

/// Experts with 4096 rows in all.
fn grouped(bencher: Bencher, workers: usize, dtype: DType, ragged: RaggedDim, size: [usize; 2], turned: bool) {
    experts(bencher, workers, dtype, ragged, size, turned, LARGE);
}

fn experts(
    bencher: Bencher,
    workers: usize,
    dtype: DType,
    ragged: RaggedDim,
    [d, f]: [usize; 2],
    turned: bool,
    starts: [i32; 9],
) {
    let (rows, experts) = (starts[8] as usize, 8usize);
    let mut memory = Memory::default();
    let offsets = ints(&mut memory, &starts);
    let (r64, d64, f64) = (rows as u64, d as u64, f as u64);
    let kernel = if ragged == RaggedDim::M {
        // [rows, d] · [experts, d, f]
        let (a, b, c) = (memory.add(dtype, rows * d), memory.add(dtype, experts * d * f), memory.add(dtype, rows * f));
        let sb = if turned { (1, d64) } else { (f64, 1) };
        Matmul {
            dtype,
            a,
            b,
            c,
            offsets: [0; 3],
            batch: vec![],
            m: MatDim(r64, d64, f64),
            n: MatDim(f64, sb.1, 1),
            k: MatDim(d64, 1, sb.0),
            k_outer: vec![],
            groups: Some(Groups { offsets, count: 8, even: r64, ragged, strides: [0, d64 * f64, 0] }),
            accumulate: false,
            epilogue: None,
        }
    } else {
        // [rows, d]ᵀ · [rows, f], added to [experts, d, f]; in bf16, as gradients that are no sums, instead of what is there
        let (a, b, c) = (memory.add(dtype, rows * d), memory.add(dtype, rows * f), memory.add(dtype, experts * d * f));
        Matmul {
            dtype,
            a,
            b,
            c,
            offsets: [0; 3],
            batch: vec![],
            m: MatDim(d64, 1, f64),
            n: MatDim(f64, 1, 1),
            k: MatDim(r64, d64, f64),
            k_outer: vec![],
            groups: Some(Groups { offsets, count: 8, even: r64, ragged, strides: [0, 0, d64 * f64] }),
            accumulate: dtype != DType::Bf16,
            epilogue: None,
        }
    };
    let bytes = dtype.bytes() as usize * (rows * d + experts * d * f + rows * f);
    bench(memory, bencher, &Kernel::Matmul(kernel), workers, 2 * rows * d * f, bytes);
}

#[divan::bench(args = WORKERS)]
fn experts_4096x256x512(bencher: Bencher, workers: usize) {
    grouped(bencher, workers, DType::F32, RaggedDim::M, [256, 512], false);
}

#[divan::bench(args = WORKERS)]
fn experts_4096x512x256(bencher: Bencher, workers: usize) {
    grouped(bencher, workers, DType::F32, RaggedDim::M, [512, 256], false);
}

#[divan::bench(args = WORKERS)]
fn experts_dx_4096x512x256(bencher: Bencher, workers: usize) {
    grouped(bencher, workers, DType::F32, RaggedDim::M, [512, 256], true);
}

#[divan::bench(args = WORKERS)]
fn experts_dw_256x4096x512(bencher: Bencher, workers: usize) {
    grouped(bencher, workers, DType::F32, RaggedDim::K, [256, 512], false);
}

#[divan::bench(args = WORKERS)]
fn experts_bf16_4096x256x512(bencher: Bencher, workers: usize) {
    grouped(bencher, workers, DType::Bf16, RaggedDim::M, [256, 512], false);
}

#[divan::bench(args = WORKERS)]
fn experts_bf16_4096x768x1024(bencher: Bencher, workers: usize) {
    grouped(bencher, workers, DType::Bf16, RaggedDim::M, [768, 1024], false);
}

#[divan::bench(args = WORKERS)]
fn experts_dx_bf16_4096x1024x768(bencher: Bencher, workers: usize) {
    grouped(bencher, workers, DType::Bf16, RaggedDim::M, [1024, 768], true);
}

#[divan::bench(args = WORKERS)]
fn experts_dw_bf16_768x4096x1024(bencher: Bencher, workers: usize) {
    grouped(bencher, workers, DType::Bf16, RaggedDim::K, [768, 1024], false);
}

#[divan::bench(args = WORKERS)]
fn experts_dx_bf16_4096x512x256(bencher: Bencher, workers: usize) {
    grouped(bencher, workers, DType::Bf16, RaggedDim::M, [512, 256], true);
}

#[divan::bench(args = WORKERS)]
fn experts_dw_bf16_256x4096x512(bencher: Bencher, workers: usize) {
    grouped(bencher, workers, DType::Bf16, RaggedDim::K, [256, 512], false);
}

#[divan::bench(args = WORKERS)]
fn experts_of_1_to_64_rows_256x512(bencher: Bencher, workers: usize) {
    experts(bencher, workers, DType::F32, RaggedDim::M, [256, 512], false, SMALL);
}

#[divan::bench(args = WORKERS)]
fn experts_of_1_to_64_rows_bf16_256x512(bencher: Bencher, workers: usize) {
    experts(bencher, workers, DType::Bf16, RaggedDim::M, [256, 512], false, SMALL);
}
