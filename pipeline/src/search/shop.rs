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
        Shop { layout, micros, operations, cap }
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
        let item = |operation: &u32| {
            let (class, micro) = (operation / self.micros, operation % self.micros);
            let op = self.operation(*operation).op;
            Item::One(Work { op, group: class % self.layout.groups(), micro })
        };
        Schedule::new(self.layout, orders.iter().map(|order| order.iter().map(item).collect()).collect())
    }
}
