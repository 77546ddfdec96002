//! Streams and events: what they permit gives the same bits, and nothing is waited for that others imply.

use crate::common;

use common::Example;
use common::training::{plan, train, train_with};
use forebay_ir::DType;
use forebay_plan::{Plan, StreamKind, verify};
use forebay_runtime::exec::ExecOptions;
use std::collections::HashSet;

/// Collectives of every kind, messages, tied parameters, several chunks, gradients summed layer by layer.
const CASES: [(&str, &str); 9] = [
    ("tiny-moe", "dp=2,tp=2,ep=4,micro=2,zero=2"),
    ("deepseek-v3", "dp=2,pp=2,tp=2,ep=4,micro=2,zero=1"),
    ("pangu-ultra-moe", "dp=2,pp=2,ep=2,micro=2,zero=3,recompute=full"),
    ("qwen3-30b-a3b", "cp=2,tp=2,etp=2,ep=2,micro=4"),
    ("qwen3-30b-a3b", "dp=2,tp=2,etp=2,ep=2,etp_gather=after,micro=2"),
    ("gpt-oss-120b", "cp=2,cp_algo=gather,pp=2,micro=4"),
    ("pangu-ultra-moe", "cp=4,cp_algo=ring,ep=2,micro=4"),
    ("deepseek-v3", "pp=2,tp=2,ep=2,micro=4,zero=1,schedule=dualpipe"),
    ("mixtral-8x7b", "pp=2,schedule=gpipe,tp=2,sp=0,micro=4"),
];

fn of(name: &str, text: &str) -> Plan {
    plan(&Example::named(name), text, DType::F32, &[]).unwrap_or_else(|e| panic!("{name} {text}: {e}"))
}

#[test]
fn other_legal_orders_give_the_same_bits() {
    for (name, text) in CASES {
        let plan = of(name, text);
        let kinds: HashSet<StreamKind> = plan.programs.iter().flat_map(|p| p.streams.iter().copied()).collect();
        assert!(kinds.len() > 1, "{name} {text}: {kinds:?}");
        let listed = train(name, &plan, 2).bits();
        for seed in 1..=3 {
            let options = ExecOptions { shuffle: Some(seed), ..ExecOptions::default() };
            let shuffled = train_with(name, &plan, 2, &options).bits();
            assert!(shuffled == listed, "{name} {text}: other bits in order {seed}");
        }
    }
}

/// Without any one of its waits a plan is refused, and every event is waited for.
#[test]
fn no_wait_is_implied_by_others() {
    for (name, text) in CASES {
        let plan = of(name, text);
        let mut waited: HashSet<(usize, u32)> = HashSet::new();
        let (mut within, mut between) = (0, 0);
        let needed = |changed: &Plan, what: &str| {
            assert!(verify(changed).is_err(), "{name} {text}: {what} is not needed");
        };
        for (p, program) in plan.programs.iter().enumerate() {
            for (i, instruction) in program.instructions.iter().enumerate() {
                for (w, event) in instruction.waits.iter().enumerate() {
                    waited.insert((p, *event));
                    within += 1;
                    // All of the first programs, some of the rest: a plan is checked for each.
                    if within % 7 == 0 {
                        let mut changed = plan.clone();
                        changed.programs[p].instructions[i].waits.remove(w);
                        needed(&changed, &format!("wait {w} of instruction {i} of {}", program.name));
                    }
                }
            }
        }
        for (r, role) in plan.roles.iter().enumerate() {
            for (f, phase) in role.phases.iter().enumerate() {
                for (c, call) in phase.calls.iter().enumerate() {
                    for (w, wait) in call.waits.iter().enumerate() {
                        waited.insert((phase.calls[wait.call as usize].program as usize, wait.event));
                        between += 1;
                        if between % 3 == 0 {
                            let mut changed = plan.clone();
                            changed.roles[r].phases[f].calls[c].waits.remove(w);
                            needed(&changed, &format!("wait {w} of call {c} of {} {}", role.name, phase.name));
                        }
                    }
                }
            }
        }
        assert!(within > 20 && between > 5, "{name} {text}: {within} waits within programs, {between} between calls");
        let events: usize = plan.programs.iter().map(|p| p.events as usize).sum();
        assert_eq!(waited.len(), events, "{name} {text}: events that nothing waits for");
    }
}
