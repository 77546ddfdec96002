//! The host's memory on emulated devices: what is swapped, and the optimizer's state.

use super::{STEPS, cluster, executor, priced};
use crate::common::Example;
use crate::common::training::{batch, plan, train, train_in};
use forebay_ir::DType;
use forebay_plan::{Access, Kernel, Plan, Space};
use forebay_runtime::exec::{ExecOptions, Executor, HostTraffic};
use forebay_runtime::init;
use forebay_sim::simulate;

fn of(name: &str, text: &str, compute: DType) -> Plan {
    plan(&Example::named(name), text, compute, &[]).unwrap_or_else(|e| panic!("{name} {text}: {e}"))
}

/// What programs of all ranks copy in a step, where nothing of it is ragged: slots as they are.
fn planned(plan: &Plan) -> HostTraffic {
    let mut all = HostTraffic::default();
    for role in &plan.roles {
        let ranks: u64 = role.coordinates.iter().map(|(lo, hi)| u64::from(hi - lo)).product();
        for call in &role.phases.iter().find(|p| p.name == "train").expect("trains").calls {
            let program = &plan.programs[call.program as usize];
            let host: Vec<_> = program.slots.iter().filter(|s| s.space == Space::Host).collect();
            let bytes = ranks * host.iter().map(|s| s.bytes).sum::<u64>();
            match host.first().map(|s| s.access) {
                Some(Access::Read) => all.back += bytes,
                Some(_) => all.out += bytes,
                None => {}
            }
            assert!(host.is_empty() || program.instructions.iter().all(|i| i.kernel.ragged_rows().is_none()));
        }
    }
    all
}

/// Trains a step on devices, and says what they copied and how long it took.
fn step(plan: &Plan) -> (HostTraffic, f64) {
    let mut executor = executor(plan, None);
    init::initialise(&mut executor).expect("first values");
    init::refresh_copies(&mut executor).expect("copies");
    let phase = executor.phase_named("train").expect("it trains");
    executor.start(phase, &batch(plan, 1), 1).unwrap_or_else(|e| panic!("{e}"));
    executor.commit(phase, 1).unwrap_or_else(|e| panic!("{e}"));
    let step = executor.device_step().expect("a step");
    (step.copied, step.seconds)
}

/// What the first rank of this machine's cores copies in a step.
fn step_of_cores(plan: &Plan) -> HostTraffic {
    let mut executor = Executor::new(plan, &ExecOptions::default()).expect("it can be run");
    init::initialise(&mut executor).expect("first values");
    let phase = executor.phase_named("train").expect("it trains");
    executor.start_profile(phase, 0);
    executor.start(phase, &batch(plan, 1), 1).unwrap_or_else(|e| panic!("{e}"));
    executor.commit(phase, 1).unwrap_or_else(|e| panic!("{e}"));
    executor.profile().expect("it was measured").copied()
}

#[test]
fn state_that_is_away_is_the_same_bits() {
    for (name, text, compute) in [
        ("tiny-moe", "micro=2", DType::F32),
        ("tiny-moe", "dp=2,micro=2,zero=1", DType::BF16),
        ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=2,master_weights=split", DType::BF16),
        ("deepseek-v3", "dp=2,pp=2,tp=2,ep=4,micro=2,zero=1", DType::F32),
    ] {
        let kept = train(name, &of(name, text, compute), STEPS).bits();
        let away = of(name, &format!("{text},optimizer=host"), compute);
        for seed in [None, Some(1), Some(2)] {
            let have = train_in(name, &mut executor(&away, seed), STEPS).bits();
            assert!(have == kept, "{name} {text}: other bits in order {seed:?}");
        }
        let (copied, seconds) = step(&away);
        assert_eq!(copied, planned(&away), "{name} {text}");
        assert_eq!(copied.out, copied.back, "{name} {text}: what comes leaves");
        let simulated = simulate(&away, &cluster("atlas-800t-a2"), &priced()).expect("a report").step_time_s;
        let apart = seconds / simulated - 1.0;
        assert!(apart.abs() < 0.01, "{name} {text}: {seconds} s, simulated {simulated} s");
        if away.mesh.is_empty() {
            assert_eq!(step_of_cores(&away), copied, "{name} {text}: cores copy as much");
        }
    }
}

