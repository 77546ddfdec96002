//! Ranks together against one rank alone: the same losses and the same parameters, for every example model and every way to share the work.
//!
//! The same rows make the same micro-batches everywhere, so that nothing but the order of sums differs. Some models and strategies by turns;
//! `FOREBAY_TEST_ALL=1`: all of them, over 20 steps, which takes four to five minutes of a core.

use crate::common;

use common::training::{ROWS, Run, compare, plan, strategy, train};
use common::{Example, all_cases, examples, meets};
use forebay_compiler::shard::Strategy;
use forebay_ir::DType;
use forebay_plan::Kernel;
use std::collections::BTreeSet;

/// Every pair of degrees is in one of these; `dp × micro` is always [`ROWS`].
const STRATEGIES: [&str; 43] = [
    "dp=2,micro=2",
    "dp=4,micro=1",
    "dp=2,micro=2,zero=1",
    "dp=4,micro=1,zero=1",
    "dp=2,micro=2,zero=2",
    "dp=4,micro=1,zero=3",
    "tp=2,micro=4",
    "tp=4,micro=4",
    "tp=2,sp=0,micro=4",
    "dp=2,tp=2,micro=2,zero=1",
    "dp=2,ep=2,micro=2",
    "dp=4,ep=4,micro=1,zero=1",
    "dp=4,ep=2,micro=1,zero=1",
    "tp=2,ep=2,micro=4",
    "tp=2,sp=0,ep=2,micro=4",
    "tp=2,etp=2,micro=4",
    "dp=2,tp=2,ep=4,micro=2",
    "dp=2,tp=2,etp=2,ep=2,micro=2,zero=1",
    "dp=2,tp=2,etp=2,ep=2,etp_gather=after,micro=2,zero=1",
    "cp=2,micro=4",
    "cp=2,cp_algo=gather,micro=4",
    "cp=2,cp_algo=ring,micro=4",
    "cp=4,cp_algo=ring,micro=4",
    "dp=2,cp=2,cp_algo=ring,tp=2,ep=4,micro=2,zero=1",
    "cp=4,cp_algo=hybrid,micro=4",
    "pp=2,schedule=zb-h1,cp=4,cp_algo=hybrid,tp=2,ep=2,micro=4",
    "dp=2,cp=2,tp=2,ep=4,micro=2,zero=1",
    "cp=2,tp=2,etp=2,ep=2,micro=4",
    "cp=2,tp=2,etp=2,ep=2,etp_gather=after,micro=4",
    "pp=2,micro=4",
    "pp=2,schedule=gpipe,micro=4",
    "pp=2,schedule=zb-h1,tp=2,ep=2,micro=4",
    "dp=2,pp=2,micro=2,zero=1",
    "pp=2,tp=2,ep=2,micro=4",
    "dp=2,pp=2,tp=2,ep=4,micro=2,zero=1",
    "dp=2,tp=2,ep=2,micro=2,zero=2",
    "dp=2,pp=2,tp=2,ep=4,micro=2,zero=3",
    "dp=2,pp=2,cp=2,tp=2,ep=8,micro=2,zero=1",
    "dp=4,micro=1,zero=1,hsdp=2",
    "dp=4,ep=2,micro=1,zero=3,hsdp=2",
    "dp=4,tp=2,micro=1,zero=2,hsdp=2",
    "dp=2,cp=2,micro=2,zero=3,hsdp=1",
    "dp=2,pp=2,cp=2,ep=2,micro=2,zero=2,hsdp=1",
];

#[test]
fn ranks_together_train_as_one_alone() {
    let steps = if all_cases() { 20 } else { 4 };
    let only = std::env::var("FOREBAY_PARALLEL").ok();
    let examples = examples();
    let mut alone: Vec<Option<Run>> = examples.iter().map(|_| None).collect();
    let mut compared = 0;
    for (j, text) in STRATEGIES.into_iter().enumerate() {
        let take = |example: &Example| {
            if spans_rows(&example.text, text) {
                return None;
            }
            plan(example, text, DType::F64, &[]).ok()
        };
        let named = |(i, example): (usize, &Example)| {
            let is_meant = only.as_ref().is_some_and(|only| format!("{} {text}", example.name).contains(only.as_str()));
            if is_meant { take(example).map(|plan| (i, plan)) } else { None }
        };
        let met = match only {
            Some(_) => examples.iter().enumerate().filter_map(named).collect(),
            None => meets(&examples, (j, text), take),
        };
        for (i, plan) in met {
            let (example, alone) = (&examples[i], &mut alone[i]);
            let alone = alone.get_or_insert_with(|| {
                let one = common::training::plan(example, &format!("micro={ROWS}"), DType::F64, &[]);
                train(&example.name, &one.expect("one rank takes every model"), steps)
            });
            let what = format!("{} {text}", example.name);
            compare(&what, &train(&what, &plan, steps), alone, 1e-10);
            compared += 1;
        }
    }
    assert_enough(compared, only.as_deref(), STRATEGIES.len());
}

