//! The passes of a pipeline stage: what the diagrams of papers show as one cell. A pass is the calls of one micro-batch through one part of the stage's
//! layers, in one direction.

use crate::lower::{Lane, RoleOps};
use forebay_plan::{Call, Plan, Role};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Forward.
    Forward,
    /// Forward, layer by layer in one program with a backward pass of another micro-batch.
    Pair,
    /// Backward, for inputs alone.
    BackwardInput,
    /// Backward, for parameters alone.
    BackwardWeight,
    /// Backward, for both.
    Backward,
    /// What a backward pass makes again, before its gradient has come.
    Again,
    /// Sums over the step, clipping, the optimizer's update.
    Update,
}

impl Work {
    /// All of them.
    pub const ALL: [Work; 7] = [
        Work::Forward,
        Work::Pair,
        Work::BackwardInput,
        Work::BackwardWeight,
        Work::Backward,
        Work::Again,
        Work::Update,
    ];

    /// Does it go forward?
    fn is_forward(self) -> bool {
        matches!(self, Work::Forward | Work::Pair)
    }

    /// The letter of diagrams.
    pub fn letter(self) -> &'static str {
        match self {
            Work::Forward => "F",
            Work::Pair => "P",
            Work::BackwardInput => "I",
            Work::BackwardWeight => "W",
            Work::Backward => "B",
            Work::Again => "R",
            Work::Update => "U",
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Work::Forward => "forward",
            Work::Pair => "forward, and backward of another micro-batch beside it",
            Work::BackwardInput => "backward for inputs",
            Work::BackwardWeight => "backward for weights",
            Work::Backward => "backward",
            Work::Again => "made again for the backward pass",
            Work::Update => "sums and update",
        }
    }
}

/// A cell of the diagram, in ranges of a role's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// What it does.
    pub work: Work,
    /// The micro-batch.
    pub micro_batch: u32,
    /// Which part of the stage's layers, from 0.
    pub chunk: u32,
    /// Its first call: an index into [`RoleOps::ops`].
    pub first: usize,
    /// Its last call.
    pub last: usize,
}

/// What a call is for.
enum Part {
    /// Work of a pass.
    Of(Work),
    /// Belongs to the pass that comes.
    Leads,
    /// Belongs to the pass before.
    Follows,
    /// Between passes.
    Message,
}

fn part(program: &str, at_end: bool) -> Part {
    if program.starts_with("send.") || program.starts_with("receive.") {
        Part::Message
    } else if at_end {
        Part::Of(Work::Update)
    } else if program.contains(".forward") && program.contains(".backward") {
        Part::Of(Work::Pair)
    } else if program.contains(".forward") {
        Part::Of(Work::Forward)
    } else if program.contains(".backward_input") {
        Part::Of(Work::BackwardInput)
    } else if program.contains(".backward_weight") {
        Part::Of(Work::BackwardWeight)
    } else if program.contains(".backward_early") {
        Part::Of(Work::Again)
    } else if program.contains(".backward") {
        Part::Of(Work::Backward)
    } else if program.starts_with("optimizer.gather") || program.starts_with("zeros.") {
        Part::Leads
    } else {
        Part::Follows
    }
}

/// The passes of a role, in order.
pub fn passes(plan: &Plan, role: &Role, ops: &RoleOps) -> Vec<Pass> {
    let Some(phase) = role.phases.iter().find(|p| p.name == "train") else { return vec![] };
    let step = role.layers.len().saturating_sub(1) as u32;
    let mut found: Vec<Found> = vec![];
    // Where a pass that has not begun yet would begin; whether the last one goes on.
    let (mut lead, mut open) = (None, false);
    // The first layer of a pass whose last call so far has the beginning of the next one in it, through the same layers (`compiler/src/schedule/borders.rs`).
    let mut begun = None;
    for (number, op) in ops.ops.iter().enumerate().filter(|(_, op)| op.lane == Lane::Main) {
        let Some(call) = op.call.and_then(|c| phase.calls.get(c as usize)) else {
            // What is computed again belongs to the backward pass behind it.
            lead.get_or_insert(number);
            continue;
        };
        let program = &plan.programs[call.program as usize].name;
        match part(program, call.layer == step) {
            Part::Of(work) => {
                let goes_on = |found: &&mut Found| {
                    let Pass { work: before, micro_batch, .. } = found.pass;
                    let same = before == work || (before.is_forward() && work.is_forward());
                    open && same && (micro_batch == call.micro_batch || work == Work::Update)
                };
                match found.last_mut().filter(goes_on) {
                    Some(Found { pass, layer }) => {
                        pass.last = number;
                        // Of a pair some layers may run by themselves.
                        pass.work = pass.work.max(work);
                        *layer = (*layer).min(call.layer);
                    }
                    None => {
                        let first = lead.unwrap_or(number);
                        let pass = Pass { work, micro_batch: call.micro_batch, chunk: 0, first, last: number };
                        let layer = begun.unwrap_or(call.layer);
                        found.push(Found { pass, layer });
                    }
                }
                let layer = found.last().map(|found| found.layer);
                begun = layer.filter(|_| work == Work::Forward && program.ends_with(".next"));
                (lead, open) = (None, true);
            }
            Part::Leads => {
                lead.get_or_insert(number);
            }
            Part::Follows => {
                if let Some(found) = found.last_mut().filter(|_| open && lead.is_none()) {
                    found.pass.last = number;
                }
            }
            // Sums that go to another stage, while passes go on, are of no micro-batch.
            Part::Message if is_of_another(program, call, found.last()) => {}
            Part::Message => (lead, open) = (None, false),
        }
    }
    number_chunks(found)
}

/// Is it sent, and not the result of the last pass?
fn is_of_another(program: &str, call: &Call, last: Option<&Found>) -> bool {
    program.starts_with("send.") && last.is_some_and(|last| last.pass.micro_batch != call.micro_batch)
}

/// A pass, before its chunk has a number.
struct Found {
    pass: Pass,
    /// The first of its layers.
    layer: u32,
}

/// Chunks are numbered by their first layers, which are those of passes before the stage first goes backward: these go forward alone, while later ones may have messages of what they are paired with
/// among their layers.
fn number_chunks(found: Vec<Found>) -> Vec<Pass> {
    let fills = |f: &&Found| matches!(f.pass.work, Work::Forward | Work::Update);
    let filling = found.iter().take_while(fills).filter(|f| f.pass.work == Work::Forward);
    let mut chunks: BTreeMap<u32, u32> = filling.map(|f| (f.layer, 0)).collect();
    chunks.values_mut().zip(0..).for_each(|(chunk, number)| *chunk = number);
    let chunk_of = |layer: u32| chunks.range(..=layer).next_back().map_or(0, |(_, chunk)| *chunk);
    let numbered = |Found { pass, layer }| match pass.work {
        Work::Update => pass,
        _ => Pass { chunk: chunk_of(layer), ..pass },
    };
    found.into_iter().map(numbered).collect()
}
