//! What training steps come to on this machine.

use super::runner::Runner;
use super::{best, median};
use crate::failure::Failure;
use crate::profile;
use forebay_plan::Plan;
use forebay_runtime::exec::{ExecOptions, Laps, Roofline};
use serde::Serialize;

/// Steps after the first that are not timed: caches and the system's pages settle.
pub const WARM_UP: u64 = 2;
/// Steps that are profiled, at most.
const PROFILED: u64 = 5;

/// The measurements, as `--json` prints them.
#[derive(Debug, Serialize)]
pub struct Measurement {
    pub model: String,
    pub dtype: String,
    pub batch: u64,
    pub seq: u64,
    pub params: u64,
    pub threads: usize,
    pub cpu: &'static str,
    /// Steps timed.
    pub steps: u64,
    pub median_ms: f64,
    pub best_ms: f64,
    pub tokens_per_s: f64,
    /// Matrix products only: 3 × forward, causal attention at half.
    pub gflop_per_step: f64,
    pub gflop_per_s: f64,
    /// The part of a step's time that its instructions would take at the probe's rates.
    pub roofline_share: f64,
    pub probe_gflop_per_s: f64,
    pub probe_gbyte_per_s: f64,
    /// The part of a step's time that is not inside kernels.
    pub dispatch_share: f64,
    /// From the start of the process to the end of step 1, compilation included.
    pub first_step_s: f64,
    /// Machine code for regions, a part of that.
    pub compiled: Compiled,
    /// The parts of that, in order: names and seconds.
    pub first_step_parts: Vec<(&'static str, f64)>,
    /// The same without the time that a step takes later.
    pub start_up_s: f64,
    /// Ranks, all in this process.
    pub ranks: u64,
    /// Of the rank that needs most.
    pub planned_bytes: u64,
    /// Of the process; null where the system does not say.
    pub peak_rss_bytes: Option<u64>,
}

/// What was compiled to machine code when kernels were prepared.
#[derive(Debug, Serialize)]
pub struct Compiled {
    /// Parts of regions; equal ones once.
    pub functions: u64,
    /// Seconds for all of them.
    pub seconds: f64,
}

/// Compares nothing, times steps. `laps` were measured since the start of the process.
pub fn measure(plan: &Plan, options: &ExecOptions, steps: u64, mut laps: Laps) -> Result<Measurement, Failure> {
    let mut runner = Runner::timed(plan, options, &mut laps)?;
    runner.step()?;
    laps.lap("step 1");
    runner.time(WARM_UP)?;
    let seconds = runner.time(steps)?;
    // Before the probe, which takes memory of its own.
    let peak_rss_bytes = peak_memory();
    let roofline = runner.executor().roofline();
    runner.start_profile();
    runner.time(steps.min(PROFILED))?;
    Ok(summary(plan, &runner, &seconds, &roofline, &laps, peak_rss_bytes))
}

fn summary(
    plan: &Plan,
    runner: &Runner,
    seconds: &[f64],
    roofline: &Roofline,
    laps: &Laps,
    peak_rss_bytes: Option<u64>,
) -> Measurement {
    let executor = runner.executor();
    let profile = executor.profile().expect("steps were profiled");
    let settings = &plan.settings;
    let planned = plan.roles.iter().map(|role| role.device_bytes + role.host_bytes).max();
    let step = median(seconds);
    let (functions, compiling) = forebay_runtime::kernels::compiled();
    Measurement {
        model: plan.model.clone(),
        dtype: settings.compute.name().into(),
        batch: settings.batch,
        seq: settings.seq,
        params: settings.params,
        threads: executor.threads(),
        cpu: executor.cpu().name(),
        steps: seconds.len() as u64,
        median_ms: 1e3 * step,
        best_ms: 1e3 * best(seconds),
        tokens_per_s: (settings.batch * settings.seq) as f64 / step,
        gflop_per_step: settings.flops_per_step / 1e9,
        gflop_per_s: settings.flops_per_step / step / 1e9,
        roofline_share: profile::attained(&profile.rows(plan), profile.seconds(), roofline),
        probe_gflop_per_s: roofline.flops / 1e9,
        probe_gbyte_per_s: roofline.bytes / 1e9,
        dispatch_share: profile.dispatch_share(),
        first_step_s: laps.total().as_secs_f64(),
        compiled: Compiled { functions, seconds: compiling.as_secs_f64() },
        first_step_parts: laps.get().iter().map(|(name, time)| (*name, time.as_secs_f64())).collect(),
        start_up_s: laps.total().as_secs_f64() - step,
        ranks: plan.mesh.iter().map(|dim| u64::from(dim.size)).product(),
        planned_bytes: planned.unwrap_or(0),
        peak_rss_bytes,
    }
}

/// The most memory that this process had, in bytes, where the system says.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
