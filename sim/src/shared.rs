//! Ranks that share the cores of one machine.
//!
//! Up to as many ranks as cores, each has its own, and they wait for whichever is held up. Beyond that they take turns: a core is never idle while a rank has work, so a step takes what all work takes on all
//! cores, or what it takes with a core for each rank where that is longer (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969), times what
//! taking turns was measured to cost. While a rank waits for others its core works for the next: of communication that part counts in which cores copy and add.

use crate::kind::Kind;
use crate::report::{Options, prepare};
use forebay_cost::Cluster;
use forebay_plan::Plan;

/// What a plan's step is on a measured machine, with a core for each rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Seconds that all ranks' kernels take, communication apart.
    pub work: f64,
    /// Seconds of communication of all ranks.
    pub communication: f64,
    /// Seconds of the step.
    pub alone: f64,
}

impl Load {
    /// Seconds of the step of ranks that share so many cores. Of communication cores do a part, and wait for the rest of it.
    pub fn shared(&self, cores: f64, communication_work: f64) -> f64 {
        ((self.work + communication_work * self.communication) / cores).max(self.alone)
    }
}

/// The load of a plan on a measured machine.
///
/// # Errors
/// As [`crate::simulate`].
pub fn load(plan: &Plan, cluster: &Cluster, options: &Options) -> Result<Load, String> {
    let ranks = ranks(plan);
    let (alone, outcomes) = prepare(plan, &cluster.shared_by(ranks, 1.0), options)?.run(&[1.0; Kind::COUNT], 1.0)?;
    let alike = ranks as f64 / outcomes.len().max(1) as f64;
    let sum = |is_communication: bool| -> f64 {
        let kinds = Kind::ALL.iter().filter(|kind| kind.is_communication() == is_communication);
        let seconds = kinds.map(|kind| outcomes.iter().map(|o| o.busy[kind.number()]).sum::<f64>());
        seconds.sum::<f64>() * alike
    };
    Ok(Load { work: sum(false), communication: sum(true), alone })
}

fn ranks(plan: &Plan) -> u64 {
    plan.mesh.iter().map(|d| u64::from(d.size)).product::<u64>().max(1)
}

/// A measured machine as a plan's ranks find it; other clusters are as they are.
///
/// # Errors
/// As [`crate::simulate`].
pub fn settled(plan: &Plan, cluster: &Cluster, options: &Options) -> Result<Cluster, String> {
    let Some(measured) = &cluster.measured else { return Ok(cluster.clone()) };
    let (ranks, cores) = (ranks(plan), u64::from(measured.cores.0));
    if ranks <= cores {
        return Ok(cluster.shared_by(ranks, measured.turns(ranks)));
    }
    let load = load(plan, cluster, options)?;
    let shared = load.shared(cores as f64, measured.communication_work.0.min(1.0));
    Ok(cluster.shared_by(ranks, shared / load.alone.max(f64::MIN_POSITIVE) * measured.turns(ranks)))
}
