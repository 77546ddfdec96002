//! What would fit when a strategy does not: changes of it, each compiled and placed.

use crate::model::ModelFile;
use crate::progress::Spinner;
use forebay_compiler::memory::{Aim, Price, enough};
use forebay_compiler::pipeline::{CompileError, CompileOptions};
use forebay_compiler::shard::{Cut, MasterWeights, OptimizerMemory, Order, Strategy};
use forebay_compiler::shares::Shares;
use forebay_pipeline::{Kind, Placement};

/// As many changes that fit are told.
const TOLD: usize = 3;

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
        (Strategy { dp, micro, ..base.clone() }, more)
    };
    for times in [2, 4] {
        let (strategy, more) = fewer(times);
        let (tp, pp) = (base.tp * times, base.pp * times);
        add(format!("tp={tp}{more}"), Strategy { tp, ..strategy.clone() });
        add(format!("pp={pp}{more}"), Strategy { pp, stages: Cut::Even, ..strategy });
    }
    changes
}

/// Tries the changes, and says which fit.
pub fn what_fits(
    file: &ModelFile,
    options: &CompileOptions,
    budget: u64,
    price: &dyn Price,
    spinner: &Spinner,
) -> String {
    let mut fits = vec![];
    let mut tried = vec![];
    for (what, strategy) in changes(options) {
        spinner.says(&format!("it does not fit; trying {what}"));
        let changed = CompileOptions { strategy, ..options.clone() };
        // A change that the model or the batch does not permit is none.
        let compiled = match file.compile_within(&changed, Aim::InSomeWay(budget), price) {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(CompileError::Memory(_))) => {
                tried.push(what);
                continue;
            }
            _ => continue,
        };
        // Nor is one whose time nobody knows: where there is no link to the host.
        if !price.programs(&compiled.plan).is_ok_and(|all| all.iter().all(|s| s.is_finite())) {
            continue;
        }
        let peak = compiled.plan.roles.iter().map(|r| r.device_bytes).max().unwrap_or(0);
        fits.push(format!("{what} (takes {})", enough(peak)));
        if fits.len() == TOLD {
            break;
        }
    }
    match (fits.is_empty(), tried.is_empty()) {
        (false, _) => format!("what fits: {}", fits.join("; ")),
        (true, false) => format!("none of these fits either: {}", tried.join(", ")),
        (true, true) => "the strategy has nothing to change that this model permits".to_string(),
    }
}
