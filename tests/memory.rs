//! Plans within a budget: the same bits in the bytes that were allowed, the least time for them, and a clear answer where nothing fits.

use crate::common;

use common::prices::{Linked, Random};
use common::training::{compiled_within, plan_within, sized_within, strategy, train, with_strategy};
use common::{Example, all_cases, examples, options};
use forebay_compiler::memory::{Aim, Price, StageMemory};
use forebay_compiler::pipeline::{CompileError, Compiled};
use forebay_compiler::rewrite::Profile;
use forebay_cost::{Cluster, Precision};
use forebay_ir::{DType, Graph, ValueId};
use forebay_plan::Plan;
use forebay_sim::ValuePricer;

fn peak(compiled: &Compiled) -> u64 {
    compiled.stages.iter().map(|s| s.peak).max().expect("a plan has stages")
}

fn made_again(stage: &StageMemory) -> usize {
    stage.tensors.iter().filter(|t| !t.kept).count()
}

/// Strategies of every kind of collective and schedule, each with a model.
const PLANS: [(&str, &str); 8] = [
    ("tiny-moe", "micro=4"),
    ("deepseek-v3", "micro=4"),
    ("qwen3-30b-a3b", "micro=4"),
    ("gpt-oss-120b", "micro=4"),
    ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=1"),
    ("pangu-ultra-moe", "tp=2,pp=2,ep=2,micro=4"),
    ("tiny-moe", "pp=2,micro=4,schedule=zb-h1"),
    // Experts' rows in pieces, each with starts of groups of its own.
    ("pangu-ultra-moe", "dp=2,ep=2,micro=2,pieces=2"),
];

#[test]
fn random_choices_are_the_same_bits_within_the_budget() {
    let mut recomputed = 0;
    for (n, (name, strategy)) in PLANS.into_iter().enumerate() {
        let example = Example::named(name);
        let price = Random(n as u64 + 1);
        let of =
            |aim| plan_within(&example, strategy, aim, &price).unwrap_or_else(|e| panic!("{name} {strategy}: {e}"));
        let (whole, least) = (of(Aim::Fastest), of(Aim::Least));
        let (high, low) = (peak(&whole), peak(&least));
        assert!(low < high, "{name} {strategy}: {low} of {high} bytes");
        let bits = train(name, &whole.plan, 1).bits();
        let budget = (high + low) / 2;
        let within = of(Aim::Within(budget));
        assert!(within.plan.roles.iter().all(|r| r.device_bytes <= budget), "{name} {strategy}");
        for compiled in [within, least] {
            recomputed += compiled.stages.iter().map(made_again).sum::<usize>();
            let bytes = peak(&compiled);
            assert!(train(name, &compiled.plan, 1).bits() == bits, "{name} {strategy} in {bytes} bytes: other bits");
        }
    }
    assert!(recomputed >= 30, "{recomputed} tensors are made again");
}

/// One head, so that heads and elements of queries, keys and values may be one axis.
const ONE_HEAD: &str = "
model OneHead(batch = 1, seq = 4, vocab = 12, layers = 2, d = 8) {
    input tokens: token[batch, seq], labels: token[batch, seq]
    param embed[vocab, d] = normal(0.7), head[d, vocab] = normal(0.3)
    x = embed[tokens, d]
    repeat layers {
        x = x + attention(rms_norm@before(x), 1, 1, 4, std = 0.5)
        h = rms_norm@behind(x)
        share, chosen, score = softmax_router(h, 2, 1, std = 0.5)
        x = x + swiglu_experts(h, chosen, share, 2, 4, std = 0.4)
    }
    logits[batch, seq, vocab] = rms_norm@last(x) * head
    output logits
    nll = cross_entropy(logits, labels)
    loss ce = sum(nll over batch, seq) per sum(valid(labels) over batch, seq)
}
";

/// Rewriting joins products in either graph and appends the axes of their parts to its table: where the backward graph has cut a product that is made again, it goes on
/// with axes of its own.
#[test]
fn joint_products_are_made_again() {
    let example = Example { name: "one head".into(), text: ONE_HEAD.into() };
    let of = |text: &str, aim, seed| {
        let options = with_strategy(&strategy(text), options(DType::F64, vec![]));
        compiled_within(&example, options, aim, &Random(seed)).unwrap_or_else(|e| panic!("{text}: {e}")).plan
    };
    let bits = train("one head", &of("micro=1", Aim::Fastest, 0), 2).bits();
    for named in ["none", "attention"] {
        for seed in 0..12 {
            let text = format!("micro=1,recompute={named}");
            for aim in [Aim::Fastest, Aim::Least] {
                assert!(train(&text, &of(&text, aim, seed), 2).bits() == bits, "{text}, {seed}: other bits");
            }
        }
    }
}

