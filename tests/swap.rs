//! Saved tensors in the host's memory between the passes: less device memory, the same bits, in any legal order.

use crate::common;

use common::training::{of_bench_small, plan, strategy, train, train_with};
use common::{Example, options, root};
use forebay_compiler::pipeline::{CompileOptions, compile_training};
use forebay_cost::Cluster;
use forebay_dsl::model::Const;
use forebay_ir::DType;
use forebay_plan::verify::Rule;
use forebay_plan::{Call, Instruction, Kernel, Phase, Plan, Role, Space, StreamKind, verify};
use forebay_runtime::exec::ExecOptions;
use forebay_sim::report::simulate;
use forebay_sim::{Kind, Options};

fn of(name: &str, text: &str) -> Plan {
    of_layers(name, text, &[])
}

fn of_layers(name: &str, text: &str, set: &[(&str, i64)]) -> Plan {
    plan(&Example::named(name), text, DType::F32, set).unwrap_or_else(|e| panic!("{name} {text}: {e}"))
}

fn training(plan: &Plan) -> &Phase {
    plan.roles[0].phases.iter().find(|p| p.name == "train").expect("trains")
}

fn device(plan: &Plan) -> u64 {
    plan.roles.iter().map(|r| r.device_bytes).max().unwrap_or(0)
}

/// The calls that copy to the host, or from there, by number.
fn copies(plan: &Plan, to: Space) -> Vec<usize> {
    let written = |call: &Call| {
        let slots = &plan.programs[call.program as usize].slots;
        let host = slots.iter().any(|s| s.space == Space::Host);
        let out = slots.iter().any(|s| s.space == Space::Host && s.access == forebay_plan::Access::Write);
        host && out == (to == Space::Host)
    };
    training(plan).calls.iter().enumerate().filter(|(_, c)| written(c)).map(|(i, _)| i).collect()
}

#[test]
fn swapped_tensors_are_the_same_bits_in_less_memory() {
    for (name, with, what) in [
        ("tiny-moe", "micro=4,schedule=gpipe", "attention"),
        ("deepseek-v3", "pp=2,micro=4", "attention/contract"),
        ("mixtral-8x7b", "pp=2,micro=4,schedule=zb-h1", "attention/contract"),
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=1", "attention/dispatch"),
        ("pangu-ultra-moe", "pp=2,micro=4,recompute=permute", "attention/contract"),
        // Groupings in which some elements are in no group.
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,schedule=gpipe,node=2,dispatch=node-dedup", "group"),
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,schedule=gpipe,node=2,dispatch=rank-dedup", "group"),
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,schedule=gpipe,node=2,dispatch=hierarchical", "group"),
    ] {
        let (kept, swapped) = (of(name, with), of(name, &format!("{with},swap={what}")));
        assert!(swapped.roles.iter().any(|r| r.host_bytes > 0), "{name} {with}: nothing is swapped");
        assert!(kept.roles.iter().all(|r| r.host_bytes == 0), "{name} {with}");
        let run = train(name, &kept, 2);
        assert!(train(name, &swapped, 2).bits() == run.bits(), "{name} {with}: other bits");
        for seed in [1, 2] {
            let other = ExecOptions { shuffle: Some(seed), ..ExecOptions::default() };
            assert!(train_with(name, &swapped, 2, &other).bits() == run.bits(), "{name} {with}: order {seed}");
        }
    }
}

/// A model that has more in flight than on its way.
const DEEP: &[(&str, i64)] = &[("layers", 8)];

/// The arena of the device, which is what is allocated, is smaller by nearly all that is in the host's.
#[test]
fn what_is_away_takes_no_device_memory() {
    let kept = of_layers("tiny-moe", "micro=4,schedule=gpipe", DEEP);
    let swapped = of_layers("tiny-moe", "micro=4,schedule=gpipe,swap=attention/contract", DEEP);
    let (host, less) = (swapped.roles[0].host_bytes, device(&kept) - device(&swapped));
    assert!(less > host / 2 && less <= host, "{less} bytes less, {host} in the host's memory");
    assert!(train("tiny-moe", &swapped, 2).bits() == train("tiny-moe", &kept, 2).bits(), "other bits");
}

