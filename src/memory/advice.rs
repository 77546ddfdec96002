//! What would fit when a strategy does not: changes of it, each compiled and placed.

use crate::model::ModelFile;
use crate::progress::Spinner;
use forebay_compiler::memory::{Aim, Price, enough};
use forebay_compiler::pipeline::{CompileError, CompileOptions};
use forebay_compiler::shard::{Cut, MasterWeights, OptimizerMemory, Order, Strategy};
use forebay_compiler::shares::Shares;
use forebay_pipeline::{Kind, Placement};
use forebay_sim::threads::each_until;
use std::sync::atomic::{AtomicUsize, Ordering};

/// As many changes that fit are told.
const TOLD: usize = 3;

/// Each change takes memory while it is tried, and is tried to its end.
const MOST_THREADS: usize = 4;

/// Changes of a strategy that take less memory, those that cost least first.
fn changes(options: &CompileOptions) -> Vec<(String, Strategy)> {
    let mut changes = vec![];
    let mut add = |what: String, strategy: Strategy| changes.push((what, strategy));
    // The best published schedule is near enough to what a search would find.
    let nodes = (options.strategy.schedule == Order::Search).then_some(1);
    let (base, micro_batches) = (Strategy { nodes, ..options.strategy.clone() }, options.micro_batches);
    // It costs nothing.
    let split = Strategy { master_weights: MasterWeights::Split, ..base.clone() };
    if base.master_weights != MasterWeights::Split && split.check_master_weights(options.compute).is_ok() {
        add("master_weights=split".into(), split);
    }
    if base.shares == Shares::After {
        add("shares=before".into(), Strategy { shares: Shares::Before, ..base.clone() });
    }
    match base.mbs {
        Some(mbs) => {
            for part in [2, 4].into_iter().filter(|part| mbs % part == 0) {
                let micro = base.micro.map(|micro| micro * part);
                add(format!("mbs={}", mbs / part), Strategy { mbs: Some(mbs / part), micro, ..base.clone() });
            }
        }
        None => {
            let micro = base.micro.unwrap_or(micro_batches);
            for times in [2, 4] {
                let micro = micro.saturating_mul(times);
                add(format!("micro={micro}"), Strategy { micro: Some(micro), ..base.clone() });
            }
        }
    }
    if let Some(ranks) = base.hsdp.filter(|ranks| *ranks < base.dp) {
        let larger = [2, 4].into_iter().map(|times| ranks.saturating_mul(times)).filter(|ranks| *ranks < base.dp);
        for ranks in larger.filter(|ranks| base.dp.is_multiple_of(*ranks)) {
            add(format!("hsdp={ranks}"), Strategy { hsdp: Some(ranks), ..base.clone() });
        }
        add("no hsdp".into(), Strategy { hsdp: None, ..base.clone() });
    }
    if base.dp > 1 || base.cp > 1 {
        for zero in base.zero + 1..=3 {
            add(format!("zero={zero}"), Strategy { zero, ..base.clone() });
        }
    }
    if base.optimizer == OptimizerMemory::Device {
        add("optimizer=host".into(), Strategy { optimizer: OptimizerMemory::Host, ..base.clone() });
    }
    if base.schedule.placement() == Some(Placement::TwoWay) {
        // Half of the parameters, on as many stages.
        let schedule = Order::Published(Kind::DualPipeV);
        add("schedule=dualpipev,vpp=2".into(), Strategy { schedule, vpp: 2, stages: Cut::Even, ..base.clone() });
    }
    // The same devices, and the same rows of a step, where there are data-parallel ranks to take.
    let fewer = |times: u32| {
        let shared = base.dp.is_multiple_of(times);
        let (dp, more) =
            if shared { (base.dp / times, String::new()) } else { (base.dp, format!(" on {times} × the devices")) };
        let micro = base.micro.map(|micro| if shared { micro * times } else { micro });
        let hsdp = base.hsdp.filter(|ranks| dp.is_multiple_of(*ranks));
        (Strategy { dp, micro, hsdp, ..base.clone() }, more)
    };
    for times in [2, 4] {
        let (strategy, more) = fewer(times);
        let (tp, pp) = (base.tp * times, base.pp * times);
        add(format!("tp={tp}{more}"), Strategy { tp, ..strategy.clone() });
        add(format!("pp={pp}{more}"), Strategy { pp, stages: Cut::Even, ..strategy });
    }
    changes
}

/// What came of a change.
enum Outcome {
    Fits(String),
    TooLarge(String),
    /// The model or the batch does not permit it, or nobody knows its time.
    None,
}

/// Tries the changes, and says which fit: the first of them, whatever threads there are.
pub fn what_fits(
    file: &ModelFile,
    options: &CompileOptions,
    budget: u64,
    price: &dyn Price,
    spinner: &Spinner,
) -> String {
    let outcome = |(what, strategy): &(String, Strategy)| {
        spinner.says(&format!("it does not fit; trying {what}"));
        let changed = CompileOptions { strategy: strategy.clone(), ..options.clone() };
        match file.compile_within(&changed, Aim::InSomeWay(budget), price) {
            // One whose time nobody knows is none: where there is no link to the host.
            Ok(Ok(compiled)) if price.programs(&compiled.plan).is_ok_and(|all| all.iter().all(|s| s.is_finite())) => {
                let peak = compiled.plan.roles.iter().map(|r| r.device_bytes).max().unwrap_or(0);
                Outcome::Fits(format!("{what} (takes {})", enough(peak)))
            }
            Ok(Err(CompileError::Memory(_))) => Outcome::TooLarge(what.clone()),
            _ => Outcome::None,
        }
    };
    let (mut fits, mut tried) = (vec![], vec![]);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(MOST_THREADS);
    let fitting = AtomicUsize::new(0);
    let last = |o: &Outcome| matches!(o, Outcome::Fits(_)) && fitting.fetch_add(1, Ordering::Relaxed) + 1 >= TOLD;
    for outcome in each_until(&changes(options), threads, outcome, last) {
        match outcome {
            Outcome::Fits(what) if fits.len() < TOLD => fits.push(what),
            Outcome::TooLarge(what) => tried.push(what),
            Outcome::Fits(_) | Outcome::None => {}
        }
    }
    match (fits.is_empty(), tried.is_empty()) {
        (false, _) => format!("what fits: {}", fits.join("; ")),
        (true, false) => format!("none of these fits either: {}", tried.join(", ")),
        (true, true) => "the strategy has nothing to change that this model permits".to_string(),
    }
}
