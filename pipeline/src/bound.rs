//! What no schedule of a layout can beat.
//!
//! Of every work we know a *head*, the time before which it cannot start, and a *tail*, the time that must pass after its end, both from the chain
//! F 0 → … → F n−1 → I n−1 → … → I 0 of one micro-batch, p2p included. Each of the following is proven; [`lower_bound`] is the largest.
//!
//! - **One stage**: a set of works of a stage takes at least (least head) + (their sum) + (least tail). For equal stages the set of all works of the last
//!   stage of the fill gives (p − 1)(F + p2p) + m·v·(F + I + W).
//! - **Cap, fill**: before its first I a stage can only do forwards, and no more than the cap; all else comes after the least head of its Is.
//! - **Cap, drain**: after its last F a stage has at most as many backwards left as the cap, and the F's tail must pass.
//! - **Cap, area**: an activation lives from the start of F to the end of W, at least as long as the chain between; a stage has cap × time for them.
//!
//! Where a whole backward takes less than its halves, they are bounded as if they took no more than it.
//!
//! The two in the middle hold only when a stage has more forwards than the cap; they also hold together.
//!
//! Any forward and whole backward may run as a pair, at [`Costs::pair`] or less [`Costs::hidden`]. A stage can then be busy for less than the sum of
//! its works: by the most that each of its forwards can save in a pair, less the least of them, since before the first forward there is no backward to do.

use crate::{Costs, Layout, Ticks};

/// A makespan that no schedule of the layout beats whose stages never hold more than `cap` activations, with pairs or without.
///
/// # Panics
/// When the costs are not those of the layout's groups ([`Costs::check`]).
pub fn lower_bound(layout: Layout, costs: &Costs, cap: Option<u32>) -> Ticks {
    let costs = &least(costs);
    let chain = Chain::new(layout, costs);
    let bound = |stage| {
        let stage = Stage::new(layout, costs, &chain, stage);
        stage.work_bound().max(cap.map_or(0, |cap| stage.cap_bound(cap)))
    };
    (0..layout.size.stages).map(bound).max().unwrap_or(0).max(chain.length)
}

/// Costs of halves that no backward beats, whole or in halves.
fn least(costs: &Costs) -> Costs {
    let input: Vec<Ticks> = costs.input.iter().zip(&costs.whole).map(|(i, whole)| *i.min(whole)).collect();
    let left = costs.whole.iter().zip(&input).map(|(whole, i)| whole - i);
    let weight = costs.weight.iter().zip(left).map(|(w, left)| left.min(*w)).collect();
    let Costs { p2p, pair, hidden, .. } = costs.clone();
    Costs { p2p, pair, hidden, ..Costs::halves(costs.forward.clone(), input, weight) }
}

/// What pairs may take less than their works, on a stage that holds these groups for so many micro-batches each. `costs` are [`least`].
fn saved(costs: &Costs, held: &[(usize, u64)]) -> Ticks {
    let held = held.iter().filter(|(_, count)| *count > 0);
    let backward = held.clone().map(|(g, _)| costs.input[*g] + costs.weight[*g]).max().unwrap_or(0);
    let of = |g: usize| match costs.pair {
        Some(pair) => (costs.forward[g] + backward).saturating_sub(pair),
        None => costs.hidden.get(g).copied().unwrap_or(0),
    };
    let all: Ticks = held.clone().map(|(g, count)| of(*g) * count).sum();
    all - held.map(|(g, _)| of(*g)).min().unwrap_or(0)
}

/// Heads and tails of one micro-batch, by group.
struct Chain {
    forward_head: Vec<Ticks>,
    input_head: Vec<Ticks>,
    /// From the end of I on: the way to group 0 or its own W.
    input_tail: Vec<Ticks>,
    forward_tail: Vec<Ticks>,
    /// Of the whole micro-batch.
    length: Ticks,
}

impl Chain {
    fn new(layout: Layout, costs: &Costs) -> Chain {
        let n = layout.groups() as usize;
        let lag = |g: usize| match layout.stage_of(g as u32, 0) == layout.stage_of(g as u32 + 1, 0) {
            true => 0,
            false => costs.p2p,
        };
        let (mut forward_head, mut input_head) = (vec![0; n], vec![0; n]);
        let (mut input_tail, mut forward_tail) = (vec![0; n], vec![0; n]);
        for g in 1..n {
            forward_head[g] = forward_head[g - 1] + costs.forward[g - 1] + lag(g - 1);
        }
        for g in (0..n).rev() {
            let behind = if g + 1 < n { input_head[g + 1] + costs.input[g + 1] + lag(g) } else { 0 };
            input_head[g] = behind.max(forward_head[g] + costs.forward[g]);
        }
        for g in 0..n {
            let before = if g > 0 { lag(g - 1) + costs.input[g - 1] + input_tail[g - 1] } else { 0 };
            input_tail[g] = before.max(costs.weight[g]);
        }
        for g in (0..n).rev() {
            forward_tail[g] = match g + 1 < n {
                true => lag(g) + costs.forward[g + 1] + forward_tail[g + 1],
                false => costs.input[g] + input_tail[g],
            };
        }
        let length = costs.forward[0] + forward_tail[0];
        Chain { forward_head, input_head, input_tail, forward_tail, length }
    }
}

