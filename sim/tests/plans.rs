//! Compiled plans, simulated.

use forebay_compiler::memory::Price;
use forebay_compiler::pipeline::{CompileOptions, Models, compile};
use forebay_compiler::shard::Strategy;
use forebay_cost::cluster::{Count, NonNegative};
use forebay_cost::{Cluster, Precision, Remembered, known};
use forebay_dsl::model::CheckedModel;
use forebay_ir::cost::cost;
use forebay_ir::{DType, Op as GraphOp};
use forebay_plan::{Kernel, Plan, TensorKind};
use forebay_sim::ValuePricer;
use forebay_sim::framework::{Framework, find, known as frameworks};
use forebay_sim::kind::Kind;
use forebay_sim::lower::{Lane, Op, Recompute, lower};
use forebay_sim::price::Pricer;
use forebay_sim::recorded::Graphs;
use forebay_sim::report::{Communication, Options, Report, simulate};
use forebay_sim::steps::Fidelity;
use forebay_sim::table::table;
use forebay_sim::validate::{Compared, predict, runs};

const MODEL: &str = include_str!("../../examples/models/tiny-moe.moe");

fn plan(strategy: &str) -> Plan {
    let strategy = Strategy::parse(strategy).expect("a strategy");
    let options = CompileOptions {
        compute: DType::BF16,
        micro_batches: strategy.micro.unwrap_or(1),
        strategy: strategy.clone(),
        ..CompileOptions::default()
    };
    let train = model(&options, strategy.mbs);
    compile(&Models { eval: train.clone(), generate: train.clone(), train }, &options).expect("a plan")
}

fn model(options: &CompileOptions, rows: Option<u32>) -> CheckedModel {
    let check = options.check_options(true, rows.map(u64::from), options.micro_batches);
    forebay_dsl::load(MODEL, &check).expect("the model is right").model
}

fn cluster(name: &str) -> Cluster {
    let (_, text) = known::FILES.iter().find(|(n, _)| *n == name).expect("a cluster");
    Cluster::parse(text).expect("it is right")
}

fn of(plan: &Plan, cluster: &Cluster, options: &Options) -> Report {
    simulate(plan, cluster, options).expect("a report")
}

#[test]
fn instructions_one_by_one_come_to_the_same() {
    for strategy in ["mbs=2,micro=2", "tp=2,ep=2,mbs=2,micro=2", "pp=2,vpp=2,mbs=1,micro=4", "dp=4,ep=4,zero=3,mbs=2"] {
        let plan = plan(strategy);
        let calls = of(&plan, &cluster("h100"), &Options::default()).step_time_s;
        let fine = Options { fidelity: Fidelity::Instructions, ..Options::default() };
        let instructions = of(&plan, &cluster("h100"), &fine).step_time_s;
        assert!((calls / instructions - 1.0).abs() < 0.01, "{strategy}: {calls} against {instructions}");
    }
}

/// What is gathered for a layer stands behind the call that asks for it, before messages and zeros; and what is made again is made before the half of a backward pass that needs it.
#[test]
fn calls_stand_where_systems_have_them() {
    let gathers = plan("pp=2,dp=2,zero=3,mbs=1,micro=4");
    let framework = Framework { prefetch: true, streams: false, ..Framework::default() };
    for role in &gathers.roles {
        let ops = lower(&gathers, role, &framework, &Recompute::default(), &[]).ops;
        assert!(ops.iter().any(|op| op.lane == Lane::Ahead));
        for (at, _) in ops.iter().enumerate().filter(|(_, op)| op.lane == Lane::Ahead) {
            let before = ops[..at].iter().rev().find(|op| op.lane != Lane::Ahead);
            assert!(before.is_none_or(|op| op.reads), "{}: {at}", role.name);
        }
    }
    for schedule in ["1f1b", "zb-h1"] {
        let plan = plan(&format!("pp=2,mbs=1,micro=4,schedule={schedule},overlap=none"));
        for role in &plan.roles {
            let ops = lower(&plan, role, &Framework::default(), &Recompute::full(), &[]).ops;
            let name = |op: &Op| plan.programs.get(op.program as usize).map_or("", |program| program.name.as_str());
            let again: Vec<&str> =
                ops.windows(2).filter(|pair| pair[0].call.is_none()).map(|pair| name(&pair[1])).collect();
            let first = if schedule == "zb-h1" { "layers.backward_input" } else { "layers.backward" };
            assert!(!again.is_empty() && again.iter().all(|next| next.contains(first)), "{schedule}: {again:?}");
        }
    }
}

