//! Which layers make which layer group, so that the slowest stage is as fast as it can be.
//!
//! ```text
//! layers      e a a a a a b b b b b b b b h        costs F + I + W of each
//! groups      └─0─┘ └1─┘ └─2─┘ └─3─┘ …             runs of layers, at least one each
//! stage load  the sum over its groups: by the placement two distant ones, say 0 and 7
//! ```
//!
//! The embedding, the head, dense layers and MTP are layers with costs of their own; there are no layers that do nothing. [`cut`] minimises the largest stage
//! load, exactly for the plain placement and for two chunks, by dynamic programming; [`refine`] goes on from there with the makespan of a schedule.

mod bound;
mod exact;
mod local;

use crate::{Costs, Layout, Placement, ScheduleError, Size, Ticks};

pub use bound::lower_bound;

/// Replayed items that [`fitted`] may take.
const FITTED_ITEMS: usize = 20_000_000;

/// The most layers that are cut.
pub const MAX_LAYERS: usize = 1024;
/// Up to so many layers a cut into two interleaved chunks, or a V, is exact.
const EXACT_INTERLEAVED: usize = 96;
const EXACT_WAVE: usize = 256;

/// What a layer costs, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCosts {
    /// Forward.
    pub forward: Ticks,
    /// Backward for the input.
    pub input: Ticks,
    /// Backward for the weights.
    pub weight: Ticks,
    /// The whole backward.
    pub whole: Ticks,
    /// What is hidden when its forward and its whole backward, of two micro-batches, run together.
    pub hidden: Ticks,
}

impl LayerCosts {
    /// With a whole backward that costs what its halves do.
    pub fn halves(forward: Ticks, input: Ticks, weight: Ticks) -> LayerCosts {
        LayerCosts { forward, input, weight, whole: input.saturating_add(weight), hidden: 0 }
    }

    /// All of it, in the cheaper way.
    pub fn total(self) -> Ticks {
        self.forward + self.whole.min(self.input + self.weight)
    }
}

/// Layers cut into groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// For each layer group the layer behind its last.
    pub ends: Vec<usize>,
    /// No cut has a faster slowest stage.
    pub exact: bool,
}

impl Cut {
    /// The costs of its groups; without p2p.
    pub fn costs(&self, layers: &[LayerCosts]) -> Costs {
        let mut costs = Costs::equal(0, 0, 0, 0);
        let mut start = 0;
        for &end in &self.ends {
            let group = &layers[start..end];
            costs.forward.push(group.iter().map(|l| l.forward).sum());
            costs.input.push(group.iter().map(|l| l.input).sum());
            costs.weight.push(group.iter().map(|l| l.weight).sum());
            costs.whole.push(group.iter().map(|l| l.whole).sum());
            costs.hidden.push(group.iter().map(|l| l.hidden).sum());
            start = end;
        }
        if costs.hidden.iter().all(|hidden| *hidden == 0) {
            costs.hidden.clear();
        }
        costs
    }
}

/// Cuts layers into the groups of a layout so that the largest sum of a stage, F + I + W over its groups, is as small as possible.
///
/// # Errors
/// There are fewer layers than groups, or more than [`MAX_LAYERS`], or costs too large to add up; or the layout holds groups twice (two-way).
pub fn cut(layers: &[LayerCosts], layout: Layout) -> Result<Cut, ScheduleError> {
    check(layers, layout)?;
    let totals: Vec<Ticks> = layers.iter().map(|l| l.total()).collect();
    let Size { stages, chunks, .. } = layout.size;
    let exact = match (layout.placement, chunks) {
        (Placement::Blocked, _) | (_, 1) => Some(exact::blocked(&totals, stages as usize, chunks as usize)),
        (Placement::Wave, 2) if totals.len() <= EXACT_WAVE => Some(exact::wave(&totals, layout)),
        (Placement::Interleaved, 2) if totals.len() <= EXACT_INTERLEAVED => Some(exact::interleaved(&totals, layout)),
        _ => None,
    };
    Ok(match exact {
        Some(ends) => Cut { ends, exact: true },
        None => {
            let ends = local::cut(&totals, layout);
            // A bound that is met proves as much as a search through all cuts.
            let exact = slowest(&totals, &ends, layout) == least(&totals, layout);
            Cut { ends, exact }
        }
    })
}

fn check(layers: &[LayerCosts], layout: Layout) -> Result<(), ScheduleError> {
    let groups = layout.groups() as usize;
    if layout.placement == Placement::TwoWay {
        return Err(ScheduleError::new(
            "layers are not cut for the two-way placement",
            "cut them for v, and use dualpipev",
        ));
    }
    if layers.len() < groups {
        return Err(ScheduleError::new(
            format!("{} layers do not fill {groups} layer groups (stages × chunks)", layers.len()),
            "use fewer stages or chunks",
        ));
    }
    if layers.len() > MAX_LAYERS {
        return Err(ScheduleError::plain(format!(
            "{} layers are too many to cut; the most is {MAX_LAYERS}",
            layers.len()
        )));
    }
    let sum: u128 = layers.iter().flat_map(|l| [l.forward, l.input, l.weight, l.whole]).map(u128::from).sum();
    if sum > u128::from(u64::MAX / 4) {
        return Err(ScheduleError::new(
            "these costs are too large to be added up",
            "give them in a larger unit of time",
        ));
    }
    Ok(())
}

