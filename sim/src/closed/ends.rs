//! The end of a step: gradients summed, their norm, the optimizer, parameters gathered; from the elements of each class of parameters.

use super::shard::{Class, padded};
use crate::framework::Framework;
use crate::gradients::{clip_traffic, own_traffic};
use crate::sums;
use forebay_compiler::schedule::goes_by_layer;
use forebay_cost::{Cluster, Collective, Domains, Group};

/// Bytes of an element that the norm reads.
const SQUARED: f64 = 4.0;
/// Bytes of an element that AdamW moves: parameter, gradient and two moments read, all but the gradient written, in f32.
const UPDATED: f64 = 28.0;
/// Of a copy in the compute type.
const COPIED: f64 = 2.0;
/// Of zeros, of a sum that is added to another, of a range that becomes what is gathered.
const ZEROED: f64 = 4.0;
const ADDED: f64 = 12.0;
const CAST: f64 = 6.0;
/// Sums of fewer elements stay in f32.
const SMALL: f64 = 1024.0;

/// What a class of parameters costs over its ranks.
#[derive(Clone, Debug)]
pub struct Over {
    /// Ranks that sum its gradients.
    pub ranks: u64,
    /// Of these, as many as share it, where ranks share anything.
    shards: u64,
    /// Those that share it; all where none do.
    group: Group,
    /// Those that have replicas of what others share.
    replicas: Option<Group>,
}

impl Over {
    /// For a class where the outermost dimension has `outer` ranks, `below` ranks apart, and blocks of so many ranks share parameters.
    pub fn new(class: &Class, [outer, below, block]: [u64; 3], domains: &Domains) -> Over {
        let mut dims = class.sums.clone();
        if class.grows {
            dims.push((outer, below));
        }
        let (shared, replicas): (Vec<(u64, u64)>, _) = cut(&dims, block).into_iter().partition(|d| d.1 < block);
        let [all, shared, replicas] = [dims, shared, replicas].map(|dims| Group::new(domains, &dims));
        let (ranks, shards) = (all.ranks, shared.ranks);
        let has_replicas = shards > 1 && replicas.ranks > 1;
        Over { ranks, shards, group: if shards > 1 { shared } else { all }, replicas: has_replicas.then_some(replicas) }
    }

    /// Do so many elements of a layer go over links by themselves, where layers do?
    pub fn by_layer(&self, elements: f64) -> bool {
        self.shards > 1 && elements > 0.0 && goes_by_layer(elements as u64, self.ranks)
    }

    /// On how many ranks so many elements are, each of which has its own.
    fn shards(&self, zero: u32) -> f64 {
        if zero > 0 { self.shards as f64 } else { 1.0 }
    }
}

/// Dimensions (size, stride) with an end where a block of so many ranks ends.
pub fn cut(dims: &[(u64, u64)], block: u64) -> Vec<(u64, u64)> {
    let parts = |&(size, stride): &(u64, u64)| match stride < block && block < stride * size {
        true => vec![(block / stride, stride), (size * stride / block, block)],
        false => vec![(size, stride)],
    };
    dims.iter().flat_map(parts).collect()
}

/// Seconds that a stage takes from its last backward pass to the end of the step, between the points at which all stages meet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct End {
    /// Summing gradients that every rank keeps.
    pub summed: f64,
    /// Summing those that ranks share, and squares.
    pub squared: f64,
    /// The optimizer, and gathering.
    pub updated: f64,
    /// Kernels.
    pub launches: f64,
}

/// Prices ends of steps.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// The devices.
    pub cluster: &'a Cluster,
    /// What runs them.
    pub framework: &'a Framework,
    /// Ranks that have samples of their own, or parts of them.
    pub data_ranks: u64,
}