#[test]
fn random_choices_with_a_link_to_the_host_are_the_same_bits_within_the_budget() {
    let (mut swapped, mut recomputed) = (0, 0);
    for (n, (name, strategy)) in [
        ("tiny-moe", "micro=4,schedule=gpipe"),
        ("deepseek-v3", "pp=2,micro=4,schedule=gpipe"),
        ("mixtral-8x7b", "pp=2,micro=4,schedule=zb-h2"),
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=1,schedule=gpipe"),
    ]
    .into_iter()
    .enumerate()
    {
        let example = Example::named(name);
        let price = Linked { price: Random(n as u64 + 40), rate: [1e12, 1e8, 1e7, 1e12][n] };
        let of =
            |aim| plan_within(&example, strategy, aim, &price).unwrap_or_else(|e| panic!("{name} {strategy}: {e}"));
        let (whole, least) = (of(Aim::Fastest), of(Aim::Least));
        let (high, low) = (peak(&whole), peak(&least));
        assert!(low < high, "{name} {strategy}: {low} of {high} bytes");
        let bits = train(name, &whole.plan, 1).bits();
        let budget = low + (high - low) / 3;
        let within = of(Aim::Within(budget));
        assert!(within.plan.roles.iter().all(|r| r.device_bytes <= budget), "{name} {strategy}");
        for compiled in [within, least] {
            let tensors = || compiled.stages.iter().flat_map(|s| &s.tensors);
            let away = tensors().filter(|t| t.swapped).count();
            // (What is read at once stays.)
            let leaves = compiled.plan.roles.iter().any(|r| r.host_bytes > 0);
            assert!(away > 0 || !leaves, "{name} {strategy}");
            swapped += away;
            recomputed += compiled.stages.iter().map(made_again).sum::<usize>();
            assert!(train(name, &compiled.plan, 1).bits() == bits, "{name} {strategy}: other bits");
        }
    }
    assert!(swapped > 0 && recomputed > 0, "{swapped} tensors are swapped, {recomputed} made again");
}

/// A budget that parameters alone do not fit into is refused with how much is missing.
#[test]
fn what_is_too_large_by_itself_is_refused() {
    for (name, strategy) in [("tiny-moe", "micro=4"), ("qwen3-30b-a3b", "pp=2,micro=4")] {
        let compiled = plan_within(&Example::named(name), strategy, Aim::Within(1 << 10), &Profile::cpu());
        let Err(CompileError::Memory(misfit)) = compiled else { panic!("{name} does not fit into a KiB") };
        assert!(misfit.least == misfit.persistent && misfit.budget == 1 << 10, "{misfit:?}");
        let message = misfit.to_string();
        assert!(
            message.contains("optimizer state alone, ") && message.contains("iB more than the 1.00 KiB allowed"),
            "{message}"
        );
    }
}

/// What is made again before the gradient comes can take less than after it: a budget of the least is kept in that form where no other keeps it.
#[test]
fn the_least_is_kept_by_what_is_made_early() {
    let (strategy, layers) = ("cp=2,ep=2,pp=2,vpp=2,micro=4,zero=1", [("layers", 4)]);
    let of = |aim| sized_within(&Example::named("qwen3-30b-a3b"), (strategy, &layers), aim, &Random(2));
    let least = peak(&of(Aim::Least).expect("there is a least"));
    let within = of(Aim::Within(least)).unwrap_or_else(|e| panic!("{least} bytes: {e}"));
    assert!(peak(&within) <= least, "{} of {least} bytes", peak(&within));
}

