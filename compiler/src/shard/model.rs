//! A model's segments on the ranks of a strategy.

use super::axes::weights;
use super::divisors::divisors;
use super::layout::Layout;
use super::mesh::{Dense, Mesh, Sparse};
use super::nearest::tried;
use super::partition::{Note, shard, shard_with_statistics};
use super::strategy::{EtpGather, Strategy, StrategyError};
use crate::shares::{Shares, weigh_before};
use forebay_dsl::model::{CheckedModel, Scope};
use forebay_ir::{AxisId, Graph, InputRole, Op, OutputRole, ReduceKind, ValueId};
use rustc_hash::FxHashMap;
use std::borrow::Cow;

/// How a parameter lies on the ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ParamShard {
    /// (number of the axis, mesh dimensions that cut it), in the order of its axes.
    pub cuts: Vec<(usize, Vec<u32>)>,
    /// The dimensions over which its gradient is a sum.
    pub sums: Vec<u32>,
}

impl ParamShard {
    /// The dimensions that cut any of its axes.
    pub fn dims(&self) -> Vec<u32> {
        self.cuts.iter().flat_map(|(_, dims)| dims).copied().collect()
    }
}

/// A model as one rank runs it.
#[derive(Clone, Debug)]
pub struct ShardedModel {
    /// The model with the graphs of a rank; tensors are still listed as wholes.
    pub model: CheckedModel,
    /// The ranks.
    pub mesh: Mesh,
    /// For each parameter how it lies.
    pub params: Vec<ParamShard>,
    /// For each segment, what is a sum over which dimensions, data parallelism included.
    pub sums: Vec<FxHashMap<(OutputRole, String), Vec<u32>>>,
    /// The same for the counts.
    pub count_sums: FxHashMap<String, Vec<u32>>,
    /// For each segment how its inputs and its outputs lie, in their order.
    pub layouts: Vec<(Vec<Layout>, Vec<Layout>)>,
    /// For each segment its collectives.
    pub notes: Vec<Vec<Note>>,
}

/// Shards all segments of a model.
///
/// # Errors
/// When the strategy does not fit the model.
pub fn shard_model(model: &CheckedModel, strategy: &Strategy) -> Result<ShardedModel, StrategyError> {
    let weighed = weighed(model, strategy.shares)?;
    share(&weighed, strategy).map_err(|error| tried(error, &weighed, strategy))
}

/// The model with the shares of its experts where they are to be multiplied in.
fn weighed(model: &CheckedModel, shares: Shares) -> Result<Cow<'_, CheckedModel>, StrategyError> {
    if shares != Shares::Before {
        return Ok(Cow::Borrowed(model));
    }
    let mut changed = model.clone();
    let done: usize = changed.segments.iter_mut().map(|s| weigh_before(&mut s.forward)).sum();
    if done > 0 {
        return Ok(Cow::Owned(changed));
    }
    let help = "leave `shares` out: it is for tokens that choose experts, whose results are linear in what the down projection reads, \
                multiplied with shares and read by nothing else";
    Err(StrategyError::new(
        format!("shares = {shares}: no shares of `{}` can be multiplied in there", model.name),
        Some(help.to_string()),
    ))
}

