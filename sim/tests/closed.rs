//! The closed form against the replay: strategies drawn at random for a mixture of experts and a dense model.

use forebay_compiler::pipeline::{CompileOptions, compile_training};
use forebay_compiler::shard::Strategy;
use forebay_cost::{Cluster, known};
use forebay_dsl::model::{CheckedModel, Const};
use forebay_ir::DType;
use forebay_sim::closed::{Closed, Doubt, Estimate};
use forebay_sim::framework::Framework;
use forebay_sim::report::{Options, Report, simulate};

const LAYERS: i64 = 10;

fn options(strategy: &Strategy) -> CompileOptions {
    CompileOptions {
        compute: DType::BF16,
        micro_batches: strategy.micro.unwrap_or(1),
        strategy: strategy.clone(),
        overrides: vec![("layers".into(), Const::Int(LAYERS)), ("seq".into(), Const::Int(4096))],
        ..CompileOptions::default()
    }
}

fn load(text: &str, rows: u32) -> Result<CheckedModel, String> {
    let options = options(&Strategy::default());
    let check = options.check_options(true, Some(u64::from(rows)), 1);
    forebay_dsl::load(text, &check).map(|a| a.model).map_err(|e| e[0].message.clone())
}

fn replayed(text: &str, strategy: &Strategy, cluster: &Cluster, simulation: &Options) -> Result<Report, String> {
    let model = load(text, strategy.mbs.expect("it is given"))?;
    let plans = compile_training(&model, &options(strategy), &[strategy.micro.expect("it is given")]);
    simulate(&plans.map_err(|e| e.to_string())?.remove(0), cluster, simulation)
}

fn cluster(name: &str) -> Cluster {
    let (_, text) = known::FILES.iter().find(|(n, _)| *n == name).expect("a cluster");
    Cluster::parse(text).expect("it is right")
}

/// Draws from a list.
struct Draw(u64);

impl Draw {
    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from[(self.0 >> 33) as usize % from.len()]
    }

    fn strategy(&mut self, experts: bool) -> Strategy {
        let schedule = self.of(&["1f1b", "1f1b", "1f1b", "gpipe", "zb-h1"]);
        let pp: u32 = self.of(&[1, 2, 2, 4, 5]);
        let vpp = if schedule == "1f1b" && pp == 2 { self.of(&[1, 2]) } else { 1 };
        let micro = if vpp > 1 { self.of(&[4, 8, 16]) } else { self.of(&[2, 5, 8, 16, 24]) };
        let (tp, cp, mbs) = (self.of(&[1, 2, 4]), self.of(&[1, 1, 2]), self.of(&[1, 2]));
        let ep = if experts { self.of(&[1, 2, 4, 8]) } else { 1 };
        let (dp, zero) = (self.of(&[4, 8, 16]), self.of(&[0, 1, 1, 3]));
        let hsdp = self.of(&[1, 2, 4, dp, dp]);
        let hsdp = if zero > 0 && hsdp < dp { format!(",hsdp={hsdp}") } else { String::new() };
        let recompute = self.of(&["none", "none", "full"]);
        let schedule = if pp == 1 { "1f1b" } else { schedule };
        let text = format!(
            "dp={dp},tp={tp},cp={cp},ep={ep},pp={pp},vpp={vpp},micro={micro},mbs={mbs},zero={zero}{hsdp},schedule={schedule},recompute={recompute},overlap=none"
        );
        Strategy::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }
}

/// What is off, and by how much: (time, memory).
fn off(text: &str, draws: u32, experts: bool, seed: u64) -> Vec<(String, Estimate, f64, f64)> {
    let (cluster, simulation) = (cluster("h100"), Options::default());
    let load = |rows: u32| load(text, rows);
    let mut closed = Closed::new(&load, &cluster, &simulation).expect("it can be estimated");
    let mut draw = Draw(seed);
    let mut all = vec![];
    while all.len() < draws as usize {
        let strategy = draw.strategy(experts);
        let report = replayed(text, &strategy, &cluster, &simulation);
        let (estimate, report) = match (closed.estimate(&strategy, 1.0), report) {
            (Ok(estimate), Ok(report)) => (estimate, report),
            // What cannot be compiled cannot be estimated either, and the other way round.
            (Err(_), Err(_)) => continue,
            (estimate, report) => panic!("{strategy}: {estimate:?}, {:?}", report.err()),
        };
        let memory = report.peak_bytes();
        let off = (estimate.step_time_s / report.step_time_s - 1.0, estimate.peak_bytes / memory - 1.0);
        all.push((strategy.to_string(), estimate, off.0, off.1));
    }
    all
}

