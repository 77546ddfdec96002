//! Training curves beside PyTorch: how far the losses of runs in f32 and bf16 are from those of a run in f64, over many steps, ours and the peer's.
//!
//! All runs begin with the same weights and see the same few batches again and again, so that there is something to learn. A run is also done with the rows of each batch turned: in the
//! reals nothing changes by that, in the order of sums and with it in rounding it does. How much the distances of the peer's turns differ is what
//! chance does to one run; ours have to be judged by that.

use super::agreement;
use super::runner::Runner;
use super::torch::{Spec, Torch, VARIANTS};
use crate::failure::Failure;
use crate::output::Table;
use crate::say::say;
use forebay_ir::DType;
use forebay_plan::Plan;
use forebay_runtime::exec::ExecOptions;
use serde::Serialize;

/// Batches that come again and again.
const BATCHES: u64 = 8;
/// The learning rate: ten times that of the other benchmarks, with which 100 steps would hardly leave the loss of the first.
pub const LR: f64 = 1e-3;
/// How many rows of a batch come last instead of first, in the runs of a type.
const TURNS: [u64; 4] = [0, 1, 2, 3];
/// Peer variants that curves are drawn of: the first with each turn, the other with none.
const EAGER: usize = 0;
const COMPILED: usize = 2;

/// What is compared, and how our plan in a type is made.
pub struct Question<'a> {
    pub plan: &'a dyn Fn(DType) -> Result<Plan, Failure>,
    pub options: &'a ExecOptions,
    pub spec: Spec,
    pub steps: u64,
}

/// The outcome, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Curves {
    pub torch: String,
    /// Losses in f64.
    pub f64: Vec<f64>,
    pub runs: Vec<Curve>,
}

/// A run beside the one in f64.
#[derive(Debug, Serialize)]
pub struct Curve {
    pub program: &'static str,
    pub dtype: &'static str,
    pub turn: u64,
    /// The mean over all steps of the distance of the losses, nats.
    pub distance: f64,
    pub last_loss: f64,
}

/// Does all runs. What happens is said on stderr.
pub fn draw(question: &Question, torch: &Torch) -> Result<Curves, Failure> {
    let weights = torch.file("weights.safetensors");
    let spec = Spec { batches: BATCHES, lr: LR, ..question.spec.clone() };
    let exact = Spec { dtype: "f32".into(), dump: Some(weights.clone()), ..spec.clone() };
    let theirs = torch.start(&exact, VARIANTS[EAGER])?.steps(question.steps)?;
    let ours = |dtype: DType, turn: u64| -> Result<Vec<f64>, Failure> {
        let plan = (question.plan)(dtype)?;
        let mut runner = Runner::new(&plan, question.options)?;
        let text = agreement::load(&mut runner, &weights)?;
        let row = plan.settings.seq as usize + 1;
        let mut batches: Vec<Vec<i32>> = text.chunks(row * plan.settings.batch as usize).map(<[i32]>::to_vec).collect();
        batches.iter_mut().for_each(|batch| batch.rotate_left(row * (turn % plan.settings.batch) as usize));
        let mut step = |batch: &Vec<i32>| {
            runner.set_text(batch);
            runner.step()
        };
        batches.iter().cycle().take(question.steps as usize).map(&mut step).collect()
    };
    let wide = ours(DType::F64, 0)?;
    let mut runs = vec![];
    let mut add = |program, dtype, turn, losses: Vec<f64>| {
        let distance = losses.iter().zip(&wide).map(|(a, b)| (a - b).abs()).sum::<f64>() / wide.len() as f64;
        say!("{program}, {dtype}, rows turned by {turn}: {distance:.2e} from f64");
        runs.push(Curve { program, dtype, turn, distance, last_loss: losses[losses.len() - 1] });
    };
    add("Forebay", "f32", 0, ours(DType::F32, 0)?);
    add("PyTorch eager", "f32", 0, theirs.losses);
    for turn in TURNS {
        add("Forebay", "bf16", turn, ours(DType::BF16, turn)?);
    }
    let half = Spec { dtype: "bf16".into(), ..spec };
    for turn in TURNS {
        let spec = Spec { turn, ..half.clone() };
        add("PyTorch eager", "bf16", turn, torch.start(&spec, VARIANTS[EAGER])?.steps(question.steps)?.losses);
    }
    let compiled = Spec { compile: true, ..half };
    add("PyTorch compile", "bf16", 0, torch.start(&compiled, VARIANTS[COMPILED])?.steps(question.steps)?.losses);
    Ok(Curves { torch: theirs.torch, f64: wide, runs })
}

/// For people.
pub fn text(curves: &Curves) -> String {
    let (first, last) = (curves.f64[0], curves.f64[curves.f64.len() - 1]);
    let out = format!(
        "\n{} steps from the same weights on the same {BATCHES} batches, beside PyTorch {}; in f64 the loss falls from {first:.4} to {last:.4}\n\n",
        curves.f64.len(),
        curves.torch
    );
    let mut table = Table::new(&["run", "type", "rows turned by", "mean distance from f64", "last loss"]);
    for c in &curves.runs {
        let numbers = [c.turn.to_string(), format!("{:.2e}", c.distance), format!("{:.4}", c.last_loss)];
        table.row([vec![c.program.into(), c.dtype.into()], numbers.to_vec()].concat());
    }
    out + &table.render()
}
