//! Moments and masters in the host's memory: in chunks to the device, updated, and back, on streams of their own.
//!
//! ```text
//! copy-in     0 → │ 1 → │ 2 →   │      │ 3 →  │ 4 →  │ 5 →
//! compute     sums of gradients │ 0    │ 1    │ 2    │ 3            (and their norm before 0: the scale needs it)
//! copy-out                             │ → 0  │ → 1  │ → 2  │ → 3
//! links       sums of gradients               │ gather            where ranks share masters
//! ```
//!
//! A chunk is what one layer has of a group, or a piece of that where it is large. Three are on the device at a time: while one is updated, the next comes and the
//! one before leaves. (With two, a small chunk that follows on a large one would wait for it to leave.) The first three come while gradients are summed. (Offloading the optimizer is ZeRO-Offload's, arXiv 2101.06840; there the host computes, here
//! the device does.)

use super::Compiled;
use super::Programs;
use super::bind::Want;
use super::layers::Cx;
use super::phases::Scheduler;
use super::shared::Shared;
use super::tensors::{Group, local_elements, only_layer};
use super::timeline::{Bind, Item};
use super::units::UnitId;
use crate::emit::align;
use crate::optimizer::CHUNK;
use forebay_plan as plan;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::rc::Rc;

/// Chunks that are on the device at a time.
const ON_DEVICE: usize = 3;
/// A rank's state is in at least so many chunks, where they are not too small for that: those on the device are a small part of it.
const CHUNKS: u64 = 48;
/// Elements of the smallest pieces that something is cut into: less takes longer to launch than to copy.
const SMALLEST: u64 = 1 << 16;
/// Elements of the largest: 128 MB of moments and 64 MB of masters. More hides nothing more.
const LARGEST: u64 = 1 << 24;

/// Elements of a group that are updated at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub unit: UnitId,
    /// Elements of this rank's ranges of the group before it.
    pub start: u64,
    pub elements: u64,
}

/// Where a chunk's state is on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub param: Bind,
    pub first: Bind,
    pub second: Bind,
}

/// What is in the host's memory at the end of a step.
#[derive(Default)]
pub(super) struct Offload {
    /// What is still to come to the device.
    coming: VecDeque<Chunk>,
    /// What is there, or on its way.
    here: VecDeque<(Chunk, State)>,
    /// What ranks gather of units whose masters are away: this rank's range, in the type in which it is sent.
    own: FxHashMap<UnitId, Item>,
}

impl Offload {
    /// The next chunk that is on the device.
    pub fn next_chunk(&mut self) -> Option<(Chunk, State)> {
        self.here.pop_front()
    }
}

/// One piece of a copy: its place in the host's memory and on the device, and its bytes.
type Moved = (Bind, Bind, u64);

