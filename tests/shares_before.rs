//! Shares of experts before the down projection: ranks train as one alone that multiplies them in behind it, whatever the strategy; what is refused; what is saved and sent.

use crate::common;

use common::training::{ROWS, compare, plan, plan_within, strategy, train};
use common::{Example, all_cases, meets, options};
use forebay_compiler::memory::{Aim, Price};
use forebay_compiler::pipeline::{CompileError, CompileOptions, Compiled, with_exchanges};
use forebay_compiler::rewrite::Profile;
use forebay_compiler::shard::Strategy;
use forebay_compiler::shares::Shares;
use forebay_ir::{CommKind, DType, Graph, Op};
use forebay_plan::Plan;

/// Every way to share the work, every way of the rows, pieces, and passes in halves; `dp × micro` is always [`ROWS`].
const STRATEGIES: [&str; 18] = [
    "micro=4",
    "dp=4,micro=1,zero=1",
    "dp=4,ep=4,micro=1",
    "dp=2,ep=2,micro=2,zero=3",
    "tp=2,ep=2,micro=4",
    "tp=2,sp=0,ep=2,micro=4",
    "tp=2,etp=2,micro=4",
    "dp=2,cp=2,tp=2,ep=4,micro=2,zero=1",
    "cp=2,cp_algo=ring,micro=4",
    "pp=2,schedule=zb-h1,tp=2,ep=2,micro=4",
    "dp=2,tp=2,etp=2,ep=2,micro=2,zero=2",
    "dp=2,tp=2,etp=2,ep=2,etp_gather=after,micro=2",
    "dp=2,tp=2,ep=4,micro=2,pieces=2",
    "dp=2,tp=2,ep=4,micro=2,node=2,dispatch=hierarchical",
    "dp=2,tp=2,ep=4,micro=2,node=2,dispatch=node-dedup,pieces=2",
    "dp=4,ep=4,micro=1,dispatch=rank-dedup",
    "dp=2,pp=2,tp=2,ep=4,micro=2,node=2,dispatch=hierarchical,recompute=full",
    "dp=4,tp=2,etp=2,ep=4,micro=1,node=4,dispatch=node-dedup",
];

