//! Saved tensors to the host's memory and back, on streams of their own.
//!
//! ```text
//! compute    F 0 │ F 1 │ F 2 │  …  │ B 2 │ B 1 │ B 0 │
//! copy-out       │ 0 → │ 1 → │ 2 →                         to the host once a layer has made them
//! copy-in                    │ → 2 │ → 1 │ → 0 │           back while the layers before it run
//! ```
//!
//! Time is counted in *steps*: a layer's call, or two that the schedule pairs or brings together. The device memory of a layer's tensors is given up some steps after they were made
//! (above: one), so that nothing waits for a copy that takes no longer; they come back into other memory as many steps before they are read. What would be read
//! about as soon as it has left stays.
//!
//! Of a ragged tensor the rows that came are copied. How many they are is read from its group starts, which stay on the device; its place in the host's memory has
//! room for the bound.

use super::bind::{Moved, SavedLayout, Want};
use super::borders::{crosses, hurries};
use super::layers::{Cx, Half};
use super::phases::{Scheduler, Turns};
use super::shared::{Run, Shared};
use super::stages::{Stage, Work};
use super::timeline::{Bind, Item};
use super::{Compiled, Programs};
use forebay_plan as plan;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// A layer on a micro-batch, and what of it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Visit {
    /// Forward.
    Forward(usize, u32),
    /// Backward, or a half of it.
    Backward(usize, u32, Half),
}

/// Where a layer's swapped tensors are.
#[derive(Clone, Copy, Debug)]
enum Place {
    Device(Item),
    Host(Item),
}

/// The swapped tensors of a layer on a micro-batch.
#[derive(Clone, Copy, Debug)]
struct Swapped {
    place: Place,
    /// What stays on the device, group starts among it.
    saved: Option<Item>,
}

/// What is swapped in a phase, and when it leaves and returns.
#[derive(Default)]
pub struct Swaps {
    /// Steps that copies have in each direction.
    ahead: u32,
    /// When layers run.
    steps: FxHashMap<Visit, u32>,
    /// What comes back, by the step in which its copy is listed, the last first.
    returns: Vec<(u32, (usize, u32))>,
    /// What is being copied to the host, and the step after which its memory is given up.
    leaving: Vec<(u32, Item)>,
    swapped: FxHashMap<(usize, u32), Swapped>,
}

impl Swaps {
    /// For a stage that takes these turns. `borders`: are layers at their borders brought together? Copies have so many steps in each direction.
    pub fn new(cx: &Cx, turns: &Turns, borders: bool, ahead: u32) -> Swaps {
        let mut swaps = Swaps { ahead, ..Swaps::default() };
        let mut now = 0;
        for (turn, crossed) in turns.order.iter().zip(turns.crossed) {
            let (crosses, hurries) = (borders && *crossed && crosses(cx, turn), borders && hurries(cx, turn));
            let begin = now - u32::from(crosses);
            for work in turn.works() {
                let visits = visits(cx.stage, work);
                let last = visits.len() as u32 - 1;
                let step = |at: u32| begin + at - u32::from(hurries && at == last);
                now = now.max(step(last) + 1);
                swaps.steps.extend(visits.into_iter().zip((0..).map(step)));
            }
        }
        let mut returns: Vec<(u32, (usize, u32))> = vec![];
        for (&visit, &read) in &swaps.steps {
            let Visit::Backward(l, micro_batch, half) = visit else { continue };
            let swaps_any = cx.saved[cx.sharded.model.layers[l].segment].swapped > 0;
            if swaps_any && half != Half::Weights && swaps.leaves(l, micro_batch) {
                returns.push((read - ahead, (l, micro_batch)));
            }
        }
        // (What is read later is listed later.)
        returns.sort_unstable_by_key(|&(step, (l, micro_batch))| std::cmp::Reverse((step, micro_batch, l)));
        Swaps { returns, ..swaps }
    }

    /// The steps in which a layer runs forward, and first backward.
    pub fn between(&self, l: usize, micro_batch: u32) -> Option<(u32, u32)> {
        let read = [Half::Whole, Half::Input].map(|half| self.steps.get(&Visit::Backward(l, micro_batch, half)));
        let made = self.steps.get(&Visit::Forward(l, micro_batch))?;
        Some((*made, *read.into_iter().flatten().next()?))
    }

    fn leaves(&self, l: usize, micro_batch: u32) -> bool {
        self.between(l, micro_batch).is_some_and(|steps| leaves(steps, self.ahead))
    }

