//! What happened when, in the trace event format that chrome://tracing and ui.perfetto.dev read: an object with `traceEvents`, times in µs.
//!
//! A process is a rank. Its first thread has steps and, inside them, calls of programs; then comes a thread for each kind of stream, with
//! the kernels. A kernel keeps all workers of its rank busy and runs alone, so workers have no threads of their own here.

use forebay_plan::{Kernel, Plan, Program, Role, StreamKind};
use forebay_runtime::exec::{Event, Profile, Traced, kind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Steps that a trace holds: more say the same, and viewers take a few hundred thousand events.
pub const STEPS: u64 = 20;
const CALLS: u64 = 0;

/// The file: what each rank did.
pub fn json<'p>(ranks: impl Iterator<Item = (&'p Role, &'p Profile)>, plan: &Plan) -> String {
    let several = plan.mesh.iter().any(|dim| dim.size > 1);
    let named = |(rank, (role, profile)): (u64, (&'p Role, &'p Profile))| {
        let name =
            if several { format!("forebay {}, rank {rank}", plan.model) } else { format!("forebay {}", plan.model) };
        process(rank + 1, &name, role, profile, plan)
    };
    let events: Vec<Value> = (0..).zip(ranks).flat_map(named).collect();
    json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
}

/// The events of a rank.
fn process(pid: u64, name: &str, role: &Role, profile: &Profile, plan: &Plan) -> Vec<Value> {
    let mut threads = BTreeMap::from([(CALLS, "steps and calls".to_string())]);
    // What is around others comes before them.
    let mut sorted: Vec<&Event> = profile.events().iter().collect();
    sorted.sort_by_key(|e| (e.start, std::cmp::Reverse(e.time)));
    let mut events: Vec<Value> =
        sorted.into_iter().map(|event| complete(pid, event, (role, plan), &mut threads)).collect();
    let names = threads.iter().map(|(tid, name)| metadata("thread_name", pid, *tid, name));
    let process = metadata("process_name", pid, CALLS, name);
    events.splice(0..0, std::iter::once(process).chain(names));
    events
}

fn metadata(what: &str, pid: u64, tid: u64, name: &str) -> Value {
    json!({ "ph": "M", "pid": pid, "tid": tid, "name": what, "args": { "name": name } })
}

fn complete(pid: u64, event: &Event, (role, plan): (&Role, &Plan), threads: &mut BTreeMap<u64, String>) -> Value {
    let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
    let (tid, name, args) = match event.what {
        Traced::Step(step) => (CALLS, format!("step {step}"), json!({ "kind": "step" })),
        Traced::Call { program, layer } => {
            let layer = role.layers.get(layer).map_or("", String::as_str);
            (CALLS, plan.programs[program].name.clone(), json!({ "kind": "call", "layer": layer }))
        }
        Traced::Instruction { program, index } => {
            let program = &plan.programs[program];
            let instruction = &program.instructions[index];
            let stream = program.streams[instruction.stream as usize];
            threads.entry(thread(stream)).or_insert_with(|| format!("{stream:?} stream"));
            (thread(stream), format!("{} {}", program.name, instruction.name), args(program, &instruction.kernel))
        }
    };
    json!({
        "ph": "X", "pid": pid, "tid": tid, "name": name, "cat": args["kind"], "ts": micros(event.start),
        "dur": micros(event.time), "args": args,
    })
}

fn args(program: &Program, kernel: &Kernel) -> Value {
    json!({ "kind": kind(program, kernel), "flops": kernel.flops(), "bytes": kernel.traffic(&program.buffers).bytes() })
}

/// The thread of a kind of stream.
fn thread(stream: StreamKind) -> u64 {
    1 + stream.number() as u64
}
