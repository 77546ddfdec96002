//! Rewriting of whole models: which fused ops they contain, and that they compute what they did before.

use crate::common;

use common::{Example, Numbers, all_cases, examples, options};
use forebay_compiler::autodiff::Keep;
use forebay_compiler::memory::Recompute;
use forebay_compiler::pipeline::{CompileOptions, compile, fused_segments, optimizer_graphs};
use forebay_compiler::rewrite::{self, Numerics, Selection, fused_ops};
use forebay_ir::DType;
use forebay_plan::TensorKind;
use forebay_runtime::data::Batch;
use forebay_runtime::exec::{ExecOptions, Executor, element};
use forebay_runtime::init;
use std::collections::BTreeMap;

/// The table of fused ops: every shipped model at full size, forward and backward, by segment. One line a kind of layer.
#[test]
fn fused_ops_of_every_model() {
    let mut table = String::new();
    for example in examples() {
        table += &format!("{}\n", example.name);
        let model = example.check(&CompileOptions::default(), true, None);
        for (segment, (graphs, reports)) in model.segments.iter().zip(fused_segments(
            &model,
            (Keep::Fewest, &Recompute::Nothing),
            &rewrite::Options::default(),
        )) {
            table += &format!("  {:<10} forward   {}\n", segment.name, line(&fused_ops(&graphs.forward)));
            table += &format!("  {:<10} backward  {}\n", "", line(&fused_ops(&graphs.backward)));
            assert!(reports.iter().all(|r| r.stop == "saturated" || r.ops[0] == 0), "{}: {:?}", example.name, reports);
        }
        for graph in optimizer_graphs(&model, &CompileOptions::default()).expect("one rank") {
            let fused = fused_ops(&rewrite::rewrite(&graph, &rewrite::Options::default()).0);
            table += &format!("  {:<20} {}\n", graph.name, line(&fused));
        }
    }
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("fused_ops", table);
    });
}

fn line(ops: &BTreeMap<&str, usize>) -> String {
    let ops = ops.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ");
    if ops.is_empty() { "-".to_string() } else { ops }
}

