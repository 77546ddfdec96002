//! Pairs in fill and drain: a stage that only goes forward takes two micro-batches at once, and so does one that only goes backward.
//!
//! ```text
//! F0 F1 F2 F3&B0 F4&B1 B2 B3 B4      ──►      F0&F1 F2 F3&B0 F4&B1 B2&B3 B4
//! ```
//!
//! A schedule that pairs forward with backward hides communication where there are both: in between. Before its first backward and after its last forward a
//! stage has only work of one kind, whose communication nothing hides. Neighbours of the same layer group need nothing of each other. Pairs begin at even
//! micro-batches, so that neighbouring stages have the same ones.

use crate::{Item, Op, Schedule, verify};

/// The schedule with pairs in fill and drain; nothing when it has no pairs at all, or when stages would wait for each other.
pub fn paired_alike(schedule: &Schedule) -> Option<Schedule> {
    if !schedule.has_pairs() {
        return None;
    }
    let orders = schedule.orders().iter().map(|order| paired(order)).collect();
    let paired = Schedule::new(schedule.layout(), orders);
    (paired != *schedule && verify(&paired, None).is_ok()).then_some(paired)
}

fn paired(order: &[Item]) -> Vec<Item> {
    let is = |item: &Item, op: Op| item.works().any(|work| work.op == op);
    let first_backward = order.iter().position(|item| is(item, Op::B) || is(item, Op::I)).unwrap_or(order.len());
    let last_forward = order.iter().rposition(|item| is(item, Op::F)).map_or(0, |at| at + 1);
    let mut items = Vec::with_capacity(order.len());
    let mut at = 0;
    while at < order.len() {
        let pair = match order[at..] {
            [Item::One(a), Item::One(b), ..] => {
                let place = match a.op {
                    Op::F => at + 1 < first_backward,
                    Op::B => at >= last_forward,
                    Op::I | Op::W => false,
                };
                let neighbours = a.op == b.op && a.group == b.group && a.micro % 2 == 0 && b.micro == a.micro + 1;
                (place && neighbours).then_some(Item::Pair(a, b))
            }
            _ => None,
        };
        items.push(pair.unwrap_or(order[at]));
        at += if pair.is_some() { 2 } else { 1 };
    }
    items
}
