//! A first schedule for any placement and cap: each stage does at once what it can do.
//!
//! Of what has come, the backward for the input goes first, then the forward nearest the end of the model, then the backward for the weights. A
//! micro-batch is let in when fewer than cap/v are under way, so that no stage can hold more than the cap, and none waits for ever.

use super::shop::Shop;
use crate::{Op, Size, Ticks};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// The orders; the cap must be the number of chunks at least.
pub fn orders(shop: &Shop) -> Vec<Vec<u32>> {
    let mut line = Line::new(shop);
    line.admit(0);
    while let Some(Reverse((now, event))) = line.events.pop() {
        let stage = match event {
            Event::Ends(operation) => {
                line.ended(operation, now);
                shop.operation(operation).stage
            }
            Event::Comes(operation) => {
                let stage = shop.operation(operation).stage;
                let rank = line.rank(operation);
                line.ready[stage as usize].insert((rank, operation));
                stage
            }
        };
        // All that happens at this moment comes first, then stages choose.
        line.touched.insert(stage);
        if line.events.peek().is_none_or(|Reverse((next, _))| *next > now) {
            for stage in std::mem::take(&mut line.touched) {
                line.start(stage as usize, now);
            }
        }
    }
    line.orders
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ends(u32),
    Comes(u32),
}

struct Line<'a> {
    shop: &'a Shop,
    events: BinaryHeap<Reverse<(Ticks, Event)>>,
    ready: Vec<BTreeSet<((u32, u32), u32)>>,
    busy: Vec<bool>,
    orders: Vec<Vec<u32>>,
    touched: BTreeSet<u32>,
    /// Micro-batches that have come in, and by micro-batch how many Ws are left.
    admitted: u32,
    weights_left: Vec<u32>,
    /// That may be under way.
    most: u32,
    under_way: u32,
}

impl<'a> Line<'a> {
    fn new(shop: &'a Shop) -> Line<'a> {
        let Size { stages, chunks, micros } = shop.layout.size;
        let stages = stages as usize;
        Line {
            shop,
            events: BinaryHeap::new(),
            ready: vec![BTreeSet::new(); stages],
            busy: vec![false; stages],
            orders: vec![vec![]; stages],
            touched: BTreeSet::new(),
            admitted: 0,
            weights_left: vec![shop.layout.groups(); micros as usize],
            most: (shop.cap / chunks).max(1),
            under_way: 0,
        }
    }

    /// What goes first: I, then F from the end of the model, then W; of the same the earlier micro-batch.
    fn rank(&self, operation: u32) -> (u32, u32) {
        let class = operation / self.shop.micros;
        let groups = self.shop.layout.groups();
        match self.shop.operation(operation).op {
            Op::I => (0, class),
            Op::F => (1, groups - class),
            Op::W | Op::B => (2, class),
        }
    }

    fn admit(&mut self, now: Ticks) {
        while self.admitted < self.shop.micros && self.under_way < self.most {
            self.events.push(Reverse((now, Event::Comes(self.admitted))));
            self.admitted += 1;
            self.under_way += 1;
        }
    }

    fn start(&mut self, stage: usize, now: Ticks) {
        if self.busy[stage] {
            return;
        }
        if let Some((_, operation)) = self.ready[stage].pop_first() {
            self.busy[stage] = true;
            self.orders[stage].push(operation);
            self.events.push(Reverse((now + self.shop.operation(operation).ticks, Event::Ends(operation))));
        }
    }

    fn ended(&mut self, operation: u32, now: Ticks) {
        let shop = self.shop;
        let (class, micro) = (operation / shop.micros, operation % shop.micros);
        let groups = shop.layout.groups();
        self.busy[shop.operation(operation).stage as usize] = false;
        let mut comes =
            |class: u32, at: Ticks| self.events.push(Reverse((at, Event::Comes(class * shop.micros + micro))));
        match shop.operation(operation).op {
            Op::F if class + 1 < groups => comes(class + 1, now + shop.operation(operation + shop.micros).lag),
            Op::F => comes(class + groups, now),
            Op::I => {
                comes(class + groups, now);
                if class > groups {
                    comes(class - 1, now + shop.operation(operation - shop.micros).lag);
                }
            }
            Op::W | Op::B => {
                self.weights_left[micro as usize] -= 1;
                if self.weights_left[micro as usize] == 0 {
                    self.under_way -= 1;
                    self.admit(now);
                }
            }
        }
    }
}
