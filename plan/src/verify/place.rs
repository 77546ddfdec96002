//! Where something is, in words.

use crate::file::excerpt;
use crate::print::json_name;
use crate::schema::*;
use std::fmt;

/// A place in a plan.
#[derive(Clone, Copy)]
pub(super) enum Place<'p> {
    Plan,
    Tensor(&'p Role, &'p Tensor),
    Program(&'p Program),
    Slot(&'p Program, usize),
    Buffer(&'p Program, usize),
    Instruction(&'p Program, usize),
    Role(&'p Role),
    Phase(&'p Role, &'p Phase),
    Call(&'p Plan, &'p Role, &'p Phase, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Place::Plan => f.write_str("the plan"),
            Place::Tensor(role, tensor) => {
                write!(f, "{}, tensor {} ({})", Place::Role(role), quoted(&tensor.name), json_name(&tensor.kind))
            }
            Place::Program(program) => write!(f, "program {}", quoted(&program.name)),
            Place::Slot(program, slot) => {
                write!(f, "{}, slot {slot} {}", Place::Program(program), quoted(&program.slots[slot].name))
            }
            Place::Buffer(program, buffer) => {
                write!(f, "{}, buffer {buffer} {}", Place::Program(program), quoted(&program.buffers[buffer].name))
            }
            Place::Instruction(program, at) => {
                write!(f, "{}, instruction {at} {}", Place::Program(program), quoted(&program.instructions[at].name))
            }
            Place::Role(role) => write!(f, "role {}", quoted(&role.name)),
            Place::Phase(role, phase) => write!(f, "{}, phase {}", Place::Role(role), quoted(&phase.name)),
            Place::Call(plan, role, phase, at) => {
                write!(f, "{}, call {at}", Place::Phase(role, phase))?;
                let call = &phase.calls[at];
                let program = plan.programs.get(call.program as usize).map_or("?", |p| &p.name);
                let layer = role.layers.get(call.layer as usize).map_or("?", |l| l);
                write!(f, " ({} for {}, micro-batch {})", quoted(program), quoted(layer), call.micro_batch)
            }
        }
    }
}

/// A name of the plan, fit to be shown.
pub(super) fn quoted(name: &str) -> String {
    format!("`{}`", excerpt(name))
}
