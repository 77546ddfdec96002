//! What is compiled, and that equal code is compiled once. (What it computes is tested with all regions, which run with machine code and without: `kernels/testing`.)

use super::super::compile::compile;
use super::super::program::{Program, Run};
use super::engine::Code;
use crate::kernels::testing::harness::Memory;
use crate::kernels::{Cpu, Jit, PrepareCx};
use forebay_plan::{Arg, DType, Region, Step, StepOp, Store, View};
use std::sync::Arc;

/// Elementwise steps over rows with a gap behind each.
fn region(dtype: DType, columns: u64, list: &[(StepOp, Arg)]) -> (Region, Memory) {
    let mut memory = Memory::default();
    let mut array = || {
        let buffer = memory.add(dtype, &vec![1.5; 8 * (columns as usize + 3)]);
        View { buffer, offset: 0, strides: vec![columns + 3, 1] }
    };
    let loads = vec![array().into()];
    let of = |at: usize| if at == 0 { Arg::Load(0) } else { Arg::Step(at as u32 - 1) };
    let steps: Vec<Step> = list
        .iter()
        .enumerate()
        .map(|(at, &(op, other))| Step {
            op,
            dtype,
            args: if op == StepOp::Exp { vec![of(at)] } else { vec![of(at), other] },
        })
        .collect();
    let stores = vec![Store { value: of(list.len()), view: array() }];
    (Region { dims: vec![8, columns], row_dims: 1, ragged: None, loads, steps, stores }, memory)
}

fn compiled(region: &Region, memory: &Memory, level: &str, jit: Jit) -> Program {
    let cpu = Cpu::named(level).expect("a level").with_jit(jit);
    compile(region, &PrepareCx { buffers: &memory.buffers, cpu }).expect("the region is good")
}

/// Instructions in chains, and in machine code.
fn shares(program: &Program) -> [usize; 2] {
    let all = program.phases.iter().flat_map(|phase| &phase.runs);
    let of = |native: bool| {
        let some = all.clone().filter(|run| matches!(run, Run::Native(_)) == native);
        some.map(|run| run.range().len()).sum()
    };
    [of(false), of(true)]
}

fn code(program: &Program) -> Vec<Arc<Code>> {
    let all = program.phases.iter().flat_map(|phase| &phase.runs);
    let of = |run: &Run| if let Run::Native(native) = run { Some(Arc::clone(&native.code)) } else { None };
    all.filter_map(of).collect()
}

const SUMS: [(StepOp, Arg); 4] = [(StepOp::Add, Arg::Const(1.0)); 4];

#[test]
fn what_is_compiled() {
    let long = [(StepOp::Add, Arg::Const(1.0)); 20];
    let function = [(StepOp::Add, Arg::Const(1.0)), (StepOp::Exp, Arg::Const(0.0)), (StepOp::Mul, Arg::Const(2.0))];
    let chains = |dtype, columns, list: &[_], level, jit| {
        let (region, memory) = region(dtype, columns, list);
        shares(&compiled(&region, &memory, level, jit))
    };
    use DType::{Bf16, F32, F64, I32};
    for (dtype, columns) in [(F32, 100), (F32, 8), (F64, 100), (I32, 100)] {
        for level in ["avx512", "avx2", "portable"] {
            // Where registers are wide, chains are code of their own.
            let wide = dtype == F32 && columns == 100 && Cpu::named(level).is_some_and(|cpu| cpu.name() == "avx512");
            let expected = if wide { [4, 0] } else { [0, 4] };
            assert_eq!(chains(dtype, columns, &SUMS, level, Jit::Auto), expected, "{level}: {dtype:?}, {columns}");
            assert_eq!(chains(dtype, columns, &SUMS, level, Jit::Off)[1], 0, "{level}: {dtype:?}, {columns}");
        }
    }
    let levels =
        ["avx512", "avx2"].into_iter().filter(|level| Cpu::named(level).is_some_and(|cpu| cpu.name() == *level));
    for level in levels {
        // Functions and rounding stay in chains, where rows are long enough for them.
        assert_eq!(chains(F32, 100, &function, level, Jit::Auto), [3, 0], "{level}");
        assert_eq!(chains(Bf16, 100, &SUMS, level, Jit::Auto)[1], 0, "{level}");
        assert_eq!(chains(Bf16, 8, &SUMS, level, Jit::Auto)[0], 0, "{level}");
        // Much arithmetic stays where registers are wide.
        assert_eq!(chains(F32, 100, &long, level, Jit::Auto)[1] == 0, level == "avx512", "{level}");
    }
    assert_eq!(chains(F32, 100, &function, "avx512", Jit::On), [0, 2]);
}

#[test]
fn equal_code_is_compiled_once() {
    let [a, b, other] = [(F32, 4), (F32, 4), (F32, 3)].map(|(dtype, steps)| {
        let (region, memory) = region(dtype, 100, &SUMS[..steps]);
        code(&compiled(&region, &memory, "portable", Jit::On))
    });
    use DType::F32;
    assert!(a.len() == 1 && b.len() == 1 && other.len() == 1);
    assert!(Arc::ptr_eq(&a[0], &b[0]) && !Arc::ptr_eq(&a[0], &other[0]));
}
