//! The optimizer of a compiled plan against AdamW written down once more: learning rate, clipping by the global norm, moments, decoupled decay.
//!
//! AdamW: Loshchilov & Hutter, arXiv:1711.05101, algorithm 2.

use crate::common;

use common::{Example, options};
use forebay_compiler::optimizer::{DecayScope, LrSchedule, Optimizer};
use forebay_compiler::pipeline::compile;
use forebay_ir::DType;
use forebay_plan::{Plan, TensorKind};
use forebay_runtime::data::{Corpus, Dataset};
use forebay_runtime::exec::{ExecOptions, Executor, element};
use forebay_runtime::init;
use forebay_runtime::train::{StepReport, Trainer};
use std::f64::consts::PI;

/// The values of all tensors of a kind, by name.
fn tensors(executor: &Executor, plan: &Plan, kind: TensorKind) -> Vec<(usize, Vec<f64>)> {
    let of_kind = plan.roles[0].tensors.iter().filter(|t| t.kind == kind);
    of_kind
        .map(|t| {
            let bytes = executor.tensor(t);
            let n = t.dims.iter().product::<u64>() as usize;
            (t.dims.len(), (0..n).map(|i| element(t.dtype, bytes, i)).collect())
        })
        .collect()
}

fn learning_rate(o: &Optimizer, step: f64) -> f64 {
    let (warmup, steps) = (o.warmup as f64, o.steps as f64);
    if step < warmup {
        return o.lr * step / warmup;
    }
    let progress = ((step - warmup) / (steps - warmup)).min(1.0);
    let part = match o.schedule {
        LrSchedule::Constant => 1.0,
        LrSchedule::Linear => 1.0 - (1.0 - o.min_lr) * progress,
        LrSchedule::Cosine => o.min_lr + (1.0 - o.min_lr) * 0.5 * (1.0 + (PI * progress).cos()),
    };
    o.lr * part
}

fn initialised(plan: &Plan) -> Executor<'_> {
    let options = ExecOptions { threads: 1, ..ExecOptions::default() };
    let mut executor = Executor::new(plan, &options).unwrap_or_else(|e| panic!("{e}"));
    init::initialise(&mut executor).unwrap();
    executor
}

/// A run of so many steps.
fn after<'p>(plan: &'p Plan, dataset: &Dataset, steps: i32) -> (StepReport, Executor<'p>) {
    let mut executor = initialised(plan);
    let mut trainer = Trainer::new(&mut executor, dataset, None).expect("it trains");
    let report = (0..steps).map(|_| trainer.step().unwrap_or_else(|e| panic!("{e}"))).last().expect("a step");
    (report, executor)
}

fn check(optimizer: Optimizer) {
    let example = Example::named("tiny-moe");
    let mut options = options(DType::F64, example.reduced_to(2, 8));
    options.optimizer = optimizer.clone();
    let plan = compile(&example.models(&options), &options).expect("one rank");
    let corpus = (0..2000_u32).map(|i| (i * i % 251) as u8).collect();
    let dataset = Dataset::new(Corpus::from_bytes("bytes", corpus), &plan.settings).expect("enough");
    let mut params = tensors(&initialised(&plan), &plan, TensorKind::Param);
    let zeros = || params.iter().map(|(_, p)| vec![0.0; p.len()]).collect::<Vec<_>>();
    let (mut first, mut second) = (zeros(), zeros());
    let mut clipped = 0;
    for step in 1..=8_i32 {
        let (report, executor) = after(&plan, &dataset, step);
        let gradients = tensors(&executor, &plan, TensorKind::Gradient);
        let norm = gradients.iter().flat_map(|(_, g)| g).map(|g| g * g).sum::<f64>().sqrt();
        let close = |a: f64, b: f64, what: &str| {
            assert!((a - b).abs() <= 1e-9 * (1e-3 + b.abs()), "{what} of step {step}: {a}, not {b}: {optimizer:?}");
        };
        close(report.grad_norm, norm, "the gradient norm");
        let lr = learning_rate(&optimizer, f64::from(step));
        close(report.lr, lr, "the learning rate");
        // The small constant is PyTorch's.
        let scale = optimizer.clip.map_or(1.0, |clip| (clip / (norm + 1e-6)).min(1.0));
        clipped += i32::from(scale < 1.0);
        for (i, (axes, p)) in params.iter_mut().enumerate() {
            let decays = optimizer.decay == DecayScope::All || *axes >= 2;
            let keep = 1.0 - if decays { lr * optimizer.weight_decay } else { 0.0 };
            for (j, p) in p.iter_mut().enumerate() {
                let g = scale * gradients[i].1[j];
                first[i][j] = optimizer.beta1 * first[i][j] + (1.0 - optimizer.beta1) * g;
                second[i][j] = optimizer.beta2 * second[i][j] + (1.0 - optimizer.beta2) * g * g;
                let m = first[i][j] / (1.0 - optimizer.beta1.powi(step));
                let v = second[i][j] / (1.0 - optimizer.beta2.powi(step));
                *p = *p * keep - lr * m / (v.sqrt() + optimizer.epsilon);
            }
        }
        for ((_, have), (_, want)) in tensors(&executor, &plan, TensorKind::Param).iter().zip(&params) {
            have.iter().zip(want).for_each(|(h, w)| close(*h, *w, "a parameter"));
        }
    }
    assert_eq!(clipped > 0, optimizer.clip.is_some_and(|c| c < 1e3), "clipping was tried, or was not");
}

#[test]
fn plans_do_what_adamw_says() {
    let base = Optimizer { warmup: 3, steps: 7, ..Optimizer::default() };
    check(Optimizer { clip: Some(0.25), ..base.clone() });
    check(Optimizer {
        schedule: LrSchedule::Linear,
        clip: None,
        decay: DecayScope::All,
        epsilon: 1e-3,
        ..base.clone()
    });
    check(Optimizer {
        schedule: LrSchedule::Constant,
        warmup: 0,
        clip: Some(1e6),
        beta1: 0.5,
        weight_decay: 0.5,
        ..base
    });
}