/// A ring through a node loads all that its links carry, one with a rank in each node what an adapter does of that.
#[test]
fn collectives_load_links_by_what_passes() {
    let plan = plan("dp=8,zero=1,mbs=1");
    let load = |devices: u32| {
        let mut cluster = cluster("h100");
        cluster.tiers[0].devices = Some(Count(devices));
        cluster.tiers.iter_mut().for_each(|tier| tier.latency_us = NonNegative(0.0));
        cluster.calibrated.kernel_us = NonNegative(0.0);
        let table = table(&plan, &cluster, &Options::default());
        table.programs.iter().flatten().map(|price| price.load).fold(0.0, f64::max)
    };
    let calibrated = cluster("h100").calibrated;
    let adapter = 50.0 * calibrated.network_efficiency.0 / (450.0 * calibrated.link_efficiency.0);
    assert!((load(8) - 1.0).abs() < 1e-9 && (load(1) - adapter).abs() < 1e-9, "{} {}", load(8), load(1));
    // Rings through nodes of four pass the bytes of four.
    assert!((load(4) - 4.0 * adapter).abs() < 1e-9, "{}", load(4));
}

/// What frameworks do with all gradients that a rank has, they do with its range where layers sum them.
#[test]
fn gradients_that_ranks_share_are_gone_through_in_part() {
    let optimizer = |zero: u32| {
        let plan = plan(&format!("dp=4,zero={zero},mbs=1"));
        let framework = Framework { gradient_passes: 1000.0, ..Framework::default() };
        let report = of(&plan, &cluster("h100"), &Options { framework, ..Options::default() });
        report.time_s.iter().find(|t| t.what == "optimizer").expect("it updates").seconds
    };
    let (whole, shared) = (optimizer(1), optimizer(2));
    assert!(shared < 0.5 * whole, "{shared} s, {whole} with all of them");
}

/// Each micro-batch begins once on a crowded stage, however many parts of the model it has; on others nothing is given back.
#[test]
fn crowded_stages_give_memory_back_for_each_micro_batch() {
    let plan = plan("pp=2,vpp=2,mbs=1,micro=4");
    for role in &plan.roles {
        let lowered = lower(&plan, role, &Framework::default(), &Recompute::default(), &[1]);
        let call = |at: &usize| {
            let call = &role.phases[0].calls[lowered.ops[*at].call.expect("a call of the plan") as usize];
            (call.micro_batch, plan.programs[call.program as usize].name.ends_with(".forward"))
        };
        let begun: Vec<(u32, bool)> = lowered.regains.iter().map(call).collect();
        let all: Vec<(u32, bool)> = (0..4).map(|micro_batch| (micro_batch, true)).collect();
        assert_eq!(begun, if lowered.coordinate == 1 { all } else { vec![] });
    }
}

