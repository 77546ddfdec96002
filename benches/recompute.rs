//! What computing again costs on this machine, measured: steps of `bench-small` in f32 with everything kept and within budgets, in turns, so that each pair
//! runs under the same conditions.
//!
//! `cargo bench --bench recompute -- [ROUNDS [BATCH [STRATEGY]]]`
//!
//! With a strategy of one rank (`shares=before`) all runs are of it, and a last one of everything kept without it.
//! Bytes are those of the arenas that are allocated. Seconds are those of the clock, and those of the processor (Linux), which other work on the machine
//! disturbs less. Percentages are medians over rounds of the ratio to the kept run of the same round.

use forebay_compiler::memory::{Aim, Price};
use forebay_compiler::pipeline::{CompileOptions, Compiled, Models, compile_within};
use forebay_compiler::shard::Strategy;
use forebay_dsl::model::{CheckedModel, Const};
use forebay_plan::Plan;
use forebay_runtime::data::Batch;
use forebay_runtime::exec::{ExecOptions, Executor, human_bytes};
use forebay_runtime::init;
use std::time::Instant;

/// Parts of the baseline's activations that are allowed.
const SHARES: [f64; 4] = [0.85, 0.55, 0.4, 0.25];
/// Steps that are timed, after one that is not.
const STEPS: u64 = 2;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let strategy = arguments.iter().find(|a| a.contains('='));
    let strategy = strategy.map(|text| Strategy::parse(text).unwrap_or_else(|e| panic!("{text}: {e}")));
    let (rounds, batch) = (numbers.first().copied().unwrap_or(3), numbers.get(1).copied().unwrap_or(4));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/models/bench-small.moe");
    let text = std::fs::read_to_string(path).expect("the model is there");
    let plain =
        CompileOptions { overrides: vec![("batch".into(), Const::Int(batch as i64))], ..CompileOptions::default() };
    let options = CompileOptions { strategy: strategy.clone().unwrap_or_default(), ..plain.clone() };
    let check = |training, rows| -> CheckedModel {
        let options = options.check_options(training, rows, 1);
        forebay_dsl::load(&text, &options).unwrap_or_else(|m| panic!("{} mistakes", m.len())).model
    };
    let models = Models { train: check(true, None), eval: check(false, None), generate: check(false, Some(1)) };
    let price: &dyn Price = &options.rewrite.profile;
    let of = |options: &CompileOptions, aim| compile_within(&models, options, aim, price);
    let all = |options: &CompileOptions| of(options, Aim::Fastest).unwrap_or_else(|e| panic!("{e}"));
    let kept = all(&options);
    let activations = |c: &Compiled| c.stages[0].peak - c.stages[0].persistent;
    let allowed = |share: f64| kept.stages[0].persistent + (share * activations(&kept) as f64) as u64;
    // What is not saved takes room as well: a quarter of little may be less than that.
    let fits = |share: f64| of(&options, Aim::Within(allowed(share))).map_err(|e| eprintln!("{share}: {e}")).ok();
    let within: Vec<Compiled> = SHARES.into_iter().filter_map(fits).collect();
    let without = strategy.as_ref().map(|_| all(&plain));
    let plans: Vec<&Compiled> = std::iter::once(&kept).chain(&within).chain(&without).collect();

    let mut seconds: Vec<Vec<Time>> = vec![vec![]; plans.len()];
    for round in 0..rounds {
        for (of_plan, compiled) in seconds.iter_mut().zip(&plans) {
            of_plan.push(time(&compiled.plan, round));
        }
        let clocks: Vec<String> =
            seconds.iter().map(|times| format!("{:.2} s", times[times.len() - 1].clock)).collect();
        eprintln!("round {} of {rounds}: {}", round + 1, clocks.join(", "));
    }
    println!("bench-small, f32, batch {batch}, {}: {rounds} rounds of {STEPS} steps", options.strategy);
    println!("{:>12} {:>8} {:>10} {:>8} {:>10} {:>8}", "activations", "of all", "clock", "", "processor", "");
    for (compiled, times) in plans.iter().zip(&seconds) {
        let bytes = activations(compiled);
        let ratio = |of: fn(&Time) -> f64| {
            let pairs = times.iter().zip(&seconds[0]).map(|(t, kept)| of(t) / of(kept));
            100.0 * (median(pairs.collect()) - 1.0)
        };
        println!(
            "{:>12} {:>6.1} % {:>8.2} s {:>+6.1} % {:>8.2} s {:>+6.1} %",
            human_bytes(bytes),
            100.0 * bytes as f64 / activations(&kept) as f64,
            median(times.iter().map(|t| t.clock).collect()),
            ratio(|t| t.clock),
            median(times.iter().map(|t| t.processor).collect()),
            ratio(|t| t.processor),
        );
    }
}

/// What a step takes, seconds.
#[derive(Clone, Copy)]
struct Time {
    clock: f64,
    processor: f64,
}

/// A few steps of a plan from its first values on.
fn time(plan: &Plan, seed: u64) -> Time {
    let mut executor =
        Executor::new(plan, &ExecOptions { seed, ..ExecOptions::default() }).unwrap_or_else(|e| panic!("{e}"));
    init::initialise(&mut executor).unwrap_or_else(|e| panic!("{e}"));
    let phase = executor.phase_named("train").expect("the plan trains");
    let mut batch = Batch::new(plan.settings.batch, plan.settings.seq);
    let vocab = plan.settings.vocab as i32;
    let tokens = batch.tokens.iter_mut().chain(&mut batch.labels).zip(1i64..);
    tokens.for_each(|(token, i)| *token = (i * i * 7919 % i64::from(vocab)) as i32);
    let mut step = |number: u64| {
        executor.start(phase, &batch, number).unwrap_or_else(|e| panic!("{e}"));
        executor.commit(phase, number).unwrap_or_else(|e| panic!("{e}"));
    };
    step(1);
    let (clock, processor) = (Instant::now(), processor_seconds());
    (2..2 + STEPS).for_each(&mut step);
    let each = |total: f64| total / STEPS as f64;
    Time { clock: each(clock.elapsed().as_secs_f64()), processor: each(processor_seconds() - processor) }
}

/// Seconds that all threads of this process have used; not a number where the system does not say.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may have spaces: user and system time are fields 14 and 15, in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(11) + ticks(12)) / 100.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