/// A byte less than the least there is does not fit, and says so; that much does, in any form of the plan.
#[test]
fn the_least_is_the_least_to_the_byte() {
    let cpu = Profile::cpu();
    let linked = |seed, rate| Linked { price: Random(seed), rate };
    let (slow, fast, free) = (linked(3, 1e7), linked(4, 1e9), linked(5, 1e12));
    let drawn = Random(2);
    let prices: [&dyn Price; 5] = [&cpu, &slow, &fast, &free, &drawn];
    for (name, strategy, prices) in [
        ("tiny-moe", "micro=4,schedule=gpipe", &prices[..]),
        ("qwen3-30b-a3b", "micro=4", &prices[..3]),
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=1,schedule=gpipe", &prices[2..]),
        // Where exchanges overlap, frames lie apart as far as there is room.
        ("tiny-moe", "tp=2,micro=4", &prices[..2]),
        ("tiny-moe", "pp=2,micro=4,schedule=gpipe", &prices[..2]),
    ] {
        // Without a link to the host and with one, unless all are asked for.
        for (n, price) in prices.iter().copied().enumerate().filter(|(n, _)| all_cases() || n % 2 == 0) {
            let of = |aim| plan_within(&Example::named(name), strategy, aim, price);
            let least = of(Aim::Least).unwrap_or_else(|e| panic!("{name} {strategy}: {e}"));
            let bytes = peak(&least);
            let within = of(Aim::Within(bytes)).unwrap_or_else(|e| panic!("{name} {strategy} by {n}: {e}"));
            assert!(peak(&within) <= bytes, "{name} {strategy} by {n}");
            let Err(CompileError::Memory(misfit)) = of(Aim::Within(bytes - 1)) else {
                panic!("{name} {strategy} by {n}: a byte less than {bytes} fits")
            };
            // Stages are refused in their order; the first that needs as much is the one that is a byte short.
            assert_eq!(misfit.least, bytes, "{name} {strategy} by {n}: {misfit}");
            assert!(misfit.to_string().contains(&format!("({bytes} bytes)")), "{misfit}");
        }
    }
}

/// Stages have as many micro-batches in flight as come after them, and choose each for itself.
#[test]
fn stages_choose_each_for_itself() {
    let example = Example::named("qwen3-30b-a3b");
    let of = |aim| plan_within(&example, "pp=2,micro=4", aim, &Profile::cpu()).expect("it fits");
    let whole = of(Aim::Fastest);
    let (first, last) = (&whole.stages[0], &whole.stages[1]);
    let budget = first.peak.max(last.peak) - 1;
    let within = of(Aim::Within(budget));
    let again: Vec<usize> = within.stages.iter().map(made_again).collect();
    assert_eq!(again.iter().filter(|n| **n == 0).count(), 1, "one stage fits as it is: {again:?}");
    let copies = |s: &StageMemory| s.tensors.iter().map(|t| t.copies).max().unwrap_or(0);
    assert!(copies(first) > copies(last), "the first stage has more in flight");
}

#[test]
fn less_memory_is_never_faster() {
    let example = Example::named("deepseek-v3");
    let of = |aim| plan_within(&example, "micro=4", aim, &Profile::cpu()).expect("it fits");
    let (high, low) = (peak(&of(Aim::Fastest)), peak(&of(Aim::Least)));
    let mut before = 0.0;
    for fifth in 0..=5 {
        let within = of(Aim::Within(high - (high - low) * fifth / 5));
        let stage = &within.stages[0];
        assert!(stage.seconds >= before - 1e-12, "{} after {before} seconds", stage.seconds);
        before = stage.seconds;
    }
    assert!(before > 0.0);
}

/// Nor is a step by much, on a device with a link to its host: what fits into less also fits into more. (Choices go by estimates, which of kernels of microseconds are rough.)
#[test]
fn a_larger_budget_is_no_slower() {
    let file = include_str!("../examples/clusters/h100.toml");
    let cluster = Cluster::parse(file).expect("a cluster");
    let price = ValuePricer::new(&cluster, Precision::F32, 1.0);
    let mut slowest = 1.0f64;
    for (name, strategy) in [("tiny-moe", "micro=4,schedule=gpipe"), ("deepseek-v3", "pp=2,micro=4")] {
        let example = Example::named(name);
        let of = |aim| plan_within(&example, strategy, aim, &price).expect("it fits");
        let (high, low) = (peak(&of(Aim::Fastest)), peak(&of(Aim::Least)));
        let mut best = f64::INFINITY;
        let parts = if all_cases() { 6 } else { 3 };
        for part in 0..=parts {
            let budget = low + (high - low) * part / parts;
            let step = price.step(&of(Aim::Within(budget)).plan).expect("it has a time");
            slowest = slowest.max(step / best);
            assert!(step <= best * 1.06, "{name} {strategy}: {step} s within {budget} bytes, {best} s within fewer");
            best = best.min(step);
        }
        assert!(best <= price.step(&of(Aim::Fastest).plan).expect("it has a time") * 1.001, "{name} {strategy}");
    }
    println!("at most {:.2} % slower than within fewer bytes", 100.0 * (slowest - 1.0));
}