impl Ends<'_> {
    fn streamed(&self, bytes: f64) -> f64 {
        bytes / self.cluster.memory_rate() + self.cluster.kernel_start()
    }

    /// Gradients of so many elements, each rank's range summed.
    fn reduced(&self, over: &Over, elements: f64) -> f64 {
        self.collective(Collective::ReduceScatter, &over.group, elements, self.of_gradient(&over.group, elements))
    }

    /// Bytes of a gradient's element on its way.
    fn of_gradient(&self, group: &Group, elements: f64) -> f64 {
        if elements / group.ranks as f64 > SMALL { self.framework.gradient_bytes } else { 4.0 }
    }

    fn gathered(&self, over: &Over, elements: f64, of_element: f64) -> f64 {
        self.collective(Collective::AllGather, &over.group, elements, of_element)
    }

    fn collective(&self, what: Collective, group: &Group, elements: f64, of_element: f64) -> f64 {
        sums::seconds(self.cluster, self.framework, what, group, elements, of_element)
    }

    /// Gradients of so many elements, summed for all ranks of a group: as [`crate::price`] has it.
    fn summed(&self, group: &Group, elements: f64) -> f64 {
        let of_element = self.of_gradient(group, elements);
        if self.framework.streams {
            return self.collective(Collective::ReduceScatter, group, elements, of_element)
                + self.collective(Collective::AllGather, group, elements, 4.0);
        }
        self.collective(Collective::AllReduce, group, elements, of_element)
    }

    /// What a class's elements of a stage cost at the end of a step, added to what others do; `layered` of them were summed layer by layer already.
    pub fn add(&self, end: &mut End, over: &Over, elements: f64, layered: f64, zero: u32) {
        if elements <= 0.0 {
            return;
        }
        let shards = over.shards(zero);
        let (shares, own, late) = (shards > 1.0, elements / shards, elements - layered);
        if over.ranks > 1 && late > 0.0 {
            if shares {
                end.squared += self.reduced(over, late);
                end.launches += 1.0;
            } else {
                end.summed += self.summed(&over.group, late);
                end.launches += 2.0;
            }
        }
        if let Some(replicas) = over.replicas.as_ref().filter(|_| shares) {
            end.squared += self.summed(replicas, own);
            end.launches += 2.0;
        }
        // Of what was summed layer by layer a rank has its range.
        let held = late + layered / shards;
        let beside = own_traffic(self.framework, self.data_ranks) * held + clip_traffic(self.framework) * own;
        end.squared += self.streamed(SQUARED * own + beside);
        end.updated += self.streamed((UPDATED + if shares { 0.0 } else { COPIED }) * own);
        end.launches += 2.0;
        // With parameters that ranks share, layers gather theirs when they run.
        let kept = if zero > 2 { late } else { elements };
        if shares && kept > 0.0 {
            end.updated += self.streamed(CAST * kept / shards) + self.gathered(over, kept, 2.0);
            end.launches += 2.0;
        }
    }

    /// What a layer's parameters cost a micro-batch's forward pass, beside the layer's work: seconds and kernels.
    pub fn before_layer(&self, over: &Over, elements: f64, zero: u32) -> (f64, f64) {
        if zero < 3 || !over.by_layer(elements) {
            return (0.0, 0.0);
        }
        (self.streamed(CAST * elements / over.shards(zero)) + self.gathered(over, elements, 2.0), 2.0)
    }

    /// What its gradients cost a micro-batch's backward pass.
    pub fn behind_layer(&self, over: &Over, elements: f64, zero: u32) -> (f64, f64) {
        if zero < 2 || !over.by_layer(elements) {
            return (0.0, 0.0);
        }
        let own = elements / over.shards(zero);
        let seconds = self.streamed(ZEROED * elements) + self.reduced(over, elements) + self.streamed(ADDED * own);
        (seconds, 3.0)
    }

    /// Bytes at the end of a step alone: of the sums of a class's gradients, where a rank keeps its range of them no longer than that; and, while they are summed for all ranks of a group,
    /// of the part that each sums.
    pub fn passing(over: &Over, elements: f64, layered: f64, zero: u32) -> [f64; 2] {
        let own = 4.0 * padded(elements, over.ranks) / over.shards(zero);
        let (shares, replicas) = (over.shards(zero) > 1.0, over.replicas.as_ref().map_or(1, |group| group.ranks));
        let parts = if shares { replicas } else { over.ranks } as f64;
        let part = if parts > 1.0 && layered == 0.0 { own / parts } else { 0.0 };
        [if shares && layered == 0.0 { own } else { 0.0 }, part]
    }

    /// Bytes of a rank for a class's elements: weights with their copies, gradients, moments; `layered` as for [`Ends::add`].
    pub fn bytes(over: &Over, elements: f64, layered: f64, zero: u32) -> [f64; 3] {
        let elements = padded(elements, over.ranks);
        let own = elements / over.shards(zero);
        let late = if layered > 0.0 { (elements - layered).max(0.0) } else { elements };
        let copies = if zero > 2 { late } else { elements };
        let ranges = if layered > 0.0 { 4.0 * own } else { 0.0 };
        [4.0 * own + 2.0 * copies, 4.0 * late + ranges, 8.0 * own]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a layer has too little of for all ranks is summed at the end of the step, as in plans.
    #[test]
    fn small_classes_are_no_work_of_layers() {
        let clusters = forebay_cost::known::clusters();
        let cluster = clusters.iter().find(|c| c.is_called("H100")).expect("it is known");
        let over = |ranks: u64| {
            let class = Class { sums: vec![(ranks, 1)], grows: false, before: vec![] };
            Over::new(&class, [1, 1, ranks], &Domains::new(cluster, &[ranks]))
        };
        assert_eq!([8_191.0, 8_192.0].map(|elements| over(8).by_layer(elements)), [false, true]);
        assert!(!over(1).by_layer(1e9) && !over(8).by_layer(0.0));
        let ends = Ends { cluster, framework: &Framework::default(), data_ranks: 8 };
        assert_eq!(ends.before_layer(&over(8), 8_191.0, 3), (0.0, 0.0));
        assert!(ends.behind_layer(&over(8), 8_192.0, 2).0 > 0.0);
    }
}
