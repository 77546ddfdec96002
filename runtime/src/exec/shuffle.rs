//! Another order that streams and events permit, for each rank: what a plan's result must not depend on.
//!
//! All ranks are followed together: one step takes the next instruction of some stream of some rank whose waits are over, a message that was sent, or a
//! collective that all members have come to, chosen by the seed. What each rank did, in its order, is an order in which it can also run alone
//! beside the others: whoever waits in it, waits for something that came before.

use crate::comm::{coordinates, rank_at};
use crate::hash;
use forebay_plan::{Call, CallEvent, Instruction, Kernel, Phase, Plan, StreamKind};
use std::collections::{HashMap, HashSet, VecDeque};

/// For each rank: (call, instruction) in order, of the part of the phase before and of that after the commit.
pub(super) type Order = Vec<[Vec<(u32, u32)>; 2]>;

/// An order of a phase on all ranks. `None` when there is none, which the verifier excludes.
pub(super) fn shuffled<'p>(plan: &'p Plan, phases: &[&'p Phase], seed: u64) -> Option<Order> {
    let mut orders: Order = phases.iter().map(|_| [vec![], vec![]]).collect();
    let mut walk = Walk {
        plan,
        places: (0..phases.len() as u32).map(|rank| coordinates(&plan.mesh, rank)).collect(),
        ranks: phases.iter().map(|phase| Rank { phase, streams: Default::default(), done: HashSet::new() }).collect(),
        sent: HashMap::new(),
        key: hash::key(seed, "order"),
        steps: 0,
    };
    for part in [0, 1] {
        walk.fill(part);
        while walk.ranks.iter().any(|r| r.streams.iter().any(|s| !s.is_empty())) {
            let chosen = walk.choose()?;
            for (rank, unit) in chosen {
                let at = walk.ranks[rank].streams[unit].pop_front().expect("it was chosen");
                walk.record(rank, at);
                orders[rank][part].push(at);
            }
        }
    }
    Some(orders)
}

struct Rank<'p> {
    phase: &'p Phase,
    /// For each unit what is left, in order: call and instruction.
    streams: [VecDeque<(u32, u32)>; StreamKind::COUNT],
    /// Events that were recorded: call and event.
    done: HashSet<(u32, u32)>,
}

struct Walk<'p> {
    plan: &'p Plan,
    places: Vec<Vec<u32>>,
    ranks: Vec<Rank<'p>>,
    /// Messages under way, by sender, receiver and channel.
    sent: HashMap<(u32, u32, u32), u64>,
    /// Of the random numbers.
    key: u64,
    steps: u64,
}

impl<'p> Walk<'p> {
    fn fill(&mut self, part: usize) {
        for rank in &mut self.ranks {
            let commit = rank.phase.commit as usize;
            let calls = if part == 0 { 0..commit } else { commit..rank.phase.calls.len() };
            for call in calls {
                let program = &self.plan.programs[rank.phase.calls[call].program as usize];
                for (at, instruction) in (0..).zip(&program.instructions) {
                    let unit = program.streams[instruction.stream as usize].number();
                    rank.streams[unit].push_back((call as u32, at));
                }
            }
        }
    }