/// What the table says of tensors is what the plan has: all that is kept, in the slots that forward programs write.
#[test]
fn the_table_has_all_that_the_plan_saves() {
    for example in examples() {
        let compiled = plan_within(&example, "micro=4", Aim::Fastest, &Profile::cpu()).expect("it compiles");
        let stage = &compiled.stages[0];
        let align = |bytes: u64| bytes.next_multiple_of(64);
        let slots =
            compiled.plan.programs.iter().filter(|p| p.name.starts_with("train.") && p.name.ends_with(".forward"));
        for program in slots {
            let saved: u64 = program.slots.iter().filter(|s| s.name == "saved").map(|s| s.bytes).sum();
            let segment = program.name.trim_start_matches("train.").trim_end_matches(".forward");
            let of_segment = stage.tensors.iter().filter(|t| t.segment == segment && t.op.is_some());
            let table: u64 = of_segment.map(|t| align(t.bytes)).sum();
            assert_eq!(table, saved, "{} {segment}", example.name);
        }
        assert!(stage.saved.iter().zip(&stage.live).all(|(saved, live)| saved <= live), "{}", example.name);
        assert_eq!(stage.live.iter().max(), Some(&stage.live_peak), "{}", example.name);
    }
}

/// Placing wastes at most a hundredth of the bytes that are live at once.
#[test]
fn placing_is_within_a_hundredth_of_the_bound() {
    let cases = [
        ("micro=4", Aim::Least, 0.01),
        ("pp=2,micro=4,overlap=none", Aim::Fastest, 0.01),
        ("pp=2,micro=4", Aim::Fastest, 0.01),
    ];
    for (strategy, aim, bound) in cases {
        let (mut worst, mut placed) = ((0.0, String::new()), 0);
        for example in examples() {
            let Ok(compiled) = plan_within(&example, strategy, aim, &Profile::cpu()) else { continue };
            placed += compiled.stages.len();
            for stage in &compiled.stages {
                let waste = stage.peak as f64 / stage.live_peak as f64 - 1.0;
                if waste > worst.0 {
                    worst = (waste, format!("{} {strategy} {aim:?} stage {}", example.name, stage.stage));
                }
            }
        }
        assert!(placed >= 14, "{placed} arenas");
        println!("at most {:.3} % of the live bytes are wasted: {}", 100.0 * worst.0, worst.1);
        assert!(worst.0 <= bound, "{} wastes {:.3} %", worst.1, 100.0 * worst.0);
    }
}

/// What regions of a program write to where they read it from.
fn in_place(program: &forebay_plan::Program) -> String {
    let place = |buffer: u32| {
        let buffer = &program.buffers[buffer as usize];
        (buffer.slot, buffer.offset)
    };
    let mut text = format!("{}\n", program.name);
    for instruction in &program.instructions {
        let forebay_plan::Kernel::Region(region) = &instruction.kernel else { continue };
        for store in region.stores.iter().map(|store| store.view.buffer) {
            let Some(load) = region.loads.iter().map(|load| load.view.buffer).find(|&load| place(load) == place(store))
            else {
                continue;
            };
            let [from, to] = [load, store].map(|buffer| &program.buffers[buffer as usize]);
            let slot = &program.slots[to.slot as usize].name;
            text += &format!("  {:<32} {} over {} in {slot}\n", instruction.name, to.name, from.name);
        }
    }
    text
}

/// What regions update in place: the optimizer's state and routers' biases, which have no second copy at any time.
#[test]
fn updates_in_place_of_a_small_model() {
    let compiled =
        plan_within(&Example::named("tiny-moe"), "micro=2", Aim::Fastest, &Profile::cpu()).expect("it compiles");
    let programs =
        compiled.plan.programs.iter().filter(|p| p.name.starts_with("train.layers") || p.name.starts_with("optimizer"));
    let listed: String = programs.map(in_place).collect();
    insta::assert_snapshot!(listed);
}