impl Scheduler<'_> {
    /// Puts the first chunks on their way, if anything is away.
    pub(super) fn begin_offload(&mut self, cx: &Cx, shared: &mut Shared) -> Option<Offload> {
        let away = cx.layout.groups.iter().any(|g| g.moments_in == plan::Space::Host);
        if !away {
            return None;
        }
        let mut offload = Offload { coming: chunks(cx).into(), ..Offload::default() };
        (0..ON_DEVICE).for_each(|_| self.fetch(cx, shared, &mut offload));
        Some(offload)
    }

    /// Copies the next chunk to the device, if there is one.
    fn fetch(&mut self, cx: &Cx, shared: &mut Shared, offload: &mut Offload) {
        let Some(chunk) = offload.coming.pop_front() else { return };
        let group = &cx.layout.groups[chunk.unit.0];
        let item =
            |shared: &mut Shared| Bind::Item(shared.timeline.item(chunk.elements * cx.layout.moments.bytes()), 0);
        let masters = chunk.start * cx.layout.master_bytes();
        let param = match group.masters_in {
            plan::Space::Device => Bind::Fixed(group.params + masters),
            // What is gathered must lie in one place.
            plan::Space::Host if self.gathers_masters(group) => self.own_range(cx, shared, offload, chunk),
            plan::Space::Host => Bind::Item(shared.timeline.item(chunk.elements * cx.layout.master_bytes()), 0),
        };
        let state = State { param, first: item(shared), second: item(shared) };
        self.copy_chunk(cx, shared, (chunk, state), plan::Space::Device);
        offload.here.push_back((chunk, state));
    }

    /// A chunk was updated: copies it back, and the next one to the device. Is it the last one of its unit?
    pub(super) fn end_chunk(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        offload: &mut Offload,
        of: (Chunk, State),
    ) -> bool {
        self.copy_chunk(cx, shared, of, plan::Space::Host);
        self.fetch(cx, shared, offload);
        offload.here.front().is_none_or(|(next, _)| next.unit != of.0.unit)
    }

    /// Do ranks gather the masters themselves, in the type that programs read?
    fn gathers_masters(&self, group: &Group) -> bool {
        group.shards > 1 && self.narrow == self.wide
    }

    /// A chunk's place in what ranks gather of its unit, where the masters are away.
    pub(super) fn own_range(&self, cx: &Cx, shared: &mut Shared, offload: &mut Offload, chunk: Chunk) -> Bind {
        let group = &cx.layout.groups[chunk.unit.0];
        let unit = &group.units[chunk.unit.1];
        let width = self.narrow.bytes();
        let timeline = &mut shared.timeline;
        let item = offload.own.entry(chunk.unit).or_insert_with(|| timeline.item(unit.elements / group.shards * width));
        Bind::Item(*item, (chunk.start - unit.shard_start) * width)
    }

    /// Copies a chunk between the memories, in the direction of `to`.
    fn copy_chunk(&mut self, cx: &Cx, shared: &mut Shared, (chunk, state): (Chunk, State), to: plan::Space) {
        let group = &cx.layout.groups[chunk.unit.0];
        let width = cx.layout.moments.bytes();
        let mut moved: Vec<Moved> = vec![];
        let mut add = |base: u64, width: u64, on_device: Bind| {
            moved.push((Bind::Fixed(base + chunk.start * width), on_device, align(chunk.elements * width)));
        };
        if group.moments_in == plan::Space::Host {
            add(group.first, width, state.first);
            add(group.second, width, state.second);
        }
        if group.masters_in == plan::Space::Host {
            add(group.params, cx.layout.master_bytes(), state.param);
        }
        let sizes: Vec<u64> = moved.iter().map(|(_, _, bytes)| *bytes).collect();
        let program = self.programs.chunk(&sizes, to);
        let slots = program.bind(shared, |want, _, _| match want {
            Want::State(number) => moved[number.parse::<usize>().expect("numbers of pieces")].0,
            Want::CarryIn(number) | Want::CarryOut(number) => {
                moved[number.parse::<usize>().expect("numbers of pieces")].1
            }
            want => unreachable!("copies have no {want:?}"),
        });
        shared.timeline.call(&program, cx.sharded.model.layers.len() as u32, 0, slots);
    }
}

impl Programs {
    /// The program that copies pieces of so many bytes to one of the memories. What their bytes mean does not matter, so they are copied four by four.
    fn chunk(&mut self, sizes: &[u64], to: plan::Space) -> Rc<Compiled> {
        let way = if to == plan::Space::Host { "out" } else { "in" };
        let named: Vec<String> = sizes.iter().map(u64::to_string).collect();
        let name = format!("optimizer.{way}.{}", named.join("."));
        if let Some(known) = self.cache.get(&name) {
            return known.clone();
        }
        let (mut slots, mut wants, mut buffers, mut instructions) = (vec![], vec![], vec![], vec![]);
        // In the host's memory a chunk may be a part of a tensor: the rest of it stays.
        let (of_host, on_device) = match to {
            plan::Space::Host => (plan::Access::Update, plan::Access::Read),
            plan::Space::Device => (plan::Access::Read, plan::Access::Write),
        };
        for (number, &bytes) in sizes.iter().enumerate() {
            let number = number.to_string();
            let carry = if to == plan::Space::Host { Want::CarryIn } else { Want::CarryOut };
            wants.extend([Want::State(number.clone()), carry(number.clone())]);
            for (what, access, space) in
                [("host", of_host, plan::Space::Host), ("device", on_device, plan::Space::Device)]
            {
                let (dtype, name) = (plan::DType::I32, format!("{what}.{number}"));
                let (elements, slot) = (bytes / dtype.bytes(), slots.len() as u32);
                buffers.push(plan::Buffer { name: name.clone(), dtype, elements, slot, offset: 0 });
                slots.push(plan::Slot { name, access, space, bytes });
            }
            let (host, device) = (slots.len() as u32 - 2, slots.len() as u32 - 1);
            let (from, to) = if to == plan::Space::Host { (device, host) } else { (host, device) };
            let view = |buffer| plan::View { buffer, offset: 0, strides: vec![1] };
            let region = plan::Region {
                dims: vec![bytes / plan::DType::I32.bytes()],
                row_dims: 1,
                ragged: None,
                loads: vec![view(from).into()],
                steps: vec![],
                stores: vec![plan::Store { value: plan::Arg::Load(0), view: view(to) }],
            };
            instructions.push(plan::Instruction {
                name: "copy".into(),
                stream: 0,
                waits: vec![],
                records: None,
                captured: false,
                kernel: plan::Kernel::Region(region),
            });
        }
        let bytes = slots.iter().map(|s: &plan::Slot| s.bytes).collect();
        let frame =
            plan::Slot { name: "frame".into(), access: plan::Access::Scratch, space: plan::Space::Device, bytes: 0 };
        slots.push(frame);
        let streams = vec![plan::StreamKind::Cube];
        let program = plan::Program { name: name.clone(), slots, buffers, streams, events: 0, instructions };
        self.add(&name, program, (wants, bytes), 0)
    }
}

