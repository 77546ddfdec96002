//! What `forebay memory` found: as data, and as text.

use crate::output::{Table, grouped, size};
use forebay_compiler::memory::{SavedTensor, StageMemory};
use forebay_plan::Role;
use serde::Serialize;

/// A model's memory under a strategy, on a cluster.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The model.
    pub model: String,
    /// The device.
    pub device: String,
    /// How many there are.
    pub devices: u64,
    /// Bytes that a device may use, when a budget was given.
    pub budget_bytes: Option<u64>,
    /// Predicted seconds of a step.
    pub step_time_s: f64,
    /// The same with everything kept that the strategy does not name; the same number when that is what runs.
    pub unrestricted_step_time_s: f64,
    /// The plan with everything kept that the strategy does not name: what savings are counted from.
    pub baseline: Point,
    /// Bytes of saved tensors and what passes, without what outlives a step, of the stage that has most.
    pub activation_bytes: u64,
    /// For each stage.
    pub stages: Vec<Stage>,
    /// Least time against memory: each point a plan that was compiled and simulated.
    pub front: Vec<Point>,
}

/// A pipeline stage.
#[derive(Debug, Serialize)]
pub struct Stage {
    /// Which.
    pub stage: u32,
    /// Bytes that a device allocates.
    pub peak_bytes: u64,
    /// The same with everything kept that the strategy does not name.
    pub unrestricted_bytes: u64,
    /// The least that any placement takes.
    pub live_peak_bytes: u64,
    /// Bytes of parameters, gradients and optimizer state on the device.
    pub persistent_bytes: u64,
    /// Bytes of the host's memory: optimizer state, and what is swapped.
    pub host_bytes: u64,
    /// Estimated seconds of a step for what is made again.
    pub recompute_s: f64,
    /// No choice with as few bytes of saved tensors takes so many seconds less, by the same estimates.
    pub gap_s: f64,
    /// Was it proven that none takes less at all?
    pub exact: bool,
    /// Estimated seconds of a step for copies to the host's memory; as many come back at the same time.
    pub swap_s: f64,
    /// Of these, the seconds that computation is expected to hide.
    pub swap_hidden_s: f64,
    /// What is saved.
    pub tensors: Vec<Tensor>,
    /// Live bytes over the calls of a step, in at most [`CURVE`] parts of equal length, each at its most.
    pub live_bytes: Vec<u64>,
    /// Of these, saved tensors and layers' inputs.
    pub saved_bytes: Vec<u64>,
}

/// A tensor that the backward pass reads.
#[derive(Debug, Serialize)]
pub struct Tensor {
    /// Layers of this kind have it.
    pub segment: String,
    /// Its name.
    pub name: String,
    /// What makes it; nothing for what comes from the layer before.
    pub op: Option<&'static str>,
    /// Bytes of one.
    pub bytes: u64,
    /// Layers of the stage that have it.
    pub layers: u32,
    /// How many there are at the peak, or would be: over layers and micro-batches in flight.
    pub copies: u32,
    /// Bytes of these.
    pub total_bytes: u64,
    /// The calls that make it and read it last, where that takes longest.
    pub life: (u32, u32),
    /// `keep`, `swap` or `recompute`.
    pub choice: &'static str,
    /// Estimated seconds of a step for making it again.
    pub recompute_s: Option<f64>,
    /// Estimated seconds of the link to the host in a step, where it is swapped.
    pub swap_s: Option<f64>,
    /// The ops that make it again from what is kept.
    pub made_by: Vec<&'static str>,
    /// Why it was chosen so.
    pub why: String,
}

/// A plan between the most memory and the least.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Bytes that were allowed; none for the least there is.
    pub budget_bytes: Option<u64>,
    /// Bytes of the stage that has most.
    pub peak_bytes: u64,
    /// Bytes of saved tensors and what passes, without what outlives a step, of the stage that has most.
    pub activation_bytes: u64,
    /// Predicted seconds of a step.
    pub step_time_s: f64,
}

/// Points of a curve.
pub const CURVE: usize = 240;
/// Tensors of a stage that are shown to people.
const SHOWN: usize = 16;

impl Report {
    /// The points of the front, and the baseline in front of them where it is none.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        let is_on_it = self.front.iter().any(|p| p.peak_bytes == self.baseline.peak_bytes);
        (!is_on_it).then_some(&self.baseline).into_iter().chain(&self.front)
    }
}

