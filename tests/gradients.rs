//! Gradients that are no sums, kept as they are computed: half the bytes, the same training bit for bit, the same checkpoints.

use crate::common;

use common::training::{plan_with, reduced_options, saved, strategy, train};
use common::{Example, options};
use forebay_compiler::optimizer::Optimizer;
use forebay_compiler::pipeline::{CompileOptions, compile_training};
use forebay_compiler::schedule::Gradients;
use forebay_cost::Cluster;
use forebay_dsl::model::Const;
use forebay_ir::DType;
use forebay_plan::{DType as Of, Phase, Plan, Role, TensorKind};
use forebay_sim::report::{Options, simulate};

/// The plan with gradients that are no sums as they are computed, and that with all of them wide.
fn both(example: &Example, text: &str, options: &CompileOptions) -> [Plan; 2] {
    [Gradients::Single, Gradients::Wide].map(|gradients| {
        let options = CompileOptions { gradients, ..options.clone() };
        plan_with(example, &strategy(text), options).unwrap_or_else(|e| panic!("{} {text}: {e}", example.name))
    })
}

fn of(name: &str, text: &str, compute: DType) -> [Plan; 2] {
    let example = Example::named(name);
    both(&example, text, &reduced_options(&example, text, compute, &[]))
}

fn training(role: &Role) -> &Phase {
    role.phases.iter().find(|p| p.name == "train").expect("trains")
}

/// The names of a role's parameters whose gradients are of a type.
fn with_gradients(role: &Role, dtype: Of) -> Vec<&str> {
    let gradients = role.tensors.iter().filter(|t| t.kind == TensorKind::Gradient);
    gradients.filter(|t| t.dtype == dtype).map(|t| t.name.as_str()).collect()
}

/// Casts of gradients behind what computes them.
fn widened(plan: &Plan) -> usize {
    let backward = plan.programs.iter().filter(|p| p.name.starts_with("train.") && p.name.contains(".backward"));
    backward.flat_map(|p| &p.instructions).filter(|i| i.name.starts_with("param.") && i.name.ends_with(".wide")).count()
}

/// On ranks that have parameters of their own, nothing is summed. The oracle is the plan whose gradients are all wide.
#[test]
fn training_is_the_same_bits_in_half_the_bytes() {
    for (name, text) in [
        ("tiny-moe", "micro=1"),
        ("tiny-moe", "micro=1,master_weights=split"),
        ("tiny-moe", "micro=1,moments=bf16"),
        ("tiny-moe", "micro=1,optimizer=host"),
        ("tiny-moe", "micro=1,optimizer=host,master_weights=split"),
        ("bench-tiny", "micro=1,recompute=full"),
        ("bench-tiny", "micro=1,keep=inputs"),
        ("gpt-oss-120b", "micro=1,zero=1"),
        ("llama-3-70b", "pp=2,micro=1"),
    ] {
        let [single, wide] = of(name, text, DType::BF16);
        assert_eq!(widened(&single), 0, "{name} {text}");
        assert!(widened(&wide) > 0, "{name} {text}");
        for (single, wide) in single.roles.iter().zip(&wide.roles) {
            assert!(with_gradients(single, Of::F32).is_empty() && with_gradients(wide, Of::Bf16).is_empty());
            let (less, more) = (training(single).memory.gradients, training(wide).memory.gradients);
            assert_eq!(2 * less, more, "{name} {text}");
            assert_eq!(wide.persistent_bytes - single.persistent_bytes, less, "{name} {text}: nothing else changes");
        }
        assert!(train(name, &single, 3).bits() == train(name, &wide, 3).bits(), "{name} {text}: other bits");
    }
}

/// What is summed over ranks stays wide; what is not, such as experts that one rank alone has, does not.
#[test]
fn sums_over_ranks_stay_wide() {
    for (name, text) in [
        ("mixtral-8x7b", "dp=4,ep=4,zero=0"),
        ("mixtral-8x7b", "dp=4,ep=4,zero=1,master_weights=split"),
        ("tiny-moe", "dp=2,tp=2,ep=4,zero=1,optimizer=host"),
        ("tiny-moe", "dp=2,ep=2,zero=2"),
        ("tiny-moe", "dp=4,ep=4,zero=3"),
        ("qwen3-30b-a3b", "pp=2,tp=2,ep=2,micro=1,schedule=zb-h1"),
    ] {
        let [single, wide] = of(name, text, DType::BF16);
        let (mut narrow, mut sums) = (0, 0);
        for (single, wide) in single.roles.iter().zip(&wide.roles) {
            assert!(with_gradients(wide, Of::Bf16).is_empty());
            narrow += with_gradients(single, Of::Bf16).len();
            sums += with_gradients(single, Of::F32).len();
            let less = training(wide).memory.gradients - training(single).memory.gradients;
            assert!(less > 0 && wide.persistent_bytes - single.persistent_bytes == less, "{name} {text}: {less}");
        }
        assert!(narrow > 0 && sums > 0, "{name} {text}: {narrow} and {sums}");
        assert!(train(name, &single, 3).bits() == train(name, &wide, 3).bits(), "{name} {text}: other bits");
    }
}

