//! A model's segments on the ranks of a strategy.

use super::layout::Layout;
use super::mesh::{Dense, Mesh};
use super::partition::{Note, shard};
use super::strategy::{Strategy, StrategyError};
use forebay_dsl::model::{CheckedModel, Scope};
use forebay_ir::{Graph, InputRole, OutputRole};
use rustc_hash::FxHashMap;

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
    let mesh = strategy.mesh()?;
    if let Some(loss) = model.losses.iter().find(|l| matches!(l.scope, Scope::Group | Scope::Global))
        && strategy.dp > 1
    {
        return Err(StrategyError::new(
            format!("the loss `{}` has statistics over several data-parallel ranks, which is not supported yet", loss.name),
            Some("use dp=1, or scope micro or sequence".to_string()),
        ));
    }
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
    for (s, segment) in model.segments.iter().enumerate() {
        let local = shard(&segment.forward, &mesh, strategy)?;
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
    }
    sharded.params = of_params(model, &of_segments, &mesh)?;
    if let Some(counts) = &model.counts {
        let local = shard(counts, &mesh, strategy)?;
        let sums = sums(&local.graph, &local.outputs, &mesh);
        sharded.count_sums = sums.into_iter().map(|((_, name), dims)| (name, dims)).collect();
        sharded.model.counts = Some(local.graph);
    }
    if strategy.ep > 1 && !sharded.notes.iter().flatten().any(|n| n.collective == "dispatch") {
        return Err(StrategyError::new(
            format!("ep = {}, but `{}` has no experts that tokens are grouped by", strategy.ep, model.name),
            Some("use ep = 1".to_string()),
        ));
    }
    Ok(sharded)
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
                    Some((axis, dims)) => format!("`{}` cut over {}", model.params[param].axes[*axis].0, mesh.describe(dims)),
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
