//! Parameters in halves: two bytes less for each, the same training bit for bit, the same checkpoints. Moments in bf16: half the bytes, and other numbers.

use crate::common;

use common::training::{plan, saved, strategy, train};
use common::{Example, options};
use forebay_compiler::pipeline::{CompileOptions, compile_training};
use forebay_compiler::rewrite;
use forebay_dsl::model::Const;
use forebay_ir::DType;
use forebay_plan::{Form, Plan, Role, TensorKind};
use forebay_runtime::checkpoint::{Contents, DataInfo, Saver};
use forebay_runtime::exec::{ExecOptions, Executor};

fn of(example: &Example, text: &str) -> Plan {
    plan(example, text, DType::BF16, &[]).unwrap_or_else(|e| panic!("{} {text}: {e}", example.name))
}

/// Elements of a role's tensors of a kind, with what lies between them.
fn elements(role: &Role, kind: TensorKind) -> u64 {
    role.tensors
        .iter()
        .filter(|t| t.kind == kind)
        .map(|t| t.held(&vec![0; role.coordinates.len()]))
        .map(|h| h.to - h.from)
        .sum()
}

#[test]
fn halves_train_as_two_copies_do() {
    for (name, text) in [
        ("tiny-moe", "micro=2"),
        ("bench-tiny", "micro=2,recompute=full"),
        ("deepseek-v3", "dp=2,zero=0,micro=2"),
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=1"),
        ("mixtral-8x7b", "dp=4,ep=2,zero=2"),
        ("pangu-ultra-moe", "tp=2,pp=2,ep=2,micro=4,zero=1"),
    ] {
        let example = Example::named(name);
        let (whole, split) = (of(&example, text), of(&example, &format!("{text},master_weights=split")));
        for (whole, split) in whole.roles.iter().zip(&split.roles) {
            let mut params = split.tensors.iter().filter(|t| t.kind == TensorKind::Param);
            assert!(params.all(|t| t.form == Form::LowerHalf), "{name} {text}");
            // (Padding is halved as well.)
            let (saved, params) = (whole.persistent_bytes - split.persistent_bytes, elements(split, TensorKind::Param));
            assert!(
                saved >= 2 * params && saved <= 2 * params + params / 2 + (1 << 16),
                "{name} {text}: {saved} bytes of {params}"
            );
        }
        assert!(train(name, &whole, 3).bits() == train(name, &split, 3).bits(), "{name} {text}: other bits");
    }
}

/// What is saved in halves can be read whole and the other way round, and goes on with the same bits.
#[test]
fn checkpoints_hold_whole_numbers() {
    let example = Example::named("tiny-moe");
    let folder = tempfile::tempdir().unwrap();
    let whole = of(&example, "micro=2");
    let split = of(&example, "micro=2,master_weights=split");
    let shared = of(&example, "dp=2,zero=1,master_weights=split");
    let at = |name: &str| folder.path().join(name);
    let (first, files) = saved(&whole, None, &at("whole"));
    let (again, others) = saved(&split, None, &at("split"));
    assert!(files == others, "the checkpoints of both are the same bytes");
    let (_, went_on) = saved(&whole, Some(&again), &at("whole.on"));
    let (_, other) = saved(&split, Some(&first), &at("split.on"));
    assert!(went_on == other, "each goes on from the other's");
    // On two ranks, which share masters: what was loaded is what is saved.
    let mut executor = Executor::new(&shared, &ExecOptions::default()).unwrap();
    first.load(&mut executor, Contents::All).unwrap();
    let data = DataInfo { fingerprint: "0".repeat(16), bytes: 1 };
    let kept = Saver::create(&at("shared"), 0).unwrap().save(&executor, 2, &data, &[]).unwrap();
    for (name, bytes) in files {
        assert!(std::fs::read(kept.join(&name)).unwrap() == bytes, "{name}");
    }
    // To generate, parameters alone are read.
    let mut executor = Executor::new(&split, &ExecOptions::default()).unwrap();
    first.load(&mut executor, Contents::Model).unwrap();
    for tensor in executor.tensors().into_iter().filter(|t| t.kind == TensorKind::ComputeCopy) {
        let param =
            executor.tensors().into_iter().find(|t| (t.kind, &t.name) == (TensorKind::Param, &tensor.name)).unwrap();
        let (numbers, copies) = (executor.whole(param).unwrap(), executor.whole(tensor).unwrap());
        let rounded = numbers.as_chunks::<4>().0.iter().map(|x| half::bf16::from_f32(f32::from_ne_bytes(*x)));
        assert!(rounded.eq(copies.as_chunks::<2>().0.iter().map(|x| half::bf16::from_ne_bytes(*x))), "{}", tensor.name);
    }
}

#[test]
fn what_has_no_copies_is_refused() {
    let example = Example::named("tiny-moe");
    let refused = |text: &str, compute| plan(&example, text, compute, &[]).unwrap_err();
    let message = refused("micro=2,master_weights=split", DType::F32);
    assert!(message.contains("in f32 there are no copies") && message.contains("--dtype bf16"), "{message}");
    let message = refused("dp=2,zero=3,master_weights=split", DType::BF16);
    assert!(message.contains("with zero = 3") && message.contains("use zero=2"), "{message}");
    let message = refused("micro=2,master_weights=split,moments=bf16", DType::BF16);
    assert!(message.contains("the second moment's sign"), "{message}");
}

