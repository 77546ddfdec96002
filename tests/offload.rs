//! The optimizer's state in the host's memory: less device memory, the same training bit for bit, the same checkpoints.

use crate::common;

use common::training::{of_bench_small, plan, saved, train, train_with};
use common::{Example, root};
use forebay_cost::Cluster;
use forebay_ir::DType;
use forebay_plan::verify::Rule;
use forebay_plan::{Access, Call, Phase, Plan, Role, Space, StreamKind, Tensor, TensorKind, verify};
use forebay_runtime::exec::ExecOptions;
use forebay_sim::report::simulate;
use forebay_sim::{Kind, Options};

fn of(name: &str, text: &str, compute: DType) -> Plan {
    plan(&Example::named(name), text, compute, &[]).unwrap_or_else(|e| panic!("{name} {text}: {e}"))
}

fn training(role: &Role) -> &Phase {
    role.phases.iter().find(|p| p.name == "train").expect("trains")
}

/// The calls that copy to one of the memories, by number.
fn copies(plan: &Plan, to: Space) -> Vec<usize> {
    let copies = |call: &Call| {
        let slots = &plan.programs[call.program as usize].slots;
        let host = slots.iter().find(|s| s.space == Space::Host);
        host.is_some_and(|slot| (slot.access != Access::Read) == (to == Space::Host))
    };
    training(&plan.roles[0]).calls.iter().enumerate().filter(|(_, c)| copies(c)).map(|(i, _)| i).collect()
}

/// Bytes of the device that chunks take: of the three neighbours that are largest together.
fn buffers(plan: &Plan) -> u64 {
    let call = |at: &usize| &training(&plan.roles[0]).calls[*at];
    let bytes = |at: &usize| -> u64 {
        let slots = &plan.programs[call(at).program as usize].slots;
        slots.iter().filter(|s| s.space == Space::Host).map(|s| s.bytes).sum()
    };
    let each: Vec<u64> = copies(plan, Space::Device).iter().map(bytes).collect();
    each.windows(3).map(|all| all.iter().sum()).max().expect("it has chunks")
}

#[test]
fn training_is_the_same_bits() {
    for (name, text, compute) in [
        ("tiny-moe", "micro=2", DType::F32),
        ("tiny-moe", "micro=2", DType::BF16),
        ("tiny-moe", "micro=2,master_weights=split", DType::BF16),
        ("tiny-moe", "micro=4,schedule=gpipe,swap=attention", DType::F32),
        ("deepseek-v3", "dp=2,micro=2", DType::BF16),
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=1", DType::F32),
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=1", DType::BF16),
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=1,overlap=none", DType::BF16),
        ("mixtral-8x7b", "dp=4,ep=2,zero=2", DType::BF16),
        ("mixtral-8x7b", "dp=4,ep=2,zero=2,master_weights=split", DType::BF16),
        ("tiny-moe", "dp=4,ep=2,zero=3", DType::BF16),
        // Experts are not shared, and yet go by layer.
        ("mixtral-8x7b", "dp=4,ep=2,zero=2,hsdp=2", DType::BF16),
        ("pangu-ultra-moe", "tp=2,pp=2,ep=2,micro=4,zero=1", DType::F32),
    ] {
        let case = format!("{name} {text} {compute}");
        let (kept, away) = (of(name, text, compute), of(name, &format!("{text},optimizer=host"), compute));
        let run = train(name, &kept, 3);
        assert!(train(name, &away, 3).bits() == run.bits(), "{case}: other bits");
        for seed in [1, 2] {
            let other = ExecOptions { shuffle: Some(seed), ..ExecOptions::default() };
            assert!(train_with(name, &away, 3, &other).bits() == run.bits(), "{case}: order {seed}");
        }
        for (kept, away) in kept.roles.iter().zip(&away.roles) {
            // What has left the device is all that is in the host's memory, and nothing else.
            let gone = kept.persistent_bytes - away.persistent_bytes;
            assert_eq!(gone, away.host_persistent_bytes, "{case}");
            let (before, after) = (training(kept).memory, training(away).memory);
            assert_eq!(after.optimizer, 0, "{case}");
            assert_eq!(before.optimizer + before.weights - after.weights, gone, "{case}");
            let kinds = |space| away.tensors.iter().filter(move |t| t.space == space).map(|t| t.kind);
            assert!(kinds(Space::Device).all(|k| !matches!(k, TensorKind::FirstMoment | TensorKind::SecondMoment)));
            // Masters leave where programs read copies of them that are kept: with zero=3 those of gains, which are too few to be gathered.
            let gone = |t: &&Tensor| t.kind == TensorKind::Param && t.space == Space::Host;
            let masters: Vec<&Tensor> = away.tensors.iter().filter(gone).collect();
            let copies = compute == DType::BF16 || text.contains("zero=");
            assert_eq!(!masters.is_empty(), copies, "{case}");
            let all = masters.iter().all(|t| t.dims.len() < 2);
            assert_eq!(all, !copies || text.contains("zero=3"), "{case}");
        }
    }
}

