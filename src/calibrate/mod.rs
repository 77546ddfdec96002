//! Measuring this machine: what `forebay calibrate --cpu` does.
//!
//! Small models train for a few steps, on one rank with all cores and on one rank for each core, and every kernel is timed where it stands, with the caches as they are
//! in training. Their shapes and rates are the samples of a cluster file. Then more ranks than cores train, and what they take beyond the prediction is
//! what taking turns costs.
//!
//! * [`probe`]: training a small model, with times. * [`samples`]: from times to rates. * [`others`]: whether somebody else was at work. * [`mod@file`]: the cluster file.

pub mod file;
pub mod others;
pub mod probe;
pub mod samples;

use crate::failure::Failure;
use crate::output::counted;
use crate::say::say;
use forebay_cost::Cluster;
use forebay_sim::Framework;
use forebay_sim::report::Options;
use forebay_sim::shared::Load;
use others::Ticks;
use probe::{Probe, Ran};
use samples::Samples;
use serde::Serialize;
use std::time::{Duration, Instant};

/// No probe begins later than that; with the last one, less than two minutes in all.
const BUDGET: Duration = Duration::from_secs(80);
/// So many probes are run before many ranks are: shapes enough to predict these with.
const BEFORE_SHARING: usize = 4;
/// From this part of the processor's time on, what others took is worth a warning: predictions are then too slow by about as much.
const DISTURBED: f64 = 0.1;

/// What was found, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Calibration {
    /// The processor, as the system calls it.
    pub cpu: String,
    /// Cores that are used.
    pub cores: u32,
    /// Products of all cores in f32, GFLOP/s at most.
    pub peak_gflops: f64,
    /// The same in bf16.
    pub peak_bf16_gflops: f64,
    /// Memory bandwidth of all cores, GB/s.
    pub memory_gbps: f64,
    /// Memory that can be had, GB.
    pub memory_gb: f64,
    /// Between two kernels, µs.
    pub kernel_us: f64,
    /// Bandwidth of collectives between ranks, GB/s for each.
    pub link_gbps: f64,
    /// A rendezvous of ranks, µs.
    pub latency_us: f64,
    /// The part of communication between ranks that is work of cores; they wait for the rest of it.
    pub communication_work: f64,
    /// Ranks, and how much longer their steps take: with a core for each than without waiting for whichever is held up, beyond the cores than all their work on all cores.
    pub sharing: Vec<(u32, f64)>,
    /// The part of the processor's time that other programs had meanwhile; none where the system does not say.
    pub others: Option<f64>,
    /// How many shapes were timed.
    pub samples: usize,
    /// How long it took.
    pub seconds: f64,
}

impl Calibration {
    /// What is to be said of other programs, if they took much.
    pub fn disturbance(&self) -> Option<String> {
        let part = self.others.filter(|part| *part >= DISTURBED)?;
        let percent = 100.0 * part;
        Some(format!(
            "other programs had {percent:.0} % of the processor meanwhile, and what they took is in the rates"
        ))
    }
}

/// Measures this machine with up to so many ranks: the summary and the cluster file. Says how far it is on stderr.
pub fn calibrate(most_ranks: u32) -> Result<(Calibration, String), Failure> {
    let (begun, ticks) = (Instant::now(), Ticks::now());
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let mut samples = Samples::default();
    let (mut roofline, mut bf16) = (None, None);
    let of_rows = [1, cores];
    let probes = Probe::all();
    let mut many = None;
    for (number, probe) in probes.iter().enumerate() {
        // What more shapes than these say matters less than what taking turns costs.
        if number == BEFORE_SHARING {
            many = Some(steps_of_many(cores, most_ranks, begun)?);
        }
        if number > 1 && begun.elapsed() > BUDGET {
            say!("calibrate: out of time, {} probes are left out", probes.len() - number);
            break;
        }
        for &ranks in of_rows.iter().take(if cores > 1 && most_ranks > 1 { 2 } else { 1 }) {
            say!("calibrate: {}/{}: {probe}, {}", number + 1, probes.len(), counted(ranks.into(), "rank"));
            let ran = probe.run(ranks, cores)?;
            // One rank has all threads, as the machine has.
            let of_type = if probe.is_bf16() { &mut bf16 } else { &mut roofline };
            of_type.get_or_insert(ran.roofline);
            samples.add(&ran, (cores / ranks).max(1));
        }
    }
    let many = match many {
        Some(many) => many,
        None => steps_of_many(cores, most_ranks, begun)?,
    };
    let roofline = roofline.ok_or_else(|| Failure::Input("nothing was measured".into()))?;
    let mut calibration = Calibration {
        cpu: cpu_name(),
        cores,
        peak_gflops: roofline.flops / 1e9,
        peak_bf16_gflops: bf16.map_or(roofline.flops, |bf16| bf16.flops) / 1e9,
        memory_gbps: roofline.bytes / 1e9,
        memory_gb: forebay_runtime::exec::available_memory().map_or(1.0, |bytes| bytes as f64 / 1e9),
        kernel_us: samples.between_us(),
        link_gbps: samples.link_gbps().unwrap_or(roofline.bytes / 1e9 / 2.0),
        latency_us: samples.latency_us(),
        communication_work: 1.0,
        sharing: vec![],
        others: None,
        samples: samples.len(),
        seconds: 0.0,
    };
    share(&mut calibration, &samples, many)?;
    if cores > 1 && most_ranks > 1 {
        calibration.sharing.splice(..0, [(1, 1.0), (cores, samples.unevenness())]);
    }
    calibration.others = Ticks::now().zip(ticks).map(|(now, before)| now.others_since(before));
    calibration.seconds = begun.elapsed().as_secs_f64();
    let text = file::text(&calibration, &samples);
    Cluster::parse(&text)
        .map_err(|error| Failure::Input(format!("what was measured makes no cluster file: {error}")))?;
    Ok((calibration, text))
}

