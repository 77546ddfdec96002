//! Plans that are wrong: the devices stop where it matters, and say what and where.
//!
//! The verifier refuses all of them; here it is told to leave order, life and reach of memory to the devices ([`Proof::Devices`]).

use super::changes::KINDS;
use super::{devices, of, plan};
use crate::common::Example;
use crate::common::Numbers;
use crate::common::training::batch;
use forebay_ir::DType;
use forebay_plan::{Kernel, Plan, Space, verify};
use forebay_runtime::backend::{Fault, Wrong};
use forebay_runtime::exec::{ExecError, ExecOptions, Executor, Proof, WATCHED};
use forebay_runtime::init;
use std::collections::BTreeSet;

/// Two stages of two data-parallel ranks of two that share heads; experts over both.
fn subject() -> Plan {
    // Without captured regions, which forbid most changes of the order by themselves.
    let strategy = "dp=2,tp=2,ep=2,pp=2,micro=2,overlap=vector/within/across/borders/units";
    plan(&Example::named("tiny-moe"), strategy, DType::F32, &[("layers", 2)]).expect("it fits")
}

/// A step of training without the verifier's proof of order: the bits it leaves behind, or what it stopped with.
fn step(plan: &Plan, device_bytes: Option<u64>) -> Result<Vec<u8>, ExecError> {
    let backend = devices(plan, device_bytes, None);
    let mut executor = Executor::on_devices(plan, &ExecOptions::default(), backend, Proof::Devices)?;
    init::initialise(&mut executor)?;
    let phase = executor.phase_named("train")?;
    executor.start(phase, &batch(plan, 1), 1)?;
    executor.commit(phase, 1)?;
    let mut bits = vec![];
    executor.reports(phase).for_each(|report| bits.extend_from_slice(&executor.value(&report).to_ne_bytes()));
    for tensor in executor.tensors() {
        bits.extend_from_slice(&executor.whole(tensor)?);
    }
    Ok(bits)
}

fn fault(error: &ExecError) -> &Fault {
    match error {
        ExecError::Device { fault, .. } => fault,
        other => panic!("not a device's: {other}"),
    }
}

/// Does the verifier complain of nothing but what devices watch over?
fn is_watched(plan: &Plan) -> bool {
    verify(plan).is_err_and(|violations| violations.iter().all(|v| WATCHED.contains(&v.rule)))
}