/// Softmax and sigmoid routers, shared experts, groups of experts, experts with biases.
const MODELS: [&str; 6] =
    ["tiny-moe", "deepseek-v3", "pangu-ultra-moe", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-120b"];

/// The plan at reduced size, with layers for every stage.
fn of(example: &Example, text: &str, compute: DType) -> Result<Plan, String> {
    let has_layers = example.reduced().iter().any(|(name, _)| name == "layers");
    plan(example, text, compute, if has_layers { &[("layers", 4)] } else { &[] })
}

#[test]
fn ranks_train_as_one_that_weighs_behind() {
    let models = MODELS.map(Example::named);
    let mut alone = models.each_ref().map(|_| None);
    for (j, text) in STRATEGIES.into_iter().enumerate() {
        let take = |example: &Example| {
            let made = of(example, &format!("{text},shares=before"), DType::F64);
            // (Degrees may not divide a model's heads.)
            made.map_err(|message| {
                assert!(of(example, text, DType::F64).is_err(), "{} {text}: {message}", example.name)
            })
            .ok()
        };
        for (i, plan) in meets(&models, (j, text), take) {
            let (example, name) = (&models[i], MODELS[i]);
            let what = format!("{name} {text},shares=before");
            let run = train(&what, &plan, 3);
            // Losses with statistics over ranks see other rows than one rank's micro-batches.
            if text.contains("dp") && example.text.contains("scope") {
                let behind = of(example, text, DType::F64).expect("it was made with shares before");
                compare(&what, &run, &train(text, &behind, 3), 1e-10);
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

/// In f32 roundings are others; and twice the same is the same, bit for bit.
#[test]
fn in_f32_it_is_close_and_reproducible() {
    let example = Example::named("tiny-moe");
    let alone = train("alone", &of(&example, &format!("micro={ROWS}"), DType::F32).expect("one rank"), 2);
    for (_, text) in STRATEGIES.into_iter().enumerate().filter(|(n, _)| all_cases() || n % 2 == 0) {
        let text = format!("{text},shares=before");
        let plan = of(&example, &text, DType::F32).unwrap_or_else(|e| panic!("{text}: {e}"));
        let run = train(&text, &plan, 2);
        compare(&text, &run, &alone, 1e-4);
        assert!(run.bits() == train(&text, &plan, 2).bits(), "{text}: other bits");
    }
}

#[test]
fn nothing_to_weigh_is_refused() {
    let example = Example::named("expert-choice");
    let message = of(&example, "shares=before", DType::F32).expect_err("no token chooses experts");
    assert!(message.contains("shares = before: no shares of `ExpertChoice`"), "{message}");
    let message = Strategy::parse("shares=first").expect_err("no such place");
    assert!(message.to_string().contains("after, before or auto"), "{message}");
}

/// Exchanges of a layer with experts: all that send, and of those the ones of a number for each row.
fn exchanges(text: &str) -> (usize, usize) {
    let options = CompileOptions {
        strategy: strategy(text),
        ..options(DType::F32, Example::named("tiny-moe").reduced_to(ROWS.into(), 32))
    };
    let model = Example::named("tiny-moe").models(&options).train;
    let sharded = with_exchanges(&model, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
    let graphs = sharded.model.segments.iter().map(|s| &s.forward);
    let of = |graph: &Graph| {
        let comms = graph.values().filter_map(|value| match &graph.node(value).op {
            Op::Comm(comm) if comm.sends() => Some((comm.kind.clone(), graph.ty(value).axes.len())),
            _ => None,
        });
        let comms: Vec<(CommKind, usize)> = comms.collect();
        let numbers = comms.iter().filter(|(kind, axes)| matches!(kind, CommKind::Dispatch { .. }) && *axes == 2);
        (comms.len(), numbers.count())
    };
    graphs.map(of).max().expect("layers with experts")
}

/// Shares take one exchange of a number for each row beside each exchange of the rows; between nodes nothing more is sent, as shares went there before.
#[test]
fn shares_take_one_small_exchange() {
    for (text, dispatches) in [
        ("dp=4,ep=4", 1),
        ("dp=2,tp=2,ep=4,pieces=2", 2),
        ("dp=2,tp=2,ep=4,node=2,dispatch=hierarchical", 1),
        ("dp=2,tp=2,ep=4,node=2,dispatch=node-dedup", 1),
        ("dp=4,ep=4,dispatch=rank-dedup", 0),
    ] {
        let (behind, none) = exchanges(text);
        assert_eq!(none, 0, "{text}");
        assert_eq!(exchanges(&format!("{text},shares=before")), (behind + dispatches, dispatches), "{text}");
    }
}

/// Left open, shares go where the step takes less time in the memory there is.
#[test]
fn the_faster_place_that_fits_is_taken() {
    let price = Profile::cpu();
    let mut taken = vec![];
    for (name, text) in [("tiny-moe", "micro=4"), ("deepseek-v3", "pp=2,micro=4")] {
        let example = Example::named(name);
        let with = |shares: &str, aim| plan_within(&example, &format!("{text},shares={shares}"), aim, &price);
        let peak = |compiled: &Compiled| compiled.plan.roles.iter().map(|r| r.device_bytes).max().expect("a role");
        let seconds = |compiled: &Compiled| price.step(&compiled.plan).expect("it is timed");
        let least = |shares| peak(&with(shares, Aim::Least).unwrap_or_else(|e| panic!("{name} {shares}: {e}")));
        let (after, before) = (least("after"), least("before"));
        assert_eq!(least("auto"), after.min(before), "{name}");
        let whole = peak(&with("after", Aim::Fastest).expect("it compiles"));
        for aim in [Aim::Fastest, Aim::Within((whole + after) / 2), Aim::Within(after.max(before) - 1)] {
            let auto = with("auto", aim).unwrap_or_else(|e| panic!("{name} {aim:?}: {e}"));
            let each: Vec<Compiled> = ["after", "before"].iter().filter_map(|shares| with(shares, aim).ok()).collect();
            let fastest = each.iter().map(seconds).fold(f64::INFINITY, f64::min);
            assert_eq!(seconds(&auto), fastest, "{name} {aim:?}");
            assert_eq!(auto.places.len(), 2);
            for place in &auto.places {
                let of_place = each.iter().find(|compiled| compiled.strategy.shares == place.shares);
                assert_eq!(place.seconds, of_place.map(seconds), "{name} {aim:?}");
            }
            taken.push(auto.strategy.shares);
        }
        let error = with("auto", Aim::Within(after.min(before) / 2)).expect_err("it fits nowhere");
        assert!(matches!(error, CompileError::Memory(_)), "{error}");
    }
    assert!(taken.contains(&Shares::Before), "{taken:?}");
    // Where shares cannot be multiplied in before, they stay behind.
    let choosing = plan_within(&Example::named("expert-choice"), "micro=4,shares=auto", Aim::Fastest, &price);
    let choosing = choosing.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((choosing.strategy.shares, choosing.places.len()), (Shares::After, 1));
}
