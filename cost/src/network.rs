//! The time of collectives, in seconds.
//!
//! A group has some members in each domain of each tier: 16 ranks, 8 to a node, are `[8, 16]`. Every device has its own link to each tier, so a ring through
//! nodes with k members each uses k links between nodes:
//!
//! ```text
//! bandwidth of a ring = min(link of the first tier, k₀ · link of the second, k₁ · link of the third, …)      tiers that it crosses
//! ```
//!
//! In a mesh (a link from each device to each other one) a group of k of n devices has (k − 1)/(n − 1) of a device's links, and a message has one: two of eight Ascend 910B exchange 28 GB/s, all eight 196.
//!
//! In a torus a group has the links along its axes: rings go along all of them at once, two links of a device for each. All-to-alls of n devices on a ring send over half of it in the mean, and so an
//! eighth of n times what a device gives goes over each link; in a torus the longest axis of the group counts.
//!
//! Where devices share adapters, groups that have several of a node's devices and not all of them choose alike: k of n devices take k/n of the adapters (one at the least), and all n/k groups of the
//! node take the same ones. On nodes of 8 A100 with 4 adapters, sums of gradients over groups of 2 and 4 in each node went at 0.23 and 0.36 of what the group's devices have of the adapters together
//! (a quarter and a half, by this rule), those over groups of 1 and 8 at nearly all of it.

use crate::cluster::{Cluster, Count, Links};

/// What a group does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Everyone gets everyone's array; `bytes` are those of the whole.
    AllGather,
    /// Everyone gets a piece of the sum; `bytes` are those of the whole.
    ReduceScatter,
    /// Everyone gets the sum; `bytes` are those of the array.
    AllReduce,
    /// A piece from each to each; `bytes` are what one rank gives, its own piece included.
    AllToAll,
    /// Each rank gives an array to the next one.
    Shift,
}

/// How the ranks of a mesh lie in the domains of each tier but the last.
///
/// Where ranks fill whole domains, all devices have one. Elsewhere domains have whole parts of the mesh: of 72 devices of a rack 64 where 128 ranks are shared out, of 6 of a node 4 where tensor
/// parallelism is over 4; the others are left idle rather than that groups of few ranks are spread over two racks. Where a domain that is full ends within a group, the group has there what whole
/// parts of the mesh have: some groups have more, and rings of others wait for those that have the least.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    /// The largest part of the mesh of which a domain has whole ones.
    parts: Vec<u64>,
    /// Devices of a domain that have a rank.
    used: Vec<u64>,
}

impl Domains {
    /// For ranks along the dimensions of a mesh, the innermost first.
    pub fn new(cluster: &Cluster, extents: &[u64]) -> Domains {
        let ranks = extents.iter().product::<u64>().max(1);
        // Where a mesh can be cut: within one dimension, behind all of those inside of it.
        let is_whole = |part: u64| {
            let mut below = 1;
            extents.iter().any(|extent| {
                let inner = below;
                below *= extent;
                part.is_multiple_of(inner) && below.is_multiple_of(part)
            })
        };
        let mut domains = Domains::default();
        let (mut part, mut used, mut devices) = (1, 1, 1);
        for tier in 0..cluster.tiers.len().saturating_sub(1) {
            // As many domains of the tier inside as there are, each with as many ranks as it has.
            let room = cluster.domain(tier) / devices * used;
            devices = cluster.domain(tier);
            if ranks > room {
                part = (part..=room).rev().find(|&n| n.is_multiple_of(part) && is_whole(n)).unwrap_or(part);
                // Whole domains of the tier inside.
                used = if ranks.is_multiple_of(room) { room } else { (part / used * used).max(used) };
            } else {
                (part, used) = (room, room);
            }
            domains.parts.push(part);
            domains.used.push(used);
        }
        domains
    }

    /// Devices of a domain of a tier that have a rank; all of them for the last.
    pub fn used(&self, tier: usize) -> u64 {
        self.used.get(tier).copied().unwrap_or(u64::MAX)
    }