/// Several micro-batches, ranks that share all of the work, types without narrower ones: the plan is the same.
#[test]
fn where_all_are_sums_nothing_changes() {
    for (name, text, compute) in [
        ("tiny-moe", "micro=2", DType::BF16),
        ("tiny-moe", "pp=2,micro=4", DType::BF16),
        ("llama-3-70b", "dp=2,micro=1", DType::BF16),
        ("tiny-moe", "micro=1", DType::F32),
        ("tiny-moe", "micro=1", DType::F64),
    ] {
        let [single, wide] = of(name, text, compute);
        assert!(single == wide, "{name} {text} {compute}");
    }
}

/// A parameter that two layers use has a sum, and the others have not. They are groups of their own then, so that the norm adds the same squares in another order; without clipping that
/// changes nothing else.
#[test]
fn a_shared_parameter_stays_wide_alone() {
    let mut example = Example::named("tiny-moe");
    example.text = example.text.replace(", head[d, vocab] = normal(0.02)", "").replace("* head", "* embed");
    let unclipped = Optimizer { clip: None, ..Optimizer::default() };
    for text in ["micro=1", "micro=1,master_weights=split,optimizer=host", "pp=2,micro=1"] {
        let reduced = reduced_options(&example, text, DType::BF16, &[]);
        let [single, wide] = both(&example, text, &CompileOptions { optimizer: unclipped.clone(), ..reduced });
        for role in &single.roles {
            assert_eq!(with_gradients(role, Of::F32), ["embed"], "{text}");
            assert!(!with_gradients(role, Of::Bf16).is_empty(), "{text}");
        }
        let (single, wide) = (train("tied", &single, 3), train("tied", &wide, 3));
        for (a, b) in single.norms.iter().zip(&wide.norms) {
            assert!((a / b - 1.0).abs() < 1e-6, "{text}: norms {a} and {b}");
        }
        assert!((&single.losses, &single.params) == (&wide.losses, &wide.params), "{text}: other bits");
        assert_eq!(single.evaluation, wide.evaluation, "{text}");
    }
}

/// Either plan reads what the other has saved, and goes on with the same bits; so does one of sums.
#[test]
fn checkpoints_are_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let [single, wide] = of("tiny-moe", "micro=1", DType::BF16);
    let (first, files) = saved(&single, None, &at("single"));
    let (again, others) = saved(&wide, None, &at("wide"));
    assert!(files == others, "the checkpoints of both are the same bytes");
    let (_, went_on) = saved(&single, Some(&again), &at("single.on"));
    let (_, other) = saved(&wide, Some(&first), &at("wide.on"));
    assert!(went_on == other, "each goes on from the other's");
}

/// The simulator prices what is not written and not read. bench-small on one H100: nothing but gradients' bytes changes.
#[test]
fn a_step_is_predicted_to_be_shorter() {
    let cluster = forebay_cost::known::FILES.iter().find(|(n, _)| *n == "h100").expect("a cluster");
    let cluster = Cluster::parse(cluster.1).expect("it is right");
    let [single, wide] = [Gradients::Single, Gradients::Wide].map(|gradients| {
        let overrides = vec![("batch".into(), Const::Int(4))];
        let options = CompileOptions { gradients, ..options(DType::BF16, overrides) };
        let model = Example::named("bench-small").check(&options, true, Some(4));
        let plan = compile_training(&model, &options, &[1]).unwrap_or_else(|e| panic!("{e}")).remove(0);
        simulate(&plan, &cluster, &Options::default()).expect("a report")
    });
    let (less, more) = (single.memory_bytes[0].gradients, wide.memory_bytes[0].gradients);
    assert_eq!(2.0 * less, more);
    assert!(single.memory_bytes[0].peak <= wide.memory_bytes[0].peak - less, "the peak is lower by all of it");
    // Two bytes of each of the 352 M gradients are written, squared and read less, and most of them are not read and written behind a product: 2.1 to 3.5 GB at 3.35 TB/s.
    let saved = wide.step_time_s - single.step_time_s;
    assert!((0.6e-3..1.5e-3).contains(&saved), "{saved} s of {}", wide.step_time_s);
}
