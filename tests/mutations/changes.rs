//! Single changes of a plan, by kind.

use crate::common::Numbers;
use forebay_plan::{Kernel, Phase, Plan, Program};
use serde_json::Value;

/// A number of `numbers`, below `n`; nothing when there is none.
fn below(numbers: &mut Numbers, n: usize) -> Option<usize> {
    (n > 0).then(|| (numbers.uniform() * n as f64) as usize)
}

/// What was done, in words; nothing when there is nothing of the kind at the place that was drawn.
type Change = fn(&mut Plan, &mut Numbers) -> Option<String>;

/// All kinds of changes.
pub const KINDS: [(&str, Change); 21] = [
    ("instruction left out", |plan, numbers| {
        let (program, at) = instruction(plan, numbers, |_| true)?;
        let gone = program.instructions.remove(at);
        Some(format!("{} of {}", gone.name, program.name))
    }),
    ("message or collective left out", |plan, numbers| {
        let (program, at) = instruction(plan, numbers, is_between_ranks)?;
        let gone = program.instructions.remove(at);
        Some(format!("{} {} of {}", gone.kernel.name(), gone.name, program.name))
    }),
    ("instructions swapped", |plan, numbers| {
        let (program, at) = instruction(plan, numbers, |_| true)?;
        (at + 1 < program.instructions.len()).then(|| program.instructions.swap(at, at + 1))?;
        Some(format!("{} and the one before it, of {}", program.instructions[at].name, program.name))
    }),
    ("instruction on another stream", |plan, numbers| {
        let (program, at) = instruction(plan, numbers, |_| true)?;
        let streams = program.streams.len() as u32;
        let stream = &mut program.instructions[at].stream;
        *stream = (streams > 1).then(|| (*stream + 1) % streams)?;
        Some(format!("{} of {}", program.instructions[at].name, program.name))
    }),
    ("wait left out", |plan, numbers| {
        let (program, at) = waiting(plan, numbers)?;
        let which = below(numbers, program.instructions[at].waits.len())?;
        program.instructions[at].waits.remove(which);
        Some(format!("of {} of {}", program.instructions[at].name, program.name))
    }),
    ("wait for another event", |plan, numbers| {
        let (program, at) = waiting(plan, numbers)?;
        let events = program.events;
        let which = below(numbers, program.instructions[at].waits.len())?;
        let wait = &mut program.instructions[at].waits[which];
        *wait = (events > 1).then(|| (*wait + 1) % events)?;
        Some(format!("of {} of {}", program.instructions[at].name, program.name))
    }),
    ("event recorded by the instruction before", |plan, numbers| {
        let (program, at) = instruction(plan, numbers, |_| true)?;
        let (before, here) = program.instructions.split_at_mut(at);
        let (before, here) = (before.last_mut()?, here.first_mut()?);
        (here.records.is_some() && before.records.is_none()).then(|| before.records = here.records.take())?;
        Some(format!("{} for {}, of {}", before.name, here.name, program.name))
    }),
    ("launched with the instruction before", |plan, numbers| {
        let (program, at) = instruction(plan, numbers, |_| true)?;
        program.instructions[at].captured = true;
        Some(format!("{} of {}", program.instructions[at].name, program.name))
    }),
    ("call left out", |plan, numbers| {
        let (phase, at) = call(plan, numbers)?;
        let gone = phase.calls.remove(at);
        renumber(phase, |call| call - u32::from(call as usize > at));
        Some(format!("call {at} of {}, of program {}", phase.name, gone.program))
    }),
    ("calls swapped", |plan, numbers| {
        let (phase, at) = call(plan, numbers)?;
        (at + 1 < phase.calls.len()).then(|| phase.calls.swap(at, at + 1))?;
        let (a, b) = (at as u32, at as u32 + 1);
        renumber(phase, |call| {
            if call == a {
                b
            } else if call == b {
                a
            } else {
                call
            }
        });
        Some(format!("calls {at} and {} of {}", at + 1, phase.name))
    }),
    ("call of another program", |plan, numbers| {
        let programs = plan.programs.len() as u32;
        let (phase, at) = call(plan, numbers)?;
        let program = &mut phase.calls[at].program;
        *program = (*program + 1) % programs;
        Some(format!("call {at} of {}", phase.name))
    }),
    ("wait of a call left out", |plan, numbers| {
        let (phase, at) = waiting_call(plan, numbers)?;
        let which = below(numbers, phase.calls[at].waits.len())?;
        phase.calls[at].waits.remove(which);
        Some(format!("call {at} of {}", phase.name))
    }),
    ("wait of a call for another event", |plan, numbers| {
        let (phase, at) = waiting_call(plan, numbers)?;
        let which = below(numbers, phase.calls[at].waits.len())?;
        phase.calls[at].waits[which].event += 1;
        Some(format!("call {at} of {}", phase.name))
    }),
    ("wait of a call for the call before", |plan, numbers| {
        let (phase, at) = waiting_call(plan, numbers)?;
        let which = below(numbers, phase.calls[at].waits.len())?;
        let wait = &mut phase.calls[at].waits[which];
        wait.call = wait.call.checked_sub(1)?;
        Some(format!("call {at} of {}", phase.name))
    }),
    ("slot of a call elsewhere", |plan, numbers| {
        let up = numbers.uniform() < 0.5;
        let (phase, at) = call(plan, numbers)?;
        let which = below(numbers, phase.calls[at].slots.len())?;
        let place = &mut phase.calls[at].slots[which];
        *place = if up { *place + 64 } else { place.checked_sub(64)? };
        Some(format!("slot {which} of call {at} of {}", phase.name))
    }),
    ("buffer elsewhere", |plan, numbers| {
        let up = numbers.uniform() < 0.5;
        let program = program(plan, numbers)?;
        let at = below(numbers, program.buffers.len())?;
        let place = &mut program.buffers[at].offset;
        *place = if up { *place + 64 } else { place.checked_sub(64)? };
        Some(format!("{} of {}", program.buffers[at].name, program.name))
    }),
    ("buffer of another size", |plan, numbers| {
        let up = numbers.uniform() < 0.5;
        let program = program(plan, numbers)?;
        let at = below(numbers, program.buffers.len())?;
        let size = &mut program.buffers[at].elements;
        *size = if up { *size + 1 } else { *size - 1 };
        Some(format!("{} of {}", program.buffers[at].name, program.name))
    }),
    ("slot of another size", |plan, numbers| {
        let up = numbers.uniform() < 0.5;
        let program = program(plan, numbers)?;
        let at = below(numbers, program.slots.len())?;
        let size = &mut program.slots[at].bytes;
        *size = if up { *size + 64 } else { size.checked_sub(64)? };
        Some(format!("{} of {}", program.slots[at].name, program.name))
    }),
    ("number of a message or collective off by one", |plan, numbers| {
        let (program, at) = instruction(plan, numbers, is_between_ranks)?;
        number_of(program, at, numbers)
    }),
    ("number of a kernel off by one", |plan, numbers| {
        let (program, at) = instruction(plan, numbers, |kernel| !is_between_ranks(kernel))?;
        number_of(program, at, numbers)
    }),
    ("tensor elsewhere", |plan, numbers| {
        let up = numbers.uniform() < 0.5;
        let role = below(numbers, plan.roles.len())?;
        let role = &mut plan.roles[role];
        let at = below(numbers, role.tensors.len())?;
        let place = &mut role.tensors[at].offset;
        *place = if up { *place + 64 } else { place.checked_sub(64)? };
        Some(format!("{:?} {} of {}", role.tensors[at].kind, role.tensors[at].name, role.name))
    }),
];

