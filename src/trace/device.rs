//! What emulated devices did, by their own clock.
//!
//! A process is a rank. Its first thread has the steps, the second its host's launches; then comes a thread for each stream, with what ran on it. Arrows are messages.

use super::{Track, Writer};
use crate::output::counted;
use forebay_plan::{Kernel, Plan};
use forebay_runtime::backend::Ran;
use forebay_runtime::comm::{coordinates, rank_at};
use forebay_runtime::exec::{DeviceStep, kind};
use serde_json::json;
use std::collections::{BTreeSet, HashMap, VecDeque};

const STEPS: u64 = 0;
const STREAMS: u64 = 1;

/// The file, with at most `most` events (beside names, steps and arrows).
pub fn json(steps: &[DeviceStep], plan: &Plan, most: usize) -> String {
    let mut writer = Writer::new();
    let ranks: BTreeSet<u32> = steps.iter().flat_map(|s| &s.ran).map(|r| r.stream.device).collect();
    for rank in &ranks {
        let pid = u64::from(*rank) + 1;
        writer.process_name(pid, &format!("{}, rank {rank}", plan.model));
        writer.thread_name(Track { pid, tid: STEPS }, "steps");
        let own = steps.iter().flat_map(|s| &s.ran).filter(|r| r.stream.device == *rank);
        for (number, name) in
            own.map(|r| (r.stream.kind.number(), format!("{:?} stream", r.stream.kind))).collect::<BTreeSet<_>>()
        {
            writer.thread_name(Track { pid, tid: STREAMS + number as u64 }, &name);
        }
    }
    let mut shown = 0;
    for step in steps {
        if shown > 0 && shown + step.ran.len() > most {
            break;
        }
        for rank in &ranks {
            let track = Track { pid: u64::from(*rank) + 1, tid: STEPS };
            let args = json!({ "kind": "step" });
            writer.slice(track, &format!("step {}", step.step), (micros(step.begin), micros(step.seconds)), args);
        }
        shown += step.ran.len();
        step.ran.iter().for_each(|ran| slice(&mut writer, plan, ran));
        messages(&mut writer, plan, &step.ran);
    }
    let about =
        format!("what emulated devices did in {}, by the clock of their cluster", counted(steps.len() as u64, "step"));
    writer.finish(&about)
}

/// Seconds as µs, to the nearest tenth of a nanosecond.
fn micros(seconds: f64) -> f64 {
    (seconds * 1e10).round() / 1e4
}

fn track(ran: &Ran) -> Track {
    Track { pid: u64::from(ran.stream.device) + 1, tid: STREAMS + ran.stream.kind.number() as u64 }
}

fn slice(writer: &mut Writer, plan: &Plan, ran: &Ran) {
    let span = (micros(ran.begin), micros(ran.end - ran.begin));
    let Some((site, instruction)) = ran.work else {
        return writer.slice(track(ran), "copy", span, json!({ "kind": "copy" }));
    };
    let program = &plan.programs[site.program as usize];
    let instruction = &program.instructions[instruction as usize];
    let args = json!({
        "kind": kind(program, &instruction.kernel), "call": site.call, "layer": site.layer, "micro_batch": site.micro_batch,
        "launched": micros(ran.launched),
    });
    writer.slice(track(ran), &format!("{} {}", program.name, instruction.name), span, args);
}

/// Arrows from sends to receives: those of a channel arrive in order.
fn messages(writer: &mut Writer, plan: &Plan, ran: &[Ran]) {
    let mut sent: HashMap<(u32, u32, u32), VecDeque<&Ran>> = HashMap::new();
    let kernel = |ran: &Ran| {
        let (site, instruction) = ran.work?;
        Some(&plan.programs[site.program as usize].instructions[instruction as usize].kernel)
    };
    for from in ran {
        if let Some(Kernel::Send(m)) = kernel(from) {
            let to = rank_at(&plan.mesh, &coordinates(&plan.mesh, from.stream.device), m.dim, m.peer);
            sent.entry((from.stream.device, to, m.channel)).or_default().push_back(from);
        }
    }
    let mut id = 0;
    for to in ran {
        if let Some(Kernel::Recv(m)) = kernel(to) {
            let from = rank_at(&plan.mesh, &coordinates(&plan.mesh, to.stream.device), m.dim, m.peer);
            let sender = sent.get_mut(&(from, to.stream.device, m.channel)).and_then(VecDeque::pop_front);
            let Some(sender) = sender else { continue };
            id += 1;
            writer.arrow(id, "message", (track(sender), micros(sender.begin)), (track(to), micros(to.begin)));
        }
    }
}