/// A strategy that a model refuses is no failure; if most were refused, nothing would be tested.
fn assert_enough(compared: usize, only: Option<&str>, fewest: usize) {
    match only {
        Some(only) => assert!(compared > 0, "FOREBAY_PARALLEL={only} names no model and strategy that go together"),
        None => assert!(compared >= fewest, "{compared} comparisons; there were {fewest} or more"),
    }
}

/// Has the model a loss with statistics over several data-parallel ranks, and the strategy such ranks? Then its micro-batches are not one rank's:
/// [`losses_see_the_rows_of_their_scope`].
fn spans_rows(model: &str, text: &str) -> bool {
    let strategy = strategy(text);
    let (global, group) = (model.contains("scope global"), model.contains("scope group"));
    strategy.dp > 1 && (global || group && strategy.ep > strategy.tp * strategy.cp / strategy.etp)
}

/// Pipelines whose stages have several chunks, even and uneven.
#[test]
fn interleaved_pipelines_train_as_one_rank() {
    let example = Example::named("tiny-moe");
    let set = [("layers", 5)];
    let alone = plan(&example, &format!("micro={ROWS}"), DType::F64, &set).unwrap();
    let alone = train("alone", &alone, 3);
    for text in [
        "pp=2,vpp=2,micro=4",
        "dp=2,pp=2,vpp=2,schedule=vpp-overlap,micro=2",
        "dp=2,pp=2,vpp=2,schedule=zb-vpp,ep=2,micro=2,zero=1",
        "pp=3,schedule=zb-h1,micro=4",
        "pp=2,vpp=2,schedule=zb-v,micro=4",
        "dp=2,pp=2,vpp=2,schedule=v-half,tp=2,ep=2,micro=2,zero=2",
        "pp=2,vpp=2,schedule=v-min,micro=4",
        "pp=2,vpp=2,schedule=dualpipev,micro=4",
        "pp=4,schedule=zb-h2,tp=2,micro=4,recompute=attention",
        "dp=2,pp=2,schedule=zb-h1,tp=2,ep=2,micro=2,keep=inputs",
        "dp=2,pp=2,schedule=zb-h1,tp=2,ep=4,micro=2,zero=3",
        "dp=2,pp=2,vpp=2,ep=2,micro=2,zero=1",
        "pp=2,vpp=2,stages=1/2/1/1,micro=4",
        "pp=4,stages=2/1/1/1,micro=4",
        "pp=4,stages=0/3/2/0,schedule=zb-h1,micro=4",
        "pp=3,stages=0/5/0,micro=4",
        "pp=2,vpp=2,schedule=gpipe,tp=2,micro=4",
    ] {
        let plan = plan(&example, text, DType::F64, &set).unwrap_or_else(|e| panic!("{text}: {e}"));
        compare(text, &train(text, &plan, 3), &alone, 1e-10);
    }
}

/// tiny-moe with an embedding that is the head as well, of an odd size.
fn tied() -> Example {
    let Example { text, .. } = Example::named("tiny-moe");
    let text = text
        .replace("vocab = 256", "vocab = 257")
        .replace("head[d, vocab] = normal(0.02)", "other[vocab, d] = normal(0.02)");
    let text = text
        .replace("x = embed[tokens, d]", "x = embed[tokens, d] + other[tokens, d]")
        .replace("rms_norm(x) * head", "rms_norm(x) * other");
    Example { name: "tied".into(), text }
}

