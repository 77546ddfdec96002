//! Ranks that share the cores of one machine.
//!
//! Up to as many ranks as cores, each has its own. Beyond that they take turns: a core is never idle while a rank has work, so a step takes what all work takes on all
//! cores, or what it takes with a core for each rank where that is longer (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969), times what
//! taking turns was measured to cost.

use crate::kind::Kind;
use crate::report::{Options, prepare};
use forebay_cost::Cluster;
use forebay_plan::Plan;

/// A measured machine as a plan's ranks find it; other clusters are as they are.
///
/// # Errors
/// As [`crate::simulate`].
pub fn settled(plan: &Plan, cluster: &Cluster, options: &Options) -> Result<Cluster, String> {
    let Some(measured) = &cluster.measured else { return Ok(cluster.clone()) };
    let ranks = plan.mesh.iter().map(|d| u64::from(d.size)).product::<u64>().max(1);
    let own = cluster.shared_by(ranks, 1.0);
    let cores = u64::from(measured.cores.0);
    if ranks <= cores {
        return Ok(own);
    }
    let (alone, outcomes) = prepare(plan, &own, options)?.run(&[1.0; Kind::COUNT], 1.0)?;
    let alike = ranks as f64 / outcomes.len().max(1) as f64;
    let work: f64 = outcomes.iter().map(|o| o.busy.iter().sum::<f64>()).sum::<f64>() * alike;
    let slowdown = (work / cores as f64 / alone.max(f64::MIN_POSITIVE)).max(1.0) * measured.turns(ranks);
    Ok(cluster.shared_by(ranks, slowdown))
}
