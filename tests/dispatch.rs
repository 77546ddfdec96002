//! Ways of experts' rows between nodes: ranks train as one alone, whatever the way, and send what the formulas say.

use crate::common;

use common::training::{ROWS, batch, compare, plan, strategy, train};
use common::{Example, all_cases, meets, options};
use forebay_compiler::overlap::Priced;
use forebay_compiler::overlap::exchange::{Dispatch, settle};
use forebay_compiler::pipeline::CompileOptions;
use forebay_cost::{Cluster, Precision};
use forebay_dsl::model::Const;
use forebay_ir::DType;
use forebay_plan::{Direction, Kernel, Plan};
use forebay_runtime::exec::{ExecOptions, Executor};
use forebay_runtime::init;
use forebay_sim::ValuePricer;

/// Nodes of data-parallel ranks, of tensor-parallel ones, and both; experts' widths shared within them; pieces, pairs, gradients summed layer by layer.
const STRATEGIES: [&str; 11] = [
    "dp=4,ep=4,micro=1,node=2",
    "dp=2,tp=2,ep=4,micro=2,node=2",
    "tp=4,ep=4,micro=4,node=2",
    "tp=4,sp=0,ep=4,micro=4,node=2",
    "dp=4,tp=2,ep=8,micro=1,zero=3,node=2",
    "dp=2,cp=2,tp=2,ep=8,micro=2,zero=1,node=4",
    "dp=4,tp=2,etp=2,ep=4,micro=1,node=4",
    "dp=4,tp=2,etp=2,ep=4,etp_gather=after,micro=1,node=4",
    "dp=2,tp=2,ep=4,micro=2,node=2,pieces=2",
    "dp=2,pp=2,vpp=2,tp=2,ep=4,micro=2,zero=2,schedule=vpp-overlap,node=2",
    "dp=2,pp=2,tp=2,ep=4,micro=2,schedule=zb-h1,recompute=full,node=2",
];

