//! Messages between the stages of a pipeline: which tier of the network they take, and for how long.
//!
//! Stages of few ranks share a node, so that messages leave it at some of their boundaries and not at others.

use crate::price::stage_dim;
use forebay_cost::{Cluster, Domains};
use forebay_plan::{MeshDim, Plan};

/// How the stages of a pipeline reach each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes {
    domains: Domains,
    /// Ranks of a stage.
    ranks: u64,
    /// For each tier the seconds of a message of no bytes, and of each byte.
    tiers: Vec<[f64; 2]>,
}

impl Routes {
    /// For stages of so many ranks.
    pub fn new(cluster: &Cluster, domains: Domains, ranks: u64) -> Routes {
        let of_tier = |tier: usize| {
            let empty = cluster.message_over(tier, 0.0);
            [empty, cluster.message_over(tier, 1e9) / 1e9 - empty / 1e9]
        };
        Routes { domains, ranks, tiers: (0..cluster.tiers.len()).map(of_tier).collect() }
    }

    /// For stages that all reach each other in the same way.
    pub fn alike(empty: f64, byte: f64) -> Routes {
        Routes { domains: Domains::default(), ranks: 1, tiers: vec![[empty, byte]] }
    }

    /// The tier that a message from one stage to another takes.
    pub fn tier(&self, from: u32, to: u32) -> usize {
        self.domains.between([from, to], self.ranks)
    }

    /// Seconds of a message between two stages.
    pub fn seconds(&self, from: u32, to: u32, bytes: f64) -> f64 {
        let [empty, byte] = self.tiers[self.tier(from, to)];
        empty + bytes * byte
    }

    /// Seconds of the slowest message from one of so many stages to the next.
    pub fn slowest(&self, stages: u32, bytes: f64) -> f64 {
        (1..stages).map(|to| self.seconds(to - 1, to, bytes)).fold(0.0, f64::max)
    }

    /// For each tier but the last the ranks of its domains and of stages, in lowest terms: what tells pipelines of as many stages apart.
    pub fn together(&self) -> Vec<(u64, u64)> {
        let lowest = |used: u64| {
            let (mut a, mut b) = (used, self.ranks);
            while b > 0 {
                (a, b) = (b, a % b);
            }
            (used / a, self.ranks / a)
        };
        (0..self.tiers.len() - 1).map(|tier| lowest(self.domains.used(tier))).collect()
    }
}

/// How the ranks of a plan's mesh lie in a cluster's domains.
pub fn domains(cluster: &Cluster, mesh: &[MeshDim]) -> Domains {
    let extents: Vec<u64> = mesh.iter().rev().map(|d| u64::from(d.size)).collect();
    Domains::new(cluster, &extents)
}

/// For each program the stages that run it.
pub(crate) fn stages_of_programs(plan: &Plan) -> Vec<Vec<u32>> {
    let dim = stage_dim(&plan.mesh);
    let mut stages = vec![vec![]; plan.programs.len()];
    for role in &plan.roles {
        let stage = dim.map_or(0, |dim| role.coordinates[dim as usize].0);
        for call in role.phases.iter().flat_map(|phase| &phase.calls) {
            let of_program: &mut Vec<u32> = &mut stages[call.program as usize];
            if of_program.last() != Some(&stage) {
                of_program.push(stage);
            }
        }
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_cost::known::clusters;

    /// On nodes of eight, stages of two ranks: the fourth sends to another node.
    #[test]
    fn some_messages_leave_the_node() {
        let cluster = clusters().into_iter().find(|c| c.is_called("H100")).expect("a cluster");
        let routes = Routes::new(&cluster, Domains::new(&cluster, &[2, 8]), 2);
        assert_eq!((0..7).map(|s| routes.tier(s, s + 1)).collect::<Vec<_>>(), [0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(routes.together(), [(4, 1)]);
        assert_eq!(routes.slowest(8, 1e6), routes.seconds(3, 4, 1e6));
        assert_eq!(routes.slowest(4, 1e6), routes.seconds(0, 1, 1e6));
        for (to, tier) in [(2, 0), (4, 1)] {
            let (got, want) = (routes.seconds(3, to, 1e6), cluster.message_over(tier, 1e6));
            assert!((got / want - 1.0).abs() < 1e-9, "{got} is not {want}");
        }
    }
}
