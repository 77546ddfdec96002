//! The mesh: the ranks as a box whose dimensions serve both foldings.
//!
//! ```text
//! dp=4 cp=1 tp=2          dp  ├──────────── 4 ────────────┤ tp ├─ 2 ─┤         innermost on the right
//! edp=2 ep=4 etp=1        edp ├──── 2 ────┤ ep ├────────── 4 ────────┤
//! mesh                    dp.edp = 2      dp.ep = 2         tp = 2
//! ```
//!
//! Wherever either folding changes from one degree to the next the mesh has a boundary; so a degree is a run of mesh dimensions.

use super::divisors::{divisors, listed};
use super::strategy::{Strategy, StrategyError};
use forebay_ir::MeshDim;

/// What a mesh dimension is to tokens and heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dense {
    /// Part of `dp`.
    Dp,
    /// Part of `cp` round which keys travel.
    Ring,
    /// Any other part of `cp`.
    Cp,
    /// Part of `tp`.
    Tp,
    /// `pp`
    Pp,
}

/// What a mesh dimension is to experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sparse {
    /// Part of `edp`: ranks with copies of the same experts.
    Edp,
    /// Part of `ep`.
    Ep,
    /// Part of `etp`.
    Etp,
    /// `pp`
    Pp,
}

/// The ranks of a strategy. Dimensions of one rank are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// The dimensions, outermost first.
    pub dims: Vec<MeshDim>,
    /// What each is.
    pub kinds: Vec<(Dense, Sparse)>,
    /// Ranks of a node, where the strategy says it.
    pub node: Option<u64>,
    /// Ranks one after another that share parameters; the next so many have replicas.
    pub block: u64,
}

impl Mesh {
    pub(super) fn new(strategy: &Strategy) -> Result<Mesh, StrategyError> {
        let Strategy { dp, cp, tp, pp, ep, etp, .. } = *strategy;
        let stage = u64::from(dp).saturating_mul(cp.into()).saturating_mul(tp.into());
        let experts = u64::from(ep) * u64::from(etp);
        if stage > 1 << 24 {
            return Err(StrategyError::new(format!("{stage} ranks a stage are more than the most, {}", 1 << 24), None));
        }
        let (ring, inner) = strategy.rings()?;
        if !stage.is_multiple_of(experts) {
            let nearest: Vec<String> = (1..=stage)
                .filter(|n| (n * u64::from(etp)) <= stage && stage % (n * u64::from(etp)) == 0)
                .map(|n| n.to_string())
                .collect();
            return Err(StrategyError::new(
                format!("ep × etp = {experts} does not divide the {stage} ranks of a stage (dp × cp × tp)"),
                (!nearest.is_empty()).then(|| format!("use ep = {}", nearest.join(", "))),
            ));
        }
        // Ranks that share the width of an expert multiply the same rows: those of a row of the batch, whose positions they can give each other.
        let row = u64::from(tp) * u64::from(cp);
        if !row.is_multiple_of(u64::from(etp)) {
            return Err(StrategyError::new(
                format!(
                    "etp = {etp} does not divide tp × cp = {row}: the width of an expert is shared by ranks that have the same rows of the batch"
                ),
                Some(format!("use etp = {}", listed(&divisors(row)))),
            ));
        }
        let node = strategy.node_of_experts(experts)?;
        let block = strategy.sharing_block()?;
        // From the innermost rank on, where each degree ends.
        let dense = [(Dense::Tp, tp), (Dense::Cp, inner), (Dense::Ring, ring), (Dense::Dp, dp)];
        let edp = (stage / experts) as u32;
        let sparse = [(Sparse::Etp, etp), (Sparse::Ep, ep), (Sparse::Edp, edp)];
        let mut ends: Vec<u64> = ends(&dense).chain(ends(&sparse)).chain(node).chain([block]).collect();
        ends.sort_unstable();
        ends.dedup();
        let (mut dims, mut kinds, mut starts) = (vec![], vec![], vec![]);
        let mut start = 1;
        for end in ends.into_iter().filter(|&e| e > 1) {
            if end % start != 0 {
                if let Some(node) = node.filter(|node| *node == end || *node == start) {
                    return Err(StrategyError::new(
                        format!(
                            "node = {node} cuts across the degrees (tp = {tp}, cp = {cp}, dp = {dp}, etp = {etp}, ep = {ep})"
                        ),
                        Some(
                            "of a node's ranks and a degree that start at the same rank one has to divide the other"
                                .to_string(),
                        ),
                    ));
                }
                if strategy.hsdp.is_some() && (block == end || block == start) {
                    return Err(StrategyError::new(
                        format!(
                            "blocks of {block} ranks that share parameters (hsdp × cp × tp) cut across the degrees of experts (etp = {etp}, ep = {ep})"
                        ),
                        Some("one of a block and ep × etp has to divide the other".to_string()),
                    ));
                }
                return Err(StrategyError::new(
                    format!("the degrees of experts (etp = {etp}, ep = {ep}) cut across those of tokens (tp = {tp}, cp = {cp}, dp = {dp})"),
                    Some("one of two degrees that start at the same rank has to divide the other: powers of two always fit".to_string()),
                ));
            }
            kinds.push((covering(&dense, start), covering(&sparse, start)));
            dims.push((end / start) as u32);
            starts.push(start);
            start = end;
        }
        if pp > 1 {
            kinds.push((Dense::Pp, Sparse::Pp));
            dims.push(pp);
            starts.push(start);
        }
        kinds.reverse();
        dims.reverse();
        starts.reverse();
        // A degree that the end of a node, or of those who share parameters, cuts in two has its outer part first.
        let name = |(i, &kind): (usize, &(Dense, Sparse))| {
            let outer = match kinds.get(i + 1) == Some(&kind) {
                true if starts[i] == block => ".replicas",
                true => ".nodes",
                false => "",
            };
            format!("{}{outer}", name(kind, &kinds))
        };
        let names: Vec<String> = kinds.iter().enumerate().map(name).collect();
        let dims = names.into_iter().zip(dims).map(|(name, size)| MeshDim { name, size }).collect();
        Ok(Mesh { dims, kinds, node: strategy.node.map(u64::from), block })
    }