/// Softmax and sigmoid routers, shared experts, groups of experts, experts of several kinds.
const MODELS: [&str; 6] =
    ["tiny-moe", "deepseek-v3", "pangu-ultra-moe", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-120b"];

/// The plan at reduced size, with layers for every stage.
fn of(example: &Example, text: &str, compute: DType) -> Result<Plan, String> {
    let has_layers = example.reduced().iter().any(|(name, _)| name == "layers");
    plan(example, text, compute, if has_layers { &[("layers", 4)] } else { &[] })
}

const WAYS: [&str; 3] = ["hierarchical", "node-dedup", "rank-dedup"];

#[test]
fn every_way_trains_as_one_rank() {
    let models = MODELS.map(Example::named);
    let mut alone = models.each_ref().map(|_| None);
    let mut compared = 0;
    for (j, text) in STRATEGIES.into_iter().enumerate() {
        // (Degrees may not divide a model's heads.)
        for (i, flat) in meets(&models, (j, text), |example| of(example, text, DType::F64).ok()) {
            let (example, name) = (&models[i], MODELS[i]);
            let flat = train(text, &flat, 3);
            // Two ways each, all of them everywhere when everything is asked for.
            for (_, way) in WAYS.into_iter().enumerate().filter(|(w, _)| all_cases() || (j + w) % 3 != 0) {
                let text = format!("{text},dispatch={way}");
                let what = format!("{name} {text}");
                let apart = of(example, &text, DType::F64).unwrap_or_else(|e| panic!("{what}: {e}"));
                let run = train(&what, &apart, 3);
                compared += 1;
                compare(&what, &run, &flat, 1e-10);
                // Losses with statistics over ranks see other rows than one rank's micro-batches.
                if text.contains("dp") && example.text.contains("scope") {
                    continue;
                }
                let alone = alone[i].get_or_insert_with(|| {
                    let one = of(example, &format!("micro={ROWS}"), DType::F64);
                    train(name, &one.expect("one rank takes every model"), 3)
                });
                compare(&what, &run, alone, 1e-10);
            }
        }
    }
    assert!(compared >= 2 * STRATEGIES.len(), "{compared} plans were compared");
}

/// In f32 sums round otherwise; and twice the same is the same, bit for bit.
#[test]
fn in_f32_every_way_is_close_and_reproducible() {
    let example = Example::named("tiny-moe");
    let alone = train("alone", &of(&example, &format!("micro={ROWS}"), DType::F32).expect("one rank"), 2);
    let ways = STRATEGIES.into_iter().flat_map(|text| WAYS.map(|way| format!("{text},dispatch={way}")));
    // Every other one, so that each way meets strategies of all kinds.
    for (_, text) in ways.enumerate().filter(|(n, _)| all_cases() || n % 2 == 0) {
        let plan = of(&example, &text, DType::F32).unwrap_or_else(|e| panic!("{text}: {e}"));
        let run = train(&text, &plan, 2);
        compare(&text, &run, &alone, 1e-4);
        assert!(run.bits() == train(&text, &plan, 2).bits(), "{text}: other bits");
    }
}

/// Elements that a rank sends between nodes, and within its own, in the forward pass of a layer with experts.
fn sent(plan: &Plan) -> (u64, u64) {
    let (mut between, mut within) = (0, 0);
    let far = |dims: &[u32]| dims.iter().any(|d| plan.mesh[*d as usize].name.starts_with("dp"));
    let programs = plan.programs.iter().filter(|p| p.name.contains("forward") && p.name.contains("layers"));
    let program = programs.max_by_key(|p| p.instructions.len()).expect("a layer's program");
    for instruction in &program.instructions {
        match &instruction.kernel {
            Kernel::Exchange(k) if k.dtype != forebay_plan::DType::I32 && far(&k.group) => {
                between += k.piece() * (k.ranks - 1);
            }
            Kernel::AllToAllV(k) if k.direction == Direction::Dispatch || k.direction == Direction::Combine => {
                let to_others = k.even * k.row * (k.ranks - 1) / k.ranks;
                *if far(&k.group) { &mut between } else { &mut within } += to_others;
            }
            _ => {}
        }
    }
    (between, within)
}

/// Tokens cross to each other node once, with their shares, and come back as sums: 2 t h (N − 1) + t k (N − 1) elements, whatever k; rows stay within nodes:
/// 2 k t h (n − 1)/n. Flat, rows go to all ranks.
#[test]
fn tokens_cross_between_nodes_once() {
    let example = Example::named("tiny-moe");
    let of = |text: &str| plan(&example, text, DType::F32, &[]).unwrap_or_else(|e| panic!("{text}: {e}"));
    let flat = of("dp=4,tp=2,ep=8,micro=1");
    let apart = of("dp=4,tp=2,ep=8,micro=1,dispatch=hierarchical,node=2");
    let h = example.reduced().iter().find(|(name, _)| name == "d").map(|(_, n)| n.clone()).expect("a width");
    let Some(k) = apart.programs.iter().flat_map(|p| &p.instructions).find_map(|i| match &i.kernel {
        Kernel::TopK(k) => Some(k.k),
        _ => None,
    }) else {
        panic!("a router chooses")
    };
    let Const::Int(h) = h else { panic!("a width is a number") };
    let (t, h, nodes, ranks) = (16 / 2, h as u64, 4, 2);
    assert_eq!(sent(&apart), (2 * t * h * (nodes - 1) + t * k * (nodes - 1), 2 * k * t * h * (ranks - 1) / ranks));
    assert_eq!(sent(&flat), (2 * k * t * h * 7 / 8, 0));
    // Of 8 experts on 4 nodes 2 choices reach 4 (1 - 15/28) = 1.86 nodes, of 8 ranks 2: 15 rows for 8 tokens, and one less than there is room for.
    let node = of("dp=4,tp=2,ep=8,micro=1,dispatch=node-dedup,node=2");
    let within = 2 * k * t * h * (ranks - 1) / ranks;
    assert_eq!(sent(&node), (2 * (15 * h * (nodes - 1) / nodes) + t * k * (nodes - 1), within));
    let rank = of("dp=4,tp=2,ep=8,micro=1,dispatch=rank-dedup");
    assert_eq!(sent(&rank), (2 * (15 * h * 7 / 8) + t * k * 7, 0));
}

#[test]
fn what_cannot_be_decomposed_is_refused() {
    let refused = |name: &str, text: &str| {
        let result = plan(&Example::named(name), text, DType::F32, &[]);
        result.expect_err(&format!("{name} {text}"))
    };
    let cases = [
        ("tiny-moe", "dp=4,ep=4,micro=1,dispatch=hierarchical"),
        ("tiny-moe", "dp=4,ep=4,micro=1,dispatch=hierarchical,node=4"),
        ("tiny-moe", "dp=4,ep=4,micro=1,dispatch=hierarchical,node=1"),
        ("tiny-moe", "dp=4,ep=4,micro=1,dispatch=hierarchical,node=3"),
        ("expert-choice", "tp=4,ep=4,micro=4,dispatch=hierarchical,node=2"),
        ("tiny-moe", "dp=4,ep=4,micro=1,dispatch=node-dedup"),
        ("expert-choice", "tp=4,ep=4,micro=4,dispatch=rank-dedup"),
        ("tiny-moe", "dp=4,micro=1,dispatch=rank-dedup"),
    ];
    let all: Vec<String> = cases.iter().map(|(name, text)| format!("{name} {text}\n{}", refused(name, text))).collect();
    insta::assert_snapshot!(all.join("\n\n"));
}

/// Rows have as much room as is asked for; a step that brings more stops and says so.
#[test]
fn room_for_rows_is_bounded() {
    let example = Example::named("tiny-moe");
    let of = |way: &str, rows: u64| {
        let text = format!("dp=4,ep=4,micro=1,dispatch={way},node=2,max_tokens_per_rank={rows}");
        plan(&example, &text, DType::F64, &[]).unwrap_or_else(|e| panic!("{text}: {e}"))
    };
    // Rows on their way to a node's experts: groupings that leave some out have as much room.
    let room = |plan: &Plan| {
        let kernels = plan.programs.iter().flat_map(|p| &p.instructions).map(|i| &i.kernel);
        kernels.filter_map(|k| if let Kernel::Group(k) = k { Some(k.rows()) } else { None }).max()
    };
    let alone = train("alone", &plan(&example, "micro=4", DType::F64, &[]).expect("one rank"), 2);
    for way in WAYS {
        compare("96 rows", &train("96 rows", &of(way, 96), 2), &alone, 1e-10);
        assert!(room(&of(way, 48)) < room(&of(way, 1 << 20)), "{way}");
        let few = of(way, 8);
        let mut executor = Executor::new(&few, &ExecOptions::default()).expect("it fits");
        init::initialise(&mut executor).expect("initial values");
        let phase = executor.phase_named("train").expect("it trains");
        let stopped = executor.start(phase, &batch(&few, 1), 1).and_then(|()| executor.commit(phase, 1));
        let why = stopped.expect_err("there is no room").to_string();
        assert!(why.contains("rows arrive, but there is room for 8 (max_tokens_per_rank)"), "{why}");
    }
}

/// What `auto` takes on nodes of 8 with such bandwidths within and between them, GB/s, for k experts of a token on so many ranks.
fn winner(k: i64, ep: u32, [within, between]: [f64; 2]) -> Dispatch {
    let file = include_str!("../examples/clusters/h800.toml");
    let mut cluster = Cluster::parse(file).expect("a cluster");
    let [node, rail] = &mut cluster.tiers[..] else { panic!("two tiers") };
    (node.gbps.0, rail.gbps.0) = (within, between);
    let price = ValuePricer::new(&cluster, Precision::Bf16, 1.0);
    let example = Example::named("tiny-moe");
    let strategy = strategy(&format!("dp={ep},ep={ep},micro=1,dispatch=auto"));
    let mut overrides = example.reduced_to(ep.into(), 4096);
    overrides.retain(|(name, _)| !["topk", "experts", "d"].contains(&name.as_str()));
    overrides.extend([("topk", k), ("experts", 64), ("d", 2048)].map(|(name, n)| (name.to_string(), Const::Int(n))));
    let options = CompileOptions { strategy: strategy.clone(), ..options(DType::BF16, overrides) };
    let model = example.models(&options).train;
    let (settled, ways) = settle(&Priced { model: &model, options: &options, price: &price }).expect("it fits");
    let ways = ways.expect("there was something to find");
    println!("k = {k}, ep = {ep}, {within} and {between} GB/s: {ways:?}");
    assert_eq!(ways[0].0, settled.dispatch);
    settled.dispatch
}

/// Copies between nodes are k (N - 1)/N of a token flat, N - 1 with all tokens on all nodes, fewer with tokens only where they are needed; and what is saved there has to pay for the exchange
/// within, for copies of tokens, and for telling everyone what was chosen.
#[test]
fn the_fastest_way_depends_on_experts_nodes_and_links() {
    let (h800, slow) = ([200.0, 50.0], [200.0, 5.0]);
    assert_eq!(winner(1, 16, h800), Dispatch::Flat);
    // Of eight ranks a token with four experts reaches 3.4, which is little fewer than four; with eight it reaches 5.4.
    assert_eq!(winner(4, 8, h800), Dispatch::Flat);
    assert_eq!(winner(8, 8, h800), Dispatch::RankDedup);
    assert_eq!(winner(8, 16, [200.0, 200.0]), Dispatch::Flat);
    assert_eq!(winner(8, 16, h800), Dispatch::Hierarchical);
    assert_eq!(winner(4, 16, slow), Dispatch::Hierarchical);
    assert_eq!(winner(2, 16, slow), Dispatch::NodeDedup);
    assert_eq!(winner(8, 64, slow), Dispatch::NodeDedup);
    assert_eq!(winner(1, 64, slow), Dispatch::Flat);
    // All ranks are on one node, and its links are slow.
    assert_eq!(winner(8, 4, [5.0, 5.0]), Dispatch::RankDedup);
}