    /// The next random number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.steps += 1;
        hash::below(hash::at(self.key, self.steps), n as u64) as usize
    }

    /// One of the instructions that can run now: the rank and the unit; all members of a collective.
    fn choose(&mut self) -> Option<Vec<(usize, usize)>> {
        let heads = self.ranks.len() * StreamKind::COUNT;
        // From a random stream on, so that each step looks at few.
        let first = self.below(heads);
        (0..heads).map(|i| (first + i) % heads).find_map(|head| {
            let (rank, unit) = (head / StreamKind::COUNT, head % StreamKind::COUNT);
            self.ready(rank, unit)
        })
    }

    fn head(&self, rank: usize, unit: usize) -> Option<(&'p Call, &'p Instruction, u32)> {
        let (call, at) = *self.ranks[rank].streams[unit].front()?;
        let of = &self.ranks[rank].phase.calls[call as usize];
        Some((of, &self.plan.programs[of.program as usize].instructions[at as usize], call))
    }

    /// Have all events been recorded that the next instruction of a stream waits for?
    fn waits_are_over(&self, rank: usize, unit: usize) -> bool {
        let Some((call, instruction, number)) = self.head(rank, unit) else { return false };
        let done = &self.ranks[rank].done;
        call.waits.iter().all(|CallEvent { call, event }| done.contains(&(*call, *event)))
            && instruction.waits.iter().all(|event| done.contains(&(number, *event)))
    }

    fn ready(&self, rank: usize, unit: usize) -> Option<Vec<(usize, usize)>> {
        if !self.waits_are_over(rank, unit) {
            return None;
        }
        let (_, instruction, _) = self.head(rank, unit)?;
        let group = match &instruction.kernel {
            Kernel::Recv(m) => {
                let from = self.rank_along(rank, m.dim, m.peer);
                let there = self.sent.get(&(from, rank as u32, m.channel)).is_some_and(|n| *n > 0);
                return there.then(|| vec![(rank, unit)]);
            }
            Kernel::Exchange(k) => &k.group,
            Kernel::AllToAllV(k) => &k.group,
            _ => return Some(vec![(rank, unit)]),
        };
        let here = &self.places[rank];
        let member =
            |other: &Vec<u32>| (0..).zip(here.iter().zip(other)).all(|(d, (a, b))| a == b || group.contains(&d));
        let members = (0..self.ranks.len()).filter(|r| member(&self.places[*r]));
        members.map(|other| Some((other, self.waits_at(other, group)?))).collect()
    }

    /// The unit on which a rank has come to a collective of the group.
    fn waits_at(&self, rank: usize, group: &[u32]) -> Option<usize> {
        (0..StreamKind::COUNT).find(|&unit| {
            let of_group = match self.head(rank, unit).map(|(_, i, _)| &i.kernel) {
                Some(Kernel::Exchange(k)) => k.group == group,
                Some(Kernel::AllToAllV(k)) => k.group == group,
                _ => false,
            };
            of_group && self.waits_are_over(rank, unit)
        })
    }

    fn rank_along(&self, rank: usize, dim: u32, at: u32) -> u32 {
        rank_at(&self.plan.mesh, &self.places[rank], dim, at)
    }

    /// Notes that an instruction has run.
    fn record(&mut self, rank: usize, (call, at): (u32, u32)) {
        let program = self.ranks[rank].phase.calls[call as usize].program;
        let instruction = &self.plan.programs[program as usize].instructions[at as usize];
        match &instruction.kernel {
            Kernel::Send(m) => {
                let to = self.rank_along(rank, m.dim, m.peer);
                *self.sent.entry((rank as u32, to, m.channel)).or_default() += 1;
            }
            Kernel::Recv(m) => {
                let from = self.rank_along(rank, m.dim, m.peer);
                *self.sent.get_mut(&(from, rank as u32, m.channel)).expect("it was there") -= 1;
            }
            _ => {}
        }
        self.ranks[rank].done.extend(instruction.records.map(|event| (call, event)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_plan::testing;

    /// Everything runs once, after what it waits for and what stands before it on its stream; and not as it is listed.
    #[test]
    fn orders_are_legal_and_others() {
        let mut others = 0;
        for seed in 0..40 {
            let plan = testing::random(seed);
            for phase in &plan.roles[0].phases {
                let order = shuffled(&plan, &[phase], seed).expect("a valid plan has an order").remove(0);
                let listed: Vec<(u32, u32)> = (0..)
                    .zip(&phase.calls)
                    .flat_map(|(c, call)| {
                        let n = plan.programs[call.program as usize].instructions.len() as u32;
                        (0..n).map(move |i| (c, i))
                    })
                    .collect();
                let run = order.concat();
                let place: HashMap<(u32, u32), usize> = run.iter().enumerate().map(|(at, i)| (*i, at)).collect();
                assert_eq!(place.len(), listed.len(), "each once");
                assert!(order[0].iter().all(|(call, _)| *call < phase.commit), "the host looks at the commit");
                others += usize::from(run != listed);
                let mut last: HashMap<StreamKind, usize> = HashMap::new();
                for (call, at) in listed {
                    let program = &plan.programs[phase.calls[call as usize].program as usize];
                    let instruction = &program.instructions[at as usize];
                    let here = place[&(call, at)];
                    let before = last.insert(program.streams[instruction.stream as usize], here);
                    assert!(before.is_none_or(|b| b < here), "streams run in order");
                    let recorder = |call: u32, event: u32| {
                        let program = &plan.programs[phase.calls[call as usize].program as usize];
                        let by = program.instructions.iter().position(|i| i.records == Some(event)).expect("recorded");
                        place[&(call, by as u32)]
                    };
                    let waits = instruction.waits.iter().map(|event| recorder(call, *event));
                    let waits = waits.chain(phase.calls[call as usize].waits.iter().map(|w| recorder(w.call, w.event)));
                    assert!(waits.into_iter().all(|at| at < here), "waits are over");
                }
            }
        }
        assert!(others > 20, "{others} orders are not the listed one");
    }
}