    /// The dimensions of experts' ranks, outermost first.
    pub fn of_experts(&self) -> Vec<u32> {
        self.sparse(Sparse::Ep)
    }

    /// The dimensions of experts' ranks that are between nodes, outermost first.
    pub fn between_nodes(&self) -> Vec<u32> {
        self.of_experts().into_iter().filter(|&d| self.is_between_nodes(d)).collect()
    }

    /// Are ranks along a dimension on different nodes? Not known where the strategy does not say how many ranks a node has.
    pub fn is_between_nodes(&self, dim: u32) -> bool {
        let within: u64 = self.dims[dim as usize + 1..].iter().map(|d| u64::from(d.size)).product();
        self.node.is_some_and(|node| within * u64::from(self.dims[dim as usize].size) > node)
    }

    /// Of the dimensions over which gradients are summed, those whose ranks share parameters, and those whose ranks have replicas; each outermost first.
    pub fn shared_and_replicas(&self, sums: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let step = |d: &u32| self.dims[*d as usize + 1..].iter().map(|d| u64::from(d.size)).product::<u64>();
        sums.iter().partition(|d| step(d) < self.block)
    }

    /// The dimensions that are this to tokens and heads, outermost first. All of `cp` is what [`Dense::Cp`] gives.
    pub fn dense(&self, kind: Dense) -> Vec<u32> {
        let of = |d: u32| self.kinds[d as usize].0;
        (0..self.dims.len() as u32).filter(|&d| of(d) == kind || (kind == Dense::Cp && of(d) == Dense::Ring)).collect()
    }

    /// The dimensions round which keys travel.
    pub fn ring(&self) -> Vec<u32> {
        self.dense(Dense::Ring)
    }

    /// The dimensions of `cp` in which ranks have parts of the heads while they attend.
    pub fn heads(&self) -> Vec<u32> {
        let ring = self.ring();
        self.dense(Dense::Cp).into_iter().filter(|d| !ring.contains(d)).collect()
    }

    /// The dimensions that are this to experts, outermost first.
    pub fn sparse(&self, kind: Sparse) -> Vec<u32> {
        (0..self.dims.len() as u32).filter(|&d| self.kinds[d as usize].1 == kind).collect()
    }

    /// Ranks of a group.
    pub fn ranks(&self, group: &[u32]) -> u64 {
        group.iter().map(|&d| u64::from(self.dims[d as usize].size)).product()
    }

    /// Names of a group, for people: `dp.ep × tp`.
    pub fn describe(&self, group: &[u32]) -> String {
        self.named(group, " × ")
    }

    /// Names of a group with something between them, for names.
    pub fn named(&self, group: &[u32], between: &str) -> String {
        group.iter().map(|&d| self.dims[d as usize].name.as_str()).collect::<Vec<_>>().join(between)
    }
}

fn ends<K>(degrees: &[(K, u32)]) -> impl Iterator<Item = u64> {
    degrees.iter().scan(1, |end, (_, n)| {
        *end *= u64::from(*n);
        Some(*end)
    })
}

/// The degree that has the rank `start` away from the first as its own step.
fn covering<K: Copy>(degrees: &[(K, u32)], start: u64) -> K {
    let at = ends(degrees).position(|end| start < end).unwrap_or(degrees.len() - 1);
    degrees[at].0
}

