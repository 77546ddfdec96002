//! A discrete-event replay: one rank of each role runs its calls in order; streams, events, messages and the host decide when.
//!
//! A step starts when its stream is free, what it waits for has happened, and the host has started it. Roles run until one waits for a message that has not
//! been sent; then the next one runs. The order in which roles are taken does not matter: all times are maxima of sums.
//!
//! The cube's stream is the *main* one. What its time was, follows from when units worked ([`crate::spans`]): work, exposed communication, bubble, or the host.

mod lanes;

use crate::beside::{Beside, Link, Moved, Worked};
use crate::kind::{ByKind, Kind};
use crate::log::{Log, MAIN, Slice};
use crate::lower::{Lane, Op, RoleOps};
use crate::price::Action;
use crate::routes::Routes;
use crate::spans::Spans;
use crate::steps::{Step, Timed};
use forebay_plan::{CallEvent, StreamKind};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::VecDeque;

/// What the host does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// Seconds to start a kernel.
    pub dispatch: f64,
    /// Seconds in which the allocator of a crowded device gives back what is free and gets it again.
    pub regain: f64,
}

/// What a step runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine<'a> {
    /// The host of each device.
    pub host: Host,
    /// Seconds lost per second of communication beside work.
    pub slowdown: f64,
    /// How messages go.
    pub routes: &'a Routes,
    /// A device that is slower than the others.
    pub straggler: Option<Straggler>,
}

/// A device of a stage that computes slower than the others. Whoever shares collectives with it waits for it, and so the stage as a whole is as slow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Straggler {
    /// Its stage.
    pub stage: u32,
    /// How many times as long its work takes; communication, and copies to the host, take as long as they do.
    pub factor: f64,
}

/// Does a device compute it? (What goes over a link takes as long as it does.)
fn is_work(kind: Kind) -> bool {
    !kind.is_communication() && kind != Kind::Swap
}

impl Machine<'_> {
    /// Work of a kind on a stage, as a multiple of what it takes.
    fn slower(&self, stage: u32, kind: usize) -> f64 {
        match self.straggler {
            Some(slow) if slow.stage == stage && is_work(Kind::ALL[kind]) => slow.factor,
            _ => 1.0,
        }
    }
}

/// What a role did in a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// When it ended, seconds.
    pub end: f64,
    /// Work on the main stream, communication that others wait for included.
    pub busy: ByKind,
    /// Communication was in flight, and neither the cube nor the vector unit worked.
    pub waited: ByKind,
    /// Work on the main stream took longer because of communication beside it.
    pub contention: f64,
    /// Nothing worked, nothing was in flight and the host was not late: other stages had not come so far.
    pub bubble: f64,
    /// Units waited for the host, or for what another rank's host was late with.
    pub host: f64,
    /// Of that for their own.
    pub own_host: f64,
    /// How often the host waited for the device: for results that it needs before it goes on, before an allocator's stop, and before the commit.
    pub host_syncs: u32,
    /// All work of each kind, hidden or not. A message counts where it arrives, with the time it is on its way.
    pub total: ByKind,
    /// Floating-point operations of products and attention.
    pub flops: f64,
}

impl Outcome {
    /// Work, contention, waiting, bubbles and the host: all of the main stream's time.
    pub fn accounted(&self) -> f64 {
        let work = self.busy.iter().sum::<f64>() + self.contention;
        work + self.waited.iter().sum::<f64>() + self.bubble + self.host
    }
}

/// Roles that wait for each other for ever; a verified plan has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// A role that does not come to its end.
    pub role: usize,
}

/// The vector unit's stream.
const VECTOR: usize = 1;

/// That of links between nodes.
const INTER_NODE: usize = 3;

/// What everyone shares.
struct World<'a> {
    programs: &'a [Timed],
    waits: &'a [Vec<Vec<CallEvent>>],
    machine: Machine<'a>,
    /// (from, to, channel): the messages that are on their way, or have come.
    messages: FxHashMap<(u32, u32, u32), VecDeque<Message>>,
    /// For each meeting the roles' times of arrival; negative: not there yet.
    meetings: Vec<Vec<f64>>,
    /// The same of the stop before the commit, for the roles that have one.
    stop: Vec<f64>,
    roles: usize,
}

