//! The time of sums of gradients, and of gathering parameters, over the ranks that share a batch.

use crate::framework::Framework;
use forebay_cost::{Cluster, Collective, Group};
use forebay_plan::{Plan, Program, TensorKind};
use rustc_hash::FxHashMap;

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

/// How many calls of the framework each exchange of a program that sums gradients for all ranks stands for, by the program's name; 1 of those that are not there.
///
/// Buckets ([`Framework::call_mib`]) are of all parameters of a stage that data-parallel ranks sum; a class of them has its part of these by elements. Such a program sums and then gathers: each is
/// half of its calls. Where several stages have a program, it has the part of the last of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls(FxHashMap<String, f64>);

impl Calls {
    /// Of a plan.
    pub fn new(plan: &Plan, framework: &Framework) -> Calls {
        let mut calls = Calls::default();
        if framework.call_mib <= 0.0 {
            return calls;
        }
        for role in &plan.roles {
            let params = role.tensors.iter().filter(|t| t.kind == TensorKind::Param);
            let sizes: Vec<f64> = params.map(|t| t.local_elements() as f64).collect();
            let train = role.phases.iter().filter(|p| p.name == "train").flat_map(|p| &p.calls);
            let names = train.map(|call| plan.programs[call.program as usize].name.as_str());
            let classes: FxHashMap<&str, f64> = names.filter_map(|name| Some((name, summed(name)?))).collect();
            let each = 0.5 * buckets(&sizes, framework.call_mib) / classes.values().sum::<f64>();
            calls.0.extend(classes.iter().map(|(name, elements)| (name.to_string(), each * elements)));
        }
        calls
    }

    /// Seconds that hosts are held for an exchange at the end of a step ([`Framework::collective_holds`]).
    pub fn held(&self, program: &Program, group: &Group, cluster: &Cluster) -> f64 {
        self.0.get(&program.name).copied().unwrap_or(1.0) * group.ranks as f64 * cluster.first_latency()
    }
}

/// Elements of a class whose gradients a program sums for all data-parallel ranks.
fn summed(program: &str) -> Option<f64> {
    let (elements, dims) = program.strip_prefix("optimizer.all_reduce.")?.split_once('.')?;
    let has = |name: &str| dims.split('.').any(|dim| dim == name);
    (has("dp") && !has("replicas")).then(|| elements.parse().ok())?
}

/// How many buckets PyTorch's `DistributedDataParallel` makes of parameters of so many elements, the last first: one is full with the parameter that reaches its size, however large that is.
/// (That the first is full with 1 MiB is left out.)
fn buckets(sizes: &[f64], mib: f64) -> f64 {
    let size = mib * 1024.0 * 1024.0 / HALF;
    let (full, open) = sizes.iter().rev().fold((0.0, 0.0), |(full, open), elements| match open + elements {
        open if open >= size => (full + 1.0, 0.0),
        open => (full, open),
    });
    if open > 0.0 { full + 1.0 } else { full }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_cost::Domains;
    use forebay_cost::known::clusters;

    /// A large parameter is in a bucket with what came before it, and what is left over is one.
    #[test]
    fn buckets_end_with_the_parameter_that_fills_them() {
        let mib = |n: f64| n * 1024.0 * 1024.0 / HALF;
        assert_eq!(buckets(&[mib(500.0)], 25.0), 1.0);
        assert_eq!(buckets(&[mib(25.0), mib(10.0), mib(20.0), mib(5.0)], 25.0), 2.0);
        assert_eq!(buckets(&[mib(10.0), mib(500.0), mib(24.0)], 25.0), 2.0);
        assert_eq!(buckets(&[], 25.0), 0.0);
    }

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