    /// The tier that messages between two stages of a pipeline take, of which each has so many ranks: the one that holds all of both.
    pub fn between(&self, [from, to]: [u32; 2], ranks: u64) -> usize {
        let (first, last) = (u64::from(from.min(to)) * ranks, (u64::from(from.max(to)) + 1) * ranks - 1);
        let holds = |used: &u64| first / used == last / used;
        self.used.iter().position(holds).unwrap_or(self.used.len())
    }
}

/// Where the members of a group are: how many of them share a domain of each tier with one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// All members.
    pub ranks: u64,
    /// Members in one domain of each tier, from the nearest outwards; not falling, the last is `ranks`.
    pub members: Vec<u64>,
    /// Devices of a domain of each tier but the last that have a rank of any group.
    used: Vec<u64>,
}

impl Group {
    /// The group of a rank over dimensions of (size, stride), ranks being numbered so that neighbours are near. Domains are runs of ranks.
    pub fn new(domains: &Domains, dims: &[(u64, u64)]) -> Group {
        let ranks = dims.iter().map(|d| d.0).product::<u64>().max(1);
        let inside = domains.parts.iter().map(|&limit| members_below(dims, limit));
        Group { ranks, members: inside.chain([ranks]).collect(), used: domains.used.clone() }
    }

    /// Are there members outside of the first tier's domain?
    pub fn leaves_node(&self) -> bool {
        self.members.first().is_some_and(|near| *near < self.ranks)
    }
}

/// How many sums of coordinates × strides are below a limit. The dimensions are those of one mesh: sorted by stride, each stride is a multiple of the extent of those below.
fn members_below(dims: &[(u64, u64)], limit: u64) -> u64 {
    let mut dims: Vec<(u64, u64)> = dims.to_vec();
    dims.sort_by_key(|d| d.1);
    dims.iter().map(|&(size, stride)| size.min(limit.div_ceil(stride.max(1))).max(1)).product()
}

/// A group in a torus.
struct Torus {
    /// The tier.
    tier: usize,
    /// The axes along which it has rings, and halves for those of which it has a part: there what goes round comes back over the same links.
    rings: f64,
    /// Ranks of a ring with as much traffic in an all-to-all as on its longest axis; a part of an axis has twice as much.
    longest: f64,
    /// Steps along the first axis, and along the others, to come to all of them.
    hops: [f64; 2],
}

/// Of what an all-to-all gives, the parts that go at all: what several experts of a rank, or of a node, share goes to it but once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copies {
    /// Of what stays within the first tier.
    pub inside: f64,
    /// Of what goes beyond it.
    pub outside: f64,
}

impl Copies {
    /// Everything goes.
    pub const ALL: Copies = Copies { inside: 1.0, outside: 1.0 };
}

impl Cluster {
    /// The cluster with a torus of so many chips, as jobs have slices of their own: axes are as long as those of a cube or square of as many (64 chips of a torus of three axes are 4 × 4 × 4), and one
    /// is longer where that is no whole one. A number that is no power of two, or more than there are, changes nothing.
    #[must_use]
    pub fn with_slice(mut self, chips: u64) -> Cluster {
        let Some(tier) = self.torus() else { return self };
        let root = (chips as f64).log2() / self.axes(tier);
        let axis = 1 << root.floor().max(0.0) as u64;
        if chips.is_power_of_two() && chips <= self.domain(tier) && (2..=self.domain(tier - 1)).contains(&axis) {
            self.tiers[tier - 1].devices = Some(Count(axis as u32));
            self.tiers[tier].devices = Some(Count(chips as u32));
        }
        self
    }
}

impl Cluster {
    /// Bandwidth that one device's collectives get from a tier of which the group has so many parts (domains of the tier inside, two for a message), bytes/s.
    fn tier_rate(&self, tier: usize, parts: f64) -> f64 {
        let calibrated = &self.calibrated;
        let of_links = tier == 0 || self.tiers[tier].scale_up;
        let efficiency = if of_links { calibrated.link_efficiency.0 } else { calibrated.network_efficiency.0 };
        self.tiers[tier].gbps.0 * 1e9 * efficiency * self.reached(tier, parts)
    }