/// Stages of two ranks on nodes of four: messages between the second and the third leave the node, and those of an exchange that no node holds.
#[test]
fn what_leaves_a_node_takes_its_links() {
    let mut slow = cluster("h100");
    slow.tiers[0].devices = Some(Count(4));
    let mut fast = slow.clone();
    slow.tiers[1].gbps.0 = 0.01;
    fast.tiers[1].gbps.0 = 100.0;
    let seconds = |plan: &Plan, cluster: &Cluster, of: fn(&Communication) -> f64| {
        let report = simulate(plan, cluster, &Options::default()).expect("a report");
        let rail = report.comm_by_link.iter().find(|l| l.link == cluster.tiers[1].name).expect("a link").total_s;
        (of(&report.total_comm_s), rail)
    };
    let pipeline = plan("pp=4,tp=2,mbs=1,micro=8");
    let (few, many) = (seconds(&pipeline, &fast, |c| c.pp), seconds(&pipeline, &slow, |c| c.pp));
    assert!(many.0 > 10.0 * few.0 && many.1 > 0.9 * many.0 && few.1 > 0.0, "{few:?} {many:?}");
    // All stages of one node: no link between nodes is used, by whoever runs the plan by its own clock neither.
    let transfer = |plan: &Plan| {
        let table = table(plan, &slow, &Options::default());
        table.programs.iter().flatten().map(|price| price.transfer).fold(0.0, f64::max)
    };
    for inside in ["pp=2,tp=2,mbs=1,micro=8", "pp=2,vpp=2,tp=2,mbs=1,micro=8"] {
        assert_eq!(seconds(&plan(inside), &slow, |c| c.pp).1, 0.0, "{inside}");
        assert!(transfer(&plan(inside)) < 0.01 * transfer(&pipeline), "{inside}");
    }
    // Nodes of five hold four of eight ranks that exchange rows, as nodes of four do.
    let exchange = plan("dp=8,ep=8,mbs=1");
    let four = seconds(&exchange, &slow, |c| c.ep);
    slow.tiers[0].devices = Some(Count(5));
    assert_eq!(seconds(&exchange, &slow, |c| c.ep), four);
    slow.tiers[0].devices = Some(Count(8));
    assert!(seconds(&exchange, &slow, |c| c.ep).0 < 0.1 * four.0);
}

/// Generation has one text and as much room for its rows as a micro-batch of several: what comes of them in training is what training sends.
#[test]
fn rows_that_come_are_those_of_training() {
    let strategy = Strategy::parse("dp=2,ep=2,mbs=4,micro=2,max_tokens_per_rank=512").expect("a strategy");
    let options = CompileOptions { micro_batches: 2, strategy, compute: DType::BF16, ..CompileOptions::default() };
    let train = model(&options, Some(4));
    let step_of = |rows: u32| {
        let models = Models { eval: train.clone(), generate: model(&options, Some(rows)), train: train.clone() };
        of(&compile(&models, &options).expect("a plan"), &cluster("h100"), &Options::default()).step_time_s
    };
    assert_eq!(step_of(1), step_of(4));
}

#[test]
fn better_hardware_is_never_slower() {
    let plan = plan("dp=2,tp=4,ep=8,pp=2,zero=1,mbs=1,micro=4");
    let slow = cluster("a100-80g");
    let time = |c: &Cluster| of(&plan, c, &Options::default()).step_time_s;
    let before = time(&slow);
    let changes: [fn(&mut Cluster); 5] = [
        |c| c.device.memory_gbps.0 *= 2.0,
        |c| c.device.cube.bf16.0 *= 2.0,
        |c| c.tiers[0].gbps.0 *= 2.0,
        |c| c.tiers[1].gbps.0 *= 2.0,
        |c| c.tiers[1].latency_us.0 /= 2.0,
    ];
    for change in changes {
        let mut fast = slow.clone();
        change(&mut fast);
        assert!(time(&fast) <= before * (1.0 + 1e-12));
    }
}

