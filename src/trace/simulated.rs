//! What a simulated step would do.
//!
//! A process is a role: one of the ranks that do the same. Its threads are the passes of the pipeline, the calls, why the main stream waits, and one for each
//! stream with what runs on it. Arrows are messages between stages and collectives in which they meet; a counter is the memory in use.
//!
//! A trace has at most [`MAX_EVENTS`] events. Where the instructions of a step are more, runs of them are shown; where those are more, calls alone; where those are
//! more, passes; where those are more, as many as there is room for.

use super::{Track, Writer};
use crate::output::counted;
use forebay_plan::{Plan, StreamKind};
use forebay_sim::log::{BESIDE, Slice, Why};
use forebay_sim::timeline::{Place, RoleTimeline, Timeline};
use serde_json::json;

/// Events that a trace holds: viewers take a few hundred thousand.
pub const MAX_EVENTS: usize = 200_000;

const PASSES: u64 = 0;
const CALLS: u64 = 1;
const WAITS: u64 = 2;
const STREAMS: u64 = 3;

/// How much a trace shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Detail {
    Passes,
    Calls,
    Runs,
    Instructions,
}

impl Detail {
    /// The finest that fits, and how many events it takes.
    fn fitting(plan: &Plan, timeline: &Timeline, most: usize) -> (Detail, usize) {
        let details = [Detail::Instructions, Detail::Runs, Detail::Calls, Detail::Passes];
        let counted = details.map(|detail| (detail, detail.events(plan, timeline)));
        counted.into_iter().find(|(_, events)| *events <= most).unwrap_or(counted[3])
    }

    /// At most so many events, names of threads included.
    fn events(self, plan: &Plan, timeline: &Timeline) -> usize {
        let of_role = |role: &RoleTimeline| {
            let names = 8 + StreamKind::COUNT;
            let passes = 2 * role.passes.len() + names;
            let calls = passes + role.ops.ops.len() + role.live.len() + role.log.idle.len();
            let instructions = |slice: &Slice| match slice.step {
                Some(_) => timeline.moments(role, slice).len(),
                None => timeline.program(plan, role, slice.op).0.instructions.len(),
            };
            match self {
                Detail::Passes => passes,
                Detail::Calls => calls,
                Detail::Runs => calls + role.log.slices.len(),
                Detail::Instructions => calls + role.log.slices.iter().map(instructions).sum::<usize>(),
            }
        };
        let arrows = timeline.messages.len() + timeline.meetings.iter().map(Vec::len).sum::<usize>();
        let arrows = if self >= Detail::Runs { 2 * arrows } else { 0 };
        timeline.roles.iter().map(of_role).sum::<usize>() + arrows
    }

    fn name(self) -> &'static str {
        match self {
            Detail::Passes => "passes",
            Detail::Calls => "calls",
            Detail::Runs => "runs of instructions",
            Detail::Instructions => "instructions",
        }
    }
}

/// A trace, and a sentence about it.
pub struct Trace {
    /// The file.
    pub text: String,
    /// What it shows, and what it leaves out.
    pub about: String,
}

/// The file, with at most `most` events (beside two for each role).
pub fn json(plan: &Plan, timeline: &Timeline, most: usize) -> Trace {
    let (detail, events) = Detail::fitting(plan, timeline, most);
    let mut writer = Writer::new();
    let ranks = plan.mesh.iter().map(|d| u64::from(d.size)).product::<u64>() / timeline.roles.len().max(1) as u64;
    // Passes of each role that there is room for.
    let passes = if events > most { most / timeline.roles.len().max(1) / 2 } else { usize::MAX };
    for (number, (role, of_plan)) in timeline.roles.iter().zip(&plan.roles).enumerate() {
        let alike = if ranks > 1 { format!(", one of {ranks} ranks alike") } else { String::new() };
        let mut process = Process { writer: &mut writer, plan, timeline, role, number };
        process.writer.process_name(number as u64 + 1, &format!("{}{alike}", of_plan.name));
        process.passes(passes);
        if detail >= Detail::Calls {
            process.calls();
            process.waits();
        }
        if detail >= Detail::Runs {
            process.streams(detail);
        }
        process.memory(detail, passes);
    }
    if detail >= Detail::Runs {
        arrows(&mut writer, timeline);
    }
    let mut about = format!(
        "{}, {}: {}",
        counted(timeline.roles.len() as u64, "role"),
        counted(writer.events as u64, "event"),
        detail.name()
    );
    if detail < Detail::Instructions {
        let finer = Detail::Instructions.events(plan, timeline);
        about += &format!(" (instructions would take {finer} events; a trace has at most {most})");
    }
    if passes != usize::MAX {
        about += &format!("; of each role only the first {passes} passes");
    }
    Trace { text: writer.finish(&about), about }
}

