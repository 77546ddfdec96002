//! The executor on a plan small enough to write down.

use super::parts::Part;
use super::*;
use crate::comm::fleet::{Fleet, Way};
use crate::data::{Corpus, Dataset};
use crate::init;
use crate::testing::{parallel_plan, tiny_plan};
use crate::train::{TrainError, TrainOptions, Trainer, Unobserved};
use forebay_plan::{Affine, Cut, FlatRange, Init};

fn executor(plan: &Plan, threads: usize, seed: u64) -> Executor<'_> {
    let options = ExecOptions { threads, seed, ..ExecOptions::default() };
    let mut executor = Executor::new(plan, &options).unwrap_or_else(|error| panic!("{error}"));
    init::initialise(&mut executor).expect("all ranks are well");
    executor
}

fn dataset(plan: &Plan) -> Dataset {
    let text: Vec<u8> = (0..4000u32).map(|i| b'a' + (i % 23) as u8).collect();
    Dataset::new(Corpus::from_bytes("letters", text), &plan.settings).expect("enough letters")
}

fn losses(threads: usize, seed: u64) -> Vec<u64> {
    let plan = tiny_plan(1000);
    let (mut executor, dataset) = (executor(&plan, threads, seed), dataset(&plan));
    let mut trainer = Trainer::new(&mut executor, &dataset, None).expect("it can train");
    (0..20).map(|_| trainer.step().expect("a number").loss.to_bits()).collect()
}

#[test]
fn training_descends_and_is_a_function_of_the_seed() {
    let one = losses(1, 7);
    assert!(f64::from_bits(one[19]) < 0.5 * f64::from_bits(one[0]));
    assert_eq!(one, losses(2, 7));
    assert_ne!(one, losses(1, 8));
}

#[test]
fn a_run_saves_evaluates_and_sums_up() {
    let plan = tiny_plan(1000);
    let (mut executor, dataset) = (executor(&plan, 1, 1), dataset(&plan));
    let mut trainer = Trainer::new(&mut executor, &dataset, None).expect("it can train");
    let options = TrainOptions { steps: 12, ..TrainOptions::default() };
    let summary = trainer.run(&options, None, &mut Unobserved).expect("a run");
    assert_eq!(summary.steps, 12);
    assert!(summary.evaluation.expect("it was not stopped").loss < 0.1);
    assert!((summary.order0_bits - 23f64.log2()).abs() < 0.01);
    assert!(summary.train_loss.is_some() && summary.tokens_per_s.is_some());
    let count = plan.roles[0].tensors.iter().find(|t| t.kind == TensorKind::State).expect("the counter");
    assert_eq!(element(DType::F32, executor.tensor(count), 0), 12.0);
    // The copy follows the parameter.
    let of = |kind| plan.roles[0].tensors.iter().find(|t| t.kind == kind).expect("it is there");
    let (param, copy) = (of(TensorKind::Param), of(TensorKind::ComputeCopy));
    for i in 0..4 {
        let master = element(DType::F32, executor.tensor(param), i) as f32;
        assert_eq!(element(DType::Bf16, executor.tensor(copy), i), half::bf16::from_f32(master).to_f64());
    }
}

#[test]
fn a_loss_that_is_no_number_stops_before_the_update() {
    let plan = tiny_plan(4);
    let (mut executor, dataset) = (executor(&plan, 1, 1), dataset(&plan));
    let mut trainer = Trainer::new(&mut executor, &dataset, None).expect("it can train");
    let options = TrainOptions { steps: 12, ..TrainOptions::default() };
    let error = trainer.run(&options, None, &mut Unobserved).expect_err("step 5 is NaN");
    let want = "loss is NaN at step 5: first produced by `mul` penalty in lines.0 (program penalty)";
    assert_eq!(error.to_string(), want);
    let count = plan.roles[0].tensors.iter().find(|t| t.kind == TensorKind::State).expect("the counter");
    assert_eq!(element(DType::F32, executor.tensor(count), 0), 4.0);
}

#[test]
fn a_tensor_that_is_no_number_is_named() {
    let plan = tiny_plan(1000);
    let (mut executor, dataset) = (executor(&plan, 1, 1), dataset(&plan));
    executor.tensor_mut(&plan.roles[0].tensors[0])[..4].copy_from_slice(&f32::NAN.to_ne_bytes());
    let mut trainer = Trainer::new(&mut executor, &dataset, None).expect("it can train");
    let error = trainer.step().expect_err("the parameter is NaN");
    assert!(matches!(error, TrainError::NotFinite { .. }));
    assert_eq!(error.to_string(), "loss is NaN at step 1: the tensor `line.w` was NaN before the step began");
}

