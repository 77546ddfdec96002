//! Segments → phases: programs, the calls that bind them, and where everything lies in memory.
//!
//! ```text
//! train:     counts · (forward of all layers · backward of all layers in reverse) per micro-batch · reports · norm · AdamW · state updates
//! eval:      counts · forward of all layers · reports
//! generate:  forward of all layers
//! ```
//!
//! A program is compiled once for each segment and variant (which of its results are added to what is there); layers are calls.

mod bind;
mod flow;
mod phases;
mod tensors;
mod timeline;

pub use phases::{ForwardKind, Scheduler};
pub use tensors::{Group, Layout};

use crate::emit::emit;
use bind::{SavedLayout, Want, bind};
use forebay_ir::Graph;
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
    cache: FxHashMap<String, Rc<Compiled>>,
}

impl Programs {
    /// The program of this name, emitted from the graph on first use.
    fn get(&mut self, name: &str, saved: &SavedLayout, rows: u64, graph: impl FnOnce() -> Graph) -> Rc<Compiled> {
        if let Some(known) = self.cache.get(name) {
            return known.clone();
        }
        let mut graph = graph();
        graph.name = name.to_string();
        let bound = bind(&graph, saved, rows);
        let emitted = emit(&graph, &bound.interface);
        let compiled = Rc::new(Compiled {
            id: self.list.len() as u32,
            slots: emitted.program.slots.len(),
            wants: bound.wants,
            bytes: bound.interface.slots.iter().map(|s| s.bytes).collect(),
            frame_bytes: emitted.program.slots.last().map_or(0, |s| s.bytes),
            frame_live: emitted.frame_live,
        });
        self.list.push(emitted.program);
        self.cache.insert(name.to_string(), compiled.clone());
        compiled
    }

    /// All programs.
    pub fn into_list(self) -> Vec<plan::Program> {
        self.list
    }
}