impl Stage {
    /// From what the compiler says of a stage's ranks.
    pub fn new(memory: &StageMemory, role: &Role) -> Stage {
        // What the strategy names says nothing of what is worth it.
        let chosen = || memory.tensors.iter().filter(|t| !t.named);
        let dearest = chosen().filter(|t| !t.kept).filter_map(per_byte).fold(0.0, f64::max);
        let full = chosen().any(|t| t.swapped || !t.kept);
        Stage {
            stage: memory.stage,
            peak_bytes: memory.peak,
            unrestricted_bytes: memory.unrestricted,
            live_peak_bytes: memory.live_peak,
            persistent_bytes: memory.persistent,
            host_bytes: role.host_bytes,
            recompute_s: memory.seconds,
            gap_s: memory.gap,
            exact: memory.exact,
            swap_s: memory.copies.0,
            swap_hidden_s: memory.copies.0.min(memory.copies.1),
            tensors: memory.tensors.iter().map(|t| tensor(t, dearest, full)).collect(),
            live_bytes: parts(&memory.live),
            saved_bytes: parts(&memory.saved),
        }
    }
}

/// A curve in few parts, each at its most.
fn parts(curve: &[u64]) -> Vec<u64> {
    let size = curve.len().div_ceil(CURVE).max(1);
    curve.chunks(size).map(|part| part.iter().copied().max().unwrap_or(0)).collect()
}

/// Seconds that a byte costs which is not kept.
fn per_byte(tensor: &SavedTensor) -> Option<f64> {
    let bytes = tensor.bytes as f64 * f64::from(tensor.copies);
    tensor.seconds.map(|s| s / bytes.max(1.0))
}

/// `dearest`: seconds of a byte of what is made again at most; `full`: does something go for want of room?
fn tensor(t: &SavedTensor, dearest: f64, full: bool) -> Tensor {
    let gib = |per_byte: f64| seconds(per_byte * (1u64 << 30) as f64);
    let why = match (t.kept, per_byte(t)) {
        (true, _) if t.swapped => copied(t),
        (true, None) => "what the layer is given: there is nothing to make it from".to_string(),
        (true, Some(_)) if !full => "there is room".to_string(),
        (true, Some(_)) if dearest == 0.0 => "there is room once others are swapped".to_string(),
        (true, Some(cost)) if cost > dearest => {
            format!("{} a GiB, what is made again {} at most", gib(cost), gib(dearest))
        }
        (true, Some(_)) => "others are made from it, or there is room".to_string(),
        (false, _) if t.named => format!("the strategy names it; made by {}", chain(&t.made_by)),
        (false, cost) => format!("{} a GiB: {}", gib(cost.unwrap_or(0.0)), chain(&t.made_by)),
    };
    Tensor {
        segment: t.segment.clone(),
        name: t.name.clone(),
        op: t.op,
        bytes: t.bytes,
        layers: t.layers,
        copies: t.copies,
        total_bytes: t.bytes * u64::from(t.copies),
        life: t.life,
        choice: match (t.kept, t.swapped) {
            (true, true) => "swap",
            (true, false) => "keep",
            (false, _) => "recompute",
        },
        recompute_s: t.seconds,
        swap_s: t.copy_seconds,
        made_by: t.made_by.clone(),
        why,
    }
}

/// Why a tensor is swapped.
fn copied(t: &SavedTensor) -> String {
    let again = t.seconds.map_or(String::new(), |s| format!(", making it again {}", seconds(s)));
    match t.copy_seconds {
        _ if t.named => "the strategy names it".to_string(),
        Some(link) => format!("{} of the link to the host{again}", seconds(link)),
        None => "copied to the host and back".to_string(),
    }
}

/// `contract, rope`; of long chains how long they are.
fn chain(ops: &[&str]) -> String {
    match ops.len() {
        0 => "a view of what is kept".to_string(),
        1..=4 => ops.join(", "),
        n => format!("{} … {} ({n} ops)", ops[0], ops[n - 1]),
    }
}

/// Seconds in three digits.
pub fn seconds(s: f64) -> String {
    match s {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s if s > 0.0 => format!("{:.2} µs", s * 1e6),
        _ => "0".into(),
    }
}

fn bytes(b: u64) -> String {
    size(b as f64)
}

/// By how many hundredths a step is longer, in hundredths of one. (Never `-0.00`: that would look like a gain.)
fn slower(step: f64, than: f64) -> f64 {
    let hundredths = (1e4 * (step / than - 1.0)).round() / 100.0;
    if hundredths == 0.0 { 0.0 } else { hundredths }
}

