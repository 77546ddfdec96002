//! Whole models with each kind of CPU instructions, with regions compiled and not, and with each op a kernel of its own: which of these give equal bits, and how far
//! the others are apart.

use crate::common;

use common::training::{self, Run};
use common::{Example, all_cases, examples};
use forebay_compiler::emit::Joins;
use forebay_compiler::rewrite::Selection;
use forebay_ir::DType;
use forebay_plan::{Kernel, Plan, Region, StepOp};
use forebay_runtime::exec::ExecOptions;
use forebay_runtime::kernels::{Cpu, Jit, compiled};

fn trained(name: &str, plan: &Plan, cpu: Cpu) -> Run {
    training::train_with(name, plan, 3, &ExecOptions { cpu, ..ExecOptions::default() })
}

fn named(level: &str) -> Cpu {
    Cpu::named(level).unwrap_or_else(|| panic!("there is no level {level}"))
}

/// The models with the types in which they are trained: f32, and of some bf16 as well (`FOREBAY_TEST_ALL=1`: of all).
fn cases() -> Vec<(Example, &'static [DType])> {
    let types = |name: &str| match all_cases() || ["bench-tiny", "deepseek-v3", "gpt-oss-120b"].contains(&name) {
        true => &[DType::F32, DType::BF16][..],
        false => &[DType::F32],
    };
    let typed = |example: Example| {
        let types = types(&example.name);
        (example, types)
    };
    examples().into_iter().map(typed).collect()
}

fn plan(example: &Example, compute: DType) -> Plan {
    training::plan(example, "dp=1", compute, &[]).unwrap_or_else(|e| panic!("{}: {e}", example.name))
}

/// Forced down to AVX2 a model trains to the bits of AVX-512, and in f32 of whatever does not make f32 products of bf16. Others come as near as their products are; in
/// bf16 a router may choose another expert for a token, so that tensors are not compared. Levels that this machine has not are left out.
#[test]
fn levels_train_the_same() {
    for (example, types) in cases() {
        for &compute in types {
            let (name, plan) = (&example.name, plan(&example, compute));
            let avx2 = trained(name, &plan, named("avx2"));
            for level in ["portable", "avx512", "avx512bf16", "amx"] {
                if named(level).name() != level {
                    println!("there is no {level} here");
                    continue;
                }
                let (what, run) =
                    (format!("{name} in {compute}, {level} and avx2"), trained(name, &plan, named(level)));
                match (level, compute) {
                    ("avx512", _) | ("avx512bf16", DType::F32) => assert!(run.bits() == avx2.bits(), "{what}"),
                    (_, DType::F32) => training::compare(&what, &run, &avx2, 1e-4),
                    _ => near(&what, &run, &avx2),
                }
            }
        }
    }
}

/// Losses within half a percent, gradient norms within a twentieth.
fn near(what: &str, run: &Run, other: &Run) {
    let losses = |run: &Run| [&run.losses[..], &[run.evaluation]].concat();
    for (numbers, others, part) in [(losses(run), losses(other), 5e-3), (run.norms.clone(), other.norms.clone(), 5e-2)]
    {
        for (a, b) in numbers.iter().zip(&others) {
            assert!((a - b).abs() <= part * b, "{what}: {numbers:?}, {others:?}");
        }
    }
}

/// Whether regions are compiled to machine code makes no difference to the bits.
#[test]
fn compiled_regions_train_the_same() {
    for (example, types) in cases() {
        for &compute in types {
            let (name, plan) = (&example.name, plan(&example, compute));
            let run = |level, jit| trained(name, &plan, named(level).with_jit(jit)).bits();
            for level in ["avx512bf16", "avx2", "portable"] {
                assert!(run(level, Jit::On) == run(level, Jit::Off), "{name} in {compute} at {level}");
            }
        }
    }
    // Equal ones once, also those of other tests.
    assert!(compiled().0 > 100, "regions were compiled");
}

/// The most steps that one kernel of elementwise work has, without indices; a product before it is one more.
fn longest(plan: &Plan) -> usize {
    let steps = |region: &Region| region.steps.iter().filter(|s| !matches!(s.op, StepOp::Index(_))).count();
    let kernels = plan.programs.iter().flat_map(|p| &p.instructions).map(|i| match &i.kernel {
        Kernel::Region(region) => steps(region),
        Kernel::Matmul(matmul) => 1 + matmul.epilogue.as_deref().map_or(0, steps),
        _ => 1,
    });
    kernels.max().unwrap_or(0)
}

/// Nor does what is joined into one kernel: with rewriting and without, and where ranks and micro-batches share the work.
#[test]
fn joined_kernels_train_the_same() {
    let check = |example: &Example, strategy: &str, compute: DType, selection: Selection| {
        let what = format!("{} in {compute}, {strategy}, {selection:?}", example.name);
        let with = |joins: Joins| {
            let mut options = training::reduced_options(example, strategy, compute, &[]);
            (options.joins, options.rewrite.selection) = (joins, selection.clone());
            training::plan_with(example, &training::strategy(strategy), options)
                .unwrap_or_else(|e| panic!("{what}: {e}"))
        };
        let (joined, single) = (with(Joins::All), with(Joins::Off));
        // (What depends on positions alone is computed wherever it is read: a step or two more.)
        let lengths = [&joined, &single].map(longest);
        assert!(lengths[0] > 3 && lengths[1] <= 3, "{what}: {lengths:?}");
        let bits = |plan: &Plan| trained(&what, plan, Cpu::detect()).bits();
        assert!(bits(&joined) == bits(&single), "{what}");
    };
    for (example, types) in cases() {
        for &compute in types {
            check(&example, "dp=1", compute, Selection::All);
        }
    }
    let tiny = Example::named("bench-tiny");
    for compute in [DType::F32, DType::BF16] {
        check(&tiny, "dp=1", compute, Selection::Off);
        for strategy in ["micro=2", "dp=2,zero=1", "tp=2", "ep=2,dp=2,zero=3,recompute=full", "pp=2,micro=2"] {
            check(&tiny, strategy, compute, Selection::All);
        }
    }
}