    /// What a device's links in the first tier carry, bytes/s.
    pub fn link_rate(&self) -> f64 {
        self.tiers[0].gbps.0 * 1e9 * self.calibrated.link_efficiency.0
    }

    /// The part of a device's links into a tier that lead to the group's parts of it.
    fn reached(&self, tier: usize, parts: f64) -> f64 {
        let inner = if tier == 0 { 1 } else { self.domain(tier - 1) };
        let all = (self.domain(tier) / inner) as f64;
        match self.tiers[tier].links {
            Links::Mesh if parts < all => (parts - 1.0) / (all - 1.0),
            // (A message has the two links along an axis.)
            Links::Torus => 1.0 / self.axes(tier),
            Links::Mesh | Links::Switch => 1.0,
        }
    }

    /// The tier that is a torus, if one is.
    fn torus(&self) -> Option<usize> {
        (1..self.tiers.len()).find(|&tier| self.tiers[tier].links == Links::Torus)
    }

    /// How many axes a torus has, of which the tier inside of it is one.
    fn axes(&self, tier: usize) -> f64 {
        (self.tiers[tier].gbps.0 / self.tiers[tier - 1].gbps.0).round().max(1.0)
    }

    /// How a group lies in a torus, where it has more than one chip of it: along the first axis what one domain of the tier inside has, then along one axis after the other.
    fn in_torus(&self, group: &Group) -> Option<Torus> {
        let tier = self.torus()?;
        let length = self.domain(tier - 1) as f64;
        let first = group.members[tier - 1] as f64;
        let (mut others, mut left) = (group.members[tier] as f64 / first.max(1.0), self.axes(tier) - 1.0);
        let mut torus = Torus { tier, rings: 0.0, longest: 1.0, hops: [first - 1.0, 0.0] };
        let along = |ranks: f64, torus: &mut Torus| {
            if ranks > 1.0 {
                let is_whole = ranks >= length;
                torus.rings += if is_whole { 1.0 } else { 0.5 };
                torus.longest = torus.longest.max(if is_whole { ranks } else { 2.0 * ranks });
            }
        };
        along(first, &mut torus);
        while others > 1.0 {
            // (The last axis is longer where there are more.)
            let ranks = if left > 1.0 { others.min(length) } else { others };
            along(ranks, &mut torus);
            torus.hops[1] += ranks - 1.0;
            (others, left) = (others / ranks, left - 1.0);
        }
        (torus.rings > 0.0).then_some(torus)
    }

    fn latency(&self, tier: usize) -> f64 {
        self.tiers[tier].latency_us.0 * 1e-6
    }

    /// For each tier that a group crosses: (tier, members inside of the domain below it, parts of a domain of it).
    fn crossed<'a>(&'a self, group: &'a Group) -> impl Iterator<Item = (usize, f64, f64)> + 'a {
        (0..self.tiers.len()).filter_map(move |tier| {
            let below = if tier == 0 { 1 } else { group.members[tier - 1] };
            let here = group.members[tier];
            (here > below).then(|| (tier, below as f64, (here / below.max(1)) as f64))
        })
    }

    /// Bandwidth of a ring through the group, bytes/s.
    fn ring_rate(&self, group: &Group) -> f64 {
        let torus = self.in_torus(group);
        let rate = |(tier, below, parts): (usize, f64, f64)| match &torus {
            Some(torus) if tier <= torus.tier => torus.rings * self.tier_rate(torus.tier - 1, 1.0),
            _ => below * self.tier_rate(tier, parts) * self.unshared(group, tier, below),
        };
        self.crossed(group).map(rate).fold(f64::INFINITY, f64::min)
    }

    /// What part of its devices' share of a tier's adapters a group gets that has so many devices in a domain of the tier inside of it.
    fn unshared(&self, group: &Group, tier: usize, below: f64) -> f64 {
        match self.tiers[tier].adapters {
            Some(adapters) if below > 1.0 => (below / group.used[tier - 1] as f64).max(1.0 / adapters.0.max(1.0)),
            _ => 1.0,
        }
    }