/// Frames of calls that follow each other, and how many of these pairs have no byte in common.
fn frames_apart(plan: &Plan) -> (usize, usize) {
    let phases = plan.roles.iter().flat_map(|role| &role.phases).filter(|phase| phase.name == "train");
    let (mut all, mut apart) = (0, 0);
    for phase in phases {
        let frame = |call: &forebay_plan::Call| {
            let slots = &plan.programs[call.program as usize].slots;
            let at = slots.iter().position(|slot| slot.name == "frame")?;
            (slots[at].bytes > 0).then(|| (call.slots[at], call.slots[at] + slots[at].bytes))
        };
        let frames: Vec<(u64, u64)> = phase.calls.iter().filter_map(frame).collect();
        all += frames.len().saturating_sub(1);
        apart += frames.windows(2).filter(|pair| pair[0].1 <= pair[1].0 || pair[1].1 <= pair[0].0).count();
    }
    (apart, all)
}

/// Where exchanges run beside other work, the frame of a call lies where the one before it does not, as far as there is room; the arena grows by a 32nd for that at most.
#[test]
fn frames_lie_apart_where_calls_run_beside_each_other() {
    let (mut beside, mut after) = ((0, 0), (0, 0));
    for name in ["deepseek-v3", "qwen3-30b-a3b", "pangu-ultra-moe", "gpt-oss-120b"] {
        let of = |overlap: &str| {
            let strategy = format!("pp=2,micro=4{overlap}");
            plan_within(&Example::named(name), &strategy, Aim::Fastest, &Profile::cpu()).expect("it compiles")
        };
        let (with, without) = (of(""), of(",overlap=none"));
        let (most, least) = (peak(&with), peak(&without));
        assert!(most <= least + least / 32 + least / 100, "{name}: {most} bytes, {least} one after another");
        for (sum, compiled) in [(&mut beside, &with), (&mut after, &without)] {
            let (apart, all) = frames_apart(&compiled.plan);
            *sum = (sum.0 + apart, sum.1 + all);
        }
    }
    println!("{} of {} frames lie apart, {} of {} one after another", beside.0, beside.1, after.0, after.1);
    assert!(beside.0 * after.1 > 2 * after.0 * beside.1, "{beside:?} and {after:?}");
}

/// A device on which a frame that lies where the one before it lies costs a second, or one that lies elsewhere does.
struct OfFrames {
    likes_apart: bool,
}

impl Price for OfFrames {
    fn seconds(&self, graph: &Graph, value: ValueId) -> f64 {
        Price::seconds(&Profile::cpu(), graph, value)
    }

    fn message(&self, stages: (u32, u64), bytes: f64) -> f64 {
        Profile::cpu().message(stages, bytes)
    }

    fn programs(&self, plan: &Plan) -> Result<Vec<f64>, String> {
        Profile::cpu().programs(plan)
    }

    fn step(&self, plan: &Plan) -> Result<f64, String> {
        let (apart, all) = frames_apart(plan);
        Ok(if self.likes_apart { all - apart } else { apart } as f64)
    }

    fn vector_beside_cube(&self) -> Option<bool> {
        Some(false)
    }
}

/// Within a budget, frames that follow each other lie apart where a replay of the step says that this pays: in room that is left, or that what is made again makes.
#[test]
fn a_budget_has_room_for_frames_apart_where_that_pays() {
    for name in ["deepseek-v3", "qwen3-30b-a3b"] {
        let of = |aim, likes_apart| {
            let (example, price) = (Example::named(name), OfFrames { likes_apart });
            sized_within(&example, ("pp=2,micro=4", &[("seq", 256)]), aim, &price).expect("it fits")
        };
        let [most, least] = [Aim::Fastest, Aim::Least].map(|aim| peak(&of(aim, false)));
        for budget in [2 * most, (most + least) / 2] {
            let [usual, apart] = [false, true].map(|likes_apart| of(Aim::Within(budget), likes_apart));
            let [(before, _), (after, all)] = [&usual, &apart].map(|compiled| frames_apart(&compiled.plan));
            println!("{name} within {budget}: {after} of {all} frames lie apart, {before} as usual");
            assert!(peak(&usual) <= budget && peak(&apart) <= budget, "{name} within {budget}");
            assert!(
                after >= before + 5,
                "{name} within {budget}: {after} of {all} frames lie apart, {before} as usual"
            );
            if budget > most {
                assert_eq!(after, all, "{name}: there is room for all of them");
                assert!(apart.stages.iter().all(|stage| stage.seconds == 0.0), "{name}: nothing is made again");
            }
        }
    }
}
