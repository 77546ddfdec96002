//! Whole numbers: where every product and sum is one that f32 holds, ranks together have the bits of one alone, in whatever order they add.
//!
//! A model of look-ups, matrix products, permutations and sums alone, with small whole numbers for weights and a loss that is linear in its output.
//! That all sums are held exactly is shown, not assumed: in f64 the same numbers come out.

use crate::common;

use common::training::strategy;
use common::{Example, Numbers, options};
use forebay_compiler::optimizer::Optimizer;
use forebay_compiler::pipeline::{CompileOptions, compile};
use forebay_compiler::rewrite::Profile;
use forebay_compiler::settle::settle;
use forebay_ir::DType;
use forebay_plan::{Plan, TensorKind};
use forebay_runtime::data::Batch;
use forebay_runtime::exec::{ExecOptions, Executor, element};
use forebay_runtime::init;
use std::collections::BTreeMap;

/// Networks, and experts that are chosen and weighted by whole numbers. There are 32 labels, so that their mean is exact too.
const MODEL: &str = "model Whole(batch = 4, seq = 8, vocab = 16, layers = 2, d = 8, experts = 8) {
    input tokens: token[batch, seq], labels: token[batch, seq]
    param embed[vocab, d] = zeros, head[d, vocab] = zeros
    x = embed[tokens, d]
    repeat layers {
        x = x + network(x, 8)
        x = x + mixture(x, experts, 4)
    }
    logits[batch, seq, vocab] = x * head
    output logits
    loss all = sum(logits over batch, seq, vocab) per sum(valid(labels) over batch, seq)
}

block network(x[.., d], f) {
    param up[d, f] = zeros, down[f, d] = zeros
    return ((x * up)[.., f] * down)[.., d]
}

block mixture(x[.., d], experts, f) {
    param router[d, e: experts] = zeros, up[e, d, f] = zeros, down[e, f, d] = zeros
    score = (wide(x) * wide(router))[.., e]
    chosen = top(score over e, k: 2)
    share = score[.., chosen]
    rows = group(chosen, e, r)
    xe[e, r, d] = x at rows
    ye[e, r, d] = (xe * up)[e, r, f] * down
    return sum(narrow(share) * (ye at rows) over k)
}
";

/// Below this f32 holds every whole number.
const MOST: f64 = 16_777_216.0;