    /// What runs in each step.
    pub fn runs(&self, cx: &Cx) -> Vec<Vec<Run>> {
        let steps = self.steps.values().max().map_or(0, |last| *last as usize + 1);
        let mut runs = vec![vec![]; steps];
        let mut visits: Vec<(u32, Visit)> = self.steps.iter().map(|(visit, step)| (*step, *visit)).collect();
        visits.sort_unstable();
        for (step, visit) in visits {
            let (l, backward) = match visit {
                Visit::Forward(l, _) => (l, None),
                Visit::Backward(l, _, half) => (l, Some(half)),
            };
            runs[step as usize].push(Run { segment: cx.sharded.model.layers[l].segment, backward });
        }
        runs
    }

    /// The memory of a layer's swapped tensors on the device.
    ///
    /// # Panics
    /// When they are away: they are copied in before anything reads them.
    pub fn here(&self, l: usize, micro_batch: u32) -> Item {
        match self.swapped[&(l, micro_batch)].place {
            Place::Device(item) => item,
            Place::Host(_) => panic!("swapped tensors are copied in before they are read"),
        }
    }

    fn step(&self, visit: Visit) -> u32 {
        self.steps.get(&visit).copied().unwrap_or(0)
    }
}

/// Is there anything to gain between the steps in which something is made and read, or would it come back as soon as its memory is given up?
pub fn leaves((made, read): (u32, u32), ahead: u32) -> bool {
    read >= made + 2 * ahead + 2
}

/// The layers of a work, in order.
fn visits(stage: &Stage, work: Work) -> Vec<Visit> {
    match work {
        Work::Forward(m, c) => stage.chunks[c as usize].layers.clone().map(|l| Visit::Forward(l, m)).collect(),
        Work::Backward(m, c, half) => {
            stage.chunks[c as usize].layers.clone().rev().map(|l| Visit::Backward(l, m, half)).collect()
        }
    }
}

impl Shared {
    /// A layer has run: what left for the host some steps ago need not wait any longer.
    pub(super) fn left(&mut self, visit: Visit) {
        let now = self.swaps.step(visit);
        let (gone, leaving) = std::mem::take(&mut self.swaps.leaving).into_iter().partition(|(step, _)| *step <= now);
        self.swaps.leaving = leaving;
        let gone: Vec<(u32, Item)> = gone;
        gone.into_iter().for_each(|(_, item)| self.timeline.keep(item));
    }
}

impl Programs {
    /// The memory that a program copies swapped tensors to, if it does that.
    pub(super) fn copies(&self, program: u32) -> Option<plan::Space> {
        match &self.list[program as usize].slots[..] {
            [from, to, ..] if from.space != to.space => Some(to.space),
            _ => None,
        }
    }

    /// The program that copies a layer's swapped tensors between the memories, in the direction of `to`. `name` is that of what saves them.
    fn copy(&mut self, name: &str, layout: &SavedLayout, to: plan::Space) -> Rc<Compiled> {
        let (name, from) = match to {
            plan::Space::Host => (format!("swap.out.{name}"), plan::Space::Device),
            plan::Space::Device => (format!("swap.in.{name}"), plan::Space::Host),
        };
        if let Some(known) = self.cache.get(&name) {
            return known.clone();
        }
        let slot = |name: &str, access, space, bytes| plan::Slot { name: name.into(), access, space, bytes };
        let mut slots = vec![
            slot("from", plan::Access::Read, from, layout.swapped),
            slot("to", plan::Access::Write, to, layout.swapped),
        ];
        let mut wants = vec![Want::CarryIn("from".into()), Want::CarryOut("to".into())];
        let copies: Vec<Copy> = copies(&layout.moved);
        if copies.iter().any(|copy| copy.starts.is_some()) {
            slots.push(slot("saved", plan::Access::Read, plan::Space::Device, layout.bytes));
            wants.push(Want::Saved);
        }
        let bytes = slots.iter().map(|s| s.bytes).collect();
        slots.push(slot("frame", plan::Access::Scratch, plan::Space::Device, 0));
        let mut program = plan::Program {
            name: name.clone(),
            slots,
            buffers: vec![],
            streams: vec![plan::StreamKind::Cube],
            events: 0,
            instructions: vec![],
        };
        copies.iter().for_each(|copy| copy.append(&mut program));
        self.add(&name, program, (wants, bytes), 0)
    }
}

/// The slots of a program that copies.
const FROM: u32 = 0;
const TO: u32 = 1;
const SAVED: u32 = 2;

/// One piece of what is swapped. What its bytes mean does not matter, so they are copied four by four.
struct Copy {
    offset: u64,
    dims: Vec<u64>,
    /// The place of the group starts, how many groups there are, and the rows of an even choice, where the second dimension is ragged.
    starts: Option<(u64, u64, u64)>,
}

