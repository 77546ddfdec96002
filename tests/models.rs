//! Every example model: its published size, its gradients, and that it trains at reduced size.
//!
//! The gradients of every tensor of every model take a while: by default a seeded subset is checked. All of them:
//!
//!     FOREBAY_TEST_ALL=1 cargo test --release --test all models::

use crate::common;

use common::oracle::{Oracle, data};
use common::{Example, Numbers, all_cases, examples, options};
use forebay_compiler::module::{self, Forms};
use forebay_compiler::pipeline::{CompileOptions, compile};
use forebay_compiler::summary::Summary;
use forebay_dsl::model::{CheckedModel, Const};
use forebay_ir::reference::Tensor;
use forebay_ir::{DType, Op, Unit};
use forebay_plan::{Plan, TensorKind};
use forebay_runtime::data::Batch;
use forebay_runtime::exec::{ExecOptions, Executor, element};
use forebay_runtime::init;
use rustc_hash::FxHashMap;

/// Total and active parameters as published (router biases counted where the model has them; of Qwen3-Next without the layer of multi-token prediction, 1.65 of 81.3 billion).
const SIZES: [(&str, u64, u64); 11] = [
    ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
    ("mixtral-8x22b", 140_620_634_112, 39_152_031_744),
    ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704),
    ("qwen3-235b-a22b", 235_093_634_560, 22_190_763_520),
    ("deepseek-v3", 671_026_419_200, 37_552_297_472),
    ("kimi-k2", 1_026_408_232_448, 32_861_500_928),
    ("pangu-ultra-moe", 719_093_767_680, 40_371_494_400),
    ("qwen3-next-80b-a3b", 79_674_391_296, 3_874_929_408),
    ("nemotron-3-nano-30b-a3b", 31_577_940_288, 3_580_076_352),
    ("gpt-oss-120b", 116_829_156_672, 5_711_982_912),
    ("llama-3-70b", 70_553_706_496, 70_553_706_496),
];

#[test]
fn published_sizes() {
    for (name, params, active) in SIZES {
        let summary = Summary::new(&Example::named(name).check(&CompileOptions::default(), true, None));
        assert_eq!((summary.params, summary.active_params), (params, active), "{name}");
    }
}

/// The two benchmark models do as much work as their counterparts in other frameworks: 3 × forward, matrix products, causal half.
#[test]
fn benchmark_flops() {
    for (name, gflop) in [("bench-tiny", 75.0), ("bench-small", 1044.9)] {
        let summary = Summary::new(&Example::named(name).check(&CompileOptions::default(), true, None));
        let step = 3.0 * summary.forward_flops / 1e9;
        assert!((step - gflop).abs() < 0.05, "{name}: {step} GFLOP a step");
    }
}

/// Norms, softmaxes, attention, routers and losses are written in the language: the graphs have primitive ops only.
#[test]
fn only_primitive_ops_before_rewriting() {
    let primitive = "input const iota random neg exp log sqrt rsqrt tanh sin cos abs sign floor not add sub mul div rem pow min max \
                     eq ne lt le gt ge and or select cast detach broadcast reorder contract sum reduce_max reduce_min scan linear_attention rename split \
                     merge take slice pad stack concat gather scatter_add top_k group offsets invert";
    let primitive: Vec<&str> = primitive.split_whitespace().collect();
    for example in examples() {
        let model = example.check(&options(DType::F32, example.reduced()), true, None);
        for segment in &model.segments {
            for node in &segment.forward.nodes {
                let name = node.op.row().name;
                assert!(primitive.contains(&name), "{}: `{name}` in {}", example.name, segment.name);
            }
        }
    }
}

