//! The work of a pipeline as the search sees it: operations by number, their machines, needs and costs.

use crate::{Costs, Item, Layout, Op, Placement, Schedule, Ticks, Work};

/// No operation.
pub const NONE: u32 = u32::MAX;

/// A job shop: operation `class · m + k` is the k-th micro-batch of a class, a class an op of a layer group.
///
/// Besides the orders of stages there are two kinds of needs: within a stage F before I before W of the same micro-batch, which orders keep by
/// themselves, and one at most from the group before (F) or behind (I).
pub struct Shop {
    /// How the model lies.
    pub layout: Layout,
    /// Micro-batches.
    pub micros: u32,
    /// All of them, by number.
    pub operations: Vec<Operation>,
    /// The most activations a stage may hold.
    pub cap: u32,
    /// What pairs cost, where works may run as pairs.
    pairs: Option<Costs>,
}

/// An op of a layer group and a micro-batch.
#[derive(Clone, Copy)]
pub struct Operation {
    /// What it costs.
    pub ticks: Ticks,
    /// From the end of what it needs to its start, when that is on another stage.
    pub lag: Ticks,
    /// What it needs of the group before or behind; [`NONE`] for nothing.
    pub needs: u32,
    /// Where it is done.
    pub stage: u32,
    /// What it does.
    pub op: Op,
}

impl Shop {
    /// Of a layout in which a stage holds a layer group for all micro-batches.
    pub fn new(layout: Layout, costs: &Costs, cap: u32) -> Shop {
        assert_ne!(layout.placement, Placement::TwoWay, "the stage of a group does not depend on the micro-batch");
        let (groups, micros) = (layout.groups(), layout.size.micros);
        let operation = |op: Op, group: u32, micro: u32| {
            let neighbour = match op {
                Op::F => group.checked_sub(1),
                Op::I => Some(group + 1).filter(|g| *g < groups),
                Op::W | Op::B => None,
            };
            let stage = layout.stage_of(group, micro);
            let far = neighbour.is_some_and(|g| layout.stage_of(g, micro) != stage);
            Operation {
                ticks: costs.of(Work { op, group, micro }),
                lag: if far { costs.p2p } else { 0 },
                needs: neighbour.map_or(NONE, |g| (op as u32 * groups + g) * micros + micro),
                stage,
                op,
            }
        };
        let classes = [Op::F, Op::I, Op::W].into_iter().flat_map(|op| (0..groups).map(move |group| (op, group)));
        let operations = classes.flat_map(|(op, group)| (0..micros).map(move |k| operation(op, group, k))).collect();
        Shop { layout, micros, operations, cap, pairs: None }
    }

    /// The same, in which an F runs as a pair with an I and its W that stand behind it, where that takes less time.
    pub fn with_pairs(self, costs: &Costs) -> Shop {
        Shop { pairs: Some(costs.clone()), ..self }
    }

    /// Whether works may run as pairs.
    pub fn has_pairs(&self) -> bool {
        self.pairs.is_some()
    }

    /// What the operations at this place of an order take when they run as a pair: an F, and behind it an I and its W of another cell.
    pub fn pair(&self, order: &[u32], at: usize) -> Option<Ticks> {
        let costs = self.pairs.as_ref()?;
        let &[forward, input, weight] = order.get(at..at + 3)?.first_chunk()?;
        let [_, i, w] = self.siblings(input);
        let is_backward = (input, weight) == (i, w);
        if self.operation(forward).op != Op::F || !is_backward || self.siblings(forward)[1] == input {
            return None;
        }
        let group = |operation: u32| operation / self.micros % self.layout.groups();
        let pair = costs.pair_of(group(forward), group(input));
        let apart: Ticks = [forward, input, weight].map(|o| self.operation(o).ticks).iter().sum();
        Some(pair).filter(|pair| *pair < apart)
    }

    /// Where the pair begins of which the operation at this place is a part.
    pub fn pair_around(&self, order: &[u32], at: usize) -> Option<usize> {
        self.pairs.as_ref()?;
        (at.saturating_sub(2)..=at).find(|from| self.pair(order, *from).is_some())
    }

    /// An operation.
    pub fn operation(&self, number: u32) -> &Operation {
        &self.operations[number as usize]
    }

    /// The operations of the same layer group and micro-batch: F, I, W.
    pub fn siblings(&self, operation: u32) -> [u32; 3] {
        let cells = self.layout.groups() * self.micros;
        let cell = operation % cells;
        [cell, cell + cells, cell + 2 * cells]
    }

    /// The orders of a schedule: a whole backward becomes its two parts, a pair its works.
    pub fn orders_of(&self, schedule: &Schedule) -> Vec<Vec<u32>> {
        let number = |op: Op, w: Work| (op as u32 * self.layout.groups() + w.group) * self.micros + w.micro;
        let parts = |work: Work| match work.op {
            Op::B => vec![number(Op::I, work), number(Op::W, work)],
            op => vec![number(op, work)],
        };
        let order = |order: &Vec<Item>| order.iter().flat_map(Item::works).flat_map(parts).collect();
        schedule.orders().iter().map(order).collect()
    }

    /// The schedule of some orders.
    pub fn schedule(&self, orders: &[Vec<u32>]) -> Schedule {
        let work = |operation: u32| {
            let (class, micro) = (operation / self.micros, operation % self.micros);
            Work { op: self.operation(operation).op, group: class % self.layout.groups(), micro }
        };
        let items = |order: &Vec<u32>| {
            let (mut items, mut at) = (Vec::with_capacity(order.len()), 0);
            while at < order.len() {
                if self.pair(order, at).is_some() {
                    items.push(Item::Pair(work(order[at]), Work { op: Op::B, ..work(order[at + 1]) }));
                    at += 3;
                } else {
                    items.push(Item::One(work(order[at])));
                    at += 1;
                }
            }
            items
        };
        Schedule::new(self.layout, orders.iter().map(items).collect())
    }
}