#[test]
fn plans_that_cannot_be_run_are_refused() {
    let options = ExecOptions::default();
    let refused = |plan: &Plan| Executor::new(plan, &options).expect_err("it must not be run").to_string();
    let mut plan = tiny_plan(1);
    plan.roles[0].device_bytes = 1 << 60;
    let message = refused(&plan);
    assert!(message.starts_with("this plan needs 1024 PiB of memory"), "{message}");
    plan.programs[1].instructions.clear();
    let message = refused(&plan);
    assert!(message.starts_with("the plan is invalid:\n"), "{message}");
    let plan = tiny_plan(1);
    let executor = executor(&plan, 1, 0);
    let message = executor.phase_named("prune").expect_err("no such phase").to_string();
    assert_eq!(message, "the plan cannot `prune`; it can: train, eval, generate");
}

#[test]
fn a_profile_sees_training_steps_alone() {
    let plan = tiny_plan(1000);
    let (mut executor, dataset) = (executor(&plan, 1, 1), dataset(&plan));
    let mut trainer = Trainer::new(&mut executor, &dataset, None).expect("it can train");
    trainer.step().expect("a step");
    assert!(trainer.profile().is_none());
    trainer.start_profile(2);
    for _ in 0..3 {
        trainer.step().expect("a step");
        trainer.evaluate().expect("an evaluation");
    }
    let profile = trainer.profile().expect("it was asked for");
    assert_eq!(profile.steps(), 3);
    assert!(profile.kernel_seconds() > 0.0 && profile.kernel_seconds() <= profile.seconds());
    assert!((0.0..1.0).contains(&profile.dispatch_share()));
    // Every instruction of every call of the phase, once a step.
    let calls = &plan.roles[0].phases.iter().find(|p| p.name == "train").expect("it trains").calls;
    let instructions: usize = calls.iter().map(|c| plan.programs[c.program as usize].instructions.len()).sum();
    assert_eq!(profile.rows(&plan).iter().map(|r| r.runs).sum::<u64>(), 3 * instructions as u64);
    // Events of two steps, each with its two parts; what is inside ends before what is around it.
    assert_eq!(profile.events().len(), 2 * (2 + calls.len() + instructions));
    let ends: Vec<_> = profile.events().iter().map(|e| e.start + e.time).collect();
    assert!(ends.is_sorted());
    assert_eq!(profile.events().last().map(|e| e.what), Some(Traced::Step(3)));
}

#[test]
fn two_ranks_train_as_one_does() {
    let losses = |plan: &Plan| {
        let (mut executor, dataset) = (executor(plan, 2, 7), dataset(plan));
        assert_eq!(executor.threads(), 2);
        let mut trainer = Trainer::new(&mut executor, &dataset, None).expect("it can train");
        let mut losses: Vec<f64> = (0..20).map(|_| trainer.step().expect("a number").loss).collect();
        losses.push(trainer.evaluate().expect("a number").loss);
        losses
    };
    let (one, two) = (losses(&tiny_plan(1000)), losses(&parallel_plan(1000)));
    assert!(one.iter().zip(&two).all(|(a, b)| (a - b).abs() <= 1e-5 * a.abs()), "{one:?}\n{two:?}");
    // The same every time, to the bit.
    assert_eq!(two, losses(&parallel_plan(1000)));
}

#[test]
fn several_ranks_are_profiled_and_diagnosed() {
    let plan = parallel_plan(4);
    let (mut executor, dataset) = (executor(&plan, 2, 1), dataset(&plan));
    let mut trainer = Trainer::new(&mut executor, &dataset, None).expect("it can train");
    trainer.start_profile(2);
    let options = TrainOptions { steps: 12, ..TrainOptions::default() };
    let error = trainer.run(&options, None, &mut Unobserved).expect_err("step 5 is NaN");
    let want = "loss is NaN at step 5: first produced by `mul` penalty in lines.0 (program penalty)";
    assert_eq!(error.to_string(), want);
    assert_eq!(trainer.profiles().map(|(_, profile)| profile.steps()).collect::<Vec<_>>(), [5, 5]);
}

