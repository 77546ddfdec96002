//! Ours and PyTorch alternately: some steps of one, some of the other, and again, so that what else the machine does hits both.

use super::agreement::{self, Agreement};
use super::measure::WARM_UP;
use super::runner::Runner;
use super::torch::{Spec, Torch, VARIANTS, Variant};
use super::{best, median, optimizer};
use crate::failure::Failure;
use crate::say::say;
use forebay_dsl::model::{CheckedModel, Const};
use forebay_plan::{DType, Plan};
use forebay_runtime::exec::ExecOptions;
use serde::Serialize;

/// What is compared.
pub struct Contest<'a> {
    pub plan: &'a Plan,
    /// The same model in f32, in which losses are compared.
    pub exact: &'a Plan,
    pub options: &'a ExecOptions,
    pub spec: Spec,
    pub steps: u64,
    pub rounds: u64,
}

/// The outcome, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Versus {
    pub torch: String,
    pub same_losses: Agreement,
    pub variants: Vec<Outcome>,
}

/// A variant of PyTorch beside us.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub variant: &'static str,
    /// Medians of all of its rounds' medians.
    pub forebay_median_ms: f64,
    pub median_ms: f64,
    pub best_ms: f64,
    /// PyTorch's median step by ours, of each round: above 1 we are faster.
    pub rounds: Vec<f64>,
    /// Their median.
    pub ratio: f64,
    pub peak_rss_bytes: Option<u64>,
    /// From the start of the process to the end of step 1.
    pub first_step_s: f64,
}

impl Versus {
    /// The variant that we are least ahead of.
    pub fn fastest(&self) -> &Outcome {
        self.variants.iter().min_by(|a, b| a.ratio.total_cmp(&b.ratio)).expect("there are variants")
    }
}

fn no_peer(plan: &Plan, why: &str) -> Failure {
    Failure::Input(format!(
        "there is no peer for `{}`: {why}; PyTorch's side is the model of bench-tiny and bench-small, at any size",
        plan.model
    ))
}

/// Can the plan have a peer, as far as its parameters say?
pub fn accepts(plan: &Plan) -> Result<(), Failure> {
    if plan.settings.compute == DType::F64 {
        return Err(Failure::Usage("--peers compares in f32 and bf16".into()));
    }
    match agreement::without_peer(plan) {
        Some(name) => Err(no_peer(plan, &format!("PyTorch's side has no `{name}`"))),
        None => Ok(()),
    }
}

/// The peer's sizes; an error when the model lacks one.
pub fn spec(model: &CheckedModel, plan: &Plan, threads: usize) -> Result<Spec, Failure> {
    let size = |name: &str| match model.constants.get(name) {
        Some(Const::Int(n)) if *n > 0 => Ok(*n as u64),
        _ => Err(no_peer(plan, &format!("it has no size `{name}`"))),
    };
    let o = optimizer();
    Ok(Spec {
        d: size("d")?,
        heads: size("heads")?,
        layers: size("layers")?,
        experts: size("experts")?,
        topk: size("topk")?,
        ffn: size("f")?,
        vocab: plan.settings.vocab,
        seq: plan.settings.seq,
        batch: plan.settings.batch,
        lr: o.lr,
        beta1: o.beta1,
        beta2: o.beta2,
        epsilon: o.epsilon,
        weight_decay: o.weight_decay,
        clip: o.clip.expect("benchmarks clip"),
        threads,
        dtype: plan.settings.compute.name().into(),
        compile: false,
        batches: 1,
        turn: 0,
        dump: None,
    })
}

/// Compares losses, then speed. What happens is said on stderr.
pub fn compete(contest: &Contest, torch: &Torch) -> Result<Versus, Failure> {
    let weights = torch.file("weights.safetensors");
    let exact = Spec { dtype: "f32".into(), dump: Some(weights.clone()), ..contest.spec.clone() };
    let theirs = torch.start(&exact, VARIANTS[0])?.steps(agreement::STEPS)?;
    let mut runner = Runner::new(contest.exact, contest.options)?;
    let text = agreement::load(&mut runner, &weights)?;
    runner.set_text(&text);
    let same_losses = agreement::compare(&mut runner, &theirs)?;
    say!("the same losses in {} steps, to {:.1e}", agreement::STEPS, same_losses.largest);
    // Its memory goes before the next one's comes.
    drop(runner);
    let mut runner = Runner::new(contest.plan, contest.options)?;
    let text = agreement::load(&mut runner, &weights)?;
    runner.set_text(&text);
    runner.time(1 + WARM_UP)?;
    let variants = VARIANTS.map(|variant| beside(contest, torch, variant, &mut runner));
    let variants = variants.into_iter().collect::<Result<Vec<Outcome>, Failure>>()?;
    Ok(Versus { torch: theirs.torch, same_losses, variants })
}

fn beside(contest: &Contest, torch: &Torch, variant: Variant, runner: &mut Runner) -> Result<Outcome, Failure> {
    let spec = Spec { compile: variant.compile, ..contest.spec.clone() };
    let mut peer = torch.start(&spec, variant)?;
    let mut last = peer.steps(1)?;
    let first_step_s = peer.started.elapsed().as_secs_f64();
    peer.steps(WARM_UP)?;
    let (mut ours, mut theirs, mut rounds, mut best_ms) = (vec![], vec![], vec![], f64::INFINITY);
    for round in 1..=contest.rounds {
        ours.push(1e3 * median(&runner.time(contest.steps)?));
        last = peer.steps(contest.steps)?;
        theirs.push(median(&last.ms));
        best_ms = best_ms.min(best(&last.ms));
        let (forebay, other) = (ours[ours.len() - 1], theirs[theirs.len() - 1]);
        rounds.push(other / forebay);
        say!(
            "PyTorch {}, round {round}: {other:.1} ms, Forebay {forebay:.1} ms, ratio {:.2}",
            variant.name,
            other / forebay
        );
    }
    Ok(Outcome {
        variant: variant.name,
        forebay_median_ms: median(&ours),
        median_ms: median(&theirs),
        best_ms,
        ratio: median(&rounds),
        rounds,
        peak_rss_bytes: last.peak_bytes,
        first_step_s,
    })
}