/// Stages that have two parts of the model each, one for either way that micro-batches take: parameters and states stay the same on both stages of a part.
#[test]
fn two_ways_train_as_one_rank() {
    for (name, text) in [
        ("tiny-moe", "pp=2,schedule=dualpipe,micro=4"),
        // Stages that have two parts of four; eight rows.
        ("tiny-moe", "pp=4,schedule=dualpipe,micro=8"),
        ("tiny-moe", "dp=2,pp=4,schedule=dualpipe,micro=8,zero=1,overlap=all"),
        ("deepseek-v3", "dp=2,pp=4,ep=2,schedule=dualpipe,stages=2/1/1/1,micro=8,overlap=all"),
        // A parameter of the first layer and the last, behind others of odd sizes.
        ("tied", "pp=2,schedule=dualpipe,micro=4"),
        ("tied", "dp=2,pp=4,schedule=dualpipe,micro=8,zero=1"),
        // Router biases that follow the loads of all micro-batches; a part of the model that is in the first stage and the last.
        ("deepseek-v3", "pp=2,tp=2,ep=2,schedule=dualpipe,micro=4,zero=1"),
        ("pangu-ultra-moe", "pp=2,cp=2,ep=2,schedule=dualpipe,micro=4,zero=3,overlap=all"),
        ("tiny-moe", "dp=2,pp=2,schedule=dualpipe,micro=4,zero=2,hsdp=1"),
        ("mixtral-8x7b", "pp=2,tp=2,schedule=dualpipe,micro=4,zero=2,recompute=full"),
    ] {
        let example = if name == "tied" { tied() } else { Example::named(name) };
        let Strategy { pp, dp, micro, .. } = strategy(text);
        let rows = dp * micro.expect("it is given");
        // (Rows of 20 elements: parameters do not end at whole lines.)
        let odd: &[(&str, i64)] = if name == "tied" { &[("d", 20), ("heads", 2)] } else { &[] };
        let set = [&[("layers", 5), ("batch", rows.into())], odd].concat();
        let of = |text: &str| plan(&example, text, DType::F64, &set).unwrap_or_else(|e| panic!("{name} {text}: {e}"));
        let alone = train(name, &of(&format!("micro={rows}")), 3);
        let both = of(text);
        let kept = |stage: u32| -> BTreeSet<&str> {
            both.roles[stage as usize].tensors.iter().map(|t| t.name.as_str()).collect()
        };
        for stage in 0..pp / 2 {
            assert_eq!(kept(stage), kept(pp - 1 - stage), "{name} {text}: stages {stage} and {}", pp - 1 - stage);
        }
        // They send each other what is summed: gradients on the way, where they are not all summed at the end.
        let named = |word: &str| both.programs.iter().filter(|p| p.name.starts_with(word)).count();
        assert!(named("send.") > 0 && named("optimizer.add.") > 0, "{name} {text}");
        compare(name, &train(name, &both, 3), &alone, 1e-10);
    }
}

/// A loss whose statistics are over a group of ranks is that of one rank with all their rows in one micro-batch.
#[test]
fn losses_see_the_rows_of_their_scope() {
    for (name, text) in [
        ("qwen3-30b-a3b", "dp=2,micro=2,zero=1"),
        ("qwen3-30b-a3b", "dp=2,tp=2,ep=2,micro=2"),
        ("pangu-ultra-moe", "dp=2,ep=2,micro=2"),
        ("pangu-ultra-moe", "dp=2,tp=2,ep=4,micro=2,zero=1"),
    ] {
        let example = Example::named(name);
        assert!(spans_rows(&example.text, text), "{name} {text}");
        let alone = plan(&example, "micro=2", DType::F64, &[]).unwrap();
        let plan = plan(&example, text, DType::F64, &[]).unwrap_or_else(|e| panic!("{text}: {e}"));
        compare(&format!("{name} {text}"), &train(name, &plan, 3), &train(name, &alone, 3), 1e-10);
    }
}

