//! How much of what is made again is made before the gradient comes: as much as there is memory for.
//!
//! A stage's memory is fullest when most micro-batches are between their passes. After that there is room, at no cost, for what the
//! layers of a pass make again, to be there until they go backward ([`schedule::early`](crate::schedule)).

use crate::schedule::{EarlyLayers, Usage};
use rustc_hash::FxHashMap;

/// For each backward pass that is waited for, how many layers make things early, such that no more than `room` bytes above the persistent ones are alive.
pub(super) fn layers(usage: &Usage, room: u64) -> EarlyLayers {
    let calls: FxHashMap<(usize, u32), u32> =
        usage.spans.iter().map(|span| ((span.layer, span.micro_batch), span.backward)).collect();
    let mut chosen = EarlyLayers::default();
    for wait in &usage.waits {
        // Bytes of a layer are there until it goes backward, the last layer first.
        let fits = |many: usize| {
            let mut left: u64 = wait.layers[..many].iter().map(|(_, bytes)| bytes).sum();
            wait.layers[..many].iter().all(|(layer, bytes)| {
                // Its own it has in any case, somewhere in its frame.
                left -= bytes;
                usage.live[calls[&(*layer, wait.pass.0)] as usize] + left <= room
            })
        };
        let many = (1..=wait.layers.len()).rev().find(|&many| fits(many));
        chosen.extend(many.map(|many| (wait.pass, many)));
    }
    chosen
}