/// What several layers use (here the embedding, by multi-token prediction) is padded before what ranks keep of sums, whether its size divides or not.
#[test]
fn shared_parameters_of_any_size_are_updated() {
    for (vocab, dp) in [(257, 2), (264, 3), (256, 2)] {
        let set = [("vocab", vocab), ("batch", 12)];
        let example = Example::named("deepseek-v3");
        let of = |text: &str| plan(&example, text, DType::F32, &set).unwrap_or_else(|e| panic!("{vocab} {text}: {e}"));
        let (kept, away) = (of(&format!("dp={dp},zero=3")), of(&format!("dp={dp},zero=3,optimizer=host")));
        let name = format!("vocab={vocab} dp={dp}");
        assert!(train(&name, &away, 2).bits() == train(&name, &kept, 2).bits(), "{name}: other bits");
    }
}

/// At the end of a step the device has three chunks of what it had, and the peak is lower by all of it where that is in the backward pass.
#[test]
fn the_device_has_three_chunks() {
    let compiled = |text: &str| plan(&Example::named("tiny-moe"), text, DType::F32, &[("layers", 32)]).unwrap();
    let (kept, away) = (compiled("micro=4"), compiled("micro=4,optimizer=host"));
    let (before, after) = (&kept.roles[0], &away.roles[0]);
    let gone = before.persistent_bytes - after.persistent_bytes;
    let chunks = buffers(&away);
    assert!(chunks <= gone / 6, "{chunks} of {gone} bytes");
    // Gradients are on their way nowhere, so chunks are all that is new; they lie where activations were.
    let (live, now) = (training(before).memory.live_peak, training(after).memory.live_peak);
    assert_eq!(live - now, gone, "the peak is in the backward pass: {live} and {now}");
    let less = before.device_bytes - after.device_bytes;
    assert!(less >= gone - chunks && less <= gone, "{less} bytes less, {gone} are away, chunks have {chunks}");
}

/// What is away, and what is on its way, is touched by nobody: each way to do so is found.
#[test]
fn what_is_away_is_not_touched() {
    let plan = of("tiny-moe", "dp=2,micro=2,zero=1,optimizer=host", DType::BF16);
    let (ins, outs) = (copies(&plan, Space::Device), copies(&plan, Space::Host));
    assert!(ins.len() > 4 && ins.len() == outs.len(), "{ins:?} {outs:?}");
    let broken = |what: &str, rules: &[Rule], change: &dyn Fn(&mut Phase)| {
        let mut plan = plan.clone();
        change(plan.roles[0].phases.iter_mut().find(|p| p.name == "train").expect("trains"));
        let found = verify(&plan).expect_err(what);
        assert!(found.iter().any(|v| rules.contains(&v.rule)), "{what}: {}", found[0]);
    };
    let phase = training(&plan.roles[0]);
    let is_update = |c: &Call| plan.programs[c.program as usize].name.starts_with("optimizer.adamw");
    let updates: Vec<usize> = (0..phase.calls.len()).filter(|&at| is_update(&phase.calls[at])).collect();
    assert_eq!(updates.len(), ins.len());
    // An update that waits for its own copy, and a copy back that waits for its update.
    let waits_for = |at: usize, other: usize| phase.calls[at].waits.iter().any(|w| w.call as usize == other);
    let updated = (0..ins.len()).find(|&i| waits_for(updates[i], ins[i])).expect("an update waits for its copy");
    let returned = (0..ins.len()).find(|&i| waits_for(outs[i], updates[i])).expect("a copy waits for the update");
    broken("updated before it is there", &[Rule::CallOrdered], &|p| {
        p.calls[updates[updated]].waits.retain(|w| w.call as usize != ins[updated]);
    });
    broken("copied back before it is updated", &[Rule::CallOrdered], &|p| p.calls[outs[returned]].waits.clear());
    // A chunk comes into the memory of one that is still there.
    let reused = (3..ins.len()).find(|&i| waits_for(ins[i], outs[i - 3])).expect("a chunk takes the place of another");
    broken("overwritten before it has left", &[Rule::CallOrdered], &|p| p.calls[ins[reused]].waits.clear());
    let bytes = |i: usize| plan.programs[phase.calls[ins[i]].program as usize].slots[1].bytes;
    let smaller = (1..ins.len()).find(|&i| bytes(i) <= bytes(i - 1)).expect("chunks do not grow for ever");
    broken("not copied in", &[Rule::CallDefined, Rule::CallOverwritten, Rule::CallOrdered], &|p| {
        // (To the place of the chunk before: what is updated is not there.)
        p.calls[ins[smaller]].slots[1] = phase.calls[ins[smaller - 1]].slots[1];
    });
    broken("beyond the host's memory", &[Rule::Binding], &|p| p.calls[outs[0]].slots[0] += 1 << 40);
    broken("a commit that comes too late", &[Rule::Commit], &|p| p.commit += 1);
    let with = |what: &str, rule: Rule, change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        let found = verify(&plan).expect_err(what);
        assert!(found.iter().any(|v| v.rule == rule), "{what}: {}", found[0]);
    };
    let out = phase.calls[outs[0]].program as usize;
    with("the cube sees no host memory", Rule::Spaces, &|p| p.programs[out].streams = vec![StreamKind::Cube]);
    let moment = plan.roles[0].tensors.iter().position(|t| t.kind == TensorKind::FirstMoment).expect("it has moments");
    with("a tensor beyond what is kept", Rule::TensorPlace, &|p| {
        p.roles[0].tensors[moment].offset = p.roles[0].host_persistent_bytes;
    });
    with("more is kept than there is", Rule::Arena, &|p| p.roles[0].host_persistent_bytes = p.roles[0].host_bytes + 64);
}

