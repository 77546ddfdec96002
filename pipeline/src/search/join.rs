//! Halves of a backward that stand together, made one again: they may share work.

use crate::{Costs, Item, Op, Schedule, Ticks, Work, replay};
use std::collections::HashSet;

/// Replayed items that joining may take.
const ITEMS: usize = 20_000_000;

/// Joins an I and the W behind it where the schedule does not get slower by it: all of them, or halves of the list by turns. With the makespan.
pub fn halves(schedule: Schedule, costs: &Costs) -> (Schedule, Ticks) {
    let candidates = candidates(&schedule, costs);
    let items: usize = schedule.orders().iter().map(Vec::len).sum();
    let makespan = makespan(&schedule, costs);
    let mut joiner = Joiner { costs, schedule, makespan, left: (ITEMS / items.max(1)).max(1) };
    joiner.try_all(&candidates);
    (joiner.schedule, joiner.makespan)
}

fn makespan(schedule: &Schedule, costs: &Costs) -> Ticks {
    replay(schedule, costs).map_or(Ticks::MAX, |timeline| timeline.makespan)
}

/// The stage and the I, of each I whose W stands behind it and that takes less with it.
fn candidates(schedule: &Schedule, costs: &Costs) -> Vec<(usize, Work)> {
    let cheaper = |g: usize| costs.whole[g] < costs.input[g] + costs.weight[g];
    let of_stage = |(stage, order): (usize, &Vec<Item>)| {
        let pairs = order.windows(2).filter_map(move |two| match *two {
            [Item::One(i), Item::One(w)] if i.op == Op::I && w == (Work { op: Op::W, ..i }) => Some((stage, i)),
            _ => None,
        });
        pairs.filter(|(_, i)| cheaper(i.group as usize)).collect::<Vec<_>>()
    };
    schedule.orders().iter().enumerate().flat_map(of_stage).collect()
}

struct Joiner<'a> {
    costs: &'a Costs,
    schedule: Schedule,
    makespan: Ticks,
    /// Replays that are left.
    left: usize,
}

impl Joiner<'_> {
    fn try_all(&mut self, candidates: &[(usize, Work)]) {
        if candidates.is_empty() || self.left == 0 {
            return;
        }
        self.left -= 1;
        let joined = joined(&self.schedule, candidates);
        let makespan = makespan(&joined, self.costs);
        if makespan <= self.makespan {
            (self.schedule, self.makespan) = (joined, makespan);
        } else if candidates.len() > 1 {
            let (front, back) = candidates.split_at(candidates.len() / 2);
            self.try_all(front);
            self.try_all(back);
        }
    }
}

fn joined(schedule: &Schedule, these: &[(usize, Work)]) -> Schedule {
    let mut orders = schedule.orders().to_vec();
    for (stage, order) in orders.iter_mut().enumerate() {
        let of_stage: HashSet<Work> = these.iter().filter(|(s, _)| *s == stage).map(|(_, work)| *work).collect();
        let is_joined = |work: Work| of_stage.contains(&Work { op: Op::I, ..work });
        order.retain(|item| !matches!(item, Item::One(work) if work.op == Op::W && is_joined(*work)));
        for item in order {
            if let Item::One(work) = item
                && of_stage.contains(work)
            {
                work.op = Op::B;
            }
        }
    }
    Schedule::new(schedule.layout(), orders)
}
