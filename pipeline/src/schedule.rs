//! A schedule: an order for each stage.

use crate::{Item, Layout, Op, ScheduleError};
use std::fmt::Write;

/// For each stage, in which order it does its work. It has no times, and may be wrong: see [`crate::verify`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    layout: Layout,
    orders: Vec<Vec<Item>>,
}

impl Schedule {
    /// Of any orders, one a stage.
    ///
    /// # Panics
    /// When there are not as many orders as stages.
    pub fn new(layout: Layout, orders: Vec<Vec<Item>>) -> Schedule {
        assert_eq!(orders.len(), layout.size.stages as usize, "an order for each stage");
        Schedule { layout, orders }
    }

    /// From text, one string a stage: `F0:0 F0:1 B0:0 …`.
    ///
    /// # Errors
    /// There are not as many strings as stages, or one has a word that is no item.
    pub fn parse(layout: Layout, texts: &[impl AsRef<str>]) -> Result<Schedule, ScheduleError> {
        if texts.len() != layout.size.stages as usize {
            return Err(ScheduleError::plain(format!("{} orders for {} stages", texts.len(), layout.size.stages)));
        }
        let order = |(stage, text): (usize, &_)| -> Result<Vec<Item>, ScheduleError> {
            let words = AsRef::<str>::as_ref(text).split_whitespace();
            words.map(|w| w.parse().map_err(|e| ScheduleError::plain(format!("stage {stage}: {e}")))).collect()
        };
        Ok(Schedule { layout, orders: texts.iter().enumerate().map(order).collect::<Result<_, _>>()? })
    }

    /// Its size and placement.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The order of each stage.
    pub fn orders(&self) -> &[Vec<Item>] {
        &self.orders
    }

    /// The orders as text, one string a stage; [`Schedule::parse`] reads them.
    pub fn texts(&self) -> Vec<String> {
        let text = |order: &Vec<Item>| {
            let mut text = String::with_capacity(order.len() * 8);
            for item in order {
                let gap = if text.is_empty() { "" } else { " " };
                write!(text, "{gap}{item}").expect("strings can be written");
            }
            text
        };
        self.orders.iter().map(text).collect()
    }

    /// The most activations (of one layer group and micro-batch each) that each stage holds at once, from the start of their F to the end of
    /// their W or B. Work of a stage never overlaps except in pairs, so this needs no times: the forward of a pair begins before its backward ends.
    pub fn peaks(&self) -> Vec<u32> {
        self.orders.iter().map(|order| peak(order)).collect()
    }

    /// Whether any item is a pair.
    pub fn has_pairs(&self) -> bool {
        self.orders.iter().flatten().any(|i| matches!(i, Item::Pair(..)))
    }
}

fn peak(order: &[Item]) -> u32 {
    let (mut held, mut peak) = (0u32, 0);
    for item in order {
        held += item.works().filter(|w| w.op == Op::F).count() as u32;
        peak = peak.max(held);
        // A schedule that gives back more than it took is wrong, but has a peak all the same.
        held = held.saturating_sub(item.works().filter(|w| matches!(w.op, Op::W | Op::B)).count() as u32);
    }
    peak
}
