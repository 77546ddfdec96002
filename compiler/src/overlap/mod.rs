//! Streams and events: work that does not depend on each other may run at the same time.
//!
//! ```text
//! one stream                         two streams
//! 0 dispatch                         links  0 dispatch ─┐ e0          3 combine ─┐ e2
//! 1 shared expert           ──►      cube   1 shared    └► 2 experts ─┘ e1       └► 4 add
//! 2 experts · 3 combine · 4 add
//! ```
//!
//! Before, a plan's order is total: one stream, calls one by one. Here each instruction goes to the stream of the unit that does it
//! ([`streams`]), and events keep the order of those pairs alone of which one changes what the other touches: within a program
//! ([`program`]), and between the calls of a phase ([`calls`]). The given order stays a legal one, so whatever could run before still can: every
//! wait is for something that comes earlier in it.
//!
//! Requires: a plan with one stream that passes the verifier. Keeps: every value bit for bit. Costs: time n log n in the size of the plan.
//! No wait is made that others imply.

mod calls;
mod program;
mod streams;

use crate::shard::Mesh;
use forebay_plan::{Plan, Space};
use program::Ordered;

/// Spreads the instructions of a plan over streams, and adds the events that this takes.
pub fn spread(plan: &mut Plan, mesh: &Mesh) {
    let uses_host = plan.programs.iter().flat_map(|p| &p.slots).any(|slot| slot.space == Space::Host);
    if plan.mesh.is_empty() && !uses_host {
        return;
    }
    let ordered = plan.programs.iter_mut().map(|program| {
        streams::assign(program, mesh);
        program::order(program)
    });
    let ordered: Vec<Ordered> = ordered.collect();
    calls::order(plan, &ordered);
}
