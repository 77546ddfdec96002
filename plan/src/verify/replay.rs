//! All ranks at once: does everyone who waits get what it waits for? One rank for each slab ([`mesh`](super::mesh)) runs its calls, of which only messages
//! and collectives between slabs matter. Sending puts a message into a queue; receiving waits for one; a collective waits for all slabs. The host waits
//! for all ranks at the commit.

use super::mesh::role_dim;
use super::place::{Place, quoted};
use super::rules::{Findings, Rule};
use crate::kernel::*;
use crate::schema::*;
use std::collections::{HashMap, VecDeque};

/// More waits and messages than this are not followed.
const MOST: usize = 1 << 24;

/// Those who wait are named, up to so many.
const NAMED: usize = 4;

/// Checks plans whose indices are known to be right.
pub(super) fn check(plan: &Plan, findings: &mut Findings) {
    let Some(dim) = role_dim(plan) else { return };
    let programs: Vec<Vec<u32>> = plan.programs.iter().map(|p| between_slabs(p, dim)).collect();
    let roles = (0..plan.mesh[dim].size)
        .map(|at| plan.roles.iter().find(|r| (r.coordinates[dim].0..r.coordinates[dim].1).contains(&at)));
    let Some(roles) = roles.collect::<Option<Vec<&Role>>>() else { return };
    for phase in 0..plan.roles[0].phases.len() {
        let acts =
            |role: &&Role| role.phases[phase].calls.iter().map(|c| programs[c.program as usize].len()).sum::<usize>();
        let name = format!("phase {}", quoted(&plan.roles[0].phases[phase].name));
        let total: usize = roles.iter().map(acts).sum();
        if !findings.ensure(total <= MOST, Rule::Deadlock, &name, || {
            format!("{total} messages and collectives are too many to follow")
        }) {
            continue;
        }
        let slabs = roles
            .iter()
            .map(|role| Slab { role, phase: &role.phases[phase], call: 0, act: 0, arrived: false })
            .collect();
        let mut replay = Replay { plan, programs: &programs, slabs, queues: HashMap::new(), arrived: 0, name };
        replay.run(findings);
    }
}

/// The instructions of a program that concern other slabs.
fn between_slabs(program: &Program, dim: usize) -> Vec<u32> {
    let concerns = |kernel: &Kernel| match kernel {
        Kernel::Send(_) | Kernel::Recv(_) => true,
        Kernel::Exchange(k) => k.group.contains(&(dim as u32)),
        Kernel::AllToAllV(k) => k.group.contains(&(dim as u32)),
        _ => false,
    };
    (0..).zip(&program.instructions).filter(|(_, i)| concerns(&i.kernel)).map(|(at, _)| at).collect()
}

/// Where a slab is.
struct Slab<'a> {
    role: &'a Role,
    phase: &'a Phase,
    call: usize,
    /// Of the instructions of the call's program that count.
    act: usize,
    /// Does it wait at a collective?
    arrived: bool,
}

/// A message under way: type, elements, and the sender's call and instruction.
#[derive(Clone, Copy)]
struct Sent {
    dtype: DType,
    elements: u64,
    call: usize,
    act: usize,
}

struct Replay<'a> {
    plan: &'a Plan,
    programs: &'a [Vec<u32>],
    slabs: Vec<Slab<'a>>,
    /// By sender, receiver and channel.
    queues: HashMap<(u32, u32, u32), VecDeque<Sent>>,
    /// How many slabs wait at collectives.
    arrived: usize,
    name: String,
}

impl<'a> Replay<'a> {
    fn run(&mut self, findings: &mut Findings) {
        for to_commit in [true, false] {
            let mut ready: Vec<usize> = (0..self.slabs.len()).collect();
            let before = findings.count();
            while let Some(slab) = ready.pop() {
                self.advance(slab, to_commit, &mut ready, findings);
                if findings.count() > before {
                    return;
                }
                if ready.is_empty() && self.meet(to_commit, findings) {
                    ready.extend(0..self.slabs.len());
                }
            }
            if !self.all_done(to_commit, findings) {
                return;
            }
        }
        let left = self.queues.iter().filter_map(|(key, queue)| Some((*key, *queue.front()?)));
        if let Some(((from, to, channel), sent)) = left.min_by_key(|(key, _)| *key) {
            let sender = self.instruction(from as usize, sent.call, sent.act);
            let message = format!(
                "what {sender} sends to {} through channel {channel} is never received",
                self.slab_name(to as usize)
            );
            findings.push(Rule::Matched, &self.name, message);
        }
    }

