//! Which tier of the network communication takes: the outermost that a group crosses, where a ring or an exchange is slowest.

use crate::kind::Kind;
use crate::lower::RoleOps;
use crate::price::{Action, Priced, Pricer};
use crate::replay::Outcome;
use crate::routes::stages_of_programs;
use forebay_cost::{Cluster, Group};
use forebay_plan::{Kernel, Plan, Program, StreamKind};
use serde::Serialize;

/// Communication over one tier, seconds, mean of roles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The tier's name in the cluster file.
    pub link: String,
    /// What computation waits for. Of each kind of communication of a role, tiers have the parts that they have of all its seconds.
    pub exposed_s: f64,
    /// All of it.
    pub total_s: f64,
}

/// Seconds by kind and tier.
type Seconds = Vec<[f64; Kind::COUNT]>;

/// Communication by tier.
pub(crate) fn links(
    plan: &Plan,
    cluster: &Cluster,
    pricer: &Pricer,
    priced: &[Vec<Priced>],
    roles: &[(&RoleOps, &Outcome)],
) -> Vec<Link> {
    let of_program = |(program, priced): (&Program, &Vec<Priced>)| {
        let mut seconds = vec![[0.0; Kind::COUNT]; cluster.tiers.len()];
        for (instruction, priced) in program.instructions.iter().zip(priced) {
            if let Some(tier) = tier(pricer, &instruction.kernel) {
                seconds[tier][priced.kind.number()] += priced.seconds + priced.hidden;
            }
        }
        seconds
    };
    let programs: Vec<Seconds> = plan.programs.iter().zip(priced).map(of_program).collect();
    let sent = |priced: &Priced| match priced.action {
        Action::Send { peer, bytes, .. } => Some((peer, bytes, priced.seconds)),
        _ => None,
    };
    let messages: Vec<Vec<_>> = priced.iter().map(|program| program.iter().filter_map(sent).collect()).collect();
    let routes = pricer.routes();
    let mut links: Vec<Link> =
        cluster.tiers.iter().map(|t| Link { link: t.name.clone(), exposed_s: 0.0, total_s: 0.0 }).collect();
    for (ops, outcome) in roles {
        let mut seconds = vec![[0.0; Kind::COUNT]; links.len()];
        for op in &ops.ops {
            // What is computed again has the same shares as the first time.
            let of_program = &programs[op.program as usize % programs.len()];
            for (all, of_tier) in seconds.iter_mut().zip(of_program) {
                all.iter_mut().zip(of_tier).for_each(|(all, s)| *all += s);
            }
            for &(peer, bytes, start) in &messages[op.program as usize % programs.len()] {
                let seconds = &mut seconds[routes.tier(ops.coordinate, peer)][Kind::Pp.number()];
                *seconds += start + routes.seconds(ops.coordinate, peer, bytes);
            }
        }
        for kind in Kind::ALL.into_iter().filter(|k| k.is_communication()) {
            let k = kind.number();
            let all: f64 = seconds.iter().map(|s| s[k]).sum();
            for (link, of_tier) in links.iter_mut().zip(&seconds).filter(|_| all > 0.0) {
                let share = of_tier[k] / all / roles.len() as f64;
                link.exposed_s += share * (outcome.busy[k] + outcome.waited[k]);
                link.total_s += share * outcome.total[k];
            }
        }
    }
    links
}

/// For each stream kind the outermost tier that what runs on it crosses: which links it stands for on this cluster.
pub(crate) fn tiers_of_streams(plan: &Plan, cluster: &Cluster, pricer: &Pricer) -> Vec<Option<String>> {
    let mut outermost: [Option<usize>; StreamKind::COUNT] = [None; StreamKind::COUNT];
    let routes = pricer.routes();
    for (program, from) in plan.programs.iter().zip(stages_of_programs(plan)) {
        for instruction in &program.instructions {
            let Some(kind) = program.streams.get(instruction.stream as usize) else { continue };
            let place = &mut outermost[kind.number()];
            let tier = match &instruction.kernel {
                Kernel::Send(k) => from.iter().map(|from| routes.tier(*from, k.peer)).max(),
                kernel => tier(pricer, kernel),
            };
            *place = (*place).max(tier);
        }
    }
    outermost.iter().map(|tier| tier.map(|t| cluster.tiers[t].name.clone())).collect()
}

/// The outermost tier that a collective crosses. That of a message depends on who sends it.
fn tier(pricer: &Pricer, kernel: &Kernel) -> Option<usize> {
    let of_group = |group: Group| {
        let below = |tier: usize| if tier == 0 { 1 } else { group.members[tier - 1] };
        (0..group.members.len()).rev().find(|&tier| group.members[tier] > below(tier))
    };
    match kernel {
        Kernel::Exchange(k) => of_group(pricer.group(&k.group)),
        Kernel::AllToAllV(k) => of_group(pricer.group(&k.group)),
        _ => None,
    }
}
