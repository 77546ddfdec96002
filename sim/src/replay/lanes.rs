//! Calls beside the main ones: parameters that are gathered ahead, gradients that are summed behind, and both at the ends of a step.

use super::{Machine, Outcome, Walk, World};
use crate::beside::{Link, Worked};
use crate::kind::Kind;
use crate::log::{BESIDE, Idle, Log, MAIN, Slice, Why};
use crate::lower::{Lane, Op};
use forebay_cost::contention;

/// The part of what is beside the ends of a step that nothing hides: the last bucket of gradients, the first of parameters. An assumption.
const LAST_BUCKET: f64 = 0.05;

impl Walk<'_> {
    /// A call beside the main ones.
    pub(super) fn beside(&mut self, world: &World, op: Op) {
        let timed = &world.programs[op.program as usize];
        let seconds: f64 = timed.by_kind.iter().sum();
        for (kind, of_kind) in timed.by_kind.iter().enumerate() {
            self.outcome.total[kind] += of_kind;
        }
        let launches: f64 = timed.steps.iter().map(|s| s.launches).sum();
        self.host += launches * world.machine.host.dispatch;
        let now = self.streams[MAIN];
        let begin = match op.lane {
            Lane::Main | Lane::Ahead => self.link.max(self.main_began),
            Lane::Behind => {
                self.behind.push((self.op, now, seconds, timed.load()));
                return;
            }
            Lane::LateBackward => {
                self.sum_behind(world.machine.slowdown);
                self.link.max(self.late_began)
            }
            Lane::NextForward => {
                self.next_forward += seconds;
                self.next_load += seconds * timed.load();
                return;
            }
        };
        let late = op.lane == Lane::LateBackward;
        let last = if late { LAST_BUCKET * seconds } else { 0.0 };
        let mut end = begin + seconds - last;
        // Where both use the links between nodes each has half of them: what both would be on them together, both take longer.
        // (Of the last backward passes nobody knows which exchanges were beside which sums.)
        let both = contention(1.0, (begin, end), (self.main_began.min(begin), now));
        let shared = if late { 0.0 } else { both * timed.on_links() * self.main_on_links };
        end += shared;
        self.ran(None, BESIDE, begin, end);
        if late {
            let both = contention(1.0, (begin, end), (self.late_began, now));
            let busy = (self.worked - self.worked_before_late) / (now - self.late_began);
            self.slowed(now, slowed_beside_host(world.machine.slowdown * timed.load(), both, busy));
        } else {
            // The same bytes in more time.
            let part = seconds / (end - begin).max(f64::MIN_POSITIVE);
            self.flies(world.machine.slowdown, Link::Beside, (begin, end), timed.load() * part);
            self.slowed(self.streams[MAIN], shared);
        }
        self.spans.flight(Kind::Dp, begin, end);
        self.link = end;
        self.last_buckets += last;
        self.pending = self.pending.max(self.link);
    }

    /// Sums beside the last backward passes end when these have: the last bucket is not full before.
    pub(super) fn sum_last(&mut self) {
        let seconds = std::mem::take(&mut self.last_buckets);
        if seconds > 0.0 {
            let begin = self.link.max(self.streams[MAIN]);
            self.link = begin + seconds;
            self.spans.flight(Kind::Dp, begin, self.link);
            self.pending = self.pending.max(self.link);
        }
    }

    /// Work took so much longer for what was beside it.
    fn slowed(&mut self, since: f64, seconds: f64) {
        if seconds <= 0.0 {
            return;
        }
        let span = (since, since + seconds);
        self.together.works(0, Worked { span, work: 0.0, op: self.op, event: None, slice: None });
        self.spans.work(span.0, span.1);
        self.streams[MAIN] += seconds;
        self.outcome.contention += seconds;
        if let Some(log) = &mut self.log {
            log.idle.push(Idle { why: Why::Contention, begin: since, end: since + seconds });
        }
    }

    /// The link begins the sums behind calls that have ended. What is gathered for the next call was asked for when the last one began, before there was anything
    /// to sum: it goes first.
    pub(super) fn sum_behind(&mut self, slowdown: f64) {
        for (op, since, seconds, load) in std::mem::take(&mut self.behind) {
            let begin = self.link.max(since);
            self.link = begin + seconds;
            if let Some(log) = &mut self.log {
                log.slices.push(Slice { op: op as u32, step: None, stream: BESIDE, begin, end: self.link });
            }
            self.spans.flight(Kind::Dp, begin, self.link);
            self.flies(slowdown, Link::Beside, (begin, self.link), load);
        }
    }

    pub(super) fn finish(mut self, machine: &Machine) -> (Outcome, Option<Log>) {
        self.sum_behind(machine.slowdown);
        self.sum_last();
        let forward = self.streams.iter().copied().fold(self.link, f64::max).max(self.pending);
        // The step's first forward passes ran beside what the step before gathered, as the next step's will beside what this one does.
        let busy = self.first_work / self.first_forward;
        let load = if self.next_forward > 0.0 { self.next_load / self.next_forward } else { 0.0 };
        let contended = slowed_beside_host(machine.slowdown * load, self.next_forward.min(self.first_forward), busy);
        self.slowed(forward, contended);
        let last = forward + contended;
        // Parameters are there for the next step's first layers in time, or the next step waits for the rest.
        let rest = (self.next_forward - self.first_forward - contended).max(LAST_BUCKET * self.next_forward);
        self.spans.flight(Kind::Dp, last, last + rest);
        self.outcome.end = last + rest;
        let gaps = self.spans.gaps(self.outcome.end);
        self.outcome.busy[Kind::Vector.number()] += gaps.vector;
        (self.outcome.waited, self.outcome.host, self.outcome.bubble) = (gaps.waited, gaps.host, gaps.bubble);
        self.outcome.own_host = gaps.own_host;
        if let Some(log) = &mut self.log {
            log.idle.extend(gaps.idle);
            log.idle.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        }
        (self.outcome, self.log)
    }
}

/// What a time takes longer for communication beside its work, of which it has some part: units that wait for the host the rest of it may as well work longer.
fn slowed_beside_host(slowdown: f64, seconds: f64, busy: f64) -> f64 {
    if seconds > 0.0 { seconds * (busy * slowdown - (1.0 - busy)).max(0.0) } else { 0.0 }
}
