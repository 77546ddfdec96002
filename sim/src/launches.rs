//! What launches cost the host where several instructions are launched as one.

use forebay_plan::{Instruction, StreamKind};

/// What each further instruction of a captured region costs, in launches: a launch of a CUDA graph is one of about 2 µs and 0.2 µs more for each node (NVIDIA, "Constant Time Launch
/// for Straight-Line CUDA Graphs", 2024: release 11.8; with 12.6 it is 1 ns). A launch is 5 µs here.
const CAPTURED: f64 = 0.04;

/// The launches of a program, in the order of its instructions.
#[derive(Debug, Default)]
pub(crate) struct Launches {
    /// For each kind of stream: has something of the region been launched that the next instruction may belong to?
    begun: [bool; StreamKind::COUNT],
}

impl Launches {
    /// Launches that the next instruction of a stream costs, where alone it costs `launches`.
    pub fn of(&mut self, stream: StreamKind, instruction: &Instruction, launches: f64) -> f64 {
        let begun = &mut self.begun[stream.number()];
        let is_part = instruction.captured && *begun;
        *begun = is_part || launches > 0.0;
        if is_part { CAPTURED * launches } else { launches }
    }
}
