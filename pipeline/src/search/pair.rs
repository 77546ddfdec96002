//! Forwards brought to the backwards next to them in a stage's order, so that both run as a pair.
//!
//! An I, its W behind it and the nearest F, ahead of it or behind it, come together where no pair stands yet. All that could be brought together is tried
//! at once, then halves of the list by turns: what makes the schedule slower, or holds more than the cap, stays apart.

use super::climb::peak;
use super::clock::Clock;
use super::shop::Shop;
use crate::{Op, Ticks};

/// Where the F of a backward stands.
#[derive(Clone, Copy)]
enum Side {
    Ahead,
    Behind,
}

/// The better of the orders in which Fs behind a backward come to it first, and those in which Fs ahead of it do, with the makespan. At most `most`
/// replays, but two in any case, which are added to `nodes`. `None` when the stages wait for each other.
pub fn paired(shop: &Shop, orders: &[Vec<u32>], most: u64, nodes: &mut u64) -> Option<(Ticks, Vec<Vec<u32>>)> {
    let mut tried = |sides: [Side; 2]| {
        *nodes += 1;
        let mut pairing = Pairing::new(shop, orders, (most / 2).max(1))?;
        for side in sides {
            pairing.all(side);
        }
        *nodes += pairing.took - 1;
        Some((pairing.time, pairing.orders))
    };
    let both = [tried([Side::Behind, Side::Ahead]), tried([Side::Ahead, Side::Behind])];
    let ((makespan, _), orders) = both.into_iter().flatten().min_by_key(|(time, _)| *time)?;
    Some((makespan, orders))
}

struct Pairing<'a> {
    shop: &'a Shop,
    clock: Clock,
    orders: Vec<Vec<u32>>,
    /// The makespan, and the sum of the times at which stages end: of two pairs with the same makespan the one that leaves more room.
    time: (Ticks, Ticks),
    took: u64,
    of: u64,
}

impl<'a> Pairing<'a> {
    fn new(shop: &'a Shop, orders: &[Vec<u32>], of: u64) -> Option<Pairing<'a>> {
        let mut clock = Clock::new(shop);
        let makespan = clock.replay(shop, orders)?;
        let time = (makespan, clock.free.iter().sum());
        Some(Pairing { shop, clock, orders: orders.to_vec(), time, took: 1, of })
    }

    fn all(&mut self, side: Side) {
        let is_input = |o: &u32| self.shop.operation(*o).op == Op::I;
        let inputs: Vec<u32> = self.orders.iter().flatten().copied().filter(is_input).collect();
        self.try_all(side, &inputs);
    }

    fn try_all(&mut self, side: Side, inputs: &[u32]) {
        if inputs.is_empty() || self.took >= self.of {
            return;
        }
        let mut chosen = vec![false; self.shop.operations.len()];
        for input in inputs {
            chosen[*input as usize] = true;
        }
        let orders: Vec<Vec<u32>> = self.orders.iter().map(|order| self.together(order, side, &chosen)).collect();
        if orders == self.orders {
            return;
        }
        if orders.iter().all(|order| peak(self.shop, order) <= self.shop.cap) {
            self.took += 1;
            if let Some(makespan) = self.clock.replay(self.shop, &orders) {
                let time = (makespan, self.clock.free.iter().sum());
                if time <= self.time {
                    (self.orders, self.time) = (orders, time);
                    return;
                }
            }
        }
        if inputs.len() > 1 {
            let (front, back) = inputs.split_at(inputs.len() / 2);
            self.try_all(side, front);
            self.try_all(side, back);
        }
    }

    /// An order in which the chosen Is have an F of this side before them and their W behind them, as far as there is one.
    fn together(&self, order: &[u32], side: Side, chosen: &[bool]) -> Vec<u32> {
        let partners = self.partners(order, side, chosen);
        let mut moves = vec![false; self.shop.operations.len()];
        for (input, forward) in order.iter().zip(&partners).filter_map(|(o, f)| Some((*o, (*f)?))) {
            moves[forward as usize] = true;
            moves[self.shop.siblings(input)[2] as usize] = true;
        }
        let mut together = Vec::with_capacity(order.len());
        for (&operation, partner) in order.iter().zip(partners) {
            match partner {
                Some(forward) => together.extend([forward, operation, self.shop.siblings(operation)[2]]),
                None if moves[operation as usize] => {}
                None => together.push(operation),
            }
        }
        together
    }

    /// By place, the F that comes to the I which stands there: each F to one I at most.
    fn partners(&self, order: &[u32], side: Side, chosen: &[bool]) -> Vec<Option<u32>> {
        let mut partners = vec![None; order.len()];
        let mut places: Vec<usize> = (0..order.len()).collect();
        if let Side::Behind = side {
            places.reverse();
        }
        let mut nearest = None;
        for place in places {
            let operation = order[place];
            // An F stays ahead of its own I.
            nearest = nearest.filter(|forward| self.shop.siblings(*forward)[1] != operation);
            if self.shop.pair_around(order, place).is_some() {
                continue;
            }
            match self.shop.operation(operation).op {
                Op::F => nearest = Some(operation),
                Op::I if chosen[operation as usize] => partners[place] = nearest.take(),
                Op::I | Op::W | Op::B => {}
            }
        }
        partners
    }
}