/// A curve in one line of blocks, against `most`.
fn blocks(curve: &[u64], most: u64) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let size = curve.len().div_ceil(80).max(1);
    let height = |part: &[u64]| part.iter().copied().max().unwrap_or(0) as f64 / most.max(1) as f64 * 8.0;
    curve.chunks(size).map(|part| BLOCKS[(height(part).round() as usize).min(8)]).collect()
}

/// The report for people: all stages, one of them in full (the fullest, unless one was asked for), and the front.
pub fn text(report: &Report, stage: Option<u32>) -> String {
    let mut out = format!(
        "{} on {} × {}: a step takes {}{}\n\n",
        report.model,
        grouped(report.devices),
        report.device,
        seconds(report.step_time_s),
        match report.budget_bytes {
            Some(budget) => format!(
                " within {} of memory, {:+.2} % of {} without a budget",
                bytes(budget),
                slower(report.step_time_s, report.unrestricted_step_time_s),
                seconds(report.unrestricted_step_time_s)
            ),
            None => String::new(),
        }
    );
    let columns = [
        "stage",
        "peak",
        "unbudgeted",
        "persistent",
        "on host",
        "placed/live",
        "made again",
        "copied",
        "of as few bytes",
    ];
    let mut stages = Table::new(&columns);
    for s in &report.stages {
        stages.row(vec![
            s.stage.to_string(),
            bytes(s.peak_bytes),
            bytes(s.unrestricted_bytes),
            bytes(s.persistent_bytes),
            bytes(s.host_bytes),
            format!("{:.4}", s.peak_bytes as f64 / s.live_peak_bytes.max(1) as f64),
            seconds(s.recompute_s),
            seconds(s.swap_s),
            if s.exact { "least".into() } else { format!("within {}", seconds(s.gap_s)) },
        ]);
    }
    out += &stages.render();
    let fullest = report.stages.iter().max_by_key(|s| s.peak_bytes).map(|s| s.stage);
    if let Some(s) = report.stages.iter().find(|s| Some(s.stage) == stage.or(fullest)) {
        out += &stage_text(s);
    }
    out += &format!(
        "\nactivations of the fullest stage: {}, {} of the {} of the baseline (everything kept that the strategy does not name)\n",
        bytes(report.activation_bytes),
        share(report.activation_bytes, report),
        bytes(report.baseline.activation_bytes)
    );
    if !report.front.is_empty() {
        let mut front =
            Table::new(&["memory of the fullest stage", "activations", "of the baseline", "step", "slower by"]);
        for p in report.points() {
            let slower = slower(p.step_time_s, report.unrestricted_step_time_s);
            front.row(vec![
                bytes(p.peak_bytes),
                bytes(p.activation_bytes),
                share(p.activation_bytes, report),
                seconds(p.step_time_s),
                format!("{slower:.2} %"),
            ]);
        }
        out += &format!("\n{}", front.render());
    }
    out
}

/// Bytes of activations as a part of those of the baseline.
fn share(activations: u64, report: &Report) -> String {
    format!("{:.0} %", 100.0 * activations as f64 / report.baseline.activation_bytes.max(1) as f64)
}

fn stage_text(stage: &Stage) -> String {
    let most = stage.live_peak_bytes;
    let mut out = format!(
        "\nstage {} over the calls of a step, up to {}\n  live   {}\n  saved  {}\n\n",
        stage.stage,
        bytes(most),
        blocks(&stage.live_bytes, most),
        blocks(&stage.saved_bytes, most)
    );
    let mut table =
        Table::new(&["saved tensor", "of", "made by", "choice", "each", "copies", "in all", "calls", "again", "why"])
            .left(4);
    for t in stage.tensors.iter().take(SHOWN) {
        table.row(vec![
            t.name.clone(),
            t.segment.clone(),
            t.op.unwrap_or("").to_string(),
            t.choice.to_string(),
            bytes(t.bytes),
            t.copies.to_string(),
            bytes(t.total_bytes),
            format!("{}–{}", t.life.0, t.life.1),
            t.recompute_s.map_or(String::new(), seconds),
            t.why.clone(),
        ]);
    }
    out += &table.render();
    if let Some(rest) = stage.tensors.get(SHOWN..).filter(|rest| !rest.is_empty()) {
        let all: u64 = rest.iter().map(|t| t.total_bytes).sum();
        out += &format!("and {} more of {} (--json has all)\n", rest.len(), bytes(all));
    }
    out
}