/// Waits that are left out, one by one: the instruction that waited, or the one whose memory it takes, is named.
#[test]
fn a_missing_event_is_found() {
    let plan = of("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=2");
    let wanted = step(&plan, None).expect("the plan is right");
    let (mut tried, mut found) = (0, 0);
    let trains: Vec<u32> =
        plan.roles[0].phases.iter().filter(|p| p.name == "train").flat_map(|p| &p.calls).map(|c| c.program).collect();
    for (number, program) in plan.programs.iter().enumerate().filter(|(n, _)| trains.contains(&(*n as u32))) {
        let waits = program.instructions.iter().enumerate().filter(|(_, i)| !i.waits.is_empty());
        for (at, instruction) in waits.step_by(4) {
            let mut changed = plan.clone();
            changed.programs[number].instructions[at].waits.remove(0);
            tried += 1;
            let error = match step(&changed, None) {
                // Two parts of a buffer may be anyone's.
                Ok(bits) => {
                    assert!(bits == wanted, "{} {}: other bits, and nothing found", program.name, instruction.name);
                    continue;
                }
                Err(error) => error,
            };
            found += 1;
            let text = error.to_string();
            let Wrong::BeforeEvent { other, .. } = &fault(&error).wrong else { panic!("{text}") };
            let at = fault(&error).at.as_ref().expect("a place");
            assert!(at.stream != other.stream && at.rank == other.rank, "{text}");
            for part in ["at step 1, rank ", " stream, call ", "before event]"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }
    println!("{found} of {tried} found");
    assert!(tried > 10 && found * 10 > tried * 9, "{found} of {tried}");
}

#[test]
fn memory_that_is_too_small_is_refused() {
    let plan = of("tiny-moe", "tp=2");
    let needed = plan.roles[0].device_bytes;
    assert!(step(&plan, Some(needed)).is_ok());
    let error = step(&plan, Some(needed - 1)).expect_err("it does not fit");
    let text = error.to_string();
    assert!(matches!(fault(&error).wrong, Wrong::Memory { space: Space::Device, .. }), "{text}");
    for part in [&format!("rank 0: {needed} bytes of device memory are wanted"), "[out of memory]", "activations"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn memory_of_the_host_is_not_a_devices() {
    let mut plan = of("tiny-moe", "tp=2");
    let forward = plan.programs.iter_mut().find(|p| p.name.ends_with("layers.forward")).expect("a layer");
    let frame = forward.slots.iter_mut().find(|s| s.name == "frame").expect("a frame");
    frame.space = Space::Host;
    plan.roles.iter_mut().for_each(|role| role.host_bytes = role.device_bytes);
    assert!(is_watched(&plan), "{:?}", verify(&plan));
    let error = step(&plan, None).expect_err("a kernel does not reach it");
    let text = error.to_string();
    assert!(matches!(fault(&error).wrong, Wrong::Space { space: Space::Host, .. }), "{text}");
    assert!(
        text.contains("host memory") && text.contains("[wrong space]") && text.contains("layers.forward"),
        "{text}"
    );
}

/// A region that reaches over an event could not be launched as one: what waits for the event would wait for all of it.
#[test]
fn a_region_over_an_event_is_found() {
    let mut plan = of("tiny-moe", "tp=2");
    let forward = plan.programs.iter_mut().find(|p| p.name.ends_with("layers.forward")).expect("a layer");
    let of_stream = |i: &forebay_plan::Instruction| (i.stream, i.records.is_some(), i.waits.is_empty());
    let all: Vec<_> = forward.instructions.iter().map(of_stream).collect();
    let next = |at: usize| (at + 1..all.len()).find(|&next| all[next].0 == all[at].0).filter(|&next| all[next].2);
    let over = (0..all.len()).filter(|&at| all[at].1).find_map(next).expect("an event within a stream");
    forward.instructions[over].captured = true;
    let name = forward.instructions[over].name.clone();
    assert!(is_watched(&plan), "{:?}", verify(&plan));
    let error = step(&plan, None).expect_err("it is no region");
    assert!(matches!(fault(&error).wrong, Wrong::Captured), "{error}");
    let text = error.to_string();
    assert!(text.contains("[capture]") && text.contains(&name), "{text}");
}

#[test]
fn who_waits_for_ever_is_named() {
    let mut plan = of("tiny-moe", "pp=2,micro=4,schedule=1f1b");
    let sends = |plan: &Plan, program: u32| {
        plan.programs[program as usize].instructions.iter().any(|i| matches!(i.kernel, Kernel::Send(_)))
    };
    let of_call = |plan: &Plan, role: usize| {
        let phase = plan.roles[role].phases.iter().find(|p| p.name == "train")?;
        phase.calls.iter().position(|call| sends(plan, call.program))
    };
    let (role, at) = (0..2).find_map(|role| Some((role, of_call(&plan, role)?))).expect("a stage sends");
    let phase = plan.roles[role].phases.iter_mut().find(|p| p.name == "train").expect("it trains");
    phase.calls.remove(at);
    phase.commit -= u32::from((at as u32) < phase.commit);
    for call in &mut phase.calls {
        call.waits.retain(|wait| wait.call != at as u32);
        call.waits.iter_mut().for_each(|wait| wait.call -= u32::from(wait.call > at as u32));
    }
    assert!(is_watched(&plan), "{:?}", verify(&plan));
    let error = step(&plan, None).expect_err("the other stage waits");
    let text = error.to_string();
    assert!(matches!(fault(&error).wrong, Wrong::Stuck { .. }), "{text}");
    assert!(text.contains("sends it nothing") && text.contains("`recv`"), "{text}");
}

/// A slot that lies elsewhere: what is read there is somebody else's, or nobody's.
#[test]
fn a_slot_elsewhere_is_found() {
    let plan = of("tiny-moe", "dp=2");
    let at = plan.roles[0].phases.iter().position(|p| p.name == "train").expect("it trains");
    let calls = &plan.roles[0].phases[at].calls;
    let (mut tried, mut found) = (0, 0);
    for (number, call) in calls.iter().enumerate().step_by(2) {
        let program = &plan.programs[call.program as usize];
        let Some(slot) = program.slots.iter().position(|s| s.name == "saved" || s.name == "x") else { continue };
        let mut changed = plan.clone();
        changed.roles[0].phases[at].calls[number].slots[slot] += 64;
        if !is_watched(&changed) {
            continue;
        }
        tried += 1;
        let Err(error) = step(&changed, None) else { continue };
        let text = error.to_string();
        let wrong = &fault(&error).wrong;
        assert!(
            matches!(wrong, Wrong::AfterFree { .. } | Wrong::Unwritten { .. } | Wrong::BeforeEvent { .. }),
            "{text}"
        );
        found += 1;
    }
    println!("{found} of {tried} found");
    assert!(tried > 0 && found == tried, "{found} of {tried}");
}

/// Copies without the rows of the last group, to the host or back: the plan reads as before, and the rows are not there.
#[test]
fn rows_that_are_not_copied_are_found() {
    let strategy = "dp=2,ep=2,micro=2,schedule=gpipe,swap=dispatch";
    let plan = plan(&Example::named("tiny-moe"), strategy, DType::F32, &[]).expect("it fits");
    step(&plan, None).expect("the plan is right");
    let mut tried = 0;
    for (number, program) in plan.programs.iter().enumerate() {
        if program.slots.iter().all(|slot| slot.space == Space::Device) {
            continue;
        }
        let mut changed = plan.clone();
        let mut starts = BTreeSet::new();
        for instruction in &mut changed.programs[number].instructions {
            let Kernel::Region(copy) = &mut instruction.kernel else { continue };
            let Some(ragged) = &mut copy.ragged else { continue };
            ragged.groups -= 1;
            starts.insert(ragged.offsets as usize);
        }
        if starts.is_empty() {
            continue;
        }
        starts.into_iter().for_each(|buffer| changed.programs[number].buffers[buffer].elements -= 1);
        let seen = verify(&changed);
        assert!(seen.is_ok(), "no verifier knows how many rows come: {seen:?}");
        let error = step(&changed, None).expect_err("rows are missing");
        let text = error.to_string();
        assert!(matches!(fault(&error).wrong, Wrong::Unwritten { .. }), "{text}");
        tried += 1;
    }
    assert!(tried >= 2, "{tried} programs copy rows, there and back");
}

/// Random changes of the kinds of `tests/mutations` that devices watch over: they stop, or nothing has come of it.
#[test]
fn changes_are_found_or_harmless() {
    let cases = std::env::var("FOREBAY_CASES").map_or(3, |n| n.parse().expect("FOREBAY_CASES is a number"));
    let plan = subject();
    let wanted = step(&plan, None).expect("the plan is right");
    let mut numbers = Numbers::new(5);
    let kinds = [
        "wait left out",
        "wait for another event",
        "wait of a call left out",
        "wait of a call for the call before",
        "instruction on another stream",
        "launched with the instruction before",
        "slot of a call elsewhere",
        "buffer elsewhere",
        "message or collective left out",
    ];
    let mut found_in_all = 0;
    for (kind, change) in KINDS.iter().filter(|(kind, _)| kinds.contains(kind)) {
        let (mut made, mut found, mut tries) = (0, 0, 0);
        while made < cases && tries < 100 * cases {
            tries += 1;
            let mut changed = plan.clone();
            let Some(what) = change(&mut changed, &mut numbers).filter(|_| is_watched(&changed)) else { continue };
            made += 1;
            match step(&changed, None) {
                Ok(bits) => assert!(bits == wanted, "{kind}: {what}: other bits, and nothing found"),
                Err(error) => {
                    found += 1;
                    println!("{kind}: {what}: {error}");
                    fault(&error);
                }
            }
        }
        println!("{kind}: {found} of {made} found");
        assert!(made > 0, "{kind}: nothing to change");
        found_in_all += found;
    }
    assert!(found_in_all > 0, "devices find nothing");
}