    /// Latency of once round the ring, seconds: all of a collective on very small arrays. Each domain of a tier is entered once, and the ring goes through
    /// all members inside of it; a rank of its own is a domain below the first tier.
    pub fn ring_latency(&self, group: &Group) -> f64 {
        let ranks = group.ranks as f64;
        let domains = |members: f64| ranks / members.max(1.0);
        let torus = self.in_torus(group);
        // (Along one axis after the other.)
        let along = torus.as_ref().map_or(0.0, |torus| {
            torus.hops[0] * self.latency(torus.tier - 1) + torus.hops[1] * self.latency(torus.tier)
        });
        let outside = self.crossed(group).filter(|(tier, ..)| torus.as_ref().is_none_or(|torus| *tier > torus.tier));
        let rings =
            outside.map(|(tier, below, _)| (domains(below) - domains(group.members[tier] as f64)) * self.latency(tier));
        along + rings.sum::<f64>()
    }

    /// The part of [`Cluster::ring_latency`] that is inside of the first tier's domains, seconds.
    pub fn inside_latency(&self, group: &Group) -> f64 {
        if let Some(torus) = self.in_torus(group) {
            return torus.hops[0] * self.first_latency();
        }
        let near = group.members.first().copied().unwrap_or(1).max(1) as f64;
        let ranks = group.ranks as f64;
        (ranks - ranks / near) * self.first_latency()
    }

    /// Latency of a step inside of the first tier, seconds.
    pub fn first_latency(&self) -> f64 {
        self.latency(0)
    }

    /// Latency of a tree over the group.
    fn tree_latency(&self, group: &Group) -> f64 {
        self.crossed(group).map(|(tier, _, parts)| parts.log2().ceil() * self.latency(tier)).sum()
    }

    /// Seconds of a collective of `bytes`.
    pub fn collective(&self, kind: Collective, group: &Group, bytes: f64) -> f64 {
        if group.ranks <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        let n = group.ranks as f64;
        let passing = bytes * (n - 1.0) / n;
        let start = self.kernel_start();
        match kind {
            Collective::AllGather | Collective::ReduceScatter => {
                start + passing / self.ring_rate(group) + self.ring_latency(group)
            }
            Collective::AllReduce => {
                // A ring passes everything twice; a tree too, at nearly the bandwidth, with a latency that grows with the logarithm (NCCL 2.4's double trees).
                let ring = 2.0 * passing / self.ring_rate(group) + 2.0 * self.ring_latency(group);
                let tree = 2.0 * bytes / (0.9 * self.ring_rate(group)) + 2.0 * self.tree_latency(group);
                start + ring.min(tree)
            }
            Collective::AllToAll => self.rows(group, bytes, Copies::ALL),
            // Everyone sends at once; of the ranks of a domain one sends to the next domain.
            Collective::Shift => {
                let over = self.crossed(group).map(|(tier, ..)| bytes / self.tier_rate(tier, 2.0) + self.latency(tier));
                start + over.fold(0.0, f64::max)
            }
        }
    }

    /// Seconds of an all-to-all in which a rank gives `bytes`, of which only a part goes within the first tier and beyond it: tokens for several experts of a rank, or of a node.
    ///
    /// Each rank sends to all others at once; what goes over different tiers goes at the same time.
    pub fn rows(&self, group: &Group, bytes: f64, copies: Copies) -> f64 {
        if group.ranks <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        let torus = self.in_torus(group);
        let over = self.crossed(group).map(|(tier, _, parts)| {
            let members = group.members[tier] as f64;
            if let Some(torus) = torus.as_ref().filter(|torus| tier <= torus.tier) {
                // What ranks of the torus give each other, over links of two directions along each axis; of what leaves the first axis a part.
                let near = group.members[torus.tier - 1] as f64 / group.ranks as f64;
                let far = group.members[torus.tier] as f64 / group.ranks as f64 - near;
                let part = near * copies.inside + far * copies.outside;
                let link = self.tier_rate(torus.tier - 1, 1.0) / 2.0;
                return bytes * part * torus.longest / 8.0 / link + self.latency(tier);
            }
            let part = if tier == 0 { copies.inside } else { copies.outside };
            let share = (members - members / parts) / group.ranks as f64 * part;
            bytes * share / self.tier_rate(tier, parts) + self.latency(tier)
        });
        self.kernel_start() + over.fold(0.0, f64::max)
    }