/// Of ragged tensors the rows that came are copied, whatever room there is, and they take the time of those.
#[test]
fn ragged_copies_carry_the_rows_that_came() {
    let kept = of("tiny-moe", "dp=2,ep=2,micro=2,schedule=gpipe", DType::F32);
    let wanted = train("tiny-moe", &kept, STEPS).bits();
    let mut seen = vec![];
    for room in [",max_tokens_per_rank=60", ""] {
        let plan = of("tiny-moe", &format!("dp=2,ep=2,micro=2,schedule=gpipe,swap=dispatch{room}"), DType::F32);
        for seed in [None, Some(1), Some(2)] {
            let have = train_in("tiny-moe", &mut executor(&plan, seed), STEPS).bits();
            assert!(have == wanted, "{room}: other bits in order {seed:?}");
        }
        let (copied, seconds) = step(&plan);
        let simulated = simulate(&plan, &cluster("atlas-800t-a2"), &priced()).expect("a report").step_time_s;
        assert!((seconds / simulated - 1.0).abs() < 0.02, "{room}: {seconds} s, simulated {simulated} s");
        seen.push((copied, seconds, ragged_copies(&plan)));
    }
    let [(tight, tight_s, (times, row)), (roomy, roomy_s, _)] = seen[..] else { unreachable!("two rooms") };
    assert_eq!(tight, roomy, "the room does not matter");
    // Things lie elsewhere with other room, and what waits for whose memory differs by less than this.
    assert!((tight_s / roomy_s - 1.0).abs() < 0.01, "{tight_s} and {roomy_s} s");
    assert_eq!(tight.out, tight.back, "what leaves comes back");
    // Every row that any rank sends comes to one of them: ranks × rows × tokens × experts of a token, in each layer that swaps, of both micro-batches.
    let tokens = kept.settings.batch * kept.settings.seq;
    assert_eq!(tight.out, times * tokens / 2 * 2 * row, "{times} copies of rows of {row} bytes");
}

/// Rows that there is no room for stop the step before anything is updated, on cores and on devices alike, and whether they would be copied or not.
#[test]
fn too_many_rows_change_nothing() {
    for swap in ["", ",swap=dispatch"] {
        let text = format!("dp=2,ep=2,micro=2,schedule=gpipe,max_tokens_per_rank=8{swap}");
        let plan = of("tiny-moe", &text, DType::F32);
        let cores = Executor::new(&plan, &ExecOptions::default()).expect("it can be run");
        for mut executor in [cores, executor(&plan, None), executor(&plan, Some(1))] {
            init::initialise(&mut executor).expect("first values");
            let saved = |executor: &Executor| -> Vec<Vec<u8>> {
                let tensors = executor.tensors().into_iter().filter(|t| t.kind.is_saved());
                tensors.map(|t| executor.whole(t).expect("it can be read").into_owned()).collect()
            };
            let before = saved(&executor);
            let phase = executor.phase_named("train").expect("it trains");
            let error = executor.start(phase, &batch(&plan, 1), 1).expect_err("there is no room").to_string();
            let expected = "there is room for 8 (max_tokens_per_rank)";
            assert!(error.contains(expected) && error.contains("rank "), "{error}");
            assert!(error.contains("rows arrive") && error.contains("layers"), "{error}");
            // Devices are of no use after that, not even to be read.
            assert!(executor.is_on_devices() || saved(&executor) == before, "{text}: something has changed");
            assert!(executor.commit(phase, 1).is_err(), "{text}: it goes on");
        }
    }
}

/// How many copies out there are of a micro-batch's rows, counted by rank 0, and the bytes of a row.
fn ragged_copies(plan: &Plan) -> (u64, u64) {
    let calls = &plan.roles[0].phases[0].calls;
    let programs = calls.iter().map(|c| &plan.programs[c.program as usize]);
    let out = programs.filter(|p| p.slots.iter().any(|s| s.space == Space::Host && s.access == Access::Write));
    let regions = out.flat_map(|p| &p.instructions).filter_map(|i| match &i.kernel {
        Kernel::Region(region) if region.ragged.is_some() => Some(region),
        _ => None,
    });
    let rows: Vec<u64> = regions.map(|r| r.dims[0] * r.dims[2] * 4).collect();
    assert!(rows.iter().all(|row| *row == rows[0]), "{rows:?}");
    (rows.len() as u64, rows[0])
}
