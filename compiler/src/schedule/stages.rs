//! Pipeline stages: which layers, tensors and values belong to which, and in which order a stage works.

use super::flow::Flow;
use crate::shard::{Schedule, Strategy, StrategyError};
use forebay_dsl::model::{CheckedModel, Source};
use std::collections::BTreeSet;
use std::ops::Range;

/// What one stage of the pipeline has.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Counted from 0.
    pub number: u32,
    /// How many there are.
    pub of: u32,
    /// Its layers.
    pub layers: Range<usize>,
    /// Parameters of its layers, sorted.
    pub params: Vec<usize>,
    /// States of its layers, sorted.
    pub states: Vec<usize>,
    /// What it gets from the stage before, in order.
    pub receives: Vec<Source>,
    /// What it gives to the stage after, in order.
    pub sends: Vec<Source>,
}

/// The stages of a model.
///
/// # Errors
/// When there are more stages than layers, or given stages do not add up.
pub fn stages(model: &CheckedModel, strategy: &Strategy) -> Result<Vec<Stage>, StrategyError> {
    let of = strategy.pp;
    let ends = ends(model, strategy)?;
    let mut start = 0;
    let ranges: Vec<Range<usize>> = ends.into_iter().map(|end| std::mem::replace(&mut start, end)..end).collect();
    if let Some(tied) = shared_by_stages(model, &ranges) {
        return Err(StrategyError::new(
            format!("`{}` is used by layers of several pipeline stages, which is not supported yet", model.params[tied].name),
            Some("use pp=1".to_string()),
        ));
    }
    let stage = |(number, layers): (usize, &Range<usize>)| {
        let of_layers = |list: fn(&forebay_dsl::model::Layer) -> Vec<usize>| -> Vec<usize> {
            let all: BTreeSet<usize> = model.layers[layers.clone()].iter().flat_map(list).collect();
            all.into_iter().collect()
        };
        let mut params = of_layers(|l| l.params.clone());
        let mut states = of_layers(|l| [&l.states[..], &l.update_states, &l.update_outputs].concat());
        if number == 0 {
            // What no layer uses has to be somewhere.
            let used: BTreeSet<usize> = model.layers.iter().flat_map(|l| l.params.clone()).collect();
            params.extend((0..model.params.len()).filter(|p| !used.contains(p)));
            let used: BTreeSet<usize> =
                model.layers.iter().flat_map(|l| [&l.states[..], &l.update_states, &l.update_outputs].concat()).collect();
            states.extend((0..model.states.len()).filter(|s| !used.contains(s)));
            params.sort_unstable();
            states.sort_unstable();
        }
        let (receives, sends) = (crossing(model, layers.start), crossing(model, layers.end));
        Stage { number: number as u32, of, layers: layers.clone(), params, states, receives, sends }
    };
    Ok(ranges.iter().enumerate().map(stage).collect())
}

/// Where each stage ends: the layers in between divided evenly, the first and the last segment with the first and the last stage.
fn ends(model: &CheckedModel, strategy: &Strategy) -> Result<Vec<usize>, StrategyError> {
    let (stages, n) = (strategy.pp as usize, model.layers.len());
    let inner = n.saturating_sub(2);
    if stages == 1 {
        return Ok(vec![n]);
    }
    let sizes: Vec<usize> = match &strategy.stages {
        Some(sizes) => sizes.iter().map(|s| *s as usize).collect(),
        None => (0..stages).map(|s| inner / stages + usize::from(s < inner % stages)).collect(),
    };
    if sizes.len() != stages || sizes.iter().sum::<usize>() != inner {
        return Err(StrategyError::new(
            format!("`stages` names {} layers in {} stages; the model has {inner} between its first and last part, for pp = {stages}", sizes.iter().sum::<usize>(), sizes.len()),
            None,
        ));
    }
    if inner < stages {
        return Err(StrategyError::new(
            format!("{inner} layers do not fill {stages} pipeline stages"),
            Some(format!("use pp = {} or less", inner.max(1))),
        ));
    }
    let mut end = 1;
    let mut ends: Vec<usize> = sizes
        .into_iter()
        .map(|size| {
            end += size;
            end
        })
        .collect();
    *ends.last_mut().expect("at least one stage") = n;
    Ok(ends)
}

/// A parameter that layers of two stages use.
fn shared_by_stages(model: &CheckedModel, ranges: &[Range<usize>]) -> Option<usize> {
    let mut owner = vec![None; model.params.len()];
    for (stage, layers) in ranges.iter().enumerate() {
        for &param in model.layers[layers.clone()].iter().flat_map(|l| &l.params) {
            if *owner[param].get_or_insert(stage) != stage {
                return Some(param);
            }
        }
    }
    None
}

/// What layers before a boundary make and layers behind it read.
fn crossing(model: &CheckedModel, boundary: usize) -> Vec<Source> {
    let behind = model.layers.get(boundary..).unwrap_or_default();
    let sources: BTreeSet<(usize, usize)> =
        behind.iter().flat_map(|l| &l.carries).filter(|s| s.layer < boundary).map(|s| (s.layer, s.output)).collect();
    sources.into_iter().map(|(layer, output)| Source { layer, output }).collect()
}

/// Does a gradient flow along it?
pub fn has_gradient(model: &CheckedModel, flow: &Flow, source: Source) -> bool {
    flow.outputs[model.layers[source.layer].segment][source.output]
}

/// A piece of a stage's step: all its layers on one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Forward.
    Forward(u32),
    /// Backward.
    Backward(u32),
}

/// The order in which a stage works.
///
/// ```text
/// 1F1B, stage 1 of 3, 4 micro-batches     F0 F1 B0 F2 B1 F3 B2 B3
/// ```
pub fn order(schedule: Schedule, stage: &Stage, micro_batches: u32) -> Vec<Work> {
    let forward = (0..micro_batches).map(Work::Forward);
    let backward = (0..micro_batches).map(Work::Backward);
    match schedule {
        Schedule::Gpipe => forward.chain(backward).collect(),
        Schedule::OneFOneB => {
            // As many micro-batches as there are stages behind are under way before the first comes back.
            let ahead = (stage.of - 1 - stage.number).min(micro_batches) as usize;
            let mut order: Vec<Work> = forward.clone().take(ahead).collect();
            for (forward, backward) in forward.skip(ahead).zip(backward.clone()) {
                order.extend([forward, backward]);
            }
            order.extend(backward.skip((micro_batches as usize).saturating_sub(ahead)));
            order
        }
    }
}
