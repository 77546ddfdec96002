//! Overlap passes, each alone and all together: what they change is when things run, and nothing else.

use crate::common;

use common::training::{ROWS, compare, plan, plan_with, strategy, train};
use common::{Example, all_cases, examples, meets, options, root};
use forebay_compiler::pipeline::{CompileOptions, compile_training};
use forebay_cost::Cluster;
use forebay_dsl::model::Const;
use forebay_ir::DType;
use forebay_plan::verify::{Rule, verify};
use forebay_plan::{Call, Kernel, Plan};
use forebay_sim::passes::{Pass, Work};
use forebay_sim::report::{Report, simulate};
use forebay_sim::{Options, timeline};

/// Forward and backward passes in pairs, experts over ranks of several kinds, gradients summed layer by layer, halves of backward passes, rings, other placements,
/// whole layers made again.
const STRATEGIES: [&str; 12] = [
    "dp=2,pp=2,vpp=2,ep=2,micro=2,schedule=vpp-overlap",
    "pp=2,vpp=2,tp=2,ep=2,micro=4,schedule=vpp-overlap",
    "dp=2,pp=2,vpp=2,tp=2,ep=4,micro=2,zero=3,schedule=vpp-overlap",
    "pp=2,vpp=2,tp=2,ep=2,micro=4,schedule=dualpipev",
    "pp=2,tp=2,ep=2,micro=4,zero=2,schedule=dualpipe",
    "dp=2,tp=2,ep=4,micro=2,zero=2",
    "pp=2,tp=2,ep=2,micro=4,schedule=zb-h1",
    "cp=4,cp_algo=ring,micro=4",
    "dp=2,pp=2,vpp=2,ep=2,micro=2,schedule=vpp-overlap,recompute=full",
    "pp=2,tp=2,ep=2,micro=4,recompute=full",
    "dp=2,cp=2,ep=2,micro=2,zero=3,hsdp=1",
    "dp=4,pp=2,vpp=2,micro=1,zero=2,hsdp=2",
];

const PASSES: [&str; 8] = ["vector", "within", "across", "borders", "units", "early", "capture", "all"];

/// The plan with layers for two stages of two chunks, where the model has a number of layers.
fn of(example: &Example, text: &str, compute: DType) -> Result<Plan, String> {
    let has_layers = example.reduced().iter().any(|(name, _)| name == "layers");
    plan(example, text, compute, if has_layers { &[("layers", 4)] } else { &[] })
}

#[test]
fn passes_change_no_bit() {
    let examples = examples();
    let mut compared = 0;
    for (j, text) in STRATEGIES.into_iter().enumerate() {
        let take = |example: &Example| of(example, &format!("{text},overlap=none"), DType::F32).ok();
        for (i, without) in meets(&examples, (j, text), take) {
            let example = &examples[i];
            let bits = train(&example.name, &without, 2).bits();
            for (k, passes) in PASSES.into_iter().enumerate() {
                // All passes together, and two of them alone.
                if !all_cases() && passes != "all" && (j + k) % 4 != 0 {
                    continue;
                }
                let with = of(example, &format!("{text},overlap={passes}"), DType::F32).expect("passes refuse nothing");
                let what = format!("{} {text} {passes}", example.name);
                assert!(train(&example.name, &with, 2).bits() == bits, "{what}: other bits");
                compared += 1;
            }
        }
    }
    assert!(compared >= 20, "{compared} plans were compared");
}

#[test]
fn passes_change_no_bit_on_sixteen_ranks() {
    for (name, text) in [
        ("tiny-moe", "dp=2,pp=4,tp=2,ep=4,micro=2,zero=3"),
        ("deepseek-v3", "dp=2,pp=2,vpp=2,tp=4,ep=8,micro=2,zero=2,schedule=vpp-overlap"),
    ] {
        let example = Example::named(name);
        let plan = |passes: &str| of(&example, &format!("{text},overlap={passes}"), DType::F32).expect("it fits");
        let bits = |plan: &Plan| train(name, plan, 2).bits();
        let (with, without) = (plan("all"), plan("none"));
        assert_ne!(with.programs, without.programs, "{name} {text}");
        assert!(bits(&with) == bits(&without), "{name} {text}: other bits");
    }
}