    /// Seconds of a message over a tier.
    pub fn message_over(&self, tier: usize, bytes: f64) -> f64 {
        self.kernel_start() + self.latency(tier) + bytes / self.tier_rate(tier, 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of 4 with 100 GB/s inside and 10 GB/s for each device between, no latency, everything sustained.
    fn cluster() -> Cluster {
        Cluster::parse(crate::cluster::tests::SMALL).expect("a cluster file")
    }

    fn near(got: f64, want: f64) {
        assert!((got / want - 1.0).abs() < 1e-9, "{got} is not {want}");
    }

    /// Domains of as many ranks as they have devices.
    fn all(cluster: &Cluster) -> Domains {
        Domains::new(cluster, &[1 << 20])
    }

    /// A domain has whole parts of a mesh, and of the domains inside of it; a mesh that fits into one is not cut.
    #[test]
    fn domains_have_whole_parts_of_a_mesh() {
        let mut cluster = cluster();
        let mut of = |devices: u32, extents: &[u64]| {
            cluster.tiers[0].devices = Some(Count(devices));
            Domains::new(&cluster, extents).used(0)
        };
        assert_eq!(
            [of(72, &[128]), of(72, &[8, 16]), of(72, &[64, 2]), of(72, &[72]), of(72, &[64])],
            [64, 64, 64, 72, 72]
        );
        assert_eq!([of(6, &[4, 4]), of(6, &[2, 10]), of(5, &[3, 4]), of(8, &[6, 5]), of(8, &[16])], [4, 4, 3, 6, 8]);
        // Whole nodes are full, whatever the mesh: three of eight devices, and six.
        assert_eq!([of(8, &[6, 4]), of(3, &[7, 2]), of(3, &[7, 3]), of(8, &[4, 3, 4])], [8, 1, 3, 8]);
        assert_eq!(Group::new(&Domains::new(&cluster, &[4, 3, 4]), &[(3, 4)]).members[0], 1);
    }

    /// A rack has as many ranks as its nodes have, and whole nodes.
    #[test]
    fn domains_have_what_those_inside_of_them_have() {
        let mut rack = cluster();
        rack.tiers.insert(1, rack.tiers[0].clone());
        let mut of = |devices: [u32; 2], extents: &[u64]| {
            (rack.tiers[0].devices, rack.tiers[1].devices) = (Some(Count(devices[0])), Some(Count(devices[1])));
            let domains = Domains::new(&rack, extents);
            [domains.used(0), domains.used(1)]
        };
        // 6 would be half of a node more; eight nodes of six are 48.
        assert_eq!(of([5, 10], &[12]), [4, 4]);
        assert_eq!(of([8, 64], &[6, 20]), [8, 56]);
        assert_eq!(of([8, 64], &[6, 21]), [6, 42]);
        assert_eq!(of([8, 64], &[6, 8]), [8, 64]);
        // 60 ranks do not fit into a rack of which 48 devices are used.
        assert_eq!(of([8, 64], &[6, 10]), [6, 30]);
    }

    /// All that leaves a rack does so at its rate: half of what each of the 64 has to give.
    #[test]
    fn exchanges_leave_racks_that_they_do_not_fit_into() {
        let mut rack = cluster();
        rack.tiers[0].devices = Some(Count(72));
        let group = Group::new(&Domains::new(&rack, &[128]), &[(128, 1)]);
        assert_eq!(group.members, [64, 128]);
        near(rack.collective(Collective::AllToAll, &group, 16e9), 8.0 / 10.0);
        // Adapters are shared by the devices that are used.
        let mut node = cluster();
        node.tiers[1].adapters = Some(crate::cluster::Positive(2.0));
        let gather = |cluster: &Cluster| {
            let group = Group::new(&Domains::new(cluster, &[3, 3]), &[(3, 1), (3, 3)]);
            cluster.collective(Collective::AllGather, &group, 9e9)
        };
        let shared = gather(&node);
        node.tiers[1].adapters = None;
        near(shared, gather(&node));
    }

    /// Four stages of two ranks on nodes of four: every second message leaves the node.
    #[test]
    fn messages_between_stages_leave_nodes_where_they_end() {
        let domains = Domains::new(&cluster(), &[2, 4]);
        let tier = |from, to| domains.between([from, to], 2);
        assert_eq!([tier(0, 1), tier(1, 2), tier(2, 3), tier(2, 1), tier(3, 0)], [0, 1, 0, 1, 1]);
        let large = Domains::new(&cluster(), &[8, 4]);
        assert_eq!(large.between([0, 1], 8), 1);
        let inside = Domains::new(&cluster(), &[1, 4]);
        assert_eq!(inside.between([3, 0], 1), 0);
        // Stages of three fill nodes of four: all of them lie across two.
        let across = Domains::new(&cluster(), &[3, 4]);
        assert_eq!((across.used(0), across.between([0, 1], 3)), (4, 1));
    }

    #[test]
    fn groups_lie_on_tiers() {
        let cluster = cluster();
        let members = |dims: &[(u64, u64)]| Group::new(&all(&cluster), dims).members;
        assert_eq!(members(&[(4, 1)]), [4, 4]);
        assert_eq!(members(&[(16, 1)]), [4, 16]);
        assert_eq!(members(&[(8, 2)]), [2, 8]);
        assert_eq!(members(&[(8, 4)]), [1, 8]);
        assert_eq!(members(&[(2, 8), (2, 1)]), [2, 4]);
    }

    #[test]
    fn rings_on_two_tiers_by_hand() {
        let cluster = cluster();
        let time = |kind, dims: &[(u64, u64)]| cluster.collective(kind, &Group::new(&all(&cluster), dims), 16e9);
        // 4 ranks of one node: three quarters of 16 GB at 100 GB/s.
        near(time(Collective::AllGather, &[(4, 1)]), 12.0 / 100.0);
        // 8 ranks on two nodes: a ring over 4 links of 10 GB/s.
        near(time(Collective::ReduceScatter, &[(8, 1)]), 14.0 / 40.0);
        // One rank of each of 4 nodes: one link.
        near(time(Collective::AllGather, &[(4, 4)]), 12.0 / 10.0);
        near(time(Collective::AllReduce, &[(4, 1)]), 2.0 * 12.0 / 100.0);
    }

    /// A device's own links reach what its links reach, in whichever tier they lead to.
    #[test]
    fn tiers_of_a_devices_own_links_are_as_efficient_as_these() {
        let clusters = crate::known::clusters();
        let a3 = clusters.iter().find(|c| c.is_called("910C")).expect("it is known");
        let mut as_network = a3.clone();
        as_network.tiers.iter_mut().for_each(|tier| tier.scale_up = false);
        let seconds = |cluster: &Cluster| {
            let group = Group::new(&Domains::new(cluster, &[8]), &[(8, 1)]);
            cluster.rows(&group, 1e9, Copies::ALL) - cluster.kernel_start()
        };
        let ratio = seconds(&as_network) / seconds(a3);
        let efficiencies = a3.calibrated.link_efficiency.0 / a3.calibrated.network_efficiency.0;
        assert!((ratio / efficiencies - 1.0).abs() < 0.01, "{ratio}, {efficiencies}");
    }

    /// Two adapters for the four devices of a node: two groups of two devices each take the same one.
    #[test]
    fn groups_of_a_node_that_share_adapters_choose_alike() {
        let mut cluster = cluster();
        let gather = |cluster: &Cluster, dims: &[(u64, u64)]| {
            cluster.collective(Collective::AllGather, &Group::new(&all(cluster), dims), 16e9)
        };
        let dims = [&[(4, 1)][..], &[(8, 1)], &[(8, 2)], &[(4, 4)]];
        let own = dims.map(|dims| gather(&cluster, dims));
        cluster.tiers[1].adapters = Some(crate::cluster::Positive(2.0));
        let shared = dims.map(|dims| gather(&cluster, dims));
        // Inside of a node, all of its devices, and one of them, as before.
        for n in [0, 1, 3] {
            near(shared[n], own[n]);
        }
        near(own[2], 14.0 / 20.0);
        near(shared[2], 14.0 / 10.0);
        // All take the only one that there is.
        cluster.tiers[1].adapters = Some(crate::cluster::Positive(1.0));
        near(gather(&cluster, dims[2]), own[2]);
    }

    /// Four devices with a link to each of the three others: 100 GB/s are a third each.
    #[test]
    fn groups_of_a_mesh_have_the_links_between_them() {
        let mut cluster = cluster();
        cluster.tiers[0].links = Links::Mesh;
        let time = |kind, dims: &[(u64, u64)]| cluster.collective(kind, &Group::new(&all(&cluster), dims), 16e9);
        near(time(Collective::AllGather, &[(4, 1)]), 12.0 / 100.0);
        near(time(Collective::AllGather, &[(2, 1)]), 8.0 / (100.0 / 3.0));
        near(time(Collective::AllToAll, &[(4, 1)]), 12.0 / 100.0);
        near(time(Collective::AllToAll, &[(2, 2)]), 8.0 / (100.0 / 3.0));
        // Whoever passes arrays on uses one link, and so does a message.
        near(time(Collective::Shift, &[(4, 1)]), 16.0 / (100.0 / 3.0));
        near(cluster.message_over(0, 1e9), 0.03);
        // Between nodes there is a switch: a ring over two links of 10 GB/s, as many as inside of the node allow more.
        near(time(Collective::AllGather, &[(2, 4), (2, 1)]), 12.0 / 20.0);
        near(cluster.message_over(1, 1e9), 0.1);
    }

    #[test]
    fn an_all_to_all_on_two_tiers_by_hand() {
        let cluster = cluster();
        let time =
            |dims: &[(u64, u64)]| cluster.collective(Collective::AllToAll, &Group::new(&all(&cluster), dims), 16e9);
        near(time(&[(4, 1)]), 12.0 / 100.0);
        // Of 8 pieces of 2 GB, 4 leave the node at 10 GB/s, 3 go inside of it meanwhile.
        near(time(&[(8, 1)]), 8.0 / 10.0);
    }

    /// Rings of 4 along each of three axes, two links of 50 GB/s along each: 100 GB/s an axis, 300 in all.
    fn torus() -> Cluster {
        let mut torus = cluster();
        (torus.tiers[1].links, torus.tiers[1].gbps.0, torus.tiers[1].scale_up) = (Links::Torus, 300.0, true);
        torus.tiers[1].devices = Some(Count(64));
        torus
    }

    #[test]
    fn rings_of_a_torus_go_along_all_axes_of_a_group() {
        let torus = torus();
        let time = |kind, dims: &[(u64, u64)]| torus.collective(kind, &Group::new(&all(&torus), dims), 64e9);
        // An axis; two; all three.
        near(time(Collective::AllGather, &[(4, 1)]), 48.0 / 100.0);
        near(time(Collective::AllGather, &[(16, 1)]), 60.0 / 200.0);
        near(time(Collective::AllGather, &[(64, 1)]), 63.0 / 300.0);
        // Along another axis than the first, and along both others.
        near(time(Collective::AllGather, &[(4, 4)]), 48.0 / 100.0);
        near(time(Collective::ReduceScatter, &[(16, 4)]), 60.0 / 200.0);
        // A part of an axis is no ring: what goes there comes back over the same links.
        near(time(Collective::AllGather, &[(2, 1)]), 32.0 / 50.0);
        near(time(Collective::AllGather, &[(8, 4)]), 56.0 / 150.0);
        // A message has the links along an axis.
        near(torus.message_over(1, 1e9), 0.01);
    }

    /// Slices are cubes as nearly as can be.
    #[test]
    fn slices_have_axes_of_their_own() {
        let clusters = crate::known::clusters();
        let of = |name: &str, chips: u64| {
            let cluster = clusters.iter().find(|c| c.is_called(name)).expect("it is known").clone().with_slice(chips);
            (cluster.domain(0), cluster.domain(1))
        };
        assert_eq!([of("v5p", 64), of("v5p", 128), of("v5p", 512)], [(4, 64), (4, 128), (8, 512)]);
        assert_eq!([of("v6e", 256), of("v6e", 64), of("v6e", 8)], [(16, 256), (8, 64), (2, 8)]);
        // These are no cubes of powers of two, too many, or of one chip.
        assert_eq!([of("v5p", 24), of("v6e", 512), of("v5p", 1)], [(16, 8960), (16, 256), (16, 8960)]);
        assert_eq!(of("H100", 64).0, 8);
    }

    /// Over a ring of n devices with links of r in each direction, what each gives takes n / 8 times as long as over one link; axes are passed at once.
    #[test]
    fn all_to_alls_of_a_torus_pass_half_of_a_ring() {
        let torus = torus();
        let time = |dims: &[(u64, u64)]| torus.collective(Collective::AllToAll, &Group::new(&all(&torus), dims), 64e9);
        near(time(&[(4, 1)]), 64.0 * (4.0 / 8.0) / 50.0);
        near(time(&[(64, 1)]), 64.0 * (4.0 / 8.0) / 50.0);
        // Two of the four have one link between them, for half of what each gives.
        near(time(&[(2, 1)]), 32.0 / 50.0);
        // Of what leaves the axis a part.
        let rows =
            |outside: f64| torus.rows(&Group::new(&all(&torus), &[(64, 1)]), 64e9, Copies { outside, inside: 1.0 });
        near(rows(0.5) / rows(1.0), 1.0 / 16.0 + 0.5 * 15.0 / 16.0);
        // More ranks along the same axes are never faster, and what is inside of an axis is a part of what a ring takes.
        let groups = [2, 4, 8, 16, 32, 64].map(|ranks| Group::new(&all(&torus), &[(ranks, 1)]));
        let times = groups.each_ref().map(|group| torus.rows(group, 64e9, Copies::ALL));
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1] * (1.0 + 1e-12)), "{times:?}");
        // Along one axis after the other.
        let mut slow = torus;
        (slow.tiers[0].latency_us.0, slow.tiers[1].latency_us.0) = (1.0, 10.0);
        near(slow.ring_latency(&Group::new(&all(&slow), &[(64, 1)])), (3.0 + 2.0 * 3.0 * 10.0) * 1e-6);
        for group in groups.iter().chain([&Group::new(&all(&slow), &[(8, 4)])]) {
            assert!(slow.inside_latency(group) <= slow.ring_latency(group), "{group:?}");
        }
    }

    #[test]
    fn messages_take_the_nearest_tier() {
        let cluster = cluster();
        near(cluster.message_over(0, 1e9), 0.01);
        near(cluster.message_over(1, 1e9), 0.1);
        assert_eq!(cluster.collective(Collective::AllReduce, &Group::new(&all(&cluster), &[]), 1e9), 0.0);
    }

    #[test]
    fn more_bandwidth_is_never_slower() {
        let slow = cluster();
        for tier in 0..2 {
            let mut fast = slow.clone();
            fast.tiers[tier].gbps.0 *= 3.0;
            for kind in [
                Collective::AllGather,
                Collective::ReduceScatter,
                Collective::AllReduce,
                Collective::AllToAll,
                Collective::Shift,
            ] {
                for dims in [vec![(4, 1)], vec![(8, 1)], vec![(16, 2)], vec![(4, 4)]] {
                    let group = Group::new(&all(&slow), &dims);
                    assert!(fast.collective(kind, &group, 1e6) <= slow.collective(kind, &group, 1e6));
                }
            }
        }
    }
}
