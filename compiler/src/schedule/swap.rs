//! Saved tensors to the host's memory and back, on streams of their own.
//!
//! ```text
//! compute    F 0 │ F 1 │ F 2 │  …  │ B 2 │ B 1 │ B 0 │
//! copy-out       │ 0 → │ 1 → │ 2 →                         to the host once a layer has made them
//! copy-in                    │ → 2 │ → 1 │ → 0 │           back while the layer after it runs backward
//! ```
//!
//! The device memory of a layer's tensors is given up when the layer after it has run: nothing waits for the copy that takes no longer than that. They come
//! back into other memory one layer ahead. What is read at once, because the last layer of a pipeline turns round, stays.

use super::bind::Want;
use super::layers::{Cx, Half};
use super::phases::Scheduler;
use super::shared::{Pass, Shared};
use super::stages::Work;
use super::timeline::{Bind, Item};
use super::{Compiled, Programs};
use forebay_plan as plan;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Where a layer's swapped tensors are.
#[derive(Clone, Copy, Debug)]
pub enum Swapped {
    /// On the device.
    Here(Item),
    /// In the host's memory.
    Away(Item),
}

impl Swapped {
    /// The item on the device.
    ///
    /// # Panics
    /// When they are away: they are copied in before anything reads them.
    pub fn here(self) -> Item {
        match self {
            Swapped::Here(item) => item,
            Swapped::Away(_) => panic!("swapped tensors are copied in before they are read"),
        }
    }
}

/// Where a micro-batch turns round after the forward pass through a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// It goes backward through the same chunk at once.
    Here,
    /// Something else comes first.
    Elsewhere,
}

impl Turns {
    /// By what the stage does next.
    pub fn of((micro_batch, chunk): (u32, u32), next: Option<&Work>) -> Turns {
        match next {
            Some(&Work::Backward(m, c, _)) if (m, c) == (micro_batch, chunk) => Turns::Here,
            _ => Turns::Elsewhere,
        }
    }
}

impl Shared {
    /// A layer has run: what left for the host meanwhile need not wait any longer.
    pub(super) fn left(&mut self) {
        for item in std::mem::take(&mut self.leaving) {
            self.timeline.keep(item);
        }
    }
}

impl Programs {
    /// The program that copies bytes between the memories, in the direction of `to`.
    fn copy(&mut self, bytes: u64, to: plan::Space) -> Rc<Compiled> {
        let (name, from) = match to {
            plan::Space::Host => (format!("swap.out.{bytes}"), plan::Space::Device),
            plan::Space::Device => (format!("swap.in.{bytes}"), plan::Space::Host),
        };
        if let Some(known) = self.cache.get(&name) {
            return known.clone();
        }
        // The type says nothing of what the bytes are.
        let (dtype, elements) = (plan::DType::I32, bytes / plan::DType::I32.bytes());
        let slot = |name: &str, access, space, bytes| plan::Slot { name: name.into(), access, space, bytes };
        let buffer = |name: &str, slot| plan::Buffer { name: name.into(), dtype, elements, slot, offset: 0 };
        let view = |buffer| plan::View { buffer, offset: 0, strides: vec![1] };
        let region = plan::Region {
            dims: vec![elements],
            row_dims: 1,
            ragged: None,
            loads: vec![view(0).into()],
            steps: vec![],
            stores: vec![plan::Store { value: plan::Arg::Load(0), view: view(1) }],
        };
        let program = plan::Program {
            name: name.clone(),
            slots: vec![
                slot("from", plan::Access::Read, from, bytes),
                slot("to", plan::Access::Write, to, bytes),
                slot("frame", plan::Access::Scratch, plan::Space::Device, 0),
            ],
            buffers: vec![buffer("from", 0), buffer("to", 1)],
            streams: vec![plan::StreamKind::Cube],
            events: 0,
            instructions: vec![plan::Instruction {
                name: "copy".into(),
                stream: 0,
                waits: vec![],
                records: None,
                kernel: plan::Kernel::Region(region),
            }],
        };
        let wants = vec![Want::CarryIn("from".into()), Want::CarryOut("to".into())];
        self.add(&name, program, (wants, vec![bytes, bytes]), 0)
    }
}

impl Scheduler<'_> {
    /// Copies a layer's swapped tensors to the host.
    pub(super) fn copy_out(&mut self, cx: &Cx, shared: &mut Shared, pass: &mut Pass, (l, micro_batch): (usize, u32)) {
        let Some(&Swapped::Here(device)) = pass.swapped.get(&l) else { return };
        let host = self.copy(cx, shared, (l, micro_batch), device, plan::Space::Host);
        shared.leaving.push(device);
        pass.swapped.insert(l, Swapped::Away(host));
    }

    /// Copies a layer's swapped tensors back, if they are away.
    pub(super) fn copy_in(&mut self, cx: &Cx, shared: &mut Shared, pass: &mut Pass, (l, micro_batch): (usize, u32)) {
        let Some(&Swapped::Away(host)) = pass.swapped.get(&l) else { return };
        let device = self.copy(cx, shared, (l, micro_batch), host, plan::Space::Device);
        pass.swapped.insert(l, Swapped::Here(device));
    }

    fn copy(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        (l, micro_batch): (usize, u32),
        from: Item,
        to: plan::Space,
    ) -> Item {
        let bytes = cx.saved[cx.sharded.model.layers[l].segment].swapped;
        let item = shared.timeline.item_in(to, bytes);
        let program = self.programs.copy(bytes, to);
        let slots = vec![Bind::Item(from, 0), Bind::Item(item, 0)];
        shared.timeline.call(&program, l as u32, micro_batch, slots);
        item
    }

    /// Copies back what the next piece of work reads first, while the one at hand runs.
    pub(super) fn fetch_for(
        &mut self,
        cx: &Cx,
        shared: &mut Shared,
        passes: &mut FxHashMap<(u32, u32), Pass>,
        next: Option<&Work>,
    ) {
        let Some(&Work::Backward(m, c, half)) = next else { return };
        let Some(pass) = passes.get_mut(&(m, c)).filter(|_| half != Half::Weights) else { return };
        if let Some(last) = cx.stage.chunks[c as usize].layers.clone().next_back() {
            self.copy_in(cx, shared, pass, (last, m));
        }
    }
}
