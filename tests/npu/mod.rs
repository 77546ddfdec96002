//! Plans on emulated devices: the numbers of the CPU, the time of the simulator, and an error where a plan is wrong.

use crate::common;

mod broken;
use crate::mutations::changes;
mod host;

use common::Example;
use common::training::{batch, plan, train, train_in};
use forebay_cost::{Cluster, Precision, known};
use forebay_ir::DType;
use forebay_plan::Plan;
use forebay_runtime::backend::emulated::{Emulated, Machine};
use forebay_runtime::exec::{DeviceStep, ExecOptions, Executor, Proof};
use forebay_runtime::init;
use forebay_runtime::kernels::Cpu;
use forebay_sim::{Options, simulate};

/// Every kind of strategy: data, tensors, experts, pipelines with several schedules, context.
const CASES: [(&str, &str); 11] = [
    ("tiny-moe", "dp=2,micro=2"),
    ("tiny-moe", "tp=2,micro=4"),
    ("tiny-moe", "dp=2,ep=2,micro=2,zero=1"),
    ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=2"),
    ("tiny-moe", "pp=2,micro=4,schedule=1f1b"),
    ("tiny-moe", "pp=2,vpp=2,micro=4"),
    ("deepseek-v3", "pp=2,ep=2,tp=2,micro=4,schedule=dualpipe"),
    ("tiny-moe", "pp=2,micro=4,schedule=zb-h1"),
    ("deepseek-v3", "dp=2,pp=2,tp=2,ep=4,micro=2,zero=1"),
    ("pangu-ultra-moe", "cp=4,cp_algo=ring,ep=2,micro=4"),
    ("gpt-oss-120b", "cp=2,cp_algo=gather,pp=2,micro=4"),
];

/// Experts are on some of the ranks that share other parameters: gradients of both are ranges of what is summed together.
const SHARED: [(&str, &str); 2] =
    [("tiny-moe", "dp=4,ep=2,micro=1,zero=2"), ("tiny-moe", "dp=2,tp=2,ep=2,micro=2,zero=3")];

/// Layers of models whose steps are short otherwise: the host's stop at the commit is not to be a part of it that matters.
const LAYERS: i64 = 6;

/// Vector units beside the cubes; and cores that do the work of both.
const CLUSTERS: [&str; 2] = ["atlas-800t-a2", "h100"];

/// Steps of each run.
const STEPS: u64 = 2;

fn of(name: &str, text: &str) -> Plan {
    let set: &[(&str, i64)] = if name == "tiny-moe" { &[("layers", LAYERS)] } else { &[] };
    plan(&Example::named(name), text, DType::F32, set).unwrap_or_else(|e| panic!("{name} {text}: {e}"))
}

fn cluster(name: &str) -> Cluster {
    let (_, text) = known::FILES.iter().find(|(n, _)| *n == name).expect("a cluster");
    Cluster::parse(text).expect("it is right")
}

fn priced() -> Options {
    Options { precision: Precision::F32, without: false, ..Options::default() }
}

/// Devices for a plan, with as much memory.
fn devices(plan: &Plan, device_bytes: Option<u64>, shuffle: Option<u64>) -> Box<Emulated> {
    devices_of(&cluster(CLUSTERS[0]), plan, device_bytes, shuffle)
}

fn devices_of(cluster: &Cluster, plan: &Plan, device_bytes: Option<u64>, shuffle: Option<u64>) -> Box<Emulated> {
    let table = forebay_sim::table(plan, cluster, &priced());
    let (mesh, cpu) = (plan.mesh.clone(), Cpu::detect());
    Box::new(Emulated::new(Machine { mesh, device_bytes, table, cpu, threads: 0, shuffle }).expect("threads"))
}

fn executor(plan: &Plan, shuffle: Option<u64>) -> Executor<'_> {
    let backend = devices(plan, None, shuffle);
    Executor::on_devices(plan, &ExecOptions::default(), backend, Proof::Verifier).expect("devices")
}

/// Trains for some steps, and says how long each took.
fn steps(cluster: &Cluster, plan: &Plan) -> Vec<DeviceStep> {
    let backend = devices_of(cluster, plan, None, None);
    let options = ExecOptions::default();
    let mut executor = Executor::on_devices(plan, &options, backend, Proof::Verifier).expect("devices");
    init::initialise(&mut executor).expect("first values");
    let phase = executor.phase_named("train").expect("it trains");
    let step = |step| {
        executor.start(phase, &batch(plan, step), step).unwrap_or_else(|e| panic!("{e}"));
        executor.commit(phase, step).unwrap_or_else(|e| panic!("{e}"));
        executor.device_step().expect("a step").clone()
    };
    (1..=STEPS).map(step).collect()
}

#[test]
fn numbers_are_those_of_the_cpu() {
    for (name, text) in CASES.into_iter().chain(SHARED) {
        let plan = of(name, text);
        let wanted = train(name, &plan, STEPS).bits();
        let have = train_in(name, &mut executor(&plan, None), STEPS).bits();
        assert!(have == wanted, "{name} {text}: other bits");
        for seed in 1..=2 {
            let shuffled = train_in(name, &mut executor(&plan, Some(seed)), STEPS).bits();
            assert!(shuffled == wanted, "{name} {text}: other bits in order {seed}");
        }
    }
}

#[test]
fn the_clock_agrees_with_the_simulator() {
    for (on, (name, text)) in CLUSTERS.into_iter().flat_map(|on| CASES.map(|case| (on, case))) {
        let plan = of(name, text);
        let simulated = simulate(&plan, &cluster(on), &priced()).expect("a report").step_time_s;
        for DeviceStep { seconds, .. } in steps(&cluster(on), &plan) {
            let apart = 100.0 * (seconds / simulated - 1.0);
            println!("{on} {name} {text}: {seconds:.6} s, simulated {simulated:.6} s, {apart:+.2} %");
            // The simulator joins instructions that follow each other on a stream into one, and with them what slows them down; all else is the same.
            assert!(apart.abs() < 0.1, "{on} {name} {text}: {seconds} s, simulated {simulated} s");
        }
    }
}

/// Links so slow, and work that loses so much beside them, that it is a part of the step that counts. (The simulator finds what both share when the second is placed, and moves nothing twice.)
#[test]
fn work_loses_beside_communication_as_in_the_simulator() {
    for (name, text) in SHARED {
        let plan = of(name, &format!("{text},overlap=units"));
        let with = |slowdown: f64| {
            let mut slow = cluster("h100");
            slow.tiers.iter_mut().for_each(|tier| tier.gbps.0 *= 0.001);
            slow.device.memory_gbps.0 *= 0.001;
            slow.calibrated.overlap_slowdown.0 = slowdown;
            slow
        };
        let simulated = |slowdown: f64| simulate(&plan, &with(slowdown), &priced()).expect("a report").step_time_s;
        let (alone, beside) = (simulated(0.0), simulated(0.5));
        assert!(beside > 1.05 * alone, "{text}: {beside} s, {alone} without");
        for DeviceStep { seconds, .. } in steps(&with(0.5), &plan) {
            let apart = 100.0 * (seconds / beside - 1.0);
            println!("{name} {text}: {seconds:.6} s, simulated {beside:.6} s ({alone:.6} s without), {apart:+.2} %");
            assert!(apart.abs() < 3.0, "{text}: {seconds} s, simulated {beside} s");
        }
    }
}
