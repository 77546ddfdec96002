//! The time of sums of gradients, and of gathering parameters, over the ranks that share a batch.

use crate::framework::Framework;
use forebay_cost::{Cluster, Collective, Group};

/// Bytes of an element that buckets are counted in.
const HALF: f64 = 2.0;

/// Seconds of a collective on so many elements, with so many bytes each: a bucket after another, each with the latency of its steps.
///
/// Where hosts are held for the steps inside of nodes ([`Framework::collective_holds`]), those take the device no time.
pub(crate) fn seconds(
    cluster: &Cluster,
    framework: &Framework,
    what: Collective,
    group: &Group,
    elements: f64,
    each: f64,
) -> f64 {
    let buckets = match framework.bucket_mb {
        mb if mb > 0.0 => (elements * HALF / (mb * 1e6)).ceil().max(1.0),
        _ => 1.0,
    };
    let bucket = cluster.collective(what, group, elements * each / buckets);
    let steps = matches!(what, Collective::AllGather | Collective::ReduceScatter);
    let held = if framework.collective_holds && steps { cluster.inside_latency(group) } else { 0.0 };
    buckets * (bucket - held).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_cost::Domains;
    use forebay_cost::known::clusters;

    /// As many latencies as buckets, and no more bytes; none of the steps inside of nodes where hosts are held for them.
    #[test]
    fn each_bucket_has_a_latency() {
        let cluster = clusters().into_iter().find(|c| c.is_called("H100")).expect("a cluster");
        let group = Group::new(&Domains::new(&cluster, &[64]), &[(64, 1)]);
        let of = |bucket_mb: f64, collective_holds: bool, what: Collective| {
            let framework = Framework { bucket_mb, collective_holds, ..Framework::default() };
            seconds(&cluster, &framework, what, &group, 1e9, 4.0)
        };
        let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-9, "{got} is not {want}");
        let (gather, latency) = (Collective::AllGather, cluster.ring_latency(&group) + cluster.kernel_start());
        near(of(200.0, false, gather) - of(0.0, false, gather), 9.0 * latency);
        near(of(200.0, false, gather) - of(200.0, true, gather), 10.0 * cluster.inside_latency(&group));
        // Trees have few steps, of which nothing is known.
        near(of(200.0, true, Collective::AllReduce), of(200.0, false, Collective::AllReduce));
    }
}
