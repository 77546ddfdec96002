//! Hints that hold: of the values that a refusal proposes those with which the model really can be shared, or else another change that helps.

use super::model::share;
use super::strategy::{Strategy, StrategyError};
use forebay_dsl::model::CheckedModel;

/// So many values are tried at most, and so many named.
const TRIED: usize = 24;
const NAMED: usize = 4;

/// The refusal, with a hint that was tried.
pub(super) fn tried(error: StrategyError, model: &CheckedModel, strategy: &Strategy) -> StrategyError {
    let Some((key, values)) = error.help.as_deref().and_then(proposal) else { return error };
    let works = |key: &str, value: &u32| {
        let changed = strategy.with(key, *value);
        changed.is_ok_and(|changed| changed.check().is_ok() && share(model, &changed).is_ok())
    };
    let named = |values: Vec<u32>| values.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let good: Vec<u32> = values.into_iter().take(TRIED).filter(|n| works(key, n)).collect();
    if !good.is_empty() {
        return StrategyError { help: Some(format!("use {key} = {}", named(good))), ..error };
    }
    let near = |key: &'static str, now: u32| {
        let mut values: Vec<u32> = (1..=TRIED as u32).filter(|n| *n != now).collect();
        values.sort_by_key(|n| n.abs_diff(now));
        let mut good: Vec<u32> = values.into_iter().filter(|n| works(key, n)).take(NAMED).collect();
        good.sort_unstable();
        (!good.is_empty()).then(|| format!("{key} = {}", named(good)))
    };
    let degrees = [("ep", strategy.ep), ("etp", strategy.etp), ("tp", strategy.tp), ("cp", strategy.cp)];
    let changes: Vec<String> = degrees.into_iter().filter_map(|(key, now)| near(key, now)).collect();
    let help = match changes.is_empty() {
        true => "no change of ep, etp, tp or cp alone helps".to_string(),
        false => format!("use {}", changes.join("; or ")),
    };
    StrategyError { help: Some(help), ..error }
}

/// `use tp = 2, 4`: the key and the values.
fn proposal(help: &str) -> Option<(&str, Vec<u32>)> {
    let (key, values) = help.strip_prefix("use ")?.split_once(" = ")?;
    let values: Result<Vec<u32>, _> = values.split(", ").map(str::parse).collect();
    Some((key, values.ok()?))
}
