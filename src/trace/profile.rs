//! What a run did.
//!
//! A process is a rank. Its first thread has steps and, inside them, calls of programs; then comes a thread for each kind of stream, with
//! the kernels. A kernel keeps all workers of its rank busy and runs alone, so workers have no threads of their own here.

use super::{Track, Writer};
use forebay_plan::{Kernel, Plan, Program, Role, StreamKind};
use forebay_runtime::exec::{Event, Profile, Traced, kind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Steps that a trace holds: more say the same, and viewers take a few hundred thousand events.
pub const STEPS: u64 = 20;
const CALLS: u64 = 0;
const STEPS_AND_CALLS: &str = "steps and calls";

/// The file: what each rank did.
pub fn json<'p>(ranks: impl Iterator<Item = (&'p Role, &'p Profile)>, plan: &Plan) -> String {
    let several = plan.mesh.iter().any(|dim| dim.size > 1);
    let mut writer = Writer::new();
    for (rank, (role, profile)) in (0..).zip(ranks) {
        let rest = if several { format!(", rank {rank}") } else { String::new() };
        writer.process_name(rank + 1, &format!("forebay {}{rest}", plan.model));
        process(&mut writer, rank + 1, role, profile, plan);
    }
    writer.finish("what a run of forebay did")
}

/// The events of a rank.
fn process(writer: &mut Writer, pid: u64, role: &Role, profile: &Profile, plan: &Plan) {
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    // What is around others comes before them.
    let mut sorted: Vec<&Event> = profile.events().iter().collect();
    sorted.sort_by_key(|e| (e.start, std::cmp::Reverse(e.time)));
    let shown: Vec<Shown> = sorted.iter().map(|event| Shown::of(event, role, plan)).collect();
    let threads: BTreeMap<u64, &str> = shown.iter().map(|s| (s.tid, s.thread.as_str())).collect();
    writer.thread_name(Track { pid, tid: CALLS }, STEPS_AND_CALLS);
    for (&tid, name) in threads.iter().filter(|(tid, _)| **tid != CALLS) {
        writer.thread_name(Track { pid, tid }, name);
    }
    for (event, Shown { tid, name, args, .. }) in sorted.into_iter().zip(shown) {
        writer.slice(Track { pid, tid }, &name, (micros(event.start), micros(event.time)), args);
    }
}

/// How an event is shown.
struct Shown {
    tid: u64,
    thread: String,
    name: String,
    args: Value,
}

impl Shown {
    fn of(event: &Event, role: &Role, plan: &Plan) -> Shown {
        let of_calls = |name, args| Shown { tid: CALLS, thread: STEPS_AND_CALLS.into(), name, args };
        match event.what {
            Traced::Step(step) => of_calls(format!("step {step}"), json!({ "kind": "step" })),
            Traced::Call { program, layer } => {
                let layer = role.layers.get(layer).map_or("", String::as_str);
                of_calls(plan.programs[program].name.clone(), json!({ "kind": "call", "layer": layer }))
            }
            Traced::Instruction { program, index } => {
                let program = &plan.programs[program];
                let instruction = &program.instructions[index];
                let stream = program.streams[instruction.stream as usize];
                Shown {
                    tid: thread(stream),
                    thread: format!("{stream:?} stream"),
                    name: format!("{} {}", program.name, instruction.name),
                    args: args(program, &instruction.kernel),
                }
            }
        }
    }
}

fn args(program: &Program, kernel: &Kernel) -> Value {
    json!({ "kind": kind(program, kernel), "flops": kernel.flops(), "bytes": kernel.traffic(&program.buffers).bytes() })
}

/// The thread of a kind of stream.
fn thread(stream: StreamKind) -> u64 {
    1 + stream.number() as u64
}
