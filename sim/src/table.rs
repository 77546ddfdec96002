//! The prices of a plan's instructions as a table, for whoever runs the plan by a clock of its own.

use crate::kind::Kind;
use crate::launches::Launches;
use crate::price::{Action, Pricer};
use crate::report::Options;
use crate::routes::stages_of_programs;
use forebay_cost::{Class, Cluster, Price, Table};
use forebay_plan::Plan;

/// What the instructions of all phases take, as [`crate::simulate`] counts them with the same options.
pub fn table(plan: &Plan, cluster: &Cluster, options: &Options) -> Table {
    let pricer = Pricer::new(plan, cluster, &options.framework, options.precision, options.imbalance);
    let (routes, stages) = (pricer.routes(), stages_of_programs(plan));
    let programs = plan.programs.iter().zip(&stages).map(|(program, from)| {
        let mut launches = Launches::default();
        let prices = program.instructions.iter().map(|instruction| {
            let priced = pricer.instruction(program, instruction);
            let stream = program.streams[instruction.stream as usize];
            Price {
                seconds: priced.seconds,
                transfer: match priced.action {
                    // Programs of two stages that send alike are one.
                    Action::Send { peer, bytes, .. } => {
                        from.iter().map(|from| routes.seconds(*from, peer, bytes)).fold(0.0, f64::max)
                    }
                    _ => 0.0,
                },
                launches: match options.framework.streams {
                    true => launches.of(stream, instruction, priced.launches),
                    false => priced.launches,
                },
                host_waits: priced.host_waits,
                class: class(priced.kind),
                load: priced.load,
            }
        });
        prices.collect()
    });
    Table {
        programs: programs.collect(),
        launch: options.framework.launch_s(),
        vector_beside_cube: cluster.device.vector_beside_cube,
        slowdown: cluster.calibrated.overlap_slowdown.0,
    }
}

fn class(kind: Kind) -> Class {
    match kind {
        Kind::Swap => Class::Copy,
        kind if kind.is_communication() => Class::Communication,
        _ => Class::Work,
    }
}
