//! Single changes of a plan for eight ranks: the verifier finds them, or they are harmless.
//!
//! What it does not find must still be a plan without races: run in the listed order and in another that streams and events permit, it gives the same
//! bits (or stops with the same complaint). Of changes to the order alone (waits, events, streams) it must give the bits of the unchanged plan. The
//! rest of the survivors are other computations (a term of a sum left out, another stride within the same memory): against accidents of that kind
//! there is the checksum of the file.
//!
//! All of it, with the survivors: `FOREBAY_CASES=4000 cargo test --release --test all mutations:: -- --nocapture`.

use crate::common;

pub(crate) mod changes;

use changes::KINDS;
use common::training::plan;
use common::{Example, Numbers};
use forebay_ir::DType;
use forebay_plan::{Phase, Plan, verify};
use forebay_runtime::data::Batch;
use forebay_runtime::exec::{ExecOptions, Executor};
use forebay_runtime::init;
use std::time::Duration;

/// Changes to the order alone.
const ORDER: [&str; 7] = [
    "instruction on another stream",
    "wait left out",
    "wait for another event",
    "launched with the instruction before",
    "wait of a call left out",
    "wait of a call for another event",
    "wait of a call for the call before",
];

/// Two stages of two data-parallel ranks of two that share heads; experts over both.
fn subject() -> Plan {
    // Without captured regions, which forbid most changes of the order by themselves.
    let strategy = "dp=2,tp=2,ep=2,pp=2,micro=2,overlap=vector/within/across/borders/units";
    plan(&Example::named("tiny-moe"), strategy, DType::F32, &[("layers", 2)]).expect("it fits")
}

/// The bits that every phase leaves behind, or what it stopped with.
fn bits(plan: &Plan, shuffle: Option<u64>) -> Result<Vec<u8>, String> {
    let options = ExecOptions { shuffle, stall: Duration::from_secs(60), ..ExecOptions::default() };
    let mut executor = Executor::new(plan, &options).map_err(|e| e.to_string())?;
    init::initialise(&mut executor).map_err(|e| e.to_string())?;
    let mut bits = vec![];
    for name in ["train", "eval", "generate"] {
        let phase = executor.phase_named(name).map_err(|e| e.to_string())?;
        let batch = batch(plan, executor.phase(phase));
        // Which of several ranks stops first is not told by the plan.
        executor.start(phase, &batch, 1).map_err(|_| "stopped".to_string())?;
        executor.commit(phase, 1).map_err(|_| "stopped".to_string())?;
        executor.reports(phase).for_each(|report| bits.extend_from_slice(&executor.value(&report).to_ne_bytes()));
        let logits = executor.output_named(phase, "logits");
        logits.into_iter().for_each(|output| bits.extend_from_slice(&executor.output(output)));
    }
    for tensor in executor.tensors() {
        bits.extend_from_slice(&executor.whole(tensor).map_err(|e| e.to_string())?);
    }
    Ok(bits)
}

/// Random tokens for a phase.
fn batch(plan: &Plan, phase: &Phase) -> Batch {
    let mut batch = Batch::new(phase.rows, phase.seq);
    let mut numbers = Numbers::new(2);
    let mut token = |t: &mut i32| *t = (numbers.uniform() * plan.settings.vocab as f64) as i32;
    batch.tokens.iter_mut().chain(&mut batch.labels).for_each(&mut token);
    batch
}

#[test]
fn changes_of_a_sharded_plan_are_found_or_harmless() {
    let cases = std::env::var("FOREBAY_CASES").map_or(200, |n| n.parse().expect("FOREBAY_CASES is a number"));
    // Survivors that are run, of each kind: each takes all phases on eight ranks, twice.
    let runs = if std::env::var_os("FOREBAY_CASES").is_some() { usize::MAX } else { 1 };
    let plan = subject();
    verify(&plan).expect("the plan is valid");
    let unchanged = bits(&plan, None).expect("the plan runs");
    let mut numbers = Numbers::new(11);
    let (mut all, mut all_found) = (0, 0);
    for (kind, change) in KINDS {
        let (mut made, mut found, mut ran, mut survivors) = (0, 0, 0, vec![]);
        let (each, mut tries) = (cases / KINDS.len(), 0);
        while made < each && tries < 40 * each {
            tries += 1;
            let mut changed = plan.clone();
            let Some(what) = change(&mut changed, &mut numbers).filter(|_| changed != plan) else { continue };
            made += 1;
            if verify(&changed).is_err() {
                found += 1;
                continue;
            }
            if ran == runs {
                survivors.push(format!("{what}: not run"));
                continue;
            }
            ran += 1;
            let (listed, other) = (bits(&changed, None), bits(&changed, Some(1)));
            assert!(listed == other, "{kind}: {what}: not found, and other bits in another order");
            let same = listed.as_ref() == Ok(&unchanged);
            assert!(same || !ORDER.contains(&kind), "{kind}: {what}: not found, and other bits");
            let comes_to = match listed {
                Ok(_) if same => "the same bits".to_string(),
                Ok(_) => "another computation".to_string(),
                Err(why) => why,
            };
            survivors.push(format!("{what}: {comes_to}"));
        }
        println!("{kind}: {found} of {made} found");
        survivors.iter().for_each(|survivor| println!("    {survivor}"));
        assert!(made > 0, "{kind}: nothing to change");
        (all, all_found) = (all + made, all_found + found);
    }
    println!("{all_found} of {all} changes found, {:.0} %", 100.0 * all_found as f64 / all as f64);
    assert!(10 * all_found > 7 * all, "{all_found} of {all} changes found");
}