/// The calls of a role's training step up to the optimizer: on which streams they are, and what they wait for.
fn listed(plan: &Plan, role: &Role) -> String {
    let mut text = format!("{}: {} bytes of the host's memory\n", role.name, role.host_bytes);
    let phase = role.phases.iter().find(|p| p.name == "train").expect("trains");
    let optimizer = |c: &Call| plan.programs[c.program as usize].name.starts_with("optimizer");
    for (number, call) in phase.calls.iter().enumerate().take_while(|(_, c)| !optimizer(c)) {
        let program = &plan.programs[call.program as usize];
        let streams: Vec<String> = program.streams.iter().map(|s| format!("{s:?}")).collect();
        let waits: Vec<String> = call.waits.iter().map(|w| w.call.to_string()).collect();
        let waits = if waits.is_empty() { String::new() } else { format!("  after {}", waits.join(", ")) };
        let of = format!("layer {} of {}", call.layer, call.micro_batch);
        text += &format!("{number:>4}  {of:<14} {:<32} {}{waits}\n", program.name, streams.join(" "));
    }
    text
}

/// The calls of a small model: what leaves, and when it comes back.
#[test]
fn calls_of_a_small_model() {
    let plan = of_layers("tiny-moe", "micro=2,schedule=gpipe,swap=attention", &[("layers", 3)]);
    insta::assert_snapshot!(plan.roles.iter().map(|role| listed(&plan, role)).collect::<String>());
}

/// Layers that borders bring together are one step: what both read comes back beside the step before, and what the second of them made leaves beside the one after.
#[test]
fn layers_at_a_border_are_one_step_of_copies() {
    let strategy = "pp=3,micro=3,schedule=gpipe,swap=attention,overlap=vector/within/across/borders";
    let plan = of_layers("tiny-moe", strategy, &[("layers", 9)]);
    insta::assert_snapshot!(listed(&plan, &plan.roles[1]));
}

