//! Overlap: work that does not depend on each other runs at the same time, on the streams of different units.
//!
//! ```text
//! one stream                         two streams
//! 0 dispatch                         links  0 dispatch ─┐ e0          3 combine ─┐ e2
//! 1 shared expert           ──►      cube   1 shared    └► 2 experts ─┘ e1       └► 4 add
//! 2 experts · 3 combine · 4 add
//! ```
//!
//! * [`pieces`] (strategy key `pieces`): on graphs, experts on some tokens beside the exchange of others.
//! * [`exchange`] (`dispatch`): on graphs, exchanges between nodes apart from those within.
//!
//! Programs are emitted for one stream, in an order that is close to the graph's. Each pass can be switched off (strategy key `overlap`):
//!
//! * [`order`] (`within`): the instructions of a program in an order in which units wait less for each other.
//! * [`pair`] (`across`): a forward and a backward program that the schedule pairs, as one.
//! * [`border`] (`borders`): the end of a forward pass and the beginning of the next one as one, while a pipeline fills; the last layers of a backward pass as one.
//! * [`lanes`] (`vector`): which unit does what; elementwise work beside matrix products.
//! * [`crate::schedule`] (`units`, `early`): parameters and gradients beside layers; what is made again before the gradient comes.
//! * [`capture`] (`capture`): what a stream does without waiting is launched as one.
//!
//! Whatever runs, at the end each instruction goes to the stream of its unit, and events keep the order of those pairs alone of which one changes what the
//! other touches: within a program ([`program`]), and between the calls of a phase ([`calls`]). The given order stays a legal one, so whatever could run
//! before still can: every wait is for something that comes earlier in it.
//!
//! Requires: plans and programs with one stream and no events. Keeps: every value bit for bit. Costs: n log n in the size of the plan for events, n² in that of a program
//! for its order. No wait is made that others imply.

mod border;
mod calls;
mod capture;
pub mod exchange;
mod insert;
mod lanes;
mod moved;
mod order;
mod pair;
mod passes;
pub mod pieces;
mod priced;
mod program;
mod rates;
mod tasks;
mod times;

pub use border::Sender;
pub use lanes::Lanes;
pub use pair::{Paired, Part, Same};
pub use passes::{Pass, Passes};
pub use priced::Priced;
pub use times::{Clock, Times};

use forebay_plan::{Plan, Program, Space};
use program::Ordered;

/// Spreads the instructions of a plan over streams, and adds the events that this takes.
pub fn spread(plan: &mut Plan, lanes: &Lanes) {
    let uses_host = plan.programs.iter().flat_map(|p| &p.slots).any(|slot| slot.space == Space::Host);
    if plan.mesh.is_empty() && !uses_host {
        return;
    }
    let ordered = plan.programs.iter_mut().map(|program| {
        lanes.assign(program);
        program::order(program)
    });
    let ordered: Vec<Ordered> = ordered.collect();
    calls::order(plan, &ordered);
}

/// The pass `capture`: marks what is launched as one. The streams and events of the plan are final.
pub fn capture(plan: &mut Plan) {
    plan.programs.iter_mut().for_each(capture::capture);
}

/// The pass `within`: puts the instructions of a program into an order that hides more; the live bytes of its frame, when it has changed. `awaited` are slots
/// whose contents are waited for elsewhere: of orders that take as long the one that has them earlier is better.
pub fn within(program: &mut Program, awaited: &[usize], lanes: &Lanes) -> Option<u64> {
    (!lanes.is_one_rank()).then(|| order::reorder(program, awaited, lanes)).flatten()
}

/// The pass `across`: two programs as one; nothing when that is not worth it or not possible.
pub fn across(programs: (Part, Part), same: &[Same], lanes: &Lanes) -> Option<Paired> {
    (!lanes.is_one_rank()).then(|| pair::pair(programs, same, lanes)).flatten()
}

/// The pass `borders`: layers with messages between them as one program; nothing when that is not worth it or not possible.
/// `same`: for each but the first its slots that calls bind as slots of those in front of it.
pub fn across_border(parts: &[Part], same: &[Vec<Same>], sender: Sender, lanes: &Lanes) -> Option<Paired> {
    (!lanes.is_one_rank()).then(|| border::border(parts, same, sender, lanes)).flatten()
}
