//! Static regions: instructions of a stream that nothing comes between are captured, and launched as one.
//!
//! A launch costs the host some microseconds whatever the kernel does, so that the units wait for it where kernels are short. All programs are static: sizes are those of
//! the plan, numbers of rows are read on the device, and places are in the argument table of the call. So a run of instructions on one stream can be recorded once
//! (CUDA graphs, graphs of ACL) and started as a whole: from the first instruction, or one that waits for an event, to the next that records one. A region
//! does not reach over events, since nothing in it could be waited for before all of it was launched, and not over calls, which bind other memory.
//!
//! Requires: streams and events as they will be. Keeps: streams, events, the order of instructions, every value. Costs: nothing.

use forebay_plan::{Program, StreamKind};

/// Marks the instructions of a program that are launched with the ones before them.
pub(super) fn capture(program: &mut Program) {
    // For each stream: can the next instruction be launched with the last one?
    let mut open = vec![false; program.streams.len()];
    for instruction in &mut program.instructions {
        let stream = instruction.stream as usize;
        let runs_on_device = program.streams[stream] != StreamKind::Host;
        instruction.captured = open[stream] && instruction.waits.is_empty() && runs_on_device;
        open[stream] = instruction.records.is_none();
    }
}
