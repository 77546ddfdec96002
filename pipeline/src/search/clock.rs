//! The replay of the search: the same rule as [`crate::replay`], on numbers and in memory that is used again.

use super::shop::{NONE, Shop};
use crate::Ticks;

/// The end of what has not happened.
const NEVER: Ticks = Ticks::MAX;

/// Times of the orders that were replayed last.
pub struct Clock {
    /// When each operation begins and ends; those of a pair at the same time.
    pub start: Vec<Ticks>,
    pub end: Vec<Ticks>,
    /// Where each operation stands in its stage's order, or the pair that it is part of begins.
    pub place: Vec<u32>,
    /// When each stage has done all.
    pub free: Vec<Ticks>,
    next: Vec<usize>,
    /// The stage that waits for an operation, [`NONE`] for none.
    waits: Vec<u32>,
    runnable: Vec<u32>,
}

impl Clock {
    /// For the operations of a shop.
    pub fn new(shop: &Shop) -> Clock {
        let (operations, stages) = (shop.operations.len(), shop.layout.size.stages as usize);
        Clock {
            start: vec![NEVER; operations],
            end: vec![NEVER; operations],
            place: vec![0; operations],
            free: vec![0; stages],
            next: vec![0; stages],
            waits: vec![NONE; operations],
            runnable: vec![],
        }
    }

    /// The makespan; `None` when stages wait for each other.
    pub fn replay(&mut self, shop: &Shop, orders: &[Vec<u32>]) -> Option<Ticks> {
        self.end.fill(NEVER);
        self.waits.fill(NONE);
        self.free.fill(0);
        self.next.fill(0);
        self.runnable.clear();
        self.runnable.extend(0..orders.len() as u32);
        while let Some(stage) = self.runnable.pop() {
            self.advance(shop, stage, &orders[stage as usize]);
        }
        let all = self.next.iter().zip(orders).all(|(next, order)| *next == order.len());
        all.then(|| self.free.iter().copied().max().unwrap_or(0))
    }

    fn advance(&mut self, shop: &Shop, stage: u32, order: &[u32]) {
        let (mut now, mut at) = (self.free[stage as usize], self.next[stage as usize]);
        while at < order.len() {
            let pair = shop.pair(order, at);
            let these = &order[at..at + if pair.is_some() { 3 } else { 1 }];
            let Some(start) = self.ready(shop, stage, these, now) else { break };
            now = start + pair.unwrap_or_else(|| shop.operation(order[at]).ticks);
            for &number in these {
                self.start[number as usize] = start;
                self.end[number as usize] = now;
                self.place[number as usize] = at as u32;
                let waiting = self.waits[number as usize];
                if waiting != NONE {
                    self.runnable.push(waiting);
                }
            }
            at += these.len();
        }
        self.free[stage as usize] = now;
        self.next[stage as usize] = at;
    }

    /// When operations can begin together from `now` on; `None`, and the stage waits, when something that they need has not ended.
    fn ready(&mut self, shop: &Shop, stage: u32, these: &[u32], now: Ticks) -> Option<Ticks> {
        let mut start = now;
        for &number in these {
            let operation = shop.operation(number);
            if operation.needs != NONE {
                let ended = self.end[operation.needs as usize];
                if ended == NEVER {
                    self.waits[operation.needs as usize] = stage;
                    return None;
                }
                start = start.max(ended + operation.lag);
            }
        }
        Some(start)
    }
}