/// The same, with hints that nobody has tried.
pub(super) fn share(model: &CheckedModel, strategy: &Strategy) -> Result<ShardedModel, StrategyError> {
    let mesh = strategy.mesh()?;
    let mut sharded = ShardedModel {
        model: model.clone(),
        mesh: mesh.clone(),
        params: vec![],
        sums: vec![],
        count_sums: FxHashMap::default(),
        layouts: vec![],
        notes: vec![],
    };
    let mut of_segments: Vec<Vec<ParamShard>> = vec![];
    let mut rows_in_parts = false;
    for (s, segment) in model.segments.iter().enumerate() {
        let statistics = statistics(model, &segment.forward, &mesh)?;
        let local = shard_with_statistics(&segment.forward, &mesh, strategy, statistics)?;
        sharded.sums.push(sums(&local.graph, &local.outputs, &mesh));
        let params = segment.forward.inputs.iter().zip(&local.inputs).filter(|(i, _)| i.role == InputRole::Param);
        let params = params.zip(&local.gradient_sums).map(|((input, layout), sums)| {
            let axes = segment.forward.ty(input.value).axes.iter().enumerate();
            let cuts = axes.filter(|(_, a)| !layout.of(**a).is_empty()).map(|(i, a)| (i, layout.of(*a).to_vec()));
            ParamShard { cuts: cuts.collect(), sums: sums.clone() }
        });
        of_segments.push(params.collect());
        sharded.model.segments[s].forward = local.graph;
        sharded.layouts.push((local.inputs, local.outputs));
        sharded.notes.push(local.notes);
        rows_in_parts |= local.rows_in_parts;
    }
    sharded.params = of_params(model, &of_segments, &mesh)?;
    if let Some(counts) = &model.counts {
        let local = shard(counts, &mesh, strategy)?;
        let sums = sums(&local.graph, &local.outputs, &mesh);
        sharded.count_sums = sums.into_iter().map(|((_, name), dims)| (name, dims)).collect();
        sharded.model.counts = Some(local.graph);
    }
    let groups = sharded.notes.iter().flatten().any(|n| n.collective == "dispatch");
    if strategy.ep > 1 && !groups {
        check_choosing_experts(model, &sharded, strategy)?;
    }
    if strategy.etp_gather == EtpGather::After && !rows_in_parts {
        return Err(StrategyError::new(
            format!(
                "etp_gather = after: `{}` sends no rows to experts whose elements etp = {} divides",
                model.name, strategy.etp
            ),
            Some("leave `etp_gather` out".to_string()),
        ));
    }
    Ok(sharded)
}

/// Experts that choose tokens (arXiv 2202.09368) see whole rows of the batch, and no rows are sent: they are shared by the ranks that have the same
/// rows, `tp`, which is what `ep` can be for them.
fn check_choosing_experts(
    model: &CheckedModel,
    sharded: &ShardedModel,
    strategy: &Strategy,
) -> Result<(), StrategyError> {
    let (ep, tp) = (strategy.ep, strategy.tp);
    let Some((param, axis)) = choosing_experts(model) else {
        return Err(StrategyError::new(
            format!("ep = {ep}, but `{}` has no experts that tokens are grouped by", model.name),
            Some("use ep = 1".to_string()),
        ));
    };
    let (name, _, experts) = &model.params[param].axes[axis];
    let dims = sharded.mesh.sparse(Sparse::Ep);
    if sharded.params[param].cuts.contains(&(axis, dims)) {
        return Ok(());
    }
    let works: Vec<String> = divisors(*experts).into_iter().skip(1).take(4).map(|n| format!("tp={n},ep={n}")).collect();
    Err(StrategyError::new(
        format!(
            "ep = {ep} with tp = {tp} and etp = {}: the {experts} experts of `{}` (axis `{name}`) choose tokens, and are shared by `tp` alone",
            strategy.etp, model.name
        ),
        Some(format!("use ep = 1 and etp = 1, which leave them to `tp`, or {}", works.join(" or "))),
    ))
}

/// A parameter of experts that no rows are sent to, and the number of its axis that counts them: a product has it for every expert by itself.
fn choosing_experts(model: &CheckedModel) -> Option<(usize, usize)> {
    model.layers.iter().find_map(|layer| {
        let graph = &model.segments[layer.segment].forward;
        let weights = weights(graph);
        let params: Vec<ValueId> =
            graph.inputs.iter().filter(|i| i.role == InputRole::Param).map(|i| i.value).collect();
        graph.values().find_map(|value| {
            let node = graph.node(value);
            let Op::Contract { .. } = &node.op else { return None };
            let &[a, b] = &node.operands[..] else { return None };
            let by_itself = |axis: &AxisId| node.ty.has(*axis) && graph.ty(a).has(*axis) && graph.ty(b).has(*axis);
            [a, b].into_iter().find_map(|operand| {
                let param = weights[operand.index()]?;
                let axis = graph.ty(operand).axes.iter().position(by_itself)?;
                let number = params.iter().position(|p| *p == param)?;
                Some((*layer.params.get(number)?, axis))
            })
        })
    })
}

