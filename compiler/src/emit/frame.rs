//! Frames: the buffers that live within a program, and their offsets in it.

use super::ALIGN;
use super::pack::{Interval, pack};
use forebay_plan as plan;

/// What placing the frame's buffers gave.
pub struct FrameLayout {
    /// Bytes of the frame.
    pub bytes: u64,
    /// Maximum live bytes.
    pub live: u64,
}

/// Gives the buffers in slot `frame` their offsets, from their first to their last use. `until` says for each instruction the last one that may run before it
/// has ended: its own number where one follows the other.
pub fn place(
    buffers: &mut [plan::Buffer],
    instructions: &[plan::Instruction],
    frame: u32,
    until: impl Fn(usize) -> u32,
) -> FrameLayout {
    let mut life: Vec<Option<(u32, u32)>> = vec![None; buffers.len()];
    for (time, instruction) in instructions.iter().enumerate() {
        for buffer in instruction.kernel.reads().chain(instruction.kernel.writes()) {
            let (_, end) = life[buffer as usize].get_or_insert((time as u32, time as u32));
            *end = (*end).max(until(time));
        }
    }
    let here: Vec<usize> = (0..buffers.len()).filter(|&b| buffers[b].slot == frame && life[b].is_some()).collect();
    let intervals: Vec<Interval> = here
        .iter()
        .map(|&b| {
            let (start, end) = life[b].expect("filtered");
            Interval { start, end, bytes: buffers[b].elements * buffers[b].dtype.bytes() }
        })
        .collect();
    let packing = pack(&intervals);
    for (&b, &offset) in here.iter().zip(&packing.offsets) {
        buffers[b].offset = offset;
    }
    debug_assert!(packing.offsets.iter().all(|o| o % ALIGN == 0));
    FrameLayout { bytes: packing.bytes, live: packing.live }
}
