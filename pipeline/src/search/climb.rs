//! Improves the orders of a shop by moving single operations: late acceptance hill climbing (Burke and Bykov, 2017).
//!
//! A move shifts one operation, mostly one on a critical path, a few places within its stage's order. The new orders are replayed whole. They are
//! kept when they are no worse than the present ones, or than those of `history` moves ago. Costs are the makespan, and with little weight the time at
//! which every stage ends, which leads over plateaus. Everything is counted in whole numbers: the same on every machine.

use super::clock::Clock;
use super::random::Random;
use super::shop::{NONE, Shop};
use crate::{Op, Ticks};

/// The farthest that a move goes.
const REACH: usize = 8;
/// Of so many moves one is of any operation, the others of a critical one.
const ANY: usize = 8;
/// Moves in a row that are not allowed, after which there may be none that is.
const HOPELESS: u32 = 20_000;

/// Orders under improvement.
pub struct Climb<'a> {
    shop: &'a Shop,
    clock: Clock,
    random: Random,
    orders: Vec<Vec<u32>>,
    cost: Ticks,
    best: Vec<Vec<u32>>,
    best_makespan: Ticks,
    /// Operations on a longest path, from its end.
    critical: Vec<u32>,
    /// Costs of the last moves, in a ring.
    past: Vec<Ticks>,
    nodes: u64,
}

impl<'a> Climb<'a> {
    /// From orders that respect the cap; acceptance looks `history` moves back. `None` when the orders' stages wait for each other.
    pub fn new(shop: &'a Shop, orders: Vec<Vec<u32>>, history: usize, seed: u64) -> Option<Climb<'a>> {
        let mut climb = Climb {
            shop,
            clock: Clock::new(shop),
            random: Random::new(seed),
            best: orders.clone(),
            orders,
            cost: 0,
            best_makespan: 0,
            critical: vec![],
            past: vec![],
            nodes: 0,
        };
        (climb.cost, climb.best_makespan) = climb.replay()?;
        climb.past = vec![climb.cost; history.max(1)];
        climb.trace();
        Some(climb)
    }

    /// The best orders seen and their makespan.
    pub fn best(&self) -> (&[Vec<u32>], Ticks) {
        (&self.best, self.best_makespan)
    }

    /// Goes on for so many replays, or until the makespan is `goal` or no move is left; whether it could go on.
    pub fn run(&mut self, nodes: u64, goal: Ticks) -> bool {
        let (until, mut refused) = (self.nodes + nodes, 0);
        while self.nodes < until && self.best_makespan > goal && refused < HOPELESS {
            let Some((stage, from, to)) = self.moved() else {
                refused += 1;
                continue;
            };
            (refused, self.nodes) = (0, self.nodes + 1);
            let slot = (self.nodes % self.past.len() as u64) as usize;
            match self.replay() {
                Some((cost, makespan)) if cost <= self.cost || cost <= self.past[slot] => {
                    self.cost = cost;
                    if makespan < self.best_makespan {
                        self.best_makespan = makespan;
                        self.best.clone_from(&self.orders);
                    }
                    self.trace();
                }
                _ => shift(&mut self.orders[stage], to, from),
            }
            self.past[slot] = self.past[slot].min(self.cost);
        }
        self.nodes == until && self.best_makespan > goal
    }

    /// Replays so far.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// The cost of the orders and their makespan.
    fn replay(&mut self) -> Option<(Ticks, Ticks)> {
        let makespan = self.clock.replay(self.shop, &self.orders)?;
        let stages = self.orders.len() as Ticks;
        Some((4 * stages * makespan + self.clock.free.iter().sum::<Ticks>(), makespan))
    }

    /// Follows a longest path back from the end; where two needs end at the same time, either.
    fn trace(&mut self) {
        let Climb { shop, clock, critical, orders, random, .. } = self;
        let makespan = clock.free.iter().max().copied().unwrap_or(0);
        let last: Vec<u32> = orders.iter().filter_map(|o| o.last().copied()).collect();
        let ends: Vec<u32> = last.into_iter().filter(|o| clock.end[*o as usize] == makespan).collect();
        critical.clear();
        let mut at = ends[random.below(ends.len())];
        loop {
            critical.push(at);
            let operation = shop.operation(at);
            let start = clock.end[at as usize] - operation.ticks;
            let place = clock.place[at as usize] as usize;
            let before = place.checked_sub(1).map(|place| orders[operation.stage as usize][place]);
            let before = before.filter(|o| clock.end[*o as usize] == start);
            let needs = Some(operation.needs).filter(|n| *n != NONE);
            let needs = needs.filter(|o| clock.end[*o as usize] + operation.lag == start);
            at = match (before, needs) {
                (Some(before), Some(needs)) if random.below(2) == 0 => before.min(needs),
                (Some(before), Some(needs)) => before.max(needs),
                (Some(only), None) | (None, Some(only)) => only,
                (None, None) => return,
            };
        }
    }

    /// Moves an operation, if that is allowed: its stage, where it was and where it is.
    fn moved(&mut self) -> Option<(usize, usize, usize)> {
        let number = match self.random.below(ANY) {
            0 => self.random.below(self.shop.operations.len()) as u32,
            _ => self.critical[self.random.below(self.critical.len())],
        };
        let operation = self.shop.operation(number);
        let stage = operation.stage as usize;
        let order = &mut self.orders[stage];
        let from = order.iter().position(|o| *o == number).expect("an operation is in its stage's order");
        let reach = 1 + self.random.below(REACH);
        let to = match self.random.below(2) {
            0 => from.saturating_sub(reach),
            _ => (from + reach).min(order.len() - 1),
        };
        let crossed = if from < to { &order[from + 1..=to] } else { &order[to..from] };
        // Micro-batches of a class are alike and stay in order; F, I and W of the same stay in theirs.
        let siblings = self.shop.siblings(number);
        let micros = self.shop.micros;
        if from == to || crossed.iter().any(|o| o / micros == number / micros || siblings.contains(o)) {
            return None;
        }
        shift(order, from, to);
        let holds_longer = operation.op == Op::F && to < from || operation.op == Op::W && to > from;
        if holds_longer && peak(self.shop, order) > self.shop.cap {
            shift(order, to, from);
            return None;
        }
        Some((stage, from, to))
    }
}

/// The most activations that a stage holds.
pub fn peak(shop: &Shop, order: &[u32]) -> u32 {
    let (mut held, mut peak) = (0, 0);
    for operation in order {
        match shop.operation(*operation).op {
            Op::F => held += 1,
            Op::W | Op::B => held -= 1,
            Op::I => {}
        }
        peak = peak.max(held);
    }
    peak
}

fn shift(order: &mut [u32], from: usize, to: usize) {
    if from < to { order[from..=to].rotate_left(1) } else { order[to..=from].rotate_right(1) }
}
