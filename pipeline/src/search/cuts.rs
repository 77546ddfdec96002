//! Layers cut for the placements that are tried, and the best order for one of the cuts.

use super::{Found, Progress, Request, lies_so, nodes, published, search, within};
use crate::layers::{Cut, LayerCosts, fitted, lower_bound, refitted};
use crate::{Costs, Kind, Layout, Schedule, ScheduleError, Ticks, replay};

/// What was found for layers.
#[derive(Clone, Debug)]
pub struct FoundCut {
    /// The schedule; its bound is that of this cut.
    pub found: Found,
    /// What the groups of the cut cost.
    pub costs: Costs,
    /// How the layers are cut.
    pub cut: Cut,
    /// No schedule of any cut has a smaller makespan, in the tried placements under the cap.
    pub bound: Ticks,
}

/// Cuts layers for each placement of a request so that published schedules are fast, searches, and moves single layers on while what was found gets faster.
/// The request's costs are those of links: nothing else of them counts.
///
/// # Errors
/// As [`search`], or when layers cannot be cut.
pub fn search_cuts(
    layers: &[LayerCosts],
    request: &Request,
    progress: &mut dyn FnMut(Progress),
) -> Result<FoundCut, ScheduleError> {
    let placements = request.placements;
    let nodes = Some(nodes(request).div_ceil(placements.len().max(1) as u64));
    let layouts = placements.iter().map(|placement| Layout { size: request.size, placement: *placement });
    let tried = layouts.clone().map(|layout| {
        let request = Request { placements: &[layout.placement], nodes, ..request.clone() };
        of_placement(layers, layout, &request, progress)
    });
    let tried = tried.collect::<Result<Vec<_>, _>>()?;
    let bound = layouts.map(|layout| lower_bound(layers, layout, request.costs, request.cap)).min().unwrap_or(0);
    let replayed = tried.iter().map(|(found, ..)| found.nodes).sum();
    let best = tried.into_iter().min_by_key(|(found, ..)| found.makespan);
    let (found, costs, cut) = best.ok_or_else(|| ScheduleError::plain("a search needs a placement to try"))?;
    Ok(FoundCut { found: Found { nodes: replayed, ..found }, costs, cut, bound })
}

fn of_placement(
    layers: &[LayerCosts],
    layout: Layout,
    request: &Request,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Found, Costs, Cut), ScheduleError> {
    let linked = |costs| linked(request, costs);
    let least = |costs: &Costs| known(request, layout, costs).map(|(.., makespan)| makespan).min();
    let joint = fitted(layers, layout, linked, least)?;
    // What is fast for the best of them together may not be the best of what each has by itself.
    let own = kept(request, layout, &joint.0).filter_map(|(_, schedule, _)| {
        let makespan = |costs: &Costs| Some(replay(&schedule, costs).ok()?.makespan);
        let (costs, cut) = fitted(layers, layout, linked, makespan).ok()?;
        Some((makespan(&costs)?, (costs, cut)))
    });
    let own = own.min_by_key(|(makespan, _)| *makespan).map(|(_, cut)| cut).filter(|(_, cut)| cut.ends != joint.1.ends);
    let cuts: Vec<(Costs, Cut)> = std::iter::once(joint).chain(own).collect();
    let nodes = Some(nodes(request).div_ceil(cuts.len() as u64));
    let mut replayed = 0;
    let mut tried = vec![];
    for cut in cuts {
        let (found, costs, cut) = of_cut(layers, layout, cut, &Request { nodes, ..request.clone() }, progress)?;
        replayed += found.nodes;
        tried.push((found, costs, cut));
    }
    let (found, costs, cut) = tried.into_iter().min_by_key(|(found, ..)| found.makespan).expect("at least one cut");
    Ok((Found { nodes: replayed, ..found }, costs, cut))
}

/// The costs of groups, with those of the request's links.
fn linked(request: &Request, costs: Costs) -> Costs {
    let Costs { p2p, pair, decimals, .. } = *request.costs;
    Costs { p2p, pair, decimals, ..costs }
}

/// The published schedules of a layout, with their makespans.
fn known(request: &Request, layout: Layout, costs: &Costs) -> impl Iterator<Item = (Kind, Schedule, Ticks)> {
    published(request.size, costs).into_iter().filter(move |(kind, ..)| lies_so(*kind, layout))
}

/// Those of them that keep to the cap.
fn kept(request: &Request, layout: Layout, costs: &Costs) -> impl Iterator<Item = (Kind, Schedule, Ticks)> {
    let cap = request.cap;
    known(request, layout, costs).filter(move |(_, schedule, _)| within(schedule, cap))
}

/// The best order for a cut, and single layers moved on while it gets faster.
fn of_cut(
    layers: &[LayerCosts],
    layout: Layout,
    (costs, cut): (Costs, Cut),
    request: &Request,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Found, Costs, Cut), ScheduleError> {
    let found = search(&Request { costs: &costs, ..request.clone() }, progress)?;
    let makespan = |costs: &Costs| Some(replay(&found.schedule, costs).ok()?.makespan);
    let (costs, cut) = refitted(layers, layout, cut, |costs| linked(request, costs), makespan);
    let makespan = makespan(&costs).unwrap_or(found.makespan);
    let bound = crate::bound::lower_bound(layout, &costs, request.cap);
    // On the groups as they are now a published one may be faster than what was found on others.
    let best = kept(request, layout, &costs).min_by_key(|(.., makespan)| *makespan);
    let found = match best {
        Some((kind, schedule, least)) if least <= makespan => {
            Found { schedule, makespan: least, published: Some(kind), bound, ..found }
        }
        _ => Found { makespan, bound, ..found },
    };
    Ok((found, costs, cut))
}
