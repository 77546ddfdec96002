//! Across the border of two passes of a pipeline stage: the last layer of one, messages, and the first layer of the next as one program.
//!
//! ```text
//! cube   experts 1 ┐· · · · · ·┌ attention F'         experts 1 ┌ attention F'
//! links            └ combine 1 ┘              ──►                └ combine 1
//! ```
//!
//! What comes from another stage is asked for behind the products of the pass that ends, so that nothing of it waits for a message that is still to come; what that pass sends comes
//! as early as it can ([`super::order`] prefers orders that have it earlier). Messages are instructions like others here, and keep the place on their stream that their order gives them.
//!
//! Requires: programs without events, in an order in which they may run; what their calls bind to the same memory, where one of them changes it, is named. Keeps: every value bit for bit.

use super::lanes::Lanes;
use super::order::{ROOM, alone, arrange, best};
use super::pair::{Paired, Part, Same, WORTH, draws, joined};
use super::tasks::Tasks;
use forebay_plan::Program;

/// Layers with messages between them as one program. `same`: for each but the first its slots that are bound as slots of what is in front of it. What is waited for is the result of the first.
pub(super) fn border(parts: &[Part], same: &[Vec<Same>], lanes: &Lanes) -> Option<Paired> {
    let ((first, awaited), others) = parts.split_first()?;
    if parts.iter().filter(|(program, _)| draws(program)).count() > 1 {
        return None;
    }
    let mut all: Program = (*first).clone();
    for ((program, _), same) in others.iter().zip(same) {
        all = joined((&all, program), same)?.0;
    }
    all.name = format!("{}&{}.next", first.name, without_phase(&others.last()?.0.name));
    // Messages are beside work as they are.
    let layers = [parts.first()?, parts.last()?].map(|part| alone(&Tasks::new(*part, lanes)));
    let (seconds, bytes) = (layers[0].0 + layers[1].0, layers[0].1 + layers[1].1);
    let tasks = Tasks::new((&all, awaited), lanes);
    let (order, timed) = best(&tasks, (bytes as f64 * ROOM) as u64)?;
    if timed.cost > seconds * (1.0 - WORTH) {
        return None;
    }
    let live = arrange(&mut all, &order, &timed);
    Some(Paired { program: all, live, awaited: awaited.to_vec() })
}

fn without_phase(name: &str) -> &str {
    name.strip_prefix("train.").unwrap_or(name)
}