/// The name of a dimension: what it is to tokens, and to experts where that tells it apart from its neighbours.
fn name(kind: (Dense, Sparse), all: &[(Dense, Sparse)]) -> String {
    let dense = match kind.0 {
        Dense::Dp => "dp",
        Dense::Ring if all.iter().any(|k| k.0 == Dense::Cp) => "cp.ring",
        Dense::Cp if all.iter().any(|k| k.0 == Dense::Ring) => "cp.heads",
        Dense::Ring | Dense::Cp => "cp",
        Dense::Tp => "tp",
        Dense::Pp => "pp",
    };
    let sparse = match kind.1 {
        Sparse::Edp => "edp",
        Sparse::Ep => "ep",
        Sparse::Etp => "etp",
        Sparse::Pp => "pp",
    };
    let like: Vec<_> = all.iter().filter(|k| k.0 == kind.0).collect();
    // (Where nothing of it is of experts, parts of it are told apart by what cuts it.)
    let alone = like.len() == 1 || like.iter().all(|k| k.1 == Sparse::Edp);
    if alone { dense.to_string() } else { format!("{dense}.{sparse}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and sizes of a strategy's mesh.
    fn dims(strategy: &str) -> String {
        let mesh = Strategy::parse(strategy).unwrap().mesh().unwrap_or_else(|e| panic!("{strategy}: {e}"));
        mesh.dims.iter().map(|d| format!("{}={}", d.name, d.size)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn both_foldings_are_runs_of_dimensions() {
        assert_eq!(dims("dp=1"), "");
        assert_eq!(dims("dp=2,tp=4"), "dp=2 tp=4");
        assert_eq!(dims("dp=4,tp=2,ep=4"), "dp.edp=2 dp.ep=2 tp=2");
        assert_eq!(dims("dp=4,tp=2,ep=4,etp=2,pp=3"), "pp=3 dp=4 tp=2");
        assert_eq!(dims("cp=2,tp=4,ep=2,etp=2"), "cp=2 tp.ep=2 tp.etp=2");
        // The published layout of Pangu Ultra MoE: experts over TP8 × 4 nodes.
        assert_eq!(dims("tp=8,ep=32,dp=64,pp=16"), "pp=16 dp.edp=16 dp.ep=4 tp=8");
    }

    #[test]
    fn every_degree_is_as_large_as_asked_for() {
        for text in ["dp=4,tp=2,ep=4", "dp=8,cp=2,tp=4,ep=16,etp=2", "dp=3,tp=2,ep=6", "cp=4,ep=2"] {
            let strategy = Strategy::parse(text).unwrap();
            let mesh = strategy.mesh().unwrap();
            let dense = [(Dense::Dp, strategy.dp), (Dense::Cp, strategy.cp), (Dense::Tp, strategy.tp)];
            for (kind, n) in dense {
                assert_eq!(mesh.ranks(&mesh.dense(kind)), u64::from(n), "{text}: {kind:?}");
            }
            for (kind, n) in [(Sparse::Ep, strategy.ep), (Sparse::Etp, strategy.etp)] {
                assert_eq!(mesh.ranks(&mesh.sparse(kind)), u64::from(n), "{text}: {kind:?}");
            }
        }
    }

    /// Ranks that share parameters are neighbours, whatever else they are.
    #[test]
    fn parameters_are_shared_within_blocks() {
        assert_eq!(dims("dp=8,tp=2,zero=1,hsdp=2"), "dp.replicas=4 dp=2 tp=2");
        assert_eq!(dims("dp=8,zero=3,hsdp=8"), "dp=8");
        assert_eq!(dims("dp=8,ep=4,zero=3,hsdp=2"), "dp.edp=2 dp.ep.replicas=2 dp.ep=2");
        assert_eq!(dims("dp=16,ep=2,zero=3,hsdp=8"), "dp.edp.replicas=2 dp.edp=4 dp.ep=2");
        let all = "dp=16,ep=16,zero=1,hsdp=4,node=8,dispatch=hierarchical";
        assert_eq!(dims(all), "dp.ep.nodes=2 dp.ep.replicas=2 dp.ep=4");
        let mesh = Strategy::parse("dp=16,ep=2,zero=3,hsdp=8").unwrap().mesh().unwrap();
        assert_eq!(mesh.shared_and_replicas(&[0, 1, 2]), (vec![1, 2], vec![0]));
        // Experts' gradients are sums over ranks with the same experts alone.
        assert_eq!(mesh.shared_and_replicas(&[0, 1]), (vec![1], vec![0]));
        let refused = |text: &str| Strategy::parse(text).and_then(|s| s.mesh().map(|_| s)).unwrap_err().to_string();
        assert!(refused("dp=8,zero=1,hsdp=3").contains("does not divide dp = 8"));
        assert!(refused("dp=6,ep=3,zero=1,hsdp=2").contains("blocks of 2 ranks that share parameters"));
        assert!(refused("dp=8,hsdp=2").contains("zero = 0"), "{}", refused("dp=8,hsdp=2"));
    }

    #[test]
    fn foldings_that_cut_across_each_other_are_refused() {
        let refused = |text: &str| Strategy::parse(text).unwrap().mesh().unwrap_err().to_string();
        assert!(refused("dp=6,tp=2,ep=3").contains("cut across"), "{}", refused("dp=6,tp=2,ep=3"));
        assert!(refused("dp=2,ep=4").contains("does not divide the 2 ranks"), "{}", refused("dp=2,ep=4"));
    }
}
