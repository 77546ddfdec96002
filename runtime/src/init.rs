//! The first values of tensors.
//!
//! Element i of tensor `name` is a function of (seed, name, i), i counted in row-major order: the same whatever the threads, the CPU level, the
//! layout, the order of tensors, or the type (up to rounding to bf16). [`crate::kernels::draw`] says which function.

use crate::exec::{ExecError, Executor, element};
use crate::hash;
use crate::kernels::Cpu;
use crate::kernels::draw::{Distribution, draw};
use crate::kernels::narrow;
use forebay_plan::{DType, Init};

/// Elements that are made at once, on the stack.
const BLOCK: usize = 1024;

/// Gives every tensor its first value.
///
/// # Errors
/// When a rank or process has given up.
pub fn initialise(executor: &mut Executor) -> Result<(), ExecError> {
    let (seed, cpu) = (executor.seed(), executor.cpu());
    executor.fill_tensors(&|tensor, first, bytes| {
        fill(cpu, tensor.init, hash::key(seed, &tensor.name), first, tensor.dtype, bytes);
    })?;
    refresh_copies(executor)
}

/// Makes the copies of parameters in the compute type again, after parameters were changed from outside.
///
/// # Errors
/// When a rank or process has given up.
pub fn refresh_copies(executor: &mut Executor) -> Result<(), ExecError> {
    let cpu = executor.cpu();
    executor.fill_copies(&|(param, master), (copy, bytes)| convert(cpu, param.dtype, master, copy.dtype, bytes))
}

/// Fills part of a tensor, from element `first` on.
fn fill(cpu: Cpu, init: Init, key: u64, first: u64, dtype: DType, bytes: &mut [u8]) {
    let drawn = |distribution, bytes: &mut [u8]| {
        let mut values = [0f32; BLOCK];
        let blocks = bytes.chunks_mut(BLOCK * dtype.bytes() as usize);
        for (block, start) in blocks.zip((first..).step_by(BLOCK)) {
            let values = &mut values[..block.len() / dtype.bytes() as usize];
            draw(cpu, distribution, key, start, values);
            write(values, dtype, block);
        }
    };
    match init {
        Init::Constant(c) => {
            let values = [c; BLOCK];
            bytes.chunks_mut(BLOCK * dtype.bytes() as usize).for_each(|block| write(&values, dtype, block));
        }
        Init::Normal(std) => drawn(Distribution::Normal(std), bytes),
        Init::TruncatedNormal(std) => drawn(Distribution::TruncatedNormal(std), bytes),
        Init::Uniform(lo, hi) => drawn(Distribution::Uniform(lo, hi), bytes),
        Init::FromParam => {}
    }
}

/// Elements of one type as those of another.
fn convert(cpu: Cpu, from: DType, master: &[u8], to: DType, copy: &mut [u8]) {
    if (from, to) == (DType::F32, DType::Bf16) {
        return narrow::to_bf16(cpu, master, copy);
    }
    let mut values = [0f64; BLOCK];
    let blocks = master.chunks(BLOCK * from.bytes() as usize).zip(copy.chunks_mut(BLOCK * to.bytes() as usize));
    for (master, copy) in blocks {
        values.iter_mut().take(master.len() / from.bytes() as usize).enumerate().for_each(|(i, value)| {
            *value = element(from, master, i);
        });
        write(&values, to, copy);
    }
}

/// Writes as many of the values as there is room for.
fn write<T: Copy + Into<f64>>(values: &[T], dtype: DType, bytes: &mut [u8]) {
    fn each<T: Copy + Into<f64>, const N: usize>(values: &[T], bytes: &mut [u8], of: impl Fn(f64) -> [u8; N]) {
        bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(place, value)| *place = of((*value).into()));
    }
    match dtype {
        DType::F64 => each(values, bytes, f64::to_ne_bytes),
        DType::F32 => each(values, bytes, |value| (value as f32).to_ne_bytes()),
        // Through f32, as a cast kernel rounds the f32 master.
        DType::Bf16 => each(values, bytes, |value| half::bf16::from_f32(value as f32).to_ne_bytes()),
        DType::I32 => each(values, bytes, |value| (value as i32).to_ne_bytes()),
        DType::I16 => each(values, bytes, |value| (value as i16).to_ne_bytes()),
        DType::Bool => each(values, bytes, |value| [u8::from(value != 0.0)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::ExecOptions;
    use crate::testing::tiny_plan;

    #[test]
    fn types_have_the_same_values() {
        let elements = 2 * BLOCK + 17;
        let filled = |init, dtype: DType| {
            let mut bytes = vec![0u8; elements * dtype.bytes() as usize];
            fill(Cpu::detect(), init, 42, 5, dtype, &mut bytes);
            (0..elements).map(|i| element(dtype, &bytes, i)).collect::<Vec<f64>>()
        };
        for init in [Init::Normal(1.0), Init::TruncatedNormal(0.5), Init::Uniform(-1.0, 1.0), Init::Constant(0.5)] {
            let wide = filled(init, DType::F64);
            assert_eq!(filled(init, DType::F32), wide);
            let rounded = wide.iter().map(|v| half::bf16::from_f64(*v).to_f64()).collect::<Vec<f64>>();
            assert_eq!(filled(init, DType::Bf16), rounded);
        }
        assert_eq!(filled(Init::Constant(3.0), DType::I32), vec![3.0; elements]);
        assert_eq!(filled(Init::Constant(1.0), DType::Bool), vec![1.0; elements]);
    }

    /// A copy in bf16 has what a cast makes of the master, at every CPU level.
    #[test]
    fn copies_are_rounded() {
        let special = [0.0, -0.0, f32::INFINITY, f32::NAN, 1e-40, f32::MAX, f32::from_bits(0x3f80_8000)];
        let masters = || special.into_iter().chain((0..2 * BLOCK as u32 + 17).map(|i| (i as f32).sin()));
        let bytes: Vec<u8> = masters().flat_map(f32::to_ne_bytes).collect();
        let expected: Vec<u8> = masters().flat_map(|x| half::bf16::from_f32(x).to_ne_bytes()).collect();
        for level in ["portable", "avx2", "avx512"] {
            let mut copy = vec![0u8; bytes.len() / 2];
            convert(Cpu::named(level).expect("a level"), DType::F32, &bytes, DType::Bf16, &mut copy);
            assert_eq!(copy, expected, "{level}");
        }
    }

    /// Memory that was used is written, whatever was there.
    #[test]
    fn a_second_time() {
        let plan = tiny_plan(1000);
        let mut executor = Executor::new(&plan, &ExecOptions::default()).expect("it can be run");
        let all =
            |executor: &Executor| plan.roles[0].tensors.iter().map(|t| executor.tensor(t).to_vec()).collect::<Vec<_>>();
        initialise(&mut executor).expect("all ranks are well");
        let first = all(&executor);
        plan.roles[0].tensors.iter().for_each(|t| executor.tensor_mut(t).fill(1));
        initialise(&mut executor).expect("all ranks are well");
        for ((tensor, first), second) in plan.roles[0].tensors.iter().zip(first).zip(all(&executor)) {
            assert_eq!(first, second, "{}", tensor.name);
        }
    }
}