#[test]
fn memory_is_that_of_the_arena_and_recomputation_takes_less() {
    for strategy in [
        "mbs=2,micro=2",
        "pp=2,mbs=2,micro=4",
        "pp=2,vpp=2,mbs=1,micro=4,schedule=vpp-overlap,overlap=all",
        "pp=4,mbs=1,micro=8,schedule=zb-h1,recompute=full",
        "tp=2,ep=2,mbs=2,micro=2,zero=1",
        "dp=4,ep=4,zero=3,mbs=2,pieces=2",
        "dp=2,ep=2,mbs=2,micro=2,swap=attention",
        "dp=2,ep=2,mbs=2,micro=2,zero=1,optimizer=host,master_weights=split",
    ] {
        let plan = plan(strategy);
        let report = of(&plan, &cluster("h100"), &Options::default());
        for (role, memory) in plan.roles.iter().zip(&report.memory_bytes) {
            let train = role.phases.iter().find(|p| p.name == "train").expect("it trains");
            assert_eq!(memory.peak, train.memory.placed as f64, "{strategy}");
            // What is in use, which follows from the programs alone, and what placing wastes are all of it.
            let used = memory.weights + memory.gradients + memory.optimizer + memory.activations + memory.buffers;
            assert!((used + memory.fragmentation - memory.peak).abs() <= 1.0, "{strategy}: {memory:?}");
            assert!(memory.fragmentation >= 0.0 && memory.fragmentation < 0.15 * memory.peak, "{strategy}: {memory:?}");
        }
    }
    let plan = plan("pp=2,mbs=2,micro=4");
    let report = of(&plan, &cluster("h100"), &Options::default());
    let again = of(&plan, &cluster("h100"), &Options { recompute: Recompute::full(), ..Options::default() });
    assert!(again.step_time_s > report.step_time_s && again.hfu > 0.0);
    assert!(again.memory_bytes[0].peak < report.memory_bytes[0].peak);
}

#[test]
fn imbalance_and_what_frameworks_hide_show_in_the_step() {
    // Where no rows are exchanged, sums over ranks are of losses.
    assert_eq!(of(&plan("dp=2,zero=1,mbs=4"), &cluster("h100"), &Options::default()).total_comm_s.ep, 0.0);
    let plan = plan("dp=8,ep=8,zero=1,mbs=4");
    let even = of(&plan, &cluster("h100"), &Options::default());
    let uneven = of(&plan, &cluster("h100"), &Options { imbalance: 2.0, ..Options::default() });
    assert!(uneven.total_comm_s.ep > even.total_comm_s.ep);
    // Others wait for the busiest rank, but all together compute as much.
    assert!(uneven.step_time_s > even.step_time_s);
    let computed = |report: &Report| report.hfu * report.step_time_s;
    assert!((computed(&uneven) / computed(&even) - 1.0).abs() < 1e-9);
    assert!(even.exposed_comm_s.ep > 0.0 && even.exposed_comm_s.tp == 0.0);
    let megatron = find(&frameworks(), "Megatron-Bridge");
    let hidden = of(&plan, &cluster("h100"), &Options { framework: megatron, ..Options::default() });
    assert!(hidden.exposed_comm_s.dp < hidden.total_comm_s.dp);
}

/// However rows of experts travel, and however much room there is for them, experts have the same ones.
#[test]
fn experts_have_the_same_rows_whichever_way_they_come() {
    let products = |strategy: &str| {
        let report = of(&plan(strategy), &cluster("h100"), &Options::default());
        let parts = report.time_s.iter().filter(|part| part.what == Kind::ExpertProducts.name());
        (parts.map(|part| part.seconds).sum::<f64>(), report.hfu * report.step_time_s)
    };
    let (flat, computed) = products("dp=8,ep=8,zero=1,mbs=4");
    for way in ["rank-dedup", "node-dedup,node=4", "hierarchical,node=4", "rank-dedup,max_tokens_per_rank=2048"] {
        let (seconds, flops) = products(&format!("dp=8,ep=8,zero=1,mbs=4,dispatch={way}"));
        assert!((seconds / flat - 1.0).abs() < 0.1, "{way}: {seconds} s, not {flat} s");
        assert!((flops / computed - 1.0).abs() < 0.02, "{way}: {flops}, not {computed}");
    }
}

