//! Times for a schedule: each item as early as its stage's order and its dependencies let it.
//!
//! ```text
//! F g:k   needs F g-1:k   (+ p2p if that is on another stage)
//! I g:k   needs F g:k  and  I g+1:k   (+ p2p)
//! W g:k   needs I g:k
//! B g:k   is I and W in one: its I ends when it ends
//! ```
//!
//! A pair begins when both its works can, and both end when it ends. One pass, linear in the number of items.

use crate::{Costs, Item, Op, Schedule, Ticks, Work};
use thiserror::Error;

/// When an item runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its first tick.
    pub start: Ticks,
    /// The tick behind its last.
    pub end: Ticks,
}

/// The times of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// For each stage the times of its items, in its order.
    pub spans: Vec<Vec<Span>>,
    /// When the last item ends.
    pub makespan: Ticks,
    /// Ticks in which each stage works.
    pub busy: Vec<Ticks>,
}

/// Stages wait for each other, or for what nobody does.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", self.text())]
pub struct Stuck {
    /// For each stage that stops early: the stage, the item it cannot do, and what that waits for.
    pub waiting: Vec<(u32, Item, Work)>,
}

impl Stuck {
    fn text(&self) -> String {
        let line =
            |(stage, item, needs): &(u32, Item, Work)| format!("stage {stage} cannot do {item}: {needs} never ends");
        self.waiting.iter().take(8).map(line).collect::<Vec<_>>().join("; ")
    }
}

/// Works out the times.
///
/// # Errors
/// Some item never gets what it needs.
///
/// # Panics
/// When the costs are not those of the schedule's layer groups ([`Costs::check`]).
pub fn replay(schedule: &Schedule, costs: &Costs) -> Result<Timeline, Stuck> {
    let mut machine = Machine::new(schedule, costs);
    let stages = schedule.orders().len();
    let mut runnable: Vec<usize> = (0..stages).rev().collect();
    while let Some(stage) = runnable.pop() {
        machine.advance(stage, &mut runnable);
    }
    machine.finish()
}

/// The end of work that has not happened.
const NEVER: Ticks = Ticks::MAX;

struct Machine<'a> {
    schedule: &'a Schedule,
    costs: &'a Costs,
    micros: usize,
    /// By (group, micro-batch): when F and I end.
    forward: Vec<Ticks>,
    input: Vec<Ticks>,
    /// The stage that waits for F or I of (group, micro-batch), plus one; none is 0.
    waits_forward: Vec<u32>,
    waits_input: Vec<u32>,
    spans: Vec<Vec<Span>>,
    busy: Vec<Ticks>,
}

impl<'a> Machine<'a> {
    fn new(schedule: &'a Schedule, costs: &'a Costs) -> Machine<'a> {
        let micros = schedule.layout().size.micros as usize;
        let cells = schedule.layout().groups() as usize * micros;
        let spans = schedule.orders().iter().map(|order| Vec::with_capacity(order.len())).collect();
        let busy = vec![0; schedule.orders().len()];
        let (never, nobody) = (vec![NEVER; cells], vec![0; cells]);
        let (forward, waits_forward) = (never.clone(), nobody.clone());
        Machine { schedule, costs, micros, forward, input: never, waits_forward, waits_input: nobody, spans, busy }
    }

    /// Does items of a stage until one has to wait; wakes stages that waited for them.
    fn advance(&mut self, stage: usize, runnable: &mut Vec<usize>) {
        let order = &self.schedule.orders()[stage];
        while let Some(item) = order.get(self.spans[stage].len()) {
            let mut start = self.spans[stage].last().map_or(0, |s| s.end);
            for work in item.works() {
                match self.ready(work, stage as u32) {
                    Ok(ready) => start = start.max(ready),
                    Err(needs) => return self.wait(needs, stage),
                }
            }
            let cost = self.costs.of_item(item);
            self.spans[stage].push(Span { start, end: start + cost });
            self.busy[stage] += cost;
            for work in item.works() {
                self.end(work, start + cost, runnable);
            }
        }
    }

    /// When what a work needs is there, or the first thing that is not.
    fn ready(&self, work: Work, stage: u32) -> Result<Ticks, Work> {
        let Work { op, group, micro } = work;
        let last = self.schedule.layout().groups() - 1;
        match op {
            Op::F if group == 0 => Ok(0),
            Op::F => self.ended(Work { op: Op::F, group: group - 1, micro }, stage),
            Op::W => self.ended(Work { op: Op::I, group, micro }, stage),
            Op::I | Op::B => {
                let own = self.ended(Work { op: Op::F, group, micro }, stage)?;
                if group == last {
                    return Ok(own);
                }
                Ok(own.max(self.ended(Work { op: Op::I, group: group + 1, micro }, stage)?))
            }
        }
    }

    /// When F or I of a group and micro-batch has ended and reached a stage.
    fn ended(&self, needs: Work, stage: u32) -> Result<Ticks, Work> {
        let cell = self.cell(needs);
        let end = if needs.op == Op::F { self.forward[cell] } else { self.input[cell] };
        let far = self.schedule.layout().stage_of(needs.group, needs.micro) != stage;
        if end == NEVER { Err(needs) } else { Ok(end + if far { self.costs.p2p } else { 0 }) }
    }

    fn wait(&mut self, needs: Work, stage: usize) {
        let cell = self.cell(needs);
        let waits = if needs.op == Op::F { &mut self.waits_forward } else { &mut self.waits_input };
        waits[cell] = stage as u32 + 1;
    }

    fn end(&mut self, work: Work, end: Ticks, runnable: &mut Vec<usize>) {
        let cell = self.cell(work);
        let waiting = match work.op {
            Op::F => {
                self.forward[cell] = end;
                std::mem::take(&mut self.waits_forward[cell])
            }
            Op::I | Op::B => {
                self.input[cell] = end;
                std::mem::take(&mut self.waits_input[cell])
            }
            Op::W => 0,
        };
        if waiting > 0 {
            runnable.push(waiting as usize - 1);
        }
    }

    fn cell(&self, work: Work) -> usize {
        work.group as usize * self.micros + work.micro as usize
    }

    fn finish(self) -> Result<Timeline, Stuck> {
        let stopped = |(stage, order): (usize, &Vec<Item>)| {
            let item = *order.get(self.spans[stage].len())?;
            let needs = item.works().find_map(|w| self.ready(w, stage as u32).err())?;
            Some((stage as u32, item, needs))
        };
        let waiting: Vec<_> = self.schedule.orders().iter().enumerate().filter_map(stopped).collect();
        if !waiting.is_empty() {
            return Err(Stuck { waiting });
        }
        let makespan = self.spans.iter().filter_map(|s| s.last()).map(|s| s.end).max().unwrap_or(0);
        Ok(Timeline { spans: self.spans, makespan, busy: self.busy })
    }
}