/// What is away, and what is on its way, is touched by nobody: each way to do so is found.
#[test]
fn what_is_away_is_not_touched() {
    let plan = of_layers("tiny-moe", "micro=4,schedule=gpipe,swap=attention/contract", DEEP);
    let (outs, ins) = (copies(&plan, Space::Host), copies(&plan, Space::Device));
    assert!(outs.len() >= 2 && outs.len() == ins.len(), "{outs:?} {ins:?}");
    let found = |change: &dyn Fn(&mut Phase)| {
        let mut plan = plan.clone();
        change(plan.roles[0].phases.iter_mut().find(|p| p.name == "train").expect("trains"));
        verify(&plan).err().unwrap_or_default()
    };
    let broken = |what: &str, rules: &[Rule], change: &dyn Fn(&mut Phase)| {
        let found = found(change);
        assert!(found.iter().any(|v| rules.contains(&v.rule)), "{what}: {:?}", found.first());
    };
    let phase = training(&plan);
    let copied = |at: usize| (phase.calls[at].slots[0], phase.calls[at].slots[1]);
    let of = |at: usize| (phase.calls[at].layer, phase.calls[at].micro_batch);
    // A copy back, and the first call that reads what came back: one that waits for this copy itself, and not for something that does.
    let reader_of = |back: usize| {
        let reads = |at: &usize| phase.calls[*at].slots.contains(&copied(back).1) && of(*at) == of(back);
        let reader = (back + 1..phase.calls.len()).find(reads).expect("someone reads it");
        phase.calls[reader].waits.iter().any(|w| w.call as usize == back).then_some(reader)
    };
    let out_of = |back: usize| outs.iter().copied().find(|&out| of(out) == of(back)).expect("it left before");
    // (A place that another value has taken as a whole is one that may be read: somewhere it was taken in part, or by several.)
    let early = [Rule::CallDefined, Rule::CallOverwritten, Rule::CallOverlap];
    let is_found =
        ins.iter().filter_map(|&back| Some((back, reader_of(back)?, out_of(back)))).any(|(back, reader, out)| {
            let found = found(&|p| {
                let (was, is) = (copied(out).0, copied(back).1);
                p.calls[reader].slots.iter_mut().filter(|s| **s == is).for_each(|s| *s = was);
            });
            found.iter().any(|v| early.contains(&v.rule))
        });
    assert!(is_found, "read where it was before it left");
    let (back, reader) = ins.iter().find_map(|&back| Some((back, reader_of(back)?))).expect("someone waits for a copy");
    let out = out_of(back);
    broken("read before it is back", &[Rule::CallOrdered], &|p| p.calls[reader].waits.clear());
    broken("copied back before it has left", &[Rule::CallOrdered], &|p| p.calls[back].waits.clear());
    broken("copied before it is made", &[Rule::CallOrdered], &|p| p.calls[out].waits.clear());
    broken("two in one place of the host", &[Rule::CallOverwritten, Rule::CallDefined], &|p| {
        let first = p.calls[outs[0]].slots[1];
        let before_back = outs.iter().copied().filter(|&o| o > outs[0] && o < ins[ins.len() - 1]);
        let other = before_back.into_iter().find(|&o| copied(o).1 != first).expect("several are away at once");
        p.calls[other].slots[1] = first;
    });
    broken("beyond the host's memory", &[Rule::Binding], &|p| p.calls[outs[0]].slots[1] += 1 << 30);
    // On the units that compute nothing of the host's memory is seen.
    let mut other = plan.clone();
    let program = training(&plan).calls[outs[0]].program as usize;
    other.programs[program].streams = vec![StreamKind::Cube];
    let found = verify(&other).expect_err("the cube sees no host memory");
    assert!(found.iter().any(|v| v.rule == Rule::Spaces), "{}", found[0]);
}

#[test]
fn names_that_mean_nothing_are_refused() {
    let example = Example::named("tiny-moe");
    let with = |name: &str| plan(&example, &format!("micro=4,swap={name}"), DType::F32, &[("layers", 2)]);
    let message = with("swiglue").unwrap_err();
    assert!(message.contains("no saved tensor that can leave the device is called `swiglue`"), "{message}");
    let (_, saved) = message.split_once("what is saved is ").expect("what could be meant");
    let saved: Vec<&str> = saved.trim().split(", ").collect();
    assert!(saved.len() > 5, "{saved:?}");
    let mut away = 0;
    for name in &saved {
        let swapped = with(name).unwrap_or_else(|message| panic!("{name}: {message}"));
        away += usize::from(swapped.roles[0].host_bytes > 0);
    }
    // (What the loss saves is read at once, and stays.)
    assert!(away + 2 >= saved.len(), "{away} of {saved:?} leave");
}