/// Ranks that share heads, or cut positions, remember whole rows of the heads that they have: all heads are theirs once.
#[test]
fn linear_attention_is_of_whole_rows() {
    let problems = |text: &str| {
        let plan = plan(&Example::named("qwen3-next-80b-a3b"), text, DType::F32, &[]).unwrap();
        let kernels = plan.programs.iter().filter(|p| p.name.starts_with("train.")).flat_map(|p| &p.instructions);
        let linear = kernels.filter_map(|i| match &i.kernel {
            Kernel::LinearAttention(k) => Some((k.batch.iter().product::<u64>(), k.positions)),
            _ => None,
        });
        let mut all: Vec<(u64, u64)> = linear.collect();
        all.dedup();
        all
    };
    // Two rows of 16 positions and four value heads in a micro-batch.
    assert_eq!(problems("micro=2"), [(8, 16)]);
    for text in ["tp=2,micro=2", "cp=2,micro=2", "cp=2,cp_algo=ring,micro=2", "cp=2,cp_algo=gather,micro=2"] {
        assert_eq!(problems(text), [(4, 16)], "{text}");
    }
}

/// In f32, where sums in another order round otherwise: close, and over these steps no token changes its experts for that, which would be legitimate.
#[test]
fn ranks_together_stay_close_in_f32() {
    let (steps, stride) = if all_cases() { (20, 1) } else { (2, 37) };
    let only = std::env::var("FOREBAY_PARALLEL").ok();
    let mut compared = 0;
    for (i, example) in examples().iter().enumerate() {
        let mut alone: Option<Run> = None;
        for (j, text) in STRATEGIES.into_iter().enumerate() {
            let what = format!("{} {text}", example.name);
            let turn = only.is_some() || (i * STRATEGIES.len() + j).is_multiple_of(stride);
            // Attention at positions is a kernel in f32 too, and rounds otherwise than what it replaces.
            let fused = [("gpt-oss-120b", "cp=2,cp_algo=gather,micro=4"), ("packed-docs", "cp=4,cp_algo=ring,micro=4")];
            let turn = turn || fused.contains(&(example.name.as_str(), text));
            if !turn || only.as_ref().is_some_and(|o| !what.contains(o.as_str())) || spans_rows(&example.text, text) {
                continue;
            }
            let Ok(plan) = plan(example, text, DType::F32, &[]) else { continue };
            let alone = alone.get_or_insert_with(|| {
                let one = common::training::plan(example, &format!("micro={ROWS}"), DType::F32, &[]);
                train(&example.name, &one.expect("one rank takes every model"), steps)
            });
            compare(&what, &train(&what, &plan, steps), alone, 1e-4);
            compared += 1;
        }
    }
    assert_enough(compared, only.as_deref(), 8);
}

/// Experts that choose tokens see whole rows: the ranks that have these share them, which is what `ep` can be.
#[test]
fn experts_that_choose_tokens_are_shared_by_tp() {
    let example = Example::named("expert-choice");
    let alone = train("alone", &plan(&example, "micro=4", DType::F64, &[]).unwrap(), 3);
    for text in ["tp=2,ep=2,micro=4", "dp=2,tp=4,ep=4,micro=2,zero=1"] {
        let plan = plan(&example, text, DType::F64, &[]).unwrap_or_else(|e| panic!("{text}: {e}"));
        compare(text, &train(text, &plan, 3), &alone, 1e-10);
    }
    let refused = plan(&example, "dp=4,ep=4,micro=1", DType::F64, &[]).unwrap_err();
    for part in ["ep = 4 with tp = 1", "the 8 experts", "axis `e`", "tp=4,ep=4"] {
        assert!(refused.contains(part), "`{part}` is not in: {refused}");
    }
}

/// The width of an expert is shared by ranks that have the same rows of the batch: those of `tp`, and of `cp` beyond.
#[test]
fn experts_are_as_wide_as_rows_are_shared() {
    let example = Example::named("tiny-moe");
    let alone = train("alone", &plan(&example, "micro=4", DType::F64, &[]).unwrap(), 3);
    for text in
        ["cp=2,etp=2,micro=4", "cp=2,tp=2,etp=4,micro=4,zero=1", "dp=2,cp=2,tp=2,etp=4,ep=2,cp_algo=gather,micro=2"]
    {
        let plan = plan(&example, text, DType::F64, &[]).unwrap_or_else(|e| panic!("{text}: {e}"));
        compare(text, &train(text, &plan, 3), &alone, 1e-10);
    }
    let refused = plan(&example, "dp=2,tp=2,etp=4,micro=2", DType::F64, &[]).unwrap_err();
    for part in ["etp = 4", "tp × cp = 2", "use etp = 1, 2"] {
        assert!(refused.contains(part), "`{part}` is not in: {refused}");
    }
}
