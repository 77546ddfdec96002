//! Segments → phases: programs, the calls that bind them, and where everything lies in memory, for the ranks of each pipeline stage.
//!
//! ```text
//! train:     counts · forward and backward of the stage's layers, micro-batch by micro-batch · gradients and losses over all ranks · norm · AdamW · states
//! eval:      counts · forward of all layers · losses
//! generate:  forward of all layers
//! ```
//!
//! A program is compiled once for each segment and variant (which of its results are added to what is there); layers and stages are calls.
//!
//! * [`stages`]: which layers are where, and in which order a stage works. * [`tensors`]: what outlives a step. * [`mod@gradients`]: which gradients are sums. * [`phases`]: the three phases.
//! * [`layers`]: layers forward and backward. * [`units`]: parameters gathered and gradients summed. * [`pairs`]: two at once. * [`mod@borders`]: the end of one and the beginning of the next.
//! * [`mod@early`]: what is made again, before the gradient comes.
//! * [`swap`]: saved tensors to the host and back. * [`offload`]: the optimizer's state there. * [`step`]: the end of a step. * [`tied`]: sums over stages. * [`mod@bind`], [`timeline`], [`shared`]: slots and memory.

mod bind;
mod borders;
mod early;
mod flow;
mod gradients;
mod layers;
mod offload;
mod pairs;
mod phases;
mod shared;
mod stages;
mod step;
mod swap;
mod tensors;
mod tied;
mod timeline;
mod units;

pub use borders::borders;
pub use gradients::Gradients;
pub use layers::Half;
pub use phases::{ForwardKind, Scheduler, Segments, Turns};
pub use shared::{EarlyLayers, Run, Span, Usage, Wait};
pub use stages::{Stage, Turn, Way, Work, crossing, ends, one_by_one, orders, published, stages, waits};
pub use swap::leaves;
pub use tensors::{Group, Layout, Types, Unit, goes_by_layer};
pub use timeline::Frames;

use crate::emit::{Exchanges, Joins, Rows, emit};
use crate::overlap::{self, Lanes, Pass, Passes, Same, Sender};
use bind::{SavedLayout, Want, bind};
use forebay_ir::{Graph, MeshDim};
use forebay_plan as plan;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// A program of the plan, and what its slots stand for.
pub struct Compiled {
    /// Index in the plan's programs.
    pub id: u32,
    /// Slots, the frame included.
    pub slots: usize,
    /// What the slots stand for, without the frame.
    wants: Vec<Want>,
    /// Bytes of each slot, without the frame.
    bytes: Vec<u64>,
    /// Bytes of the frame.
    pub frame_bytes: u64,
    /// Maximum live bytes of the frame.
    pub frame_live: u64,
}

/// The programs of a plan, each emitted once.
#[derive(Default)]
pub struct Programs {
    list: Vec<plan::Program>,
    /// For each the slots whose contents other layers or stages wait for.
    awaited: Vec<Vec<usize>>,
    cache: FxHashMap<String, Rc<Compiled>>,
    /// The rows of the phase that is being built.
    rows: Rows,
    mesh: Vec<MeshDim>,
    lanes: Lanes,
    passes: Passes,
    joins: Joins,
    /// Pairs that were asked for, by name: those that are not worth it as well.
    pairs: FxHashMap<String, Option<Rc<Compiled>>>,
}

/// Which way a value goes between stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Send,
    Receive,
}

impl Programs {
    /// For the ranks and passes of a strategy.
    fn new(lanes: Lanes, passes: Passes, joins: Joins) -> Programs {
        Programs { lanes, passes, joins, ..Programs::default() }
    }

    /// From here on programs are for these rows, on these ranks.
    fn enter(&mut self, rows: Rows, mesh: &[MeshDim]) {
        self.rows = rows;
        self.mesh = mesh.to_vec();
    }

    /// The program of this name, emitted from the graph on first use.
    fn get(&mut self, name: &str, saved: &SavedLayout, graph: impl FnOnce() -> Graph) -> Rc<Compiled> {
        self.get_changed(name, saved, graph, |_| ())
    }

    /// The same, changed once it is emitted.
    fn get_changed(
        &mut self,
        name: &str,
        saved: &SavedLayout,
        graph: impl FnOnce() -> Graph,
        change: impl FnOnce(&mut plan::Program),
    ) -> Rc<Compiled> {
        if let Some(known) = self.cache.get(name) {
            return known.clone();
        }
        let mut graph = graph();
        graph.name = name.to_string();
        graph.mesh.clone_from(&self.mesh);
        let mut bound = bind(&graph, saved, self.rows.clone());
        if self.passes.has(Pass::Within) {
            bound.interface.exchanges = Exchanges::BesideWork;
        }
        bound.interface.joins = self.joins;
        let mut emitted = emit(&graph, &bound.interface);
        change(&mut emitted.program);
        if self.passes.has(Pass::Within) {
            let live = overlap::within(&mut emitted.program, &awaited(&bound.wants), &self.lanes);
            emitted.frame_live = live.unwrap_or(emitted.frame_live);
        }
        let bytes = bound.interface.slots.iter().map(|s| s.bytes).collect();
        self.add(name, emitted.program, (bound.wants, bytes), emitted.frame_live)
    }