/// Seconds as µs, to the nearest tenth of a nanosecond.
fn micros(seconds: f64) -> f64 {
    (seconds * 1e10).round() / 1e4
}

fn span((begin, end): (f64, f64)) -> (f64, f64) {
    (micros(begin), micros(end - begin))
}

struct Process<'a> {
    writer: &'a mut Writer,
    plan: &'a Plan,
    timeline: &'a Timeline,
    role: &'a RoleTimeline,
    number: usize,
}

impl Process<'_> {
    fn track(&self, tid: u64) -> Track {
        Track { pid: self.number as u64 + 1, tid }
    }

    fn passes(&mut self, most: usize) {
        let track = self.track(PASSES);
        self.writer.thread_name(track, "passes");
        for pass in self.role.passes.iter().take(most) {
            let name = format!("{}{}", pass.work.letter(), pass.micro_batch);
            let args = json!({ "kind": pass.work.name(), "micro_batch": pass.micro_batch, "chunk": pass.chunk });
            self.writer.slice(track, &name, span(self.role.span(pass)), args);
        }
    }

    fn calls(&mut self) {
        let track = self.track(CALLS);
        self.writer.thread_name(track, "calls");
        let phase = self.plan.roles[self.number].phases.iter().find(|p| p.name == "train");
        let mut chunks = vec![None; self.role.ops.ops.len()];
        for pass in &self.role.passes {
            chunks[pass.first..=pass.last].fill(Some(pass.chunk));
        }
        let ops = self.role.ops.ops.iter().zip(&self.role.spans).zip(chunks);
        // What runs on other streams alone is shown there.
        for (number, ((op, times), chunk)) in (0..).zip(ops).filter(|(_, ((_, times), _))| times.main) {
            let (program, again) = self.timeline.program(self.plan, self.role, number);
            let call = op.call.and_then(|c| phase?.calls.get(c as usize));
            let layer = call.and_then(|c| self.plan.roles[self.number].layers.get(c.layer as usize));
            let args = json!({
                "kind": if again { "call, computed again" } else { "call" },
                "layer": layer, "micro_batch": call.map(|c| c.micro_batch), "chunk": chunk,
            });
            self.writer.slice(track, &program.name, span((times.begin, times.end)), args);
        }
    }

    fn waits(&mut self) {
        let track = self.track(WAITS);
        self.writer.thread_name(track, "waiting");
        for idle in &self.role.log.idle {
            let (name, what) = match idle.why {
                Why::Stage => ("bubble", "another stage"),
                Why::Communication(kind) => ("exposed communication", kind.name()),
                Why::Host => ("host", "the host starts the next kernel"),
                Why::Contention => ("contention", "communication beside it"),
            };
            self.writer.slice(track, name, span((idle.begin, idle.end)), json!({ "kind": name, "for": what }));
        }
    }

    fn streams(&mut self, detail: Detail) {
        let mut used = [false; BESIDE + 1];
        for slice in &self.role.log.slices {
            used[slice.stream] = true;
            let track = self.track(STREAMS + slice.stream as u64);
            let (program, _) = self.timeline.program(self.plan, self.role, slice.op);
            if detail == Detail::Instructions {
                for moment in self.timeline.moments(self.role, slice) {
                    let instruction = &program.instructions[moment.instruction];
                    let args = json!({ "kind": moment.kind.name(), "program": program.name });
                    self.writer.slice(track, &instruction.name, span((moment.begin, moment.end)), args);
                }
            } else {
                let args = json!({ "kind": self.timeline.kind(self.role, slice).name() });
                self.writer.slice(track, &program.name, span((slice.begin, slice.end)), args);
            }
        }
        for (stream, _) in used.iter().enumerate().filter(|(_, used)| **used) {
            let name = stream_name(&self.timeline.tiers, stream);
            self.writer.thread_name(self.track(STREAMS + stream as u64), &name);
        }
    }

    fn memory(&mut self, detail: Detail, passes: usize) {
        let pid = self.number as u64 + 1;
        let mut count = |time: f64, bytes: u64, scratch: u64| {
            let values = json!({ "held": bytes - scratch.min(bytes), "scratch": scratch });
            self.writer.counter(pid, "memory in use, bytes", micros(time), values);
        };
        if detail >= Detail::Calls {
            self.role.memory().for_each(|(time, used, _)| count(time, used.bytes, used.scratch));
            return;
        }
        // The most of each pass.
        let of_calls: Vec<(f64, forebay_sim::live::Use, usize)> = self.role.memory().collect();
        let mut from = 0;
        for pass in self.role.passes.iter().take(passes) {
            let (begin, end) = self.role.span(pass);
            let inside = of_calls[from..].partition_point(|(time, ..)| *time <= end);
            let most = of_calls[from..from + inside].iter().max_by_key(|(_, used, _)| used.bytes);
            from += inside;
            if let Some((_, used, _)) = most {
                count(begin, used.bytes, used.scratch);
            }
        }
    }
}

