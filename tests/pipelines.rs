//! Pipelines that are found: `schedule=search` and `stages=auto` train as one rank does, and are no slower by their own costs than what is published.

use crate::common;

use common::training::{Run, compare, plan, plan_with, strategy, train};
use common::{Example, options};
use forebay_compiler::memory::Price;
use forebay_compiler::pipeline::CompileOptions;
use forebay_compiler::rewrite::Profile;
use forebay_compiler::settle::{Settled, settle};
use forebay_compiler::shard::{Cut, Order, Strategy};
use forebay_dsl::model::Const;
use forebay_ir::{DType, Graph, ValueId};
use forebay_pipeline::Placement;
use forebay_plan::Plan;

const STEPS: u64 = 2;

/// A small model of so many layers.
fn options_of(example: &Example, strategy: &Strategy, layers: i64, compute: DType) -> CompileOptions {
    let mut overrides = example.reduced_to(4, 16);
    overrides.retain(|(name, _)| name != "layers");
    overrides.push(("layers".into(), Const::Int(layers)));
    let micro_batches = strategy.micro.unwrap_or(1);
    CompileOptions { micro_batches, strategy: strategy.clone(), ..options(compute, overrides) }
}

fn settled(example: &Example, text: &str, layers: i64) -> Settled {
    let options = options_of(example, &strategy(text), layers, DType::F32);
    let model = example.models(&options).train;
    settle(&model, &options, &Profile::cpu(), &mut |_| ()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Ranks whose pairs take a part of the time of both works.
struct Hiding(f64);

impl Price for Hiding {
    fn seconds(&self, graph: &Graph, value: ValueId) -> f64 {
        Price::seconds(&Profile::cpu(), graph, value)
    }

    fn message(&self, stages: (u32, u64), bytes: f64) -> f64 {
        Profile::cpu().message(stages, bytes)
    }

    fn programs(&self, plan: &Plan) -> Result<Vec<f64>, String> {
        let seconds = Profile::cpu().programs(plan)?;
        let is_pair = plan.programs.iter().map(|p| p.name.contains('&'));
        Ok(seconds.into_iter().zip(is_pair).map(|(s, is_pair)| if is_pair { self.0 * s } else { s }).collect())
    }
}

/// A search takes a schedule with pairs where the program that runs both works is faster than they are, and none where it is not.
#[test]
fn pairs_have_the_price_of_their_program() {
    let example = Example::named("tiny-moe");
    let text = "pp=2,vpp=2,tp=2,ep=2,micro=4,schedule=search,nodes=200";
    let found = |price: &dyn Price, text: &str| {
        let options = options_of(&example, &strategy(text), 8, DType::F32);
        let model = example.models(&options).train;
        settle(&model, &options, price, &mut |_| ()).unwrap_or_else(|e| panic!("{text}: {e}"))
    };
    let paired = |settled: &Settled| match &settled.strategy.schedule {
        Order::Given(given) => given.schedule.has_pairs(),
        order => panic!("{order} was left open"),
    };
    let [with, without] = [0.7, 1.0].map(|part| found(&Hiding(part), text));
    assert!(paired(&with), "{:?}", with.found);
    assert!(!paired(&without), "{:?}", without.found);
    let [fast, slow] = [with, without].map(|settled| settled.found.expect("a search finds something"));
    assert!(fast.seconds < slow.seconds && fast.bound <= fast.seconds, "{fast:?} {slow:?}");
    // Without the pass there are no such programs.
    assert!(!paired(&found(&Hiding(0.7), &format!("{text},overlap=within"))));
}

fn run(example: &Example, strategy: &Strategy, layers: i64, compute: DType) -> Run {
    let options = options_of(example, strategy, layers, compute);
    let plan = plan_with(example, strategy, options).unwrap_or_else(|e| panic!("{strategy}: {e}"));
    train(&strategy.to_string(), &plan, STEPS)
}

#[test]
fn what_is_found_trains_as_one_rank() {
    let example = Example::named("tiny-moe");
    let alone = train("alone", &plan(&example, "micro=4", DType::F64, &[("layers", 6)]).expect("a plan"), STEPS);
    for text in [
        "pp=2,vpp=2,micro=4,schedule=search,nodes=400,stages=auto",
        "pp=3,micro=4,schedule=search,nodes=400,cap=2",
        "dp=2,pp=2,ep=2,micro=2,schedule=search,nodes=400,stages=auto,zero=1",
        "pp=2,vpp=2,tp=2,micro=4,schedule=v-half,stages=auto",
    ] {
        let settled = settled(&example, text, 6);
        assert!(matches!(settled.strategy.stages, Cut::Given(_)) == text.contains("auto"), "{}", settled.strategy);
        compare(text, &run(&example, &settled.strategy, 6, DType::F64), &alone, 1e-11);
    }
}

/// On the same ranks, with the backward pass in the same halves, only the order differs in which stages work: no sum is in another order, and no bit either.
#[test]
fn orders_that_are_found_have_the_bits_of_published_ones() {
    let example = Example::named("tiny-moe");
    for (found, named) in [
        ("pp=2,vpp=2,micro=4,schedule=search,nodes=3000,cap=5", "pp=2,vpp=2,micro=4,schedule=zb-v"),
        ("pp=3,micro=4,schedule=search,nodes=3000,cap=4", "pp=3,micro=4,schedule=zb-h1"),
    ] {
        let strategy_found = settled(&example, found, 6).strategy;
        let found = run(&example, &strategy_found, 6, DType::F32);
        // Which stage has which layers changes nothing: a rank's sums are by layer.
        let named = run(&example, &strategy(named), 6, DType::F32);
        assert_eq!(found.losses, named.losses, "{strategy_found}");
        assert_eq!(found.bits(), named.bits(), "{strategy_found}");
    }
}

/// Whatever the cap: no published schedule that keeps to it is faster, none beats the bound, and every process finds the same.
#[test]
fn nothing_published_is_faster() {
    let example = Example::named("tiny-moe");
    let mut better = 0;
    for (shape, caps) in
        [("pp=2,vpp=2,micro=4", [2, 4, 8]), ("pp=4,micro=4", [1, 4, 8]), ("pp=3,vpp=2,micro=4", [3, 6, 9])]
    {
        for cap in caps {
            for cut in ["", ",stages=auto"] {
                let text = format!("{shape},schedule=search,nodes=2000,cap={cap}{cut}");
                let [settled, again] = [(); 2].map(|()| settled(&example, &text, 6));
                assert_eq!(settled.strategy, again.strategy, "{text}");
                let found = settled.found.expect("a search finds something");
                assert!(found.bound <= found.seconds && found.peak <= cap, "{text}: {found:?}");
                if let Some((kind, seconds)) = found.published {
                    assert!(found.seconds <= seconds, "{text}: {} is faster", kind.name());
                    better += u32::from(found.seconds < seconds);
                }
            }
        }
    }
    assert!(better >= 4, "the search finds more than what is published: {better}");
}

/// The first and the last part of the model have more than layers: cut by costs, a step is no slower than with as many layers in each part.
#[test]
fn layers_are_cut_by_what_they_cost() {
    let example = Example::named("tiny-moe");
    for schedule in ["1f1b", "zb-h1", "search,nodes=1"] {
        let Settled { strategy, found, .. } =
            settled(&example, &format!("pp=4,micro=4,schedule={schedule},stages=auto"), 16);
        let Cut::Given(layers) = &strategy.stages else { panic!("{strategy}") };
        assert!(layers.len() == 4 && layers.iter().sum::<u32>() == 16, "{strategy}");
        if schedule.starts_with("search") {
            let even = settled(&example, "pp=4,micro=4,schedule=search,nodes=1", 16).found.expect("it is searched");
            let auto = found.expect("layers are cut");
            assert!(auto.seconds <= even.seconds, "{auto:?} {even:?}");
        }
    }
}

/// What leaves nothing open stays as it is, and one stage has nothing to find.
#[test]
fn what_is_given_stays() {
    let example = Example::named("tiny-moe");
    let given = "pp=2,micro=4,schedule=zb-h1";
    assert_eq!(settled(&example, given, 4).strategy, strategy(given));
    let one = settled(&example, "micro=4,schedule=search,nodes=5,stages=auto", 4);
    assert_eq!((one.strategy, one.found), (strategy("micro=4"), None));
    let wave = settled(&example, "pp=2,vpp=2,micro=4,schedule=v-min,stages=auto", 8).strategy;
    assert!(wave.schedule.placement() == Some(Placement::Wave) && wave.schedule != Order::Search, "{wave}");
}
