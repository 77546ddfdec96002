//! Places: in which buffer a value is, and with which strides.
//!
//! Renames, splits, merges, takes, slices and reorders move no data: they are the operand's data under other strides. An operand of `stack` or
//! `concat` that nobody else reads is written straight into its part of the result.

use super::units::{UnitKind, Units, source};
use super::{Home, Interface, dtype};
use forebay_ir::{AxisId, Graph, Op, Type, ValueId};
use forebay_plan as plan;

/// A value's data: elements at `offset + Σ index · stride` of a buffer. An axis without a stride is broadcast.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The buffer.
    pub buffer: u32,
    /// Elements.
    pub offset: u64,
    /// Elements, for each axis.
    pub strides: Vec<(AxisId, u64)>,
}

impl Place {
    /// The stride of an axis; 0 when the value lacks it.
    pub fn stride(&self, axis: AxisId) -> u64 {
        self.strides.iter().find(|(a, _)| *a == axis).map_or(0, |(_, s)| *s)
    }

    /// The strides along these axes.
    pub fn along(&self, axes: &[AxisId]) -> Vec<u64> {
        axes.iter().map(|&a| self.stride(a)).collect()
    }

    fn without(&self, axis: AxisId) -> Place {
        let mut place = self.clone();
        place.strides.retain(|(a, _)| *a != axis);
        place
    }

    fn with(mut self, strides: impl IntoIterator<Item = (AxisId, u64)>) -> Place {
        self.strides.extend(strides);
        self
    }
}

/// A buffer that is being laid out; frame buffers get their offsets last.
pub struct Places<'a> {
    graph: &'a Graph,
    /// Buffers so far; those of the frame have offset 0 until [`super::frame`] places them.
    pub buffers: Vec<plan::Buffer>,
    frame: u32,
    made: Vec<Option<Place>>,
    homes: Vec<Option<(Home, u32)>>,
    needed: Vec<bool>,
    part_of: Vec<Option<ValueId>>,
    output_homes: Vec<(ValueId, Home)>,
}