/// Steps of as many ranks as there are cores, and of more: powers of two up to the most that are asked for. None where no more are.
fn steps_of_many(cores: u32, most: u32, begun: Instant) -> Result<Vec<(u32, Ran)>, Failure> {
    let more: Vec<u32> = (1..16).map(|n| 1u32 << n).filter(|n| *n > cores && *n <= most).collect();
    if more.is_empty() {
        return Ok(vec![]);
    }
    let mut all = vec![];
    for ranks in std::iter::once(cores).chain(more) {
        if begun.elapsed() > BUDGET {
            say!("calibrate: out of time, {} are left out", counted(ranks.into(), "rank"));
            continue;
        }
        say!("calibrate: {} on {cores} cores", counted(ranks.into(), "rank"));
        all.push((ranks, Probe::shared().run_for(probe::MANY_STEPS, ranks, cores)?));
    }
    Ok(all)
}

/// What taking turns costs ranks that share cores, and how much of communication is work: what is left of their steps beside what the samples say.
fn share(calibration: &mut Calibration, samples: &Samples, many: Vec<(u32, Ran)>) -> Result<(), Failure> {
    let cores = calibration.cores;
    let cluster = Cluster::parse(&file::text(calibration, samples))
        .map_err(|error| Failure::Input(format!("what was measured makes no cluster file: {error}")))?;
    let options =
        Options { framework: Framework::on_machine(), precision: forebay_cost::Precision::F32, ..Options::default() };
    let mut all = vec![];
    for (ranks, ran) in many {
        let load = forebay_sim::shared::load(&ran.plan, &cluster, &options).map_err(Failure::Input)?;
        all.push(Shared { ranks, step: ran.step, load });
    }
    // How far off the samples are without any sharing is no matter of sharing; that ranks wait for each other is.
    let (alone, mut all): (Vec<_>, Vec<_>) = all.into_iter().partition(|of| of.ranks <= cores);
    let Some(usual) = alone.first().map(|of| of.step / of.load.alone / samples.unevenness()) else { return Ok(()) };
    all.iter_mut().for_each(|of| of.step /= usual);
    calibration.communication_work = communication_work(&all, f64::from(cores));
    calibration.sharing = all
        .iter()
        .map(|of| {
            let predicted = of.load.shared(f64::from(cores), calibration.communication_work);
            (of.ranks, turns(of.step, predicted))
        })
        .collect();
    Ok(())
}

/// A step of ranks that share cores.
#[derive(Clone, Copy, Debug)]
struct Shared {
    ranks: u32,
    /// Seconds of it.
    step: f64,
    /// What it would be without sharing.
    load: Load,
}

/// What taking turns costs: no less than all of the work.
fn turns(step: f64, predicted: f64) -> f64 {
    (step / predicted).clamp(1.0, 10.0)
}

/// The part of communication that is work of cores: what makes the work of all ranks fill the steps, by least squares.
fn communication_work(all: &[Shared], cores: f64) -> f64 {
    let squares: f64 = all.iter().map(|of| of.load.communication.powi(2)).sum();
    let filled: f64 = all.iter().map(|of| (of.step * cores - of.load.work) * of.load.communication).sum();
    if squares > 0.0 { (filled / squares).clamp(0.0, 1.0) } else { 1.0 }
}

fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