fn plan(text: &str, compute: DType) -> Plan {
    let strategy = strategy(text);
    // The norm of all gradients is no whole number: nothing is clipped.
    let optimizer = Optimizer { clip: None, ..Optimizer::default() };
    let micro_batches = strategy.micro.expect("it is given");
    let mut options = CompileOptions { micro_batches, strategy, optimizer, ..options(compute, vec![]) };
    let example = Example { name: "whole".into(), text: MODEL.into() };
    let models = example.models(&options);
    let settled =
        settle(&models.train, &options, &Profile::cpu(), &mut |_| ()).unwrap_or_else(|e| panic!("{text}: {e}"));
    options.strategy = settled.strategy;
    let plan = compile(&models, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
    forebay_plan::verify(&plan).unwrap_or_else(|v| panic!("{text}: {}", v[0]));
    plan
}

/// The loss, and tensors by kind and name.
struct Step {
    loss: f64,
    tensors: BTreeMap<String, Vec<f64>>,
}

/// One step from weights of -1, 0 and 1.
fn step(text: &str, compute: DType) -> Step {
    let plan = plan(text, compute);
    let mut executor = Executor::new(&plan, &ExecOptions::default()).unwrap();
    init::initialise(&mut executor).unwrap();
    let all = executor.tensors();
    for tensor in all.iter().filter(|t| t.kind == TensorKind::Param) {
        let mut numbers = Numbers::new(tensor.name.bytes().fold(7, |h: u64, b| h.wrapping_mul(31) + u64::from(b)));
        let sparse = |n: f64| if n < 0.15 { -1.0 } else { f64::from(n > 0.85) };
        let values = (0..tensor.elements()).map(|_| sparse(numbers.uniform()));
        let bytes: Vec<u8> = match tensor.dtype.bytes() {
            4 => values.flat_map(|v| (v as f32).to_ne_bytes()).collect(),
            _ => values.flat_map(|v| v.to_ne_bytes()).collect(),
        };
        executor.set_whole(tensor, &bytes).expect("it is set");
    }
    init::refresh_copies(&mut executor).unwrap();
    let mut batch = Batch::new(plan.settings.batch, plan.settings.seq);
    let mut numbers = Numbers::new(3);
    batch.tokens.iter_mut().for_each(|t| *t = (numbers.uniform() * 16.0) as i32);
    let phase = executor.phase_named("train").unwrap();
    executor.start(phase, &batch, 1).unwrap_or_else(|e| panic!("{text}: {e}"));
    let mut tensors = BTreeMap::new();
    let mut keep = |executor: &Executor, kinds: &[TensorKind]| {
        for tensor in all.iter().filter(|t| kinds.contains(&t.kind)) {
            let bytes = executor.whole(tensor).unwrap();
            let values = (0..tensor.elements() as usize).map(|i| element(tensor.dtype, &bytes, i)).collect();
            tensors.insert(format!("{:?} {}", tensor.kind, tensor.name), values);
        }
    };
    let loss = executor.report_named(phase, "loss");
    // The gradients of ranks that keep parts of the optimizer are put together in its moments.
    if text.starts_with("micro") {
        keep(&executor, &[TensorKind::Gradient]);
    }
    executor.commit(phase, 1).unwrap_or_else(|e| panic!("{text}: {e}"));
    keep(&executor, &[TensorKind::Param, TensorKind::FirstMoment, TensorKind::SecondMoment]);
    Step { loss, tensors }
}

#[test]
fn whole_numbers_are_the_same_bits_on_any_ranks() {
    let (alone, wide) = (step("micro=4", DType::F32), step("micro=4", DType::F64));
    assert_eq!(alone.loss, wide.loss);
    for (name, values) in alone.tensors.iter().filter(|(name, _)| name.starts_with("Gradient")) {
        assert_eq!(values, &wide.tensors[name], "{name} is not exact in f32");
        // A gradient is a sum over 32 labels, divided by their number.
        let whole = |v: &f64| (v * 32.0).fract() == 0.0 && (v * 32.0).abs() < MOST;
        assert!(values.iter().all(whole), "{name} is of whole numbers");
        let is_used = values.iter().any(|v| *v != 0.0);
        assert!(is_used, "{name} has a gradient");
    }
    let bits = |step: &Step| -> BTreeMap<String, Vec<u64>> {
        let kept = step.tensors.iter().filter(|(name, _)| !name.starts_with("Gradient"));
        kept.map(|(name, values)| (name.clone(), values.iter().map(|v| v.to_bits()).collect())).collect()
    };
    let want = bits(&alone);
    for text in [
        "dp=2,micro=2",
        "dp=4,micro=1,zero=1",
        "dp=2,micro=1,mbs=2,zero=2",
        "dp=2,micro=2,zero=3",
        "tp=2,micro=4",
        "tp=4,sp=0,micro=2",
        "cp=2,micro=4",
        "dp=2,ep=2,micro=2",
        "dp=2,tp=2,ep=4,micro=2,zero=1",
        "tp=2,etp=2,micro=1",
        "dp=2,tp=2,etp=2,ep=2,micro=2",
        "dp=2,tp=2,etp=2,ep=2,etp_gather=after,micro=2",
        "pp=2,micro=4",
        "pp=2,schedule=zb-h1,micro=4",
        "pp=2,schedule=search,nodes=500,micro=4",
        "pp=2,tp=2,ep=2,schedule=search,nodes=500,cap=2,stages=auto,micro=4,zero=1",
        "dp=2,pp=2,tp=2,ep=4,micro=2,zero=3,recompute=full",
    ] {
        let together = step(text, DType::F32);
        assert_eq!(together.loss.to_bits(), alone.loss.to_bits(), "{text}: the loss");
        let have = bits(&together);
        for (name, values) in &want {
            assert!(have[name] == *values, "{text}: other bits of {name}");
        }
    }
}