fn program<'p>(plan: &'p mut Plan, numbers: &mut Numbers) -> Option<&'p mut Program> {
    let at = below(numbers, plan.programs.len())?;
    plan.programs.get_mut(at)
}

/// A program, and one of its instructions that `is` holds of.
fn instruction<'p>(
    plan: &'p mut Plan,
    numbers: &mut Numbers,
    is: impl Fn(&Kernel) -> bool,
) -> Option<(&'p mut Program, usize)> {
    let program = program(plan, numbers)?;
    let all = program.instructions.iter().enumerate().filter(|(_, i)| is(&i.kernel));
    let all: Vec<usize> = all.map(|(at, _)| at).collect();
    let at = all[below(numbers, all.len())?];
    Some((program, at))
}

/// A program, and one of its instructions that waits.
fn waiting<'p>(plan: &'p mut Plan, numbers: &mut Numbers) -> Option<(&'p mut Program, usize)> {
    let program = program(plan, numbers)?;
    let all: Vec<usize> =
        program.instructions.iter().enumerate().filter(|(_, i)| !i.waits.is_empty()).map(|(at, _)| at).collect();
    let at = all[below(numbers, all.len())?];
    Some((program, at))
}

/// A phase of training, and one of its calls.
fn call<'p>(plan: &'p mut Plan, numbers: &mut Numbers) -> Option<(&'p mut Phase, usize)> {
    let role = below(numbers, plan.roles.len())?;
    let phase = plan.roles[role].phases.iter_mut().find(|phase| phase.name == "train")?;
    let at = below(numbers, phase.calls.len())?;
    Some((phase, at))
}

fn waiting_call<'p>(plan: &'p mut Plan, numbers: &mut Numbers) -> Option<(&'p mut Phase, usize)> {
    let (phase, at) = call(plan, numbers)?;
    (!phase.calls[at].waits.is_empty()).then_some((phase, at))
}

/// The calls that waits are for have other numbers.
fn renumber(phase: &mut Phase, number: impl Fn(u32) -> u32) {
    phase.calls.iter_mut().flat_map(|call| &mut call.waits).for_each(|wait| wait.call = number(wait.call));
}

fn is_between_ranks(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Exchange(_) | Kernel::AllToAllV(_) | Kernel::Send(_) | Kernel::Recv(_))
}

/// Changes one of the numbers of an instruction's kernel: a buffer, a size, a stride, an offset, a rank.
fn number_of(program: &mut Program, at: usize, numbers: &mut Numbers) -> Option<String> {
    let kernel = &mut program.instructions[at].kernel;
    let mut value = serde_json::to_value(&*kernel).expect("kernels are JSON");
    let mut places = vec![];
    find(&value, String::new(), &mut places);
    let place = places.swap_remove(below(numbers, places.len())?);
    let number = value.pointer_mut(&place).expect("it was found");
    let by = if numbers.uniform() < 0.5 { 1 } else { -1 };
    *number = (number.as_i64()? + by).into();
    // A number that cannot be is found by whoever reads the file.
    *kernel = serde_json::from_value(value).ok()?;
    Some(format!("{place} of {} of {}", program.instructions[at].name, program.name))
}

/// JSON pointers of all whole numbers.
fn find(value: &Value, here: String, found: &mut Vec<String>) {
    match value {
        Value::Number(n) if n.is_i64() => found.push(here),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| find(value, format!("{here}/{key}"), found)),
        Value::Array(items) => (0..).zip(items).for_each(|(i, value)| find(value, format!("{here}/{i}"), found)),
        _ => {}
    }
}