/// Tries to move single layers to a neighbouring group while that makes `value` smaller, a makespan say: the slowest stage alone does not decide it.
/// Tries at most `most` cuts.
pub fn refine(cut: Cut, most: usize, mut value: impl FnMut(&Cut) -> Ticks) -> Cut {
    let mut best = value(&cut);
    let (mut cut, mut tried) = (cut, 0);
    loop {
        let neighbours: Vec<Cut> = local::neighbours(&cut.ends).map(|ends| Cut { ends, exact: false }).collect();
        let better = neighbours.into_iter().take(most - tried).find(|next| {
            tried += 1;
            let reached = value(next);
            let better = reached < best;
            best = best.min(reached);
            better
        });
        match better {
            Some(next) => cut = next,
            None => return cut,
        }
    }
}

/// Cuts layers, and moves single ones on while `makespan` gets smaller: from where the slowest stage is fast, and from where groups are alike. With several groups a stage the first may have
/// very uneven ones, which moves of single layers do not mend. Costs of links are for `linked` to add.
///
/// # Errors
/// As [`cut`].
pub fn fitted(
    layers: &[LayerCosts],
    layout: Layout,
    linked: impl Fn(Costs) -> Costs,
    makespan: impl Fn(&Costs) -> Option<Ticks>,
) -> Result<(Costs, Cut), ScheduleError> {
    let balanced = cut(layers, layout)?;
    linked(balanced.costs(layers)).check(layout)?;
    let value = |cut: &Cut| valued(&linked(cut.costs(layers)), layout, &makespan);
    let alike = alike(layers, layout).min_by_key(value).filter(|cut| cut.ends != balanced.ends);
    let starts: Vec<Cut> = [Some(balanced), alike].into_iter().flatten().collect();
    let most = moves(layout) / starts.len();
    let best = starts.into_iter().map(|start| refine(start, most.max(1), value)).min_by_key(value);
    let best = best.expect("there is a start");
    Ok((linked(best.costs(layers)), best))
}

/// Cuts whose groups are alike: in what they cost, and in the number of their layers, the first and the last one aside.
fn alike(layers: &[LayerCosts], layout: Layout) -> impl Iterator<Item = Cut> {
    let totals: Vec<Ticks> = layers.iter().map(|l| l.total()).collect();
    let (n, groups) = (layers.len(), layout.groups() as usize);
    let by_number = (n >= groups + 2).then(|| {
        let end = |group: usize| if group == groups { n } else { 1 + (n - 2) * group / groups };
        (1..=groups).map(end).collect()
    });
    [Some(local::even(&totals, groups)), by_number].into_iter().flatten().map(|ends| Cut { ends, exact: false })
}

/// The makespan of groups that cost so much. Costs of pairs may not fit the parts of every cut.
fn valued(costs: &Costs, layout: Layout, makespan: impl Fn(&Costs) -> Option<Ticks>) -> Ticks {
    Some(costs).filter(|costs| costs.check(layout).is_ok()).and_then(makespan).unwrap_or(Ticks::MAX)
}

/// Cuts that are tried.
fn moves(layout: Layout) -> usize {
    FITTED_ITEMS / (3 * layout.groups() as usize * layout.size.micros as usize)
}

/// The same from a cut on.
pub fn refitted(
    layers: &[LayerCosts],
    layout: Layout,
    cut: Cut,
    linked: impl Fn(Costs) -> Costs,
    makespan: impl Fn(&Costs) -> Option<Ticks>,
) -> (Costs, Cut) {
    let value = |cut: &Cut| valued(&linked(cut.costs(layers)), layout, &makespan);
    let best = refine(cut, moves(layout).max(1), value);
    (linked(best.costs(layers)), best)
}

/// The largest load of a stage.
fn slowest(totals: &[Ticks], ends: &[usize], layout: Layout) -> Ticks {
    loads(totals, ends, layout).into_iter().max().unwrap_or(0)
}

fn loads(totals: &[Ticks], ends: &[usize], layout: Layout) -> Vec<Ticks> {
    let mut loads = vec![0; layout.size.stages as usize];
    let mut start = 0;
    for (group, &end) in (0..).zip(ends) {
        loads[layout.stage_of(group, 0) as usize] += totals[start..end].iter().sum::<Ticks>();
        start = end;
    }
    loads
}

/// What the slowest stage takes at least: an even share, or the largest layer.
fn least(totals: &[Ticks], layout: Layout) -> Ticks {
    let share = totals.iter().sum::<Ticks>().div_ceil(u64::from(layout.size.stages));
    share.max(totals.iter().max().copied().unwrap_or(0))
}
