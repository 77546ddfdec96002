//! A simulated step as it happens: what each role runs when, which messages join them, and how much memory is in use.

use crate::kind::Kind;
use crate::links::tiers_of_streams;
use crate::live::{Use, live};
use crate::log::{Log, MAIN, Slice};
use crate::lower::RoleOps;
use crate::memory::Peak;
use crate::passes::{Pass, passes};
use crate::report::{Options, Report, prepare};
use crate::steps::Timed;
use forebay_cost::Cluster;
use forebay_plan::{Plan, Role};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// One simulated step.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// When the last role ends, seconds.
    pub end: f64,
    /// The roles, in the order of the plan.
    pub roles: Vec<RoleTimeline>,
    /// Messages: who sent, who received.
    pub messages: Vec<(Place, Place)>,
    /// Collectives in which roles meet: a slice of each.
    pub meetings: Vec<Vec<Place>>,
    /// For each stream number the outermost tier of the network that what runs on it crosses.
    pub tiers: Vec<Option<String>>,
    /// The programs; behind them what is done of each again.
    programs: Vec<Timed>,
    /// Kind and seconds of the plan's instructions.
    instructions: Vec<Vec<(Kind, f64)>>,
}

/// A slice of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the role.
    pub role: usize,
    /// Index into its [`Log::slices`].
    pub slice: usize,
}

/// What a role does.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleTimeline {
    /// The calls.
    pub ops: RoleOps,
    /// What happened when.
    pub log: Log,
    /// When each call ran.
    pub spans: Vec<Span>,
    /// The passes.
    pub passes: Vec<Pass>,
    /// Memory in use during each call of the plan's phase.
    pub live: Vec<Use>,
}

/// When a call ran, seconds: on the main stream, or on others where it has nothing there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// When it began.
    pub begin: f64,
    /// When it ended.
    pub end: f64,
    /// Does it run on the main stream? Those that do follow each other.
    pub main: bool,
}

/// A part of a slice that is one instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Index of the instruction in its program.
    pub instruction: usize,
    /// What it is for.
    pub kind: Kind,
    /// When it begins, seconds.
    pub begin: f64,
    /// When it ends, seconds.
    pub end: f64,
}

/// Simulates a step and says all that happens in it. The times are those of [`crate::simulate`] with the same options, if these say which stages are crowded.
///
/// # Errors
/// As [`crate::simulate`].
pub fn timeline(plan: &Plan, cluster: &Cluster, options: &Options) -> Result<Timeline, String> {
    let prepared = prepare(plan, cluster, options)?;
    let (programs, logs) = prepared.logged()?;
    let instructions = prepared.priced.iter().map(|p| p.iter().map(|p| (p.kind, p.seconds)).collect()).collect();
    let (messages, meetings) = joined(&logs);
    let tiers = tiers_of_streams(plan, cluster, &prepared.pricer);
    let of_role = |((role, ops), log): ((&Role, RoleOps), Log)| {
        let phase = role.phases.iter().find(|p| p.name == "train");
        RoleTimeline {
            spans: spans(&ops, &log),
            passes: passes(plan, role, &ops),
            live: phase.map_or(vec![], |phase| live(plan, role, phase)),
            ops,
            log,
        }
    };
    let roles: Vec<RoleTimeline> = plan.roles.iter().zip(prepared.roles).zip(logs).map(of_role).collect();
    let ends = roles.iter().flat_map(|r| r.log.slices.iter().map(|s| s.end).chain(r.log.idle.iter().map(|i| i.end)));
    Ok(Timeline { end: ends.fold(0.0, f64::max), roles, messages, meetings, tiers, programs, instructions })
}

/// Messages arrive in the order in which they were sent on their way.
fn joined(logs: &[Log]) -> (Vec<(Place, Place)>, Vec<Vec<Place>>) {
    let mut sent: FxHashMap<_, VecDeque<Place>> = FxHashMap::default();
    let mut meetings = vec![];
    for (role, log) in logs.iter().enumerate() {
        for (way, slice) in &log.sent {
            sent.entry(*way).or_default().push_back(Place { role, slice: *slice as usize });
        }
        for (number, slice) in log.met.iter().enumerate() {
            if meetings.len() <= number {
                meetings.push(vec![]);
            }
            meetings[number].push(Place { role, slice: *slice as usize });
        }
    }
    let mut messages = vec![];
    for (role, log) in logs.iter().enumerate() {
        for (way, slice) in &log.received {
            let from = sent.get_mut(way).and_then(VecDeque::pop_front);
            messages.extend(from.map(|from| (from, Place { role, slice: *slice as usize })));
        }
    }
    (messages, meetings)
}

