//! Pipelines for replays, by their definitions: no compiler is asked.

use forebay_sim::Kind;
use forebay_sim::lower::{Lane, Op, RoleOps};
use forebay_sim::price::Action;
use forebay_sim::steps::{Step, Timed};

/// Seconds of a stage's (or chunk's) forward and backward pass.
pub const FORWARD: f64 = 3.0;
pub const BACKWARD: f64 = 5.0;

pub fn step(seconds: f64, action: Action) -> Step {
    let kind = if action == Action::Work { Kind::Products } else { Kind::Pp };
    let mut by_kind = [0.0; Kind::COUNT];
    by_kind[kind.number()] = seconds;
    Step {
        by_kind,
        instructions: 1,
        stream: 0,
        seconds,
        launches: 1.0,
        waits: vec![],
        records: None,
        kind,
        action,
        host_waits: false,
        work: if action == Action::Work { 1.0 } else { 0.0 },
        load: 1.0,
    }
}

pub fn program(steps: Vec<Step>) -> Timed {
    let mut by_kind = [0.0; Kind::COUNT];
    for step in &steps {
        by_kind[step.kind.number()] += step.seconds;
    }
    Timed { steps, by_kind, hidden: [0.0; Kind::COUNT], flops: 0.0, between_nodes: 0.0 }
}

pub fn main_op(program: usize) -> Op {
    Op { program: program as u32, call: None, lane: Lane::Main, reads: true }
}

/// Interleaved 1F1B (arXiv 2104.04473): each stage holds `chunks` parts of the model; micro-batches go through a part in rounds of as many as there are stages.
pub fn interleaved(stages: u32, chunks: u32, micro: u32) -> (Vec<Timed>, Vec<RoleOps>) {
    assert_eq!(micro % stages, 0, "rounds are whole");
    let mut programs = vec![program(vec![step(FORWARD, Action::Work)]), program(vec![step(BACKWARD, Action::Work)])];
    let parts = stages * chunks;
    // A program for each message: its receiver or sender and the part of the model behind it.
    let mut messages = std::collections::HashMap::new();
    let mut message = |action: Action, key: (bool, u32, u32)| {
        let number = *messages.entry(key).or_insert_with(|| {
            programs.push(program(vec![step(0.0, action)]));
            programs.len() - 1
        });
        main_op(number)
    };
    let mut roles = vec![];
    for stage in 0..stages {
        let all = chunks * micro;
        let mut ops = vec![];
        let mut pass = |forward: bool, number: u32| {
            let chunk = number / stages % chunks;
            let part = if forward { chunk } else { chunks - 1 - chunk } * stages + stage;
            let (from, to) =
                if forward { (part.checked_sub(1), part + 1) } else { (Some(part + 1), part.wrapping_sub(1)) };
            let channel = |from: u32| 2 * from + u32::from(forward);
            if let Some(from) = from.filter(|f| *f < parts) {
                let action = Action::Receive { peer: from % stages, channel: channel(from) };
                ops.push(message(action, (true, from % stages, channel(from))));
            }
            ops.push(main_op(usize::from(!forward)));
            if to < parts {
                let action = Action::Send { peer: to % stages, channel: channel(part), bytes: 0.0, part: 1.0 };
                ops.push(message(action, (false, to % stages, channel(part))));
            }
        };
        let warm_up = (2 * (stages - 1 - stage) + (chunks - 1) * stages).min(all);
        (0..warm_up).for_each(|n| pass(true, n));
        for n in warm_up..all {
            pass(true, n);
            pass(false, n - warm_up);
        }
        (all - warm_up..all).for_each(|n| pass(false, n));
        roles.push(RoleOps::plain(stage, ops));
    }
    (programs, roles)
}