/// The reduced settings keep what makes the model special.
#[test]
fn reduced_models_keep_their_kinds_of_layers() {
    for example in examples() {
        let full = example.check(&CompileOptions::default(), true, None);
        let reduced = example.check(&options(DType::F32, example.reduced()), true, None);
        let names = |m: &CheckedModel| m.segments.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&full), names(&reduced), "{}", example.name);
        let experts = |m: &CheckedModel| {
            m.segments.iter().any(|s| s.forward.nodes.iter().any(|n| matches!(n.op, Op::TopK { .. })))
        };
        assert_eq!(experts(&full), experts(&reduced), "{}: experts are routed", example.name);
        assert!(experts(&full) || example.name == "llama-3-70b", "{} is a mixture", example.name);
        assert!(reduced.params.iter().map(|p| p.numel()).sum::<u64>() < 400_000, "{} is small", example.name);
    }
}

/// Directional derivatives of the loss along random directions, one parameter at a time, by central differences with the routing held fixed.
fn check_gradients(example: &Example, seed: u64) {
    let options = options(DType::F64, example.reduced_to(2, 8));
    let model = example.check(&options, true, None);
    let vocab = match model.constants.get("vocab") {
        Some(Const::Int(n)) => *n as u64,
        _ => 256,
    };
    let batch = data(&model, seed, vocab);
    let mut oracle = Oracle::new(&model, seed, batch);
    let choices = oracle.forward(None).choices;
    let gradients = oracle.gradients();
    let mut numbers = Numbers::new(seed + 1);
    for (i, param) in model.params.iter().enumerate() {
        let norm = gradients[i].data.iter().map(|g| g * g).sum::<f64>();
        assert!(norm > 0.0, "{}: {} has no gradient in any direction", example.name, param.name);
        if !all_cases() && numbers.uniform() > 0.34 {
            continue;
        }
        let direction: Vec<f64> = gradients[i].data.iter().map(|_| numbers.normal()).collect();
        let slope: f64 = direction.iter().zip(&gradients[i].data).map(|(d, g)| d * g).sum();
        let base = oracle.params[i].clone();
        // What is divided by its length curves: keys of length 0.05 differ by 1e-5 of the slope with steps of 1e-5.
        let h = 3e-6;
        let mut at = |sign: f64| {
            let moved = base.data.iter().zip(&direction).map(|(p, d)| p + sign * h * d);
            oracle.params[i].data = moved.collect();
            oracle.forward(Some(&choices)).total
        };
        let difference = (at(1.0) - at(-1.0)) / (2.0 * h);
        oracle.params[i] = base;
        let error = (slope - difference).abs() / (1e-3 + slope.abs().max(difference.abs()));
        assert!(error < 1e-5, "{}: {}: gradient {slope}, difference {difference}", example.name, param.name);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for (i, example) in examples().iter().enumerate() {
        check_gradients(example, 11 + i as u64);
    }
}

/// Runs the training phase of a plan with the oracle's parameters up to the gradients.
fn up_to_the_gradients<'p>(
    plan: &'p Plan,
    model: &CheckedModel,
    oracle: &Oracle,
    batch: &FxHashMap<String, Tensor>,
) -> Executor<'p> {
    let mut executor =
        Executor::new(plan, &ExecOptions { seed: 7, ..ExecOptions::default() }).unwrap_or_else(|e| panic!("{e}"));
    init::initialise(&mut executor).unwrap();
    for (i, param) in model.params.iter().enumerate() {
        let tensor =
            plan.roles[0].tensors.iter().find(|t| t.name == param.name && t.kind == TensorKind::Param).unwrap();
        let values = oracle.params[i].data.iter();
        let bytes: Vec<u8> = match tensor.dtype {
            forebay_plan::DType::F64 => values.flat_map(|v| v.to_ne_bytes()).collect(),
            _ => values.flat_map(|v| (*v as f32).to_ne_bytes()).collect(),
        };
        executor.tensor_mut(tensor).copy_from_slice(&bytes);
    }
    init::refresh_copies(&mut executor).unwrap();
    let mut fed = Batch::new(model.batch, model.seq);
    let ints = |name: &str| batch[name].data.iter().map(|v| *v as i32).collect::<Vec<_>>();
    fed.tokens = ints("tokens");
    fed.labels = ints("labels");
    fed.positions = ints("positions");
    fed.documents = ints("documents");
    let phase = executor.phase_named("train").unwrap();
    executor.start(phase, &fed, 1).unwrap();
    executor
}