/// The chunks of a rank, in the order of groups and units. Where tensors are values of their own, a chunk has whole tensors, or lies within one; padding at the end,
/// which is zero, is in none.
fn chunks(cx: &Cx) -> Vec<Chunk> {
    let groups = &cx.layout.groups;
    let all: u64 = groups.iter().map(Group::shard).sum();
    let most = (all / CHUNKS).next_multiple_of(CHUNK).clamp(SMALLEST, LARGEST);
    let mut chunks = vec![];
    for (g, group) in groups.iter().enumerate() {
        if group.shards == 1 {
            chunks.extend(cut(&tensors(cx, g), most).into_iter().map(|(start, elements)| Chunk {
                unit: (g, 0),
                start,
                elements,
            }));
            continue;
        }
        // A rank's range is one array, wherever tensors begin in it.
        for (u, unit) in group.units.iter().enumerate() {
            let range = [(unit.shard_start, unit.elements / group.shards, None)];
            chunks.extend(cut(&range, most).into_iter().map(|(start, elements)| Chunk {
                unit: (g, u),
                start,
                elements,
            }));
        }
    }
    chunks
}

/// A stretch of a group: its first element, how many there are, and the layer that they are of.
type Stretch = (u64, u64, Option<usize>);

/// The tensors of a group that ranks do not share.
fn tensors(cx: &Cx, group: usize) -> Vec<Stretch> {
    let sharded = cx.sharded;
    let homes = cx.layout.params.iter().filter(|(_, home)| home.group == group);
    let group = &cx.layout.groups[group];
    let stretch = |(&i, home): (&usize, &super::tensors::Home)| {
        let elements = local_elements(&sharded.model.params[i], &sharded.params[i], &sharded.mesh);
        (group.element(*home), elements, only_layer(sharded, cx.stage, i))
    };
    let mut tensors: Vec<Stretch> = homes.map(stretch).collect();
    tensors.sort_unstable();
    tensors
}

/// Joins what is of the same layer and follows on each other, up to so many elements (a multiple of [`CHUNK`]), and cuts what has more: (first element, elements)
/// of each.
fn cut(stretches: &[Stretch], most: u64) -> Vec<(u64, u64)> {
    let mut chunks: Vec<(u64, u64)> = vec![];
    // The layer of the last chunk, while others may join it.
    let mut open: Option<Option<usize>> = None;
    for &(start, elements, layer) in stretches {
        let joined = chunks.last().map(|(first, _)| start + elements - first).filter(|all| *all <= most);
        if let (Some(all), true) = (joined, open == Some(layer)) {
            chunks.last_mut().expect("one is open").1 = all;
            continue;
        }
        // As even as they go: what comes takes as long as what leaves.
        let piece = elements.div_ceil(elements.div_ceil(most)).next_multiple_of(CHUNK.min(most));
        let pieces = (0..elements).step_by(piece as usize);
        chunks.extend(pieces.map(|at| (start + at, piece.min(elements - at))));
        open = (elements <= most).then_some(layer);
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn chunks_are_whole_tensors_or_lie_within_one() {
        let of = |layer| Some(layer);
        let tensors = [
            (0, 700, of(0)),
            (704, 900, of(0)),
            (1632, 10, of(1)),
            (1664, 5000, of(1)),
            (6688, 5, of(1)),
            (6720, 9, None),
        ];
        let pieces = [(1664, 2048), (3712, 2048), (5760, 904), (6688, 5), (6720, 9)];
        assert_eq!(cut(&tensors, 2048), [&[(0, 1604), (1632, 10)], &pieces[..]].concat());
        let pieces = [(1664, 1024), (2688, 1024), (3712, 1024), (4736, 1024), (5760, 904), (6688, 5), (6720, 9)];
        assert_eq!(cut(&tensors, 1024), [&[(0, 700), (704, 900), (1632, 10)], &pieces[..]].concat());
        // Even pieces, but for what rounding leaves.
        assert_eq!(cut(&[(0, 5 << 10, None)], 4 << 10), [(0, 3 << 10), (3 << 10, 2 << 10)]);
        assert_eq!(cut(&[], 1024), []);
    }
}