/// What goes from rank to rank, by hand: activations of 128 × 128 for each row, 2 of 8 experts for each token, in bf16.
#[test]
fn bytes_are_those_of_messages_and_of_rows() {
    let near = |have: f64, want: f64, part: f64| assert!((have / want - 1.0).abs() <= part, "{have} against {want}");
    let activations = |rows: f64| rows * 128.0 * 128.0 * 2.0;
    // One stage sends them, the other their gradients.
    let staged = of(&plan("pp=2,mbs=2,micro=4"), &cluster("h100"), &Options::default()).total_comm_bytes;
    near(staged.pp, 4.0 * activations(2.0), 0.0);
    assert_eq!((staged.ep, staged.tp, staged.cp), (0.0, 0.0, 0.0));
    // To experts and back, forward and backward, in four layers; beside that only numbers of rows, and shares.
    let report = of(&plan("dp=8,ep=8,zero=1,mbs=4"), &cluster("h100"), &Options::default());
    near(report.total_comm_bytes.ep, 4.0 * 4.0 * 2.0 * activations(4.0) * 7.0 / 8.0, 0.03);
    // Tokens gathered and sums scattered, or sums that all ranks have: of two ranks half of it leaves each, of four three quarters.
    for sp in [1, 0] {
        let tp = |ranks: u32| {
            let text = format!("tp={ranks},sp={sp},mbs=2,micro=4");
            of(&plan(&text), &cluster("h100"), &Options::default()).total_comm_bytes.tp
        };
        assert!(tp(2) > 4.0 * 4.0 * activations(2.0), "four in each layer, {}", tp(2));
        near(tp(4) / tp(2), 1.5, 0.01);
    }
    let (bytes, exposed) = (report.total_comm_bytes, report.exposed_comm_bytes);
    near(exposed.ep / bytes.ep, report.exposed_comm_s.ep / report.total_comm_s.ep, 1e-12);
}

/// Rows of experts stay on the device: hosts stop before the commit and nowhere else. A framework that splits arrays by them waits once for each layer with experts, forwards (its backward pass knows them).
#[test]
fn hosts_wait_once_or_for_each_layer_with_experts() {
    let syncs = |strategy: &str, experts_wait| {
        let framework = Framework { experts_wait, ..Framework::default() };
        of(&plan(strategy), &cluster("h100"), &Options { framework, ..Options::default() }).host_syncs
    };
    for (strategy, layers_of_a_stage) in [("dp=2,ep=2,mbs=1,micro=4", 4.0), ("dp=2,ep=2,pp=2,mbs=1,micro=4", 2.0)] {
        assert_eq!(syncs(strategy, false), 1.0, "{strategy}");
        assert_eq!(syncs(strategy, true), 1.0 + 4.0 * layers_of_a_stage, "{strategy}");
    }
}

/// Numbers of a framework that nothing reads would be wrong without anybody knowing.
#[test]
fn gradients_that_are_added_up_and_experts_that_are_started_one_by_one_take_time() {
    let plan = plan("dp=2,ep=2,mbs=1,micro=4");
    let step = |change: fn(&mut Framework)| {
        let mut framework = Framework { dispatch_us: 1.0, ..Framework::default() };
        change(&mut framework);
        let report = of(&plan, &cluster("h100"), &Options { framework, ..Options::default() });
        (report.step_time_s, report.host_bound_fraction)
    };
    let (plain, host) = step(|_| {});
    assert!(step(|f| f.accumulate_bytes = 1000.0).0 > plain * 1.001);
    let deeper = [1.0, 1000.0, 10_000.0].map(|depth| {
        let options =
            Options { framework: Framework { expert_depth: depth, ..Framework::default() }, ..Options::default() };
        let report = of(&plan, &cluster("h100"), &options);
        report.time_s.iter().find(|t| t.what == "experts' products").expect("there are experts").seconds
    });
    assert!(deeper[1] > 1.5 * deeper[0] && deeper[2] > 5.0 * deeper[1], "{deeper:?}");
    let (one_by_one, waits) = step(|f| f.expert_us = 200.0);
    assert!(one_by_one > plain * 1.5 && waits > host, "{plain} {one_by_one}, {host} {waits}");
    assert_eq!(step(|f| f.expert_us = 1e-6).0, plain, "no product has less than one start");
}