/// Narrow plans against the f64 oracle: the loss, and the direction and size of each gradient as far as rounding lets them agree.
fn check_narrow_plan(example: &Example, compute: DType, loss_error: f64, gradient_error: f64) {
    let overrides = example.reduced_to(2, 16);
    let plan = {
        let options = options(compute, overrides.clone());
        compile(&example.models(&options), &options).expect("one rank")
    };
    let model = example.check(&options(DType::F64, overrides), true, None);
    let batch = data(&model, 3, 256);
    let mut oracle = Oracle::new(&model, 3, batch.clone());
    let executor = up_to_the_gradients(&plan, &model, &oracle, &batch);
    let phase = executor.phase_named("train").unwrap();
    let report = executor.phase(phase).reports.iter().find(|r| r.name == "loss").unwrap();
    let main = model.losses.iter().find(|l| l.main).unwrap();
    let (got, wanted) = (executor.report(report), oracle.forward(None).losses[&main.name]);
    let name = &example.name;
    assert!((got / wanted - 1.0).abs() < loss_error, "{name}, {compute:?}: the loss is {got}, the oracle's {wanted}");
    for (param, wanted) in model.params.iter().zip(oracle.gradients()) {
        let tensor =
            plan.roles[0].tensors.iter().find(|t| t.name == param.name && t.kind == TensorKind::Gradient).unwrap();
        let bytes = executor.tensor(tensor);
        let got = (0..wanted.data.len()).map(|i| element(tensor.dtype, bytes, i));
        let norm = wanted.data.iter().map(|w| w * w).sum::<f64>().sqrt();
        let error = got.zip(&wanted.data).map(|(g, w)| (g - w) * (g - w)).sum::<f64>().sqrt() / norm;
        assert!(error < gradient_error, "{name}, {compute:?}: the gradient of {} is off by {error}", param.name);
    }
    oracle.params.clear();
}

#[test]
fn narrow_plans_are_near_the_oracle() {
    for example in examples().iter().filter(|e| is_deterministic(e)) {
        check_narrow_plan(example, DType::F32, 1e-5, 1e-3);
        // A token that is routed elsewhere because of rounding changes its experts' gradients altogether.
        check_narrow_plan(example, DType::BF16, 0.02, f64::INFINITY);
    }
}

/// Runs the training phase of the compiled plan in f64 up to the gradients, and compares them with the oracle's.
fn check_plan(example: &Example, micro_batches: u32) {
    let rows = 2 * i64::from(micro_batches);
    let mut options = options(DType::F64, example.reduced_to(rows, 16));
    options.micro_batches = micro_batches;
    let models = example.models(&options);
    let plan = compile(&models, &options).expect("one rank");
    // The oracle takes all rows at once: micro-batches must not change losses that are divided by counts.
    let whole = CompileOptions { micro_batches: 1, ..options.clone() };
    let model = example.check(&whole, true, None);
    let batch = data(&model, 3, 256);
    let mut oracle = Oracle::new(&model, 3, batch.clone());

    let executor = up_to_the_gradients(&plan, &model, &oracle, &batch);
    let phase = executor.phase_named("train").unwrap();

    let forward = oracle.forward(None);
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()));
    for report in &executor.phase(phase).reports {
        let Some(loss) = report.name.strip_prefix("loss.") else { continue };
        let (got, wanted) = (executor.report(report), forward.losses[loss]);
        assert!(close(got, wanted), "{}: {loss} is {got}, the oracle has {wanted}", example.name);
    }
    for (param, wanted) in model.params.iter().zip(oracle.gradients()) {
        let tensor =
            plan.roles[0].tensors.iter().find(|t| t.name == param.name && t.kind == TensorKind::Gradient).unwrap();
        let got = executor.tensor(tensor).chunks_exact(8).map(|c| f64::from_ne_bytes(c.try_into().unwrap()));
        for (i, (got, wanted)) in got.zip(&wanted.data).enumerate() {
            assert!(
                close(got, *wanted),
                "{}: gradient of {}[{i}] is {got}, the oracle has {wanted}",
                example.name,
                param.name
            );
        }
    }
    oracle.params.clear();
}

