//! Random small models under random strategies: compiled, verified, run as ranks, and equal to one rank that does the same micro-batches. What does
//! not fit is refused with a reason.
//!
//! More cases, of another seed: `FOREBAY_CASES=300 FOREBAY_SEED=7 cargo test --test all random:: -- --nocapture`.

use crate::common;

mod draw;
mod models;
mod strategies;

use common::prices::{Linked, Random};
use common::training::{Run, compare, compiled_within, plan_with, strategy, train, train_with, with_strategy};
use common::{Example, options};
use draw::{Draw, simplest};
use forebay_compiler::memory::Aim;
use forebay_compiler::optimizer::Optimizer;
use forebay_compiler::pipeline::{CompileOptions, Compiled};
use forebay_ir::DType;
use forebay_plan::Plan;
use forebay_runtime::exec::ExecOptions;
use models::Model;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use strategies::Drawn;

const STEPS: u64 = 2;

/// What became of a case.
enum Outcome {
    Agrees,
    /// Why the strategy does not fit.
    Refused(String),
}

/// A strategy, and a model that it mostly fits.
fn drawn(draw: &mut Draw) -> (Drawn, Model) {
    let mut strategy = strategies::strategy(draw);
    let model = models::model(draw, &strategy);
    strategy.cut(draw, model.layers);
    (strategy, model)
}

/// A case as text: the strategy and the model.
fn text(taken: Vec<u32>) -> String {
    let mut draw = Draw::again(taken);
    let (strategy, model) = drawn(&mut draw);
    format!("--strategy {}\n{}", strategy.swapping(), model.text)
}

/// In f64. Where a gradient is rounding alone (of a bias of keys that do not turn: it moves all scores of a query alike), the optimizer must not make
/// much of it.
fn settings() -> CompileOptions {
    let optimizer = Optimizer { epsilon: 1e-5, ..Optimizer::default() };
    CompileOptions { optimizer, ..options(DType::F64, vec![]) }
}

/// How much of the memory between the least and what the fastest plan takes there is, by which prices.
struct Room {
    thirds: u64,
    price: Linked,
}

impl Room {
    fn drawn(draw: &mut Draw) -> Room {
        let thirds = draw.below(4) as u64;
        let rate = draw.of(&[1e12, 1e8, 1e6]);
        Room { thirds, price: Linked { price: Random(draw.below(1000) as u64), rate } }
    }

    /// A plan that takes no more than that. Panics where there is none, or where it takes more.
    ///
    /// # Errors
    /// When the strategy does not fit the model.
    fn plan(&self, example: &Example, text: &str) -> Result<Plan, String> {
        let of = |aim| {
            compiled_within(example, with_strategy(&strategy(text), settings()), aim, &self.price)
                .map_err(|e| e.to_string())
        };
        let peak = |compiled: &Compiled| compiled.stages.iter().map(|s| s.peak).max().expect("a plan has stages");
        let (high, low) = (peak(&of(Aim::Fastest)?), peak(&of(Aim::Least)?));
        assert!(low <= high, "{text}: {low} bytes at least, {high} otherwise");
        let budget = low + (high - low) * self.thirds / 3;
        let within = of(Aim::Within(budget)).unwrap_or_else(|e| panic!("{text} within {budget} bytes: {e}"));
        let taken = within.plan.roles.iter().map(|role| role.device_bytes).max();
        assert!(taken.is_some_and(|bytes| bytes <= budget), "{text}: {taken:?} of {budget} bytes");
        Ok(within.plan)
    }
}

/// Panics where ranks together do not do what one does.
fn case(draw: &mut Draw) -> Outcome {
    let (drawn, model) = drawn(draw);
    let shuffle = draw.once_in(3).then_some(5);
    let room = draw.once_in(3).then(|| Room::drawn(draw));
    let example = Example { name: "random".into(), text: model.text };
    let of = |text: &str| match &room {
        Some(room) => room.plan(&example, text),
        None => plan_with(&example, &strategy(text), settings()),
    };
    // A model need not have what is to be swapped.
    let without = |reason: String| if reason.starts_with("swap: no saved") { of(&drawn.text) } else { Err(reason) };
    let plan = match of(&drawn.swapping()).or_else(without) {
        Ok(plan) => plan,
        Err(reason) => return Outcome::Refused(reason),
    };
    if room.is_some() {
        // The same ranks with everything kept: not one bit is another.
        let kept = plan_with(&example, &strategy(&drawn.text), settings()).expect("it fits with less memory");
        let [within, kept] = [&plan, &kept].map(|plan| train(&drawn.text, plan, STEPS));
        assert!(within.bits() == kept.bits(), "{}: other bits within a budget", drawn.text);
    }
    let alone = plan_with(&example, &strategy(&drawn.alone(model.rows_together)), settings());
    let alone = train("alone", &alone.expect("one rank takes every model"), STEPS);
    assert!(is_finite(&alone), "a loss is not finite");
    let options = ExecOptions { shuffle, stall: Duration::from_secs(60), ..ExecOptions::default() };
    compare(&drawn.text, &train_with(&drawn.text, &plan, STEPS, &options), &alone, 1e-10);
    Outcome::Agrees
}

fn is_finite(run: &Run) -> bool {
    run.losses.iter().chain([&run.evaluation]).all(|loss| loss.is_finite())
}

/// The message of a panic.
fn told(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_string()
}

fn run(draw: &mut Draw) -> Result<Outcome, String> {
    catch_unwind(AssertUnwindSafe(|| case(draw))).map_err(|panic| told(&*panic))
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn random_models_and_strategies_agree_with_one_rank() {
    let (cases, seed) = (setting("FOREBAY_CASES", 16), setting("FOREBAY_SEED", 1));
    let (mut agree, mut refused, mut failed) = (0, BTreeMap::<String, usize>::new(), 0);
    for number in 0..cases {
        let mut draw = Draw::new(seed.wrapping_mul(1_000_003).wrapping_add(number));
        match run(&mut draw) {
            Ok(Outcome::Agrees) => agree += 1,
            Ok(Outcome::Refused(reason)) => *refused.entry(reason).or_default() += 1,
            Err(message) => {
                failed += 1;
                let mut last = message;
                let simple = simplest(draw.taken(), |taken| match run(&mut Draw::again(taken.to_vec())) {
                    Err(message) => {
                        last = message;
                        true
                    }
                    Ok(_) => false,
                });
                eprintln!("case {number} of seed {seed}: {last}\n{}", text(simple));
            }
        }
    }
    for (reason, times) in &refused {
        println!("refused {times} times: {reason}");
    }
    let refusals: usize = refused.values().sum();
    println!("seed {seed}: {agree} agree, {refusals} refused, {failed} failed");
    assert!(failed == 0, "{failed} of {cases} cases failed");
    // What is drawn mostly fits, or little would be tested.
    assert!(2 * agree as u64 >= cases, "only {agree} of {cases} cases ran");
}
