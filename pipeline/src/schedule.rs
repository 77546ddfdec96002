//! A schedule: an order for each stage.

use crate::{Item, Layout, Op, Placement, ScheduleError, Size, Work};
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

    /// From text alone: how large it is and how groups lie follows from what the stages do.
    ///
    /// # Errors
    /// A string has a word that is no item; the stages' groups lie in none of the placements; or the schedule is not valid ([`crate::verify()`]).
    pub fn infer(texts: &[impl AsRef<str>]) -> Result<Schedule, ScheduleError> {
        let stages = u32::try_from(texts.len()).unwrap_or(u32::MAX);
        let (mut groups, mut micros) = (0, 0);
        let unplaced = Layout { size: Size::new(stages, 1, 1)?, placement: Placement::Blocked };
        let orders = Schedule::parse(unplaced, texts)?.orders;
        for work in orders.iter().flatten().flat_map(Item::works) {
            groups = groups.max(work.group.saturating_add(1));
            micros = micros.max(work.micro.saturating_add(1));
        }
        let chunks = groups.div_ceil(stages);
        let size = Size::new(stages, chunks, micros)?;
        let here = |layout: Layout, stage: u32, work: Work| {
            work.group < layout.groups() && layout.stage_of(work.group, work.micro) == stage
        };
        let fits = |layout: &Layout| {
            let mut all =
                (0..).zip(&orders).flat_map(|(s, order)| order.iter().flat_map(Item::works).map(move |w| (s, w)));
            all.all(|(stage, work)| here(*layout, stage, work))
        };
        let placements = [Placement::Blocked, Placement::Interleaved, Placement::Wave];
        let once = placements.into_iter().map(|placement| Layout { size, placement });
        // Groups that are on two stages count twice; each way has micro-batches.
        let two_way = || {
            let size = Size::new(stages, chunks.saturating_mul(2), micros).ok()?;
            (stages.is_multiple_of(2) && micros > 1).then_some(Layout { size, placement: Placement::TwoWay })
        };
        let layout = once.into_iter().find(fits).or_else(|| two_way().filter(fits)).ok_or_else(|| {
            ScheduleError::new(
                "its layer groups do not lie on the stages in any way that is known",
                "they lie one after another, go round the stages, there and back again, or both ways at once",
            )
        })?;
        let schedule = Schedule { layout, orders };
        match crate::verify(&schedule, None) {
            Ok(()) => Ok(schedule),
            Err(problems) => {
                let told: Vec<String> = problems.iter().take(3).map(ToString::to_string).collect();
                Err(ScheduleError::plain(told.join("; ")))
            }
        }
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