/// What losses with a scope beyond the rank's own micro-batch take over several data-parallel ranks: the sums over the batch in what they are made
/// from. The group's are the ranks that share experts; `global` is all.
fn statistics(model: &CheckedModel, graph: &Graph, mesh: &Mesh) -> Result<FxHashMap<ValueId, Vec<u32>>, StrategyError> {
    let data = mesh.dense(Dense::Dp);
    let mut found: FxHashMap<ValueId, Vec<u32>> = FxHashMap::default();
    for output in graph.outputs.iter().filter(|o| o.role == OutputRole::Loss) {
        let scope = model.losses.iter().find(|l| l.name == output.name).map(|l| l.scope);
        let group: Vec<u32> = match scope {
            Some(Scope::Global) => data.clone(),
            Some(Scope::Group) => data.iter().copied().filter(|&d| is_expert_dim(mesh, d)).collect(),
            _ => continue,
        };
        if group.is_empty() {
            continue;
        }
        for value in batch_reductions(graph, output.value) {
            // A mean over ranks is what a sum becomes; of a maximum, or of whole numbers, it would be something else.
            let is_sum = !matches!(graph.node(value).op, Op::Reduce { kind: ReduceKind::Max | ReduceKind::Min, .. });
            if !is_sum || !graph.ty(value).dtype.is_float() {
                return Err(StrategyError::new(
                    format!(
                        "the loss `{}` takes `{}` over several data-parallel ranks, which is no sum of floats",
                        output.name,
                        graph.node(value).name
                    ),
                    Some("use dp = 1, or scope micro".to_string()),
                ));
            }
            if found.insert(value, group.clone()).is_some_and(|other| other != group) {
                return Err(StrategyError::new(
                    format!("`{}` is a statistic of losses of different scopes", graph.node(value).name),
                    None,
                ));
            }
        }
    }
    Ok(found)
}

/// The reductions over rows that a value is made from.
fn batch_reductions(graph: &Graph, value: ValueId) -> Vec<ValueId> {
    let is_batch = |a: &AxisId| graph.axis(*a).label.as_deref() == Some("batch");
    let (mut stack, mut seen, mut sums) = (vec![value], vec![false; graph.nodes.len()], vec![]);
    while let Some(value) = stack.pop() {
        if std::mem::replace(&mut seen[value.index()], true) {
            continue;
        }
        let node = graph.node(value);
        match &node.op {
            Op::Reduce { over, .. } | Op::ScatterAdd { over, .. } if over.iter().any(is_batch) => sums.push(value),
            _ => stack.extend(&node.operands),
        }
    }
    sums.sort_unstable();
    sums
}

fn is_expert_dim(mesh: &Mesh, dim: u32) -> bool {
    mesh.kinds[dim as usize].1 == Sparse::Ep
}

/// The outputs that are sums, and over what.
fn sums(graph: &Graph, layouts: &[Layout], mesh: &Mesh) -> FxHashMap<(OutputRole, String), Vec<u32>> {
    let data = mesh.dense(Dense::Dp);
    let summed = |role| matches!(role, OutputRole::Loss | OutputRole::Metric | OutputRole::Stat | OutputRole::Count);
    let outputs = graph.outputs.iter().zip(layouts).filter(|(o, _)| summed(o.role));
    outputs
        .map(|(o, layout)| {
            let mut dims = [&data[..], &layout.partial[..]].concat();
            dims.sort_unstable();
            ((o.role, o.name.clone()), dims)
        })
        .collect()
}

/// How each parameter lies, which all segments that use it must agree on.
fn of_params(
    model: &CheckedModel,
    of_segments: &[Vec<ParamShard>],
    mesh: &Mesh,
) -> Result<Vec<ParamShard>, StrategyError> {
    let mut params: Vec<Option<ParamShard>> = vec![None; model.params.len()];
    for layer in &model.layers {
        for (&param, shard) in layer.params.iter().zip(&of_segments[layer.segment]) {
            let known = params[param].get_or_insert_with(|| shard.clone());
            if known != shard {
                let tell = |s: &ParamShard| match s.cuts.first() {
                    Some((axis, dims)) => {
                        format!("`{}` cut over {}", model.params[param].axes[*axis].0, mesh.describe(dims))
                    }
                    None => format!("whole, its gradient a sum over {}", mesh.describe(&s.sums)),
                };
                return Err(StrategyError::new(
                    format!(
                        "the parameter `{}` is shared by layers that want it in different layouts: {} and {}",
                        model.params[param].name,
                        tell(known),
                        tell(shard)
                    ),
                    None,
                ));
            }
        }
    }
    let data = mesh.dense(Dense::Dp);
    let unused = || ParamShard { cuts: vec![], sums: data.clone() };
    Ok(params.into_iter().map(|p| p.unwrap_or_else(unused)).collect())
}