/// Dropout draws from the step's key, which the oracle does not know.
fn is_deterministic(example: &Example) -> bool {
    let model = example.check(&options(DType::F64, example.reduced()), true, None);
    !model.segments.iter().any(|s| s.forward.nodes.iter().any(|n| matches!(n.op, Op::Random { .. })))
}

#[test]
fn plans_compute_the_oracles_gradients() {
    for example in examples().iter().filter(|e| is_deterministic(e)) {
        check_plan(example, 1);
    }
}

/// With losses over the micro-batch alone (balance) the partition matters, so only models without them are compared.
#[test]
fn micro_batches_add_up() {
    let only_counted = |e: &&Example| {
        let model = e.check(&options(DType::F64, e.reduced()), true, None);
        is_deterministic(e) && model.losses.iter().all(|l| l.scope == forebay_dsl::model::Scope::Step)
    };
    let all = examples();
    let chosen: Vec<&Example> = all.iter().filter(only_counted).collect();
    assert!(chosen.len() >= 2, "some models have counted losses only");
    for example in chosen {
        check_plan(example, 2);
    }
}

/// From near ln(vocab) downwards, on text that repeats itself.
fn check_training(example: &Example, compute: DType, steps: u64) {
    let mut options = options(compute, example.reduced());
    options.optimizer.steps = steps;
    options.optimizer.warmup = 5;
    let plan = compile(&example.models(&options), &options).expect("one rank");
    let mut executor =
        Executor::new(&plan, &ExecOptions { seed: 1, ..ExecOptions::default() }).unwrap_or_else(|e| panic!("{e}"));
    init::initialise(&mut executor).unwrap();
    let phase = executor.phase_named("train").unwrap();
    let (rows, seq) = (executor.phase(phase).rows, executor.phase(phase).seq);
    let report = executor.phase(phase).reports.iter().find(|r| r.name == "loss").unwrap();
    let text: Vec<i32> = include_str!("models.rs").bytes().map(i32::from).collect();
    let mut batch = Batch::new(rows, seq);
    let mut numbers = Numbers::new(5);
    let mut losses = vec![];
    for step in 1..=steps {
        for i in 0..(rows * seq) as usize {
            if i.is_multiple_of(seq as usize) {
                let at = (numbers.uniform() * (text.len() - seq as usize - 1) as f64) as usize;
                batch.tokens[i..i + seq as usize].copy_from_slice(&text[at..at + seq as usize]);
                batch.labels[i..i + seq as usize].copy_from_slice(&text[at + 1..at + 1 + seq as usize]);
            }
            batch.positions[i] = (i % seq as usize) as i32;
        }
        executor.start(phase, &batch, step).unwrap();
        losses.push(executor.report(report));
        executor.commit(phase, step).unwrap();
    }
    let wanted = (plan.settings.vocab as f64).ln();
    let name = &example.name;
    assert!((losses[0] / wanted - 1.0).abs() < 0.1, "{name}: the first loss is {}, ln(vocab) is {wanted}", losses[0]);
    let mean = |l: &[f64]| l.iter().sum::<f64>() / l.len() as f64;
    let end = mean(&losses[losses.len() - 10..]);
    assert!(end < 0.9 * losses[0], "{name}: from {} to {end}", losses[0]);
}

#[test]
fn every_model_trains() {
    for example in examples() {
        check_training(&example, DType::F32, 50);
    }
}