/// When each call runs.
fn spans(ops: &RoleOps, log: &Log) -> Vec<Span> {
    let never = Span { begin: f64::INFINITY, end: 0.0, main: false };
    let mut spans = vec![never; ops.ops.len()];
    for slice in &log.slices {
        let span = &mut spans[slice.op as usize];
        let main = slice.stream == MAIN;
        if main && !span.main {
            *span = Span { main, ..never };
        }
        if main == span.main {
            *span = Span { begin: span.begin.min(slice.begin), end: span.end.max(slice.end), main };
        }
    }
    // A call in which nothing runs is a moment at the end of the one before it.
    let mut last = 0.0;
    for span in &mut spans {
        if span.begin > span.end {
            *span = Span { begin: last, end: last, main: false };
        }
        last = span.end;
    }
    spans
}

impl Timeline {
    /// The instructions of a slice, in turn. What runs as a whole beside other calls has its instructions one after another.
    pub fn moments(&self, role: &RoleTimeline, slice: &Slice) -> Vec<Moment> {
        let program = role.ops.ops[slice.op as usize].program as usize;
        let timed = &self.programs[program];
        let all = &self.instructions[program % self.instructions.len()];
        let steps = |n: u32| timed.steps[..n as usize].iter().map(|s| s.instructions as usize).sum();
        let range = match slice.step {
            Some(step) => steps(step)..steps(step + 1),
            None => 0..all.len(),
        };
        let seconds: f64 = all[range.clone()].iter().map(|(_, s)| s).sum();
        let scale = if seconds > 0.0 { (slice.end - slice.begin) / seconds } else { 0.0 };
        let mut begin = slice.begin;
        let moment = |instruction| {
            let (kind, seconds): (Kind, f64) = all[instruction];
            let from = begin;
            begin += seconds * scale;
            Moment { instruction, kind, begin: from, end: begin }
        };
        range.map(moment).collect()
    }

    /// What most of a slice is for.
    pub fn kind(&self, role: &RoleTimeline, slice: &Slice) -> Kind {
        let timed = &self.programs[role.ops.ops[slice.op as usize].program as usize];
        match slice.step {
            Some(step) => timed.steps[step as usize].kind,
            None => {
                let most = Kind::ALL
                    .into_iter()
                    .max_by(|a, b| timed.by_kind[a.number()].total_cmp(&timed.by_kind[b.number()]));
                most.unwrap_or(Kind::Vector)
            }
        }
    }

    /// What part of a slice is for something.
    pub fn share(&self, role: &RoleTimeline, slice: &Slice, kind: Kind) -> f64 {
        let timed = &self.programs[role.ops.ops[slice.op as usize].program as usize];
        let by_kind = slice.step.map_or(&timed.by_kind, |step| &timed.steps[step as usize].by_kind);
        let all: f64 = by_kind.iter().sum();
        if all > 0.0 { by_kind[kind.number()] / all } else { 0.0 }
    }

    /// Programs that are computed again stand behind those of the plan: the program of a call, and whether it is computed again.
    pub fn program<'p>(&self, plan: &'p Plan, role: &RoleTimeline, op: u32) -> (&'p forebay_plan::Program, bool) {
        let number = role.ops.ops[op as usize].program as usize;
        (&plan.programs[number % plan.programs.len()], number >= plan.programs.len())
    }

    /// Writes into a report where each stage's memory is fullest.
    pub fn locate_peaks(&self, plan: &Plan, report: &mut Report) {
        for ((stage, role), of_plan) in report.memory_bytes.iter_mut().zip(&self.roles).zip(&plan.roles) {
            let Some((time, used, call)) = role.peak() else { continue };
            let Some(called) = of_plan.phases.iter().find(|p| p.name == "train").and_then(|p| p.calls.get(call)) else {
                continue;
            };
            let peak_call = format!(
                "{} of {}, micro-batch {}",
                plan.programs[called.program as usize].name,
                of_plan.layers.get(called.layer as usize).map_or("the step", String::as_str),
                called.micro_batch
            );
            let peak = Peak { peak_time_s: time, peak_at: time / self.end.max(f64::MIN_POSITIVE), peak_call };
            stage.locate(peak, used.scratch as f64);
        }
    }
}

impl RoleTimeline {
    /// Memory in use from a time on, bytes, at each change; the calls of the plan.
    pub fn memory(&self) -> impl Iterator<Item = (f64, Use, usize)> + '_ {
        self.ops.ops.iter().zip(&self.spans).filter_map(|(op, span)| {
            let call = op.call? as usize;
            Some((span.begin, *self.live.get(call)?, call))
        })
    }

    /// When most memory is in use, how much, and in which call.
    pub fn peak(&self) -> Option<(f64, Use, usize)> {
        // Of equals the first.
        self.memory().fold(None, |most: Option<(f64, Use, usize)>, at| match most {
            Some(most) if most.1.bytes >= at.1.bytes => Some(most),
            _ => Some(at),
        })
    }

    /// When a pass begins and ends on the main stream, seconds.
    pub fn span(&self, pass: &Pass) -> (f64, f64) {
        let spans = &self.spans[pass.first..=pass.last];
        let first = spans.iter().find(|s| s.main).unwrap_or(&spans[0]);
        let last = spans.iter().rfind(|s| s.main).unwrap_or(&spans[spans.len() - 1]);
        (first.begin, last.end)
    }
}
