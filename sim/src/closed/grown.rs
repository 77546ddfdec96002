//! Collectives inside of layers that take longer with more data-parallel ranks: counts of tokens for load balance, which all ranks of a batch sum.
//!
//! The probe of a shard has the fewest such ranks. What layers take longer with others is the same part of every pass.

use crate::price::{Pricer, collective};
use forebay_cost::{Cluster, Domains, Group};
use forebay_plan::{Exchange, ExchangeKind, Kernel, Plan, Program};

/// A collective over the outermost dimension of a stage.
#[derive(Clone, Debug, PartialEq)]
struct Grown {
    kind: ExchangeKind,
    /// The other dimensions: size and stride.
    inner: Vec<(u64, u64)>,
    /// Bytes of a rank.
    piece: f64,
}

impl Grown {
    /// Seconds where the outermost dimension has `outer` ranks, `below` ranks apart.
    fn seconds(&self, cluster: &Cluster, domains: &Domains, [outer, below]: [u64; 2]) -> f64 {
        let mut dims = self.inner.clone();
        dims.push((outer, below));
        let group = Group::new(domains, &dims);
        let (what, bytes) = collective(self.kind, self.piece, group.ranks as f64);
        cluster.collective(what, &group, bytes)
    }
}

/// Those of a shard's layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Growth {
    /// Each kind and size, and the seconds of all of them in the probe.
    all: Vec<(Grown, f64)>,
    /// Ranks of the outermost dimension in the probe.
    outer: u64,
}

impl Growth {
    /// Seconds of a program's collectives over the outermost dimension of a stage, which are noted.
    pub fn note(&mut self, plan: &Plan, program: &Program, pricer: &Pricer) -> f64 {
        let Some(outer) = plan.mesh.iter().position(|d| d.name != "pp") else { return 0.0 };
        let mut seconds = 0.0;
        for instruction in &program.instructions {
            let Kernel::Exchange(k) = &instruction.kernel else { continue };
            if k.ragged.is_some() || !k.group.contains(&(outer as u32)) {
                continue;
            }
            let own = pricer.instruction(program, instruction).seconds;
            seconds += own;
            let grown = grown(plan, pricer, k, outer as u32);
            match self.all.iter_mut().find(|(known, _)| *known == grown) {
                Some((_, all)) => *all += own,
                None => self.all.push((grown, own)),
            }
        }
        self.outer = u64::from(plan.mesh[outer].size);
        seconds
    }

    /// How much longer these collectives take, as a multiple, where the outermost dimension of a stage has `outer` ranks, those inside of it, innermost first,
    /// being `inner`: 1 with as many as in the probe.
    pub fn factor(&self, cluster: &Cluster, outer: u64, inner: &[u64]) -> f64 {
        let below = inner.iter().product();
        let domains = |outer: u64| Domains::new(cluster, &[inner, &[outer]].concat());
        let (of_probe, of_stage) = (domains(self.outer), domains(outer));
        let (mut there, mut probe) = (0.0, 0.0);
        for (grown, seconds) in &self.all {
            let before = grown.seconds(cluster, &of_probe, [self.outer, below]);
            if before > 0.0 {
                probe += seconds;
                there += seconds * grown.seconds(cluster, &of_stage, [outer, below]) / before;
            }
        }
        if probe > 0.0 { there / probe } else { 1.0 }
    }
}

fn grown(plan: &Plan, pricer: &Pricer, k: &Exchange, outer: u32) -> Grown {
    let inner = k.group.iter().filter(|d| **d != outer);
    Grown {
        kind: k.kind(),
        inner: inner.map(|&d| (u64::from(plan.mesh[d as usize].size), pricer.stride(d))).collect(),
        piece: (k.piece() * k.dtype.bytes()) as f64,
    }
}