/// What people call a stream.
///
/// The streams of links are called by the tier of the network that they stand for on this cluster: a plan does not know how large a node is.
pub fn stream_name(tiers: &[Option<String>], stream: usize) -> String {
    if let Some(tier) = tiers.get(stream).and_then(Option::as_ref) {
        return format!("Links stream ({tier})");
    }
    const KINDS: [StreamKind; StreamKind::COUNT] = [
        StreamKind::Cube,
        StreamKind::Vector,
        StreamKind::IntraNode,
        StreamKind::InterNode,
        StreamKind::CopyIn,
        StreamKind::CopyOut,
        StreamKind::Host,
    ];
    KINDS.iter().find(|k| k.number() == stream).map_or("beside the streams".into(), |k| format!("{k:?} stream"))
}

fn arrows(writer: &mut Writer, timeline: &Timeline) {
    let slice = |place: &Place| timeline.roles[place.role].log.slices[place.slice];
    let track = |place: &Place| Track { pid: place.role as u64 + 1, tid: STREAMS + slice(place).stream as u64 };
    let mut id = 0;
    let mut arrow = |name: &str, from: (&Place, f64), to: (&Place, f64)| {
        id += 1;
        writer.arrow(id, name, (track(from.0), micros(from.1)), (track(to.0), micros(to.1)));
    };
    for (from, to) in &timeline.messages {
        arrow("message", (from, slice(from).begin), (to, slice(to).begin));
    }
    for meeting in &timeline.meetings {
        let Some((first, others)) = meeting.split_first() else { continue };
        others.iter().for_each(|to| arrow("collective of stages", (first, slice(first).begin), (to, slice(to).begin)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Dtype, ModelArgs};
    use crate::model::ModelFile;
    use forebay_compiler::shard::Strategy;
    use forebay_cost::{Cluster, known};
    use forebay_dsl::model::Const;
    use forebay_sim::report::Options;

    #[test]
    fn long_steps_are_folded() {
        let sizes = [("layers", 2), ("d", 32), ("heads", 2), ("f", 32), ("experts", 4)];
        let args = ModelArgs {
            set: sizes.map(|(name, n)| (name.to_string(), Const::Int(n))).to_vec(),
            batch: Some(4),
            seq: Some(32),
            micro_batches: None,
            dtype: Some(Dtype::F32),
            strategy: Some(Strategy::parse("pp=2,mbs=1").expect("a strategy").into()),
        };
        let plan = ModelFile::built_in("bench-tiny").compile(&args.options().expect("options")).expect("a plan");
        let cluster = Cluster::parse(known::FILES[0].1).expect("a cluster");
        let timeline = forebay_sim::timeline(&plan, &cluster, &Options::default()).expect("a timeline");
        let events = |trace: &Trace| {
            let file: serde_json::Value = serde_json::from_str(&trace.text).expect("JSON");
            file["traceEvents"].as_array().expect("events").len()
        };
        for detail in [Detail::Instructions, Detail::Runs, Detail::Calls, Detail::Passes] {
            let most = detail.events(&plan, &timeline);
            let trace = json(&plan, &timeline, most);
            assert!(trace.about.contains(&format!(": {}", detail.name())), "{}", trace.about);
            assert_eq!(trace.about.contains("instructions would take"), detail != Detail::Instructions);
            assert!(events(&trace) <= most, "{} of {most}", events(&trace));
        }
        let few = json(&plan, &timeline, 20);
        assert!(few.about.contains("only the first 5 passes"), "{}", few.about);
        // Names of two processes and their threads beside the passes and their memory.
        assert!(events(&few) <= 20 + 4, "{}", events(&few));
    }

    #[test]
    fn streams_have_names() {
        assert_eq!(stream_name(&[None], StreamKind::Cube.number()), "Cube stream");
        assert_eq!(stream_name(&[None], BESIDE), "beside the streams");
        // What a plan takes for links between nodes is within one where a node is large enough.
        let tiers = [None, None, None, Some("node".to_string())];
        assert_eq!(stream_name(&tiers, StreamKind::InterNode.number()), "Links stream (node)");
    }
}