/// The same work on some micro-batches.
struct Class {
    head: Ticks,
    tail: Ticks,
    ticks: Ticks,
    count: u64,
}

/// The work of a stage.
struct Stage {
    forwards: Vec<Class>,
    inputs: Vec<Class>,
    weights: Vec<Class>,
    /// By group: from the start of F to the end of W at least, and how many micro-batches.
    lives: Vec<(Ticks, u64)>,
    total: Ticks,
    /// By how much less the stage may be busy.
    saved: Ticks,
}

impl Stage {
    fn new(layout: Layout, costs: &Costs, chain: &Chain, stage: u32) -> Stage {
        let held: Vec<(usize, u64)> =
            layout.groups_of(stage).into_iter().map(|g| (g as usize, u64::from(layout.micros_of(stage, g)))).collect();
        let classes = |of: &dyn Fn(usize) -> (Ticks, Ticks, Ticks)| -> Vec<Class> {
            let class = |&(g, count): &(usize, u64)| {
                let (head, ticks, tail) = of(g);
                Class { head, tail, ticks, count }
            };
            held.iter().map(class).collect()
        };
        let forwards = classes(&|g| (chain.forward_head[g], costs.forward[g], chain.forward_tail[g]));
        let inputs = classes(&|g| (chain.input_head[g], costs.input[g], chain.input_tail[g]));
        let weights = classes(&|g| (chain.input_head[g] + costs.input[g], costs.weight[g], 0));
        let life = |&(g, count): &(usize, u64)| {
            (chain.input_head[g] + costs.input[g] + costs.weight[g] - chain.forward_head[g], count)
        };
        let lives = held.iter().map(life).collect();
        let total = [&forwards, &inputs, &weights].into_iter().flatten().map(|c| c.ticks * c.count).sum();
        let saved = saved(costs, &held);
        Stage { forwards, inputs, weights, lives, total, saved }
    }

    /// The largest (least head) + (sum) + (least tail) over sets of works. Of sets with the same least head and tail the largest counts, so it is
    /// enough to try all heads with all tails.
    fn work_bound(&self) -> Ticks {
        let mut classes: Vec<&Class> = [&self.forwards, &self.inputs, &self.weights].into_iter().flatten().collect();
        // By falling tails: a set of those with at least some head grows as the tail falls.
        classes.sort_by_key(|c| std::cmp::Reverse(c.tail));
        let with_head = |head: Ticks| {
            let mut sum = 0;
            let bound = |class: &&Class| {
                sum += class.ticks * class.count;
                (head + sum + class.tail).saturating_sub(self.saved)
            };
            classes.iter().copied().filter(|c| c.head >= head).collect::<Vec<_>>().iter().map(bound).max().unwrap_or(0)
        };
        classes.iter().map(|c| with_head(c.head)).max().unwrap_or(0)
    }

    fn cap_bound(&self, cap: u32) -> Ticks {
        let cap = u64::from(cap);
        let least = |classes: &[Class], of: fn(&Class) -> Ticks| classes.iter().map(of).min().unwrap_or(0);
        let head = least(&self.forwards, |c| c.head);
        let area: u128 = self.lives.iter().map(|(life, count)| u128::from(*life) * u128::from(*count)).sum();
        let area = head + area.div_ceil(u128::from(cap.max(1))) as Ticks;
        if self.forwards.iter().map(|c| c.count).sum::<u64>() <= cap {
            return area;
        }
        let first_input = least(&self.inputs, |c| c.head);
        let last_tail = least(&self.forwards, |c| c.tail);
        let ahead = largest(cap, self.forwards.iter().map(|c| (c.ticks, c.count)));
        let behind = largest(cap, self.inputs.iter().zip(&self.weights).map(|(i, w)| (i.ticks + w.ticks, i.count)));
        let fill = (first_input + self.total).saturating_sub(ahead + self.saved);
        let drain = (head + self.total + last_tail).saturating_sub(behind + self.saved);
        let both = (first_input + self.total + last_tail).saturating_sub(ahead + behind + self.saved);
        area.max(fill).max(drain).max(both)
    }
}

/// The sum of the `most` largest of some values, each with how often it is there.
fn largest(most: u64, values: impl Iterator<Item = (Ticks, u64)>) -> Ticks {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(|a, b| b.cmp(a));
    let mut left = most;
    let take = |(ticks, count): (Ticks, u64)| {
        let taken = count.min(left);
        left -= taken;
        ticks * taken
    };
    values.into_iter().map(take).sum()
}
