//! From the calls of a plan to what a framework runs: which calls stand by themselves beside the others, and what is computed again.

use crate::framework::Framework;
use crate::kind::{ByKind, Kind};
use forebay_plan::{Plan, Role};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Where a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// In line.
    Main,
    /// Beside the call before it; the next call in line waits for it (a layer's parameters).
    Ahead,
    /// Beside the calls after it; the end of the step waits for it (a layer's gradients).
    Behind,
    /// Beside the last backward pass (all gradients).
    LateBackward,
    /// Beside the next step's first forward pass (all parameters).
    NextForward,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Op {
    /// The program; behind the plan's programs are those that are computed again.
    pub program: u32,
    /// Index of the plan's call, for its events; none for what is computed again.
    pub call: Option<u32>,
    /// Where it runs.
    pub lane: Lane,
    /// Does it read parameters, or gradients that were summed? What was gathered is for the next that does, and was asked for when the one before began: messages and zeros stand between them.
    pub reads: bool,
}

/// What the ranks of a role run in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleOps {
    /// The role's coordinate along the dimension of stages.
    pub coordinate: u32,
    /// The calls, in order.
    pub ops: Vec<Op>,
    /// The first call of the last micro-batch's backward passes.
    pub last_backward: usize,
    /// Layers of the last call of which is forwards, for the first micro-batch: calls of the first forward pass.
    pub first_forward: Vec<usize>,
    /// The first call that changes what is kept: before it all hosts look at the reports. None where it is not among the calls.
    pub commit: Option<usize>,
    /// Calls before which the allocator of a crowded device gives back what is free, and gets it again: the first of each micro-batch.
    pub regains: Vec<usize>,
}

impl RoleOps {
    /// Calls of a role of which none stands out.
    pub fn plain(coordinate: u32, ops: Vec<Op>) -> RoleOps {
        RoleOps { coordinate, ops, last_backward: usize::MAX, first_forward: vec![], commit: None, regains: vec![] }
    }
}

/// What is computed again in the backward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recompute {
    /// Of each kind of work the part of a layer's forward pass that is done again, 0 to 1.
    pub parts: ByKind,
    /// In at most so many layers of each stage; the last number holds for all stages after it. Empty: in all.
    pub layers: Vec<u32>,
}

impl Recompute {
    /// All of every layer.
    pub fn full() -> Recompute {
        Recompute { parts: [1.0; Kind::COUNT], layers: vec![] }
    }

    /// Is anything computed again?
    pub fn is_some(&self) -> bool {
        self.parts.iter().any(|p| *p > 0.0)
    }

    /// In how many layers of a stage at most.
    pub fn layers_of(&self, stage: u32) -> usize {
        self.layers.get(stage as usize).or(self.layers.last()).map_or(usize::MAX, |n| *n as usize)
    }
}

const FORWARD: &str = ".forward";
const BACKWARD: &str = ".backward";
/// What stands behind it where a backward pass is done in halves: gradients of inputs first.
const INPUTS: &str = "_input";