/// All processes know the loss and find out together where it went wrong, whichever rank it was.
#[test]
fn several_processes_find_the_same_cause() {
    let plan = parallel_plan(4);
    let dataset = dataset(&plan);
    let options = ExecOptions { threads: 2, seed: 1, ..ExecOptions::default() };
    let mut fleet = Fleet::new(&plan, Way::Processes(2), options);
    let errors = fleet.each(|executor| {
        init::initialise(executor).expect("all ranks are well");
        let mut trainer = Trainer::new(executor, &dataset, None).expect("it can train");
        let options = TrainOptions { steps: 12, ..TrainOptions::default() };
        trainer.run(&options, None, &mut Unobserved).expect_err("step 5 is NaN").to_string()
    });
    let want = "loss is NaN at step 5: first produced by `mul` penalty in lines.0 (program penalty)";
    assert_eq!(errors, [want, want]);
}

#[test]
fn a_rank_that_panics_ends_all() {
    let plan = forebay_plan::testing::pipeline();
    let mut executor = executor(&plan, 4, 1);
    let id = executor.phase_named("train").expect("it trains");
    let begun = std::time::Instant::now();
    let result = executor.on_all(&|rank| if rank.number == 2 { panic!("on purpose") } else { rank.commit(id, 1) });
    let error = result.expect_err("a rank panics").to_string();
    assert!(error.starts_with("rank 2: it panicked: on purpose\n  rank 0 waited in `"), "{error}");
    assert_eq!(error.matches("waited in").count(), 3, "{error}");
    assert!(begun.elapsed() < ExecOptions::default().stall / 2, "nobody waits until it is too long");
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let plan = forebay_plan::testing::pipeline();
    let stall = Duration::from_millis(500);
    let options = ExecOptions { threads: 4, stall, ..ExecOptions::default() };
    let mut executor = Executor::new(&plan, &options).unwrap_or_else(|error| panic!("{error}"));
    let id = executor.phase_named("train").expect("it trains");
    let error = executor.on_all(&|rank| if rank.number == 1 { Ok(()) } else { rank.commit(id, 1) });
    let error = error.expect_err("nobody can go on").to_string();
    // Whoever noticed it first: on a busy machine that can be rank 2, which waits for rank 3, which waits for rank 1.
    let first = error.contains("it waited 500ms for rank 1");
    let second = error.starts_with("rank 2: ") && error.contains("it waited 500ms for rank 3");
    assert!(first || second, "{error}");
    assert!(!error.contains("rank 1 waited"), "{error}");
}

#[test]
fn memory_is_that_of_all_ranks() {
    let mut plan = parallel_plan(1);
    let bytes = plan.roles[0].device_bytes;
    assert_eq!(executor(&plan, 1, 0).peak_memory().device_bytes, 2 * bytes);
    plan.roles[0].device_bytes = 1 << 60;
    let error = Executor::new(&plan, &ExecOptions::default()).expect_err("it is too much").to_string();
    assert!(error.starts_with("this plan needs 2048 PiB of memory for its 2 ranks"), "{error}");
    // Every worker of every rank has workspace and a stack.
    let needed = |threads| match Executor::new(&plan, &ExecOptions { threads, ..ExecOptions::default() }) {
        Err(ExecError::Memory { needed, by_kind, .. }) => {
            let kinds = [by_kind.weights, by_kind.gradients, by_kind.optimizer, by_kind.activations, by_kind.other];
            assert_eq!(kinds.iter().sum::<u64>(), needed);
            needed
        }
        other => panic!("it is too much: {other:?}"),
    };
    let worker = (needed(4) - needed(2)) / 2;
    assert!(worker > 2 << 20);
    assert_eq!(needed(7) - needed(2), 5 * worker);
    // Each rank has one at least.
    assert_eq!(needed(1), needed(2));
}

/// A whole tensor.
fn tensor(dims: &[u64]) -> Tensor {
    Tensor {
        name: "w".into(),
        kind: TensorKind::Param,
        dtype: DType::F32,
        dims: dims.to_vec(),
        block: vec![],
        range: None,
        form: forebay_plan::Form::Whole,
        space: forebay_plan::Space::Device,
        offset: 0,
        init: Init::Normal(1.0),
    }
}

