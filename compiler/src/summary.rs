//! What a model is made of: parameters, FLOPs and activation bytes, by block.

use forebay_dsl::model::CheckedModel;
use forebay_ir::cost;
use indexmap::IndexMap;

/// Totals of a model at its batch and sequence length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Parameters and states (router biases), elements.
    pub params: u64,
    /// Those of them that take part in one token, elements.
    pub active_params: u64,
    /// Matrix-product FLOPs of the forward pass of one micro-batch (causal attention at half).
    pub forward_flops: f64,
    /// Tokens of a micro-batch.
    pub tokens: u64,
}

impl Summary {
    /// Sums over a model's layers.
    pub fn new(model: &CheckedModel) -> Summary {
        let tokens = model.batch * model.seq;
        // Each segment is looked at once, however many layers it has.
        let flops: Vec<f64> = model.segments.iter().map(|s| cost::model_flops(&s.forward)).collect();
        let active: Vec<Vec<f64>> = model.segments.iter().map(|s| active(&s.forward, tokens)).collect();
        let mut of_param: IndexMap<usize, f64> = IndexMap::new();
        let mut summary = Summary { tokens, ..Summary::default() };
        for layer in &model.layers {
            summary.forward_flops += flops[layer.segment];
            for (param, active) in layer.params.iter().zip(&active[layer.segment]) {
                let most = of_param.entry(*param).or_default();
                *most = (*most).max(*active);
            }
        }
        let states: u64 = model.states.iter().map(|s| s.numel()).sum();
        summary.params = model.params.iter().map(|p| p.numel()).sum::<u64>() + states;
        summary.active_params = of_param.values().sum::<f64>().round() as u64 + states;
        summary
    }
}

/// For each `Param` input in order: how many of its elements take part in one token.
fn active(graph: &forebay_ir::Graph, tokens: u64) -> Vec<f64> {
    cost::active_parameters(graph, tokens).into_iter().map(|(_, active)| active).collect()
}
