//! Whole models with each kind of CPU instructions, with regions compiled and not, and with each op a kernel of its own: which of these give equal bits, and how far
//! the others are apart.

use crate::common;

use common::training::{self, Run};
use common::{Example, all_cases, examples};
use forebay_compiler::emit::Joins;
use forebay_ir::DType;
use forebay_plan::{Kernel, Plan};
use forebay_runtime::exec::ExecOptions;
use forebay_runtime::kernels::{Cpu, Jit};

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
/// bf16 a router may choose another expert for a token, so that there losses are compared alone.
#[test]
fn levels_train_the_same() {
    for (example, types) in cases() {
        for &compute in types {
            let (name, plan) = (&example.name, plan(&example, compute));
            let avx2 = trained(name, &plan, named("avx2"));
            let what = |level: &str| format!("{name} in {compute}, {level} and avx2");
            let equal: &[&str] = if compute == DType::F32 { &["avx512", "avx512bf16"] } else { &["avx512"] };
            for level in equal {
                assert!(trained(name, &plan, named(level)).bits() == avx2.bits(), "{}", what(level));
            }
            for level in ["portable", "avx512bf16", "amx"] {
                let run = trained(name, &plan, named(level));
                match compute {
                    DType::F32 => training::compare(&what(level), &run, &avx2, 1e-4),
                    _ => near(&what(level), &run.losses, &avx2.losses),
                }
            }
        }
    }
}

fn near(what: &str, losses: &[f64], others: &[f64]) {
    for (loss, other) in losses.iter().zip(others) {
        assert!((loss - other).abs() <= 5e-3 * other, "{what}: {losses:?}, {others:?}");
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
}

/// The most values that one kernel of elementwise work makes, a product before it among them.
fn longest(plan: &Plan) -> usize {
    let kernels = plan.programs.iter().flat_map(|p| &p.instructions).map(|i| match &i.kernel {
        Kernel::Region(region) => region.stores.len(),
        Kernel::Matmul(matmul) => 1 + usize::from(matmul.epilogue.is_some()),
        _ => 1,
    });
    kernels.max().unwrap_or(0)
}

/// Nor does what is joined into one kernel.
#[test]
fn joined_kernels_train_the_same() {
    for (example, types) in cases() {
        for &compute in types {
            let name = &example.name;
            let joined = plan(&example, compute);
            let mut options = training::reduced_options(&example, "dp=1", compute, &[]);
            options.joins = Joins::Off;
            let single = training::plan_with(&example, &training::strategy("dp=1"), options)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(longest(&joined) > 1 && longest(&single) == 1, "{name} in {compute}");
            let cpu = Cpu::detect();
            assert!(trained(name, &joined, cpu).bits() == trained(name, &single, cpu).bits(), "{name} in {compute}");
        }
    }
}