/// The middle of what was timed, less what other work on the machine adds: the lower quartile.
fn lower_quartile(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 4).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of no machine, with what was timed.
    fn example(samples: &Samples) -> Calibration {
        Calibration {
            cpu: "a \"CPU\"".into(),
            cores: 2,
            peak_gflops: 100.0,
            peak_bf16_gflops: 200.0,
            memory_gbps: 10.0,
            memory_gb: 8.0,
            kernel_us: samples.between_us(),
            link_gbps: 1.0,
            latency_us: samples.latency_us(),
            communication_work: 0.5,
            sharing: vec![(4, 1.5)],
            others: None,
            samples: samples.len(),
            seconds: 0.0,
        }
    }

    /// Times are whatever they are; that they make a file with which the plan that ran is predicted does not depend on them.
    #[test]
    fn what_a_probe_times_is_a_cluster_file() {
        let mut samples = Samples::default();
        let probe = Probe::smallest();
        let ran = probe.run(1, 1).expect("one rank trains");
        samples.add(&ran, 1);
        let two = probe.run(2, 2).expect("two ranks train");
        samples.add(&two, 1);
        assert!(samples.link_gbps().is_none_or(|rate| rate > 0.0) && samples.latency_us() > 0.0);
        let calibration = Calibration { others: Some(0.35), ..example(&samples) };
        let text = file::text(&calibration, &samples);
        let cluster = Cluster::parse(&text).unwrap_or_else(|error| panic!("{error}:\n{text}"));
        assert!(
            text.contains("\n# Measured again when the machine is idle it is better: other programs had 35 % "),
            "{text}"
        );
        assert_eq!(Calibration { others: Some(0.05), ..calibration }.disturbance(), None);
        let options = Options {
            framework: Framework::on_machine(),
            precision: forebay_cost::Precision::F32,
            ..Options::default()
        };
        let settled = forebay_sim::shared::settled(&ran.plan, &cluster, &options).expect("a cluster");
        let report = forebay_sim::simulate(&ran.plan, &settled, &options).expect("a report");
        // Every kernel that ran is one of the samples: alone they come to what was timed.
        let timed: f64 = ran
            .times
            .values()
            .map(|of_ranks| {
                let all: Vec<f64> = of_ranks.iter().flatten().copied().collect();
                all.iter().sum::<f64>() / ran.steps as f64
            })
            .sum();
        let predicted = report.step_time_s;
        assert!((0.2..5.0).contains(&(predicted / timed)), "{predicted} {timed}");
        assert_eq!(report.memory_bytes[0].peak, ran.plan.roles[0].phases[0].memory.placed as f64);
        // Four ranks on two cores have all their work, and half of their communication, on these, and turns cost half as much again.
        let four = probe.run(4, 2).expect("four ranks train").plan;
        let turns = forebay_sim::shared::settled(&four, &cluster, &options).expect("a cluster");
        let load = forebay_sim::shared::load(&four, &cluster, &options).expect("a load");
        assert!(load.work > 0.0 && load.communication > 0.0 && load.alone > 0.0, "{load:?}");
        let time = forebay_sim::report::step_time(&four, &turns, &options).expect("a time");
        let want = 1.5 * ((load.work + 0.5 * load.communication) / 2.0).max(load.alone);
        assert!((time / want - 1.0).abs() < 0.02, "{time} {want}");
    }

    /// With a core for each ranks wait for whichever is held up: all that they do takes so much longer, and nothing that one rank does.
    #[test]
    fn ranks_with_a_core_each_wait() {
        let mut samples = Samples::default();
        let plans = [1, 2].map(|ranks| {
            let ran = Probe::smallest().run(ranks, 2).expect("it trains");
            samples.add(&ran, 1);
            ran.plan
        });
        let mut calibration = example(&samples);
        let options = Options {
            framework: Framework::on_machine(),
            precision: forebay_cost::Precision::F32,
            ..Options::default()
        };
        let mut times = |sharing: &[(u32, f64)]| {
            calibration.sharing = sharing.to_vec();
            let cluster = Cluster::parse(&file::text(&calibration, &samples)).expect("a cluster file");
            plans.each_ref().map(|plan| {
                let settled = forebay_sim::shared::settled(plan, &cluster, &options).expect("a cluster");
                forebay_sim::report::step_time(plan, &settled, &options).expect("a time")
            })
        };
        let ([one, two], [one_of, two_of]) = (times(&[]), times(&[(1, 1.0), (2, 1.25), (4, 3.0)]));
        assert!((two_of / two - 1.25).abs() < 0.01 && one_of == one, "{two_of} of {two}, {one_of} of {one}");
    }

    /// Two ranks a core: what their work leaves of the steps is the cores' part of communication; no more than all of it, and no less than nothing.
    #[test]
    fn cores_wait_for_a_part_of_communication() {
        let of = |step: f64| Shared { ranks: 4, step, load: Load { work: 8.0, communication: 2.0, alone: 2.5 } };
        assert_eq!([4.25, 5.0, 6.0, 3.0].map(|step| communication_work(&[of(step)], 2.0)), [0.25, 1.0, 1.0, 0.0]);
        assert_eq!(communication_work(&[of(4.25), of(4.75)], 2.0), 0.5);
        assert_eq!(communication_work(&[], 2.0), 1.0);
        assert_eq!([turns(3.0, 2.0), turns(1.0, 2.0), turns(50.0, 2.0)], [1.5, 1.0, 10.0]);
        assert_eq!([0.0, 0.25, 1.0].map(|part| of(1.0).load.shared(2.0, part)), [4.0, 4.25, 5.0]);
        assert_eq!(of(1.0).load.shared(8.0, 1.0), 2.5, "no faster than with a core for each");
    }

    #[test]
    fn quartiles() {
        assert_eq!(lower_quartile(vec![]), 0.0);
        assert_eq!(lower_quartile(vec![5.0]), 5.0);
        assert_eq!(lower_quartile(vec![9.0, 1.0, 3.0, 2.0, 50.0]), 2.0);
    }
}