/// Checkpoints are the same bytes, and either kind of plan goes on from the other's.
#[test]
fn checkpoints_do_not_know_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (text, compute) in
        [("micro=2", DType::F32), ("micro=2,master_weights=split", DType::BF16), ("dp=2,zero=1", DType::BF16)]
    {
        let (kept, away) = (of("tiny-moe", text, compute), of("tiny-moe", &format!("{text},optimizer=host"), compute));
        let at = |name: &str| folder.path().join(format!("{name}.{text}"));
        let (first, files) = saved(&kept, None, &at("kept"));
        let (again, others) = saved(&away, None, &at("away"));
        assert!(files == others, "{text}: the checkpoints of both are the same bytes");
        let (_, went_on) = saved(&kept, Some(&again), &at("kept.on"));
        let (_, other) = saved(&away, Some(&first), &at("away.on"));
        assert!(went_on == other, "{text}: each goes on from the other's");
    }
}

/// Copies take the time of the link, in both directions at once, and the updates are beside them.
#[test]
fn copies_take_the_time_of_the_link() {
    let text = std::fs::read_to_string(root().join("examples/clusters/h100.toml")).unwrap();
    let cluster = |gbps: &str| Cluster::parse(&text.replace("gbps = 64\n", &format!("gbps = {gbps}\n"))).unwrap();
    let (kept, away) = (of_bench_small("micro=2"), of_bench_small("micro=2,optimizer=host"));
    let report = |plan: &Plan, gbps: &str| simulate(plan, &cluster(gbps), &Options::default()).unwrap();
    let bytes = away.roles[0].host_persistent_bytes;
    // Each way; of padding at the end nothing is copied.
    let copied = |gbps: f64| bytes as f64 / (gbps * 1e9 * 0.8);
    let busy = report(&away, "1").by_kind.iter().find(|(kind, _)| *kind == Kind::Swap).expect("it copies").1;
    assert!((busy / 2.0 - copied(1.0)).abs() < 0.01 * copied(1.0), "{busy} s, {} s each way", copied(1.0));
    let alone = report(&kept, "1").step_time_s;
    let slow = report(&away, "1").step_time_s;
    // One way hides behind the other but for the first and the last chunk, and nothing of it behind the passes.
    let least = alone + copied(1.0);
    assert!(slow > 0.95 * least && slow < 1.1 * least, "{slow} s, at least {least} s: {alone} s and the copies");
    let fast = report(&away, "100000").step_time_s;
    assert!(fast < 1.1 * alone, "{fast} s, {alone} s with everything on the device");
    let silent = Cluster { host: None, ..cluster("64") };
    let refused = simulate(&away, &silent, &Options::default()).unwrap_err();
    assert!(refused.contains("[host]"), "{refused}");
}