/// The calls of a role's training phase, as a framework runs them. `crowded`: stages whose allocator stops the device for each micro-batch.
pub fn lower(plan: &Plan, role: &Role, framework: &Framework, recompute: &Recompute, crowded: &[u32]) -> RoleOps {
    let stage_dim = plan.mesh.iter().position(|d| d.name == "pp");
    let coordinate = stage_dim.map_or(0, |d| role.coordinates[d].0);
    let by_name: FxHashMap<&str, u32> = (0..).zip(&plan.programs).map(|(i, p)| (p.name.as_str(), i)).collect();
    let again: Vec<Option<u32>> = plan.programs.iter().map(|p| forward_of(&p.name, &by_name)).collect();
    let Some(phase) = role.phases.iter().find(|p| p.name == "train") else {
        return RoleOps::plain(coordinate, vec![]);
    };
    let step = role.layers.len().saturating_sub(1) as u32;
    let last_micro = phase.calls.iter().map(|c| c.micro_batch).max().unwrap_or(0);
    let recomputed = recomputed_layers(role, &again, recompute.layers_of(coordinate));
    let programs = plan.programs.len() as u32;
    let mut ops = vec![];
    let (mut last_backward, mut first_forward) = (None, vec![]);
    let (mut regains, mut begun) = (vec![], BTreeSet::new());
    for (number, call) in (0..).zip(&phase.calls) {
        let program = &plan.programs[call.program as usize];
        let forward = again[call.program as usize];
        if let (Some(forward), true) = (forward, recompute.is_some() && recomputed.contains(&call.layer)) {
            ops.push(Op { program: programs + forward, call: None, lane: Lane::Main, reads: true });
        }
        if call.micro_batch == last_micro && program.name.contains(BACKWARD) {
            last_backward.get_or_insert(ops.len());
        }
        if call.micro_batch == 0 && program.name.ends_with(FORWARD) {
            first_forward.push(ops.len());
        }
        if crowded.contains(&coordinate) && program.name.ends_with(FORWARD) && begun.insert(call.micro_batch) {
            regains.push(ops.len());
        }
        let at_end = call.layer == step;
        let op = Op {
            program: call.program,
            call: Some(number),
            lane: lane(&program.name, at_end, framework),
            reads: [FORWARD, BACKWARD].iter().any(|pass| program.name.contains(pass)) || at_end,
        };
        // (None of those that it goes before is known by its number.)
        let at = if op.lane == Lane::Ahead { behind_reader(&ops) } else { ops.len() };
        ops.insert(at, op);
    }
    let last_backward = last_backward.unwrap_or(ops.len());
    let commit = ops.iter().position(|op| op.call == Some(phase.commit));
    RoleOps { coordinate, ops, last_backward, first_forward, commit, regains }
}

/// Where what is gathered ahead stands: behind the call that asks for it, before messages and zeros that follow on that.
fn behind_reader(ops: &[Op]) -> usize {
    let between = |op: &&Op| !op.reads && matches!(op.lane, Lane::Main | Lane::Behind);
    ops.len() - ops.iter().rev().take_while(between).count()
}

/// The forward program of a layer's backward program. What is before the first layer and after the last is not computed again.
fn forward_of(name: &str, by_name: &FxHashMap<&str, u32>) -> Option<u32> {
    // Behind the name stands what becomes of gradients: `.bf16`, `.add`.
    let (stem, form) = name.split_once(BACKWARD)?;
    // Of halves the first needs what is computed again; the second finds it.
    let form = form.strip_prefix(INPUTS).unwrap_or(form);
    let alone = form.is_empty() || form.starts_with('.') && !form.contains('&');
    let outer = stem.ends_with(".prologue") || stem.ends_with(".epilogue");
    (alone && !outer).then(|| by_name.get(format!("{stem}{FORWARD}").as_str()).copied()).flatten()
}

/// The layers of a role that are computed again.
pub(crate) fn again(plan: &Plan, role: &Role, stage: u32, recompute: &Recompute) -> Vec<u32> {
    let by_name: FxHashMap<&str, u32> = (0..).zip(&plan.programs).map(|(i, p)| (p.name.as_str(), i)).collect();
    let forward: Vec<Option<u32>> = plan.programs.iter().map(|p| forward_of(&p.name, &by_name)).collect();
    if recompute.is_some() { recomputed_layers(role, &forward, recompute.layers_of(stage)) } else { vec![] }
}

/// The layers of a role that are computed again: the first so many, or all.
fn recomputed_layers(role: &Role, again: &[Option<u32>], most: usize) -> Vec<u32> {
    let calls = role.phases.iter().find(|p| p.name == "train").map_or(&[][..], |p| &p.calls);
    let mut layers: Vec<u32> = calls.iter().filter(|c| again[c.program as usize].is_some()).map(|c| c.layer).collect();
    layers.sort_unstable();
    layers.dedup();
    layers.truncate(most);
    layers
}

fn lane(program: &str, at_end: bool, framework: &Framework) -> Lane {
    let gathers = program.starts_with("optimizer.gather");
    let sums = program.starts_with("optimizer.reduce_scatter") || program.starts_with("optimizer.all_reduce");
    match (gathers, sums, at_end) {
        (true, _, false) if framework.prefetch => Lane::Ahead,
        (_, true, false) if framework.prefetch => Lane::Behind,
        (_, true, true) if framework.overlap_gradients || framework.prefetch => Lane::LateBackward,
        (true, _, true) if framework.overlap_parameters || framework.prefetch => Lane::NextForward,
        _ => Lane::Main,
    }
}