fn check(text: &str, experts: bool) {
    let draws = std::env::var("FOREBAY_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(24);
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let all = off(text, draws, experts, seed);
    for (strategy, estimate, time, memory) in &all {
        println!(
            "{:+.2} % {:+.2} % host {:.2} end {:.2} {:?} {strategy}",
            100.0 * time,
            100.0 * memory,
            estimate.host_fraction,
            estimate.end_s / estimate.step_time_s,
            estimate.doubt
        );
    }
    let sure: Vec<_> = all.iter().filter(|(_, estimate, ..)| estimate.doubt.is_none()).collect();
    assert!(sure.len() * 2 > all.len(), "most strategies can be judged: {} of {}", sure.len(), all.len());
    for (strategy, estimate, time, memory) in sure {
        assert!(time.abs() < 0.01, "{strategy}: time is off by {:.2} %", 100.0 * time);
        let memory = if estimate.memory_doubt.is_none() { memory.abs() } else { 0.0 };
        assert!(memory < 0.02, "{strategy}: memory is off by {:.2} %", 100.0 * memory);
    }
}

#[test]
fn mixtures_are_estimated_as_they_are_replayed() {
    check(include_str!("../../examples/models/qwen3-30b-a3b.moe"), true);
}

/// What the closed form does not know is refused, or doubted, not passed over.
#[test]
fn what_is_not_known_is_said() {
    let h100 = cluster("h100");
    let text = include_str!("../../examples/models/qwen3-30b-a3b.moe");
    let load = |rows: u32| load(text, rows);
    let estimated = |simulation: &Options, strategy: &str| {
        let strategy = Strategy::parse(strategy).expect("a strategy");
        Closed::new(&load, &h100, simulation).expect("it can be estimated").estimate(&strategy, 1.0)
    };
    let plain = "dp=8,ep=8,zero=1,micro=2,mbs=1,overlap=none";
    let ours = estimated(&Options::default(), plain).expect("it can be");
    assert_eq!(ours.memory_doubt, None);
    for state in ["moments=bf16", "master_weights=split", "optimizer=host"] {
        let why = estimated(&Options::default(), &format!("{plain},{state}")).expect_err("it is not known");
        assert!(why.contains("optimizer"), "{state}: {why}");
    }
    let framework = Framework { caching_allocator: true, ..Framework::default() };
    let caching = estimated(&Options { framework, ..Options::default() }, plain).expect("it can be");
    assert_eq!(caching.memory_doubt, Some(Doubt::Allocator));
}

/// Two strategies, in either order by one table: the time of each is what is replayed. Returns the estimates.
fn estimated_for_themselves(strategies: [&str; 2]) -> [f64; 2] {
    estimated_with(&Options::default(), strategies)
}

fn estimated_with(simulation: &Options, strategies: [&str; 2]) -> [f64; 2] {
    let h100 = cluster("h100");
    let text = include_str!("../../examples/models/qwen3-30b-a3b.moe");
    let load = |rows: u32| load(text, rows);
    let strategies = strategies.map(|s| Strategy::parse(s).expect("a strategy"));
    let steps = strategies.each_ref().map(|s| replayed(text, s, &h100, simulation).expect("it can be").step_time_s);
    let estimates = [[0, 1], [1, 0]].map(|order| {
        let mut closed = Closed::new(&load, &h100, simulation).expect("it can be estimated");
        let mut estimates = [0.0; 2];
        for which in order {
            estimates[which] = closed.estimate(&strategies[which], 1.0).expect("it can be").step_time_s;
            let off = estimates[which] / steps[which] - 1.0;
            assert!(off.abs() < 0.01, "{}: {:.2} % off", strategies[which], 100.0 * off);
        }
        estimates
    });
    assert_eq!(estimates[0], estimates[1], "whichever comes first");
    estimates[0]
}

/// Rows that go to experts whole and in parts: between nodes the second is faster.
#[test]
fn rows_in_parts_are_estimated_for_themselves() {
    let whole = "dp=8,tp=4,ep=8,etp=4,pp=2,micro=8,mbs=1,zero=1,overlap=none";
    let steps = estimated_for_themselves([whole, &format!("{whole},etp_gather=after")]);
    assert!(steps[1] < 0.8 * steps[0], "{steps:?}");
}

/// What products read is made again, or kept: then a step is shorter.
#[test]
fn what_is_kept_is_estimated_for_itself() {
    let again = "dp=2,pp=2,micro=8,mbs=1,zero=1,overlap=none";
    let steps = estimated_for_themselves([again, &format!("{again},keep=inputs")]);
    assert!(steps[1] < 0.995 * steps[0], "{steps:?}");
}

/// What frameworks do with gradients at the end of a step, where ranks share them and where there is one rank: some seconds of each, of which experts' gradients are most.
#[test]
fn gradients_that_are_gone_through_are_estimated() {
    let framework =
        Framework { gradient_passes: 75.0, divide_passes: 50.0, clip_traffic: 100.0, ..Framework::default() };
    let options = Options { framework, ..Options::default() };
    for strategies in [
        ["dp=4,ep=2,pp=2,micro=4,mbs=1,zero=1,overlap=none", "pp=2,micro=4,mbs=1,overlap=none"],
        // Ranks of tensor parallelism that share experts have no samples of their own.
        ["tp=4,ep=2,etp=2,micro=4,mbs=1,overlap=none", "dp=2,tp=4,ep=4,micro=4,mbs=1,zero=1,overlap=none"],
    ] {
        let (with, without) = (estimated_with(&options, strategies), estimated_for_themselves(strategies));
        assert!((0..2).all(|i| with[i] > 1.2 * without[i]), "{with:?} {without:?}");
    }
}

#[test]
fn steps_that_cannot_be_estimated_are_refused() {
    let (h100, simulation) = (cluster("h100"), Options::default());
    let text = include_str!("../../examples/models/qwen3-30b-a3b.moe");
    let load = |rows: u32| load(text, rows);
    let mut closed = Closed::new(&load, &h100, &simulation).expect("it can be estimated");
    let mut refused = |strategy: &str| {
        let strategy = Strategy::parse(strategy).expect("a strategy");
        closed.estimate(&strategy, 1.0).expect_err("it is refused")
    };
    assert!(refused("dp=2,mbs=1").contains("how many micro-batches"));
    assert!(refused("pp=16,mbs=1,micro=16").contains("do not fill the 16 parts"));
    assert!(refused("dp=2,ep=16,mbs=1,micro=2").contains("do not divide"));
    assert!(refused("pp=2,stages=4/6,mbs=1,micro=2").contains("cut by hand"));
    let fsdp = forebay_sim::framework::find(&forebay_sim::framework::known(), "llm-foundry");
    let simulation = Options { framework: fsdp, ..Options::default() };
    assert!(Closed::new(&load, &h100, &simulation).is_err_and(|why| why.contains("llm-foundry")));
}

/// Strategies for ten layers of Qwen3-30B-A3B on H100: what is estimated of each, and how far its time and its memory are from the replay's.
fn compared(strategies: &[impl AsRef<str>], mut check: impl FnMut(&str, &Estimate, [f64; 2])) {
    let text = include_str!("../../examples/models/qwen3-30b-a3b.moe");
    let (cluster, simulation) = (cluster("h100"), Options::default());
    let load = |rows: u32| load(text, rows);
    let mut closed = Closed::new(&load, &cluster, &simulation).expect("it can be estimated");
    for of in strategies.iter().map(AsRef::as_ref) {
        let strategy = Strategy::parse(of).expect("a strategy");
        let estimate = closed.estimate(&strategy, 1.0).expect("it can be estimated");
        let report = replayed(text, &strategy, &cluster, &simulation).expect("it is replayed");
        let of_memory = estimate.peak_bytes / report.peak_bytes() - 1.0;
        check(of, &estimate, [estimate.step_time_s / report.step_time_s - 1.0, of_memory]);
    }
}

/// Where few ranks share and layers keep little, the end of a step needs most memory: sums of gradients, and the part of them that goes over replicas or over all that have them.
#[test]
fn sums_at_the_end_of_a_step_need_room() {
    let strategies = ["dp=8,tp=4,zero=1,hsdp=2", "dp=2,tp=4,zero=1", "dp=2,tp=4"];
    let strategies = strategies.map(|shares| format!("{shares},micro=4,mbs=1,recompute=full,overlap=none"));
    compared(&strategies, |of, _, [_, memory]| {
        assert!(memory.abs() < 0.01, "{of}: memory is off by {:.2} %", 100.0 * memory);
    });
}

/// Over many replicas a sum is many steps, once a step of training: as many in both fidelities.
#[test]
fn many_replicas_are_summed_once() {
    let strategies = ["dp=2048,zero=1,hsdp=8", "dp=2048,ep=16,zero=1,hsdp=64", "dp=2048,ep=4,zero=2,hsdp=8"];
    let strategies = strategies.map(|shares| format!("{shares},micro=2,mbs=1,overlap=none"));
    compared(&strategies, |of, _, off| {
        assert!(off.iter().all(|off| off.abs() < 0.02), "{of}: time and memory are off by {off:?}");
    });
}

/// Between its halves a backward pass keeps more than it did before: by schedules whose backward passes are in halves, within what the arena loses between places.
#[test]
fn halves_of_backward_passes_keep_what_is_replayed() {
    let schedules = [
        "pp=4,schedule=zb-h1,recompute=full",
        "pp=4,schedule=zb-h1",
        "pp=4,schedule=zb-h2",
        "pp=2,vpp=2,schedule=zb-vpp",
        "pp=4,vpp=2,schedule=zb-v",
        "pp=4,vpp=2,schedule=v-half",
        "pp=4,vpp=2,schedule=v-min",
        "pp=4,vpp=2,schedule=dualpipev",
    ];
    let strategies = schedules.map(|schedule| format!("dp=8,ep=4,zero=1,micro=8,mbs=1,{schedule},overlap=none"));
    compared(&strategies, |of, estimate, [time, memory]| {
        println!("{:+.2} % {:+.2} % {of}", 100.0 * time, 100.0 * memory);
        assert!(time.abs() < 0.02, "{of}: time is off by {:.2} %", 100.0 * time);
        // (What whole backward passes among halves need is that of the halves.)
        let most = if of.contains("dualpipev") { 0.08 } else { 0.025 };
        assert!(memory.abs() < most, "{of}: memory is off by {:.2} %", 100.0 * memory);
        assert_eq!(estimate.memory_doubt, Some(Doubt::Halves));
    });
}