/// Ragged tensors each by itself, as far as their rows go; what lies between them in one piece.
fn copies(moved: &[Moved]) -> Vec<Copy> {
    let word = plan::DType::I32.bytes();
    let mut copies: Vec<Copy> = vec![];
    for Moved { offset, bytes, rows } in moved {
        let ragged = rows.as_ref().filter(|rows| rows.bytes % word == 0);
        match (ragged, copies.last_mut()) {
            (Some(rows), _) => copies.push(Copy {
                offset: *offset,
                dims: vec![rows.times, rows.bound, rows.bytes / word],
                starts: Some((rows.starts, rows.groups, rows.even)),
            }),
            (None, Some(Copy { dims, starts: None, .. })) => dims[0] += bytes / word,
            (None, _) => copies.push(Copy { offset: *offset, dims: vec![bytes / word], starts: None }),
        }
    }
    copies
}

impl Copy {
    fn append(&self, program: &mut plan::Program) {
        let mut buffer = |name: &str, slot, offset, elements| {
            program.buffers.push(plan::Buffer { name: name.into(), dtype: plan::DType::I32, elements, slot, offset });
            program.buffers.len() as u32 - 1
        };
        let elements = self.dims.iter().product();
        let (from, to) = (buffer("from", FROM, self.offset, elements), buffer("to", TO, self.offset, elements));
        let ragged = self.starts.map(|(at, groups, even)| {
            let offsets = buffer("starts", SAVED, at, groups + 1);
            plan::RaggedLimit { dim: 1, offsets, groups, even }
        });
        let mut strides: Vec<u64> = vec![1; self.dims.len()];
        (1..self.dims.len()).rev().for_each(|d| strides[d - 1] = strides[d] * self.dims[d]);
        let view = |buffer| plan::View { buffer, offset: 0, strides: strides.clone() };
        let region = plan::Region {
            dims: self.dims.clone(),
            row_dims: 1,
            ragged,
            loads: vec![view(from).into()],
            steps: vec![],
            stores: vec![plan::Store { value: plan::Arg::Load(0), view: view(to) }],
        };
        program.instructions.push(plan::Instruction {
            name: "copy".into(),
            stream: 0,
            waits: vec![],
            records: None,
            captured: false,
            kernel: plan::Kernel::Region(region),
        });
    }
}

impl Scheduler<'_> {
    /// A layer has made what is swapped: copies it to the host, unless it is read too soon.
    pub(super) fn copy_out(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (l, micro_batch): (usize, u32),
        (device, saved): (Item, Option<Item>),
    ) {
        let mut swapped = Swapped { place: Place::Device(device), saved };
        if shared.swaps.leaves(l, micro_batch) {
            let host = self.copy(cx, shared, (l, micro_batch), (device, saved), plan::Space::Host);
            let until = shared.swaps.step(Visit::Forward(l, micro_batch)) + shared.swaps.ahead;
            shared.swaps.leaving.push((until, device));
            swapped.place = Place::Host(host);
        }
        shared.swaps.swapped.insert((l, micro_batch), swapped);
    }

    /// Before a layer runs: copies back what is read some steps later.
    pub(super) fn copy_in(&mut self, cx: &Cx, shared: &mut Shared, visit: Visit) {
        let now = shared.swaps.step(visit);
        while let Some((_, at)) = shared.swaps.returns.pop_if(|(step, _)| *step <= now) {
            let Swapped { place, saved } = shared.swaps.swapped[&at];
            if let Place::Host(host) = place {
                let device = self.copy(cx, shared, at, (host, saved), plan::Space::Device);
                shared.swaps.swapped.insert(at, Swapped { place: Place::Device(device), saved });
            }
        }
    }

    fn copy(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (l, micro_batch): (usize, u32),
        (from, saved): (Item, Option<Item>),
        to: plan::Space,
    ) -> Item {
        let segment = cx.sharded.model.layers[l].segment;
        let layout = &cx.saved[segment];
        let item = shared.timeline.item_in(to, layout.swapped);
        let name = format!("{}{}", cx.sharded.model.segments[segment].name, cx.tags[segment]);
        let program = self.programs.copy(&name, layout, to);
        let slots = program.bind(shared, |want, _, _| match want {
            Want::CarryIn(_) => Bind::Item(from, 0),
            Want::Saved => Bind::Item(saved.expect("group starts are among what stays"), 0),
            _ => Bind::Item(item, 0),
        });
        shared.timeline.call(&program, l as u32, micro_batch, slots);
        item
    }
}
