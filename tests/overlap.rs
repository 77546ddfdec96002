//! Overlap passes, each alone and all together: what they change is when things run, and nothing else.

mod common;

use common::training::{ROWS, compare, plan, train};
use common::{Example, examples};
use forebay_ir::DType;
use forebay_plan::Plan;

/// Forward and backward passes in pairs, experts over ranks of several kinds, gradients summed layer by layer, halves of backward passes, rings, other placements.
const STRATEGIES: [&str; 8] = [
    "dp=2,pp=2,vpp=2,ep=2,micro=2,schedule=vpp-overlap",
    "pp=2,vpp=2,tp=2,ep=2,micro=4,schedule=vpp-overlap",
    "dp=2,pp=2,vpp=2,tp=2,ep=4,micro=2,zero=3,schedule=vpp-overlap",
    "pp=2,vpp=2,tp=2,ep=2,micro=4,schedule=dualpipev",
    "dp=2,tp=2,ep=4,micro=2,zero=2",
    "pp=2,tp=2,ep=2,micro=4,schedule=zb-h1",
    "cp=4,cp_algo=ring,micro=4",
    "dp=2,pp=2,vpp=2,ep=2,micro=2,schedule=vpp-overlap,recompute=full",
];

const PASSES: [&str; 4] = ["vector", "within", "across", "all"];

/// The plan with layers for two stages of two chunks, where the model has a number of layers.
fn of(example: &Example, text: &str, compute: DType) -> Result<Plan, String> {
    let has_layers = example.reduced().iter().any(|(name, _)| name == "layers");
    plan(example, text, compute, if has_layers { &[("layers", 4)] } else { &[] })
}

#[test]
fn passes_change_no_bit() {
    let all = std::env::var_os("FOREBAY_TEST_ALL").is_some();
    let mut compared = 0;
    for (i, example) in examples().iter().enumerate() {
        for (j, text) in STRATEGIES.into_iter().enumerate() {
            // Each model meets two strategies, each strategy a few models.
            if !all && (i + j) % 4 != 0 {
                continue;
            }
            let Ok(without) = of(example, &format!("{text},overlap=none"), DType::F32) else { continue };
            let bits = train(&example.name, &without, 2).bits();
            for passes in PASSES.into_iter().filter(|p| all || *p == "all" || (i + j) % 3 == 0) {
                let with = of(example, &format!("{text},overlap={passes}"), DType::F32).expect("passes refuse nothing");
                let what = format!("{} {text} {passes}", example.name);
                assert!(train(&example.name, &with, 2).bits() == bits, "{what}: other bits");
                compared += 1;
            }
        }
    }
    assert!(compared >= 20, "{compared} plans were compared");
}

/// Pairs are there where the schedule has them, and not without the pass.
#[test]
fn pairs_are_programs_of_their_own() {
    let example = Example::named("tiny-moe");
    let paired = |text: &str| {
        let plan = of(&example, text, DType::F32).unwrap_or_else(|e| panic!("{text}: {e}"));
        plan.programs.iter().filter(|p| p.name.contains('&')).count()
    };
    assert!(paired(STRATEGIES[0]) > 0);
    assert_eq!(paired(&format!("{},overlap=within/vector", STRATEGIES[0])), 0);
    assert_eq!(paired("dp=2,pp=2,vpp=2,ep=2,micro=2,schedule=vpp"), 0);
}

/// In pieces, gradients of experts are sums of other terms: the same up to rounding.
#[test]
fn pieces_train_as_the_whole() {
    for (name, text) in [
        ("tiny-moe", "dp=2,ep=2,micro=2,pieces=2"),
        ("tiny-moe", "dp=2,pp=2,vpp=2,tp=2,ep=4,micro=2,zero=2,schedule=vpp-overlap,pieces=4"),
        ("deepseek-v3", "dp=2,tp=2,ep=4,micro=2,pieces=2"),
        ("pangu-ultra-moe", "tp=2,ep=2,pp=2,micro=4,schedule=zb-h1,pieces=2"),
        ("mixtral-8x7b", "dp=2,tp=2,sp=0,ep=2,micro=2,pieces=4"),
        ("gpt-oss-120b", "cp=2,ep=2,micro=4,pieces=2"),
        ("qwen3-30b-a3b", "tp=2,etp=2,ep=1,micro=4,pieces=2"),
    ] {
        let example = Example::named(name);
        let whole = text.rsplit_once(",pieces").expect("it has pieces").0;
        let [whole, cut] = [whole, text].map(|text| of(&example, text, DType::F64));
        let (whole, cut) = match (whole, cut) {
            (Ok(whole), Ok(cut)) => (whole, cut),
            (_, Err(why)) if text.contains("ep=1") => {
                assert!(why.contains("pieces"), "{why}");
                continue;
            }
            (whole, cut) => panic!("{name} {text}: {:?} {:?}", whole.err(), cut.err()),
        };
        assert_ne!(whole.programs.len(), 0);
        let steps = 3;
        compare(&format!("{name} {text}"), &train(name, &cut, steps), &train(name, &whole, steps), 1e-10);
    }
    assert_eq!(ROWS, 4, "pieces are of four rows, or of positions");
}