/// Layers of two kinds, of which one draws random numbers, and two values that go from stage to stage.
const CARRIES: &str = "// reduced: --set batch=8 seq=16
model Carries(batch = 8, seq = 16, d = 32, heads = 4, experts = 4, topk = 2, f = 32, vocab = 64) {
    input tokens: token[batch, seq], labels: token[batch, seq]
    param embed[vocab, d] = normal(1.0), head[d, vocab] = normal(0.1)
    first = embed[tokens, d]
    x = first
    repeat 4 {
        x = x + dropout(attention(rms_norm(x), heads, heads, d / heads), 0.3) + 0.1 * first
        x = x + moe(rms_norm(x))
    }
    repeat 8 {
        x = x + attention(rms_norm(x), heads, heads, d / heads) + 0.1 * first
        x = x + moe(rms_norm(x))
    }
    logits[batch, seq, vocab] = rms_norm(x) * head
    output logits
    loss ce = sum(cross_entropy(logits, labels) over batch, seq) per sum(valid(labels) over batch, seq)
}
";

/// Where one layer of a border draws random numbers, they are those of that layer and micro-batch, whichever it is; and messages of a channel keep their order.
#[test]
fn borders_keep_draws_and_messages() {
    let example = Example { name: "carries".into(), text: CARRIES.into() };
    for text in ["pp=4,tp=2,ep=2,micro=4,schedule=gpipe", "pp=4,tp=2,ep=2,micro=4,schedule=1f1b"] {
        let of = |passes: &str| {
            let text = format!("{text},overlap={passes}");
            plan(&example, &text, DType::F32, &[]).unwrap_or_else(|e| panic!("{text}: {e}"))
        };
        let (with, without) = (of("vector/within/across/borders"), of("none"));
        let draws = |name: &str| {
            let program = with.programs.iter().find(|p| p.name == name).expect("it is a program");
            program.instructions.iter().any(|i| matches!(i.kernel, Kernel::RandomKey { .. }))
        };
        let borders: Vec<&str> =
            with.programs.iter().map(|p| p.name.as_str()).filter(|n| n.ends_with(".next")).collect();
        assert!(borders.iter().any(|name| draws(name)), "{text}: a border with a layer that draws, of {borders:?}");
        let bits = |plan: &Plan| train(&example.name, plan, 2).bits();
        assert!(bits(&with) == bits(&without), "{text}: other bits");
    }
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

/// While a pipeline fills, the end of a forward pass and the beginning of the next one are one program, and the last two layers of a backward pass that goes on to another stage
/// are: where a stage has several layers, several passes go forward in turn, and the pass runs.
#[test]
fn layers_at_borders_are_one_program() {
    let example = Example::named("tiny-moe");
    // For each stage how often forward and backward.
    let of = |text: &str, layers: i64| {
        let plan = plan(&example, text, DType::F32, &[("layers", layers)]).unwrap_or_else(|e| panic!("{text}: {e}"));
        let is_one = |number: u32, backward: bool| {
            let name = &plan.programs[number as usize].name;
            name.ends_with(".next") && name.contains(".backward") == backward
        };
        let calls = |role: &forebay_plan::Role| {
            let phase = role.phases.iter().find(|p| p.name == "train").expect("there is a training phase");
            let count = |backward| phase.calls.iter().filter(|call| is_one(call.program, backward)).count();
            (count(false), count(true))
        };
        (plan.roles.iter().map(calls).collect::<Vec<_>>(), plan)
    };
    // All forwards in a row; as many as fill the pipeline; chunks, whose passes follow each other apart. The embedding and the losses stand between layers of the first and the last
    // stage, and the first one sends no gradients.
    for (text, layers, expected) in [
        (
            "pp=4,tp=2,ep=2,micro=4,schedule=gpipe,overlap=vector/within/across/borders",
            8,
            vec![(0, 0), (3, 4), (3, 4), (0, 4)],
        ),
        (
            "pp=4,tp=2,ep=2,micro=4,schedule=1f1b,overlap=vector/within/across/borders",
            8,
            vec![(0, 0), (2, 4), (1, 4), (0, 4)],
        ),
        (
            "pp=2,vpp=2,tp=2,ep=2,micro=4,schedule=vpp-overlap,overlap=vector/within/across/borders",
            8,
            vec![(1, 2), (1, 3)],
        ),
        // What is swapped is copied behind the layers at a border, and comes back before them.
        (
            "pp=4,tp=2,ep=2,micro=4,schedule=gpipe,swap=attention/contract,overlap=vector/within/across/borders",
            8,
            vec![(0, 0), (3, 4), (3, 4), (0, 4)],
        ),
        ("pp=4,tp=2,ep=2,micro=4,schedule=gpipe,overlap=vector/within/across/borders", 4, vec![(0, 0); 4]),
        ("pp=4,tp=2,ep=2,micro=4,schedule=gpipe", 8, vec![(0, 0), (3, 4), (3, 4), (0, 4)]),
        ("pp=4,tp=2,ep=2,micro=4,schedule=gpipe,overlap=vector/within/across/units", 8, vec![(0, 0); 4]),
    ] {
        let (found, plan) = of(text, layers);
        assert_eq!(found, expected, "{text}, {layers} layers");
        let (_, without) = of(&format!("{},overlap=none", text.split(",overlap").next().expect("a text")), layers);
        let bits = |plan: &Plan| train(&example.name, plan, 2).bits();
        assert!(bits(&plan) == bits(&without), "{text}, {layers} layers: other bits");
    }
}

fn cluster(name: &str) -> Cluster {
    let path = root().join(format!("examples/clusters/{name}.toml"));
    Cluster::parse(&std::fs::read_to_string(path).expect("readable")).expect("it is right")
}

/// The chunk and micro-batch of passes of some kinds, each once for every pass; sorted.
fn places(passes: &[Pass], kinds: &[Work]) -> Vec<(u32, u32)> {
    let mut places: Vec<(u32, u32)> =
        passes.iter().filter(|p| kinds.contains(&p.work)).map(|p| (p.chunk, p.micro_batch)).collect();
    places.sort_unstable();
    places
}

/// Each of four micro-batches through each of two chunks.
fn four_through_two() -> Vec<(u32, u32)> {
    (0..2).flat_map(|chunk| (0..4).map(move |micro| (chunk, micro))).collect()
}

/// The passes of each stage of tiny-moe with eight layers.
fn passes_of(text: &str) -> Vec<Vec<Pass>> {
    let example = Example::named("tiny-moe");
    let plan = plan(&example, text, DType::F32, &[("layers", 8)]).unwrap_or_else(|e| panic!("{e}"));
    let timeline = timeline(&plan, &cluster("atlas-800t-a2"), &Options::default()).expect("a timeline");
    timeline.roles.into_iter().map(|role| role.passes).collect()
}

/// A pass whose first layer ran in the last program of the pass before is still one through its own layers.
#[test]
fn passes_that_begin_at_borders_keep_their_layers() {
    for passes in passes_of("pp=2,vpp=2,tp=2,ep=2,micro=4,schedule=vpp") {
        for work in [Work::Forward, Work::Backward] {
            assert_eq!(places(&passes, &[work]), four_through_two(), "{work:?}");
        }
    }
}

/// Sums that go to another stage while passes go on take none of them apart, and chunks of either way are told apart.
#[test]
fn passes_of_two_ways_are_whole() {
    let of_stages = passes_of("pp=2,tp=2,ep=2,micro=4,zero=1,schedule=dualpipe,overlap=all");
    // The first chunk is that of the first layers: on the second stage the second half of the micro-batches goes through it.
    let forward = [[(0, 0), (0, 1), (1, 2), (1, 3)], [(0, 2), (0, 3), (1, 0), (1, 1)]];
    for (passes, forward) in of_stages.iter().zip(forward) {
        for kinds in [&[Work::Forward, Work::Pair][..], &[Work::BackwardInput], &[Work::BackwardWeight]] {
            let found = places(passes, kinds);
            let mut each = found.clone();
            each.dedup();
            assert_eq!(found, each, "{kinds:?}: {passes:?}");
        }
        assert_eq!(places(passes, &[Work::Forward, Work::Pair]), forward, "{passes:?}");
    }
}

/// Where a forward and a backward pass are one, that is what the diagram has, and a pass of which some layers run by themselves is still of its own chunk.
#[test]
fn passes_in_pairs_are_told_from_others() {
    for passes in passes_of("pp=2,vpp=2,tp=2,ep=2,micro=4,schedule=vpp-overlap") {
        assert!(passes.iter().any(|p| p.work == Work::Pair), "{passes:?}");
        let mut forward = places(&passes, &[Work::Forward, Work::Pair]);
        forward.dedup();
        assert_eq!(forward, four_through_two(), "{passes:?}");
    }
}

/// In pieces, gradients of experts are sums of other terms: the same up to rounding.
#[test]
fn pieces_train_as_the_whole() {
    let all = all_cases();
    for (n, (name, text)) in [
        ("tiny-moe", "dp=2,ep=2,micro=2,pieces=2"),
        ("tiny-moe", "dp=2,pp=2,vpp=2,tp=2,ep=4,micro=2,zero=2,schedule=vpp-overlap,pieces=4"),
        ("deepseek-v3", "dp=2,tp=2,ep=4,micro=2,pieces=2"),
        ("pangu-ultra-moe", "tp=2,ep=2,pp=2,micro=4,schedule=zb-h1,pieces=2"),
        ("mixtral-8x7b", "dp=2,tp=2,sp=0,ep=2,micro=2,pieces=4"),
        ("gpt-oss-120b", "cp=2,ep=2,micro=4,pieces=2"),
        // Positions of one row, and attention by its queries: latent and grouped keys, windows, sinks, documents; by ranks that gather them and ranks that have them all.
        ("deepseek-v3", "tp=2,ep=2,micro=4,pieces=2"),
        ("pangu-ultra-moe", "dp=2,tp=2,ep=4,micro=2,node=2,pieces=2,dispatch=node-dedup"),
        ("pangu-ultra-moe", "dp=4,ep=4,micro=1,pieces=4"),
        ("kimi-k2", "dp=4,ep=4,micro=1,pieces=2"),
        ("mixtral-8x7b", "dp=4,ep=4,micro=1,pieces=2"),
        ("mixtral-8x7b", "tp=2,ep=2,micro=4,pieces=2"),
        ("gpt-oss-120b", "tp=2,ep=2,micro=4,pieces=2"),
        ("qwen3-30b-a3b", "dp=4,pp=2,vpp=2,ep=4,micro=1,schedule=vpp-overlap,pieces=2"),
        ("qwen3-235b-a22b", "dp=2,tp=2,ep=2,micro=2,recompute=full,pieces=2"),
        ("novel-tide", "dp=4,ep=4,micro=1,pieces=2"),
        // Networks of ranks that each have all tokens.
        ("llama-3-70b", "dp=2,tp=2,sp=0,micro=1,pieces=2"),
        ("llama-3-70b", "tp=2,sp=0,micro=4,pieces=4"),
        ("deepseek-v3", "tp=2,sp=0,ep=2,pp=2,micro=4,pieces=2"),
        // Products before sums, of networks whose tokens a router also reads.
        ("qwen3-30b-a3b", "tp=2,etp=2,ep=1,micro=4,pieces=2"),
        ("tiny-moe", "tp=2,sp=0,ep=1,micro=4,pieces=2"),
        // Rows of which ranks send parts.
        ("tiny-moe", "dp=2,tp=2,etp=2,ep=2,etp_gather=after,micro=2,pieces=2"),
    ]
    .into_iter()
    .enumerate()
    {
        // Every other one, unless all are asked for.
        if !all && n % 2 != 0 {
            continue;
        }
        let example = Example::named(name);
        let whole = text.rsplit_once(",pieces").expect("it has pieces").0;
        let [whole, cut] = [whole, text].map(|text| of(&example, text, DType::F64));
        let (whole, cut) = match (whole, cut) {
            (Ok(whole), Ok(cut)) => (whole, cut),
            (whole, cut) => panic!("{name} {text}: {:?} {:?}", whole.err(), cut.err()),
        };
        assert_ne!(whole.programs.len(), 0);
        let steps = 3;
        compare(&format!("{name} {text}"), &train(name, &cut, steps), &train(name, &whole, steps), 1e-10);
    }
    assert_eq!(ROWS, 4, "pieces are of four rows, or of positions");
    // Nothing is sent within a layer.
    let refused = of(&Example::named("qwen3-30b-a3b"), "dp=2,micro=2,pieces=2", DType::F64);
    assert!(refused.is_err_and(|why| why.contains("nothing can be cut")));
}

/// Wherever the part that comes in pieces ends, attention stays one kernel, forward and backward.
#[test]
fn pieces_do_not_take_attention_apart() {
    for (name, set) in [
        // With fewer rows sent, less of attention hides all exchanges.
        ("qwen3-30b-a3b", [("f", 768), ("topk", 1)]),
        ("qwen3-30b-a3b", [("f", 256), ("topk", 2)]),
        ("qwen3-30b-a3b", [("f", 768), ("topk", 2)]),
        ("qwen3-30b-a3b", [("f", 2048), ("topk", 2)]),
        ("qwen3-30b-a3b", [("f", 768), ("topk", 8)]),
        ("mixtral-8x7b", [("f", 1024), ("topk", 2)]),
        ("mixtral-8x7b", [("f", 14336), ("topk", 2)]),
    ] {
        let mut options = options(DType::BF16, vec![]);
        for (key, value) in [("layers", 1), ("vocab", 2048), ("batch", 8), ("seq", 8192)].into_iter().chain(set) {
            options.overrides.push((key.into(), Const::Int(value)));
        }
        let example = Example::named(name);
        let plan = plan_with(&example, &strategy("dp=8,ep=8,micro=1,pieces=2"), options).unwrap();
        let kernels = plan.programs.iter().flat_map(|p| &p.instructions).map(|i| &i.kernel);
        let forward = kernels.clone().filter(|k| matches!(k, Kernel::Attention(_))).count();
        let backward = kernels.filter(|k| matches!(k, Kernel::AttentionBackward(_))).count();
        // Of training and of evaluation, whole or one for each piece.
        assert!((2..=4).contains(&forward) && (1..=2).contains(&backward), "{name} {set:?}: {forward} and {backward}");
    }
}

/// The calls of the first role's training step, a line for each program that runs several times in a row: its name without sizes, and its layers.
fn calls(plan: &Plan) -> String {
    let phase = plan.roles[0].phases.iter().find(|p| p.name == "train").expect("there is a training phase");
    let mut lines: Vec<(String, String)> = vec![];
    for call in &phase.calls {
        let name = &plan.programs[call.program as usize].name;
        let name: Vec<&str> = name.split('.').filter(|word| !word.starts_with(|c: char| c.is_ascii_digit())).collect();
        let (name, layer) = (name.join("."), format!(" {}", call.layer));
        match lines.last_mut().filter(|(last, _)| *last == name) {
            Some((_, layers)) => *layers += &layer,
            None => lines.push((name, layer)),
        }
    }
    lines.into_iter().map(|(name, layers)| format!("{name}{layers}\n")).collect()
}

/// Parameters are gathered a layer ahead, and gradients summed while other layers run; where ranks keep all of both there is nothing to move.
#[test]
fn units_travel_beside_layers() {
    let example = Example::named("tiny-moe");
    let of = |zero: u32, passes: &str| {
        let text = format!("dp=2,micro=2,zero={zero},overlap={passes}");
        calls(&of(&example, &text, DType::F32).unwrap_or_else(|e| panic!("{text}: {e}")))
    };
    assert_eq!(of(0, "none"), of(0, "units"));
    for zero in [1, 2, 3] {
        let (without, with) = (of(zero, "none"), of(zero, "units"));
        assert_ne!(without, with, "zero={zero}");
        insta::assert_snapshot!(format!("units_zero{zero}"), format!("without\n\n{without}\nwith\n\n{with}"));
    }
    let refused = forebay_compiler::shard::Strategy::parse("dp=2,overlap=unit").expect_err("there is no such pass");
    insta::assert_snapshot!("units_refused", refused.to_string());
}

/// The plan with one call of the first role's training step behind another one that came after it. Events that have not happened by then are not waited for.
fn call_behind(plan: &Plan, call: usize, behind: usize) -> Plan {
    let mut plan = plan.clone();
    let phase = plan.roles[0].phases.iter_mut().find(|p| p.name == "train").expect("there is a training phase");
    phase.calls[call..=behind].rotate_left(1);
    let now = |before: usize| match before {
        n if n == call => behind,
        n if (call..=behind).contains(&n) => n - 1,
        n => n,
    };
    for (at, call) in phase.calls.iter_mut().enumerate() {
        call.waits.iter_mut().for_each(|wait| wait.call = now(wait.call as usize) as u32);
        call.waits.retain(|wait| (wait.call as usize) < at);
    }
    plan
}

/// Parameters that are gathered behind the layer that reads them, and what is made early behind what needs it, are found.
#[test]
fn calls_that_come_too_late_are_found() {
    for (text, called) in [
        ("dp=2,micro=2,zero=3,overlap=units", "optimizer.gather."),
        ("pp=2,micro=4,recompute=full,overlap=early", ".backward_early"),
    ] {
        let plan = of(&Example::named("tiny-moe"), text, DType::F32).unwrap_or_else(|e| panic!("{text}: {e}"));
        let phase = plan.roles[0].phases.iter().find(|p| p.name == "train").expect("there is a training phase");
        let is = |call: &Call, word: &str| plan.programs[call.program as usize].name.contains(word);
        let mut moved = 0;
        for at in (0..phase.calls.len()).filter(|&at| is(&phase.calls[at], called)) {
            let of = |call: &Call| (call.layer, call.micro_batch);
            let needs = |call: &Call| of(call) == of(&phase.calls[at]) && is(call, "train.");
            let Some(behind) = phase.calls[at + 1..].iter().position(needs) else { continue };
            let found = verify(&call_behind(&plan, at, at + 1 + behind)).expect_err("it comes too late");
            let reads = [Rule::CallDefined, Rule::CallOverwritten, Rule::CallWhole, Rule::CallOrdered];
            assert!(found.iter().any(|v| reads.contains(&v.rule)), "{text}, call {at}: {found:?}");
            moved += 1;
        }
        assert!(moved > 0, "{text}: nothing was moved");
    }
}

/// A simulated step of a model of these sizes, one row a micro-batch.
fn simulated(name: &str, set: &[(&str, i64)], cluster: &str, text: &str) -> Report {
    let strategy = strategy(text);
    let micro_batches = strategy.micro.expect("micro-batches are given");
    let rows = i64::from(micro_batches * strategy.dp);
    let overrides = set.iter().map(|(name, n)| (name.to_string(), Const::Int(*n)));
    let overrides = overrides.chain([("batch".into(), Const::Int(rows))]).collect();
    let options = CompileOptions { strategy, micro_batches, ..options(DType::BF16, overrides) };
    let model = Example::named(name).check(&options, true, Some(1));
    let plan = compile_training(&model, &options, &[micro_batches]).unwrap_or_else(|e| panic!("{text}: {e}")).remove(0);
    simulate(&plan, &self::cluster(cluster), &Options::default()).expect("it can be simulated")
}

/// Where links are what a step waits for, parameters and gradients that travel beside layers make it shorter: what they wait for is in flight as long, and less of it is waited for.
#[test]
fn units_beside_layers_pay() {
    let dense = [("layers", 4), ("seq", 4096)];
    for (cluster, zero, most) in
        [("atlas-800t-a2", 1, 0.9), ("atlas-800t-a2", 2, 0.82), ("atlas-800t-a2", 3, 0.8), ("h100", 3, 0.8)]
    {
        let of = |passes: &str| {
            let text = format!("tp=8,dp=4,mbs=1,micro=2,zero={zero},overlap={passes}");
            simulated("llama-3-70b", &dense, cluster, &text)
        };
        let (without, with) = (of("vector/within/across"), of("vector/within/across/units"));
        let part = with.step_time_s / without.step_time_s;
        assert!(part < most, "{cluster}, zero={zero}: {part} of the step without it");
        let (less, more) = (with.exposed_comm_s.dp, without.exposed_comm_s.dp);
        assert!(less < 0.8 * more, "{cluster}, zero={zero}: {less} s are waited for, {more} s without it");
        let travels = with.total_comm_s.dp / without.total_comm_s.dp;
        assert!((travels - 1.0).abs() < 0.01, "{cluster}, zero={zero}: {travels} of what travels");
    }
}

/// Sums take the links that experts' rows take: they come behind the exchanges of the layer that runs next, so that these need not wait. Ranks that keep all of both (a near miss)
/// have nothing to move.
#[test]
fn units_beside_layers_do_not_hold_up_exchanges() {
    let sparse = [("layers", 4), ("seq", 4096)];
    let part = |cluster: &str, text: &str| {
        let of = |passes: &str| simulated("qwen3-30b-a3b", &sparse, cluster, &format!("{text},overlap={passes}"));
        of("vector/within/across/units").step_time_s / of("vector/within/across").step_time_s
    };
    let zero0 = part("atlas-800t-a2", "dp=8,ep=8,mbs=1,micro=2,zero=0");
    assert!(zero0 == 1.0, "zero=0: {zero0}");
    for (cluster, text, most) in [
        // (Inside of a node there is little to wait for: what is lost is less than a thousandth.)
        ("atlas-800t-a2", "dp=8,ep=8,mbs=1,micro=2,zero=1", 1.001),
        ("h100", "dp=32,ep=8,mbs=1,micro=2,zero=1", 0.99),
        ("h100", "dp=32,ep=8,mbs=1,micro=2,zero=2", 0.99),
        ("h100", "dp=32,ep=8,mbs=1,micro=2,zero=3", 0.99),
    ] {
        let part = part(cluster, text);
        println!("{cluster} {text}: {part:.4} of the step without");
        assert!(part < most, "{cluster}, {text}: {part} of the step without");
    }
}

/// With `zero=1` the norm of the gradients is summed layer by layer: the same up to rounding.
#[test]
fn sums_of_done_layers_train_as_those_of_all() {
    for (name, text) in [
        ("tiny-moe", "dp=2,pp=2,vpp=2,ep=2,micro=2,zero=1,schedule=vpp-overlap"),
        ("deepseek-v3", "dp=2,tp=2,ep=4,micro=2,zero=1"),
        ("pangu-ultra-moe", "dp=2,pp=2,ep=2,micro=2,zero=1,schedule=zb-h1"),
    ] {
        let example = Example::named(name);
        let [without, with] = ["none", "units"].map(|passes| {
            of(&example, &format!("{text},overlap={passes}"), DType::F64).unwrap_or_else(|e| panic!("{text}: {e}"))
        });
        let sums = |plan: &Plan| calls(plan).matches("optimizer.reduce_scatter").count();
        assert!(sums(&with) > sums(&without), "{name} {text}: layers are summed one by one");
        compare(&format!("{name} {text}"), &train(name, &with, 3), &train(name, &without, 3), 1e-10);
    }
}

/// Frames of calls that follow each other lie apart where units work at the same time.
#[test]
fn frames_take_turns() {
    let example = Example::named("tiny-moe");
    let shared = |text: &str| {
        let plan = of(&example, text, DType::F32).unwrap_or_else(|e| panic!("{text}: {e}"));
        let phase = plan.roles[0].phases.iter().find(|p| p.name == "train").expect("there is a training phase");
        let frames = phase.calls.iter().filter_map(|call| {
            let (slot, offset) = (plan.programs[call.program as usize].slots.last()?, *call.slots.last()?);
            (slot.bytes > 0).then_some(offset..offset + slot.bytes)
        });
        let frames: Vec<std::ops::Range<u64>> = frames.collect();
        frames.windows(2).filter(|two| two[0].start < two[1].end && two[1].start < two[0].end).count()
    };
    let many = "pp=2,micro=4,schedule=gpipe";
    assert_eq!(shared(&format!("{many},overlap=within")), 0);
    assert!(shared(&format!("{many},overlap=none")) > 4);
    assert!(shared("micro=2") > 4, "one rank has one stream");
}