/// A message between stages.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// When it arrives, and how long it was on its way.
    arrival: f64,
    transfer: f64,
    /// How long hosts were late before it was sent, along what it waited for.
    late: f64,
}

/// Where a role is.
struct Walk<'a> {
    ops: &'a RoleOps,
    number: usize,
    op: usize,
    step: usize,
    /// Has the call begun, of which this is the next step?
    begun: bool,
    streams: [f64; StreamKind::COUNT],
    host: f64,
    /// The link that calls beside the main ones use, and what it did last.
    link: f64,
    /// Sums that the link has not begun: their operation, since when it could, seconds, and how they load the device's links.
    behind: Vec<(usize, f64, f64, f64)>,
    /// Until when the next call in line waits for what was fetched for it.
    pending: f64,
    /// Seconds of sums that only begin when the last backward passes have ended.
    last_buckets: f64,
    /// When the last call in line began, and the part of its time in which it uses links between nodes.
    main_began: f64,
    main_on_links: f64,
    /// How long hosts have been late, along what this role has waited for.
    late: f64,
    /// Seconds in which the main unit has worked.
    worked: f64,
    /// When the last backward passes began, and how long the main unit had worked by then.
    late_began: f64,
    worked_before_late: f64,
    /// Seconds of calls beside the next step's first forward pass, and the same times how they load the device's links.
    next_forward: f64,
    next_load: f64,
    /// Seconds of the step's first forward passes: of their work, and with what they waited for.
    first_work: f64,
    first_forward: f64,
    met: usize,
    /// When the events of the running call were recorded, and those of earlier ones.
    events: Vec<f64>,
    /// When all that the running call waits for had been recorded.
    ready: f64,
    past: FxHashMap<(u32, u32), f64>,
    /// What work and communication take longer for each other.
    together: Beside,
    spans: Spans,
    outcome: Outcome,
    /// What happened when, where that is wanted.
    log: Option<Log>,
}

/// Replays a step. `waits` are, for each role and call of the plan, events of earlier calls.
///
/// # Errors
/// When roles wait for each other.
pub fn replay(
    programs: &[Timed],
    roles: &[RoleOps],
    waits: &[Vec<Vec<CallEvent>>],
    machine: Machine,
) -> Result<Vec<Outcome>, Stuck> {
    let walks = roles.iter().enumerate().map(|(number, ops)| Walk::new(number, ops)).collect();
    let outcomes = walk(World::new(programs, waits, machine, roles), walks)?;
    Ok(outcomes.into_iter().map(|(outcome, _)| outcome).collect())
}

/// As [`replay`], with all that happened.
///
/// # Errors
/// As [`replay`].
pub fn replay_logged(
    programs: &[Timed],
    roles: &[RoleOps],
    waits: &[Vec<Vec<CallEvent>>],
    machine: Machine,
) -> Result<Vec<(Outcome, Log)>, Stuck> {
    let logged = |(number, ops)| Walk { log: Some(Log::default()), ..Walk::new(number, ops) };
    let walks = roles.iter().enumerate().map(logged).collect();
    let outcomes = walk(World::new(programs, waits, machine, roles), walks)?;
    Ok(outcomes.into_iter().map(|(outcome, log)| (outcome, log.unwrap_or_default())).collect())
}

/// Takes roles in turn until all have come to their end.
fn walk(mut world: World, mut walks: Vec<Walk>) -> Result<Vec<(Outcome, Option<Log>)>, Stuck> {
    loop {
        let mut moved = false;
        for walk in &mut walks {
            moved |= walk.run(&mut world);
        }
        if let Some(stuck) = walks.iter().find(|w| !w.is_done()) {
            if !moved {
                return Err(Stuck { role: stuck.number });
            }
        } else {
            break;
        }
    }
    Ok(walks.into_iter().map(|walk| walk.finish(&world.machine)).collect())
}

