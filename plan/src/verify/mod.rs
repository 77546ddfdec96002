//! Is a plan safe and meaningful to run? Every plan that is read from a file is asked.
//!
//! A plan that passes can be executed without any further check of indices, sizes or order: no kernel leaves its buffers, nothing is
//! read that was not written, and all legal orders give the same bits. What depends on data (token ids, expert numbers, group starts)
//! is the runtime's to check. Numbers of a hostile plan are never trusted: arithmetic is checked, no loop runs as long as a
//! number says, and the time is n log n in the size of the file.
//!
//! [`Rule`] lists the invariants. They are checked in four steps, each only where the one before found nothing:
//!
//! 1. `globals` and `tensors`: settings, mesh, the persistent region.
//! 2. `program`: indices of each program; `kernels` and `region`: each instruction by itself; `flow`: the program as a whole — definition before use,
//!    order between streams. Every program is checked once, however often it is called.
//! 3. `roles`: indices and places of each role and call.
//!    `mesh`: groups, peers, and how roles share the mesh out.
//! 4. `memory`: the calls of each phase over the rank's memory, from one [`flow::Summary`] for each program. `replay`: the messages and collectives of all
//!    roles against each other.
//!
//! The unit of definition and order is the *buffer* in a program and the *slot* (where its buffers lie) in a call:
//!
//! * A buffer counts as defined after its first write, in as much as a count of elements cannot show the opposite: reading more distinct
//!   elements than were ever written is found, reading the wrong half is not. (`stack` and `concat` fill one buffer by several instructions.)
//! * Reading through another buffer than the one that was last written in its memory is an error: its contents are gone. Two buffers with the same
//!   place, type and size are one, but not in scratch slots, where memory is used again for other values.
//! * Writes to different parts of one buffer on different streams need an order all the same.
//! * A slot with access `write` that overlaps a part of an older value ends that value's life; a part of a value is changed through `update`.

mod attention;
mod clock;
mod comm;
mod flow;
mod footprint;
mod globals;
mod intervals;
mod kernels;
mod linear;
mod memory;
mod mesh;
pub mod order;
mod place;
mod program;
mod region;
mod replay;
mod roles;
mod rules;
mod tensors;
#[cfg(test)]
mod tests;

pub use rules::{Rule, Violation};

use crate::schema::Plan;
use flow::Summary;
use rules::Findings;

/// Places in memory are multiples of this, in bytes: a cache line.
pub const ALIGN: u64 = 64;

/// The most dimensions of an iteration space, batch, sum or mesh: runtimes keep them in fixed arrays.
pub const MAX_RANK: usize = 16;

/// The most steps of a region.
pub const MAX_STEPS: usize = 4096;

/// The most loads of a region.
pub const MAX_LOADS: usize = 256;

/// The most stores of a region.
pub const MAX_STORES: usize = 64;

/// The most pairs of queries and keys of an attention.
pub const MAX_PAIRS: usize = 8;

/// The most elements of a head of attention.
pub const MAX_HEAD: u64 = 4096;

/// The most elements of a key of linear attention.
pub const MAX_KEY: u64 = 1 << 16;

/// The most groups of a counting sort.
pub const MAX_GROUPS: u64 = 1 << 24;

/// The most violations that are reported.
pub const MAX_VIOLATIONS: usize = 100;

/// Checks a plan.
///
/// # Errors
/// When it must not be run: what is wrong, at most [`MAX_VIOLATIONS`] of it.
pub fn verify(plan: &Plan) -> Result<(), Vec<Violation>> {
    let mut findings = Findings::default();
    globals::check(plan, &mut findings);
    let tensors = tensors::check(plan, &mut findings);
    let summaries: Vec<Option<Summary>> = plan.programs.iter().map(|p| program::check(p, &mut findings)).collect();
    let roles_fit = findings.none_since(|f| {
        roles::check(plan, f);
        mesh::check(plan, f);
    });
    // Without any one of these the calls cannot be followed.
    if let (Some(summaries), Some(tensors), true) =
        (summaries.into_iter().collect::<Option<Vec<_>>>(), tensors, roles_fit)
    {
        memory::check(plan, &tensors, &summaries, &mut findings);
        replay::check(plan, &mut findings);
    }
    findings.result()
}

/// Violations one on a line.
pub(crate) fn list(violations: &[Violation]) -> String {
    violations.iter().map(|v| format!("  {v}")).collect::<Vec<_>>().join("\n")
}