    /// The program that passes a contiguous value to or from another stage. Its one slot besides the frame is the value.
    fn message(
        &mut self,
        way: Message,
        elements: u64,
        dtype: plan::DType,
        dim: u32,
        peer: u32,
        channel: u32,
    ) -> Rc<Compiled> {
        let what = if way == Message::Send { "send" } else { "receive" };
        let name = format!("{what}.{elements}.{dtype}.{peer}.{channel}");
        if let Some(known) = self.cache.get(&name) {
            return known.clone();
        }
        let bytes = crate::emit::align(elements * dtype.bytes());
        let (access, want) = match way {
            Message::Send => (plan::Access::Read, Want::CarryIn("x".into())),
            Message::Receive => (plan::Access::Write, Want::CarryOut("x".into())),
        };
        let message = plan::Message { dtype, buffer: 0, elements, dim, peer, channel };
        let kernel = match way {
            Message::Send => plan::Kernel::Send(message),
            Message::Receive => plan::Kernel::Recv(message),
        };
        let slot =
            |name: &str, access, bytes| plan::Slot { name: name.into(), access, space: plan::Space::Device, bytes };
        let program = plan::Program {
            name: name.clone(),
            slots: vec![slot("x", access, bytes), slot("frame", plan::Access::Scratch, 0)],
            buffers: vec![plan::Buffer { name: "x".into(), dtype, elements, slot: 0, offset: 0 }],
            streams: vec![plan::StreamKind::Cube],
            events: 0,
            instructions: vec![plan::Instruction {
                name: what.into(),
                stream: 0,
                waits: vec![],
                records: None,
                captured: false,
                kernel,
            }],
        };
        self.add(&name, program, (vec![want], vec![bytes]), 0)
    }

    /// Two programs as one, where that hides more than it costs. Slots are bound to the same memory where `same` says so.
    fn pair(&mut self, (first, second): (u32, u32), same: &[Same]) -> Option<Rc<Compiled>> {
        if !self.passes.has(Pass::Across) {
            return None;
        }
        let part = |n: u32| (&self.list[n as usize], &self.awaited[n as usize][..]);
        let parts = (part(first), part(second));
        let name = format!("{}&{}{same:?}", parts.0.0.name, parts.1.0.name);
        if let Some(known) = self.pairs.get(&name) {
            return known.clone();
        }
        let paired = overlap::across(parts, same, &self.lanes);
        let compiled = paired.map(|both| self.add_joined(&name, both));
        self.pairs.insert(name, compiled.clone());
        compiled
    }

    /// Programs that follow each other as one, where that hides more than it costs. `same`: for each but the first its slots that are bound as slots of those in front of it.
    fn cross(&mut self, programs: &[u32], same: &[Vec<Same>], sender: Sender) -> Option<Rc<Compiled>> {
        let parts: Vec<overlap::Part> =
            programs.iter().map(|&n| (&self.list[n as usize], &self.awaited[n as usize][..])).collect();
        let names: Vec<&str> = parts.iter().map(|(program, _)| program.name.as_str()).collect();
        let name = format!("{}{same:?}", names.join("&"));
        if let Some(known) = self.pairs.get(&name) {
            return known.clone();
        }
        let crossed = overlap::across_border(&parts, same, sender, &self.lanes);
        let compiled = crossed.map(|all| self.add_joined(&name, all));
        self.pairs.insert(name, compiled.clone());
        compiled
    }

    /// A program that was made of others.
    fn add_joined(&mut self, name: &str, made: overlap::Paired) -> Rc<Compiled> {
        let compiled = self.add(name, made.program, (vec![], vec![]), made.live);
        self.awaited[compiled.id as usize] = made.awaited;
        compiled
    }

    fn add(
        &mut self,
        name: &str,
        program: plan::Program,
        (wants, bytes): (Vec<Want>, Vec<u64>),
        frame_live: u64,
    ) -> Rc<Compiled> {
        self.awaited.push(awaited(&wants));
        let compiled = Rc::new(Compiled {
            id: self.list.len() as u32,
            slots: program.slots.len(),
            wants,
            bytes,
            frame_bytes: program.slots.last().map_or(0, |s| s.bytes),
            frame_live,
        });
        self.list.push(program);
        self.cache.insert(name.to_string(), compiled.clone());
        compiled
    }

    /// How a program uses a slot.
    fn access(&self, program: u32, slot: usize) -> plan::Access {
        self.list[program as usize].slots[slot].access
    }

    /// Does it multiply matrices?
    fn is_heavy(&self, program: u32) -> bool {
        self.list[program as usize].instructions.iter().any(|i| matches!(i.kernel, plan::Kernel::Matmul(_)))
    }

    /// Does it pass values to or from another stage, and nothing else?
    fn is_message(&self, program: u32) -> bool {
        let instructions = &self.list[program as usize].instructions;
        let passes = |i: &plan::Instruction| matches!(i.kernel, plan::Kernel::Send(_) | plan::Kernel::Recv(_));
        !instructions.is_empty() && instructions.iter().all(passes)
    }

    /// Does it draw random numbers?
    fn is_random(&self, program: u32) -> bool {
        self.list[program as usize].instructions.iter().any(|i| matches!(i.kernel, plan::Kernel::RandomKey { .. }))
    }

    /// All programs.
    pub fn into_list(self) -> Vec<plan::Program> {
        self.list
    }
}

/// Slots whose contents other layers or stages wait for.
fn awaited(wants: &[Want]) -> Vec<usize> {
    (0..wants.len()).filter(|&slot| wants[slot].is_awaited()).collect()
}