impl<'a> World<'a> {
    fn new(
        programs: &'a [Timed],
        waits: &'a [Vec<Vec<CallEvent>>],
        machine: Machine<'a>,
        roles: &[RoleOps],
    ) -> World<'a> {
        let stop = roles.iter().map(|role| if role.commit.is_some() { -1.0 } else { 0.0 }).collect();
        let messages = FxHashMap::default();
        World { programs, waits, machine, messages, meetings: vec![], stop, roles: roles.len() }
    }
}

impl<'a> Walk<'a> {
    fn new(number: usize, ops: &'a RoleOps) -> Walk<'a> {
        Walk {
            ops,
            number,
            op: 0,
            step: 0,
            begun: false,
            streams: [0.0; StreamKind::COUNT],
            host: 0.0,
            link: 0.0,
            behind: vec![],
            pending: 0.0,
            last_buckets: 0.0,
            main_began: 0.0,
            main_on_links: 0.0,
            late: 0.0,
            worked: 0.0,
            late_began: 0.0,
            worked_before_late: 0.0,
            next_forward: 0.0,
            next_load: 0.0,
            first_work: 0.0,
            first_forward: 0.0,
            met: 0,
            events: vec![],
            ready: 0.0,
            past: FxHashMap::default(),
            together: Beside::default(),
            spans: Spans::default(),
            outcome: Outcome::default(),
            log: None,
        }
    }

    /// Logs a message or meeting of the step that comes next.
    fn note(&mut self, note: impl FnOnce(&mut Log, u32)) {
        if let Some(log) = &mut self.log {
            let next = log.slices.len() as u32;
            note(log, next);
        }
    }

    /// Logs what ran.
    fn ran(&mut self, step: Option<usize>, stream: usize, begin: f64, end: f64) {
        if let Some(log) = &mut self.log {
            log.slices.push(Slice { op: self.op as u32, step: step.map(|s| s as u32), stream, begin, end });
        }
    }

    fn is_done(&self) -> bool {
        self.op >= self.ops.ops.len()
    }

    /// Runs until a message is missing. Did anything happen?
    fn run(&mut self, world: &mut World) -> bool {
        let mut moved = false;
        while let Some(&op) = self.ops.ops.get(self.op) {
            if !self.begun {
                if self.ops.commit == Some(self.op) && !self.stop(world) {
                    return moved;
                }
                self.begun = true;
                if op.lane == Lane::Main {
                    self.begin(world, op);
                }
            }
            if op.lane == Lane::Main {
                while let Some(step) = world.programs[op.program as usize].steps.get(self.step) {
                    if !self.main_step(world, op, step) {
                        return moved;
                    }
                    moved = true;
                    self.step += 1;
                }
                self.end(op);
            } else {
                self.beside(world, op);
            }
            moved = true;
            self.op += 1;
            (self.step, self.begun) = (0, false);
        }
        moved
    }

    /// All hosts look at what has come out, when all that was launched has ended everywhere, and go on one launch later. False when a role has not come so far.
    fn stop(&mut self, world: &mut World) -> bool {
        let here = self.streams.iter().copied().fold(self.host.max(self.pending), f64::max);
        world.stop[self.number] = here;
        let Some(all) = last(&world.stop) else { return false };
        self.host = all + world.machine.host.dispatch;
        self.outcome.host_syncs += 1;
        true
    }

    /// A call in line begins: it waits for what was fetched for it.
    fn begin(&mut self, world: &World, op: Op) {
        let timed = &world.programs[op.program as usize];
        if op.reads {
            self.sum_behind(world.machine.slowdown);
            self.sum_last();
            self.wait(MAIN, self.pending);
        }
        if self.ops.regains.binary_search(&self.op).is_ok() {
            // What the device still uses is not free: the allocator waits for it.
            self.host = self.streams.iter().copied().fold(self.host, f64::max) + world.machine.host.regain;
            self.outcome.host_syncs += 1;
        }
        if self.op == self.ops.last_backward {
            (self.late_began, self.worked_before_late) = (self.streams[MAIN], self.worked);
        }
        if op.reads {
            self.main_began = self.streams[MAIN];
            self.main_on_links = timed.on_links();
        }
        let stage = self.ops.coordinate;
        for (kind, (seconds, hidden)) in timed.by_kind.iter().zip(&timed.hidden).enumerate() {
            self.outcome.total[kind] += seconds * world.machine.slower(stage, kind) + hidden;
        }
        self.outcome.flops += timed.flops;
        if self.ops.first_forward.contains(&self.op) {
            self.first_work += timed.by_kind.iter().sum::<f64>();
        }
        self.events.clear();
    }

    fn end(&mut self, op: Op) {
        if self.ops.first_forward.contains(&self.op) {
            self.first_forward += self.streams[MAIN] - self.main_began;
        }
        if let Some(call) = op.call {
            for (event, &at) in (0..).zip(&self.events) {
                self.past.insert((call, event), at);
            }
        }
    }

    /// Runs a step of a call in line; false when a message or another role is not there yet.
    fn main_step(&mut self, world: &mut World, op: Op, step: &Step) -> bool {
        self.await_events(world, op, step);
        match step.action {
            Action::Work | Action::Send { .. } => {}
            Action::Receive { peer, channel } => {
                let key = (peer, self.ops.coordinate, channel);
                let Some(message) = world.messages.get_mut(&key).and_then(VecDeque::pop_front) else {
                    return false;
                };
                let Message { arrival, transfer, .. } = message;
                self.outcome.total[Kind::Pp.number()] += transfer;
                self.spans.flight(Kind::Pp, arrival - transfer, arrival);
                self.blame_hosts(self.streams[step.stream], message);
                self.wait(step.stream, arrival);
                self.note(|log, slice| log.received.push((key, slice)));
            }
            Action::Meet => match self.meet(world, step) {
                Some(at) => {
                    self.wait(step.stream, at);
                    self.note(|log, slice| log.met.push(slice));
                }
                None => return false,
            },
        }
        let end = self.work(world, step);
        if let Action::Send { peer, channel, bytes, part } = step.action {
            let key = (self.ops.coordinate, peer, channel);
            let transfer = part * world.machine.routes.seconds(self.ops.coordinate, peer, bytes);
            let message = Message { arrival: end + transfer, transfer, late: self.late };
            world.messages.entry(key).or_default().push_back(message);
            if let Some(log) = &mut self.log {
                log.sent.push((key, log.slices.len() as u32 - 1));
            }
        }
        true
    }

    /// Of the time in which a stream, ready since then, waits for a message to be sent, that is the hosts' in which hosts were late on its way to us and ours was not: a stage whose host is late
    /// makes others wait.
    fn blame_hosts(&mut self, ready: f64, message: Message) {
        let sent = message.arrival - message.transfer;
        if sent > ready {
            let late = (message.late - self.late).clamp(0.0, sent - ready);
            self.spans.others_late(ready, ready + late);
            self.late = message.late;
        }
    }

    /// Everyone comes to the same meeting, when it could begin it alone; it begins when the last has come.
    fn meet(&mut self, world: &mut World, step: &Step) -> Option<f64> {
        if world.meetings.len() <= self.met {
            world.meetings.resize(self.met + 1, vec![-1.0; world.roles]);
        }
        let launched = self.started(world, step);
        let arrived = &mut world.meetings[self.met];
        if arrived[self.number] < 0.0 {
            arrived[self.number] = self.streams[step.stream].max(launched);
        }
        let all = last(arrived);
        self.met += usize::from(all.is_some());
        all
    }

    /// A step's stream has nothing to do until what the step waits for has happened.
    fn await_events(&mut self, world: &World, op: Op, step: &Step) {
        let stream = step.stream;
        for &event in &step.waits {
            if let Some(&recorded) = self.events.get(event as usize) {
                self.wait(stream, recorded);
            }
        }
        if self.step == 0 {
            let waits = op.call.and_then(|c| world.waits.get(self.number).and_then(|w| w.get(c as usize)));
            let recorded = waits.into_iter().flatten().filter_map(|wait| self.past.get(&(wait.call, wait.event)));
            self.ready = recorded.copied().fold(0.0, f64::max);
        }
        // What a call waits for, all of its streams wait for.
        self.wait(stream, self.ready);
    }

    /// When the host has started a step: its first kernel, the others while that runs.
    fn started(&self, world: &World, step: &Step) -> f64 {
        self.host + step.launches.min(1.0) * world.machine.host.dispatch
    }

    /// Runs a step when it may; the time at which the device has done it.
    fn work(&mut self, world: &World, step: &Step) -> f64 {
        let stream = step.stream;
        let started = self.started(world, step);
        self.host += step.launches * world.machine.host.dispatch;
        let late = (started - self.streams[stream]).max(0.0);
        let begin = self.streams[stream] + late;
        let stage = self.ops.coordinate;
        let (mut by_kind, mut seconds) = (step.by_kind, step.seconds);
        if world.machine.straggler.is_some_and(|slow| slow.stage == stage) {
            by_kind.iter_mut().enumerate().for_each(|(kind, of)| *of *= world.machine.slower(stage, kind));
            seconds = by_kind.iter().sum();
        }
        let slowdown = world.machine.slowdown;
        let is_unit = stream == MAIN || stream == VECTOR;
        let contended = if is_unit { self.together.lost(slowdown, (begin, begin + seconds), step.work) } else { 0.0 };
        let done = begin + seconds + contended;
        let end = done.max(self.host);
        self.ran(Some(self.step), stream, begin, done);
        self.spans.host_late(self.streams[stream], begin);
        self.spans.host_late(done, end);
        if stream == MAIN {
            self.late += late + (end - done);
        }
        if stream == MAIN {
            self.spans.work(begin, done);
            self.worked += done - begin;
            self.outcome.contention += contended;
            self.outcome.busy.iter_mut().zip(&by_kind).for_each(|(busy, seconds)| *busy += seconds);
        } else if stream == VECTOR {
            self.spans.vector(begin, done);
        } else {
            self.spans.flight(step.kind, begin, done);
        }
        self.streams[stream] = end;
        if is_unit {
            let slice = self.log.as_ref().map(|log| log.slices.len() - 1);
            let event = step.records.map(|event| event as usize);
            let worked = Worked { span: (begin, done), work: step.work, op: self.op, event, slice };
            self.together.works(unit_of(stream), worked);
        }
        if step.host_waits {
            self.host = self.host.max(end);
            self.outcome.host_syncs += 1;
        }
        if let Some(event) = step.records {
            let event = event as usize;
            if self.events.len() <= event {
                self.events.resize(event + 1, 0.0);
            }
            self.events[event] = end;
        }
        if !is_unit && step.kind != Kind::Swap {
            let link = if stream == INTER_NODE { Link::Between } else { Link::Inside };
            self.flies(slowdown, link, (begin, done), step.load);
        }
        done
    }

    /// Communication goes over a link while units work.
    fn flies(&mut self, slowdown: f64, link: Link, span: (f64, f64), load: f64) {
        let moved = self.together.flies(slowdown, link, span, load);
        for (stream, moved) in [MAIN, VECTOR].into_iter().zip(moved) {
            for (before, after) in moved {
                self.moves(stream, (before, after));
            }
        }
    }

    /// Work of a unit has moved.
    fn moves(&mut self, stream: usize, (before, after): Moved) {
        let (before, (begin, end)) = (before.span, after.span);
        if stream == MAIN {
            self.spans.work(before.1, end);
            let longer = (end - begin) - (before.1 - before.0);
            self.worked += longer;
            self.outcome.contention += longer;
        } else {
            self.spans.vector(before.1, end);
        }
        self.streams[stream] = self.streams[stream].max(end);
        if let Some(event) = after.event.filter(|_| after.op == self.op) {
            self.events[event] = self.events[event].max(end);
        }
        if let (Some(log), Some(slice)) = (&mut self.log, after.slice) {
            let slice = &mut log.slices[slice];
            (slice.begin, slice.end) = (begin, end);
        }
    }

    /// A stream has nothing to do until a time.
    fn wait(&mut self, stream: usize, until: f64) {
        self.streams[stream] = self.streams[stream].max(until);
    }
}

/// The number of a stream's unit among those of [`Beside`].
fn unit_of(stream: usize) -> usize {
    usize::from(stream == VECTOR)
}

/// When the last has come, if all have.
fn last(arrived: &[f64]) -> Option<f64> {
    let all = arrived.iter().all(|at| *at >= 0.0);
    all.then(|| arrived.iter().copied().fold(0.0, f64::max))
}