/// Those that train in bf16 in every run: all kinds of attention and routing.
const IN_BF16: [&str; 5] = ["deepseek-v3", "gpt-oss-120b", "mixtral-8x7b", "pangu-ultra-moe", "qwen3-235b-a22b"];

#[test]
fn every_model_trains_in_bf16() {
    let all = examples();
    let chosen: Vec<&Example> = all.iter().filter(|e| all_cases() || IN_BF16.contains(&e.name.as_str())).collect();
    assert!(chosen.len() >= IN_BF16.len(), "a model was renamed");
    chosen.into_iter().for_each(|example| check_training(example, DType::BF16, 50));
}

/// Ten times the layers: the same programs, and only calls and tensors grow.
#[test]
fn programs_do_not_grow_with_layers() {
    let with = |layers: i64| {
        let options =
            CompileOptions { overrides: vec![("layers".into(), Const::Int(layers))], ..CompileOptions::default() };
        compile(&Example::named("deepseek-v3").models(&options), &options).expect("one rank")
    };
    let (few, many) = (with(61), with(610));
    let size = |plan: &forebay_plan::Plan| {
        let sum_free: Vec<_> =
            plan.programs.iter().filter(|p| !p.name.starts_with("sum.") && !p.name.starts_with("optimizer")).collect();
        (sum_free.len(), serde_json::to_string(&sum_free).unwrap().len())
    };
    assert_eq!(size(&few), size(&many));
    assert_eq!(few.programs.len(), many.programs.len());
    let calls = |plan: &forebay_plan::Plan| plan.roles[0].phases[0].calls.len();
    assert!(calls(&many) > 9 * calls(&few));
}

#[test]
fn memory_is_placed_tightly() {
    for example in examples() {
        for overrides in [vec![], example.reduced()] {
            let options = options(DType::F32, overrides);
            let plan = compile(&example.models(&options), &options).expect("one rank");
            for phase in &plan.roles[0].phases {
                let memory = phase.memory;
                let ratio = memory.placed as f64 / memory.live_peak as f64;
                assert!(ratio <= 1.05, "{} {}: {ratio} × the live bytes", example.name, phase.name);
            }
        }
    }
}

#[test]
fn the_same_model_gives_the_same_plan() {
    for example in examples() {
        let options = options(DType::F32, example.reduced());
        let bytes = || serde_json::to_vec(&compile(&example.models(&options), &options).expect("one rank")).unwrap();
        // Each run has threads, and so hash seeds and addresses, of its own.
        let other = std::thread::scope(|s| s.spawn(bytes).join().unwrap());
        assert_eq!(bytes(), other, "{}", example.name);
    }
}

#[test]
fn textual_models_read_back() {
    for example in examples() {
        for overrides in [vec![], example.reduced()] {
            let options = options(DType::F32, overrides);
            let forms = |models| Forms { models, compute: options.compute, micro_batches: options.micro_batches };
            let text = module::print_forms(&forms(example.models(&options)));
            let read = match module::parse_file(&text) {
                Ok(module::File::Model(forms)) => *forms,
                Ok(module::File::Graphs(_)) => panic!("the header was not seen"),
                Err(errors) => panic!("{}", forebay_ir::text::render(&errors, &text, &example.name)),
            };
            assert_eq!(module::print_forms(&read), text, "{}", example.name);
            let first = compile(&example.models(&options), &options).expect("one rank");
            let again = read.models;
            assert_eq!(
                compile(&again, &options).expect("one rank"),
                first,
                "{}: the same plan from text",
                example.name
            );
        }
    }
}

#[test]
fn every_op_has_a_unit() {
    // Matrix products are the only work of the cube unit: what the cost model of FLOPs counts on.
    let model = Example::named("bench-tiny").check(&CompileOptions::default(), true, None);
    for node in model.segments.iter().flat_map(|s| &s.forward.nodes) {
        assert_eq!(node.op.row().unit == Unit::Cube, matches!(node.op, Op::Contract { .. }), "{}", node.name);
    }
}
