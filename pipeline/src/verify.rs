//! Is a schedule right, whoever made it?
//!
//! - every item is about a layer group and a micro-batch that exist, on the stage that holds them;
//! - every layer group of every micro-batch has one F, and either one B or one I and one W;
//! - on its stage a backward comes after its forward, and a W after its I; a pair's works do not need each other;
//! - no stage waits for ever;
//! - no stage holds more activations than the cap.

use crate::{Costs, Item, Op, Schedule, Work, replay};
use std::fmt;

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The stage, where it is one stage's.
    pub stage: u32,
    /// The item of its order, counted from 0, where it is one item's.
    pub index: Option<usize>,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(out, "stage {}, item {index}: {}", self.stage, self.message),
            None => write!(out, "stage {}: {}", self.stage, self.message),
        }
    }
}

/// Problems that are told; one mistake often causes many.
const MOST: usize = 20;

/// Checks a schedule, and with `cap` that no stage ever holds more activations (of a layer group and micro-batch each) than that.
///
/// # Errors
/// The problems, at most twenty. Rules that need others to hold are checked when those do.
pub fn verify(schedule: &Schedule, cap: Option<u32>) -> Result<(), Vec<Problem>> {
    for rule in [places, counts, order, progress] {
        told(rule(schedule))?;
    }
    told(cap.map_or(vec![], |cap| memory(schedule, cap)))
}

fn told(mut problems: Vec<Problem>) -> Result<(), Vec<Problem>> {
    problems.truncate(MOST);
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// All items with their stage and index.
fn items(schedule: &Schedule) -> impl Iterator<Item = (u32, usize, &Item)> {
    (0..)
        .zip(schedule.orders())
        .flat_map(|(stage, order)| order.iter().enumerate().map(move |(i, item)| (stage, i, item)))
}

fn places(schedule: &Schedule) -> Vec<Problem> {
    let layout = schedule.layout();
    let (groups, micros) = (layout.groups(), layout.size.micros);
    let mut problems = vec![];
    for (stage, index, item) in items(schedule) {
        for work in item.works() {
            let message = if work.group >= groups {
                format!("{work} is about layer group {}; there are {groups}", work.group)
            } else if work.micro >= micros {
                format!("{work} is about micro-batch {}; there are {micros}", work.micro)
            } else if layout.stage_of(work.group, work.micro) != stage {
                let holder = layout.stage_of(work.group, work.micro);
                format!("{work} belongs to stage {holder}, which holds layer group {}", work.group)
            } else {
                continue;
            };
            problems.push(Problem { stage, index: Some(index), message });
        }
    }
    problems
}

/// How often each op of each cell is there: by (group, micro-batch) the counts of F, I, W, B.
fn counts(schedule: &Schedule) -> Vec<Problem> {
    let layout = schedule.layout();
    let micros = layout.size.micros;
    let mut counts = vec![[0u32; 4]; layout.groups() as usize * micros as usize];
    for (_, _, item) in items(schedule) {
        for work in item.works() {
            counts[work.group as usize * micros as usize + work.micro as usize][work.op as usize] += 1;
        }
    }
    let mut problems = vec![];
    for (cell, [f, i, w, b]) in (0..).zip(counts) {
        let (group, micro) = (cell / micros, cell % micros);
        let stage = layout.stage_of(group, micro);
        let mut problem = |message| problems.push(Problem { stage, index: None, message });
        let name = |op| Work { op, group, micro };
        match f {
            1 => {}
            0 => problem(format!("{} is missing", name(Op::F))),
            _ => problem(format!("{} is there {f} times", name(Op::F))),
        }
        match (i, w, b) {
            (1, 1, 0) | (0, 0, 1) => {}
            (0, 0, 0) => {
                problem(format!("the backward is missing: {}, or {} and {}", name(Op::B), name(Op::I), name(Op::W)))
            }
            (1, 0, 0) => problem(format!("{} is missing: its I is there", name(Op::W))),
            (0, 1, 0) => problem(format!("{} is missing: its W is there", name(Op::I))),
            (_, _, 1..) if i + w > 0 => problem(format!("{} is there, and so is a part of it", name(Op::B))),
            _ => problem(format!(
                "the backward is done more than once: {} {i} times, {} {w} times, {} {b} times",
                name(Op::I),
                name(Op::W),
                name(Op::B)
            )),
        }
    }
    problems
}

/// Needs within a stage; [`counts`] holds.
fn order(schedule: &Schedule) -> Vec<Problem> {
    let layout = schedule.layout();
    let cells = layout.groups() as usize * layout.size.micros as usize;
    // Which of F (1) and I (2) items before have done.
    let mut done = vec![0u8; cells];
    let cell = |work: Work| work.group as usize * layout.size.micros as usize + work.micro as usize;
    let mut problems = vec![];
    for (stage, index, item) in items(schedule) {
        for work in item.works() {
            let (bit, needs) = match work.op {
                Op::F => continue,
                Op::I | Op::B => (1, Op::F),
                Op::W => (2, Op::I),
            };
            if done[cell(work)] & bit == 0 {
                let message = format!("{work} comes before {} has ended", Work { op: needs, ..work });
                problems.push(Problem { stage, index: Some(index), message });
            }
        }
        for work in item.works() {
            done[cell(work)] |= match work.op {
                Op::F => 1,
                Op::I | Op::B => 2,
                Op::W => 0,
            };
        }
    }
    problems
}

/// No stage waits for ever: the replay proves it, with any costs.
fn progress(schedule: &Schedule) -> Vec<Problem> {
    let costs = Costs::equal(schedule.layout().groups(), 1, 1, 1);
    let Err(stuck) = replay(schedule, &costs) else { return vec![] };
    let problem = |(stage, item, needs): &(u32, Item, Work)| Problem {
        stage: *stage,
        index: schedule.orders()[*stage as usize].iter().position(|i| i == item),
        message: format!("deadlock: {item} waits for {needs}, which never ends"),
    };
    stuck.waiting.iter().map(problem).collect()
}

fn memory(schedule: &Schedule, cap: u32) -> Vec<Problem> {
    let over = |(stage, peak): (u32, u32)| Problem {
        stage,
        index: None,
        message: format!("holds {peak} activations at once; the cap is {cap}"),
    };
    (0..).zip(schedule.peaks()).filter(|(_, peak)| *peak > cap).map(over).collect()
}
