//! Order, checked a second time the slow way: every pair of instructions, with all paths between them.

use super::*;
use crate::operands::Usage;
use crate::schema::*;
use crate::testing::Rng;

/// Memory that an instruction touches: (space and slot or arena, first line, end, written).
type Touch = (usize, u64, u64, bool);

/// Instructions in a legal order; for each the earlier ones that have surely ended, as a set.
#[derive(Default)]
struct Graph {
    before: Vec<Vec<bool>>,
    touched: Vec<Vec<Touch>>,
}

impl Graph {
    /// Adds an instruction that comes after these.
    fn add(&mut self, after: impl IntoIterator<Item = usize>, touched: Vec<Touch>) -> usize {
        let here = self.before.len();
        let mut before = vec![false; here];
        for earlier in after {
            before[earlier] = true;
            for (mine, theirs) in before.iter_mut().zip(&self.before[earlier]) {
                *mine |= theirs;
            }
        }
        self.before.push(before);
        self.touched.push(touched);
        here
    }

    fn has_race(&self) -> bool {
        let conflict = |a: &Touch, b: &Touch| a.0 == b.0 && a.1 < b.2 && b.1 < a.2 && (a.3 || b.3);
        (0..self.before.len()).any(|second| {
            (0..second)
                .filter(|first| !self.before[second][*first])
                .any(|first| self.touched[first].iter().any(|a| self.touched[second].iter().any(|b| conflict(a, b))))
        })
    }
}

fn touched(program: &Program, instruction: &Instruction, place: impl Fn(usize) -> (usize, u64)) -> Vec<Touch> {
    let one = |operand: crate::Operand| {
        let buffer = &program.buffers[operand.buffer as usize];
        let (space, base) = place(buffer.slot as usize);
        let start = base + buffer.offset;
        (space, start / 64, (start + buffer.bytes()).div_ceil(64), operand.usage != Usage::Read)
    };
    instruction.kernel.operands().into_iter().map(one).collect()
}

fn program_has_race(program: &Program) -> bool {
    let mut graph = Graph::default();
    let mut last = vec![None; program.streams.len()];
    let mut events = vec![None; program.events as usize];
    for instruction in &program.instructions {
        let stream = instruction.stream as usize;
        let waits = instruction.waits.iter().filter_map(|e| events[*e as usize]);
        let here = graph.add(waits.chain(last[stream]), touched(program, instruction, |slot| (slot, 0)));
        last[stream] = Some(here);
        if let Some(event) = instruction.records {
            events[event as usize] = Some(here);
        }
    }
    graph.has_race()
}

fn phase_has_race(plan: &Plan, phase: &Phase) -> bool {
    let mut graph = Graph::default();
    let mut last: std::collections::HashMap<StreamKind, usize> = Default::default();
    let mut events: Vec<Vec<Option<usize>>> = vec![];
    for call in &phase.calls {
        let program = &plan.programs[call.program as usize];
        let mut own = vec![None; program.events as usize];
        for instruction in &program.instructions {
            let kind = program.streams[instruction.stream as usize];
            let waits = instruction.waits.iter().filter_map(|e| own[*e as usize]);
            let calls = call.waits.iter().filter_map(|w| events[w.call as usize][w.event as usize]);
            let after: Vec<usize> = waits.chain(calls).chain(last.get(&kind).copied()).collect();
            // Nothing writes over a frame that no one reads: what is touched is what the slots are bound to.
            let place = |slot: usize| ((program.slots[slot].space == Space::Host) as usize, call.slots[slot]);
            let here = graph.add(after, touched(program, instruction, place));
            last.insert(kind, here);
            if let Some(event) = instruction.records {
                own[event as usize] = Some(here);
            }
        }
        events.push(own);
    }
    graph.has_race()
}

/// Takes some waits away.
fn loosen(plan: &mut Plan, rng: &mut Rng) {
    for instruction in plan.programs.iter_mut().flat_map(|p| &mut p.instructions) {
        instruction.waits.retain(|_| rng.below(12) > 0);
    }
    for call in plan.roles.iter_mut().flat_map(|r| &mut r.phases).flat_map(|p| &mut p.calls) {
        call.waits.retain(|_| rng.below(10) > 0);
    }
}

#[test]
fn races_within_programs_are_found_exactly() {
    let (mut races, mut fine) = (0, 0);
    for seed in 0..150 {
        let mut plan = testing::random(seed);
        loosen(&mut plan, &mut Rng::new(seed));
        let violations = verify(&plan).err().unwrap_or_default();
        for program in &plan.programs {
            let race = program_has_race(program);
            let name = format!("program `{}`,", program.name);
            let found = violations.iter().any(|v| v.rule == Rule::Ordered && v.place.starts_with(&name));
            assert_eq!(found, race, "seed {seed}, {name} {}", list(&violations));
            (races, fine) = (races + u32::from(race), fine + u32::from(!race));
        }
    }
    assert!(races > 50 && fine > 50, "{races} races, {fine} fine");
}

#[test]
fn races_between_calls_are_found() {
    let (mut races, mut fine) = (0, 0);
    for seed in 0..150 {
        let mut plan = testing::random(seed);
        let rng = &mut Rng::new(seed);
        // Programs stay as they are: this is about calls.
        for call in plan.roles[0].phases.iter_mut().flat_map(|p| &mut p.calls) {
            call.waits.retain(|_| rng.below(8) > 0);
        }
        let violations = verify(&plan).err().unwrap_or_default();
        for phase in &plan.roles[0].phases {
            let race = phase_has_race(&plan, phase);
            let name = format!("phase `{}`,", phase.name);
            let found = violations.iter().any(|v| v.rule == Rule::CallOrdered && v.place.contains(&name));
            // The verifier knows of whole slots only: it may see a race where there is none, never the other way round.
            assert!(found || !race, "seed {seed}, {name} {}", list(&violations));
            (races, fine) = (races + u32::from(race), fine + u32::from(!found));
        }
    }
    assert!(races > 20 && fine > 50, "{races} races, {fine} fine");
}
