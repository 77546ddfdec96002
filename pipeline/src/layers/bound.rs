//! What no schedule beats, however the layers are cut for a layout.
//!
//! A group has at least one layer, so g groups have at least the first g layers ahead of them. What holds for each stage ([`crate::bound`]) is summed up
//! over all stages: then it no longer matters which stage has which layers.
//!
//! - **Stages**: p × time is at least the sum of all stages' heads, works and tails.
//! - **One layer** is on one stage, for all micro-batches.
//! - **Chain**: one micro-batch goes through all layers and back.
//! - **Cap, area**: the lives of all activations fit into p × cap × time.
//!
//! What pairs save depends on the cut. They take as long as their longer part at least: where there can be any, forwards and backwards count for themselves.

use super::LayerCosts;
use crate::{Costs, Layout, Placement, Ticks};

/// What counts of a layer.
type Part = fn(&Least) -> Ticks;

/// A makespan that no schedule beats of any cut of the layers into a layout's groups, whose stages never hold more than `cap` activations. `links` has the
/// costs between stages and of pairs.
///
/// # Panics
/// When there are fewer layers than groups, or a layer is on two stages (the two-way placement).
pub fn lower_bound(layers: &[LayerCosts], layout: Layout, links: &Costs, cap: Option<u32>) -> Ticks {
    assert!(layers.len() >= layout.groups() as usize, "a group has a layer at least");
    assert!(layout.placement != Placement::TwoWay, "each layer is on one stage");
    let layers: Vec<Least> = layers.iter().map(Least::of).collect();
    let paired = links.pair.is_some() || layers.iter().any(|layer| layer.hidden > 0);
    let (forward, input, whole): (Part, Part, Part) = (|l| l.forward, |l| l.input, |l| l.whole);
    // What a stage does one after the other, and whether the way back to the first stage follows all of it.
    let works: &[(&[Part], bool)] = match paired {
        true => &[(&[forward], true), (&[input], true), (&[whole], false)],
        false => &[(&[forward, input], true), (&[forward, whole], false)],
    };
    let cuts = Cuts { layers: &layers, layout, p2p: links.p2p };
    let of_works = works.iter().map(|(parts, tail)| cuts.of_stages(parts, *tail).max(cuts.of_a_layer(parts)));
    let area = cap.map_or(0, |cap| cuts.area(cap));
    of_works.max().unwrap_or(0).max(cuts.chain()).max(area)
}

/// The least that a layer takes, in whole backwards or in halves.
struct Least {
    forward: Ticks,
    input: Ticks,
    whole: Ticks,
    hidden: Ticks,
}

impl Least {
    fn of(layer: &LayerCosts) -> Least {
        let LayerCosts { forward, input, weight, whole, hidden } = *layer;
        Least { forward, input: input.min(whole), whole: whole.min(input + weight), hidden }
    }
}

fn sum(layers: &[Least], parts: &[Part]) -> Ticks {
    layers.iter().flat_map(|layer| parts.iter().map(move |part| part(layer))).sum()
}

/// All cuts of layers for a layout.
struct Cuts<'a> {
    layers: &'a [Least],
    layout: Layout,
    p2p: Ticks,
}

impl Cuts<'_> {
    fn of_stages(&self, parts: &[Part], tail: bool) -> Ticks {
        let around: &[Part] = if tail { &[|l| l.forward, |l| l.input] } else { &[|l| l.forward] };
        let of_stage = |stage: u32| {
            let first = self.layout.groups_of(stage)[0];
            sum(&self.layers[..first as usize], around) + around.len() as Ticks * self.ways(0, first)
        };
        let stages = self.layout.size.stages;
        // Over all stages that can be more than what costs are checked for.
        let work = u128::from(sum(self.layers, parts)) * u128::from(self.layout.size.micros);
        ((0..stages).map(|stage| u128::from(of_stage(stage))).sum::<u128>() + work).div_ceil(u128::from(stages))
            as Ticks
    }

    fn of_a_layer(&self, parts: &[Part]) -> Ticks {
        let largest = self.layers.iter().map(|layer| parts.iter().map(|part| part(layer)).sum::<Ticks>()).max();
        largest.unwrap_or(0) * Ticks::from(self.layout.size.micros)
    }

    fn chain(&self) -> Ticks {
        let weight = self.layers[0].whole - self.layers[0].input;
        sum(self.layers, &[|l| l.forward, |l| l.input]) + weight + 2 * self.ways(0, self.layout.groups() - 1)
    }

    fn area(&self, cap: u32) -> Ticks {
        let groups = self.layout.groups();
        let life = |group: u32| {
            let behind = &self.layers[self.layers.len() - (groups - group) as usize..];
            u128::from(sum(behind, &[|l| l.forward, |l| l.input]) + 2 * self.ways(group, groups - 1))
        };
        let lives = (0..groups).map(life).sum::<u128>() * u128::from(self.layout.size.micros);
        lives.div_ceil(u128::from(self.layout.size.stages) * u128::from(cap.max(1))) as Ticks
    }

    /// From one group to another, what goes over links.
    fn ways(&self, from: u32, to: u32) -> Ticks {
        let stage = |group: u32| self.layout.stage_of(group, 0);
        self.p2p * (from..to).filter(|group| stage(*group) != stage(group + 1)).count() as Ticks
    }
}