/// Hosts that meet slowly for a collective meet once for each bucket of gradients that all ranks sum, and once for each collective where ranks share them.
#[test]
fn hosts_meet_for_each_bucket_of_gradients() {
    let mut slow = cluster("h100");
    slow.tiers[0].latency_us = NonNegative(5000.0);
    // Of each exchange at the end of a step: its program, and how often four ranks meet for it.
    let meetings = |strategy: &str, call_mib: f64, collective_holds| -> Vec<(String, f64)> {
        let framework =
            Framework { streams: false, dispatch_us: 1.0, collective_holds, call_mib, ..Framework::default() };
        let plan = plan(strategy);
        let table = table(&plan, &slow, &Options { framework, ..Options::default() });
        let all = plan.programs.iter().zip(&table.programs).flat_map(|(program, prices)| {
            let exchanges = program.instructions.iter().zip(prices).filter(|(i, _)| i.kernel.name() == "exchange");
            exchanges.map(|(_, price)| (program.name.clone(), (price.launches - 1.0) / (4.0 * 5000.0)))
        });
        all.filter(|(name, _)| name.starts_with("optimizer.")).collect()
    };
    let params = plan("dp=4").roles[0].tensors.iter().filter(|t| t.kind == TensorKind::Param).count() as f64;
    let sums = |call_mib: f64| -> f64 {
        let all = meetings("dp=4,mbs=1,micro=2", call_mib, true);
        all.iter().filter(|(name, _)| name.starts_with("optimizer.all_reduce")).map(|(_, n)| n).sum()
    };
    // Each parameter fills a bucket of eight bytes; all of them do not fill one of a thousand megabytes.
    assert!((sums(8.0 / 1024.0 / 1024.0) - params).abs() < 1e-6 && (sums(1000.0) - 1.0).abs() < 1e-6);
    for (name, met) in meetings("dp=4,zero=1,mbs=1,micro=2", 1e-5, true) {
        assert!((met - 1.0).abs() < 1e-9, "{name}: {met}");
    }
    assert!(meetings("dp=4,zero=1,mbs=1,micro=2", 1e-5, false).iter().all(|(_, met)| *met == 0.0));
}

/// Figures of publications: configuration, device and step time as printed there; MaxText prints TFLOP/s, with causal attention at half, of which times were made.
#[test]
fn published_runs_are_predicted() {
    let text = include_str!("published.csv");
    let runs::Runs { runs, bad, unknown } = runs::read(text).expect("a table");
    assert_eq!((bad, unknown), (vec![], vec![]));
    let Compared { rows, skipped, .. } = predict(&runs, &known::clusters(), 1);
    assert_eq!(skipped, []);
    for row in &rows {
        assert!(row.error.abs() < 0.10, "{}: {:.4} s, predicted {:.4} s", row.id, row.measured_s, row.predicted_s);
    }
    let two = predict(&runs, &known::clusters(), 2);
    assert_eq!(rows, two.rows, "threads do not change predictions");
}

/// What waits for another stage is a bubble, whatever it is that comes late.
#[test]
fn no_more_communication_is_exposed_than_there_is() {
    for strategy in [
        "dp=2,tp=2,ep=4,zero=1,mbs=1,micro=4",
        "dp=2,pp=2,tp=2,ep=4,mbs=1,micro=4",
        "pp=2,vpp=2,ep=2,dp=2,mbs=1,micro=4",
    ] {
        let report = of(&plan(strategy), &cluster("atlas-800t-a2"), &Options::default());
        let sum = |c: &Communication| c.ep + c.tp + c.cp + c.dp + c.pp;
        assert!(report.exposed_comm_s.pp <= report.total_comm_s.pp * (1.0 + 1e-9), "{strategy}: {report:?}");
        let (exposed, total) = (sum(&report.exposed_comm_s), sum(&report.total_comm_s));
        assert!(exposed <= total * 1.01, "{strategy}: {exposed} of {total}");
    }
}

/// The ends of a pipeline may have nothing but what is before and behind all layers: the step is then as long as that of the stage in the middle.
#[test]
fn ends_of_a_pipeline_may_have_no_layers() {
    let plan = plan("pp=3,stages=0/4/0,mbs=1,micro=4");
    assert_eq!(forebay_plan::verify::verify(&plan), Ok(()));
    let report = of(&plan, &cluster("h100"), &Options::default());
    assert!(report.step_time_s > 0.0 && report.memory_bytes.len() == 3);
    assert!(report.memory_bytes[1].activations > report.memory_bytes[0].activations);
}