/// Where there is room for more rows than come, those that come are copied: whatever the room, copies take as long, and the bits are the same.
#[test]
fn copies_carry_the_rows_that_came() {
    let with = |rows: u64| format!("dp=2,ep=2,micro=2,schedule=gpipe,swap=dispatch,max_tokens_per_rank={rows}");
    let example = Example::named("bench-small");
    let compiled = |rows: u64| {
        let (strategy, overrides) = (strategy(&with(rows)), vec![("batch".into(), Const::Int(8))]);
        let options = CompileOptions { strategy, micro_batches: 2, ..options(DType::BF16, overrides) };
        let model = example.check(&options, true, Some(4));
        compile_training(&model, &options, &[2]).unwrap_or_else(|e| panic!("{e}")).remove(0)
    };
    let sent = rows_sent(&compiled(1 << 20));
    let text = std::fs::read_to_string(root().join("examples/clusters/h100.toml")).unwrap();
    let cluster = Cluster::parse(&text.replace("gbps = 64\n", "gbps = 0.5\n")).unwrap();
    let seconds = |plan: &Plan| {
        let report = simulate(plan, &cluster, &Options::default()).unwrap();
        report.by_kind.iter().find(|(kind, _)| *kind == Kind::Swap).expect("it swaps").1
    };
    let (tight, roomy) = (compiled(sent * 5 / 4), compiled(sent * 4));
    let host = |plan: &Plan| plan.roles[0].host_bytes;
    assert!(2 * host(&roomy) > 3 * host(&tight), "{} and {} bytes of the host's memory", host(&roomy), host(&tight));
    let (a, b) = (seconds(&tight), seconds(&roomy));
    assert!((a - b).abs() < 1e-9 * a, "{a} s and {b} s of copies");
    for plan in [&tight, &roomy] {
        for at in copies(plan, Space::Host).into_iter().chain(copies(plan, Space::Device)) {
            let program = &plan.programs[training(plan).calls[at].program as usize];
            let ragged = |i: &Instruction| i.kernel.ragged_rows().is_some();
            assert!(program.instructions.iter().all(ragged), "{}: all room is copied", program.name);
        }
    }
    // Uneven rows, in room for all of them and in less.
    let kept = of("tiny-moe", "dp=2,ep=2,micro=2,schedule=gpipe");
    let run = train("tiny-moe", &kept, 2);
    for rows in ["", ",max_tokens_per_rank=60"] {
        let swapped = of("tiny-moe", &format!("dp=2,ep=2,micro=2,schedule=gpipe,swap=dispatch{rows}"));
        for seed in [None, Some(1), Some(2)] {
            let options = ExecOptions { shuffle: seed, ..ExecOptions::default() };
            assert!(train_with("tiny-moe", &swapped, 2, &options).bits() == run.bits(), "{rows:?}, order {seed:?}");
        }
    }
}

/// The rows that a rank sends in a dispatch.
fn rows_sent(plan: &Plan) -> u64 {
    let kernels = plan.programs.iter().flat_map(|p| &p.instructions).map(|i| &i.kernel);
    let sent = kernels.filter_map(|kernel| match kernel {
        Kernel::AllToAllV(k) => Some(k.tokens),
        _ => None,
    });
    sent.max().expect("it has experts on several ranks")
}

/// Copies are hidden where the link is fast, and waited for where it is slow.
#[test]
fn copies_take_the_time_of_the_link() {
    let text = std::fs::read_to_string(root().join("examples/clusters/h100.toml")).unwrap();
    let cluster = |gbps: &str| Cluster::parse(&text.replace("gbps = 64\n", &format!("gbps = {gbps}\n"))).unwrap();
    let (kept, swapped) = (of_bench_small("micro=2"), of_bench_small("micro=2,swap=attention"));
    let seconds = |plan: &Plan, gbps: &str| simulate(plan, &cluster(gbps), &Options::default()).unwrap();
    let bytes: u64 = copies(&swapped, Space::Host)
        .iter()
        .map(|&at| training(&swapped).calls[at].program as usize)
        .map(|p| swapped.programs[p].slots[0].bytes)
        .sum();
    let copied = |gbps: f64| bytes as f64 / (gbps * 1e9 * 0.8);
    let alone = seconds(&kept, "64").step_time_s;
    let (fast, slow) = (seconds(&swapped, "4000").step_time_s, seconds(&swapped, "0.5").step_time_s);
    assert!(fast < alone * 1.02, "{fast} s, {alone} s with everything kept");
    // Both ways: the first copies back wait for the last ones out.
    assert!(slow > copied(0.5) && slow < 2.2 * copied(0.5) + alone, "{slow} s, {} s of copies", copied(0.5));
    // What is not said is not guessed.
    let silent = Cluster { host: None, ..cluster("64") };
    let refused = simulate(&swapped, &silent, &Options::default()).unwrap_err();
    assert!(refused.contains("[host]"), "{refused}");
}