/// Moments in bf16 take half the bytes, wherever they are, train nearly as well, and are what checkpoints hold.
#[test]
fn moments_in_bf16_are_other_numbers_in_half_the_bytes() {
    for (text, compute) in [("micro=2", DType::F32), ("dp=2,tp=2,ep=4,micro=2,zero=1", DType::BF16)] {
        let of = |more: &str| plan(&Example::named("tiny-moe"), &format!("{text}{more}"), compute, &[]).unwrap();
        let (full, half, away) = (of(""), of(",moments=bf16"), of(",moments=bf16,optimizer=host"));
        let optimizer = |plan: &Plan| plan.roles[0].phases[0].memory.optimizer;
        assert_eq!(2 * optimizer(&half), optimizer(&full), "{text}");
        let of_moments =
            |t: &&forebay_plan::Tensor| matches!(t.kind, TensorKind::FirstMoment | TensorKind::SecondMoment);
        let mut moments = half.roles[0].tensors.iter().filter(of_moments);
        assert!(moments.all(|t| t.dtype == forebay_plan::DType::Bf16), "{text}");
        let [full, half, away] = [full, half, away].map(|plan| train("tiny-moe", &plan, 3));
        assert!(half.bits() != full.bits(), "{text}: the numbers change");
        assert!(half.bits() == away.bits(), "{text}: but not by where they are");
        for (a, b) in full.losses.iter().zip(&half.losses) {
            assert!((a / b - 1.0).abs() < 2e-3, "{text}: losses {a} and {b}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let example = Example::named("tiny-moe");
    let plan = plan(&example, "micro=2,moments=bf16", DType::F32, &[]).unwrap();
    let (first, files) = saved(&plan, None, &folder.path().join("half"));
    let mut executor = Executor::new(&plan, &ExecOptions::default()).unwrap();
    first.load(&mut executor, Contents::All).unwrap();
    let data = DataInfo { fingerprint: "0".repeat(16), bytes: 1 };
    let kept = Saver::create(&folder.path().join("again"), 0).unwrap().save(&executor, 2, &data, &[]).unwrap();
    for (name, bytes) in files {
        assert!(std::fs::read(kept.join(&name)).unwrap() == bytes, "{name}");
    }
}

/// A dense model of 70 billion parameters, in the shape of Llama 2 70B (arXiv 2307.09288) with the vocabulary of Llama 3.
const DENSE: &str = "
model Dense70B(
    batch = 1, seq = 4096, vocab = 128256, layers = 80, d = 8192, heads = 64, kv_heads = 8, dh = 128, f = 28672
) {
    input tokens: token[batch, seq], labels: token[batch, seq]
    param embed[vocab, d] = normal(0.02), head[d, vocab] = normal(0.02)
    x = embed[tokens, d]
    repeat layers {
        x = x + attention(rms_norm@norm1(x))
        x = x + swiglu(rms_norm@norm2(x))
    }
    logits[batch, seq, vocab] = rms_norm@norm(x) * head
    nll = cross_entropy(logits, labels)
    loss ce = sum(nll over batch, seq) per sum(valid(labels) over batch, seq)
}
";

/// Two of six bytes of each of the 70.6 billion parameters, on each of eight devices that share them.
#[test]
fn seventy_billion_parameters_on_eight_devices() {
    let example = Example { name: "dense-70b".into(), text: DENSE.into() };
    let persistent = |text: &str| {
        let strategy = strategy(text);
        let overrides = vec![("batch".into(), Const::Int(1))];
        let options =
            CompileOptions { strategy, rewrite: rewrite::Options::default(), ..options(DType::BF16, overrides) };
        let model = example.check(&options, true, Some(1));
        let plans = compile_training(&model, &options, &[1]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(plans[0].settings.params, 70_553_706_496);
        (plans[0].roles[0].persistent_bytes, plans[0].roles[0].phases[0].memory.weights)
    };
    let (whole, split) = (persistent("tp=8"), persistent("tp=8,master_weights=split"));
    let back = whole.0 - split.0;
    assert_eq!(back, whole.1 - split.1, "nothing else changes");
    // 17.5 GB of 70 billion; norms, which all devices have, and padding make up for the last digits.
    let expected = 70_553_706_496 / 8 * 2;
    assert!(back >= expected && back < expected + expected / 1000, "{back} bytes, expected {expected}");
    assert!((17.5e9..17.7e9).contains(&(back as f64)), "{back}");
}

/// The update of a group of parameters, with masters as a whole and in halves.
#[test]
fn update_in_halves() {
    let of = |text: &str| {
        let plan = of(&Example::named("tiny-moe"), text);
        let updates = |p: &&forebay_plan::Program| p.slots.iter().any(|slot| slot.name == "state.second");
        forebay_plan::print::program(plan.programs.iter().find(updates).expect("parameters are updated"))
    };
    insta::assert_snapshot!(format!("{}\n{}", of("micro=2"), of("micro=2,master_weights=split")));
}
