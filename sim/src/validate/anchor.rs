//! One measured run of a system tells how much of its device the software there reaches: all other runs on the device are predicted with that.

use super::cases::Case;
use crate::framework::Framework;
use crate::kind::Kind;
use crate::report::{Part, Report};
use forebay_cost::Cluster;
use serde::Serialize;

/// What a run said of its device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Anchor {
    /// The run.
    pub id: String,
    /// The device's cluster.
    pub cluster: String,
    /// What its calibrated efficiencies of work (products, attention, memory) were multiplied by.
    pub factor: f64,
    /// predicted / measured − 1 of the run itself afterwards: not 0 where no factor between [`LEAST`] and [`MOST`] explains it.
    pub left: f64,
}

/// The least factor that is tried.
pub const LEAST: f64 = 0.2;
/// The largest factor that is tried; no efficiency becomes more than 1.
pub const MOST: f64 = 2.5;
/// The least part of a step that is work on the device: of less, the rest of the step would say more about the factor than the device does.
pub const LEAST_WORK: f64 = 0.4;
/// Halvings of the interval: to a part in a million.
const STEPS: usize = 21;

/// Scales the efficiencies of a run's device so that the run is predicted as it was measured. Step time falls as they grow, so that halving an interval finds the factor.
///
/// # Errors
/// A run that is not there, has no prediction, or is no work of the device for the most part: a sentence.
pub fn anchor(
    cases: &[Case],
    id: &str,
    clusters: &[Cluster],
    frameworks: &[Framework],
) -> Result<(Vec<Cluster>, Anchor), String> {
    let case = cases
        .iter()
        .find(|c| c.run.id == id)
        .ok_or_else(|| format!("no run that can be predicted is called `{id}`"))?;
    let measured_s = case.measured_s.ok_or_else(|| format!("`{id}` ran out of memory: it has no time"))?;
    let work = work(&case.price(clusters, frameworks)?);
    if work < LEAST_WORK {
        return Err(format!(
            "`{id}` says little of its device: {:.0} % of its step is work there, the rest communication, bubbles and the host",
            100.0 * work
        ));
    }
    let mut clusters = clusters.to_vec();
    let given = clusters[case.cluster].clone();
    let mut error = |factor: f64| {
        clusters[case.cluster] = scaled(&given, factor);
        case.step_time(&clusters, frameworks).map(|predicted| predicted / measured_s - 1.0)
    };
    let (mut low, mut high) = (LEAST, MOST);
    for _ in 0..STEPS {
        let middle = f64::sqrt(low * high);
        if error(middle)? > 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    let factor = f64::sqrt(low * high);
    let left = error(factor)?;
    let cluster = given.name.clone();
    Ok((clusters, Anchor { id: id.to_string(), cluster, factor, left }))
}

/// The part of a step that is work on the device.
fn work(report: &Report) -> f64 {
    let kinds = [Kind::Products, Kind::ExpertProducts, Kind::Attention, Kind::Vector, Kind::Optimizer];
    let is_work = |part: &&Part| kinds.iter().any(|kind| kind.name() == part.what);
    report.time_s.iter().filter(is_work).map(|part| part.seconds).sum::<f64>() / report.step_time_s
}

fn scaled(cluster: &Cluster, factor: f64) -> Cluster {
    let mut cluster = cluster.clone();
    cluster.calibrated.scale(factor);
    cluster
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::known;
    use crate::validate::runs;
    use forebay_cost::known::clusters;

    /// With a device that is thought to be half as good as it is, one run repairs the others.
    #[test]
    fn one_run_repairs_the_others() {
        let read = runs::read(include_str!("../../tests/published.csv")).expect("a table").runs;
        let (clusters, frameworks) = (clusters(), known());
        let cases: Vec<Case> =
            read.iter().take(2).map(|run| Case::new(run, &clusters, &frameworks).expect("a case")).collect();
        let at = cases[0].cluster;
        let mut wrong = clusters.clone();
        wrong[at] = scaled(&clusters[at], 0.5);
        let off = |clusters: &[Cluster]| {
            let report = cases[1].price(clusters, &frameworks).expect("a report");
            (report.step_time_s / cases[1].measured_s.expect("a time") - 1.0).abs()
        };
        let before = off(&wrong);
        let (repaired, found) = anchor(&cases, &cases[0].run.id, &wrong, &frameworks).expect("a factor");
        assert!(found.left.abs() < 1e-3 && (1.5..2.5).contains(&found.factor), "{found:?}");
        assert!(before > 0.4 && off(&repaired) < 0.1, "{before} before, {} after", off(&repaired));
        assert!(anchor(&cases, "nobody", &wrong, &frameworks).is_err());
        // A host that takes a second for each kernel says nothing of the device.
        let mut slow = frameworks.clone();
        slow.iter_mut().for_each(|f| f.dispatch_us = 1e6);
        let error = anchor(&cases, &cases[0].run.id, &clusters, &slow).expect_err("it is the host");
        assert!(error.contains("says little of its device"), "{error}");
    }
}