    /// The next instruction that counts, of the part of the phase before or after the commit.
    fn next(&mut self, slab: usize, to_commit: bool) -> Option<&'a Kernel> {
        let Slab { phase, call, act, .. } = &mut self.slabs[slab];
        let end = if to_commit { phase.commit as usize } else { phase.calls.len() };
        while *call < end {
            let program = phase.calls[*call].program as usize;
            if let Some(&at) = self.programs[program].get(*act) {
                return Some(&self.plan.programs[program].instructions[at as usize].kernel);
            }
            (*call, *act) = (*call + 1, 0);
        }
        None
    }

    /// Runs a slab until it waits.
    fn advance(&mut self, slab: usize, to_commit: bool, ready: &mut Vec<usize>, findings: &mut Findings) {
        while let Some(kernel) = self.next(slab, to_commit) {
            match kernel {
                Kernel::Send(m) => {
                    let key = (slab as u32, m.peer, m.channel);
                    let Slab { call, act, .. } = self.slabs[slab];
                    let queue = self.queues.entry(key).or_default();
                    if queue.is_empty() {
                        // Perhaps the receiver waits for it.
                        ready.push(m.peer as usize);
                    }
                    queue.push_back(Sent { dtype: m.dtype, elements: m.elements, call, act });
                }
                Kernel::Recv(m) => {
                    let queue = self.queues.get_mut(&(m.peer, slab as u32, m.channel));
                    let Some(sent) = queue.and_then(VecDeque::pop_front) else { return };
                    let Sent { dtype, elements, .. } = sent;
                    let same = (dtype, elements) == (m.dtype, m.elements);
                    findings.ensure(same, Rule::Matched, &self.name, || {
                        let Message { dtype: wanted, elements: n, .. } = m;
                        let sender = self.instruction(m.peer as usize, sent.call, sent.act);
                        format!(
                            "{} takes {n} elements of {wanted}, but {sender} sends {elements} of {dtype}",
                            self.here(slab)
                        )
                    });
                }
                // A collective: all slabs together.
                _ => {
                    let slab = &mut self.slabs[slab];
                    self.arrived += usize::from(!std::mem::replace(&mut slab.arrived, true));
                    return;
                }
            }
            self.slabs[slab].act += 1;
        }
    }

    /// When all slabs wait at collectives: lets them meet there.
    fn meet(&mut self, to_commit: bool, findings: &mut Findings) -> bool {
        if self.arrived < self.slabs.len() {
            return false;
        }
        let kernels: Vec<Option<&Kernel>> = (0..self.slabs.len()).map(|slab| self.next(slab, to_commit)).collect();
        let other = kernels.iter().position(|k| k.zip(kernels[0]).is_none_or(|(a, b)| !agree(a, b)));
        let Some(other) = other else {
            self.arrived = 0;
            self.slabs.iter_mut().for_each(|slab| (slab.act, slab.arrived) = (slab.act + 1, false));
            return true;
        };
        // (With another group they wait for each other.)
        if kernels[other].and_then(group) == kernels[0].and_then(group) {
            let message = format!("{} and {} meet but do not agree", self.here(0), self.here(other));
            findings.push(Rule::Matched, &self.name, message);
        }
        false
    }

    /// Has everyone come to the end?
    fn all_done(&mut self, to_commit: bool, findings: &mut Findings) -> bool {
        let waiting: Vec<usize> = (0..self.slabs.len()).filter(|slab| self.next(*slab, to_commit).is_some()).collect();
        let words = waiting.iter().take(NAMED).map(|slab| {
            let waits = match self.next(*slab, to_commit) {
                Some(Kernel::Recv(m)) => {
                    format!("a message from {} through channel {}", self.slab_name(m.peer as usize), m.channel)
                }
                _ => "all others".into(),
            };
            format!("{} waits for {waits}", self.here(*slab))
        });
        let words: Vec<String> = words.collect();
        let more = if waiting.len() > NAMED { format!("; and {} more", waiting.len() - NAMED) } else { String::new() };
        findings.ensure(waiting.is_empty(), Rule::Deadlock, &self.name, || words.join("; ") + &more)
    }

    fn slab_name(&self, slab: usize) -> String {
        let role = quoted(&self.slabs[slab].role.name);
        format!("{role} (rank {slab})")
    }

    /// Where a slab is.
    fn here(&self, slab: usize) -> String {
        let Slab { call, act, .. } = self.slabs[slab];
        self.instruction(slab, call, act)
    }

    /// `` `stage1` (rank 1), call 3, program `backward`, instruction 5 `recv` ``
    fn instruction(&self, slab: usize, call: usize, act: usize) -> String {
        let program = self.slabs[slab].phase.calls[call].program as usize;
        let at = self.programs[program][act] as usize;
        let instruction = Place::Instruction(&self.plan.programs[program], at);
        format!("{}, call {call}, {instruction}", self.slab_name(slab))
    }
}

/// The group of a collective.
fn group(kernel: &Kernel) -> Option<&[u32]> {
    match kernel {
        Kernel::Exchange(k) => Some(&k.group),
        Kernel::AllToAllV(k) => Some(&k.group),
        _ => None,
    }
}

/// Do two members of a group do the same? Where the pieces lie is each one's own affair.
fn agree(a: &Kernel, b: &Kernel) -> bool {
    match (a, b) {
        (Kernel::Exchange(a), Kernel::Exchange(b)) => {
            let ragged = |k: &Exchange| k.ragged.as_ref().map(|r| (r.dim, r.groups));
            let key = |k: &Exchange| (k.group.clone(), k.dtype, k.dims.clone(), k.kind(), k.reduce, k.shift, ragged(k));
            key(a) == key(b)
        }
        (Kernel::AllToAllV(a), Kernel::AllToAllV(b)) => {
            let key = |k: &AllToAllV| (k.group.clone(), k.dtype, k.row, k.experts, k.direction);
            key(a) == key(b)
        }
        _ => false,
    }
}