/// The same text on every run, whatever the hash seeds of maps.
#[test]
fn the_result_is_always_the_same() {
    for name in ["deepseek-v3", "gpt-oss-120b"] {
        let model = Example::named(name).check(&CompileOptions::default(), true, None);
        let text = || {
            let all = fused_segments(&model, (Keep::Fewest, &Recompute::Nothing), &rewrite::Options::default());
            all.iter()
                .map(|(g, _)| forebay_ir::text::print(&g.forward) + &forebay_ir::text::print(&g.backward))
                .collect::<String>()
        };
        let first = text();
        let others: Vec<String> = std::thread::scope(|s| {
            (0..2).map(|_| s.spawn(text)).collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(others.iter().all(|t| *t == first), "{name}");
    }
}

/// Losses of a few steps, and the last gradients, as bits and as numbers.
struct Run {
    losses: Vec<Vec<u8>>,
    gradients: BTreeMap<String, Vec<f64>>,
}

/// What is trained on, and the seed of first values.
#[derive(Clone, Copy)]
struct Text {
    seed: u64,
    /// Batches that come again and again.
    batches: u64,
}

/// Every step has new text.
fn train(example: &Example, compute: DType, rewriting: rewrite::Options, steps: u64) -> Run {
    train_on(example, compute, rewriting, steps, Text { seed: 0, batches: steps })
}

fn train_on(example: &Example, compute: DType, rewriting: rewrite::Options, steps: u64, text: Text) -> Run {
    let mut options = options(compute, example.reduced_to(2, 8));
    options.rewrite = rewriting;
    let plan = compile(&example.models(&options), &options).expect("one rank");
    forebay_plan::verify(&plan).unwrap_or_else(|v| panic!("{}: {}", example.name, v[0]));
    let mut executor = Executor::new(&plan, &ExecOptions { seed: text.seed, ..ExecOptions::default() })
        .unwrap_or_else(|e| panic!("{}: {e}", example.name));
    init::initialise(&mut executor).unwrap();
    init::refresh_copies(&mut executor).unwrap();
    let settings = &plan.settings;
    let phase = executor.phase_named("train").unwrap();
    let mut losses = vec![];
    for step in 1..=steps {
        let mut batch = Batch::new(settings.batch, settings.seq);
        let mut numbers = Numbers::new(text.seed * 1000 + (step - 1) % text.batches + 1);
        let vocab = settings.vocab as f64;
        batch.tokens.iter_mut().chain(&mut batch.labels).for_each(|t| *t = (numbers.uniform() * vocab) as i32);
        let positions = batch.positions.chunks_mut(settings.seq as usize);
        positions.for_each(|row| row.iter_mut().enumerate().for_each(|(t, p)| *p = t as i32));
        executor.start(phase, &batch, step).unwrap_or_else(|e| panic!("{}: {e}", example.name));
        let report = executor.phase(phase).reports.iter().find(|r| r.name == "loss").unwrap();
        losses.push(executor.report(report).to_le_bytes().to_vec());
        executor.commit(phase, step).unwrap();
    }
    let gradients = plan.roles[0].tensors.iter().filter(|t| t.kind == TensorKind::Gradient).map(|t| {
        let bytes = executor.tensor(t);
        let n: u64 = t.dims.iter().product();
        (t.name.clone(), (0..n as usize).map(|i| element(t.dtype, bytes, i)).collect())
    });
    let gradients = gradients.collect();
    Run { losses, gradients }
}

fn selected(selection: Selection, numerics: Numerics) -> rewrite::Options {
    rewrite::Options { selection, numerics, ..rewrite::Options::default() }
}

/// With exact rules only, every loss has the bits it has without rewriting: in f32, and in bf16 (of some models; `FOREBAY_TEST_ALL=1`: of all).
#[test]
fn exact_rules_keep_every_bit() {
    for example in examples() {
        let both = all_cases() || ["bench-tiny", "deepseek-v3"].contains(&&*example.name);
        for compute in [DType::F32, DType::BF16].into_iter().take(1 + usize::from(both)) {
            let off = train(&example, compute, selected(Selection::Off, Numerics::Exact), 2);
            let exact = train(&example, compute, selected(Selection::All, Numerics::Exact), 2);
            assert_eq!(off.losses, exact.losses, "{} in {compute}", example.name);
            for (name, gradient) in &off.gradients {
                let bits = |x: &[f64]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert!(bits(gradient) == bits(&exact.gradients[name]), "{} in {compute}: {name}", example.name);
            }
        }
    }
}

/// Activations in bf16 that are computed in f32 take as much memory as with each op rounded.
#[test]
fn wide_expressions_take_no_memory() {
    let tiny = Example::named("bench-tiny");
    let named = "silu((xe * gate)[e, r, f]) * (xe * up)[e, r, f]";
    assert!(tiny.text.contains(named));
    for (activation, is_wide) in [
        // Nothing but a function behind a sum; of the second the gradient would be an expression by itself.
        ("tanh(a + b)", false),
        ("sin(a + b)", false),
        ("exp(-abs(a - b)) * b", true),
        ("a * tanh(log(1.0 + exp(a))) * b", true),
        ("where(a > 0.0, a, a / (1.0 + abs(a))) * b", true),
        ("0.5 * a * (1.0 + tanh(0.8 * (a + 0.04 * a ^ 3))) * b", true),
        ("max(a, b) + sin(a) * sin(b)", true),
    ] {
        let mut text = tiny.text.replace(named, "act((xe * gate)[e, r, f], (xe * up)[e, r, f])");
        text += &format!("\nblock act(a[..], b[..]) {{\n    return {activation}\n}}\n");
        let example = Example { name: activation.to_string(), text };
        let compiled = |selection| {
            let mut options = options(DType::BF16, example.reduced_to(2, 8));
            options.rewrite = selected(selection, Numerics::Approximate);
            let plan = compile(&example.models(&options), &options).expect("one rank");
            forebay_plan::verify(&plan).unwrap_or_else(|v| panic!("{activation}: {}", v[0]));
            plan
        };
        let rule = "joint.wide-expression".to_string();
        let [rounded, wide] = [Selection::Without(vec![rule]), Selection::All].map(compiled);
        assert!((rounded != wide) == is_wide, "{activation}");
        let activations = |plan: &forebay_plan::Plan| -> Vec<u64> {
            plan.roles[0].phases.iter().map(|phase| phase.memory.activations).collect()
        };
        assert_eq!(activations(&rounded), activations(&wide), "{activation}");
    }
}

/// With all rules, losses and gradients in f64 are those without rewriting, but for rounding.
#[test]
fn all_rules_keep_losses_and_gradients() {
    for example in examples() {
        let off = train(&example, DType::F64, selected(Selection::Off, Numerics::Exact), 1);
        let all = train(&example, DType::F64, selected(Selection::All, Numerics::Approximate), 1);
        let loss = |r: &Run| f64::from_le_bytes(r.losses[0][..].try_into().unwrap());
        assert!(
            (loss(&off) - loss(&all)).abs() <= 1e-11 * loss(&off).abs(),
            "{}: {} {}",
            example.name,
            loss(&off),
            loss(&all)
        );
        for (name, gradient) in &off.gradients {
            let largest = gradient.iter().fold(0.0_f64, |m, g| m.max(g.abs()));
            let apart = gradient.iter().zip(&all.gradients[name]).fold(0.0_f64, |m, (a, b)| m.max((a - b).abs()));
            assert!(apart <= 1e-9 * largest + 1e-15, "{}: {name} is {apart} apart of {largest}", example.name);
        }
    }
}

/// Training curves overlay: over 100 steps on four batches that come again and again, the losses of an f32 plan with all rules are no further from those in f64
/// than twice what those of the plan without rewriting are, whose bits are those with each op a kernel of its own (`joined_kernels_train_the_same`). One run may leave the others by far (docs/performance.md): hence the median over three seeds.
#[test]
fn training_curves_overlay() {
    for name in ["bench-tiny", "deepseek-v3"] {
        let example = Example::named(name);
        let ratio = |seed: u64| -> f64 {
            let curve = |compute, selection| -> Vec<f64> {
                let text = Text { seed, batches: 4 };
                let run = train_on(&example, compute, selected(selection, Numerics::Approximate), 100, text);
                run.losses.iter().map(|l| f64::from_le_bytes(l[..].try_into().unwrap())).collect()
            };
            let wide = curve(DType::F64, Selection::Off);
            let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
            let (first, last) = (mean(&wide[..4]), mean(&wide[96..]));
            assert!(last < first, "{name}, seed {seed}: it learns, from {first} to {last}");
            let far =
                |losses: Vec<f64>| mean(&losses.iter().zip(&wide).map(|(a, b)| (a - b).abs()).collect::<Vec<_>>());
            let (off, all) = (far(curve(DType::F32, Selection::Off)), far(curve(DType::F32, Selection::All)));
            println!("{name}, seed {seed}: from {first} to {last}; {all:e} with rewriting, {off:e} without");
            // A floor for the luck of the plan that is compared with: the rounding of a loss itself.
            all / (off + 0.5e-6)
        };
        let mut ratios = [1, 2, 3].map(ratio);
        ratios.sort_by(f64::total_cmp);
        assert!(ratios[1] <= 2.0, "{name}: {ratios:?}");
    }
}