/// A state is remembered by as many kernels as its pass has ops, each of which takes what the cluster says; a system whose graphs hold attention starts them with it.
#[test]
fn linear_attention_is_priced_by_its_chunks() {
    let text = "model M(batch = 2, seq = 256, d = 2048, vocab = 64) {
        input tokens: token[batch, seq], labels: token[batch, seq]
        param embed[vocab, d] = normal(0.02), head[d, vocab] = normal(0.02)
        x = embed[tokens, d]
        repeat 2 { x = x + gated_delta_net(rms_norm(x), 2, 4, 16, 32) }
        logits[batch, seq, vocab] = x * head
        loss ce = sum(cross_entropy(logits, labels) over batch, seq) per sum(valid(labels) over batch, seq)
    }";
    let options = CompileOptions { compute: DType::BF16, ..CompileOptions::default() };
    let train = forebay_dsl::load(text, &options.check_options(true, None, 1)).expect("a model").model;
    let forward = train.segments.iter().map(|s| s.forward.clone()).find(|g| g.name.contains("repeat"));
    let plan = compile(&Models { eval: train.clone(), generate: train.clone(), train }, &options).expect("a plan");
    let h100 = cluster("h100");
    let framework = Framework::default();
    let pricer = Pricer::new(&plan, &h100, &framework, Precision::Bf16, 1.0);
    // 8 problems: two rows of four value heads.
    let of = |key: f64, value: f64, bytes: f64| Remembered {
        problems: 8.0,
        positions: 256.0,
        key,
        value,
        bytes,
        precision: Precision::Bf16,
    };
    let mut ops = [0, 0];
    for program in plan.programs.iter().filter(|p| p.name.starts_with("train.")) {
        for instruction in &program.instructions {
            let Kernel::LinearAttention(k) = &instruction.kernel else { continue };
            let backward = program.name.contains("backward");
            ops[usize::from(backward)] += 1;
            let priced = pricer.instruction(program, instruction);
            let bytes = instruction.kernel.traffic(&program.buffers).bytes() as f64;
            let shape = of(k.key_size() as f64, k.value_size() as f64, bytes);
            assert!(matches!((k.key_size(), k.value_size()), (16, 32) | (32, 16)), "{k:?}");
            assert_eq!((priced.kind, priced.seconds), (Kind::Attention, h100.linear_attention(&shape)));
            assert_eq!((priced.launches, priced.flops), (2.0, 4.0 * 8.0 * 256.0 * 16.0 * 32.0));
            // What routers record is narrow, and attention is not, whatever its heads have.
            for (graphs, launches) in [(Graphs::Routers, 2.0), (Graphs::Attention, 0.2)] {
                let recording = Framework { graphs, ..Framework::default() };
                let pricer = Pricer::new(&plan, &h100, &recording, Precision::Bf16, 1.0);
                assert_eq!(pricer.instruction(program, instruction).launches, launches, "{graphs:?}");
            }
        }
    }
    assert_eq!(ops, [2, 6], "a solution and a sum; for each of both the gradients of queries, keys and values");
    // A choice of what to keep has the same prices.
    let graph = forward.expect("a layer");
    let pricer = ValuePricer::new(&h100, Precision::Bf16, 1.0);
    let linear = graph.values().filter(|&v| matches!(graph.node(v).op, GraphOp::LinearAttention(_)));
    let seconds: Vec<(f64, f64)> = linear
        .map(|v| {
            let cost = cost(&graph, v);
            (pricer.seconds(&graph, v), h100.linear_attention(&of(16.0, 32.0, cost.read + cost.written)))
        })
        .collect();
    assert!(seconds.len() == 2 && seconds.iter().all(|(value, kernel)| value == kernel), "{seconds:?}");
}
