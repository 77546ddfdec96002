//! Improves the orders of a shop by moving single operations: late acceptance hill climbing (Burke and Bykov, 2017).
//!
//! A move shifts one operation, mostly one on a critical path, or the pair that it is part of, a few places within its stage's order. The new orders are replayed whole. They are
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
/// Where there are pairs, of so many moves one makes a pair.
const TOGETHER: usize = 4;
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
            let together = self.shop.has_pairs() && self.random.below(TOGETHER) == 0;
            let moved = if together { self.together() } else { self.moved().map(|moved| [Some(moved), None]) };
            let Some(moved) = moved else {
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
                _ => moved.into_iter().rev().flatten().for_each(|m| m.back().apply(&mut self.orders[m.stage])),
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
            let order = &orders[operation.stage as usize];
            let (start, place) = (clock.start[at as usize], clock.place[at as usize] as usize);
            let before = place.checked_sub(1).map(|place| order[place]);
            let before = before.filter(|o| clock.end[*o as usize] == start);
            let together = if shop.pair(order, place).is_some() { &order[place..place + 3] } else { &[at][..] };
            let needed = |o: &u32| {
                let operation = shop.operation(*o);
                let needs = Some(operation.needs).filter(|n| *n != NONE);
                needs.filter(|n| clock.end[*n as usize] + operation.lag == start)
            };
            let needs = together.iter().find_map(needed);
            at = match (before, needs) {
                (Some(before), Some(needs)) if random.below(2) == 0 => before.min(needs),
                (Some(before), Some(needs)) => before.max(needs),
                (Some(only), None) | (None, Some(only)) => only,
                (None, None) => return,
            };
        }
    }

    /// An operation to move.
    fn picked(&mut self) -> u32 {
        match self.random.below(ANY) {
            0 => self.random.below(self.shop.operations.len()) as u32,
            _ => self.critical[self.random.below(self.critical.len())],
        }
    }

    /// Brings an F ahead of an I or behind it, and the W of that I, to the I, if that is allowed and makes a pair.
    fn together(&mut self) -> Option<[Option<Move>; 2]> {
        let (shop, number) = (self.shop, self.picked());
        let is_ahead = self.random.below(2) == 0;
        let stage = shop.operation(number).stage as usize;
        let order = &mut self.orders[stage];
        let near = order.iter().position(|o| *o == number).expect("an operation is in its stage's order");
        let is = |at: usize, op: Op| shop.operation(order[at]).op == op;
        let input = (near..order.len().min(near + REACH)).find(|at| is(*at, Op::I))?;
        let forward = match is_ahead {
            true => (input.saturating_sub(REACH)..input).rev().find(|at| is(*at, Op::F))?,
            false => (input..order.len().min(input + REACH)).find(|at| is(*at, Op::F))?,
        };
        // An F stays ahead of its own I.
        let own = shop.siblings(order[forward])[1];
        if shop.pair_around(order, input).is_some() || order[forward.min(input)..=input].contains(&own) {
            return None;
        }
        let backward = shop.siblings(order[input])[2];
        let weight = input + order[input..].iter().position(|o| *o == backward).expect("a W comes after its I");
        let first = Move { stage, from: weight, to: input + 1, length: 1 };
        first.apply(order);
        let (from, to) = match forward {
            ahead if ahead < input => (ahead, input - 1),
            between if between < weight => (between + 1, input),
            behind => (behind, input),
        };
        let second = Move { stage, from, to, length: 1 };
        second.apply(order);
        if peak(shop, order) > shop.cap {
            second.back().apply(order);
            first.back().apply(order);
            return None;
        }
        Some([Some(first), Some(second)])
    }

    /// Moves an operation or a pair, if that is allowed.
    fn moved(&mut self) -> Option<Move> {
        let number = self.picked();
        let operation = self.shop.operation(number);
        let stage = operation.stage as usize;
        let order = &mut self.orders[stage];
        let at = order.iter().position(|o| *o == number).expect("an operation is in its stage's order");
        let (from, length) = match self.shop.pair_around(order, at) {
            Some(pair) if self.random.below(2) == 0 => (pair, 3),
            _ => (at, 1),
        };
        let reach = 1 + self.random.below(REACH);
        let to = match self.random.below(2) {
            0 => from.saturating_sub(reach),
            _ => (from + reach).min(order.len() - length),
        };
        let crossed = if from < to { &order[from + length..to + length] } else { &order[to..from] };
        // Micro-batches of a class are alike and stay in order; F, I and W of the same stay in theirs.
        let micros = self.shop.micros;
        let stays = |moved: &u32| {
            let siblings = self.shop.siblings(*moved);
            crossed.iter().any(|o| o / micros == moved / micros || siblings.contains(o))
        };
        if from == to || order[from..from + length].iter().any(stays) {
            return None;
        }
        let moved = Move { stage, from, to, length };
        moved.apply(order);
        let holds_longer = match operation.op {
            _ if length > 1 => true,
            Op::F => to < from,
            Op::W => to > from,
            Op::I | Op::B => false,
        };
        if holds_longer && peak(self.shop, order) > self.shop.cap {
            moved.back().apply(order);
            return None;
        }
        Some(moved)
    }
}

/// Operations of a stage that stand together, and where they go.
#[derive(Clone, Copy)]
struct Move {
    stage: usize,
    from: usize,
    to: usize,
    length: usize,
}

impl Move {
    fn back(self) -> Move {
        Move { from: self.to, to: self.from, ..self }
    }

    fn apply(self, order: &mut [u32]) {
        let Move { from, to, length, .. } = self;
        if from < to {
            order[from..to + length].rotate_left(length);
        } else {
            order[to..from + length].rotate_right(length);
        }
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
