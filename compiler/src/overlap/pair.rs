//! Across forward and backward: two programs that need nothing of each other as one, whose units take turns.
//!
//! ```text
//! cube   attention F ┌ experts B ┐ experts F ┌ attention B          F, B: layers of two micro-batches
//! links  combine B ──┘ dispatch F└ dispatch B┘ combine F
//! ```
//!
//! A schedule says which forward and backward passes run as a pair; layer by layer they become one program here. Its order is found as within a program ([`super::order`]),
//! so that each one's exchanges are beside the other's work wherever dependences let them (MindSpeed and DeepSeek, arXiv 2412.19437, section 3.2.1, fix such an order by hand).
//! Its frame holds the buffers of both. A pair that hides less than it costs is refused, and its programs run one after the other.
//!
//! Requires: programs without events, which the calls bind to memory that the other does not change; slots that both change are named and stay one.
//! Keeps: every value bit for bit.

use super::lanes::Lanes;
use super::order::{ROOM, alone, arrange, best};
use super::tasks::Tasks;
use forebay_plan::{Access, Buffer, Kernel, Program, Slot};

/// A pair is taken when it saves more than this part of the time.
pub(super) const WORTH: f64 = 0.005;

/// A slot of the first program and one of the second that calls bind to the same memory.
pub type Same = (usize, usize);

/// A program, and its slots whose contents are waited for elsewhere.
pub type Part<'a> = (&'a Program, &'a [usize]);

/// Two programs as one.
pub struct Paired {
    /// Slots: those of the first, those of the second that are not the same as one of the first, and the frame.
    pub program: Program,
    /// Live bytes of its frame.
    pub live: u64,
    /// Slots whose contents are waited for elsewhere.
    pub awaited: Vec<usize>,
}

/// Two programs as one; nothing when that is not worth it or not possible.
pub(super) fn pair((first, second): (Part, Part), same: &[Same], lanes: &Lanes) -> Option<Paired> {
    let parts = [first, second];
    let [first, second] = parts.map(|(program, _)| program);
    if draws(first) && draws(second) {
        // A call has one layer and one micro-batch, which random numbers depend on.
        return None;
    }
    let (mut both, moved) = joined((first, second), same)?;
    let mut awaited = parts[0].1.to_vec();
    awaited.extend(parts[1].1.iter().map(|&slot| moved[slot] as usize));
    let [a, b] = parts.map(|part| alone(&Tasks::new(part, lanes)));
    // Pairs are where a pipeline is full: what counts is how long both take.
    let tasks = Tasks::new((&both, &[]), lanes);
    let (order, timed) = best(&tasks, ((a.1 + b.1) as f64 * ROOM) as u64)?;
    if timed.cost > (a.0.cost + b.0.cost) * (1.0 - WORTH) {
        return None;
    }
    let live = arrange(&mut both, &order, &timed);
    Some(Paired { program: both, live, awaited })
}

/// Does a program draw random numbers?
pub(super) fn draws(program: &Program) -> bool {
    program.instructions.iter().any(|i| matches!(i.kernel, Kernel::RandomKey { .. }))
}

/// One program after the other in one, and the slots of the second in it; nothing where slots cannot be one, or instructions wait for events.
pub(super) fn joined((first, second): (&Program, &Program), same: &[Same]) -> Option<(Program, Vec<u32>)> {
    if first.events > 0 || second.events > 0 {
        return None;
    }
    let slots = |p: &Program| p.slots[..p.slots.len() - 1].to_vec();
    let mut all: Vec<Slot> = slots(first);
    let mut moved = vec![0u32; second.slots.len()];
    for (s, slot) in slots(second).into_iter().enumerate() {
        match same.iter().find(|(_, of_second)| *of_second == s) {
            Some(&(of_first, _)) => {
                all[of_first].access = one_after_other(all[of_first].access, slot.access)?;
                moved[s] = of_first as u32;
            }
            None => {
                moved[s] = all.len() as u32;
                all.push(slot);
            }
        }
    }
    let frame = all.len() as u32;
    let mut last = first.slots.last()?.clone();
    last.bytes = 0;
    all.push(last);
    *moved.last_mut()? = frame;
    let of_first = |b: &Buffer| Buffer {
        slot: if b.slot as usize == first.slots.len() - 1 { frame } else { b.slot },
        ..b.clone()
    };
    let of_second = |b: &Buffer| Buffer { slot: moved[b.slot as usize], ..b.clone() };
    let buffers: Vec<Buffer> = first.buffers.iter().map(of_first).chain(second.buffers.iter().map(of_second)).collect();
    let mut instructions = first.instructions.clone();
    let by = first.buffers.len() as u32;
    instructions.extend(second.instructions.iter().map(|instruction| {
        let mut instruction = instruction.clone();
        instruction.kernel.buffers_mut().into_iter().for_each(|b| *b += by);
        instruction
    }));
    let program = Program {
        name: format!("{}&{}", first.name, second.name.strip_prefix("train.").unwrap_or(&second.name)),
        slots: all,
        buffers,
        streams: first.streams.clone(),
        events: 0,
        instructions,
    };
    Some((program, moved))
}

/// How both use a slot, the first one first.
fn one_after_other(first: Access, second: Access) -> Option<Access> {
    match (first, second) {
        (Access::Read, Access::Read) => Some(Access::Read),
        (Access::Write, Access::Read | Access::Update) => Some(Access::Write),
        (Access::Read | Access::Update, Access::Read | Access::Update) => Some(Access::Update),
        _ => None,
    }
}