impl<'a> Places<'a> {
    /// Decides which values need a buffer, and which have a home.
    pub fn new(graph: &'a Graph, interface: &Interface, units: &Units) -> Places<'a> {
        let n = graph.nodes.len();
        let mut places = Places {
            graph,
            buffers: vec![],
            frame: interface.slots.len() as u32,
            made: vec![None; n],
            homes: vec![None; n],
            needed: needed(graph, units),
            part_of: parts(graph, units),
            output_homes: vec![],
        };
        for (input, home) in graph.inputs.iter().zip(&interface.inputs) {
            let Some(home) = home else { continue };
            let buffer = places.home_buffer(input.value, *home);
            places.homes[input.value.index()] = Some((*home, buffer));
            places.made[input.value.index()] = Some(places.contiguous(graph.ty(input.value), buffer));
        }
        for (output, home) in graph.outputs.iter().zip(&interface.outputs) {
            places.settle(output.value, *home, interface, units);
        }
        places
    }

    /// Gives an output its home, unless it must be copied there at the end.
    fn settle(&mut self, value: ValueId, home: Home, interface: &Interface, units: &Units) {
        let shared =
            self.graph.inputs.iter().zip(&interface.inputs).find(|(_, h)| **h == Some(home)).map(|(i, _)| i.value);
        let in_place = shared.is_none_or(|input| {
            self.graph.ty(input).axes == self.graph.ty(value).axes && !units.read_after_write.contains(&value)
        });
        let made = source(self.graph, value);
        let op = &self.graph.node(made).op;
        let taken = self.homes[made.index()].is_some() || matches!(op, Op::Input);
        let whole = made == value || (shared.is_none() && self.shows_whole(value, made));
        if taken || !in_place || !whole {
            return;
        }
        let buffer = match shared {
            Some(input) => self.homes[input.index()].expect("inputs have homes").1,
            None => self.home_buffer(made, home),
        };
        self.homes[made.index()] = Some((home, buffer));
        self.output_homes.push((value, home));
    }

    /// Is a view all of what it shows, in the same order, so that this can be made in the view's home?
    fn shows_whole(&mut self, view: ValueId, of: ValueId) -> bool {
        if self.part_of[of.index()].is_some() || self.graph.bytes(view) != self.graph.bytes(of) {
            return false;
        }
        self.made[of.index()] = Some(self.contiguous(self.graph.ty(of), 0));
        let place = self.find(view);
        self.made[of.index()] = None;
        place.is_ok_and(|place| self.is_contiguous(self.graph.ty(view), &place))
    }

    fn home_buffer(&mut self, value: ValueId, home: Home) -> u32 {
        let node = self.graph.node(value);
        self.buffers.push(plan::Buffer {
            name: node.name.clone(),
            dtype: dtype(node.ty.dtype),
            elements: self.graph.numel(&node.ty),
            slot: home.slot as u32,
            offset: home.offset,
        });
        self.buffers.len() as u32 - 1
    }

    /// Does the value live in this home, so that no copy is needed?
    pub fn is_home(&self, value: ValueId, home: Home) -> bool {
        self.output_homes.contains(&(value, home))
    }

    /// A contiguous place at a home for a value that lives elsewhere.
    pub fn home_place(&mut self, value: ValueId, home: Home) -> Place {
        let buffer = self.home_buffer(value, home);
        self.contiguous(self.graph.ty(value), buffer)
    }

    /// Does anything outside its region read this value?
    pub fn is_needed(&self, value: ValueId) -> bool {
        self.needed[value.index()]
    }

    /// A new buffer in the frame.
    pub fn scratch(&mut self, name: &str, dtype: plan::DType, elements: u64) -> u32 {
        self.buffers.push(plan::Buffer { name: name.to_string(), dtype, elements, slot: self.frame, offset: 0 });
        self.buffers.len() as u32 - 1
    }

    /// A new buffer in the frame for data of this type.
    pub fn scratch_place(&mut self, name: &str, ty: &Type) -> Place {
        let buffer = self.scratch(name, dtype(ty.dtype), self.graph.numel(ty));
        self.contiguous(ty, buffer)
    }

    /// The whole of a buffer as data of a type.
    pub fn contiguous(&self, ty: &Type, buffer: u32) -> Place {
        let mut strides = vec![];
        let mut stride = 1;
        for (axis, size) in self.graph.dims(&ty.axes).into_iter().rev() {
            strides.push((axis, stride));
            stride *= size;
        }
        Place { buffer, offset: 0, strides }
    }

    /// Is the place the whole of a buffer in the order of the type?
    pub fn is_contiguous(&self, ty: &Type, place: &Place) -> bool {
        let whole = self.contiguous(ty, place.buffer);
        let sizes = self.graph.dims(&ty.axes);
        let same = sizes.iter().all(|&(a, n)| n == 1 || whole.stride(a) == place.stride(a));
        same && place.offset == 0
    }

    /// Where the unit that makes a value writes it.
    pub fn dest(&mut self, value: ValueId) -> Place {
        if let Some(place) = &self.made[value.index()] {
            return place.clone();
        }
        let node = self.graph.node(value);
        let place = if let Some(whole) = self.part_of[value.index()] {
            let into = self.dest(whole);
            self.part(&into, whole, value)
        } else if let Some((_, buffer)) = self.homes[value.index()] {
            self.contiguous(&node.ty, buffer)
        } else {
            self.scratch_place(&node.name, &node.ty)
        };
        self.made[value.index()] = Some(place.clone());
        place
    }

    /// The place of an operand within the result of a `stack` or `concat`.
    pub fn part(&self, into: &Place, whole: ValueId, operand: ValueId) -> Place {
        let node = self.graph.node(whole);
        let number = node.operands.iter().position(|&o| o == operand).expect("an operand of it");
        self.part_at(into, whole, number)
    }

    /// The place of operand `number` within the result of a `stack` or `concat`.
    pub fn part_at(&self, into: &Place, whole: ValueId, number: usize) -> Place {
        match &self.graph.node(whole).op {
            Op::Stack(axis) => {
                let mut place = into.without(*axis);
                place.offset += number as u64 * into.stride(*axis);
                place
            }
            Op::Concat { from, into: axis } => {
                let before: u64 = from[..number].iter().map(|&a| self.graph.size(a)).sum();
                let stride = into.stride(*axis);
                let mut place = into.without(*axis).with([(from[number], stride)]);
                place.offset += before * stride;
                place
            }
            op => unreachable!("`{}` has no parts", op.row().name),
        }
    }

    /// Does the value's unit write straight into a `stack` or `concat`?
    pub fn is_part(&self, value: ValueId) -> bool {
        self.part_of[value.index()].is_some()
    }

    /// Where a value is, when it has been made or is a view of something made. `Err` gives the value that must be copied first because
    /// its strides cannot be merged.
    pub fn find(&self, value: ValueId) -> Result<Place, ValueId> {
        if let Some(place) = &self.made[value.index()] {
            return Ok(place.clone());
        }
        let node = self.graph.node(value);
        let of = || self.find(node.operands[0]);
        match &node.op {
            Op::Rename { from, to } => {
                let place = of()?;
                let stride = place.stride(*from);
                Ok(place.without(*from).with([(*to, stride)]))
            }
            Op::Split { from, into } => {
                let place = of()?;
                let mut stride = place.stride(*from);
                let mut parts = vec![];
                for &axis in into.iter().rev() {
                    parts.push((axis, stride));
                    stride *= self.graph.size(axis);
                }
                Ok(place.without(*from).with(parts))
            }
            Op::Merge { from, into } => {
                let place = of()?;
                let stride = self.merged(&place, from).ok_or(node.operands[0])?;
                let place = from.iter().fold(place, |p, a| p.without(*a));
                Ok(place.with([(*into, stride)]))
            }
            Op::Take { axis, index } => {
                let place = of()?;
                let mut taken = place.without(*axis);
                taken.offset += index * place.stride(*axis);
                Ok(taken)
            }
            Op::Slice { from, into, start } => {
                let place = of()?;
                let stride = place.stride(*from);
                let mut slice = place.without(*from).with([(*into, stride)]);
                slice.offset += start * stride;
                Ok(slice)
            }
            op => unreachable!("`{}` of `{}` is read before it is made", op.row().name, node.name),
        }
    }

    /// The stride of the merge of these axes, if one stride can walk them.
    fn merged(&self, place: &Place, axes: &[AxisId]) -> Option<u64> {
        let real: Vec<AxisId> = axes.iter().copied().filter(|&a| self.graph.size(a) != 1).collect();
        let fits = real.windows(2).all(|w| place.stride(w[0]) == place.stride(w[1]) * self.graph.size(w[1]));
        fits.then(|| real.last().map_or(0, |&a| place.stride(a)))
    }

    /// From now on the value is here.
    pub fn move_to(&mut self, value: ValueId, place: Place) {
        self.made[value.index()] = Some(place);
    }
}

/// For each value: is it read outside its own region, or an output?
fn needed(graph: &Graph, units: &Units) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes.len()];
    for output in &graph.outputs {
        needed[output.value.index()] = true;
    }
    for value in graph.values().filter(|&v| !units.is_cast_in_passing(graph, v)) {
        for read in graph.reads(value) {
            let read = units.read_in_passing(graph, read);
            let inside = units.of[value.index()].is_some() && units.of[value.index()] == units.of[read.index()];
            if !inside {
                needed[read.index()] = true;
            }
        }
    }
    needed
}

/// Operands of `stack` and `concat` that are written in place.
fn parts(graph: &Graph, units: &Units) -> Vec<Option<ValueId>> {
    let users = graph.users();
    let mut part_of = vec![None; graph.nodes.len()];
    for value in graph.values() {
        let node = graph.node(value);
        if !matches!(node.op, Op::Stack(_) | Op::Concat { .. }) {
            continue;
        }
        for &operand in &node.operands {
            let strided = units.of[operand.index()].is_some_and(|u| match &units.list[u].kind {
                UnitKind::Region(_) | UnitKind::Attention(_) => true,
                UnitKind::Kernel { value, accumulate } => {
                    accumulate.is_none()
                        && matches!(graph.node(*value).op, Op::Contract { .. } | Op::LinearAttention(_))
                }
            });
            let only_here = users[operand.index()] == [value] && !graph.outputs.iter().any(|o| o.value == operand);
            if strided && only_here {
                part_of[operand.index()] = Some(value);
            }
        }
    }
    part_of
}
