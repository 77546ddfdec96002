//! Layers that follow each other as one program, where what is sent to another stage comes earlier, or more is beside it.
//!
//! ```text
//! cube   experts 1 ┐· · · · · ·┌ attention F'         experts 1 ┌ attention F'
//! links            └ combine 1 ┘              ──►               └ combine 1          of two forward passes
//!
//! cube   B 1 · weights 1 · B 0 · weights 0            B 1 · B 0 · weights 1 · weights 0
//! links                        └ send         ──►             └ send                of one backward pass
//! ```
//!
//! The last layer of a forward pass, messages, and the first layer of the next pass: what comes from another stage is asked for behind the products of the pass that ends, so that
//! nothing of it waits for a message that is still to come; what that pass sends comes
//! as early as it can ([`super::order`] prefers orders that have it earlier). Messages are instructions like others here, and keep the place on their stream that their order gives them.
//! The last two layers of a backward pass: gradients of parameters, which nobody waits for, come behind what is sent.
//!
//! Requires: programs without events, in an order in which they may run; what their calls bind to the same memory, where one of them changes it, is named. Keeps: every value bit for bit.

use super::lanes::Lanes;
use super::order::{ROOM, alone, arrange, best};
use super::pair::{Paired, Part, Same, WORTH, draws, joined};
use super::tasks::Tasks;

/// Whose results another stage waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    /// Those of the first layer.
    First,
    /// Those of the last layer.
    Last,
}

/// Layers with messages between them as one program. `same`: for each but the first its slots that are bound as slots of what is in front of it.
pub(super) fn border(parts: &[Part], same: &[Vec<Same>], sender: Sender, lanes: &Lanes) -> Option<Paired> {
    let ((first, others), last) = (parts.split_first()?, parts.last()?);
    if others.is_empty() || parts.iter().filter(|(program, _)| draws(program)).count() > 1 {
        return None;
    }
    let (mut all, mut moved) = (first.0.clone(), vec![]);
    for ((program, _), same) in others.iter().zip(same) {
        (all, moved) = joined((&all, program), same)?;
    }
    all.name = format!("{}&{}.next", first.0.name, without_phase(&last.0.name));
    let awaited: Vec<usize> = match sender {
        Sender::First => first.1.to_vec(),
        Sender::Last => last.1.iter().map(|&slot| moved[slot] as usize).collect(),
    };
    // Messages are beside work as they are.
    let [(before, room), (behind, more)] = [first, last].map(|part| alone(&Tasks::new(*part, lanes)));
    let price = match sender {
        Sender::First => before.price() + behind.cost,
        Sender::Last => before.price_before(&behind),
    };
    let tasks = Tasks::new((&all, &awaited), lanes);
    let (order, timed) = best(&tasks, ((room + more) as f64 * ROOM) as u64)?;
    if timed.price() > price * (1.0 - WORTH) {
        return None;
    }
    let live = arrange(&mut all, &order, &timed);
    Some(Paired { program: all, live, awaited })
}

fn without_phase(name: &str) -> &str {
    name.strip_prefix("train.").unwrap_or(name)
}