/// First values do not depend on how tensors are cut.
#[test]
fn parts_begin_with_the_values_of_the_whole() {
    let whole = crate::testing::holding(&[], vec![tensor(&[6, 4])]);
    let wanted = executor(&whole, 1, 3).whole(&tensor(&[6, 4])).expect("one process").into_owned();
    for parted in crate::testing::partings(tensor(&[6, 4])) {
        let plan = crate::testing::holding(&[("a", 2), ("b", 3)], parted);
        let executor = executor(&plan, 2, 3);
        assert!(
            executor.whole(&plan.roles[0].tensors[0]).expect("one process") == wanted,
            "{:?}",
            plan.roles[0].tensors
        );
        // A whole copy beside parts of the master.
        let copy = executor.tensor(&plan.roles[0].tensors[1]);
        let value = |i| element(DType::Bf16, copy, i);
        assert!((0..24).all(|i| value(i) == half::bf16::from_f64(element(DType::F32, &wanted, i)).to_f64()));
    }
}

/// A tensor of several pieces, cut so that pieces have many runs: every rank has what it should have, also of copies; and it gets the same whatever was there.
#[test]
fn large_parts_begin_with_the_values_of_the_whole() {
    let dims = [700, 1200];
    let alone = crate::testing::holding(&[], vec![tensor(&dims)]);
    let wanted = executor(&alone, 1, 3).whole(&tensor(&dims)).expect("one process").into_owned();
    let block = vec![Cut { dim: 1, size: 600, first: Affine::along(0, 600) }];
    let range = FlatRange { start: 70_000, shard: 245_000, index: Affine::along(1, 1) };
    let cut = Tensor { block: block.clone(), ..tensor(&dims) };
    let of = |kind, dtype, init| Tensor { kind, dtype, init, ..cut.clone() };
    for master in [cut.clone(), Tensor { range: Some(range), ..cut.clone() }] {
        let copy = of(TensorKind::ComputeCopy, DType::Bf16, Init::FromParam);
        let gradient = of(TensorKind::Gradient, DType::F32, Init::Constant(0.0));
        let plan = crate::testing::holding(&[("a", 2), ("b", 2)], vec![master, copy, gradient]);
        let mut executor = executor(&plan, 8, 3);
        for time in 0..2 {
            for rank in &executor.ranks {
                let [master, copy, gradient] = rank.role.tensors.as_slice() else { unreachable!("there are three") };
                let value = |i| element(DType::F32, &wanted, i);
                Part::new(master, &rank.coordinates).runs(|here, there, n| {
                    let own = |i| element(DType::F32, rank.tensor(master), i);
                    assert!((0..n).all(|e| own(here + e) == value(there + e)), "rank {}, time {time}", rank.number);
                });
                Part::new(copy, &rank.coordinates).runs(|here, there, n| {
                    let own = |i| element(DType::Bf16, rank.tensor(copy), i);
                    let value = |i| half::bf16::from_f32(value(i) as f32).to_f64();
                    assert!((0..n).all(|e| own(here + e) == value(there + e)), "rank {}, time {time}", rank.number);
                });
                assert!(rank.tensor(gradient).iter().all(|b| *b == 0), "rank {}, time {time}", rank.number);
            }
            for rank in &mut executor.ranks {
                rank.role.tensors.iter().for_each(|t| rank.tensor_mut(t).fill(1));
            }
            init::initialise(&mut executor).expect("all ranks are well");
        }
    }
}

/// Pages that nobody uses yet are left to the system.
#[test]
fn zeros_that_are_there_are_not_written() {
    let plan = parallel_plan(1);
    let mut executor = Executor::new(&plan, &ExecOptions::default()).expect("it can be run");
    let gradient = &plan.roles[0].tensors[2];
    for rank in &mut executor.ranks {
        let (offset, len) = rank.place_of(gradient);
        // Behind the rank's back.
        rank.device.bytes_mut(offset, len).fill(1);
    }
    init::initialise(&mut executor).expect("all ranks are well");
    assert!(executor.ranks.iter().all(|rank| rank.tensor(gradient).iter().all(|b| *b == 1)));
    // Now it knows that something was written.
    init::initialise(&mut executor).expect("all ranks are well");
    assert!(executor.ranks.iter().all(|rank| rank.tensor(gradient).iter().all(|b| *b == 0)));
}
