//! Speed of single kernels at the shapes of a small Mixture-of-Experts model: 2048 tokens of 256, 8 experts, 8 heads of 32.
//!
//! `cargo bench -p forebay-runtime --bench kernels` prints floating-point operations as items (`Gitem/s` are GFLOP/s) and traffic as bytes. `t=1` and `t=2`
//! are the workers of the pool; divan's own threads are not used.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, Divan};
use forebay_plan::{Arg, DType, Kernel, Step, StepOp};
use forebay_runtime::kernels::Cpu;
use memory::Memory;

mod attention;
mod linear;
#[path = "../memory/mod.rs"]
mod memory;
mod others;
mod products;
mod regions;
mod routed;

fn main() {
    Divan::from_args().main();
}

const WORKERS: [usize; 2] = [1, 2];

fn bench(memory: Memory, bencher: Bencher, kernel: &Kernel, workers: usize, flops: usize, bytes: usize) {
    bench_all(memory, bencher, std::slice::from_ref(kernel), workers, flops, bytes);
}

/// Kernels one after another.
fn bench_all(memory: Memory, bencher: Bencher, kernels: &[Kernel], workers: usize, flops: usize, bytes: usize) {
    let bencher = bencher.counter(BytesCount::new(bytes)).counter(ItemsCount::new(flops));
    memory.with(Cpu::detect(), kernels, workers, |run| bencher.bench_local(run));
}

fn step(op: StepOp, args: &[Arg]) -> Step {
    Step { op, dtype: DType::F32, args: args.to_vec() }
}

/// A buffer of indices.
fn ints(memory: &mut Memory, values: &[i32]) -> u32 {
    memory.filled(DType::I32, values.len(), |i| values[i] as u32)
}
